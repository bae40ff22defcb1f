"""What own runs of a cluster say beside its constants: written by ``calibrate``, weighed wherever a layout is chosen.

A run's log step time is the sum of what constants, errors of components and the layout's own error make of it, so that it
conditions their one joint normal distribution (``posterior``, ``discrepancy``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.components import Component
from layoutopt.optimizer.evidence.belief import Belief
from layoutopt.optimizer.evidence.discrepancy import by_component, discrepancy
from layoutopt.optimizer.evidence.parameters import known_parameters
from layoutopt.optimizer.evidence.posterior import moved, posterior
from layoutopt.optimizer.evidence.predict import TIME_SCALE, price
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.specs.cluster import Observation
from layoutopt.optimizer.specs.errors import InputError, Problem
from layoutopt.optimizer.specs.kinds import nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from layoutopt.optimizer.cost.estimate import Estimate
    from layoutopt.optimizer.evidence.case import Case
    from layoutopt.optimizer.specs.cluster import ClusterSpec

    FloatArray = NDArray[np.float64]

STEP = 0.01
"""Step of the finite differences, of the logarithm of a constant."""

LEAST_SLOPE = 1e-4
"""A constant that moves a step by less than this of its own logarithm is not written."""

SAME = 1e-3
"""Two steps that differ by less in time and in every component are prices of one job."""


def observe(
    name: str,
    measured_s: float,
    price: Callable[[Mapping[str, float]], Estimate],
    *,
    spread: float,
    concerned: Collection[str],
) -> Observation:
    """Return what a run of ``measured_s`` per step read; ``price`` returns its price with constants beside the cluster's.

    ``spread`` is the standard deviation of the logarithm of what was read, ``concerned`` names constants that may move it.
    """
    # Finite differences of the whole price: a constant may act through whichever kernel or transfer is the longest.
    priced = price({})
    total_s = sum(priced.breakdown_s.values())
    slopes = {}
    for one in sorted(concerned):
        moved_s = price(moved(one, known_parameters()[one].value * math.exp(STEP))).step_time_s
        slopes[one] = math.log(moved_s / priced.step_time_s) / STEP
    return Observation(
        name=name,
        # Rounded for the file that people read, far below what a run repeats within.
        ratio=_rounded(measured_s / priced.step_time_s, 6),
        spread=_rounded(spread, 3),
        predicted_s=_rounded(priced.step_time_s, 6),
        slopes={one: _rounded(slope, 4) for one, slope in slopes.items() if abs(slope) >= LEAST_SLOPE},
        shares={
            part.value: _rounded(seconds / total_s, 5)
            for part, seconds in priced.breakdown_s.items()
            if seconds > 0
        },
    )


def observe_runs(
    cases: Sequence[Case], values: Mapping[str, float], spreads: Sequence[float]
) -> tuple[Observation, ...]:
    """Return what timed runs read with the constants ``values`` of their cluster; ``spreads`` of each."""
    found = []
    for case, spread in zip(cases, spreads, strict=True):
        cluster = replace(case.cluster, calibration={**case.cluster.calibration, **values})
        own = replace(case, cluster=cluster)
        concerned = constants_of(cluster, case.framework)
        found.append(
            observe(
                case.run.id, case.measured_s or 0.0, partial(price, own), spread=spread, concerned=concerned
            )
        )
    return tuple(found)


def constants_of(cluster: ClusterSpec, framework: Framework) -> frozenset[str]:
    """Name the fitted constants that may price a run on a cluster and that the cluster does not state."""
    return frozenset(
        name
        for name in posterior()["names"]
        if not moved(name, 0.0).keys() & cluster.calibration.keys() and concerns(name, cluster, (framework,))
    )


def concerns(name: str, cluster: ClusterSpec, frameworks: Iterable[Framework]) -> bool:
    """Tell whether a constant, or one that equals it, prices anything on a cluster's GPUs and fabric under a framework."""
    gpu = cluster.gpu
    own = {
        "",
        gpu.architecture,
        gpu.generation.name,
        cluster.fabric.value,
        *(one.value for one in frameworks),
    }
    return any(one.partition(".")[2] in own for one in moved(name, 0.0))


def _rounded(value: float, digits: int) -> float:
    return float(f"{value:.{digits}g}")


def under_new_constants(
    cluster: ClusterSpec, values: Mapping[str, float], fresh: Sequence[Observation]
) -> tuple[Observation, ...]:
    """Return a cluster's observations under new constants, with fresh ones; a run that was read again counts once."""
    names = {one.name for one in fresh}
    before = cluster.calibration
    logs = {
        name: math.log(value / before.get(name, _present(name)))
        for name, value in values.items()
        if value != before.get(name)
    }
    found = []
    for one in cluster.observations:
        if one.name in names:
            continue
        # A constant that is now stated explains its part; the common scale explains a part of every run.
        grown = sum(one.slopes.get(name, 0.0) * log for name, log in logs.items())
        grown += logs.get(TIME_SCALE, 0.0) if one.shares else 0.0
        found.append(
            replace(
                one,
                ratio=_rounded(one.ratio / math.exp(grown), 6),
                predicted_s=None
                if one.predicted_s is None
                else _rounded(one.predicted_s * math.exp(grown), 6),
                # A benchmark of one constant keeps its slope: it says how well the stated value is known.
                slopes={
                    name: slope for name, slope in one.slopes.items() if name not in values or not one.shares
                },
            )
        )
    return (*found, *fresh)


