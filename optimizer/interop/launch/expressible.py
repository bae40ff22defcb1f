"""Can this framework launch this layout, and if not, which layout comes nearest."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from layoutopt.optimizer.frameworks.registry import Framework, parse_release
from layoutopt.optimizer.frameworks.torchtitan import ERA_B
from layoutopt.optimizer.interop.launch import limits
from layoutopt.optimizer.interop.launch.limits import Context, Finding
from layoutopt.optimizer.interop.launch.target import framework_named, resolved, version_text
from layoutopt.optimizer.specs.errors import InputError, Problem
from layoutopt.optimizer.specs.vocabulary import (
    DEFAULT_MESH_ORDER,
    OP_MODULE,
    RECOMPUTE_MODULES,
    Granularity,
    Precision,
    Saver,
    Schedule,
)

if TYPE_CHECKING:
    from layoutopt.optimizer.frameworks.record import Release
    from layoutopt.optimizer.interop.launch.limits import Limit
    from layoutopt.optimizer.specs.layout import Layout
    from layoutopt.optimizer.specs.model import ModelSpec

PP_INSIDE_DP = "tp-cp-ep-pp-dp"
SIXTEEN_BIT = (Precision.BF16, Precision.FP16)
EIGHT_BIT = (Precision.BF16, Precision.FP16, Precision.FP8)
LOOPED = (Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED)
OPTIMIZER_SAVERS = (Saver.BF16_MOMENTS, Saver.OFFLOAD_OPTIMIZER)
TITAN = (Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED, Schedule.GPIPE, Schedule.ZB_V, Schedule.DUALPIPE_V)
MAX_PASSES = 8


class NotExpressible(InputError):
    """A layout that the framework cannot launch: one problem per axis, and the nearest layout that it can."""

    def __init__(self, *problems: Problem, nearest: Layout | None) -> None:
        super().__init__(*problems)
        self.nearest = nearest


def find_limits(
    layout: Layout, context: Context, framework: Framework
) -> tuple[list[Finding], Layout | None]:
    """Return every axis that cannot be expressed, and the nearest layout with all of them repaired."""
    checks = limits_of(framework, context)
    current, found = layout, list[Finding]()
    for _ in range(MAX_PASSES):
        repaired = current
        for check in checks:
            finding = check(repaired, context)
            if finding is None:
                continue
            if all(finding.axis != other.axis for other in found):
                found.append(finding)
            if finding.nearest is None:
                return found, None
            repaired = resolved(finding.nearest, context.model)
        if repaired == current:
            return found, current
        current = repaired
    return found, None


def nearest_expressible(
    layout: Layout, framework: str, model: ModelSpec, *, version: str | None = None
) -> Layout:
    """Return the layout itself when the framework can launch it, else the nearest one that it can.

    Each axis that does not fit is moved to its nearest value at the same GPUs and global batch: ZeRO-1
    becomes torchtitan's "never reshard", virtual stages become one per rank where there is no interleaving,
    recomputation per stage becomes one depth for all. Raises ``InputError`` when none is nearby.
    """
    target = framework_named(framework)
    context = Context(model=model, release=parse_release(target, version_text(target, version)))
    found, nearest = find_limits(resolved(layout, model), context, target)
    if nearest is None:
        raise NotExpressible(*_problems(found, target, None), nearest=None)
    return nearest


def require_expressible(layout: Layout, context: Context, framework: Framework) -> None:
    """Raise ``NotExpressible`` with one line per axis that the framework cannot express."""
    found, nearest = find_limits(layout, context, framework)
    if found:
        raise NotExpressible(*_problems(found, framework, nearest), nearest=nearest)


def _problems(found: list[Finding], framework: Framework, nearest: Layout | None) -> list[Problem]:
    """One line per axis with the nearest value, and one with the nearest layout as a whole."""
    problems = []
    for finding in found:
        has_value = nearest is not None and finding.axis not in ("stages", "recompute", "savers")
        value = getattr(nearest, finding.axis) if has_value else None
        allowed = "" if value is None else f"nearest: {finding.axis}={value}"
        problems.append(Problem(what=f"{framework.value}: {finding.why}", allowed=allowed, key=finding.axis))
    near = "none at this number of GPUs and global batch" if nearest is None else describe(nearest)
    return [*problems, Problem(what=near, key="nearest expressible layout")]


def describe(layout: Layout) -> str:
    """One line naming every axis of a layout that is not at its default."""
    parts = [f"tp={layout.tp}", f"pp={layout.pp}", f"dp={layout.dp}"]
    parts += [
        f"{axis}={getattr(layout, axis)}" for axis in ("cp", "vp", "ep", "etp") if getattr(layout, axis) > 1
    ]
    parts.append(f"zero={layout.zero}" + (f" in groups of {layout.hsdp_shard}" if layout.hsdp_shard else ""))
    parts += [f"micro-batch={layout.micro_batch}", f"micro-batches={layout.micro_batches}"]
    if layout.pp > 1:
        parts += [
            f"schedule={layout.schedule.value}",
            "layers=" + _spans([stage.layers for stage in layout.stages]),
        ]
    if layout.recompute.granularity is not Granularity.NONE:
        parts.append("recompute=" + "+".join((layout.recompute.granularity.value, *layout.recompute.modules)))
    if layout.mesh_order != DEFAULT_MESH_ORDER:
        parts.append(f"order={layout.mesh_order}")
    if layout.savers:
        parts.append("savers=" + "+".join(layout.savers))
    return " ".join([*parts, layout.precision.value])


def _spans(counts: list[int]) -> str:
    spans: list[tuple[int, int]] = []
    for count in counts:
        if spans and spans[-1][0] == count:
            spans[-1] = (count, spans[-1][1] + 1)
        else:
            spans.append((count, 1))
    return ",".join(f"{count}*{times}" if times > 1 else str(count) for count, times in spans)


def limits_of(framework: Framework, context: Context) -> list[Limit]:
    """Return a framework's checks in the order in which they repair."""
    tables = {
        Framework.MEGATRON: _megatron,
        Framework.MEGATRON_BRIDGE: _megatron,
        Framework.TORCHTITAN: _torchtitan,
        Framework.MEGATRON_DEEPSPEED: _megatron_deepspeed,
        Framework.DEEPSPEED: _deepspeed,
        Framework.NANOTRON: _nanotron,
        Framework.ACCELERATE: _accelerate,
    }
    from layoutopt.optimizer.frameworks.registry import savers_of  # it loads numpy

    kept = savers_of(framework, context.release, context.model)
    lacking = f"this release has {', '.join(kept)} for this model" if kept else "there are no memory savers"
    return [*tables[framework](context), limits.savers(kept, lacking)]


