"""The CP-SAT model of a slice of tuples: the joint choice of tuple, stage split and recomputation.

Integers are rounded so that nothing that fits or is faster gets lost (``coefficients``); therefore every answer is priced
again in floats, and a rank that does not really fit is forbidden and the model solved again.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import count
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.terms import price_stages
from layoutopt.optimizer.solve.model.coefficients import KIB, PER_SECOND
from layoutopt.optimizer.solve.model.constraints import ENOUGH_MICRO_BATCHES, MEMORY, Constraints
from layoutopt.optimizer.solve.model.cuts import Cuts
from layoutopt.optimizer.solve.model.objective import Objective
from layoutopt.optimizer.solve.model.paths import Paths
from layoutopt.optimizer.solve.model.posting import post_demands
from layoutopt.optimizer.solve.model.slices import Goal, TupleSlice
from layoutopt.optimizer.solve.model.solver import cp_model
from layoutopt.optimizer.solve.model.variables import Variables
from layoutopt.optimizer.solve.search.demands import NO_DEMANDS, Finished

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from layoutopt.optimizer.cost.batch import IntArray
    from layoutopt.optimizer.cost.terms import StageCosts
    from layoutopt.optimizer.solve.search.demands import Demands

POLL_S = 0.05  # how soon a stop flag is noticed

# Without presolve a single worker can get stuck on a model of four variables that another setting solves at once;
# slices take milliseconds, so that half a second is ample for the first try. Paths need all of the linear relaxation.
PATIENCE_S = 0.6
LINEARIZATION = (2, 1, 0)


class SliceStatus(StrEnum):
    """ObjectiveAnswer of a solve. ``NO_BETTER``: nothing in the slice fits and beats its ``upper_s``."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    NO_BETTER = "no_better"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class SolverLimits:
    """How CP-SAT may work: seconds, workers, random seed, relative gap, and a flag that is polled to stop.

    ``first``: the first answer will do, however much faster others are.
    """

    time_limit_s: float = float("inf")
    workers: int = 1
    seed: int = 0
    gap: float = 0.0
    should_stop: Callable[[], bool] | None = None
    first: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceResult:
    """Best layout of a slice.

    ``position`` is the tuple in the slice, ``blocks`` and ``recomputed`` are (V, P, K), None without a solution.
    ``step_time_s`` and ``peak_bytes`` are exact prices of it. ``bound_s`` is proven for every layout of the slice that
    fits (``upper_s`` at most, inf when none fits at all), ``bound_bytes`` for the least peak memory.
    """

    status: SliceStatus
    position: int = 0
    blocks: IntArray | None = None
    recomputed: IntArray | None = None
    step_time_s: float = np.inf
    peak_bytes: float = np.inf
    bound_s: float = 0.0
    bound_bytes: float = 0.0
    solve_time_s: float = 0.0
    corrections: int = 0


def new_solver(
    limits: SolverLimits, time_limit_s: float = float("inf"), linearization: int = 1
) -> cp_model.CpSolver:
    """Return a solver with the parameters that every solve uses.

    Presolve is off: that of OR-Tools 9.15 loses optima of models like these (9.11 to 9.14 do not). Without it 9.12 to 9.15
    lose solutions of models with forbidden assignments: there are none, see ``differ``.
    """
    solver = cp_model.CpSolver()
    parameters = solver.parameters
    parameters.num_workers = limits.workers
    parameters.random_seed = limits.seed
    parameters.cp_model_presolve = False
    parameters.linearization_level = linearization
    parameters.relative_gap_limit = limits.gap
    if np.isfinite(time_limit_s):
        parameters.max_time_in_seconds = time_limit_s
    return solver


def differ(model: cp_model.CpModel, columns: list[cp_model.IntVar], values: list[int]) -> None:
    """Some variable is below or above its value: a clause, as forbidden assignments lose solutions (``new_solver``)."""
    beyond: list[cp_model.IntVar] = []
    for variable, value in zip(columns, values, strict=True):
        below, above = (model.new_bool_var("") for _ in range(2))
        model.add(variable <= value - 1).only_enforce_if(below)
        model.add(variable >= value + 1).only_enforce_if(above)
        beyond += [below, above]
    model.add_bool_or(beyond)


@dataclass(slots=True, kw_only=True)
class _Run:
    """A solve under way."""

    limits: SolverLimits
    deadline_s: float
    corrections: int = 0
    best: _Answer | None = None
    bound: float | None = None
    decides: bool = False

    @property
    def best_s(self) -> float:
        """The best exact step so far."""
        return self.best.step_s if self.best else np.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """A layout of the slice with its exact price."""

    position: int
    blocks: IntArray
    recomputed: IntArray
    costs: StageCosts

    @property
    def step_s(self) -> float:
        """The exact step."""
        return float(self.costs.step_time_s[0])


