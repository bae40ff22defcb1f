"""A training plan on the terminal, and what to buy for one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from layoutopt.optimizer.ask.describe import describe_cluster, describe_model
from layoutopt.optimizer.report.tables.console import bullets, facts, grid, section
from layoutopt.optimizer.report.tables.header import header_table, network_words, size_words
from layoutopt.optimizer.report.tables.honesty import claim_words, sure_lines
from layoutopt.optimizer.report.tables.layout import layout_text
from layoutopt.optimizer.report.tables.short import memory_words
from layoutopt.optimizer.solve.inputs import question_from_plain
from layoutopt.optimizer.specs.units import (
    DAY_S,
    format_bytes,
    format_count,
    format_rate,
    format_seconds,
    rough,
)
from layoutopt.optimizer.sweep.purchase import MOST_BETWEEN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from layoutopt.optimizer.cost.budget import Budget
    from layoutopt.optimizer.frameworks.registry import Framework
    from layoutopt.optimizer.plan.fault_plan import FaultPlan
    from layoutopt.optimizer.plan.monte_carlo import RunQuantiles
    from layoutopt.optimizer.plan.training_plan import PhasePlan, TrainingPlan
    from layoutopt.optimizer.plan.watch import WatchList
    from layoutopt.optimizer.specs.model import TrainingSpec
    from layoutopt.optimizer.specs.workload import Workload
    from layoutopt.optimizer.sweep.purchase import Offer


GOODPUT_COLUMNS = ("GPUs", "interrupted every", "save every", "goodput")


def training_tables(plan: TrainingPlan) -> RenderableType:
    """Show the run: headline, phases with layout, recipe and what to watch, budget, failures."""
    question = question_from_plain(plan.phases[0].plan.inputs)
    asked = header_table(question.workload, question.cluster, question.options.framework.value)
    parts: list[RenderableType] = [_headline(plan), asked]
    for phase in plan.phases:
        parts.extend(_phase(phase, alone=len(plan.phases) == 1))
    if len(plan.phases) > 1:
        parts.append(section("All phases", facts(budget_pairs(plan.budget, plan.phases[0].training))))
    parts.extend(_faults(plan.faults, replaced=replaced(plan)))
    return Group(*parts)


def _headline(plan: TrainingPlan) -> Text:
    line = Text()
    line.append(f"{rough(plan.expected_days):,g} days", style="bold")
    ends = ends_words(plan)
    line.append(f" (80% interval {ends})" if ends else "")
    line.append(
        f" expected with failures for {format_count(plan.budget.tokens)} tokens of {plan.model} on {plan.cluster}"
    )
    if plan.expected_cost is not None:
        line.append(f", cost {plan.expected_cost:,.0f}")
    return line


def ends_words(plan: TrainingPlan) -> str:
    """Write the days between which four of five such runs are expected; empty where that is not known."""
    runs, hot = plan.faults.simulated_with_error, replaced(plan)
    if runs is None or (hot and plan.relative_error is not None):
        return ""
    # The simulation restarts the whole job after each failure: what hot restarts leave of a run is not in it.
    ends = (
        [plan.expected_days * ratio for ratio in plan.step_ratio]
        if hot
        else [runs.p10_s / DAY_S, runs.p90_s / DAY_S]
    )
    low, high = map(rough, ends)
    return f"{low:,g} to {high:,g}"


def _phase(phase: PhasePlan, *, alone: bool) -> list[RenderableType]:
    estimate, training = phase.estimate, phase.training
    title = "Run" if alone else f"Phase {phase.name}"
    head = [
        ("batch", f"{training.global_batch:,} x {training.sequence_length:,} tokens"),
        ("layout", layout_text(phase.layout)),
        ("step", f"{format_seconds(estimate.step_time_s)}, {phase.plan.status.value}"),
        ("memory", memory_words(estimate.memory)),
        ("MFU", f"{estimate.mfu_causal:.1%} causal, {estimate.mfu_full:.1%} full attention"),
    ]
    return [
        section(
            title,
            facts(head),
            Text(""),
            facts(budget_pairs(phase.budget, training)),
        ),
        section("Rule of thumb", *_recipe(phase)),
        section("Watch", *_watch(phase.watch)),
    ]


def budget_pairs(budget: Budget, training: TrainingSpec) -> list[tuple[str, str]]:
    """Return names and values of a budget, and whose number of tokens it is where nobody who asks stated it."""
    whose = "" if training.stated_tokens else " (the built-in model's; --tokens or --samples set yours)"
    rows = [
        (
            "tokens",
            f"{format_count(budget.tokens)}{whose} in {budget.steps:,.0f} steps, {budget.total_flops:.3g} FLOP "
            "(full attention)",
        ),
        (
            "days",
            f"{rough(budget.days):,g} without failures ({rough(budget.days_low):,g} to {rough(budget.days_high):,g} "
            f"for steps of {budget.days_low / budget.days:.2f} to {budget.days_high / budget.days:.2f} times the "
            "predicted time)",
        ),
        ("GPU-hours", f"{rough(budget.gpu_hours):,.0f}"),
        ("energy", f"{rough(budget.energy_kwh):,.0f} kWh"),
    ]
    if budget.cost is not None:
        rows.append(("cost", f"{rough(budget.cost):,.0f}"))
    return rows


def _recipe(phase: PhasePlan) -> list[RenderableType]:
    words = [text for text in (recipe_words(phase), vendor_words(phase)) if text]
    return [bullets(phase.baseline.recipe.steps), *(Text(text) for text in words)]


def vendor_words(phase: PhasePlan) -> str:
    """Say how far the vendor's published layout is behind the optimum; nothing where none is known or runs."""
    vendor, slower = phase.baseline.vendor, phase.baseline.vendor_slower
    if vendor is None or slower is None:
        return ""
    return f"{vendor.name} ({vendor.gpus:,} GPUs) on this cluster: {slower:.1%} slower than the optimum"


