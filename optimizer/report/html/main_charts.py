"""The main charts of validation, a training plan and a sweep, each as one picture in SVG."""

from __future__ import annotations

from math import floor, log10, sqrt
from typing import TYPE_CHECKING

from layoutopt.optimizer.report.html.markup import Markup, joined
from layoutopt.optimizer.report.html.palette import SERIES, WALL
from layoutopt.optimizer.report.html.picture import (
    MARGIN,
    PANEL_HEIGHT,
    PANEL_TOP,
    TEXT_PX,
    WIDTH,
    heading,
    wrapped,
)
from layoutopt.optimizer.report.html.scaling import mfu_percent, perfect_scaling, speedup_message, step_time_s
from layoutopt.optimizer.report.html.series import lines_by_model, nice_values, short, spaced
from layoutopt.optimizer.report.html.svg import (
    LINE_PX,
    Scale,
    bar,
    bottom_axis,
    document,
    dot,
    left_axis,
    legend,
    spread_apart,
    stroke,
    ticks,
    width_px,
    words,
)
from layoutopt.optimizer.report.html.swept import sweep_question
from layoutopt.optimizer.report.html.wall import goodput_message, wall_days, wall_message
from layoutopt.optimizer.specs.errors import input_error
from layoutopt.optimizer.specs.units import DAY_S

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from layoutopt.optimizer.evidence.validate import RowResult, ValidationReport
    from layoutopt.optimizer.plan.fault_plan import FaultPlan
    from layoutopt.optimizer.plan.training_plan import TrainingPlan
    from layoutopt.optimizer.report.html.series import DrawnLine, DrawnLines
    from layoutopt.optimizer.sweep.rows import Row


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
    # The slowest tenth of simulated runs is longer than any mean.
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


TOP, SIDE = 150.0, 640.0
BAND = 0.15
"""Errors between the two dashed lines."""


def validation_picture(report: ValidationReport) -> str:
    """Draw every timed row, both axes logarithmic, coloured by family; hollow where cells are unstated or assumed.

    Raises ``InputError`` when no row is timed.
    """
    rows = [row for row in report.results if row.error is not None]
    if not rows:
        raise input_error("no priced row has a measured time", "a table with step times", key="--plot")
    families = sorted({row.case.family.value for row in rows})
    colours = {name: SERIES[index % len(SERIES)] for index, name in enumerate(families)}
    times = [time for row in rows for time in (row.prediction.step_time_s, row.case.measured_s or 0.0)]
    # One square for both axes, so that the diagonal is agreement.
    low, high = min(times) / 1.3, max(times) * 1.3
    x = Scale(low=low, high=high, start=MARGIN + 60, end=MARGIN + 60 + SIDE, logarithmic=True)
    y = Scale(low=low, high=high, start=TOP + SIDE, end=TOP, logarithmic=True)
    said = _summary(report)
    title = "Predicted against measured step time"
    return document(
        WIDTH,
        TOP + SIDE + 60,
        title,
        f"{title}. {said}",
        heading(title, said),
        legend(colours, x.start, WIDTH - MARGIN, 90.0),
        _frame(x, y),
        joined(_point(row, x, y, colours[row.case.family.value]) for row in rows),
    )


def _summary(report: ValidationReport) -> str:
    step = report.step_time
    if step.mape is None or step.median_ape is None or step.p90_ape is None:
        return f"{report.assumed.rows:,} rows, all priced with assumptions."
    shares = (
        f"{step.mape:.1%} off in the mean, {step.median_ape:.1%} in the median, 90% within {step.p90_ape:.1%}"
    )
    return f"{step.rows:,} rows: {shares}. Hollow: unstated or assumed cells."


def _frame(x: Scale, y: Scale) -> Markup:
    """Draw axes at powers of ten, the line of agreement, and the band around it."""
    powers = [10.0**power for power in range(floor(log10(x.low)) + 1, floor(log10(x.high)) + 1)]
    named = [(value, f"{value:g}") for value in powers]
    lines = [_diagonal(x, y, 1.0, None), *(_diagonal(x, y, 1 + side * BAND, "6 4") for side in (-1, 1))]
    note = words(f"dashed: {BAND:.0%} off", x.end - 8, y.start - 10, colour="muted", anchor="end")
    return joined(
        [
            left_axis(y, x.start, x.end, named, "predicted, s"),
            bottom_axis(x, y.start, named, "measured, s"),
            *lines,
            note,
        ]
    )


def _diagonal(x: Scale, y: Scale, factor: float, dashes: str | None) -> Markup:
    # Cut to the square on both axes: a line above the diagonal leaves it at the top, one below at the side.
    first, last = max(x.low, x.low / factor), min(x.high, x.high / factor)
    ends = [(x(value), y(value * factor)) for value in (first, last)]
    return stroke(ends, "line", stroke_width=1.0, stroke_dasharray=dashes)


def _point(row: RowResult, x: Scale, y: Scale, colour: str) -> Markup:
    place = x(row.case.measured_s or 0.0), y(row.prediction.step_time_s)
    return dot(*place, colour, hollow=not (row.counted and row.case.complete), radius=2.5)


