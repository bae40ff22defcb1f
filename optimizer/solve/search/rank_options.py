"""What each rank of a tuple may hold: the totals that its own floor and memory leave, and the chunks of these totals.

A rank takes at most what its floor (``floors``) and its memory allow, and so holds at least what the others have no room
for. Little is left of all totals where the wanted step time is near the best, before any schedule is looked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.frameworks.stage_rule import Recomputation
from layoutopt.optimizer.solve.search.floors import rank_floors

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from layoutopt.optimizer.cost.terms import FloatArray, IntArray, StageTerms
    from layoutopt.optimizer.frameworks.stage_rule import StageRule
    from layoutopt.optimizer.solve.search.floors import RankFloors

    Mask = NDArray[np.bool_]

SHARPENINGS = 2
"""Times that floors are drawn from what is left of totals: more gain little."""

SLACK = 1e-12
"""Relative error of sums of floats in another order."""


@dataclass(frozen=True, slots=True)
class Options:
    """What one rank may hold: blocks and recomputed blocks of its chunks, (o, V) each.

    Where ``free``, column 0 counts the recomputed blocks of all chunks, which may be in any of them.
    """

    sizes: IntArray
    recomputed: IntArray
    free: bool = False

    @property
    def blocks(self) -> IntArray:
        """Blocks of the rank, (o,)."""
        total: IntArray = self.sizes.sum(axis=1)
        return total

    def take(self, index: IntArray | Mask) -> Options:
        """Return the selected options."""
        return Options(self.sizes[index], self.recomputed[index], self.free)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """The ranks of a tuple, a batch of one with one kind of block; ``total`` blocks are to be held by all of them."""

    terms: StageTerms
    counts: IntArray
    kind: int
    rule: StageRule

    @property
    def total(self) -> int:
        """Blocks of the model."""
        return int(self.counts[self.kind])

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
        return list(range(self.total)), self.total

    def options(self, number: int | None, below_s: float, *, memory: bool = True) -> list[Options] | None:
        """List every rank's options that its floor leaves below a step time; None where the ranks can't hold the model.

        ``number`` as in ``numbers``; without ``memory`` they need not fit.
        """
        found = self._totals(number, below_s, memory=memory)
        if found is None:
            return None
        totals, floors = found
        limit_s = below_s * (1 + SLACK) / float(self.terms.micro_batches[0])
        result = []
        for rank in range(int(self.terms.pp[0])):
            option = self._of_rank(rank, np.flatnonzero(totals[rank]), number, memory=memory)
            time_s = option.blocks * floors.layer_s[0, self.kind, rank] + floors.base_s[0, rank]
            time_s = time_s + option.recomputed.sum(axis=1) * floors.again_s[0, self.kind, rank]
            option = option.take(time_s < limit_s)
            if not len(option.sizes):
                return None
            result.append(option)
        return result

    def _totals(self, number: int | None, below_s: float, *, memory: bool) -> tuple[Mask, RankFloors] | None:
        """Tell which totals (P, blocks + 1) every rank may hold, and the floors that say so."""
        terms, kind = self.terms, self.kind
        chunks, limit_s = int(terms.vp[0]), below_s * (1 + SLACK)
        held = np.arange(self.total + 1)
        again, allowed = self._least_recomputed(number, memory=memory)
        allowed &= self._within_limits()
        first = None
        for _ in range(SHARPENINGS):
            floors = rank_floors(terms, self.counts, first)
            each = floors.layer_s[0, kind][:, None] * held + floors.again_s[0, kind][:, None] * again
            all_s = np.where(allowed, again, self.total).min(axis=1).sum() * terms.recompute_s[0, kind]
            time_s = terms.micro_batches[0] * (each + floors.base_s[0][:, None]) + floors.all_again[0] * all_s
            left = _closed(allowed & (time_s < limit_s), self.total)
            if left is None:
                return None
            if first is not None and (left == allowed).all():
                break
            allowed, first = left, (left.argmax(axis=1) // chunks)[None].astype(np.float64)
        return allowed, floors

    def _within_limits(self) -> Mask:
        ranks, held = int(self.terms.pp[0]), np.arange(self.total + 1)
        within = np.ones((ranks, self.total + 1), dtype=bool)
        inner = np.arange(ranks) % (ranks - 1) > 0
        within &= held >= int(self.terms.vp[0]) - ~inner[:, None]
        for limit in self.rule.limits:
            rank = limit.rank if limit.rank >= 0 else ranks + limit.rank
            if 0 <= rank < ranks:
                within[rank] &= (limit.fewest <= held) & (held <= limit.most)
        return within

    def _least_recomputed(self, number: int | None, *, memory: bool) -> tuple[IntArray, Mask]:
        """Return the fewest blocks that a rank with so many recomputes, (P, blocks + 1), and whether that many fit."""
        ranks = int(self.terms.pp[0])
        held = np.tile(np.arange(self.total + 1), (ranks, 1))
        if number is None:
            return self._needed(held, np.arange(ranks)[:, None])
        again = np.minimum(held, number)
        if not memory:
            return again, np.ones(held.shape, dtype=bool)
        most = np.minimum(held, number * int(self.terms.vp[0]))
        return again, self._bytes(held, most, np.arange(ranks)[:, None]) <= self._capacity()

    def _needed(self, held: IntArray, rank: IntArray) -> tuple[IntArray, Mask]:
        """Return how many of a rank's blocks have to be recomputed for it to fit, and whether it does then."""
        terms = self.terms
        again = np.zeros_like(held)
        over = self._bytes(held, again, rank) - self._capacity()
        saved = terms.in_flight[0, rank] * self._saved_bytes() * np.ones(held.shape)
        short = (over > 0) & (saved > 0)
        if short.any():
            # One fewer than the quotient says is still an option: rounding must not cost a choice that fits.
            need = np.ceil((over[short] + terms.recompute_transient_bytes[0]) / saved[short] - 1e-9)
            again[short] = np.maximum(np.minimum(need, held[short] + 1), 1).astype(np.int64)
        return again, (over <= 0) | ((again > 0) & (again <= held))

    def _of_rank(self, rank: int, totals: IntArray, number: int | None, *, memory: bool) -> Options:
        """List the chunks of a rank's totals: balanced, smaller ones first; the ends any fewer and at most one more."""
        chunks, ranks = int(self.terms.vp[0]), int(self.terms.pp[0])
        at_end = rank in (0, ranks - 1)
        sizes = _with_end(chunks, totals, first=rank == 0) if at_end else _balanced(chunks, totals)
        place = np.array(rank)
        if number is None:
            again, fits = self._needed(sizes.sum(axis=1), place)
            recomputed = np.zeros_like(sizes)
            recomputed[:, 0] = again
            return Options(sizes[fits], recomputed[fits], free=True)
        option = Options(sizes, np.minimum(sizes, number))
        if not memory:
            return option
        return option.take(self.fits(option, rank))

    def fits(self, option: Options, rank: int) -> Mask:
        """Tell which options fit into the memory."""
        used = self._bytes(option.blocks, option.recomputed.sum(axis=1), np.array(rank))
        fits: Mask = used <= self._capacity()
        return fits

    def _bytes(self, blocks: IntArray, recomputed: IntArray, rank: IntArray) -> FloatArray:
        """Return the bytes of ranks, as ``price_stages`` adds them up."""
        terms, kind = self.terms, self.kind
        held = blocks * terms.layer_activation_bytes[0, kind] - recomputed * self._saved_bytes()
        used = (
            blocks * terms.layer_state_bytes[0, kind]
            + terms.in_flight[0, rank] * held
            + terms.common_bytes[0]
        )
        used = used + (recomputed > 0) * terms.recompute_transient_bytes[0]
        last = rank == int(terms.pp[0]) - 1
        result: FloatArray = used + (rank == 0) * terms.first_bytes[0] + last * terms.last_bytes[0]
        return result

    def _saved_bytes(self) -> float:
        terms, kind = self.terms, self.kind
        return float(terms.layer_activation_bytes[0, kind] - terms.recomputed_activation_bytes[0, kind])

    def _capacity(self) -> float:
        return float(self.terms.capacity_bytes[0]) * (1 + SLACK)