class CpModel:
    """Builds and solves the model of a slice.

    ``model`` and ``variables`` are public: add any constraint over the variables before ``solve``. ``fixed`` columns
    must take their value. With ``conditional`` the memory, m >= pp and fixed-column families hold under assumption
    literals, for ``conflict``. With ``track_peak`` the variable ``peak_kib`` means something where step time is
    minimised, too. ``demands`` are posted, and an answer that misses one by rounding is forbidden. ``paths`` are shared
    between models: what one learns of a schedule serves the next.
    """

    def __init__(
        self,
        data: TupleSlice,
        *,
        fixed: Mapping[str, int] | None = None,
        conditional: bool = False,
        track_peak: bool = False,
        demands: Demands = NO_DEMANDS,
        paths: Paths | None = None,
    ) -> None:
        self.data, self.demands = data, demands
        self.paths = paths if paths is not None else Paths()
        self.model = cp_model.CpModel()
        self.variables = Variables(self.model, data)
        fixed = dict(fixed or {})
        names = [MEMORY, ENOUGH_MICRO_BATCHES, *(f"{name} = {value}" for name, value in fixed.items())]
        self.conditions = {name: self.model.new_bool_var(name) for name in names} if conditional else {}
        constraints = Constraints(self.model, data, self.variables, self.conditions, fixed)
        constraints.add_constraints()
        self._constraints = constraints
        for i in range(len(data) if data.goal is Goal.STEP_TIME else 0):
            for form in self.paths.of(data.terms, i):
                constraints.add_path(i, form)
        if (track_peak or demands.needs_peak) and data.goal is Goal.STEP_TIME:
            constraints.add_peak_memory()
        if demands.any:
            post_demands(self.model, data, self.variables, demands)
        if not conditional:
            Objective(self.model, data, self.variables).add_objective()
            if len(data) == 1 and data.goal is Goal.STEP_TIME:
                Cuts(self.model, data, self.variables).add_cuts()

    def hint(self, position: int, blocks: IntArray, recomputed: IntArray) -> None:
        """Suggest a layout of the slice: its tuple and the blocks (V, P, K) of every chunk of every rank."""
        variables, shape = self.variables, self.data.shape_of(position)
        self.model.add_hint(variables.row, position)
        for i, literal in enumerate(variables.chosen):
            if isinstance(literal, cp_model.IntVar):
                self.model.add_hint(literal, i == position)
        held: dict[int, tuple[cp_model.IntVar, int]] = {}
        for s, k in np.ndindex(len(variables.blocks), len(self.data.counts)):
            real = s < shape.pp
            for variable, values in ((variables.blocks, blocks), (variables.recomputed, recomputed)):
                held[variable[s][k].index] = variable[s][k], int(values[:, s, k].sum()) if real else 0
        for chunk, s in np.ndindex(shape.vp, shape.pp):
            for own, values in zip(variables.seat(shape, chunk, s), (blocks, recomputed), strict=True):
                held |= {v.index: (v, int(n)) for v, n in zip(own, values[chunk, s], strict=True)}
        for variable_, value in held.values():
            self.model.add_hint(variable_, value)

    def solve(self, limits: SolverLimits | None = None) -> SliceResult:
        """Solve to optimality, or as far as the limits allow.

        The model knows some paths of each schedule. What it proposes is priced exactly; where it took longer than the model
        thinks, the path that shows it is added. In the end the model has nothing left below the best exact step.
        """
        limits = limits or SolverLimits()
        start = time.perf_counter()
        run = _Run(limits=limits, deadline_s=start + limits.time_limit_s)
        horizon = self.variables.step_ns.proto.domain[1]
        try:
            status = self._search(run)
        finally:
            self._limit_ns(horizon)
        return self._result(status, run, time.perf_counter() - start)

    def _search(self, run: _Run) -> cp_model.CpSolverStatus:
        """Look for better layouts until there is none; the answer is in ``run.best``."""
        while True:
            # One tuple below a known step: any such layout will do, which is quicker than the best of the model.
            run.decides = self._decides(run)
            solver, status = self._try(run)
            if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
                return status
            position, blocks, recomputed = self._read(solver)
            costs = self._price(position, blocks, recomputed)
            overfull = self._overfull(position, costs)
            if not np.isfinite(costs.step_time_s[0]):  # no order runs so many micro-batches
                self.model.add(self.variables.row != position)
                continue
            if overfull or not self._meets_demands(position, blocks, recomputed, costs):
                self._forbid(position, overfull, blocks, recomputed)
                run.corrections += 1
                continue
            answer = _Answer(position=position, blocks=blocks, recomputed=recomputed, costs=costs)
            if self.data.goal is Goal.PEAK_MEMORY:
                run.best, run.bound = answer, solver.best_objective_bound
                return status
            if answer.step_s < min(run.best_s, self.data.upper_s):
                run.best = answer
                if run.limits.first:
                    return cp_model.FEASIBLE
                self._limit_ns(self._below_ns(answer.step_s, run.limits.gap))
            told = solver.value(self.variables.step_ns)
            if (
                status == cp_model.OPTIMAL
                and not run.decides
                and answer.step_s * PER_SECOND <= told + self.data.rounding_ns
            ):
                run.bound = solver.best_objective_bound
                return status

    def _decides(self, run: _Run) -> bool:
        known = np.isfinite(self.data.upper_s) or run.best is not None
        return len(self.data) == 1 and self.data.goal is Goal.STEP_TIME and known

    def _below_ns(self, step_s: float, gap: float) -> int:
        """Return the most that the model may say of a layout that is worth more than one of ``step_s``."""
        return int(step_s * (1 - gap) * PER_SECOND) - self.data.rounding_ns - 1

    def _limit_ns(self, most: int) -> None:
        domain = self.variables.step_ns.proto.domain
        domain[1] = max(most, domain[0])

    def _result(self, status: cp_model.CpSolverStatus, run: _Run, seconds: float) -> SliceResult:
        best = run.best
        if best is None:
            return self._without_solution(status, run, seconds)
        proven = status in (cp_model.OPTIMAL, cp_model.INFEASIBLE)
        timed = self.data.goal is Goal.STEP_TIME
        bound_s = (
            run.bound / PER_SECOND
            if run.bound is not None
            else self._below_ns(best.step_s, run.limits.gap) / PER_SECOND
        )
        return SliceResult(
            status=SliceStatus.OPTIMAL if proven else SliceStatus.FEASIBLE,
            position=best.position,
            blocks=best.blocks,
            recomputed=best.recomputed,
            step_time_s=best.step_s,
            peak_bytes=float(best.costs.peak_bytes[0]),
            bound_s=max(bound_s if proven else 0.0, self.data.lower_s) if timed else 0.0,
            bound_bytes=0.0 if timed else (run.bound or 0.0) * KIB,
            solve_time_s=seconds,
            corrections=run.corrections,
        )

    def _try(self, run: _Run) -> tuple[cp_model.CpSolver, cp_model.CpSolverStatus]:
        """Solve with one setting after the other, each with more time, from the best solution so far."""
        best: tuple[cp_model.CpSolver, cp_model.CpSolverStatus] | None = None
        for attempt in count():
            left = run.deadline_s - time.perf_counter()
            patience_s = PATIENCE_S * 2**attempt
            setting = LINEARIZATION[attempt % len(LINEARIZATION)]
            solver, status = self._run(run.limits, min(patience_s, max(left, 0.0)), setting, run.decides)
            if status not in (cp_model.FEASIBLE, cp_model.UNKNOWN) or (
                run.decides and status == cp_model.FEASIBLE
            ):
                return solver, status
            if status == cp_model.FEASIBLE:
                best = solver, status
                self.model.clear_hints()  # type: ignore[no-untyped-call]
                self.hint(*self._read(solver))
            stopped = run.limits.should_stop is not None and run.limits.should_stop()
            if left <= patience_s or stopped:
                break
        return best or (solver, status)

    def _run(
        self, limits: SolverLimits, time_limit_s: float, linearization: int = 1, decides: bool = False
    ) -> tuple[cp_model.CpSolver, cp_model.CpSolverStatus]:
        solver = new_solver(limits, time_limit_s, linearization)
        solver.parameters.stop_after_first_solution = decides
        if limits.should_stop is None:
            return solver, solver.solve(self.model)
        # The interpreter handles Ctrl-C in the main thread only, and only outside of the solver.
        solver.parameters.catch_sigint_signal = False
        outcome: list[cp_model.CpSolverStatus] = []
        thread = threading.Thread(target=lambda: outcome.append(solver.solve(self.model)), daemon=True)
        thread.start()
        try:
            while thread.is_alive():
                thread.join(POLL_S)
                if limits.should_stop():
                    solver.stop_search()
        finally:  # an exception in here is a second Ctrl-C; a process with a running solver can't end
            while thread.is_alive():
                solver.stop_search()
                thread.join(POLL_S)
        return solver, outcome[0]

    def _without_solution(self, status: cp_model.CpSolverStatus, run: _Run, seconds: float) -> SliceResult:
        if status == cp_model.MODEL_INVALID:
            raise RuntimeError(f"CP-SAT rejects the model: {self.model.validate()}")
        none = status == cp_model.INFEASIBLE
        rounding_s = self.data.rounding_ns / PER_SECOND
        return SliceResult(
            status=SliceStatus.NO_BETTER if none else SliceStatus.UNKNOWN,
            bound_s=self.data.upper_s - rounding_s if none else self.data.lower_s,
            solve_time_s=seconds,
            corrections=run.corrections,
        )

    def _read(self, solver: cp_model.CpSolver) -> tuple[int, IntArray, IntArray]:
        position = int(solver.value(self.variables.row))
        shape = self.data.shape_of(position)
        blocks = np.zeros((shape.vp, shape.pp, len(self.data.counts)), dtype=np.int64)
        recomputed = np.zeros_like(blocks)
        for chunk, s in np.ndindex(shape.vp, shape.pp):
            own, again = self.variables.seat(shape, chunk, s)
            blocks[chunk, s] = [solver.value(variable) for variable in own]
            recomputed[chunk, s] = [solver.value(variable) for variable in again]
        return position, blocks, recomputed

    def _price(self, position: int, blocks: IntArray, recomputed: IntArray) -> StageCosts:
        """Price exactly; the longest path joins the model."""
        terms = self.data.terms.take(np.array([position]))
        wide = np.zeros((2, 1, terms.in_flight.shape[1], blocks.shape[2]), dtype=np.int64)
        wide[:, 0, : blocks.shape[1]] = blocks.sum(axis=0), recomputed.sum(axis=0)
        costs = price_stages(terms, wide[0], wide[1])
        if self.data.goal is Goal.PEAK_MEMORY:
            return costs
        step_s, form = self.paths.price(terms, 0, blocks, recomputed)
        for i in self.data.of_shape(self.data.shape_of(position)):
            if form is not None and self.paths.alike(self.data.terms, i, position):
                self._constraints.add_path(i, form)
        return replace(costs, step_time_s=np.array([step_s]))

    def _overfull(self, position: int, costs: StageCosts) -> list[int]:
        """Ranks that exceed the memory by less than the integers can tell."""
        if self.data.goal is Goal.PEAK_MEMORY:
            return []
        capacity = self.data.terms.capacity_bytes[position]
        return [int(s) for s in np.flatnonzero(costs.rank_bytes[0] > capacity)]

    def _meets_demands(
        self, position: int, blocks: IntArray, recomputed: IntArray, costs: StageCosts
    ) -> bool:
        """Judge an answer by what is demanded, in floats."""
        finished = Finished(
            batch=self.data.batch.take(np.array([position])),
            ranks=int(self.data.terms.pp[position]),
            blocks=blocks.sum(axis=0)[None],
            recomputed=recomputed.sum(axis=0)[None],
            step_s=costs.step_time_s,
            peak_bytes=costs.peak_bytes,
        )
        return bool(np.isfinite(costs.step_time_s[0]) and self.demands.met(finished)[0])

    def _forbid(self, position: int, ranks: list[int], blocks: IntArray, recomputed: IntArray) -> None:
        """Forbid what ranks hold, or without ranks the whole layout."""
        variables, shape = self.variables, self.data.shape_of(position)
        if not ranks:
            seats = list(np.ndindex(shape.vp, shape.pp))
            columns = [v for chunk, s in seats for own in variables.seat(shape, chunk, s) for v in own]
            values = [int(v) for seat in seats for v in (*blocks[seat], *recomputed[seat])]
            differ(self.model, [variables.row, *columns], [position, *values])
        held, again = blocks.sum(axis=0), recomputed.sum(axis=0)
        for s in ranks:
            columns = [variables.row, *variables.blocks[s], *variables.recomputed[s]]
            differ(self.model, columns, [position, *held[s].tolist(), *again[s].tolist()])

    def conflict(self, limits: SolverLimits | None = None) -> tuple[str, ...] | None:
        """Return a minimal set of conditions that no layout of the slice meets together, None if there is none.

        Deletion filter (Chinneck and Dravnieks 1991, "Locating minimal infeasible constraint sets in linear programs"):
        drop one condition after the other and keep those without which the rest can be met. Needs ``conditional``.
        """
        limits = limits or SolverLimits()
        kept = list(self.conditions)
        if not self._contradict(kept, limits):
            return None
        for name in list(kept):
            rest = [other for other in kept if other != name]
            if self._contradict(rest, limits):
                kept = rest
        return tuple(kept)

    def _contradict(self, names: list[str], limits: SolverLimits) -> bool:
        self.model.clear_assumptions()
        self.model.add_assumptions([self.conditions[name] for name in names])
        _, status = self._run(limits, limits.time_limit_s)
        return bool(status == cp_model.INFEASIBLE)