def recipe_words(phase: PhasePlan) -> str:
    """Say what the optimum saves over the rule of thumb; nothing where that leads nowhere."""
    baseline = phase.baseline
    judged = baseline.recipe.judgement
    if judged is None or judged.estimate is None or baseline.slower is None or baseline.days_saved is None:
        return ""
    saved = f"{rough(baseline.days_saved):,g} days"
    saved += "" if baseline.cost_saved is None else f", {rough(baseline.cost_saved):,.0f}"
    step_s = judged.estimate.step_time_s
    said = f"{format_seconds(step_s)} a step, {baseline.slower:.1%} slower: the optimum saves {saved}"
    # What carries the gain, with the runs that test it: a large saving is a large claim.
    claim = claim_words(phase.estimate, judged.estimate)
    return f"{said}, {claim}" if claim else said


def _watch(watch: WatchList) -> list[RenderableType]:
    columns, rows = bandwidth_rows(watch)
    table = grid(columns, rows, left=(0, 1))
    return [facts(watch_pairs(watch)), Text(""), table] if rows else [facts(watch_pairs(watch))]


def watch_pairs(watch: WatchList) -> list[tuple[str, str]]:
    """Return names and values of what to watch."""
    low, expected, high = map(rough, watch.tokens_per_s)
    return [
        (
            "tokens/s",
            f"{expected:,.0f} ({low:,.0f} to {high:,.0f}), {rough(watch.tokens_per_s_per_gpu):,.0f} per GPU",
        ),
        ("MFU causal", _band(watch.mfu_causal)),
        ("MFU full", _band(watch.mfu_full)),
        (
            "memory",
            f"{format_bytes(watch.peak_bytes)} of tensors, {format_bytes(watch.device_bytes)} in nvidia-smi, "
            f"{format_bytes(watch.headroom_bytes)} free for tensors",
        ),
        ("step spread", f"{watch.step_spread[0]:.0%} to {watch.step_spread[1]:.0%} over a day"),
        (
            "a slow rank",
            ", ".join(f"{r.slower:.0%} slower costs {r.step_slower:.1%}" for r in watch.slow_ranks),
        ),
    ]


