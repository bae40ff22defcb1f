"""Rules on the sequence: what sequence and context parallelism can split."""

from __future__ import annotations

from dataclasses import replace
from math import lcm
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.context_parallel import heads_divide, scattered_kv_heads
from layoutopt.optimizer.frameworks.registry import Framework, abilities_of
from layoutopt.optimizer.frameworks.torchtitan import ERA_B, ERA_C
from layoutopt.optimizer.space.repairs import lowered, regrouped, setting
from layoutopt.optimizer.space.rule import (
    EVERY,
    FREEST,
    MEGATRONS,
    TORCH_PIPELINES,
    Rule,
    everywhere,
    mask,
    says,
    varying,
)
from layoutopt.optimizer.space.rules.switches import OnlyWhere, cp_kind
from layoutopt.optimizer.space.switch_sets import stated
from layoutopt.optimizer.specs.model import Mixer
from layoutopt.optimizer.specs.vocabulary import CpComm

if TYPE_CHECKING:
    from collections.abc import Callable

    from layoutopt.optimizer.cost.batch import IntArray, LayoutBatch
    from layoutopt.optimizer.space.context import Context
    from layoutopt.optimizer.space.rule import BoolArray, Factors, Holds
    from layoutopt.optimizer.specs.layout import Layout, Switches


def sequence_multiple(tp: int, cp: int, *, sp: bool) -> int:
    """Return what the sequence length must be a multiple of.

    Context parallelism cuts the sequence into 2*cp pieces so that the causal halves balance, and sequence
    parallelism scatters each rank's share over tp: ``cp * lcm(2, tp)`` together.
    """
    if cp == 1:
        return tp if sp else 1
    return cp * lcm(2, tp if sp else 1)


def _sequence(rows: LayoutBatch, ctx: Context) -> BoolArray:
    # Both share a factor two: half a sequence piece is scattered over tp.
    multiple = rows.cp * np.lcm(np.where(rows.cp > 1, 2, 1), np.where(rows.sp > 0, rows.tp, 1))
    return mask(ctx.training.sequence_length % multiple == 0)


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
    return mask((rows.micro_batch * ctx.training.sequence_length) % _packed_multiple(rows) == 0)


def _packed_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    tokens = layout.micro_batch * ctx.training.sequence_length
    multiple = (layout.tp if layout.sp else 1) * (2 * layout.cp if layout.cp > 1 else 1)
    text = f"micro-batch of {tokens:,} tokens % {multiple:,} = {tokens % multiple:,}"
    return text, {"tokens": tokens, "multiple": multiple}


def _sequence_toml(rows: LayoutBatch, ctx: Context) -> BoolArray:
    return mask(ctx.training.sequence_length % (rows.tp * 2 * rows.cp) == 0)


def _sequence_toml_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    sequence, multiple = ctx.training.sequence_length, layout.tp * 2 * layout.cp
    text = f"sequence {sequence:,} % (tp {layout.tp} x 2 x cp {layout.cp}) = {sequence % multiple:,}"
    return text, {"sequence": sequence, "multiple": multiple}


def _scatters(switches: Switches, ctx: Context) -> bool:
    return cp_kind(switches, ctx) is CpComm.A2A


def _ulysses_split(rows: LayoutBatch, ctx: Context) -> BoolArray:
    return mask(heads_divide(ctx.model, rows.cp, rows.tp, repeats=False))


def _ulysses_always(rows: LayoutBatch, ctx: Context) -> BoolArray:
    return mask(heads_divide(ctx.model, rows.cp, rows.tp, repeats=True))


def _ulysses_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    heads, kv = ctx.model.heads // layout.tp, max(scattered_kv_heads(ctx.model) // layout.tp, 1)
    text = f"head-scattering cp {layout.cp} over {heads} heads and {kv} key-value heads per tensor rank"
    return text, {"heads_per_rank": heads, "kv_heads_per_rank": kv, "cp": layout.cp}


def _window(rows: LayoutBatch, ctx: Context) -> BoolArray:
    ring = ctx.options.cp_comm in (CpComm.P2P, CpComm.A2A_P2P) and ctx.options.cp_windows is None
    return mask(rows.cp == 1) if ring and ctx.has_windows else everywhere(rows)


