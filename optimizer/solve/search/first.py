"""Tuples that are likely to be fast, before anything is bounded: everything else is then compared with a good layout."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.solve.search.bound import likely_s
from layoutopt.optimizer.solve.search.choices import never
from layoutopt.optimizer.solve.search.construct import construct
from layoutopt.optimizer.solve.search.one_tuple import Waiting
from layoutopt.optimizer.solve.search.rows import pieces

if TYPE_CHECKING:
    from collections.abc import Callable

    from layoutopt.optimizer.cost.batch import IntArray, LayoutBatch
    from layoutopt.optimizer.cost.terms import FloatArray, StageTerms
    from layoutopt.optimizer.solve.search.source import TermsSource

SHAPE = ("tp", "cp", "pp", "micro_batch", "ep")
"""Degrees that make two rows worth a try each, beside whether ranks hold several chunks: those take more memory."""

SPREAD = 1_000_003
"""A prime that tells shapes apart as digits of one number."""

PER_DEPTH = 32
"""Rows of one pipeline depth: what a row is likely to take errs with its memory, and so with its depth."""

FARTHEST, NEIGHBOURS = 2.0, 96
"""Doublings of degrees between neighbours, and the rows tried of them."""

PER_ROW = 2
"""Choices of a row that are followed at each step; of the last one, stages are constructed."""

AT_ONCE, FEWEST, BLOCKS = 64, 8, 8_192
"""Tuples whose stages are constructed together, the likeliest first, for the others to be compared with; fewer of deep
models, whose first ones take long: so many that they hold that many blocks."""


class FirstTuples:
    """Proposes tuples of one space, none once ``stopped``; ``likely`` (n,) is what each degree row may take."""

    def __init__(self, source: TermsSource, likely: FloatArray, stopped: Callable[[], bool] = never) -> None:
        self._source, self._likely, self._stopped = source, likely, stopped
        self._seen = np.zeros(len(likely), dtype=bool)

    def of_all_depths(self) -> list[Waiting]:
        """Return tuples of the likeliest rows of every pipeline depth, the fastest by their constructed stages first."""
        return self._tuples(likely_rows(self._source.degrees, self._likely), np.inf)

    def near(self, item: Waiting, below_s: float) -> list[Waiting]:
        """Return tuples of rows not seen yet that are near one in their degrees and likely to be faster."""
        rows = np.flatnonzero((self._likely < below_s) & ~self._seen)
        degrees = self._source.degrees.take(rows)
        away = np.zeros(len(rows))
        for name in SHAPE:
            away += np.abs(np.log2(getattr(degrees, name) / getattr(item.layout, name)[0]))
        order = np.lexsort([self._likely[rows], away])
        return self._tuples(rows[order[away[order] <= FARTHEST][:NEIGHBOURS]], below_s)

    def _tuples(self, rows: IntArray, below_s: float) -> list[Waiting]:
        """Return tuples of rows that fit, the fastest by their constructed stages first."""
        self._seen[rows] = True
        source, batch, guess = self._source, self._source.degrees.take(rows), self._likely[rows]
        for step in source.refinements:
            if not len(batch) or self._stopped():
                return []
            batch, owner, terms = step.choices(batch)
            guess = likely_s(terms, source.counts)
            chosen = _best_of(guess, owner, PER_ROW)
            chosen = chosen[guess[chosen] < below_s]
            guess, batch = guess[chosen], batch.take(chosen)
        if not len(batch):
            return []
        terms = terms.take(chosen)
        step_s = np.full(len(batch), np.inf)
        at_once = int(np.clip(BLOCKS // source.counts.sum(), FEWEST, AT_ONCE))
        for start in range(0, len(batch), at_once):
            part = np.arange(start, min(start + at_once, len(batch)))
            # Each portion has to beat the best of those before.
            cutoff_s = min(below_s, float(step_s.min()))
            part = part[guess[part] < cutoff_s]
            if not len(part):
                break
            step_s[part] = construct(terms.take(part), source.counts, source.rule, cutoff_s).step_time_s
        order = np.argsort(step_s, kind="stable")
        return [Waiting.of(batch, terms, place) for place in order[np.isfinite(step_s[order])].tolist()]


def likely_rows(degrees: LayoutBatch, likely: FloatArray) -> IntArray:
    """Return the likeliest row of each shape, and of each pipeline depth the likeliest shapes."""
    order = np.argsort(likely, kind="stable")
    order = order[np.isfinite(likely[order])]
    shape = (degrees.vp[order] > 1).astype(np.int64)
    for name in SHAPE:  # equal numbers of different shapes would only leave out a guess
        shape = shape * SPREAD + getattr(degrees, name)[order]
    _, first = np.unique(shape, return_index=True)
    order = order[np.sort(first)]
    return order[_turn(degrees.pp[order]) < PER_DEPTH]


def _turn(group: IntArray) -> IntArray:
    """Number the members of each group in their order, (n,)."""
    order = np.argsort(group, kind="stable")
    starts = np.concatenate([[True], group[order][1:] != group[order][:-1]]) if len(group) else np.zeros(0)
    place = np.arange(len(group))
    turn = np.empty(len(group), dtype=np.int64)
    turn[order] = place - np.maximum.accumulate(np.where(starts, place, 0))
    return turn


def _best_of(guess: FloatArray, owner: IntArray, number: int) -> IntArray:
    """Return the places of the least guesses of each owner, those that can be at all, the least first."""
    order = np.argsort(guess, kind="stable")
    order = order[np.isfinite(guess[order])]
    return order[_turn(owner[order]) < number]


def _likely(
    source: TermsSource, batch: LayoutBatch, terms_of: Callable[[LayoutBatch], StageTerms]
) -> FloatArray:
    """Return what layouts are likely to take, (n,) seconds."""
    guess = np.zeros(len(batch))
    for part in pieces(batch.pp):
        guess[part] = likely_s(terms_of(batch.take(part)), source.counts)
    return guess
