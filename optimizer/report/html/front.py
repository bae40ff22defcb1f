"""The front in two goals: its chart as a picture in SVG, and a page with the picture and every point."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from layoutopt.optimizer.report.html.chart import Section
from layoutopt.optimizer.report.html.markup import Markup, Table, element, joined, table
from layoutopt.optimizer.report.html.page import page, tiles
from layoutopt.optimizer.report.html.picture import (
    MARGIN,
    PANEL_HEIGHT,
    PANEL_TOP,
    WIDTH,
    heading,
    wrapped,
)
from layoutopt.optimizer.report.html.series import nice_values, spaced
from layoutopt.optimizer.report.html.svg import (
    Scale,
    bottom_axis,
    document,
    dot,
    left_axis,
    stroke,
    ticks,
    width_px,
    words,
)
from layoutopt.optimizer.report.tables.layout import short_text
from layoutopt.optimizer.report.tables.next_runs import (
    front_columns,
    front_note,
    front_rows,
    front_words,
    value_words,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutopt.optimizer.evidence.honesty import Honesty
    from layoutopt.optimizer.solve.pareto import Front

WIDE = 4.0
"""Largest over smallest value from which on an axis is logarithmic."""

LABEL_GAP_PX = 16.0
"""Least distance of two points whose layouts are both named."""


def front_page(front: Front, title: str, judged: Sequence[Honesty | None], sure: Sequence[str] = ()) -> str:
    """Write the page of a front of at least one point; ``title`` says of what, ``sure`` how far such steps were off.

    ``judged`` (points,) are the points' error bands.
    """
    goals = " against ".join(front.goals)
    picture = element(
        "div", Markup(front_picture(front, title)), class_="drawing", role="img", aria_label=_said(front)
    )
    points = Table(columns=front_columns(front), rows=front_rows(front, judged), left=(5,))
    sections = [
        Section(title=goals.capitalize(), blocks=[picture]),
        Section(
            title="Layouts",
            blocks=[table(points), *(element("p", line) for line in (front_note(judged), *sure) if line)],
        ),
    ]
    lead = tiles([("points", f"{len(front.points)}"), ("all of them", "yes" if front.complete else "no")])
    return page(f"{title}: {goals}", front_words(front), [lead], sections)


def front_picture(front: Front, title: str) -> str:
    """Draw every point of a front of at least one; hollow where its proof was cut short.

    Steps between points bound what no layout reaches; where points are missing they may be passed, and are dashed.
    """
    values = list(zip(*(point.values for point in front.points), strict=True))
    base = PANEL_TOP + PANEL_HEIGHT
    x = _scale(values[0], MARGIN + 70, WIDTH - MARGIN - 10)
    y = _scale(values[1], base, PANEL_TOP + 20)
    names = [f"{name}, {unit}" if unit else name for name, unit in zip(front.goals, front.units, strict=True)]
    places = [(x(point.values[0]), y(point.values[1])) for point in front.points]
    dashed = {} if front.complete else {"stroke_dasharray": "6 4"}
    corners = [
        stroke([one, (other[0], one[1]), other], "line", stroke_width=1.5, **dashed)
        for one, other in pairwise(places)
    ]
    dots = [
        dot(*place, "blue", hollow=not point.proven)
        for place, point in zip(places, front.points, strict=True)
    ]
    head = f"{title}: {' against '.join(front.goals)}"
    return document(
        WIDTH,
        base + 60,
        head,
        f"{head}. {_said(front)}",
        heading(head, *wrapped(_said(front))),
        left_axis(y, x.start, x.end, _marks(y), names[1]),
        bottom_axis(x, base, _marks(x), names[0]),
        *corners,
        *dots,
        _labels(front, places),
    )


def _said(front: Front) -> str:
    """Say in a sentence where the front ends, and what is proven."""
    first, last = front.points[0], front.points[-1]
    ends = [
        " and ".join(value_words(value, unit) for value, unit in zip(one.values, front.units, strict=True))
        for one in (first, last)
    ]
    span = f"From {ends[0]} to {ends[1]}" if len(front.points) > 1 else f"One point, {ends[0]}"
    return f"{span}: {front_words(front)}."


def _scale(values: Sequence[float], start: float, end: float) -> Scale:
    low, high = min(values), max(values)
    # Over a wide range a linear axis presses all but the largest point into a corner.
    if low > 0 and high > WIDE * low:
        return Scale(low=low / 1.15, high=high * 1.15, start=start, end=end, logarithmic=True)
    # A front of one point has no range: its value, or 1, gives the axis an extent.
    room = (high - low) * 0.08 or abs(high) * 0.05 or 1.0
    return Scale(low=low - room, high=high + room, start=start, end=end)


def _marks(scale: Scale) -> list[tuple[float, str]]:
    """Return round values inside a scale with their words."""
    nice = nice_values(scale.low, scale.high) if scale.logarithmic else []
    found = spaced(nice, 8) if nice else ticks(scale.low, scale.high)
    return [(value, f"{value:,.6g}") for value in found if scale.low <= value <= scale.high]


def _labels(front: Front, places: Sequence[tuple[float, float]]) -> Markup:
    """Name the layouts of points that are far enough from the last one named, beside them."""
    parts, last = [], -LABEL_GAP_PX
    for point, (x, y) in zip(front.points, places, strict=True):
        # Two names over each other can be read by nobody; the table has all.
        if abs(y - last) < LABEL_GAP_PX:
            continue
        name = short_text(point.layout)
        right = x + 8 + width_px(name) > WIDTH - MARGIN
        if right and x - 8 - width_px(name) < MARGIN + 70:
            continue
        parts.append(
            words(name, x - 8 if right else x + 8, y - 6, colour="muted", anchor="end" if right else "start")
        )
        last = y
    return joined(parts)
