"""Stacks whose kinds alternate are cut behind any layer: every part of the search agrees with pricing every choice."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from checks.enumeration import solve_stages
from checks.operations import terms_of

from layoutopt.optimizer.cost.batch import CODES, DEGREES, Codebook, LayoutBatch
from layoutopt.optimizer.cost.orders import HopOverlap
from layoutopt.optimizer.cost.step import step_s
from layoutopt.optimizer.frameworks.stage_rule import (
    FREE,
    MEGATRON,
    NEAR_EQUAL,
    Recomputation,
    StageRule,
)
from layoutopt.optimizer.solve.model.coefficients import rounding_s
from layoutopt.optimizer.solve.model.cp_model import CpModel, SliceStatus
from layoutopt.optimizer.solve.model.paths import Paths
from layoutopt.optimizer.solve.model.slices import tuple_slice
from layoutopt.optimizer.solve.search.bound import lower_bound
from layoutopt.optimizer.solve.search.construct import by_chunk, good_stages
from layoutopt.optimizer.solve.search.enumerate_stages import fastest_stages
from layoutopt.optimizer.solve.search.mean_blocks import is_long, mean_blocks
from layoutopt.optimizer.solve.verify.program import MARGIN, OwnPaths, ProgramOutcome, look_for_faster
from layoutopt.optimizer.solve.verify.room import may_be_below
from layoutopt.optimizer.specs.vocabulary import Schedule

if TYPE_CHECKING:
    from checks.enumeration import Enumerated

    from layoutopt.optimizer.cost.terms import IntArray, StageTerms

RULES = {"free": FREE, "uniform": MEGATRON, "near-equal": NEAR_EQUAL}
SHAPES = {
    Schedule.NONE: [(1, 1, 3)],
    Schedule.ONE_F_ONE_B: [(2, 1, 4), (3, 1, 6), (4, 1, 4)],
    Schedule.INTERLEAVED: [(2, 2, 4), (2, 3, 4), (3, 2, 6)],
    Schedule.ZB_V: [(2, 2, 4), (3, 2, 6)],
}
"""Ranks, chunks and micro-batches."""


def cases(
    schedule: Schedule, rule: StageRule, number: int
) -> list[tuple[StageTerms, IntArray, StageRule, Enumerated | None]]:
    """Draw tuples with a random order of two or three kinds, and their best stages of all."""
    rng = np.random.default_rng(11)
    drawn: list[tuple[StageTerms, IntArray, StageRule, Enumerated | None]] = []
    while len(drawn) < number:
        for pp, vp, m in SHAPES[schedule]:
            kinds = int(rng.integers(2, 4))
            order = rng.integers(0, kinds, pp * vp + int(rng.integers(0, 3 if rule is FREE else 5)))
            terms = terms_of(rng, schedule, pp, vp, m, kinds, overlap=HopOverlap(int(rng.integers(0, 3))))
            terms.capacity_bytes[0] = rng.uniform(2, 12) * len(order) / pp
            terms.may_recompute[0] = bool(rng.integers(0, 2)) and len(order) < 8
            own = replace(rule, order=tuple(order.tolist()))
            counts = np.bincount(order, minlength=kinds)
            drawn.append((terms, counts, own, solve_stages(terms, counts, own)))
    return drawn


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("schedule", list(SHAPES))
def test_bounds_and_enumeration(schedule: Schedule, rule: str) -> None:
    """No bound is above the best, the enumeration finds it, and excludes nothing that exists."""
    decided = excluded = 0
    for terms, counts, own, best in cases(schedule, RULES[rule], 12):
        rounding, built = rounding_s(counts), good_stages(terms, counts, own)
        bound = lower_bound(terms, counts, own)[0]
        if best is None:
            assert fastest_stages(terms, counts, own, Paths(), 1e3, rounding).blocks is None
            continue
        assert bound <= best.step_time_s * (1 + 1e-9)
        assert may_be_below(terms, counts, best.step_time_s * (1 + 1e-9))[0]
        assert built.step_time_s[0] == np.inf or built.blocks[0].sum() == counts.sum()
        found = fastest_stages(terms, counts, own, Paths(), best.step_time_s * 1.3, rounding)
        if found.proven:
            assert found.step_s == pytest.approx(best.step_time_s, rel=1e-9, abs=rounding)
            decided += 1
        under = fastest_stages(terms, counts, own, Paths(), best.step_time_s * (1 - 1e-6), 0.0)
        excluded += under.proven
        assert under.blocks is None
        just = fastest_stages(terms, counts, own, Paths(), best.step_time_s * (1 + 1e-9), 0.0)
        assert just.blocks is not None or not just.proven
    assert excluded >= (1 if rule == "near-equal" else 5)
    assert decided >= 3 or rule == "near-equal"


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("schedule", list(SHAPES))
def test_bounds_of_mean_blocks(schedule: Schedule, rule: str) -> None:
    """What holds for a stack of one mean kind is no more than the best of the alternating one, which it is near to."""
    share = []
    for terms, counts, own, best in cases(schedule, RULES[rule], 24):
        if best is None:
            continue
        anywhere = own.recomputation is Recomputation.PER_RANK
        one, number = mean_blocks(terms, counts, own.order, anywhere=anywhere)
        bound = lower_bound(one, number, replace(own, order=()))[0]
        assert bound <= best.step_time_s * (1 + 1e-9)
        share.append(bound / best.step_time_s)
    assert max(share) > 0.6


def test_long_stacks_are_bounded_as_mean_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand layers that alternate: mixes in coarse steps give every rank blocks for nothing."""
    rng = np.random.default_rng(7)
    order = tuple([0, 1] * 500)
    counts = np.array([500, 500])
    assert is_long(order, counts)
    assert not is_long(order[:60], counts // 16)
    terms = terms_of(rng, Schedule.ONE_F_ONE_B, 32, 1, 64, 2, overlap=HopOverlap.ALL)
    terms.capacity_bytes[0] = np.inf
    bound = lower_bound(terms, counts, replace(MEGATRON, order=order))[0]
    own = replace(MEGATRON, order=order)
    blocks, again = by_chunk(terms, good_stages(terms, counts, own), counts, own)
    assert blocks.sum() == 1000
    assert bound <= step_s(terms, 0, blocks[None], again[None])[0]
    for room in ("bound", "mean_blocks"):
        monkeypatch.setattr(f"layoutopt.optimizer.solve.search.{room}.is_long", lambda *_: False)
    assert bound > 1.05 * lower_bound(terms, counts, own)[0]


@pytest.mark.parametrize(
    ("schedule", "pp", "vp"),
    [
        (Schedule.ONE_F_ONE_B, 4, 1),
        (Schedule.ONE_F_ONE_B, 8, 1),
        (Schedule.INTERLEAVED, 4, 7),
        (Schedule.INTERLEAVED, 8, 7),
    ],
)
def test_mean_blocks_that_say_nothing(schedule: Schedule, pp: int, vp: int) -> None:
    """One kind takes nearly all time and lies together: mean blocks leave less than none, and bounds are true even so."""
    kinds, stages = np.repeat([0, 1, 2, 3], 14), pp * vp
    counts, own = np.bincount(kinds), replace(MEGATRON, order=tuple(kinds.tolist()))
    assert is_long(own.order, counts)
    terms = terms_of(np.random.default_rng(5), schedule, pp, vp, 16, 4, overlap=HopOverlap.ALL)
    for seconds in (terms.layer_s, terms.forward_s, terms.backward_s, terms.wgrad_s):
        seconds[:, 1:] *= 1e-2
    terms.capacity_bytes[0] = np.inf
    one, number = mean_blocks(terms, counts, own.order, anywhere=False)
    assert lower_bound(one, number, replace(own, order=()))[0] == 0
    # equal chunks in the order of the stack
    each = np.stack([np.bincount(part, minlength=4) for part in kinds.reshape(stages, -1)])
    blocks = each.reshape(vp, pp, 4).transpose(1, 0, 2)
    step = step_s(terms, 0, blocks[None], np.zeros_like(blocks)[None])[0]
    for cutoff_s in (np.inf, step / 2):
        assert 0 < lower_bound(terms, counts, own, cutoff_s)[0] <= min(step, cutoff_s)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("schedule", list(SHAPES))
def test_solver_and_programs(schedule: Schedule, rule: str) -> None:
    """CP-SAT and verify's own programs decide every tuple as pricing everything does."""
    seen = []
    for terms, counts, own, best in cases(schedule, RULES[rule], 6):
        result = CpModel(tuple_slice(batch_of(terms), terms, counts, own)).solve()
        if best is None:
            assert result.status is SliceStatus.NO_BETTER
            assert look_for_faster(terms, counts, own, np.inf, OwnPaths())[0] is ProgramOutcome.NONE_FASTER
            continue
        assert result.status is SliceStatus.OPTIMAL
        assert result.step_time_s == pytest.approx(best.step_time_s, rel=1e-9, abs=rounding_s(counts))
        for share in (1 - 1e-9, 1 + 2 * MARGIN):
            outcome, _ = look_for_faster(terms, counts, own, best.step_time_s * share, OwnPaths())
            assert outcome in (ProgramOutcome.OPEN, expected(share))
            seen.append(outcome)
    assert ProgramOutcome.OPEN not in seen[: len(seen) // 2]


def expected(share: float) -> ProgramOutcome:
    """What programs say of a step that is asked to be below a share of the best."""
    return ProgramOutcome.FASTER if share > 1 else ProgramOutcome.NONE_FASTER


def batch_of(terms: StageTerms) -> LayoutBatch:
    """A tuple whose codes mean nothing."""
    one, zero = np.ones(1, dtype=np.int64), np.zeros(1, dtype=np.int64)
    columns = dict.fromkeys(DEGREES, one) | dict.fromkeys(CODES, zero)
    columns |= {name: getattr(terms, name) for name in ("pp", "vp", "micro_batches", "schedule")}
    book = Codebook(recomputes=(), orders=(), schedules=tuple(Schedule), precisions=())
    return LayoutBatch(codebook=book, **columns)
