"""Options of what an answer is the best in, and of how much memory it leaves free."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import click

from layoutopt.optimizer.report.commands.inputs import named
from layoutopt.optimizer.report.commands.options import grouped
from layoutopt.optimizer.report.commands.values import OBJECTIVE, Share, Whole
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


def with_room(options: SolveOptions, memory: MemoryChoices) -> SolveOptions:
    """Add the share of usable memory that is left free."""
    from layoutopt.optimizer.evidence.memory_risk import reserve_of_risk

    if memory.oom_risk is None:
        return replace(options, reserve=memory.reserve)
    if memory.reserve:
        raise input_error("is given beside --reserve", "one of the two", key="--oom-risk")
    with named(oom_risk="--oom-risk"):
        return replace(options, reserve=reserve_of_risk(memory.oom_risk))


def in_objective(options: SolveOptions, choices: ObjectiveChoices, cluster: ClusterSpec) -> SolveOptions:
    """Add what the answer is the best in, with sets of constants drawn from the posterior where it weighs them."""
    from layoutopt.optimizer.cost.objectives import parse_objective
    from layoutopt.optimizer.evidence.posterior import SAMPLES, draw_posterior

    drawn = bool(parse_objective(choices.minimize).statistic)
    if choices.draws is not None and not drawn:
        raise input_error(
            "is given without expected, quantile or regret", "--minimize expected", key="--draws"
        )
    count = choices.draws or SAMPLES
    samples = draw_posterior(cluster, samples=count, seed=options.seed) if drawn else ()
    with named(minimize="--minimize", then="--then", require="--require", gpu_hour_cost="--gpu-hour-cost"):
        return replace(options, minimize=choices.minimize, samples=samples)
