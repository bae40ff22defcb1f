"""Comparisons of a user reach the solver as they are meant: exactly where numbers are whole, never too strictly else."""

from __future__ import annotations

from operator import eq, le, lt, ne
from typing import TYPE_CHECKING, Any

import pytest

from layoutopt.optimizer.solve.model.cp_model import SolverLimits, new_solver
from layoutopt.optimizer.solve.model.posting import _at, _compares, _floored, _whole
from layoutopt.optimizer.solve.model.solver import cp_model
from layoutopt.optimizer.space.expression import Relation

if TYPE_CHECKING:
    from collections.abc import Callable

MEANT: dict[Relation, Callable[[float, float], bool]] = {
    Relation.AT_MOST: le, Relation.BELOW: lt, Relation.EQUAL: eq, Relation.DIFFERENT: ne,
}  # fmt: skip


def _feasible(build: Callable[[cp_model.IntVar], Any], value: int) -> bool:
    """Whether a constraint on a variable leaves it a value."""
    model = cp_model.CpModel()
    variable = model.new_int_var(value, value, "x")
    model.add(build(variable))
    return new_solver(SolverLimits()).solve(model) in (cp_model.OPTIMAL, cp_model.FEASIBLE)


@pytest.mark.parametrize("relation", MEANT)
def test_constants_are_compared_with_zero(relation: Relation) -> None:
    """A comparison without variables holds or does not."""
    assert [_compares(relation, value) for value in (-1.0, 0.0, 1.0)] == [
        MEANT[relation](value, 0) for value in (-1.0, 0.0, 1.0)
    ]


@pytest.mark.parametrize("relation", MEANT)
def test_whole_numbers_are_compared_exactly(relation: Relation) -> None:
    """Each relation at the edge, just below and just above."""
    for value in (1, 2, 3):
        found = _feasible(lambda x: _whole(relation, x, 2), value)
        assert found is MEANT[relation](value, 2), (relation, value)


@pytest.mark.parametrize(("factor", "constant"), [(0.1, -0.25), (1 / 3, -0.9), (0.7, -2.1)])
def test_broken_coefficients_never_cut_off_what_is_allowed(factor: float, constant: float) -> None:
    """Rounded comparisons keep every value that meets the true one, and drop what is far above."""
    for value in range(12):
        true = factor * value + constant
        found = _feasible(lambda x: _floored(constant, [(factor, x)]), value)
        assert found if true <= 0 else not (found and true > 0.01), (factor, constant, value)


def test_a_number_for_all_tuples_is_that_of_each() -> None:
    """Factors are one number, or one for each tuple of a slice."""
    assert (_at(3.0, 2), _at([1.0, 2.0, 4.0], 2)) == (3.0, 4.0)
