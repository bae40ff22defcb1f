"""Rules on heads, widths and the sequence: what tensor and context parallelism can split."""

from __future__ import annotations

from math import lcm
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.space.releases import ERA_C
from layoutopt.optimizer.space.rule import (
    EVERY,
    FREEST,
    MEGATRONS,
    TORCH_PIPELINES,
    Rule,
    everywhere,
    varying,
)
from layoutopt.optimizer.specs.vocabulary import CpComm, Framework

if TYPE_CHECKING:
    from collections.abc import Mapping

    from layoutopt.optimizer.cost.batch import IntArray, LayoutBatch
    from layoutopt.optimizer.space.context import Context
    from layoutopt.optimizer.space.rule import BoolArray, Factors
    from layoutopt.optimizer.specs.layout import Layout


def _heads(rows: LayoutBatch, ctx: Context) -> BoolArray:
    result: BoolArray = ctx.model.heads % rows.tp == 0
    return result if ctx.has_attention else everywhere(rows)


def _heads_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    heads = ctx.model.heads
    rest = heads % layout.tp
    return f"heads {heads} % tp {layout.tp} = {rest}", {"heads": heads, "tp": layout.tp, "remainder": rest}


def _valid_tp(rule: Rule, layout: Layout, ctx: Context) -> Mapping[str, tuple[int, ...]]:
    """Tensor degrees that satisfy every head rule of the framework's release, not only the broken one."""
    rules = [r for r in HEAD_RULES if r.applies(ctx) and not r.search_only]
    found = [set(varying("tp", limit=ctx.model.heads)(r, layout, ctx)["tp"]) for r in {*rules, rule}]
    return {"tp": tuple(sorted(set.intersection(*found)))}


def _kv_split(rows: LayoutBatch, ctx: Context) -> BoolArray:
    """Every rank holds the same whole number of key-value heads."""
    result: BoolArray = ctx.model.kv_heads % rows.tp == 0
    return result if _counts_kv(ctx) else everywhere(rows)


def _kv_repeat(rows: LayoutBatch, ctx: Context) -> BoolArray:
    """As ``_kv_split``, or each head is repeated on the same whole number of ranks."""
    kv = ctx.model.kv_heads
    result: BoolArray = (kv % rows.tp == 0) | (rows.tp % kv == 0)
    return result if _counts_kv(ctx) else everywhere(rows)


def _counts_kv(ctx: Context) -> bool:
    """Latent attention expands its own keys and values for every head, so only the heads are split."""
    return ctx.has_attention and ctx.model.mla is None


def _kv_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    kv, tp = ctx.model.kv_heads, layout.tp
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
    result: BoolArray = (mamba.heads % rows.tp == 0) & (mamba.groups % rows.tp == 0)
    return result


def _mamba_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    mamba, tp = ctx.model.mamba, layout.tp
    assert mamba is not None
    text = f"Mamba heads {mamba.heads} % tp {tp} = {mamba.heads % tp}, groups {mamba.groups} % tp = {mamba.groups % tp}"
    return text, {"heads": mamba.heads, "groups": mamba.groups, "tp": tp}


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


def sequence_multiple(tp: int, cp: int, *, sp: bool) -> int:
    """Return what the sequence length must be a multiple of.

    Context parallelism cuts the sequence into 2*cp pieces so that the causal halves balance, and sequence
    parallelism scatters each rank's share over tp: ``cp * lcm(2, tp)`` together.
    """
    if cp == 1:
        return tp if sp else 1
    return cp * lcm(2, tp if sp else 1)


def _sequence(rows: LayoutBatch, ctx: Context) -> BoolArray:
    multiple = rows.cp * np.lcm(np.where(rows.cp > 1, 2, 1), np.where(rows.sp > 0, rows.tp, 1))
    result: BoolArray = ctx.training.sequence_length % multiple == 0
    return result


def _sequence_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    sequence = ctx.training.sequence_length
    multiple = sequence_multiple(layout.tp, layout.cp, sp=layout.sp)
    text = (
        f"sequence {sequence:,} % {multiple:,} = {sequence % multiple:,} with tp {layout.tp}, cp {layout.cp}"
    )
    return text, {"sequence": sequence, "multiple": multiple, "tp": layout.tp, "cp": layout.cp}


def _packed_multiple(rows: LayoutBatch) -> IntArray:
    result: IntArray = np.where(rows.sp > 0, rows.tp, 1) * np.where(rows.cp > 1, 2 * rows.cp, 1)
    return result


