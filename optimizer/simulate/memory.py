"""Activations held over time, from the timeline of a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.orders import Kind
from layoutopt.optimizer.simulate.result import MemoryOverTime

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from layoutopt.optimizer.cost.orders import Pipeline
    from layoutopt.optimizer.simulate.result import Operations

    FloatArray = NDArray[np.float64]
    IntArray = NDArray[np.int64]


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
    done = np.where(kind == Kind.DGRAD, 0.0, 1.0)
    return (
        np.concatenate([rank[takes], rank[gives]]),
        np.concatenate([operations.start_s[takes], operations.end_s[gives]]),
        np.concatenate([activation_bytes[rank, operations.chunk][takes], -given[gives]]),
        np.concatenate([np.ones(int(takes.sum())), -done[gives]]),
    )
