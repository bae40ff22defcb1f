"""Context parallelism: how each method divides attention, what it moves, and what it holds.

Sequences are cut into 2*cp pieces of which a rank takes one from the front and one from the back, so that causal
attention is balanced. Volumes: NVIDIA/TransformerEngine attention context_parallel.py; DeepSpeed-Ulysses
(arXiv:2309.14509); Llama 3 (arXiv:2407.21783, section 3.3.2) for gathered keys and values.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import TYPE_CHECKING, Any

import numpy as np

from layoutopt.optimizer.cost.mixers import linear_state_bytes
from layoutopt.optimizer.specs.model import Mixer
from layoutopt.optimizer.specs.vocabulary import CpComm
from layoutopt.optimizer.topology.groups import Digit, GroupBatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from layoutopt.optimizer.cost.communication import CommContext
    from layoutopt.optimizer.cost.work import ComputeContext, Keys, Work
    from layoutopt.optimizer.specs.model import LayerShape, ModelSpec

    FloatArray = NDArray[np.float64]
    IntArray = NDArray[np.int64]

BF16_BYTES = 2.0


@dataclass(frozen=True, slots=True)
class Division:
    """How a layer's attention is divided: ranks among which heads are exchanged, and steps of the ring, (n,) each.

    Their product is cp, or both are 1 where keys and values are ``gathered`` whole.
    """

    heads: FloatArray
    ring: FloatArray
    gathered: bool


def method_of(kind: CpComm, shape: LayerShape) -> CpComm:
    """Return the method of a layer: the launch's, but gathering where a window or chosen keys rule out the ring."""
    # Chosen keys may be on any rank: only a gather brings them all.
    if shape.sparse:
        return CpComm.ALL_GATHER
    ring = kind in (CpComm.P2P, CpComm.A2A_P2P)
    return CpComm.ALL_GATHER if ring and shape.window is not None else kind


def scattered_kv_heads(model: ModelSpec) -> int:
    """Key-value heads that are exchanged: latent attention expands keys and values for every head before."""
    return model.heads if model.mla else model.common_kv_heads


def heads_divide(model: ModelSpec, cp: Any, tp: Any, *, repeats: bool) -> Any:
    """Tell whether the heads of a tensor rank can be scattered over cp ranks, (n,) or single.

    ``repeats``: key-value heads that are fewer than the ranks are repeated.
    """
    heads, kv = model.heads // tp, np.maximum(scattered_kv_heads(model) // tp, 1)
    kv_fits = (kv % cp == 0) | (cp % kv == 0) if repeats else kv % cp == 0
    return (heads % cp == 0) & kv_fits


def of_kind(
    ctx: ComputeContext, keys: Keys, price: Callable[[CpComm], tuple[FloatArray, ...]]
) -> tuple[FloatArray, ...]:
    """Choose what every row has with its kind of context parallelism, (n,) each.

    Of rows that stand for all kinds the least that one has with which a row can be launched.
    """
    switches = ctx.switches
    prices = {kind: price(kind) for kind in switches.cp_kinds}
    if switches.any_cp_kind and CpComm.A2A in prices:
        repeats = ctx.preset.repeats_keys
        fits = heads_divide(ctx.model, keys.cp.astype(int), keys.tp.astype(int), repeats=repeats)
        prices[CpComm.A2A] = tuple(np.where(fits, value, np.inf) for value in prices[CpComm.A2A])
    return tuple(switches.per_cp_kind(values) for values in zip(*prices.values(), strict=True))


def ring_steps(ctx: ComputeContext, keys: Keys, shape: LayerShape) -> FloatArray:
    """Steps (n,) in which a layer's attention passes over its keys; the fewest where rows stand for all kinds."""
    return of_kind(ctx, keys, lambda kind: (division(ctx, keys, shape, kind).ring,))[0]


