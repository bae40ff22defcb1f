"""Charts of a training plan: where the wall-clock time goes, goodput by size, the rule of thumb, better machines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutopt.optimizer.report.html.chart import Chart, Figure, above, axis, layout, named_bars
from layoutopt.optimizer.report.html.markup import Table
from layoutopt.optimizer.report.html.palette import WALL, variable
from layoutopt.optimizer.report.html.series import log_axis
from layoutopt.optimizer.report.tables.sweep import NAMES
from layoutopt.optimizer.report.tables.training import GOODPUT_COLUMNS, goodput_rows, schedule_rows
from layoutopt.optimizer.specs.units import DAY_S

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutopt.optimizer.cost.checkpoints import CheckpointSchedule
    from layoutopt.optimizer.plan.fault_plan import FaultPlan
    from layoutopt.optimizer.plan.training_plan import PhasePlan, TrainingPlan
    from layoutopt.optimizer.sweep.inverse import MarginalValue, SizeAnswer

ROW_PX = 56


def wall_days(schedule: CheckpointSchedule, work_days: float) -> dict[str, float]:
    """Split the expected wall-clock days by cause.

    The exact loss divides as the first-order waste does.
    """
    # The exact loss is more than the sum of the first-order shares: failures strike checkpoints and restarts too.
    lost = schedule.wall_s / DAY_S - work_days
    waste = schedule.waste
    parts = {"checkpoints": waste.checkpoint, "lost work": waste.lost_work, "restarts": waste.restart}
    total = waste.total or 1.0
    return {"training": work_days} | {name: lost * part / total for name, part in parts.items()}


def wall_chart(plan: TrainingPlan) -> Chart:
    """Draw the days of a run by cause, one bar for each way to save checkpoints."""
    faults = plan.faults
    columns, rows = schedule_rows(faults)
    message = wall_message(plan)
    return Chart(
        key="wall",
        title="Where the days go",
        message=message,
        description=f"Horizontal bars, days of the run by cause, one for each way to save checkpoints. {message}",
        drawing=_wall_figure(plan),
        legend=list(WALL.items()),
        table=Table(columns=columns, rows=rows),
        note="Expected days, exact for exponential failures; checkpoints, lost work and restarts share the loss as in the "
        "first-order formula." + _quantile_note(plan),
    )


def wall_message(plan: TrainingPlan) -> str:
    """Say what failures make of the run."""
    best = plan.faults.best
    return (
        f"Training takes {plan.budget.days:,.1f} days, failures make it {plan.expected_days:,.1f}: "
        f"{best.failures:,.0f} interruptions, {best.mode.value} checkpoints every {best.interval_s / 60:.3g} minutes."
    )


def _quantile_note(plan: TrainingPlan) -> str:
    runs = plan.faults.simulated_with_error
    if runs is None:
        return ""
    low, high = plan.step_ratio
    return f" Line: P10 to P90 of simulated runs with steps of {low:.2f} to {high:.2f} times the predicted time, dot: P50."


def _wall_figure(plan: TrainingPlan) -> Figure:
    schedules = plan.faults.schedules
    days = [wall_days(schedule, plan.budget.days) for schedule in schedules]
    bars = [
        {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "y": list(range(len(schedules))),
            "x": [round(parts[name], 3) for parts in days],
            "width": 0.4,
            "marker": {"color": variable(colour), "line": {"width": 0.5, "color": variable("paper")}},
            "hovertemplate": f"{name} %{{x:,.2f}} days<extra></extra>",
        }
        for name, colour in WALL.items()
    ]
    names = [
        above(
            f"{schedule.mode.value}  <b>{schedule.wall_s / DAY_S:,.1f} days</b>  goodput {schedule.goodput:.1%}",
            row,
            shift_px=12,
        )
        for row, schedule in enumerate(schedules)
    ]
    spread = _spread(plan, len(schedules))
    rows = len(schedules) + bool(spread)
    return {
        "data": bars + spread,
        "layout": layout(
            ROW_PX * rows + 50,
            x=axis("days", rangemode="tozero"),
            y=axis(range=[rows - 0.5, -0.8], visible=False),
            barmode="stack",
            annotations=names + _spread_label(plan, len(schedules)),
        ),
    }


def _spread(plan: TrainingPlan, row: int) -> list[Figure]:
    """Draw the deciles of simulated runs as a line with a dot."""
    runs = plan.faults.simulated_with_error
    if runs is None:
        return []
    days = [runs.p10_s / DAY_S, runs.p50_s / DAY_S, runs.p90_s / DAY_S]
    return [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "x": [round(day, 3) for day in days],
            "y": [row] * 3,
            "line": {"color": variable("ink"), "width": 2},
            "marker": {"symbol": ["line-ns-open", "circle", "line-ns-open"], "size": [10, 9, 10]}
            | {"color": variable("ink")},
            "hovertemplate": "%{x:,.1f} days<extra></extra>",
        }
    ]


def _spread_label(plan: TrainingPlan, row: int) -> list[Figure]:
    runs = plan.faults.simulated_with_error
    if runs is None:
        return []
    p10, p50, p90 = (value / DAY_S for value in (runs.p10_s, runs.p50_s, runs.p90_s))
    words = f"simulated  <b>{p10:,.1f} to {p90:,.1f} days</b>  P50 {p50:,.1f}"
    return [above(words, row)]


def goodput_chart(faults: FaultPlan, gpus: int) -> Chart:
    """Draw goodput by cluster size with this run marked."""
    message = goodput_message(faults, gpus)
    return Chart(
        key="goodput",
        title="Useful time by cluster size",
        message=message,
        description=f"Line: goodput in percent over GPUs, logarithmic. {message}",
        drawing=_goodput_figure(faults, gpus),
        table=Table(columns=GOODPUT_COLUMNS, rows=goodput_rows(faults), left=()),
    )


def goodput_message(faults: FaultPlan, gpus: int) -> str:
    """Say how much of the time is useful here and on the largest cluster."""
    own = next(point for point in faults.curve if point.gpus == gpus)
    last = faults.curve[-1]
    return (
        f"{own.goodput:.1%} of the time is useful on {gpus:,} GPUs, {last.goodput:.0%} on {last.gpus:,}, "
        f"with a failure every {faults.gpu_hours_per_failure:,.0f} GPU-hours."
    )


def _goodput_figure(faults: FaultPlan, gpus: int) -> Figure:
    points = faults.curve
    line = {
        "type": "scatter",
        "mode": "lines+markers",
        "x": [point.gpus for point in points],
        "y": [round(100 * point.goodput, 2) for point in points],
        "line": {"color": variable("blue"), "width": 2},
        "marker": {
            "color": variable("blue"),
            "size": [14 if point.gpus == gpus else 7 for point in points],
            "symbol": ["star" if point.gpus == gpus else "circle" for point in points],
        },
        "hovertemplate": "%{x:,} GPUs: %{y:.1f}%<extra></extra>",
    }
    x = log_axis("GPUs", [point.gpus for point in points], 5)
    return {"data": [line], "layout": layout(280, x=x, y=axis("useful time, %", range=[0, 102]))}


def recipe_chart(phase: PhasePlan) -> Chart | None:
    """Draw the days of the optimum beside those of the rule of thumb; None where that leads nowhere."""
    slower = phase.baseline.slower
    if slower is None:
        return None
    days = [phase.budget.days, phase.budget.days * (1 + slower)]
    message = f"The rule of thumb takes {slower:.1%} longer, {days[1] - days[0]:,.1f} days."
    return Chart(
        key="recipe",
        title="Optimum and rule of thumb",
        message=message,
        description=f"Two horizontal bars, days of the run without failures. {message}",
        drawing=named_bars(
            [f"optimum  <b>{days[0]:,.1f} days</b>", f"rule of thumb  <b>{days[1]:,.1f} days</b>"],
            days,
            ["blue", "grey"],
            "days",
        ),
    )


def marginal_chart(values: Sequence[MarginalValue]) -> Chart:
    """Draw what more of each resource would save."""
    ranked = sorted(values, key=lambda value: -value.saved)
    names = [f"{value.more:+.0%} {NAMES[value.resource]}" for value in ranked]
    # Each machine is solved by itself: within the solver's rounding a better one may come out slower, and a bar has no sign.
    saved = [100 * max(value.saved, 0.0) for value in ranked]
    best = f"{names[0]} would save {ranked[0].saved:.1%} of the step, the most."
    return Chart(
        key="marginal",
        title="What a better machine would save",
        message=best,
        description=f"Horizontal bars: percent of the step time saved by more of each resource. {best}",
        drawing=named_bars(
            [f"{name}  <b>{share:.2f}%</b>" for name, share in zip(names, saved, strict=True)],
            saved,
            ["blue"] * len(ranked),
            "% of the step saved",
        ),
        note="Solved again with each.",
    )


def sizes_chart(answers: Sequence[SizeAnswer]) -> Chart:
    """Draw expected days by cluster size, with the cost of each in the table."""
    fitting = [
        (answer.gpus, answer.expected_days, answer) for answer in answers if answer.expected_days is not None
    ]
    fitting.sort(key=lambda entry: entry[0])
    few, many = fitting[0], fitting[-1]
    message = f"{few[1]:,.0f} days on {few[0]:,} GPUs, {many[1]:,.0f} on {many[0]:,}."
    line = {
        "type": "scatter",
        "mode": "lines+markers",
        "x": [gpus for gpus, _, _ in fitting],
        "y": [round(days, 3) for _, days, _ in fitting],
        "line": {"color": variable("blue"), "width": 2},
        "marker": {"color": variable("blue"), "size": 8},
        "hovertemplate": "%{x:,} GPUs: %{y:,.1f} days<extra></extra>",
    }
    rows = [
        [f"{gpus:,}", f"{days:,.2f}", "-" if answer.cost is None else f"{answer.cost:,.0f}"]
        for gpus, days, answer in fitting
    ]
    x = log_axis("GPUs", [gpus for gpus, _, _ in fitting], 6)
    return Chart(
        key="sizes",
        title="Days by cluster size",
        message=message,
        description=f"Line: expected days over GPUs, logarithmic. {message}",
        drawing={"data": [line], "layout": layout(280, x=x, y=axis("days", rangemode="tozero"))},
        table=Table(columns=["GPUs", "days", "cost"], rows=rows, left=()),
    )
