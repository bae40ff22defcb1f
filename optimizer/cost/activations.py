"""Bytes that one layer keeps for its backward pass, by part, for one micro-batch on one GPU.

Modern stack: flash attention, fused activation function, sequence parallelism. With materialised scores and
dropout the same sum gives Korthikanti et al. 2022, Table 2: s*b*h*(34 + 5*a*s/h)/t.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.context_parallel import held_bytes
from layoutopt.optimizer.cost.formats import element_bytes
from layoutopt.optimizer.cost.mixers import linear_kept_bytes, linear_widths
from layoutopt.optimizer.specs.model import Mixer, Mlp, Norm
from layoutopt.optimizer.specs.vocabulary import OP_MODULE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from layoutopt.optimizer.cost.work import ComputeContext, Keys
    from layoutopt.optimizer.specs.model import LayerShape

    FloatArray = NDArray[np.float64]

RULE_OF_THUMB_BYTES = 34.0
"""Bytes per token and hidden element of a layer (Korthikanti et al. 2022, Table 2), used by the simple model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerActivations:
    """Bytes kept by one layer: all of them, what each recomputable module saves, and the largest transient.

    ``checkpoint_bytes`` is what remains when the whole layer is recomputed: its input. ``delayed_bytes`` are gradients that
    wait for the layer's weight gradients where those run apart: of its matrices' outputs, or of a compiled layer's own.
    """

    kept_bytes: FloatArray
    saved_bytes: dict[str, FloatArray]
    checkpoint_bytes: FloatArray
    transient_bytes: FloatArray
    delayed_bytes: FloatArray


def gemm_input_bytes(ctx: ComputeContext) -> float:
    """Bytes per element of a linear layer's stored input."""
    return element_bytes(ctx.rates.precision) if ctx.preset.stored_fp8_inputs else 2.0


def layer_activations(ctx: ComputeContext, keys: Keys, shape: LayerShape) -> LayerActivations:
    """Sum up one layer."""
    zero = np.zeros_like(keys.tp)
    if ctx.rates.ideal:
        # The rule takes sequence parallelism for granted, so that all of a layer divides by tp.
        elements = keys.tokens * ctx.model.hidden / keys.tp
        return LayerActivations(
            kept_bytes=RULE_OF_THUMB_BYTES * elements,
            saved_bytes={},
            checkpoint_bytes=2.0 * elements,
            transient_bytes=zero,
            delayed_bytes=zero,
        )
    parts, saved = _mixer_bytes(ctx, keys, shape)
    mlp_parts, mlp_saved = _mlp_bytes(ctx, keys, shape)
    norms = sum(
        shape_part is not unused for shape_part, unused in ((shape.mixer, Mixer.NONE), (shape.mlp, Mlp.NONE))
    )
    # A norm's output is what the next matrix keeps as its input: recomputing norms saves just these.
    norm_outputs = sum((side["input"] for side in (parts, mlp_parts) if side), zero)
    elements = keys.local_tokens * ctx.model.hidden
    norm_inputs = norm_bytes(ctx) * norms * elements
    saved = saved | mlp_saved | {"layernorm": norm_outputs}
    hidden = keys.tokens * ctx.model.hidden
    exchanged, meanwhile = held_bytes(ctx, keys, shape) if shape.mixer is Mixer.ATTENTION else (zero, zero)
    # What was exchanged for heads is held in the order of the exchange as well.
    kept = norm_inputs + sum(parts.values(), zero) + sum(mlp_parts.values(), zero) + exchanged
    # A layer that keeps less than the policy would keep saves nothing by it.
    saved[OP_MODULE] = np.maximum(kept - _op_kept_bytes(ctx, keys, shape), 0.0)
    return LayerActivations(
        kept_bytes=kept,
        saved_bytes=saved,
        checkpoint_bytes=2.0 * elements,
        # An operation's input and output exist at once, beside what was kept: gathered, so not over tp.
        transient_bytes=2.0 * (hidden + _widest(ctx, keys, shape))
        + meanwhile
        + _index_bytes(ctx, keys, shape),
        # A compiled layer is one node of autograd, so that only its own output's gradient waits.
        delayed_bytes=2.0 * (elements if ctx.preset.compiled else _outputs(ctx, keys, shape)),
    )


def _index_bytes(ctx: ComputeContext, keys: Keys, shape: LayerShape) -> FloatArray:
    """Bytes of positions by which routed rows are gathered and scattered, where every element has its own."""
    if shape.mlp is not Mlp.MOE or not ctx.preset.routed_index_bytes:
        return np.zeros_like(keys.tp)
    return ctx.preset.routed_index_bytes * routed_rows(ctx, keys) * ctx.model.hidden