def _packed(rows: LayoutBatch, ctx: Context) -> BoolArray:
    """torchtitan C packs a micro-batch into one row of tokens before splitting it."""
    result: BoolArray = (rows.micro_batch * ctx.training.sequence_length) % _packed_multiple(rows) == 0
    return result


def _packed_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    tokens = layout.micro_batch * ctx.training.sequence_length
    multiple = (layout.tp if layout.sp else 1) * (2 * layout.cp if layout.cp > 1 else 1)
    text = f"micro-batch of {tokens:,} tokens % {multiple:,} = {tokens % multiple:,}"
    return text, {"tokens": tokens, "multiple": multiple}


def _sequence_toml(rows: LayoutBatch, ctx: Context) -> BoolArray:
    result: BoolArray = ctx.training.sequence_length % (rows.tp * 2 * rows.cp) == 0
    return result


def _sequence_toml_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    sequence, multiple = ctx.training.sequence_length, layout.tp * 2 * layout.cp
    text = f"sequence {sequence:,} % (tp {layout.tp} x 2 x cp {layout.cp}) = {sequence % multiple:,}"
    return text, {"sequence": sequence, "multiple": multiple}


def ulysses_degrees(heads: int, kv_heads: int, *, repeat: bool = True) -> tuple[int, ...]:
    """Return the head-scattering (Ulysses) context degrees of a rank with these heads.

    The heads must divide; key-value heads must divide too or, with ``repeat``, be repeated on whole ranks.
    """
    return tuple(
        degree
        for degree in range(1, heads + 1)
        if heads % degree == 0 and (kv_heads % degree == 0 or (repeat and degree % kv_heads == 0))
    )


def _ulysses(rows: LayoutBatch, ctx: Context, *, repeat: bool) -> BoolArray:
    kv_all = ctx.model.kv_heads if ctx.model.mla is None else ctx.model.heads
    heads, kv = ctx.model.heads // rows.tp, np.maximum(kv_all // rows.tp, 1)
    kv_fits = kv % rows.cp == 0
    if repeat:
        kv_fits = kv_fits | (rows.cp % kv == 0)
    result: BoolArray = (heads % rows.cp == 0) & kv_fits
    return result


def _ulysses_split(rows: LayoutBatch, ctx: Context) -> BoolArray:
    return _ulysses(rows, ctx, repeat=False) if ctx.options.cp_comm is CpComm.A2A else everywhere(rows)


def _ulysses_stated(rows: LayoutBatch, ctx: Context) -> BoolArray:
    return _ulysses(rows, ctx, repeat=True) if ctx.options.cp_comm is CpComm.A2A else everywhere(rows)


def _ulysses_always(rows: LayoutBatch, ctx: Context) -> BoolArray:
    return _ulysses(rows, ctx, repeat=True)


def _ulysses_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    heads, kv = ctx.model.heads // layout.tp, max(ctx.model.kv_heads // layout.tp, 1)
    text = f"head-scattering cp {layout.cp} over {heads} heads and {kv} key-value heads per tensor rank"
    return text, {"heads_per_rank": heads, "kv_heads_per_rank": kv, "cp": layout.cp}


def _window(rows: LayoutBatch, ctx: Context) -> BoolArray:
    ring = ctx.options.cp_comm in (CpComm.P2P, CpComm.A2A_P2P)
    result: BoolArray = rows.cp == 1
    return result if ring and ctx.has_windows else everywhere(rows)


def _window_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    assert ctx.options.cp_comm is not None
    text = f"sliding-window attention with cp {layout.cp} over {ctx.options.cp_comm}; use a2a or all_gather"
    return text, {"cp": layout.cp}


def _moe_sp(rows: LayoutBatch, ctx: Context) -> BoolArray:
    result: BoolArray = (rows.tp == 1) | (rows.sp == 1)
    return result if ctx.experts else everywhere(rows)


def _moe_sp_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    return f"mixture of experts with tp {layout.tp} but no sequence parallelism", {"tp": layout.tp}


def _sp_or_ulysses(rows: LayoutBatch, ctx: Context) -> BoolArray:
    result: BoolArray = (rows.sp == 0) | (rows.cp == 1)
    return result


def _sp_or_ulysses_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    return f"sequence parallelism together with Ulysses degree {layout.cp}", {"cp": layout.cp}


_TP = frozenset({"tp"})
_TE = "TransformerEngine attention/dot_product_attention/context_parallel.py"
_UNEVEN_HEADS = (0, 12, 4)
"""DeepSpeed release from which AutoTP shards heads unevenly (deepspeedai/DeepSpeed#4697)."""

