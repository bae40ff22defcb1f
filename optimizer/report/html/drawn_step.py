"""A layout's pipeline step, simulated for a drawing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from layoutopt.optimizer.cost.factory import build_cost_model
from layoutopt.optimizer.cost.orders import Pipeline
from layoutopt.optimizer.cost.pipeline import hop_overlap
from layoutopt.optimizer.cost.stage_work import stage_works
from layoutopt.optimizer.simulate.engine import simulate
from layoutopt.optimizer.simulate.layouts import stage_work
from layoutopt.optimizer.specs.errors import InputError

if TYPE_CHECKING:
    from layoutopt.optimizer.cost.estimate import Estimate
    from layoutopt.optimizer.simulate.result import SimulationResult
    from layoutopt.optimizer.solve.inputs import Question
    from layoutopt.optimizer.specs.layout import Layout

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
    overlap = hop_overlap(layout.schedule, cost.preset)
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
    per_micro_batch = 2 * layout.pp * layout.vp
    most = max(MAX_OPERATIONS // per_micro_batch // layout.pp, FILLING) * layout.pp
    # A multiple of the ranks suits every schedule; where the whole step is short enough it is drawn as it is.
    for count in (layout.micro_batches, most):
        if count <= min(most, layout.micro_batches):
            try:
                return Pipeline(schedule=layout.schedule, pp=layout.pp, vp=layout.vp, micro_batches=count)
            except InputError:
                continue
    return None
