"""Parameter counts: per layer, per block, per end, and of the whole model.

Counts are split by how ranks share them: ``sharded`` weights divide by tp, ``replicated`` ones are whole on
every tensor-parallel rank, ``expert`` weights divide by etp*ep. Sources: NVIDIA/Megatron-LM
megatron/training/theoretical_memory_usage.py and megatron/core/transformer modules.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

from layoutopt.optimizer.cost.mixers import (
    compressed_inputs,
    compressed_outputs,
    compressed_queries,
    compressed_vectors,
    indexer_projections,
    indexer_vectors,
    linear_gates,
    linear_inputs,
    linear_output,
    linear_vectors,
    stream_weights,
)
from layoutopt.optimizer.specs.model import LayerShape, Mixer, Mlp, Norm
from layoutopt.optimizer.specs.vocabulary import FrozenPart

if TYPE_CHECKING:
    from layoutopt.optimizer.specs.model import ModelSpec, Run

VOCAB_MULTIPLE = 128
"""Megatron-LM ``--make-vocab-size-divisible-by``; the padded vocabulary is a multiple of this times tp."""

EVERY_KEY = LayerShape()
"""A layer whose queries attend to every key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """Numbers of parameters by how they are shared.

    ``key_value`` is the part of ``sharded`` that belongs to KV heads, ``expert_whole`` that of ``expert`` which every
    expert-tensor rank holds: biases that are added to its sums.
    """

    sharded: float = 0.0
    replicated: float = 0.0
    expert: float = 0.0
    key_value: float = 0.0
    expert_whole: float = 0.0

    def __add__(self, other: Parameters) -> Parameters:
        return Parameters(
            sharded=self.sharded + other.sharded,
            replicated=self.replicated + other.replicated,
            expert=self.expert + other.expert,
            key_value=self.key_value + other.key_value,
            expert_whole=self.expert_whole + other.expert_whole,
        )

    def __sub__(self, other: Parameters) -> Parameters:
        return Parameters(
            sharded=self.sharded - other.sharded,
            replicated=self.replicated - other.replicated,
            expert=self.expert - other.expert,
            key_value=self.key_value - other.key_value,
            expert_whole=self.expert_whole - other.expert_whole,
        )

    @property
    def total(self) -> float:
        """All parameters."""
        return self.sharded + self.replicated + self.expert


def norm_width(model: ModelSpec) -> int:
    """Weights per normalised feature: 1 for RMSNorm, 2 for LayerNorm."""
    return 2 if model.norm is Norm.LAYER else 1


def mlp_matrices(model: ModelSpec) -> int:
    """Matrices of one MLP: 3 gated, 2 plain."""
    return 3 if model.gated else 2


def attention_parameters(model: ModelSpec, shape: LayerShape = EVERY_KEY) -> Parameters:
    """Count one attention block (MHA, GQA or MLA) of a layer without its norm."""
    if model.mla is not None:
        return _mla_parameters(model)
    if model.compressed is not None:
        return _compressed_parameters(model, shape)
    h, a, k = model.hidden, model.heads, model.kv_heads_of(shape)
    e, v = model.head_dim, model.value_dim
    bias = model.attention_bias or model.qkv_bias
    key_value = k * (e + v) * (h + bias)
    queries = a * (e + (v if model.attention_gate else 0))
    sharded = queries * (h + bias) + key_value + a * v * h
    # A row-parallel matrix adds its bias behind the sum over ranks, all of which hold it.
    replicated = float(h if model.attention_bias else 0)
    # Normed over all heads at once, the weights are split as the heads are.
    if model.qk_norm and model.qk_norm_all:
        sharded += (a + k) * e
        key_value += k * e
    elif model.qk_norm:
        replicated += 2 * e
    sharded += a if model.has_sinks(shape) else 0
    return Parameters(sharded=sharded, replicated=replicated, key_value=key_value)


