"""Memory of every stage: states, activations in flight, ends, working sets, and what the GPU leaves usable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from layoutopt.optimizer.cost.optimizers import moment_bytes
from layoutopt.optimizer.cost.parameters import expert_parameters
from layoutopt.optimizer.cost.stage_parameters import end_parameters, other_end_parameters
from layoutopt.optimizer.cost.states import (
    RankParameters,
    adds_whole_gradients,
    in_torch_pipeline,
    state_bytes,
    working_set_bytes,
)
from layoutopt.optimizer.cost.term_parts import groups_of, placed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from layoutopt.optimizer.cost.batch import LayoutBatch
    from layoutopt.optimizer.cost.frozen import TrainedParts
    from layoutopt.optimizer.cost.states import StateBytes
    from layoutopt.optimizer.frameworks.preset import FrameworkPreset
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.model import ModelSpec

    FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryContext:
    """Inputs of the memory terms: parameters held per block kind, activation units (n, K), and counts in flight.
    ``others`` are those of the held parameters in no matrix, ``weight_bytes`` those of a parameter in a block, ``copies`` of
    every stage are held by as many ranks; ``left`` is what offloading leaves on the GPU;
    ``trained`` parameters alone have gradients and optimizer state; None: all of them.
    ``head_waiting`` is what a micro-batch keeps between its loss and its backward pass, of which ``head_in_flight`` wait,
    ``delayed`` (n, K) what a block keeps between its backward pass for inputs and its weight gradients.
    ``mtp_activation`` is of all micro-batches in flight, ``graphs`` what CUDA graphs take. ``any_set``: rows stand for every
    entry of recomputation.
    """

    model: ModelSpec
    cluster: ClusterSpec
    preset: FrameworkPreset
    batch: LayoutBatch
    weight_bytes: float
    held: list[RankParameters]
    others: list[RankParameters]
    kept: FloatArray
    left: FloatArray
    checkpoint: FloatArray
    transient: FloatArray
    delayed: FloatArray
    head_activation: FloatArray
    head_waiting: FloatArray
    head_in_flight: FloatArray
    mtp_activation: FloatArray
    in_flight: FloatArray
    copies: int
    folded: bool
    boundary_bytes: FloatArray
    graphs: FloatArray
    ideal: bool
    any_set: bool = False
    trained: TrainedParts | None = None


def memory_parts(ctx: MemoryContext, *, working_set: bool = True) -> dict[str, Any]:
    """Return the memory fields of ``TermParts``; ``working_set`` False leaves gathered weights out."""
    moments = moment_bytes(ctx.preset, ctx.model)
    states = state_bytes(ctx.preset, ctx.batch, moments, copies=ctx.copies)
    first, last = end_parameters(ctx.model, ctx.preset, ctx.batch, folded=ctx.folded)
    ends = zip(
        (first, last), other_end_parameters(ctx.model, ctx.preset, ctx.batch, (first, last)), strict=True
    )
    own = state_bytes(ctx.preset, ctx.batch, moments, copies=ctx.copies, weight_bytes=ctx.weight_bytes)
    blocks = [own.of(*held) for held in zip(ctx.held, ctx.others, strict=True)]
    of_ends = [states.of(*end) for end in ends]
    if ctx.trained is not None:
        blocks, of_ends = _partly_trained(ctx, own, states, (first, last))
    layer_states = {name: np.stack([b[name] for b in blocks], axis=1) for name in blocks[0]}
    if ctx.delayed.any():
        layer_states["delayed"] = ctx.delayed / ctx.batch.vp[:, None]
    return {
        "layer_states": layer_states,
        **_end_bytes(ctx, *of_ends),
        "layer_activation_bytes": ctx.kept,
        "recomputed_activation_bytes": np.minimum(ctx.checkpoint / _grouped(ctx)[:, None], ctx.kept),
        "common_bytes": _common(ctx, first, last, working_set),
        "flight_bytes": _outputs(ctx) * ctx.batch.vp,
        "recompute_transient_bytes": np.zeros(len(ctx.batch)) if ctx.ideal else _again_bytes(ctx),
        "capacity_bytes": np.full(len(ctx.batch), usable_bytes(ctx.cluster, ctx.preset, ideal=ctx.ideal)),
        "in_flight": ctx.in_flight,
    }


def _partly_trained(
    ctx: MemoryContext, own: StateBytes, of_ends: StateBytes, ends: tuple[RankParameters, RankParameters]
) -> tuple[list[dict[str, FloatArray]], list[dict[str, FloatArray]]]:
    """Bytes of blocks and of both ends: all states of what is trained, of the rest the weights alone."""
    parts, batch, preset = ctx.trained, ctx.batch, ctx.preset
    assert parts is not None
    # Frozen weights are sharded where weights are; without master weights ZeRO-2 shards the weights
    # themselves.
    split = (batch.zero == 3) | ((batch.zero == 2) & (preset.master_bytes == 0))
    stored = ctx.weight_bytes if preset.master_bytes else preset.fsdp_weight_bytes
    in_blocks = stored if parts.frozen_bytes is None else parts.frozen_bytes

    def added(
        trained: dict[str, FloatArray], frozen: RankParameters, weight_bytes: float
    ) -> dict[str, FloatArray]:
        """Add the weights of what is frozen."""
        weights = own.frozen(frozen, weight_bytes, split=split)["weights"]
        return trained | {"weights": trained["weights"] + weights}

    blocks = [
        added(own.of(trained, others), frozen, in_blocks)
        for trained, others, frozen in zip(parts.blocks, parts.others, parts.frozen, strict=True)
    ]
    found = [
        added(of_ends.of(trained, others), end - trained, preset.weight_bytes)
        for end, trained, others in zip(ends, parts.ends, parts.end_others, strict=True)
    ]
    return blocks, found


def _grouped(ctx: MemoryContext) -> FloatArray:
    """Layers that are recomputed from one saved input; the most of the codebook where rows stand for all entries."""
    # A group that recomputes together keeps one input for all of its layers.
    if not ctx.any_set:
        return groups_of(ctx.batch).astype(np.float64)
    return np.full(len(ctx.batch), float(max(max(entry.group, 1) for entry in ctx.batch.codebook.recomputes)))


def _again_bytes(ctx: MemoryContext) -> FloatArray:
    """Bytes that exist while layers are recomputed: all that a group of them keeps."""
    groups = np.ones(len(ctx.batch)) if ctx.any_set else _grouped(ctx)
    return np.asarray((ctx.kept * groups[:, None]).max(axis=1))


def _end_bytes(
    ctx: MemoryContext, first: dict[str, FloatArray], last: dict[str, FloatArray]
) -> dict[str, dict[str, FloatArray]]:
    """Bytes of the ends on the ranks that hold them: states, logits, MTP activations, scratch gradient of the head."""
    # One of those in flight is at its loss, with all of the head's activations.
    waiting = (ctx.head_in_flight - 1.0) * ctx.head_waiting
    logits = ctx.head_activation + waiting + ctx.mtp_activation + _head_gradient_bytes(ctx)
    outputs = _outputs(ctx)
    if outputs.any():
        first = first | {"gradients": first["gradients"] * _whole_rows(ctx)}
        # The first stage receives no inputs and sends no gradients, the last one receives none, and puts out logits.
        unread = ctx.batch.micro_batches * outputs
        first = first | {"receive": -unread, "outputs": -_sent(ctx)}
        last = last | {"receive": -unread, "outputs": -ctx.head_in_flight * outputs}
    last = last | {"logits": logits}
    first, last = placed(first, last, folded=ctx.folded)
    return {"first_states": first, "last_states": last}


def _head_gradient_bytes(ctx: MemoryContext) -> FloatArray:
    """Transformer Engine's scratch weight gradient of the output matrix."""
    if not ctx.preset.dummy_wgrad or ctx.ideal or (ctx.trained and not ctx.trained.output):
        return np.zeros(len(ctx.batch))
    return 2.0 * ctx.model.vocab * ctx.model.hidden / ctx.batch.tp


