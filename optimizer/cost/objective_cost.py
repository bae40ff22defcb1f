"""Prices in the unit of an objective: seconds times what a second of the layout costs, averaged over sets of constants.

All that is linear in a layout's times stays so under a positive factor per layout and under a weighted mean, so that
bounds, enumeration and solver read these terms as they read seconds. The mean's own step is a floor under the mean step
(the longest path is convex in the times); rows that keep every set's times are priced exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from layoutopt.optimizer.cost.cost_model import CostModel
from layoutopt.optimizer.cost.terms import StageTerms

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutopt.optimizer.cost.batch import LayoutBatch
    from layoutopt.optimizer.cost.cost_model import View
    from layoutopt.optimizer.cost.terms import FloatArray

Factors = Callable[["LayoutBatch", bool], "FloatArray"]
"""Takes layouts, and whether their modifiers are chosen; returns the objective per second of a step, (n,)."""

OF_BLOCKS = ("recompute_s", "forward_s", "backward_s", "wgrad_s", "hidden_forward_s", "hidden_backward_s")
OF_ENDS = ("embedding_s", "head_s")
OF_LAYOUTS = ("hop_s", "outside_s")
KEPT = (*OF_BLOCKS, *OF_ENDS, *OF_LAYOUTS)
"""Times that an exact step follows from: they are kept for every set of constants."""

TIMES = (*KEPT, "layer_s", "first_s", "last_s", "fixed_s", "bubble_weight")
"""Fields of terms that constants change; memory and capacity don't."""

SCALED = tuple(name for name in TIMES if name != "bubble_weight")


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledTerms(StageTerms):
    """Weighted means, and ``sampled`` (n, S, W): the times ``KEPT`` of every set of constants side by side."""

    sampled: FloatArray


def mixed(terms: StageTerms, weights: FloatArray) -> StageTerms:
    """Return terms whose kept times are a weighted sum over the sets of constants, ``weights`` (S,)."""
    assert isinstance(terms, SampledTerms)
    packed = np.tensordot(terms.sampled, weights, axes=(1, 0))
    values: dict[str, Any] = {field.name: getattr(terms, field.name) for field in fields(StageTerms)}
    start = 0
    for name in KEPT:
        shape = values[name].shape
        width = int(np.prod(shape[1:], dtype=np.int64))
        values[name] = packed[:, start : start + width].reshape(shape)
        start += width
    return StageTerms(**values)


def _packed(terms: StageTerms) -> FloatArray:
    columns = [getattr(terms, name).reshape(len(terms), -1) for name in KEPT]
    return np.concatenate(columns, axis=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveCost(CostModel):
    """A cost model whose terms are in the unit of an objective; everything else, estimates too, is of the base constants.

    ``samples`` are cost models under other constants with their ``weights`` (S,); none: the base alone. ``factors`` scales
    layouts.
    """

    samples: tuple[CostModel, ...] = ()
    weights: FloatArray | None = None
    factors: Factors | None = None

    def terms(self, batch: LayoutBatch) -> StageTerms:
        """Return the terms of every row, with those of all sets of constants where there are several."""
        if not self.samples:
            return self._scaled(CostModel.terms(self, batch), batch, exact=True)
        found = [one.terms(batch) for one in self.samples]
        sampled = np.stack([_packed(terms) for terms in found], axis=1)
        terms = self._scaled(self._mean(found), batch, exact=True)
        if self.factors is not None:
            # After packing: a factor belongs to the layout, whatever the constants.
            sampled = sampled * self.factors(batch, True)[:, None, None]
        return SampledTerms(
            sampled=sampled, **{field.name: getattr(terms, field.name) for field in fields(StageTerms)}
        )

    def terms_in(self, batch: LayoutBatch, view: View) -> StageTerms:
        """Return the terms of every row as optimistic as ``view`` says."""
        if not self.samples:
            return self._scaled(CostModel.terms_in(self, batch, view), batch, exact=False)
        found = [
            # Sets without a weight are not priced: bounds are asked for more often than exact steps.
            one.terms_in(batch, view) if weight else None
            for one, weight in zip(self.samples, self._weights(), strict=True)
        ]
        return self._scaled(self._mean(found), batch, exact=False)

    def _weights(self) -> list[float]:
        assert self.weights is not None
        weights: list[float] = self.weights.tolist()
        return weights

    def _mean(self, found: Sequence[StageTerms | None]) -> StageTerms:
        """Average times over the sets of constants that have a weight."""
        used = [
            (w, terms) for w, terms in zip(self._weights(), found, strict=True) if terms is not None and w
        ]
        merged: dict[str, Any] = {}
        for name in TIMES:
            total = used[0][0] * getattr(used[0][1], name)
            for weight, terms in used[1:]:
                total = total + weight * getattr(terms, name)
            merged[name] = total
        # of a bubble only the number of ranks that wait is meant, whatever the unit
        merged["bubble_weight"] = merged["bubble_weight"] / sum(weight for weight, _ in used)
        return replace(used[0][1], **merged)

    def _scaled(self, terms: StageTerms, batch: LayoutBatch, *, exact: bool) -> StageTerms:
        if self.factors is None:
            return terms
        factor = self.factors(batch, exact)
        scaled: dict[str, Any] = {}
        for name in SCALED:
            value = getattr(terms, name)
            scaled[name] = value * factor.reshape(-1, *(1,) * (value.ndim - 1))
        return replace(terms, **scaled)


def sharing_network(changed: CostModel, cost: CostModel) -> CostModel:
    """Return a cost model with the network prices of another where both have the same links: known groups are shared."""
    # Prices of groups depend on the links alone, and are the slowest part of a new set of constants.
    same = cost.topology.links == changed.topology.links
    return replace(changed, topology=cost.topology) if same else changed
