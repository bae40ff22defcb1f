"""The CP-SAT model of a slice: optimal over its tuples, exact in floats, open to further constraints."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from checks.enumeration import solve_stages
from checks.operations import with_operations

from layoutopt.optimizer.cost.batch import CODES, DEGREES, Codebook, LayoutBatch
from layoutopt.optimizer.cost.step import step_s
from layoutopt.optimizer.cost.terms import StageTerms, price_stages
from layoutopt.optimizer.frameworks.stage_rule import FREE, MEGATRON, Recomputation, Split, StageRule
from layoutopt.optimizer.solve.model.coefficients import rounding_s
from layoutopt.optimizer.solve.model.constraints import ENOUGH_MICRO_BATCHES, MEMORY
from layoutopt.optimizer.solve.model.cp_model import CpModel, SliceStatus, SolverLimits
from layoutopt.optimizer.solve.model.paths import Paths
from layoutopt.optimizer.solve.model.slices import Goal, TupleSlice, tuple_slice
from layoutopt.optimizer.solve.search.bound import lower_bound
from layoutopt.optimizer.solve.search.construct import by_chunk, good_stages
from layoutopt.optimizer.solve.search.enumerate_stages import fastest_stages
from layoutopt.optimizer.solve.verify.program import OwnPaths, ProgramOutcome, look_for_faster

RULES = [StageRule(split=split, recomputation=how) for split in Split for how in Recomputation]
BOOK = Codebook(recomputes=(), orders=(), schedules=(), precisions=())
GIB = 2.0**30


def random_terms(rng: np.random.Generator, rows: int, kinds: int) -> StageTerms:
    """Tuples of up to four ranks and two chunks, memory between plenty and too little."""
    pp = rng.integers(1, 5, rows)
    vp = np.where((pp > 1) & (pp < 4), rng.integers(1, 3, rows), 1)
    layer_s, activation = rng.uniform(0.5, 1.5, (rows, kinds)), rng.uniform(1, 3, (rows, kinds)) * GIB
    flight = np.maximum(pp[:, None] - np.arange(int(pp.max())), 0) * rng.uniform(1, 1.4, (rows, 1))
    return with_operations(
        pp=pp,
        vp=vp,
        folded=np.zeros(rows, dtype=bool),
        micro_batches=pp * rng.integers(1, 4, rows),
        layer_s=layer_s,
        recompute_s=layer_s * rng.uniform(0.1, 0.5, (rows, kinds)),
        first_s=rng.uniform(0, 0.6, rows),
        last_s=rng.uniform(0, 1.4, rows),
        bubble_weight=1.0 / (vp + 0.3),
        fixed_s=rng.uniform(0, 1, rows),
        layer_state_bytes=rng.uniform(0.2, 2, (rows, kinds)) * GIB,
        layer_activation_bytes=activation,
        recomputed_activation_bytes=activation * rng.uniform(0, 0.5),
        first_bytes=rng.uniform(0, 2, rows) * GIB,
        last_bytes=rng.uniform(0, 3, rows) * GIB,
        common_bytes=rng.uniform(0, 1, rows) * GIB,
        flight_bytes=rng.uniform(0, 0.2, rows) * GIB,
        recompute_transient_bytes=rng.uniform(0, 1, rows) * GIB,
        capacity_bytes=rng.uniform(8, 40, rows) * GIB,
        in_flight=flight,
        may_recompute=rng.random(rows) < 0.8,
    )


def batch_of(terms: StageTerms) -> LayoutBatch:
    """Tuples that differ in dp; their codes mean nothing."""
    rows = len(terms)
    columns = {name: np.ones(rows, dtype=np.int64) for name in DEGREES}
    columns |= {name: np.zeros(rows, dtype=np.int64) for name in CODES}
    columns |= {
        "pp": terms.pp,
        "vp": terms.vp,
        "micro_batches": terms.micro_batches,
        "dp": np.arange(rows) + 1,
    }
    return LayoutBatch(codebook=BOOK, **columns)


def slice_of(terms: StageTerms, counts: list[int], rule: StageRule = FREE, **changes: float) -> TupleSlice:
    """A slice of all the tuples."""
    return tuple_slice(batch_of(terms), terms, np.array(counts), rule, **changes)  # type: ignore[arg-type]


def optima(terms: StageTerms, counts: list[int], rule: StageRule) -> list[float]:
    """The exact optimum of every tuple by an algorithm without CP-SAT."""
    found = [solve_stages(terms.take(np.array([row])), counts, rule) for row in range(len(terms))]
    return [item.step_time_s if item else np.inf for item in found]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.split}-{rule.recomputation}")
@pytest.mark.parametrize("counts", [[4], [1, 3], [2, 2], [1, 1, 2]], ids=str)
def test_slice_is_solved_exactly(rule: StageRule, counts: list[int]) -> None:
    """Each tuple alone, and five together, reach the exact optimum to the stated rounding."""
    rng = np.random.default_rng(len(counts))
    for _ in range(2):
        terms = random_terms(rng, 5, len(counts))
        best = optima(terms, counts, rule)
        for rows in ([0], [1], [2], [0, 1, 2, 3, 4]):
            result = CpModel(slice_of(terms.take(np.array(rows)), counts, rule)).solve()
            least = min(best[row] for row in rows)
            assert result.status is (SliceStatus.OPTIMAL if np.isfinite(least) else SliceStatus.NO_BETTER)
            if np.isfinite(least):
                assert result.step_time_s == pytest.approx(least, rel=1e-12, abs=rounding_s(np.array(counts)))
                assert result.bound_s <= least


def test_answer_is_priced_in_floats() -> None:
    """Where a rank exceeds the memory by less than the integers can tell, the answer is another layout that fits."""
    rng = np.random.default_rng(0)
    terms = replace(
        random_terms(rng, 1, 1), pp=np.array([2]), vp=np.array([1]), in_flight=np.array([[2.0, 1.0]])
    )
    terms = replace(terms, capacity_bytes=np.array([1000 * GIB]), may_recompute=np.array([False]))
    free = CpModel(slice_of(terms, [5])).solve()
    tight = replace(terms, capacity_bytes=np.array([free.peak_bytes - 200.0]))
    # Two tuples: a single one has closed-form caps on its ranks, which are exact.
    result = CpModel(slice_of(tight.take(np.array([0, 0])), [5])).solve()
    assert result.corrections > 0
    assert result.peak_bytes <= tight.capacity_bytes[0]
    assert result.step_time_s == pytest.approx(optima(tight, [5], FREE)[0], abs=1e-6)


@pytest.mark.parametrize("rule", [FREE, MEGATRON], ids=["free", "megatron"])
@pytest.mark.parametrize("counts", [[6], [8], [2, 4], [1, 5]], ids=str)
def test_stages_of_whole_groups(rule: StageRule, counts: list[int]) -> None:
    """Where 2 or 3 blocks share a saved input, every stage is a multiple of them: model, enumeration, verify."""
    rng, number = np.random.default_rng(sum(counts)), np.array(counts)
    found, rounding = 0, rounding_s(number)
    for _ in range(6):
        terms = replace(random_terms(rng, 3, len(counts)), group=np.array([2, 3, 1]))
        best = optima(terms, counts, rule)
        for rows in ([0], [1], [0, 1, 2]):
            result, least = (
                CpModel(slice_of(terms.take(np.array(rows)), counts, rule)).solve(),
                min(best[r] for r in rows),
            )
            assert result.status is (SliceStatus.OPTIMAL if np.isfinite(least) else SliceStatus.NO_BETTER)
            if np.isfinite(least):
                assert result.step_time_s == pytest.approx(least, rel=1e-12, abs=rounding)
        for row in (0, 1):
            one, group = terms.take(np.array([row])), int(terms.group[row])
            listed = fastest_stages(one, number, rule, Paths(), 1e3, 0.0)
            made = good_stages(one, number, rule)
            outcome, other = look_for_faster(one, number, rule, 1e3, OwnPaths())
            if listed.proven:
                assert listed.step_s == pytest.approx(best[row], rel=1e-12) or np.isinf(best[row])
                assert (listed.blocks is None) == np.isinf(best[row])
            if np.isfinite(made.step_time_s[0]):
                assert not (by_chunk(one, made, number, rule)[0].sum(axis=2) % group).any()
            assert (outcome is ProgramOutcome.FASTER) <= np.isfinite(best[row])
            for blocks in (listed.blocks, None if other is None else other.blocks):
                if blocks is not None:
                    found += 1
                    assert not (blocks.sum(axis=2) % group).any()
    assert found


def test_bound_and_incumbent_cuts_keep_the_optimum() -> None:
    """The optimum survives its own bound and an incumbent just above it; an incumbent at it leaves nothing better."""
    rng, counts = np.random.default_rng(1), np.array([1, 4])
    terms = random_terms(rng, 4, 2)
    lower = float(lower_bound(terms, counts, MEGATRON).min())
    best = min(optima(terms, counts.tolist(), MEGATRON))
    above = slice_of(terms, [1, 4], MEGATRON, lower_s=lower, upper_s=best + 2 * rounding_s(counts))
    assert CpModel(above).solve().step_time_s == pytest.approx(best, abs=rounding_s(counts))
    at_best = CpModel(slice_of(terms, [1, 4], MEGATRON, lower_s=lower, upper_s=best)).solve()
    assert at_best.status is SliceStatus.NO_BETTER
    assert at_best.bound_s >= best - rounding_s(counts)


def test_hint_may_be_the_optimum_or_not() -> None:
    """Constructed stages as a hint don't change the answer."""
    rng, counts = np.random.default_rng(2), np.array([9])
    for row in range(6):
        terms = random_terms(rng, 1, 1)
        near = good_stages(terms, counts, MEGATRON)
        model = CpModel(slice_of(terms, [9], MEGATRON))
        model.hint(0, *by_chunk(terms, near, counts, MEGATRON))
        best = optima(terms, [9], MEGATRON)[0]
        assert model.solve().step_time_s == pytest.approx(best, abs=1e-6), row


