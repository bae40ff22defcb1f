"""Run the order of operations one by one and walk back along what was waited for: a path that no other code found.

A rank runs its operations in order; one that needs an activation or a gradient waits for it, and for its transfer where it
comes from another rank. Where transfers do not overlap compute (``HopOverlap``), a rank also waits for what it sends, and
begins to receive when it has nothing else to do.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from layoutopt.optimizer.cost.makespan import Path
from layoutopt.optimizer.cost.orders import (
    HopOverlap,
    Kind,
    Op,
    Pipeline,
    interleaved_warm_up,
    rank_orders,
    successors,
    waiting,
)

if TYPE_CHECKING:
    from layoutopt.optimizer.cost.makespan import FloatArray

    Goods = tuple[bool, int, int]
    """A gradient (else an activation), the chunk that it passes and its micro-batch."""

MOST_OPERATIONS = 60_000
"""Operations that are run one by one, in a fraction of a second."""


class _Arc(NamedTuple):
    """The end of another operation, and the transfers behind it."""

    other: int
    hops: int


class _Order(NamedTuple):
    """Operations with their ranks, in an order in which they can run, and what each of them waits for."""

    ops: list[tuple[int, Op]]
    arcs: list[list[_Arc]]
    sequence: list[int]


def operations(pipeline: Pipeline) -> int:
    """Return how many operations a step has, but for weight gradients of their own."""
    return 2 * pipeline.pp * pipeline.chunks * pipeline.micro_batches_per_chunk


def longest_path(
    pipeline: Pipeline, by_kind: FloatArray, hop_s: float, overlap: HopOverlap
) -> tuple[float, Path]:
    """Return the seconds from the first operation to the last, and a longest path.

    ``by_kind`` (kinds, pp, chunks): seconds of each operation.
    """
    ops, arcs, sequence = _order(pipeline, overlap)
    seconds = by_kind.tolist()
    end, waited = [0.0] * len(ops), [_Arc(-1, 0)] * len(ops)
    for number in sequence:
        rank, op = ops[number]
        start = 0.0
        for arc in arcs[number]:
            ready = end[arc.other] + arc.hops * hop_s
            if ready > start:
                start, waited[number] = ready, arc
        end[number] = start + seconds[op.kind][rank][op.chunk]
    # The step ends with its last operation, on whatever rank.
    number = last = max(range(len(ops)), key=end.__getitem__)
    counts, hops = np.zeros(by_kind.shape, dtype=np.int64), 0
    while number >= 0:
        rank, op = ops[number]
        counts[op.kind, rank, op.chunk] += 1
        hops += waited[number].hops
        number = waited[number].other
    return end[last], Path(counts=counts, hops=hops)


@lru_cache(maxsize=16)
def _order(pipeline: Pipeline, overlap: HopOverlap) -> _Order:
    ops = [(rank, op) for rank, order in enumerate(rank_orders(pipeline)) for op in order]
    needed = _needed(pipeline, ops)
    sent = [0] * len(ops)
    for arc in (arc for own in needed for arc in own):
        sent[arc.other] += arc.hops
    # What runs as one still exchanges with warm-up and cool-down as two operations do.
    through = [sum(arc.hops for arc in own) for own in needed]
    if pipeline.merges:
        needed = _merged(pipeline, ops, needed)
    arcs: list[list[_Arc]] = []
    waits = [bool(wait) for rank in waiting(pipeline, overlap) for wait in rank]
    for number, own in enumerate(needed):
        received = through[number]
        if (
            overlap is not HopOverlap.ALL and not pipeline.merges and len(own) > 1
        ):  # the activation of a pair arrives behind its gradient
            own = [_Arc(own[0].other, own[0].hops * received), own[1]]
        if number and ops[number - 1][0] == ops[number][0]:
            idle = max(received, sent[number - 1]) if waits[number - 1] else 0
            own = [_Arc(number - 1, idle), *own]
        arcs.append(own)
    return _Order(ops, arcs, _sequence(arcs))


def _merged(pipeline: Pipeline, ops: list[tuple[int, Op]], needed: list[list[_Arc]]) -> list[list[_Arc]]:
    """Let a forward between warm-up and cool-down begin with, and hand on behind, the backward that runs beside it."""
    ahead = [0] * pipeline.pp
    joined = set()
    for number, (rank, op) in enumerate(ops):
        if op.kind is Kind.FORWARD:
            ahead[rank] += 1
            if ahead[rank] > interleaved_warm_up(pipeline, rank):
                joined.add(number)
    two_ranks = pipeline.pp == 2
    forth = {
        arc.other
        for (_, op), own in zip(ops, needed, strict=True)
        for arc in own
        if arc.hops and op.kind is Kind.FORWARD
    }

    def leaves(arc: _Arc) -> _Arc:
        """Return an arc from what runs as one; of two ranks a gradient follows the activation on the same link."""
        if arc.other in joined:
            return _Arc(arc.other + 1, arc.hops)
        behind = two_ranks and arc.hops and arc.other - 1 in joined and arc.other - 1 in forth
        return _Arc(arc.other, arc.hops + bool(behind))

    later = [[leaves(arc) for arc in own] for own in needed]
    return [
        own + later[number + 1] if number in joined else [] if number - 1 in joined else own
        for number, own in enumerate(later)
    ]


def _goods(op: Op) -> list[Goods]:
    """Return what an operation makes; it needs the like of its neighbours."""
    if op.kind is Kind.WGRAD:
        return []
    if op.kind is Kind.PAIR:
        return [(False, op.chunk, op.micro_batch), (True, op.backward_chunk, op.backward_micro_batch)]
    return [(op.kind is not Kind.FORWARD, op.chunk, op.micro_batch)]


def _needed(pipeline: Pipeline, ops: list[tuple[int, Op]]) -> list[list[_Arc]]:
    """Return from which operations on other stages each one gets its activation and its gradient."""
    behind = successors(pipeline)
    before = {there: here for here, there in behind.items()}
    made = {
        (gradient, batch, rank, chunk): number
        for number, (rank, op) in enumerate(ops)
        for gradient, chunk, batch in _goods(op)
    }
    found = []
    for rank, op in ops:
        goods = [
            (batch, gradient, (behind if gradient else before).get((rank, chunk)))
            for gradient, chunk, batch in _goods(op)
        ]
        found.append(
            [
                _Arc(made[gradient, batch, *place], int(place[0] != rank))
                for batch, gradient, place in goods
                if place is not None
            ]
        )
    return found


def _sequence(arcs: list[list[_Arc]]) -> list[int]:
    """Sort operations so that each stands behind what it waits for."""
    waits = [len(own) for own in arcs]
    wanted: list[list[int]] = [[] for _ in arcs]
    for number, own in enumerate(arcs):
        for arc in own:
            wanted[arc.other].append(number)
    ready = [number for number, left in enumerate(waits) if not left]
    # The list grows while it is walked: operations join once all they wait for are in it.
    for number in ready:
        for later in wanted[number]:
            waits[later] -= 1
            if not waits[later]:
                ready.append(later)
    return ready
