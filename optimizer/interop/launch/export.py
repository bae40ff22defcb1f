"""Export a layout: one function for all frameworks.

The writer of a framework is ``export`` in ``interop/FOLDER/write.py``; what it can't launch is for the rules to say,
and models that no writer has words for are refused, unless the trainer loads them from Hugging Face.
"""

from __future__ import annotations

import importlib
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

from layoutopt.optimizer.cost.estimate import estimate
from layoutopt.optimizer.cost.factory import build_cost_model
from layoutopt.optimizer.frameworks.registry import Framework, abilities_of
from layoutopt.optimizer.frameworks.switches import switch_text
from layoutopt.optimizer.interop.launch.target import context_of, make_target
from layoutopt.optimizer.interop.megatron.write_model import require_gpt
from layoutopt.optimizer.interop.megatron_bridge.adapters import writes_adapter
from layoutopt.optimizer.space.check import find_faults, launched_by, nearest_launchable
from layoutopt.optimizer.specs.errors import InputError, Problem
from layoutopt.optimizer.specs.layout import Recompute
from layoutopt.optimizer.specs.vocabulary import DEFAULT_MESH_ORDER, AdapterMethod, Granularity, Precision

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layoutopt.optimizer.interop.launch.target import Target
    from layoutopt.optimizer.interop.records import CheckpointInterval, ExportedJob
    from layoutopt.optimizer.space.context import Context
    from layoutopt.optimizer.space.rule import BrokenRule
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.layout import Layout
    from layoutopt.optimizer.specs.workload import Workload


SAY_ATTENTION = (Framework.MEGATRON, Framework.MEGATRON_BRIDGE, Framework.MEGATRON_DEEPSPEED)
"""Trainers whose launch says whether the attention scores are kept."""


class NotExpressible(InputError):
    """A layout that the framework cannot launch: one problem per rule, and the nearest layout that it can and that fits."""

    def __init__(self, *problems: Problem, nearest: Layout | None) -> None:
        super().__init__(*problems)
        self.nearest = nearest


def export(
    layout: Layout,
    workload: Workload,
    cluster: ClusterSpec,
    to: str,
    *,
    version: str | None = None,
    plan: CheckpointInterval | None = None,
) -> ExportedJob:
    """Write the launch configuration of a layout.

    Parameters
    ----------
    layout
        The layout; without stages it is split evenly.
    workload
        Its ``model`` and ``training``; the global batch must be dp * micro-batch * micro-batches.
    cluster
        Decides nodes and processes per node, and settings that depend on the GPU generation.
    to
        A framework's name or alias: megatron-lm, megatron-bridge, torchtitan, deepspeed,
        megatron-deepspeed, nanotron, accelerate.
    version
        The release to write for, e.g. ``core 0.16``; for torchtitan the era (``A``: TOML, ``C``: Python).
        None is the newest.
    plan
        Checkpoint interval in steps; None writes no checkpoint settings.

    Raises
    ------
    NotExpressible
        The framework cannot launch it: one line per axis, with the nearest layout that it can.
    InputError
        No such exporter, or a batch that the layout does not produce.
    """
    target = make_target(layout, workload, cluster, to, version=version, checkpoint=plan)
    ctx = context_of(target.layout, workload, cluster, target.framework, target.version)
    record = launched_by(target.layout, ctx).framework.record
    module = importlib.import_module(f"layoutopt.optimizer.interop.{record.folder}.write")
    # Trainers of Hugging Face models run the model's own code, whatever its architecture. Asked before the rules, as no
    # other layout would make such a model expressible.
    if not record.loads_models:
        require_gpt(target.model)
    reasons, nearest = nearest_launchable(target.layout, ctx)
    if reasons:
        offered = fitting(nearest, ctx, target.version) if nearest else None
        raise NotExpressible(*_problems(target.layout, reasons, ctx, nearest, offered), nearest=offered)
    job: ExportedJob = module.export(target)
    lacking = _unwritten(target)
    said = (f"not part of this file, so the trainer's own: {', '.join(lacking)}",) if lacking else ()
    return replace(job, notes=(*target.model.remarks, *job.notes, *said))


