"""Failures and checkpoints of one run: how often to save, what is lost, how long it takes, how many nodes to spare."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, isfinite
from typing import TYPE_CHECKING

from layoutopt.optimizer.cost.checkpoints import (
    CheckpointCost,
    CheckpointMode,
    CheckpointSchedule,
    checkpoint_cost,
    checkpoint_schedules,
)
from layoutopt.optimizer.cost.faults import job_mean_time_between_failures_s
from layoutopt.optimizer.cost.interruptions import slowdowns
from layoutopt.optimizer.cost.run_facts import footprint_of
from layoutopt.optimizer.plan.monte_carlo import RunQuantiles, drawn_ratios, simulate_runs
from layoutopt.optimizer.space.rows import row_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutopt.optimizer.plan.options import PlanOptions
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.layout import Layout
    from layoutopt.optimizer.specs.model import ModelSpec

CURVE_GPUS = (1024, 2048, 4096, 8192, 16_384, 32_768, 65_536, 100_000)
"""Sizes at which goodput is shown."""

HOPELESS = 100.0
"""Expected wall-clock time over useful time beyond which runs are not simulated: they hardly ever end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GoodputPoint:
    """Share of wall-clock time that is useful on ``gpus`` GPUs, with the better checkpoint mode."""

    gpus: int
    mtbf_s: float
    mode: CheckpointMode
    interval_s: float
    goodput: float
    first_order_waste: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPlan:
    """What failures cost a run.

    ``schedules`` has both modes, the better one first. ``simulated`` holds wall-clock quantiles under failures
    alone and ``simulated_with_error`` with the error of the predicted step time too; None when failures come so
    fast that the run hardly ends. ``spare_nodes`` suffice with the probability asked for.
    """

    gpu_hours_per_failure: float
    mtbf_s: float
    checkpoint: CheckpointCost
    schedules: tuple[CheckpointSchedule, ...]
    spare_nodes: int
    simulated: RunQuantiles | None
    simulated_with_error: RunQuantiles | None
    curve: tuple[GoodputPoint, ...]

    @property
    def best(self) -> CheckpointSchedule:
        """The mode with the shorter expected run."""
        return self.schedules[0]


def plan_faults(
    work_s: float, parameters: float, gpus: int, cluster: ClusterSpec, options: PlanOptions
) -> FaultPlan:
    """Plan failures and checkpoints of ``work_s`` seconds of useful work on ``gpus`` GPUs."""
    mtbf_s = job_mean_time_between_failures_s(cluster.failures.gpu_hours_per_failure, gpus)
    cost = _cost(parameters, gpus, cluster, options)
    schedules = checkpoint_schedules(work_s, cost, cluster.failures.restart_s, mtbf_s)
    best = schedules[0]
    hopeless = not isfinite(best.wall_s) or best.wall_s > HOPELESS * work_s
    return FaultPlan(
        gpu_hours_per_failure=cluster.failures.gpu_hours_per_failure,
        mtbf_s=mtbf_s,
        checkpoint=cost,
        schedules=schedules,
        spare_nodes=spare_nodes(mtbf_s, options.repair_s, options.spare_confidence),
        simulated=None if hopeless else _simulated(work_s, best, mtbf_s, options),
        simulated_with_error=None if hopeless else _simulated(work_s, best, mtbf_s, options, with_error=True),
        curve=goodput_curve(parameters, gpus, cluster, options),
    )


def expected_wall_s(
    parts: Sequence[tuple[float, Layout]], model: ModelSpec, cluster: ClusterSpec, faults: FaultPlan
) -> float:
    """Return the expected seconds of a run of parts (seconds of work, layout), as a search for the fewest days counts them.

    Beside ``faults``, in which every failure restarts the whole job at once, that is what hot restarts save and what nodes
    in repair cost, where the cluster states them.
    """
    failures = cluster.failures
    if failures.hot_restart_s is None and failures.repair_s is None:
        return faults.best.wall_s
    uses = [footprint_of(row_of(layout)) for _, layout in parts]
    # Part by part: phases may use different layouts, and lose differently to a failure.
    slower = [float(slowdowns(model, cluster, use.gpus, use.replicas)[0]) for use in uses]
    return sum(work_s * factor for (work_s, _), factor in zip(parts, slower, strict=True))


def _cost(parameters: float, gpus: int, cluster: ClusterSpec, options: PlanOptions) -> CheckpointCost:
    return checkpoint_cost(
        parameters,
        gpus,
        cluster,
        with_weights=options.checkpoint_weights,
        least_stall_s=options.least_stall_s,
    )


def _simulated(
    work_s: float,
    schedule: CheckpointSchedule,
    mtbf_s: float,
    options: PlanOptions,
    *,
    with_error: bool = False,
) -> RunQuantiles:
    return simulate_runs(
        work_s,
        schedule.interval_s,
        schedule.stall_s,
        schedule.restart_s,
        mtbf_s,
        # The same seed with and without the error: both have the same failures, and differ by the error alone.
        runs=options.simulated_runs,
        seed=options.seed,
        slower=drawn_ratios(options.ratio_quantiles, options.simulated_runs, options.seed)
        if with_error
        else None,
    )


def goodput_curve(
    parameters: float, gpus: int, cluster: ClusterSpec, options: PlanOptions
) -> tuple[GoodputPoint, ...]:
    """Return the goodput of the same model on the usual sizes and on ``gpus``, up to 100,000 GPUs."""
    points = []
    for count in sorted({*CURVE_GPUS, gpus}):
        mtbf_s = job_mean_time_between_failures_s(cluster.failures.gpu_hours_per_failure, count)
        cost = _cost(parameters, count, cluster, options)
        # Goodput is a share: a second of work tells it as well as a whole run.
        best = checkpoint_schedules(1.0, cost, cluster.failures.restart_s, mtbf_s)[0]
        points.append(
            GoodputPoint(
                gpus=count,
                mtbf_s=mtbf_s,
                mode=best.mode,
                interval_s=best.interval_s,
                goodput=best.goodput,
                first_order_waste=best.waste.total,
            )
        )
    return tuple(points)


def spare_nodes(mtbf_s: float, repair_s: float, confidence: float) -> int:
    """Return the spare nodes that cover every node in repair at once with probability ``confidence``.

    Nodes fail at the job's rate and each is away for ``repair_s``: their number is Poisson distributed with mean
    repair/MTBF, whatever the distribution of repair times (M/G/infinity queue; Palm 1943). Every interruption is
    taken for a lost node, an upper estimate.
    """
    mean = repair_s / mtbf_s
    if mean > LARGE_MEAN:
        return int(mean + Z_OF_LARGE_MEAN * mean**0.5) + 1
    # Term by term: the next Poisson probability is the last one times mean over count.
    chance = covered = exp(-mean)
    count = 0
    while covered < confidence:
        count += 1
        chance *= mean / count
        covered += chance
    return count


LARGE_MEAN = 500.0
"""Above it exp(-mean) is near the least double, and the normal approximation is exact to a node or two."""

Z_OF_LARGE_MEAN = 3.1
"""Standard deviations that a normal variable exceeds once in a thousand."""
