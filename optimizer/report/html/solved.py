"""The page of a solved plan, and what other pages show of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutopt.optimizer.evidence.honesty import assess
from layoutopt.optimizer.report.html.chart import Chart, Figure, Section, axis, label, layout, render
from layoutopt.optimizer.report.html.markup import Markup, Table, bullets, element, facts, joined, table
from layoutopt.optimizer.report.html.memory import memory_chart
from layoutopt.optimizer.report.html.page import page, tiles
from layoutopt.optimizer.report.html.palette import variable
from layoutopt.optimizer.report.html.step import draw_step, step_chart
from layoutopt.optimizer.report.html.timeline import timeline_chart
from layoutopt.optimizer.report.html.topology import topology_chart
from layoutopt.optimizer.report.tables.header import header_pairs, run_words
from layoutopt.optimizer.report.tables.honesty import band_lines
from layoutopt.optimizer.report.tables.layout import layout_text, stage_rows
from layoutopt.optimizer.report.tables.plan import infeasibility_pairs, meaning, plan_notes
from layoutopt.optimizer.report.tables.proof import gap_words, proof_pairs
from layoutopt.optimizer.report.tables.short import interval_words
from layoutopt.optimizer.report.tables.step_time import rates_pairs
from layoutopt.optimizer.solve.inputs import question_from_plain
from layoutopt.optimizer.specs.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layoutopt.optimizer.cost.estimate import Estimate
    from layoutopt.optimizer.evidence.honesty import Honesty
    from layoutopt.optimizer.report.html.step import DrawnStep
    from layoutopt.optimizer.solve.inputs import Question
    from layoutopt.optimizer.solve.plan import Infeasibility, Plan
    from layoutopt.optimizer.specs.layout import Layout


TONES = {"optimal": "good", "within_gap": "good", "stopped": "warn", "infeasible": "bad"}
"""Colour of each status."""

VERDICT_TONES = {"fits": "good", "borderline": "warn"}
"""Colour of each verdict; all others are bad news."""


def solve_page(plan: Plan, step: DrawnStep | None = None) -> str:
    """Write the page of a plan.

    ``step`` is the simulated step to draw; None simulates it. Raises ``InputError`` when the plotting
    library is not installed.
    """
    question = question_from_plain(plan.inputs)
    workload, cluster = question.workload, question.cluster
    title = f"{workload.model.name} on {cluster.gpu_count:,} x {cluster.gpu.name}"
    framework = question.options.framework.value
    asked = facts(header_pairs(workload, cluster, framework))
    honesty = assess(plan, workload, cluster, question.options)
    lead = [status_line(plan), *_key_numbers(plan, honesty), asked]
    return page(title, run_words(workload, framework), lead, _sections(plan, question, honesty, step))


def status_line(plan: Plan) -> Markup:
    """Say what was proven, and the verdict on the memory."""
    status = plan.status.value
    gap = (
        ""
        if gap_words(plan.gap) == "none" or plan.layout is None
        else f", proven within {gap_words(plan.gap)}"
    )
    proven = (element("b", f"{status}{gap}", class_=TONES[status]), f": {meaning(plan)}")
    if plan.verdict is None:
        return element("p", *proven)
    verdict = plan.verdict.value
    return element(
        "p", *proven, " Memory: ", element("b", verdict, class_=VERDICT_TONES.get(verdict, "bad")), "."
    )


def _key_numbers(plan: Plan, honesty: Honesty | None) -> list[Markup]:
    estimate = plan.estimate
    if estimate is None:
        return []
    memory = estimate.memory
    share = memory.peak_bytes / memory.capacity_bytes
    interval = interval_words(estimate, honesty) if honesty else ""
    return [
        tiles(
            [
                ("per step", format_seconds(estimate.step_time_s)),
                ("per step, 80% interval", interval),
                ("MFU, causal attention", f"{estimate.mfu_causal:.1%}"),
                ("MFU, full attention", f"{estimate.mfu_full:.1%}"),
                ("tokens/s per GPU", f"{estimate.tokens_per_s_per_gpu:,.0f}"),
                ("of usable memory", f"{share:.0%}"),
                ("memory left", format_bytes(memory.capacity_bytes - memory.peak_bytes)),
            ]
        )
    ]


def plan_sections(plan: Plan, question: Question, *, key: str = "") -> Iterator[Section]:
    """Yield what a page says of a plan, or why there is none; ``key`` keeps the charts of several plans apart."""
    honesty = assess(plan, question.workload, question.cluster, question.options)
    return _sections(plan, question, honesty, key=key)


def _sections(
    plan: Plan, question: Question, honesty: Honesty | None, step: DrawnStep | None = None, *, key: str = ""
) -> Iterator[Section]:
    if plan.infeasibility is not None:
        yield Section(title="Why nothing fits", blocks=_why_not(plan.infeasibility))
    if plan.layout is not None and plan.estimate is not None:
        yield Section(title="Layout", blocks=_layout_blocks(plan.layout, plan.estimate, question, key))
        yield from _price_sections(plan, plan.layout, plan.estimate, question, step, key)
    if honesty is not None:
        yield Section(title="How sure", blocks=[bullets(band_lines(honesty.band))])
    notes = plan_notes(plan, question.cluster)
    if notes:
        yield Section(title="Notes", blocks=[bullets(notes)])
    # An infeasible answer would have a proof of zeros: why nothing fits stands above.
    if plan.layout is not None or plan.infeasibility is None:
        yield Section(title="Proof", blocks=[facts(proof_pairs(plan))])


def _why_not(found: Infeasibility) -> list[Markup]:
    return [element("p", found.message), facts(infeasibility_pairs(found))]


def _layout_blocks(layout: Layout, estimate: Estimate, question: Question, key: str) -> list[Markup]:
    blocks = [element("p", element("code", layout_text(layout)), class_="layout")]
    blocks.append(render(topology_chart(layout, estimate, question.cluster), key))
    if layout.stages:
        columns, rows, left = stage_rows(layout)
        stages = table(Table(columns=columns, rows=rows, left=left))
        blocks.append(element("details", element("summary", "Stages"), stages))
    return blocks


def _price_sections(
    plan: Plan, layout: Layout, estimate: Estimate, question: Question, step: DrawnStep | None, key: str
) -> Iterator[Section]:
    binds = [element("p", "What binds:"), bullets(plan.binds)] if plan.binds else []
    rates = facts(rates_pairs(estimate, question.workload.training))
    yield Section(title="Time", blocks=[render(step_chart(estimate), key), *binds, rates])
    drawn = step or draw_step(question, layout, estimate)
    if drawn is not None:
        yield Section(title="Pipeline", blocks=[render(timeline_chart(drawn), key)])
    yield Section(title="Memory", blocks=[render(memory_chart(estimate.memory), key)])
    ties = ties_block(plan, key)
    if ties:
        yield Section(title="What comes close", blocks=[ties])


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
    # Near-ties may be equally fast and equally large: the axes need an extent all the same.
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
