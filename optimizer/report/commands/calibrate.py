"""``layoutopt calibrate``."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from layoutopt.optimizer.ask.load import load_cluster
from layoutopt.optimizer.report.commands.exit_code import ExitCode
from layoutopt.optimizer.report.commands.inputs import OPTIONS, refuse_given
from layoutopt.optimizer.report.commands.options import OUTPUT, OutputOptions, output_options
from layoutopt.optimizer.report.commands.paths import WRITTEN
from layoutopt.optimizer.report.commands.profile_options import ProfileChoices, profile_options
from layoutopt.optimizer.report.commands.validate import read_tables
from layoutopt.optimizer.report.terminal import note, notes, print_json, print_tables
from layoutopt.optimizer.specs.errors import InputError, Problem, input_error
from layoutopt.optimizer.specs.writing import require_writable, write_file

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import RenderableType

    from layoutopt.optimizer.diagnose.constants import TermCalibration
    from layoutopt.optimizer.evidence.calibration import Sourced
    from layoutopt.optimizer.evidence.case import Case
    from layoutopt.optimizer.evidence.run import MeasuredRun
    from layoutopt.optimizer.interop.machines.nccl_log import NcclTable
    from layoutopt.optimizer.specs.cluster import ClusterSpec, Observation

PROFILE, PLAN = "--profile", "--plan"
OF_PROFILES = ("plan", *(field.name for field in fields(ProfileChoices)))


@click.command(
    epilog="The table's columns: docs/measured-runs.md. Then: layoutopt solve MODEL C-calibrated.yaml"
)
@click.argument("tables", metavar="[RUNS.csv...]", nargs=-1)
@click.option("--cluster", required=True, metavar="CLUSTER", help="The cluster that the runs were made on.")
@click.option(
    "-o", "--output", "file", type=WRITTEN, metavar="FILE.yaml",
    required=True, help="Where to write the calibrated cluster.",
)  # fmt: skip
@click.option(
    "--nccl", multiple=True, metavar="LOG",
    help="Output of nccl-tests on the cluster: bandwidths that are measured need no fit.",
)  # fmt: skip
@click.option(
    PROFILE, "profiles", multiple=True, type=click.Path(path_type=Path), metavar="PATH",
    help="Traces of a run on the cluster, a folder of them, or its log; the constants that their terms tell need no fit.",
)  # fmt: skip
@click.option(PLAN, metavar="FILE", help="With --profile: the plan or launch file that ran.")
@profile_options
@output_options
def command(
    tables: tuple[str, ...],
    cluster: str,
    file: Path,
    nccl: tuple[str, ...],
    profiles: tuple[Path, ...],
    plan: str | None,
    choices: ProfileChoices,
    output: OutputOptions,
) -> ExitCode:
    """Fit the cost model to a cluster with 1 to 20 own runs, and write the cluster with its constants.

    One factor on all step times comes first; a further constant is taken only if runs that were left out are
    predicted clearly better. Profiles of one run, with the plan that ran, tell constants term by term, as diagnose
    --calibrate does; runs then fit what is left.
    """
    from layoutopt.optimizer.evidence.calibrate import calibrate
    from layoutopt.optimizer.evidence.cluster_text import calibrated_cluster_text, calibrated_name

    require_writable(file, key=OUTPUT)
    if not tables and not profiles and not nccl:
        what = "RUNS.csv, --profile with --plan, or --nccl"
        raise input_error("nothing to calibrate with", what, key="RUNS.csv")
    if not profiles:
        refuse_given(OF_PROFILES, "is used beside profiles alone", "--profile PATH with it")
    runs, machine = read_tables(tables) if tables else [], load_cluster(cluster)
    name = calibrated_name(machine)
    given = _measured(nccl, machine, output)
    read: tuple[Observation, ...] = ()
    if profiles:
        told = _profiled(profiles, plan, cluster, choices, output)
        # Benchmarks win over a profile's traffic: they had the links to themselves.
        given, read = {**told.values, **given}, told.observations
        if not tables:
            return _write_told(told, given, machine, file, output)
    if not tables:
        return _write_benchmarked(given, machine, file, output)
    found = calibrate(_cases(runs), machine, given=given)
    found = replace(found, observations=(*read, *found.observations))
    from layoutopt.optimizer.report.tables.term_calibration import calibration_tables

    text = calibrated_cluster_text(machine, found, name=name)
    return _hand_out(file, text, found.provenance(), calibration_tables(found), output)


def _hand_out(
    file: Path, text: str, plain: Mapping[str, Any], tables: RenderableType, output: OutputOptions
) -> ExitCode:
    """Write the cluster's file, and show what was found for it."""
    write_file(file, text.encode(), key=OUTPUT)
    if output.json:
        print_json({"cluster": str(file), **plain})
    else:
        print_tables(tables)
    note(f"wrote {file}", output)
    return ExitCode.OK


