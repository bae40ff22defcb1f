"""Expert parallelism inside a layer: dispatch and combine of routed tokens, and what of them compute hides.

Volumes: the expert token dispatchers of NVIDIA/Megatron-LM and deepseek-ai/DeepEP; prices from the topology room.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.communication import Exposed
from layoutopt.optimizer.cost.compute import imbalance, routed_share
from layoutopt.optimizer.cost.context_parallel import BF16_BYTES
from layoutopt.optimizer.cost.formats import NARROW_BYTES
from layoutopt.optimizer.cost.routing import reached_parts
from layoutopt.optimizer.frameworks.preset import EpOverlap
from layoutopt.optimizer.specs.model import Mlp
from layoutopt.optimizer.specs.vocabulary import Dispatcher, Precision

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from layoutopt.optimizer.cost.communication import CommContext
    from layoutopt.optimizer.cost.work import Work
    from layoutopt.optimizer.specs.model import LayerShape, MoeSpec
    from layoutopt.optimizer.topology.groups import GroupBatch

    FloatArray = NDArray[np.float64]


def expert_parallel(comm: CommContext, shape: LayerShape, work: dict[str, Work]) -> Exposed:
    """Price dispatch and combine of a mixture-of-experts layer and what the framework hides of them."""
    if shape.mlp is not Mlp.MOE:
        return comm.nothing()
    dispatch, combine = (_exchange_s(comm, sent) for sent in all_to_all_bytes(comm))
    # Every expert-tensor rank multiplies all rows of the group: they are gathered first, and summed after.
    inner = _expert_tensor_parallel(comm)
    forward, backward = dispatch + combine, 2 * combine
    hidden = _hidden(comm, work, dispatch, combine)
    # Only what another micro-batch hides shows again while the pipeline fills and drains.
    beside = comm.paired or comm.compute.switches.overlap[EpOverlap.BATCH].any()
    return Exposed(
        forward - hidden.forward_s + inner,
        backward - hidden.backward_s + inner,
        forward + inner,
        *((hidden.other_forward_s, hidden.other_backward_s) if beside else (0.0, 0.0)),
    )


def all_to_all_bytes(comm: CommContext) -> tuple[FloatArray, FloatArray]:
    """Bytes that a rank sends in one dispatch and in one combine, each copy of a token counted, (n,) each.

    With a capacity all-to-alls carry that many rows to every expert, empty ones among them (NVIDIA/Megatron-LM
    token_dispatcher.py, ``drop_and_pad``); HybridEP fills up what it received.
    """
    ctx, moe = comm.compute, comm.compute.model.moe
    assert moe is not None
    # A combine sums up to top_k rows, for which 8 bits are too coarse (DeepSeek-V3 report, section 3.3.3).
    narrow = ctx.preset.dispatch_fp8 and ctx.rates.eight_bit
    share = ctx.switches.per_dispatcher(
        lambda dispatcher: np.asarray(
            routed_share(ctx) if dispatcher is Dispatcher.ALLTOALL else imbalance(ctx)
        )
    )
    copies = ctx.model.hidden * comm.keys.local_tokens * share * moe.top_k
    return (NARROW_BYTES[Precision.FP8] if narrow else BF16_BYTES) * copies, BF16_BYTES * copies


def _exchange_s(comm: CommContext, sent: FloatArray) -> FloatArray:
    """One dispatch or combine of routed tokens, ``sent`` bytes with each copy of a token counted."""
    prices = {
        Dispatcher.ALLTOALL: lambda: comm.topology.all_to_all_s(sent, comm.groups.ep),
        Dispatcher.ALLGATHER: lambda: _gathered_s(comm, sent),
    }
    return comm.compute.switches.per_dispatcher(
        lambda dispatcher: prices.get(dispatcher, lambda: _deduplicated_s(comm, sent))()
    )


def _gathered_s(comm: CommContext, sent: FloatArray) -> FloatArray:
    """One gather of all tokens of an expert group, which every rank picks its own from."""
    moe = comm.compute.model.moe
    assert moe is not None
    # A gather moves each token once, however many experts it chose.
    return comm.topology.all_gather_s(sent / moe.top_k * comm.keys.ep, comm.groups.ep)


def _deduplicated_s(comm: CommContext, sent: FloatArray) -> FloatArray:
    """Exchange in which a token goes once to every NVLink domain it reaches, and inside it once to every rank.

    deepseek-ai/DeepEP csrc/kernels, is_token_in_rank.
    """
    group, moe = comm.groups.ep, comm.compute.model.moe
    assert moe is not None
    near, remote = _copies(group, comm.topology.nvlink_domain, moe)
    tokens = sent / moe.top_k
    return comm.topology.all_to_all_split_s(tokens * near, tokens * remote, group)


def _copies(group: GroupBatch, domain: int, moe: MoeSpec) -> tuple[FloatArray, FloatArray]:
    """Copies of a token that leave a rank inside its NVLink domain, and for other domains, (n,) each."""
    few, index = group.distinct()
    key = (domain, moe)
    if key not in few.memo:
        # Under an explicit placement the fewest members in a domain: it has the fewest links for what it
        # exchanges.
        within = few.members_within(domain)
        ranks = few.size.astype(np.float64)
        domains = np.maximum(ranks / within, 1.0)
        # Experts are as likely at home as anywhere: of the domains that a token reaches that share needs no
        # link.
        far = reached_parts(domains, moe, least=few.closest) * (1 - 1 / domains)
        # Inside a domain a token is sent once to each rank that has some of its experts.
        near = reached_parts(ranks, moe, least=few.closest) * (1 - 1 / within)
        few.memo[key] = near, far
    near, far = few.memo[key]
    return (near, far) if index is None else (near[index], far[index])


def counts_awaited_s(comm: CommContext, shape: LayerShape) -> FloatArray:
    """Time (n,) the host waits for other ranks' token counts before a dispatch by DeepEP; others wait for their own."""
    zero, constants = np.zeros_like(comm.keys.tp), comm.compute.constants
    if shape.mlp is not Mlp.MOE or comm.compute.rates.ideal:
        return zero
    # No bytes: what counts is the latency of small messages between all ranks.
    waited = constants["dispatch_rounds"] * comm.topology.all_to_all_s(zero, comm.groups.ep)
    return comm.compute.switches.per_dispatcher(
        lambda dispatcher: waited if dispatcher is Dispatcher.DEEPEP else zero
    )


