"""A declared space together with its cost model: what the search and the verification work on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from layoutopt.optimizer.cost.relaxed import Relaxation, relaxed_terms
from layoutopt.optimizer.solve.source import Refinement
from layoutopt.optimizer.space.modifiers import ALL_MODIFIERS

if TYPE_CHECKING:
    from collections.abc import Callable

    from layoutopt.optimizer.cost.batch import IntArray, LayoutBatch
    from layoutopt.optimizer.cost.cost_model import CostModel
    from layoutopt.optimizer.cost.terms import StageTerms
    from layoutopt.optimizer.space.enumeration import Space
    from layoutopt.optimizer.space.stage_rule import StageRule


FEW_ORDERS = 2
"""Up to this many mesh orders are expanded with the other modifiers, in one step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostedSpace:
    """Tuples from ``space``, prices from ``cost``."""

    space: Space
    cost: CostModel

    @property
    def degrees(self) -> LayoutBatch:
        """The valid degree rows."""
        return self.space.degrees

    @property
    def counts(self) -> IntArray:
        """Blocks of each kind, (K,)."""
        return self.cost.counts

    @property
    def rule(self) -> StageRule:
        """Which stage splits and recomputation the framework can launch."""
        return self.space.stage_rule

    @property
    def tuples(self) -> IntArray:
        """Number of tuples of each degree row, (n,)."""
        return self.space.tuples

    @property
    def refinements(self) -> tuple[Refinement, ...]:
        """Choose ZeRO first: it decides data-parallel traffic and states. Choose among many mesh orders last."""
        sharding = Refinement(expand=self._expander("zero"), terms=self._terms_of_any_set)
        others = [name for name in ALL_MODIFIERS if name != "zero"]
        if len(self.space.modifiers.orders) <= FEW_ORDERS:
            return (sharding, Refinement(expand=self._expander(*others), terms=self.terms))
        others.remove("order")
        close = Refinement(expand=self._expander(*others), terms=self.cost.closest_terms)
        return (sharding, close, Refinement(expand=self._expander("order"), terms=self.terms))

    def _expander(self, *over: str) -> Callable[[LayoutBatch], tuple[LayoutBatch, IntArray]]:
        return lambda rows: self.space.modifiers.expand(rows, over=over)

    def _terms_of_any_set(self, rows: LayoutBatch) -> StageTerms:
        """Terms with the rows' own sharding, optimistic over everything else."""
        return relaxed_terms(self.cost, rows, self._relaxation(rows), any_sharding=False)

    def relaxed(self, rows: LayoutBatch) -> StageTerms:
        """Return terms that are optimistic over all modifiers of each degree row."""
        return relaxed_terms(self.cost, rows, self._relaxation(rows))

    def expand(self, rows: LayoutBatch) -> tuple[LayoutBatch, IntArray]:
        """Return every tuple of the degree rows and the row each belongs to."""
        return self.space.expand(rows)

    def terms(self, batch: LayoutBatch) -> StageTerms:
        """Return the exact terms of tuples."""
        return self.cost.terms(batch)

    def _relaxation(self, rows: LayoutBatch) -> Relaxation:
        modifiers = self.space.modifiers
        return Relaxation(
            recomputes=tuple(range(len(modifiers.recomputes))),
            orders=tuple(range(len(modifiers.orders))),
            schedules=modifiers.valid("schedule", rows),
            precisions=tuple(range(len(modifiers.precisions))),
            zero=max((choice.stage for choice in modifiers.zero), default=0),
        )
