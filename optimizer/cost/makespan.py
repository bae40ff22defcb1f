"""The exact length of a pipeline step: the longest path through the order of operations that really runs.

Operations are nodes of an acyclic graph. Each waits for the operation before it on its rank, for the activation of
the stage before and for the gradient of the stage behind; transfers are lengths of those arcs, in whole hops. Where
they run beside compute only the receiver waits; where a rank waits for them, sends delay the sender and a receive
starts when the receiver has nothing else to do (``Megatron-LM send_forward_recv_backward``).

Many splits of one shape are priced at once, level by level. A long step repeats itself: after a few periods either
the times of a period grow evenly, and go on doing so until some arc becomes critical, which is computed; or the next
period is run. Nothing is approximated.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.operations import ListedOperations, list_operations
from layoutopt.optimizer.cost.orders import HopOverlap, Kind, Pipeline
from layoutopt.optimizer.cost.schedules import SCHEDULES
from layoutopt.optimizer.specs.errors import input_error
from layoutopt.optimizer.specs.vocabulary import Schedule

if TYPE_CHECKING:
    from numpy.typing import NDArray

    FloatArray = NDArray[np.float64]
    IntArray = NDArray[np.signedinteger]

KINDS = len(Kind)
PERIODS = 3
"""Periods of the steady phase that are kept: two differences between them tell whether times grow evenly."""
EVEN = 1e-10
"""Relative difference of two periods' growth that counts as none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Durations:
    """Seconds of every operation in ``n`` steps of one shape.

    ``by_kind`` (KINDS, pp, chunks, n) in the order of ``Kind``; ``hop_s`` (n,) of one transfer.
    """

    by_kind: FloatArray
    hop_s: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """One path through a step as a linear form: times each operation is on it, (KINDS, pp, chunks), and its hops."""

    counts: IntArray
    hops: int

    def seconds(self, durations: Durations) -> FloatArray:
        """Return its length in every step, (n,): a floor under the step."""
        weighed: FloatArray = np.tensordot(self.counts, durations.by_kind, axes=3)
        return weighed + self.hops * durations.hop_s


@dataclass(frozen=True, slots=True, kw_only=True)
class _Period:
    """The times (L, n) of the ``number``-th period, and by how much each period before it back to the last grew less."""

    number: int
    end_s: FloatArray
    growth_s: FloatArray | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """The end of every operation of a run (N + 1, n), and its periods."""

    end_s: FloatArray
    periods: list[_Period]

    @property
    def makespan_s(self) -> FloatArray:
        """Seconds from the first operation to the last, (n,)."""
        result: FloatArray = self.end_s.max(axis=0)
        return result


