"""The two ends of the model: embedding on the first rank; final norm, logits, loss and MTP on the last."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.activations import input_tokens, norm_bytes
from layoutopt.optimizer.cost.communication import activation_bytes
from layoutopt.optimizer.cost.components import Component
from layoutopt.optimizer.cost.compute import norm_work
from layoutopt.optimizer.cost.context_parallel import BF16_BYTES
from layoutopt.optimizer.cost.frozen import is_frozen
from layoutopt.optimizer.cost.work import linear, moved
from layoutopt.optimizer.specs.vocabulary import FrozenPart

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from layoutopt.optimizer.cost.communication import CommContext
    from layoutopt.optimizer.cost.layer_units import BlockUnit

    FloatArray = NDArray[np.float64]


SOFTMAX_BYTES = 4.0
"""Of each logit's (log-)softmax, which a loss that is not fused keeps for its backward pass."""
LOSS_SUMS, LOSS_BYTES = 3, 4.0
"""All-reduces of a cross-entropy over a split vocabulary (maximum, the target's logit, sum of exponentials), in 32 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndUnit:
    """One end for one micro-batch, arrays (n,): seconds by breakdown part and activation bytes.

    ``waiting_bytes`` are those of the activations that are kept between forward and backward.
    ``forward_s`` and ``wgrad_s`` are the shares of all parts that run forward and for weight gradients.
    """

    parts_s: dict[Component, FloatArray]
    forward_s: FloatArray
    wgrad_s: FloatArray
    activation_bytes: FloatArray
    waiting_bytes: FloatArray

    @property
    def total_s(self) -> FloatArray:
        """Sum of the parts, (n,)."""
        return sum(self.parts_s.values(), np.zeros_like(self.activation_bytes))

    @property
    def operations_s(self) -> FloatArray:
        """Forward, backward and, of the latter, the weight gradients, (n, 3)."""
        forward = np.broadcast_to(self.forward_s, self.activation_bytes.shape)
        return np.stack([forward, self.total_s - forward, self.wgrad_s], axis=1)


def vocabulary_rows(comm: CommContext) -> FloatArray:
    """Vocabulary rows (n,) on a tensor-parallel rank, padded where the framework pads."""
    vocab, tp = comm.compute.model.vocab, comm.keys.tp
    # Every rank gets equally many rows, a multiple of a tile (NVIDIA/Megatron-LM vocab_utils.py).
    multiple = 128.0 * tp
    padded = (
        np.ceil(vocab / multiple) * multiple if comm.compute.preset.pad_vocab else np.asarray(float(vocab))
    )
    return padded / tp


def embedding_unit(comm: CommContext) -> EndUnit:
    """Embedding look-up, its gradient scatter, and the collective that completes it."""
    ctx, keys = comm.compute, comm.keys
    elements = keys.tokens * ctx.model.hidden
    work = moved(ctx, 4.0 * elements, 8.0 * elements)
    parts = {
        Component.FORWARD: work.forward_s,
        Component.BACKWARD: work.dgrad_s * (not is_frozen(ctx.training, FrozenPart.EMBEDDING)),
        Component.TP: _boundary_s(comm),
    }
    if ctx.rates.ideal:  # the 6N rule counts the input embedding as a multiplication
        flops = 2.0 * keys.tokens * ctx.model.hidden * vocabulary_rows(comm)
        for part, times in ((Component.FORWARD, 1), (Component.BACKWARD, 2)):
            parts[part] = flops * times / ctx.rates.wide_flops_per_s
    # A look-up's gradient needs the tokens alone, which the data loader holds.
    zero = np.zeros_like(keys.tp)
    forward = parts[Component.FORWARD] + parts[Component.TP] / 2
    return EndUnit(parts_s=parts, forward_s=forward, wgrad_s=zero, activation_bytes=zero, waiting_bytes=zero)


def _boundary_s(comm: CommContext) -> FloatArray:
    """Scatter (or all-reduce) of the embedding output forward and the gather of its gradient; same at the head."""
    size = activation_bytes(comm)
    if comm.compute.rates.ideal:
        return np.zeros_like(size)
    topology, group = comm.topology, comm.groups.tp
    sharded = topology.reduce_scatter_s(size, group) + topology.all_gather_s(size, group)
    return np.where(comm.keys.sp > 0, sharded, topology.all_reduce_s(size, group))


def head_unit(comm: CommContext, passes: int = 1) -> EndUnit:
    """Final norm, logits and cross-entropy; ``passes`` counts the logits of MTP too."""
    ctx, keys = comm.compute, comm.keys
    rows = vocabulary_rows(comm)
    chunks = ctx.switches.loss_chunks
    # Megatron-LM's output layer is no Transformer Engine module: logits are multiplied in 16 bits whatever
    # the layers' format.
    width = np.full_like(rows, float(ctx.model.hidden))
    logits = linear(ctx, keys.tokens / chunks, rows, width, wide=True).scaled(chunks)
    # A frozen matrix still passes the gradient of its input on.
    if is_frozen(ctx.training, FrozenPart.OUTPUT):
        logits = logits.without_wgrad()
    per_logit = ctx.constants["loss_traffic_fused" if ctx.preset.fused_loss else "loss_traffic_unfused"]
    # Without loss parallelism every rank has all logits and computes the whole loss.
    lost = rows if ctx.preset.splits_loss else rows * keys.tp
    loss = moved(ctx, keys.tokens * lost * per_logit / 2, keys.tokens * lost * per_logit / 2)
    work = logits + loss + norm_work(ctx, keys)
    parts = {
        Component.FORWARD: passes * work.forward_s,
        Component.BACKWARD: passes * (work.dgrad_s + work.wgrad_s),
        Component.TP: passes * (_boundary_s(comm) + _loss_traffic_s(comm, lost)),
    }
    per_logit_kept = np.full_like(rows, 2.0 if ctx.preset.fused_loss else ctx.preset.logit_bytes)
    if not ctx.preset.splits_loss:  # what was gathered, beside its parts in the vocabulary's order
        per_logit_kept = per_logit_kept + np.where(keys.tp > 1, BF16_BYTES, 0.0)
    # With several chunks the head runs its backward at once: what waits is the gradient of its input, in 16 bits.
    gradient = BF16_BYTES * keys.tokens * ctx.model.hidden
    kept = ctx.switches.least_kept(
        lambda parts: per_logit_kept * keys.tokens * lost / parts + np.where(parts > 1, gradient, 0.0)
    )
    # Between the passes: the logits that a fused loss computes from, or its (log-)softmax, beside a stage's output.
    outputs = BF16_BYTES * (ctx.preset.keep_gathered_with_pp or ctx.preset.fused_loss)
    between = outputs + (0.0 if ctx.preset.fused_loss else SOFTMAX_BYTES)
    waiting = ctx.switches.least_kept(
        lambda parts: np.where(parts > 1, gradient, between * keys.tokens * lost)
    )
    inputs = (norm_bytes(ctx) * keys.local_tokens + BF16_BYTES * input_tokens(ctx, keys)) * ctx.model.hidden
    # The simple model's rule of thumb speaks of layers alone.
    used = 0.0 if ctx.rates.ideal else 1.0
    return EndUnit(
        parts_s=parts,
        forward_s=parts[Component.FORWARD] + parts[Component.TP] / 2,
        wgrad_s=passes * work.wgrad_s,
        activation_bytes=used * (kept + inputs),
        waiting_bytes=used * (waiting + inputs),
    )


def _loss_traffic_s(comm: CommContext, logits: FloatArray) -> FloatArray:
    """All-reduces of a cross-entropy over a split vocabulary, or the gather of its ``logits`` per token."""
    topology, group = comm.topology, comm.groups.tp
    if comm.compute.rates.ideal:
        return np.zeros_like(logits)
    if not comm.compute.preset.splits_loss:
        return topology.all_gather_s(BF16_BYTES * comm.keys.tokens * logits, group)
    return LOSS_SUMS * topology.all_reduce_s(LOSS_BYTES * comm.keys.tokens, group)


def mtp_unit(comm: CommContext, block: BlockUnit) -> EndUnit:
    """One multi-token-prediction layer: the last kind's layer and the 2h x h projection of two normed inputs."""
    ctx, keys = comm.compute, comm.keys
    h = float(ctx.model.hidden)
    one = np.ones_like(keys.tp)
    work = linear(ctx, keys.local_tokens, one * h, one * 2 * h) + norm_work(ctx, keys)
    parts = dict(block.parts_s)
    parts[Component.FORWARD] = parts[Component.FORWARD] + work.forward_s
    parts[Component.BACKWARD] = parts[Component.BACKWARD] + work.dgrad_s + work.wgrad_s
    # In 16 bits: the projection's input of width 2h, and the inputs of the norms in front of it.
    kept = block.kept_bytes + 8.0 * keys.local_tokens * h
    return EndUnit(
        parts_s=parts,
        forward_s=block.forward_s + work.forward_s,
        wgrad_s=block.wgrad_s + work.wgrad_s,
        activation_bytes=kept,
        waiting_bytes=kept,
    )
