"""Rules on ZeRO stages: what is sharded, and beside which other axes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.frameworks.record import TrainerFamily
from layoutopt.optimizer.frameworks.registry import Framework, abilities_of, of_family
from layoutopt.optimizer.frameworks.torchtitan import ERA_B
from layoutopt.optimizer.space.repairs import nearest_zero, setting
from layoutopt.optimizer.space.rule import MEGATRONS, TORCH_PIPELINES, Rule, everywhere, mask
from layoutopt.optimizer.specs.vocabulary import Precision, Saver

if TYPE_CHECKING:
    from collections.abc import Mapping

    from layoutopt.optimizer.cost.batch import LayoutBatch
    from layoutopt.optimizer.space.context import Context
    from layoutopt.optimizer.space.rule import BoolArray, Factors, Holds
    from layoutopt.optimizer.specs.layout import Layout


def _stage(rows: LayoutBatch, ctx: Context) -> BoolArray:
    return np.isin(rows.zero, abilities_of(ctx.framework, ctx.release).zero)


def _stage_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    return f"{ctx.framework} can't launch ZeRO stage {layout.zero}", {"zero": layout.zero}


def _stage_valid(rule: Rule, layout: Layout, ctx: Context) -> Mapping[str, tuple[int, ...]]:
    return {"zero": abilities_of(ctx.framework, ctx.release).zero}


def _whole_gradients(rows: LayoutBatch, ctx: Context) -> BoolArray:
    return mask((rows.zero < 2) | (rows.pp == 1))


def _pipeline_engine(rows: LayoutBatch, ctx: Context) -> BoolArray:
    return mask(rows.zero < 2) if ctx.options.pipeline_module else everywhere(rows)


def _zero_pp_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    zero = layout.zero
    text = f"ZeRO-{zero} with pp {layout.pp}; use ZeRO-1 with the pipeline, or ZeRO-{zero} without it"
    return text, {"zero": layout.zero, "pp": layout.pp}


def _zero_pp_valid(rule: Rule, layout: Layout, ctx: Context) -> Mapping[str, tuple[int, ...]]:
    return {"zero": (0, 1)}


def _ddp_alone(rows: LayoutBatch, ctx: Context) -> BoolArray:
    return mask((rows.zero > 0) | (rows.dp == 1) | ((rows.tp == 1) & (rows.cp == 1) & (rows.pp == 1)))


def _replicas_need_shards(rows: LayoutBatch, ctx: Context) -> BoolArray:
    alone = (rows.tp * rows.cp == 1) | (rows.dp == 1)
    return mask(alone | ((rows.zero > 0) & (rows.hsdp_shard != rows.cp)))


def _ddp_without_cp(rows: LayoutBatch, ctx: Context) -> BoolArray:
    return mask((rows.zero > 0) | (rows.cp == 1))


def _savers_need(least: int) -> Holds:
    """Build a predicate: a host or 16-bit optimizer of several replicas is a sharded one."""

    def holds(rows: LayoutBatch, ctx: Context) -> BoolArray:
        """Tell which rows (n,) shard what a saver of the optimizer moves."""
        uses = np.array(
            [bool(_OPTIMIZER_SAVERS & set(savers)) for _, savers, _ in rows.codebook.formats], dtype=bool
        )
        return mask(~uses[rows.precision] | _sharded(rows, least))

    return holds


def _savers_open_need(least: int) -> Holds:
    """Build a predicate of the space: where such savers are among the choices, all its optimizers are sharded."""

    def holds(rows: LayoutBatch, ctx: Context) -> BoolArray:
        """Tell which rows (n,) shard where any entry of the codebook saves optimizer memory."""
        # Masks of ZeRO and of savers multiply, so that no mask may read both: the space is cut more than it
        # had to.
        opened = any(_OPTIMIZER_SAVERS & set(savers) for _, savers, _ in rows.codebook.formats)
        return _sharded(rows, least) if opened else everywhere(rows)

    return holds


def _sharded(rows: LayoutBatch, least: int) -> BoolArray:
    return mask((rows.zero >= least) | (rows.dp * rows.cp == 1))


def _savers_need_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    savers = [saver for saver in layout.savers if saver in _OPTIMIZER_SAVERS]
    return f"{', '.join(savers)} with ZeRO-{layout.zero}", {"zero": layout.zero}


def _savers_need_zero(
    least: int, frameworks: frozenset[Framework], *, formula: str, reason: str, source: str
) -> tuple[Rule, Rule]:
    """Build the rule on layouts, and the one that shapes the space: masks of its modifiers have to multiply."""
    launched = Rule(
        name="savers_need_zero",
        reads=frozenset({"zero", "dp", "cp", "precision"}),
        axis="zero",
        holds=_savers_need(least),
        detail=_savers_need_detail,
        repair=setting(zero=least),
        frameworks=frameworks,
        launch_only=True,
        formula=formula,
        reason=reason,
        source=source,
    )
    searched = replace(
        launched,
        reads=frozenset({"zero", "dp", "cp"}),
        holds=_savers_open_need(least),
        launch_only=False,
        search_only=True,
    )
    return launched, searched


def _ddp_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    text = f"ZeRO-0 with tp {layout.tp}, cp {layout.cp}, dp {layout.dp}"
    return text, {"tp": layout.tp, "cp": layout.cp, "dp": layout.dp}


def _ddp_valid(rule: Rule, layout: Layout, ctx: Context) -> Mapping[str, tuple[int, ...]]:
    return {"zero": tuple(stage for stage in abilities_of(ctx.framework, ctx.release).zero if stage)}


def _auto_ep(rows: LayoutBatch, ctx: Context) -> BoolArray:
    return mask((rows.zero < 3) | (rows.ep == 1) | ((rows.tp == 1) & (rows.cp == 1)))


def _auto_ep_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    text = f"ZeRO-3 with ep {layout.ep}, tp {layout.tp}, cp {layout.cp}"
    return text, {"ep": layout.ep, "tp": layout.tp, "cp": layout.cp}


def _fsdp2(rows: LayoutBatch, ctx: Context) -> BoolArray:
    if not ctx.options.torch_fsdp2:
        return everywhere(rows)
    half = np.array([p is Precision.FP16 for p in rows.codebook.precisions], dtype=bool)[rows.precision]
    fits = (rows.pp == 1) & (rows.ep == 1) & (rows.zero >= 2) & ~half
    return mask(fits & np.full(len(rows), not ctx.model.tied_embeddings))


def _fsdp2_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    tied = " with tied embeddings" if ctx.model.tied_embeddings else ""
    text = f"FSDP2 with pp {layout.pp}, ep {layout.ep}, zero {layout.zero}, {layout.precision}{tied}"
    return text, {"pp": layout.pp, "ep": layout.ep, "zero": layout.zero}


def _fsdp_v2(rows: LayoutBatch, ctx: Context) -> BoolArray:
    if ctx.options.megatron_fsdp_version != 2:
        return everywhere(rows)
    return mask((rows.zero < 2) | ((rows.pp == 1) & (rows.tp == 1) & (rows.cp == 1)))


def _fsdp_v2_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    text = f"Megatron-FSDP version 2 with pp {layout.pp}, tp {layout.tp}, cp {layout.cp}"
    return text, {"pp": layout.pp, "tp": layout.tp, "cp": layout.cp}


_OPTIMIZER_SAVERS = {Saver.BF16_MOMENTS, Saver.OFFLOAD_OPTIMIZER}
_ZERO_PP = frozenset({"zero", "pp"})
_MEGATRON_FSDP = "NVIDIA/Megatron-LM arguments.py, docs megatron_fsdp.md"
_DEEPSPEEDS = of_family(TrainerFamily.DEEPSPEED_ENGINE)

_WHOLE_GRADIENTS = Rule(
    name="zero_with_pp",
    formula="zero >= 2 => pp = 1",
    reason="the pipeline needs whole gradients over all micro-batches",
    source="deepspeedai/DeepSpeed runtime/pipe/engine.py",
    reads=_ZERO_PP,
    holds=_whole_gradients,
    detail=_zero_pp_detail,
    repair=setting(zero=1, hsdp_shard=None),
    valid=_zero_pp_valid,
    frameworks=_DEEPSPEEDS,
)

_DDP = Rule(
    name="ddp_alone",
    formula="replicas and (tp > 1 or cp > 1) => dp_shard > 1",
    reason="replicas alone, without shards, aren't combined with tp or cp",
    source="huggingface/accelerate parallelism_config.py",
    reads=frozenset({"zero", "hsdp_shard", "tp", "cp", "dp"}),
    axis="zero",
    holds=_replicas_need_shards,
    detail=_ddp_detail,
    repair=setting(zero=2),
    valid=_ddp_valid,
    frameworks=frozenset({Framework.ACCELERATE}),
)

RULES: tuple[Rule, ...] = (
    Rule(
        name="zero_supported",
        formula="ZeRO stage in the framework's list",
        reason="the framework has to implement the stage",
        source="FSDP frameworks shard weights or nothing; nanotron optim/zero.py has stage 1; "
        + _MEGATRON_FSDP,
        reads=frozenset({"zero"}),
        holds=_stage,
        detail=_stage_detail,
        repair=nearest_zero,
        valid=_stage_valid,
    ),
    _WHOLE_GRADIENTS,
    replace(
        _WHOLE_GRADIENTS,
        formula="pipeline engine => zero < 2",
        reason="the pipeline engine refuses ZeRO-2 and 3 even with one stage",
        holds=_pipeline_engine,
        flag="pipeline_module",
    ),
    replace(
        _WHOLE_GRADIENTS,
        reason="Megatron-FSDP with a pipeline isn't refused, but no run of it is known: not searched",
        source=_MEGATRON_FSDP,
        frameworks=MEGATRONS,
        search_only=True,
    ),
    replace(
        _DDP,
        formula="zero = 0 and dp > 1 => tp = cp = pp = 1",
        reason="plain data parallelism isn't combined with other axes in this era",
        source="pytorch/torchtitan v0.2.2 (DDP has not supported > 1D parallelism)",
        reads=frozenset({"zero", "tp", "cp", "pp", "dp"}),
        holds=_ddp_alone,
        frameworks=frozenset({Framework.TORCHTITAN}),
        until=ERA_B,
    ),
    _DDP,
    Rule(
        name="ddp_without_cp",
        formula="zero = 0 => cp = 1",
        reason="FSDP shards over the context-parallel ranks as well",
        source="pytorch/torchtitan parallel_dims.py; huggingface/accelerate parallelism_config.py",
        reads=frozenset({"zero", "cp"}),
        holds=_ddp_without_cp,
        detail=_ddp_detail,
        repair=setting(zero=2),
        valid=_ddp_valid,
        frameworks=TORCH_PIPELINES | {Framework.ACCELERATE},
    ),
    *_savers_need_zero(
        1,
        MEGATRONS | _DEEPSPEEDS,
        formula="16-bit moments or a host optimizer, and several replicas => zero >= 1",
        reason="the precision-aware optimizer is a distributed one; offload_optimizer belongs to ZeRO",
        source="NVIDIA/Megatron-LM arguments.py (--use-precision-aware-optimizer); deepspeedai/DeepSpeed config.py",
    ),
    *_savers_need_zero(
        2,
        TORCH_PIPELINES | {Framework.ACCELERATE},
        formula="a host optimizer, and several replicas => zero >= 2",
        reason="only FSDP keeps its shards in host memory",
        source="pytorch/torchtitan training.enable_cpu_offload; huggingface/accelerate fsdp_offload_params",
    ),
    Rule(
        name="zero3_experts_alone",
        formula="zero = 3 and ep > 1 => tp = cp = 1",
        reason="AutoEP under ZeRO-3 excludes AutoTP and sequence parallelism",
        source="deepspeedai/DeepSpeed module_inject/auto_ep_config.py",
        reads=frozenset({"zero", "ep", "tp", "cp"}),
        holds=_auto_ep,
        detail=_auto_ep_detail,
        repair=setting(zero=2, hsdp_shard=None),
        frameworks=frozenset({Framework.DEEPSPEED}),
    ),
    Rule(
        name="fsdp2_axes",
        formula="FSDP2 => pp = 1, ep = 1, zero >= 2, untied embeddings, no fp16",
        reason="Megatron's torch FSDP2 path refuses the rest",
        source="NVIDIA/Megatron-LM arguments.py (--use-torch-fsdp2)",
        reads=frozenset({"pp", "ep", "zero", "precision"}),
        holds=_fsdp2,
        detail=_fsdp2_detail,
        frameworks=MEGATRONS,
        flag="torch_fsdp2",
        launch_only=True,
    ),
    Rule(
        name="megatron_fsdp_v2_axes",
        formula="Megatron-FSDP version 2 => pp = tp = cp = 1",
        reason="version 2 shards over the data-parallel axis alone",
        source=_MEGATRON_FSDP,
        reads=frozenset({"pp", "tp", "cp", "zero"}),
        holds=_fsdp_v2,
        detail=_fsdp_v2_detail,
        frameworks=MEGATRONS,
        flag="megatron_fsdp_version",
    ),
)
