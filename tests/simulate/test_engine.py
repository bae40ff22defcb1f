"""The event simulation: dependencies, transfers, memory over time, refused inputs."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutopt.optimizer.cost.orders import HopOverlap, Kind, Pipeline, successors
from layoutopt.optimizer.simulate.engine import StageWork, simulate
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.vocabulary import Schedule

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from layoutopt.optimizer.simulate.result import SimulationResult

    FloatArray = NDArray[np.float64]

PIPELINES = [
    Pipeline(schedule=Schedule.GPIPE, pp=3, micro_batches=5),
    Pipeline(schedule=Schedule.ONE_F_ONE_B, pp=4, micro_batches=6),
    Pipeline(schedule=Schedule.INTERLEAVED, pp=3, vp=2, micro_batches=6),
    Pipeline(schedule=Schedule.INTERLEAVED, pp=2, vp=3, micro_batches=7, group=4),
    Pipeline(schedule=Schedule.ZB_H1, pp=4, micro_batches=6),
    Pipeline(schedule=Schedule.ZB_V, pp=3, vp=2, micro_batches=7),
    Pipeline(schedule=Schedule.DUALPIPE, pp=4, micro_batches=10),
    Pipeline(schedule=Schedule.DUALPIPE_V, pp=3, vp=2, micro_batches=8),
]


def random_work(pipeline: Pipeline, seed: int, *, overlap: HopOverlap | None = None) -> StageWork:
    """Return times and memory without any regularity."""
    rng = np.random.default_rng(seed)
    shape = (pipeline.pp, 1 if pipeline.schedule is Schedule.DUALPIPE else pipeline.vp)
    return StageWork(
        forward_s=rng.uniform(0.1, 2.0, shape),
        dgrad_s=rng.uniform(0.1, 2.0, shape),
        wgrad_s=rng.uniform(0.1, 2.0, shape),
        activation_bytes=rng.uniform(1.0, 5.0, shape),
        static_bytes=rng.uniform(10.0, 20.0, pipeline.pp),
        hop_s=rng.uniform(0.0, 0.3, pipeline.pp),
        hops_overlap=overlap,
    )


def ends(result: SimulationResult, *, backward: bool) -> dict[tuple[int, int, int], float]:
    """Map (rank, chunk, micro-batch) to the end of its forward, or of its backward for the inputs."""
    ops = result.operations
    found = {}
    for k in range(len(ops.rank)):
        kind, rank = ops.kind[k], int(ops.rank[k])
        if backward and kind == Kind.PAIR:
            found[rank, int(ops.backward_chunk[k]), int(ops.backward_micro_batch[k])] = float(ops.end_s[k])
        elif kind in ((Kind.BACKWARD, Kind.DGRAD) if backward else (Kind.FORWARD, Kind.PAIR)):
            found[rank, int(ops.chunk[k]), int(ops.micro_batch[k])] = float(ops.end_s[k])
    return found


@pytest.mark.parametrize("overlap", list(HopOverlap))
@pytest.mark.parametrize("pipeline", PIPELINES, ids=lambda p: f"{p.schedule}-{p.pp}")
def test_nothing_starts_before_its_input_has_arrived(pipeline: Pipeline, overlap: HopOverlap) -> None:
    """Every forward and backward waits for the neighbour's output and the hop between them."""
    work = random_work(pipeline, 1, overlap=overlap)
    result = simulate(pipeline, work)
    ops, forward_to = result.operations, successors(pipeline)
    forward_from = {there: here for here, there in forward_to.items()}
    forward_end, backward_end = ends(result, backward=False), ends(result, backward=True)
    assert work.hop_s is not None
    checked = 0
    for k in range(len(ops.rank)):
        kind, rank = ops.kind[k], int(ops.rank[k])
        here = (rank, int(ops.chunk[k]))
        needs = []
        if kind in (Kind.FORWARD, Kind.PAIR) and here in forward_from:
            needs.append((forward_from[here], forward_end[*forward_from[here], int(ops.micro_batch[k])]))
        if kind == Kind.PAIR:
            here = (rank, int(ops.backward_chunk[k]))
        i = int(ops.backward_micro_batch[k] if kind == Kind.PAIR else ops.micro_batch[k])
        if kind not in (Kind.FORWARD, Kind.WGRAD) and here in forward_to:
            needs.append((forward_to[here], backward_end[*forward_to[here], i]))
        for (source, _), ready_s in needs:
            link = pipeline.pp - 1 if abs(source - rank) == pipeline.pp - 1 > 1 else min(source, rank)
            hop_s = 0.0 if source == rank else work.hop_s[link]
            assert ops.start_s[k] >= ready_s + hop_s - 1e-12
            checked += 1
    assert checked > pipeline.micro_batches