@dataclass(frozen=True, slots=True, kw_only=True)
class StepGraph:
    """Operations of a step in the order of their levels, with ``repeats`` more periods than are listed.

    ``before`` and ``hops`` (N, 3) as in ``ListedOperations``; ``cell`` (N,) indexes durations. ``levels`` are the bounds of
    the levels of the operations before the periods, of each period alike, and of those behind: operations of a level
    don't wait for each other. ``first`` is where the periods start, ``length`` the operations of one (0: none).
    """

    pipeline: Pipeline
    before: IntArray
    hops: NDArray[np.float32]
    cell: IntArray
    levels: tuple[list[int], list[int], list[int]]
    first: int
    length: int
    repeats: int

    def makespan_s(self, durations: Durations) -> FloatArray:
        """Return the seconds of every step, (n,)."""
        return self._run(durations).makespan_s

    def longest(self, durations: Durations) -> tuple[FloatArray, list[Path]]:
        """Return the seconds of every step, (n,), and a longest path of each."""
        run = self._run(durations)
        back = _Arcs(self, run, durations)
        return run.makespan_s, [self._path(back, column) for column in range(len(durations.hop_s))]

    def _run(self, durations: Durations) -> _Run:
        own = durations.by_kind.reshape(-1, len(durations.hop_s))[self.cell]
        lag = self.hops[:, :, None] * durations.hop_s
        end = np.zeros((len(self.cell) + 1, own.shape[1]))
        head, period, tail = self.levels
        _advance(end, self.before, lag, own, head, 0)
        if not self.length:
            return _Run(end_s=end, periods=[])
        # Periods have equal levels, shifted by their length.
        starts = [self.first + k * self.length for k in range(PERIODS)]
        for start in starts:
            _advance(end, self.before, lag, own, period, start)
        periods = self._repeat(end, lag, own, starts)
        _advance(end, self.before, lag, own, tail, 0)
        return _Run(end_s=end, periods=periods)

    def _repeat(self, end: FloatArray, lag: FloatArray, own: FloatArray, starts: list[int]) -> list[_Period]:
        """Run the repeated periods in place of the last listed ones."""
        zones = [slice(start, start + self.length) for start in starts]
        done = [_Period(number=k, end_s=end[zone].copy()) for k, zone in enumerate(zones)]
        left = self.repeats
        while left:
            # While every operation ends one growth later per period, periods can be jumped over.
            growth = end[zones[2]] - end[zones[1]]
            jump = min(self._even_periods(end, lag, own, growth, zones), left)
            if jump:
                for zone in zones:
                    end[zone] += jump * growth
                done.append(
                    _Period(number=done[-1].number + jump, end_s=end[zones[2]].copy(), growth_s=growth)
                )
                left -= jump
                continue
            # No jump: run one more period in the place of the last, the others moving down.
            end[zones[0]], end[zones[1]] = end[zones[1]], end[zones[2]]
            _advance(end, self.before, lag, own, self.levels[1], starts[2])
            done.append(_Period(number=done[-1].number + 1, end_s=end[zones[2]].copy()))
            left -= 1
        return done

    def _even_periods(
        self, end: FloatArray, lag: FloatArray, own: FloatArray, growth: FloatArray, zones: list[slice]
    ) -> int:
        """Count the periods for which every operation goes on growing as it does: until another arc is the longest."""
        before = end[zones[1]] - end[zones[0]]
        scale = np.abs(growth).max()
        if (np.abs(growth - before) > EVEN * scale).any():
            return 0
        zone = zones[2]
        arrival = end[self.before[zone]] + lag[zone]
        slack = (end[zone] - own[zone])[:, None] - arrival
        rates = np.zeros_like(end)
        rates[zones[1]] = rates[zones[2]] = growth
        closing = rates[self.before[zone]] - growth[:, None]
        # An arc whose source grows faster than its target becomes the longest once its slack is used up.
        closes = closing > EVEN * scale
        if not closes.any():
            return self.repeats
        return max(int(np.floor((slack[closes] / closing[closes]).min())), 0)

    def _path(self, back: _Arcs, column: int) -> Path:
        """Count what lies on a way back."""
        nodes, times, hops = back.walk(column)
        size = KINDS * self.pipeline.pp * self.pipeline.chunks
        counts = np.bincount(self.cell[nodes], weights=times, minlength=size).astype(np.int64)
        return Path(counts=counts.reshape(KINDS, self.pipeline.pp, self.pipeline.chunks), hops=hops)


