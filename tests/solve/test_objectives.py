"""The best layout in every objective is that of joint enumeration: layouts, stages, recomputation, sets of constants."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from checks.small_questions import enumerate_question, small_question, varied_constants

from layoutopt.optimizer.cost.quantities import GOALS
from layoutopt.optimizer.solve.api import solve_layout
from layoutopt.optimizer.solve.certificate import Status

QUESTIONS, SAMPLED, SAMPLES = 40, 20, 16
FEW = 3
"""Questions of a plain run; tests/long.txt leaves out the others."""


def _seeds(number: int) -> list[object]:
    return [pytest.param(seed, id=f"{'more-' if seed >= FEW else ''}{seed}") for seed in range(number)]


STATISTICS = ("expected", "regret", "regret:mean", "quantile:0.9", "quantile:0.5")


@pytest.mark.parametrize("seed", _seeds(QUESTIONS))
def test_objectives_equal_enumeration(seed: int) -> None:
    """Days with failures, cost, energy, GPUs and memory: no layout that fits is better, and the bound holds for all."""
    question = small_question(seed)
    every = enumerate_question(question)
    for goal in [name for place, name in enumerate(GOALS) if place and (seed + place) % 2]:
        asked = replace(question, options=replace(question.options, minimize=goal))
        plan = solve_layout(asked.workload, asked.cluster, asked.options)
        if not len(every.goals[goal]):
            assert plan.status is Status.INFEASIBLE and plan.outcome is None
            continue
        assert (
            plan.outcome is not None
            and plan.estimate is not None
            and plan.outcome.proven
            and plan.status is Status.OPTIMAL
        ), goal
        best = float(every.goals[goal].min())
        slack = plan.certificate.rounding_s / plan.estimate.step_time_s if goal != "memory" else 1e-4
        assert plan.outcome.value == pytest.approx(best, rel=1e-9 + slack), goal
        assert plan.outcome.bound <= best * (1 + 1e-9), goal
        assert plan.outcome.first_value >= plan.outcome.value * (1 - 1e-9), goal


@pytest.mark.parametrize("seed", _seeds(SAMPLED))
def test_statistics_equal_enumeration(seed: int) -> None:
    """Mean, quantile and regret over 16 sets of constants: no layout with any stages is better."""
    question = small_question(seed)
    samples = varied_constants(question, seed, SAMPLES)
    question = replace(question, options=replace(question.options, samples=samples))
    every = enumerate_question(question)
    if not len(every.steps_s):
        return
    regrets = every.steps_s / every.steps_s.min(axis=0) - 1
    expected = {
        "expected": every.steps_s.mean(axis=1).min(),
        "regret": regrets.max(axis=1).min(),
        "regret:mean": regrets.mean(axis=1).min(),
        "quantile:0.9": np.sort(every.steps_s, axis=1)[:, 14].min(),
        "quantile:0.5": np.sort(every.steps_s, axis=1)[:, 7].min(),
    }
    for name in STATISTICS if seed < 4 else (STATISTICS[seed % 5], STATISTICS[(seed + 1) % 5]):
        asked = replace(question.options, minimize=name)
        plan = solve_layout(question.workload, question.cluster, asked)
        assert (
            plan.outcome is not None
            and plan.estimate is not None
            and plan.outcome.proven
            and plan.status is Status.OPTIMAL
        ), name
        slack = plan.certificate.rounding_s / plan.estimate.step_time_s
        assert plan.outcome.value == pytest.approx(float(expected[name]), rel=1e-9, abs=2 * slack), name
        assert plan.outcome.samples == SAMPLES
