"""Compute time of one layer, one micro-batch, on one GPU: forward, input gradient and weight gradient by part.

Every function works on arrays of degree combinations (``Keys``) and returns ``Work`` per named part, so that
selective recomputation can repeat a part's forward and a breakdown can name it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.compressed import compressed_attention_work, compressed_projections
from layoutopt.optimizer.cost.context_parallel import attended_keys, ring_steps
from layoutopt.optimizer.cost.flops import attended_tokens, attention_flops, indexer_flops, scan_flops
from layoutopt.optimizer.cost.hardware import HEAD_ALIGNMENT, attention_s, gemm_s, memory_bound_s
from layoutopt.optimizer.cost.mixers import (
    indexer_projections,
    linear_gates,
    linear_inputs,
    linear_widths,
)
from layoutopt.optimizer.cost.work import Work, linear, moved
from layoutopt.optimizer.specs.model import Mixer, Mlp
from layoutopt.optimizer.specs.vocabulary import Dispatcher, Precision

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from layoutopt.optimizer.cost.work import ComputeContext, Keys
    from layoutopt.optimizer.specs.model import LayerShape, ModelSpec

    FloatArray = NDArray[np.float64]


def norm_work(ctx: ComputeContext, keys: Keys) -> Work:
    """Time one normalisation, its residual addition and dropout, on sequence-sharded tokens.

    Bytes per element: norm 4 forward and 8 backward, residual add 6 both ways, dropout 5 both ways. As kernels of their
    own, cast, square, mean, two products and cast back read and write 40 forward, and their gradients 72.
    """
    dropout = 5.0 if ctx.training.dropout else 0.0
    fused = ctx.preset.fused_norm or ctx.preset.compiled or ctx.rates.ideal
    forward, backward = (4.0, 8.0) if fused else (40.0, 72.0)
    elements = keys.local_tokens * ctx.model.hidden
    return moved(ctx, elements * (6 + forward + dropout), elements * (6 + backward + dropout))


def gaps_work(ctx: ComputeContext, like: FloatArray) -> Work:
    """Time between the kernels of a layer, whatever they do; ``like`` gives the shape, (n,)."""
    gaps = 0.0 if ctx.rates.ideal else ctx.constants["kernel_gap_s"] * ctx.constants["layer_kernels"]
    # A backward pass has two multiplications, and so about twice the kernels, for each of the forward's.
    forward = np.full_like(like, gaps)
    return Work(forward, 2.0 * forward, np.zeros_like(forward))


def mixer_work(ctx: ComputeContext, keys: Keys, shape: LayerShape) -> dict[str, Work]:
    """Time the token mixer of a layer by part."""
    if shape.mixer is Mixer.MAMBA:
        return _mamba_work(ctx, keys, shape)
    if shape.mixer.is_linear:
        return _linear_work(ctx, keys, shape)
    if shape.mixer is Mixer.NONE:
        return {}
    parts = {"norm": norm_work(ctx, keys), "core_attn": core_attention_work(ctx, keys, shape)}
    if shape.indexes:
        parts["indexer"] = _indexer_work(ctx, keys, shape)
    if ctx.model.compressed is not None:
        return parts | compressed_projections(ctx, keys, shape)
    parts |= _mla_projections(ctx, keys) if ctx.model.mla is not None else _projections(ctx, keys, shape)
    return parts


def _projections(ctx: ComputeContext, keys: Keys, shape: LayerShape) -> dict[str, Work]:
    """Time query, key, value and output projections, rotary embedding and query-key norm."""
    model = ctx.model
    h, e, v = float(model.hidden), model.head_dim, model.value_dim
    heads, kv_heads = model.heads / keys.tp, np.maximum(model.kv_heads_of(shape) / keys.tp, 1.0)
    width = e * heads + (e + v) * kv_heads + (v * heads if model.attention_gate else 0.0)
    gate = keys.tokens * v * heads * (6.0 if model.attention_gate else 0.0)
    share = ctx.cast_share(keys)
    rotary = keys.tokens * e * (heads + kv_heads) * (8.0 + (4.0 if model.qk_norm else 0.0))
    return {
        "qkv": linear(
            ctx,
            keys.tokens,
            width,
            np.full_like(width, h),
            normed=True,
            input_share=share,
            split=(width - (e + v) * kv_heads, e * kv_heads, v * kv_heads),
        ),
        # Backward reads three tensors of a gate and writes two; forward reads two and writes one.
        "rotary": moved(ctx, rotary + gate, rotary + 10 / 6 * gate),
        "proj": linear(ctx, keys.tokens, np.full_like(width, h), v * heads, output_share=share),
    }


def _mla_projections(ctx: ComputeContext, keys: Keys) -> dict[str, Work]:
    """Time the low-rank projections of multi-head latent attention; down-projections see sharded tokens."""
    model, mla = ctx.model, ctx.model.mla
    assert mla is not None
    one, heads = np.ones_like(keys.tp), model.heads / keys.tp
    query_dim, h = mla.qk_nope_head_dim + mla.qk_rope_head_dim, float(model.hidden)
    down = linear(ctx, keys.local_tokens, one * (mla.kv_lora_rank + mla.qk_rope_head_dim), one * h)
    share = ctx.cast_share(keys)
    width = heads * (mla.qk_nope_head_dim + mla.v_head_dim)
    up = linear(ctx, keys.tokens, width, one * mla.kv_lora_rank, normed=True, input_share=share)
    if mla.q_lora_rank:
        down = down + linear(ctx, keys.local_tokens, one * mla.q_lora_rank, one * h)
        rank = one * mla.q_lora_rank
        up = up + linear(ctx, keys.tokens, heads * query_dim, rank, normed=True, input_share=share)
    else:
        down = down + linear(ctx, keys.tokens, heads * query_dim, one * h, input_share=share)
    # Rotary part, latent norms and the copies that assemble Q, K and V (one read and write of each).
    assembled = keys.tokens * heads * (2 * query_dim + mla.v_head_dim) * 4.0
    latent = keys.local_tokens * (mla.q_lora_rank + mla.kv_lora_rank) * 4.0
    return {
        "qkv": down,
        "mla_up_proj": up + moved(ctx, assembled + latent, assembled + 2 * latent),
        "proj": linear(ctx, keys.tokens, one * h, heads * mla.v_head_dim, output_share=share),
    }


def core_attention_work(
    ctx: ComputeContext, keys: Keys, shape: LayerShape, steps: FloatArray | None = None
) -> Work:
    """Time attention scores and their product with V, fused or with materialised scores.

    ``steps`` (n,) are those of the ring that keys go round; None: as context parallelism has them.
    """
    steps = ring_steps(ctx, keys, shape) if steps is None else steps
    if not ctx.training.flash and not ctx.rates.ideal:
        return _unfused_attention_work(ctx, keys)
    if shape.compression:
        near = _attention_to_all_work(ctx, keys, replace(shape, compression=0), steps)
        return near + compressed_attention_work(ctx, keys, shape)
    every = _attention_to_all_work(ctx, keys, shape, steps)
    return _sparse_attention_work(ctx, keys, every) if shape.sparse else every


def _attention_to_all_work(ctx: ComputeContext, keys: Keys, shape: LayerShape, steps: FloatArray) -> Work:
    """Time fused attention over all keys of the window; a layer that could choose keys has gathered them."""
    model, length = ctx.model, ctx.training.sequence_length
    whole = replace(shape, sparse=False, indexes=False)
    flops = attention_flops(model, whole, length, causal=not ctx.rates.ideal) * keys.tokens / keys.tp
    heads = np.maximum(model.heads / keys.tp, 1.0)
    # A thread block of the fused kernels takes 128 queries of one head.
    tiles = keys.micro_batch * heads * np.ceil(keys.sequence / 128)
    attended = attended_keys(ctx, shape, steps)
    width = _mean_head_dim(model)
    forward = attention_s(ctx.rates, flops, tiles=tiles, length=attended, head_dim=width)
    backward = attention_s(ctx.rates, flops, tiles=tiles, length=attended, head_dim=width, backward=True)
    return Work(forward, backward, np.zeros_like(forward)) + _ring_corrections(
        ctx, keys, steps, heads * width
    )


def _mean_head_dim(model: ModelSpec) -> float:
    """Mean of the widths that scores and their product with V multiply by, per head."""
    mla = model.mla
    return (mla.qk_nope_head_dim + mla.v_head_dim) / 2 if mla else (model.head_dim + model.value_dim) / 2


def _sparse_attention_work(ctx: ComputeContext, keys: Keys, dense: Work) -> Work:
    """Time attention over chosen keys: on latents of all heads, or over all keys under a mask (``dense``) if faster.

    A kernel over chosen keys gathers latents, which all heads share, and multiplies by their width instead of a head's
    (NVIDIA/Megatron-LM experimental_attention_variant dsa); one over chosen blocks of keys multiplies by a head's.
    """
    model, length = ctx.model, float(ctx.training.sequence_length)
    assert model.indexer is not None
    if (model.mla is None and not model.indexer.block) or ctx.rates.ideal:
        return dense
    # Early queries have fewer keys than the indexer may choose.
    chosen = attended_tokens(length, model.indexer.top_k, causal=True, chosen=True)
    heads = np.maximum(model.heads / keys.tp, 1.0)
    latent = model.mla.kv_lora_rank + model.mla.qk_rope_head_dim / 2 if model.mla else _mean_head_dim(model)
    flops = 2 * chosen * 2 * latent * heads * keys.tokens
    tiles = keys.micro_batch * heads * np.ceil(keys.sequence / 128)
    seen = np.full_like(keys.tp, min(length, model.indexer.top_k))
    forward, backward = (
        attention_s(ctx.rates, flops, tiles=tiles, length=seen, head_dim=latent, backward=way)
        for way in (False, True)
    )
    # One kernel serves both passes of a layer.
    faster = forward + backward < dense.forward_s + dense.dgrad_s
    return Work(
        np.where(faster, forward, dense.forward_s), np.where(faster, backward, dense.dgrad_s), dense.wgrad_s
    )


def _indexer_work(ctx: ComputeContext, keys: Keys, shape: LayerShape) -> Work:
    """Time an indexer: projections, scores over all keys, and passes over them that keep the largest; whole on every rank.

    Scores, one for all heads or one per head and block of keys, are written and read once, in 4 bytes.
    """
    model, length = ctx.model, ctx.training.sequence_length / (shape.compression or 1)
    assert model.indexer is not None
    one, tokens = np.ones_like(keys.tp), keys.tokens
    work = moved(ctx, 0.0 * one, 0.0 * one)
    for projection in indexer_projections(model):
        work = work + linear(ctx, tokens, one * projection.rows, one * projection.columns)
    flops = indexer_flops(model, length, causal=not ctx.rates.ideal) * tokens
    tiles = keys.micro_batch * model.indexer.heads * np.ceil(keys.sequence / 128)
    width = float(model.indexer.head_dim)
    forward, backward = (
        attention_s(ctx.rates, flops, tiles=tiles, length=one * length, head_dim=width, backward=way)
        for way in (False, True)
    )
    # By blocks every head keeps scores of its own, one for each block.
    kept = model.indexer.heads / model.indexer.block if model.indexer.block else 1.0
    # Half: keys behind a query are masked.
    scores = 8.0 * tokens * length / 2 * kept
    return work + Work(forward, backward, 0.0 * one) + moved(ctx, scores, scores)


def _linear_work(ctx: ComputeContext, keys: Keys, shape: LayerShape) -> dict[str, Work]:
    """Time a linear-attention mixer: projections, convolution and activation, chunked kernels, output norm and gate."""
    model, mixer, constants = ctx.model, shape.mixer, ctx.constants
    assert model.linear is not None
    one, h = np.ones_like(keys.tp), float(model.hidden)
    key, value = linear_widths(model.linear)
    inputs = sum(projection.rows for projection in linear_inputs(model, mixer))
    qkv = linear(ctx, keys.tokens, inputs / keys.tp, one * h)
    for gate in linear_gates(model, mixer):
        qkv = qkv + linear(ctx, keys.tokens, gate.rows / keys.tp, one * gate.columns)
    # A short convolution reads and writes them once more.
    streams = keys.tokens * (2 * key + value) / keys.tp * (4.0 if model.linear.conv else 2.0)
    output = keys.tokens * value / keys.tp
    flops_s = scan_flops(model, shape) * keys.tokens / keys.tp / ctx.rates.attention_flops_per_s
    kernel_s = flops_s if ctx.rates.ideal else flops_s * constants.of("linear_attention_cost", mixer.value)
    back = 2.0 if ctx.rates.ideal else constants["linear_attention_backward"]
    around = moved(ctx, streams + 6.0 * output, 2 * streams + 10.0 * output)
    return {
        "norm": norm_work(ctx, keys),
        "qkv": qkv,
        "core_attn": around + Work(kernel_s, back * kernel_s, 0.0 * one),
        "proj": linear(ctx, keys.tokens, one * h, value / keys.tp),
    }


def _ring_corrections(ctx: ComputeContext, keys: Keys, steps: FloatArray, width: FloatArray) -> Work:
    """Time what each further step of ring attention adds: rescaling and adding partial outputs and gradients.

    Forward: the 16-bit partial output is added to the fp32 output (read 6 bytes, write 4); backward: the partial
    query, key and value gradients (three times 6 read and 4 written). Transformer Engine context_parallel.py.
    """
    elements = (steps - 1) * keys.tokens * width
    return moved(ctx, 10.0 * elements, 30.0 * elements)


def _unfused_attention_work(ctx: ComputeContext, keys: Keys) -> Work:
    """Time batched score multiplications and the softmax kernels that pass over them.

    Forward passes per 16-bit score: write, softmax read and write, read for PV (8 bytes), dropout 5 more;
    backward about twice as many (softmax backward reads two tensors and writes one). A mask that is no part of the
    softmax kernel reads and writes them once more each way.
    """
    model, length = ctx.model, float(ctx.training.sequence_length)
    heads = keys.micro_batch * model.heads / keys.tp
    scores = heads * keys.sequence * length
    inner, value = np.full_like(scores, model.head_dim), np.full_like(scores, model.value_dim)
    # A rank has the rows of its part of the sequence, against the whole of it.
    rows, full = np.broadcast_arrays(keys.sequence, np.full_like(scores, length))
    one = _head_gemm_s(ctx, rows, full, inner) + _head_gemm_s(ctx, rows, value, full)
    more = (5.0 if ctx.training.dropout else 0.0) + (0.0 if ctx.preset.fused_softmax else 4.0)
    forward = heads * one + memory_bound_s(ctx.rates, scores * (8.0 + more))
    backward = 2 * heads * one + memory_bound_s(ctx.rates, scores * (14.0 + more))
    return Work(forward, backward, np.zeros_like(forward))


def _head_gemm_s(ctx: ComputeContext, rows: FloatArray, columns: FloatArray, inner: FloatArray) -> FloatArray:
    """Time one head's multiplication in the batched kernels of unfused attention."""
    return gemm_s(
        ctx.rates, rows, columns, inner, wide=True, alignment=HEAD_ALIGNMENT, misaligned="heads_misaligned"
    )


