"""Data-parallel traffic: gradient reduction, weight gathering, FSDP per layer, and what compute hides of them.

Priced on the mean stage (an equal share of the blocks, plus the embedding on the first rank, which finishes its
backward last): moving one layer between stages changes these seconds by less than that layer's traffic.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.frozen import TrainedShare
from layoutopt.optimizer.cost.pipeline import schedule_of
from layoutopt.optimizer.cost.states import in_torch_pipeline, keeps_gathered
from layoutopt.optimizer.specs.vocabulary import Schedule

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from layoutopt.optimizer.cost.batch import LayoutBatch
    from layoutopt.optimizer.cost.constants import Constants
    from layoutopt.optimizer.cost.states import RankParameters
    from layoutopt.optimizer.frameworks.preset import FrameworkPreset
    from layoutopt.optimizer.topology.groups import GroupBatch
    from layoutopt.optimizer.topology.mesh import MeshGroups
    from layoutopt.optimizer.topology.prices import Topology

    FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class DpContext:
    """The network, groups and switches of data-parallel traffic for a batch; bytes of a block's gathered weights."""

    batch: LayoutBatch
    topology: Topology
    groups: MeshGroups
    preset: FrameworkPreset
    weight_bytes: float
    constants: Constants
    ideal: bool
    memory_bytes_per_s: float = math.inf
    trained: TrainedShare = field(default_factory=TrainedShare)

    @property
    def hidden_share(self) -> float:
        """Share of compute time that can cover traffic running beside it."""
        return 1.0 if self.ideal else self.constants["dp_hidden"]

    def beside(self, seconds: FloatArray, cover_s: FloatArray) -> FloatArray:
        """What traffic (n,) adds beside compute (n,): its uncovered rest, and the SMs it takes from compute."""
        # Traffic beside compute runs at its own rate, but only a share of the compute can have some beside
        # it.
        covered = np.minimum(seconds, self.hidden_share * cover_s)
        slowdown = 0.0 if self.ideal else self.constants["overlap_slowdown"]
        return seconds - covered + slowdown * covered

    def copied_s(self, held: RankParameters) -> tuple[FloatArray, FloatArray]:
        """Seconds (n,) of copying gathered weights out of their buffer, and gradients into theirs; on the compute stream."""
        count = (
            held.dense + held.expert if self.preset.copies_gathered and not self.ideal else 0.0 * held.dense
        )
        out = 2.0 * self.preset.weight_bytes * count
        trained = self.trained.of(held)
        reduced = np.where(count > 0, trained.dense + trained.expert, 0.0)
        into = self.preset.weight_bytes * count + self.preset.grad_comm_bytes * reduced
        return out / self.memory_bytes_per_s, (out + into) / self.memory_bytes_per_s

    def calls(self, parameters: FloatArray, blocks: FloatArray) -> FloatArray:
        """Count the calls (n,) that move the parameters of ``blocks`` blocks; each starts and passes its ring anew."""
        size, ranks = self.preset.bucket_parameters, self.groups.dp_cp.size
        if self.ideal:
            return np.ones_like(parameters)
        # Without a bucket size a trainer moves whole units, as FSDP does its blocks.
        calls = parameters / size if size else blocks
        # A bucket has room for every rank's share, so that many ranks have few buckets.
        most = parameters / np.maximum(self.preset.rank_bucket_parameters * ranks, 1.0)
        return np.asarray(np.maximum(np.minimum(calls, most), 1.0))

    def gather_s(
        self, size_bytes: FloatArray, parameters: FloatArray, blocks: FloatArray, group: GroupBatch
    ) -> FloatArray:
        """Seconds (n,) in which updated weights come back: gathered, or one broadcast by every rank that has some."""
        size = self.preset.broadcast_parameters
        if self.ideal or not size:
            calls = self.calls(parameters, blocks)
            return calls * self.topology.all_gather_s(size_bytes / calls, group)
        # No more broadcasts than ranks that hold something, and at least one.
        calls = np.maximum(np.minimum(parameters / size, group.size), 1.0)
        return np.asarray(calls * self.topology.broadcast_s(size_bytes / calls, group))

    def shard_group(self) -> GroupBatch:
        """The ranks that share sharded dense state."""
        return self.groups.hsdp_inner(self.batch.hsdp_shard)


@dataclass(frozen=True, slots=True, kw_only=True)
class Volumes:
    """Bytes of a rank's parameters on the network, dense and expert ones: as gradients and as gathered weights."""

    dense_grad: FloatArray
    expert_grad: FloatArray
    dense_weight: FloatArray
    expert_weight: FloatArray


