"""``layoutopt validate``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from layoutopt.optimizer.report.commands.drawing import require_drawing, write_drawing
from layoutopt.optimizer.report.commands.exit_code import ExitCode
from layoutopt.optimizer.report.commands.options import DrawingOptions, OutputOptions, output_options
from layoutopt.optimizer.report.commands.paths import WRITTEN
from layoutopt.optimizer.report.commands.values import Whole
from layoutopt.optimizer.report.terminal import note, print_json, print_tables

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from layoutopt.optimizer.evidence.assumptions import Assumption
    from layoutopt.optimizer.evidence.run import MeasuredRun
    from layoutopt.optimizer.evidence.validate import ValidationReport

PROGRESS_EVERY = 100


@click.command(epilog="The table's columns: docs/measured-runs.md")
@click.argument("tables", metavar="RUNS.csv...", nargs=-1, required=True)
@click.option(
    "--assume", multiple=True, metavar="FILE|framework.NAME=PRESET",
    help="What may be taken for empty cells ('reference': the published reference layouts), or the preset that prices a "
    "trainer without one.",
)  # fmt: skip
@click.option("--worst", type=Whole(0, 10_000), default=0, help="Show the N rows with the largest errors.")
@click.option(
    "--plot", type=WRITTEN, metavar="FILE",
    help="Draw predicted against measured times as .svg or .png.",
)  # fmt: skip
@output_options
def command(
    tables: tuple[str, ...],
    assume: tuple[str, ...],
    worst: int,
    plot: Path | None,
    output: OutputOptions,
) -> ExitCode:
    """Price measured runs and say how far the predictions are off.

    Rows that can't be priced are listed with the reason; rows priced with --assume are counted apart.
    """
    # One door for pictures, of which this command has no page.
    drawing = DrawingOptions(report=None, plot=plot)
    require_drawing(drawing)
    report = _validate(read_tables(tables), assume, output)
    if output.json:
        from layoutopt.optimizer.report.json_forms import validation_to_plain

        print_json(validation_to_plain(report, worst=worst))
    else:
        from layoutopt.optimizer.report.tables.validation import validation_tables

        print_tables(validation_tables(report, worst=worst, verbose=output.verbose))
    if plot is not None:
        from layoutopt.optimizer.report.html.main_charts import validation_picture

        write_drawing(drawing, output, page=str, picture=lambda: validation_picture(report))
    return ExitCode.OK


def read_tables(tables: Sequence[str]) -> tuple[MeasuredRun, ...]:
    """Read tables of measured runs; raises ``InputError`` with the problems of all, and for ids given twice."""
    from layoutopt.optimizer.evidence.table import MAX_BYTES, parse_runs
    from layoutopt.optimizer.specs.document import read_bytes
    from layoutopt.optimizer.specs.errors import InputError, Problem

    problems: list[Problem] = []
    runs: dict[str, MeasuredRun] = {}
    for name in tables:
        try:
            found = parse_runs(read_bytes(Path(name), max_bytes=MAX_BYTES, wanted="a CSV file"), name)
        except InputError as error:
            problems.extend(error.problems)
            continue
        twice = [run for run in found if run.id in runs]
        problems += [
            Problem(what=f"id {run.id[:40]!r} is in {runs[run.id].file} too", file=name, line=run.line)
            for run in twice
        ]
        runs |= {run.id: run for run in found}
    if problems:
        raise InputError(*problems)
    return tuple(runs.values())


def _assumptions(names: Sequence[str]) -> list[Assumption]:
    from layoutopt.optimizer.evidence.assumptions import BUILT_IN, built_in, parse_assumptions
    from layoutopt.optimizer.specs.document import read_text

    found: list[Assumption] = []
    for name in names:
        if name in BUILT_IN:
            found += built_in(name)
            continue
        found += parse_assumptions(read_text(Path(name), wanted="'reference' or a YAML file"), name)
    return found


def _validate(runs: Sequence[MeasuredRun], assume: Sequence[str], output: OutputOptions) -> ValidationReport:
    from layoutopt.optimizer.evidence.nearest import is_stand_in, parse_stand_ins
    from layoutopt.optimizer.evidence.validate import validate

    stand_ins = parse_stand_ins(text for text in assume if is_stand_in(text))
    assumptions = _assumptions([name for name in assume if not is_stand_in(name)])
    return validate(runs, assumptions, stand_ins=stand_ins, progress=_progress(output))


def _progress(output: OutputOptions) -> Callable[[int, int], None]:
    def show(done: int, of: int) -> None:
        """Say now and then how many rows are priced."""
        if done % PROGRESS_EVERY == 0:
            note(f"priced {done:,} of {of:,} rows", output)

    return show
