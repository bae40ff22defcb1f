"""``layoutopt sweep`` and ``layoutopt sweep export``."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from layoutopt.optimizer.report.commands.completion import complete_source
from layoutopt.optimizer.report.commands.drawing import require_drawing, write_drawing
from layoutopt.optimizer.report.commands.exit_code import ExitCode
from layoutopt.optimizer.report.commands.inputs import OPTIONS, named, solve_options
from layoutopt.optimizer.report.commands.options import (
    OUTPUT,
    DemandChoices,
    DrawingOptions,
    FrameworkOptions,
    OutputOptions,
    SearchChoices,
    SpaceChoices,
    SpaceCommand,
    demand_options,
    drawing_options,
    framework_options,
    output_options,
    search_options,
    space_options,
)
from layoutopt.optimizer.report.commands.paths import WRITTEN, keeps_inputs
from layoutopt.optimizer.report.commands.values import Whole
from layoutopt.optimizer.report.terminal import note, notes, print_document, print_json, print_tables, say
from layoutopt.optimizer.specs.errors import input_error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutopt.optimizer.ask.load import Sources
    from layoutopt.optimizer.solve.plan import SolveOptions
    from layoutopt.optimizer.specs.model import ModelSpec
    from layoutopt.optimizer.sweep.executors.seam import Executor
    from layoutopt.optimizer.sweep.points import SweepPoint
    from layoutopt.optimizer.sweep.rows import Row
    from layoutopt.optimizer.sweep.run import SweepResult

DEFAULT_STORE = "sweep.db"
EXPORT = "export"
RANGE = "RANGE"


class SweepGroup(click.Group):
    """``sweep export`` is a command of its own; everything else is a sweep."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Send all arguments to the sweep unless they begin with ``export``."""
        return super().parse_args(ctx, args if args[:1] == [EXPORT] else ["", *args])


