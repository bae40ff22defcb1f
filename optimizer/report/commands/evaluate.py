"""``layoutopt evaluate``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from layoutopt.optimizer.report.commands.exit_code import ExitCode
from layoutopt.optimizer.report.commands.inputs import read_layout, read_question
from layoutopt.optimizer.report.commands.options import (
    FrameworkOptions,
    OutputOptions,
    WorkloadOptions,
    cluster_argument,
    framework_options,
    model_argument,
    output_options,
    workload_options,
)
from layoutopt.optimizer.report.commands.output import print_json, print_tables

if TYPE_CHECKING:
    from layoutopt.optimizer.solve.plan import Judgement
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.workload import Workload

CODES = {
    "fits": ExitCode.OK,
    "borderline": ExitCode.OK,
    "does_not_fit": ExitCode.REJECTED,
    "invalid": ExitCode.REJECTED,
}


@click.command()
@model_argument
@cluster_argument
@click.option(
    "--layout", "stated", required=True, metavar="TEXT|FILE",
    help="tp=8,pp=16,... or a layout file or plan; what is left out follows from GPUs and batch.",
)  # fmt: skip
@workload_options
@framework_options
@output_options
def command(
    model: str,
    cluster: str,
    stated: str,
    asked: WorkloadOptions,
    trainer: FrameworkOptions,
    output: OutputOptions,
) -> ExitCode:
    """Price a layout of MODEL on CLUSTER and judge whether it can be launched and fits.

    The verdict is fits, borderline (95 to 100% of usable memory), does_not_fit or invalid, with every reason.
    """
    from layoutopt.optimizer.cost.factory import CostKind
    from layoutopt.optimizer.solve.judge import judge_layout
    from layoutopt.optimizer.specs.vocabulary import Framework

    workload, machine = read_question(model, cluster, asked)
    judgement = judge_layout(
        workload,
        machine,
        read_layout(stated),
        framework=Framework(trainer.framework),
        software=trainer.software,
        cost=CostKind(trainer.cost_model),
    )
    _print(judgement, workload, machine, trainer, output)
    return CODES[judgement.verdict.value]


def _print(
    judgement: Judgement,
    workload: Workload,
    cluster: ClusterSpec,
    trainer: FrameworkOptions,
    output: OutputOptions,
) -> None:
    if output.json:
        from layoutopt.optimizer.report.plain_plan import judgement_to_plain

        print_json(judgement_to_plain(judgement))
        return
    from layoutopt.optimizer.cost.factory import CostKind
    from layoutopt.optimizer.report.commands.pricing import preset_of
    from layoutopt.optimizer.report.tables.verdict import judgement_tables
    from layoutopt.optimizer.specs.vocabulary import Framework

    framework, kind = Framework(trainer.framework), CostKind(trainer.cost_model)
    preset = preset_of(workload, cluster, framework, trainer.software, kind)
    print_tables(judgement_tables(judgement, workload, cluster, preset, framework=framework.value))
