"""``layoutopt explain``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from layoutopt.optimizer.report.commands.exit_code import OF_VERDICT, ExitCode
from layoutopt.optimizer.report.commands.options import (
    FrameworkOptions,
    OutputOptions,
    framework_options,
    output_options,
    workload_options,
)
from layoutopt.optimizer.report.commands.question import job_arguments
from layoutopt.optimizer.report.commands.searching import watched
from layoutopt.optimizer.report.terminal import print_json, print_tables

if TYPE_CHECKING:
    from layoutopt.optimizer.ask.job import Job
    from layoutopt.optimizer.ask.records import RunChoices
    from layoutopt.optimizer.report.commands.question import JobChoices
    from layoutopt.optimizer.solve.explain.records import Explanation, WhyNot
    from layoutopt.optimizer.solve.plan import SolveOptions


@click.command()
@job_arguments
@click.option(
    "--why-not", "wishes", multiple=True, metavar="AXIS=V[,AXIS=V]",
    help="What the best layout with these values costs, e.g. tp=4.",
)  # fmt: skip
@click.option("--no-compare", is_flag=True, help="Leave the optimum and the gap to it out.")
@workload_options
@framework_options
@output_options
def command(
    given: JobChoices,
    wishes: tuple[str, ...],
    no_compare: bool,
    asked: RunChoices,
    trainer: FrameworkOptions,
    output: OutputOptions,
) -> ExitCode:
    """Say why a layout of MODEL on CLUSTER is invalid, does not fit or is slow, and what would help.

    Every remedy is one change with the rest of the layout held, solved to the optimum and ranked by its predicted
    slow-down. The gap to the optimum is split into single changes. --from takes a launch file, and beside it the error
    log of a job that ran out of memory.
    """
    from layoutopt.optimizer.report.commands.inputs import axis_values, read_job

    fixed = [axis_values("--why-not", (wish,)) for wish in wishes]
    job = read_job(given, asked, trainer, output)
    options = _options(job, trainer)
    explanation = _explain(job, options, output, compare=not no_compare)
    answers = [_wish(job, values, options, explanation) for values in fixed]
    _print(explanation, answers, job, options, output)
    return OF_VERDICT[explanation.judgement.verdict.value]


def _options(job: Job, trainer: FrameworkOptions) -> SolveOptions:
    from layoutopt.optimizer.cost.factory import CostKind
    from layoutopt.optimizer.solve.plan import SolveOptions
    from layoutopt.optimizer.space.context import RunOptions
    from layoutopt.optimizer.space.options import SpaceOptions

    space = SpaceOptions(software=job.software, run=job.run or RunOptions())
    return SolveOptions(framework=job.framework, space=space, cost=CostKind(trainer.cost_model), top=1)


def _explain(job: Job, options: SolveOptions, output: OutputOptions, *, compare: bool) -> Explanation:
    """Explain with progress on stderr; Ctrl-C ends the search for the optimum."""
    from layoutopt.optimizer.solve.explain.api import explain_layout

    with watched(output) as watch:
        return explain_layout(
            job.workload,
            job.cluster,
            job.layout,
            options,
            compare=compare,
            on_progress=watch.on_progress,
            should_stop=watch.should_stop,
        )


def _wish(
    job: Job, values: dict[str, tuple[int | str, ...]], options: SolveOptions, found: Explanation
) -> WhyNot:
    from layoutopt.optimizer.solve.explain.api import why_not

    # Under the layout's own precision: another one would answer another question.
    space = replace(options.space, precisions=(found.judgement.layout.precision,))
    return why_not(job.workload, job.cluster, values, replace(options, space=space), best=found.optimum)


def _print(
    found: Explanation, wishes: list[WhyNot], job: Job, options: SolveOptions, output: OutputOptions
) -> None:
    from layoutopt.optimizer.evidence.honesty import assess_layout

    honesty = assess_layout(
        found.judgement.layout, job.workload, job.cluster, framework=job.framework, cost=options.cost
    )
    if output.json:
        from layoutopt.optimizer.report.json_forms import explanation_to_plain

        print_json(explanation_to_plain(found, wishes, job.died, honesty))
        return
    from layoutopt.optimizer.report.tables.explain import explanation_tables

    print_tables(
        explanation_tables(
            found,
            job.workload,
            job.cluster,
            framework=job.framework.value,
            wishes=wishes,
            died=job.died,
            honesty=honesty,
        )
    )
