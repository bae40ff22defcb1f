"""``layoutopt diagnose``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from layoutopt.optimizer.report.commands.completion import complete_cluster, complete_model
from layoutopt.optimizer.report.commands.exit_code import ExitCode
from layoutopt.optimizer.report.commands.options import (
    FrameworkOptions,
    OutputOptions,
    framework_options,
    output_options,
    workload_options,
)
from layoutopt.optimizer.report.commands.profile_options import ProfileChoices, profile_options
from layoutopt.optimizer.report.commands.speed_options import SpeedChoices, speed_options
from layoutopt.optimizer.report.terminal import notes, print_json, print_tables
from layoutopt.optimizer.specs.errors import input_error

if TYPE_CHECKING:
    from layoutopt.optimizer.ask.planned import Planned
    from layoutopt.optimizer.ask.records import RunChoices
    from layoutopt.optimizer.diagnose.diagnosis import Diagnosis


@click.command()
@click.argument("subject", metavar="PLAN|LAUNCH_FILE|MODEL", shell_complete=complete_model)
@click.argument("profiles", metavar="[PROFILE...]", nargs=-1, type=click.Path(path_type=Path))
@profile_options
@click.option(
    "--cluster", metavar="CLUSTER", shell_complete=complete_cluster, help="Where a launch file ran."
)
@speed_options
@workload_options
@framework_options
@output_options
def command(
    subject: str,
    profiles: tuple[Path, ...],
    choices: ProfileChoices,
    cluster: str | None,
    speed: SpeedChoices,
    asked: RunChoices,
    trainer: FrameworkOptions,
    output: OutputOptions,
) -> ExitCode:
    """Hold a run against its plan: every term of the step predicted and measured, and the likely cause of each difference.

    PLAN is what solve -o wrote; a launch file needs --cluster. A PROFILE is a trace of PyTorch's profiler (.json, .json.gz),
    an SQLite export of Nsight Systems, or a folder of them, one per rank: layoutopt diagnose plan.json traces/

    Without profiles a throughput alone is judged: MFU and HFU in every count of FLOPs that is quoted. layoutopt diagnose
    llama3-8b --gpu h100 --gpus 256 --tokens-per-s 2.5M
    """
    if not profiles:
        if not speed.stated:
            allowed = "profiles of the run, or its speed: --tokens-per-s, --tflops or --step"
            raise input_error("nothing to diagnose", allowed, key="PROFILE")
        return _from_a_number(subject, speed, asked, output)
    planned = _planned(subject, cluster, asked, trainer)
    notes(planned.notes, output)
    found = _diagnosed(profiles, planned, choices, output)
    notes(found.notes, output)
    _show(found, output)
    return ExitCode.OK


def _planned(subject: str, cluster: str | None, asked: RunChoices, trainer: FrameworkOptions) -> Planned:
    """Read what the run was to be."""
    from layoutopt.optimizer.ask.planned import load_planned
    from layoutopt.optimizer.frameworks.registry import framework_named
    from layoutopt.optimizer.report.commands.inputs import OPTIONS, is_given

    framework = framework_named(trainer.framework) if is_given("framework") else None
    return load_planned(
        subject, cluster=cluster, framework=framework, software=trainer.software, run=asked, names=OPTIONS
    )


def _diagnosed(
    profiles: tuple[Path, ...], planned: Planned, choices: ProfileChoices, output: OutputOptions
) -> Diagnosis:
    from layoutopt.optimizer.diagnose.diagnosis import diagnose
    from layoutopt.optimizer.interop.profiles.read import read_profiles
    from layoutopt.optimizer.report.progress import reading_progress

    with reading_progress(quiet=output.quiet or output.json) as on_progress:
        read = read_profiles(profiles, choices.options(), on_progress)
    return diagnose(read, planned.cost, planned.layout)


def _show(found: Diagnosis, output: OutputOptions) -> None:
    if output.json:
        from layoutopt.optimizer.report.json_forms import diagnosis_to_plain

        print_json(diagnosis_to_plain(found))
    else:
        from layoutopt.optimizer.report.tables.diagnosis import diagnosis_tables

        print_tables(diagnosis_tables(found, verbose=output.verbose))


def _from_a_number(model: str, speed: SpeedChoices, asked: RunChoices, output: OutputOptions) -> ExitCode:
    """Judge a throughput alone."""
    from layoutopt.optimizer.diagnose.utilization import utilization
    from layoutopt.optimizer.report.commands.inputs import named, read_model

    if asked.gpus is None:
        raise input_error("missing", "the number of GPUs that the speed is of, e.g. --gpus 256", key="--gpus")
    workload = read_model(model, asked, output)
    with named(throughput="--tokens-per-s, --tflops or --step", gpu="--gpu", precision="--precision"):
        found = utilization(
            workload,
            speed.throughput(),
            gpus=asked.gpus,
            peak_flops_per_gpu=speed.peak_flops(workload.training.precision),
            repeated=speed.repeated,
        )
    if output.json:
        from layoutopt.optimizer.report.json_forms import to_plain

        print_json({"model": workload.model.name, **to_plain(found)})
    else:
        from layoutopt.optimizer.report.tables.utilization import utilization_table

        print_tables(utilization_table(found, workload.model.name))
    return ExitCode.OK
