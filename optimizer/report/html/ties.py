"""Step time against memory: the answer, its near-ties, and the proven bound."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutopt.optimizer.report.html.chart import Chart, Figure, axis, label, layout, render
from layoutopt.optimizer.report.html.markup import Markup, Table, bullets, joined
from layoutopt.optimizer.report.html.palette import variable
from layoutopt.optimizer.specs.units import format_seconds

if TYPE_CHECKING:
    from layoutopt.optimizer.cost.estimate import Estimate
    from layoutopt.optimizer.solve.plan import Plan

GB = 1e9


def ties_block(plan: Plan, prefix: str = "") -> Markup:
    """Draw the near-ties with a numbered list of what makes each slower; nothing without any."""
    if plan.estimate is None or not plan.alternatives:
        return Markup()
    lines = [
        f"+{other.slower:.2%} ({format_seconds(other.estimate.step_time_s)}): {other.why}"
        for other in plan.alternatives
    ]
    return joined([render(ties_chart(plan, plan.estimate), prefix), bullets(lines, numbered=True)])


def ties_chart(plan: Plan, best: Estimate) -> Chart:
    """Draw step time over peak memory of the answer and of its numbered runners-up."""
    estimates = [best, *(other.estimate for other in plan.alternatives)]
    names = ["best", *(str(index + 1) for index in range(len(plan.alternatives)))]
    rows = [
        [name, format_seconds(one.step_time_s), f"{one.memory.peak_bytes / GB:.1f}", f"{one.mfu_causal:.1%}"]
        for name, one in zip(names, estimates, strict=True)
    ]
    return Chart(
        key="ties",
        title="Near-ties: step time against memory",
        message=_message(plan),
        description=f"Points: step time over peak memory of the fullest GPU, for the answer and each numbered runner-up. "
        f"{_message(plan)}",
        drawing=_figure(plan, best, estimates, names),
        table=Table(columns=["layout", "step", "peak GB", "MFU (causal)"], rows=rows),
    )


def _message(plan: Plan) -> str:
    nearest = min(other.slower for other in plan.alternatives)
    proof = "No layout is faster, and" if plan.status.value == "optimal" else "Of the layouts found"
    return f"{proof} the nearest other takes {nearest:.1%} longer."


def _figure(plan: Plan, best: Estimate, estimates: list[Estimate], names: list[str]) -> Figure:
    memory = [one.memory.peak_bytes / GB for one in estimates]
    steps = [one.step_time_s for one in estimates]
    capacity = best.memory.capacity_bytes / GB
    floor = min(steps) if plan.bound_s is None else min(plan.bound_s, *steps)
    room = max(max(steps) - floor, 0.004 * floor) * 0.18
    span = max(capacity - min(memory), 0.02 * capacity)
    points = {
        "type": "scatter",
        "mode": "markers+text",
        "x": memory,
        "y": steps,
        "text": [f"<b>{name}</b> " for name in names],
        # There a label crosses neither the capacity nor the bound.
        "textposition": "top left",
        "marker": {
            "size": [14] + [11] * (len(names) - 1),
            "symbol": ["star"] + ["circle"] * (len(names) - 1),
            "color": [variable("blue")] + [variable("orange")] * (len(names) - 1),
        },
        "hovertemplate": "%{text}: %{y:.4g} s, %{x:.1f} GB<extra></extra>",
    }
    return {
        "data": [points],
        "layout": layout(
            320,
            x=axis("peak GB of the fullest GPU", range=[min(memory) - 0.12 * span, capacity + 0.06 * span]),
            y=axis("seconds per step", range=[floor - room, max(steps) + 1.4 * room], hoverformat=".5g"),
            shapes=[_line("x", capacity, "ink", "dash")]
            + ([_line("y", plan.bound_s, "muted", "dot")] if plan.bound_s is not None else []),
            annotations=_labels(plan, capacity),
        ),
    }


def _labels(plan: Plan, capacity: float) -> list[Figure]:
    labels = [
        label(
            f"usable {capacity:.1f} GB",
            x=capacity,
            xanchor="right",
            xshift=-4,
            y=1,
            yref="paper",
            yanchor="top",
        )
    ]
    if plan.bound_s is not None:
        words = f"proven: none below {plan.bound_s:.4g} s"
        labels.append(label(words, x=0, xref="paper", xanchor="left", y=plan.bound_s, yanchor="top"))
    return labels


def _line(axis_name: str, value: float, colour: str, dash: str) -> Figure:
    """Draw a line across the whole chart at one value of an axis."""
    other = "y" if axis_name == "x" else "x"
    ends = {
        f"{axis_name}0": value,
        f"{axis_name}1": value,
        f"{other}0": 0,
        f"{other}1": 1,
        f"{other}ref": "paper",
    }
    return {"type": "line", **ends, "line": {"color": variable(colour), "width": 1.5, "dash": dash}}
