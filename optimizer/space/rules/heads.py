"""Rules on heads and widths: what tensor parallelism can split."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.space.repairs import lowered
from layoutopt.optimizer.space.rule import (
    EVERY,
    FREEST,
    MEGATRONS,
    TORCH_PIPELINES,
    Rule,
    everywhere,
    mask,
    varying,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from layoutopt.optimizer.cost.batch import LayoutBatch
    from layoutopt.optimizer.space.context import Context
    from layoutopt.optimizer.space.rule import BoolArray, Factors
    from layoutopt.optimizer.specs.layout import Layout


def _heads(rows: LayoutBatch, ctx: Context) -> BoolArray:
    return mask(ctx.model.heads % rows.tp == 0) if ctx.has_attention else everywhere(rows)


def _heads_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    heads = ctx.model.heads
    rest = heads % layout.tp
    return f"heads {heads} % tp {layout.tp} = {rest}", {"heads": heads, "tp": layout.tp, "remainder": rest}


def _valid_tp(rule: Rule, layout: Layout, ctx: Context) -> Mapping[str, tuple[int, ...]]:
    """Tensor degrees that satisfy every head rule of the framework's release, not only the broken one."""
    # One offer for all: a degree that suits query heads alone would only meet the next rule.
    rules = [r for r in HEAD_RULES if r.applies(ctx) and not r.search_only]
    found = [set(varying("tp", limit=ctx.model.heads)(r, layout, ctx)["tp"]) for r in {*rules, rule}]
    return {"tp": tuple(sorted(set.intersection(*found)))}


def _kv_split(rows: LayoutBatch, ctx: Context) -> BoolArray:
    """Every rank holds the same whole number of key-value heads."""
    return mask(ctx.model.common_kv_heads % rows.tp == 0) if _counts_kv(ctx) else everywhere(rows)


def _kv_repeat(rows: LayoutBatch, ctx: Context) -> BoolArray:
    """As ``_kv_split``, or each head is repeated on the same whole number of ranks, equal in all layers."""
    kv = ctx.model.kv_heads
    # Layers with other key-value heads would repeat them another number of times: ranks would differ.
    if ctx.model.window_kv_heads:
        return _kv_split(rows, ctx)
    return mask((kv % rows.tp == 0) | (rows.tp % kv == 0)) if _counts_kv(ctx) else everywhere(rows)


def _counts_kv(ctx: Context) -> bool:
    """Latent attention expands its own keys and values for every head, so only the heads are split."""
    return ctx.has_attention and ctx.model.mla is None


def _kv_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    kv, tp = ctx.model.common_kv_heads, layout.tp
    text = f"key-value heads {kv} % tp {tp} = {kv % tp}"
    if tp > kv:
        text += f" and tp {tp} % key-value heads {kv} = {tp % kv}"
    return text, {"kv_heads": kv, "tp": tp, "remainder": kv % tp}


def _groups(rows: LayoutBatch, ctx: Context) -> BoolArray:
    uneven = _counts_kv(ctx) and ctx.model.heads % ctx.model.kv_heads
    return np.full(len(rows), not uneven)


def _groups_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    heads, kv = ctx.model.heads, ctx.model.kv_heads
    return f"heads {heads} % key-value heads {kv} = {heads % kv}", {"heads": heads, "kv_heads": kv}


def _mamba(rows: LayoutBatch, ctx: Context) -> BoolArray:
    mamba = ctx.model.mamba
    if mamba is None:
        return everywhere(rows)
    return mask((mamba.heads % rows.tp == 0) & (mamba.groups % rows.tp == 0))


def _mamba_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    mamba, tp = ctx.model.mamba, layout.tp
    assert mamba is not None
    heads, groups = mamba.heads, mamba.groups
    text = f"Mamba heads {heads} % tp {tp} = {heads % tp}, groups {groups} % tp = {groups % tp}"
    return text, {"heads": mamba.heads, "groups": mamba.groups, "tp": tp}


def _linear(rows: LayoutBatch, ctx: Context) -> BoolArray:
    linear = ctx.model.linear
    return mask(everywhere(rows) if linear is None else linear.key_heads % rows.tp == 0)


def _linear_cp(rows: LayoutBatch, ctx: Context) -> BoolArray:
    linear = ctx.model.linear
    return mask(everywhere(rows) if linear is None else linear.key_heads % (rows.tp * rows.cp) == 0)


def _linear_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    linear, tp, cp = ctx.model.linear, layout.tp, layout.cp
    assert linear is not None
    text = f"key heads {linear.key_heads} of linear attention over tp {tp}, cp {cp}"
    return text, {"key_heads": linear.key_heads, "tp": tp, "cp": cp}


def _widths(ctx: Context) -> tuple[int, ...]:
    """Widths of MLPs that tp splits: dense ones and shared experts."""
    shared = (ctx.model.moe.shared_ffn,) if ctx.model.moe and ctx.model.moe.shared_ffn else ()
    return ctx.dense_ffns + shared


def _ffn(rows: LayoutBatch, ctx: Context) -> BoolArray:
    result = everywhere(rows)
    for width in _widths(ctx):
        result &= width % rows.tp == 0
    return result


def _ffn_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    bad = next(width for width in _widths(ctx) if width % layout.tp)
    return f"MLP width {bad} % tp {layout.tp} = {bad % layout.tp}", {"ffn": bad, "tp": layout.tp}


