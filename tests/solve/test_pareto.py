"""The front in two goals is that of enumeration: every point is there, and none that another one dominates."""

from __future__ import annotations

import numpy as np
import pytest
from checks.small_questions import enumerate_question, small_question

from layoutopt.optimizer.solve.pareto import pareto_front
from layoutopt.optimizer.specs.errors import InputError

APART = 1e-4
"""Relative distance below which the solver's rounding may join two points."""


@pytest.mark.parametrize(("seed", "goals"), [(1, ("days", "gpus")), (3, ("time", "cost"))])
def test_the_front_is_that_of_enumeration(seed: int, goals: tuple[str, str]) -> None:
    """No layout dominates a point, and every layout that none dominates is near a point."""
    question = small_question(seed)
    every = enumerate_question(question)
    first, second = (every.goals[name] for name in goals)
    front = pareto_front(question.workload, question.cluster, question.options, goals)
    assert front.complete and front.points and all(point.proven for point in front.points)
    for one, other in (point.values for point in front.points):
        assert not ((first < one * (1 - APART)) & (second <= other * (1 + 1e-9))).any()
        assert not ((first <= one * (1 + 1e-9)) & (second < other * (1 - APART))).any()
    for one, other in zip(first.tolist(), second.tolist(), strict=True):
        found = np.array([point.values for point in front.points])
        assert ((found[:, 0] <= one * (1 + APART)) & (found[:, 1] <= other * (1 + APART))).any()


def test_goals_are_two_quantities() -> None:
    """One goal twice, or a statistic, is refused in one line."""
    question = small_question(0)
    for goals in (("days", "days"), ("days", "expected")):
        with pytest.raises(InputError, match=r"goal twice|no quantity"):
            pareto_front(question.workload, question.cluster, question.options, goals)
