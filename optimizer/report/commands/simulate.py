"""``layoutopt simulate``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from layoutopt.optimizer.ask.load import load_layout
from layoutopt.optimizer.report.commands.exit_code import ExitCode
from layoutopt.optimizer.report.commands.inputs import OPTIONS
from layoutopt.optimizer.report.commands.options import OutputOptions, output_options
from layoutopt.optimizer.report.commands.paths import WRITTEN
from layoutopt.optimizer.report.commands.verify import read_plan_file
from layoutopt.optimizer.report.terminal import note, notes, print_json, print_tables
from layoutopt.optimizer.specs.errors import input_error
from layoutopt.optimizer.specs.writing import require_writable, write_file

if TYPE_CHECKING:
    from layoutopt.optimizer.simulate.compare import LayoutSimulation
    from layoutopt.optimizer.solve.inputs import Question

TRACE = "--trace"


@click.command()
@click.argument("plan", metavar="PLAN", type=click.Path(path_type=Path))
@click.option(
    "--layout",
    "stated",
    metavar="TEXT|FILE",
    help="Simulate this layout of the plan's question instead of its answer.",
)
@click.option(
    TRACE,
    type=WRITTEN,
    metavar="FILE",
    help="Write the timeline as a Chrome trace, which Perfetto opens.",
)
@output_options
def command(plan: Path, stated: str | None, trace: Path | None, output: OutputOptions) -> ExitCode:
    """Run one step of PLAN, the file that solve wrote, as events.

    Every forward, backward and transfer of every stage takes its own time; the step is compared with the estimate, and
    memory is shown over time.
    """
    require_writable(trace, key=TRACE)
    question = _question(plan, stated)
    found = _simulated(question, plan, stated)
    notes(question.workload.model.remarks, output)
    if trace is not None:
        from layoutopt.optimizer.simulate.trace import chrome_trace

        write_file(trace, json.dumps(chrome_trace(found.result), separators=(",", ":")).encode(), key=TRACE)
        note(f"wrote {trace}", output)
    if output.json:
        from layoutopt.optimizer.report.json_forms import simulation_to_plain, with_remarks

        print_json(with_remarks(simulation_to_plain(found), question.workload.model))
    else:
        from layoutopt.optimizer.report.tables.step_time import simulation_tables

        print_tables(simulation_tables(found))
    return ExitCode.OK


def _question(plan: Path, stated: str | None) -> Question:
    """Read the plan's inputs."""
    from layoutopt.optimizer.solve.inputs import question_from_plain

    plain = read_plan_file(plan)
    if not isinstance(plain, dict) or not isinstance(plain.get("inputs"), dict):
        raise input_error(
            "a plan is a mapping with inputs", "what solve -o wrote", key="inputs", file=str(plan)
        )
    if stated is None and not plain.get("layout"):
        raise input_error("the plan found no layout", "--layout names one", key="layout", file=str(plan))
    return question_from_plain(plain["inputs"], file=str(plan))


def _simulated(question: Question, plan: Path, stated: str | None) -> LayoutSimulation:
    """Simulate the plan's layout, or a stated one, under the plan's own inputs."""
    from layoutopt.optimizer.simulate.layouts import simulate_workload

    options = question.options
    return simulate_workload(
        question.workload,
        question.cluster,
        # A plan is read as the file of its own layout.
        load_layout(str(plan) if stated is None else stated, names=OPTIONS),
        framework=options.framework,
        software=options.space.software,
        run_options=options.space.run,
        kind=options.cost,
    )