def _window_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    assert ctx.options.cp_comm is not None
    text = f"sliding-window attention with cp {layout.cp} over {ctx.options.cp_comm}; use a2a or all_gather"
    return text, {"cp": layout.cp}


def _not_gathered(switches: Switches, ctx: Context) -> bool:
    """Whether another exchange is stated than the one that finds chosen keys; stating none leaves it to the trainer."""
    kind = stated(switches, ctx.options).cp_kind
    return kind not in (None, CpComm.ALL_GATHER) and ctx.model.indexer is not None


def _chosen_alone(rows: LayoutBatch, ctx: Context) -> BoolArray:
    return mask(rows.cp == 1) if ctx.model.indexer is not None else everywhere(rows)


def _linear_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    return f"linear attention with cp {layout.cp}", {"cp": layout.cp}


def _chosen_alone_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    return f"sparse attention with cp {layout.cp}", {"cp": layout.cp}


def _chosen_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    kind = cp_kind(layout.switches, ctx)
    return f"sparse attention with cp {layout.cp} over {kind}; use all_gather", {"cp": layout.cp}


def _kinds_by_layer(switches: Switches, ctx: Context) -> bool:
    """Whether keys would go round a ring in whole layers and be gathered in those with a window."""
    kind = cp_kind(switches, ctx)
    whole = any(shape.mixer is Mixer.ATTENTION and shape.window is None for shape in ctx.shapes)
    return kind in (CpComm.P2P, CpComm.A2A_P2P) and whole and ctx.has_windows


def _gathered(rule: Rule, layout: Layout, ctx: Context) -> Layout:
    return replace(layout, switches=replace(layout.switches, cp_kind=CpComm.ALL_GATHER))


def _moe_sp(rows: LayoutBatch, ctx: Context) -> BoolArray:
    return mask((rows.tp == 1) | (rows.sp == 1)) if ctx.experts else everywhere(rows)


def _moe_sp_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    return f"mixture of experts with tp {layout.tp} but no sequence parallelism", {"tp": layout.tp}


def _sp_or_ulysses(rows: LayoutBatch, ctx: Context) -> BoolArray:
    return mask((rows.sp == 0) | (rows.cp == 1))


def _sp_or_ulysses_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    return f"sequence parallelism together with Ulysses degree {layout.cp}", {"cp": layout.cp}


def _sp_off(rows: LayoutBatch, ctx: Context) -> BoolArray:
    return everywhere(rows) if abilities_of(ctx.framework, ctx.release).sp else mask(rows.sp == 0)


def _sp_on(rows: LayoutBatch, ctx: Context) -> BoolArray:
    return mask((rows.tp == 1) | (rows.sp == 1))


def _sp_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    word = "with" if layout.sp else "without"
    return f"tp {layout.tp} {word} sequence parallelism", {"tp": layout.tp, "sp": int(layout.sp)}


def _ulysses_alone(rows: LayoutBatch, ctx: Context) -> BoolArray:
    return mask((rows.cp == 1) | ((rows.tp == 1) & (rows.pp == 1)))


def _ulysses_alone_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    text = f"Ulysses degree {layout.cp} with tp {layout.tp} and pp {layout.pp}"
    return text, {"cp": layout.cp, "tp": layout.tp, "pp": layout.pp}


def _no_cp_unless(allowed: Callable[[Context], bool]) -> Holds:
    def holds(rows: LayoutBatch, ctx: Context) -> BoolArray:
        """Tell which rows (n,) do without context parallelism where it is not allowed."""
        return everywhere(rows) if allowed(ctx) else mask(rows.cp == 1)

    return holds


def _cp_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    return f"cp {layout.cp} for {ctx.model.name}", {"cp": layout.cp}


_TE = "TransformerEngine attention/dot_product_attention/context_parallel.py"

_ULYSSES = Rule(
    name="ulysses_heads",
    formula="(heads/tp) % cp = 0 and ((kv_heads/tp) % cp = 0 or cp % (kv_heads/tp) = 0)",
    reason=(
        "all-to-all context parallelism scatters heads over the context ranks, repeating key-value heads"
    ),
    source="Jacobs et al. 2023 (DeepSpeed-Ulysses), section 3",
    reads=frozenset({"tp", "cp", "switches"}),
    axis="cp",
    holds=OnlyWhere(_scatters, _ulysses_always),
    detail=_ulysses_detail,
    repair=lowered("cp"),
    valid=varying("cp"),
    frameworks=FREEST | {Framework.ACCELERATE},
)