class SweepCommand(SpaceCommand):
    """The sweep itself, which has no name of its own."""

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the usage without the gap that the missing name leaves."""
        formatter.write_usage(ctx.command_path.strip(), " ".join(self.collect_usage_pieces(ctx)))


@click.group(cls=SweepGroup)
def command() -> None:
    """Solve every combination of models, clusters, sizes, batches and networks."""


@command.command("", cls=SweepCommand, epilog="Then: layoutopt sweep export --store sweep.db -o sweep.csv")
@click.argument(
    "sources", metavar="MODEL... CLUSTER...", nargs=-1, required=True, shell_complete=complete_source
)
@click.option("--gpus", metavar=RANGE, help="Sizes: 256,512 or 256:16384:x2 or 8:64:+8.")
@click.option("--batch", metavar=RANGE, help="Global batches in sequences.")
@click.option("--seq", metavar=RANGE, help="Sequence lengths.")
@click.option("--network", metavar="LIST", help="Network rates per GPU in Gbit/s, e.g. 200,400,800.")
@click.option(
    "--store", type=WRITTEN, default=DEFAULT_STORE, show_default=True,
    help="File that keeps every answer; the same command resumes.",
)  # fmt: skip
@click.option("-j", "--jobs", type=Whole(1, 4096), help="Local processes; default one per core, 1 for none.")
@click.option(
    "--scheduler", metavar="ADDRESS", help="Dask scheduler to send points to, e.g. tcp://host:8786."
)
@click.option(
    "--nested", is_flag=True, help="Let GPUs at the far end idle: best of all sizes inside each cluster."
)
@click.option("--retry-errors", is_flag=True, help="Solve points again that ended in an error.")
@click.option("--cold", is_flag=True, help="Start no point from its neighbour's layout.")
@framework_options
@space_options
@demand_options
@search_options
@drawing_options
@output_options
def sweep(
    sources: tuple[str, ...],
    gpus: str | None,
    batch: str | None,
    seq: str | None,
    network: str | None,
    store: Path,
    jobs: int | None,
    scheduler: str | None,
    nested: bool,
    retry_errors: bool,
    cold: bool,
    trainer: FrameworkOptions,
    space: SpaceChoices,
    demands: DemandChoices,
    search: SearchChoices,
    drawing: DrawingOptions,
    output: OutputOptions,
) -> ExitCode:
    """Solve every combination of the MODELs, the CLUSTERs and the listed values to proof.

    A CLUSTER may be a bare GPU name (h100) when --gpus lists sizes. Answers are stored one by one: after Ctrl-C, or
    even kill -9, the same command goes on where it stopped. Exit code 4 when points are left or not proven.
    """
    require_drawing(drawing)
    _require_name(store)
    from layoutopt.optimizer.ask.load import load_sources
    from layoutopt.optimizer.ask.records import RunChoices

    # Files of other tools describe no run: with the first of each list they can be read, and the grid sets the rest.
    first = RunChoices(global_batch=_first(batch, "--batch"), sequence_length=_first(seq, "--seq"))
    found = load_sources(sources, first, names=OPTIONS)
    notes(found.notes, output)
    points = _points(
        found, (gpus, batch, seq, network), solve_options(space, search, trainer, demands=demands)
    )
    with named(scheduler="--scheduler"):
        result = _run(
            points, store, _executor(jobs, scheduler), output, retry_errors=retry_errors, warm_start=not cold
        )
    rows = _rows(points, store, nested=nested)
    sure = _how_sure(points)
    models = [model.model for model in found.models]
    _print(result, rows, store, output, nested=nested, sure=sure, models=models)
    _draw(rows, demands.gpu_hour_cost, drawing, output, sure)
    # Infeasible points are answers; only what the same command would go on with is not done.
    unfinished = result.interrupted or result.unproven or result.failed or result.lost
    return ExitCode.STOPPED if unfinished else ExitCode.OK


@command.command(EXPORT)
@click.option(
    "--store", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", default=DEFAULT_STORE, show_default=True,
    help="Store that a sweep wrote.",
)  # fmt: skip
@click.option(
    "-o", "--output", "file", type=WRITTEN, metavar="FILE",
    help="Where to write; its ending gives the format. Default: CSV to stdout.",
)  # fmt: skip
@click.option("--format", "kind", metavar="FORMAT", help="csv, json or parquet.")
@click.option("--where", multiple=True, metavar="COLUMN=VALUE", help="Only rows with this value.")
@click.option("--nested", is_flag=True, help="Add the best of all sizes inside each cluster.")
@keeps_inputs
def export(
    store: Path, file: Path | None, kind: str | None, where: tuple[str, ...], nested: bool
) -> ExitCode:
    """Write the rows of a store as CSV, JSON or Parquet."""
    from layoutopt.optimizer.sweep.export import columns_of, export_rows, format_of, write_rows, write_text
    from layoutopt.optimizer.sweep.store import SweepStore

    with named(format="--format" if kind else OUTPUT):
        chosen = format_of(file or Path("rows.csv"), kind)
    if file is None and chosen == "parquet":
        raise input_error("Parquet is no text", "-o FILE", key="--format")
    _require_name(store)
    with (
        SweepStore(store, create=False, read_only=True) as opened,
        named(where="--where", format="--format", file=OUTPUT),
    ):
        rows, names = export_rows(opened, where=_conditions(where), nested=nested), columns_of(nested=nested)
        if file is None:
            text = StringIO()
            write_text(rows, text, chosen, names)
            print_document(text.getvalue())
        else:
            say(f"wrote {write_rows(rows, file, chosen, names):,} rows to {file}")
    return ExitCode.OK


def _require_name(store: Path) -> None:
    if not store.name:
        raise input_error("is empty", "a file name", key="--store")


def _conditions(where: Sequence[str]) -> dict[str, str]:
    found = {}
    for text in where:
        name, equals, value = text.partition("=")
        if not equals:
            raise input_error(f"{text[:60]!r} is not COLUMN=VALUE", "e.g. model=llama3-70b", key="--where")
        found[name.strip()] = value.strip()
    return found


def _first(text: str | None, key: str) -> int | None:
    """Return the first value of a range, with which a file that states no run is read."""
    from layoutopt.optimizer.sweep.ranges import parse_counts

    return parse_counts(text, key=key)[0] if text is not None else None


def _points(
    found: Sources,
    lists: tuple[str | None, ...],
    options: SolveOptions,
) -> tuple[SweepPoint, ...]:
    from layoutopt.optimizer.sweep.points import SweepGrid
    from layoutopt.optimizer.sweep.ranges import parse_counts, parse_rates

    gpus, batch, seq, network = lists
    return SweepGrid(
        workloads=found.models,
        families=found.families,
        gpus=parse_counts(gpus, key="--gpus") if gpus is not None else (),
        global_batches=parse_counts(batch, key="--batch") if batch is not None else (),
        sequence_lengths=parse_counts(seq, key="--seq") if seq is not None else (),
        network_gbit_per_s=parse_rates(network, key="--network") if network is not None else (),
        options=options,
    ).points()


def _executor(jobs: int | None, scheduler: str | None) -> Executor:
    if scheduler is not None:
        if jobs is not None:
            raise input_error("is given together with --jobs", "one of the two", key="--scheduler")
        from layoutopt.optimizer.sweep.executors.distributed import DaskExecutor

        return DaskExecutor(scheduler)
    if jobs == 1:
        from layoutopt.optimizer.sweep.executors.local import SerialExecutor

        return SerialExecutor()
    from layoutopt.optimizer.sweep.executors.local import LocalExecutor

    return LocalExecutor(jobs)


def _run(
    points: Sequence[SweepPoint], store: Path, executor: Executor, output: OutputOptions, **options: Any
) -> SweepResult:
    from layoutopt.optimizer.report.json_forms import plan_to_plain
    from layoutopt.optimizer.report.progress import SweepProgressPrinter
    from layoutopt.optimizer.sweep.run import run_sweep

    with SweepProgressPrinter(quiet=output.quiet, verbose=output.verbose) as printer:
        # The sweep's room lies below this one: it is handed how a plan is written.
        result = run_sweep(
            points, store, executor, write_plan=plan_to_plain, on_progress=printer.update, **options
        )
    if result.interrupted:
        note("interrupted; the same command goes on", output)
    return result


def _rows(points: Sequence[SweepPoint], store: Path, *, nested: bool) -> list[Row]:
    """Read the answers to all points."""
    from layoutopt.optimizer.sweep.nested import best_within
    from layoutopt.optimizer.sweep.store import SweepStore

    with SweepStore(store) as opened:
        rows = list(opened.rows(point.key for point in points))
    return best_within(rows) if nested else rows


def _draw(
    rows: list[Row],
    gpu_hour_cost: float | None,
    drawing: DrawingOptions,
    output: OutputOptions,
    sure: list[str],
) -> None:
    """Write page and picture; without any layout there is only a page to write."""
    if not drawing.wanted:
        return
    from layoutopt.optimizer.report.html.main_charts import sweep_picture
    from layoutopt.optimizer.report.html.swept import sweep_page

    if drawing.plot is not None and all(row["step_time_s"] is None for row in rows):
        note(f"no point has a layout to draw: {drawing.plot} was not written", output)
        drawing = replace(drawing, plot=None)
    write_drawing(
        drawing,
        output,
        page=lambda: sweep_page(rows, gpu_hour_cost=gpu_hour_cost, sure=sure),
        picture=lambda: sweep_picture(rows),
    )


def _how_sure(points: Sequence[SweepPoint]) -> list[str]:
    """Say for every kind of point how far off such predictions were, each sentence once."""
    from layoutopt.optimizer.cost.factory import CostKind
    from layoutopt.optimizer.report.tables.honesty import sure_lines

    # Of every point: a size within one node may have measured runs where a larger one of the family has none.
    asked = [
        (one.workload, one.cluster, one.workload.training.precision)
        for one in (point.question for point in points)
        if one.options.cost is CostKind.FULL
    ]
    return sure_lines(asked, points[0].question.options.framework)


def _print(
    result: SweepResult,
    rows: list[Row],
    store: Path,
    output: OutputOptions,
    *,
    nested: bool,
    sure: list[str],
    models: list[ModelSpec],
) -> None:
    if output.json:
        from layoutopt.optimizer.report.json_forms import sweep_to_plain, with_remarks

        print_json(with_remarks(sweep_to_plain(result, rows), *models))
        return
    from layoutopt.optimizer.report.tables.sweep import sweep_tables

    print_tables(sweep_tables(result, rows, str(store), nested=nested, sure=sure))
