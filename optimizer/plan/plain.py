"""The machine-readable form of training plans for ``--json``; keys that do not change."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.specs.canonical import to_plain

if TYPE_CHECKING:
    from layoutopt.optimizer.cost.budget import Budget
    from layoutopt.optimizer.plan.fault_plan import CheckpointSchedule, FaultPlan
    from layoutopt.optimizer.plan.recipe import Recipe
    from layoutopt.optimizer.plan.training_plan import PhasePlan, TrainingPlan
    from layoutopt.optimizer.plan.watch import WatchList

Plain = dict[str, Any]
BAND = ("low", "expected", "high")


def training_plan_to_plain(plan: TrainingPlan) -> Plain:
    """Write a training plan: every phase, the budget, failures, and what to expect. Infinite times are null."""
    return {
        "model": plan.model,
        "cluster": plan.cluster,
        "gpus": plan.gpus,
        "parameters": plan.parameters,
        "relative_error": plan.relative_error,
        "gpu_hour_cost": plan.gpu_hour_cost,
        "budget": budget_to_plain(plan.budget),
        "phases": [_phase(phase) for phase in plan.phases],
        "faults": faults_to_plain(plan.faults),
        "expected_days": _finite(plan.expected_days),
        "expected_cost": None if plan.expected_cost is None else _finite(plan.expected_cost),
    }


def budget_to_plain(budget: Budget) -> Plain:
    """Write a budget; ``total_flops`` counts full attention."""
    return asdict(budget)


def faults_to_plain(faults: FaultPlan) -> Plain:
    """Write failures and checkpoints; ``schedules`` has the better mode first."""
    return {
        "gpu_hours_per_failure": faults.gpu_hours_per_failure,
        "mtbf_s": faults.mtbf_s,
        "checkpoint": asdict(faults.checkpoint),
        "schedules": [_schedule(schedule) for schedule in faults.schedules],
        "spare_nodes": faults.spare_nodes,
        "simulated": None if faults.simulated is None else asdict(faults.simulated),
        "simulated_with_error": None
        if faults.simulated_with_error is None
        else asdict(faults.simulated_with_error),
        "goodput": [asdict(point) | {"mode": point.mode.value} for point in faults.curve],
    }


def _schedule(schedule: CheckpointSchedule) -> Plain:
    plain = asdict(schedule) | {"mode": schedule.mode.value}
    plain |= {name: _finite(plain[name]) for name in ("wall_s", "failures")}
    plain["waste"]["total"] = schedule.waste.total
    return plain


def _phase(phase: PhasePlan) -> Plain:
    return {
        "name": phase.name,
        "sequence_length": phase.training.sequence_length,
        "global_batch": phase.training.global_batch,
        "status": phase.plan.status.value,
        "gap": phase.plan.gap,
        "step_time_s": phase.estimate.step_time_s,
        "mfu_causal": phase.estimate.mfu_causal,
        "mfu_full": phase.estimate.mfu_full,
        "layout": to_plain(phase.layout),
        "budget": budget_to_plain(phase.budget),
        "recipe": _recipe(phase.baseline.recipe)
        | {
            "slower": phase.baseline.slower,
            "days_saved": phase.baseline.days_saved,
            "cost_saved": phase.baseline.cost_saved,
        },
        "watch": watch_to_plain(phase.watch),
    }


def _recipe(recipe: Recipe) -> Plain:
    judged = recipe.judgement
    estimate = judged.estimate if judged else None
    return {
        "steps": list(recipe.steps),
        "layout": to_plain(judged.layout) if judged else None,
        "verdict": judged.verdict.value if judged else None,
        "step_time_s": estimate.step_time_s if estimate else None,
    }


def watch_to_plain(watch: WatchList) -> Plain:
    """Write a watch list; bands are low, expected and high."""
    bands = ("step_time_s", "tokens_per_s", "mfu_causal", "mfu_full")
    plain = asdict(watch)
    plain |= {name: dict(zip(BAND, getattr(watch, name), strict=True)) for name in bands}
    return plain | {"step_spread": dict(zip(("low", "high"), watch.step_spread, strict=True))}


def _finite(value: float) -> float | None:
    """Return None for infinity, which JSON doesn't have."""
    return value if value < float("inf") else None
