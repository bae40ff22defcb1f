"""The exact step of stages: no bound is above it, the model's answer is the best of an enumeration by it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from checks.enumeration import all_blocks, solve_stages
from checks.operations import terms_of

from layoutopt.optimizer.cost.batch import CODES, DEGREES, LayoutBatch
from layoutopt.optimizer.cost.orders import HopOverlap
from layoutopt.optimizer.cost.schedules import SCHEDULES
from layoutopt.optimizer.cost.step import durations as durations_of
from layoutopt.optimizer.cost.step import form_of, graph_of, step_s
from layoutopt.optimizer.frameworks.stage_rule import FREE, MEGATRON, NEAR_EQUAL, StageRule
from layoutopt.optimizer.solve.model.coefficients import rounding_s
from layoutopt.optimizer.solve.model.cp_model import CpModel, SliceStatus
from layoutopt.optimizer.solve.model.slices import tuple_slice
from layoutopt.optimizer.solve.search.bound import lower_bound, quick_bound
from layoutopt.optimizer.solve.verify.room import may_be_below
from layoutopt.optimizer.specs.vocabulary import Schedule

if TYPE_CHECKING:
    from layoutopt.optimizer.cost.terms import StageTerms

PIPELINES = [schedule for schedule in Schedule if schedule is not Schedule.NONE]


def shapes_of(schedule: Schedule) -> list[tuple[int, int, int]]:
    """A few (pp, vp, m) that a schedule runs."""
    model = SCHEDULES[schedule]
    if schedule is Schedule.INTERLEAVED:
        return [(2, 2, 2), (2, 3, 8), (3, 2, 3), (3, 3, 12), (4, 2, 8)]
    vp = model.min_chunks
    return [(pp, vp, m * pp) for pp in (2, 4) for m in (2, 3) if m * pp % 2 == 0]


@pytest.mark.parametrize("overlap", list(HopOverlap))
@pytest.mark.parametrize("schedule", PIPELINES)
def test_no_bound_is_above_the_exact_step(schedule: Schedule, overlap: HopOverlap) -> None:
    """Bounds of the search and of the verification, and every path, over random stages and recomputations."""
    rng = np.random.default_rng(5)
    for pp, vp, m in shapes_of(schedule) * 3:
        kinds = int(rng.integers(1, 3))
        terms = terms_of(rng, schedule, pp, vp, m, kinds, overlap=overlap)
        chunks, ranks = int(terms.vp[0]), int(terms.pp[0])
        counts = rng.multinomial(chunks * ranks + 2, np.full(kinds, 1 / kinds)) + 1
        splits = list(all_blocks(terms, counts, FREE)) if chunks * ranks <= 8 else []
        if not splits:
            continue
        picked = [splits[i] for i in rng.integers(0, len(splits), 24)]
        blocks = np.stack(picked)
        again = np.floor(blocks * rng.uniform(0, 1.2, blocks.shape)).astype(np.int64).clip(0, blocks)
        exact = step_s(terms, 0, blocks, again)
        assert quick_bound(terms, counts)[0] <= exact.min()
        assert lower_bound(terms, counts, FREE)[0] <= exact.min() * (1 + 1e-9)
        assert lower_bound(terms, counts, FREE, float(exact.min()) * 1.01)[0] <= exact.min() * (1 + 1e-9)
        assert may_be_below(terms, counts, float(exact.min()) * (1 + 1e-9))[0]
        graph = graph_of(terms, 0)
        assert graph is not None
        spans, paths = graph.longest(durations_of(terms, 0, blocks, again))
        for i, path in enumerate(paths):
            form = form_of(path, terms, 0)
            block, repeat, rest = form.block_s(terms)[0], form.again_s(terms)[0], form.constant_s(terms)[0]
            length = (blocks * block).sum(axis=(1, 2, 3)) + (again * repeat).sum(axis=(1, 2, 3)) + rest
            assert length[i] == pytest.approx(exact[i])
            assert (length <= exact * (1 + 1e-9)).all()
        assert spans + terms.outside_s[0] == pytest.approx(exact)


def slice_of(terms: StageTerms) -> LayoutBatch:
    """A tuple for the terms; its codes mean nothing."""
    columns = {name: np.ones(1, dtype=np.int64) for name in DEGREES}
    columns |= {name: np.zeros(1, dtype=np.int64) for name in CODES}
    columns |= {"pp": terms.pp, "vp": terms.vp, "micro_batches": terms.micro_batches}
    return LayoutBatch(codebook=None, **columns)  # type: ignore[arg-type]


@pytest.mark.parametrize("rule", [FREE, MEGATRON, NEAR_EQUAL], ids=str)
@pytest.mark.parametrize("schedule", [Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED, Schedule.ZB_V])
def test_the_model_finds_the_best_of_the_enumeration(schedule: Schedule, rule: StageRule) -> None:
    """Chunk by chunk, with memory from plenty to too little."""
    rng = np.random.default_rng(11)
    solved = 0
    for pp, vp, m in [shape for shape in shapes_of(schedule) if shape[0] * shape[1] <= 6] * 2:
        kinds = int(rng.integers(1, 3))
        terms = terms_of(rng, schedule, pp, vp, m, kinds, overlap=HopOverlap(int(rng.integers(0, 3))))
        counts = rng.multinomial(pp * vp - 1, np.full(kinds, 1 / kinds)) + 1
        terms.capacity_bytes[0] = rng.uniform(2, 12) * counts.sum() / pp
        best = solve_stages(terms, counts, rule)
        result = CpModel(tuple_slice(slice_of(terms), terms, counts, rule)).solve()
        if best is None:
            assert result.status is SliceStatus.NO_BETTER
            continue
        assert result.status is SliceStatus.OPTIMAL
        assert result.step_time_s == pytest.approx(best.step_time_s, abs=2 * rounding_s(counts))
        solved += 1
    assert solved
