"""Closed forms of pipeline schedules: published figures and what every schedule must keep."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutopt.optimizer.cost.schedules import (
    SCHEDULES,
    bubble_weight,
    default_group,
    exposed_hops,
    in_flight,
)
from layoutopt.optimizer.frameworks.registry import Framework, abilities_of
from layoutopt.optimizer.specs.vocabulary import Schedule

if TYPE_CHECKING:
    from numpy.typing import NDArray

    IntArray = NDArray[np.int64]


def ints(*values: int) -> IntArray:
    """Return an int64 array."""
    return np.array(values, dtype=np.int64)


def weight(
    schedule: Schedule,
    times: tuple[float, float, float],
    pp: int,
    vp: int,
    m: int,
    *,
    pair_s: float | None = None,
) -> float:
    """Return the bubble weight of one pipeline."""
    forward, dgrad, wgrad = (np.array([time]) for time in times)
    pair = None if pair_s is None else np.array([pair_s])
    return float(bubble_weight(schedule, forward, dgrad, wgrad, ints(pp), ints(vp), ints(m), pair_s=pair)[0])


def chunks_of(schedule: Schedule) -> int:
    """Return the least vp of a schedule."""
    return SCHEDULES[schedule].min_chunks


def test_every_schedule_and_framework_is_described() -> None:
    """A schedule of the vocabulary without an entry, or a framework without schedules, would fail late."""
    assert set(SCHEDULES) == set(Schedule)
    assert all(framework.record.releases for framework in Framework)
    assert all(Schedule.NONE in abilities_of(framework).schedules for framework in Framework)
    assert set(abilities_of(Framework.ANY).schedules) == set(Schedule)


@pytest.mark.parametrize(
    ("framework", "schedule", "launches"),
    [
        (Framework.MEGATRON, Schedule.INTERLEAVED, True),
        (Framework.MEGATRON, Schedule.GPIPE, False),
        (Framework.MEGATRON, Schedule.ZB_V, False),
        (Framework.MEGATRON_DEEPSPEED, Schedule.ZB_H1, True),
        (Framework.DEEPSPEED, Schedule.INTERLEAVED, False),
        (Framework.TORCHTITAN, Schedule.DUALPIPE_V, True),
        (Framework.TORCHTITAN, Schedule.DUALPIPE, False),
        (Framework.NANOTRON, Schedule.GPIPE, True),
        (Framework.DEEPSEEK_INTERNAL, Schedule.DUALPIPE, True),
        (Framework.ACCELERATE, Schedule.ONE_F_ONE_B, False),
    ],
)
def test_who_launches_what(framework: Framework, schedule: Schedule, launches: bool) -> None:
    """Spot checks of the table against the frameworks' own option lists."""
    assert (schedule in abilities_of(framework).schedules) is launches


@pytest.mark.parametrize(
    ("pp", "vp", "m", "chunks", "factor"),
    [(4, 2, 16, 11, 1.375), (8, 4, 32, 39, 1.21875), (16, 8, 64, 143, 1.1171875)],
)
def test_interleaved_first_rank_holds_published_chunks(
    pp: int, vp: int, m: int, chunks: int, factor: float
) -> None:
    """Megatron-LM's warm-up count gives 1 + (p-1)/(p v) times 1F1B's activations on the first rank."""
    held = in_flight(Schedule.INTERLEAVED, ints(pp), ints(vp), ints(m))[0]
    assert held[0] * vp == chunks
    assert held[0] / pp == factor


def test_interleaved_group_size_counts_in_warm_up() -> None:
    """A larger microbatch group keeps (vp-1) * (G - pp) more chunks in flight."""
    usual = in_flight(Schedule.INTERLEAVED, ints(4), ints(3), ints(24))
    larger = in_flight(Schedule.INTERLEAVED, ints(4), ints(3), ints(24), group=ints(6))
    np.testing.assert_allclose((larger - usual) * 3, 2 * (6 - 4))