@dataclass(frozen=True, slots=True)
class Traffic:
    """Seconds of moving parameters once: reduce-scatter of gradients, all-gather of weights, all-reduce."""

    reduce_scatter_s: FloatArray
    all_gather_s: FloatArray
    all_reduce_s: FloatArray


def volumes(ctx: DpContext, held: RankParameters, end: RankParameters | None = None) -> Volumes:
    """Bytes of one pass over the parameters a rank holds; of them, ``end`` belong to the model's end, in 16 bits."""
    grad, weight = ctx.preset.grad_comm_bytes, ctx.weight_bytes
    gathered = weight * held.dense
    if end is not None:
        gathered = gathered + (ctx.preset.weight_bytes - weight) * end.dense
    # Frozen weights have no gradients, and are gathered where they are sharded.
    trained, sharded = ctx.trained.of(held, end), ctx.batch.zero >= 2
    return Volumes(
        dense_grad=grad * trained.dense,
        expert_grad=grad * trained.expert,
        dense_weight=np.where(sharded, 1.0, trained.dense / held.dense) * gathered,
        expert_weight=weight * np.where(sharded, held.expert, trained.expert),
    )


def traffic(
    ctx: DpContext, held: RankParameters, end: RankParameters | None = None, blocks: FloatArray | None = None
) -> Traffic:
    """Price one pass over the parameters of ``blocks`` (n,) blocks on a rank: dense on their group, experts on theirs."""
    moved, top, shard, edp = volumes(ctx, held, end), ctx.topology, ctx.shard_group(), ctx.groups.edp
    blocks = np.ones_like(held.dense) if blocks is None else blocks
    calls = ctx.calls(held.dense, blocks)
    scatter = calls * top.reduce_scatter_s(moved.dense_grad / calls, shard)
    gather = ctx.gather_s(moved.dense_weight, held.dense, blocks, shard)
    reduce = calls * top.all_reduce_s(moved.dense_grad / calls, ctx.groups.dp_cp)
    # Dense models have no second group to price.
    if held.expert.any():
        calls = ctx.calls(held.expert, blocks)
        scatter = scatter + calls * top.reduce_scatter_s(moved.expert_grad / calls, edp)
        gather = gather + ctx.gather_s(moved.expert_weight, held.expert, blocks, edp)
        reduce = reduce + calls * top.all_reduce_s(moved.expert_grad / calls, edp)
    return Traffic(scatter, gather, reduce)


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """How often per step a rank's parameters pass each collective, arrays (n,); ``replicas``: all-reduce of shards."""

    all_reduce: FloatArray
    reduce_scatter: FloatArray
    all_gather: FloatArray
    replicas: FloatArray


def passes(ctx: DpContext) -> Passes:
    """Count the passes of a step under every row's ZeRO stage; under ZeRO-3 those of a block (``fsdp_layer_s``).

    What autograd's hooks start runs in every micro-batch, unless a trainer or a pipeline schedule holds it back to the
    last one (pytorch/pytorch torch/distributed/pipelining/stage.py, ``perform_reduce_grad``).
    """
    batch, preset, zero = ctx.batch, ctx.preset, ctx.batch.zero
    one, none = np.ones(len(batch)), np.zeros(len(batch))
    m = batch.micro_batches.astype(np.float64)
    held_back = preset.holds_back_traffic | in_torch_pipeline(preset, batch)
    hooked = np.where(held_back, one, m)
    # Weights that stay gathered over a step are gathered once, as under ZeRO-2.
    streams = (zero == 3) & ~keeps_gathered(preset, batch)
    reduced = np.where(streams | (zero == 2), m if preset.reduce_each_micro_batch else one, one)
    whole = (zero == 0) | ((zero == 1) & preset.zero1_all_reduce)
    bare = (zero == 2) & (
        preset.master_bytes == 0
    )  # the sharded weights are gathered as often as gradients are reduced
    return Passes(
        all_reduce=np.where(whole, np.where(zero == 0, hooked, one), none),
        reduce_scatter=np.where(whole, none, np.where(bare, hooked, reduced)),
        all_gather=np.where(zero == 0, none, np.where(streams, 2 * m, np.where(bare, hooked, one))),
        replicas=np.where(zero > 0, hooked, none),
    )


def replica_reduce_s(ctx: DpContext, held: RankParameters, end: RankParameters) -> FloatArray:
    """Seconds (n,) of the all-reduce of gradient shards between HSDP replicas; ``end`` of them are the model's end's."""
    # Each replica holds only its shard of the gradients.
    inner = ctx.shard_group().size
    return ctx.topology.all_reduce_s(
        ctx.preset.grad_comm_bytes * ctx.trained.of(held, end).dense / inner,
        ctx.groups.hsdp_outer(ctx.batch.hsdp_shard),
    )


