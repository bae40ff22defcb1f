"""What every rank sends in a step: its collectives counted, from the volumes and passes that the prices rest on.

Counts are those of one rank. Data-parallel traffic counts one call per block and per end of the model, however a trainer
cuts its buckets. Sums of replicated weights' gradients over tensor-parallel ranks are listed and, being a few KB, have no
price; scalars (loss, gradient norm) are not listed.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.batch import batch_of_one
from layoutopt.optimizer.cost.communication import (
    activation_bytes,
    gathered_operand_bytes,
    split_heads_bytes,
    tp_pairs,
)
from layoutopt.optimizer.cost.context_parallel import (
    division,
    exchanged_bytes,
    gathered_bytes,
    mamba_bytes,
    passed_bytes,
    ring_bytes,
)
from layoutopt.optimizer.cost.data_parallel import passes, volumes
from layoutopt.optimizer.cost.ends import LOSS_BYTES, LOSS_SUMS
from layoutopt.optimizer.cost.estimate import distinct_ranks
from layoutopt.optimizer.cost.expert_exchange import all_to_all_bytes, routed_bytes
from layoutopt.optimizer.cost.parameters import block_parameters, norm_width, norms_of
from layoutopt.optimizer.cost.pipeline import schedule_of
from layoutopt.optimizer.cost.placement import groups_of, order_of
from layoutopt.optimizer.cost.stage_counts import rank_blocks
from layoutopt.optimizer.cost.stage_parameters import end_parameters
from layoutopt.optimizer.cost.states import keeps_gathered, on_rank
from layoutopt.optimizer.specs.model import Mixer, Mlp
from layoutopt.optimizer.specs.stage_split import model_order
from layoutopt.optimizer.specs.vocabulary import Granularity

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from layoutopt.optimizer.cost.batch import LayoutBatch
    from layoutopt.optimizer.cost.communication import CommContext
    from layoutopt.optimizer.cost.cost_model import CostModel
    from layoutopt.optimizer.cost.data_parallel import DpContext
    from layoutopt.optimizer.cost.states import RankParameters
    from layoutopt.optimizer.specs.layout import Layout
    from layoutopt.optimizer.specs.model import LayerShape

    FloatArray = NDArray[np.float64]
    IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveCall:
    """Equal calls of one rank of a pipeline stage in one step.

    ``bytes`` is the whole tensor of one call: gathered, before it is scattered, reduced, one rank's send buffer of an
    all-to-all, sent. ``axis`` is tp, cp, ep, etp, dp (with cp: what shares dense state), edp (experts' share) or pp.
    """

    stage: int
    axis: str
    kind: str
    ranks: int
    count: int
    bytes: int


@dataclass(frozen=True, slots=True)
class _Ledger:
    """Calls of one rank by axis, kind, members and bytes."""

    calls: Counter[tuple[str, str, int, int]] = field(default_factory=Counter)

    def add(
        self, axis: str, kind: str, ranks: FloatArray | IntArray | int, size: FloatArray, count: float
    ) -> None:
        """Count calls; a group of one, and nothing, are no traffic."""
        # Prices are arrays over layouts; a ledger is of one.
        members, bytes_ = int(np.ravel(ranks)[0]), round(float(np.ravel(size)[0]))
        if members > 1 and bytes_ > 0 and count > 0:
            self.calls[(axis, kind, members, bytes_)] += round(count)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """A layout's step: one row, what its traffic is priced with, and its micro-batches on one copy of a stage."""

    cost: CostModel
    layout: Layout
    batch: LayoutBatch
    comm: CommContext
    dp: DpContext
    micro_batches: float

    @property
    def again(self) -> tuple[str, ...]:
        """Modules that are recomputed selectively."""
        recompute = self.layout.recompute
        return recompute.modules if recompute.granularity is Granularity.SELECTIVE else ()


def collectives(cost: CostModel, layout: Layout) -> tuple[CollectiveCall, ...]:
    """Count the collectives of one rank of every pipeline stage in a step of a layout with explicit stages."""
    batch = batch_of_one(layout)
    cost, order = cost.saving(batch), order_of(batch, closest=False)
    step = _Step(
        cost=cost,
        layout=layout,
        batch=batch,
        comm=cost.comm_context(batch, order),
        dp=cost.dp_context(batch, groups_of(order, batch)),
        # DualPipe's two copies of a stage share the step's micro-batches.
        micro_batches=layout.micro_batches / schedule_of(batch).parameter_copies,
    )
    blocks, recomputed = rank_blocks(layout, cost.model)
    ranks = [_rank(step, rank, blocks, recomputed) for rank in range(len(blocks))]
    sends = _sends(layout)
    listed = []
    for stage, rank in enumerate(distinct_ranks(len(blocks), layout.pp)):
        ledger = _Ledger(ranks[rank].calls.copy())
        ledger.add("pp", "send", layout.pp, cost.boundary_bytes(batch), sends[stage])
        for (axis, kind, members, size), count in sorted(ledger.calls.items()):
            listed.append(
                CollectiveCall(stage=stage, axis=axis, kind=kind, ranks=members, count=count, bytes=size)
            )
    return tuple(listed)


def _rank(step: _Step, rank: int, blocks: IntArray, recomputed: IntArray) -> _Ledger:
    """Count what one distinct rank calls, but for sends."""
    ledger, model, m = _Ledger(), step.cost.model, step.micro_batches
    # In a folded pipeline the first rank has both ends.
    first, last = rank == 0, rank == (0 if schedule_of(step.batch).folded else len(blocks) - 1)
    for run, number, again in zip(model.runs, blocks[rank], recomputed[rank], strict=True):
        for shape in run.block:
            _layer(ledger, step, shape, number * m, again * m)
    if last and model.mtp_layers:
        _layer(ledger, step, model.last_shape, model.mtp_layers * m, 0.0)
    _tensor_parallel_ends(ledger, step, first=first, last=last)
    _replicated_sums(ledger, step, blocks[rank], last=last)
    _data_parallel(ledger, step, blocks[rank], first=first, last=last)
    return ledger


def _layer(ledger: _Ledger, step: _Step, shape: LayerShape, times: float, again: float) -> None:
    """Count one layer's calls in ``times`` micro-batches, of which ``again`` pass forward twice."""
    comm, layout = step.comm, step.layout
    pairs, size = tp_pairs(comm, shape), activation_bytes(comm)
    if layout.sp:
        kept = (
            0 if step.cost.preset.tp_async_backward else 1
        )  # a gathered input that is at hand is not gathered again
        # A recomputed MLP needs its gathered input once more.
        selective = times * (shape.mlp is Mlp.DENSE and "mlp" in step.again)
        operand, gradient = gathered_operand_bytes(comm)
        ledger.add("tp", "all_gather", layout.tp, operand, pairs * ((2 - kept) * times + again) + selective)
        ledger.add("tp", "all_gather", layout.tp, gradient, pairs * times)
        # Of a recomputed layer the last sum only gives an output that nothing needs again.
        ledger.add("tp", "reduce_scatter", layout.tp, size, 2 * pairs * times + max(pairs - 1, 0) * again)
    else:
        ledger.add("tp", "all_reduce", layout.tp, size, 2 * pairs * times + max(pairs - 1, 0) * again)
    heads = split_heads_bytes(comm, shape)
    ledger.add("tp", "all_gather", layout.tp, heads, times + again)
    ledger.add("tp", "reduce_scatter", layout.tp, heads, times)
    if shape.mixer is not Mixer.NONE:
        _context_parallel(ledger, step, shape, times, again + times * ("core_attn" in step.again))
    if shape.mlp is Mlp.MOE:
        _experts(ledger, step, times, again + times * ("moe" in step.again))


def _context_parallel(ledger: _Ledger, step: _Step, shape: LayerShape, times: float, again: float) -> None:
    """Count one layer's context-parallel calls."""
    comm, cp = step.comm, step.layout.cp
    if shape.mixer is Mixer.MAMBA:
        ledger.add("cp", "all_to_all", cp, mamba_bytes(comm), 2 * times + again)
        return
    if shape.mixer.is_linear:
        ledger.add("cp", "all_gather", cp, passed_bytes(comm), 2 * times + again)
        return
    (kind,) = comm.compute.switches.cp_kinds
    parts, piece = division(comm.compute, comm.keys, shape, kind), ring_bytes(comm, shape)
    # A ring hides behind attention step by step; gathers come before it, whole.
    if parts.gathered:
        forward = 1 if step.cost.preset.keeps_gathered_keys else 2
        for whole in gathered_bytes(comm, shape):
            ledger.add("cp", "all_gather", cp, whole, forward * times + again)
            ledger.add("cp", "reduce_scatter", cp, whole, times)
        return
    # In its last step a ring's pieces have been everywhere.
    hops = float(parts.ring[0]) - 1
    ledger.add("cp", "all_to_all", parts.heads, exchanged_bytes(comm, shape), 2 * times + again)
    ledger.add("cp", "send", parts.ring, piece, hops * (times + again))
    # Backward sends the gradients of keys and values along with them.
    ledger.add("cp", "send", parts.ring, 2 * piece, hops * times)


def _experts(ledger: _Ledger, step: _Step, times: float, again: float) -> None:
    """Count one layer's dispatch, combine and their backward, and the exchange of an expert-tensor group."""
    dispatch, combine = all_to_all_bytes(step.comm)
    ledger.add("ep", "all_to_all", step.layout.ep, dispatch, times + again)
    # Only the dispatch may be narrow: gradients of both, and the combine, travel in 16 bits.
    ledger.add("ep", "all_to_all", step.layout.ep, combine, 3 * times + again)
    for kind in ("all_gather", "reduce_scatter"):
        ledger.add("etp", kind, step.layout.etp, routed_bytes(step.comm), 2 * times + again)


def _tensor_parallel_ends(ledger: _Ledger, step: _Step, *, first: bool, last: bool) -> None:
    """Count the vocabulary's collectives: the embedding's output and its gradient, the head's input, the loss."""
    layout, size = step.layout, activation_bytes(step.comm)
    heads = last * (1 + step.cost.model.mtp_layers) * step.micro_batches
    # The embedding is passed once a micro-batch, the head as often as tokens are predicted ahead.
    ends = first * step.micro_batches + heads
    for kind in ("all_gather", "reduce_scatter") if layout.sp else ("all_reduce",):
        ledger.add("tp", kind, layout.tp, size, ends)
    ledger.add("tp", "all_reduce", layout.tp, LOSS_BYTES * step.comm.keys.tokens, LOSS_SUMS * heads)


def _replicated_sums(ledger: _Ledger, step: _Step, blocks: IntArray, *, last: bool) -> None:
    """Count sums of the gradients of weights that sequence-parallel ranks hold whole.

    All of them at the end of a step (NVIDIA/Megatron-LM finalize_model_grads.py); over DTensor each norm's own, in every
    micro-batch unless a pipeline schedule holds gradients back.
    """
    layout, model, preset = step.layout, step.cost.model, step.cost.preset
    if not layout.sp:
        return
    width = norm_width(model) * model.hidden
    # Megatron-LM adds them up in one flat buffer.
    if preset.holds_back_traffic:
        whole = sum(
            n * block_parameters(model, run).replicated for n, run in zip(blocks, model.runs, strict=True)
        )
        ledger.add("tp", "all_reduce", layout.tp, np.asarray(preset.grad_bytes * (whole + last * width)), 1)
        return
    norms = sum(
        n * sum(norms_of(model, shape) for shape in run.block)
        for n, run in zip(blocks, model.runs, strict=True)
    )
    once = layout.pp > 1
    size = width * (preset.grad_comm_bytes if once else preset.weight_bytes)
    ledger.add(
        "tp", "all_reduce", layout.tp, np.asarray(size), (norms + last) * (1 if once else step.micro_batches)
    )


def _data_parallel(ledger: _Ledger, step: _Step, blocks: IntArray, *, first: bool, last: bool) -> None:
    """Count the passes of a rank's parameters, block by block and end by end, and weights that two ranks hold."""
    cost, batch = step.cost, step.batch
    held = [
        on_rank(cost.model, block_parameters(cost.model, run), batch, cost.preset) for run in cost.model.runs
    ]
    for number, block in zip(blocks, held, strict=True):
        _parameters(ledger, step, block, number, gathers=2.0)
    schedule = schedule_of(batch)
    ends = end_parameters(cost.model, cost.preset, batch, folded=schedule.folded)
    for there, end, gathers in ((first, ends[0], 2.0), (last, ends[1], 1.0)):  # the last unit stays gathered
        if there:
            _parameters(ledger, step, end, 1, gathers=gathers, end=end)
    total = sum(
        (block.scaled(float(n)) for n, block in zip(blocks[1:], held[1:], strict=True)),
        held[0].scaled(float(blocks[0])),
    )
    if schedule.parameter_copies > 1 or first or last:
        # Either end holds a copy of the embedding, and DualPipe's ranks one of each other's stages.
        size = cost.shared_bytes(batch, total)
        ledger.add("pp", "all_reduce", min(step.layout.pp, 2), size, 1)


def _parameters(
    ledger: _Ledger,
    step: _Step,
    held: RankParameters,
    number: int,
    *,
    gathers: float,
    end: RankParameters | None = None,
) -> None:
    """Count the passes of ``number`` equal units; under ZeRO-3 each is gathered ``gathers`` times a micro-batch."""
    dp, layout = step.dp, step.layout
    moved, each = volumes(dp, held, end), passes(dp)
    streams = layout.zero == 3 and not bool(keeps_gathered(step.cost.preset, step.batch)[0])
    # Passes count a gather for forward and one for backward: the last unit needs one of the two.
    gathered = float(each.all_gather[0]) * (gathers / 2 if streams else 1.0)
    shard, edp = dp.shard_group().size, dp.groups.edp.size
    for axis, ranks, grad, weight, whole in (
        ("dp", shard, moved.dense_grad, moved.dense_weight, dp.groups.dp_cp.size),
        ("edp", edp, moved.expert_grad, moved.expert_weight, edp),
    ):
        ledger.add(axis, "all_reduce", whole, grad, number * float(each.all_reduce[0]))
        ledger.add(axis, "reduce_scatter", ranks, grad, number * float(each.reduce_scatter[0]))
        ledger.add(axis, "all_gather", ranks, weight, number * gathered)
    outer = dp.groups.hsdp_outer(step.batch.hsdp_shard).size
    ledger.add("dp", "all_reduce", outer, moved.dense_grad / shard, number * float(each.replicas[0]))


def _sends(layout: Layout) -> list[int]:
    """Sends of every rank in a step: outputs to the next virtual stage, gradients to the one before, on other ranks."""
    ranks = [entry % layout.pp for entry in model_order(layout.pp, layout.vp, layout.schedule)]
    sends = [0] * layout.pp
    for one, other in itertools.pairwise(ranks):
        # Stages on one rank hand over without a transfer.
        if one != other:
            sends[one] += layout.micro_batches
            sends[other] += layout.micro_batches
    return sends
