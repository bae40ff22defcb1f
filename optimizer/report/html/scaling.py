"""Curves of a sweep: step time, MFU and cost by cluster size, or by whatever else was varied."""

from __future__ import annotations

from math import log10
from typing import TYPE_CHECKING

from layoutopt.optimizer.report.html.chart import Chart, Figure, axis, layout
from layoutopt.optimizer.report.html.markup import Table
from layoutopt.optimizer.report.html.palette import variable
from layoutopt.optimizer.report.html.series import UNPROVEN, log_axis, nice_values
from layoutopt.optimizer.specs.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from layoutopt.optimizer.report.html.chart import Swatch
    from layoutopt.optimizer.report.html.series import DrawnLine, DrawnLines
    from layoutopt.optimizer.sweep.rows import Row

    Value = Callable[[Row], float]

TOKENS = 1e12
"""Cost and GPU-hours are shown per trillion tokens, whatever a model's run."""

HEIGHT = 330


def step_time_s(row: Row) -> float:
    """Step time of a row."""
    return float(row["step_time_s"])


def mfu_percent(row: Row) -> float:
    """MFU of a row in percent, counting causal attention."""
    return 100.0 * float(row["mfu_causal"])


def gpu_hours(row: Row) -> float:
    """GPU-hours of the whole cluster, idle GPUs included, per trillion tokens."""
    tokens_per_step = row["global_batch"] * row["sequence_length"]
    return float(row["gpus"] * row["step_time_s"] / tokens_per_step * TOKENS / 3600)


def step_time_chart(found: DrawnLines, key: str) -> Chart:
    """Draw step time, both scales logarithmic; along GPUs with perfect scaling beside it."""
    ideal = _ideal(found)
    message = speedup_message(found)
    traces = _traces(found, step_time_s, "%{y:.4g} s") + ([ideal] if ideal else [])
    return Chart(
        key=f"{key}-step",
        title=f"Step time by {found.quantity}",
        message=message,
        description=f"Lines: seconds per step over {found.quantity}, both logarithmic. {message}",
        drawing=_figure(found, traces, _seconds(traces)),
        legend=_legend(found),
        table=_table(found, lambda row: format_seconds(row["step_time_s"])),
        note="Dashed grey: perfect scaling of the fastest smallest size. " * bool(ideal) + _open_note(found),
    )


def mfu_chart(found: DrawnLines, key: str) -> Chart:
    """Draw MFU."""
    best = max(_answered(found), key=mfu_percent)
    worst = min(_answered(found), key=mfu_percent)
    message = f"MFU is {mfu_percent(best):.1f}% at best, {_where(found, best)}, and {mfu_percent(worst):.1f}% at worst."
    return Chart(
        key=f"{key}-mfu",
        title=f"MFU by {found.quantity}",
        message=message,
        description=f"Lines: model FLOP/s utilisation in percent over {found.quantity}. {message}",
        drawing=_figure(
            found,
            _traces(found, mfu_percent, "%{y:.1f}%"),
            # From 0: an axis that is cut makes small differences look large.
            axis("MFU, %", range=[0, mfu_percent(best) * 1.1]),
        ),
        legend=_legend(found),
        table=_table(found, lambda row: f"{mfu_percent(row):.1f}%"),
        note="Counting causal attention (Megatron-LM's count).",
    )


def cost_chart(found: DrawnLines, key: str, gpu_hour_cost: float | None) -> Chart:
    """Draw the GPU-hours of a trillion tokens, or their cost where a GPU-hour has a price."""
    price = 1.0 if gpu_hour_cost is None else gpu_hour_cost
    what = "GPU-hours" if gpu_hour_cost is None else "Cost"

    def value(row: Row) -> float:
        """Cost of a row's run, or its GPU-hours where no price is given."""
        return gpu_hours(row) * price

    best = min(_answered(found), key=value)
    verb, unit = ("take", " GPU-hours") if gpu_hour_cost is None else ("cost", "")
    message = f"A trillion tokens {verb} {value(best):,.0f}{unit} at least, {_where(found, best)}."
    top = max(value(row) for row in _answered(found))
    note = "All GPUs of the cluster are counted, idle ones too; no failures."
    return Chart(
        key=f"{key}-cost",
        title=f"{what} of a trillion tokens by {found.quantity}",
        message=message,
        description=f"Lines: {what} of a trillion tokens over {found.quantity}. {message}",
        drawing=_figure(
            found,
            _traces(found, value, "%{y:,.4s}"),
            axis(what, range=[0, top * 1.1], tickformat="~s"),
        ),
        legend=_legend(found),
        table=_table(found, lambda row: f"{value(row):,.0f}"),
        note=note if gpu_hour_cost is None else f"{note} A GPU-hour costs {gpu_hour_cost:g}.",
    )


