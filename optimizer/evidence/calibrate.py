"""Calibrate the cost model to a cluster with a few own runs: one scale first, more only where supported.

One factor on all step times removes most of the bias of a new cluster; further constants fitted to a handful
of runs follow their noise. So a further constant is taken only if runs that were left out are predicted
clearly better.
"""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING

from layoutopt.optimizer.evidence.calibration import Calibration, RunFit, Sourced, Trial
from layoutopt.optimizer.evidence.discrepancy import discrepancy
from layoutopt.optimizer.evidence.metrics import relative_error, summarize
from layoutopt.optimizer.evidence.observed import observe_runs, under_new_constants
from layoutopt.optimizer.evidence.parameters import check_values, parameter
from layoutopt.optimizer.evidence.predict import TIME_SCALE, predict
from layoutopt.optimizer.evidence.profile import fit_profile, left_out_error, profile_of
from layoutopt.optimizer.evidence.robust import huber_location
from layoutopt.optimizer.specs.errors import InputError, Problem
from layoutopt.optimizer.specs.units import counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from layoutopt.optimizer.evidence.case import Case
    from layoutopt.optimizer.evidence.metrics import ErrorSummary
    from layoutopt.optimizer.evidence.robust import Location
    from layoutopt.optimizer.specs.cluster import ClusterSpec, Observation

MOST_RUNS = 20
LEAST_SPREAD = 0.03
"""Spread of log ratios that repeats of one layout have anyway (2.5-3.5% with the same flags)."""

OUTLIER_SPREADS = 3.5
"""Spreads from the others beyond which a run is named an outlier (Iglewicz and Hoaglin 1993)."""

LARGEST_FACTOR = 3.0
"""A prediction further off than this factor is a mistake in the input, not a matter of constants."""

RUNS_PER_CONSTANT = 5
CLEAR_GAIN = 0.15
LEAST_GAIN = 0.004
"""A constant is taken if it lowers the left-out error (mean log ratio) by this share and this much."""


def calibrate(
    cases: Sequence[Case],
    cluster: ClusterSpec,
    *,
    given: Mapping[str, Sourced] | None = None,
) -> Calibration:
    """Fit constants of ``cluster`` to timed runs on it.

    Parameters
    ----------
    cases
        1 to 20 timed runs, any number of GPUs of this cluster.
    cluster
        The cluster to calibrate; its present calibration is the starting point, and the runs behind it count beside
        ``cases``: one that is among these too counts once, as it is now.
    given
        Constants measured otherwise (collective benchmarks), taken as they are.

    Raises
    ------
    InputError
        For runs of another cluster, too many or no timed runs, given values outside physical bounds, and runs
        that no constants explain.
    """
    given = given or {}
    fixed = check_values({name: entry.value for name, entry in given.items()})
    start = {**cluster.calibration, **fixed}
    own = [_on_cluster(case, cluster) for case in _timed(cases)]
    # Before is what the user has now: the cluster's own constants, not the given ones.
    before = [predict(case, dict(cluster.calibration)).step_time_s for case in own]
    # Ahead of any fit: a fit would bend constants to a wrong batch or unit.
    _check_plausible(own, before)
    constants, trials = _further_constants(own, start)
    # The scale comes last, so that it takes what no single constant explains.
    base = [predict(case, constants).step_time_s for case in own]
    held = _held(own, cluster, constants)
    location = _location(own, base, held)
    scale = start.get(TIME_SCALE, 1.0) * math.exp(location.value)
    check_values({TIME_SCALE: scale})
    # A scale multiplies every step alike, so that nothing has to be priced again.
    after = [seconds * math.exp(location.value) for seconds in base]
    chosen = [trial for trial in trials if trial.accepted]
    runs = _run_fits(own, before, after, location)
    return Calibration(
        values=_values(given, chosen, scale, len(own) + len(held)),
        runs=runs,
        before=_errors(own, before),
        after=_errors(own, after),
        left_out=_left_out(own, base, held),
        trials=tuple(trials),
        observations=_observations(own, {**constants, TIME_SCALE: scale}, location),
        warnings=_warnings(runs, len(held)),
    )


