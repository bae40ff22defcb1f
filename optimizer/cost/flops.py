"""Model FLOPs in both conventions, without hardware recomputation (one multiply-add is 2 FLOPs).

``causal`` counts the lower triangle of the attention scores (NVIDIA/Megatron-LM num_floating_point_operations),
``full`` the whole square (PaLM appendix B, Llama 3). Backward counts twice the forward.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutopt.optimizer.cost.mixers import (
    compressed_inputs,
    compressed_outputs,
    compressed_queries,
    indexer_projections,
    linear_gates,
    linear_inputs,
    linear_output,
    recurrence_flops,
)
from layoutopt.optimizer.cost.parameters import attention_parameters, mlp_matrices
from layoutopt.optimizer.specs.model import Mixer, Mlp

if TYPE_CHECKING:
    from layoutopt.optimizer.specs.model import LayerShape, ModelSpec


def attended_tokens(
    sequence_length: float,
    window: int | None,
    *,
    causal: bool,
    chunked: bool = False,
    chosen: bool = False,
) -> float:
    """Mean number of keys per query that a kernel computes: half the square when causal, a band with a window.

    ``chunked``: the square, or its half, of every chunk of ``window`` tokens. ``chosen``: ``window`` keys from anywhere.
    """
    if chunked and window is not None and window < sequence_length:
        return window / 2 if causal else float(window)
    if window is None or window >= sequence_length:
        return sequence_length / 2 if causal else float(sequence_length)
    if causal:
        # The first ``window`` queries have fewer keys: window * s - window^2 / 2 pairs of s queries.
        return window * (1 - window / (2 * sequence_length))
    # Seen from both sides, a window reaches as far ahead as back.
    return float(window if chosen else min(2 * window, sequence_length))


def score_width(model: ModelSpec) -> float:
    """Sum of the QK and PV widths over heads: a*(e+v), or a*(nope+rope+v) with MLA."""
    if model.mla is not None:
        mla = model.mla
        return model.heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim + mla.v_head_dim)
    return model.heads * (model.head_dim + model.value_dim)


def mixer_linear_flops(model: ModelSpec, shape: LayerShape) -> float:
    """Forward FLOPs per token in the mixer's matrix multiplications."""
    if shape.mixer is Mixer.MAMBA and model.mamba is not None:
        inner = model.mamba.heads * model.mamba.head_dim
        width = 2 * inner + 2 * model.mamba.groups * model.mamba.state + model.mamba.heads
        return 2 * model.hidden * (width + inner)
    if shape.mixer.is_linear:
        weights = (
            *linear_inputs(model, shape.mixer), *linear_gates(model, shape.mixer), linear_output(model),
        )  # fmt: skip
        return 2.0 * sum(one.rows * one.columns for one in weights)
    if shape.mixer is not Mixer.ATTENTION:
        return 0.0
    choosing = 2.0 * sum(one.rows * one.columns for one in indexer_projections(model)) if shape.indexes else 0
    if model.compressed is not None:
        weights = *compressed_inputs(model, shape), compressed_queries(model), *compressed_outputs(model)
        return choosing + 2.0 * sum(one.rows * one.columns for one in weights)
    if model.mla is None:
        both = model.head_dim + model.value_dim
        gate = model.heads * model.value_dim if model.attention_gate else 0
        return choosing + 2 * model.hidden * (both * (model.heads + model.kv_heads_of(shape)) + gate)
    counts, mla = attention_parameters(model), model.mla
    # The norms of both latents are among the counts, but multiply nothing.
    return choosing + 2 * (counts.sharded + counts.replicated - mla.q_lora_rank - mla.kv_lora_rank)


def scan_flops(model: ModelSpec, shape: LayerShape) -> float:
    """Forward FLOPs per token of a state, updated and read: Mamba-2 (Dao and Gu 2024, section 6), linear attention."""
    if shape.mixer.is_linear:
        return recurrence_flops(model, shape.mixer)
    if shape.mixer is not Mixer.MAMBA or model.mamba is None:
        return 0.0
    return 6.0 * model.mamba.heads * model.mamba.head_dim * model.mamba.state


