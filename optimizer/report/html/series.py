"""Rows of a sweep as lines: which quantity runs along the axis, and what tells the lines apart."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor, log10
from typing import TYPE_CHECKING

from layoutopt.optimizer.report.html.chart import axis
from layoutopt.optimizer.report.html.palette import SERIES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutopt.optimizer.report.html.chart import Figure
    from layoutopt.optimizer.sweep.rows import Row

ALONG = {
    "gpus": ("number of GPUs", "GPUs"),
    "global_batch": ("global batch", "sequences"),
    "sequence_length": ("sequence length", "tokens"),
    "network_gbit_per_s": ("network per GPU", "Gbit/s"),
}
"""Quantities that a sweep varies, with their units; the first that takes several values runs along the axis."""

DASHES = ("solid", "dash", "dot")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "triangle-down", "star")
UNPROVEN = "-open"
"""Ending of the symbol of an answer whose proof was cut short."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnLine:
    """Answered rows that differ in the quantity along the axis alone, in its order, and how they are drawn."""

    name: str
    rows: tuple[Row, ...]
    colour: str
    dash: str
    symbol: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnLines:
    """All lines of one model; ``unanswered`` are rows without a layout."""

    model: str
    along: str
    lines: tuple[DrawnLine, ...]
    unanswered: tuple[Row, ...]

    @property
    def quantity(self) -> str:
        """Name of what runs along the axis."""
        return ALONG[self.along][0]

    @property
    def unit(self) -> str:
        """Unit of it."""
        return ALONG[self.along][1]

    @property
    def values(self) -> list[float]:
        """Values along the axis that have an answer, ascending."""
        return sorted({row[self.along] for line in self.lines for row in line.rows})


def lines_by_model(rows: Sequence[Row]) -> list[DrawnLines]:
    """Sort rows into lines, model by model."""
    models = dict.fromkeys(row["model"] for row in rows)
    return [_lines(model, [row for row in rows if row["model"] == model]) for model in models]


def _lines(model: str, rows: Sequence[Row]) -> DrawnLines:
    along = next((name for name in ALONG if len({row[name] for row in rows}) > 1), "gpus")
    others = [name for name in (*ALONG, "family", "framework") if name != along]
    varied = [name for name in others if len({row[name] for row in rows}) > 1]
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if row["step_time_s"] is not None:
            groups.setdefault(", ".join(_words(name, row[name]) for name in varied), []).append(row)
    found = [
        DrawnLine(
            name=name or model,
            rows=tuple(sorted(members, key=lambda row: float(row[along]))),
            colour=SERIES[index % len(SERIES)],
            # Hues first: a dash tells lines apart only where the hues are used up.
            dash=DASHES[index // len(SERIES) % len(DASHES)],
            symbol=SYMBOLS[index % len(SYMBOLS)],
        )
        for index, (name, members) in enumerate(groups.items())
    ]
    missing = tuple(row for row in rows if row["step_time_s"] is None)
    return DrawnLines(model=model, along=along, lines=tuple(found), unanswered=missing)


def _words(name: str, value: object) -> str:
    """Write what tells a line apart."""
    return f"{value:,.10g} {ALONG[name][1]}" if name in ALONG else str(value)


def range_words(rows: Sequence[Row], name: str) -> str:
    """Write the values that a quantity takes, from the least to the greatest, with its unit."""
    values = sorted({float(row[name]) for row in rows})
    span = f"{values[0]:,.10g} to {values[-1]:,.10g}" if len(values) > 1 else f"{values[0]:,.10g}"
    return f"{span} {ALONG[name][1]}"


def short(value: float) -> str:
    """Write a value for a tick: thousands of 1,024 as ``16k``."""
    return f"{value / 1024:,.10g}k" if value >= 1024 and value % 1024 == 0 else f"{value:,.10g}"


def spaced(values: Sequence[float], count: int) -> list[float]:
    """Return those of ascending values that stay apart as ``count`` ones would on a logarithmic axis, the ends first."""
    if len(values) < 2:
        return list(values)
    # Values that are exactly a gap apart stay in spite of rounding.
    gap = (values[-1] / values[0]) ** (1 / count) * (1 - 1e-9)
    kept = [values[0]]
    for value in values[1:-1]:
        if value / kept[-1] >= gap and values[-1] / value >= gap:
            kept.append(value)
    return [*kept, values[-1]]


def log_axis(title: str, values: Sequence[float], count: int) -> Figure:
    """Return a logarithmic axis with about ``count`` ticks at some of ascending ``values``: sizes that were solved."""
    shown = spaced(values, count)
    return axis(
        title, type="log", showgrid=False, tickangle=0, tickvals=shown, ticktext=[short(one) for one in shown]
    )


def nice_values(low: float, high: float) -> list[float]:
    """Return 1, 2 and 5 times powers of ten from at most ``low`` to at least ``high``, for a logarithmic axis."""
    powers = range(floor(log10(low)) - 1, ceil(log10(high)) + 2)  # one more at each end: logarithms round
    values = [float(f"{digit}e{power}") for power in powers for digit in (1, 2, 5)]
    first = max(index for index, value in enumerate(values) if value <= low)
    last = min(index for index, value in enumerate(values) if value >= high)
    return values[first : last + 1]
