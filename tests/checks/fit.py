"""Fit constants of the cost model to measured runs: robust least squares on log ratios within bounds."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.evidence.case import RunFamily
from layoutopt.optimizer.evidence.metrics import ErrorSummary, summarize

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from checks.fit_plan import FitPlan
    from checks.pricing import Pricer
    from layoutopt.optimizer.evidence.case import Case

    FloatArray = NDArray[np.float64]

LOSS_SCALE = 0.03
"""Log ratio from which a row's pull stops growing: the noise of one layout with the same flags."""

LEAST_FAMILY = 40
"""Rows from which on a family counts as much as every other."""

UNSTATED = 0.25
"""Weight of a row whose source leaves cells empty that decide its price."""

STEP = 0.01
"""Step of the finite differences in log units."""

MOST_STEPS = 12
SETTLED = 2e-3
"""The fit ends when a step lowers the loss by less than this share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FitResult:
    """Fitted constants with the linear model around them.

    ``log_times`` are predictions at ``logs`` (log of the constants, in plan order), ``jacobian`` their
    derivatives, (cases, constants). ``at_bounds`` names constants that physics stopped.
    """

    values: Mapping[str, float]
    logs: FloatArray
    log_times: FloatArray
    jacobian: FloatArray
    at_bounds: tuple[str, ...]


def row_weights(cases: Sequence[Case]) -> FloatArray:
    """Weight rows so that every family of at least 40 rows counts the same, and rows with unstated cells a quarter."""
    sizes = Counter(case.family for case in cases)
    weights = np.array(
        [
            max(sizes[case.family], LEAST_FAMILY) ** -0.5 * (1.0 if case.complete else UNSTATED)
            for case in cases
        ]
    )
    return np.asarray(weights / weights.mean())


def fit(
    pricer: Pricer,
    cases: Sequence[Case],
    plan: FitPlan,
    *,
    progress: Callable[[int, float], None] | None = None,
) -> FitResult:
    """Fit the plan's constants to timed cases by Gauss-Newton steps on the exact model.

    Each step solves the robust problem of the linear model within the bounds. ``progress`` is called with
    the step and the mean absolute log ratio before it.
    """
    measured, weights = log_measured(cases), row_weights(cases)
    logs = np.array(plan.start())
    centre, everything = np.array(plan.centre()), np.ones(len(cases), dtype=bool)
    log_times = pricer.log_times(plan.values(logs.tolist()))
    jacobian = derivatives(pricer, cases, plan, logs, log_times)
    for step in range(MOST_STEPS):
        if progress is not None:
            progress(step, float(np.abs(log_times - measured).mean()))
        linear = LinearModel(log_times - measured, jacobian, logs, weights, centre, plan)
        target = linear.solve(everything)
        logs, log_times = _descend(pricer, plan, linear, logs, target, measured)
        before = linear.objective(linear.residuals, linear.center)
        if linear.objective(log_times - measured, logs) > (1 - SETTLED) * before:
            break
        jacobian = derivatives(pricer, cases, plan, logs, log_times)
    return FitResult(
        values=plan.values(logs.tolist()),
        logs=logs,
        log_times=log_times,
        jacobian=jacobian,
        at_bounds=_at_bounds(plan, logs),
    )


def log_measured(cases: Sequence[Case]) -> FloatArray:
    """Return the log of measured seconds."""
    return np.log(np.array([case.measured_s for case in cases], dtype=np.float64))


def derivatives(
    pricer: Pricer, cases: Sequence[Case], plan: FitPlan, logs: FloatArray, log_times: FloatArray
) -> FloatArray:
    """Return d log(time) / d log(constant), (cases, constants).

    Each constant prices only the cases it concerns.
    """
    requests = []
    for index, name in enumerate(plan.names):
        moved = logs.copy()
        moved[index] += STEP
        wanted = [row for row, case in enumerate(cases) if plan.concerns(name, case)]
        requests.append((plan.values(moved.tolist()), wanted))
    columns = [(moved - log_times) / STEP for moved in pricer.log_times_of(requests)]
    return np.nan_to_num(np.stack(columns, axis=1), nan=0.0)


@dataclass(frozen=True, slots=True)
class LinearModel:
    """Residuals (log predicted over measured) around ``center``, and the objective with priors around ``prior``."""

    residuals: FloatArray
    jacobian: FloatArray
    center: FloatArray
    weights: FloatArray
    prior: FloatArray
    plan: FitPlan

    def solve(self, rows: NDArray[np.bool_]) -> FloatArray:
        """Return the constants' logs that fit the chosen rows best, within bounds."""
        from scipy.optimize import least_squares

        low, high = (np.array(bound) for bound in self.plan.bounds())
        inside = np.clip(self.center, low + 1e-9, high - 1e-9)
        weights = self.weights[rows]
        matrix = np.concatenate([weights[:, None] * self.jacobian[rows], np.diag(self._stiffness())])

        def residuals(logs: FloatArray) -> FloatArray:
            moved = weights * (self.residuals[rows] + self.jacobian[rows] @ (logs - self.center))
            return np.concatenate([moved, (logs - self.prior) * self._stiffness()])

        solution = least_squares(
            residuals, inside, jac=lambda _: matrix, bounds=(low, high), loss="soft_l1", f_scale=LOSS_SCALE
        )
        return np.asarray(solution.x)

    def objective(self, residuals: FloatArray, logs: FloatArray) -> float:
        """Return the robust loss of given residuals, with the prior."""
        scaled = (
            np.concatenate([self.weights * residuals, (logs - self.prior) * self._stiffness()]) / LOSS_SCALE
        )
        return float(np.sum(np.sqrt(1 + scaled**2) - 1))

    def _stiffness(self) -> FloatArray:
        return LOSS_SCALE / np.array(self.plan.sigmas())


