"""``layoutopt pareto``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from layoutopt.optimizer.report.commands.exit_code import ExitCode
from layoutopt.optimizer.report.commands.inputs import named, read_question, solve_options
from layoutopt.optimizer.report.commands.objective_options import MemoryChoices, memory_options, with_room
from layoutopt.optimizer.report.commands.options import (
    DemandChoices,
    FrameworkOptions,
    OutputOptions,
    SearchChoices,
    SpaceChoices,
    SpaceCommand,
    cluster_argument,
    demand_options,
    framework_options,
    model_argument,
    output_options,
    search_options,
    space_options,
    workload_options,
)
from layoutopt.optimizer.report.commands.values import GOALS_OF, Whole
from layoutopt.optimizer.report.terminal import print_json, print_tables
from layoutopt.optimizer.specs.errors import input_error

if TYPE_CHECKING:
    from layoutopt.optimizer.ask.records import RunChoices


@click.command(cls=SpaceCommand)
@model_argument
@cluster_argument
@click.option("--of", "goals", type=GOALS_OF, default="days,cost", show_default=True, help="The two goals.")
@click.option(
    "--points", type=Whole(1, 1000), default=50, show_default=True, help="Most points of the front."
)
@workload_options
@framework_options
@space_options
@demand_options
@memory_options
@search_options
@output_options
def command(
    model: str,
    cluster: str,
    goals: tuple[str, ...],
    points: int,
    asked: RunChoices,
    trainer: FrameworkOptions,
    space: SpaceChoices,
    demands: DemandChoices,
    memory: MemoryChoices,
    search: SearchChoices,
    output: OutputOptions,
) -> ExitCode:
    """Find the layouts of MODEL on CLUSTER of which none is better in one goal without being worse in the other.

    Each point is proven; with --allow-idle layouts of fewer GPUs are among them.
    """
    from layoutopt.optimizer.report.json_forms import to_plain
    from layoutopt.optimizer.report.tables.pareto import front_table
    from layoutopt.optimizer.solve.pareto import pareto_front

    if len(goals) != 2:
        raise input_error(f"names {len(goals)} goals", "two, e.g. days,cost", key="--of")
    workload, machine = read_question(model, cluster, asked, output)
    options = with_room(solve_options(space, search, trainer, asked.precision, demands=demands), memory)
    with named(of="--of", gpu_hour_cost="--gpu-hour-cost", require="--require"):
        front = pareto_front(
            workload, machine, replace(options, then=None, within=0.0), (goals[0], goals[1]), most=points
        )
    if output.json:
        print_json(to_plain(front))
    else:
        print_tables(front_table(front))
    if not front.points:
        return ExitCode.REJECTED
    return ExitCode.OK if all(point.proven for point in front.points) else ExitCode.STOPPED
