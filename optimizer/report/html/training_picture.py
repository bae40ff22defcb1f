"""The main chart of a training plan as one picture in SVG: where the days go, and useful time by cluster size."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutopt.optimizer.report.html.markup import Markup, joined
from layoutopt.optimizer.report.html.palette import WALL
from layoutopt.optimizer.report.html.picture import (
    MARGIN,
    PANEL_HEIGHT,
    PANEL_TOP,
    TEXT_PX,
    WIDTH,
    heading,
    wrapped,
)
from layoutopt.optimizer.report.html.series import short, spaced
from layoutopt.optimizer.report.html.svg import (
    Scale,
    bar,
    bottom_axis,
    document,
    dot,
    left_axis,
    legend,
    stroke,
    ticks,
    words,
)
from layoutopt.optimizer.report.html.wall import goodput_message, wall_days, wall_message
from layoutopt.optimizer.specs.units import DAY_S

if TYPE_CHECKING:
    from layoutopt.optimizer.plan.fault_plan import FaultPlan
    from layoutopt.optimizer.plan.training_plan import TrainingPlan


def training_picture(plan: TrainingPlan) -> str:
    """Draw the days of a run by cause with the spread of simulated runs, and goodput by cluster size."""
    cost = "" if plan.expected_cost is None else f", cost {plan.expected_cost:,.0f}"
    title = f"{plan.model} on {plan.gpus:,} GPUs: {plan.expected_days:,.1f} days expected{cost}"
    said = [wall_message(plan), goodput_message(plan.faults, plan.gpus)]
    left = _wall_panel(plan, MARGIN, 440.0)
    right = _goodput_panel(plan.faults, plan.gpus, 540.0, WIDTH - MARGIN - 10)
    head = heading(title, *wrapped(said[0]), *wrapped(said[1]))
    return document(WIDTH, PANEL_TOP + PANEL_HEIGHT + 60, title, " ".join(said), head, left, right)


def _wall_panel(plan: TrainingPlan, left: float, right: float) -> Markup:
    """Draw a bar for each way to save checkpoints, and the deciles of simulated runs."""
    runs = plan.faults.simulated_with_error
    longest = max(schedule.wall_s for schedule in plan.faults.schedules) / DAY_S
    longest = max(longest, runs.p90_s / DAY_S if runs else 0.0)
    x = Scale(low=0.0, high=longest, start=left, end=right)
    base = PANEL_TOP + PANEL_HEIGHT
    parts = [
        words("Where the days go", left, PANEL_TOP - 6, size=TEXT_PX, bold=True),
        legend(WALL, left, right, PANEL_TOP + 16),
        bottom_axis(x, base, [(value, f"{value:g}") for value in ticks(0.0, longest)], "days"),
    ]
    for index, schedule in enumerate(plan.faults.schedules):
        y = PANEL_TOP + 60 + 80 * index
        label = f"{schedule.mode.value}: {schedule.wall_s / DAY_S:,.1f} days, goodput {schedule.goodput:.1%}"
        parts.append(words(label, left, y))
        start = 0.0
        for cause, days in wall_days(schedule, plan.budget.days).items():
            parts.append(bar(x(start), y + 6, x(start + days) - x(start), 26, WALL[cause], gap=False))
            start += days
    if runs is not None:
        parts.append(_spread(x, runs.p10_s / DAY_S, runs.p50_s / DAY_S, runs.p90_s / DAY_S))
    return joined(parts)


def _spread(x: Scale, p10: float, p50: float, p90: float) -> Markup:
    y = PANEL_TOP + 60 + 160
    return joined(
        [
            words(f"simulated: {p10:,.1f} to {p90:,.1f} days (P10 to P90), P50 {p50:,.1f}", x.start, y),
            stroke([(x(p10), y + 18), (x(p90), y + 18)], "ink"),
            *(stroke([(x(end), y + 12), (x(end), y + 24)], "ink") for end in (p10, p90)),
            dot(x(p50), y + 18, "ink"),
        ]
    )


def _goodput_panel(faults: FaultPlan, gpus: int, left: float, right: float) -> Markup:
    sizes = [point.gpus for point in faults.curve]
    x = Scale(low=sizes[0], high=sizes[-1], start=left, end=right, logarithmic=True)
    y = Scale(low=0.0, high=1.0, start=PANEL_TOP + PANEL_HEIGHT, end=PANEL_TOP + 40)
    points = [(x(point.gpus), y(point.goodput)) for point in faults.curve]
    own = next(point for point in faults.curve if point.gpus == gpus)
    return joined(
        [
            words("Useful time by cluster size", left, PANEL_TOP - 6, size=TEXT_PX, bold=True),
            left_axis(y, left, right, [(share, f"{share:.0%}") for share in ticks(0.0, 1.0)], ""),
            bottom_axis(x, y.start, [(size, short(size)) for size in spaced(sizes, 6)], "GPUs"),
            stroke(points, "blue"),
            *(dot(px, py, "blue", radius=3.0) for px, py in points),
            dot(x(gpus), y(own.goodput), "blue", radius=6.0),
            words(f"this run {own.goodput:.1%}", x(gpus) + 4, y(own.goodput) + 22),
        ]
    )
