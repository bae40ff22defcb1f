"""The whole plan of a training run: phases, budget, failures, baseline, and what to watch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from layoutopt.optimizer.cost.budget import Budget, training_budget
from layoutopt.optimizer.cost.parameters import model_parameters
from layoutopt.optimizer.plan.fault_plan import FaultPlan, expected_wall_s, plan_faults
from layoutopt.optimizer.plan.options import PlanOptions
from layoutopt.optimizer.plan.recipe import Recipe, VendorLayout, recipe_layout, vendor_layout
from layoutopt.optimizer.plan.watch import WatchList, watch_list
from layoutopt.optimizer.solve.api import solve_layout
from layoutopt.optimizer.specs.errors import input_error
from layoutopt.optimizer.specs.units import DAY_S

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from layoutopt.optimizer.cost.estimate import Estimate
    from layoutopt.optimizer.solve.plan import Plan, SolveOptions
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.layout import Layout
    from layoutopt.optimizer.specs.model import TrainingSpec
    from layoutopt.optimizer.specs.workload import Workload

    Solve = Callable[[Workload, ClusterSpec, SolveOptions], Plan]

MAIN_PHASE = "main"


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """The rule-of-thumb layout beside the optimum.

    ``slower`` is its step time over the optimum's, less one; ``days_saved`` what the optimum saves over the
    phase, ``cost_saved`` in the currency of the GPU-hour. All None where the recipe leads to nothing that fits.
    ``vendor`` is the layout that a vendor publishes for the model, None where none is known or runs, and ``vendor_slower``
    its step time over the optimum's, less one.
    """

    recipe: Recipe
    slower: float | None
    days_saved: float | None
    cost_saved: float | None
    vendor: VendorLayout | None = None
    vendor_slower: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PhasePlan:
    """One phase: its workload, its layout with price, and its budget without failures."""

    name: str
    training: TrainingSpec
    plan: Plan
    layout: Layout
    estimate: Estimate
    budget: Budget
    baseline: Baseline
    watch: WatchList


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPlan:
    """A run from the first to the last token.

    ``budget`` sums the phases without failures, ``faults`` adds what failures cost. ``expected_days`` is the
    wall-clock time with failures, exact for exponential ones; ``expected_cost`` its price. ``step_ratio`` is the range of
    the true step time over the predicted one, four fifths of measured runs, or ``relative_error`` to either side where that
    was assumed.
    """

    model: str
    cluster: str
    gpus: int
    parameters: float
    phases: tuple[PhasePlan, ...]
    budget: Budget
    relative_error: float | None
    step_ratio: tuple[float, float]
    gpu_hour_cost: float | None
    faults: FaultPlan
    expected_days: float
    expected_cost: float | None


def phase_workloads(workload: Workload) -> tuple[tuple[str, Workload], ...]:
    """Return every phase as a workload of its own, in order: the main training first, then ``phases``."""
    main = replace(workload, phases=(), phase_names=())
    names = workload.phase_names or tuple(f"phase {index + 2}" for index in range(len(workload.phases)))
    later = tuple(
        (name, replace(main, training=training))
        for name, training in zip(names, workload.phases, strict=True)
    )
    return ((MAIN_PHASE, main), *later)


def make_training_plan(
    workload: Workload,
    cluster: ClusterSpec,
    plan: Plan,
    options: PlanOptions | None = None,
    *,
    phase_plans: Sequence[Plan] | None = None,
    solve: Solve = solve_layout,
) -> TrainingPlan:
    """Turn the answer of a solve into the plan of a run.

    Parameters
    ----------
    workload, cluster
        The question; the workload may have phases beside its main training.
    plan
        The answer for the main training.
    phase_plans
        Answers for the later phases in order; None solves them with ``options.solve``.
    solve
        How phases are solved.

    Raises
    ------
    InputError
        If a phase states no tokens, or nothing fits in one of them.
    """
    options = options or PlanOptions()
    phases = phase_workloads(workload)
    # Before anything is solved: a later phase without tokens would be found after minutes.
    _require_tokens(phases)
    answers = [plan, *(phase_plans or (solve(part, cluster, options.solve) for _, part in phases[1:]))]
    planned = tuple(
        _phase(name, part, cluster, answer, options)
        for (name, part), answer in zip(phases, answers, strict=True)
    )
    budget = planned[0].budget
    for phase in planned[1:]:
        budget = budget + phase.budget
    parameters = model_parameters(workload.model, with_mtp=True)
    # Failures come with the GPUs at work; phases may use different numbers.
    gpus = max(phase.layout.gpus for phase in planned)
    faults = plan_faults(budget.days * DAY_S, parameters, gpus, cluster, options)
    parts = [(phase.budget.days * DAY_S, phase.layout) for phase in planned]
    days = expected_wall_s(parts, workload.model, cluster, faults) / DAY_S
    price = options.gpu_hour_cost
    return TrainingPlan(
        model=workload.model.name,
        cluster=cluster.name,
        gpus=gpus,
        parameters=parameters,
        phases=planned,
        budget=budget,
        relative_error=None if options.step_ratios else options.relative_error,
        step_ratio=options.step_ratio,
        gpu_hour_cost=price,
        faults=faults,
        expected_days=days,
        # GPUs that the layout leaves idle are paid for too.
        expected_cost=None if price is None else days * 24 * cluster.gpu_count * price,
    )


def _require_tokens(phases: Sequence[tuple[str, Workload]]) -> None:
    """Check that every phase says how long it is, before anything is solved."""
    for index, (name, part) in enumerate(phases):
        if not part.training.total_tokens:
            place = "training" if index == 0 else f"phases[{index - 1}]"
            what = f"{name}: a training plan needs the number of tokens"
            raise input_error(what, "total_tokens, e.g. 15.6e12, or --tokens", key=f"{place}.total_tokens")


def _phase(name: str, part: Workload, cluster: ClusterSpec, answer: Plan, options: PlanOptions) -> PhasePlan:
    """Plan one phase from its answer. GPUs that the layout leaves idle are paid for all the same."""
    if answer.layout is None or answer.estimate is None:
        why = answer.infeasibility.message if answer.infeasibility else "the search was stopped too early"
        raise input_error(f"{name}: there is no layout to plan with: {why}", key="plan")
    budget = training_budget(
        part.model,
        part.training,
        cluster,
        step_time_s=answer.estimate.step_time_s,
        gpus=cluster.gpu_count,
        step_ratio=options.step_ratio,
        gpu_hour_cost=options.gpu_hour_cost,
    )
    return PhasePlan(
        name=name,
        training=part.training,
        plan=answer,
        layout=answer.layout,
        estimate=answer.estimate,
        budget=budget,
        baseline=_baseline(part, cluster, answer.estimate.step_time_s, budget, options),
        watch=watch_list(part, cluster, answer.layout, answer.estimate, options.solve, options.step_ratio),
    )


def _baseline(
    part: Workload, cluster: ClusterSpec, step_time_s: float, budget: Budget, options: PlanOptions
) -> Baseline:
    recipe, vendor = recipe_layout(part, cluster, options.solve), vendor_layout(part, cluster, options.solve)
    vendor_s = (
        None if vendor is None or vendor.judgement.estimate is None else vendor.judgement.estimate.step_time_s
    )
    judged = recipe.judgement
    slower = (
        None if judged is None or judged.estimate is None else judged.estimate.step_time_s / step_time_s - 1
    )
    return Baseline(
        recipe=recipe,
        slower=slower,
        days_saved=None if slower is None else budget.days * slower,
        cost_saved=None if slower is None or budget.cost is None else budget.cost * slower,
        vendor=vendor,
        vendor_slower=None if vendor_s is None else vendor_s / step_time_s - 1,
    )
