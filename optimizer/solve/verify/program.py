"""Exclude a tuple by integer programs of verify's own: stages as whole numbers, time as paths, solved by HiGHS.

A program holds blocks and recomputed blocks of every chunk, the stage rule, the memory of every rank and the paths
known so far, each of which the step is at least as long as. What a program proposes is priced exactly; if that is not
faster, its longest path (``walk``; that of the price itself where a step has too many operations for that) joins, until
nothing is left or something really is faster. Nothing of the search is used: neither its bounds, its enumeration and its
CP-SAT model, nor the paths that it found. HiGHS works in floats, so that it is asked for what is faster by more than
``MARGIN``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.makespan import Durations
from layoutopt.optimizer.cost.orders import HopOverlap
from layoutopt.optimizer.cost.step import durations, graph_of, step_s
from layoutopt.optimizer.cost.terms import price_stages
from layoutopt.optimizer.frameworks.stage_rule import COUNTED, Recomputation, Split, StageRule
from layoutopt.optimizer.solve.verify.layout import Refuted, check_groups, check_recomputed, check_sizes
from layoutopt.optimizer.solve.verify.room import most_blocks
from layoutopt.optimizer.solve.verify.walk import MOST_OPERATIONS, longest_path, operations
from layoutopt.optimizer.space.stage_splits import boxes, stage_numbers

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from scipy.optimize import OptimizeResult

    from layoutopt.optimizer.cost.makespan import FloatArray, IntArray, Path
    from layoutopt.optimizer.cost.terms import StageTerms

    Key = tuple[object, ...]
    Seat = tuple[int, int]
    Sum = Mapping[int, float]

MARGIN = 4e-6
"""Relative step time by which HiGHS is asked for more: its whole numbers are so to 1e-6, its rows hold to 1e-7."""

AS_FAST = 1e-12
"""Relative difference of sums of the same seconds in another order."""

ROUNDS, NODES, MOST_BOXES, MOST_STAGES, MOST_PLACES = 40, 2_000, 8, 256, 400
"""Paths that are learned, branches of one program, ranges of blocks, stages, and places where the stages of a stack of
alternating kinds may end, before a tuple is left to others."""


class ProgramOutcome(StrEnum):
    """What programs showed of a tuple. ``open``: it is too large for them, or they propose what is not allowed."""

    NONE_FASTER = "none faster"
    FASTER = "faster"
    OPEN = "open"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """Stages of a tuple: blocks and recomputed blocks (V, P, K), and their exact step."""

    blocks: IntArray
    recomputed: IntArray
    step_s: float


@dataclass(slots=True)
class OwnPaths:
    """Paths found by ``walk``, by what decides the order of operations."""

    known: dict[Key, list[Path]] = field(default_factory=dict)

    def of(self, terms: StageTerms) -> list[Path]:
        """Return the paths of a tuple's shape, a list to add to."""
        names = ("schedule", "pp", "vp", "micro_batches", "hops_overlap")
        return self.known.setdefault(tuple(int(getattr(terms, name)[0]) for name in names), [])


def look_for_faster(
    terms: StageTerms, counts: IntArray, rule: StageRule, below_s: float, paths: OwnPaths
) -> tuple[ProgramOutcome, Proposal | None]:
    """Look for stages of a tuple, a batch of one, below a step time; ``counts`` (K,) are the model's blocks by kind."""
    graph = graph_of(terms, 0)
    if graph is None:
        return ProgramOutcome.NONE_FASTER, None
    ranks, chunks, folded = int(terms.pp[0]), int(terms.vp[0]), bool(terms.folded[0])
    ranges = list(boxes(rule, ranks, chunks, int(counts.sum()), folded=folded))
    stages = ranks * chunks
    places = stages * (len(rule.order) - stages + 3) if rule.order else 0
    if stages > MOST_STAGES or len(ranges) > MOST_BOXES or places > MOST_PLACES:
        return ProgramOutcome.OPEN, None
    tuple_ = _Tuple(terms, counts, rule, below_s, paths.of(terms))
    # The room bound narrows the ranges first; most are empty then and need no program.
    room = most_blocks(terms, counts, below_s)[0]
    for low, high in ranges:
        high = np.minimum(high, room[:ranks])
        # What the other ranks have no room for lies on this one.
        low = np.maximum(low, counts.sum() - (high.sum() - high))
        if (low > high).any():
            continue
        for way in tuple_.ways():
            outcome, found = tuple_.decide(low, high, way)
            if outcome is not ProgramOutcome.NONE_FASTER:
                return outcome, found
    return ProgramOutcome.NONE_FASTER, None


