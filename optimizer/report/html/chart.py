"""A chart of a page: its words, its drawing, and the same numbers as a table."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.report.html.markup import Markup, Table, element, joined, table
from layoutopt.optimizer.report.html.palette import variable

if TYPE_CHECKING:
    from collections.abc import Sequence

Figure = dict[str, Any]
"""A plotly figure as plain data, with CSS variables for colours (plotly's own classes refuse them)."""

Swatch = tuple[str, str]
"""A legend's entry: words and the name of a colour."""

BAR_ROW_PX = 42
"""Height of one horizontal bar with its name above it."""

FONT = "system-ui, -apple-system, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One chart.

    ``key`` names it in the page. ``message`` says in a sentence what to see, ``description`` what is drawn, for people
    who do not see it. ``drawing`` is a plotly figure or markup. ``note`` says how it was made.
    """

    key: str
    title: str
    message: str
    description: str
    drawing: Figure | Markup
    legend: Sequence[Swatch] = ()
    table: Table | None = None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A heading with what stands under it."""

    title: str
    blocks: Sequence[Markup] = field(default_factory=tuple)


def render(chart: Chart, prefix: str = "") -> Markup:
    """Write a chart as a figure with caption, legend, drawing and folded table; ``prefix`` keeps equal charts apart."""
    chart = replace(chart, key=f"{prefix}{chart.key}")
    parts = [
        element("h3", chart.title, id=f"{chart.key}-title"),
        element("p", chart.message, class_="message"),
        legend(chart.legend),
        _drawing(chart),
    ]
    if chart.note:
        parts.append(element("p", chart.note, class_="note"))
    if chart.table is not None:
        parts.append(element("details", element("summary", "Numbers"), table(chart.table)))
    return element("figure", *parts, id=chart.key, aria_labelledby=f"{chart.key}-title")


def _drawing(chart: Chart) -> Markup:
    if isinstance(chart.drawing, Markup):
        return element("div", chart.drawing, class_="drawing", role="img", aria_label=chart.description)
    # The place is as high as the drawing from the start: what stands below does not jump when the script draws.
    height = chart.drawing["layout"]["height"]
    place = element(
        "div",
        class_="plot",
        data_figure=f"{chart.key}-figure",
        role="img",
        aria_label=chart.description,
        style=f"height:{height}px",
    )
    data = element("script", embedded_json(chart.drawing), type="application/json", id=f"{chart.key}-figure")
    return joined([place, data])


def embedded_json(value: object) -> Markup:
    """Write JSON that can stand inside a script element, whatever texts it holds."""
    # A name with "</script>" in it would end the element, and the rest of the JSON would be markup.
    plain = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return Markup(plain.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


def legend(swatches: Sequence[Swatch]) -> Markup:
    """Write a legend that wraps; nothing for none."""
    if not swatches:
        return Markup()
    items = [
        element("li", element("i", style=f"background:{variable(colour)}", aria_hidden="true"), words)
        for words, colour in swatches
    ]
    return element("ul", *items, class_="legend")


def axis(title: str = "", **more: Any) -> Figure:
    """Return an axis in the pages' style; it cannot be dragged, so that a finger on it scrolls the page."""
    return {
        "title": {"text": title, "standoff": 6},
        "gridcolor": variable("grid"),
        "linecolor": variable("line"),
        "tickcolor": variable("line"),
        "zeroline": False,
        "automargin": True,
        "fixedrange": True,
    } | more


def layout(height: int, *, x: Figure, y: Figure, **more: Any) -> Figure:
    """Return a figure's layout in the pages' style; ``height`` in CSS pixels, the width is the page's."""
    return {
        "height": height,
        "margin": {"l": 8, "r": 8, "t": 8, "b": 8},
        # Transparent, so that the page's own colour shows in both themes.
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": FONT, "size": 12, "color": variable("ink")},
        "hoverlabel": {
            "bgcolor": variable("panel"),
            "bordercolor": variable("line"),
            "font": {"color": variable("ink")},
        },
        "showlegend": False,
        "dragmode": False,
        "xaxis": x,
        "yaxis": y,
    } | more


def label(words: str, **more: Any) -> Figure:
    """Return a label without an arrow; ``more`` places it."""
    return {"text": words, "showarrow": False, "font": {"color": variable("ink")}} | more


def named_bars(
    names: Sequence[str],
    values: Sequence[float],
    colours: Sequence[str],
    title: str,
    *,
    starts: Sequence[float] | None = None,
) -> Figure:
    """Return horizontal bars with a name above each, from the top; ``starts`` are where they begin, else at 0.

    ``names``, ``values``, ``colours`` and ``starts`` are (bars,).
    """
    rows = list(range(len(names)))
    bars: Figure = {
        "type": "bar",
        "orientation": "h",
        "y": rows,
        "x": list(values),
        "width": 0.42,
        "marker": {"color": [variable(colour) for colour in colours]},
        "hoverinfo": "skip",
    }
    # Beside their bars names would take half of a phone's width.
    labels = [above(name, row) for row, name in enumerate(names)]
    return {
        "data": [bars | ({} if starts is None else {"base": list(starts)})],
        "layout": layout(
            BAR_ROW_PX * len(rows) + 50,
            x=axis(title, rangemode="tozero", nticks=6),
            # Downwards, with room for the first name above the first bar.
            y=axis(range=[len(rows) - 0.6, -0.85], visible=False),
            annotations=labels,
        ),
    }


def above(words: str, row: int, *, shift_px: int = 8) -> Figure:
    """Return a label over the start of a horizontal bar."""
    return label(
        words, x=0, y=row, xanchor="left", yanchor="bottom", yshift=shift_px, xshift=-2, align="left"
    )