def _mamba_work(ctx: ComputeContext, keys: Keys, shape: LayerShape) -> dict[str, Work]:
    """Time a Mamba-2 mixer: projections, convolution, chunked scan."""
    model, mamba = ctx.model, ctx.model.mamba
    assert mamba is not None
    inner = mamba.heads * mamba.head_dim / keys.tp
    width = 2 * inner + (2 * mamba.groups * mamba.state + mamba.heads) / keys.tp
    h = np.full_like(inner, float(model.hidden))
    scan_flops_s = scan_flops(model, shape) * keys.tokens / keys.tp / ctx.rates.attention_flops_per_s
    passes = keys.tokens * inner * 2.0
    scan = moved(ctx, passes * 6, passes * 12) + Work(
        scan_flops_s, 2.5 * scan_flops_s, np.zeros_like(scan_flops_s)
    )
    return {
        "norm": norm_work(ctx, keys),
        "qkv": linear(ctx, keys.tokens, width, h),
        "core_attn": scan,
        "proj": linear(ctx, keys.tokens, h, inner),
    }


def activation_function_work(ctx: ComputeContext, elements: FloatArray) -> Work:
    """Time the activation function over ``elements`` (n,), tokens times width; gated reads two inputs.

    Where its output isn't kept, the backward kernel writes it again beside its gradients.
    """
    forward, backward = (6.0, 10.0) if ctx.model.gated else (4.0, 6.0)
    if (
        ctx.model.gated and not ctx.preset.fused_function
    ):  # the function and the product are kernels of their own
        forward, backward = forward + 4.0, backward + 6.0
    backward += 0.0 if ctx.preset.keeps_function_output else 2.0
    return moved(ctx, elements * forward, elements * backward)