DASHES = {"solid": None, "dash": "8 4", "dot": "2 3"}


def sweep_picture(rows: Sequence[Row]) -> str:
    """Draw step time and MFU of every model, one pair of panels below the other.

    Raises ``InputError`` when no point has a layout.
    """
    found = [lines for lines in lines_by_model(rows) if lines.lines]
    if not found:
        raise input_error(
            "no point of the sweep has a layout to draw", "a sweep that finds some", key="--plot"
        )
    title = f"{', '.join(lines.model for lines in found)}: step time and MFU by {found[0].quantity}"
    tall = PANEL_HEIGHT + 90
    panels = [_model(lines, PANEL_TOP + index * tall, len(found) > 1) for index, lines in enumerate(found)]
    said = " ".join(speedup_message(lines) for lines in found)
    height = PANEL_TOP + len(found) * tall - 30
    return document(
        WIDTH,
        height,
        title,
        f"{title}. {said}",
        heading(title, *wrapped(sweep_question(rows)), *wrapped(said)),
        *panels,
    )


def _model(found: DrawnLines, top: float, named: bool) -> Markup:
    """Draw the two panels of one model."""
    name = f"{found.model}: " if named else ""
    # Names stand right of the panel at the lines' ends, where a legend would ask to compare colours.
    names_px = max(width_px(line.name) for line in found.lines) + 14 if len(found.lines) > 1 else 14
    times = [step_time_s(row) for line in found.lines for row in line.rows]
    nice = nice_values(min(times), max(times))
    step = Scale(
        low=min(times) / 1.15,
        high=max(times) * 1.15,
        start=top + PANEL_HEIGHT,
        end=top + 20,
        logarithmic=True,
    )
    shares = [mfu_percent(row) for line in found.lines for row in line.rows]
    mfu = Scale(low=0.0, high=max(shares) * 1.1, start=top + PANEL_HEIGHT, end=top + 20)
    middle = WIDTH / 2
    shown = [value for value in nice if step.low <= value <= step.high]
    left = _panel(
        found,
        step,
        MARGIN + 40,
        middle - 20,
        [(v, f"{v:g}") for v in shown],
        f"{name}seconds per step",
        step_time_s,
    )
    right = _panel(
        found, mfu, middle + 50, WIDTH - MARGIN - names_px, [(v, f"{v:g}") for v in ticks(0.0, mfu.high)],
        f"{name}MFU, % (causal)", mfu_percent,
    )  # fmt: skip
    return joined([left, right, _names(found, mfu, WIDTH - MARGIN - names_px + 8)])


def _panel(
    found: DrawnLines,
    y: Scale,
    left: float,
    right: float,
    values: list[tuple[float, str]],
    title: str,
    value: Callable[[Row], float],
) -> Markup:
    along = found.values
    # A single size stands in the middle, where its own value alone would give an axis of no extent.
    pad = sqrt(1.1) if along[0] < along[-1] else 2.0
    x = Scale(low=along[0] / pad, high=along[-1] * pad, start=left, end=right, logarithmic=True)
    below = [(position, short(position)) for position in spaced(along, 8)]
    unit = found.unit if found.along == "gpus" else f"{found.quantity}, {found.unit}"
    return joined(
        [
            left_axis(y, left, right, values, title),
            bottom_axis(x, y.start, below, unit),
            _perfect(found, x, y) if value is step_time_s else Markup(),
            *(_line(line, found.along, x, y, value) for line in found.lines),
        ]
    )


def _perfect(found: DrawnLines, x: Scale, y: Scale) -> Markup:
    """Draw perfect scaling beside step times, as far as it stays in the panel."""
    ends = perfect_scaling(found)
    if ends is None:
        return Markup()
    (few, slow), (many, fast) = ends
    # The line keeps its slope, 1 on these axes, and ends at the panel's floor.
    if fast < y.low:
        many, fast = many * fast / y.low, y.low
    line = stroke([(x(few), y(slow)), (x(many), y(fast))], "line", stroke_width=1.5, stroke_dasharray="6 4")
    return joined([line, words("perfect scaling", x(many) - 8, y(fast) - 4, colour="muted", anchor="end")])


def _line(line: DrawnLine, along: str, x: Scale, y: Scale, value: Callable[[Row], float]) -> Markup:
    points = [(x(row[along]), y(value(row))) for row in line.rows]
    dots = [
        dot(px, py, line.colour, hollow=row["status"] == "stopped")
        for (px, py), row in zip(points, line.rows, strict=True)
    ]
    return joined([stroke(points, line.colour, stroke_dasharray=DASHES[line.dash]), *dots])


def _names(found: DrawnLines, y: Scale, left: float) -> Markup:
    """Write each line's name at its end, apart from its neighbours."""
    if len(found.lines) == 1:
        return Markup()
    ends = [y(mfu_percent(line.rows[-1])) for line in found.lines]
    placed = spread_apart(ends, LINE_PX)
    return joined(
        words(line.name, left, position + 4, colour=line.colour, bold=True)
        for line, position in zip(found.lines, placed, strict=True)
    )
