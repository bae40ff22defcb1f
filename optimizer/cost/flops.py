"""Model FLOPs in both conventions, without hardware recomputation (one multiply-add is 2 FLOPs).

``causal`` counts the lower triangle of the attention scores (NVIDIA/Megatron-LM num_floating_point_operations),
``full`` the whole square (PaLM appendix B, Llama 3). Backward counts twice the forward.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutopt.optimizer.cost.parameters import attention_parameters, mlp_matrices
from layoutopt.optimizer.specs.model import Mixer, Mlp

if TYPE_CHECKING:
    from layoutopt.optimizer.specs.model import LayerShape, ModelSpec


def attended_tokens(
    sequence_length: float, window: int | None, *, causal: bool, chunked: bool = False
) -> float:
    """Mean number of keys per query that a kernel computes: half the square when causal, a band with a window.

    ``chunked``: the square, or its half, of every chunk of ``window`` tokens.
    """
    if chunked and window is not None and window < sequence_length:
        return window / 2 if causal else float(window)
    if window is None or window >= sequence_length:
        return sequence_length / 2 if causal else float(sequence_length)
    return (
        window * (1 - window / (2 * sequence_length)) if causal else float(min(2 * window, sequence_length))
    )


def score_width(model: ModelSpec) -> float:
    """Sum of the QK and PV widths over heads: 2*a*e, or a*(nope+rope+v) with MLA."""
    if model.mla is not None:
        mla = model.mla
        return model.heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim + mla.v_head_dim)
    return 2 * model.heads * model.head_dim


def mixer_linear_flops(model: ModelSpec, shape: LayerShape) -> float:
    """Forward FLOPs per token in the mixer's matrix multiplications."""
    if shape.mixer is Mixer.MAMBA and model.mamba is not None:
        inner = model.mamba.heads * model.mamba.head_dim
        width = 2 * inner + 2 * model.mamba.groups * model.mamba.state + model.mamba.heads
        return 2 * model.hidden * (width + inner)
    if shape.mixer is not Mixer.ATTENTION:
        return 0.0
    if model.mla is None:
        return 2 * model.hidden * model.head_dim * (2 * model.heads + 2 * model.kv_heads)
    counts, mla = attention_parameters(model), model.mla
    return 2 * (counts.sharded + counts.replicated - mla.q_lora_rank - mla.kv_lora_rank)


def scan_flops(model: ModelSpec, shape: LayerShape) -> float:
    """Forward FLOPs per token of the Mamba-2 state update and read-out (Dao and Gu 2024, section 6)."""
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
    """Forward FLOPs per token in attention scores and their product with V."""
    if shape.mixer is not Mixer.ATTENTION:
        return 0.0
    keys = attended_tokens(
        sequence_length,
        shape.window,
        causal=causal and not shape.bidirectional,
        chunked=shape.chunked,
    )
    return 2 * keys * score_width(model)


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
        last = layer_flops(model, model.runs[-1].block[-1], sequence_length, causal=causal)
        forward += model.mtp_layers * (last + 4 * model.hidden**2 + head)
    return 3 * (forward + head)
