"""The dependencies of one pipeline step: operations, and the transfers between them, as one acyclic graph."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from layoutopt.optimizer.cost.orders import Kind, Op, Position, merged, rank_orders, successors, waiting
from layoutopt.optimizer.specs.errors import input_error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from layoutopt.optimizer.cost.orders import HopOverlap, Pipeline

    FloatArray = NDArray[np.float64]
    IntArray = NDArray[np.int64]


class Transfer(NamedTuple):
    """One hop: ``chunk`` and ``micro_batch`` are the receiver's; ``gradient`` 1 for backward, 0 for
    forward.
    """

    source: int
    target: int
    chunk: int
    micro_batch: int
    gradient: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """Operations are nodes 0..ops-1, rank by rank in their order; then come ``transfers``, then ``sends``.

    ``op_columns`` (6, ops): rank, kind, chunk, micro-batch, and a pair's backward chunk and micro-batch (else
    -1). ``sends`` repeat a waiting transfer on the sender's side. All of ``predecessors[node]`` end before
    the node starts; ``order`` is a topological order.
    """

    op_columns: IntArray
    transfers: tuple[Transfer, ...]
    sends: tuple[Transfer, ...]
    predecessors: tuple[tuple[int, ...], ...]
    order: tuple[int, ...]

    def run(self, durations_s: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return start and end of each node when all start as soon as they can; ``durations_s`` is
        (nodes,).
        """
        # Plain lists: nodes come one after the other, and arrays are slow by the element.
        duration = durations_s.tolist()
        start, end = [0.0] * len(duration), [0.0] * len(duration)
        for node in self.order:
            earliest = 0.0
            for before in self.predecessors[node]:
                if end[before] > earliest:
                    earliest = end[before]
            start[node] = earliest
            end[node] = earliest + duration[node]
        return np.array(start), np.array(end)


def build_graph(pipeline: Pipeline, *, overlap: HopOverlap) -> Graph:
    """Build the dependencies of a schedule.

    Where transfers run beside compute (``overlap``), those of one direction between two ranks go one after the
    other. Elsewhere they are batched send and receive as in Megatron-LM's ``send_forward_recv_backward``:
    after an operation its rank sends the output and at the same time receives the next operation's input, and
    goes on when both are through.
    """
    builder = _Builder.start(pipeline, overlap)
    builder.connect()
    return builder.graph()


