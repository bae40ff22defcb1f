"""From what a launch file states to the complete layout that can be priced, or what is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutopt.optimizer.interop.jobs.common import looped_schedule
from layoutopt.optimizer.interop.stages import build_stages
from layoutopt.optimizer.specs.errors import InputError, Problem
from layoutopt.optimizer.specs.layout import Layout, VirtualStage
from layoutopt.optimizer.specs.vocabulary import DEFAULT_MESH_ORDER, Framework, Granularity, Precision

if TYPE_CHECKING:
    from layoutopt.optimizer.interop.records import ImportedJob, JobLayout
    from layoutopt.optimizer.specs.model import ModelSpec
    from layoutopt.optimizer.specs.vocabulary import Schedule

EQUAL_BY_DEFAULT = (Framework.MEGATRON, Framework.MEGATRON_BRIDGE, Framework.MEGATRON_DEEPSPEED)
"""Frameworks that give every stage the same layers unless told otherwise."""


def complete_layout(
    job: ImportedJob,
    *,
    model: ModelSpec | None = None,
    gpus: int | None = None,
    global_batch: int | None = None,
) -> Layout:
    """Return the job's layout with every axis set.

    ``model``, ``gpus`` and ``global_batch`` (sequences) are used where the file does not state its own.
    Raises ``InputError`` with one line for each value that is missing or does not divide.
    """
    part = job.layout
    model = job.model or model
    tp, cp, pp, vp = part.tp or 1, part.cp or 1, part.pp or 1, part.vp or 1
    problems: list[Problem] = []
    dp = part.dp or _dp(part, job.gpus or gpus, problems)
    micro_batch = part.micro_batch
    if micro_batch is None:
        problems.append(Problem(what="missing", key="micro-batch", allowed="sequences per micro-batch"))
    micro_batches = part.micro_batches
    if micro_batches is None and dp and micro_batch:
        micro_batches = _micro_batches(job.training.global_batch or global_batch, dp, micro_batch, problems)
    if problems or not dp or not micro_batch or not micro_batches:
        raise InputError(*problems)
    schedule = part.schedule or looped_schedule(pp, vp)
    return Layout(
        tp=tp,
        sp=bool(part.sp),
        cp=cp,
        pp=pp,
        vp=vp,
        ep=part.ep or 1,
        etp=part.etp or 1,
        dp=dp,
        zero=part.zero or 0,
        hsdp_shard=part.hsdp_shard,
        micro_batch=micro_batch,
        micro_batches=micro_batches,
        recompute=part.recompute,
        schedule=schedule,
        mesh_order=part.mesh_order or DEFAULT_MESH_ORDER,
        precision=job.training.precision or Precision.BF16,
        stages=part.stages or _stages(job, pp, vp, model, schedule),
    )


def _dp(part: JobLayout, gpus: int | None, problems: list[Problem]) -> int | None:
    inner = (part.tp or 1) * (part.cp or 1) * (part.pp or 1)
    if gpus is None:
        problems.append(
            Problem(what="missing", key="gpus", allowed="the launch file does not state how many")
        )
        return None
    if gpus % inner:
        factors = f"tp={part.tp or 1} * cp={part.cp or 1} * pp={part.pp or 1} = {inner}"
        problems.append(Problem(what=f"{gpus} GPUs are not a multiple of {factors}", key="dp"))
        return None
    return gpus // inner


def _micro_batches(batch: int | None, dp: int, micro_batch: int, problems: list[Problem]) -> int | None:
    if batch is None:
        problems.append(Problem(what="missing", key="global batch", allowed="sequences per optimizer step"))
        return None
    if batch % (dp * micro_batch):
        what = f"global batch {batch} is not a multiple of dp={dp} * micro-batch={micro_batch}"
        problems.append(Problem(what=what, key="global batch"))
        return None
    return batch // (dp * micro_batch)


def _stages(
    job: ImportedJob, pp: int, vp: int, model: ModelSpec | None, schedule: Schedule
) -> tuple[VirtualStage, ...]:
    """Build the stages that the file states, or the equal ones that its framework makes; empty if unknown."""
    part = job.layout
    if model is None:
        return ()
    counts = list(part.layer_counts)
    if not counts and model.layers % (pp * vp) == 0 and (pp == 1 or job.framework in EQUAL_BY_DEFAULT):
        counts = [model.layers // (pp * vp)] * (pp * vp)
    if not counts:
        return ()
    if sum(counts) != model.layers or len(counts) != pp * vp:
        what = f"{len(counts)} stages hold {sum(counts)} layers, {model.name} has {model.layers}"
        raise InputError(Problem(what=what, key="stages"))
    full = part.recompute.granularity is Granularity.FULL
    limit = part.recompute_layers
    recomputed = [count if limit is None else min(count, limit) for count in counts] if full else []
    return build_stages(
        counts,
        pp=pp,
        vp=vp,
        model=model,
        schedule=schedule,
        recomputed=recomputed,
        mtp_stage=part.mtp_stage,
    )
