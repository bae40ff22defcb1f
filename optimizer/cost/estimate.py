"""One layout's price with its breakdown: step time, throughput, utilisation, and memory of every stage."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from math import fsum
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.batch import batch_of_one
from layoutopt.optimizer.cost.components import Component
from layoutopt.optimizer.cost.flops import attention_flops, layer_flops, mlp_flops
from layoutopt.optimizer.cost.frozen import trained_flops_per_token
from layoutopt.optimizer.cost.stage_counts import seat_blocks
from layoutopt.optimizer.cost.step import durations, graph_of
from layoutopt.optimizer.cost.term_parts import groups_of
from layoutopt.optimizer.specs.vocabulary import Granularity

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from layoutopt.optimizer.cost.batch import LayoutBatch
    from layoutopt.optimizer.cost.cost_model import CostModel
    from layoutopt.optimizer.cost.term_parts import TermParts
    from layoutopt.optimizer.specs.layout import Layout

    FloatArray = NDArray[np.float64]
    IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """Peak bytes of tensors on one pipeline rank, by component; they sum to ``total_bytes``."""

    rank: int
    components_bytes: dict[str, float]
    total_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """Memory of the fullest rank and of every rank.

    ``peak_bytes`` counts tensors; ``reserved_bytes`` adds the allocator's reserve and ``device_bytes`` context and
    communication buffers too (what nvidia-smi shows). ``capacity_bytes`` is what tensors may use, from
    ``borderline_bytes`` on it is close. ``weight_bytes`` are those of one parameter of a block, copies included.
    """

    peak_bytes: float
    capacity_bytes: float
    borderline_bytes: float
    reserved_bytes: float
    device_bytes: float
    weight_bytes: float
    stages: tuple[RankMemory, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The price of one layout. ``breakdown_s`` sums to ``step_time_s``; ``rank_time_s`` is one micro-batch per rank."""

    step_time_s: float
    breakdown_s: dict[Component, float]
    tokens_per_s_per_gpu: float
    tflops_per_gpu: float
    mfu_causal: float
    mfu_full: float
    hfu: float
    memory: MemoryEstimate
    rank_time_s: tuple[float, ...]


def estimate(cost: CostModel, layout: Layout) -> Estimate:
    """Price a layout with explicit stages."""
    blocks, recomputed = seat_blocks(layout, cost.model)
    return estimate_row(cost, layout, batch_of_one(layout), blocks, recomputed)


def estimate_row(
    cost: CostModel, layout: Layout, batch: LayoutBatch, blocks: IntArray, recomputed: IntArray
) -> Estimate:
    """Price one row with its blocks and recomputed blocks by chunk, distinct rank and kind, (V, P, K) each.

    The step is that of the order of operations that runs; of a number of micro-batches that no order runs, that of
    the closed form.
    """
    ((_, parts),) = cost.parts(batch)
    of_rank, again = blocks.sum(axis=0), recomputed.sum(axis=0)
    ranks = _rank_parts(parts, of_rank, again)
    rank_time = np.sum(list(ranks.values()), axis=0)
    breakdown = _breakdown(parts, ranks, rank_time, _pipeline_s(parts, rank_time, blocks, recomputed))
    memory = _memory(cost, parts, blocks, again)
    return _rates(cost, layout, fsum(breakdown.values()), breakdown, memory, rank_time, again)


def rank_breakdowns(cost: CostModel, layout: Layout) -> tuple[dict[Component, float], ...]:
    """Return the breakdown of the step as every pipeline rank sees it: its own work, and the rest of the step idle.

    Each sums to the step time; that of the slowest rank is ``breakdown_s`` of the estimate.
    """
    blocks, recomputed = seat_blocks(layout, cost.model)
    ((_, parts),) = cost.parts(batch_of_one(layout))
    ranks = _rank_parts(parts, blocks.sum(axis=0), recomputed.sum(axis=0))
    rank_time = np.sum(list(ranks.values()), axis=0)
    pipeline = _pipeline_s(parts, rank_time, blocks, recomputed)
    seen = [_breakdown(parts, ranks, rank_time, pipeline, rank) for rank in range(len(rank_time))]
    return tuple(seen[rank] for rank in distinct_ranks(len(rank_time), layout.pp))