def _present(name: str) -> float:
    known = known_parameters().get(name)
    return known.value if known is not None else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Items:
    """What is believed jointly normal in its logarithm: ``layouts`` to choose from, then what may be measured only.

    ``logs`` (sets, items) are log readings under sets of constants, ``mean`` (items,) those expected, ``loadings`` (items,
    errors) what errors beside the constants add. ``priced``: None for what is no step, which has no error of its own.
    """

    layouts: int
    mean: FloatArray
    logs: FloatArray
    loadings: FloatArray
    priced: Sequence[Estimate | None]


def believed(items: Items, drawn: Sequence[Mapping[str, float]], observed: Sequence[Observation]) -> Belief:
    """Return the joint distribution of items after what was observed.

    ``drawn`` are the sets of constants behind ``items.logs``, not yet conditioned by ``observed``.
    """
    errors = discrepancy()
    runs = [one for one in observed if one.shares]
    # The readings stand behind the items: they inform, and are neither chosen nor suggested.
    logs = np.concatenate([items.logs, _logs_of(runs, drawn)], axis=1)
    more = [errors.loadings(by_component(one.shares)) for one in runs]
    loadings = np.concatenate([items.loadings, np.array(more).reshape(len(runs), items.loadings.shape[1])])
    jobs = [*(_job_of(one) for one in items.priced), *((one.predicted_s, one.shares) for one in runs)]
    belief = Belief(
        layouts=items.layouts,
        mean=np.concatenate([items.mean, np.zeros(len(runs))]),
        covariance=covariance_of_draws(logs) + loadings @ loadings.T + errors.layout**2 * _same_jobs(jobs),
        noise=errors.repeat,
    )
    count = len(items.mean)
    for place, one in enumerate(runs):
        belief = belief.observed(count + place, math.log(one.ratio), noise=one.spread)
    return replace(belief, mean=belief.mean[:count], covariance=belief.covariance[:count, :count])


Job = tuple[float | None, "Mapping[str, float]"] | None
"""Seconds of a step and its shares by component; None for what is no step."""


def _job_of(priced: Estimate | None) -> Job:
    if priced is None:
        return None
    total_s = sum(priced.breakdown_s.values())
    return priced.step_time_s, {part.value: one / total_s for part, one in priced.breakdown_s.items()}


def _same_jobs(jobs: Sequence[Job]) -> FloatArray:
    """Return 1 where two items are steps of one job, (n, n): what a layout errs by itself is one error of both."""
    return np.array(
        [[float(one is not None and (one is other or _same(one, other))) for other in jobs] for one in jobs]
    )


def _same(one: Job, other: Job) -> bool:
    if one is None or other is None or one[0] is None or other[0] is None:
        return False
    # A job read before is recognised by what it takes: the cluster's file holds no layouts.
    if abs(math.log(one[0] / other[0])) > SAME:
        return False
    return all(abs(one[1].get(part, 0.0) - other[1].get(part, 0.0)) < SAME for part in {*one[1], *other[1]})


def _logs_of(runs: Sequence[Observation], drawn: Sequence[Mapping[str, float]]) -> FloatArray:
    """Return the log readings of observed runs under sets of constants, (sets, runs), as far as constants differ."""
    logs = np.zeros((len(drawn), len(runs)))
    for column, one in enumerate(runs):
        for row, values in enumerate(drawn):
            logs[row, column] = sum(
                slope * math.log(values[name]) for name, slope in one.slopes.items() if name in values
            )
    return logs


def covariance_of_draws(logs: FloatArray) -> FloatArray:
    """Return the covariance (n, n) of logs of steps under sets of constants, (sets, n)."""
    # Of one set alone nothing varies: no division by zero, and a covariance of zero.
    apart = (logs - logs.mean(axis=0)) / max(len(logs) - 1, 1) ** 0.5
    covariance: FloatArray = apart.T @ apart
    return covariance


def check_observations(cluster: ClusterSpec, *, file: str) -> None:
    """Refuse slopes of constants and shares of components that there are not, or not on this cluster.

    Raises ``InputError``, a problem each.
    """
    known, parts = known_parameters(), [part.value for part in Component]
    slopes = [name for one in cluster.observations for name in one.slopes]
    names = "names of docs/fidelity.md, or that calibrate writes"
    problems = [_unknown("slopes", name, known, names, file) for name in slopes if name not in known]
    problems += [
        _unknown("shares", name, parts, ", ".join(parts), file)
        for one in cluster.observations
        for name in one.shares
        if name not in parts
    ]
    # A constant of another GPU or fabric moves no time here: the reading is that of another cluster.
    problems += [
        Problem(
            what=f"{name} prices nothing on {cluster.gpu.name} with {cluster.fabric.value}",
            allowed="constants of this cluster's GPU and fabric: readings of this cluster",
            key="observations.slopes",
            file=file,
        )
        for name in slopes
        if name in known and not concerns(name, cluster, Framework)
    ]
    if problems:
        raise InputError(*problems)


def _unknown(key: str, name: str, known: Collection[str], allowed: str, file: str) -> Problem:
    what = f"unknown {name[:60]!r}{nearest(name, known)}"
    return Problem(what=what, allowed=allowed, key=f"observations.{key}", file=file)