def _unwritten(target: Target) -> list[str]:
    """Return what a plan was priced with and the trainer's files have no words for."""
    training, framework = target.training, target.framework
    megatron = framework in SAY_ATTENTION
    recipe = training.fp8_recipe if target.layout.precision is Precision.FP8 else None
    adapted = framework is Framework.MEGATRON_BRIDGE and writes_adapter(target)
    narrow = training.adapter is not None and training.adapter.method is AdapterMethod.QLORA
    lacking = {
        "attention that keeps its scores": not training.flash and not megatron,
        "dropout": training.dropout and not megatron,
        f"moments of {training.moment_bytes} bytes": training.moment_bytes == 2
        and (not megatron or framework is Framework.MEGATRON_DEEPSPEED),
        f"fp8 scales by the recipe {recipe}": recipe is not None
        and recipe not in framework.record.fp8_recipes,
        "adapters, so that all parameters are trained": training.adapter is not None and not adapted,
        "4 bits of frozen weights, so that they take 16": narrow and adapted,
        f"frozen {', '.join(training.frozen)}, so that they are trained": bool(training.frozen),
        "the norm after the embedding": target.model.embedding_norm and not framework.record.loads_models,
    }
    return [name for name, there in lacking.items() if there]


def fitting(layout: Layout, ctx: Context, version: str) -> Layout | None:
    """Return a layout if it fits the GPUs' memory, else the first that does of those that recompute or shard more."""
    cost = build_cost_model(ctx.model, ctx.training, ctx.cluster, framework=ctx.framework, software=version)
    for option in _leaner(layout, ctx):
        memory = estimate(cost, option).memory
        if memory.peak_bytes <= memory.capacity_bytes:
            return option
    return None


def _leaner(layout: Layout, ctx: Context) -> Iterator[Layout]:
    """Yield the layout, then ones with every layer recomputed, and with higher ZeRO stages, as far as they launch."""
    # What costs least first: recomputation slows a step, more shards need more traffic, both together most.
    every = tuple(replace(stage, recomputed=stage.layers, recomputed_kinds={}) for stage in layout.stages)
    again = replace(layout, recompute=Recompute(granularity=Granularity.FULL), stages=every)
    stages = [stage for stage in abilities_of(ctx.framework, ctx.release).zero if stage > layout.zero]
    yield layout
    for option in (again, *(replace(one, zero=zero) for zero in stages for one in (layout, again))):
        if not find_faults(option, ctx):
            yield option


def _problems(
    layout: Layout,
    reasons: tuple[BrokenRule, ...],
    ctx: Context,
    nearest: Layout | None,
    offered: Layout | None,
) -> list[Problem]:
    """One line per broken rule with the nearest value, and one with the nearest layout as a whole."""
    problems = []
    for reason in reasons:
        # The nearest layout may break with several axes at once: one that it has in common is no hint.
        value = getattr(offered, reason.axis, None) if reason.axis in _ONE_VALUE else None
        value = None if value == getattr(layout, reason.axis, None) else value
        allowed = "" if value is None else f"nearest: {reason.axis}={value}"
        what = f"{ctx.framework.value}: {reason.message}; {reason.reason}"
        problems.append(Problem(what=what, allowed=allowed, key=reason.axis))
    near = "none at this number of GPUs and global batch"
    if offered is not None:
        near = describe(offered)
    elif nearest is not None:
        near = f"none that fits the GPUs' memory; the nearest otherwise is {describe(nearest)}"
    return [*problems, Problem(what=near, key="nearest launchable layout")]


_ONE_VALUE = (
    "tp", "sp", "cp", "pp", "vp", "ep", "etp", "dp", "zero", "hsdp_shard", "schedule", "mesh_order", "precision",
)  # fmt: skip


def describe(layout: Layout) -> str:
    """One line naming every axis of a layout that is not at its default."""
    parts = [f"tp={layout.tp}", f"pp={layout.pp}", f"dp={layout.dp}"]
    parts += [
        f"{axis}={getattr(layout, axis)}" for axis in ("cp", "vp", "ep", "etp") if getattr(layout, axis) > 1
    ]
    parts.append(f"zero={layout.zero}" + (f" in groups of {layout.hsdp_shard}" if layout.hsdp_shard else ""))
    parts += [f"micro-batch={layout.micro_batch}", f"micro-batches={layout.micro_batches}"]
    if layout.pp > 1:
        layers = "layers=" + _spans([stage.layers for stage in layout.stages])
        parts += [f"schedule={layout.schedule.value}", layers]
    if layout.recompute.granularity is not Granularity.NONE:
        parts.append("recompute=" + "+".join((layout.recompute.granularity.value, *layout.recompute.modules)))
    if layout.mesh_order != DEFAULT_MESH_ORDER:
        parts.append(f"order={layout.mesh_order}")
    if layout.savers:
        parts.append("savers=" + "+".join(layout.savers))
    parts += [f"{name}={switch_text(value)}" for name, value in layout.switches.stated().items()]
    return " ".join([*parts, layout.precision.value])


def _spans(counts: list[int]) -> str:
    groups = [(count, len([*same])) for count, same in groupby(counts)]
    return ",".join(f"{count}*{times}" if times > 1 else str(count) for count, times in groups)