def routed_bytes(comm: CommContext) -> FloatArray:
    """Bytes of the rows that an expert-tensor group gathers before its experts and scatters after them, (n,)."""
    model = comm.compute.model
    assert model.moe is not None
    copies = 1.0 if comm.compute.preset.gathers_tokens else model.moe.top_k * routed_share(comm.compute)
    return BF16_BYTES * comm.keys.local_tokens * copies * comm.keys.etp * model.hidden


def _expert_tensor_parallel(comm: CommContext) -> FloatArray:
    """Gather and scatter of routed rows over the expert-tensor group, exposed."""
    size, topology, group = routed_bytes(comm), comm.topology, comm.groups.etp
    return topology.all_gather_s(size, group) + topology.reduce_scatter_s(size, group)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Hidden:
    """Seconds of expert traffic hidden forward and backward, and of these what only another micro-batch hides."""

    forward_s: FloatArray
    backward_s: FloatArray
    other_forward_s: FloatArray
    other_backward_s: FloatArray


ATTENTION_SIDE = ("qkv", "rotary", "mla_up_proj", "indexer", "core_attn", "proj", "router")
"""Work of a layer in front of its experts."""


def _hidden(comm: CommContext, work: dict[str, Work], dispatch: FloatArray, combine: FloatArray) -> _Hidden:
    """Seconds of expert traffic hidden forward and backward."""
    zero, ways = np.zeros_like(dispatch), comm.compute.switches.overlap
    if comm.compute.rates.ideal:
        return _Hidden(forward_s=zero, backward_s=zero, other_forward_s=zero, other_backward_s=zero)
    forward, backward = dispatch + combine, 2 * combine
    if comm.paired:
        # A forward and a backward run together: traffic of both hides under the compute of both.
        cover = sum((part.forward_s + part.dgrad_s + part.wgrad_s for part in work.values()), zero)
        covered = comm.compute.constants["dp_hidden"] * cover / np.maximum(forward + backward, 1e-12)
        share = np.minimum(covered, 1.0)
        pair = share * forward, share * backward
        return _Hidden(
            forward_s=pair[0], backward_s=pair[1], other_forward_s=pair[0], other_backward_s=pair[1]
        )
    shared = _beside_shared_expert(work, forward, backward)
    merged = _beside_other_passes(comm, work, dispatch, combine)
    best = [
        # Both at once hide no more than the better one: they share the same traffic.
        np.maximum(ways[EpOverlap.SHARED] * one, ways[EpOverlap.BATCH] * other)
        for one, other in zip(shared, merged, strict=True)
    ]
    others = [ways[EpOverlap.BATCH] * other for other in merged]
    return _Hidden(
        forward_s=best[0], backward_s=best[1], other_forward_s=others[0], other_backward_s=others[1]
    )


