"""``layoutopt solve``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from layoutopt.optimizer.report.commands.drawing import draw_solve, require_drawing
from layoutopt.optimizer.report.commands.exit_code import OF_STATUS, ExitCode
from layoutopt.optimizer.report.commands.inputs import named
from layoutopt.optimizer.report.commands.objective_options import (
    FailureChoices,
    MemoryChoices,
    ObjectiveChoices,
    failure_options,
    in_objective,
    memory_options,
    objective_options,
    with_failures,
    with_room,
)
from layoutopt.optimizer.report.commands.options import (
    OUTPUT,
    DrawingOptions,
    OutputOptions,
    SpaceCommand,
    drawing_options,
)
from layoutopt.optimizer.report.commands.paths import WRITTEN
from layoutopt.optimizer.report.commands.question import QuestionChoices, question_options
from layoutopt.optimizer.report.commands.searching import watched
from layoutopt.optimizer.report.terminal import note, print_json, print_tables
from layoutopt.optimizer.specs.writing import require_writable, write_json

if TYPE_CHECKING:
    from pathlib import Path

    from layoutopt.optimizer.evidence.honesty import Honesty
    from layoutopt.optimizer.solve.plan import Plan, SolveOptions
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.workload import Workload

ROBUST_TOP = 12
"""Layouts compared by --robust at least: the search solves as many runners-up."""


@click.command(cls=SpaceCommand)
@question_options
@memory_options
@objective_options
@failure_options
@click.option("--space", "only_space", is_flag=True, help="Print the declared space and search nothing.")
@click.option(
    "--robust",
    is_flag=True,
    help="Of layouts the model can't tell apart, name the one that loses least in the mean.",
)
@click.option("--compare-any", is_flag=True, help="Say what a trainer without rules would gain.")
@click.option(
    "-o", "--output", "file", type=WRITTEN, metavar="FILE",
    help="Write the plan as JSON, for verify and evaluate.",
)  # fmt: skip
@drawing_options
def command(
    question: QuestionChoices,
    memory: MemoryChoices,
    objective: ObjectiveChoices,
    failures: FailureChoices,
    only_space: bool,
    robust: bool,
    compare_any: bool,
    file: Path | None,
    drawing: DrawingOptions,
) -> ExitCode:
    """Find the layout of MODEL on CLUSTER with the smallest step time, and prove that none is faster.

    The first Ctrl-C ends the search and prints the best layout so far with its proven gap (exit code 4), the second
    aborts.
    """
    require_writable(file, key=OUTPUT)
    require_drawing(drawing)
    output = question.output
    workload, machine = question.read()
    machine = with_failures(machine, failures)
    options = in_objective(with_room(question.options(), memory), objective, machine)
    if only_space:
        return _print_space(workload, machine, options, output)
    from layoutopt.optimizer.evidence.honesty import assess

    if robust:
        options = with_band(options, workload, machine)
    with named(allow="--allow"):
        plan = _solve(workload, machine, options, output, compare_any=compare_any)
    honesty = assess(plan, workload, machine, options, robust=robust)
    if file is not None:
        from layoutopt.optimizer.report.json_forms import plan_to_plain

        write_json(file, plan_to_plain(plan, honesty), key=OUTPUT)
        note(f"wrote {file}", output)
    _print_plan(plan, workload, machine, options, output, honesty, file)
    draw_solve(plan, drawing, output)
    unproven = any(one is not None and not one.proven for one in (plan.then, plan.outcome))
    # A second goal or objective that was cut short is no proof of its answer, whatever the step time's status.
    return ExitCode.STOPPED if unproven else OF_STATUS[plan.status.value]


def with_band(options: SolveOptions, workload: Workload, cluster: ClusterSpec) -> SolveOptions:
    """Ask for every layout family that the model can't tell from the fastest, not only for the nearest."""
    from layoutopt.optimizer.evidence.band import error_band

    band = error_band(workload, cluster, workload.training.precision, framework=options.framework)
    # Layouts between the usual 2% and the band would else be left out, and the fastest called the only choice.
    near = None if options.near is None else max(options.near, band.indistinct)
    return replace(options, top=max(options.top, ROBUST_TOP), near=near)


def _print_space(
    workload: Workload, cluster: ClusterSpec, options: SolveOptions, output: OutputOptions
) -> ExitCode:
    from layoutopt.optimizer.solve.api import describe_space

    with named(allow="--allow"):
        space = describe_space(workload, cluster, options)
    if output.json:
        from layoutopt.optimizer.report.json_forms import space_to_plain

        print_json(space_to_plain(space))
    else:
        from layoutopt.optimizer.report.tables.proof import space_tables

        print_tables(space_tables(space, workload, cluster, framework=options.framework.value))
    return ExitCode.OK if space.empty is None else ExitCode.REJECTED


def _solve(
    workload: Workload,
    cluster: ClusterSpec,
    options: SolveOptions,
    output: OutputOptions,
    *,
    compare_any: bool,
) -> Plan:
    """Search with progress on stderr; Ctrl-C stops it."""
    from layoutopt.optimizer.solve.api import freer_gain, solve_layout

    with watched(output) as watch:
        plan = solve_layout(
            workload, cluster, options, on_progress=watch.on_progress, should_stop=watch.should_stop
        )
        # It is a second search: whoever stopped the first does not wait for it.
        if compare_any and plan.layout is not None and not watch.should_stop():
            gain = freer_gain(workload, cluster, plan, options, should_stop=watch.should_stop)
            plan = replace(plan, freer_gain=gain)
    return plan


def _print_plan(
    plan: Plan,
    workload: Workload,
    cluster: ClusterSpec,
    options: SolveOptions,
    output: OutputOptions,
    honesty: Honesty | None,
    file: Path | None,
) -> None:
    if output.json:
        from layoutopt.optimizer.report.json_forms import plan_to_plain

        print_json(plan_to_plain(plan, honesty))
        return
    from layoutopt.optimizer.report.tables.plan import Shown, plan_tables
    from layoutopt.optimizer.solve.run_preset import preset_of_plan

    preset = preset_of_plan(workload, cluster, options)
    shown = Shown(verbose=output.verbose, file=None if file is None else str(file))
    framework = options.framework.value
    print_tables(
        plan_tables(plan, workload, cluster, preset, framework=framework, honesty=honesty, shown=shown)
    )
