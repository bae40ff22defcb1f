"""What to measure next, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from layoutopt.optimizer.evidence.next_runs import LEAST_GAIN, STEPS, ProbeKind
from layoutopt.optimizer.report.tables.console import bullets, grid, section
from layoutopt.optimizer.report.tables.honesty import brief_lines
from layoutopt.optimizer.report.tables.layout import layout_text
from layoutopt.optimizer.report.tables.short import interval_cell, interval_note
from layoutopt.optimizer.specs.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from layoutopt.optimizer.evidence.honesty import Honesty
    from layoutopt.optimizer.evidence.next_runs import NextRuns, Probe, SuggestedRun
    from layoutopt.optimizer.solve.pareto import Front, FrontPoint


def next_runs_tables(found: NextRuns, runs: int, judged: Honesty | None = None) -> RenderableType:
    """Show the layouts with their chances, what to measure, what it would tell, and how far such runs were off."""
    sure = brief_lines(judged.band) if judged else []
    return Group(
        Text(_headline(found, runs), style="bold"),
        _layouts(found, judged),
        _measurements(found),
        *([section("How sure", bullets(sure))] if sure else []),
    )


def _headline(found: NextRuns, runs: int) -> str:
    # What was measured changed the choice, or confirmed it: the headline is no longer the prediction.
    after = f"after {runs} run{'s' if runs > 1 else ''} " if runs else ""
    return (
        f"{after}layout {found.chosen + 1} is the choice: the fastest of {len(found.layouts)} with a chance of "
        f"{found.chances[found.chosen]:.0%}; it loses {found.expected_loss:.1%} in the mean"
    )


def _layouts(found: NextRuns, judged: Honesty | None) -> RenderableType:
    rows = [
        (
            f"{place}",
            format_seconds(seconds),
            _interval(seconds, judged),
            f"{chance:.0%}",
            layout_text(layout),
        )
        for place, (layout, seconds, chance) in enumerate(
            zip(found.layouts, found.step_time_s, found.chances, strict=True), start=1
        )
    ]
    note = front_note([judged])
    return section("Layouts", grid(["", "step", "80%, s", "fastest", "layout"], rows, left=(4,)), note=note)


def _interval(step_s: float, judged: Honesty | None) -> str:
    low, high = (None, None) if judged is None else judged.intervals_s(step_s)["80"]
    return interval_cell(low, high, None if judged is None else judged.band.rows)


def _measurements(found: NextRuns) -> RenderableType:
    rows = [
        (f"{place}", probe_words(one.probe), f"{one.probe.gpus:,}", f"{one.probe.gpu_hours:,.2g}", f"{one.gain:.2%}",
         turn_words(one))
        for place, one in enumerate(found.suggestions, start=1)
    ]  # fmt: skip
    columns = ["", "measure", "GPUs", "GPU-hours", "gains", "what it would tell"]
    table = [section("Measure next", grid(columns, rows, left=(1, 5)))] if rows else []
    return Group(*table, section("When to stop", bullets([stop_words(found)])))


def probe_words(probe: Probe) -> str:
    """Name a measurement."""
    if probe.benchmark is not None:
        one = probe.benchmark
        return f"{one.program} at {format_bytes(one.size_bytes)} on {one.members} GPUs ({one.axis})"
    if probe.kind is ProbeKind.PROXY and probe.job is not None:
        layers = probe.job.workload.model.layers
        return f"{STEPS} steps of layout {probe.layout + 1} with {layers} layers, dp {probe.job.layout.dp}"
    return f"{STEPS} steps of layout {probe.layout + 1}"


def turn_words(one: SuggestedRun) -> str:
    """Say from which reading on another layout is the choice."""
    expected = format_seconds(one.probe.expected_s)
    turns = [
        f"{'below' if turn.ratio < 1 else 'above'} {format_seconds(turn.ratio * one.probe.expected_s)}: layout "
        f"{turn.layout + 1}"
        for turn in one.turns
    ]
    return f"expected {expected}; {', '.join(turns) if turns else 'the others, once it is known'}"


def stop_words(found: NextRuns) -> str:
    """Say whether more measurements would change the choice."""
    if found.enough and not found.suggestions:
        return f"nothing that can be measured would change the choice by {LEAST_GAIN:.2%} of the step in the mean"
    words = [
        f"{one.probe.layout + 1}=SECONDS" for one in found.suggestions if one.probe.kind is ProbeKind.RUN
    ]
    left = f"about {found.remaining_loss:.1%} of the step is lost in the mean after these"
    more = "and nothing else is worth a run" if found.enough else "and more runs would take more off"
    again = f"; --measured {words[0]} makes the choice again" if words else ""
    return f"{left}, {more}{again}"


def front_table(front: Front, judged: Sequence[Honesty | None], sure: Sequence[str] = ()) -> RenderableType:
    """Show every point with its values, the best in the first goal first, and how sure its steps are.

    ``judged`` (points,) are the points' error bands.
    """
    if not front.points:
        return Text(front_words(front))
    points = section(
        f"{front.goals[0]} against {front.goals[1]}",
        grid(front_columns(front), front_rows(front, judged), left=(5,)),
        note="; ".join(filter(None, (front_words(front), front_note(judged)))),
    )
    return Group(points, *([section("How sure", bullets(sure))] if sure else []))


def front_words(front: Front) -> str:
    """Say what is proven of the points."""
    if not front.points:
        none = "no layout runs and meets what is demanded; solve says why"
        return none if front.complete else "stopped before a layout was found"
    if front.complete:
        return "no layout dominates a point, and there is no other"
    if front.proven:
        return "no layout dominates a point; others lie between them, --points finds more"
    return "stopped: a point without proof may be dominated, and others may lie between them"


def front_columns(front: Front) -> list[str]:
    """Return the heads of the columns."""
    return [*front.goals, "step", "80%, s", "memory", "layout"]


def front_note(judged: Sequence[Honesty | None]) -> str:
    """Explain the mark of intervals that no measured run of their kind stands behind."""
    return interval_note(None if one is None else one.band.rows for one in judged)


def front_rows(front: Front, judged: Sequence[Honesty | None]) -> list[list[str]]:
    """Return the cells of every point."""
    return [_front_row(front, point, one) for point, one in zip(front.points, judged, strict=True)]


def _front_row(front: Front, point: FrontPoint, judged: Honesty | None) -> list[str]:
    memory, step_s = point.estimate.memory, point.estimate.step_time_s
    return [
        *(value_words(value, unit) for value, unit in zip(point.values, front.units, strict=True)),
        format_seconds(step_s),
        _interval(step_s, judged),
        f"{memory.peak_bytes / memory.capacity_bytes:.0%}",
        layout_text(point.layout) + ("" if point.proven else " (not proven)"),
    ]


def value_words(value: float, unit: str) -> str:
    """Write a goal's value with its unit."""
    return f"{value:,.6g} {unit}".strip()
