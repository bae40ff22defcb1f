"""Objective of the CP-SAT model of a slice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutopt.optimizer.solve.model.slices import Goal

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

    from layoutopt.optimizer.solve.model.slices import TupleSlice
    from layoutopt.optimizer.solve.model.variables import Variables


class Objective:
    """Minimises the step time, or the memory of the fullest rank (where nothing fits)."""

    def __init__(self, model: cp_model.CpModel, data: TupleSlice, variables: Variables) -> None:
        self._model = model
        self._data = data
        self._variables = variables

    def add_objective(self) -> None:
        """Set the objective that the slice asks for."""
        if self._data.goal is Goal.STEP_TIME:
            self._model.minimize(self._variables.step_ns)
        else:
            self._model.minimize(self._variables.peak_kib)
