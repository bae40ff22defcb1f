"""The operations of a pipeline step, rank by rank in their order, and what each of them waits for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.orders import (
    HopOverlap,
    Kind,
    Pipeline,
    merged,
    rank_tables,
    successors,
    waiting,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    IntArray = NDArray[np.signedinteger]
    """Steps of deep models have millions of operations: what is kept of each takes no more bytes than it needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedOperations:
    """All operations, rank by rank in their order, and their dependencies.

    ``columns`` (6, n): rank, kind, chunk, micro-batch, and a pair's backward chunk and micro-batch. ``before`` and
    ``hops`` (n, 3): the operation before on the rank, the producers of the activation and of the gradient (n where
    there is none), and how many transfers lie between.
    """

    columns: IntArray
    first: IntArray
    before: IntArray
    hops: IntArray

    @property
    def size(self) -> int:
        """Number of operations."""
        return int(self.columns.shape[1])


def list_operations(pipeline: Pipeline, *, overlap: HopOverlap) -> ListedOperations:
    """List the operations of a pipeline with what they wait for."""
    tables = rank_tables(pipeline)
    lengths = [len(table) for table in tables]
    columns = np.vstack(
        [np.repeat(np.arange(pipeline.pp), lengths), np.concatenate(tables).T], dtype=np.int32
    )
    del tables
    first = np.cumsum([0, *lengths])
    n = columns.shape[1]
    rank, kind, chunk, batch, back_chunk, back_batch = columns
    pair = kind == Kind.PAIR
    forward = pair | (kind == Kind.FORWARD)
    backward = ~forward & (kind != Kind.WGRAD)
    shape = (pipeline.pp, pipeline.chunks, pipeline.micro_batches_per_chunk)
    # n is one past the last operation: it ends at 0, so that waiting for it costs nothing.
    made = np.full((2, *shape), n, dtype=np.int32)
    made[0, rank[forward], chunk[forward], batch[forward]] = np.flatnonzero(forward)
    made[1, rank[backward], chunk[backward], batch[backward]] = np.flatnonzero(backward)
    made[1, rank[pair], back_chunk[pair], back_batch[pair]] = np.flatnonzero(pair)
    before, hops = np.full((n, 3), n, dtype=np.int32), np.zeros((n, 3), dtype=np.int8)
    before[1:, 0] = np.arange(n - 1)
    before[first[:-1], 0] = n
    source, target = _neighbours(pipeline)
    gets = [(1, forward, chunk, batch, source, 0)]
    gets += [
        (2, backward | pair, np.where(pair, back_chunk, chunk), np.where(pair, back_batch, batch), target, 1)
    ]
    for column, mask, own_chunk, own_batch, other, which in gets:
        op = np.flatnonzero(mask & (other[rank, own_chunk % pipeline.chunks, 0] >= 0))
        from_rank, from_chunk = other[rank[op], own_chunk[op]].T
        before[op, column] = made[which, from_rank, from_chunk, own_batch[op]]
        # Neighbouring stages on one rank hand over in its memory.
        hops[op, column] = from_rank != rank[op]
    if overlap is not HopOverlap.ALL:
        _wait_for_transfers(before, hops, np.concatenate(waiting(pipeline, overlap)))
    if pipeline.merges:
        _merge(before, hops, np.flatnonzero(np.concatenate(merged(pipeline))), one_link=pipeline.pp == 2)
    return ListedOperations(columns=columns, first=first, before=before, hops=hops)


def _neighbours(pipeline: Pipeline) -> tuple[IntArray, IntArray]:
    """Return the position before and behind every position, (pp, chunks, 2), -1 at the ends of the model."""
    source, target = (np.full((pipeline.pp, pipeline.chunks, 2), -1) for _ in range(2))
    for here, there in successors(pipeline).items():
        source[there], target[here] = here, there
    return source, target


def _merge(before: IntArray, hops: IntArray, forwards: IntArray, *, one_link: bool) -> None:
    """Let forwards wait for the gradient of the backward behind them too, and what they make leave with that one's.

    ``one_link``: activation and gradient go to the same rank then, one after the other.
    """
    n = len(before)
    ends = np.arange(n + 1)
    ends[forwards] += 1
    before[:, 1:] = ends[before[:, 1:]]
    before[forwards, 2], hops[forwards, 2] = before[forwards + 1, 2], hops[forwards + 1, 2]
    before[forwards + 1, 2], hops[forwards + 1, 2] = n, 0
    if one_link:
        both = np.zeros(n + 1, dtype=bool)
        both[before[:, 1][hops[:, 1] > 0]] = True
        both &= np.isin(np.arange(n + 1), forwards + 1)
        hops[:, 2] += both[before[:, 2]] & (hops[:, 2] > 0)


def _wait_for_transfers(before: IntArray, hops: IntArray, waits: NDArray[np.bool_]) -> None:
    """Lengthen arcs where a rank waits: for what it has sent, and for a receive that begins when it is idle.

    ``waits`` (n,): behind which operations.
    """
    n = len(before)
    received = hops[:, 1:].sum(axis=1)
    sent = np.zeros(n + 1, dtype=np.int64)
    np.add.at(sent, before[:, 1], hops[:, 1])
    np.add.at(sent, before[:, 2], hops[:, 2])
    hops[:, 1] *= received  # a pair receives one after the other
    previous = before[:, 0]
    hops[:, 0] = np.where(np.append(waits, False)[previous], np.maximum(received, sent[previous]), 0)
