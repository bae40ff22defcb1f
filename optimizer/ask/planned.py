"""What a run was to be: a plan that solve wrote, or a launch file on a cluster, priced."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from layoutopt.optimizer.ask.job import load_job
from layoutopt.optimizer.ask.load import load_layout
from layoutopt.optimizer.ask.records import AS_STATED, PYTHON, JobRequest, Names, RunChoices
from layoutopt.optimizer.cost.factory import build_cost_model
from layoutopt.optimizer.frameworks.preset import calibrated
from layoutopt.optimizer.solve.inputs import Question, question_from_plain
from layoutopt.optimizer.solve.plan import SolveOptions
from layoutopt.optimizer.solve.run_preset import preset_of_run
from layoutopt.optimizer.space.options import SpaceOptions
from layoutopt.optimizer.specs.document import read_text
from layoutopt.optimizer.specs.errors import input_error
from layoutopt.optimizer.specs.loading import MAX_PLAN_BYTES
from layoutopt.optimizer.specs.partial_layout import PartialLayout

if TYPE_CHECKING:
    from collections.abc import Mapping

    from layoutopt.optimizer.ask.job import Job
    from layoutopt.optimizer.cost.cost_model import CostModel
    from layoutopt.optimizer.frameworks.preset import FrameworkPreset
    from layoutopt.optimizer.frameworks.registry import Framework
    from layoutopt.optimizer.solve.plan import Plan
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.layout import Layout
    from layoutopt.optimizer.specs.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A question with the layout that ran, and its prices; ``notes`` say what was assumed while reading."""

    question: Question
    layout: Layout
    cost: CostModel
    notes: tuple[str, ...] = ()

    def repriced(self, values: Mapping[str, float]) -> CostModel:
        """Return the prices under other constants, named as a cluster's calibration names them."""
        question, framework = self.question, self.question.options.framework
        cluster = replace(question.cluster, calibration={**question.cluster.calibration, **values})
        # Host times and framework speeds stand in the preset, the others in the cluster: a constant may be either.
        preset = calibrated(self.cost.preset, framework, values)
        return build_cost_model(
            question.workload.model,
            question.workload.training,
            cluster,
            preset=preset,
            kind=question.options.cost,
        )


def load_planned(
    source: str | Path,
    *,
    cluster: str | None = None,
    layout: str | None = None,
    framework: Framework | None = None,
    software: str | None = None,
    run: RunChoices = AS_STATED,
    names: Names = PYTHON,
) -> Planned:
    """Read a plan, or a launch file that ran on ``cluster``; ``layout`` is another one than a plan's answer.

    Raises ``InputError`` with what is missing.
    """
    plain = _plan(Path(source))
    if plain is None:
        if cluster is None:
            what = "is no plan; as a launch file it needs the cluster that it ran on"
            raise input_error(what, "a plan of solve -o, or --cluster", file=str(source))
        request = JobRequest(
            cluster=cluster, layout=layout, files=(str(source),), framework=framework, software=software
        )
        return of_job(load_job(request, run, names=names))
    if layout is None and not plain.get("layout"):
        raise input_error("the plan found no layout", "--layout names one", key="layout", file=str(source))
    inputs = plain["inputs"]
    if not isinstance(inputs, dict):
        raise input_error("are no mapping", "what solve -o wrote", key="inputs", file=str(source))
    question = question_from_plain(inputs, file=str(source))
    given = load_layout(str(source) if layout is None else layout, names=names)
    whole = given.complete(question.workload, question.cluster) if isinstance(given, PartialLayout) else given
    return _of_question(question, whole)


def of_plan(workload: Workload, cluster: ClusterSpec, options: SolveOptions, plan: Plan) -> Planned:
    """Return an answer with its prices; raises ``InputError`` where it found no layout."""
    if plan.layout is None:
        raise input_error("the plan found no layout", "a layout that ran", key="layout")
    return _of_question(Question(workload=workload, cluster=cluster, options=options), plan.layout)


def _of_question(
    question: Question, layout: Layout, preset: FrameworkPreset | None = None, notes: tuple[str, ...] = ()
) -> Planned:
    options, workload = question.options, question.workload
    preset = preset or preset_of_run(
        options.framework, options.space.software, question.cluster, options.space.run
    )
    cost = build_cost_model(
        workload.model, workload.training, question.cluster, preset=preset, kind=options.cost
    )
    return Planned(question=question, layout=layout, cost=cost, notes=notes)


def of_job(job: Job) -> Planned:
    """Return a launch as a question with its layout, priced with the switches that it states."""
    space = (
        SpaceOptions(software=job.software, run=job.run) if job.run else SpaceOptions(software=job.software)
    )
    options = SolveOptions(framework=job.framework, space=space)
    question = Question(workload=job.workload, cluster=job.cluster, options=options)
    layout = job.layout
    whole = layout.complete(job.workload, job.cluster) if isinstance(layout, PartialLayout) else layout
    # The file's own switches stand in its preset; the question alone would price the trainer's defaults.
    return _of_question(question, whole, job.preset, job.notes)


def is_plan(source: str | Path) -> bool:
    """Tell a plan, which states all that was asked, from other files."""
    return _plan(Path(source)) is not None


def _plan(source: Path) -> dict[str, object] | None:
    """Return a plan's JSON, None for any other file."""
    text = read_text(source, max_bytes=MAX_PLAN_BYTES)
    # Launch scripts may be long, and no JSON parser has to read them to tell.
    if not text.lstrip().startswith("{"):
        return None
    try:
        plain = json.loads(text)
    except (ValueError, RecursionError):  # no JSON, a number of too many digits, too deep
        return None
    return plain if isinstance(plain, dict) and "inputs" in plain else None
