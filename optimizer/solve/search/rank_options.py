"""What each rank of a tuple may hold: the totals that its own floor and memory leave, and the chunks of these totals.

A rank takes at most what its floor (``floors``) and its memory allow, and so holds at least what the others have no room
for. Little is left of all totals where the wanted step time is near the best, before any schedule is looked at.

Which kinds a rank holds depends on where its first chunk starts in the model; all other chunks hold the last kind alone.
Where that is not certain, as with long runs of several kinds in several chunks, the options are not listed. Where kinds
alternate, what a rank holds depends on where each of its chunks starts (``places``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.terms import own_bytes
from layoutopt.optimizer.frameworks.stage_rule import Recomputation
from layoutopt.optimizer.solve.search.chunk_sizes import Unlisted, balanced, closed, shares, with_end
from layoutopt.optimizer.solve.search.floors import HeldBlocks, rank_floors
from layoutopt.optimizer.solve.search.places import Walk, kinds_at, least_in_a_row
from layoutopt.optimizer.space.stages import kinds_before

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from layoutopt.optimizer.cost.terms import FloatArray, IntArray, StageTerms
    from layoutopt.optimizer.frameworks.stage_rule import StageRule
    from layoutopt.optimizer.solve.search.demands import StageDemand
    from layoutopt.optimizer.solve.search.floors import RankFloors
    from layoutopt.optimizer.solve.search.places import Steps

    Mask = NDArray[np.bool_]

SHARPENINGS = 8
"""Times that floors are drawn from what is left of totals, unless nothing goes any more."""

SLACK = 1e-12
"""Relative error of sums of floats in another order."""

MOST_OPTIONS = 20_000
"""Options of one rank; a tuple that needs more is left to the solver."""

FAR = np.iinfo(np.int64).max // 4
"""The end of the last kind: no start is behind it."""


NOT_MET = 1e30
"""Seconds and bytes of a kind that a rank does not meet: none of its blocks fits, and no blocks still are nothing."""


@dataclass(frozen=True, slots=True)
class Options:
    """What one rank may hold: blocks and recomputed blocks of its chunks, (o, V, K) each.

    ``start`` and ``stop`` (o,) are the blocks of the model before and after its first chunk, counted to the first of the
    last kind; where kinds alternate, the numbers of places. Where ``free``, chunk 0 counts the recomputed blocks of all
    chunks, which may be in any of them.
    """

    blocks: IntArray
    recomputed: IntArray
    start: IntArray
    stop: IntArray
    free: bool = False

    def __len__(self) -> int:
        return len(self.start)

    @property
    def total(self) -> IntArray:
        """Blocks of the rank, (o,)."""
        total: IntArray = self.blocks.sum(axis=(1, 2))
        return total

    def take(self, index: IntArray | Mask) -> Options:
        """Return the options selected by an index (k,) or mask (o,)."""
        return Options(
            self.blocks[index], self.recomputed[index], self.start[index], self.stop[index], self.free
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """The ranks of a tuple, a batch of one, which together hold ``counts`` (K,) blocks of each kind.

    ``demands`` are what the question asks of them.
    """

    terms: StageTerms
    counts: IntArray
    rule: StageRule
    demands: tuple[StageDemand, ...] = ()

    @property
    def total(self) -> int:
        """Blocks of the model."""
        return int(self.counts.sum())

    @property
    def last(self) -> int:
        """The kind at the end of the model."""
        return int(np.flatnonzero(self.counts)[-1])

    @property
    def mixed(self) -> int:
        """Blocks before those of the last kind."""
        return int(self.counts[: self.last].sum())

    @property
    def pp(self) -> int:
        """Number of ranks."""
        return int(self.terms.pp[0])

    @property
    def chunks(self) -> int:
        """Chunks of a rank."""
        return int(self.terms.vp[0])

    def numbers(self) -> tuple[list[int], int | None]:
        """Return the numbers of recomputed blocks per stage to try, and the last of them.

        None: each rank as many as its memory asks for.
        """
        if not self.terms.may_recompute[0]:
            return [], 0
        if self.rule.recomputation is Recomputation.PER_RANK:
            return [], None
        if self.rule.recomputation is Recomputation.ALL_OR_NONE:
            return [0], self.total
        first = self._fewest_recomputed()
        return [0, *range(first, self.total)], max(first, self.total)

    def _fewest_recomputed(self) -> int:
        """Return the least number above 0 with which the memory may hold the model, whatever time it takes.

        The more blocks are recomputed the more fit; recomputing none needs no buffer for it.
        """
        allowed, low, high = self._within_limits(), 0, self.total
        kinds = np.repeat(self.counts[:, None] > 0, self.pp, axis=1)
        while high - low > 1:
            middle = (low + high) // 2
            _, fits = self._least_recomputed(middle, kinds, memory=True)
            low, high = (middle, high) if closed(allowed & fits, self.total) is None else (low, middle)
        return high

    def options(self, number: int | None, below_s: float, *, memory: bool = True) -> list[Options] | None:
        """List every rank's options that its floor leaves below a step time; None where the ranks can't hold the model.

        ``number`` as in ``numbers``; without ``memory`` they need not fit. Raises ``Unlisted``.
        """
        found = self._totals(number, below_s, memory=memory)
        if found is None:
            return None
        totals, floors = found
        limit_s = below_s * (1 + SLACK) / float(self.terms.micro_batches[0])
        sizes = [self._sizes(rank, np.flatnonzero(totals[rank])) for rank in range(self.pp)]
        if not self.rule.order and not self.mixed and number is not None:
            return self._alike(sizes, floors, limit_s, number, memory=memory)
        result = []
        starts = np.zeros(1, dtype=np.int64)
        walk = self._walk(sizes)
        for rank in range(self.pp):
            if walk is None:
                option = self._of_rank(rank, sizes[rank], starts, number, memory=memory)
            else:
                option = self._in_order(rank, walk.steps(rank), number, memory=memory)
            option = option.take(self._soon(option, np.full(len(option), rank), floors, limit_s))
            if not len(option):
                return None
            starts = np.unique(option.stop)
            if walk is not None:
                walk.keep(starts)
                option = replace(option, stop=np.searchsorted(starts, option.stop))
            result.append(option)
        return result

    def _alike(
        self, sizes: list[IntArray], floors: RankFloors, limit_s: float, number: int, *, memory: bool
    ) -> list[Options] | None:
        """List the options of all ranks at once: of one kind, it does not matter where a rank starts."""
        if max(len(own) for own in sizes) > MOST_OPTIONS:
            raise Unlisted
        rank, chunk = np.repeat(np.arange(self.pp), [len(own) for own in sizes]), np.concatenate(sizes)
        start = np.zeros(len(rank), dtype=np.int64)
        option = Options(
            self._kinds(chunk, start), self._kinds(np.minimum(chunk, number), start), start, start
        )
        kept = self._soon(option, rank, floors, limit_s)
        if memory:
            kept &= self.fits(option, rank)
        bounds = np.searchsorted(rank[kept], np.arange(self.pp + 1))
        if (bounds[1:] == bounds[:-1]).any():
            return None
        option = option.take(kept)
        return [option.take(np.arange(low, high)) for low, high in pairwise(bounds.tolist())]

    @staticmethod
    def _soon(option: Options, rank: IntArray, floors: RankFloors, limit_s: float) -> Mask:
        """Tell which options take a rank, (o,) each, less than a time per micro-batch."""
        held, again = option.blocks.sum(axis=1), option.recomputed.sum(axis=1)
        layer_s, again_s = floors.layer_s[0].T[rank], floors.again_s[0].T[rank]
        time_s = (held * layer_s + again * again_s).sum(axis=1) + floors.base_s[0, rank]
        soon: Mask = time_s < limit_s
        return soon

    def _walk(self, sizes: list[IntArray]) -> Walk | None:
        """Return the walk through a stack whose kinds alternate."""
        return Walk(sizes, self.total, folded=bool(self.terms.folded[0])) if self.rule.order else None

    def _in_order(self, rank: int, steps: Steps, number: int | None, *, memory: bool) -> Options:
        """Return what a rank holds on its ways through a stack whose kinds alternate."""
        if len(steps.place) > 5 * MOST_OPTIONS:
            raise Unlisted
        order, kinds = self.rule.order, len(self.counts)
        blocks = kinds_at(order, kinds, steps.start, steps.sizes)
        if number is None:
            option = Options(blocks, np.zeros_like(blocks), steps.place, steps.reached, free=True)
            return self._needed(option, rank)
        again = kinds_at(order, kinds, steps.start, np.minimum(steps.sizes, number))
        option = Options(blocks, again, steps.place, steps.reached)
        return option.take(self.fits(option, rank)) if memory else option

    def _totals(self, number: int | None, below_s: float, *, memory: bool) -> tuple[Mask, RankFloors] | None:
        """Tell which totals (P, blocks + 1) every rank may hold, and the floors that say so."""
        terms, limit_s = self.terms, below_s * (1 + SLACK)
        allowed, kinds = self._within_limits(), np.ones((len(self.counts), self.pp), dtype=bool)
        kinds &= self.counts[:, None] > 0
        if self.demands:
            allowed &= self._within_demands(number, exact=memory)
            if not allowed.any(axis=1).all():
                return None
        held, alike = None, np.array([number is not None and len(self.counts) == 1])
        for _ in range(SHARPENINGS):
            floors = rank_floors(terms, self.counts, held)
            again, fits = self._least_recomputed(number, kinds, memory=memory)
            again_s = np.where(kinds, floors.again_s[0], NOT_MET).min(axis=0)[:, None]
            least_s = terms.recompute_s[0][self.counts > 0].min()
            all_s = np.where(allowed, again, self.total).min(axis=1).sum() * least_s
            time_s = self._least_s(kinds, floors) + again_s * again + floors.base_s[0][:, None]
            time_s = terms.micro_batches[0] * time_s + floors.all_again[0] * all_s
            left = closed(allowed & fits & (time_s < limit_s), self.total)
            if left is None:
                return None
            if held is not None and (left == allowed).all():
                break
            allowed, kinds = left, kinds & self._met(left)
            low, high = left.argmax(axis=1), self.total - left[:, ::-1].argmax(axis=1)
            every = np.array([number is not None and number >= (-(-high // self.chunks)).max()])
            held = HeldBlocks(
                fewest=low[None].astype(float), most=high[None].astype(float), every=every, alike=alike
            )
        if self.chunks > 1 and not self.rule.order and self._first_chunks(allowed)[0].sum() < self.mixed:
            raise Unlisted
        return allowed, floors

    def _least_s(self, kinds: Mask, floors: RankFloors) -> FloatArray:
        """Return the least seconds (P, blocks + 1) of a rank's blocks, some of its ``kinds`` (K, P)."""
        layer_s, held = floors.layer_s[0], np.arange(self.total + 1)
        least: FloatArray = np.where(kinds, layer_s, NOT_MET).min(axis=0)[:, None] * held
        if not self.rule.order:
            return least
        in_a_row = least_in_a_row(self.rule.order, layer_s.T)
        if self.chunks == 1:
            return np.maximum(least, in_a_row)
        small, larger = np.divmod(held, self.chunks)
        balanced = (self.chunks - larger) * in_a_row[:, small]
        balanced += larger * in_a_row[:, np.minimum(small + 1, self.total)]
        inner = [not self._at_end(rank) for rank in range(self.pp)]
        return np.where(np.array(inner)[:, None], np.maximum(least, balanced), least)

    def _at_end(self, rank: int) -> bool:
        """Whether a rank holds the first or the last stage of the model."""
        return rank == 0 or (rank == self.pp - 1 and not self.terms.folded[0])

    def _within_limits(self) -> Mask:
        held = np.arange(self.total + 1)
        within = np.ones((self.pp, self.total + 1), dtype=bool)
        for rank in range(self.pp):
            ends = 2 if self.terms.folded[0] else 1
            within[rank] &= held >= self.chunks - ends * self._at_end(rank)
        within &= held % int(self.terms.group[0]) == 0
        for limit in self.rule.limits:
            rank = limit.rank if limit.rank >= 0 else self.pp + limit.rank
            if 0 <= rank < self.pp:
                within[rank] &= (limit.fewest <= held) & (held <= limit.most)
        return within

    def _within_demands(self, number: int | None, *, exact: bool) -> Mask:
        """Tell which totals (P, blocks + 1) leave the other ranks a way to meet every demand.

        A rank recomputes ``number`` of each chunk's blocks; where not ``exact``, that many or more; None: any.
        """
        held = np.arange(self.total + 1)
        least = np.zeros_like(held) if number is None else np.minimum(held, number)
        most = np.minimum(held, number * self.chunks) if number is not None and exact else held
        within, real = np.ones((self.pp, self.total + 1), dtype=bool), self.counts > 0
        for demand in self.demands:
            each = demand.recomputed[:, real].min(axis=1)[:, None]
            sums = demand.blocks[:, real].min(axis=1)[:, None] * held + np.minimum(each * least, each * most)
            others = sums.min(axis=1)
            within &= sums + (others.sum() - others)[:, None] < demand.room
        return within

    def demanded(self, option: Options, rank: int) -> FloatArray:
        """Return the least that options add to every demand, (o, D); free recomputation may be more than they say."""
        found = np.zeros((len(option), len(self.demands)))
        blocks, again = option.blocks.sum(axis=1), option.recomputed.sum(axis=1)
        for column, demand in enumerate(self.demands):
            each = demand.recomputed[rank]
            asked = np.minimum(each * blocks, 0.0) if option.free else each * again
            found[:, column] = blocks @ demand.blocks[rank] + asked.sum(axis=1)
        return found

    def _first_chunks(self, totals: Mask) -> tuple[IntArray, IntArray]:
        """Return the fewest and the most blocks of every rank's first chunk, (P,)."""
        low, high = totals.argmax(axis=1), self.total - totals[:, ::-1].argmax(axis=1)
        if self.chunks > 1:
            low, high = np.maximum(low // self.chunks, 1), high // self.chunks + 1
            low[0] = 0
            high[0] = self.total if self.terms.folded[0] else high[0]
        return low, high

    def _met(self, totals: Mask) -> Mask:
        """Tell which kinds (K, P) each rank may hold; those before the last in its first chunk, if all of them are there."""
        low, high = self._first_chunks(totals)
        if self.rule.order:
            return self._met_in_order(low, high)
        ends = np.cumsum(self.counts)[:, None]
        starts = ends - self.counts[:, None]
        met: Mask = (np.cumsum(low) - low < ends) & (starts < np.cumsum(high))
        met[self.last] |= self.chunks > 1
        if self.chunks > 1 and low.sum() < self.mixed:
            met[:] = True
        return met

    def _met_in_order(self, low: IntArray, high: IntArray) -> Mask:
        """Tell which kinds (K, P) each rank of one chunk may hold, which starts and ends within a range."""
        if self.chunks > 1:
            return np.ones((len(self.counts), self.pp), dtype=bool)
        before = kinds_before(self.rule.order, len(self.counts))
        start, stop = np.cumsum(low) - low, np.minimum(np.cumsum(high), self.total)
        met: Mask = (before[stop] > before[np.minimum(start, stop)]).T
        return met

    def _least_recomputed(self, number: int | None, kinds: Mask, *, memory: bool) -> tuple[IntArray, Mask]:
        """Return the fewest blocks that a rank with so many recomputes, (P, blocks + 1), and whether that many may fit.

        Blocks take the least memory of the rank's ``kinds`` (K, P), and recomputing one frees the most of any.
        """
        terms = self.terms
        held = np.tile(np.arange(self.total + 1), (self.pp, 1))
        again = np.zeros_like(held) if number is None else self._recomputed_at_least(held, number)
        if not memory:
            return again, np.ones(held.shape, dtype=bool)
        flight = terms.in_flight[0]
        block = terms.layer_state_bytes[0][:, None] + terms.layer_activation_bytes[0][:, None] * flight
        block = np.where(kinds, block, NOT_MET).min(axis=0)[:, None]
        saved = np.where(kinds, self._saved_bytes()[:, None] * flight, 0.0).max(axis=0)[:, None]
        room = float(terms.capacity_bytes[0]) * (1 + 1e-9) - self._fixed_bytes(np.arange(self.pp))[:, None]
        over = held * block - room
        if number is not None:
            most = np.minimum(held, number * self.chunks)
            return again, over + (most > 0) * (terms.recompute_transient_bytes[0] - most * saved) <= 0
        need = np.ceil((over + terms.recompute_transient_bytes[0]) / np.maximum(saved, 1e-30) - 1e-9)
        again = np.where(over > 0, np.clip(need, 1, held + 1), 0).astype(np.int64)
        return again, again <= held

    def _recomputed_at_least(self, held: IntArray, number: int) -> IntArray:
        """Return the fewest of ``held`` (P, blocks + 1) blocks that are recomputed, so many of every chunk."""
        again = np.minimum(held, number)
        if self.chunks == 1:
            return again
        small, larger = np.divmod(held, self.chunks)
        balanced = (self.chunks - larger) * np.minimum(small, number)
        balanced += larger * np.minimum(small + 1, number)
        inner = [not self._at_end(rank) for rank in range(self.pp)]
        return np.where(np.array(inner)[:, None], balanced, again)

    def _of_rank(
        self, rank: int, sizes: IntArray, starts: IntArray, number: int | None, *, memory: bool
    ) -> Options:
        """List what a rank may hold, its chunks having some sizes, from the places where its first chunk may start."""
        place, at = (axis.ravel() for axis in np.indices((len(sizes), len(starts))))
        if len(place) > MOST_OPTIONS:
            raise Unlisted
        sizes, start = sizes[place], starts[at]
        blocks = self._kinds(sizes, start)
        stop = np.minimum(start + sizes[:, 0], self.mixed)
        if number is None:
            return self._needed(Options(blocks, np.zeros_like(blocks), start, stop, free=True), rank)
        option = Options(blocks, self._kinds(np.minimum(sizes, number), start), start, stop)
        return option.take(self.fits(option, rank)) if memory else option

    def _sizes(self, rank: int, totals: IntArray) -> IntArray:
        """List the chunks of a rank's totals: balanced, smaller ones first; the ends any fewer and at most one more."""
        if not self._at_end(rank):
            sizes = balanced(self.chunks, totals)
        elif self.terms.folded[0]:  # both ends of the model
            first = np.concatenate([np.arange(total + 1) for total in totals])
            sizes = np.stack([first, np.repeat(totals, totals + 1) - first], axis=1)
        else:
            sizes = with_end(self.chunks, totals, first=rank == 0)
        whole: IntArray = sizes[(sizes % int(self.terms.group[0]) == 0).all(axis=1)]
        return whole

    def _kinds(self, sizes: IntArray, start: IntArray) -> IntArray:
        """Return the blocks of each kind, (o, V, K), of chunks (o, V) of which the first starts at some block."""
        ends = np.cumsum(self.counts)
        starts = ends - self.counts
        ends[self.last] = FAR
        blocks = np.zeros((*sizes.shape, len(self.counts)), dtype=np.int64)
        shared = np.minimum((start + sizes[:, 0])[:, None], ends) - np.maximum(start[:, None], starts)
        blocks[:, 0] = np.where(self.counts > 0, np.maximum(shared, 0), 0)
        blocks[:, 1:, self.last] = sizes[:, 1:]
        return blocks

    def _needed(self, option: Options, rank: int) -> Options:
        """Recompute as many blocks as the memory asks for: any of the rarer kinds, and the fewest of the other."""
        held = option.blocks.sum(axis=1)
        again = np.zeros_like(held)
        counted, saved = int(self.counts.argmax()), self._saved_bytes() * self.terms.in_flight[0, rank]
        row = np.arange(len(held))
        over = self._bytes(held, again, rank) > self._capacity()
        for kind in np.flatnonzero((self.counts > 0) & (saved > 0)):
            if kind != counted:
                ways = np.where(over[row], held[row, kind] + 1, 1)
                if ways.sum() > MOST_OPTIONS:
                    raise Unlisted
                number = np.arange(ways.sum()) - np.repeat(np.cumsum(ways) - ways, ways)
                row, again = np.repeat(row, ways), np.repeat(again, ways, axis=0)
                again[:, kind] = number
        held = held[row]
        missing = self._bytes(held, again, rank) - self._capacity()
        buffer = np.where(again.any(axis=1), 0.0, self.terms.recompute_transient_bytes[0])
        # One fewer than the quotient says is still an option: rounding must not cost a choice that fits.
        need = np.ceil((missing + buffer) / max(saved[counted], 1e-30) - 1e-9)
        need = np.where(missing > 0, np.clip(need, 1, held[:, counted] + 1), 0).astype(np.int64)
        again[:, counted] = need
        fits = (missing <= 0) | ((need <= held[:, counted]) & (saved[counted] > 0))
        for kind in np.flatnonzero(self.counts):  # one fewer would do
            spared = again.copy()
            spared[:, kind] -= 1
            enough = self._bytes(held, spared, rank) <= self._capacity()
            fits &= (again[:, kind] == 0) | (kind == counted) | ~enough
        recomputed = np.zeros_like(option.blocks[row])
        recomputed[:, 0] = again
        chosen = Options(option.blocks[row], recomputed, option.start[row], option.stop[row], free=True)
        return chosen.take(fits)

    def named(self, option: Options, again: FloatArray) -> Options:
        """Say of free options in which chunks they recompute, ``again`` (Q, V, K) being what a block adds to every path.

        Chunks that add the same to all paths are alike: of them the first are taken. Raises ``Unlisted`` for too many
        ways.
        """
        rows: list[int] = []
        ways: list[IntArray] = []
        one = np.eye(len(self.counts), dtype=np.int64)
        alike = [
            np.unique(again[:, :, kind], axis=1, return_inverse=True)[1] for kind in range(again.shape[2])
        ]
        for row, (held, number) in enumerate(zip(option.blocks, option.recomputed.sum(axis=1), strict=True)):
            found = [np.zeros_like(held)]
            for kind in np.flatnonzero(number).tolist():
                parts = shares(
                    int(number[kind]), held[:, kind], alike[kind].ravel(), MOST_OPTIONS - len(rows)
                )
                if len(found) * len(parts) + len(rows) > MOST_OPTIONS:
                    raise Unlisted
                found = [before + share[:, None] * one[kind] for before in found for share in parts]
            rows += [row] * len(found)
            ways += found
        chosen = option.take(np.array(rows, dtype=np.int64))
        return Options(chosen.blocks, np.array(ways), chosen.start, chosen.stop)

    def fits(self, option: Options, rank: int | IntArray) -> Mask:
        """Tell which options of a rank, or of a rank (o,) each, fit into the memory."""
        used = self._bytes(option.blocks.sum(axis=1), option.recomputed.sum(axis=1), rank)
        fits: Mask = used <= self._capacity()
        return fits

    def _bytes(self, blocks: IntArray, recomputed: IntArray, rank: int | IntArray) -> FloatArray:
        """Return the bytes of ranks with blocks and recomputed blocks (o, K), as ``price_stages`` adds them up."""
        terms = self.terms
        held = blocks @ terms.layer_activation_bytes[0] - recomputed @ self._saved_bytes()
        used = blocks @ terms.layer_state_bytes[0] + terms.in_flight[0, rank] * held
        buffer = recomputed.any(axis=1) * terms.recompute_transient_bytes[0]
        result: FloatArray = used + self._fixed_bytes(np.array(rank)) + buffer
        return result

    def _fixed_bytes(self, rank: IntArray) -> FloatArray:
        """Return the bytes of ranks without blocks."""
        fixed: FloatArray = own_bytes(self.terms)[0, rank]
        return fixed

    def _saved_bytes(self) -> FloatArray:
        saved: FloatArray = self.terms.layer_activation_bytes[0] - self.terms.recomputed_activation_bytes[0]
        return saved

    def _capacity(self) -> float:
        return float(self.terms.capacity_bytes[0]) * (1 + SLACK)