def _beside_shared_expert(
    work: dict[str, Work], forward: FloatArray, backward: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Seconds of traffic that the shared expert's own work hides."""
    shared = work.get("shared_experts")
    if shared is None:
        return 0.0 * forward, 0.0 * backward
    # The shared expert has nothing to do with routing, so that its whole work can run beside it.
    return np.minimum(forward, shared.forward_s), np.minimum(backward, shared.dgrad_s + shared.wgrad_s)


def _beside_other_passes(
    comm: CommContext, work: dict[str, Work], dispatch: FloatArray, combine: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Seconds of traffic hidden where a forward of one micro-batch runs beside a backward of another.

    Each exchange has its own piece of the other pass beside it (NVIDIA/Megatron-LM pipeline_parallel/combined_1f1b.py):
    dispatch the experts' backward, combine the attention's, and backward the exchange of the combine's gradient the
    attention's forward, that of the dispatch's the experts' forward. Weight gradients of the experts run with their
    backward, or delayed beside the dispatch's gradient.
    """
    constants, late = comm.compute.constants, comm.compute.switches.delay_wgrad
    zero = np.zeros_like(dispatch)

    def total(time: str, *, attention: bool) -> FloatArray:
        """Sum one time of the parts of attention, or of those after it, (n,)."""
        parts = (part for name, part in work.items() if (name in ATTENTION_SIDE) is attention)
        return sum((getattr(part, time) for part in parts), zero)

    weights = total("wgrad_s", attention=False)
    either = comm.compute.switches.cheapest
    # Rows for every switch take both, which is optimistic.
    before, behind = np.where(late & (not either), 0.0, weights), np.where(late, weights, 0.0)
    under = {
        "dispatch": total("dgrad_s", attention=False) + before,
        "combine": total("dgrad_s", attention=True) + total("wgrad_s", attention=True),
        "combine_gradient": total("forward_s", attention=True),
        "dispatch_gradient": total("forward_s", attention=False) + behind,
    }
    share = constants["ep_hidden"] * _beside_kernels(comm)
    forward = np.minimum(dispatch, under["dispatch"]) + np.minimum(combine, under["combine"])
    backward = np.minimum(combine, under["combine_gradient"]) + np.minimum(
        combine, under["dispatch_gradient"]
    )
    return share * forward, share * backward


def _beside_kernels(comm: CommContext) -> FloatArray:
    """Share of a hidden exchange's time that is won over that with DeepEP's kernels on Hopper.

    Meanwhile an exchange's kernels hold SMs that compute lacks.
    """
    constants = comm.compute.constants

    def lost(dispatcher: Dispatcher, count: int) -> FloatArray:
        """How much longer compute takes, over its own time, while an exchange's kernels hold SMs."""
        # Half of a small GPU at most: an exchange that took more would not be started so.
        held = min(constants[f"exchange_sms.{dispatcher.value}"] / count, 0.5)
        return np.asarray(held / (1.0 - held))

    reference = 1.0 - lost(Dispatcher.DEEPEP, HOPPER_SMS)
    own = comm.compute.switches.per_dispatcher(lambda d: lost(d, comm.compute.rates.sm_count))
    won: FloatArray = (1.0 - own) / reference
    return won


HOPPER_SMS = 132
"""SMs of an H100 or H800."""