def dense_mlp_work(ctx: ComputeContext, keys: Keys, ffn: float, *, normed: bool = True) -> Work:
    """Time a dense MLP of width ``ffn``, sharded over tp; a shared expert's input is ``normed`` in front of the router."""
    width, h = ffn / keys.tp, np.full_like(keys.tp, float(ctx.model.hidden))
    share, wide = ctx.cast_share(keys), width * (2 if ctx.model.gated else 1)
    # Both halves of a gated MLP are one multiplication where a trainer joins them.
    halves = (width, width) if ctx.model.gated else ()
    up = linear(ctx, keys.tokens, wide, h, normed=normed, input_share=share, split=halves)
    down = linear(ctx, keys.tokens, h, width, output_share=share)
    return up + activation_function_work(ctx, keys.tokens * width) + down


def last_matrix_s(ctx: ComputeContext, keys: Keys, shape: LayerShape) -> FloatArray:
    """Forward seconds (n,) of the matrix multiplication that ends a layer; 0 where others follow what it gives."""
    if shape.mlp is not Mlp.DENSE:
        return np.zeros_like(keys.tp)
    return linear(
        ctx, keys.tokens, np.full_like(keys.tp, float(ctx.model.hidden)), shape.ffn / keys.tp
    ).forward_s


def mlp_work(ctx: ComputeContext, keys: Keys, shape: LayerShape) -> dict[str, Work]:
    """Time the MLP of a layer by part."""
    if shape.mlp is Mlp.NONE:
        return {}
    if shape.mlp is Mlp.DENSE:
        return {"norm": norm_work(ctx, keys), "mlp": dense_mlp_work(ctx, keys, shape.ffn)}
    return {"norm": norm_work(ctx, keys)} | _moe_work(ctx, keys)


