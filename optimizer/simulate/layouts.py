"""Simulate a layout that the cost model prices: stage by stage, with its transfers and its memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.batch import batch_of_one
from layoutopt.optimizer.cost.components import Component, Place
from layoutopt.optimizer.cost.estimate import estimate
from layoutopt.optimizer.cost.factory import CostKind, build_cost_model
from layoutopt.optimizer.cost.orders import HopOverlap, Pipeline
from layoutopt.optimizer.cost.schedules import SCHEDULES
from layoutopt.optimizer.cost.stage_work import stage_works
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.simulate.compare import LayoutSimulation, simulate_layout
from layoutopt.optimizer.simulate.engine import StageWork
from layoutopt.optimizer.solve.run_preset import preset_of_run
from layoutopt.optimizer.specs.partial_layout import PartialLayout
from layoutopt.optimizer.specs.vocabulary import Schedule

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from layoutopt.optimizer.cost.cost_model import CostModel
    from layoutopt.optimizer.cost.estimate import Estimate
    from layoutopt.optimizer.cost.stage_work import StageWorks
    from layoutopt.optimizer.space.context import RunOptions
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.layout import Layout
    from layoutopt.optimizer.specs.workload import Workload

    FloatArray = NDArray[np.float64]


def simulate_workload(
    workload: Workload,
    cluster: ClusterSpec,
    layout: Layout | PartialLayout,
    *,
    framework: Framework = Framework.MEGATRON,
    software: str | None = None,
    run_options: RunOptions | None = None,
    kind: CostKind = CostKind.FULL,
) -> LayoutSimulation:
    """Simulate one step of a layout beside its price.

    Raises InputError when the layout's degrees don't multiply to the GPUs or the batch, or no schedule runs them.
    """
    whole = layout.complete(workload, cluster) if isinstance(layout, PartialLayout) else layout
    preset = preset_of_run(framework, software, cluster, run_options)
    cost = build_cost_model(workload.model, workload.training, cluster, preset=preset, kind=kind)
    return simulate_priced(cost, whole)


def simulate_priced(cost: CostModel, layout: Layout) -> LayoutSimulation:
    """Simulate one step of a layout with explicit stages under a cost model."""
    priced, works = estimate(cost, layout), stage_works(cost, layout)
    overlap = overlap_of(cost, layout)
    pipeline = pipeline_of(layout, merges=overlap is HopOverlap.MERGED)
    work = stage_work(pipeline, works, priced, hops_overlap=overlap)
    # The simulation runs the pipeline; what lies before and after it is the same in both steps.
    outside = sum(priced.breakdown_s[part] for part in Component if part.record.place is Place.OUTSIDE)
    return simulate_layout(pipeline, work, fixed_s=outside, analytic_step_s=priced.step_time_s)


def overlap_of(cost: CostModel, layout: Layout) -> HopOverlap:
    """Return when the transfers of a layout run beside compute, its launch switches heeded."""
    return HopOverlap(int(cost.terms(batch_of_one(layout)).hops_overlap[0]))


def pipeline_of(layout: Layout, *, merges: bool = False) -> Pipeline:
    """Return the pipeline of a layout, whose passes may be merged; a single stage accumulates gradients."""
    schedule = layout.schedule if layout.pp > 1 else Schedule.NONE
    return Pipeline(
        schedule=schedule, pp=layout.pp, vp=layout.vp, micro_batches=layout.micro_batches, merges=merges
    )


def stage_work(
    pipeline: Pipeline, works: StageWorks, priced: Estimate, *, hops_overlap: HopOverlap | None = None
) -> StageWork:
    """Arrange the work of virtual stages by rank and chunk.

    What a rank holds beside activations in flight counts as there all the time, MTP layers among it.
    """

    def placed(values: FloatArray) -> FloatArray:
        """(pp, chunks); the stages of DualPipe as one column, which stands for both directions."""
        return np.ascontiguousarray(values.reshape(pipeline.vp, pipeline.pp).T)

    pairs = SCHEDULES[pipeline.schedule].pairs
    hidden_f, hidden_b = works.alone * works.hidden_forward_s, works.alone * works.hidden_backward_s
    forward, backward = works.forward_s, works.dgrad_s + works.wgrad_s
    static = np.array(
        [stage.total_bytes - stage.components_bytes["activations"] for stage in priced.memory.stages]
    )
    hop = np.full(pipeline.pp, works.hop_s)
    return StageWork(
        forward_s=placed(forward + hidden_f),
        dgrad_s=placed(works.dgrad_s + hidden_b),
        wgrad_s=placed(works.wgrad_s),
        pair_s=_pair_s(pipeline, placed(forward), placed(backward)) if pairs else None,
        activation_bytes=placed(works.activation_bytes),
        static_bytes=static,
        hop_s=hop if pipeline.pp > 1 else None,
        hops_overlap=hops_overlap,
    )


def _pair_s(pipeline: Pipeline, forward_s: FloatArray, backward_s: FloatArray) -> FloatArray:
    """Return the seconds of a chunk's forward with the backward of the rank's other chunk, traffic hidden."""
    if pipeline.schedule is Schedule.DUALPIPE:
        forward_s, backward_s = (np.hstack([array, array[::-1]]) for array in (forward_s, backward_s))
    return forward_s + backward_s[:, ::-1]