def _observations(
    cases: Sequence[Case], values: Mapping[str, float], location: Location
) -> tuple[Observation, ...]:
    """Return what the runs read with the new constants; one that counts less reads within more."""
    repeat = discrepancy().repeat
    weights = location.weights[: len(cases)]
    # Weights are inverse variances: a run of a quarter of the weight reads within twice the spread.
    return observe_runs(cases, values, [repeat / weight**0.5 for weight in weights])


def _held(cases: Sequence[Case], cluster: ClusterSpec, constants: Mapping[str, float]) -> list[float]:
    """Return the log ratios of runs that the cluster was calibrated with before and that are not read again."""
    again = {case.run.id for case in cases}
    return [
        math.log(one.ratio)
        for one in under_new_constants(cluster, constants, ())
        if one.shares and one.name not in again
    ]


def _timed(cases: Sequence[Case]) -> list[Case]:
    timed = [case for case in cases if case.measured_s is not None]
    if not timed:
        raise InputError(Problem(what="no run with a step time", allowed=f"1 to {MOST_RUNS} runs"))
    if len(timed) > MOST_RUNS:
        raise InputError(Problem(what=f"{len(timed)} runs", allowed=f"1 to {MOST_RUNS} runs"))
    return timed


def _on_cluster(case: Case, cluster: ClusterSpec) -> Case:
    """Put a run on the cluster to calibrate, at the run's own number of GPUs; refuse runs of another one."""
    run, problem = case.run, None
    nodes_gbps = cluster.nic_bytes_per_s * cluster.nics_per_node * 8e-9
    if case.cluster.gpu.name != cluster.gpu.name:
        problem = f"ran on {case.cluster.gpu.name}, the cluster has {cluster.gpu.name}"
    elif run.gpus_per_node not in (None, cluster.gpus_per_node):
        problem = f"ran on nodes of {run.gpus_per_node} GPUs, the cluster's have {cluster.gpus_per_node}"
    elif run.internode_gbps is not None and not math.isclose(run.internode_gbps, nodes_gbps, rel_tol=0.05):
        problem = f"ran with {run.internode_gbps:g} Gbit/s per node, the cluster has {nodes_gbps:g}"
    elif case.layout.gpus > cluster.gpu_count:
        problem = f"ran on {case.layout.gpus} GPUs, the cluster has {cluster.gpu_count}"
    if problem:
        raise InputError(Problem(what=f"run {run.id!r} {problem}", file=run.file, line=run.line or None))
    # A smaller run sits in the first blocks of the cluster's network.
    levels = tuple(replace(level, gpus=min(level.gpus, case.layout.gpus)) for level in cluster.levels)
    return replace(case, cluster=replace(cluster, gpu_count=case.layout.gpus, levels=levels))