@dataclass(slots=True, kw_only=True)
class _Builder:
    ops: list[Op]
    op_rank: list[int]
    waits: list[bool]
    merged: list[bool]
    forward_source: dict[Position, Position]
    backward_source: dict[Position, Position]
    forward_of: dict[tuple[int, int, int], int] = field(default_factory=dict)
    backward_of: dict[tuple[int, int, int], int] = field(default_factory=dict)
    before: list[list[int]] = field(default_factory=list)
    transfers: list[Transfer] = field(default_factory=list)
    transfer_ends: list[tuple[int, int]] = field(default_factory=list)
    sends: list[Transfer] = field(default_factory=list)

    @classmethod
    def start(cls, pipeline: Pipeline, overlap: HopOverlap) -> _Builder:
        """Begin with the ranks' operations, in order, and no edges."""
        forward_to = successors(pipeline)
        orders = rank_orders(pipeline)
        builder = cls(
            ops=[op for order in orders for op in order],
            op_rank=[rank for rank, order in enumerate(orders) for _ in order],
            waits=np.concatenate(waiting(pipeline, overlap)).tolist(),
            merged=np.concatenate(merged(pipeline)).tolist(),
            forward_source={there: here for here, there in forward_to.items()},
            backward_source=forward_to,
        )
        for node, (op, rank) in enumerate(zip(builder.ops, builder.op_rank, strict=True)):
            builder.index(node, op, rank)
        return builder

    def index(self, node: int, op: Op, rank: int) -> None:
        """Note which operation makes which activation and which gradient."""
        kind, chunk, i, backward_chunk, j = op
        if kind is Kind.FORWARD or kind is Kind.PAIR:
            self.forward_of[rank, chunk, i] = node
        if kind is Kind.PAIR:
            self.backward_of[rank, backward_chunk, j] = node
        elif kind is Kind.BACKWARD or kind is Kind.DGRAD:
            self.backward_of[rank, chunk, i] = node

    def inputs(self, op: Op, rank: int) -> Iterator[tuple[int, Transfer]]:
        """Yield the producer of each input of an operation that another position makes, and the hop it
        takes.
        """
        kind, chunk, i, backward_chunk, j = op
        if kind is Kind.FORWARD or kind is Kind.PAIR:
            source = self.forward_source.get((rank, chunk))
            if source is not None:
                yield self.leaves(self.forward_of[*source, i]), Transfer(source[0], rank, chunk, i, 0)
        if kind is Kind.PAIR:
            chunk, i = backward_chunk, j
        if kind is not Kind.FORWARD and kind is not Kind.WGRAD:
            source = self.backward_source.get((rank, chunk))
            if source is not None:
                yield self.backward_of[*source, i], Transfer(source[0], rank, chunk, i, 1)

    def leaves(self, node: int) -> int:
        """Return the operation with whose end an activation leaves: the backward that its forward runs as one with."""
        return node + 1 if self.merged[node] else node

    def connect(self) -> None:
        """Fill ``before``: the previous operation of the rank, same-rank inputs, and transfers."""
        count = len(self.ops)
        for node, (op, rank) in enumerate(zip(self.ops, self.op_rank, strict=True)):
            before = self.previous(node)
            # a forward that runs as one with the backward behind it has the inputs of both
            ahead = node > 0 and self.merged[node - 1]
            inputs = [] if ahead else [(node, *made) for made in self.inputs(op, rank)]
            if self.merged[node]:
                inputs += [(node + 1, *made) for made in self.inputs(self.ops[node + 1], rank)]
            for consumer, producer, hop in inputs:
                if hop.source == hop.target:
                    before.append(producer)
                else:
                    before.append(count + len(self.transfers))
                    self.transfers.append(hop)
                    self.transfer_ends.append((producer, consumer))
            self.before.append(before)
        receives, sends = self.queued(), list[list[int]]()
        self.wait(receives, sends)
        self.before += receives + sends

    def queued(self) -> list[list[int]]:
        """Return the predecessors of overlapping transfers: the producer and the link's transfer before
        it.
        """
        count, last_on_link = len(self.ops), dict[tuple[int, int], int]()
        before: list[list[int]] = [[producer] for producer, _ in self.transfer_ends]
        # In the order in which they are produced: a link carries what came first, first.
        for k in sorted(range(len(self.transfers)), key=lambda k: self.transfer_ends[k][0]):
            link, consumer = self.transfers[k][:2], self.transfer_ends[k][1]
            if self.blocks(consumer):
                continue
            if link in last_on_link:
                before[k].append(last_on_link[link])
            last_on_link[link] = count + k
        return before

    def blocks(self, node: int) -> bool:
        """Tell whether the rank of an operation waits for its transfers right before it."""
        return any(self.waits[before] for before in self.previous(node))

    def wait(self, receives: list[list[int]], sends: list[list[int]]) -> None:
        """Add the predecessors of blocking receives, and the sends that the operations behind them wait for."""
        count, first_send = len(self.ops), len(self.ops) + len(self.transfers)
        last_receive, last_send = dict[int, int](), dict[int, int]()
        for k, (hop, (producer, consumer)) in enumerate(zip(self.transfers, self.transfer_ends, strict=True)):
            if self.blocks(consumer):
                receives[k] += self.previous(consumer)
                if consumer in last_receive:
                    receives[k].append(last_receive[consumer])
                last_receive[consumer] = count + k
            following = producer + 1
            if following < count and self.op_rank[following] == hop.source and self.waits[producer]:
                last_send[producer], sent = first_send + len(sends), [last_send.get(producer, producer)]
                self.before[following].append(last_send[producer])
                sends.append(sent)
                self.sends.append(hop)

    def previous(self, node: int) -> list[int]:
        """Return the operation before ``node`` on its rank, if there is one."""
        return [node - 1] if node and self.op_rank[node - 1] == self.op_rank[node] else []

    def graph(self) -> Graph:
        """Return the finished graph as arrays."""
        columns = np.array(
            [(rank, *op) for rank, op in zip(self.op_rank, self.ops, strict=True)], dtype=np.int64
        )
        return Graph(
            op_columns=columns.T,
            transfers=tuple(self.transfers),
            sends=tuple(self.sends),
            predecessors=tuple(map(tuple, self.before)),
            order=_topological(self.before),
        )


def _topological(before: list[list[int]]) -> tuple[int, ...]:
    missing = [len(nodes) for nodes in before]
    after: list[list[int]] = [[] for _ in before]
    for node, nodes in enumerate(before):
        for other in nodes:
            after[other].append(node)
    order = [node for node, count in enumerate(missing) if count == 0]
    for node in order:
        for other in after[node]:
            missing[other] -= 1
            if missing[other] == 0:
                order.append(other)
    if len(order) < len(before):
        raise input_error("the schedule deadlocks", "a group size of at least pp", key="group")
    return tuple(order)
