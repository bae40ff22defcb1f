"""Explain a layout, or what a wish costs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from layoutopt.optimizer.solve.api import solve_layout
from layoutopt.optimizer.solve.explain.fullest import fullest_rank
from layoutopt.optimizer.solve.explain.gap import why_slower
from layoutopt.optimizer.solve.explain.path import explain_gap
from layoutopt.optimizer.solve.explain.records import Explanation, WhyNot
from layoutopt.optimizer.solve.explain.remedies import Patient, cost_of, find_remedies
from layoutopt.optimizer.solve.inputs import Question
from layoutopt.optimizer.solve.judge import judge_layout
from layoutopt.optimizer.solve.plan import SolveOptions
from layoutopt.optimizer.space.check import advise_layout
from layoutopt.optimizer.specs.vocabulary import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from layoutopt.optimizer.solve.explain.records import Gap
    from layoutopt.optimizer.solve.plan import Judgement, Plan
    from layoutopt.optimizer.solve.search.result import Progress
    from layoutopt.optimizer.space.options import Value
    from layoutopt.optimizer.space.rule import BrokenRule
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.layout import Layout
    from layoutopt.optimizer.specs.partial_layout import PartialLayout
    from layoutopt.optimizer.specs.workload import Workload

RUNS = (Verdict.FITS, Verdict.BORDERLINE)


def explain_layout(
    workload: Workload,
    cluster: ClusterSpec,
    layout: PartialLayout | Layout,
    options: SolveOptions | None = None,
    *,
    compare: bool = True,
    on_progress: Callable[[Progress], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Explanation:
    """Say why a layout is invalid, does not fit or is slow, and what the cheapest changes are.

    Parameters
    ----------
    options
        Framework, release, stated flags and cost model; restrictions of the space hold for remedies and optimum too.
    compare
        Also search for the optimum and decompose the gap to it.

    Raises
    ------
    InputError
        If the layout's degrees are no degrees.
    """
    options = options or SolveOptions()
    judgement = judge_layout(
        workload, cluster, layout,
        framework=options.framework, software=options.space.software, run_options=options.space.run, cost=options.cost,
    )  # fmt: skip
    question = Question(
        workload=workload, cluster=cluster, options=_with_precision(options, judgement.layout)
    )
    explanation = Explanation(judgement=judgement, advice=_advice(question, judgement))
    if judgement.estimate is not None:
        fullest = fullest_rank(cost_of(question), judgement.layout, judgement.estimate.memory)
        explanation = replace(explanation, fullest=fullest)
    if judgement.verdict is not Verdict.FITS:
        price = None if judgement.verdict is Verdict.INVALID else judgement.estimate
        patient = Patient(
            question=question,
            layout=judgement.layout,
            estimate=price,
            borderline=judgement.verdict is Verdict.BORDERLINE,
            should_stop=should_stop,
        )
        explanation = replace(explanation, remedies=find_remedies(patient))
    if not compare:
        return explanation
    best = solve_layout(
        workload, cluster, replace(question.options, top=1), on_progress=on_progress, should_stop=should_stop
    )
    return replace(explanation, optimum=best, gap=_gap(question, judgement, best))


def _with_precision(options: SolveOptions, layout: Layout) -> SolveOptions:
    """Compare with layouts of the same number format: another one changes what is trained."""
    return replace(options, space=replace(options.space, precisions=(layout.precision,)))


def _advice(question: Question, judgement: Judgement) -> tuple[BrokenRule, ...]:
    """Return what would cost time or memory, unless it already is a reason not to run."""
    options = question.options
    advice = advise_layout(
        judgement.layout, question.workload.model, question.workload.training, question.cluster,
        options.framework, options.space.software, options.space.run,
    )  # fmt: skip
    broken = {rule.rule for rule in judgement.broken}
    return tuple(rule for rule in advice if rule.rule not in broken)


def _gap(question: Question, judgement: Judgement, best: Plan) -> Gap | None:
    """Decompose the gap of a layout that runs."""
    if (
        judgement.verdict not in RUNS
        or judgement.estimate is None
        or best.layout is None
        or best.estimate is None
    ):
        return None
    given = (judgement.layout, judgement.estimate)
    return explain_gap(question.costed_space(), given, (best.layout, best.estimate))


def why_not(
    workload: Workload,
    cluster: ClusterSpec,
    fixed: Mapping[str, Value | tuple[Value, ...]],
    options: SolveOptions | None = None,
    *,
    best: Plan | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> WhyNot:
    """Find the best layout with some axes fixed (``{"tp": 4}``) and what that costs.

    ``best`` is the plan without the wish, solved for when it is not given. Raises InputError for an unknown axis or value.
    """
    options = options or SolveOptions()
    values = {axis: value if isinstance(value, tuple) else (value,) for axis, value in fixed.items()}
    wished = replace(options, top=1, space=replace(options.space, fix={**options.space.fix, **values}))
    plan = solve_layout(workload, cluster, wished, on_progress=on_progress, should_stop=should_stop)
    if best is None:
        best = solve_layout(
            workload, cluster, replace(options, top=1), on_progress=on_progress, should_stop=should_stop
        )
    slower = None
    if plan.estimate is not None and best.estimate is not None:
        slower = plan.estimate.step_time_s / best.estimate.step_time_s - 1.0
    return WhyNot(fixed=values, plan=plan, best=best, slower=slower, why=_why(plan, best))


def _why(plan: Plan, best: Plan) -> str:
    if plan.layout is None or plan.estimate is None:
        return plan.infeasibility.message if plan.infeasibility else "stopped before any layout was found"
    if best.layout is None or best.estimate is None:
        return "no layout was found without it"
    if plan.layout == best.layout:
        return "the optimum has it"
    return why_slower(plan.layout, plan.estimate, best.layout, best.estimate)
