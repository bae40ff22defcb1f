"""The published layouts beside predictions and optima, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from layoutopt.optimizer.report.tables.console import bullets, facts, grid, section
from layoutopt.optimizer.report.tables.honesty import claim_words
from layoutopt.optimizer.report.tables.layout import layout_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from layoutopt.optimizer.cost.estimate import Estimate
    from layoutopt.optimizer.evidence.published import Distance, Reference
    from layoutopt.optimizer.solve.explain.records import Gap


def published_tables(found: Sequence[tuple[Reference, Distance | None]]) -> Group:
    """Show all references in one table, then each beside its optimum."""
    return Group(_summary([one for one, _ in found]), *(_one(one, far) for one, far in found))


def _summary(references: Sequence[Reference]) -> RenderableType:
    rows = [
        (
            f"{one.case.measured_s:.2f}",
            f"{one.estimate.step_time_s:.2f}",
            f"{100 * one.error:+.1f}",
            "-" if one.case.run.mfu_pct is None else f"{one.case.run.mfu_pct:g}",
            f"{100 * one.estimate.mfu_full:.1f}",
            f"{100 * one.estimate.mfu_causal:.1f}",
            one.case.run.id,
        )
        for one in references
    ]
    columns = ("published", "predicted", "error, %", "MFU", "full", "causal", "layout")
    note = "seconds a step; MFU in %: published, predicted in both counts"
    return section("Published layouts", grid(columns, rows, left=(6,)), note=note)


def _one(one: Reference, far: Distance | None) -> RenderableType:
    pairs = [
        ("source", one.case.run.source or "-"),
        ("layout", layout_text(one.case.layout)),
        ("assumed", ", ".join(one.assumed) or "nothing"),
        ("memory", _memory(one)),
    ]
    if one.by_vp:
        steps = ", ".join(f"{seconds:.2f} s with vp {vp}" for vp, seconds in one.by_vp.items())
        pairs.append(("range", steps))
    parts: list[RenderableType] = [facts(pairs if far is None else pairs + _far(one, far))]
    if far is not None and far.gap is not None:
        parts += [Text(""), _gap(far.gap)]
    if far is not None and far.reasons:
        said = bullets(f"{axis}: {why}" for axis, why in far.reasons.items())
        parts += [Text(""), Text(f"What the authors say of what differs ({far.authors})", style="dim"), said]
    return section(one.case.run.id, *parts)


def _memory(one: Reference) -> str:
    memory = one.estimate.memory
    share = f"{memory.peak_bytes / 1e9:.1f} of {memory.capacity_bytes / 1e9:.1f} GB usable"
    return f"{one.verdict.value.replace('_', ' ')}, {share}"


def _far(one: Reference, far: Distance) -> list[tuple[str, str]]:
    plan = far.plan
    if plan.layout is None or plan.estimate is None or far.slower is None:
        return [("optimum", plan.status.value)]
    proven = plan.status.value + (f", gap {plan.gap:.1%}" if plan.gap else "")
    # An upper bound: rows whose bound is below the published step may hold nothing faster.
    rank = f"at most {far.faster_rows:,} of {far.rows:,} combinations of degrees hold a faster layout"
    return [
        ("optimum", f"{plan.estimate.step_time_s:.2f} s ({proven}): {layout_text(plan.layout)}"),
        (
            "distance",
            f"the published layout is {abs(far.slower):.1%} {'slower' if far.slower >= 0 else 'faster'}",
        ),
        ("rank", rank),
        *_claim(one, plan.estimate),
    ]


def _claim(one: Reference, optimum: Estimate) -> list[tuple[str, str]]:
    words = claim_words(optimum, one.estimate)
    return [("evidence", words)] if words else []


def _gap(gap: Gap) -> RenderableType:
    rows = [
        (
            f"{100 * step.saved_s / gap.step_time_s:+.1f}",
            ", ".join(step.changes) or ", ".join(step.axes),
            step.why,
        )
        for step in gap.steps
    ]
    return grid(("saves, %", "change", "where"), rows, left=(1, 2))
