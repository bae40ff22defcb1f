"""``layoutopt diagnose``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from layoutopt.optimizer.report.commands.completion import complete_model
from layoutopt.optimizer.report.commands.exit_code import ExitCode
from layoutopt.optimizer.report.commands.options import OutputOptions, output_options, workload_options
from layoutopt.optimizer.report.commands.speed_options import SpeedChoices, speed_options
from layoutopt.optimizer.report.terminal import print_json, print_tables
from layoutopt.optimizer.specs.errors import input_error

if TYPE_CHECKING:
    from layoutopt.optimizer.ask.records import RunChoices


@click.command()
@click.argument("subject", metavar="MODEL", shell_complete=complete_model)
@speed_options
@workload_options
@output_options
def command(subject: str, speed: SpeedChoices, asked: RunChoices, output: OutputOptions) -> ExitCode:
    """Say what the throughput of a run of MODEL means: MFU and HFU in every count of FLOPs that is quoted.

    layoutopt diagnose llama3-8b --gpu h100 --gpus 256 --tokens-per-s 3.2M
    """
    return _from_a_number(subject, speed, asked, output)


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