def most_ring_steps(ctx: ComputeContext, keys: Keys, shape: LayerShape) -> FloatArray:
    """Steps (n,) of the kind that passes over its keys in the most."""
    most: FloatArray = np.maximum.reduce(
        [division(ctx, keys, shape, kind).ring for kind in ctx.switches.cp_kinds]
    )
    return most


def exchange_ranks(model: ModelSpec, nvlink_domain: int, cp: Any, tp: Any) -> IntArray:
    """Return among how many ranks the hierarchical method exchanges heads, (n,): the rest of cp is a ring.

    As many as share an NVLink domain and divide the heads of a tensor rank.

    Parameters
    ----------
    model
        Whose heads are exchanged; key-value heads too, unless latent attention expands them for every head.
    nvlink_domain
        GPUs of an NVLink domain.
    cp, tp
        Context and tensor degrees, (n,) or single ones.
    """
    heads = gcd(model.heads, scattered_kv_heads(model))
    degrees, parts = np.asarray(cp, dtype=np.int64), np.asarray(tp, dtype=np.int64)
    # Heads that are exchanged beyond the NVLink domain would give away what the method is for.
    room, share = np.maximum(nvlink_domain // parts, 1), np.maximum(heads // parts, 1)
    result: IntArray = np.gcd(np.gcd(degrees, room), share)
    return result


def division(ctx: ComputeContext, keys: Keys, shape: LayerShape, kind: CpComm) -> Division:
    """Divide a layer's attention, with one kind of context parallelism for all rows.

    The hierarchical method exchanges heads among the ranks that share an NVLink domain, as far as heads divide, and
    passes keys and values around a ring of such groups (``--hierarchical-context-parallel-sizes``).
    """
    one, method = np.ones_like(keys.cp), method_of(kind, shape)
    if method is CpComm.ALL_GATHER:
        return Division(one, one, True)
    if method is CpComm.A2A:
        return Division(keys.cp, one, False)
    if method is CpComm.P2P:
        return Division(one, keys.cp, False)
    inner = exchange_ranks(ctx.model, ctx.nvlink_domain, keys.cp, keys.tp).astype(np.float64)
    return Division(inner, keys.cp / inner, False)


def attended_keys(ctx: ComputeContext, shape: LayerShape, steps: FloatArray) -> FloatArray:
    """Keys (n,) that one call of the attention kernel sees: each of the ring's ``steps`` (n,) its own ranks' share."""
    length = float(ctx.training.sequence_length)
    # Layers with a window have no ring, so that a window never meets a step of one.
    return np.minimum(length / steps, shape.window or length)


def head_widths(ctx: ComputeContext, keys: Keys, shape: LayerShape) -> tuple[FloatArray, FloatArray]:
    """Elements per token and rank of Q and O together, and of K and V together, (n,) each."""
    model = ctx.model
    heads = model.heads / keys.tp
    if model.mla is not None:
        mla = model.mla
        # Expanded latents give every head keys of its own, as wide as the queries.
        each = heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim + mla.v_head_dim)
        return each, each
    both = model.head_dim + model.value_dim
    # With more ranks than key-value heads each repeats one of them.
    return heads * both, np.maximum(model.kv_heads_of(shape) / keys.tp, 1.0) * both


def gathered_widths(ctx: ComputeContext, keys: Keys, shape: LayerShape) -> tuple[FloatArray, ...]:
    """Elements per token that other ranks' queries need, tensor by tensor, (n,) each.

    Keys and values, or latents with the indexer's key.
    """
    model, mla = ctx.model, ctx.model.mla
    if shape.sparse and mla is not None and model.indexer is not None:
        choosing = model.indexer.head_dim if shape.indexes else 0
        return (np.full_like(keys.tp, float(mla.kv_lora_rank + mla.qk_rope_head_dim + choosing)),)
    if model.compressed is not None:  # one key, the value too, whole on every rank
        choosing = model.indexer.head_dim if model.indexer is not None and shape.indexes else 0
        return (np.full_like(keys.tp, float(model.head_dim + choosing)),)
    if mla is None:
        groups = np.maximum(model.kv_heads_of(shape) / keys.tp, 1.0)
        both = groups * model.head_dim, groups * model.value_dim
        if model.indexer is None or not shape.indexes:
            return both
        return *both, np.full_like(groups, model.indexer.head_dim)
    heads = model.heads / keys.tp
    return heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim), heads * mla.v_head_dim