def _mla_parameters(model: ModelSpec) -> Parameters:
    """Count multi-head latent attention; the down-projections are whole on every rank."""
    mla = model.mla
    assert mla is not None
    h, a = model.hidden, model.heads
    query_dim = mla.qk_nope_head_dim + mla.qk_rope_head_dim
    rank = mla.q_lora_rank
    down = (rank * h + rank if rank else 0) + (mla.kv_lora_rank + mla.qk_rope_head_dim) * h + mla.kv_lora_rank
    query_up = a * query_dim * (rank or h)
    key_value_up = mla.kv_lora_rank * a * (mla.qk_nope_head_dim + mla.v_head_dim)
    return Parameters(sharded=query_up + key_value_up + a * mla.v_head_dim * h, replicated=down)


def _compressed_parameters(model: ModelSpec, shape: LayerShape) -> Parameters:
    """Count attention to one shared key and compressed ones; what all heads share is whole on every rank."""
    shared = sum(one.rows * one.columns for one in compressed_inputs(model, shape))
    own = sum(one.rows * one.columns for one in (compressed_queries(model), *compressed_outputs(model)))
    sinks = model.heads if model.has_sinks(shape) else 0
    return Parameters(sharded=own + sinks, replicated=shared + compressed_vectors(model, shape))


def linear_parameters(model: ModelSpec, mixer: Mixer) -> Parameters:
    """Count one linear-attention mixer: projections, gates, convolution, decays, output norm."""
    weights = (*linear_inputs(model, mixer), *linear_gates(model, mixer), linear_output(model))
    return Parameters(sharded=sum(one.rows * one.columns for one in weights) + linear_vectors(model, mixer))


def indexer_parameters(model: ModelSpec, shape: LayerShape) -> Parameters:
    """Count one indexer, which every tensor-parallel rank has whole."""
    weights = sum(one.rows * one.columns for one in indexer_projections(model))
    return Parameters(replicated=weights + indexer_vectors(model, shape))


def mamba_parameters(model: ModelSpec) -> Parameters:
    """Count one Mamba-2 mixer: input projection, convolution, A, D, dt bias, gated norm, output projection."""
    mamba = model.mamba
    assert mamba is not None
    inner = mamba.heads * mamba.head_dim
    groups = 2 * mamba.groups * mamba.state
    projections = model.hidden * (2 * inner + groups + mamba.heads) + inner * model.hidden
    small = (inner + groups) * (mamba.conv + 1) + 3 * mamba.heads + inner
    return Parameters(sharded=projections + small)


def dense_mlp_parameters(model: ModelSpec, ffn: int) -> Parameters:
    """Count one dense MLP of width ``ffn``."""
    up = (2 if model.gated else 1) * ffn
    bias = model.mlp_bias
    return Parameters(
        sharded=model.hidden * (up + ffn) + (up if bias else 0),
        replicated=(model.hidden if bias else 0) + model.activation_scalars,
    )


def expert_parameters(model: ModelSpec) -> float:
    """Count one routed expert."""
    assert model.moe is not None
    bias = model.hidden + (2 if model.gated else 1) * model.moe.ffn if model.moe.expert_bias else 0
    return mlp_matrices(model) * model.hidden * model.moe.ffn + bias


def _moe_parts(model: ModelSpec) -> dict[FrozenPart, Parameters]:
    """Count shared experts, routed experts and router of one layer."""
    moe = model.moe
    assert moe is not None
    router = model.hidden * moe.experts + (moe.experts if moe.router_bias else 0)
    gate = model.hidden if moe.shared_gate else 0
    return {
        FrozenPart.MLP: Parameters(sharded=mlp_matrices(model) * model.hidden * moe.shared_ffn),
        FrozenPart.EXPERTS: Parameters(
            expert=moe.experts * expert_parameters(model),
            expert_whole=moe.experts * model.hidden if moe.expert_bias else 0,
        ),
        FrozenPart.ROUTER: Parameters(replicated=router + gate),
    }


def _mixer_parameters(model: ModelSpec, shape: LayerShape) -> Parameters:
    """Count a layer's mixer of any kind, with its indexer."""
    total = indexer_parameters(model, shape) if shape.indexes else Parameters()
    if shape.mixer is Mixer.ATTENTION:
        return total + attention_parameters(model, shape)
    if shape.mixer is Mixer.MAMBA:
        return total + mamba_parameters(model)
    return total + linear_parameters(model, shape.mixer) if shape.mixer.is_linear else total