def _closed(allowed: Mask, total: int) -> Mask | None:
    """Keep the totals (P, blocks + 1) that the other ranks' totals complete to the model; None where there are none."""
    held = np.arange(total + 1)
    while allowed.any(axis=1).all():
        low, high = allowed.argmax(axis=1), total - allowed[:, ::-1].argmax(axis=1)
        fewest = total - (high.sum() - high)
        most = total - (low.sum() - low)
        kept: Mask = allowed & (held >= fewest[:, None]) & (held <= most[:, None])
        if (kept == allowed).all():
            return kept
        allowed = kept
    return None


def _balanced(chunks: int, totals: IntArray) -> IntArray:
    """Return balanced chunks (o, chunks) of the totals that have at least one block for each."""
    totals = totals[totals >= chunks]
    least, larger = np.divmod(totals, max(chunks, 1))
    sizes: IntArray = least[:, None] + (np.arange(chunks) >= chunks - larger[:, None])
    return sizes


def _with_end(chunks: int, totals: IntArray, *, first: bool) -> IntArray:
    """Cut totals where one chunk, the first or the last, may hold any fewer and at most one more than the least other."""
    if chunks == 1:
        return totals[:, None]
    end = np.arange(int(totals.max(initial=0)) // chunks + 2)
    rest = totals[:, None] - end
    row, column = np.nonzero((rest >= chunks - 1) & (end <= rest // (chunks - 1) + 1))
    inner, own = _balanced(chunks - 1, rest[row, column]), end[column][:, None]
    return np.concatenate((own, inner) if first else (inner, own), axis=1)
