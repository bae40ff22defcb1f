"""A small job with a layout's shapes: fewer layers and data-parallel ranks, every GPU working as in the large one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from layoutopt.optimizer.solve.judge import judge_if_runs
from layoutopt.optimizer.specs.partial_layout import PartialLayout
from layoutopt.optimizer.specs.reference_fabric import resized
from layoutopt.optimizer.specs.vocabulary import Granularity

if TYPE_CHECKING:
    from layoutopt.optimizer.solve.plan import SolveOptions
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.layout import Layout
    from layoutopt.optimizer.specs.model import ModelSpec
    from layoutopt.optimizer.specs.workload import Workload

LAYERS = 4
"""Layers of a proxy without pipeline: enough that the ends of the model are not most of it."""

LARGEST_SHARE = 0.5
"""A proxy that takes more of the job's GPUs than this saves too little."""


def proxy_of(
    layout: Layout, workload: Workload, cluster: ClusterSpec, options: SolveOptions
) -> tuple[Workload, ClusterSpec, Layout] | None:
    """Return the smallest job with a layout's tensor, context, pipeline and expert groups and micro-batches.

    One layer per virtual stage; the least data-parallel ranks that hold the experts and fit whole nodes. None for stacks
    of several kinds of layer, whose stages differ, and where it would not fit or save half of the GPUs.
    """
    model = _shallow(workload.model, layout)
    ranks = next((dp for dp in range(1, layout.dp + 1) if _possible(layout, cluster, dp)), None)
    if model is None or ranks is None:
        return None
    # The batch shrinks with the ranks, so that every rank runs as many micro-batches as in the large job.
    inner = layout.tp * layout.cp * layout.pp
    gpus, batch = inner * ranks, ranks * layout.micro_batch * layout.micro_batches
    if gpus > LARGEST_SHARE * layout.gpus:
        return None
    own = replace(
        workload,
        model=model,
        training=replace(workload.training, global_batch=batch),
        phases=(),
        phase_names=(),
    )
    machine = resized(cluster, gpus)
    judged = judge_if_runs(_with_ranks(layout, ranks), own, machine, options)
    return None if judged is None else (own, machine, judged.layout)


def _shallow(model: ModelSpec, layout: Layout) -> ModelSpec | None:
    """Return the model with one layer per virtual stage; None where its layers are of several kinds."""
    # In other stacks stages hold different work, and one layer each would be another pipeline.
    if len(model.runs) != 1 or len(model.runs[0].block) != 1 or model.mtp_layers:
        return None
    layers = layout.pp * layout.vp if layout.pp > 1 else min(LAYERS, model.layers)
    return replace(model, runs=(replace(model.runs[0], count=layers),), published_parameters=None)


def _possible(layout: Layout, cluster: ClusterSpec, dp: int) -> bool:
    """Tell whether so many data-parallel ranks hold the experts, leave state to shard, and fill whole nodes."""
    gpus = layout.tp * layout.cp * layout.pp * dp
    whole = gpus <= cluster.gpus_per_node or gpus % cluster.gpus_per_node == 0
    # One rank alone would hold the whole state, and gather nothing.
    shards = layout.zero == 0 or layout.cp * dp > 1
    return (
        layout.dp % dp == 0
        and whole
        and shards
        and (layout.tp * layout.cp * dp) % (layout.ep * layout.etp) == 0
    )


def _with_ranks(layout: Layout, dp: int) -> PartialLayout:
    """Return the layout with other data parallelism, its stages left open."""
    full = layout.recompute.granularity is Granularity.FULL
    return PartialLayout(
        tp=layout.tp,
        sp=layout.sp,
        cp=layout.cp,
        pp=layout.pp,
        vp=layout.vp,
        ep=layout.ep,
        etp=layout.etp,
        dp=dp,
        zero=layout.zero,
        micro_batch=layout.micro_batch,
        micro_batches=layout.micro_batches,
        recompute=layout.recompute,
        recompute_layers=1 if full and any(stage.recomputed for stage in layout.stages) else None,
        schedule=layout.schedule,
        mesh_order=layout.mesh_order,
        precision=layout.precision,
        savers=layout.savers,
    )
