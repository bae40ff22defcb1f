"""Where the step time goes, component by component."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from layoutopt.optimizer.cost.components import TRAFFIC, Component, Group, in_group
from layoutopt.optimizer.cost.factory import build_cost_model
from layoutopt.optimizer.cost.orders import HopOverlap, Pipeline
from layoutopt.optimizer.cost.stage_work import stage_works
from layoutopt.optimizer.report.html.chart import Chart, Figure, named_bars
from layoutopt.optimizer.report.html.markup import Table
from layoutopt.optimizer.simulate.engine import simulate
from layoutopt.optimizer.simulate.layouts import overlap_of, stage_work
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.units import format_seconds

if TYPE_CHECKING:
    from layoutopt.optimizer.cost.estimate import Estimate
    from layoutopt.optimizer.simulate.result import SimulationResult
    from layoutopt.optimizer.solve.inputs import Question
    from layoutopt.optimizer.specs.layout import Layout


SHOWN_SHARE = 1e-4
"""Components below this share of the step are in the table only."""


def step_parts(estimate: Estimate) -> list[tuple[Component, str, float]]:
    """Return name, words and seconds of every component that takes time, in print order."""
    return [(name, name.words, value) for name, value in estimate.breakdown_s.items() if value > 0]


def step_chart(estimate: Estimate) -> Chart:
    """Draw a bar for every component of the step."""
    parts = step_parts(estimate)
    return Chart(
        key="step",
        title="Where the step time goes",
        message=step_message(estimate),
        description=f"Horizontal bars, seconds of one step by component, summing to the step. {step_message(estimate)}",
        drawing=_figure(estimate, parts),
        table=Table(
            columns=["component", "time", "share"],
            rows=[
                [words, format_seconds(value), f"{value / estimate.step_time_s:.1%}"]
                for _, words, value in parts
            ]
            + [["step", format_seconds(estimate.step_time_s), "100.0%"]],
        ),
        note="Time of the slowest pipeline rank. Traffic counts only as far as nothing hides it.",
    )


def step_message(estimate: Estimate) -> str:
    """Say how the step divides into compute, traffic, bubble and the rest."""
    step, parts = estimate.step_time_s, estimate.breakdown_s
    shares = {
        "compute": sum(parts[name] for name in in_group(Group.COMPUTE)) / step,
        "exposed traffic": sum(parts[name] for name in TRAFFIC) / step,
        "the pipeline bubble": parts[Component.BUBBLE] / step,
    }
    # By difference, so that the shares sum to the step whatever components there are.
    shares["the rest"] = 1.0 - sum(shares.values())
    words = [f"{name} {share:.0%}" for name, share in shares.items() if share >= 0.005]
    return f"Of {format_seconds(step)} per step, {_listed(words)}."


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _figure(estimate: Estimate, parts: list[tuple[Component, str, float]]) -> Figure:
    shown = [part for part in parts if part[2] >= SHOWN_SHARE * estimate.step_time_s]
    names = [
        f"{words}  <b>{format_seconds(value)}</b>  {value / estimate.step_time_s:.1%}"
        for _, words, value in shown
    ]
    return named_bars(
        names, [value for _, _, value in shown], [name.record.hue for name, _, _ in shown], "seconds"
    )


MAX_OPERATIONS = 40_000
"""A simulation of so many operations takes about a second."""

FILLING = 3
"""Micro-batches per rank that a shortened step keeps: it still fills, runs steadily, and drains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnStep:
    """A simulated step; ``micro_batches`` of the layout's ``all_micro_batches`` are in it."""

    result: SimulationResult
    micro_batches: int
    all_micro_batches: int

    @property
    def shortened(self) -> bool:
        """Whether the steady middle of the step was cut."""
        return self.micro_batches < self.all_micro_batches


def draw_step(question: Question, layout: Layout, priced: Estimate) -> DrawnStep | None:
    """Simulate the pipeline of a layout with the cost model's own times; None where there is nothing to draw.

    Long steps are shortened in their steady part.
    """
    pipeline = drawn_pipeline(layout)
    if pipeline is None or not layout.stages:
        return None
    options = question.options
    cost = build_cost_model(
        question.workload.model,
        question.workload.training,
        question.cluster,
        framework=options.framework,
        software=options.space.software,
        kind=options.cost,
    )
    overlap = overlap_of(cost, layout)
    pipeline = replace(pipeline, merges=overlap is HopOverlap.MERGED)
    work = stage_work(pipeline, stage_works(cost, layout), priced, hops_overlap=overlap)
    return DrawnStep(
        result=simulate(pipeline, work),
        micro_batches=pipeline.micro_batches,
        all_micro_batches=layout.micro_batches,
    )


def drawn_pipeline(layout: Layout) -> Pipeline | None:
    """Return the pipeline with as many micro-batches as can be drawn; None without one, or where none runs."""
    if layout.pp == 1:
        return None
    # A forward and a backward of every chunk on every rank.
    per_micro_batch = 2 * layout.pp * layout.vp
    most = max(MAX_OPERATIONS // per_micro_batch // layout.pp, FILLING) * layout.pp
    # A multiple of the ranks suits every schedule; where the whole step is short enough it is drawn as it is.
    for count in (layout.micro_batches, most):
        if count <= min(most, layout.micro_batches):
            try:
                return Pipeline(schedule=layout.schedule, pp=layout.pp, vp=layout.vp, micro_batches=count)
            except InputError:  # the schedule does not run with so many
                continue
    return None
