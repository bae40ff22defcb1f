"""The closed forms of the cost model against the event simulation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutopt.optimizer.cost.orders import HopOverlap, Pipeline
from layoutopt.optimizer.cost.schedules import SCHEDULES, exposed_hops, in_flight
from layoutopt.optimizer.simulate.compare import (
    EVEN_TOLERANCE,
    UNEVEN_TOLERANCE,
    LayoutSimulation,
    simulate_layout,
)
from layoutopt.optimizer.simulate.engine import StageWork, simulate
from layoutopt.optimizer.specs.vocabulary import Schedule

if TYPE_CHECKING:
    from numpy.typing import NDArray

    FloatArray = NDArray[np.float64]

PIPELINED = [
    (Schedule.GPIPE, 1),
    (Schedule.ONE_F_ONE_B, 1),
    (Schedule.INTERLEAVED, 2),
    (Schedule.INTERLEAVED, 4),
    (Schedule.ZB_H1, 1),
    (Schedule.ZB_V, 2),
    (Schedule.DUALPIPE, 1),
    (Schedule.DUALPIPE_V, 2),
]
# Forward, dgrad, wgrad: equal; attention in the backward; full recomputation; mostly weight gradients.
RATIOS = [(1.0, 1.0, 1.0), (1.0, 1.3, 0.7), (1.0, 2.3, 0.8), (1.0, 0.9, 1.1)]


def even_work(pipeline: Pipeline, times: tuple[float, float, float], hidden: float = 0.0) -> StageWork:
    """Return equal stages whose rank times are given; pairs hide a share of their time."""
    chunk = np.full((pipeline.pp, pipeline.chunks), 1.0 / pipeline.vp)
    forward, dgrad, wgrad = (chunk * time for time in times)
    pair = (1.0 - hidden) * (forward + dgrad + wgrad)
    return StageWork(
        forward_s=forward, dgrad_s=dgrad, wgrad_s=wgrad, pair_s=pair, activation_bytes=np.ones_like(chunk)
    )


def uneven_work(
    pipeline: Pipeline, rng: np.random.Generator, low: float, high: float, *, by_chunk: bool
) -> StageWork:
    """Return stages whose times differ by random factors, per rank or per chunk as well."""
    factor = rng.uniform(low, high, (pipeline.pp, pipeline.vp if by_chunk else 1))
    if pipeline.schedule is not Schedule.DUALPIPE:
        factor = np.broadcast_to(factor, (pipeline.pp, pipeline.vp))
    chunk = factor / pipeline.vp
    return StageWork(
        forward_s=chunk, dgrad_s=chunk * rng.uniform(1.0, 1.5), wgrad_s=chunk * rng.uniform(0.6, 1.0)
    )


SIZES = [
    (schedule, vp, pp, per_rank)
    for schedule, vp in PIPELINED
    for pp in (2, 4, 8, 16)
    for per_rank in (1, 2, 8)
    if per_rank >= SCHEDULES[schedule].min_micro_batches
]


@pytest.mark.parametrize(("schedule", "vp", "pp", "per_rank"), SIZES)
def test_even_stages(schedule: Schedule, vp: int, pp: int, per_rank: int) -> None:
    """With even stages the closed form is exact, and so are the activations held by each rank."""
    m = per_rank * pp
    pipeline = Pipeline(schedule=schedule, pp=pp, vp=vp, micro_batches=m)
    for times in RATIOS if pp < 16 else RATIOS[1:2]:
        compared = simulate_layout(pipeline, even_work(pipeline, times, hidden=0.2))
        assert compared.tolerance == EVEN_TOLERANCE
        assert abs(compared.deviation) < 1e-9
    held = in_flight(schedule, np.array([pp]), np.array([vp]), np.array([m]))[0]
    np.testing.assert_allclose(compared.result.peak_in_flight, held)
    np.testing.assert_allclose(compared.analytic_peak_bytes, compared.simulated_peak_bytes)


@settings(max_examples=120)
@given(
    case=st.sampled_from(PIPELINED),
    pp=st.integers(1, 5).map(lambda half: 2 * half),
    m=st.integers(1, 24),
    dgrad=st.floats(0.7, 3.5),
    wgrad=st.floats(0.0, 1.5),
    hidden=st.floats(0.0, 0.45),
)
def test_even_stages_any_ratio(
    case: tuple[Schedule, int], pp: int, m: int, dgrad: float, wgrad: float, hidden: float
) -> None:
    """Forward, dgrad and wgrad may relate as they like, and m may be below pp where the schedule allows
    it."""
    schedule, vp = case
    m = max(m, SCHEDULES[schedule].min_micro_batches * pp)
    m += m % 2 if SCHEDULES[schedule].even else 0
    m -= m % pp if schedule is Schedule.INTERLEAVED and m > pp else 0
    pipeline = Pipeline(schedule=schedule, pp=pp, vp=vp, micro_batches=m)
    compared = simulate_layout(pipeline, even_work(pipeline, (1.0, dgrad, wgrad), hidden))
    assert abs(compared.deviation) < 1e-3


@pytest.mark.parametrize(("pp", "group"), [(4, 4), (4, 6), (4, 12), (3, 5)])
def test_interleaved_groups_change_memory_not_time(pp: int, group: int) -> None:
    """Any valid group size fills the pipeline, at the price of (v-1)(G-p) chunks more."""
    pipeline = Pipeline(schedule=Schedule.INTERLEAVED, pp=pp, vp=3, micro_batches=2 * group + pp, group=group)
    compared = simulate_layout(pipeline, even_work(pipeline, (1.0, 1.2, 0.8)))
    assert abs(compared.deviation) < 1e-9
    assert compared.result.peak_in_flight[0] * 3 == 2 * (pp - 1) + 2 * group + 1


def test_published_interleaved_makespans() -> None:
    """p 4, m 16, v 2 of unit 3 takes 52.5; halving the chunks halves the bubble."""
    for vp, expected in ((2, 52.5), (4, 50.25)):
        pipeline = Pipeline(schedule=Schedule.INTERLEAVED, pp=4, vp=vp, micro_batches=16)
        assert simulate(pipeline, even_work(pipeline, (1.0, 1.0, 1.0))).makespan_s == pytest.approx(expected)


def test_accumulation_on_one_rank() -> None:
    """Without a pipeline the step is m times the work and nothing idles."""
    pipeline = Pipeline(schedule=Schedule.NONE, pp=1, micro_batches=7)
    compared = simulate_layout(pipeline, even_work(pipeline, (1.0, 1.0, 1.0)))
    assert compared.simulated_step_s == compared.analytic_step_s == 21.0
    assert compared.result.bubble_share == 0.0
    assert compared.result.peak_in_flight.tolist() == [1.0]


@pytest.mark.parametrize("by_chunk", [False, True])
@pytest.mark.parametrize(("schedule", "vp", "pp", "per_rank"), [size for size in SIZES if size[2] < 16])
def test_nearly_even_stages(schedule: Schedule, vp: int, pp: int, per_rank: int, by_chunk: bool) -> None:
    """Stage times within 10% of each other: within 6% at any m."""
    rng = np.random.default_rng(per_rank)
    pipeline = Pipeline(schedule=schedule, pp=pp, vp=vp, micro_batches=per_rank * pp)
    for _ in range(6 if per_rank < 8 else 2):
        work = uneven_work(pipeline, rng, 1.1**-0.5, 1.1**0.5, by_chunk=by_chunk)
        compared = simulate_layout(pipeline, work)
        assert compared.tolerance == UNEVEN_TOLERANCE
        assert abs(compared.deviation) <= UNEVEN_TOLERANCE


@pytest.mark.parametrize(("schedule", "vp"), PIPELINED)
def test_uneven_ranks_with_many_micro_batches(schedule: Schedule, vp: int) -> None:
    """Rank times 0.7 to 1.3 of the mean: within 6% from 8 micro-batches per rank on."""
    rng = np.random.default_rng(8)
    for pp in (2, 4, 8):
        pipeline = Pipeline(schedule=schedule, pp=pp, vp=vp, micro_batches=8 * pp)
        for _ in range(6):
            compared = simulate_layout(pipeline, uneven_work(pipeline, rng, 0.7, 1.3, by_chunk=False))
            assert compared.tolerance == UNEVEN_TOLERANCE
            assert abs(compared.deviation) <= UNEVEN_TOLERANCE


def test_no_promise_where_the_formula_is_known_to_drift() -> None:
    """Chunks that differ within a rank let interleaving run slower than its slowest rank:

    no tolerance is claimed.
    """
    pipeline = Pipeline(schedule=Schedule.INTERLEAVED, pp=4, vp=2, micro_batches=32)
    heavy_first = np.array([[2.0, 1.0], [1.0, 2.0], [2.0, 1.0], [1.0, 2.0]])
    compared = simulate_layout(
        pipeline, StageWork(forward_s=heavy_first, dgrad_s=heavy_first, wgrad_s=heavy_first)
    )
    assert compared.tolerance is None
    assert compared.deviation < -0.09


def compare_1f1b(forward: FloatArray, backward: FloatArray, m: int) -> LayoutSimulation:
    """Compare formula and simulation of 1F1B for stages with these times (pp,)."""
    pipeline = Pipeline(schedule=Schedule.ONE_F_ONE_B, pp=len(forward), micro_batches=m)
    columns = forward[:, None], backward[:, None], np.zeros((len(forward), 1))
    return simulate_layout(pipeline, StageWork(forward_s=columns[0], dgrad_s=columns[1], wgrad_s=columns[2]))


@settings(max_examples=150)
@given(st.lists(st.floats(0.0, 3.0), min_size=1, max_size=6), st.floats(0.5, 4.0), st.integers(1, 20))
def test_1f1b_formula_is_an_upper_bound(stages: list[float], ratio: float, m: int) -> None:
    """However uneven the stages: max_s(m T_s + sum_{k<s} T_k) <= 1F1B <= sum T + (m-1) max T."""
    forward = np.array(stages)
    compared = compare_1f1b(forward, ratio * forward, m)
    time_s = forward * (1.0 + ratio)
    lower = (m * time_s + np.cumsum(time_s) - time_s).max()
    assert compared.upper_bound
    assert lower - 1e-9 <= compared.simulated_step_s <= compared.analytic_step_s + 1e-9


@settings(max_examples=150)
@given(
    st.lists(st.tuples(st.floats(0.0, 3.0), st.floats(0.0, 3.0)), min_size=1, max_size=6), st.integers(1, 20)
)
def test_1f1b_excess_over_the_formula_is_bounded(stages: list[tuple[float, float]], m: int) -> None:
    """Where forward and backward are slowest on different ranks, filling and draining may cost a little
    more."""
    forward, backward = np.array(stages).T
    compared = compare_1f1b(forward, backward, m)
    excess = forward.max() + backward.max() - (forward + backward).max()
    allowed = (min(m, len(stages)) - 1) * excess
    assert compared.simulated_step_s <= compared.analytic_step_s + allowed + 1e-9
    assert compared.upper_bound == (excess <= 1e-6 * (forward + backward).max())


def test_1f1b_can_exceed_the_formula_only_by_its_ends() -> None:
    """Backward on the first rank, forward on the second:

    2 + 2 instead of 2 + 1, and no upper bound is claimed.
    """
    compared = compare_1f1b(np.array([0.0, 1.0, 0.0]), np.array([1.0, 0.0, 0.0]), 2)
    assert (compared.simulated_step_s, compared.analytic_step_s) == (4.0, 3.0)
    assert not compared.upper_bound


@pytest.mark.parametrize("slowest", [0, 1, 2, 3])
def test_1f1b_is_exact_when_the_last_stage_is_slowest(slowest: int) -> None:
    """The bound is tight for a slow last stage and loose for a slow first one."""
    time = np.ones((4, 1))
    time[slowest] = 2.0
    pipeline = Pipeline(schedule=Schedule.ONE_F_ONE_B, pp=4, micro_batches=8)
    compared = simulate_layout(pipeline, StageWork(forward_s=time, dgrad_s=time, wgrad_s=0 * time))
    assert (compared.deviation < 1e-9) == (slowest == 3)


@pytest.mark.parametrize("overlap", list(HopOverlap))
@pytest.mark.parametrize(("schedule", "vp"), PIPELINED)
def test_exposed_hops(schedule: Schedule, vp: int, overlap: HopOverlap) -> None:
    """Short transfers lengthen the step by at most the counted hops, and the count isn't far above."""
    for pp, m in ((2, 8), (4, 8), (4, 16), (8, 16)):
        pipeline = Pipeline(schedule=schedule, pp=pp, vp=vp, micro_batches=m)
        hop = 1e-4
        work = even_work(pipeline, (1.0, 1.2, 0.8), hidden=0.1)
        with_hops = StageWork(
            forward_s=work.forward_s,
            dgrad_s=work.dgrad_s,
            wgrad_s=work.wgrad_s,
            pair_s=work.pair_s,
            hop_s=np.full(pp, hop),
            hops_overlap=overlap,
        )
        exposed = simulate_layout(pipeline, with_hops).simulated_exposed_hops_s / hop
        count = exposed_hops(schedule, np.array([pp]), np.array([vp]), np.array([m]), overlap=overlap > 0)[0]
        assert exposed <= count + 1e-6
        assert count <= 2.1 * exposed + 1e-6


