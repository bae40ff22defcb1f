"""What the search needs to know about a space of layouts: its tuples and the terms of their stages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from layoutopt.optimizer.solve.search.space_size import CountedSpace

if TYPE_CHECKING:
    from collections.abc import Callable

    from layoutopt.optimizer.cost.batch import IntArray, LayoutBatch
    from layoutopt.optimizer.cost.terms import StageTerms
    from layoutopt.optimizer.solve.search.demands import Demands


@dataclass(frozen=True, slots=True, kw_only=True)
class Refinement:
    """One step from degree rows towards tuples: more modifiers chosen, terms less optimistic.

    ``expand`` returns every choice of the step for the rows and the row each came from, ``terms`` prices them. All choices
    of a row stand for equally many tuples, unless ``weigh`` returns how many each stands for. The terms of the last step
    are exact. ``priced`` does both at once, where choosing needs the terms.
    """

    expand: Callable[[LayoutBatch], tuple[LayoutBatch, IntArray]]
    terms: Callable[[LayoutBatch], StageTerms]
    weigh: Callable[[LayoutBatch], IntArray] | None = None
    priced: Callable[[LayoutBatch], tuple[LayoutBatch, IntArray, StageTerms]] | None = None

    def choices(self, rows: LayoutBatch) -> tuple[LayoutBatch, IntArray, StageTerms]:
        """Return every choice of the step, the row (k,) each came from, and its terms."""
        if self.priced is not None:
            return self.priced(rows)
        batch, owner = self.expand(rows)
        return batch, owner, self.terms(batch)

    def weights(self, whole: IntArray, batch: LayoutBatch, owner: IntArray) -> IntArray:
        """Return how many tuples each choice (k,) stands for, of the ``whole`` (n,) of its row, ``owner`` (k,)."""
        share = np.ones(len(batch), dtype=np.int64) if self.weigh is None else self.weigh(batch)
        total = np.zeros(len(whole), dtype=np.int64)
        np.add.at(total, owner, share)
        weights: IntArray = whole[owner] * share // total[owner]
        return weights


class TermsSource(CountedSpace, Protocol):
    """A space of layouts with prices, without physics.

    Tuples that differ only in modifiers (ZeRO stage, recomputed modules, mesh order, schedule, precision) belong to one
    *degree row*, whose code columns hold any valid modifier.
    """

    @property
    def demands(self) -> Demands:
        """What the question demands of stages, memory and time."""

    @property
    def tuples(self) -> IntArray:
        """Number of tuples of each degree row, (n,)."""

    @property
    def refinements(self) -> tuple[Refinement, ...]:
        """The steps from degree rows to tuples."""

    def relaxed(self, rows: LayoutBatch) -> StageTerms:
        """Return the terms of degree rows, each element the most optimistic over the row's modifiers.

        Optimistic means: least seconds and bytes, largest capacity, recomputation allowed if any modifier allows it.
        ``pp``, ``vp`` and ``micro_batches`` are degrees and the same for all modifiers of a row.
        """

    def terms(self, batch: LayoutBatch) -> StageTerms:
        """Return the exact terms of tuples."""
