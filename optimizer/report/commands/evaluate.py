"""``layoutopt evaluate``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from layoutopt.optimizer.report.commands.exit_code import OF_VERDICT, ExitCode
from layoutopt.optimizer.report.commands.options import (
    DemandChoices,
    FrameworkOptions,
    OutputOptions,
    demand_options,
    framework_options,
    output_options,
    workload_options,
)
from layoutopt.optimizer.report.commands.question import job_arguments
from layoutopt.optimizer.report.terminal import print_json, print_tables

if TYPE_CHECKING:
    from layoutopt.optimizer.ask.job import Job
    from layoutopt.optimizer.ask.records import RunChoices
    from layoutopt.optimizer.report.commands.question import JobChoices
    from layoutopt.optimizer.solve.plan import Judgement


@click.command()
@job_arguments
@workload_options
@framework_options
@demand_options
@output_options
def command(
    given: JobChoices,
    asked: RunChoices,
    trainer: FrameworkOptions,
    demands: DemandChoices,
    output: OutputOptions,
) -> ExitCode:
    """Price a layout of MODEL on CLUSTER and judge whether it can be launched and fits.

    The verdict is fits, borderline (95 to 100% of usable memory), does_not_fit or invalid, with every reason. With --from
    a launch file says what is trained in which layout: layoutopt evaluate --from train.sh --cluster h100-256. With --json
    the collectives of a rank of every pipeline stage are counted: axis, kind, ranks, calls in a step and bytes of one.
    """
    from layoutopt.optimizer.cost.factory import CostKind
    from layoutopt.optimizer.report.commands.inputs import named, read_job
    from layoutopt.optimizer.solve.judge import judge_layout

    job = read_job(given, asked, trainer, output)
    with named(require="--require", gpu_hour_cost="--gpu-hour-cost"):
        judgement = judge_layout(
            job.workload,
            job.cluster,
            job.layout,
            framework=job.framework,
            software=job.software,
            run_options=job.run,
            cost=CostKind(trainer.cost_model),
            preset=job.preset,
            require=demands.require,
            gpu_hour_cost=demands.gpu_hour_cost,
        )
    _print(judgement, job, trainer, output)
    return OF_VERDICT[judgement.verdict.value]


def _print(judgement: Judgement, job: Job, trainer: FrameworkOptions, output: OutputOptions) -> None:
    from layoutopt.optimizer.cost.factory import CostKind, pricing_preset
    from layoutopt.optimizer.evidence.honesty import assess_layout

    honesty = assess_layout(
        judgement.layout,
        job.workload,
        job.cluster,
        framework=job.framework,
        cost=CostKind(trainer.cost_model),
    )
    if output.json:
        from layoutopt.optimizer.report.json_forms import to_plain, with_interval

        print_json(with_interval(to_plain(judgement), honesty))
        return
    from layoutopt.optimizer.report.tables.answer import judgement_tables
    from layoutopt.optimizer.solve.run_preset import preset_of_run

    # A launch file's switches decide what divides its states; the trainer's defaults may not.
    stated = job.preset or preset_of_run(job.framework, job.software, job.cluster, job.run)
    preset = pricing_preset(stated, job.workload.model, job.workload.training, CostKind(trainer.cost_model))
    tables = judgement_tables(
        judgement, job.workload, job.cluster, preset,
        framework=job.framework.value, honesty=honesty, verbose=output.verbose,
    )  # fmt: skip
    print_tables(tables)