def test_users_may_add_constraints() -> None:
    """A constraint over the public variables holds in the answer, and costs time."""
    terms = random_terms(np.random.default_rng(3), 1, 1)
    terms = replace(
        terms,
        pp=np.array([2]),
        vp=np.array([1]),
        in_flight=np.array([[2.0, 1.0]]),
        capacity_bytes=np.array([1e13]),
    )
    plain = CpModel(slice_of(terms, [8])).solve()
    model = CpModel(slice_of(terms, [8]))
    model.model.add(model.variables.blocks[0][0] == 7)
    skewed = model.solve()
    assert skewed.blocks is not None
    assert skewed.blocks[0, :, 0].tolist() == [7, 1]
    assert skewed.step_time_s > plain.step_time_s


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.split}-{rule.recomputation}")
def test_least_memory(rule: StageRule) -> None:
    """The peak-memory goal is the capacity from which on the tuple has stages."""
    rng = np.random.default_rng(4)
    for counts in ([5], [2, 3]):
        terms = random_terms(rng, 1, len(counts))
        solved = CpModel(slice_of(terms, counts, rule, goal=Goal.PEAK_MEMORY)).solve()  # type: ignore[arg-type]
        if solved.status is SliceStatus.NO_BETTER:  # the framework has no split for so many ranks
            assert solve_stages(replace(terms, capacity_bytes=np.array([np.inf])), counts, rule) is None
            continue
        least = solved.peak_bytes
        enough = replace(terms, capacity_bytes=np.array([least * (1 + 1e-9)]))
        short = replace(terms, capacity_bytes=np.array([least - 65536.0]))
        assert solve_stages(enough, counts, rule) is not None
        assert solve_stages(short, counts, rule) is None


