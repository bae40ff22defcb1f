"""Event simulation of one pipeline step: unequal stages, transfers between ranks, activations over time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.orders import HopOverlap, Kind
from layoutopt.optimizer.cost.schedules import SCHEDULES
from layoutopt.optimizer.simulate.graph import build_graph
from layoutopt.optimizer.simulate.result import MemoryOverTime, Operations, SimulationResult, Transfers
from layoutopt.optimizer.specs.errors import input_error
from layoutopt.optimizer.specs.vocabulary import Schedule

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from layoutopt.optimizer.cost.orders import Pipeline
    from layoutopt.optimizer.simulate.graph import Graph

    FloatArray = NDArray[np.float64]

    IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageWork:
    """Times and memory of every position (see ``orders``), each (pp, chunks); seconds and bytes.

    DualPipe takes (pp, 1) by stage too.

    ``forward_s``, ``dgrad_s``, ``wgrad_s``: one micro-batch through one chunk (backward for inputs and for
    weights). ``pair_s[r, c]``: the forward of chunk c together with the backward of rank r's other chunk;
    None means the sum of the two, nothing hidden. ``activation_bytes`` is what a forward leaves until the
    backward ends; of it ``wgrad_bytes`` stay until the weight gradient where that runs apart (None: all).
    ``static_bytes`` (pp,) stay all the time. ``hop_s`` (pp,): one transfer between ranks r and r+1, the last
    entry between pp-1 and 0. ``hops_overlap``: when transfers run beside compute; otherwise ranks wait for them
    (None: as frameworks run the schedule).
    """

    forward_s: FloatArray
    dgrad_s: FloatArray
    wgrad_s: FloatArray
    pair_s: FloatArray | None = None
    activation_bytes: FloatArray | None = None
    wgrad_bytes: FloatArray | None = None
    static_bytes: FloatArray | None = None
    hop_s: FloatArray | None = None
    hops_overlap: HopOverlap | None = None


def simulate(pipeline: Pipeline, work: StageWork) -> SimulationResult:
    """Run one step of a schedule and return its timeline.

    An operation starts as soon as its rank is free and its inputs have arrived (see ``build_graph`` for
    transfers). Raises ``InputError`` for arrays of the wrong shape and for schedules that deadlock.
    """
    usual = HopOverlap.ALL if SCHEDULES[pipeline.schedule].hops_overlap else HopOverlap.NONE
    overlap = usual if work.hops_overlap is None else work.hops_overlap
    graph = _graph(pipeline, overlap)
    start, end = graph.run(_durations(pipeline, graph, work))
    count = graph.op_columns.shape[1]
    operations = _operations(graph, start[:count], end[:count])
    moved = slice(count, count + len(graph.transfers))
    return _result(pipeline, work, operations, _transfers(graph, start[moved], end[moved]))


# A layout is simulated with and without the time of its transfers, on one graph.
@lru_cache(maxsize=4)
def _graph(pipeline: Pipeline, overlap: HopOverlap) -> Graph:
    return build_graph(pipeline, overlap=overlap)


def _durations(pipeline: Pipeline, graph: Graph, work: StageWork) -> FloatArray:
    """Return the seconds of every node of the graph."""
    by_kind = np.stack(stage_times(pipeline, work))
    hop = by_rank(pipeline, work.hop_s, "hop_s")
    rank, kind, chunk = graph.op_columns[:3]
    # Two columns also where there is no transfer at all.
    links = np.array([hop[:2] for hop in graph.transfers + graph.sends], dtype=np.int64).reshape(-1, 2)
    # A gradient goes back over the link by which its activation came.
    low, high = links.min(axis=1), links.max(axis=1)
    # A hop between the two ends of a pipeline of more than two ranks is the wrap-around of interleaving.
    wrap = (high - low == pipeline.pp - 1) & (pipeline.pp > 2)
    return np.concatenate([by_kind[kind, rank, chunk], hop[np.where(wrap, pipeline.pp - 1, low)]])


def stage_times(pipeline: Pipeline, work: StageWork) -> list[FloatArray]:
    """Return the (pp, chunks) seconds of each operation kind, in the order of ``Kind``."""
    forward = by_position(pipeline, work.forward_s, "forward_s")
    dgrad = by_position(pipeline, work.dgrad_s, "dgrad_s")
    wgrad = by_position(pipeline, work.wgrad_s, "wgrad_s")
    # A pair is the forward of one chunk and the backward of the rank's other one, which stands in the other column.
    together = forward + (dgrad + wgrad)[:, ::-1]
    pair = together if work.pair_s is None else by_position(pipeline, work.pair_s, "pair_s")
    times = {
        Kind.FORWARD: forward,
        Kind.BACKWARD: dgrad + wgrad,
        Kind.DGRAD: dgrad,
        Kind.WGRAD: wgrad,
        Kind.PAIR: pair,
    }
    return [times[kind] for kind in Kind]


def by_position(pipeline: Pipeline, values: FloatArray | None, name: str) -> FloatArray:
    """Return the values as (pp, chunks); DualPipe's (pp, 1) by stage become those of its two directions."""
    array = (
        np.asarray(values, dtype=np.float64)
        if values is not None
        else np.zeros((pipeline.pp, pipeline.chunks))
    )
    if pipeline.schedule is Schedule.DUALPIPE and array.shape == (pipeline.pp, 1):
        array = np.hstack([array, array[::-1]])
    return _checked(array, (pipeline.pp, pipeline.chunks), name)