@settings(max_examples=60)
@given(st.sampled_from(PIPELINES), st.integers(0, 1000), st.sampled_from(HopOverlap))
def test_accounts_close(pipeline: Pipeline, seed: int, overlap: HopOverlap) -> None:
    """Ranks never do two things at once, idle plus busy is the step, and all activations are given back."""
    work = random_work(pipeline, seed, overlap=overlap)
    result = simulate(pipeline, work)
    ops = result.operations
    same_rank = ops.rank[1:] == ops.rank[:-1]
    assert (ops.start_s[1:][same_rank] >= ops.end_s[:-1][same_rank]).all()
    np.testing.assert_allclose(result.busy_s + result.bubble_s, result.makespan_s)
    assert work.static_bytes is not None
    for rank, memory in enumerate(result.memory):
        assert memory.in_flight[-1] == pytest.approx(0.0)
        assert memory.held_bytes[-1] == pytest.approx(work.static_bytes[rank])
        assert (memory.held_bytes >= work.static_bytes[rank] - 1e-9).all()
        assert (np.diff(memory.time_s) >= 0).all()


@settings(max_examples=40)
@given(st.sampled_from(PIPELINES), st.integers(0, 1000), st.floats(1.0, 3.0))
def test_slower_work_never_ends_sooner(pipeline: Pipeline, seed: int, factor: float) -> None:
    """The order is fixed, so that a longer operation or hop can only delay the end."""
    work = random_work(pipeline, seed)
    slower = StageWork(
        forward_s=factor * work.forward_s, dgrad_s=work.dgrad_s, wgrad_s=work.wgrad_s, hop_s=work.hop_s
    )
    assert simulate(pipeline, slower).makespan_s >= simulate(pipeline, work).makespan_s - 1e-12


def test_transfers_of_one_link_queue() -> None:
    """Overlapping transfers in one direction between two ranks share the link one after the other."""
    pipeline = Pipeline(schedule=Schedule.GPIPE, pp=2, micro_batches=4)
    one = np.ones((2, 1))
    result = simulate(
        pipeline,
        StageWork(forward_s=0.1 * one, dgrad_s=0.1 * one, wgrad_s=0 * one, hop_s=np.ones(2)),
    )
    moved = result.transfers
    forward = (moved.source == 0) & (moved.gradient == 0)
    assert np.sort(moved.start_s[forward]).tolist() == pytest.approx([0.1, 1.1, 2.1, 3.1])


def test_waiting_ranks_lose_both_ends_of_a_transfer() -> None:
    """Without overlap the sender is held up as well: two ranks, two micro-batches, by hand."""
    pipeline = Pipeline(schedule=Schedule.ONE_F_ONE_B, pp=2, micro_batches=2)
    one = np.ones((2, 1))
    work = StageWork(forward_s=one, dgrad_s=one, wgrad_s=0 * one, hop_s=np.full(2, 0.25))
    result = simulate(pipeline, work)
    # Rank 0: F0 0-1, send, F1 1.25-2.25; rank 1: F0 1.25-2.25, B0 2.25-3.25, then send and receive, F1
    # 3.5-4.5,
    # B1 4.5-5.5; rank 0: B0 3.5-4.5, B1 5.75-6.75.
    assert result.makespan_s == pytest.approx(6.75)
    assert result.operations.start_s.tolist() == pytest.approx([0, 1.25, 3.5, 5.75, 1.25, 2.25, 3.5, 4.5])