def mlp_flops(model: ModelSpec, shape: LayerShape) -> float:
    """Forward FLOPs per token in the MLP, experts counted as multiplied (top-k and shared)."""
    if shape.mlp is Mlp.DENSE:
        return 2 * mlp_matrices(model) * model.hidden * shape.ffn
    if shape.mlp is not Mlp.MOE or model.moe is None:
        return 0.0
    moe = model.moe
    width = moe.top_k * moe.ffn + moe.shared_ffn
    return 2 * (mlp_matrices(model) * model.hidden * width + model.hidden * moe.experts)


def attention_flops(model: ModelSpec, shape: LayerShape, sequence_length: float, *, causal: bool) -> float:
    """Forward FLOPs per token in attention scores and their product with V, the scores that choose keys among them."""
    if shape.mixer is not Mixer.ATTENTION:
        return 0.0
    if shape.compression:
        return _compressed_flops(model, shape, sequence_length, causal=causal)
    if shape.sparse:
        assert model.indexer is not None
        keys = attended_tokens(sequence_length, model.indexer.top_k, causal=causal, chosen=True)
        choosing = indexer_flops(model, sequence_length, causal=causal) if shape.indexes else 0.0
        return 2 * keys * score_width(model) + choosing
    keys = attended_tokens(
        sequence_length,
        shape.window,
        causal=causal and not shape.bidirectional,
        chunked=shape.chunked,
    )
    return 2 * keys * score_width(model)


def compressed_keys(model: ModelSpec, shape: LayerShape, sequence_length: float, *, causal: bool) -> float:
    """Mean number of compressed keys per query, all of them or those that the indexer chose."""
    top_k = model.indexer.top_k if shape.sparse and model.indexer is not None else None
    return attended_tokens(sequence_length / shape.compression, top_k, causal=causal, chosen=True)


def _compressed_flops(model: ModelSpec, shape: LayerShape, sequence_length: float, *, causal: bool) -> float:
    """Count attention to the window and to compressed keys, with the scores that choose among them."""
    keys = attended_tokens(sequence_length, shape.window, causal=causal)
    keys += compressed_keys(model, shape, sequence_length, causal=causal)
    pooled = sequence_length / shape.compression
    choosing = indexer_flops(model, pooled, causal=causal) if shape.indexes else 0.0
    return 2 * keys * score_width(model) + choosing


def indexer_flops(model: ModelSpec, sequence_length: float, *, causal: bool) -> float:
    """Forward FLOPs per token of an indexer's scores, which are over all keys."""
    assert model.indexer is not None
    keys = attended_tokens(sequence_length, None, causal=causal)
    return 2 * keys * model.indexer.heads * model.indexer.head_dim


def layer_flops(model: ModelSpec, shape: LayerShape, sequence_length: float, *, causal: bool) -> float:
    """Forward FLOPs per token of one layer."""
    linear = mixer_linear_flops(model, shape) + mlp_flops(model, shape) + scan_flops(model, shape)
    return linear + attention_flops(model, shape, sequence_length, causal=causal)


def model_flops_per_token(model: ModelSpec, sequence_length: float, *, causal: bool) -> float:
    """Forward and backward FLOPs per token of the whole model, logits and MTP included, input embedding not."""
    forward = sum(
        run.count * sum(layer_flops(model, shape, sequence_length, causal=causal) for shape in run.block)
        for run in model.runs
    )
    head = 2 * model.hidden * model.vocab
    if model.mtp_layers:
        last = layer_flops(model, model.last_shape, sequence_length, causal=causal)
        # 2h inputs to h outputs are 4 h^2 FLOPs, and each depth has logits of its own.
        forward += model.mtp_layers * (last + 4 * model.hidden**2 + head)
    return 3 * (forward + head)