def by_rank(pipeline: Pipeline, values: FloatArray | None, name: str) -> FloatArray:
    """Return the values as (pp,), zeros for None."""
    array = np.zeros(pipeline.pp) if values is None else np.asarray(values, dtype=np.float64)
    return _checked(array, (pipeline.pp,), name)


def _checked(array: FloatArray, shape: tuple[int, ...], name: str) -> FloatArray:
    if array.shape != shape or not np.isfinite(array).all() or (array < 0).any():
        raise input_error(f"array of shape {array.shape}", f"shape {shape}, finite, not negative", key=name)
    return array


def _operations(graph: Graph, start_s: FloatArray, end_s: FloatArray) -> Operations:
    rank, kind, chunk, micro_batch, backward_chunk, backward_micro_batch = graph.op_columns
    return Operations(
        rank=rank,
        kind=kind,
        chunk=chunk,
        micro_batch=micro_batch,
        backward_chunk=backward_chunk,
        backward_micro_batch=backward_micro_batch,
        start_s=start_s,
        end_s=end_s,
    )


def _transfers(graph: Graph, start_s: FloatArray, end_s: FloatArray) -> Transfers:
    # Five columns also where there is no transfer at all.
    source, target, chunk, micro_batch, gradient = np.array(graph.transfers, dtype=np.int64).reshape(-1, 5).T
    return Transfers(
        source=source,
        target=target,
        chunk=chunk,
        micro_batch=micro_batch,
        gradient=gradient,
        start_s=start_s,
        end_s=end_s,
    )


def _result(
    pipeline: Pipeline, work: StageWork, operations: Operations, transfers: Transfers
) -> SimulationResult:
    activation = by_position(pipeline, work.activation_bytes, "activation_bytes")
    late = activation if work.wgrad_bytes is None else by_position(pipeline, work.wgrad_bytes, "wgrad_bytes")
    static = by_rank(pipeline, work.static_bytes, "static_bytes")
    memory = rank_memories(pipeline, operations, activation, late, static)
    makespan = float(operations.end_s.max())
    busy = np.zeros(pipeline.pp)
    np.add.at(busy, operations.rank, operations.end_s - operations.start_s)
    return SimulationResult(
        pipeline=pipeline,
        makespan_s=makespan,
        busy_s=busy,
        bubble_s=makespan - busy,
        memory=memory,
        peak_bytes=np.array([rank.held_bytes.max() for rank in memory]),
        peak_in_flight=np.array([rank.in_flight.max() for rank in memory]),
        operations=operations,
        transfers=transfers,
    )


def rank_memories(
    pipeline: Pipeline,
    operations: Operations,
    activation_bytes: FloatArray,
    wgrad_bytes: FloatArray,
    static_bytes: FloatArray,
) -> tuple[MemoryOverTime, ...]:
    """Return the memory of every rank over time.

    A forward takes ``activation_bytes`` (pp, chunks) when it starts. A whole backward gives them back when it
    ends; where the weight gradient runs apart, the backward for the inputs keeps ``wgrad_bytes`` (pp, chunks)
    for it. ``static_bytes`` is (pp,). At equal times memory is given back before it is taken.
    """
    rank, time_s, held, in_flight = _changes(operations, activation_bytes, wgrad_bytes)
    # Negative changes sort first within a moment: a peak that is only the order of two equal times is none.
    order = np.lexsort((held, in_flight, time_s, rank))
    chunks_per_micro_batch = pipeline.vp
    memories = []
    for here in range(pipeline.pp):
        mine = order[rank[order] == here]
        memories.append(
            MemoryOverTime(
                time_s=time_s[mine],
                held_bytes=static_bytes[here] + np.cumsum(held[mine]),
                in_flight=np.cumsum(in_flight[mine]) / chunks_per_micro_batch,
            )
        )
    return tuple(memories)


def _changes(
    operations: Operations, activation_bytes: FloatArray, wgrad_bytes: FloatArray
) -> tuple[IntArray, FloatArray, FloatArray, FloatArray]:
    """Return rank, time, bytes and chunk count of every change."""
    kind, rank = operations.kind, operations.rank
    takes = (kind == Kind.FORWARD) | (kind == Kind.PAIR)
    gives = kind != Kind.FORWARD
    given_chunk = np.where(kind == Kind.PAIR, operations.backward_chunk, operations.chunk)
    whole, late = activation_bytes[rank, given_chunk], wgrad_bytes[rank, given_chunk]
    given = np.where(kind == Kind.DGRAD, whole - late, np.where(kind == Kind.WGRAD, late, whole))
    # A micro-batch is in flight until its weight gradient is there, which may be much later than its inputs' gradient.
    done = np.where(kind == Kind.DGRAD, 0.0, 1.0)
    return (
        np.concatenate([rank[takes], rank[gives]]),
        np.concatenate([operations.start_s[takes], operations.end_s[gives]]),
        np.concatenate([activation_bytes[rank, operations.chunk][takes], -given[gives]]),
        np.concatenate([np.ones(int(takes.sum())), -done[gives]]),
    )