def _no_chunks_without_pipeline(layout: Layout, _: Context) -> Finding | None:
    if layout.pp > 1 or layout.vp == 1:
        return None
    return Finding(axis="vp", why="virtual stages need a pipeline", nearest=replace(layout, vp=1, stages=()))


def _megatron(context: Context) -> list[Limit]:
    """NVIDIA/Megatron-LM megatron/training/arguments.py at the tags core_v0.5 to 0.19."""
    release = context.release
    checks = [
        _no_chunks_without_pipeline,
        limits.schedules(LOOPED, "Megatron-LM runs 1F1B and interleaved 1F1B only"),
        limits.chunks_fit_schedule,
        limits.mesh_orders(
            _megatron_orders(release), "Megatron-LM has the orders tp-cp-ep-dp-pp and tp-cp-ep-pp-dp only"
        ),
        limits.precisions(_megatron_precisions(release), "this release has no flag for the format"),
        limits.recompute_modules(
            _megatron_modules(release), f"this release recomputes {', '.join(_megatron_modules(release))}"
        ),
        limits.recompute_first_layers,
    ]
    if release < (0, 12):
        checks.append(limits.zero_stages((0, 1), "ZeRO-2 and 3 need Megatron-FSDP, core 0.12 or later"))
    groups = (1, 2, 3) if release >= (0, 16) else (1,) if release >= (0, 10) else ()
    checks.append(
        limits.shard_groups(
            groups, "shard groups: ZeRO-1 since core 0.10, ZeRO-2/3 since 0.16, a divisor of dp*cp"
        )
    )
    checks.append(_fsdp_keeps_order)
    checks.append(
        limits.savers_need_zero(
            1, OPTIMIZER_SAVERS, "the precision-aware optimizer is a distributed optimizer: ZeRO-1 or more"
        )
    )
    if release >= (0, 13):
        checks.append(_mtp_place)
    elif release >= (0, 9):
        checks.append(limits.even_or_uneven_ends(chunked=release >= (0, 11)))
    else:
        checks.append(limits.even_stages("unequal stages need core 0.9 (ends) or 0.13 (layout string)"))
    if release < (0, 10):
        checks.append(_etp_is_tp)
    return checks


