"""The front in two goals, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from layoutopt.optimizer.report.tables.console import grid, section
from layoutopt.optimizer.report.tables.layout import layout_text
from layoutopt.optimizer.specs.units import format_seconds

if TYPE_CHECKING:
    from rich.console import RenderableType

    from layoutopt.optimizer.solve.pareto import Front, FrontPoint


def front_table(front: Front) -> RenderableType:
    """Show every point with its values, the best in the first goal first."""
    if not front.points:
        return Text(front_words(front))
    return section(
        f"{front.goals[0]} against {front.goals[1]}",
        grid(front_columns(front), [front_row(front, point) for point in front.points], left=(4,)),
        note=front_words(front),
    )


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
    return [*front.goals, "step", "memory", "layout"]


def front_row(front: Front, point: FrontPoint) -> list[str]:
    """Return a point's cells."""
    memory = point.estimate.memory
    return [
        *(value_words(value, unit) for value, unit in zip(point.values, front.units, strict=True)),
        format_seconds(point.estimate.step_time_s),
        f"{memory.peak_bytes / memory.capacity_bytes:.0%}",
        layout_text(point.layout) + ("" if point.proven else " (not proven)"),
    ]


def value_words(value: float, unit: str) -> str:
    """Write a goal's value with its unit."""
    return f"{value:,.6g} {unit}".strip()