def test_split_backward_can_release_memory_early() -> None:
    """What the weight gradient doesn't need is given back when dgrad ends."""
    pipeline = Pipeline(schedule=Schedule.ZB_H1, pp=4, micro_batches=12)
    one = np.ones((4, 1))
    work = StageWork(forward_s=one, dgrad_s=one, wgrad_s=one, activation_bytes=10 * one)
    whole = simulate(pipeline, work)
    early = simulate(pipeline, replace(work, wgrad_bytes=3 * one))
    assert whole.peak_bytes.tolist() == [40.0] * 4
    # The last rank has at most one micro-batch before and three after dgrad.
    assert early.peak_bytes[3] == 10.0 + 3 * 3.0
    assert early.peak_in_flight.tolist() == whole.peak_in_flight.tolist()


def test_memory_of_uneven_chunks_is_counted_in_bytes() -> None:
    """Interleaved chunks of different size: the peak isn't in_flight times the mean chunk."""
    pipeline = Pipeline(schedule=Schedule.INTERLEAVED, pp=2, vp=2, micro_batches=4)
    one = np.ones((2, 2))
    sizes = np.array([[3.0, 1.0], [3.0, 1.0]])
    result = simulate(pipeline, StageWork(forward_s=one, dgrad_s=one, wgrad_s=one, activation_bytes=sizes))
    # Rank 0 holds 2(p-1) + (v-1)p + 1 = 5 chunks at most. After F0.0 F0.1 F1.0 F1.1 F0.2, B1.0 makes room for
    # F0.3: four big chunks and a small one.
    assert result.peak_in_flight[0] == 2.5
    assert result.peak_bytes[0] == 4 * 3.0 + 1 * 1.0


def test_dualpipe_takes_stages_for_both_directions() -> None:
    """(pp, 1) times by stage mean the same as (pp, 2) with the second direction reversed."""
    pipeline = Pipeline(schedule=Schedule.DUALPIPE, pp=4, micro_batches=8)
    stages = np.array([[1.0], [1.1], [1.2], [1.3]])
    both = np.hstack([stages, stages[::-1]])
    by_stage = simulate(pipeline, StageWork(forward_s=stages, dgrad_s=stages, wgrad_s=stages))
    by_direction = simulate(pipeline, StageWork(forward_s=both, dgrad_s=both, wgrad_s=both))
    assert by_stage.makespan_s == by_direction.makespan_s


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        ("forward_s", np.ones((3, 1))),  # one rank too few
        ("dgrad_s", np.ones(4)),  # chunks missing
        ("wgrad_s", np.full((4, 1), -1.0)),  # time can't be negative
        ("hop_s", np.full(4, np.nan)),  # unknown is not a time
        ("static_bytes", np.ones(5)),  # one rank too many
    ],
)
def test_bad_arrays_are_refused(field: str, bad: FloatArray) -> None:
    """The error names the array and the shape that would be valid."""
    one = np.ones((4, 1))
    arrays: dict[str, Any] = {"forward_s": one, "dgrad_s": one, "wgrad_s": one, field: bad}
    with pytest.raises(InputError, match=field):
        simulate(Pipeline(schedule=Schedule.ONE_F_ONE_B, pp=4, micro_batches=4), StageWork(**arrays))


def test_large_schedules_stay_fast() -> None:
    """16 ranks, 8 chunks, 256 micro-batches: 65,536 operations in a few seconds on a slow core."""
    pipeline = Pipeline(schedule=Schedule.INTERLEAVED, pp=16, vp=8, micro_batches=256)
    one = np.ones((16, 8))
    start = time.process_time()
    result = simulate(pipeline, StageWork(forward_s=one, dgrad_s=one, wgrad_s=one))
    assert time.process_time() - start < 10.0
    assert len(result.operations.rank) == 16 * 8 * 256 * 2