HEAD_RULES: tuple[Rule, ...] = (
    Rule(
        name="heads_mod_tp",
        formula="heads % tp = 0",
        reason="attention heads are split over tensor-parallel ranks",
        source="NVIDIA/Megatron-LM transformer_config.py; torchtitan models/common/decoder.py; nanotron config/config.py",
        reads=_TP,
        holds=_heads,
        detail=_heads_detail,
        valid=_valid_tp,
        frameworks=EVERY - {Framework.DEEPSPEED},
    ),
    Rule(
        name="heads_mod_tp",
        formula="heads % tp = 0",
        reason="attention heads are split over tensor-parallel ranks; this release has no uneven shards",
        source="deepspeedai/DeepSpeed#3634, #4697",
        reads=_TP,
        holds=_heads,
        detail=_heads_detail,
        valid=_valid_tp,
        frameworks=frozenset({Framework.DEEPSPEED}),
        until=_UNEVEN_HEADS,
    ),
    Rule(
        name="heads_mod_tp",
        formula="heads % tp = 0",
        reason="uneven head shards launch, but the rank with one head more sets the pace: not searched",
        source="deepspeedai/DeepSpeed runtime/engine.py",
        reads=_TP,
        holds=_heads,
        detail=_heads_detail,
        valid=_valid_tp,
        frameworks=frozenset({Framework.DEEPSPEED}),
        since=_UNEVEN_HEADS,
        search_only=True,
    ),
    Rule(
        name="kv_heads_mod_tp",
        formula="kv_heads % tp = 0 or tp % kv_heads = 0",
        reason="key-value heads are split over tensor-parallel ranks, or each is repeated on whole ranks",
        source="NVIDIA/Megatron-LM transformer_config.py, core 0.16",
        reads=_TP,
        holds=_kv_repeat,
        detail=_kv_detail,
        valid=_valid_tp,
        frameworks=MEGATRONS,
        since=(0, 16),
    ),
    Rule(
        name="kv_heads_mod_tp",
        formula="kv_heads % tp = 0",
        reason="key-value heads are split over tensor-parallel ranks and not repeated before core 0.16",
        source="NVIDIA/Megatron-LM transformer_config.py, core 0.15",
        reads=_TP,
        holds=_kv_split,
        detail=_kv_detail,
        valid=_valid_tp,
        frameworks=MEGATRONS,
        until=(0, 16),
    ),
    Rule(
        name="kv_heads_mod_tp",
        formula="kv_heads % tp = 0",
        reason="key-value heads are split over tensor-parallel ranks and never repeated",
        source="torchtitan models/common/decoder.py; nanotron config/config.py",
        reads=_TP,
        holds=_kv_split,
        detail=_kv_detail,
        valid=_valid_tp,
        frameworks=TORCH_PIPELINES | {Framework.NANOTRON},
    ),
    Rule(
        name="kv_heads_mod_tp",
        formula="kv_heads % tp = 0 or tp % kv_heads = 0",
        reason="key-value heads are split over tensor-parallel ranks, or each is repeated on whole ranks",
        source="Shoeybi et al. 2019, section 3; Ainslie et al. 2023 (grouped-query attention)",
        reads=_TP,
        holds=_kv_repeat,
        detail=_kv_detail,
        valid=_valid_tp,
        frameworks=FREEST | {Framework.MEGATRON_DEEPSPEED, Framework.ACCELERATE, Framework.LLM_FOUNDRY},
    ),
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
        valid=varying("tp"),
        frameworks=MEGATRONS | FREEST,
    ),
)

