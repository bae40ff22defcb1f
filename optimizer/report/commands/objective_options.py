"""Options of what an answer is the best in, how much memory it leaves free, and what fails."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from layoutopt.optimizer.report.commands.inputs import named
from layoutopt.optimizer.report.commands.options import grouped
from layoutopt.optimizer.report.commands.values import OBJECTIVE, Number, QuantityText, Share, Whole
from layoutopt.optimizer.specs.errors import input_error

if TYPE_CHECKING:
    from layoutopt.optimizer.solve.plan import SolveOptions
    from layoutopt.optimizer.specs.cluster import ClusterSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryChoices:
    """How much memory a layout leaves free: a share, or what a chance of running out of it asks for."""

    reserve: float
    oom_risk: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureChoices:
    """How often nodes fail and what replaces them, where it is not as the cluster says."""

    mtbf: float | None
    hot_restart: float | None
    repair: float | None
    spares: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveChoices:
    """What the answer is the best in, and over how many sets of constants."""

    minimize: str
    draws: int | None


memory_options = grouped(
    "memory",
    MemoryChoices,
    click.option(
        "--reserve",
        type=Share("PERCENT", percent=True),
        default=0.0,
        show_default="none",
        help="Share of usable memory that the layout leaves free.",
    ),
    click.option(
        "--oom-risk",
        type=Share("PERCENT", percent=True),
        help="Most chance of running out of memory, by how far measured peaks were from predicted ones.",
    ),
)

objective_options = grouped(
    "objective",
    ObjectiveChoices,
    click.option(
        "--minimize",
        type=OBJECTIVE,
        default="time",
        show_default=True,
        help="What no layout of the space is better in: time, days (with failures), cost, energy, gpus, memory; over what "
        "constants may be: expected, quantile:0.9, regret (the worst), regret:mean.",
    ),
    click.option(
        "--draws",
        type=Whole(1, 1000),
        help="Sets of constants drawn for expected, quantile and regret; 32 by default.",
    ),
)


failure_options = grouped(
    "failures",
    FailureChoices,
    click.option(
        "--mtbf", type=Number("GPU-HOURS", positive=True), help="GPU-hours between interruptions of a job."
    ),
    click.option(
        "--hot-restart", type=QuantityText("TIME", "TIME"),
        help="Time in which a failed replica takes its state from another one while the others train on.",
    ),
    click.option(
        "--repair", type=QuantityText("TIME", "TIME"),
        help="Time that a failed node is away: idle and spare ones replace it."
    ),
    click.option("--spares", type=Whole(0, 100_000), help="Nodes beside the cluster's own that replace failed ones."),
)  # fmt: skip


def with_failures(cluster: ClusterSpec, choices: FailureChoices) -> ClusterSpec:
    """Return the cluster with what was said of its failures.

    Raises ``InputError`` for spare nodes that replace nothing.
    """
    said: dict[str, Any] = {
        "gpu_hours_per_failure": choices.mtbf,
        "hot_restart_s": choices.hot_restart,
        "repair_s": choices.repair,
        "spare_nodes": choices.spares,
    }
    stated = {name: value for name, value in said.items() if value is not None}
    failures = replace(cluster.failures, **stated)
    if failures.spare_nodes and failures.repair_s is None:
        raise input_error("replace nodes in repair", "--repair 24h beside it", key="--spares")
    return replace(cluster, failures=failures) if stated else cluster


def with_room(options: SolveOptions, memory: MemoryChoices) -> SolveOptions:
    """Add the share of usable memory that is left free. Raises ``InputError`` where it is stated twice."""
    from layoutopt.optimizer.evidence.memory import reserve_of_risk

    if memory.oom_risk is None:
        return replace(options, reserve=memory.reserve)
    # Both are shares of memory left free, of which the larger would silently win.
    if memory.reserve:
        raise input_error("is given beside --reserve", "one of the two", key="--oom-risk")
    with named(oom_risk="--oom-risk"):
        return replace(options, reserve=reserve_of_risk(memory.oom_risk))


def in_objective(options: SolveOptions, choices: ObjectiveChoices, cluster: ClusterSpec) -> SolveOptions:
    """Add what the answer is the best in, with sets of constants drawn from the posterior where it weighs them.

    Raises ``InputError`` for draws that nothing weighs.
    """
    from layoutopt.optimizer.cost.objectives import parse_objective
    from layoutopt.optimizer.evidence.posterior import SAMPLES, draw_posterior

    drawn = bool(parse_objective(choices.minimize).statistic)
    if choices.draws is not None and not drawn:
        raise input_error(
            "is given without expected, quantile or regret", "--minimize expected", key="--draws"
        )
    count = choices.draws or SAMPLES
    # Only statistics weigh sets of constants: other answers need none, and are the same for every seed.
    samples = draw_posterior(cluster, samples=count, seed=options.seed) if drawn else ()
    with named(minimize="--minimize", then="--then", require="--require", gpu_hour_cost="--gpu-hour-cost"):
        return replace(options, minimize=choices.minimize, samples=samples)