def layer_parts(model: ModelSpec, shape: LayerShape) -> dict[FrozenPart, Parameters]:
    """Count the parts of one layer that a run may freeze: all but its norms."""
    parts = {FrozenPart.ATTENTION: _mixer_parameters(model, shape)}
    if shape.mlp is Mlp.DENSE:
        return parts | {FrozenPart.MLP: dense_mlp_parameters(model, shape.ffn)}
    return parts | _moe_parts(model) if shape.mlp is Mlp.MOE else parts


def layer_parameters(model: ModelSpec, shape: LayerShape) -> Parameters:
    """Count one layer with its norms, and with what mixes residual streams around its mixer and its MLP."""
    mixed = stream_weights(model)[0] * ((shape.mixer is not Mixer.NONE) + (shape.mlp is not Mlp.NONE))
    norms = Parameters(replicated=norm_width(model) * model.hidden * norms_of(model, shape) + mixed)
    return sum(layer_parts(model, shape).values(), norms)


def norms_of(model: ModelSpec, shape: LayerShape) -> int:
    """Norm vectors of a layer: half of them belong to its mixer and half to its MLP, one that both share counts once."""
    parts = (shape.mixer is not Mixer.NONE) + (shape.mlp is not Mlp.NONE)
    return min(parts, 1) if model.layer_norms == 1 else parts * model.layer_norms // 2


def block_parameters(model: ModelSpec, run: Run) -> Parameters:
    """Count one block of a run."""
    return sum((layer_parameters(model, shape) for shape in run.block), Parameters())


def mtp_parameters(model: ModelSpec) -> Parameters:
    """Count one multi-token-prediction layer: the last layer's kind, a 2h x h projection and three norms."""
    extra = Parameters(sharded=2 * model.hidden**2, replicated=3 * norm_width(model) * model.hidden)
    return layer_parameters(model, model.last_shape) + extra


def padded_vocab(vocab: int, tp: int, pad: bool) -> int:
    """Round the vocabulary up to a multiple of 128*tp (NVIDIA/Megatron-LM vocab_utils.py) when ``pad``."""
    multiple = VOCAB_MULTIPLE * tp
    return ceil(vocab / multiple) * multiple if pad else vocab


def embedding_parameters(model: ModelSpec, vocab: int) -> Parameters:
    """Count the input embedding (with learned positions) over ``vocab`` rows."""
    norm = norm_width(model) * model.hidden if model.embedding_norm else 0
    return Parameters(sharded=vocab * model.hidden, replicated=model.learned_positions * model.hidden + norm)


def head_parameters(model: ModelSpec, vocab: int) -> Parameters:
    """Count the final norm and the output matrix (0 weights when tied: it is the embedding)."""
    return Parameters(
        sharded=(0 if model.tied_embeddings else vocab * model.hidden) + (vocab if model.head_bias else 0),
        replicated=norm_width(model) * model.hidden + stream_weights(model)[1],
    )


def model_parameters(model: ModelSpec, *, vocab: int | None = None, with_mtp: bool = False) -> float:
    """Count the whole model; ``vocab`` overrides the vocabulary (e.g. a padded one)."""
    rows = model.vocab if vocab is None else vocab
    total = embedding_parameters(model, rows) + head_parameters(model, rows)
    for run in model.runs:
        block = block_parameters(model, run)
        total += Parameters(
            sharded=block.sharded * run.count,
            replicated=block.replicated * run.count,
            expert=block.expert * run.count,
        )
    mtp = model.mtp_layers * mtp_parameters(model).total if with_mtp else 0.0
    return total.total + mtp


def active_parameters(model: ModelSpec, *, with_input_embedding: bool = False) -> float:
    """Count the parameters that one token is multiplied with (top-k experts, shared experts, router, head)."""
    total = float(model_parameters(model))
    if not with_input_embedding and not model.tied_embeddings:
        total -= model.vocab * model.hidden
    if model.moe is None:
        return total
    idle = (model.moe.experts - model.moe.top_k) * expert_parameters(model)
    # A router's bias only ranks experts: no token is multiplied with it.
    bias = model.moe.experts if model.moe.router_bias else 0
    layers = sum(run.count * sum(shape.mlp is Mlp.MOE for shape in run.block) for run in model.runs)
    return total - layers * (idle + bias)
