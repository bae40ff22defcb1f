"""Degree rows and rows with some modifiers chosen: bounded many at once, and kept where they may be wanted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.batch import LayoutBatch
from layoutopt.optimizer.solve.search.bound import lower_bound, quick_bound

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from layoutopt.optimizer.cost.batch import IntArray
    from layoutopt.optimizer.cost.terms import FloatArray, StageTerms
    from layoutopt.optimizer.solve.search.source import Refinement, TermsSource

RELAXED_ROWS, CELLS = 65_536, 1 << 20
"""Rows priced at once, and rows times the deepest pipeline among them, so that memory stays flat."""


def pieces(pp: IntArray) -> Iterator[IntArray]:
    """Cut rows of depths (n,) into few cells each: all at once where they are few, else shallow pipelines apart."""
    if 0 < len(pp) <= RELAXED_ROWS and len(pp) * int(pp.max(initial=1)) <= CELLS:
        yield np.arange(len(pp))
        return
    order = np.argsort(pp, kind="stable")
    while len(order):
        head = order[:RELAXED_ROWS]
        size = max(int(np.count_nonzero(np.arange(1, len(head) + 1) * pp[head] <= CELLS)), 1)
        yield order[:size]
        order = order[size:]


@dataclass(frozen=True, slots=True)
class Partial:
    """Rows with some modifiers chosen: how many tuples each stands for, and its bound."""

    batch: LayoutBatch
    weight: IntArray
    bound: FloatArray

    def __len__(self) -> int:
        return len(self.bound)

    def take(self, index: IntArray) -> Partial:
        """Return the rows at some positions (k,)."""
        return Partial(self.batch.take(index), self.weight[index], self.bound[index])

    @classmethod
    def concat(cls, parts: list[Partial]) -> Partial:
        """Stack parts."""
        return cls(
            LayoutBatch.concat([part.batch for part in parts]),
            np.concatenate([part.weight for part in parts]),
            np.concatenate([part.bound for part in parts]),
        )


class RowBounds:
    """Bounds the rows of one space. ``by_memory`` counts the tuples that were proven not to fit."""

    def __init__(self, source: TermsSource) -> None:
        self._source, self._counts, self._rule = source, source.counts, source.rule
        self.by_memory = 0

    def quick(self, should_stop: Callable[[], bool] | None = None) -> FloatArray:
        """Bound every degree row (n,) in closed form; inf where it can't be.

        Rows that are not looked at before a stop is asked for may be as fast as can be.
        """
        rows = self._source.degrees
        quick = np.zeros(len(rows))
        for index in pieces(rows.pp):
            # What was not looked at keeps the bound 0: it may be as fast as can be.
            if should_stop is not None and should_stop():
                break
            quick[index] = quick_bound(self._source.relaxed(rows.take(index)), self._counts)
        # A closed form is infinite only where no stages fit: all tuples of the row are out by memory.
        self.by_memory += self._tuples_of(np.flatnonzero(~np.isfinite(quick)))
        return self._source.demands.kept(quick, rows, exact=False)

    def degree_rows(self, rows: IntArray, wanted_s: float) -> Partial:
        """Bound degree rows, given by positions (k,), over optimistic terms and keep those below ``wanted_s``."""
        terms = self._source.relaxed(self._source.degrees.take(rows))
        bound = lower_bound(terms, self._counts, self._rule, wanted_s, free=True)
        self.by_memory += self._tuples_of(rows[np.isinf(bound)])
        kept = np.flatnonzero(bound < wanted_s)
        rows = rows[kept]
        return Partial(self._source.degrees.take(rows), self._source.tuples[rows], bound[kept])

    def refined(self, partial: Partial, step: Refinement, wanted_s: float, *, free: bool = False) -> Partial:
        """Choose the modifiers of one step and keep what is below ``wanted_s``; ``free`` as in ``lower_bound``."""
        batch, weight = expanded(partial, step)
        bound = np.zeros(len(batch))
        for index in pieces(batch.pp):
            terms = step.terms(batch.take(index))
            bound[index] = self.of(terms, wanted_s, free=free)
        self.by_memory += int(weight[np.isinf(bound)].sum())
        bound = self._source.demands.kept(bound, batch, exact=False)
        return Partial(batch, weight, bound).take(np.flatnonzero(bound < wanted_s))

    def tuples(self, batch: LayoutBatch, weight: IntArray, terms: StageTerms, wanted_s: float) -> FloatArray:
        """Bound tuples by their exact terms, (n,); ``weight`` (n,) is how many each stands for."""
        bound = self.of(terms, wanted_s)
        self.by_memory += int(weight[np.isinf(bound)].sum())
        return self._source.demands.kept(bound, batch)

    def of(self, terms: StageTerms, wanted_s: float, *, free: bool = False) -> FloatArray:
        """Bound terms, (n,), as exactly as it matters: in closed form, then tightly where that is not enough."""
        bound = quick_bound(terms, self._counts)
        left = np.flatnonzero(bound < wanted_s)
        bound[left] = lower_bound(terms.take(left), self._counts, self._rule, wanted_s, free=free)
        return bound

    def _tuples_of(self, rows: IntArray) -> int:
        """Count the tuples of degree rows."""
        return int(self._source.tuples[rows].sum())


def expanded(partial: Partial, step: Refinement) -> tuple[LayoutBatch, IntArray]:
    """Return every choice of a step, and how many tuples each stands for, (k,)."""
    batch, owner = step.expand(partial.batch)
    return batch, step.weights(partial.weight, batch, owner)