def norm_bytes(ctx: ComputeContext) -> float:
    """Bytes per element that a norm keeps beside its output; LayerNorm is one kernel everywhere and keeps its input."""
    return ctx.preset.norm_bytes if ctx.model.norm is Norm.RMS else 2.0


def input_tokens(ctx: ComputeContext, keys: Keys) -> FloatArray:
    """Tokens (n,) of a tensor-parallel matrix's input that a rank keeps: its share, or all gathered for it."""
    return keys.tokens if ctx.preset.keeps_gathered_inputs else keys.local_tokens


def _input_copies(ctx: ComputeContext, readers: int) -> float:
    """Copies kept of an input that several linear layers read: one for each where every layer casts its own."""
    return float(readers) if ctx.preset.casts_inputs else 1.0


def _attention_widths(ctx: ComputeContext, keys: Keys, shape: LayerShape) -> tuple[FloatArray, ...]:
    """Elements per rank of a layer's queries, keys, values and attention's output, all tokens together."""
    model = ctx.model
    # Ranks beyond one per key-value head repeat heads: no rank has less than one.
    heads, kv_heads = model.heads / keys.tp, np.maximum(model.kv_heads_of(shape) / keys.tp, 1.0)
    e, v = keys.tokens * model.head_dim, keys.tokens * model.value_dim
    return e * heads, e * kv_heads, v * kv_heads, v * heads


def _op_kept_bytes(ctx: ComputeContext, keys: Keys, shape: LayerShape) -> FloatArray:
    """Bytes kept by selective-op checkpointing: the input, attention's output, half of all multiplications' outputs."""
    attention = _attention_widths(ctx, keys, shape)[-1]
    # The policy saves every second multiplication (pytorch/torchtitan activation_checkpoint.py).
    # Outputs count once: 2 bytes each, half of them kept.
    kept = 2.0 * keys.local_tokens * ctx.model.hidden + 2.0 * attention
    return np.asarray(kept + _outputs(ctx, keys, shape))


def _outputs(ctx: ComputeContext, keys: Keys, shape: LayerShape) -> FloatArray:
    """Elements of the outputs of a layer's matrices, but for experts'."""
    query, key, value, _ = _attention_widths(ctx, keys, shape)
    outputs = query + key + value + 2.0 * keys.local_tokens * ctx.model.hidden
    if shape.mlp is Mlp.DENSE:
        outputs = outputs + keys.tokens * shape.ffn * (2 if ctx.model.gated else 1) / keys.tp
    return np.asarray(outputs)


def _widest(ctx: ComputeContext, keys: Keys, shape: LayerShape) -> FloatArray:
    """Elements of the widest intermediate of a layer: an MLP's input and gradient, or queries, keys and values.

    Unfused attention holds the gradients of the probabilities and of the scores at once.
    """
    gate = 2 if ctx.model.gated else 1
    scores = 2 * keys.tokens * ctx.training.sequence_length * ctx.model.heads / keys.tp
    if not ctx.training.flash and shape.mixer is Mixer.ATTENTION:
        return np.maximum(scores, _widest_of_mlp(ctx, keys, shape, gate))
    return _widest_of_mlp(ctx, keys, shape, gate)


def _widest_of_mlp(ctx: ComputeContext, keys: Keys, shape: LayerShape, gate: int) -> FloatArray:
    if shape.mlp is Mlp.DENSE:
        return 2 * gate * keys.tokens * shape.ffn / keys.tp
    if shape.mlp is Mlp.MOE and ctx.model.moe is not None:
        moe = ctx.model.moe
        return routed_rows(ctx, keys) * (moe.ffn * gate / keys.etp + ctx.model.hidden)
    return 2 * keys.tokens * ctx.model.hidden / keys.tp


def _mixer_bytes(
    ctx: ComputeContext, keys: Keys, shape: LayerShape
) -> tuple[dict[str, FloatArray], dict[str, FloatArray]]:
    """Return the mixer's kept bytes by part and what its modules save when recomputed."""
    if shape.mixer is Mixer.NONE:
        return {}, {}
    if shape.mixer is Mixer.MAMBA:
        return _mamba_bytes(ctx, keys), {}
    if shape.mixer.is_linear:
        return _linear_bytes(ctx, keys, shape), {}
    if ctx.model.mla is not None:
        parts, saved = _mla_bytes(ctx, keys)
        return parts | _indexer_bytes(ctx, keys, shape), saved
    model = ctx.model
    heads = model.heads / keys.tp
    query, key, value, out = _attention_widths(ctx, keys, shape)
    parts = {
        "input": _input_copies(ctx, 3) * gemm_input_bytes(ctx) * input_tokens(ctx, keys) * model.hidden,
        "qkv": 2.0 * (query + key + value),
        "out": _output_bytes(ctx) * out,
        **_indexer_bytes(ctx, keys, shape),
    }
    if model.qk_norm:  # queries and keys before their norms
        parts["qk_norm"] = ctx.preset.norm_bytes * (query + key)
    if model.has_sinks(shape) and not ctx.preset.fused_sinks:  # scaled by the sinks after the kernel
        parts["sinks"] = 2.0 * out
    if model.attention_gate:  # the gate before its sigmoid, and the output before the gate
        parts["gate"] = 4.0 * out
    scores = _score_bytes(ctx, keys, heads)
    parts["scores"] = scores
    if ctx.training.dropout:
        # Dropout keeps one byte per element behind the mixer's residual.
        parts["mask"] = keys.local_tokens * model.hidden
    return parts, {"core_attn": scores}