@pytest.mark.parametrize(
    ("schedule", "vp", "overlap"),
    [
        (Schedule.GPIPE, 1, HopOverlap.ALL),
        (Schedule.GPIPE, 1, HopOverlap.NONE),
        (Schedule.ONE_F_ONE_B, 1, HopOverlap.ALL),
        (Schedule.ONE_F_ONE_B, 1, HopOverlap.NONE),
        (Schedule.INTERLEAVED, 3, HopOverlap.ALL),
        (Schedule.INTERLEAVED, 3, HopOverlap.STEADY),
        (Schedule.INTERLEAVED, 3, HopOverlap.NONE),
    ],
)
def test_exposed_hops_are_exact_for_whole_backwards(schedule: Schedule, vp: int, overlap: HopOverlap) -> None:
    """The count is the number of hops on the longest chain."""
    for pp, m in ((2, 6), (3, 6), (4, 16), (8, 24)):
        pipeline = Pipeline(schedule=schedule, pp=pp, vp=vp, micro_batches=m)
        work = even_work(pipeline, (1.0, 1.2, 0.8))
        with_hops = StageWork(
            forward_s=work.forward_s,
            dgrad_s=work.dgrad_s,
            wgrad_s=work.wgrad_s,
            hop_s=np.full(pp, 1e-4),
            hops_overlap=overlap,
        )
        exposed = simulate_layout(pipeline, with_hops).simulated_exposed_hops_s / 1e-4
        count = exposed_hops(schedule, np.array([pp]), np.array([vp]), np.array([m]), overlap=overlap > 0)[0]
        assert exposed == pytest.approx(count)