class _Arcs:
    """The arc that every operation waited for, so that a longest path can be walked back.

    Operations of a repeated period are counted as those of the last listed one: ``periods[k]`` leads from one of them to
    another, of the same period from ``length`` on, of the period before below.
    """

    def __init__(self, graph: StepGraph, run: _Run, durations: Durations) -> None:
        self._graph, self._numbers = graph, [period.number for period in run.periods]
        size, first, length = len(graph.cell), graph.first, graph.length
        self._stop = first + PERIODS * length if length else first
        lag = graph.hops[:, :, None] * durations.hop_s
        head, tail = slice(0, first + length), slice(self._stop, size)
        # The listed periods hold the last three of the run; those at the front began as the first.
        end = run.end_s.copy()
        self._last = end[:-1].argmax(axis=0)
        self._tail = _chosen(end, graph.before[tail], lag[tail])
        if length:
            end[first : first + length] = run.periods[0].end_s
        self._head = _chosen(end, graph.before[head], lag[head])
        self._periods = []
        zone = slice(self._stop - length, self._stop)
        local = graph.before[zone] - (self._stop - 2 * length)
        for before, period in pairwise(run.periods):
            # Behind a jump the period before grew the same way, so that its ends follow.
            earlier = before.end_s if period.growth_s is None else period.end_s - period.growth_s
            times = np.concatenate([earlier, period.end_s, np.zeros((1, earlier.shape[1]))])
            self._periods.append(_chosen(times, np.where(local < 2 * length, local, 2 * length), lag[zone]))

    def walk(self, column: int) -> tuple[list[int], list[int], int]:
        """Return the operations on the path of a step, how many times each, and how many transfers lie between them."""
        graph, none = self._graph, len(self._graph.cell)
        tail, head = self._tail[:, column], self._head[:, column]
        behind = graph.before[np.arange(self._stop, none), tail].tolist()
        nodes, node = list[int](), int(self._last[column])
        while self._stop <= node < none:
            # Backwards from the last operation: drain, repeated periods, fill.
            nodes.append(node)
            node = behind[node - self._stop]
        arcs, times = tail[np.array(nodes, dtype=np.int64) - self._stop].tolist(), [1] * len(nodes)
        if graph.first + graph.length <= node < none:
            node = self._through_periods(node, column, nodes, arcs, times)
        front, earlier = len(nodes), graph.before[np.arange(len(head)), head].tolist()
        while node < none:
            nodes.append(node)
            node = earlier[node]
        arcs += head[np.array(nodes[front:], dtype=np.int64)].tolist()
        times += [1] * (len(nodes) - front)
        return nodes, times, int((graph.hops[nodes, arcs] * times).sum())

    def _through_periods(
        self, node: int, column: int, nodes: list[int], arcs: list[int], times: list[int]
    ) -> int:
        """Walk from the last period to the first one; return the operation reached there.

        Among periods that grew alike, a way that comes back to where it was in an earlier one goes on so: it is counted as
        often as it fits.
        """
        length, base = self._graph.length, self._stop - self._graph.length
        rows = self._graph.before[base : self._stop] - base
        local, index = node - base, len(self._periods) - 1
        number = self._numbers[-1]
        if local < 0:
            local, number = local + length, number - 1
        ways, loaded = list[int](), -1
        seen: dict[int, tuple[int, int]] = {}
        while number > 0:
            while self._numbers[index] >= number:
                index -= 1
            if index != loaded:
                ways, loaded = self._periods[index][:, column].tolist(), index
                steps = rows[np.arange(length), ways].tolist()
                seen = {}
            nodes.append(base + local)
            arcs.append(ways[local])
            times.append(1)
            local = steps[local]
            if local >= 0:
                continue
            local, number = local + length, number - 1
            left = number - self._numbers[index] - 1
            if left > 0 and local in seen:
                since, start = seen[local]
                again = left // (since - number)
                number -= again * (since - number)
                times[start:] = [1 + again] * (len(times) - start)
                seen = {}
            else:
                seen[local] = number, len(nodes)
        return self._graph.first + local


def _chosen(end: FloatArray, before: IntArray, lag: FloatArray) -> IntArray:
    """Return which of the three arcs into each operation was the longest, (N, n)."""
    chosen: IntArray = (end[before] + lag).argmax(axis=1)
    return chosen


