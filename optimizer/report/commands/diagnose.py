"""``layoutopt diagnose``."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

import click

from layoutopt.optimizer.ask.records import RunChoices
from layoutopt.optimizer.report.commands.completion import complete_cluster, complete_model
from layoutopt.optimizer.report.commands.exit_code import ExitCode
from layoutopt.optimizer.report.commands.inputs import OPTIONS, is_given, named, read_model, refuse_given
from layoutopt.optimizer.report.commands.options import (
    FrameworkOptions,
    OutputOptions,
    framework_options,
    output_options,
    workload_options,
)
from layoutopt.optimizer.report.commands.paths import WRITTEN
from layoutopt.optimizer.report.commands.profile_options import (
    ProfileChoices,
    SpeedChoices,
    profile_options,
    speed_options,
)
from layoutopt.optimizer.report.commands.profiled import constants_of, diagnosed
from layoutopt.optimizer.report.terminal import note, notes, print_json, print_tables
from layoutopt.optimizer.specs.errors import input_error
from layoutopt.optimizer.specs.writing import require_writable, write_file

if TYPE_CHECKING:
    from layoutopt.optimizer.ask.planned import Planned
    from layoutopt.optimizer.diagnose.constants import TermCalibration
    from layoutopt.optimizer.diagnose.diagnosis import Diagnosis
    from layoutopt.optimizer.diagnose.log_diagnosis import LogDiagnosis
    from layoutopt.optimizer.diagnose.outlook import Outlook
    from layoutopt.optimizer.specs.model import ModelSpec

CALIBRATE, TRACE, REPORT = "--calibrate", "--trace", "--report"
OF_SPEEDS = tuple(field.name for field in fields(SpeedChoices))
OF_TRAINER = ("cluster", *(field.name for field in fields(FrameworkOptions)))
OF_LAUNCHES = (*OF_TRAINER, *(field.name for field in fields(RunChoices)))
OF_PROFILES = (*OF_TRAINER, *(field.name for field in fields(ProfileChoices)), "calibrate", "trace", "report")


@click.command()
@click.argument("subject", metavar="PLAN|LAUNCH_FILE|MODEL", shell_complete=complete_model)
@click.argument("profiles", metavar="[PROFILE...]", nargs=-1, type=click.Path(path_type=Path))
@profile_options
@click.option(
    "--cluster", metavar="CLUSTER", shell_complete=complete_cluster, help="Where a launch file ran."
)
@click.option(
    CALIBRATE,
    type=WRITTEN,
    metavar="FILE.yaml",
    help="Turn measured terms into the cluster's constants, write the cluster with them, and say what the optimum becomes.",
)
@click.option(
    TRACE,
    type=WRITTEN,
    metavar="FILE.json",
    help="Write measured and predicted step as one Chrome trace, which Perfetto opens.",
)
@click.option(
    REPORT,
    type=WRITTEN,
    metavar="FILE.html",
    help="Write a page with charts, complete in one file.",
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
    calibrate: Path | None,
    trace: Path | None,
    report: Path | None,
    speed: SpeedChoices,
    asked: RunChoices,
    trainer: FrameworkOptions,
    output: OutputOptions,
) -> ExitCode:
    """Hold a run against its plan: every term of the step predicted and measured, and the likely cause of each difference.

    PLAN is what solve -o wrote; a launch file needs --cluster. A PROFILE is a trace of PyTorch's profiler (.json, .json.gz),
    an SQLite export of Nsight Systems, or a folder of them, one per rank: layoutopt diagnose plan.json traces/

    The log of a run tells less: its step and, where timers are on (Megatron-LM's --timing-log-level 2, DeepSpeed's
    wall_clock_breakdown), the passes, sums of gradients and optimizer: layoutopt diagnose plan.json train.log

    Without profiles a throughput alone is judged: MFU and HFU in every count of FLOPs that is quoted. layoutopt diagnose
    llama3-8b --gpu h100 --gpus 256 --tokens-per-s 2.5M
    """
    if not profiles:
        if not speed.stated:
            allowed = "profiles of the run, or its speed: --tokens-per-s, --tflops or --step"
            raise input_error("nothing to diagnose", allowed, key="PROFILE")
        # An option that nothing uses would be taken for used.
        refuse_given(OF_PROFILES, "is used beside profiles alone", "PLAN PROFILE..., or a speed without it")
        return _from_a_number(subject, speed, asked, output)
    refuse_given(OF_SPEEDS, "is used without profiles alone", "MODEL with a speed, or profiles without it")
    # Before profiles are read, which takes minutes.
    for file, key in ((calibrate, CALIBRATE), (trace, TRACE), (report, REPORT)):
        require_writable(file, key=key)
    planned = _planned(subject, cluster, asked, trainer)
    notes(planned.notes, output)
    found = diagnosed(profiles, planned, choices, output)
    notes(found.notes, output)
    constants = None if calibrate is None else _calibrated(found, planned, calibrate, output)
    if trace is not None:
        from layoutopt.optimizer.diagnose.log_diagnosis import LogDiagnosis
        from layoutopt.optimizer.report.diagnosis_trace import diagnosis_trace

        if isinstance(found, LogDiagnosis):
            what = "traces of ranks: a log does not say when a kernel ran"
            raise input_error("not of a log", what, key=TRACE)

        write_file(trace, json.dumps(diagnosis_trace(found), separators=(",", ":")).encode(), key=TRACE)
        note(f"wrote {trace}", output)
    if report is not None:
        from layoutopt.optimizer.report.html.diagnosed import diagnosis_page
        from layoutopt.optimizer.report.tables.header import without

        model = planned.question.workload.model
        name = model.name + without(model.left_out)
        write_file(report, diagnosis_page(found, name).encode(), key=REPORT)
        note(f"wrote {report}", output)
    _show(found, constants, planned.question.workload.model, output)
    return ExitCode.OK


def _planned(subject: str, cluster: str | None, asked: RunChoices, trainer: FrameworkOptions) -> Planned:
    """Read what the run was to be."""
    from layoutopt.optimizer.ask.planned import is_plan, load_planned
    from layoutopt.optimizer.frameworks.registry import framework_named

    if is_plan(subject):
        refuse_given(OF_LAUNCHES, "is used with a launch file alone", "a plan states it itself")
    framework = framework_named(trainer.framework) if is_given("framework") else None
    return load_planned(
        subject, cluster=cluster, framework=framework, software=trainer.software, run=asked, names=OPTIONS
    )


def _calibrated(
    found: Diagnosis | LogDiagnosis, planned: Planned, file: Path, output: OutputOptions
) -> tuple[TermCalibration, Outlook]:
    """Read constants from the terms, write the cluster with them, and search again."""
    from layoutopt.optimizer.diagnose.outlook import outlook
    from layoutopt.optimizer.evidence.cluster_text import calibrated_name, cluster_text

    question, constants = planned.question, constants_of(found, planned)
    name = calibrated_name(question.cluster)
    text = cluster_text(
        question.cluster, constants.values, constants.lines, constants.observations, name=name
    )
    write_file(file, text.encode(), key=CALIBRATE)
    note(f"wrote {file}", output)
    return constants, outlook(question, constants)


def _show(
    found: Diagnosis | LogDiagnosis,
    constants: tuple[TermCalibration, Outlook] | None,
    model: ModelSpec,
    output: OutputOptions,
) -> None:
    if output.json:
        from layoutopt.optimizer.report import json_forms

        plain = json_forms.run_diagnosis_to_plain(found)
        if constants:
            plain |= json_forms.term_calibration_to_plain(*constants)
        print_json(json_forms.with_remarks(plain, model))
        return
    from layoutopt.optimizer.report.tables.diagnosis import run_diagnosis_tables
    from layoutopt.optimizer.report.tables.term_calibration import term_calibration_tables

    print_tables(run_diagnosis_tables(found, verbose=output.verbose))
    if constants:
        print_tables(term_calibration_tables(*constants))


def _from_a_number(model: str, speed: SpeedChoices, asked: RunChoices, output: OutputOptions) -> ExitCode:
    """Judge a throughput alone."""
    from layoutopt.optimizer.diagnose.utilization import utilization

    if asked.gpus is None:
        raise input_error("missing", "the number of GPUs that the speed is of, e.g. --gpus 256", key="--gpus")
    workload = read_model(model, asked, output)
    with named(
        throughput="--tokens-per-s, --tflops or --step",
        repeated="--repeated",
        gpu="--gpu",
        precision="--precision",
    ):
        found = utilization(
            workload,
            speed.throughput(),
            gpus=asked.gpus,
            peak_flops_per_gpu=speed.peak_flops(workload.training.precision),
            repeated=speed.repeated,
        )
    if output.json:
        from layoutopt.optimizer.report.json_forms import to_plain, with_remarks

        print_json(with_remarks({"model": workload.model.name, **to_plain(found)}, workload.model))
    else:
        from layoutopt.optimizer.report.tables.diagnosis import utilization_table

        print_tables(utilization_table(found, workload.model.name))
    return ExitCode.OK