_MTP_CP = Rule(
    name="mtp_with_cp",
    formula="multi-token prediction => cp = 1",
    reason="the prediction layers shift tokens across the pieces of the sequence, which this framework refuses",
    source="pytorch/torchtitan models/common/mtp.py",
    reads=frozenset({"cp"}),
    holds=_no_cp_unless(lambda ctx: not ctx.model.mtp_layers),
    detail=_cp_detail,
    repair=regrouped(cp=1),
    valid=varying("cp", limit=1),
    frameworks=TORCH_PIPELINES,
)

RULES: tuple[Rule, ...] = (
    Rule(
        name="seq_mod_cp_tp",
        formula="seq % (cp * lcm(2, tp)) = 0 with sp, seq % (2*cp) = 0 without",
        reason=(
            "causal attention balances two pieces per context rank; sequence parallelism scatters a piece "
            "over tp"
        ),
        source="NVIDIA/Megatron-LM arguments.py, tensor_parallel/mappings.py",
        reads=frozenset({"tp", "cp", "sp"}),
        holds=_sequence,
        detail=_sequence_detail,
        repair=lowered("cp", "tp"),
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
        repair=lowered("cp", "tp"),
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
        repair=lowered("cp", "tp"),
        valid=varying("cp", "tp"),
        frameworks=frozenset({Framework.TORCHTITAN}),
        until=ERA_C,
    ),
    replace(
        _ULYSSES,
        formula="(heads/tp) % cp = 0 and (kv_heads/tp) % cp = 0",
        reason="all-to-all context parallelism scatters heads over the context ranks",
        source=_TE,
        holds=OnlyWhere(_scatters, _ulysses_split),
        frameworks=MEGATRONS,
    ),
    _ULYSSES,
    replace(
        _ULYSSES,
        reason="Ulysses is the only context parallelism here and scatters heads over its ranks",
        source="deepspeedai/DeepSpeed sequence/layer.py",
        reads=frozenset({"tp", "cp"}),
        holds=_ulysses_always,
        frameworks=frozenset({Framework.DEEPSPEED, Framework.MEGATRON_DEEPSPEED}),
    ),
    Rule(
        name="sparse_needs_gathered_cp",
        formula="sparse attention and cp > 1 => cp_comm = all_gather",
        reason="chosen keys may be on any rank",
        source="NVIDIA/Megatron-LM core/transformer/transformer_config.py",
        reads=frozenset({"cp", "switches"}),
        axis="cp",
        holds=OnlyWhere(_not_gathered, lambda rows, ctx: rows.cp == 1),
        detail=_chosen_detail,
    ),
    Rule(
        name="sparse_without_cp",
        formula="sparse attention => cp = 1",
        reason="chosen keys may be on any rank, and this trainer gathers none",
        source="deepspeedai/DeepSpeed sequence/layer.py; huggingface/accelerate parallelism_config.py",
        reads=frozenset({"cp"}),
        holds=_chosen_alone,
        detail=_chosen_alone_detail,
        repair=lowered("cp"),
        valid=varying("cp"),
        frameworks=frozenset({Framework.DEEPSPEED, Framework.MEGATRON_DEEPSPEED, Framework.ACCELERATE}),
    ),
    Rule(
        name="sparse_without_cp",
        formula="sparse attention => cp = 1",
        reason="its attention gathers no keys of other ranks before core 0.19",
        source="NVIDIA/Megatron-LM core/transformer/transformer_config.py, tags 0.18 and 0.19",
        reads=frozenset({"cp"}),
        holds=_chosen_alone,
        detail=_chosen_alone_detail,
        repair=regrouped(cp=1),
        valid=varying("cp", limit=1),
        frameworks=frozenset({Framework.MEGATRON}),
        until=(0, 19),
    ),
    Rule(
        name="linear_without_cp",
        formula="linear attention => cp = 1",
        reason="the state of linear attention passes through the whole sequence, and this release sends none on",
        source="NVIDIA/Megatron-LM core/transformer/transformer_config.py, tags 0.17 and 0.18",
        reads=frozenset({"cp"}),
        holds=_no_cp_unless(lambda ctx: not any(shape.mixer.is_linear for shape in ctx.shapes)),
        detail=_linear_detail,
        repair=regrouped(cp=1),
        valid=varying("cp", limit=1),
        frameworks=MEGATRONS,
        until=(0, 18),
    ),
    Rule(
        name="window_needs_gathered_cp",
        formula="windowed layers and cp > 1 => cp_comm in (a2a, all_gather)",
        reason="the ring exchange has no sliding window",
        source=_TE,
        reads=frozenset({"cp"}),
        holds=_window,
        detail=_window_detail,
        repair=regrouped(cp=1),
        valid=varying("cp", limit=1),
        frameworks=MEGATRONS,
        flag="cp_comm",
    ),
    Rule(
        name="one_cp_kind",
        formula="windows in some layers and cp > 1 => cp_kind in (a2a, all_gather)",
        reason="the list of kinds by layer is read one entry too far, past its end in the last layer",
        source="NVIDIA/Megatron-LM core/transformer/transformer_layer.py, cp_comm_type[self.layer_number], core 0.16",
        reads=frozenset({"cp", "switches"}),
        holds=OnlyWhere(_kinds_by_layer, lambda rows, ctx: rows.cp == 1),
        detail=says("windows in some layers with keys that go round a ring in the others", "cp"),
        repair=_gathered,
        frameworks=MEGATRONS,
        until=(0, 17),
    ),
    Rule(
        name="moe_needs_sp",
        formula="experts and tp > 1 => sp",
        reason="experts work on tokens scattered along the sequence; raised at the first training step",
        source="NVIDIA/Megatron-LM core/transformer/moe/moe_layer.py",
        reads=frozenset({"tp", "sp"}),
        holds=_moe_sp,
        detail=_moe_sp_detail,
        repair=setting(sp=True),
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
        repair=setting(sp=False),
        valid=varying("cp", limit=1),
        frameworks=frozenset({Framework.MEGATRON_DEEPSPEED}),
    ),
    Rule(
        name="ulysses_alone",
        formula="cp > 1 => tp = pp = 1",
        reason="its groups are built for sequence parallelism without tensor and pipeline parallelism",
        source="deepspeedai/Megatron-DeepSpeed megatron/core/parallel_state.py (initialize_model_parallel)",
        reads=frozenset({"tp", "cp", "pp"}),
        holds=_ulysses_alone,
        detail=_ulysses_alone_detail,
        repair=regrouped(cp=1),
        valid=varying("cp", limit=1),
        frameworks=frozenset({Framework.MEGATRON_DEEPSPEED}),
    ),
    Rule(
        name="sp_supported",
        formula="sp only where the framework shards norms and dropout along the sequence",
        reason="its tensor parallelism doesn't shard the sequence",
        source="deepspeedai/DeepSpeed module_inject (AutoTP); huggingface/accelerate parallelism_config.py",
        reads=frozenset({"sp"}),
        holds=_sp_off,
        detail=_sp_detail,
        repair=setting(sp=False),
    ),
    Rule(
        name="sp_with_tp",
        formula="tp > 1 => sp",
        reason="the TOML era always shards the sequence with tensor parallelism",
        source="pytorch/torchtitan v0.2.2 parallelize.py",
        reads=frozenset({"tp", "sp"}),
        axis="sp",
        holds=_sp_on,
        detail=_sp_detail,
        repair=setting(sp=True),
        frameworks=frozenset({Framework.TORCHTITAN}),
        until=ERA_B,
    ),
    Rule(
        name="cp_needs_qwen",
        formula="cp > 1 => the Qwen2 model class",
        reason="the Llama class has no ring attention",
        source="huggingface/nanotron src/nanotron/models/qwen.py, config (_attn_implementation)",
        reads=frozenset({"cp"}),
        holds=_no_cp_unless(lambda ctx: ctx.model.qkv_bias),
        detail=_cp_detail,
        repair=regrouped(cp=1),
        valid=varying("cp", limit=1),
        frameworks=frozenset({Framework.NANOTRON}),
    ),
    _MTP_CP,
    replace(
        _MTP_CP,
        source="NVIDIA/Megatron-LM training/arguments.py, core 0.12 and 0.13",
        frameworks=frozenset({Framework.MEGATRON}),
        until=(0, 14),
    ),
)