def _advance(
    end: FloatArray, before: IntArray, lag: FloatArray, own: FloatArray, bounds: list[int], start: int
) -> None:
    """Compute the ends of the operations of consecutive levels."""
    for low, high in pairwise(bounds):
        level = slice(low + start, high + start)
        arrival = end.take(before[level], axis=0)
        arrival += lag[level]
        ends = end[level]
        np.maximum.reduce(arrival, axis=1, out=ends)
        ends += own[level]


LISTED = (6, 9, 14)
"""Rounds of a long step that are tried as its list of operations: fill, three periods, drain."""


LARGE = 1 << 15
"""Operations from which on few steps are remembered: they take some 60 bytes each."""


def step_graph(pipeline: Pipeline, *, overlap: HopOverlap) -> StepGraph:
    """Return the operations of a schedule. Raises InputError when it deadlocks."""
    listed = min(pipeline.micro_batches, LISTED[0] * _period_size(pipeline))
    # Counted before anything is listed, so that the right cache is asked.
    large = 2 * pipeline.pp * pipeline.chunks * listed > LARGE
    return (_large_graph if large else _small_graph)(pipeline, overlap)


def _built(pipeline: Pipeline, overlap: HopOverlap) -> StepGraph:
    size = _period_size(pipeline)
    for rounds in LISTED:
        # Whole periods that need not be listed.
        spare = (pipeline.micro_batches - rounds * size) // size
        if spare < 1:
            break
        listed = replace(
            pipeline,
            micro_batches=pipeline.micro_batches - spare * size,
            group=pipeline.group_size if pipeline.schedule is Schedule.INTERLEAVED else 0,
        )
        graph = _periodic(listed, list_operations(listed, overlap=overlap), size, spare)
        if graph is not None:
            return replace(graph, pipeline=pipeline)
    ops = list_operations(pipeline, overlap=overlap)
    everything = np.ones(ops.size, dtype=bool)
    order, bounds = _by_level(ops, everything)
    return _graph(pipeline, ops, order, (bounds, [0], [0]), 0, 0)


_small_graph, _large_graph = lru_cache(maxsize=256)(_built), lru_cache(maxsize=2)(_built)


