"""Cuts of the CP-SAT model: what bounds know about a single tuple.

How many blocks a rank can hold within the incumbent's time depends on how many of them are recomputed, as the smaller of
two numbers. Linear relaxations of that are weak, closed forms are exact: they bound the blocks of every rank for each
number of recomputed blocks, and rule out most of these numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.frameworks.stage_rule import Recomputation
from layoutopt.optimizer.solve.search.bound import most_blocks
from layoutopt.optimizer.solve.search.cases import stage_cases

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from ortools.sat.python import cp_model

    from layoutopt.optimizer.cost.terms import FloatArray
    from layoutopt.optimizer.solve.model.slices import TupleSlice
    from layoutopt.optimizer.solve.model.variables import Literal, Variables


class Cuts:
    """Adds constraints that every layout of a one-tuple slice below its ``upper_s`` meets anyway."""

    def __init__(self, model: cp_model.CpModel, data: TupleSlice, variables: Variables) -> None:
        self._model, self._data, self._variables = model, data, variables

    def add_cuts(self) -> None:
        """Bound the blocks of every rank, for each number of recomputed blocks apart."""
        data = self._data
        cases = stage_cases(data.terms, data.blocks, data.rule)
        possible, most = most_blocks(data.terms, data.counts, cases, data.upper_s)
        groups = np.unique(np.stack([cases.low, cases.high]), axis=1).T
        literals = self._literals(groups)
        for (low, high), literal in zip(groups, literals, strict=True):
            same = (cases.low == low) & (cases.high == high) & possible
            self._bound_ranks(literal, most[same], f"{low:g}")

    def _bound_ranks(self, literal: Literal, most: FloatArray, name: str) -> None:
        """Cap the blocks of each rank by the most of any case left; without one the literal is false."""
        # No case below the cutoff: whatever chooses this number of recomputed blocks is no better than what
        # is known.
        if not len(most):
            self._model.add_bool_or([False] if literal is True else [~literal]).with_name(f"no_case_{name}")
            return
        for s, (blocks, cap) in enumerate(zip(self._variables.blocks, most.max(axis=0), strict=False)):
            constraint = self._model.add(sum(blocks) <= int(max(cap, 0.0))).with_name(
                f"rank_holds_{name}_{s}"
            )
            if literal is not True:
                constraint.only_enforce_if(literal)

    def _literals(self, groups: NDArray[np.float64]) -> list[Literal]:
        """Name the numbers of recomputed blocks that each group of cases covers."""
        if len(groups) == 1:
            return [True]
        if self._data.rule.recomputation is Recomputation.ALL_OR_NONE:
            everything = self._variables.everything
            return [everything if np.isinf(low) else ~everything for low, _ in groups]
        return self._ranges_of_count(groups)

    def _ranges_of_count(self, groups: NDArray[np.float64]) -> list[Literal]:
        """Split the numbers per stage into the groups' ranges; larger numbers say the same as the last."""
        model, count, chunks = self._model, self._variables.count, int(self._data.terms.vp[0])
        literals: list[Literal] = []
        for low, high in groups:
            literal = model.new_bool_var(f"count_from_{low:g}")
            model.add(count >= round(low / chunks)).only_enforce_if(literal)
            if np.isfinite(high):
                model.add(count <= round(high / chunks)).only_enforce_if(literal)
            literals.append(literal)
        model.add_exactly_one(literals)
        return literals
