"""Blocks of every rank that fill it up to a bottleneck time: what constructed stages begin with."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.solve.search.capacity import RankCapacity
from layoutopt.optimizer.solve.splits import chunks

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from layoutopt.optimizer.cost.batch import IntArray
    from layoutopt.optimizer.cost.terms import FloatArray, StageTerms
    from layoutopt.optimizer.solve.search.cases import Cases

PASSES = 2
"""Times that ranks are filled beside the other kinds that they hold: these move with the blocks of the ranks before."""

WIDEST, HALVINGS = 1.5, 6
"""How much slower than its bound a bottleneck may be with the kinds where they lie, and halvings of that range."""


class Filling:
    """Fills the ranks of cases, for blocks by kind (K,), whose bottleneck is at least ``slowest_s`` (c,)."""

    def __init__(self, terms: StageTerms, counts: IntArray, cases: Cases, slowest_s: FloatArray) -> None:
        self._capacity = RankCapacity(terms, counts, cases)
        self._terms, self._counts, self._cases = self._capacity.terms, counts, cases
        self._own, self.slowest_s, self._others = self._capacity, slowest_s, np.zeros_like(cases.fewest)
        self.most = cases.most
        # The bound lets every rank hold what is quick of the kinds; where they lie decides who really does.
        for turn in range(PASSES if len(counts) > 1 else 0):
            mix, self._others = self._beside(self.totals(1.0) if turn else self._even())
            self._own = self._capacity.beside(mix)
            self.slowest_s = self.enough_s(slowest_s)

    def totals(self, factor: float) -> IntArray:
        """Return the blocks of every rank, (c, P), at ``factor`` times the least bottleneck that holds all blocks.

        Ranks are filled up to it; then the surplus is taken from where it spares most recomputation.
        """
        held, fewest = self._own.held(self.slowest_s * factor), self._cases.fewest
        full = self._most(held)
        unaided = self._most(np.minimum(held, self._own.unaided))
        surplus = full.sum(axis=1) - int(self._counts.sum())
        # In-flight micro-batches fall along the pipeline, so earlier ranks recompute more per block.
        first = _take(surplus, full - np.minimum(unaided, full))
        left = full - first
        totals: IntArray = left - _take(surplus - first.sum(axis=1), left - fewest)
        return totals

    def equal_chunks(self) -> IntArray:
        """Return the blocks of every rank (n, P), none with more than if all chunks were equal, as far as possible."""
        even = self._terms.vp * -(-int(self._counts.sum()) // (self._terms.pp * self._terms.vp))
        capped = copy(self)
        capped.most = np.minimum(self.most, np.maximum(even[:, None], self._cases.fewest))
        capped.slowest_s = capped.enough_s(self.slowest_s)
        return capped.totals(1.0)

    def _even(self) -> IntArray:
        """Return equal shares of all blocks."""
        pp, rank = self._terms.pp[:, None], np.arange(self._terms.in_flight.shape[1])
        until: IntArray = np.minimum(rank + 1, pp) * int(self._counts.sum()) // pp
        even: IntArray = np.diff(until, axis=1, prepend=0)
        return even

    def _beside(self, totals: IntArray) -> tuple[IntArray, IntArray]:
        """Return which mix of the kinds that are not counted every rank holds, and their number, both (c, P)."""
        mixes = self._capacity.mixes
        held = chunks(totals, self._terms, in_step=True).kinds(self._counts, self._cases.order).sum(axis=1)
        held[..., mixes.counted] = 0
        inside = (mixes.low <= held[:, :, None]) & (held[:, :, None] <= mixes.high)
        mix: IntArray = inside.all(axis=3).argmax(axis=2)
        others: IntArray = held.sum(axis=2)
        return mix, others

    def _most(self, counted: FloatArray) -> IntArray:
        """Return the blocks that ranks hold with so many counted ones, (1, c, P), in the ranges of the cases."""
        units = np.maximum(counted[0] + self._others, self._cases.fewest)
        most: IntArray = np.minimum(units, self.most).astype(np.int64)
        return most

    def enough_s(self, slowest_s: FloatArray) -> FloatArray:
        """Return the least bottleneck (c,) from ``slowest_s`` on at which the ranks hold all blocks."""

        def enough(time_s: FloatArray) -> NDArray[np.bool_]:
            """Tell which cases (c,) hold all blocks within a time."""
            holds: NDArray[np.bool_] = self._most(self._own.held(time_s)).sum(axis=1) >= self._counts.sum()
            return holds

        low, high = slowest_s, np.where(enough(slowest_s), slowest_s, slowest_s * WIDEST)
        for _ in range(HALVINGS if (high > low).any() else 0):
            middle = (low + high) / 2
            holds = enough(middle)
            low, high = np.where(holds, low, middle), np.where(holds, middle, high)
        return high


def _take(wanted: IntArray, available: IntArray) -> IntArray:
    """Take ``wanted`` (n,) from ``available`` (n, P) from the first rank on."""
    before = np.cumsum(available, axis=1) - available
    return np.clip(wanted[:, None] - before, 0, available)