def held_bytes(ctx: ComputeContext, keys: Keys, shape: LayerShape) -> tuple[FloatArray, FloatArray]:
    """Bytes (n,) that context parallelism keeps for a layer's backward pass, and those it needs only meanwhile.

    Kept: after an exchange of heads the output once more, in the order of the exchange. Meanwhile: the ring's two
    remote pieces of keys and values; all others' when gathered, with their gradients in the backward pass. Where autograd
    keeps what was gathered (``keeps_gathered_keys``), only the gradients come and go.
    """
    kept, meanwhile = of_kind(ctx, keys, lambda kind: _held_bytes(ctx, keys, shape, kind))
    return kept, meanwhile


def _held_bytes(
    ctx: ComputeContext, keys: Keys, shape: LayerShape, kind: CpComm
) -> tuple[FloatArray, FloatArray]:
    """Bytes as of ``held_bytes``, with one kind for all rows."""
    parts = division(ctx, keys, shape, kind)
    query, key_value = head_widths(ctx, keys, shape)
    if parts.gathered:
        key_value = sum(gathered_widths(ctx, keys, shape), np.zeros_like(keys.tp))
    local = BF16_BYTES * keys.tokens * key_value
    # ``query`` is Q and O together, of which the output is half.
    exchanged = np.where(parts.heads > 1, BF16_BYTES * keys.tokens * query / 2, 0.0)
    # One piece in use and one on its way.
    ring = np.where(parts.ring > 1, 2.0 * local, 0.0)
    others = (keys.cp - 1) * local if parts.gathered else 0.0 * local
    if ctx.preset.keeps_gathered_keys:
        return exchanged + others, ring + others
    return exchanged, ring + 2.0 * others


def scanned_s(comm: CommContext, shape: LayerShape) -> tuple[FloatArray, FloatArray]:
    """Exposed seconds of the traffic of a layer that scans its sequence, forward and backward, (n,) each."""
    return _mamba_s(comm) if shape.mixer is Mixer.MAMBA else _state_s(comm)


def attended_s(
    comm: CommContext, shape: LayerShape, core: Work, kind: CpComm
) -> tuple[FloatArray, FloatArray]:
    """Exposed seconds of attention's traffic, forward and backward, (n,) each; all rows have one kind.

    ``core`` is the attention that a ring hides under.
    """
    parts = division(comm.compute, comm.keys, shape, kind)
    if parts.gathered:
        return _gather_s(comm, shape)
    forward, backward = _exchange_s(comm, shape, parts)
    ring_forward, ring_backward = _ring_s(comm, shape, parts, core)
    return forward + ring_forward, backward + ring_backward


def _group(comm: CommContext, size: FloatArray, inside: FloatArray) -> GroupBatch:
    """Return ``size`` members of the context-parallel group that are ``inside`` members apart."""
    whole = comm.groups.cp
    (digit,) = whole.digits
    part = Digit(size.astype(np.int64), digit.stride * inside.astype(np.int64))
    return GroupBatch(digits=(part,), ranks=whole.ranks, closest=whole.closest)


