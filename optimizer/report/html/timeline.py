"""The pipeline's step over time: which rank computes what when, and where ranks idle."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from layoutopt.optimizer.cost.components import Component
from layoutopt.optimizer.cost.orders import Kind
from layoutopt.optimizer.report.html.chart import Chart, Figure, axis, layout
from layoutopt.optimizer.report.html.palette import variable
from layoutopt.optimizer.specs.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from layoutopt.optimizer.report.html.step import DrawnStep
    from layoutopt.optimizer.simulate.result import Operations, SimulationResult

    FloatArray = NDArray[np.float64]
    BoolArray = NDArray[np.bool_]

COLOURS = {
    "forward": Component.FORWARD.record.hue,
    "backward": Component.BACKWARD.record.hue,
    "weight gradient": "green",
    "forward and backward": "plum",
}
"""What a rank does, and its colour; idle time stays empty."""

WORDS = {
    Kind.FORWARD: "forward",
    Kind.BACKWARD: "backward",
    Kind.DGRAD: "backward",
    Kind.WGRAD: "weight gradient",
    Kind.PAIR: "forward and backward",
}

BINS = 320
"""Moments at which a crowded step is looked at: about two pixels each."""

CROWDED = 200
"""Operations per rank above which single ones are too narrow to be seen."""

CLOSE_UP = 30
"""Operations of one rank that the close-up shows."""

DIGITS = 5
HALF_ROW = 0.42
"""Half of a full bar's height; rows are 1 apart."""


class Span(NamedTuple):
    """A stretch of time of one rank, busy for a ``share`` of it."""

    rank: int
    start_s: float
    end_s: float
    share: float = 1.0


def timeline_chart(step: DrawnStep) -> Chart:
    """Draw the whole step, and below it a close-up of its beginning where single operations would be too narrow."""
    result = step.result
    crowded = len(result.operations.rank) > CROWDED * result.pipeline.pp
    whole = _phases(result) if crowded else _operations(result.operations, 0.0, result.makespan_s)
    window = _close_up(result) if crowded else (0.0, 0.0)
    close = _operations(result.operations, *window) if crowded else {}
    used = [name for name in COLOURS if whole.get(name) or close.get(name)]
    return Chart(
        key="timeline",
        title="Pipeline over one step",
        message=timeline_message(result),
        description=f"Time from left to right, one row per pipeline rank, rank 0 on top; empty where the rank idles. "
        f"{timeline_message(result)}",
        drawing=_figure(result, whole, close, window),
        legend=[(_legend(name, crowded), COLOURS[name]) for name in used],
        note=_note(step, crowded),
    )


def timeline_message(result: SimulationResult) -> str:
    """Say how much the ranks idle, and which most."""
    idle = result.bubble_s / result.makespan_s if result.makespan_s else result.bubble_s
    worst = int(idle.argmax())
    return (
        f"Ranks idle {result.bubble_share:.0%} of {format_seconds(result.makespan_s)} in the pipeline; "
        f"rank {worst} most, {float(idle[worst]):.0%}."
    )


def _note(step: DrawnStep, crowded: bool) -> str:
    words = ["Simulated event by event with the estimated times of every stage and of exposed transfers."]
    if step.shortened:
        words.append(
            f"Drawn with {step.micro_batches} of {step.all_micro_batches} micro-batches: the steady middle goes on alike, "
            "so the share of idle time is smaller in the full step."
        )
    if crowded:
        words.append(
            "Above, a bar's height is the share of time that a rank is busy. "
            "Below: around the first backward, operation by operation."
        )
    return " ".join(words)


def _legend(name: str, crowded: bool) -> str:
    return f"{name} in turn" if crowded and name == "forward and backward" else name


def _operations(operations: Operations, from_s: float, until_s: float) -> dict[str, list[Span]]:
    """Return what ranks do between two moments."""
    spans: dict[str, list[Span]] = {}
    for rank, kind, start, end in zip(
        operations.rank, operations.kind, operations.start_s, operations.end_s, strict=True
    ):
        # What takes no time has no width to draw.
        if start < until_s and end > max(start, from_s):
            name = WORDS[Kind(int(kind))]
            span = Span(int(rank), max(float(start), from_s), min(float(end), until_s))
            spans.setdefault(name, []).append(span)
    return spans


def _close_up(result: SimulationResult) -> tuple[float, float]:
    """Return when the close-up starts and ends: around the first backward, where forwards and backwards meet."""
    operations = result.operations
    first = float(operations.start_s[operations.kind != Kind.FORWARD].min())
    length = float(np.mean(operations.end_s - operations.start_s)) * CLOSE_UP
    start = max(first - length / 3, 0.0)
    return start, min(start + length, result.makespan_s)


