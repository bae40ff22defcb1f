"""``layoutopt pareto``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from layoutopt.optimizer.report.commands.drawing import require_drawing, write_drawing
from layoutopt.optimizer.report.commands.exit_code import ExitCode
from layoutopt.optimizer.report.commands.inputs import named
from layoutopt.optimizer.report.commands.objective_options import (
    FailureChoices,
    MemoryChoices,
    failure_options,
    memory_options,
    with_failures,
    with_room,
)
from layoutopt.optimizer.report.commands.options import DrawingOptions, SpaceCommand, drawing_options
from layoutopt.optimizer.report.commands.question import QuestionChoices, question_options
from layoutopt.optimizer.report.commands.searching import watched
from layoutopt.optimizer.report.commands.values import GOALS_OF, Whole
from layoutopt.optimizer.report.terminal import note, print_json, print_tables
from layoutopt.optimizer.specs.errors import input_error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutopt.optimizer.evidence.honesty import Honesty
    from layoutopt.optimizer.report.commands.options import OutputOptions
    from layoutopt.optimizer.solve.pareto import Front


@click.command(cls=SpaceCommand)
@click.option("--of", "goals", type=GOALS_OF, default="days,cost", show_default=True, help="The two goals.")
@click.option(
    "--points",
    type=Whole(1, 1000),
    default=12,
    show_default=True,
    help="Most points of the front, spread over all of it.",
)
@question_options
@memory_options
@failure_options
@drawing_options
def command(
    goals: tuple[str, ...],
    points: int,
    question: QuestionChoices,
    memory: MemoryChoices,
    failures: FailureChoices,
    drawing: DrawingOptions,
) -> ExitCode:
    """Find the layouts of MODEL on CLUSTER of which none is better in one goal without being worse in the other.

    Each point is proven. Both ends of the front are found, then the points that part its widest gaps. With --allow-idle
    layouts of fewer GPUs are among them. The first Ctrl-C prints the points that were found (exit code 4).
    """
    from layoutopt.optimizer.evidence.honesty import assess_layout
    from layoutopt.optimizer.report.json_forms import to_plain, with_remarks
    from layoutopt.optimizer.report.tables.header import without
    from layoutopt.optimizer.report.tables.honesty import brief_lines
    from layoutopt.optimizer.report.tables.next_runs import front_table
    from layoutopt.optimizer.solve.pareto import pareto_front

    if len(goals) != 2:
        raise input_error(f"names {len(goals)} different goals", "two, e.g. days,cost", key="--of")
    require_drawing(drawing)
    output = question.output
    workload, machine = question.read()
    machine = with_failures(machine, failures)
    options = with_room(question.options(), memory)
    with (
        named(of="--of", gpu_hour_cost="--gpu-hour-cost", require="--require", allow="--allow"),
        watched(output) as watch,
    ):
        front = pareto_front(
            workload,
            machine,
            options,
            (goals[0], goals[1]),
            most=points,
            on_progress=watch.on_progress,
            should_stop=watch.should_stop,
        )
    title = f"{workload.model.name}{without(workload.model.left_out)} on {machine.gpu_count:,} x {machine.gpu.name}"
    # Point by point: layouts of a front may differ in precision, and so in the runs that speak for them.
    judged = [
        assess_layout(one.layout, workload, machine, framework=options.framework, cost=options.cost)
        for one in front.points
    ]
    bands = [one.band for one in judged if one is not None]
    sure = list(dict.fromkeys(line for band in bands for line in brief_lines(band)))
    if output.json:
        plain = to_plain(front)
        for point, one, shown in zip(front.points, judged, plain["points"], strict=True):
            shown["step_80_s"] = None if one is None else one.intervals_s(point.estimate.step_time_s)["80"]
            shown["measured_runs"] = None if one is None else one.band.rows
        plain["error_band"] = to_plain(bands[0]) if bands else None
        print_json(with_remarks(plain, workload.model))
    else:
        print_tables(front_table(front, judged, sure))
    _draw(front, title, judged, sure, drawing, output)
    if not front.points:
        # Without a point a complete search has proven that there is none.
        return ExitCode.REJECTED if front.complete else ExitCode.STOPPED
    return ExitCode.OK if front.proven else ExitCode.STOPPED


def _draw(
    front: Front,
    title: str,
    judged: Sequence[Honesty | None],
    sure: Sequence[str],
    drawing: DrawingOptions,
    output: OutputOptions,
) -> None:
    if not drawing.wanted:
        return
    if not front.points:
        note("there is no layout to draw: no file was written", output)
        return
    from layoutopt.optimizer.report.html.front import front_page, front_picture

    write_drawing(
        drawing,
        output,
        page=lambda: front_page(front, title, judged, sure),
        picture=lambda: front_picture(front, title),
    )
