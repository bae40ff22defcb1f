"""The page of a solved plan, and what other pages show of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutopt.optimizer.report.html.chart import Section, render
from layoutopt.optimizer.report.html.drawn_step import draw_step
from layoutopt.optimizer.report.html.markup import Markup, Table, bullets, element, facts, table
from layoutopt.optimizer.report.html.memory import memory_chart
from layoutopt.optimizer.report.html.page import page, tiles
from layoutopt.optimizer.report.html.step import step_chart
from layoutopt.optimizer.report.html.ties import ties_block
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
    from layoutopt.optimizer.report.html.drawn_step import DrawnStep
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
    lead = [status_line(plan), *_key_numbers(plan, question), asked]
    return page(title, run_words(workload, framework), lead, plan_sections(plan, question, step))


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


def _key_numbers(plan: Plan, question: Question) -> list[Markup]:
    estimate = plan.estimate
    if estimate is None:
        return []
    memory = estimate.memory
    share = memory.peak_bytes / memory.capacity_bytes
    honesty = _honesty(plan, question)
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


def plan_sections(
    plan: Plan, question: Question, step: DrawnStep | None = None, *, key: str = ""
) -> Iterator[Section]:
    """Yield what a page says of a plan, or why there is none; ``key`` keeps the charts of several plans apart."""
    if plan.infeasibility is not None:
        yield Section(title="Why nothing fits", blocks=_why_not(plan.infeasibility))
    if plan.layout is not None and plan.estimate is not None:
        yield Section(title="Layout", blocks=_layout_blocks(plan.layout, plan.estimate, question, key))
        yield from _price_sections(plan, plan.layout, plan.estimate, question, step, key)
    honesty = _honesty(plan, question)
    if honesty is not None:
        yield Section(title="How sure", blocks=[bullets(band_lines(honesty.band))])
    notes = plan_notes(plan, question.cluster)
    if notes:
        yield Section(title="Notes", blocks=[bullets(notes)])
    if plan.layout is not None or plan.infeasibility is None:
        yield Section(title="Proof", blocks=[facts(proof_pairs(plan))])


def _honesty(plan: Plan, question: Question) -> Honesty | None:
    from layoutopt.optimizer.evidence.honesty import assess

    return assess(plan, question.workload, question.cluster, question.options)


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
