"""A slice of the tuple table: what one CP-SAT model is built from."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from layoutopt.optimizer.solve.model.coefficients import PER_SECOND, coefficients, rounding_s

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutopt.optimizer.cost.batch import IntArray, LayoutBatch
    from layoutopt.optimizer.cost.terms import StageTerms
    from layoutopt.optimizer.frameworks.stage_rule import StageRule
    from layoutopt.optimizer.solve.model.coefficients import Coefficients


class Goal(StrEnum):
    """What the model minimises."""

    STEP_TIME = "step_time"
    PEAK_MEMORY = "peak_memory"


class Shape(NamedTuple):
    """How virtual stages lie on ranks: distinct ranks, chunks on each, and whether the second ones run back."""

    pp: int
    vp: int
    folded: bool

    @property
    def stages(self) -> int:
        """Number of virtual stages."""
        return self.pp * self.vp

    def of_rank(self, rank: int) -> list[int]:
        """Return the virtual stages of a rank, in the order of its chunks."""
        # In the order in which tokens pass them, so that chunks are compared with their neighbours.
        return [rank, 2 * self.pp - 1 - rank] if self.folded else [*range(rank, self.stages, self.pp)]


@dataclass(frozen=True, slots=True, kw_only=True)
class TupleSlice:
    """``n`` tuples with their terms, the model's blocks per kind (K,), and the framework's stage rule.

    ``numbers`` are the coefficients of the terms. ``lower_s`` is a lower bound of the slice and ``upper_s`` the step time
    from which a layout is of no interest.
    """

    batch: LayoutBatch
    terms: StageTerms
    counts: IntArray
    rule: StageRule
    numbers: Coefficients
    lower_s: float
    upper_s: float
    goal: Goal

    def __len__(self) -> int:
        return len(self.batch)

    @property
    def rounding_ns(self) -> int:
        """See ``coefficients.rounding_s``."""
        return round(rounding_s(self.counts) * PER_SECOND)

    @property
    def blocks(self) -> int:
        """Blocks of all kinds."""
        return int(self.counts.sum())

    @property
    def ranks(self) -> int:
        """The largest pp."""
        return int(self.terms.pp.max())

    @property
    def shapes(self) -> list[Shape]:
        """The distinct shapes."""
        terms = self.terms
        return sorted({*map(Shape, terms.pp.tolist(), terms.vp.tolist(), terms.folded.tolist())})

    def shape_of(self, position: int) -> Shape:
        """Return the shape of a tuple."""
        terms = self.terms
        return Shape(int(terms.pp[position]), int(terms.vp[position]), bool(terms.folded[position]))

    def of_shape(self, shape: Shape) -> list[int]:
        """Return the positions of the tuples of a shape."""
        terms = self.terms
        same = (terms.pp == shape.pp) & (terms.vp == shape.vp) & (terms.folded == shape.folded)
        return [int(i) for i in np.flatnonzero(same)]


def stack_terms(parts: Sequence[StageTerms]) -> StageTerms:
    """Stack terms; pipelines of fewer ranks hold nothing on the ranks they lack."""
    ranks = max(part.in_flight.shape[1] for part in parts)
    columns: dict[str, Any] = {}
    for field in fields(parts[0]):
        values = [getattr(part, field.name) for part in parts]
        if field.name == "in_flight":
            # Only what is kept per rank differs in width among slices.
            values = [np.pad(value, ((0, 0), (0, ranks - value.shape[1]))) for value in values]
        columns[field.name] = np.concatenate(values)
    return replace(parts[0], **columns)


def tuple_slice(
    batch: LayoutBatch,
    terms: StageTerms,
    counts: IntArray,
    rule: StageRule,
    *,
    lower_s: float = 0.0,
    upper_s: float = np.inf,
    goal: Goal = Goal.STEP_TIME,
) -> TupleSlice:
    """Build a slice from tuples and their terms; ``counts`` (K,) are the model's blocks of each kind."""
    return TupleSlice(
        batch=batch,
        terms=terms,
        counts=counts,
        rule=rule,
        numbers=coefficients(terms, counts),
        lower_s=lower_s,
        upper_s=upper_s,
        goal=goal,
    )