def imbalance(ctx: ComputeContext) -> float:
    """Tokens on the fullest expert rank over the mean."""
    stated = ctx.training.moe_imbalance
    return ctx.constants["moe_imbalance"] if stated is None else stated


def routed_share(ctx: ComputeContext) -> float:
    """Rows that the fullest expert rank computes over the mean: its imbalance, or what a capacity pads experts to."""
    assert ctx.model.moe is not None
    return ctx.model.moe.capacity_factor or imbalance(ctx)


def _moe_work(ctx: ComputeContext, keys: Keys) -> dict[str, Work]:
    """Time router, permutation, grouped expert multiplications and shared experts."""
    model, moe = ctx.model, ctx.model.moe
    assert moe is not None
    h = np.full_like(keys.tp, float(model.hidden))
    # The step waits for the fullest rank's experts.
    rows = keys.local_tokens * moe.top_k * routed_share(ctx) * keys.etp
    scores = keys.local_tokens * moe.experts * 4.0 * ctx.constants["router_passes"]
    # With several local experts the rows that arrive from many ranks have to be sorted by expert.
    sorted_again = (moe.experts > keys.ep) & (keys.ep > 1)
    sorts = ctx.switches.per_dispatcher(
        lambda dispatcher: np.where(
            sorted_again & (dispatcher is Dispatcher.ALLTOALL), 2.0, _SORTED[dispatcher]
        )
    )
    permuted = 2 * rows * model.hidden * sorts * ctx.constants["permute_passes"] * ctx.expert_traffic
    # Positions that are spelled out for every element are written and read, and read again for the gradients.
    spelled = (not ctx.rates.ideal) * ctx.preset.routed_index_bytes * rows * model.hidden
    small = np.full_like(h, _small_kernels_s(ctx))
    parts = {
        "router": linear(ctx, keys.local_tokens, np.full_like(h, moe.experts), h, wide=True)
        + moved(ctx, scores, scores)
        + Work(small, 2.0 * small, np.zeros_like(small)),
        "permute": moved(ctx, permuted + 2 * spelled, permuted + spelled),
        "experts": _grouped(ctx, keys, rows),
        "moe_act": activation_function_work(ctx, rows * moe.ffn / keys.etp * ctx.expert_traffic),
    }
    if moe.shared_ffn:
        parts["shared_experts"] = dense_mlp_work(ctx, keys, moe.shared_ffn, normed=False)
    return parts


