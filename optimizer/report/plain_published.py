"""Plain form of the comparison with published layouts: what ``published --json`` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.report.plain import estimate_to_plain, layout_to_plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutopt.optimizer.evidence.published import Distance, Reference
    from layoutopt.optimizer.solve.explain.records import Gap


def published_to_plain(found: Sequence[tuple[Reference, Distance | None]]) -> list[dict[str, Any]]:
    """Return the references in order, with the optimum beside each where it was searched."""
    return [_reference(one) | ({} if far is None else _distance(far)) for one, far in found]


def _reference(one: Reference) -> dict[str, Any]:
    return {
        "id": one.case.run.id,
        "source": one.case.run.source,
        "assumed": list(one.assumed),
        "layout": layout_to_plain(one.case.layout),
        "published_s": one.case.measured_s,
        "predicted_s": one.estimate.step_time_s,
        "error": one.error,
        "predicted_s_by_vp": {str(vp): seconds for vp, seconds in one.by_vp.items()},
        "estimate": estimate_to_plain(one.estimate),
        "verdict": one.verdict.value,
    }


def _distance(far: Distance) -> dict[str, Any]:
    plan = far.plan
    return {
        "optimum": {
            "status": plan.status.value,
            "layout": None if plan.layout is None else layout_to_plain(plan.layout),
            "step_time_s": None if plan.estimate is None else plan.estimate.step_time_s,
            "gap": plan.gap,
        },
        "slower": far.slower,
        "rank": {"at_most_faster_rows": far.faster_rows, "rows": far.rows},
        "differences": [] if far.gap is None else _differences(far.gap),
        "reasons": dict(far.reasons),
        "authors": far.authors,
    }


def _differences(gap: Gap) -> list[dict[str, Any]]:
    return [
        {
            "axes": list(step.axes),
            "changes": list(step.changes),
            "saved_s": step.saved_s,
            "saved_share": step.saved_s / gap.step_time_s,
            "why": step.why,
        }
        for step in gap.steps
    ]