def _pipeline_s(
    parts: TermParts, rank_time: FloatArray, blocks: IntArray, recomputed: IntArray
) -> tuple[float, float]:
    """Return the seconds of the pipeline without transfers, and what exposed transfers add."""
    terms = parts.terms()
    graph = graph_of(terms, 0)
    if graph is None:
        fixed = {name: float(value[0]) for name, value in parts.fixed_s.items()}
        others = float(parts.bubble_weight[0] * (rank_time.sum() - rank_time.max()))
        alone = int(parts.batch.micro_batches[0]) * float(rank_time.max()) + others
        return alone + fixed[Component.BUBBLE], fixed[Component.PP]
    # The step twice, once with transfers that take no time: the difference is what they expose.
    both = durations(terms, 0, np.stack([blocks] * 2), np.stack([recomputed] * 2))
    with_hops, alone = graph.makespan_s(replace(both, hop_s=both.hop_s * [1.0, 0.0])).tolist()
    return alone, with_hops - alone


def _breakdown(
    parts: TermParts,
    ranks: dict[Component, FloatArray],
    rank_time: FloatArray,
    pipeline: tuple[float, float],
    rank: int | None = None,
) -> dict[Component, float]:
    """Split a step: what a rank works through, what it waits for, and what is outside the pipeline; None: the slowest."""
    rank, m = int(rank_time.argmax()) if rank is None else rank, int(parts.batch.micro_batches[0])
    breakdown = dict.fromkeys(Component, 0.0)
    for name, value in ranks.items():
        breakdown[name] += m * float(value[rank])
    breakdown[Component.BUBBLE] += pipeline[0] - m * float(rank_time[rank])
    breakdown[Component.PP] += pipeline[1]
    for name, value in parts.outside().items():
        breakdown[name] += float(value[0])
    return breakdown


def _rank_parts(parts: TermParts, blocks: IntArray, recomputed: IntArray) -> dict[Component, FloatArray]:
    """Seconds of one micro-batch on every rank, by component."""
    ranks: dict[Component, FloatArray] = {}
    zero = np.zeros(len(blocks))
    for name, value in parts.layer_s.items():
        ranks[name] = ranks.get(name, zero) + blocks @ value[0]
    for name, value in parts.recompute_s.items():
        ranks[name] = ranks.get(name, zero) + recomputed @ value[0]
    for index, ends in ((0, parts.first_s), (len(blocks) - 1, parts.last_s)):
        for name, end in ends.items():
            ranks[name] = ranks.get(name, zero).copy()
            ranks[name][index] += float(end[0])
    return ranks


def distinct_ranks(distinct: int, pp: int) -> list[int]:
    """Return which distinct rank each of ``pp`` ranks is: in a pipeline fed from both ends, s and pp - 1 - s are one."""
    return [rank if rank < distinct else pp - 1 - rank for rank in range(pp)]