def _megatron_orders(release: Release) -> tuple[str, ...]:
    return (DEFAULT_MESH_ORDER, PP_INSIDE_DP) if release >= (0, 7) else (DEFAULT_MESH_ORDER,)


def _megatron_precisions(release: Release) -> tuple[Precision, ...]:
    if release >= (0, 15):
        return tuple(sorted(Precision, key=(Precision.BF16, *Precision).index))
    return (*EIGHT_BIT, Precision.MXFP8) if release >= (0, 12) else EIGHT_BIT


def _megatron_modules(release: Release) -> tuple[str, ...]:
    if release < (0, 12):
        return ("core_attn",)
    return (
        RECOMPUTE_MODULES
        if release >= (0, 14)
        else tuple(m for m in RECOMPUTE_MODULES if m != "shared_experts")
    )


def _fsdp_keeps_order(layout: Layout, _: Context) -> Finding | None:
    if layout.zero < 2 or layout.mesh_order != PP_INSIDE_DP:
        return None
    why = "Megatron-FSDP does not run with the pipeline inside data parallelism"
    return Finding(axis="mesh_order", why=why, nearest=replace(layout, mesh_order=DEFAULT_MESH_ORDER))


def _mtp_place(layout: Layout, context: Context) -> Finding | None:
    """All MTP layers in one stage after the decoder layers, in its rank's last chunk."""
    holders = [index for index, stage in enumerate(layout.stages) if stage.mtp]
    if not holders:
        return None
    at = holders[0]
    behind = any(stage.layers for stage in layout.stages[at + 1 :])
    if len(holders) == 1 and not behind and at // layout.pp == layout.vp - 1:
        return None
    stages = [replace(stage, mtp=0) for stage in layout.stages]
    stages[-1] = replace(stages[-1], mtp=context.model.mtp_layers)
    why = "MTP layers stand together behind all decoder layers, in the last chunk of a rank"
    return Finding(axis="stages", why=why, nearest=replace(layout, stages=tuple(stages)))


def _etp_is_tp(layout: Layout, context: Context) -> Finding | None:
    if not context.model.is_moe or layout.etp == layout.tp:
        return None
    why = "before core 0.10 expert tensor parallelism is tensor parallelism"
    return Finding(axis="etp", why=why, nearest=replace(layout, etp=layout.tp))


def _torchtitan(context: Context) -> list[Limit]:
    """pytorch/torchtitan config/job_config.py (era A), config/configs.py (B, C), parallel_dims.py."""
    toml = context.release < ERA_B
    checks = [
        limits.heads_hold_kv("torchtitan does not replicate kv heads: tp may not exceed them"),
        _no_pipeline_for_shared_embeddings,
        _no_chunks_without_pipeline,
        limits.schedules(TITAN, "torch.distributed.pipelining has no such schedule"),
        limits.chunks_fit_schedule,
        limits.mesh_orders(
            (DEFAULT_MESH_ORDER,), "torchtitan's mesh is fixed: tp, cp, dp, pp from the inside"
        ),
        limits.zero_stages((0, 2, 3), "torchtitan has no ZeRO-1: FSDP that never reshards comes nearest"),
        _context_ranks_share_shards,
        limits.shard_groups((2, 3), "groups hold whole cp groups and divide dp*cp", whole_cp=True),
        limits.precisions(
            (Precision.BF16, Precision.FP8, Precision.MXFP8, *(() if toml else (Precision.NVFP4,))),
            "torchtitan trains in bfloat16 with float8, mxfp8 or (Python configurations) nvfp4 linears",
        ),
        _operator_policy_only,
        limits.recompute_all_or_none("activation checkpointing has one policy for all layers"),
        limits.savers_need_zero(2, OPTIMIZER_SAVERS, "only FSDP keeps its shards in host memory"),
    ]
    if toml:
        checks.append(_ddp_alone)
        checks.append(
            limits.sequence_parallel(True, "the TOML era always shards the sequence with tensor parallelism")
        )
        checks.append(_etp_is_one_or_tp)
    else:
        checks.append(limits.fixed("etp", 1, "torchtitan removed expert tensor parallelism on 2026-04-30"))
    checks.append(_experts_inside_shards)
    return checks


