"""What the megatron-core package itself answers, recorded by ``benchmarks/referees``: schedules, layout strings, groups."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from checks.megatron_core import answer, questions

RECORDED = json.loads((Path(__file__).parents[1] / "data" / "referees" / "megatron_core.json").read_text())


def test_every_question_is_recorded() -> None:
    """None is left out."""
    assert [row["question"] for row in RECORDED] == questions()


@pytest.mark.parametrize("kind", ["held", "stages", "groups"])
def test_answers_are_those_of_megatron_core(kind: str) -> None:
    """Chunks in flight on every rank, layers of every virtual stage of a layout string, members of process groups."""
    rows = [row for row in RECORDED if kind in row["question"]]
    assert len(rows) >= 48
    assert [row for row in rows if answer(row["question"]) != row["answer"]] == []
