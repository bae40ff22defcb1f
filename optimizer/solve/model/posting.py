"""Posts what a question demands into the CP-SAT model of a slice: for each tuple a line over its stages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from layoutopt.optimizer.solve.model.coefficients import KIB, PER_SECOND
from layoutopt.optimizer.solve.model.solver import cp_model
from layoutopt.optimizer.solve.search.demands import rank_of
from layoutopt.optimizer.space.expression import LIMITED, Comparison, Part, Relation
from layoutopt.optimizer.space.requirement import RequirementView
from layoutopt.optimizer.specs.errors import input_error

if TYPE_CHECKING:
    from layoutopt.optimizer.solve.model.slices import TupleSlice
    from layoutopt.optimizer.solve.model.variables import Literal, Variables
    from layoutopt.optimizer.solve.search.demands import Demands
    from layoutopt.optimizer.space.expression import Atom

    Line = tuple[float, list[tuple[float, cp_model.LinearExprT]]]

FINE = float(1 << 16)
"""Whole numbers that the largest of broken coefficients becomes; sums of a day in nanoseconds stay below 2^63."""


class SliceView(RequirementView):
    """The layouts of a slice as numbers; ``variables`` are those of the solver, for what numbers can't say."""

    def __init__(self, data: TupleSlice, variables: Variables, demands: Demands) -> None:
        assert demands.facts is not None
        super().__init__(data.batch, demands.facts)
        self.variables = variables


class SliceModel:
    """The model that a user's function gets: ``add`` takes comparisons of a view; everything else is ortools' own."""

    def __init__(
        self, model: cp_model.CpModel, data: TupleSlice, variables: Variables, demands: Demands
    ) -> None:
        self._model, self._data, self._variables = model, data, variables
        self._layers, self._rates = demands.layers, demands.rates

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def add_forbidden_assignments(self, *_: object) -> NoReturn:
        """Raises ``InputError``: OR-Tools 9.15 loses solutions with them (``cp_model.new_solver``)."""
        raise input_error(
            "forbidden assignments lose solutions in OR-Tools 9.15",
            "add_bool_or over literals",
            key="constrain",
        )

    def add(self, constraint: Comparison | Any) -> cp_model.Constraint | None:
        """Post a comparison for every tuple of the slice, or a constraint over solver variables."""
        if not isinstance(constraint, Comparison):
            return self._model.add(constraint)
        for i, literal in enumerate(self._variables.chosen):
            self._post(constraint.relation, self._line(constraint, i), literal)
        return None

    def _line(self, comparison: Comparison, i: int) -> Line:
        """Return the constant and the (coefficient, variable) pairs of one tuple."""
        difference = comparison.difference
        pairs = []
        for atom, factors in difference.terms.items():
            variable, unit = self._variable(atom, i)
            if variable is not None and _at(factors, i):
                pairs.append((_at(factors, i) * unit, variable))
        return _at(difference.constant, i), pairs

    def _variable(self, atom: Atom, i: int) -> tuple[cp_model.LinearExprT | None, float]:
        """Return an atom's variable, None where it is zero, and how much of the atom one of it is."""
        variables, data = self._variables, self._data
        if atom.part is Part.STEP_S:
            rate = 1.0 if self._rates is None else float(self._rates(data.batch.take(np.array([i])), True)[0])
            return variables.step_ns, 1 / PER_SECOND / rate
        if atom.part is Part.PEAK_BYTES:
            return variables.peak_kib, KIB
        rank = rank_of(atom.rank, int(data.batch.pp[i]), int(data.terms.pp[i]))
        if rank is None:
            return None, 1.0
        counted = variables.blocks if atom.part is Part.LAYERS else variables.recomputed
        return cp_model.LinearExpr.weighted_sum(counted[rank], self._layers.tolist()), 1.0

    def _post(self, relation: Relation, line: Line, literal: Literal) -> None:
        constant, pairs = line
        whole = all(factor.is_integer() for factor in (constant, *(factor for factor, _ in pairs)))
        if not np.isfinite(constant):
            self._never(literal)
        elif not pairs:
            if not _compares(relation, constant):
                self._never(literal)
        elif whole:
            total = sum(int(factor) * variable for factor, variable in pairs)
            self._when(_whole(relation, total, -int(constant)), literal)
        elif relation is not Relation.DIFFERENT:  # left to the judge of finished layouts, like all rounding
            signs = (1.0, -1.0) if relation is Relation.EQUAL else (1.0,)
            for sign in signs:
                self._when(_floored(sign * constant, [(sign * f, v) for f, v in pairs]), literal)

    def _never(self, literal: Literal) -> None:
        """The tuple of a literal is out."""
        self._model.add_bool_or([] if literal is True else [~literal])

    def _when(self, bounded: cp_model.BoundedLinearExpression | bool, literal: Literal) -> None:
        constraint = self._model.add(bounded)
        if literal is not True:
            constraint.only_enforce_if(literal)


def _at(values: Any, i: int) -> float:
    array = np.asarray(values, dtype=np.float64)
    return float(array[i] if array.ndim else array)


def _compares(relation: Relation, value: float) -> bool:
    return {
        Relation.AT_MOST: value <= 0,
        Relation.BELOW: value < 0,
        Relation.EQUAL: value == 0,
        Relation.DIFFERENT: value != 0,
    }[relation]


def _whole(relation: Relation, total: Any, right: int) -> Any:
    """Compare whole numbers exactly."""
    if relation is Relation.AT_MOST:
        return total <= right
    if relation is Relation.BELOW:
        return total <= right - 1
    return total == right if relation is Relation.EQUAL else total != right


def _floored(constant: float, pairs: list[tuple[float, cp_model.LinearExprT]]) -> Any:
    """Bound a sum of broken coefficients from above, each rounded down: no layout that meets it gets lost."""
    scale = FINE / max(abs(factor) for factor, _ in pairs)
    total = sum(int(np.floor(factor * scale)) * variable for factor, variable in pairs)
    return total <= int(np.floor(-constant * scale * (1 + 1e-12) + 1e-6))


def post_demands(model: cp_model.CpModel, data: TupleSlice, variables: Variables, demands: Demands) -> None:
    """Add everything that a question demands of stages to the model of a slice."""
    target = SliceModel(model, data, variables, demands)
    view = SliceView(data, variables, demands)
    for requirement in demands.requirements:
        for comparison in requirement.comparisons(view):
            if [atom.part for atom in comparison.difference.terms] != [LIMITED[1]]:
                target.add(comparison)  # memory alone is the capacity of the terms
    if demands.constrain is not None:
        demands.constrain(target, view)
