"""The published reference layouts: what the model says of them, and how far they are from its own optimum."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib import resources
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.evidence.assumptions import Assumption, built_in
from layoutopt.optimizer.evidence.case import Case
from layoutopt.optimizer.evidence.cases import build_case
from layoutopt.optimizer.evidence.predict import price
from layoutopt.optimizer.evidence.table import parse_runs
from layoutopt.optimizer.solve.api import solve_layout
from layoutopt.optimizer.solve.explain.path import explain_gap
from layoutopt.optimizer.solve.inputs import Question
from layoutopt.optimizer.solve.judge import memory_verdict
from layoutopt.optimizer.solve.plan import SolveOptions
from layoutopt.optimizer.solve.verify.room import may_be_below
from layoutopt.optimizer.space.axes import DEFAULT_SCHEDULES
from layoutopt.optimizer.space.options import SpaceOptions
from layoutopt.optimizer.specs.document import packaged
from layoutopt.optimizer.specs.workload import Workload

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from layoutopt.optimizer.cost.estimate import Estimate
    from layoutopt.optimizer.evidence.run import MeasuredRun
    from layoutopt.optimizer.solve.explain.records import Gap
    from layoutopt.optimizer.solve.plan import Plan
    from layoutopt.optimizer.solve.search.result import Progress
    from layoutopt.optimizer.specs.vocabulary import Schedule, Verdict

CHUNKS = (1, 2, 4, 8)
"""Virtual stages for which a layout is priced whose number is not published."""

_ROWS = 4096
"""Degree rows whose optimistic terms are computed at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A published layout and its price under the stated assumptions.

    ``by_vp`` holds step times for other numbers of virtual stages where the published one is unknown.
    ``assumed`` names the cells that the source leaves empty.
    """

    case: Case
    estimate: Estimate
    verdict: Verdict
    by_vp: Mapping[int, float]
    assumed: tuple[str, ...]

    @property
    def error(self) -> float:
        """Predicted over published step time, less 1."""
        return self.estimate.step_time_s / (self.case.measured_s or np.nan) - 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Distance:
    """A published layout beside the optimum of the same model, cluster and batch.

    ``slower`` is its predicted time over the optimum's, less 1. At most ``faster_rows`` of ``rows`` degree rows
    hold a faster layout; none is possible in the others. ``gap`` decomposes the difference, ``reasons`` says
    what the authors state about the choices that differ, ``authors`` where.
    """

    plan: Plan
    slower: float | None
    faster_rows: int
    rows: int
    gap: Gap | None
    reasons: Mapping[str, str]
    authors: str = ""


def reference_runs() -> tuple[MeasuredRun, ...]:
    """Return the rows of the published layouts that every release is compared with."""
    data = resources.files("layoutopt.optimizer.evidence").joinpath("reference_runs.csv").read_bytes()
    return parse_runs(data, "reference_runs.csv")


def references() -> list[Reference]:
    """Price every published layout under the package's stated assumptions."""
    return [reference_of(run, built_in("reference")) for run in reference_runs()]


def reference_of(run: MeasuredRun, assumptions: tuple[Assumption, ...] = ()) -> Reference:
    """Price one published layout; ``assumptions`` fill what its row leaves open."""
    case = _case(run, assumptions)
    estimate = price(case)
    return Reference(
        case=case,
        estimate=estimate,
        verdict=memory_verdict(estimate.memory),
        by_vp=_by_chunks(run) if "vp" in case.assumed and case.layout.vp > 1 else {},
        assumed=case.assumed,
    )


def _case(run: MeasuredRun, assumptions: tuple[Assumption, ...]) -> Case:
    case = build_case(run, assumptions)
    if not isinstance(case, Case):
        raise TypeError(f"{run.id}: {case.reason}")  # a packaging mistake: rows and assumptions ship together
    return case


def _by_chunks(run: MeasuredRun) -> dict[int, float]:
    stated = [one for one in built_in("reference") if one.concerns(run)]
    open_run = replace(run, schedule=None)  # one chunk does not interleave
    seconds = {}
    for chunks in CHUNKS:
        assumptions = tuple(replace(one, values={**one.values, "vp": chunks}) for one in stated)
        seconds[chunks] = price(_case(open_run, assumptions)).step_time_s
    return seconds


def distance(
    reference: Reference,
    *,
    time_limit_s: float = float("inf"),
    workers: int = 1,
    on_progress: Callable[[Progress], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Distance:
    """Search the freest space with the authors' preset, and say how the published layout compares.

    The search has the same model, cluster, batch, number format and software release, and the authors' schedule beside
    the usual ones.
    """
    question = _question(reference.case, time_limit_s, workers)
    plan = solve_layout(
        question.workload,
        question.cluster,
        question.options,
        on_progress=on_progress,
        should_stop=should_stop,
    )
    # Also of a search that was stopped: bounds tell how many rows could hold anything faster, without solving them.
    faster, rows = _faster_rows(question, reference.estimate.step_time_s)
    if plan.layout is None or plan.estimate is None:
        return Distance(plan=plan, slower=None, faster_rows=faster, rows=rows, gap=None, reasons={})
    given, best = (reference.case.layout, reference.estimate), (plan.layout, plan.estimate)
    gap = explain_gap(question.costed_space(), given, best)
    # What the authors say of a choice that both layouts share explains no difference.
    axes = {axis for step in gap.steps for axis in step.axes}
    stated, authors = _stated_reasons(reference.case.run.id)
    return Distance(
        plan=plan,
        slower=reference.estimate.step_time_s / plan.estimate.step_time_s - 1.0,
        faster_rows=faster,
        rows=rows,
        gap=gap,
        reasons={axis: why for axis, why in stated.items() if axis in axes},
        authors=authors,
    )


def _question(case: Case, time_limit_s: float, workers: int) -> Question:
    options = SolveOptions(
        framework=case.framework,
        space=SpaceOptions(
            software=case.software,
            precisions=(case.layout.precision,),
            schedules=_schedules(case.layout.schedule),
        ),
        top=1,
        time_limit_s=time_limit_s,
        workers=workers,
    )
    workload = Workload(model=case.model, training=case.training)
    return Question(workload=workload, cluster=case.cluster, options=options)


def _schedules(published: Schedule) -> tuple[Schedule, ...]:
    """Return the schedules to search: the usual ones and the authors' own."""
    return tuple(dict.fromkeys((*DEFAULT_SCHEDULES, published)))


def _faster_rows(question: Question, step_time_s: float) -> tuple[int, int]:
    """Count the degree rows that may hold a layout faster than ``step_time_s``, and all of them."""
    source = question.costed_space()
    degrees, faster = source.degrees, 0
    for start in range(0, len(degrees), _ROWS):
        rows = degrees.take(np.arange(start, min(start + _ROWS, len(degrees))))
        faster += int(may_be_below(source.relaxed(rows), source.counts, step_time_s).sum())
    return faster, len(degrees)


def _stated_reasons(run_id: str) -> tuple[dict[str, str], str]:
    """Return what the authors say of each choice, and where."""
    for entry in packaged("evidence", "published"):
        if run_id in entry["ids"]:
            return entry["reasons"], entry["source"]
    return {}, ""
