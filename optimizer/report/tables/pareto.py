"""The front in two goals, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutopt.optimizer.report.tables.console import grid, section
from layoutopt.optimizer.report.tables.layout import layout_text
from layoutopt.optimizer.specs.units import format_seconds

if TYPE_CHECKING:
    from rich.console import RenderableType

    from layoutopt.optimizer.solve.pareto import Front


def front_table(front: Front) -> RenderableType:
    """Show every point with its values, the best in the first goal first."""
    rows = [
        (
            *(f"{value:,.6g} {unit}".strip() for value, unit in zip(point.values, front.units, strict=True)),
            format_seconds(point.estimate.step_time_s),
            f"{point.estimate.memory.peak_bytes / point.estimate.memory.capacity_bytes:.0%}",
            layout_text(point.layout) + ("" if point.proven else " (not proven)"),
        )
        for point in front.points
    ]
    note = (
        "no layout dominates a point, and there is no other" if front.complete else "more points may follow"
    )
    return section(
        f"{front.goals[0]} against {front.goals[1]}",
        grid([*front.goals, "step", "memory", "layout"], rows, left=(4,)),
        note=note if front.points else "no layout meets what is demanded",
    )