_SORTED = {
    Dispatcher.ALLTOALL: 1.0,
    Dispatcher.ALLGATHER: 1.0,
    Dispatcher.DEEPEP: 1.0,
    Dispatcher.HYBRIDEP: 0.5,
}
"""Permutations of the routed tokens beside the exchange: HybridEP's kernels write them in the order of experts (dispatch)
and sum them up as they come (combine), so that one way of each pair is left (NVIDIA/Megatron-LM fused_a2a.py)."""


def _small_kernels_s(ctx: ComputeContext) -> float:
    """Seconds of an expert layer's small kernels; with a fixed capacity there are fewer, as on the host."""
    if ctx.rates.ideal or ctx.model.moe is None:
        return 0.0
    padded = ctx.model.moe.capacity_factor is not None
    return ctx.constants["router_small_s"] * (ctx.constants["host_moe_padded"] if padded else 1.0)


ROW_ALIGNMENT = {Precision.FP8: 16, Precision.MXFP8: 32, Precision.NVFP4: 32}
"""Rows to a multiple of which each expert's tokens are padded (NVIDIA/Megatron-LM moe_utils, Transformer Engine)."""


def _row_padding(ctx: ComputeContext) -> float:
    """Rows added per expert on average: half of the alignment of 8- and 4-bit multiplications."""
    return 0.0 if ctx.rates.ideal else ROW_ALIGNMENT.get(ctx.rates.precision, 0) / 2


def _grouped(ctx: ComputeContext, keys: Keys, rows: FloatArray) -> Work:
    """Time the grouped multiplications of the local experts; few tokens per expert run slowly."""
    model, moe = ctx.model, ctx.model.moe
    assert moe is not None
    local = moe.experts / keys.ep
    # Padding counts for each expert: with many small ones it is no trifle.
    per_expert = rows / local + _row_padding(ctx)
    width, h = moe.ffn / keys.etp, np.full_like(keys.tp, float(model.hidden))
    cast_share = ctx.expert_traffic
    up = linear(ctx, per_expert, width * (2 if model.gated else 1), h, groups=local, cast_share=cast_share)
    down = linear(ctx, per_expert, h, width, groups=local, cast_share=cast_share)
    # As of single multiplications, what surrounds the main loop takes as long in any format.
    faster = ctx.rates.linear_flops_per_s / ctx.rates.wide_flops_per_s
    half = 0.0 if ctx.rates.ideal else ctx.constants["grouped_gemm_half"] * faster
    slow = (per_expert + half) / per_expert
    both = up + down
    return Work(both.forward_s * slow, both.dgrad_s * slow, both.wgrad_s * slow)
