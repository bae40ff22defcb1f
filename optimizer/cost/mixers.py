"""Mixers beside plain attention: linear attention with a state, and the indexer of sparse attention, by their weights.

Gated delta rule: Qwen3NextGatedDeltaNet, Kimi delta attention: KimiLinearDeltaAttention, lightning attention:
MiniMaxLightningAttention, indexer: DeepseekV32Indexer, compressed keys and hyper-connections: DeepseekV4Attention and
DeepseekV4HyperConnection of huggingface/transformers 5.24.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from layoutopt.optimizer.specs.model import Mixer

if TYPE_CHECKING:
    from layoutopt.optimizer.specs.model import LayerShape, LinearSpec, ModelSpec

LIGHTNING_BLOCK = 256
"""Tokens within which lightning attention multiplies scores (``block_size``)."""

SOLVED_CHUNK = 64
"""Tokens of a chunk, whose triangular matrix a delta rule keeps (fla-org/flash-linear-attention)."""


class Projection(NamedTuple):
    """A weight of ``rows`` outputs and ``columns`` inputs."""

    rows: int
    columns: int


def linear_widths(linear: LinearSpec) -> tuple[int, int]:
    """Return the widths of queries, and keys, and of values over all heads."""
    return linear.key_heads * linear.key_head_dim, linear.value_heads * linear.value_head_dim


def linear_inputs(model: ModelSpec, mixer: Mixer) -> tuple[Projection, ...]:
    """Return the projections of the layer's input in a linear-attention layer."""
    assert model.linear is not None
    h, heads = model.hidden, model.linear.value_heads
    key, value = linear_widths(model.linear)
    if (
        mixer is Mixer.GATED_DELTA
    ):  # queries, keys, values and their gate together; decay and strength of each head
        return Projection(2 * key + 2 * value, h), Projection(2 * heads, h)
    joint = Projection(key, h), Projection(key, h), Projection(value, h)
    if mixer is Mixer.LIGHTNING:
        return (*joint, Projection(value, h))
    low = model.linear.key_head_dim  # both gates go through one head's width
    return (*joint, Projection(low, h), Projection(low, h), Projection(heads, h))


def linear_gates(model: ModelSpec, mixer: Mixer) -> tuple[Projection, ...]:
    """Return the second half of projections that go through a low rank."""
    assert model.linear is not None
    if mixer is not Mixer.KIMI_DELTA:
        return ()
    key, value = linear_widths(model.linear)
    return Projection(key, model.linear.key_head_dim), Projection(value, model.linear.key_head_dim)


def linear_output(model: ModelSpec) -> Projection:
    """Return the output projection."""
    assert model.linear is not None
    return Projection(model.hidden, linear_widths(model.linear)[1])


def linear_vectors(model: ModelSpec, mixer: Mixer) -> int:
    """Count the weights of a linear-attention layer that are in no projection: convolution, decays, output norm."""
    linear = model.linear
    assert linear is not None
    key, value = linear_widths(linear)
    if mixer is Mixer.LIGHTNING:
        return value  # its norm spans all heads
    decay = linear.value_heads if mixer is Mixer.GATED_DELTA else key
    return linear.conv * (2 * key + value) + linear.value_heads + decay + linear.value_head_dim


def recurrence_flops(model: ModelSpec, mixer: Mixer) -> float:
    """Forward FLOPs per token of a linear-attention layer beside its projections: convolution, and state.

    A delta rule reads, corrects, writes and reads out a state of key by value width per head (NVIDIA/Megatron-LM
    num_floating_point_operations); lightning attention writes and reads one, and multiplies scores in blocks.
    """
    linear = model.linear
    assert linear is not None
    key, value = linear_widths(linear)
    state = linear.value_heads * linear.key_head_dim * linear.value_head_dim
    if mixer is Mixer.LIGHTNING:
        return 4.0 * state + LIGHTNING_BLOCK * (key + value)
    return 2.0 * (linear.conv * (2 * key + value) + 4 * state)


