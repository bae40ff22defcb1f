"""The main chart of a sweep as one picture in SVG: step time and MFU by cluster size."""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING

from layoutopt.optimizer.report.html.markup import Markup, joined
from layoutopt.optimizer.report.html.picture import MARGIN, PANEL_HEIGHT, PANEL_TOP, WIDTH, heading, wrapped
from layoutopt.optimizer.report.html.scaling import mfu_percent, perfect_scaling, speedup_message, step_time_s
from layoutopt.optimizer.report.html.series import lines_by_model, nice_values, short, spaced
from layoutopt.optimizer.report.html.svg import (
    LINE_PX,
    Scale,
    bottom_axis,
    document,
    dot,
    left_axis,
    spread_apart,
    stroke,
    ticks,
    width_px,
    words,
)
from layoutopt.optimizer.report.html.swept import sweep_question
from layoutopt.optimizer.specs.errors import input_error

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from layoutopt.optimizer.report.html.series import DrawnLine, DrawnLines
    from layoutopt.optimizer.sweep.rows import Row

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
