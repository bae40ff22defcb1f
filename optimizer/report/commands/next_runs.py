"""``layoutopt next-runs``."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from layoutopt.optimizer.report.commands.exit_code import ExitCode
from layoutopt.optimizer.report.commands.export import require_folder
from layoutopt.optimizer.report.commands.inputs import named
from layoutopt.optimizer.report.commands.options import OUTPUT, OutputOptions, SpaceCommand
from layoutopt.optimizer.report.commands.paths import require_no_input
from layoutopt.optimizer.report.commands.question import QuestionChoices, question_options
from layoutopt.optimizer.report.commands.searching import print_none, solve_watched
from layoutopt.optimizer.report.commands.values import Whole
from layoutopt.optimizer.report.terminal import note, print_json, print_tables
from layoutopt.optimizer.specs.errors import input_error
from layoutopt.optimizer.specs.writing import write_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutopt.optimizer.evidence.case import Case
    from layoutopt.optimizer.evidence.next_runs import NextRuns
    from layoutopt.optimizer.solve.plan import SolveOptions
    from layoutopt.optimizer.specs.cluster import ClusterSpec

LAYOUTS = 10
"""Layouts that the choice is among, unless ``--top`` says otherwise."""


@click.command(cls=SpaceCommand)
@click.option(
    "--budget", type=Whole(1, 20), default=3, show_default=True, help="Suggest at most so many measurements."
)
@click.option(
    "--measured", multiple=True, metavar="N=SECONDS|RUNS.csv",
    help="What layout N took per step, or a table of runs: the choice is made again with them.",
)  # fmt: skip
@click.option(
    "-o", "--output", "folder", type=click.Path(path_type=Path), metavar="FOLDER",
    help="Write launch files, benchmark lines and what to expect of them there.",
)  # fmt: skip
@question_options
def command(
    budget: int, measured: tuple[str, ...], folder: Path | None, question: QuestionChoices
) -> ExitCode:
    """Say which runs or benchmarks would change the choice of a layout for MODEL on CLUSTER most.

    The fastest layouts are solved, and what is known of the cost model's errors says how likely each is really the fastest.
    Named is what takes most off the expected step time of the choice, of equals the cheapest; with --measured the choice is
    made again, and nothing is named once nothing would change it.
    """
    from layoutopt.optimizer.evidence.honesty import assess_layout
    from layoutopt.optimizer.evidence.next_runs import next_runs

    require_folder(folder)
    output = question.output
    workload, machine = question.read()
    options = question.options()
    # Also layouts beyond the usual 2%: constants are not known to 2%, and one of those may be the fastest.
    options = replace(options, top=LAYOUTS if question.search.top is None else options.top, near=None)
    readings = _readings(measured)
    runs = _cases([one for one in measured if _reading(one) is None], machine)
    with named(allow="--allow"):
        plan = solve_watched(workload, machine, options, output)
    found = next_runs(plan, workload, machine, options, budget=budget, measured=runs, readings=readings)
    if found is None:
        return print_none(plan, output)
    if folder is not None:
        _write(found, options, folder, output)
    judged = assess_layout(
        found.layouts[0], workload, machine, framework=options.framework, cost=options.cost
    )
    if output.json:
        from layoutopt.optimizer.report.json_forms import to_plain, with_remarks

        spans = [judged.intervals_s(step_s)["80"] for step_s in found.step_time_s] if judged else None
        plain = to_plain(found) | {
            "step_80_s": spans,
            "error_band": to_plain(judged.band) if judged else None,
        }
        print_json(with_remarks(plain, workload.model))
    else:
        from layoutopt.optimizer.report.tables.next_runs import next_runs_tables

        print_tables(next_runs_tables(found, len(runs) + len(readings), judged))
    return ExitCode.OK


def _cases(tables: Sequence[str], cluster: ClusterSpec) -> list[Case]:
    """Read timed runs of this cluster's GPU; raises ``InputError`` for others and for rows that cannot be priced."""
    if not tables:
        return []
    from layoutopt.optimizer.evidence.cases import build_cases
    from layoutopt.optimizer.report.commands.validate import read_tables

    cases, skipped = build_cases(read_tables(tables))
    if skipped:
        run = skipped[0].run
        raise input_error(f"run {run.id!r}: {skipped[0].reason}", key="--measured", file=run.file)
    for case in cases:
        if case.cluster.gpu.name != cluster.gpu.name:
            what = f"run {case.run.id!r} ran on {case.cluster.gpu.name}"
            raise input_error(what, f"runs on {cluster.gpu.name}", key="--measured", file=case.run.file)
        if case.measured_s is None:
            raise input_error(f"run {case.run.id!r} has no step time", key="--measured", file=case.run.file)
    return cases


def _readings(given: Sequence[str]) -> dict[int, float]:
    """Read every ``N=SECONDS``; raises ``InputError`` for a layout that is read twice."""
    found: dict[int, float] = {}
    for reading in filter(None, map(_reading, given)):
        place, seconds = reading
        if place in found:
            raise input_error(
                f"layout {place + 1} is given twice", "the mean of its steps, once", key="--measured"
            )
        found[place] = seconds
    return found


def _reading(text: str) -> tuple[int, float] | None:
    """Read ``N=SECONDS``, N from 1; None for anything that does not begin so, the name of a table."""
    place, equals, seconds = text.partition("=")
    # A file's name may hold an equals sign: only a number before it makes a reading.
    if not equals or not re.fullmatch("[0-9]+", place):
        return None
    try:
        value = float(seconds)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise input_error(
            f"{seconds[:60]!r} is no step time", "seconds above 0, e.g. 1=7.9", key="--measured"
        )
    return int(place) - 1, value


def _write(found: NextRuns, options: SolveOptions, folder: Path, output: OutputOptions) -> None:
    """Write every experiment into a folder of its own, and the page that says what to expect."""
    from layoutopt.optimizer.report.experiment import experiment_files

    for name, text in experiment_files(found, options).items():
        path = folder / name
        require_no_input(path, key=OUTPUT)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise input_error(f"{folder}: {error.strerror}", "a folder to write into", key=OUTPUT) from None
        write_file(path, text.encode(), key=OUTPUT)
    note(f"wrote {folder}", output)