def _output_bytes(ctx: ComputeContext) -> float:
    """Bytes per element of the attention output: kept for its backward, and as the projection's input.

    One 16-bit tensor serves both, except where the projection keeps an 8-bit copy of its own, or both share a format
    in between.
    """
    stored = gemm_input_bytes(ctx)
    return 2.0 if stored == 2.0 else ctx.preset.fp8_attention_output_bytes or 2.0 + stored


def _score_bytes(ctx: ComputeContext, keys: Keys, heads: FloatArray) -> FloatArray:
    """Softmax statistics of flash attention, or the materialised scores (5 bytes with dropout, else 2)."""
    if ctx.training.flash:
        return 4.0 * keys.tokens * heads
    # With dropout: outputs of softmax and of dropout in 16 bits, and dropout's mask in 8.
    per_score = 5.0 if ctx.training.dropout else 2.0
    return per_score * keys.tokens * ctx.training.sequence_length * heads


def _mla_bytes(ctx: ComputeContext, keys: Keys) -> tuple[dict[str, FloatArray], dict[str, FloatArray]]:
    """Multi-head latent attention: latents on sharded tokens, expanded Q, K and V per head."""
    mla, stored = ctx.model.mla, gemm_input_bytes(ctx)
    assert mla is not None
    heads = ctx.model.heads / keys.tp
    query_dim = mla.qk_nope_head_dim + mla.qk_rope_head_dim
    latents = (ctx.preset.norm_bytes + stored) * (
        mla.q_lora_rank + mla.kv_lora_rank
    ) + 2.0 * mla.qk_rope_head_dim
    # Where values are a view of what the up-projection wrote, its key part is kept with them.
    beside = 0 if ctx.preset.copies_values else mla.qk_nope_head_dim
    expanded = 2.0 * keys.tokens * heads * (2 * query_dim + mla.v_head_dim + beside)
    parts = {
        "input": stored * input_tokens(ctx, keys) * ctx.model.hidden,
        "latents": latents * input_tokens(ctx, keys),
        "qkv": expanded,
        "out": _output_bytes(ctx) * keys.tokens * heads * mla.v_head_dim,
        "scores": _score_bytes(ctx, keys, heads),
    }
    return parts, {"core_attn": parts["scores"], "mla_up_proj": 0.9 * expanded}


def _linear_bytes(ctx: ComputeContext, keys: Keys, shape: LayerShape) -> dict[str, FloatArray]:
    """Linear attention: projections' input, streams, gates and triangular matrices, the output projection's input."""
    assert ctx.model.linear is not None
    stored, value = gemm_input_bytes(ctx), linear_widths(ctx.model.linear)[1]
    return {
        "input": stored * keys.local_tokens * ctx.model.hidden,
        "streams": linear_kept_bytes(ctx.model, shape.mixer) * keys.tokens / keys.tp,
        "out": stored * keys.tokens * value / keys.tp,
    }


def _indexer_bytes(ctx: ComputeContext, keys: Keys, shape: LayerShape) -> dict[str, FloatArray]:
    """Chosen keys or blocks as 32-bit positions; of an indexer its queries, key and weights, or what it normed."""
    indexer = ctx.model.indexer
    if not shape.indexes or indexer is None:
        return {}
    queries, blocks = indexer.heads * indexer.head_dim, indexer.block is not None
    own = 2.0 * (queries + 2 * indexer.head_dim + (queries if blocks else indexer.heads))
    # A sequence shorter than top_k has no more keys to choose.
    chosen = 4.0 * min(indexer.top_k, ctx.training.sequence_length) / (indexer.block or 1)
    chosen *= indexer.heads if blocks else 1
    return {"indexer": (own + chosen) * keys.tokens}


