"""One rule book: what solve proves, evaluate accepts and export launches; what export writes, import reads back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from checks.agreement import TRAINERS, answer, disagreement_on_layout, random_layout, random_question

from layoutopt.optimizer.specs.loading import load_cluster

if TYPE_CHECKING:
    from checks.agreement import Trainer

LAYOUTS, QUESTIONS = 30, 3
"""For each trainer; ``benchmarks/agreement.py`` asks thousands and hundreds."""


@pytest.mark.parametrize("trainer", TRAINERS, ids=str)
def test_rules_accept_what_export_writes(trainer: Trainer) -> None:
    """Random layouts: the rules accept exactly what the exporter does, which reads back as it was."""
    rng = np.random.default_rng(sum(map(ord, str(trainer))))
    cluster = load_cluster("h100x256")
    for _ in range(LAYOUTS):
        layout, model = random_layout(rng)
        assert disagreement_on_layout(trainer, layout, model, cluster) == "", layout


@pytest.mark.parametrize("trainer", TRAINERS, ids=str)
def test_answers_are_valid_and_launchable_at_their_price(trainer: Trainer) -> None:
    """Random questions: the plan is valid, costs the same to the last bit, is exported and read back."""
    rng = np.random.default_rng(1 + sum(map(ord, str(trainer))))
    found = []
    for _ in range(QUESTIONS):
        question = random_question(rng, trainer)
        found.append(answer(question))
        assert found[-1].fault == "", question
    assert found