def _common(
    ctx: MemoryContext, first: RankParameters, last: RankParameters, working_set: bool
) -> dict[str, FloatArray]:
    """Bytes that every rank needs beside its blocks: transients, scratch gradients, gathered units, receive buffers."""
    if ctx.ideal:
        return {}
    parts = {"transient": ctx.transient, "receive": _receive_buffers(ctx) * ctx.boundary_bytes}
    if (sent := _sent(ctx)).any() or _outputs(ctx).any():
        parts["outputs"] = sent
    if ctx.graphs.any():
        parts["graphs"] = ctx.graphs
    if ctx.left.any():
        parts["left"] = ctx.left
    if working_set:
        parts["gathered"] = working_set_bytes(
            ctx.preset,
            ctx.batch,
            _largest_unit(ctx.held, first, last),
            ctx.weight_bytes,
            trained=_largest_unit(ctx.trained.blocks, *ctx.trained.ends) if ctx.trained else None,
        )
    if ctx.preset.dummy_wgrad:
        blocks = ctx.trained.blocks if ctx.trained else ctx.held
        parts["scratch_gradients"] = 2.0 * np.max([_distinct_weights(ctx, block) for block in blocks], axis=0)
    return parts


def _largest_unit(
    blocks: Sequence[RankParameters], first: RankParameters, last: RankParameters
) -> FloatArray:
    """Parameters of the largest of what FSDP gathers at once: a block, or an end of the model, (n,)."""
    of_blocks = np.max([block.dense + block.expert for block in blocks], axis=0)
    return np.asarray(np.maximum(of_blocks, np.maximum(first.dense, last.dense)))


