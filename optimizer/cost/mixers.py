"""Mixers beside plain attention: linear attention with a state, and the indexer of sparse attention, by their weights.

Gated delta rule: Qwen3NextGatedDeltaNet, Kimi delta attention: KimiLinearDeltaAttention, lightning attention:
MiniMaxLightningAttention, indexer: DeepseekV32Indexer of huggingface/transformers 5.24.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from layoutopt.optimizer.specs.model import Mixer

if TYPE_CHECKING:
    from layoutopt.optimizer.specs.model import LinearSpec, ModelSpec

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
    weights = (Projection(indexer.heads, model.hidden),) if indexer.block is None else ()
    return (
        Projection(indexer.heads * indexer.head_dim, latent or model.hidden),
        Projection(indexer.head_dim, model.hidden),
        *weights,
    )


def indexer_vectors(model: ModelSpec) -> int:
    """Count the weights of the LayerNorm on the indexer's key, or of the RMSNorms on its queries and key."""
    assert model.indexer is not None
    return 2 * model.indexer.head_dim