def _period_size(pipeline: Pipeline) -> int:
    """Return the micro-batches of a period: a group, or about as many as ranks; of 1F1B half as many show it."""
    if pipeline.schedule is Schedule.INTERLEAVED:
        return pipeline.group_size
    if pipeline.schedule is Schedule.ONE_F_ONE_B:
        return max(-(-pipeline.pp // 2), 2)
    return max(pipeline.pp, 2)


def _graph(
    pipeline: Pipeline,
    ops: ListedOperations,
    order: IntArray,
    levels: tuple[list[int], list[int], list[int]],
    length: int,
    repeats: int,
) -> StepGraph:
    """Put operations into order."""
    place = np.empty(ops.size + 1, dtype=np.int32)
    place[order] = np.arange(ops.size)
    place[-1] = ops.size
    rank, kind, chunk = ops.columns[:3, order]
    return StepGraph(
        pipeline=pipeline,
        before=place[ops.before[order]],
        hops=ops.hops[order].astype(np.float32),
        cell=(kind * pipeline.pp + rank) * pipeline.chunks + chunk,
        levels=levels,
        first=levels[0][-1],
        length=length,
        repeats=repeats,
    )


def _periodic(pipeline: Pipeline, ops: ListedOperations, size: int, repeats: int) -> StepGraph | None:
    """Find the periods of a step; None where fewer than needed are in the list."""
    model = SCHEDULES[pipeline.schedule]
    each = 1 if model.pairs else 3 if model.splits_backward else 2
    # In DualPipe a chunk gets half of the micro-batches.
    share = pipeline.micro_batches // pipeline.micro_batches_per_chunk
    shift = size // share
    length = each * shift * pipeline.chunks
    steady = [_steady(ops.columns[1:, low:high], length, shift) for low, high in pairwise(ops.first.tolist())]
    # Too short a steady phase shows no period.
    if size % share or any(end - start < 2 * length for start, end in steady):
        return None
    front = _closed(ops, np.array([start + length for start, _ in steady]))
    if min((end - low) // length for (_, end), low in zip(steady, front.tolist(), strict=True)) < PERIODS:
        return None
    rank = ops.columns[0]
    position = np.arange(ops.size) - ops.first[rank]
    # -1 fill, then the periods, then everything behind them.
    zone = np.clip((position - front[rank]) // length, -1, PERIODS)
    last = zone == PERIODS - 1
    head, head_bounds = _by_level(ops, zone < 0)
    period, period_bounds = _by_level(ops, last)
    tail, tail_bounds = _by_level(ops, zone == PERIODS)
    order = np.concatenate([head, *(period - (PERIODS - 1 - k) * length for k in range(PERIODS)), tail])
    seen = np.append(zone, PERIODS)[ops.before]
    # A period that waits for more than the one before could not be run from two.
    if (seen[last] < PERIODS - 2).any() or (seen[zone == PERIODS] < PERIODS - 2).any():
        return None
    offset = len(head) + PERIODS * len(period)
    levels = (head_bounds, period_bounds, [bound + offset for bound in tail_bounds])
    return _graph(pipeline, ops, order, levels, len(period), repeats)


def _steady(columns: IntArray, length: int, shift: int) -> tuple[int, int]:
    """Return the longest stretch of a rank's operations that repeats after ``length`` with later micro-batches."""
    count = columns.shape[1] - length
    if count <= 0:
        return 0, 0
    early, late = columns[:, :count], columns[:, length:]
    # Equal kinds and chunks, micro-batches later by one period; a PAIR's backward too, -1 where there is
    # none.
    same = (early[[0, 1, 3]] == late[[0, 1, 3]]).all(axis=0) & (early[2] + shift == late[2])
    same &= (early[4] == late[4]) | (early[4] + shift == late[4])
    edges = np.flatnonzero(np.diff(np.concatenate([[False], same, [False]])))
    if not len(edges):
        return 0, 0
    start, end = edges[::2], edges[1::2]
    best = int((end - start).argmax())
    return int(start[best]), int(end[best]) + length


def _closed(ops: ListedOperations, front: IntArray) -> IntArray:
    """Move the front of every rank on until nothing behind it waits for anything before it."""
    rank = np.append(ops.columns[0], 0)
    position = np.append(np.arange(ops.size) - ops.first[rank[:-1]], -1)
    while True:
        behind = position[:-1] < front[rank[:-1]]
        needed = np.unique(ops.before[behind])
        moved = front.copy()
        np.maximum.at(moved, rank[needed], position[needed] + 1)
        if (moved == front).all():
            return front
        front = moved


def _by_level(ops: ListedOperations, members: NDArray[np.bool_]) -> tuple[IntArray, list[int]]:
    """Sort some operations by the longest chain of them that leads there; return the bounds of the levels too.

    Of each rank at most one operation is in a level: those of a level are found together, rank by rank.
    """
    own = np.flatnonzero(members)
    place = np.full(ops.size + 1, len(own), dtype=np.int32)
    place[own] = np.arange(len(own))
    before = place[ops.before[own]]
    edges = np.searchsorted(own, ops.first)
    at, stop = edges[:-1].copy(), edges[1:]
    done = np.zeros(len(own) + 1, dtype=bool)
    done[-1] = True
    found, bounds = [], [0]
    ranks = np.flatnonzero(at < stop)
    while len(ranks):
        ready = done[before[at[ranks]]].all(axis=1)
        level = at[ranks[ready]]
        if not len(level):
            raise input_error("the schedule deadlocks", "a group size of at least pp", key="group")
        done[level] = True
        found.append(level)
        bounds.append(bounds[-1] + len(level))
        at[ranks[ready]] += 1
        ranks = ranks[at[ranks] < stop[ranks]]
    return own[np.concatenate(found)] if found else own, bounds