def _answered(found: DrawnLines) -> list[Row]:
    return [row for line in found.lines for row in line.rows]


def _where(found: DrawnLines, row: Row) -> str:
    """Say which point a row is."""
    line = next(line for line in found.lines if row in line.rows)
    place = f"at {row[found.along]:,.10g} {found.unit}"
    return f"{place} ({line.name})" if len(found.lines) > 1 else place


def speedup_message(found: DrawnLines) -> str:
    """Say by how much the longest line speeds up."""
    # It spans most of the sizes; a sentence for each line would be a table.
    line = max(found.lines, key=lambda line: len(line.rows))
    first, last = line.rows[0], line.rows[-1]
    if first is last:
        return f"{format_seconds(first['step_time_s'])} per step."
    more, faster = last[found.along] / first[found.along], first["step_time_s"] / last["step_time_s"]
    name = f" ({line.name})" if len(found.lines) > 1 else ""
    span = f"From {first[found.along]:,.10g} to {last[found.along]:,.10g} {found.unit}"
    if found.along == "gpus":
        return f"{span} a step gets {faster:.3g} times faster on {more:.3g} times the GPUs{name}."
    change = f"{faster:.3g} times faster" if faster >= 1 else f"{1 / faster:.3g} times longer"
    return f"{span} a step gets {change}{name}."


def _traces(found: DrawnLines, value: Value, hover: str) -> list[Figure]:
    return [_trace(line, found.along, value, hover) for line in found.lines]


def _trace(line: DrawnLine, along: str, value: Value, hover: str) -> Figure:
    symbols = [line.symbol + UNPROVEN if row["status"] == "stopped" else line.symbol for row in line.rows]
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": line.name,
        "x": [row[along] for row in line.rows],
        # Digits that no pixel shows would only make the page larger.
        "y": [float(f"{value(row):.6g}") for row in line.rows],
        "line": {"color": variable(line.colour), "width": 2, "dash": line.dash},
        "marker": {"symbol": symbols, "size": 8, "color": variable(line.colour)},
        "hovertemplate": hover,
    }


def _ideal(found: DrawnLines) -> Figure | None:
    """Draw step times that fall in proportion to the GPUs."""
    ends = perfect_scaling(found)
    if ends is None:
        return None
    return {
        "type": "scatter",
        "mode": "lines",
        "x": [gpus for gpus, _ in ends],
        "y": [float(f"{seconds:.6g}") for _, seconds in ends],
        "line": {"color": variable("line"), "width": 1.5, "dash": "dash"},
        "hoverinfo": "skip",
    }


def perfect_scaling(found: DrawnLines) -> tuple[tuple[float, float], tuple[float, float]] | None:
    """Return GPUs and step time at both ends of perfect scaling, from the best answer of the smallest size.

    None where the sizes don't vary.
    """
    values = found.values
    # Only more GPUs promise a step that is as many times shorter; a larger batch does more work.
    if found.along != "gpus" or len(values) < 2:
        return None
    start_s = min(step_time_s(row) for row in _answered(found) if row["gpus"] == values[0])
    return (values[0], start_s), (values[-1], start_s * values[0] / values[-1])


def _figure(found: DrawnLines, traces: list[Figure], y: Figure) -> Figure:
    name = found.unit if found.along == "gpus" else f"{found.quantity}, {found.unit}"
    x = log_axis(name, found.values, 8)
    return {"data": traces, "layout": layout(HEIGHT, x=x, y=y, hovermode="x unified")}


def _legend(found: DrawnLines) -> list[Swatch]:
    return [(line.name, line.colour) for line in found.lines] if len(found.lines) > 1 else []


def _seconds(traces: list[Figure]) -> Figure:
    """Return a logarithmic axis of seconds with a tick at 1, 2 and 5 of every power of ten."""
    times = [time for trace in traces for time in trace["y"]]
    low, high = min(times), max(times)
    ticks = nice_values(low, high)
    return axis(
        "seconds per step",
        type="log",
        range=[log10(low / 1.15), log10(high * 1.15)],
        tickvals=ticks,
        ticktext=[f"{tick:g}" for tick in ticks],
        hoverformat=".4g",
    )


def _open_note(found: DrawnLines) -> str:
    unproven = any(row["status"] == "stopped" for row in _answered(found))
    return "Hollow: the search was stopped before the proof." if unproven else ""


def _table(found: DrawnLines, cell: Callable[[Row], str]) -> Table:
    """One row per value along the axis, one column per line."""
    by_place = {(line.name, row[found.along]): cell(row) for line in found.lines for row in line.rows}
    rows = [
        [f"{value:,.10g}", *(by_place.get((line.name, value), "-") for line in found.lines)]
        for value in found.values
    ]
    return Table(columns=[found.unit, *(line.name for line in found.lines)], rows=rows, left=())