_TP = frozenset({"tp"})
_UNEVEN_HEADS = (0, 12, 4)
"""DeepSpeed release from which AutoTP shards heads unevenly (deepspeedai/DeepSpeed#4697)."""

_HEADS_SPLIT = Rule(
    name="heads_mod_tp",
    formula="heads % tp = 0",
    reason="attention heads are split over tensor-parallel ranks",
    source=(
        "NVIDIA/Megatron-LM transformer_config.py; torchtitan models/common/decoder.py; nanotron "
        "config/config.py"
    ),
    reads=_TP,
    holds=_heads,
    detail=_heads_detail,
    repair=lowered("tp"),
    valid=_valid_tp,
    frameworks=EVERY - {Framework.DEEPSPEED},
)

_KV_SPLIT = Rule(
    name="kv_heads_mod_tp",
    formula="kv_heads % tp = 0 or tp % kv_heads = 0",
    reason="key-value heads are split over tensor-parallel ranks, or each is repeated on whole ranks",
    source="Shoeybi et al. 2019, section 3; Ainslie et al. 2023 (grouped-query attention)",
    reads=_TP,
    holds=_kv_repeat,
    detail=_kv_detail,
    repair=lowered("tp"),
    valid=_valid_tp,
    frameworks=FREEST | {Framework.MEGATRON_DEEPSPEED, Framework.ACCELERATE, Framework.LLM_FOUNDRY},
)

HEAD_RULES: tuple[Rule, ...] = (
    _HEADS_SPLIT,
    replace(
        _HEADS_SPLIT,
        reason="attention heads are split over tensor-parallel ranks; this release has no uneven shards",
        source="deepspeedai/DeepSpeed#3634, #4697",
        frameworks=frozenset({Framework.DEEPSPEED}),
        until=_UNEVEN_HEADS,
    ),
    replace(
        _HEADS_SPLIT,
        reason="uneven head shards launch, but the rank with one head more sets the pace: not searched",
        source="deepspeedai/DeepSpeed runtime/engine.py",
        frameworks=frozenset({Framework.DEEPSPEED}),
        since=_UNEVEN_HEADS,
        search_only=True,
    ),
    replace(
        _KV_SPLIT,
        source="NVIDIA/Megatron-LM transformer_config.py, core 0.16",
        frameworks=MEGATRONS,
        since=(0, 16),
    ),
    replace(
        _KV_SPLIT,
        formula="kv_heads % tp = 0",
        reason="key-value heads are split over tensor-parallel ranks and not repeated before core 0.16",
        source="NVIDIA/Megatron-LM transformer_config.py, core 0.15",
        holds=_kv_split,
        frameworks=MEGATRONS,
        until=(0, 16),
    ),
    replace(
        _KV_SPLIT,
        formula="kv_heads % tp = 0",
        reason="key-value heads are split over tensor-parallel ranks and never repeated",
        source="torchtitan models/common/decoder.py; nanotron config/config.py",
        holds=_kv_split,
        frameworks=TORCH_PIPELINES | {Framework.NANOTRON},
    ),
    _KV_SPLIT,
    Rule(
        name="heads_mod_kv_heads",
        formula="heads % kv_heads = 0",
        reason="every key-value head serves the same number of query heads",
        source="nanotron config/config.py; deepspeedai/Megatron-DeepSpeed megatron/arguments.py",
        reads=frozenset(),
        holds=_groups,
        detail=_groups_detail,
        frameworks=frozenset({Framework.NANOTRON, Framework.MEGATRON_DEEPSPEED}),
    ),
    Rule(
        name="mamba_heads_mod_tp",
        formula="mamba heads % tp = 0 and groups % tp = 0",
        reason="Mamba heads and groups are split over tensor-parallel ranks",
        source="NVIDIA/Megatron-LM core/ssm/mamba_mixer.py",
        reads=_TP,
        holds=_mamba,
        detail=_mamba_detail,
        repair=lowered("tp"),
        valid=varying("tp"),
        frameworks=MEGATRONS | FREEST,
    ),
    Rule(
        name="linear_heads_mod_tp",
        formula="key heads of linear attention % tp = 0",
        reason="heads and their states are split over tensor-parallel ranks",
        source="NVIDIA/Megatron-LM core/ssm/gated_delta_net.py",
        reads=_TP,
        holds=_linear,
        detail=_linear_detail,
        repair=lowered("tp"),
        valid=varying("tp"),
    ),
    Rule(
        name="linear_heads_mod_cp",
        formula="key heads of linear attention % (tp*cp) = 0",
        reason="context parallelism exchanges sequences for heads before the scan",
        source="NVIDIA/Megatron-LM core/ssm/gated_delta_net.py",
        reads=frozenset({"tp", "cp"}),
        holds=_linear_cp,
        detail=_linear_detail,
        valid=varying("cp"),
        frameworks=MEGATRONS,
    ),
)

RULES: tuple[Rule, ...] = (
    *HEAD_RULES,
    Rule(
        name="ffn_mod_tp",
        formula="ffn % tp = 0",
        reason="each tensor-parallel rank holds equal columns of the MLP",
        source=(
            "NVIDIA/Megatron-LM tensor_parallel/layers.py (divide); nanotron parallel/tensor_parallel/nn.py"
        ),
        reads=_TP,
        holds=_ffn,
        detail=_ffn_detail,
        repair=lowered("tp"),
        valid=varying("tp"),
        frameworks=MEGATRONS | {Framework.MEGATRON_DEEPSPEED, Framework.NANOTRON},
    ),
)