def _check_plausible(cases: Sequence[Case], predicted_s: Sequence[float]) -> None:
    """Refuse runs that are mostly far off, which no constants explain."""
    ratios = [(case.measured_s or 0.0) / seconds for case, seconds in zip(cases, predicted_s, strict=True)]
    # The median: one bad run of several is an outlier and no reason to refuse.
    middle = sorted(ratios)[len(ratios) // 2]
    if not 1 / LARGEST_FACTOR <= middle <= LARGEST_FACTOR:
        raise InputError(
            Problem(
                what=f"the runs took {middle:.3g} times the predicted step time",
                allowed=f"within a factor of {LARGEST_FACTOR:g}; check GPU, layout, batch and units",
            )
        )


def _location(cases: Sequence[Case], predicted_s: Sequence[float], held: Sequence[float]) -> Location:
    """Return the common scale of new runs and of those ``held`` from before, whose weights come last."""
    return huber_location([*_log_ratios(cases, predicted_s), *held], least_spread=LEAST_SPREAD)


def _log_ratios(cases: Sequence[Case], predicted_s: Sequence[float]) -> list[float]:
    pairs = zip(cases, predicted_s, strict=True)
    return [math.log((case.measured_s or 0.0) / seconds) for case, seconds in pairs]


def _left_out(cases: Sequence[Case], predicted_s: Sequence[float], held: Sequence[float]) -> float | None:
    """Mean \\|log ratio\\| of each run after the scale of the others, those ``held`` from before among them."""
    ratios = _log_ratios(cases, predicted_s)
    if len(ratios) + len(held) < 2:
        return None
    others = [[*ratios[:index], *ratios[index + 1 :], *held] for index in range(len(ratios))]
    return fmean(
        abs(ratio - huber_location(rest, least_spread=LEAST_SPREAD).value)
        for ratio, rest in zip(ratios, others, strict=True)
    )


def candidates(cases: Sequence[Case]) -> tuple[str, ...]:
    """Name the constants that runs of one cluster can settle: for compute, network, NVLink, host time."""
    gpu = cases[0].cluster.gpu
    frameworks = sorted({case.framework.value for case in cases})
    shares = [f"network_fraction.{cases[0].cluster.fabric}", f"nvlink_fraction.{gpu.generation.name}"]
    names = [f"gemm_cap.{gpu.architecture}", *shares]
    return (*names, *(f"host_layer_s.{name}" for name in frameworks))


def _further_constants(
    cases: Sequence[Case], start: Mapping[str, float]
) -> tuple[dict[str, float], list[Trial]]:
    """Add constants while left-out runs are predicted clearly better; return values and what was tried."""
    values = dict(start)
    trials: list[Trial] = []
    open_names = [name for name in candidates(cases) if name not in start]
    taken = 0
    # A constant per few runs would fit their noise.
    while open_names and len(cases) >= RUNS_PER_CONSTANT * (1 + taken):
        tried = [_trial(cases, values, name) for name in open_names]
        # Judged by runs that the fit has not seen; a fit of all runs only ever gets better.
        best = min(tried, key=lambda trial: trial.left_out_with)
        if not best.accepted:
            return values, trials + tried
        trials += [replace(trial, accepted=trial is best) for trial in tried]
        values[best.name] = best.value
        open_names.remove(best.name)
        taken += 1
    return values, trials


def _trial(cases: Sequence[Case], values: Mapping[str, float], name: str) -> Trial:
    profile = profile_of(cases, parameter(name), values)
    without = left_out_error(profile.fixed())
    with_it = left_out_error(profile)
    gain = without - with_it
    return Trial(
        name=name,
        value=fit_profile(profile).value,
        left_out_without=without,
        left_out_with=with_it,
        accepted=gain > max(CLEAR_GAIN * without, LEAST_GAIN),
    )


def _run_fits(
    cases: Sequence[Case], before_s: Sequence[float], after_s: Sequence[float], location: Location
) -> tuple[RunFit, ...]:
    limit = OUTLIER_SPREADS * location.spread
    weights = location.weights[: len(cases)]
    rows = zip(cases, before_s, after_s, weights, strict=True)
    return tuple(
        RunFit(
            case=case,
            measured_s=case.measured_s or 0.0,
            before_s=before,
            after_s=after,
            weight=weight,
            # Of two runs that differ, nothing says which one is off.
            outlier=len(location.weights) > 2 and abs(math.log((case.measured_s or 0.0) / after)) > limit,
        )
        for case, before, after, weight in rows
    )


def _errors(cases: Sequence[Case], predicted_s: Sequence[float]) -> ErrorSummary:
    pairs = zip(cases, predicted_s, strict=True)
    return summarize([relative_error(seconds, case.measured_s or 0.0) for case, seconds in pairs])


def _values(
    given: Mapping[str, Sourced], chosen: Sequence[Trial], scale: float, count: int
) -> dict[str, Sourced]:
    runs = counted(count, "own run")
    fitted = {trial.name: Sourced(value=trial.value, source=f"fit of {runs}") for trial in chosen}
    return {**given, **fitted, TIME_SCALE: Sourced(value=scale, source=f"robust mean of {runs}")}


def _warnings(runs: Sequence[RunFit], held: int) -> tuple[str, ...]:
    found = [
        f"run {run.case.run.id!r} differs from the others by a factor of {run.measured_s / run.after_s:.2f}; "
        f"it counts with weight {run.weight:.2f}"
        for run in runs
        if run.outlier
    ]
    if len(runs) + held == 1:
        found.append("a single run cannot show whether it is typical; three guard against a bad one")
    if len(runs) == 2 and not held:
        first, second = (run.measured_s / run.after_s for run in runs)
        apart = max(first, second) / min(first, second)
        if math.log(apart) > OUTLIER_SPREADS * LEAST_SPREAD:
            found.append(f"the two runs disagree by a factor of {apart:.2f}; a third would tell which is off")
    return tuple(found)