def loss_of(cases: Sequence[Case], plan: FitPlan, logs: FloatArray, log_times: FloatArray) -> float:
    """Return what a fit minimizes, at the constants ``logs`` that give ``log_times``."""
    residuals, nothing = log_times - log_measured(cases), np.empty((len(cases), 0))
    centre = np.array(plan.centre())
    return LinearModel(residuals, nothing, logs, row_weights(cases), centre, plan).objective(residuals, logs)


def _descend(
    pricer: Pricer,
    plan: FitPlan,
    linear: LinearModel,
    logs: FloatArray,
    target: FloatArray,
    measured: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Go towards the target as far as the exact objective falls, halving the way up to four times."""
    best = linear.objective(linear.residuals, logs)
    for halving in range(5):
        trial = logs + (target - logs) / 2**halving
        log_times = pricer.log_times(plan.values(trial.tolist()))
        if linear.objective(log_times - measured, trial) < best:
            return trial, log_times
    return logs, linear.residuals + measured


def _at_bounds(plan: FitPlan, logs: FloatArray) -> tuple[str, ...]:
    low, high = plan.bounds()
    rows = zip(plan.names, logs, low, high, strict=True)
    return tuple(name for name, log, least, most in rows if log - least < 1e-4 or most - log < 1e-4)


def refits(cases: Sequence[Case], plan: FitPlan, result: FitResult) -> dict[str, FloatArray]:
    """Fit the constants without each source in turn; returns their logs in plan order by source left out.

    A refit is one Gauss-Newton step from the full fit: its Jacobian without the source's rows.
    """
    sources = np.array([source_of(case) for case in cases])
    linear = LinearModel(
        result.log_times - log_measured(cases),
        result.jacobian,
        result.logs,
        row_weights(cases),
        np.array(plan.centre()),
        plan,
    )
    return {name: linear.solve(sources != name) for name in sorted(set(sources.tolist()))}


def leave_one_source_out(
    pricer: Pricer, cases: Sequence[Case], plan: FitPlan, result: FitResult
) -> dict[str, FloatArray]:
    """Predict every source with constants fitted to the others; returns log seconds by source, (its cases,).

    Predictions of the left-out rows are exact; see ``refits`` for the constants.
    """
    sources, logs = np.array([source_of(case) for case in cases]), refits(cases, plan, result)
    requests = [
        (plan.values(one.tolist()), np.flatnonzero(sources == name).tolist()) for name, one in logs.items()
    ]
    answers = pricer.log_times_of(requests)
    return {name: answer[sources == name] for name, answer in zip(logs, answers, strict=True)}


def posterior(
    cases: Sequence[Case], plan: FitPlan, result: FitResult, left_out: Mapping[str, FloatArray]
) -> FloatArray:
    """Return the covariance of the fitted constants' logs, in plan order.

    The inverse curvature of the robust objective at its minimum, which counts rows as independent, and the jackknife over
    publications, whose rows share machines and builds.
    """
    weights = row_weights(cases)
    residuals = weights * (result.log_times - log_measured(cases))
    pull = (1 + (residuals / LOSS_SCALE) ** 2) ** -0.25
    rows = (weights * pull)[:, None] * result.jacobian
    curvature = (rows.T @ rows) / LOSS_SCALE**2 + np.diag(np.array(plan.sigmas()) ** -2.0)
    stacked = np.stack(list(left_out.values()))
    apart = stacked - stacked.mean(axis=0)
    jackknife = (len(stacked) - 1) / len(stacked) * apart.T @ apart
    return np.asarray(np.linalg.inv(curvature) + jackknife)


def spreads(plan: FitPlan, logs: Mapping[str, FloatArray]) -> dict[str, float]:
    """Return the jackknife standard error of each constant's log over sources left out (Efron 1982, section 3)."""
    stacked = np.stack(list(logs.values()))
    count = len(stacked)
    errors = np.sqrt((count - 1) / count * ((stacked - stacked.mean(axis=0)) ** 2).sum(axis=0))
    return dict(zip(plan.names, errors.tolist(), strict=True))


def source_of(case: Case) -> str:
    """Name the source of a row without the commit and the table in it: rows of one publication."""
    text = (case.run.source or case.run.file or "unnamed").split("@")[0]
    words = text.split()
    if words[:1] == ["arXiv"] and len(words) > 1:
        return " ".join(words[:2])
    return words[0] if words else "unnamed"


def errors_by_family(cases: Sequence[Case], log_times: FloatArray) -> dict[str, ErrorSummary]:
    """Summarize errors of predictions, over all and by family."""
    errors = np.exp(log_times - log_measured(cases)) - 1
    found = {"all": summarize(errors.tolist())}
    for family in RunFamily:
        own = [float(error) for error, case in zip(errors, cases, strict=True) if case.family is family]
        if own:
            found[family.value] = summarize(own)
    return found
