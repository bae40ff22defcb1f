"""Solve one point, wherever it runs; whatever goes wrong becomes an answer with an error."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf, isfinite
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.solve.api import solve_layout
from layoutopt.optimizer.solve.certificate import Status
from layoutopt.optimizer.solve.inputs import cost_model_digest
from layoutopt.optimizer.solve.judge import judge_if_runs
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.sweep.rows import Outcome, answer_columns, failed_outcome, pack_plan, sure_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from layoutopt.optimizer.solve.inputs import Question
    from layoutopt.optimizer.solve.plan import Plan
    from layoutopt.optimizer.specs.layout import Layout

    ShouldStop = Callable[[], bool]
    PlanWriter = Callable[[Plan], dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One point to solve, small enough to send: its key, its question, and a neighbouring size's layout.

    ``cost_model`` is the digest of the cost model that the key was made with.
    """

    key: str
    question: Question
    neighbour: Layout | None
    cost_model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SolveWork:
    """What every executor calls on every task. ``write_plan`` turns a plan into plain data to store."""

    write_plan: PlanWriter

    def __call__(self, task: Task, should_stop: ShouldStop | None = None) -> Outcome:
        """Solve a task; never raises for what a task may cause."""
        try:
            if cost_model_digest() != task.cost_model:
                return failed_outcome(task.key, "the worker has another version of the cost model")
            plan, warm = solve_point(task.question, task.neighbour, should_stop)
            columns = answer_columns(plan) | sure_columns(plan, task.question) | {"warm_started": int(warm)}
            return Outcome(key=task.key, columns=columns, plan=pack_plan(self.write_plan(plan)))
        except InputError as error:
            return failed_outcome(task.key, "; ".join(str(problem) for problem in error.problems))
        except Exception as error:  # one bad point must not end a sweep of thousands
            return failed_outcome(task.key, f"{type(error).__name__}: {error}")


def solve_point(
    question: Question, neighbour: Layout | None, should_stop: ShouldStop | None = None
) -> tuple[Plan, bool]:
    """Solve a question, from a neighbouring size's layout where it helps; tell whether it did.

    A warm start is a step time that some layout reaches. Should the space not hold that layout, nothing may
    be found below it, and the question is solved without.
    """
    upper = warm_start_s(question, neighbour) if neighbour is not None else inf
    options = replace(question.options, warm_start_s=min(upper, question.options.warm_start_s))
    plan = solve_layout(question.workload, question.cluster, options, should_stop=should_stop)
    if plan.layout is None and plan.status is not Status.STOPPED and isfinite(upper):
        plan = solve_layout(question.workload, question.cluster, question.options, should_stop=should_stop)
        return plan, False
    return plan, isfinite(upper)


SLACK = 1e-3
"""Relative distance kept from the priced step time. CP-SAT took up to 40 times longer with a limit within
1e-6 of the optimum (llama3-70b on 512 to 2,048 H100), where it tells apart layouts that hardly differ."""

GROWN_AXES = ("dp", "cp", "tp")
"""Axes over which more GPUs may be spread without touching the stages."""


def warm_start_s(question: Question, neighbour: Layout) -> float:
    """Return a step time that a valid, fitting layout reaches on the question's cluster; infinity if unknown.

    The layout of a neighbouring size is spread over the cluster by growing or shrinking one axis, then judged
    and priced like any given layout.
    """
    best = inf
    for layout in _adapted(question, neighbour):
        if not _allowed(question, layout):
            continue
        try:
            best = min(best, _priced_s(question, layout))
        except InputError:
            continue
    return best * (1 + SLACK)


def _adapted(question: Question, layout: Layout) -> Iterator[Layout]:
    """Yield the layout with one axis changed so that it uses every GPU, where degrees stay whole."""
    gpus, batch = question.cluster.gpu_count, question.workload.training.global_batch
    for axis in GROWN_AXES:
        degree, rest = divmod(getattr(layout, axis) * gpus, layout.gpus)
        if rest or degree < 1:
            continue
        changed = replace(layout, **{axis: degree})
        micro_batches, rest = divmod(batch, changed.dp * changed.micro_batch)
        # Sequence parallelism is a layout's only with tensor parallelism; what had none of either is given both, as usual.
        sp = changed.tp > 1 and (layout.sp or layout.tp == 1)
        if not rest and micro_batches:
            yield replace(changed, micro_batches=micro_batches, sp=sp)


def _allowed(question: Question, layout: Layout) -> bool:
    """Tell whether the restrictions of the space leave every degree; the neighbour met the others."""
    allows = question.options.space.allows
    degrees = ("tp", "cp", "pp", "vp", "dp", "ep", "etp", "zero", "micro_batch", "micro_batches")
    return all(allows(axis, getattr(layout, axis)) for axis in degrees)


def _priced_s(question: Question, layout: Layout) -> float:
    judged = judge_if_runs(layout, question.workload, question.cluster, question.options, demanded=True)
    return inf if judged is None or judged.estimate is None else judged.estimate.step_time_s