def bandwidth_rows(watch: WatchList) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows of expected bus bandwidths; the first two columns hold words."""
    rows = [
        [
            entry.axis.replace("dp_cp", "dp x cp"),
            entry.program,
            f"{entry.members:,}",
            format_bytes(entry.size_bytes),
            format_seconds(entry.seconds),
            format_rate(entry.bus_bytes_per_s),
        ]
        for entry in watch.bandwidths
        # The layout's own messages, and one size that every sweep of nccl-tests has; JSON has all.
        if entry.own or entry.size_bytes == 2.0**28
    ]
    return ["axis", "nccl-tests", "ranks", "message", "time", "bus bandwidth"], rows


def _band(band: tuple[float, float, float]) -> str:
    return f"{band[1]:.1%} ({band[0]:.1%} to {band[2]:.1%})"


def replaced(plan: TrainingPlan) -> bool:
    """Tell whether the expected days count hot restarts or nodes in repair, which the schedules do not."""
    wall_days = plan.faults.best.wall_s / DAY_S
    # Where nothing is replaced both are one sum, but for its rounding.
    return abs(plan.expected_days - wall_days) > 1e-9 * wall_days


def _faults(faults: FaultPlan, *, replaced: bool) -> list[RenderableType]:
    columns, rows = schedule_rows(faults)
    apart = "; the days expected count hot restarts and nodes in repair, these do not" if replaced else ""
    return [
        section(
            "Failures",
            facts(fault_pairs(faults)),
            Text(""),
            grid(columns, rows),
            note=f"{faults.gpu_hours_per_failure:,.0f} GPU-hours each{apart}",
        ),
        section("Goodput by size", grid(GOODPUT_COLUMNS, goodput_rows(faults), left=())),
    ]


def fault_pairs(faults: FaultPlan) -> list[tuple[str, str]]:
    """Return names and values of what failures mean for the run."""
    best, cost = faults.best, faults.checkpoint
    return [
        ("interruptions", f"{best.failures:,.1f} expected, one every {format_seconds(faults.mtbf_s)}"),
        ("checkpoint", f"{format_bytes(cost.total_bytes)}, {format_bytes(cost.per_gpu_bytes)} per GPU"),
        ("to storage", format_seconds(cost.write_s)),
        ("spare nodes", f"{faults.spare_nodes:,}"),
        ("days", _quantiles(faults.simulated, "failures alone")),
        ("", _quantiles(faults.simulated_with_error, "and the error of the step time")),
    ]


def schedule_rows(faults: FaultPlan) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows of both ways to save checkpoints."""
    rows = [
        [
            schedule.mode.value,
            format_seconds(schedule.stall_s),
            format_seconds(schedule.young_s),
            format_seconds(schedule.daly_s),
            format_seconds(schedule.interval_s),
            f"{schedule.waste.total:.2%}",
            f"{schedule.goodput:.2%}",
            f"{schedule.wall_s / DAY_S:,.2f}",
        ]
        for schedule in faults.schedules
    ]
    return ["checkpoints", "stall", "Young", "Daly", "interval", "waste", "goodput", "days"], rows


def goodput_rows(faults: FaultPlan) -> list[list[str]]:
    """Return the rows of goodput by size."""
    return [
        [f"{p.gpus:,}", format_seconds(p.mtbf_s), format_seconds(p.interval_s), f"{p.goodput:.1%}"]
        for p in faults.curve
    ]


def _quantiles(runs: RunQuantiles | None, what: str) -> str:
    if runs is None:
        return "the run hardly ever ends"
    p10, p50, p90 = (value / DAY_S for value in (runs.p10_s, runs.p50_s, runs.p90_s))
    return f"P10 {p10:,.1f}, P50 {p50:,.1f}, P90 {p90:,.1f}: {what}"


DEFINITION = (
    "cost: all GPUs for the expected days, failures and checkpoints included, at the price of a GPU-hour, and the energy "
    "at its own price where one is given"
)


