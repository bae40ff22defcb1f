"""The page of a training plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutopt.optimizer.report.html.chart import Section, render
from layoutopt.optimizer.report.html.markup import Markup, Table, bullets, element, facts, table
from layoutopt.optimizer.report.html.page import page, tiles
from layoutopt.optimizer.report.html.solved import plan_sections, status_line
from layoutopt.optimizer.report.html.wall import (
    goodput_chart,
    marginal_chart,
    recipe_chart,
    sizes_chart,
    wall_chart,
)
from layoutopt.optimizer.report.tables.short import memory_words
from layoutopt.optimizer.report.tables.sweep import fewest_words
from layoutopt.optimizer.report.tables.training import (
    bandwidth_rows,
    budget_pairs,
    ends_words,
    fault_pairs,
    recipe_words,
    vendor_words,
    watch_pairs,
)
from layoutopt.optimizer.solve.inputs import question_from_plain

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from layoutopt.optimizer.plan.training_plan import PhasePlan, TrainingPlan
    from layoutopt.optimizer.sweep.inverse import FewestGpus, MarginalValue, SizeAnswer


def training_page(
    plan: TrainingPlan,
    *,
    marginal: Sequence[MarginalValue] = (),
    sizes: Sequence[SizeAnswer] = (),
    fewest: Sequence[tuple[str, FewestGpus]] = (),
) -> str:
    """Write the page of a training plan, with answers to questions about other machines where there are any.

    Raises ``InputError`` when the plotting library is not installed.
    """
    title = f"Training {plan.model} on {plan.gpus:,} GPUs"
    subtitle = f"{plan.budget.tokens / 1e12:,.4g}T tokens on {plan.cluster}, {plan.parameters / 1e9:,.4g}B parameters"
    lead = [_key_numbers(plan), *(_fewest(asked, found) for asked, found in fewest)]
    return page(title, subtitle, lead, _sections(plan, marginal, sizes))


def _fewest(asked: str, found: FewestGpus) -> Markup:
    """Answer how many GPUs a question takes, above everything else: it is what was asked."""
    return element("p", element("b", f"{asked}: "), fewest_words(found))


def _key_numbers(plan: TrainingPlan) -> Markup:
    return tiles(
        [
            ("days expected, with failures", f"{plan.expected_days:,.1f}"),
            ("days, 80% interval", ends_words(plan)),
            ("cost", "" if plan.expected_cost is None else f"{plan.expected_cost:,.0f}"),
            ("GPU-hours without failures", f"{plan.budget.gpu_hours:,.0f}"),
            ("energy, MWh", f"{plan.budget.energy_kwh / 1000:,.0f}"),
            ("goodput", f"{plan.faults.best.goodput:.1%}"),
            ("MFU, causal attention", f"{plan.phases[0].estimate.mfu_causal:.1%}"),
        ]
    )


def _sections(
    plan: TrainingPlan, marginal: Sequence[MarginalValue], sizes: Sequence[SizeAnswer]
) -> Iterator[Section]:
    faults = plan.faults
    blocks = [render(wall_chart(plan)), facts(fault_pairs(faults)), render(goodput_chart(faults, plan.gpus))]
    yield Section(
        title="The run",
        blocks=[facts(budget_pairs(plan.budget, plan.phases[0].training)), *blocks],
    )
    fitting = [answer for answer in sizes if answer.expected_days is not None]
    others = [*([render(marginal_chart(marginal))] if marginal else [])]
    others += [render(sizes_chart(fitting))] if fitting else []
    if others:
        yield Section(title="Other machines", blocks=others)
    for index, phase in enumerate(plan.phases):
        yield from _phase_sections(
            phase, "" if len(plan.phases) == 1 else f"{phase.name}: ", f"phase{index}-"
        )


def _phase_sections(phase: PhasePlan, name: str, key: str) -> Iterator[Section]:
    """Yield one phase: its rule of thumb, what to watch, and its layout; ``key`` keeps the charts of phases apart."""
    training = phase.training
    batch = f"batch {training.global_batch:,} x {training.sequence_length:,} tokens"
    yield Section(
        title=f"{name}Phase" if name else "Training",
        blocks=[
            element("p", batch),
            status_line(phase.plan),
            facts([("memory", memory_words(phase.estimate.memory))]),
            *_baseline(phase, key),
        ],
    )
    yield Section(title=f"{name}What to watch", blocks=_watch(phase))
    # Each phase by its own inputs: sequence length and batch differ.
    question = question_from_plain(phase.plan.inputs)
    for section in plan_sections(phase.plan, question, key=key):
        yield Section(title=f"{name}{section.title}", blocks=section.blocks)


def _baseline(phase: PhasePlan, key: str) -> list[Markup]:
    chart = recipe_chart(phase)
    words = recipe_words(phase)
    blocks = [render(chart, key)] if chart else []
    blocks += [element("p", f"Rule of thumb: {words}")] if words else []
    blocks += [element("p", vendor_words(phase))] if vendor_words(phase) else []
    return [
        *blocks,
        element("details", element("summary", "Rule of thumb"), bullets(phase.baseline.recipe.steps)),
    ]


def _watch(phase: PhasePlan) -> list[Markup]:
    columns, rows = bandwidth_rows(phase.watch)
    blocks = [facts(watch_pairs(phase.watch))]
    if rows:
        blocks.append(element("p", "Expected bus bandwidth of each axis's groups, all groups at once:"))
        blocks.append(table(Table(columns=columns, rows=rows, left=(0, 1))))
    return blocks
