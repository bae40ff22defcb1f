"""Every tuple of a space whose bound is below a step time: where second goals and models of many tuples begin."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.batch import LayoutBatch
from layoutopt.optimizer.solve.search.bound import lower_bound, quick_bound
from layoutopt.optimizer.solve.search.rows import RELAXED_ROWS

if TYPE_CHECKING:
    from layoutopt.optimizer.cost.terms import FloatArray
    from layoutopt.optimizer.solve.search.source import TermsSource

ROWS = 2_048
"""Rows refined at once, so that memory stays flat."""


def near_tuples(source: TermsSource, limit_s: float) -> tuple[LayoutBatch, FloatArray]:
    """Return every tuple whose bound is below a step time, and its bound, (k,)."""
    batches, bounds = [], []
    for start in range(0, len(source.degrees), RELAXED_ROWS):
        rows = source.degrees.take(np.arange(start, min(start + RELAXED_ROWS, len(source.degrees))))
        # The quick bound excludes most rows for a fraction of what the full one takes.
        quick = quick_bound(source.relaxed(rows), source.counts)
        quick = source.demands.kept(quick, rows, exact=False)
        rows = rows.take(np.flatnonzero(quick < limit_s))
        for first in range(0, len(rows), ROWS):
            batch, bound = _refined(
                source, rows.take(np.arange(first, min(first + ROWS, len(rows)))), limit_s
            )
            batches.append(batch)
            bounds.append(bound)
    # Batches of no rows can't be stacked.
    if not batches:
        return source.degrees.take(np.zeros(0, dtype=np.int64)), np.zeros(0)
    return LayoutBatch.concat(batches), np.concatenate(bounds)


def _refined(source: TermsSource, rows: LayoutBatch, limit_s: float) -> tuple[LayoutBatch, FloatArray]:
    """Choose modifiers step by step, as the search does, and keep what is below the limit."""
    bound = lower_bound(source.relaxed(rows), source.counts, source.rule, limit_s, free=True)
    kept = np.flatnonzero(bound < limit_s)
    rows, bound = rows.take(kept), bound[kept]
    *_, last = source.refinements
    for step in source.refinements:
        if not len(rows):
            break
        rows, _ = step.expand(rows)
        bound = lower_bound(step.terms(rows), source.counts, source.rule, limit_s)
        bound = source.demands.kept(bound, rows, exact=step is last)
        kept = np.flatnonzero(bound < limit_s)
        rows, bound = rows.take(kept), bound[kept]
    return rows, bound
