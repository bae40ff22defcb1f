"""Tuples that are likely to be fast, before anything is bounded: everything else is then compared with a good layout."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.solve.search.choices import never
from layoutopt.optimizer.solve.search.construct import construct
from layoutopt.optimizer.solve.search.likely import likely_s
from layoutopt.optimizer.solve.search.one_tuple import Waiting
from layoutopt.optimizer.solve.search.rows import pieces

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from layoutopt.optimizer.cost.batch import IntArray, LayoutBatch
    from layoutopt.optimizer.cost.terms import FloatArray, StageTerms
    from layoutopt.optimizer.solve.search.source import Refinement, TermsSource

SHAPE = ("tp", "cp", "pp", "micro_batch", "ep")
"""Degrees that make two rows worth a try each, beside the chunks of a rank: more of them take more memory."""

SPREAD = 1_000_003
"""A prime that tells shapes apart as digits of one number."""

SHAPES, LEFT, PER_SHAPE = 64, 6, 4
"""Shapes of one pipeline depth whose modifiers are looked at, those of them that are likely to be fast with these, and
numbers of chunks tried of each."""

FARTHEST, NEIGHBOURS = 2.0, 96
"""Doublings of degrees between neighbours, and the rows tried of them."""

ROOMS = (1.0, 0.9, 0.8)
"""Shares of the memory within which the likeliest choice of a row is followed: what later steps choose may take the rest."""

FEW, ORDERS = 2, 2
"""Chunks of a rank, and mesh orders, with which rows are first compared."""

FOLLOWED = 192
"""Choices that are followed at each step, as many of each pipeline depth."""

AT_ONCE, FEWEST, BLOCKS = 32, 8, 8_192
"""Tuples whose stages are constructed together, the likeliest first, for the others to be compared with; fewer of deep
models, whose first ones take long: so many that they hold that many blocks."""


class FirstTuples:
    """Proposes tuples of one space, none once ``stopped``.

    What degree rows are likely to take is estimated as far as they are looked at: of a large space that is a small part.
    """

    def __init__(self, source: TermsSource, stopped: Callable[[], bool] = never) -> None:
        self._source, self._stopped = source, stopped
        self._likely = np.full(len(source.degrees), np.nan)
        self._seen = np.zeros(len(source.degrees), dtype=bool)

    def of_all_depths(self, below_s: Callable[[], float] = lambda: np.inf) -> Iterator[list[Waiting]]:
        """Yield tuples of the likeliest rows of every pipeline depth, some at a time: the fastest of these first.

        ``below_s`` is asked for the step time that the next ones have to beat.
        """
        degrees = self._source.degrees
        # Few chunks tell which shapes are fast; the numbers of chunks of these are compared afterwards.
        few = np.flatnonzero(few_chunks(degrees))
        rows = few[likely_rows(degrees.take(few), self._of(few), SHAPES)]
        rows = rows[self._likely[rows] < below_s()]
        if not len(rows) or self._stopped():
            return
        guess = self._chosen_s(rows)
        guess = np.where(guess < below_s(), guess, np.inf)
        rows = rows[likely_rows(degrees.take(rows), guess, LEFT)]
        key = shapes(degrees)
        rows = np.flatnonzero(
            np.isin(key, key[rows]) & distinct_chunks(degrees, int(self._source.counts.sum()))
        )
        likely = self._of(rows)
        order = np.argsort(likely, kind="stable")
        order = order[np.isfinite(likely[order])]
        order = order[_first_of(key[rows[order]] * SPREAD + degrees.vp[rows[order]])]
        yield from self._tuples(rows[order[_turn(key[rows[order]]) < PER_SHAPE]], below_s)

    def _chosen_s(self, rows: IntArray) -> FloatArray:
        """Return what rows, given by positions (k,), are likely to take with the best choice of the second step."""
        step = self._source.refinements[min(1, len(self._source.refinements) - 1)]
        _, owner, terms = self._choices(step, self._source.degrees.take(rows))
        best = np.full(len(rows), np.inf)
        np.minimum.at(best, owner, likely_s(terms, self._source.counts))
        return best

    def near(self, item: Waiting, below_s: Callable[[], float]) -> Iterator[list[Waiting]]:
        """Yield tuples of rows not seen yet that are near one in their degrees and likely to be faster, as above."""
        degrees, away = self._source.degrees, np.zeros(len(self._seen))
        for name in SHAPE:
            away += np.abs(np.log2(getattr(degrees, name) / getattr(item.layout, name)[0]))
        rows = np.flatnonzero((away <= FARTHEST) & ~self._seen)
        likely = self._of(rows)
        order = np.lexsort([likely, away[rows]])
        order = order[likely[order] < below_s()]
        yield from self._tuples(rows[order[:NEIGHBOURS]], below_s)

    def _of(self, rows: IntArray) -> FloatArray:
        """Return what degree rows, given by positions (k,), are likely to take; inf where they can't be."""
        new = rows[np.isnan(self._likely[rows])]
        batch, likely = self._source.degrees.take(new), np.zeros(len(new))
        for index in pieces(batch.pp):
            part = batch.take(index)
            guess = likely_s(self._source.relaxed(part), self._source.counts)
            # What is demanded may be known to be out of reach.
            kept = self._source.demands.kept(guess, part, exact=False)
            likely[index] = np.where(np.isfinite(kept), guess, np.inf)
        self._likely[new] = likely
        return self._likely[rows]

    def _tuples(self, rows: IntArray, below_s: Callable[[], float]) -> Iterator[list[Waiting]]:
        """Choose modifiers of rows step by step, and yield those whose constructed stages fit, some at a time."""
        self._seen[rows] = True
        source, batch, guess = self._source, self._source.degrees.take(rows), self._likely[rows]
        for step in source.refinements:
            if not len(batch) or self._stopped():
                return
            batch, owner, terms = self._choices(step, batch)
            chosen, guess = self._followed(terms, owner)
            chosen, guess = chosen[guess < below_s()], guess[guess < below_s()]
            batch = batch.take(chosen)
        if not len(batch):
            return
        terms = terms.take(chosen)
        at_once = int(np.clip(BLOCKS // source.counts.sum(), FEWEST, AT_ONCE))
        for start in range(0, len(batch), at_once):
            part = np.arange(start, min(start + at_once, len(batch)))
            # Each portion has to beat the best of those before.
            part = part[guess[part] < below_s()]
            if not len(part) or self._stopped():
                break
            step_s = construct(terms.take(part), source.counts, source.rule, below_s()).step_time_s
            order = np.argsort(step_s, kind="stable")
            order = order[np.isfinite(step_s[order])]
            yield [Waiting.of(batch, terms, place) for place in part[order].tolist()]

    def _choices(self, step: Refinement, rows: LayoutBatch) -> tuple[LayoutBatch, IntArray, StageTerms]:
        """Return the choices of a step, of mesh orders the first ones alone: each is priced apart."""
        if step.priced is not None:
            return step.choices(rows)
        batch, owner = step.expand(rows)
        early = np.flatnonzero(batch.order < ORDERS)
        if 0 < len(early) < len(batch):
            batch, owner = batch.take(early), owner[early]
        return batch, owner, step.terms(batch)

    def _followed(self, terms: StageTerms, owner: IntArray) -> tuple[IntArray, FloatArray]:
        """Return the places (k,) of the choices to follow and what they are likely to take, the least first."""
        guess = likely_s(terms, self._source.counts)
        places = [_best_of(guess, owner)]
        for room in ROOMS[1:]:
            tighter = replace(terms, capacity_bytes=room * terms.capacity_bytes)
            places.append(_best_of(likely_s(tighter, self._source.counts), owner))
        place = np.unique(np.concatenate(places))
        place = place[np.argsort(guess[place], kind="stable")]
        # The likeliest of every depth in turn: what is likely errs with the depth.
        turn = _turn(terms.pp[place])
        place = place[turn < max(FOLLOWED // len(np.unique(terms.pp[place])), 1)] if len(place) else place
        return place, guess[place]


def few_chunks(degrees: LayoutBatch) -> NDArray[np.bool_]:
    """Tell which rows have ``FEW`` chunks or less, (n,); of a depth that has more, those with the fewest."""
    fewest = np.full(int(degrees.pp.max(initial=0)) + 1, np.iinfo(np.int64).max)
    np.minimum.at(fewest, degrees.pp, degrees.vp)
    few: NDArray[np.bool_] = degrees.vp <= np.maximum(fewest[degrees.pp], FEW)
    return few


def distinct_chunks(degrees: LayoutBatch, blocks: int) -> NDArray[np.bool_]:
    """Tell which rows have few chunks, or the fewest of a size, (n,): more chunks of a size are filled less evenly."""
    size, before = (-(-blocks // (degrees.pp * np.maximum(degrees.vp - fewer, 1))) for fewer in (0, 1))
    return few_chunks(degrees) | (size < before)


def shapes(degrees: LayoutBatch) -> IntArray:
    """Number the shapes of rows, (n,); equal numbers of different shapes would only leave out a guess."""
    shape = np.zeros(len(degrees), dtype=np.int64)
    for name in SHAPE:
        shape = shape * SPREAD + getattr(degrees, name)
    return shape


def likely_rows(degrees: LayoutBatch, likely: FloatArray, number: int) -> IntArray:
    """Return the likeliest row of each shape, of each pipeline depth those of the likeliest shapes."""
    order = np.argsort(likely, kind="stable")
    order = order[np.isfinite(likely[order])]
    order = order[_first_of(shapes(degrees)[order])]
    return order[_turn(degrees.pp[order]) < number]


def _first_of(group: IntArray) -> IntArray:
    """Return the first place of each group, in their order."""
    _, first = np.unique(group, return_index=True)
    return np.sort(first)


def _turn(group: IntArray) -> IntArray:
    """Number the members of each group in their order, (n,)."""
    order = np.argsort(group, kind="stable")
    starts = np.concatenate([[True], group[order][1:] != group[order][:-1]]) if len(group) else np.zeros(0)
    place = np.arange(len(group))
    turn = np.empty(len(group), dtype=np.int64)
    turn[order] = place - np.maximum.accumulate(np.where(starts, place, 0))
    return turn


def _best_of(guess: FloatArray, owner: IntArray) -> IntArray:
    """Return the place of the least guess of each owner that can be at all."""
    order = np.argsort(guess, kind="stable")
    order = order[np.isfinite(guess[order])]
    best: IntArray = order[_turn(owner[order]) == 0]
    return best
