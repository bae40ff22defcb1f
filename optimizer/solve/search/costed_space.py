"""A declared space together with its cost model: what the search and the verification work on."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.cost_model import View
from layoutopt.optimizer.cost.relaxed import Relaxation, relaxed_terms, undominated
from layoutopt.optimizer.solve.search.demands import NO_DEMANDS, Demands
from layoutopt.optimizer.solve.search.source import Refinement
from layoutopt.optimizer.solve.search.space_size import stage_shape
from layoutopt.optimizer.space.modifiers import ALL_MODIFIERS, ANY_SWITCHES, SWITCHES

if TYPE_CHECKING:
    from collections.abc import Callable

    from layoutopt.optimizer.cost.batch import IntArray, LayoutBatch
    from layoutopt.optimizer.cost.cost_model import CostModel
    from layoutopt.optimizer.cost.terms import StageTerms
    from layoutopt.optimizer.frameworks.stage_rule import StageLimit, StageRule
    from layoutopt.optimizer.solve.search.space_size import StageShape
    from layoutopt.optimizer.space.enumeration import Space
    from layoutopt.optimizer.specs.model import ModelSpec


SHAPE_LIMITS = (1 << 8, 1 << 20, 1 << 20)
"""More schedules, ranks and chunks than any layout has: they make one sortable number of the three."""

ROOM_BYTES = 1e16
"""More memory than any layout takes, small enough for whole KiB."""

FEW_ORDERS = 2
"""Up to this many mesh orders are expanded with the other modifiers, in one step."""


@dataclass(frozen=True, kw_only=True)
class CostedSpace:
    """Tuples from ``space``, prices from ``cost``, what stages have to meet from ``demands``.

    ``reserve`` is the share of usable memory left free. ``roomy``: every GPU has memory for anything, to tell what else
    excludes.
    """

    space: Space
    cost: CostModel
    demands: Demands = NO_DEMANDS
    roomy: bool = False
    reserve: float = 0.0

    @cached_property
    def _scheduled(self) -> tuple[LayoutBatch, IntArray, IntArray]:
        """Degree rows with their schedule, the tuples of each, and those that may recompute whole layers.

        Schedules differ in which stages share a rank, so that no terms are optimistic for two of them.
        """
        rows, owner = self.space.modifiers.expand(self.space.degrees, over=("schedule",))
        # Every schedule of a row has the same modifiers, so that its tuples divide equally.
        choices = np.bincount(owner, minlength=len(self.space.degrees))
        share = choices[owner]
        return rows, self.space.tuples[owner] // share, self.space.whole_layer_tuples[owner] // share

    @property
    def degrees(self) -> LayoutBatch:
        """The valid degree rows, one for each schedule they may run."""
        return self._scheduled[0]

    @property
    def model(self) -> ModelSpec:
        """The model that is trained."""
        return self.cost.model

    @property
    def counts(self) -> IntArray:
        """Blocks of each kind, (K,)."""
        return self.cost.counts

    @property
    def rule(self) -> StageRule:
        """Which stage splits and recomputation the framework can launch and the question wants."""
        limits = self._stage_limits
        return replace(self.space.stage_rule, limits=limits) if limits else self.space.stage_rule

    @cached_property
    def _stage_limits(self) -> tuple[StageLimit, ...]:
        return self.demands.stage_limits()

    @property
    def tuples(self) -> IntArray:
        """Number of tuples of each degree row, (n,)."""
        return self._scheduled[1]

    def tuples_by_shape(self) -> dict[StageShape, int]:
        """Count tuples by what decides their stages."""
        (rows, tuples, whole), book = self._scheduled, self.space.modifiers.codebook
        key = np.ravel_multi_index((rows.schedule, rows.pp, rows.vp), SHAPE_LIMITS)
        keys, which = np.unique(key, return_inverse=True)
        size = len(keys)
        full, every = (np.bincount(which.ravel(), weights=w, minlength=size) for w in (whole, tuples))
        shapes: Counter[StageShape] = Counter()
        codes = np.stack(np.unravel_index(keys, SHAPE_LIMITS), axis=1)
        for (code, pp, vp), again, total in zip(codes.tolist(), full, every, strict=True):
            for may, number in ((True, again), (False, total - again)):
                if number:
                    shapes[stage_shape(book.schedules[code], pp, vp, may)] += int(number)
        return shapes

    @property
    def refinements(self) -> tuple[Refinement, ...]:
        """Choose ZeRO first: it decides data-parallel traffic and states. Choose among many mesh orders and switches last.

        Until switches are chosen every row has all of them, each where it is cheapest.
        """
        modifiers = self.space.modifiers
        sharding = Refinement(expand=self._expander("zero"), terms=self._terms_of_any_set)
        others = [name for name in ALL_MODIFIERS if name not in ("zero", "schedule")]
        several = [ANY_SWITCHES] if modifiers.switches else []
        weigh = modifiers.switch_choices if several else None
        priced = self._terms_of_any_switches if several else self.terms
        steps = [sharding]
        # Pricing each of many orders costs more than a bound over all of them that excludes most tuples
        # first.
        if len(modifiers.orders) > FEW_ORDERS:
            others.remove("order")
            steps.append(
                Refinement(
                    expand=self._expander(*others, *several), terms=self.cost.closest_terms, weigh=weigh
                )
            )
            others = ["order"]
        steps.append(Refinement(expand=self._expander(*others, *several), terms=priced, weigh=weigh))
        if several:
            steps.append(Refinement(expand=self._switched, terms=self.terms, priced=self._priced_switches))
        return tuple(steps)

    def _terms_of_any_switches(self, rows: LayoutBatch) -> StageTerms:
        """Terms that are optimistic over the switches of each row."""
        return self._within_memory(rows, self.cost.terms_in(rows, View(any_switches=True)), exact=False)

    def _switched(self, rows: LayoutBatch) -> tuple[LayoutBatch, IntArray]:
        """Return the choices of switches of each row that no other beats in every term, and the row of each."""
        batch, owner, _ = self._priced_switches(rows)
        return batch, owner

    def _priced_switches(self, rows: LayoutBatch) -> tuple[LayoutBatch, IntArray, StageTerms]:
        """Return the choices of ``_switched`` with their terms."""
        batch, owner = self.space.modifiers.expand(rows, over=(SWITCHES,))
        if not len(batch):  # together no switches let the rows have what each needs
            return batch, owner, self._terms_of_any_switches(rows).take(owner)
        terms = self.cost.terms(batch)
        kept = undominated(terms, owner)
        batch = batch.take(kept)
        return batch, owner[kept], self._within_memory(batch, terms.take(kept), exact=True)

    def _expander(self, *over: str) -> Callable[[LayoutBatch], tuple[LayoutBatch, IntArray]]:
        return lambda rows: self.space.modifiers.expand(rows, over=over)

    def _terms_of_any_set(self, rows: LayoutBatch) -> StageTerms:
        """Terms with the rows' own sharding, optimistic over everything else."""
        terms = relaxed_terms(self.cost, rows, self._relaxation(rows), any_sharding=False)
        return self._within_memory(rows, terms, exact=False)

    def relaxed(self, rows: LayoutBatch) -> StageTerms:
        """Return terms that are optimistic over all modifiers of each degree row."""
        return self._within_memory(rows, relaxed_terms(self.cost, rows, self._relaxation(rows)), exact=False)

    def expand(self, rows: LayoutBatch) -> tuple[LayoutBatch, IntArray]:
        """Return every tuple of the degree rows and the row (k,) each belongs to."""
        over = tuple(name for name in ALL_MODIFIERS if name != "schedule")
        return self.space.modifiers.expand(rows, over=over)

    def terms(self, batch: LayoutBatch) -> StageTerms:
        """Return the exact terms of tuples, with the memory that the question lets them use."""
        return self._within_memory(batch, self.cost.terms(batch), exact=True)

    def _within_memory(self, rows: LayoutBatch, terms: StageTerms, *, exact: bool) -> StageTerms:
        if self.roomy:
            # Where nothing fits, this tells whether memory was all that was in the way.
            terms = replace(terms, capacity_bytes=np.full(len(terms), ROOM_BYTES))
        elif self.reserve:
            terms = replace(terms, capacity_bytes=terms.capacity_bytes * (1 - self.reserve))
        if not self.demands.any:
            return terms
        most = self.demands.capacity_bytes(rows, exact=exact)
        return replace(terms, capacity_bytes=np.minimum(terms.capacity_bytes, most))

    def _relaxation(self, rows: LayoutBatch) -> Relaxation:
        modifiers = self.space.modifiers
        return Relaxation(
            recomputes=tuple(range(len(modifiers.recomputes))),
            orders=tuple(range(len(modifiers.orders))),
            precisions=tuple(range(len(modifiers.precisions))),
            zero=max((choice.stage for choice in modifiers.zero), default=0),
        )