def _phases(result: SimulationResult) -> dict[str, list[Span]]:
    """Return for every rank the stretches of forwards alone, backwards alone, and both in turn."""
    spans: dict[str, list[Span]] = {}
    operations, width = result.operations, result.makespan_s / BINS
    for rank in range(result.pipeline.pp):
        mine = operations.rank == rank
        start, end, kind = operations.start_s[mine], operations.end_s[mine], operations.kind[mine]
        forward = _busy(start, end, (kind == Kind.FORWARD) | (kind == Kind.PAIR), width)
        weight = _busy(start, end, kind == Kind.WGRAD, width)
        backward = _busy(start, end, (kind != Kind.FORWARD) & (kind != Kind.WGRAD), width)
        busy = forward + backward + weight
        for name, mask in _phase_masks(forward, backward, weight).items():
            found = [Span(rank, a * width, b * width, float(busy[a:b].mean())) for a, b in _runs(mask)]
            spans.setdefault(name, []).extend(found)
    return spans


def _phase_masks(forward: FloatArray, backward: FloatArray, weight: FloatArray) -> dict[str, BoolArray]:
    """Name each moment by what the rank does around it; it idles where it is busy for less than a tenth of the time."""
    # Five moments wide, so that passes in turn are one stretch of both and not a comb of single ones.
    around = [np.convolve(part, np.ones(5), mode="same") > 0.05 for part in (forward, backward)]
    busy = np.convolve(forward + backward + weight, np.ones(3) / 3, mode="same") >= 0.1
    both = busy & around[0] & around[1]
    return {
        "forward": busy & around[0] & ~both,
        "backward": busy & around[1] & ~both,
        "weight gradient": busy & ~around[0] & ~around[1],
        "forward and backward": both,
    }


def _busy(start: FloatArray, end: FloatArray, mask: BoolArray, width: float) -> FloatArray:
    """Return the share of each moment that operations take, (BINS,); they do not overlap."""
    edges = np.arange(BINS + 1) * width
    start, end = start[mask], end[mask]
    order = np.argsort(start)
    start, end = start[order], end[order]
    done = np.concatenate([[0.0], np.cumsum(end - start)])
    index = np.searchsorted(end, edges)
    # What an edge cuts counts up to the edge; behind the last operation there is nothing to cut.
    partial = np.where(index < len(start), np.maximum(edges - np.append(start, np.inf)[index], 0.0), 0.0)
    busy: FloatArray = np.diff(done[index] + partial) / width
    return busy


def _runs(mask: BoolArray) -> Iterator[tuple[int, int]]:
    """Yield start and end of every stretch of true values."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], mask.astype(np.int8), [0]])))
    yield from zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)


def _figure(
    result: SimulationResult,
    whole: dict[str, list[Span]],
    close: dict[str, list[Span]],
    window: tuple[float, float],
) -> Figure:
    pp = result.pipeline.pp
    row_px = min(max(320 // pp, 3), 26)
    height = row_px * pp + 60
    rows = axis("rank", range=[pp - 0.5, -0.5], showgrid=False, nticks=min(pp, 9), tickformat="d")
    time = axis("seconds", range=[0, result.makespan_s], showgrid=False, fixedrange=False)
    data = [_trace(name, spans, "", gaps=not close) for name, spans in whole.items() if spans]
    if not close:
        return {"data": data, "layout": layout(height, x=time, y=rows, hovermode=False, meta={"zoom": True})}
    data += [_trace(name, spans, "2", gaps=True) for name, spans in close.items() if spans]
    total = 2 * height
    # Both parts get rows of equal height, what is left parts them and holds an axis.
    share = row_px * pp / (total - 50)
    return {
        "data": data,
        "layout": layout(
            total,
            x=time | {"anchor": "y"},
            y=rows | {"domain": [1 - share, 1], "anchor": "x"},
            xaxis2=time | {"range": list(window), "anchor": "y2"},
            yaxis2=rows | {"domain": [0, share], "anchor": "x2"},
            hovermode=False,
            meta={"zoom": True},
        ),
    }


def _trace(name: str, spans: Iterable[Span], number: str, *, gaps: bool) -> Figure:
    """Draw stretches as one filled path, each a rectangle; ``gaps`` parts those that touch by a thin line."""
    x: list[float | None] = []
    y: list[float | None] = []
    # One path instead of a shape for each: a step that is not crowded may have thousands of operations.
    for rank, start, end, share in spans:
        left, right = float(f"{start:.{DIGITS}g}"), float(f"{end:.{DIGITS}g}")
        low, high = round(rank - HALF_ROW * share, 3), round(rank + HALF_ROW * share, 3)
        x += [left, right, right, left, left, None]
        y += [low, low, high, high, low, None]
    line = {"width": 0.6, "color": variable("paper")} if gaps else {"width": 0}
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": x,
        "y": y,
        "fill": "toself",
        "fillcolor": variable(COLOURS[name]),
        "line": line,
        "hoverinfo": "skip",
        "xaxis": f"x{number}",
        "yaxis": f"y{number}",
    }