def purchase_tables(
    workload: Workload,
    found: Sequence[Offer],
    best: Offer | None,
    days: float,
    framework: Framework,
    sizes: str | None = None,
) -> RenderableType:
    """Show the offers, the cheapest marked, the networks that they rest on, and how sure their kinds are.

    ``sizes`` as asked, None: those that divide well.
    """
    model = describe_model(workload)
    tokens = format_count(workload.training.total_tokens or 0.0)
    # An offer without a price can't be compared by cost: then GPU-days decide.
    all_priced = all(one.cost is not None for one in found if one.gpus)
    head = Text(_purchase_headline(best, days, priced=all_priced), style="bold")
    asked = f"{model.name}: {size_words(model)}; {tokens} tokens"
    priced = any(one.cost is not None for one in found)
    columns = ["GPU", "network", "format", "GPUs", "batch", "days", "80%", "MFU", "MWh", "cost", "layout"]
    rows = [_row(one, best is one) for one in found]
    lines = [
        f"{one.gpus:,} {one.gpu}: {network_words(describe_cluster(one.cluster))}"
        for one in found
        if one.cluster
    ]
    none = [f"no {one.gpu} in {one.precision}: {one.reason}" for one in found if one.reason]
    # Offers of one size of a GPU share their network, which is said once.
    notes = [*dict.fromkeys(lines + none), *([DEFINITION] if priced else [])]
    open_ = dict.fromkeys(one.gpu for one in found if one.gpus and one.cost is None)
    if priced and open_:
        notes.append(f"no price of {', '.join(open_)} is stated: offers are compared by GPU-days")
    sure = sure_lines(
        [(workload, one.cluster, one.precision) for one in found if one.cluster is not None], framework
    )
    notes.append(_sizes_tried(sizes))
    return Group(
        head,
        Text(asked),
        section("Offers", grid(columns, rows, left=(0, 10))),
        section("Taken", bullets(notes)),
        *([section("How sure", bullets(sure))] if sure else []),
    )


def _sizes_tried(sizes: str | None) -> str:
    """Say which sizes were tried below the one that is named."""
    if sizes is not None:
        return f"sizes {sizes} of GPUs are tried, and no smaller one of them is in time"
    return (
        f"sizes of 1, 3, 5, 9 and 15 times a power of two nodes are tried, and up to {MOST_BETWEEN} between the smallest of "
        "them in time and the next smaller one; no smaller size of those is in time, others were not tried"
    )


def _purchase_headline(best: Offer | None, days: float, *, priced: bool) -> str:
    if best is None:
        return f"no size of these machines is done in {days:g} days"
    cost = "" if best.cost is None else f", cost {_cost_words(best.cost)}"
    least = "the cheapest" if priced else "the fewest GPU-days"
    return (
        f"{best.gpus:,} {best.gpu} with {best.network_gbit_per_s:g} Gbit/s in {best.precision}: {best.days:.3g} days"
        f"{cost}, {least} of those done in {days:g} days"
    )


def _cost_words(cost: float) -> str:
    """Write a cost of a column in digits alone: 840,000 beside 1,300,000."""
    return f"{rough(cost):,.15g}"


def _row(one: Offer, best: bool) -> list[str]:
    name = f"{one.gpu}{' <' if best else ''}"
    start = [name, f"{one.network_gbit_per_s:g}", one.precision.value]
    if one.layout is None or one.days is None or one.days_80 is None:
        return [*start, "none", *[""] * 7]
    layout = one.layout
    degrees = {
        "tp": layout.tp,
        "cp": layout.cp,
        "pp": layout.pp,
        "vp": layout.vp,
        "ep": layout.ep,
        "dp": layout.dp,
    }
    words = [f"{axis}{degree}" for axis, degree in degrees.items() if degree > 1]
    return [
        *start,
        f"{one.gpus:,}",
        f"{one.global_batch:,}",
        f"{one.days:.3g}",
        f"{one.days_80[0]:.3g} to {one.days_80[1]:.3g}",
        f"{one.mfu_causal or 0:.0%}",
        f"{rough((one.energy_kwh or 0) / 1e3):,.10g}",
        "-" if one.cost is None else _cost_words(one.cost),
        " ".join(words),
    ]