def test_conflict_is_minimal() -> None:
    """What contradicts is named, and nothing that doesn't take part."""
    rng = np.random.default_rng(5)
    terms = random_terms(rng, 2, 1)
    terms = replace(
        terms, pp=np.array([1, 2]), vp=np.array([1, 1]), in_flight=np.array([[1.0, 0.0], [2.0, 1.0]])
    )
    ample = replace(terms, capacity_bytes=np.full(2, 1e13), micro_batches=np.array([4, 4]))

    def conflict(changed: StageTerms, **fixed: int) -> tuple[str, ...] | None:
        return CpModel(slice_of(changed, [6]), fixed=fixed, conditional=True).conflict()

    assert conflict(ample, pp=2) is None
    assert conflict(ample, pp=2, dp=1) == ("pp = 2", "dp = 1")
    assert conflict(ample, pp=2, dp=1, tp=1) == ("pp = 2", "dp = 1")
    assert conflict(replace(ample, capacity_bytes=np.array([1e13, 1.0])), pp=2, tp=1) == (MEMORY, "pp = 2")
    assert conflict(replace(ample, capacity_bytes=np.ones(2))) == (MEMORY,)
    few = replace(ample, micro_batches=np.array([4, 1]))
    assert conflict(few, pp=2) == (ENOUGH_MICRO_BATCHES, "pp = 2")


