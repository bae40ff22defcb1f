"""Stages found by enumeration along paths are the best of all, and what it excludes has nothing faster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from checks.enumeration import solve_stages
from checks.operations import terms_of

from layoutopt.optimizer.cost.orders import HopOverlap
from layoutopt.optimizer.frameworks.stage_rule import FREE, MEGATRON, NEAR_EQUAL, StageRule
from layoutopt.optimizer.solve.model.coefficients import rounding_s
from layoutopt.optimizer.solve.model.paths import Paths
from layoutopt.optimizer.solve.search.enumerate_stages import fastest_stages
from layoutopt.optimizer.specs.vocabulary import Schedule

if TYPE_CHECKING:
    from layoutopt.optimizer.cost.terms import IntArray, StageTerms

SHAPES = {
    Schedule.ONE_F_ONE_B: [(2, 1, 4), (3, 1, 6), (4, 1, 8), (4, 1, 4), (5, 1, 10)],
    Schedule.GPIPE: [(2, 1, 4), (4, 1, 8)],
    Schedule.ZB_H1: [(2, 1, 4), (3, 1, 6), (4, 1, 8)],
    Schedule.INTERLEAVED: [(2, 2, 4), (2, 3, 8), (3, 2, 6), (4, 2, 8)],
    Schedule.ZB_V: [(2, 2, 4), (3, 2, 6)],
    Schedule.DUALPIPE_V: [(2, 2, 4), (3, 2, 6)],
}
MIXED: dict[Schedule, list[tuple[int, int, int, tuple[int, ...]]]] = {
    Schedule.NONE: [(1, 1, 3, (2, 3))],
    Schedule.ONE_F_ONE_B: [(2, 1, 4, (2, 3)), (3, 1, 6, (1, 4)), (3, 1, 4, (2, 2, 2)), (4, 1, 8, (4, 1))],
    Schedule.GPIPE: [(3, 1, 4, (2, 1, 3))],
    Schedule.INTERLEAVED: [(2, 2, 4, (1, 4)), (3, 2, 6, (1, 6)), (2, 3, 4, (1, 6)), (2, 2, 4, (3, 2))],
    Schedule.ZB_V: [(2, 2, 4, (1, 4)), (3, 2, 6, (2, 5))],
}
"""Ranks, chunks and micro-batches, and blocks of each kind in the order of the model."""


@pytest.mark.parametrize("rule", [FREE, MEGATRON, NEAR_EQUAL], ids=["free", "uniform", "near-equal"])
@pytest.mark.parametrize("schedule", list(SHAPES))
def test_the_answer_is_that_of_pricing_every_choice(schedule: Schedule, rule: StageRule) -> None:
    """With memory from plenty to too little, asked for less than something slower, just the best, and less than it."""
    rng = np.random.default_rng(3)
    decided = excluded = 0
    for pp, vp, m in SHAPES[schedule] * 6:
        terms = terms_of(rng, schedule, pp, vp, m, 1, overlap=HopOverlap(int(rng.integers(0, 3))))
        seen = compare(rng, terms, np.array([pp * vp + int(rng.integers(-1, 4))]), rule)
        decided, excluded = decided + seen[0], excluded + seen[1]
    assert excluded
    assert decided or rule is NEAR_EQUAL


@pytest.mark.parametrize("rule", [FREE, MEGATRON], ids=["free", "uniform"])
@pytest.mark.parametrize("schedule", list(MIXED))
def test_so_it_is_with_several_kinds_of_blocks(schedule: Schedule, rule: StageRule) -> None:
    """Runs that end in any rank's first chunk are decided; those that end in a later one are left open."""
    rng = np.random.default_rng(5)
    decided = excluded = 0
    for pp, vp, m, counts in MIXED[schedule] * 6:
        terms = terms_of(rng, schedule, pp, vp, m, len(counts), overlap=HopOverlap(int(rng.integers(0, 3))))
        seen = compare(rng, terms, np.array(counts), rule)
        decided, excluded = decided + seen[0], excluded + seen[1]
    assert excluded
    assert decided


def compare(
    rng: np.random.Generator, terms: StageTerms, counts: IntArray, rule: StageRule
) -> tuple[int, int]:
    """Compare enumerations with pricing every choice; count those that found the best, and excluded something faster."""
    terms.capacity_bytes[0] = rng.uniform(2, 12) * counts.sum() / terms.pp[0]
    terms.may_recompute[0] = bool(rng.integers(0, 2))
    best = solve_stages(terms, counts, rule)
    rounding = rounding_s(counts)
    if best is None:
        found = fastest_stages(terms, counts, rule, Paths(), 1e3, rounding)
        assert found.blocks is None
        return 0, 0
    known = Paths()
    known.price(terms, 0, best.blocks, best.recomputed)
    slower = fastest_stages(terms, counts, rule, Paths(), best.step_time_s * 1.3, rounding)
    equal = fastest_stages(terms, counts, rule, Paths(), best.step_time_s, rounding)
    none = fastest_stages(terms, counts, rule, Paths(), best.step_time_s * (1 - 1e-6), rounding)
    gone = fastest_stages(terms, counts, rule, known, best.step_time_s * 0.8, rounding, most_states=0)
    assert equal.blocks is None and none.blocks is None and gone.blocks is None
    for paths in (Paths(), known):  # what is there is not excluded, however little is known
        for most in (0, 1, 40_000):
            just = best.step_time_s * (1 + 1e-9)
            found = fastest_stages(terms, counts, rule, paths, just, 0.0, most_states=most)
            assert not found.proven or found.step_s == pytest.approx(best.step_time_s, rel=1e-12)
    if slower.blocks is not None:
        assert slower.step_s >= best.step_time_s * (1 - 1e-12)
    if slower.proven:
        assert slower.step_s == pytest.approx(best.step_time_s, abs=2 * rounding)
        assert slower.blocks is not None
    if rule is not NEAR_EQUAL and len(counts) == 1:
        assert slower.proven and equal.proven
    return int(slower.proven), int(gone.proven)
