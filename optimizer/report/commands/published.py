"""``layoutopt published``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from layoutopt.optimizer.report.commands.exit_code import ExitCode
from layoutopt.optimizer.report.commands.options import OutputOptions, output_options
from layoutopt.optimizer.report.commands.searching import watched
from layoutopt.optimizer.report.commands.values import QuantityText, Whole
from layoutopt.optimizer.report.terminal import note, print_json, print_tables

if TYPE_CHECKING:
    from layoutopt.optimizer.evidence.published import Distance, Reference


@click.command()
@click.option("--no-search", is_flag=True, help="Price the published layouts only.")
@click.option(
    "--time-limit", type=QuantityText("TIME", "SECONDS"), help='Stop each search early, e.g. after "1 min".'
)
@click.option("--workers", type=Whole(1, 1024), default=1, show_default=True, help="Threads of the solver.")
@output_options
def command(no_search: bool, time_limit: float | None, workers: int, output: OutputOptions) -> ExitCode:
    """Compare the published layouts of Llama 3 405B and DeepSeek-V3 with predictions and with the optimum.

    What the authors leave open is assumed as stated beside each layout. The search frees every choice under the
    authors' own preset; every difference is explained. Exit code 4 when a search was stopped before its proof.
    """
    from layoutopt.optimizer.evidence.published import references

    limit = float("inf") if time_limit is None else time_limit
    found = [(one, None if no_search else _distance(one, limit, workers, output)) for one in references()]
    if output.json:
        from layoutopt.optimizer.report.json_forms import published_to_plain

        print_json(published_to_plain(found))
    else:
        from layoutopt.optimizer.report.tables.published import published_tables

        print_tables(published_tables(found))
    stopped = any(far is not None and far.plan.status.value == "stopped" for _, far in found)
    return ExitCode.STOPPED if stopped else ExitCode.OK


def _distance(one: Reference, limit_s: float, workers: int, output: OutputOptions) -> Distance:
    from layoutopt.optimizer.evidence.published import distance

    note(f"searching beside {one.case.run.id}", output)
    with watched(output) as watch:
        return distance(
            one,
            time_limit_s=limit_s,
            workers=workers,
            on_progress=watch.on_progress,
            should_stop=watch.should_stop,
        )