RULES: tuple[Rule, ...] = (
    *HEAD_RULES,
    Rule(
        name="ffn_mod_tp",
        formula="ffn % tp = 0",
        reason="each tensor-parallel rank holds equal columns of the MLP",
        source="NVIDIA/Megatron-LM tensor_parallel/layers.py (divide); nanotron parallel/tensor_parallel/nn.py",
        reads=_TP,
        holds=_ffn,
        detail=_ffn_detail,
        valid=varying("tp"),
        frameworks=MEGATRONS | {Framework.MEGATRON_DEEPSPEED, Framework.NANOTRON},
    ),
    Rule(
        name="seq_mod_cp_tp",
        formula="seq % (cp * lcm(2, tp)) = 0 with sp, seq % (2*cp) = 0 without",
        reason="causal attention balances two pieces per context rank; sequence parallelism scatters a piece over tp",
        source="NVIDIA/Megatron-LM arguments.py, tensor_parallel/mappings.py",
        reads=frozenset({"tp", "cp", "sp"}),
        holds=_sequence,
        detail=_sequence_detail,
        valid=varying("cp", "tp"),
        frameworks=EVERY - {Framework.TORCHTITAN},
    ),
    Rule(
        name="seq_mod_cp_tp",
        formula="micro_batch * seq % ((tp if sp) * (2*cp if cp > 1)) = 0",
        reason="a micro-batch is one row of tokens, cut over tp and into two pieces per context rank",
        source="pytorch/torchtitan trainer.py",
        reads=frozenset({"tp", "cp", "sp", "micro_batch"}),
        holds=_packed,
        detail=_packed_detail,
        valid=varying("cp", "tp"),
        frameworks=frozenset({Framework.TORCHTITAN}),
        since=ERA_C,
    ),
    Rule(
        name="seq_mod_cp_tp",
        formula="seq % (tp * 2 * cp) = 0",
        reason="the TOML and dataclass eras check the whole product, also for cp = 1",
        source="pytorch/torchtitan parallel_dims.py, v0.2.2",
        reads=frozenset({"tp", "cp"}),
        holds=_sequence_toml,
        detail=_sequence_toml_detail,
        valid=varying("cp", "tp"),
        frameworks=frozenset({Framework.TORCHTITAN}),
        until=ERA_C,
    ),
    Rule(
        name="ulysses_heads",
        formula="(heads/tp) % cp = 0 and (kv_heads/tp) % cp = 0",
        reason="all-to-all context parallelism scatters heads over the context ranks",
        source=_TE,
        reads=frozenset({"tp", "cp"}),
        holds=_ulysses_split,
        detail=_ulysses_detail,
        valid=varying("cp"),
        frameworks=MEGATRONS,
        flag="cp_comm",
    ),
    Rule(
        name="ulysses_heads",
        formula="(heads/tp) % cp = 0 and ((kv_heads/tp) % cp = 0 or cp % (kv_heads/tp) = 0)",
        reason="all-to-all context parallelism scatters heads over the context ranks, repeating key-value heads",
        source="Jacobs et al. 2023 (DeepSpeed-Ulysses), section 3",
        reads=frozenset({"tp", "cp"}),
        holds=_ulysses_stated,
        detail=_ulysses_detail,
        valid=varying("cp"),
        frameworks=FREEST | {Framework.ACCELERATE},
        flag="cp_comm",
    ),
    Rule(
        name="ulysses_heads",
        formula="(heads/tp) % cp = 0 and ((kv_heads/tp) % cp = 0 or cp % (kv_heads/tp) = 0)",
        reason="Ulysses is the only context parallelism here and scatters heads over its ranks",
        source="deepspeedai/DeepSpeed sequence/layer.py",
        reads=frozenset({"tp", "cp"}),
        holds=_ulysses_always,
        detail=_ulysses_detail,
        valid=varying("cp"),
        frameworks=frozenset({Framework.DEEPSPEED, Framework.MEGATRON_DEEPSPEED}),
    ),
    Rule(
        name="window_needs_gathered_cp",
        formula="windowed layers and cp > 1 => cp_comm in (a2a, all_gather)",
        reason="the ring exchange has no sliding window",
        source=_TE,
        reads=frozenset({"cp"}),
        holds=_window,
        detail=_window_detail,
        valid=varying("cp", limit=1),
        frameworks=MEGATRONS,
        flag="cp_comm",
    ),
    Rule(
        name="moe_needs_sp",
        formula="experts and tp > 1 => sp",
        reason="experts work on tokens scattered along the sequence; raised at the first training step",
        source="NVIDIA/Megatron-LM core/transformer/moe/moe_layer.py",
        reads=frozenset({"tp", "sp"}),
        holds=_moe_sp,
        detail=_moe_sp_detail,
        frameworks=MEGATRONS,
    ),
    Rule(
        name="sp_or_ulysses",
        formula="not (sp and cp > 1)",
        reason="--sequence-parallel and --ds-sequence-parallel-size exclude each other",
        source="deepspeedai/Megatron-DeepSpeed megatron/arguments.py",
        reads=frozenset({"sp", "cp"}),
        holds=_sp_or_ulysses,
        detail=_sp_or_ulysses_detail,
        valid=varying("cp", limit=1),
        frameworks=frozenset({Framework.MEGATRON_DEEPSPEED}),
    ),
)