def _mamba_bytes(ctx: ComputeContext, keys: Keys) -> dict[str, FloatArray]:
    """Mamba-2: projection input, projected streams before and after the convolution, chunk states, gated output."""
    mamba, stored = ctx.model.mamba, gemm_input_bytes(ctx)
    assert mamba is not None
    inner = mamba.heads * mamba.head_dim / keys.tp
    # Both branches of the gate, and what is shared by the heads of a group: B and C, and one step size per
    # head.
    streams = 2 * inner + (2 * mamba.groups * mamba.state + mamba.heads) / keys.tp
    return {
        "input": stored * keys.local_tokens * ctx.model.hidden,
        "streams": 2.0 * keys.tokens * (2 * streams),
        "out": (2.0 + stored) * keys.tokens * inner,
    }


def routed_rows(ctx: ComputeContext, keys: Keys) -> FloatArray:
    """Token copies (n,) on the fullest expert rank; capacity padding or a stated imbalance replaces the margin."""
    moe = ctx.model.moe
    assert moe is not None
    stated = ctx.training.moe_imbalance
    # Routing without capacity has no bound short of all tokens at one rank: the margin is a plan, no promise.
    margin = moe.capacity_factor or (ctx.constants["moe_memory_imbalance"] if stated is None else stated)
    # Balanced, a rank receives as many rows as it sends; an expert-tensor group gathers those of all its
    # ranks.
    return keys.local_tokens * moe.top_k * margin * keys.etp


def _mlp_bytes(
    ctx: ComputeContext, keys: Keys, shape: LayerShape
) -> tuple[dict[str, FloatArray], dict[str, FloatArray]]:
    """Return the MLP's kept bytes by part and what its modules save when recomputed."""
    if shape.mlp is Mlp.NONE:
        return {}, {}
    if shape.mlp is Mlp.MOE:
        return _moe_bytes(ctx, keys)
    inside = _gated_bytes(ctx) * keys.tokens * shape.ffn / keys.tp
    copies = _input_copies(ctx, 2 if ctx.model.gated else 1)
    kept = copies * gemm_input_bytes(ctx) * input_tokens(ctx, keys) * ctx.model.hidden
    parts = {"input": kept, "mlp": inside}
    if ctx.training.dropout:
        parts["mask"] = keys.local_tokens * ctx.model.hidden
    return parts, {"mlp": inside}


def _gated_bytes(ctx: ComputeContext) -> float:
    """Bytes per element of MLP width: the activation function's inputs and the second matrix's input."""
    return _function_input_bytes(ctx) + _function_output_bytes(ctx)


def _function_input_bytes(ctx: ComputeContext) -> float:
    """Bytes kept of the activation function's inputs per element of MLP width: both halves where it is gated."""
    narrow = ctx.preset.fp8_function_inputs
    inputs = (2.0 if ctx.model.gated else 1.0) * (element_bytes(ctx.rates.precision) if narrow else 2.0)
    # Where the product is a kernel of its own, it keeps the function's output as one of its inputs.
    return inputs if ctx.preset.fused_function or not ctx.model.gated else inputs + 2.0


def _function_output_bytes(ctx: ComputeContext) -> float:
    """Bytes kept of the activation function's output, unless the stack always repeats the function."""
    return gemm_input_bytes(ctx) if ctx.preset.keeps_function_output else 0.0


def _moe_bytes(ctx: ComputeContext, keys: Keys) -> tuple[dict[str, FloatArray], dict[str, FloatArray]]:
    """Routed rows inside the experts, their probabilities, shared experts, and the router's input."""
    model, moe, stored = ctx.model, ctx.model.moe, gemm_input_bytes(ctx)
    assert moe is not None
    rows, width = routed_rows(ctx, keys), moe.ffn / keys.etp
    activated = _function_output_bytes(ctx) * rows * width
    experts = rows * (stored * model.hidden + _function_input_bytes(ctx) * width + 8.0) + activated
    elements = keys.local_tokens * model.hidden
    parts = {
        "input": 2.0 * elements,
        "router": (ctx.preset.router_input_bytes if moe.router_bias else 0.0) * elements,
        "experts": experts,
        "combined": ctx.preset.routed_output_bytes * elements * moe.top_k * keys.etp,
        # The router's scores are 32-bit whatever the layer's format.
        "scores": 4.0 * keys.local_tokens * moe.experts,
    }
    # Recomputed experts dispatch again: what came back of them need not be kept either.
    saved = {"moe_act": activated, "moe": experts + parts["combined"] + parts["scores"]}
    if moe.shared_ffn:
        shared = _gated_bytes(ctx) * keys.tokens * moe.shared_ffn / keys.tp
        parts["shared"] = shared
        saved["shared_experts"] = shared
    return parts, saved