def exposed_once_s(
    ctx: DpContext, seconds: FloatArray, cover_s: FloatArray, buckets: FloatArray, overlap: bool
) -> FloatArray:
    """What traffic (n,) that runs once beside ``cover_s`` (n,) of compute adds to the step; at least its last bucket."""
    if not overlap:
        return seconds
    # The last bucket is full only when the pass ends: nothing is left to run beside it.
    return np.maximum(ctx.beside(seconds, cover_s), 0.0 if ctx.ideal else seconds / buckets)


def fsdp_layer_s(
    ctx: DpContext, held: RankParameters, forward_s: FloatArray, backward_s: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Exposed seconds (n,) per micro-batch of gathering and reducing one block's weights under ZeRO-3, else 0, each way.

    Forward: its gather runs under the previous block's compute. Backward: gather and reduce-scatter do.
    """
    one = traffic(ctx, held)
    # Only weights that are freed after use travel in every micro-batch.
    active = (ctx.batch.zero == 3) & ~keeps_gathered(ctx.preset, ctx.batch)
    reduce = one.reduce_scatter_s if ctx.preset.reduce_each_micro_batch else 0.0
    # Backward gathers the weights once more, and gives the gradients away.
    gather, both = one.all_gather_s, one.all_gather_s + reduce
    copied_f, copied_b = ctx.copied_s(held)
    forward = (ctx.beside(gather, forward_s) if ctx.preset.param_overlap else gather) + copied_f
    backward = (ctx.beside(both, backward_s) if ctx.preset.dp_overlap else both) + copied_b
    return np.where(active, forward, 0.0), np.where(active, backward, 0.0)


def step_exposed_s(
    ctx: DpContext,
    held: RankParameters,
    end: RankParameters,
    unit: RankParameters,
    forward_s: FloatArray,
    backward_s: FloatArray,
    blocks: float,
) -> FloatArray:
    """Exposed seconds (n,) per step of everything but the per-layer FSDP traffic.

    ``held`` are the mean stage's parameters, ``end`` those of them outside blocks, ``unit`` one block's;
    ``forward_s`` and ``backward_s`` are one micro-batch on that stage. A bucket is about a block:
    NVIDIA/Megatron-LM cuts buckets on the first stage only, the one that ends last; later stages reduce their chunks
    whole while they wait for it.
    """
    batch, preset = ctx.batch, ctx.preset
    buckets = np.maximum(blocks / batch.pp, 1.0)
    whole, one = traffic(ctx, held, end, buckets), traffic(ctx, unit)
    # Traffic once a step has the compute of these alone beside it, not that of all micro-batches.
    ahead = covering_micro_batches(batch)
    forward_s, backward_s = forward_s * ahead, backward_s * ahead
    scatter = exposed_once_s(ctx, whole.reduce_scatter_s, backward_s, buckets, preset.dp_overlap)
    reduce = exposed_once_s(ctx, whole.all_reduce_s, backward_s, buckets, preset.dp_overlap)
    gather = exposed_once_s(ctx, whole.all_gather_s, forward_s, buckets, preset.param_overlap)
    replicas = exposed_once_s(ctx, replica_reduce_s(ctx, held, end), backward_s, buckets, preset.dp_overlap)
    count = passes(ctx)
    # A reduction that is held back comes for all blocks at once, in the last micro-batch.
    late = 0.0 if preset.reduce_each_micro_batch else scatter
    # The first block's gather and the last one's reduction have no other block's compute beside them.
    streaming = (0.0 if ctx.ideal else one.all_gather_s + one.reduce_scatter_s) + late
    streams = (batch.zero == 3) & ~keeps_gathered(preset, batch)
    moved = count.all_reduce * reduce + count.reduce_scatter * scatter + count.all_gather * gather
    return np.where(streams, streaming, moved) + count.replicas * replicas


def covering_micro_batches(batch: LayoutBatch) -> FloatArray:
    """Micro-batches (n,) whose compute on a stage can hide traffic that is sent once per step.

    One, the last backward or the first forward. Interleaving runs groups of pp micro-batches through one chunk after
    the other: a chunk's gradients are final, and its weights not yet needed, while the group is in other chunks.
    """
    interleaved = schedule_of(batch).schedule is Schedule.INTERLEAVED
    group = np.minimum(batch.pp, batch.micro_batches) * (1.0 - 1.0 / batch.vp)
    return np.maximum(group, 1.0) if interleaved else np.ones(len(batch))
