"""The machine-readable form of explanations and wishes for ``--json``; keys that do not change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutopt.optimizer.report.plain import Plain, estimate_to_plain, layout_to_plain
from layoutopt.optimizer.report.plain_plan import broken_to_plain, judgement_to_plain, plan_to_plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutopt.optimizer.interop.records import OutOfMemory
    from layoutopt.optimizer.solve.explain.records import Explanation, FullestRank, Gap, Remedy, WhyNot


def explanation_to_plain(
    found: Explanation, wishes: Sequence[WhyNot] = (), died: Sequence[OutOfMemory] = ()
) -> Plain:
    """Write an explanation: the verdict as ``evaluate`` writes it, and beside it what to do about it."""
    return judgement_to_plain(found.judgement) | {
        "advice": [broken_to_plain(rule) for rule in found.advice],
        "fullest_rank": _fullest(found.fullest) if found.fullest else None,
        "remedies": [_remedy(remedy) for remedy in found.remedies],
        "gap": _gap(found.gap) if found.gap else None,
        "optimum": plan_to_plain(found.optimum) if found.optimum else None,
        "why_not": [why_not_to_plain(wish) for wish in wishes],
        "out_of_memory": [_died(message) for message in died],
    }


def _fullest(found: FullestRank) -> Plain:
    return {
        "rank": found.rank,
        "needed_bytes": found.needed_bytes,
        "usable_bytes": found.usable_bytes,
        "parts": [
            {"name": part.name, "bytes": part.size_bytes, "divided_by": part.divided_by}
            for part in found.parts
        ],
    }


def _remedy(remedy: Remedy) -> Plain:
    return {
        "axes": list(remedy.axes),
        "changes": list(remedy.changes),
        "step_time_s": remedy.estimate.step_time_s,
        "slower": remedy.slower,
        "gpus": remedy.gpus,
        "note": remedy.note,
        "layout": layout_to_plain(remedy.layout),
        "estimate": estimate_to_plain(remedy.estimate),
    }


def _gap(gap: Gap) -> Plain:
    return {
        "step_time_s": gap.step_time_s,
        "best_s": gap.best_s,
        "slower": gap.slower,
        "steps": [
            {
                "axes": list(step.axes),
                "changes": list(step.changes),
                "step_time_s": step.step_time_s,
                "saved_s": step.saved_s,
                "why": step.why,
                "layout": layout_to_plain(step.layout),
            }
            for step in gap.steps
        ],
    }


def why_not_to_plain(wish: WhyNot) -> Plain:
    """Write what a wish costs; ``plan`` is the best layout with it."""
    return {
        "fixed": {axis: list(values) for axis, values in wish.fixed.items()},
        "slower": wish.slower,
        "why": wish.why,
        "plan": plan_to_plain(wish.plan),
    }


def _died(message: OutOfMemory) -> Plain:
    return {name: getattr(message, name) for name in message.__slots__}