def _no_pipeline_for_shared_embeddings(layout: Layout, context: Context) -> Finding | None:
    model = context.model
    if layout.pp == 1 or not (model.tied_embeddings or model.mtp_layers):
        return None
    why = ("tied embeddings" if model.tied_embeddings else "MTP layers") + " are refused with a pipeline"
    return Finding(axis="pp", why=why, nearest=limits.regroup(layout, pp=1, vp=1))


def _operator_policy_only(layout: Layout, _: Context) -> Finding | None:
    by_operator = layout.recompute.modules == (OP_MODULE,)
    if layout.recompute.granularity is not Granularity.SELECTIVE or by_operator:
        return None
    nearest = replace(layout, recompute=replace(layout.recompute, modules=(OP_MODULE,)))
    return Finding(
        axis="recompute", why="selective checkpointing is by operator, not by module", nearest=nearest
    )


def _context_ranks_share_shards(layout: Layout, _: Context) -> Finding | None:
    if layout.zero or layout.cp == 1:
        return None
    why = "FSDP shards over the context-parallel ranks as well: there is no ZeRO-0 with cp"
    return Finding(axis="zero", why=why, nearest=replace(layout, zero=2))


def _ddp_alone(layout: Layout, _: Context) -> Finding | None:
    if layout.zero or layout.dp == 1 or layout.tp * layout.cp * layout.pp == 1:
        return None
    return Finding(
        axis="zero",
        why="DDP does not combine with tp, cp or pp in the TOML era",
        nearest=replace(layout, zero=2),
    )


def _etp_is_one_or_tp(layout: Layout, _: Context) -> Finding | None:
    if layout.etp in (1, layout.tp):
        return None
    return Finding(axis="etp", why="expert tensor parallelism is 1 or tp", nearest=replace(layout, etp=1))


def _experts_inside_shards(layout: Layout, _: Context) -> Finding | None:
    shard = (layout.hsdp_shard or layout.dp * layout.cp) if layout.zero else layout.cp
    if shard * layout.tp % (layout.ep * layout.etp) == 0:
        return None
    why = f"ep={layout.ep} does not divide the {shard * layout.tp} shard, cp and tp ranks that experts borrow"
    whole = replace(layout, zero=max(layout.zero, 2), hsdp_shard=None)
    fits = layout.dp * layout.cp * layout.tp % (layout.ep * layout.etp) == 0
    return Finding(
        axis="ep", why=why, nearest=whole if fits and whole != layout else replace(layout, ep=1, etp=1)
    )


def _megatron_deepspeed(context: Context) -> list[Limit]:
    """deepspeedai/Megatron-DeepSpeed megatron/arguments.py, DeepSpeed runtime/pipe/engine.py."""
    return [
        limits.fixed("vp", 1, "DeepSpeed's pipeline engine does not interleave"),
        limits.schedules(
            (Schedule.ONE_F_ONE_B, Schedule.ZB_H1), "the engine runs 1F1B and, with a flag, ZB-H1"
        ),
        limits.mesh_orders((DEFAULT_MESH_ORDER,), "the rank order is fixed"),
        limits.precisions(SIXTEEN_BIT, "16-bit training only"),
        limits.zero_without_pipeline(1, "ZeRO-2 and ZeRO-3 exclude pipeline parallelism"),
        limits.shard_groups((), "shard groups are not in Megatron-DeepSpeed"),
        _offload_needs_zero,
        limits.recompute_modules(("core_attn",), "selective recomputation is of core attention only"),
        limits.recompute_first_layers,
        limits.even_stages("DeepSpeed partitions the layers itself, evenly"),
        _ulysses_or_sequence_parallel,
        _zero_bubble_without_sequence_parallel,
        _etp_is_one_or_tp,
    ]


_offload_needs_zero = limits.savers_need_zero(
    1, OPTIMIZER_SAVERS, "offload_optimizer belongs to ZeRO: stage 1 or more"
)


def _ulysses_or_sequence_parallel(layout: Layout, _: Context) -> Finding | None:
    if layout.cp == 1 or not layout.sp:
        return None
    why = "Ulysses (context) parallelism excludes Megatron's sequence parallelism"
    return Finding(axis="sp", why=why, nearest=replace(layout, sp=False))


def _zero_bubble_without_sequence_parallel(layout: Layout, _: Context) -> Finding | None:
    if layout.schedule is not Schedule.ZB_H1 or not layout.sp:
        return None
    why = "the zero-bubble schedule excludes Megatron's sequence parallelism"
    return Finding(axis="schedule", why=why, nearest=replace(layout, schedule=Schedule.ONE_F_ONE_B))