def test_stop_flag_and_time_limit_end_a_solve() -> None:
    """A slice that takes long ends soon after it is told to, with a bound that holds."""
    rng, counts = np.random.default_rng(6), [20, 20, 20]
    terms = random_terms(rng, 60, 3)
    lower = float(lower_bound(terms, np.array(counts), FREE).min())
    data = slice_of(terms, counts, FREE, lower_s=lower)
    for limits in (SolverLimits(should_stop=lambda: True), SolverLimits(time_limit_s=0.05)):
        start = time.process_time()
        result = CpModel(data).solve(limits)
        assert time.process_time() - start < 5.0
        assert result.status in (SliceStatus.UNKNOWN, SliceStatus.FEASIBLE)
        assert result.bound_s >= lower * (1 - 1e-9) - rounding_s(np.array(counts))


def test_model_reports_what_it_counts() -> None:
    """Totals of recomputed blocks and the price agree with the answer's own stages."""
    terms = random_terms(np.random.default_rng(7), 3, 2)
    result = CpModel(slice_of(terms, [3, 4], MEGATRON)).solve()
    assert result.blocks is not None
    assert result.recomputed is not None
    assert result.blocks.sum(axis=(0, 1)).tolist() == [3, 4]
    assert np.all(result.recomputed <= result.blocks)
    one, ranks = terms.take(np.array([result.position])), terms.in_flight.shape[1]
    padding = ((0, ranks - result.blocks.shape[1]), (0, 0))
    held, again = (np.pad(part.sum(axis=0), padding)[None] for part in (result.blocks, result.recomputed))
    assert price_stages(one, held, again).fits[0]
    assert step_s(one, 0, result.blocks[None], result.recomputed[None])[0] == result.step_time_s


def test_scarce_memory_on_a_long_pipeline_is_proven_quickly() -> None:
    """24 ranks that recompute all they hold: whatever the split, the recomputed blocks are all blocks.

    Without a relaxation of min(count, blocks) CP-SAT enumerates the splits. Its referee is the search's enumeration, which
    knows no CP-SAT: all 61 blocks on 24 ranks are too many ways to price.
    """
    ranks, counts = 24, [3, 58]
    terms = with_operations(
        pp=np.array([ranks]),
        vp=np.array([1]),
        folded=np.array([False]),
        micro_batches=np.array([1920]),
        layer_s=np.array([[0.0214, 0.0413]]),
        recompute_s=np.array([[0.0068, 0.0150]]),
        first_s=np.array([0.00013]),
        last_s=np.array([0.128]),
        bubble_weight=np.array([1.0]),
        fixed_s=np.array([0.5]),
        layer_state_bytes=np.array([[4.08e9, 21.36e9]]),
        layer_activation_bytes=np.array([[1.33e9, 1.66e9]]),
        recomputed_activation_bytes=np.full((1, 2), 58.7e6),
        first_bytes=np.array([6.49e9]),
        last_bytes=np.array([42.1e9]),
        common_bytes=np.array([2.16e9]),
        flight_bytes=np.zeros(1),
        recompute_transient_bytes=np.array([1.66e9]),
        capacity_bytes=np.array([77.9e9]),
        in_flight=np.arange(ranks, 0, -1, dtype=np.float64)[None],
        may_recompute=np.array([True]),
    )
    lower = float(lower_bound(terms, np.array(counts), MEGATRON)[0])
    result = CpModel(slice_of(terms, counts, MEGATRON, lower_s=lower)).solve(SolverLimits(time_limit_s=20.0))
    assert result.status is SliceStatus.OPTIMAL
    slower_s = result.step_time_s * 1.01
    best = fastest_stages(terms, np.array(counts), MEGATRON, Paths(), slower_s, rounding_s(np.array(counts)))
    assert best.proven
    assert result.step_time_s == pytest.approx(best.step_s, abs=1e-6)
