"""``layoutopt calibrate``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from layoutopt.optimizer.ask.load import load_cluster
from layoutopt.optimizer.report.commands.exit_code import ExitCode
from layoutopt.optimizer.report.commands.options import (
    OUTPUT,
    OutputOptions,
    output_options,
)
from layoutopt.optimizer.report.commands.validate import read_tables
from layoutopt.optimizer.report.terminal import note, print_json, print_tables
from layoutopt.optimizer.specs.errors import InputError, Problem, input_error
from layoutopt.optimizer.specs.writing import require_writable, write_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutopt.optimizer.evidence.calibration import Sourced
    from layoutopt.optimizer.evidence.case import Case
    from layoutopt.optimizer.evidence.run import MeasuredRun
    from layoutopt.optimizer.interop.machines.nccl_log import NcclTable
    from layoutopt.optimizer.specs.cluster import ClusterSpec


@click.command(
    epilog="The table's columns: docs/measured-runs.md. Then: layoutopt solve MODEL C-calibrated.yaml"
)
@click.argument("tables", metavar="RUNS.csv...", nargs=-1, required=True)
@click.option("--cluster", required=True, metavar="CLUSTER", help="The cluster that the runs were made on.")
@click.option(
    "-o", "--output", "file", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE.yaml",
    required=True, help="Where to write the calibrated cluster.",
)  # fmt: skip
@click.option(
    "--nccl", multiple=True, metavar="LOG",
    help="Output of nccl-tests on the cluster: bandwidths that are measured need no fit.",
)  # fmt: skip
@output_options
def command(
    tables: tuple[str, ...], cluster: str, file: Path, nccl: tuple[str, ...], output: OutputOptions
) -> ExitCode:
    """Fit the cost model to a cluster with 1 to 20 own runs, and write the cluster with its constants.

    One factor on all step times comes first; a further constant is taken only if runs that were left out are
    predicted clearly better.
    """
    from layoutopt.optimizer.evidence.calibrate import calibrate
    from layoutopt.optimizer.evidence.cluster_text import calibrated_cluster_text

    require_writable(file, key=OUTPUT)
    runs, machine = read_tables(tables), load_cluster(cluster)
    given = _measured(nccl, machine, output)
    found = calibrate(_cases(runs), machine, given=given)
    name = f"{machine.name}-calibrated"
    write_file(file, calibrated_cluster_text(machine, found, name=name).encode(), key=OUTPUT)
    if output.json:
        print_json({"cluster": str(file), **found.provenance()})
    else:
        from layoutopt.optimizer.report.tables.calibration import calibration_tables

        print_tables(calibration_tables(found))
    note(f"wrote {file}", output)
    return ExitCode.OK


def _cases(runs: Sequence[MeasuredRun]) -> list[Case]:
    """Build the cases; a row that can't be priced is an error here, since every run counts."""
    from layoutopt.optimizer.evidence.cases import build_cases

    cases, skips = build_cases(runs)
    if skips:
        raise InputError(
            *(
                Problem(
                    what=skip.reason, key=skip.run.id[:60], file=skip.run.file, line=skip.run.line or None
                )
                for skip in skips
            )
        )
    return cases


def _measured(logs: Sequence[str], cluster: ClusterSpec, output: OutputOptions) -> dict[str, Sourced]:
    """Turn benchmark logs into constants, with notes on what was left out."""
    if not logs:
        return {}
    from layoutopt.optimizer.interop.machines.nccl_calibration import suggest_calibration
    from layoutopt.optimizer.interop.machines.nccl_log import import_nccl_tests

    found: list[NcclTable] = []
    for name in logs:
        try:
            text = Path(name).read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise input_error(
                f"cannot be read: {error.strerror}", "output of nccl-tests", key="--nccl", file=name
            ) from None
        found += import_nccl_tests(text, name)
    suggested = suggest_calibration(found, cluster)
    for reason in suggested.skipped:
        note(f"left out: {reason}", output)
    for anomaly in suggested.anomalies:
        note(anomaly.message, output)
    return suggested.values