class _Way(StrEnum):
    """How a program may recompute."""

    NOTHING = "nothing"
    EVERYTHING = "everything"
    ANY = "any"
    FIRST = "the first of every stage"


class _Tuple:
    """One tuple and what its programs are made of, all of it asked of the price functions once."""

    def __init__(
        self, terms: StageTerms, counts: IntArray, rule: StageRule, below_s: float, paths: list[Path]
    ) -> None:
        self.terms, self.counts, self.rule, self.below_s, self.paths = terms, counts, rule, below_s, paths
        self.shape = int(terms.vp[0]), int(terms.pp[0]), len(counts)
        units = np.eye(int(np.prod(self.shape)), dtype=np.int64).reshape(-1, *self.shape)
        none = np.zeros((1, *self.shape), dtype=np.int64)
        # both prices are sums over blocks: what one of them adds is the price of it alone over that of none
        held = np.concatenate([none, units, np.zeros_like(units)])
        again = np.concatenate([none, np.zeros_like(units), units])
        self.durations = durations(terms, 0, held, again)

    def ways(self) -> list[_Way]:
        """Return the ways of recomputing that the rule knows."""
        if not self.terms.may_recompute[0]:
            return [_Way.NOTHING]
        how = self.rule.recomputation
        if how is Recomputation.ALL_OR_NONE:
            return [_Way.NOTHING, _Way.EVERYTHING]
        return [_Way.ANY if how is Recomputation.PER_RANK else _Way.FIRST]

    def decide(self, low: IntArray, high: IntArray, way: _Way) -> tuple[ProgramOutcome, Proposal | None]:
        """Solve programs with more and more paths for blocks per rank in a range."""
        # A program without any path would propose anything that fits.
        if not self.paths and np.isfinite(self.below_s):
            self._learn(*self._even())
        program = _Program(self, low, high, way)
        for _ in range(ROUNDS):
            result = program.solve()
            # Only this answer excludes; a limit of nodes leaves the tuple open.
            if result.status == _INFEASIBLE:
                return ProgramOutcome.NONE_FASTER, None
            if result.x is None:
                return ProgramOutcome.OPEN, None
            blocks, again = program.read(result.x)
            step = float(step_s(self.terms, 0, blocks[None], again[None])[0])
            if step < self.below_s * (1 - AS_FAST) and self._allowed(blocks, again):
                return ProgramOutcome.FASTER, Proposal(blocks=blocks, recomputed=again, step_s=step)
            path = self._learn(blocks, again)
            # Faster, but not allowed or not told by a new path: the program can't learn from it.
            if step < self.below_s * (1 - AS_FAST) or path is None:
                return ProgramOutcome.OPEN, None
            program.add_path(path)
        return ProgramOutcome.OPEN, None

    def _even(self) -> tuple[IntArray, IntArray]:
        mean = np.tile(-(-self.counts // (self.shape[0] * self.shape[1])), (*self.shape[:2], 1))
        return mean, np.zeros_like(mean)

    def _learn(self, blocks: IntArray, again: IntArray) -> Path | None:
        """Walk through the step of given stages; keep its longest path where it is new."""
        graph = graph_of(self.terms, 0)
        assert graph is not None
        times = durations(self.terms, 0, blocks[None], again[None])
        if operations(graph.pipeline) > MOST_OPERATIONS:
            path = graph.longest(times)[1][0]
        else:
            overlap, by_kind = HopOverlap(int(self.terms.hops_overlap[0])), times.by_kind[..., 0]
            _, path = longest_path(graph.pipeline, by_kind, float(times.hop_s[0]), overlap)
        if any((path.counts == other.counts).all() and path.hops == other.hops for other in self.paths):
            return None
        self.paths.append(path)
        return path

    def _allowed(self, blocks: IntArray, again: IntArray) -> bool:
        """Whether stages fit and are the rule's, as stated layouts are judged."""
        wide = ((0, self.terms.in_flight.shape[1] - self.shape[1]), (0, 0))
        held, repeated = (np.pad(part.sum(axis=0), wide)[None] for part in (blocks, again))
        if not price_stages(self.terms, held, repeated).fits[0]:
            return False
        folded, chunks, ranks = bool(self.terms.folded[0]), *self.shape[:2]
        stage = stage_numbers(self.terms.pp, self.terms.folded, chunks, ranks)[0].ravel()
        order = np.argsort(stage)
        place = np.tile(np.arange(ranks), chunks)[order]
        try:
            check_sizes(blocks.sum(axis=2).ravel()[order], place, self.rule, folded=folded)
            check_groups(blocks, self.terms)
            flat = (chunks * ranks, -1)
            may = bool(self.terms.may_recompute[0])
            check_recomputed(blocks.reshape(flat), again.reshape(flat), order.tolist(), self.rule, may)
        except Refuted:
            return False
        return True


_INFEASIBLE = 2
"""scipy.optimize.milp's word for it."""


class _Program:
    """The integer program of a tuple for a range of blocks per rank and a way of recomputing."""

    def __init__(self, of: _Tuple, low: IntArray, high: IntArray, way: _Way) -> None:
        self._of, self._way = of, way
        self._low: list[float] = []
        self._high: list[float] = []
        self._rows: list[tuple[Sum, float, float]] = []
        chunks, ranks, kinds = of.shape
        stage = stage_numbers(of.terms.pp, of.terms.folded, chunks, ranks)[0]
        self._seats: list[Seat] = []
        for j in range(chunks * ranks):
            chunk, rank = np.argwhere(stage == j)[0].tolist()
            self._seats.append((chunk, rank))
        most = [int(n) for n in of.counts]
        self._blocks = np.array(
            [[[self._new(most[k]) for k in range(kinds)] for _ in range(ranks)] for _ in range(chunks)]
        )
        self._again = np.full(of.shape, -1)
        if way in (_Way.ANY, _Way.FIRST):
            self._again = np.vectorize(lambda b: self._new(self._high[b]))(self._blocks)
        self._add_order()
        self._add_sizes(low, high)
        self._add_recomputation()
        self._add_memory()
        for path in of.paths:
            self.add_path(path)

    def _new(self, high: float, low: float = 0) -> int:
        self._low.append(low)
        self._high.append(high)
        return len(self._low) - 1

    def _row(self, sum_: Sum, low: float, high: float) -> None:
        self._rows.append((sum_, low, high))

    def _size(self, chunk: int, rank: int, scale: float = 1.0) -> dict[int, float]:
        return {int(b): scale for b in self._blocks[chunk, rank]}

    def _add_order(self) -> None:
        """Stages are contiguous: a kind begins where the kind before it has ended."""
        counts = self._of.counts.tolist()
        before: list[int] = []
        if self._of.rule.order:
            for j in range(len(self._seats) - 1):
                self._end_at_place(self._seats[: j + 1], ())
        for j, seat in enumerate(self._seats if not self._of.rule.order else ()):
            ended = [self._new(1) for _ in counts[:-1]]
            for k, end in enumerate(ended):
                so_far = {int(self._blocks[(*other, k)]): 1.0 for other in self._seats[: j + 1]}
                # A kind may be called ended once the stages so far hold all of it; the next begins only then.
                self._row(so_far | {end: -counts[k]}, 0, np.inf)
                self._row({int(self._blocks[(*seat, k + 1)]): 1.0, end: -counts[k + 1]}, -np.inf, 0)
                if k:
                    self._row({ended[k - 1]: 1.0, end: -1.0}, 0, np.inf)
                if before:
                    self._row({end: 1.0, before[k]: -1.0}, 0, np.inf)
            before = ended
        for k, count in enumerate(counts):
            self._row({int(b): 1.0 for b in self._blocks[:, :, k].ravel()}, count, count)

    def _end_at_place(self, whole: Sequence[Seat], part: Sequence[int]) -> None:
        """Where kinds alternate, stages and a part of the next, numbers of each kind, end behind some block of the model."""
        order, number = self._of.rule.order, len(whole)
        later = len(self._seats) - number  # all but the first and the last hold a block
        places = range(max(number - 1, 0), len(order) - max(later - 1 - bool(part), 0) + 1)
        chosen = [self._new(1) for _ in places]
        self._row(dict.fromkeys(chosen, 1.0), 1, 1)
        for k in range(len(self._of.counts)):
            held = {int(self._blocks[(*seat, k)]): 1.0 for seat in whole}
            held |= {int(part[k]): 1.0} if len(part) else {}
            at = {
                one: -float(order[:place].count(k))
                for one, place in zip(chosen, places, strict=True)
                if place
            }
            self._row(held | at, 0, 0)

    def _add_sizes(self, low: IntArray, high: IntArray) -> None:
        """Chunks of a rank differ by one at most, smaller ones first; the ends may hold fewer (``StageRule``)."""
        chunks, ranks, _ = self._of.shape
        rule, apart = self._of.rule, ranks > 1 or bool(self._of.terms.folded[0])
        ends = {self._seats[0], self._seats[-1]} if apart else set()
        for rank in range(ranks):
            self._row(
                {int(b): 1.0 for b in self._blocks[:, rank].ravel()}, float(low[rank]), float(high[rank])
            )
            inner = [(chunk, rank) for chunk in range(chunks) if (chunk, rank) not in ends]
            for seat in inner:
                self._row(self._size(*seat), 1, np.inf)
            for one, two in pairwise(inner):
                self._row(self._size(*two) | self._size(*one, -1.0), 0, 1)
            if inner:
                self._row(self._size(*inner[-1]) | self._size(*inner[0], -1.0), -np.inf, 1)
            for end in (end for end in ends if end[1] == rank and inner):
                over = 0 if rule.split in COUNTED else 1
                self._row(self._size(*end) | self._size(*inner[0], -1.0), -np.inf, over)
                if rule.split is not Split.FREE:
                    self._row(self._size(*end) | self._size(*inner[-1], -1.0), -1, np.inf)
        group = int(self._of.terms.group[0])
        for seat in self._seats if group > 1 else ():
            self._row(self._size(*seat) | {self._new(float(self._of.counts.sum())): -float(group)}, 0, 0)
        for rank, limit in self._limits():
            self._row({int(b): 1.0 for b in self._blocks[:, rank].ravel()}, limit[0], limit[1])
        if rule.split is Split.NEAR_EQUAL and ranks > 1:
            self._add_near_equal(ends)

    def _limits(self) -> Iterator[tuple[int, tuple[float, float]]]:
        ranks = self._of.shape[1]
        for limit in () if self._of.terms.folded[0] else self._of.rule.limits:
            rank = limit.rank if limit.rank >= 0 else ranks + limit.rank
            if 0 <= rank < ranks:
                yield rank, (limit.fewest, limit.most)

    def _add_near_equal(self, ends: set[Seat]) -> None:
        """Any two stages differ by one at most, the first and the last may hold one fewer than the smallest other."""
        least = self._new(float(self._of.counts.sum()))
        for seat in self._seats:
            below = -1 if seat in ends and len(self._seats) > 2 else 0
            self._row(self._size(*seat) | {least: -1.0}, below, 1)

    def _add_recomputation(self) -> None:
        # Large enough to switch a row off, and no larger: HiGHS's tolerance grows with it.
        most = float(self._of.counts.sum())
        number = self._new(most) if self._way is _Way.FIRST else -1
        for j, seat in enumerate(self._seats if self._way in (_Way.ANY, _Way.FIRST) else ()):
            blocks, again = self._blocks[seat], self._again[seat]
            for b, r in zip(blocks, again, strict=True):
                self._row({int(r): 1.0, int(b): -1.0}, -np.inf, 0)
            if self._way is _Way.FIRST:
                self._add_first(j, blocks, again, number, most)

    def _add_first(self, j: int, blocks: IntArray, again: IntArray, number: int, most: float) -> None:
        """A stage recomputes its first blocks, ``number`` or all of them."""
        whole = self._new(1)
        total = {int(r): 1.0 for r in again}
        self._row(total | {number: -1.0}, -np.inf, 0)
        self._row(total | {number: -1.0, whole: most}, 0, np.inf)
        self._row(total | {int(b): -1.0 for b in blocks} | {whole: -most}, -most, np.inf)
        if self._of.rule.order:
            self._end_at_place(self._seats[:j], again.tolist())
            return
        for k in range(len(blocks) - 1):  # of a later kind only with all of the kinds before
            all_ = self._new(1)
            self._row({int(again[k + 1]): 1.0, all_: -most}, -np.inf, 0)
            self._row({int(again[k]): 1.0, int(blocks[k]): -1.0, all_: -most}, -most, np.inf)

    def _add_memory(self) -> None:
        """Every rank fits, in shares of its capacity."""
        of = self._of
        chunks, ranks, kinds = of.shape
        terms, capacity = of.terms, float(of.terms.capacity_bytes[0])
        if not np.isfinite(capacity):
            return
        none, block, again = (self._rank_bytes(*unit) for unit in ((0, 0), (1, 0), (1, 1)))
        transient = float(terms.recompute_transient_bytes[0])
        for rank in range(ranks):
            sum_: dict[int, float] = {}
            for chunk, kind in np.ndindex(chunks, kinds):
                b, r = int(self._blocks[chunk, rank, kind]), int(self._again[chunk, rank, kind])
                own = float(block[kind, rank] - none[kind, rank])
                less = float(again[kind, rank] - block[kind, rank]) - transient
                sum_[b] = (own + (less if self._way is _Way.EVERYTHING else 0.0)) / capacity
                if r >= 0:
                    sum_[r] = less / capacity
            # In shares of the capacity, since HiGHS's tolerances are absolute.
            left = 1.0 - float(none[0, rank]) / capacity
            if self._way is _Way.EVERYTHING:
                left -= transient / capacity * (of.counts.sum() > 0)
            elif (self._again >= 0).any() and transient > 0:
                some = self._new(1)
                self._row(
                    {int(r): 1.0 for r in self._again[:, rank].ravel()} | {some: -float(of.counts.sum())},
                    -np.inf, 0,
                )  # fmt: skip
                sum_[some] = transient / capacity
            self._row(sum_, -np.inf, left * (1 + 1e-12))

    def _rank_bytes(self, block: int, again: int) -> FloatArray:
        """Return the bytes of every rank, (K, P), when each holds one block of a kind."""
        terms, (_, ranks, kinds) = self._of.terms, self._of.shape
        width = terms.in_flight.shape[1]
        held = np.zeros((kinds, width, kinds), dtype=np.int64)
        held[np.arange(kinds), :, np.arange(kinds)] = 1
        held[:, ranks:] = 0
        many = terms.take(np.zeros(kinds, dtype=np.int64))
        return price_stages(many, held * block, held * again).rank_bytes[:, :ranks]

    def add_path(self, path: Path) -> None:
        """The step takes at least as long as a path, and is to be shorter than asked for."""
        of = self._of
        if not np.isfinite(of.below_s):
            return
        times = of.durations
        seconds = path.seconds(Durations(by_kind=times.by_kind, hop_s=times.hop_s))
        constant, each = float(seconds[0] + of.terms.outside_s[0]), (seconds[1:] - seconds[0]) / of.below_s
        block, again = each.reshape(2, *of.shape)
        if self._way is _Way.EVERYTHING:
            block = block + again
        sum_ = {int(b): float(s) for b, s in zip(self._blocks.ravel(), block.ravel(), strict=True)}
        if self._way in (_Way.ANY, _Way.FIRST):
            sum_ |= {int(r): float(s) for r, s in zip(self._again.ravel(), again.ravel(), strict=True)}
        # Below by more than floats may err; what is faster by less is no witness.
        self._row(sum_, -np.inf, 1.0 - MARGIN - constant / of.below_s)

    def solve(self) -> OptimizeResult:
        """Ask HiGHS for any solution."""
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_array

        sizes = [len(sum_) for sum_, _, _ in self._rows]
        # HiGHS of the oldest SciPy takes indices of 32 bits alone
        rows = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
        columns = np.fromiter((c for sum_, _, _ in self._rows for c in sum_), dtype=np.int32)
        values = np.fromiter((v for sum_, _, _ in self._rows for v in sum_.values()), dtype=np.float64)
        matrix = csr_array((values, (rows, columns)), shape=(len(sizes), len(self._low)))
        low, high = (np.array([row[i] for row in self._rows]) for i in (1, 2))
        return milp(
            # No objective: any solution contradicts the claim, none supports it.
            np.zeros(len(self._low)),
            integrality=np.ones(len(self._low)),
            bounds=Bounds(np.array(self._low), np.array(self._high)),
            constraints=LinearConstraint(matrix, low, high),
            options={"node_limit": NODES},
        )

    def read(self, x: FloatArray) -> tuple[IntArray, IntArray]:
        """Return the blocks and recomputed blocks (V, P, K) of a solution."""
        whole = np.rint(x).astype(np.int64)
        blocks = whole[self._blocks]
        if self._way is _Way.EVERYTHING:
            return blocks, blocks.copy()
        return blocks, whole[self._again] if (self._again >= 0).any() else np.zeros_like(blocks)
