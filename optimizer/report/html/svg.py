"""Pieces of a picture in SVG: scales, axes, bars, lines. Plain colours and no script, so that any program shows it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import ceil, floor, log10
from typing import TYPE_CHECKING

from layoutopt.optimizer.report.html.chart import FONT
from layoutopt.optimizer.report.html.markup import Markup, element, joined
from layoutopt.optimizer.report.html.palette import LIGHT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from layoutopt.optimizer.report.html.markup import Attribute

SIZE_PX = 12
"""Size of ordinary text."""

GLYPH = 0.52
"""Mean width of a letter over the size of the text, for sans-serif fonts."""

LINE_PX = 15

SPARSER = 0.75
"""Ticks may be so much closer than asked for before the next round distance is taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Maps values from ``low`` to ``high`` to pixels from ``start`` to ``end``."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def __call__(self, value: float) -> float:
        """Return the pixel of a value."""
        low, high = self.low, self.high
        if self.logarithmic:
            low, high, value = log10(low), log10(high), log10(value)
        share = (value - low) / (high - low) if high > low else 0.5
        return self.start + share * (self.end - self.start)


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return about ``count`` round values from ``low`` to ``high``."""
    rough = (high - low) / count or 1.0
    power = 10.0 ** floor(log10(rough))
    step = next(power * digit for digit in (1, 2, 5, 10) if power * digit >= rough * SPARSER)
    # An end that is itself a tick stays one in spite of rounding.
    first, last = ceil(low / step - 1e-9), floor(high / step + 1e-9)
    return [round(index * step, 12) for index in range(first, last + 1)]


def words(
    content: str,
    x: float,
    y: float,
    *,
    size: float = SIZE_PX,
    colour: str = "ink",
    anchor: str = "start",
    bold: bool = False,
) -> Markup:
    """Write text with its baseline at ``y``."""
    return element(
        "text", content, x=x, y=y, font_size=size, fill=LIGHT[colour], text_anchor=anchor,
        font_weight="600" if bold else None,
    )  # fmt: skip


def width_px(content: str, size: float = SIZE_PX) -> float:
    """Return about how wide a text is."""
    return len(content) * GLYPH * size


def bar(x: float, y: float, width: float, height: float, colour: str, *, gap: bool = True) -> Markup:
    """Draw a filled rectangle; ``gap`` parts it from its neighbours by a thin line."""
    parted: dict[str, Attribute] = {"stroke": LIGHT["paper"], "stroke_width": 0.5} if gap else {}
    return element(
        "rect", x=x, y=y, width=max(width, 0.0), height=max(height, 0.0), fill=LIGHT[colour], **parted
    )


def legend(colours: Mapping[str, str], left: float, right: float, y: float) -> Markup:
    """Write a legend of names and their colours from ``left``; it goes on in a line below before it passes ``right``."""
    parts, x = [], left
    for name, colour in colours.items():
        if x + 14 + width_px(name) > right:
            x, y = left, y + LINE_PX + 2
        parts += [bar(x, y - 9, 10, 10, colour), words(name, x + 14, y)]
        x += width_px(name) + 30
    return joined(parts)


def stroke(points: Sequence[tuple[float, float]], colour: str, **more: Attribute) -> Markup:
    """Draw a line through points."""
    path = " ".join(f"{x:.6g},{y:.6g}" for x, y in points)
    attributes: dict[str, Attribute] = {"stroke_width": 2.0, **more}
    return element("polyline", points=path, fill="none", stroke=LIGHT[colour], **attributes)


def dot(x: float, y: float, colour: str, *, hollow: bool = False, radius: float = 4.0) -> Markup:
    """Draw a point."""
    fill = LIGHT["paper"] if hollow else LIGHT[colour]
    return element("circle", cx=x, cy=y, r=radius, fill=fill, stroke=LIGHT[colour], stroke_width=1.5)


def bottom_axis(scale: Scale, y: float, values: Iterable[tuple[float, str]], title: str) -> Markup:
    """Draw a horizontal axis with labelled ticks and a title below."""
    parts = [stroke([(scale.start, y), (scale.end, y)], "line", stroke_width=1.0)]
    for value, name in values:
        parts.append(stroke([(scale(value), y), (scale(value), y + 4)], "line", stroke_width=1.0))
        parts.append(words(name, scale(value), y + 17, anchor="middle"))
    parts.append(words(title, (scale.start + scale.end) / 2, y + 35, colour="muted", anchor="middle"))
    return joined(parts)


def left_axis(
    scale: Scale, x: float, right: float, values: Iterable[tuple[float, str]], title: str
) -> Markup:
    """Draw a vertical axis with grid lines to ``right``; the title stands above it, so that it can be read."""
    parts = []
    for value, name in values:
        parts.append(stroke([(x, scale(value)), (right, scale(value))], "grid", stroke_width=1.0))
        parts.append(words(name, x - 6, scale(value) + 4, anchor="end"))
    parts.append(words(title, x - 6, scale.end - 12, colour="muted"))
    return joined(parts)


def spread_apart(wanted: Sequence[float], gap: float) -> list[float]:
    """Move positions apart until neighbours keep ``gap``, each as little as its neighbours allow; order is kept."""
    order = sorted(range(len(wanted)), key=wanted.__getitem__)
    placed = list(wanted)
    for before, after in pairwise(order):
        placed[after] = max(placed[after], placed[before] + gap)
    # Pushed apart downwards, all move back by the mean: none is far from where it belongs.
    excess = sum(placed[index] - wanted[index] for index in order) / len(order) if order else 0.0
    return [position - excess for position in placed]


def document(width: float, height: float, title: str, description: str, *parts: Markup) -> str:
    """Write a whole picture on white ground; ``title`` and ``description`` are for people who don't see it."""
    paper = element("rect", width=width, height=height, fill=LIGHT["paper"])
    return str(
        element(
            "svg",
            element("title", title, id="title"),
            element("desc", description, id="desc"),
            paper,
            *parts,
            xmlns="http://www.w3.org/2000/svg",
            viewBox=f"0 0 {width:g} {height:g}",
            width=width,
            height=height,
            # Programs that draw SVG know fonts by name, not the words of browsers.
            font_family=FONT.replace("system-ui, -apple-system, ", ""),
            role="img",
            aria_labelledby="title desc",
        )
    )
