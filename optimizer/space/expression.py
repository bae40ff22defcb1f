"""Arithmetic over many layouts at once: numbers that a layout's axes decide, plus its stages, memory and time linearly.

The axes of a layout are known when its stages are chosen, so that ``tp * layers[0]`` is linear in what is still open.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from layoutopt.optimizer.specs.errors import input_error

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from layoutopt.optimizer.cost.terms import FloatArray

    BoolArray = NDArray[np.bool_]
    Operand: TypeAlias = "Expression | float"

TOLERANCE = 1e-9
"""Relative to the largest term: sums of floats in another order are not told apart."""


class Part(StrEnum):
    """What is open while the axes are known."""

    LAYERS = "layers"
    RECOMPUTED = "recomputed"
    STEP_S = "step_s"
    PEAK_BYTES = "peak_gb"


LIMITED = (Part.STEP_S, Part.PEAK_BYTES)
"""Parts that can only be limited from above: the solver's variables of them are floors of the truth."""


class Atom(NamedTuple):
    """One open number: layers or recomputed layers of a rank (from the last where negative), seconds, or bytes."""

    part: Part
    rank: int = 0


class Relation(StrEnum):
    """How the difference of two sides compares with zero."""

    AT_MOST = "<="
    BELOW = "<"
    EQUAL = "=="
    DIFFERENT = "!="


@dataclass(frozen=True, slots=True, eq=False)
class Expression:
    """``constant`` (n,) plus every atom of ``terms`` times its coefficient (n,), for ``n`` layouts."""

    constant: FloatArray
    terms: Mapping[Atom, FloatArray] = field(default_factory=dict)

    def _with(self, other: Operand, sign: float) -> Expression:
        right = _expression(other)
        terms = dict(self.terms)
        for atom, value in right.terms.items():
            # Equal atoms meet in one term: layers[0] - layers[0] is no open number's business.
            terms[atom] = terms.get(atom, literal(0.0)) + sign * value
        return Expression(self.constant + sign * right.constant, terms)

    def __add__(self, other: Operand) -> Expression:
        return self._with(other, 1.0)

    def __sub__(self, other: Operand) -> Expression:
        return self._with(other, -1.0)

    def __neg__(self) -> Expression:
        return self * -1.0

    def __mul__(self, other: Operand) -> Expression:
        left, right = self, _expression(other)
        if right.terms:
            left, right = right, left
        if right.terms:
            raise input_error(
                "multiplies two numbers that depend on stages", "at most one of them", key="require"
            )
        return Expression(
            left.constant * right.constant, {a: v * right.constant for a, v in left.terms.items()}
        )

    def __truediv__(self, other: Operand) -> Expression:
        right = _known(_expression(other), "/")
        with np.errstate(divide="ignore", invalid="ignore"):
            return self * Expression(1.0 / np.asarray(right.constant, dtype=np.float64))

    def __floordiv__(self, other: Operand) -> Expression:
        left, right = _known(self, "//"), _known(_expression(other), "//")
        with np.errstate(divide="ignore", invalid="ignore"):
            return Expression(np.floor_divide(left.constant, right.constant))

    def __mod__(self, other: Operand) -> Expression:
        left, right = _known(self, "%"), _known(_expression(other), "%")
        with np.errstate(divide="ignore", invalid="ignore"):
            return Expression(np.mod(left.constant, right.constant))

    __radd__, __rmul__ = __add__, __mul__

    def __rsub__(self, other: Operand) -> Expression:
        return _expression(other) - self

    def __rtruediv__(self, other: Operand) -> Expression:
        return _expression(other) / self

    def __rfloordiv__(self, other: Operand) -> Expression:
        return _expression(other) // self

    def __rmod__(self, other: Operand) -> Expression:
        return _expression(other) % self

    def __le__(self, other: Operand) -> Comparison:
        return Comparison(self - other, Relation.AT_MOST)

    def __lt__(self, other: Operand) -> Comparison:
        return Comparison(self - other, Relation.BELOW)

    def __ge__(self, other: Operand) -> Comparison:
        return Comparison(_expression(other) - self, Relation.AT_MOST)

    def __gt__(self, other: Operand) -> Comparison:
        return Comparison(_expression(other) - self, Relation.BELOW)

    def __eq__(self, other: Operand) -> Comparison:  # type: ignore[override]
        return Comparison(self - other, Relation.EQUAL)

    def __ne__(self, other: Operand) -> Comparison:  # type: ignore[override]
        return Comparison(self - other, Relation.DIFFERENT)

    __hash__ = None  # type: ignore[assignment]

    def value(self, of: Callable[[Atom], FloatArray]) -> FloatArray:
        """Return the numbers (n,) where ``of`` gives the open parts."""
        total = np.asarray(self.constant, dtype=np.float64)
        for atom, factor in self.terms.items():
            total = total + factor * of(atom)
        return total


def literal(value: float) -> FloatArray:
    """Return a number that is the same for all layouts: an array of shape ()."""
    return np.asarray(value, dtype=np.float64)


def _expression(value: Operand) -> Expression:
    return value if isinstance(value, Expression) else Expression(literal(value))


def _known(side: Expression, operator: str) -> Expression:
    if side.terms:
        name = next(iter(side.terms)).part.value
        raise input_error(
            f"{operator} needs numbers of the layout's axes, {name} is none", "+, - and * work", key="require"
        )
    return side


@dataclass(frozen=True, slots=True)
class Comparison:
    """``difference`` compared with zero."""

    difference: Expression
    relation: Relation

    def __post_init__(self) -> None:
        """Refuse what the solver's floors under time and memory can't decide."""
        for atom, factor in self.difference.terms.items():
            # Floors of time and memory can prove that a limit is missed, never that a value is met.
            either = self.relation in (Relation.EQUAL, Relation.DIFFERENT)
            if atom.part in LIMITED and (either or np.any(np.asarray(factor) < 0)):
                raise input_error(
                    f"{atom.part.value} can only be limited from above",
                    f"{atom.part.value} <= ...",
                    key="require",
                )

    def __bool__(self) -> bool:
        raise TypeError("a comparison of layouts has no truth value: add each one by itself")

    def holds(self, of: Callable[[Atom], FloatArray]) -> BoolArray:
        """Tell for which layouts (n,) it holds, ``of`` giving the open parts; what divides by zero holds nowhere."""
        difference = self.difference.value(of)
        size = Expression(
            np.abs(self.difference.constant), {a: np.abs(f) for a, f in self.difference.terms.items()}
        ).value(of)
        # Relative to the terms, not to their difference, which is near zero where it matters.
        slack = TOLERANCE * size
        met = {
            Relation.AT_MOST: difference <= slack,
            Relation.BELOW: difference < -slack,
            Relation.EQUAL: np.abs(difference) <= slack,
            Relation.DIFFERENT: np.abs(difference) > slack,
        }[self.relation]
        result: BoolArray = met & np.isfinite(difference)
        return result

    def most_of(self, part: Part) -> FloatArray | None:
        """Return the most (n,) of a part where nothing else is open, inf where it is free; None where more is open."""
        if [atom.part for atom in self.difference.terms] != [part]:
            return None
        (factor,) = self.difference.terms.values()
        constant, factor = np.broadcast_arrays(np.asarray(self.difference.constant, float), factor)
        # A factor of zero leaves the part free, unless the rest already breaks the comparison.
        never = ~np.isfinite(constant) | ((factor == 0) & (constant > 0))
        # The inner guard keeps the division clean where the outer one discards its result.
        limit = np.where(factor > 0, -constant / np.where(factor > 0, factor, 1.0), np.inf)
        return np.where(never, -np.inf, limit)