def _receive_buffers(ctx: MemoryContext) -> FloatArray:
    """Buffers for what neighbours send: one each way, or under torch's schedules one for every micro-batch and stage."""
    batch = ctx.batch
    plain = np.where(batch.pp > 1, 2.0, 0.0)
    return np.where(in_torch_pipeline(ctx.preset, batch), 2.0 * batch.vp * batch.micro_batches, plain)


def _outputs(ctx: MemoryContext) -> FloatArray:
    """Bytes (n,) of a virtual stage's output that torch's schedules keep until its backward pass, but for the last one's.

    pytorch/pytorch torch/distributed/pipelining/stage.py: fwd_cache. Megatron-LM frees them (deallocate_output_tensor).
    """
    kept = in_torch_pipeline(ctx.preset, ctx.batch) & (not ctx.ideal)
    return np.where(kept, ctx.boundary_bytes, 0.0)


def _whole_rows(ctx: MemoryContext) -> FloatArray:
    """How many times (n,) its part of the embedding's gradient a rank adds up: DTensor's has all rows before it is reduced.

    pytorch/pytorch torch/distributed/tensor/_ops/_embedding_ops.py, embedding_dense_backward_strategy.
    """
    whole = adds_whole_gradients(ctx.preset, ctx.batch) & ctx.preset.keeps_gathered_inputs
    return np.where(whole, ctx.batch.tp, 1.0)


def _sent(ctx: MemoryContext) -> FloatArray:
    """Bytes (n,) of the gradient that a rank of one stage sent last: its operation is held until the next is there.

    pytorch/pytorch torch/distributed/pipelining/schedules.py: bwd_sends of Schedule1F1B and ScheduleGPipe.
    """
    return np.where(ctx.batch.vp == 1, _outputs(ctx), 0.0)


def _distinct_weights(ctx: MemoryContext, held: RankParameters) -> FloatArray:
    """Parameters of the distinct weight shapes of a block: its dense ones and one expert."""
    if ctx.model.moe is None:
        return held.dense
    return held.dense + np.minimum(held.expert, expert_parameters(ctx.model) / ctx.batch.etp)


def usable_bytes(cluster: ClusterSpec, preset: FrameworkPreset, *, ideal: bool = False) -> float:
    """Bytes that tensors may take on one GPU: visible memory less context, buffers, reserve and fragmentation."""
    if ideal:
        return cluster.gpu.nominal_memory_bytes - cluster.reserve_bytes
    free = cluster.gpu.memory_bytes - preset.overhead_bytes - cluster.reserve_bytes
    # Fragments grow with what is allocated: tensors and their reserve share what is free.
    return free / (1 + preset.allocator_reserve)
