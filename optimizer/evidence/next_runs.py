"""What to measure next: the runs and benchmarks that would change the choice of a layout, and when none would.

Step times of the best layouts are believed jointly normal in their logs: by the constants' posterior, and by what the cost
model errs beside them (``discrepancy``). A probe is worth what it takes off the expected step time of the choice
(``belief``); of probes that are worth about the same the cheapest is suggested.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.components import Component
from layoutopt.optimizer.cost.estimate import estimate
from layoutopt.optimizer.cost.factory import build_cost_model
from layoutopt.optimizer.cost.placement import layout_groups
from layoutopt.optimizer.evidence.belief import suggest
from layoutopt.optimizer.evidence.discrepancy import discrepancy
from layoutopt.optimizer.evidence.observed import Items, believed, observe_runs
from layoutopt.optimizer.evidence.posterior import draw_posterior
from layoutopt.optimizer.evidence.proxy import proxy_of
from layoutopt.optimizer.plan.watch import ExpectedBandwidth, expected_bandwidths
from layoutopt.optimizer.specs.errors import input_error
from layoutopt.optimizer.specs.units import HOUR_S

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from layoutopt.optimizer.cost.cost_model import CostModel
    from layoutopt.optimizer.cost.estimate import Estimate
    from layoutopt.optimizer.evidence.belief import Belief
    from layoutopt.optimizer.evidence.case import Case
    from layoutopt.optimizer.solve.plan import Plan, SolveOptions
    from layoutopt.optimizer.specs.cluster import ClusterSpec, Observation
    from layoutopt.optimizer.specs.layout import Layout
    from layoutopt.optimizer.specs.workload import Workload

    FloatArray = NDArray[np.float64]

SAMPLES = 32
"""Sets of constants that the belief rests on."""

STEPS = 20
"""Steps of a run: ten until it is steady, ten to time."""

BENCHMARK_S = 60.0
"""A collective at three sizes with 20 repetitions each, start included."""

LARGEST_RATIO = 10.0
"""Measured over predicted, or the other way round, above which a reading is none of this job in seconds."""

LEAST_GAIN = 0.0005
"""Share of the step below which a measurement is not worth a run: below what repeats of one layout differ by."""


TRAFFIC_OF = {
    "tp": Component.TP,
    "cp": Component.CP,
    "ep": Component.EP,
    "pp": Component.PP,
    "dp_cp": Component.DP,
}
"""What of a step the collectives of a group of ranks are."""


class ProbeKind(StrEnum):
    """What is measured."""

    RUN = "run"
    PROXY = "proxy"
    BENCHMARK = "benchmark"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeJob:
    """Something that can be launched: a layout of a workload on GPUs."""

    workload: Workload
    cluster: ClusterSpec
    layout: Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """A measurement: of a layout, of its proxy (``job`` is what runs), or of a collective by itself.

    ``layout`` is the place of the layout that it is of; ``expected_s`` seconds of one step, or of one call of the
    collective.
    """

    kind: ProbeKind
    layout: int
    gpus: int
    gpu_hours: float
    expected_s: float
    job: ProbeJob | None = None
    benchmark: ExpectedBandwidth | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A reading, relative to what is expected, from which on another layout is the choice."""

    ratio: float
    layout: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SuggestedRun:
    """A probe, by what share it makes the choice faster in the mean, and which readings turn the choice."""

    probe: Probe
    gain: float
    turns: tuple[Turn, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NextRuns:
    """The layouts to choose from, what is believed of them, and what to measure, in order.

    ``chances`` of each to be the fastest; ``expected_loss`` of choosing the first without a measurement and
    ``remaining_loss`` after the suggested ones, shares of the step. ``enough`` says that no further measurement would
    change the choice by ``LEAST_GAIN``.
    """

    layouts: tuple[Layout, ...]
    step_time_s: tuple[float, ...]
    chosen: int
    chances: tuple[float, ...]
    expected_loss: float
    remaining_loss: float
    suggestions: tuple[SuggestedRun, ...]
    enough: bool
    samples: int
    seed: int


def next_runs(
    plan: Plan,
    workload: Workload,
    cluster: ClusterSpec,
    options: SolveOptions,
    *,
    budget: int,
    samples: int = SAMPLES,
    measured: Sequence[Case] = (),
    readings: Mapping[int, float] | None = None,
) -> NextRuns | None:
    """Suggest at most ``budget`` measurements among a plan's answer and its alternatives; None without a layout.

    ``measured`` are timed runs of this cluster's kind, of any layouts, ``readings`` seconds of layouts by their place in
    what is returned: both condition what is believed.

    Raises
    ------
    InputError
        For a reading of a place that no layout has, and for readings ten times off.
    """
    if plan.layout is None or plan.estimate is None:
        return None
    layouts = (plan.layout, *(one.layout for one in plan.alternatives))
    estimates = (plan.estimate, *(one.estimate for one in plan.alternatives))
    jobs = [ProbeJob(workload=workload, cluster=cluster, layout=layout) for layout in layouts]
    probes = [*_runs(jobs, estimates), *_proxies(jobs, options), *_benchmarks(jobs, estimates, options)]
    # Unconditioned draws: runs of before and new ones condition the items below, together with the errors beside constants.
    draws = draw_posterior(cluster, samples=samples, seed=options.seed, after_runs=False)
    runs = _observed(measured, cluster)
    for one in runs:
        _require_plausible(f"run {one.name!r}", one.ratio)
    observed = (*cluster.observations, *runs)
    belief = believed(_items(probes, len(layouts), draws, options), draws, observed)
    for place, read_s in (readings or {}).items():
        if not 0 <= place < len(layouts):
            raise input_error(f"there is no layout {place + 1}", f"1 to {len(layouts)}", key="--measured")
        _require_plausible(f"layout {place + 1}", read_s / estimates[place].step_time_s)
        belief = belief.observed(place, float(np.log(read_s)))
    hours = np.array([probe.gpu_hours for probe in probes])
    chosen = suggest(belief, hours, runs=budget, least=LEAST_GAIN)
    loss, gain = belief.expected_loss(options.seed), belief.gain(chosen) if chosen else 0.0
    return NextRuns(
        layouts=layouts,
        step_time_s=tuple(one.step_time_s for one in estimates),
        chosen=belief.best,
        chances=tuple(belief.chances(options.seed).tolist()),
        expected_loss=loss,
        # Both are means over draws of their own, so that their difference may fall below nothing.
        remaining_loss=max(loss - gain, 0.0),
        suggestions=tuple(_suggested(belief, probes, chosen)),
        # Suggesting ends early only where nothing else is worth a run.
        enough=len(chosen) < budget,
        samples=samples,
        seed=options.seed,
    )


def _require_plausible(what: str, ratio: float) -> None:
    """Refuse a reading that is of another unit or another job: no error of the model is as large."""
    if not 1 / LARGEST_RATIO <= ratio <= LARGEST_RATIO:
        raise input_error(
            f"{what} took {ratio:.3g} times the predicted step time",
            f"within a factor of {LARGEST_RATIO:g}; check unit, GPU, layout and batch",
            key="--measured",
        )


def _suggested(belief: Belief, probes: Sequence[Probe], chosen: Sequence[int]) -> Iterator[SuggestedRun]:
    """Yield the probes in order, each with what it adds to those before it, which read what was expected."""
    before = 0.0
    for place, item in enumerate(chosen):
        # Of all so far together: two readings share what both tell, and their gains do not add up.
        worth = belief.gain(chosen[: place + 1])
        after = belief
        for earlier in chosen[:place]:
            after = after.observed(earlier, None)
        # What each reading would turn, given that those before it read as expected.
        turns = tuple(
            Turn(ratio=float(np.exp(log_s - after.mean[item])), layout=layout)
            for log_s, layout in after.turns(item)
        )
        yield SuggestedRun(probe=probes[item], gain=max(worth - before, 0.0), turns=turns)
        before = worth


def _runs(jobs: Sequence[ProbeJob], estimates: Sequence[Estimate]) -> list[Probe]:
    """Return the layouts themselves as probes, in order: what is chosen from."""
    return [
        _of_job(ProbeKind.RUN, index, job, priced.step_time_s)
        for index, (job, priced) in enumerate(zip(jobs, estimates, strict=True))
    ]


def _of_job(kind: ProbeKind, layout: int, job: ProbeJob, step_s: float) -> Probe:
    gpus = job.layout.gpus
    hours = gpus * STEPS * step_s / HOUR_S
    return Probe(kind=kind, layout=layout, gpus=gpus, gpu_hours=hours, expected_s=step_s, job=job)


def _proxies(jobs: Sequence[ProbeJob], options: SolveOptions) -> list[Probe]:
    """Return a smaller job of equal shapes for every layout that has one."""
    found = []
    for index, job in enumerate(jobs):
        small = proxy_of(job.layout, job.workload, job.cluster, options)
        if small is None:
            continue
        own = ProbeJob(workload=small[0], cluster=small[1], layout=small[2])
        # A proxy's step is expected under the same constants, and errs with the same errors.
        found.append(_of_job(ProbeKind.PROXY, index, own, _price(own, {}, options).step_time_s))
    return found


def _benchmarks(
    jobs: Sequence[ProbeJob], estimates: Sequence[Estimate], options: SolveOptions
) -> list[Probe]:
    """Return the collectives of every traffic that a layout exposes, each size and group once."""
    found: dict[tuple[str, int, float], Probe] = {}
    for index, (job, priced) in enumerate(zip(jobs, estimates, strict=True)):
        for one in expected_bandwidths(_cost(job, {}, options), job.layout, priced):
            # A collective that the layout hides or does not have decides nothing.
            if not one.own or priced.breakdown_s[TRAFFIC_OF[one.axis]] <= 0 or _is_known(one, job):
                continue
            probe = Probe(
                kind=ProbeKind.BENCHMARK,
                layout=index,
                gpus=one.members,
                gpu_hours=one.members * BENCHMARK_S / HOUR_S,
                expected_s=one.seconds,
                benchmark=one,
            )
            # Two layouts may have the same collective: it is measured once.
            found.setdefault((one.collective, one.members, one.size_bytes), probe)
    return list(found.values())


def _observed(measured: Sequence[Case], cluster: ClusterSpec) -> tuple[Observation, ...]:
    """Return what timed runs read with this cluster's constants."""
    runs = [one for one in measured if one.measured_s is not None]
    # A run of a table states its own network; constants are the cluster's.
    return observe_runs(runs, cluster.calibration, [discrepancy().repeat] * len(runs))


def _is_known(benchmark: ExpectedBandwidth, job: ProbeJob) -> bool:
    """Tell whether the links of a group were benchmarked: the cluster states what share of them collectives reach."""
    layout, cluster = job.layout, job.cluster
    group = getattr(layout_groups(layout), benchmark.axis)
    within = int(group.members_within(cluster.nvlink_domain)[0]) >= benchmark.members
    link = "nvlink_fraction" if within else "network_fraction"
    return any(name.partition(".")[0] == link for name in cluster.calibration)


def _items(
    probes: Sequence[Probe], layouts: int, draws: Sequence[Mapping[str, float]], options: SolveOptions
) -> Items:
    """Return the log readings of all probes; benchmarks read the log of a collective's error."""
    priced = [_price_all(probes, one, options) for one in ({}, *draws)]
    logs = np.array([[0.0 if one is None else np.log(one.step_time_s) for one in row] for row in priced])
    parts = [probe.benchmark for probe in probes]
    return Items(
        layouts=layouts,
        mean=logs[0],
        logs=logs[1:],
        loadings=np.stack([_loading(*pair) for pair in zip(parts, priced[0], strict=True)]),
        # Benchmarks run no layout, so that they have no error of one.
        priced=priced[0],
    )


def _price_all(
    probes: Sequence[Probe], values: Mapping[str, float], options: SolveOptions
) -> list[Estimate | None]:
    return [None if probe.job is None else _price(probe.job, values, options) for probe in probes]


def _loading(benchmark: ExpectedBandwidth | None, priced: Estimate | None) -> FloatArray:
    errors = discrepancy()
    if benchmark is not None:
        return errors.reading(TRAFFIC_OF[benchmark.axis])
    assert priced is not None
    return errors.loadings(priced.breakdown_s)


def _price(job: ProbeJob, values: Mapping[str, float], options: SolveOptions) -> Estimate:
    return estimate(_cost(job, values, options), job.layout)


def _cost(job: ProbeJob, values: Mapping[str, float], options: SolveOptions) -> CostModel:
    # What the cluster states is known: a draw moves the other constants alone.
    own = replace(job.cluster, calibration={**values, **job.cluster.calibration})
    return build_cost_model(
        job.workload.model,
        job.workload.training,
        own,
        framework=options.framework,
        software=options.space.software,
        kind=options.cost,
    )