def linear_kept_bytes(model: ModelSpec, mixer: Mixer) -> float:
    """Bytes per token that a linear-attention layer keeps beside its input and its output projection's input.

    Projected streams before and after the convolution, gates, the delta rule's triangular matrix per chunk, and the output
    before its gate. States between chunks are computed again (fla-org/flash-linear-attention).
    """
    linear = model.linear
    assert linear is not None
    key, value = linear_widths(linear)
    streams, gates = 2 * key + value, value
    if mixer is Mixer.LIGHTNING:
        return 2.0 * (streams + gates + value)
    decay = 2 * linear.value_heads if mixer is Mixer.GATED_DELTA else key + linear.value_heads
    solved = SOLVED_CHUNK * linear.value_heads
    return 2.0 * (2 * streams + gates + decay + solved + value)


def linear_state_bytes(model: ModelSpec) -> float:
    """Bytes of one sequence's state, in 32 bits, with the transition that merges it with an earlier one."""
    linear = model.linear
    assert linear is not None
    return 4.0 * linear.value_heads * linear.key_head_dim * (linear.value_head_dim + linear.key_head_dim)


def indexer_projections(model: ModelSpec) -> tuple[Projection, ...]:
    """Return the indexer's projections: queries of its heads out of the query latent, one key, a weight per head.

    Heads that choose blocks for a group of query heads each have no weights (MiniMaxM3VLIndexer).
    """
    assert model.indexer is not None
    indexer, latent = model.indexer, model.mla.q_lora_rank if model.mla else 0
    if model.compressed is not None:  # its keys are pooled from two series of their own, as the layer's are
        return (
            Projection(indexer.heads * indexer.head_dim, model.compressed.query_rank),
            Projection(indexer.heads, model.hidden),
            *(Projection(2 * indexer.head_dim, model.hidden),) * 2,
        )
    weights = (Projection(indexer.heads, model.hidden),) if indexer.block is None else ()
    return (
        Projection(indexer.heads * indexer.head_dim, latent or model.hidden),
        Projection(indexer.head_dim, model.hidden),
        *weights,
    )


def indexer_vectors(model: ModelSpec, shape: LayerShape) -> int:
    """Count the weights of the LayerNorm on the indexer's key, or of the RMSNorms on its queries and key."""
    assert model.indexer is not None
    if shape.compression:  # a norm, and a bias of every place in a pooled key's two series
        return model.indexer.head_dim * (1 + 2 * shape.compression)
    return 2 * model.indexer.head_dim


def compressed_inputs(model: ModelSpec, shape: LayerShape) -> tuple[Projection, ...]:
    """Return the projections of the layer's input whose keys all heads share: query latent, key, pooled keys and gates.

    Chosen keys are pooled from two series, of which one reaches into the keys before (``DeepseekV4CSACompressor``).
    """
    assert model.compressed is not None
    own = Projection(model.compressed.query_rank, model.hidden), Projection(model.head_dim, model.hidden)
    if not shape.compression:
        return own
    return *own, *(Projection(_series(shape) * model.head_dim, model.hidden),) * 2


def compressed_queries(model: ModelSpec) -> Projection:
    """Return the projection of the query latent."""
    assert model.compressed is not None
    return Projection(model.heads * model.head_dim, model.compressed.query_rank)


def compressed_outputs(model: ModelSpec) -> tuple[Projection, Projection]:
    """Return the output projections: of a group of heads each, and of all groups' latents."""
    spec = model.compressed
    assert spec is not None
    latents = spec.output_groups * spec.output_rank
    return (
        Projection(latents, model.heads * model.head_dim // spec.output_groups),
        Projection(model.hidden, latents),
    )


def compressed_vectors(model: ModelSpec, shape: LayerShape) -> int:
    """Count the weights in no projection, all whole on every rank: norms of latent and keys, biases of places."""
    assert model.compressed is not None
    pooled = model.head_dim * (1 + _series(shape) * shape.compression) if shape.compression else 0
    return model.compressed.query_rank + model.head_dim + pooled


def _series(shape: LayerShape) -> int:
    return 2 if shape.sparse else 1


def stream_weights(model: ModelSpec) -> tuple[int, int]:
    """Count the weights that mix residual streams around one mixer or MLP, and those that join them at the end."""
    streams = model.streams
    if streams == 1:
        return 0, 0
    mixed, width = (2 + streams) * streams, streams * model.hidden
    return mixed * width + mixed + 3, streams * width + streams + 1
