"""Rules on experts: how many ranks they are spread over and which ranks those are."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.frameworks.torchtitan import ERA_C
from layoutopt.optimizer.space.repairs import first_of, lowered, regrouped, setting
from layoutopt.optimizer.space.rule import EVERY, MEGATRONS, Rule, everywhere, mask, varying

if TYPE_CHECKING:
    from layoutopt.optimizer.cost.batch import IntArray, LayoutBatch
    from layoutopt.optimizer.space.context import Context
    from layoutopt.optimizer.space.rule import BoolArray, Factors
    from layoutopt.optimizer.specs.layout import Layout


def _experts(rows: LayoutBatch, ctx: Context) -> BoolArray:
    if not ctx.experts:
        return mask(rows.ep == 1)
    divides: BoolArray = ctx.experts % rows.ep == 0
    return divides


def _experts_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    if not ctx.experts:
        return f"ep {layout.ep}, but the model has no experts", {"experts": 0, "ep": layout.ep}
    rest = ctx.experts % layout.ep
    text = f"experts {ctx.experts} % ep {layout.ep} = {rest}"
    return text, {"experts": ctx.experts, "ep": layout.ep, "remainder": rest}


def expert_etp(rows: LayoutBatch, ctx: Context) -> IntArray:
    """Return the expert-tensor degree (n,) that counts; a dense model has no expert grid, its is tp."""
    # Megatron-LM builds the expert grid of a dense model from tp (parallel_state.py).
    return rows.etp if ctx.experts else rows.tp


def expert_dp(rows: LayoutBatch, ctx: Context) -> IntArray:
    """Return the ranks that hold the same experts, (n,)."""
    return (rows.tp * rows.cp * rows.dp) // (expert_etp(rows, ctx) * rows.ep)


def _product(rows: LayoutBatch, ctx: Context) -> BoolArray:
    return mask((rows.tp * rows.cp * rows.dp) % (expert_etp(rows, ctx) * rows.ep) == 0)


def _product_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    product, world = layout.etp * layout.ep * layout.pp, layout.gpus
    text = (
        f"etp {layout.etp} x ep {layout.ep} x pp {layout.pp} = {product:,} doesn't divide "
        f"tp {layout.tp} x cp {layout.cp} x pp {layout.pp} x dp {layout.dp} = {world:,} GPUs"
        "; an unset etp means etp = tp in megatron-core"
    )
    return text, {
        "expert_product": product,
        "gpus": world,
        "etp": layout.etp,
        "ep": layout.ep,
        "pp": layout.pp,
    }


def _divides_dp(rows: LayoutBatch, ctx: Context) -> BoolArray:
    return mask(rows.dp % rows.ep == 0)


def _divides_dp_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    rest = layout.dp % layout.ep
    return f"dp {layout.dp} % ep {layout.ep} = {rest}", {"dp": layout.dp, "ep": layout.ep, "remainder": rest}


def _without_cp(rows: LayoutBatch, ctx: Context) -> BoolArray:
    return mask((rows.ep == 1) | (rows.cp == 1))


def _without_cp_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    return f"ep {layout.ep} together with cp {layout.cp}", {"ep": layout.ep, "cp": layout.cp}


def _etp_is_tp(rows: LayoutBatch, ctx: Context) -> BoolArray:
    return mask(rows.etp == rows.tp) if ctx.experts else everywhere(rows)


def _etp_is_one(rows: LayoutBatch, ctx: Context) -> BoolArray:
    return mask(rows.etp == 1) if ctx.experts else everywhere(rows)


def _etp_one_or_tp(rows: LayoutBatch, ctx: Context) -> BoolArray:
    return _etp_is_tp(rows, ctx) | _etp_is_one(rows, ctx)


def _etp_of_pytorch(rows: LayoutBatch, ctx: Context) -> BoolArray:
    # With ep its experts are sharded over whole ranks; without, tensor parallelism splits them like any MLP.
    return np.where(rows.ep == 1, _etp_is_tp(rows, ctx), _etp_is_one(rows, ctx))


def _etp_of_toml(rows: LayoutBatch, ctx: Context) -> BoolArray:
    return np.where(rows.ep == 1, _etp_is_tp(rows, ctx), _etp_one_or_tp(rows, ctx))


def _etp_as_tp(rule: Rule, layout: Layout, ctx: Context) -> Layout:
    return replace(layout, etp=layout.tp)


def _etp_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    text = f"etp {layout.etp} with tp {layout.tp} and ep {layout.ep}"
    return text, {"etp": layout.etp, "tp": layout.tp, "ep": layout.ep}


def _biased_experts(rows: LayoutBatch, ctx: Context) -> BoolArray:
    moe = ctx.model.moe
    biased = moe is not None and (moe.expert_bias or ctx.model.mlp_bias)
    return _etp_is_one(rows, ctx) if biased else everywhere(rows)


def _expert_width(rows: LayoutBatch, ctx: Context) -> BoolArray:
    if ctx.model.moe is None:
        return everywhere(rows)
    return mask(ctx.model.moe.ffn % rows.etp == 0)


def _expert_width_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    width = ctx.model.moe.ffn if ctx.model.moe else 0
    rest = width % layout.etp
    return f"expert width {width} % etp {layout.etp} = {rest}", {"moe_ffn": width, "etp": layout.etp}


def _kernel_dispatch(rows: LayoutBatch, ctx: Context) -> BoolArray:
    if ctx.options.dispatcher not in ("deepep", "hybridep"):
        return everywhere(rows)
    tokens = rows.micro_batch * ctx.training.sequence_length
    return mask((rows.ep > 1) & (tokens % (rows.cp * rows.tp) == 0))


def _kernel_dispatch_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    tokens, ranks = layout.micro_batch * ctx.training.sequence_length, layout.cp * layout.tp
    dispatcher = ctx.options.dispatcher
    text = f"{dispatcher} with ep {layout.ep} and {tokens:,} tokens over cp x tp = {ranks}"
    return text, {"ep": layout.ep, "tokens": tokens, "ranks": ranks}


_NO_ETP = frozenset(
    {
        Framework.NEMO_AUTOMODEL,
        Framework.DEEPSPEED,
        Framework.NANOTRON,
        Framework.LLM_FOUNDRY,
        Framework.ACCELERATE,
    }
)
_EP_FOLD = frozenset({"tp", "cp", "dp", "ep", "etp"})
_PARALLEL_STATE = "NVIDIA/Megatron-LM core/parallel_state.py"

_EXPERT_PRODUCT = Rule(
    name="expert_world_product",
    formula="(tp * cp * dp) % (etp * ep) = 0",
    reason="the expert grid re-uses the ranks of a pipeline stage; ep may exceed dp",
    source=_PARALLEL_STATE
    + "; torchtitan parallel_dims.py; deepspeedai/DeepSpeed runtime/engine.py (AutoEP)",
    reads=_EP_FOLD,
    holds=_product,
    detail=_product_detail,
    repair=lowered("ep", "etp"),
    valid=varying("ep", "etp"),
    frameworks=EVERY - MEGATRONS,
)

_ETP = Rule(
    name="etp_supported",
    formula="etp = 1 or etp = tp",
    reason="--enable-expert-tensor-parallelism is a switch",
    source="deepspeedai/Megatron-DeepSpeed megatron/arguments.py",
    reads=frozenset({"tp", "etp"}),
    holds=_etp_one_or_tp,
    detail=_etp_detail,
    repair=first_of(setting(etp=1), _etp_as_tp),
    valid=varying("etp"),
    frameworks=frozenset({Framework.MEGATRON_DEEPSPEED}),
)

RULES: tuple[Rule, ...] = (
    Rule(
        name="experts_mod_ep",
        formula="experts % ep = 0, and ep > 1 needs experts",
        reason="every expert-parallel rank holds as many experts",
        source="NVIDIA/Megatron-LM arguments.py, moe_layer.py; torchtitan parallel_dims.py",
        reads=frozenset({"ep"}),
        holds=_experts,
        detail=_experts_detail,
        repair=lowered("ep"),
        valid=varying("ep"),
    ),
    _EXPERT_PRODUCT,
    replace(
        _EXPERT_PRODUCT,
        formula="GPUs % (etp * ep * pp) = 0",
        source=_PARALLEL_STATE + ", core 0.10",
        frameworks=MEGATRONS,
        since=(0, 10),
    ),
    Rule(
        name="dp_mod_ep",
        formula="dp % ep = 0",
        reason="before core 0.10 expert groups were cut out of data-parallel groups",
        source=_PARALLEL_STATE + ", core 0.9",
        reads=frozenset({"dp", "ep"}),
        holds=_divides_dp,
        detail=_divides_dp_detail,
        repair=lowered("ep"),
        valid=varying("ep"),
        frameworks=MEGATRONS,
        until=(0, 10),
    ),
    Rule(
        name="ep_without_cp",
        formula="not (ep > 1 and cp > 1)",
        reason="core 0.7 and older don't combine them",
        source=_PARALLEL_STATE + ", core 0.7",
        reads=frozenset({"ep", "cp"}),
        holds=_without_cp,
        detail=_without_cp_detail,
        repair=regrouped(cp=1),
        frameworks=MEGATRONS,
        until=(0, 8),
    ),
    replace(
        _ETP,
        formula="etp = tp",
        reason="an expert-tensor degree of its own came with core 0.10",
        source="NVIDIA/Megatron-LM arguments.py, core 0.10",
        holds=_etp_is_tp,
        frameworks=MEGATRONS,
        until=(0, 10),
    ),
    replace(
        _ETP,
        formula="etp = 1",
        reason="experts aren't split by tensor parallelism here",
        source="deepspeedai/DeepSpeed module_inject/auto_ep_config.py; NVIDIA-NeMo/Automodel (FSDP2 and expert"
        " parallelism)",
        reads=frozenset({"etp"}),
        holds=_etp_is_one,
        frameworks=_NO_ETP,
    ),
    replace(
        _ETP,
        formula="etp = 1 if ep > 1 else etp = tp",
        reason="without expert parallelism tensor parallelism splits experts too; an expert-tensor degree of their own was"
        " removed on 2026-04-30",
        source="pytorch/torchtitan parallel_dims.py, models/common/moe_sharding.py",
        reads=frozenset({"tp", "ep", "etp"}),
        holds=_etp_of_pytorch,
        frameworks=frozenset({Framework.TORCHTITAN}),
        since=ERA_C,
    ),
    replace(
        _ETP,
        formula="etp = 1 or etp = tp, the latter if ep = 1",
        reason="the earlier eras know no other expert-tensor degree, and none without expert parallelism",
        source="pytorch/torchtitan parallel_dims.py, models/llama4/infra/parallelize.py apply_moe_ep_tp, v0.2.2",
        reads=frozenset({"tp", "ep", "etp"}),
        holds=_etp_of_toml,
        frameworks=frozenset({Framework.TORCHTITAN}),
        until=ERA_C,
    ),
    _ETP,
    Rule(
        name="biased_experts_etp",
        formula="biased expert layers => etp = 1",
        reason="every expert-tensor rank would add the bias",
        source="NVIDIA/Megatron-LM transformer_config.py",
        reads=frozenset({"etp"}),
        holds=_biased_experts,
        detail=_etp_detail,
        repair=setting(etp=1),
        valid=varying("etp", limit=1),
        frameworks=MEGATRONS,
    ),
    Rule(
        name="expert_ffn_mod_etp",
        formula="expert width % etp = 0",
        reason="each expert-tensor rank holds equal columns of every expert",
        source="NVIDIA/Megatron-LM tensor_parallel/layers.py (divide)",
        reads=frozenset({"etp"}),
        holds=_expert_width,
        detail=_expert_width_detail,
        repair=lowered("etp"),
        valid=varying("etp"),
        frameworks=MEGATRONS,
    ),
    Rule(
        name="dispatch_kernel_tokens",
        formula="deepep or hybridep => ep > 1 and tokens % (cp * tp) = 0",
        reason="the dispatch kernels need an expert group and equal token counts",
        source="pytorch/torchtitan trainer.py, decoder.py",
        reads=frozenset({"tp", "cp", "ep", "micro_batch"}),
        holds=_kernel_dispatch,
        detail=_kernel_dispatch_detail,
        frameworks=frozenset({Framework.TORCHTITAN}),
        flag="dispatcher",
    ),
)
