"""Predicted against measured step times as one picture in SVG."""

from __future__ import annotations

from math import floor, log10
from typing import TYPE_CHECKING

from layoutopt.optimizer.report.html.markup import Markup, joined
from layoutopt.optimizer.report.html.palette import SERIES
from layoutopt.optimizer.report.html.picture import MARGIN, WIDTH, heading
from layoutopt.optimizer.report.html.svg import (
    Scale,
    bottom_axis,
    document,
    dot,
    left_axis,
    legend,
    stroke,
    words,
)
from layoutopt.optimizer.specs.errors import input_error

if TYPE_CHECKING:
    from layoutopt.optimizer.evidence.validate import RowResult, ValidationReport

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
    first, last = max(x.low, x.low / factor), min(x.high, x.high / factor)
    ends = [(x(value), y(value * factor)) for value in (first, last)]
    return stroke(ends, "line", stroke_width=1.0, stroke_dasharray=dashes)


def _point(row: RowResult, x: Scale, y: Scale, colour: str) -> Markup:
    place = x(row.case.measured_s or 0.0), y(row.prediction.step_time_s)
    return dot(*place, colour, hollow=not (row.counted and row.case.complete), radius=2.5)