def test_overlapping_expert_communication_runs_one_chunk_ahead() -> None:
    """overlap_moe_expert_parallel_comm warms up one chunk more, if there is one more."""
    sizes = (Schedule.INTERLEAVED, ints(4, 4), ints(2, 2), ints(16, 4))
    ahead = in_flight(*sizes, extra_chunks=1) - in_flight(*sizes)
    assert ahead.tolist() == [[0.5] * 4, [0.0, 0.0, 0.5, 0.5]]


def test_1f1b_holds_pp_minus_rank_and_nothing_beyond_pp() -> None:
    """Rows of different pp share one array; columns beyond a row's pp are empty."""
    held = in_flight(Schedule.ONE_F_ONE_B, ints(4, 2, 4), ints(1, 1, 1), ints(16, 16, 2), ranks=5)
    assert held.tolist() == [[4, 3, 2, 1, 0], [2, 1, 0, 0, 0], [2, 2, 2, 1, 0]]


@pytest.mark.parametrize(
    ("schedule", "held"),
    [
        (Schedule.GPIPE, 32.0),
        (Schedule.ZB_H1, 8.0),
        (Schedule.ZB_V, 8.0),
        (Schedule.DUALPIPE, 9.0),
        (Schedule.DUALPIPE_V, 8.5),
    ],
)
def test_schedules_that_hold_equally_much_on_all_ranks(schedule: Schedule, held: float) -> None:
    """Qi et al. 2024 table 1 and the DualPipe README: p micro-batches, p+1 for DualPipe."""
    pp, m = ints(8), ints(32)
    assert in_flight(schedule, pp, ints(chunks_of(schedule)), m)[0].tolist() == [held] * 8


@pytest.mark.parametrize("schedule", [Schedule.GPIPE, Schedule.ONE_F_ONE_B])
def test_1f1b_bubble_share(schedule: Schedule) -> None:
    """16 micro-batches on 4 ranks idle for 3/19 = 15.79% of the step (Narayanan et al. 2021)."""
    idle = weight(schedule, (1.0, 1.0, 1.0), 4, 1, 16) * 3
    assert idle / (16 + idle) == pytest.approx(0.15789, abs=1e-5)


def test_interleaving_explains_llama3_mfu() -> None:
    """Halving the micro-batches of Llama 3 405B (pp 16, vp 8) takes its MFU from 43.48 to about 41.2."""

    def step_per_micro_batch(m: int) -> float:
        return 1 + 15 * weight(Schedule.INTERLEAVED, (1.0, 1.0, 1.0), 16, 8, m) / m

    assert 43.48 * step_per_micro_batch(32) / step_per_micro_batch(16) == pytest.approx(41.20, abs=0.01)


@pytest.mark.parametrize("times", [(1.0, 1.0, 1.0), (1.0, 1.2, 0.8), (1.0, 1.9, 0.6)])
def test_zb_h1_published_bubble(times: tuple[float, float, float]) -> None:
    """(p-1)(F + D - W) of Qi et al. 2024, table 1, where W is the shortest of the three."""
    f, d, w = times
    assert weight(Schedule.ZB_H1, times, 8, 1, 32) * (f + d + w) == pytest.approx(f + d - w)


@pytest.mark.parametrize("pp", [2, 4, 8, 16])
def test_dualpipe_published_bubble(pp: int) -> None:
    """(p/2-1)(F&B + B - 3W) of the DualPipe README holds for F = D = W without hidden communication."""
    bubble = weight(Schedule.DUALPIPE, (1.0, 1.0, 1.0), pp, 1, 4 * pp) * (pp / 2 - 1) * 3
    assert bubble == pytest.approx((pp / 2 - 1) * (3 + 2 - 3))


@pytest.mark.parametrize("pp", [2, 4, 8, 16])
def test_dualpipe_v_is_dualpipe_over_chunks(pp: int) -> None:
    """DualPipeV on p ranks idles as DualPipe on 2p ranks whose stages are its chunks (README, V schedule)."""
    times = (1.0, 1.3, 0.7)
    halves = weight(Schedule.DUALPIPE_V, times, pp, 2, 4 * pp, pair_s=2.6) * (pp - 1)
    stages = weight(Schedule.DUALPIPE, times, 2 * pp, 1, 8 * pp, pair_s=2.6) * (pp - 1)
    assert halves == pytest.approx(stages / 2)