def _deepspeed(context: Context) -> list[Limit]:
    """deepspeedai/DeepSpeed runtime/engine.py, runtime/config.py, module_inject/auto_ep_config.py."""
    return [
        limits.fixed("pp", 1, "a Hugging Face model has no pipeline under DeepSpeed"),
        _no_chunks_without_pipeline,
        limits.sequence_parallel(False, "AutoTP does not shard the sequence"),
        limits.mesh_orders((DEFAULT_MESH_ORDER,), "the rank order is fixed"),
        limits.precisions(SIXTEEN_BIT, "16-bit training only"),
        limits.shard_groups((3,), "shard groups (MiCS) are for ZeRO-3", whole_cp=True),
        _offload_needs_zero,
        limits.recompute_modules((), "recomputation is by whole layers"),
        limits.recompute_all_or_none("gradient checkpointing is on for every layer or off"),
        limits.fixed("etp", 1, "AutoEP has no expert tensor parallelism"),
        _autoep_below_stage_3,
    ]


def _autoep_below_stage_3(layout: Layout, _: Context) -> Finding | None:
    if layout.zero < 3 or layout.ep == 1 or layout.tp * layout.cp == 1:
        return None
    why = "AutoEP under ZeRO-3 excludes AutoTP and Ulysses"
    return Finding(axis="zero", why=why, nearest=replace(layout, zero=2, hsdp_shard=None))


def _nanotron(context: Context) -> list[Limit]:
    """huggingface/nanotron src/nanotron/config and parallel/context.py."""
    checks = [
        limits.heads_hold_kv("nanotron does not duplicate kv heads: tp may not exceed them"),
        limits.fixed("vp", 1, "nanotron has no virtual stages"),
        limits.fixed("ep", 1, "expert parallelism above 1 is broken in nanotron"),
        limits.fixed("etp", 1, "nanotron has no expert tensor parallelism"),
        limits.schedules((Schedule.ONE_F_ONE_B, Schedule.GPIPE), "engines are 1f1b and afab"),
        limits.mesh_orders((DEFAULT_MESH_ORDER,), "the rank order is fixed"),
        limits.precisions(SIXTEEN_BIT, "16-bit training only"),
        limits.zero_stages((0, 1), "the optimizer is sharded (ZeRO-1) or not"),
        limits.shard_groups((), "there are no shard groups"),
        limits.recompute_modules((), "recomputation is by whole layers"),
        limits.recompute_all_or_none("recompute_layer holds for all layers"),
        limits.nanotron_stages,
    ]
    if not context.model.qkv_bias:
        checks.insert(1, limits.fixed("cp", 1, "context parallelism is for its Qwen2 model class only"))
    return checks


def _accelerate(context: Context) -> list[Limit]:
    """huggingface/accelerate src/accelerate/parallelism_config.py and utils/launch.py."""
    return [
        limits.fixed("pp", 1, "accelerate has no pipeline parallelism for training"),
        _no_chunks_without_pipeline,
        limits.fixed("ep", 1, "accelerate has no expert parallelism"),
        limits.fixed("etp", 1, "accelerate has no expert parallelism"),
        limits.sequence_parallel(False, "tensor parallelism does not shard the sequence"),
        limits.mesh_orders((DEFAULT_MESH_ORDER,), "the mesh is fixed"),
        limits.precisions((*SIXTEEN_BIT, Precision.FP8), "mixed_precision is bf16, fp16 or fp8"),
        limits.zero_stages((0, 2, 3), "FSDP2 shards gradients too: there is no ZeRO-1"),
        _context_ranks_share_shards,
        limits.shard_groups((2, 3), "groups hold whole cp groups and divide dp*cp", whole_cp=True),
        _replicas_need_shards,
        limits.recompute_modules((), "recomputation is by whole layers"),
        limits.recompute_all_or_none("activation checkpointing is on for every layer or off"),
    ]


def _replicas_need_shards(layout: Layout, _: Context) -> Finding | None:
    shard = (layout.hsdp_shard or layout.dp * layout.cp) // layout.cp if layout.zero else 1
    if layout.tp * layout.cp == 1 or shard > 1 or layout.dp == 1:
        return None
    why = "replicas together with tp or cp need dp_shard_size above 1"
    return Finding(axis="zero", why=why, nearest=replace(layout, zero=max(2, layout.zero), hsdp_shard=None))
