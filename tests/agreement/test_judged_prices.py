"""Answers state the step of the order of operations that really runs; ``benchmarks/judged.py`` asks all questions."""

from __future__ import annotations

import pytest
from checks.judged_answers import Asked, hear

from layoutopt.optimizer.frameworks.registry import Framework

QUESTIONS = [
    ("llama3-8b", "h100-256", Framework.MEGATRON),
    ("llama2-70b", "a100-512", Framework.MEGATRON),
    ("nemotron4-15b", "a100-384-opa", Framework.MEGATRON),  # transfers of warm-up and cool-down weigh here
    ("gpt3-175b", "a100-512", Framework.MEGATRON),
]


@pytest.mark.parametrize(("model", "cluster", "framework"), QUESTIONS)
def test_answers_are_priced_as_judged(model: str, cluster: str, framework: Framework) -> None:
    """Prices of the answer and its near-ties are within 0.5%, and no neighbour is judged 0.1% faster."""
    hearing = hear(Asked.named(model, cluster, framework), moves=12)
    assert hearing.sentences
    assert {sentence.what: sentence.error for sentence in hearing.sentences if not sentence.agrees} == {}
    assert {other.what: other.judged_s for other in hearing.faster} == {}
