"""A model, a cluster and all that decides the best layout: what commands that search have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from layoutopt.optimizer.report.commands.completion import complete_cluster, complete_model
from layoutopt.optimizer.report.commands.inputs import read_question, solve_options
from layoutopt.optimizer.report.commands.options import (
    DemandChoices,
    FrameworkOptions,
    OutputOptions,
    SearchChoices,
    SpaceChoices,
    cluster_argument,
    demand_options,
    framework_options,
    grouped,
    model_argument,
    output_options,
    search_options,
    space_options,
    workload_options,
)

if TYPE_CHECKING:
    from layoutopt.optimizer.ask.records import RunChoices
    from layoutopt.optimizer.solve.plan import SolveOptions
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionChoices:
    """What was typed of a question."""

    model: str
    cluster: str
    asked: RunChoices
    trainer: FrameworkOptions
    space: SpaceChoices
    demands: DemandChoices
    search: SearchChoices
    output: OutputOptions

    def read(self) -> tuple[Workload, ClusterSpec]:
        """Load the workload and the cluster, saying what was assumed."""
        return read_question(self.model, self.cluster, self.asked, self.output)

    def options(self) -> SolveOptions:
        """Return all else that decides the answer."""
        return solve_options(
            self.space, self.search, self.trainer, self.asked.precision, demands=self.demands
        )


question_options = grouped(
    "question", QuestionChoices,
    # Each part has become one record when this one collects them.
    model_argument, cluster_argument, workload_options, framework_options, space_options, demand_options, search_options,
    output_options,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class JobChoices:
    """How a layout was given: MODEL CLUSTER with ``--layout``, or a launch file with ``--from`` and ``--cluster``."""

    model: str | None
    cluster: str | None
    layout: str | None
    files: tuple[str, ...]
    where: str | None


job_arguments = grouped(
    "given", JobChoices,
    click.argument("model", metavar="[MODEL]", required=False, shell_complete=complete_model),
    click.argument("cluster", metavar="[CLUSTER]", required=False, shell_complete=complete_cluster),
    click.option(
        "--layout", metavar="TEXT|FILE",
        help="tp=8,pp=16,... or a layout file or plan; what is left out follows from GPUs and batch.",
    ),
    click.option(
        "--from", "files", metavar="FILE", multiple=True, type=click.Path(),
        help="Launch script or configuration of a trainer; also its config.json, node list or error log.",
    ),
    click.option(
        "--cluster", "where", metavar="CLUSTER", shell_complete=complete_cluster, help="The cluster, beside --from."
    ),
)  # fmt: skip