def _ring_s(
    comm: CommContext, shape: LayerShape, parts: Division, core: Work
) -> tuple[FloatArray, FloatArray]:
    """Ring attention: each step's transfer of keys and values runs under that step's attention."""
    piece = ring_bytes(comm, shape)
    group = _group(comm, parts.ring, parts.heads)
    # Backward passes keys and values on, and their gradients with them.
    one, both = comm.topology.p2p_s(piece, group), comm.topology.p2p_s(2 * piece, group)
    steps = parts.ring - 1
    # The last step sends nothing; each of the others hides under its own part of the attention.
    forward = steps * np.maximum(one - core.forward_s / parts.ring, 0.0)
    return forward, steps * np.maximum(both - core.dgrad_s / parts.ring, 0.0)


def _gather_s(comm: CommContext, shape: LayerShape) -> tuple[FloatArray, FloatArray]:
    """Gathered keys and values: gathers forward, again backward unless they are kept, and scatters, all exposed."""
    sizes, top, group = gathered_bytes(comm, shape), comm.topology, comm.groups.cp
    gather = sum((top.all_gather_s(size, group) for size in sizes), np.zeros_like(sizes[0]))
    scatter = sum((top.reduce_scatter_s(size, group) for size in sizes), np.zeros_like(sizes[0]))
    return gather, scatter if comm.compute.preset.keeps_gathered_keys else gather + scatter


def _exchange_s(comm: CommContext, shape: LayerShape, parts: Division) -> tuple[FloatArray, FloatArray]:
    """Heads scattered over a group: all-to-all of Q, K, V and O each way, exposed."""
    size = exchanged_bytes(comm, shape)
    one = comm.topology.all_to_all_s(size, _group(comm, parts.heads, np.ones_like(parts.heads)))
    return one, one


def _state_s(comm: CommContext) -> tuple[FloatArray, FloatArray]:
    """Linear attention: every rank gathers the states that its tokens end in with their transitions, and merges them.

    Once forward, once for the gradients of states (fla-org/flash-linear-attention ops/cp). States are those of sequences.
    """
    # States are as many as sequences, not tokens: their traffic does not grow with the length.
    one = comm.topology.all_gather_s(passed_bytes(comm), comm.groups.cp)
    return one, one


def _mamba_s(comm: CommContext) -> tuple[FloatArray, FloatArray]:
    """A Mamba mixer scans whole sequences: its streams are exchanged for heads before the scan and back after it."""
    one = comm.topology.all_to_all_s(mamba_bytes(comm), comm.groups.cp)
    return one, one


def ring_bytes(comm: CommContext, shape: LayerShape) -> FloatArray:
    """Bytes of a rank's own piece of keys and values, (n,)."""
    return BF16_BYTES * comm.keys.tokens * head_widths(comm.compute, comm.keys, shape)[1]


def gathered_bytes(comm: CommContext, shape: LayerShape) -> tuple[FloatArray, ...]:
    """Bytes of all ranks' keys, and of their values, or of what stands for both, once gathered, (n,) each."""
    tokens = comm.keys.tokens * comm.keys.cp
    return tuple(BF16_BYTES * tokens * width for width in gathered_widths(comm.compute, comm.keys, shape))


def passed_bytes(comm: CommContext) -> FloatArray:
    """Bytes of all ranks' states of linear attention, once gathered, (n,)."""
    keys = comm.keys
    return linear_state_bytes(comm.compute.model) * keys.micro_batch * keys.cp / keys.tp


def exchanged_bytes(comm: CommContext, shape: LayerShape) -> FloatArray:
    """Bytes of queries, keys, values and outputs that a rank exchanges for heads, (n,)."""
    query, key_value = head_widths(comm.compute, comm.keys, shape)
    return BF16_BYTES * comm.keys.tokens * (query + key_value)


def mamba_bytes(comm: CommContext) -> FloatArray:
    """Bytes of a Mamba mixer's streams that a rank exchanges for heads, (n,)."""
    mamba, keys = comm.compute.model.mamba, comm.keys
    assert mamba is not None
    inner = mamba.heads * mamba.head_dim
    streams = 3 * inner + 2 * mamba.groups * mamba.state + mamba.heads
    return BF16_BYTES * keys.tokens * streams / keys.tp
