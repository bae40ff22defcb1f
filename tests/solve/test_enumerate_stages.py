"""Stages found by enumeration along paths are the best of all, and what it excludes has nothing faster."""

from __future__ import annotations

import numpy as np
import pytest
from checks.enumeration import solve_stages
from checks.operations import terms_of

from layoutopt.optimizer.frameworks.stage_rule import FREE, MEGATRON, NEAR_EQUAL, StageRule
from layoutopt.optimizer.solve.model.coefficients import rounding_s
from layoutopt.optimizer.solve.model.paths import Paths
from layoutopt.optimizer.solve.search.enumerate_stages import fastest_stages
from layoutopt.optimizer.specs.vocabulary import Schedule

SHAPES = {
    Schedule.ONE_F_ONE_B: [(2, 1, 4), (3, 1, 6), (4, 1, 8), (4, 1, 4), (5, 1, 10)],
    Schedule.GPIPE: [(2, 1, 4), (4, 1, 8)],
    Schedule.ZB_H1: [(2, 1, 4), (3, 1, 6), (4, 1, 8)],
    Schedule.INTERLEAVED: [(2, 2, 4), (2, 3, 8), (3, 2, 6), (4, 2, 8)],
}


@pytest.mark.parametrize("rule", [FREE, MEGATRON, NEAR_EQUAL], ids=["free", "uniform", "near-equal"])
@pytest.mark.parametrize("schedule", list(SHAPES))
def test_the_answer_is_that_of_pricing_every_choice(schedule: Schedule, rule: StageRule) -> None:
    """With memory from plenty to too little, asked for less than something slower, just the best, and less than it."""
    rng = np.random.default_rng(3)
    decided = excluded = 0
    for pp, vp, m in SHAPES[schedule] * 6:
        terms = terms_of(rng, schedule, pp, vp, m, 1, overlap=bool(rng.integers(0, 2)))
        counts = np.array([pp * vp + int(rng.integers(-1, 4))])
        terms.capacity_bytes[0] = rng.uniform(2, 12) * counts.sum() / pp
        terms.may_recompute[0] = bool(rng.integers(0, 2))
        best = solve_stages(terms, counts, rule)
        rounding = rounding_s(counts)
        if best is None:
            found = fastest_stages(terms, counts, rule, Paths(), 1e3, rounding)
            assert found.blocks is None
            continue
        slower = fastest_stages(terms, counts, rule, Paths(), best.step_time_s * 1.3, rounding)
        equal = fastest_stages(terms, counts, rule, Paths(), best.step_time_s, rounding)
        none = fastest_stages(terms, counts, rule, Paths(), best.step_time_s * (1 - 1e-6), rounding)
        assert equal.blocks is None and none.blocks is None
        known = Paths()
        known.price(terms, 0, best.blocks, best.recomputed)
        for paths in (Paths(), known):  # what is there is not excluded, however little is known
            for most in (0, 1, 40_000):
                found = fastest_stages(
                    terms, counts, rule, paths, best.step_time_s * (1 + 1e-9), 0.0, most_states=most
                )
                assert not found.proven or found.step_s == pytest.approx(best.step_time_s, rel=1e-12)
        gone = fastest_stages(terms, counts, rule, known, best.step_time_s * 0.8, rounding, most_states=0)
        excluded += gone.proven
        if slower.blocks is not None:
            assert slower.step_s >= best.step_time_s * (1 - 1e-12)
        if slower.proven:
            assert slower.step_s == pytest.approx(best.step_time_s, abs=2 * rounding)
            assert slower.blocks is not None
            decided += 1
        if rule.split is NEAR_EQUAL.split:
            continue  # choices are a superset of the rule's: a faster one of the others leaves the answer open
        assert slower.proven or rule is FREE
        assert equal.proven or rule is FREE
    assert excluded
    assert decided or rule is NEAR_EQUAL
