"""The machine-readable form of plans, verdicts and spaces for ``--json``; keys that do not change."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING

from layoutopt.optimizer.report.plain import Plain, estimate_to_plain, layout_to_plain

if TYPE_CHECKING:
    from layoutopt.optimizer.evidence.honesty import Honesty
    from layoutopt.optimizer.solve.plan import Alternative, Infeasibility, Judgement, Plan
    from layoutopt.optimizer.space.enumeration import Space
    from layoutopt.optimizer.space.rule import BrokenRule


def plan_to_plain(plan: Plan, honesty: Honesty | None = None) -> Plain:
    """Write a plan; ``verify`` reads it back. Without a layout ``layout`` and ``estimate`` are null.

    ``honesty`` adds the error band, and to every alternative whether the model can tell it from the best.
    """
    plain = _plan_to_plain(plan)
    if honesty is None:
        return plain
    for other, tie in zip(plain["alternatives"], honesty.ties, strict=True):
        other |= {"distinguishable": tie.distinguishable, "measurement": tie.measurement or None}
    return plain | honesty.to_plain()


def _plan_to_plain(plan: Plan) -> Plain:
    estimate = plan.estimate
    return {
        "status": plan.status.value,
        "objective": {
            "step_time_s": estimate.step_time_s if estimate else None,
            "bound_s": plan.bound_s,
            "gap": plan.gap,
            "name": "time",
            "value": estimate.step_time_s if estimate else None,
            **({"then": asdict(plan.then)} if plan.then else {}),
        },
        "verdict": plan.verdict.value if plan.verdict else None,
        "reasons": [plan.infeasibility.message] if plan.infeasibility else [],
        "layout": layout_to_plain(plan.layout) if plan.layout else None,
        "estimate": estimate_to_plain(estimate) if estimate else None,
        "alternatives": [_alternative_to_plain(other) for other in plan.alternatives],
        "infeasibility": _infeasibility_to_plain(plan.infeasibility) if plan.infeasibility else None,
        "binds": list(plan.binds),
        "idle_gpus": plan.idle_gpus,
        "freer_gain": plan.freer_gain,
        "warnings": list(plan.warnings),
        "certificate": plan.certificate.to_plain(),
        "solve_time_s": plan.solve_time_s,
        "inputs": plan.inputs,
    }


def _alternative_to_plain(other: Alternative) -> Plain:
    return {
        "step_time_s": other.estimate.step_time_s,
        "slower": other.slower,
        "why": other.why,
        "layout": layout_to_plain(other.layout),
        "estimate": estimate_to_plain(other.estimate),
    }


def _infeasibility_to_plain(found: Infeasibility) -> Plain:
    return {
        "message": found.message,
        "binding": found.binding,
        "least_bytes": found.least_bytes,
        "capacity_bytes": found.capacity_bytes,
        "fewest_gpus": found.fewest_gpus,
        "conflict": list(found.conflict),
    }


def judgement_to_plain(judgement: Judgement) -> Plain:
    """Write a verdict on a given layout; ``estimate`` is null where the layout can't be priced."""
    return {
        "verdict": judgement.verdict.value,
        "reasons": list(judgement.reasons),
        "broken": [broken_to_plain(rule) for rule in judgement.broken],
        "warnings": list(judgement.warnings),
        "layout": layout_to_plain(judgement.layout),
        "estimate": estimate_to_plain(judgement.estimate) if judgement.estimate else None,
    }


def broken_to_plain(rule: BrokenRule) -> Plain:
    """Write a broken rule with its factors and the nearest valid values."""
    return {
        "rule": rule.rule,
        "message": rule.message,
        "formula": rule.formula,
        "reason": rule.reason,
        "factors": dict(rule.factors),
        "valid": {axis: list(values) for axis, values in rule.valid.items()},
    }


def space_to_plain(space: Space) -> Plain:
    """Write a declared space: its axes, what the rules remove, and its size."""
    counts = space.counts
    joint = space.joint_assignments_log10
    return {
        "axes": [
            {"axis": row.axis, "range": row.range_text, "values": row.values} for row in space.axes_table()
        ],
        "declared": {"degree_tuples": counts.declared_degrees, "tuples": counts.declared_tuples},
        "removed_by_rule": {
            count.rule: {"degree_tuples": count.degrees, "tuples": count.tuples} for count in counts.removed
        },
        "remaining": {"degree_tuples": counts.remaining_degrees, "tuples": counts.remaining_tuples},
        "joint_assignments_log10": joint if math.isfinite(joint) else None,
        "empty": space.empty.message if space.empty else None,
    }