@pytest.mark.parametrize("pp", [2, 4, 8, 16])
def test_zb_v_keeps_the_skew_of_its_ranks(pp: int) -> None:
    """With F = D = W only the last rank's late start remains: (p-1) forwards of half a rank."""
    assert weight(Schedule.ZB_V, (1.0, 1.0, 1.0), pp, 2, 4 * pp) * 3 == pytest.approx(0.5)


def test_hidden_communication_lengthens_the_dualpipe_bubble() -> None:
    """Forwards and backwards outside pairs hide nothing, so a shorter pair leaves more of them exposed."""
    times = (1.0, 1.2, 0.8)
    lengths = [weight(Schedule.DUALPIPE, times, 8, 1, 32, pair_s=pair) * pair for pair in (3.0, 2.7, 2.4)]
    assert lengths == sorted(lengths)
    assert lengths[0] < lengths[-1]


@settings(max_examples=200)
@given(
    schedule=st.sampled_from([s for s in Schedule if s is not Schedule.NONE]),
    half=st.integers(1, 16),
    factor=st.integers(2, 12),
    dgrad=st.floats(0.3, 4.0),
    wgrad=st.floats(0.0, 1.5),
    hidden=st.floats(0.0, 0.5),
)
def test_weight_is_a_share_of_the_other_ranks(
    schedule: Schedule, half: int, factor: int, dgrad: float, wgrad: float, hidden: float
) -> None:
    """The stage problem needs 0 <= weight < m; where pairs hide nothing, all ranks' idle time is below their work."""
    pp, m = 2 * half, 2 * half * factor
    total = 1.0 + dgrad + wgrad
    sizes, times = (pp, chunks_of(schedule), m), (1.0, dgrad, wgrad)
    others = SCHEDULES[schedule].parameter_copies
    assert 0.0 <= weight(schedule, times, *sizes, pair_s=total) <= others + 1e-9
    assert 0.0 <= weight(schedule, times, *sizes, pair_s=(1.0 - hidden) * total) < m


@settings(max_examples=30)
@given(st.sampled_from(list(Schedule)), st.integers(0, 10_000))
def test_batches_equal_their_rows(schedule: Schedule, seed: int) -> None:
    """Pricing is vectorised: no row may depend on its neighbours."""
    rng = np.random.default_rng(seed)
    pp = 2 * rng.integers(1, 9, 6)
    m, vp = 2 * pp * rng.integers(1, 5, 6), np.full(6, chunks_of(schedule))
    f, d, w = rng.uniform(0.5, 2.0, (3, 6))
    together = bubble_weight(schedule, f, d, w, pp, vp, m)
    held = in_flight(schedule, pp, vp, m, ranks=16)
    hops = exposed_hops(schedule, pp, vp, m)
    for row in range(6):
        one = slice(row, row + 1)
        sizes = (pp[one], vp[one], m[one])
        assert bubble_weight(schedule, f[one], d[one], w[one], *sizes)[0] == together[row]
        assert in_flight(schedule, *sizes, ranks=16)[0].tolist() == held[row].tolist()
        assert exposed_hops(schedule, *sizes)[0] == hops[row]


@pytest.mark.parametrize("schedule", list(Schedule))
def test_one_rank_neither_idles_nor_sends(schedule: Schedule) -> None:
    """pp = 1 is the limit in which no schedule costs anything."""
    assert weight(schedule, (1.0, 1.0, 1.0), 1, chunks_of(schedule), 8) == 0.0
    assert exposed_hops(schedule, ints(1), ints(chunks_of(schedule)), ints(8))[0] == 0.0


def test_no_work_is_no_bubble() -> None:
    """Zero unit times must give zero, not a division by zero."""
    assert weight(Schedule.ONE_F_ONE_B, (0.0, 0.0, 0.0), 4, 1, 8) == 0.0


def test_default_group_follows_the_frameworks() -> None:
    """pp where it divides m (Megatron-LM), m over the rounds otherwise (PyTorch)."""
    assert default_group(ints(4, 4, 4, 4), ints(16, 6, 9, 3)).tolist() == [4, 6, 5, 3]