def _ragged_bytes(parts: TermParts, sizes: IntArray) -> tuple[FloatArray, FloatArray]:
    """Bytes (P,) of ranks whose chunks, ``sizes`` (V, P) layers, are no whole groups, beyond those of L/k saved inputs.

    A chunk saves an input for what is left over too; and it holds no more layers at once than it has.
    """
    group = int(groups_of(parts.batch)[0])
    saved = parts.recomputed_activation_bytes[0].max() * group
    inputs = saved * (-(-sizes // group) - sizes / group).sum(axis=0) * parts.in_flight[0, : sizes.shape[1]]
    whole = (sizes % group == 0).all(axis=0)
    most = np.where(whole, group, np.minimum(sizes.max(axis=0), group))
    return np.where(whole, 0.0, inputs), most / group - 1.0


def _memory(cost: CostModel, parts: TermParts, chunks: IntArray, recomputed: IntArray) -> MemoryEstimate:
    """Memory of every rank by component, for blocks (V, P, K); ranks that hold the same stages look alike."""
    blocks = chunks.sum(axis=0)
    last = len(blocks) - 1
    ragged = _ragged_bytes(parts, chunks.sum(axis=2))
    stages = []
    for place, rank in enumerate(distinct_ranks(len(blocks), int(parts.batch.pp[0]))):
        components = {name: float(blocks[rank] @ value[0]) for name, value in parts.layer_states.items()}
        components |= {name: float(value[0]) for name, value in parts.common_bytes.items()}
        flight = float(parts.in_flight[0, rank])
        # Every rank lists it, so that ranks can be compared line by line.
        components["logits"] = 0.0
        if parts.flight_bytes[0]:
            components["outputs"] += float(parts.flight_bytes[0]) * flight
        for at, ends in ((0, parts.first_states), (last, parts.last_states)):
            for name, value in ends.items() if rank == at else ():
                components[name] += float(value[0])
        saved = parts.layer_activation_bytes[0] - parts.recomputed_activation_bytes[0]
        held = float(blocks[rank] @ parts.layer_activation_bytes[0] - recomputed[rank] @ saved)
        components["activations"] = held * flight + float(ragged[0][rank])
        again = float(parts.recompute_transient_bytes[0]) * bool(recomputed[rank].any())
        together = components.get("recompute_transient", 0.0) * (1.0 + float(ragged[1][rank]))
        components["recompute_transient"] = together + again
        stages.append(
            RankMemory(rank=place, components_bytes=components, total_bytes=fsum(components.values()))
        )
    peak = max(stage.total_bytes for stage in stages)
    reserved = peak if cost.ideal else peak * (1 + cost.preset.allocator_reserve)
    return MemoryEstimate(
        peak_bytes=peak,
        capacity_bytes=float(parts.capacity_bytes[0]),
        borderline_bytes=float(parts.capacity_bytes[0]) * cost.preset.borderline_share,
        reserved_bytes=reserved,
        device_bytes=reserved if cost.ideal else reserved + cost.preset.overhead_bytes,
        weight_bytes=cost.weight_bytes(parts.batch),
        stages=tuple(stages),
    )


def _rates(
    cost: CostModel,
    layout: Layout,
    step: float,
    breakdown: dict[Component, float],
    memory: MemoryEstimate,
    rank_time: FloatArray,
    recomputed: IntArray,
) -> Estimate:
    """Throughput and utilisation from the step time. The simple model counts the input embedding, as 6N does."""
    model, length = cost.model, cost.training.sequence_length
    tokens_per_s = cost.training.tokens_per_step / step / layout.gpus
    counted = partial(trained_flops_per_token, model, cost.training, length)
    causal, full = counted(causal=True), counted(causal=False)
    if cost.ideal:
        causal, full = (value + 6.0 * model.hidden * model.vocab for value in (causal, full))
    peak = cost.cluster.gpu.dense_flops[layout.precision]
    again = _recomputed_flops(cost, layout, recomputed)
    return Estimate(
        step_time_s=step,
        breakdown_s=breakdown,
        tokens_per_s_per_gpu=tokens_per_s,
        tflops_per_gpu=causal * tokens_per_s / 1e12,
        mfu_causal=causal * tokens_per_s / peak,
        mfu_full=full * tokens_per_s / peak,
        hfu=(causal + again) * tokens_per_s / peak,
        memory=memory,
        rank_time_s=tuple(
            float(rank_time[rank]) for rank in distinct_ranks(len(rank_time), len(memory.stages))
        ),
    )


def _recomputed_flops(cost: CostModel, layout: Layout, recomputed: IntArray) -> float:
    """Forward FLOPs per token that recomputation repeats: whole blocks, or selective attention and MLPs."""
    length, extra = cost.training.sequence_length, 0.0
    modules = layout.recompute.modules if layout.recompute.granularity is Granularity.SELECTIVE else ()
    for kind, run in enumerate(cost.model.runs):
        for shape in run.block:
            whole = layer_flops(cost.model, shape, length, causal=True)
            extra += float(recomputed[:, kind].sum()) * whole
            if "core_attn" in modules:
                extra += run.count * attention_flops(cost.model, shape, length, causal=True)
            if "mlp" in modules or "moe" in modules:
                extra += run.count * mlp_flops(cost.model, shape)
    return extra