def _profiled(
    profiles: tuple[Path, ...], plan: str | None, cluster: str, choices: ProfileChoices, output: OutputOptions
) -> TermCalibration:
    """Read constants from the profiles of a plan's run on this cluster."""
    from layoutopt.optimizer.ask.planned import load_planned
    from layoutopt.optimizer.report.commands.profiled import constants_of, diagnosed

    if plan is None:
        raise input_error("missing", "the plan or launch file whose run was profiled", key=PLAN)
    planned = load_planned(plan, cluster=cluster, names=OPTIONS)
    ran, machine = planned.question.cluster.gpu.name, load_cluster(cluster).gpu.name
    if ran != machine:
        raise input_error(
            f"ran on {ran}, the cluster has {machine}", "a run on this cluster", key=PLAN, file=plan
        )
    found = diagnosed(profiles, planned, choices, output)
    notes(found.notes, output)
    return constants_of(found, planned)


def _write_told(
    told: TermCalibration,
    values: Mapping[str, Sourced],
    machine: ClusterSpec,
    file: Path,
    output: OutputOptions,
) -> ExitCode:
    """Write a cluster whose constants come from profiles and benchmarks alone."""
    from layoutopt.optimizer.evidence.cluster_text import calibrated_name, cluster_text
    from layoutopt.optimizer.report.json_forms import told_to_plain
    from layoutopt.optimizer.report.tables.term_calibration import constants_tables

    text = cluster_text(machine, values, told.lines, told.observations, name=calibrated_name(machine))
    return _hand_out(file, text, told_to_plain(told), constants_tables(told), output)


def _write_benchmarked(
    values: Mapping[str, Sourced], machine: ClusterSpec, file: Path, output: OutputOptions
) -> ExitCode:
    """Write a cluster whose constants come from benchmarks of collectives alone."""
    from rich.text import Text

    from layoutopt.optimizer.evidence.cluster_text import calibrated_name, cluster_text
    from layoutopt.optimizer.evidence.parameters import check_values
    from layoutopt.optimizer.report.json_forms import to_plain

    if not values:
        raise input_error(
            "tells no constant", "collectives of more than one GPU of this cluster", key="--nccl"
        )
    # As a fit's values are checked: a log may be of other links than this cluster's.
    check_values({name: entry.value for name, entry in values.items()})
    lines = [f"{name} = {entry.value:.4g}: {entry.source}" for name, entry in sorted(values.items())]
    text = cluster_text(machine, values, lines, (), name=calibrated_name(machine))
    return _hand_out(file, text, {"values": to_plain(values)}, Text("\n".join(lines)), output)


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
    from layoutopt.optimizer.interop.sources import LARGEST_FILE
    from layoutopt.optimizer.specs.document import read_bytes

    found: list[NcclTable] = []
    for name in logs:
        raw = read_bytes(Path(name), max_bytes=LARGEST_FILE, wanted="output of nccl-tests")
        found += import_nccl_tests(raw.decode("utf-8", errors="replace"), name)
    suggested = suggest_calibration(found, cluster)
    for reason in suggested.skipped:
        note(f"left out: {reason}", output)
    for anomaly in suggested.anomalies:
        note(anomaly.message, output)
    return suggested.values
