"""Communication inside a layer: tensor, context and expert parallelism, and what of it compute cannot hide.

Volumes and counts: NVIDIA/Megatron-LM megatron/core/tensor_parallel/layers.py (sequence-parallel gathers and
scatters), Transformer Engine context_parallel.py, and the expert token dispatchers; prices from the topology room.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.compute import core_attention_work, imbalance, routed_share
from layoutopt.optimizer.cost.context_parallel import (
    BF16_BYTES,
    attended_s,
    division,
    most_ring_steps,
    of_kind,
    scanned_s,
)
from layoutopt.optimizer.cost.formats import NARROW_BYTES
from layoutopt.optimizer.cost.routing import reached_parts
from layoutopt.optimizer.frameworks.preset import EpOverlap
from layoutopt.optimizer.specs.model import Mixer, Mlp
from layoutopt.optimizer.specs.vocabulary import Dispatcher, Fp8Recipe, Precision

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from layoutopt.optimizer.cost.work import ComputeContext, Keys, Work
    from layoutopt.optimizer.specs.model import LayerShape, MoeSpec
    from layoutopt.optimizer.specs.vocabulary import CpComm
    from layoutopt.optimizer.topology.groups import GroupBatch
    from layoutopt.optimizer.topology.mesh import MeshGroups
    from layoutopt.optimizer.topology.prices import Topology

    FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Exposed:
    """Exposed seconds of one kind of traffic: forward, backward, and what whole-layer recomputation adds.

    ``hidden_*`` is what runs under the other micro-batch's compute: exposed again where a pipeline fills or drains.
    ``gathers_s`` are the gathers of ``forward_s``.
    """

    forward_s: FloatArray
    backward_s: FloatArray
    recompute_s: FloatArray
    hidden_forward_s: FloatArray | float = 0.0
    hidden_backward_s: FloatArray | float = 0.0
    gathers_s: FloatArray | float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CommContext:
    """The network, the process groups of the degree combinations, and the compute that may hide traffic.

    ``paired``: the schedule runs a forward and a backward together, so that each hides the other's expert traffic.
    """

    compute: ComputeContext
    keys: Keys
    topology: Topology
    groups: MeshGroups
    paired: bool = False

    @property
    def tp_share(self) -> FloatArray:
        """Exposed share (n,) of the blocking tensor-parallel collectives: overlap is that of sequence parallelism."""
        ctx = self.compute
        hides = ctx.switches.tp_overlap & (self.keys.sp > 0) & (not ctx.rates.ideal)
        return np.where(hides, ctx.constants["tp_exposed_overlapped"], 1.0)

    def nothing(self) -> Exposed:
        """Return no traffic."""
        zero = np.zeros_like(self.keys.tp)
        return Exposed(zero, zero, zero)


def tensor_parallel(comm: CommContext, shape: LayerShape, work: dict[str, Work]) -> Exposed:
    """Price the tensor-parallel collectives of a layer.

    Each pair of column- and row-parallel matrices needs, with sequence parallelism, a gather and a scatter forward
    (exposed) and backward a gather of the output gradient (exposed), a second gather of the input that runs under
    the input gradient, and a scatter that runs under the weight gradient. Without it: one all-reduce each way, the
    backward one under the weight gradient. Where the framework does not launch the backward pass's collectives
    asynchronously, they are exposed, and the gathered input is at hand (autograd over PyTorch's DTensor).
    """
    pairs = tp_pairs(comm, shape)
    if pairs == 0:
        return comm.nothing()
    keys, ctx = comm.keys, comm.compute
    size = activation_bytes(comm)
    searched = _largest_s(comm)
    gather, gather_gradient = (
        comm.topology.all_gather_s(each, comm.groups.tp) + searched for each in gathered_operand_bytes(comm)
    )
    scatter = comm.topology.reduce_scatter_s(size, comm.groups.tp)
    reduce = comm.topology.all_reduce_s(size, comm.groups.tp)
    dgrad, wgrad = _cover(comm, work, pairs)
    sharded, share = keys.sp > 0, comm.tp_share
    forward = np.where(sharded, gather + scatter, reduce)
    behind, late = share * scatter, reduce
    if ctx.preset.tp_async_backward:
        behind = np.maximum(gather - dgrad, 0.0) + np.maximum(scatter - wgrad, 0.0)
        late = np.maximum(reduce - wgrad, 0.0)
    backward = np.where(sharded, share * gather_gradient + behind, late)
    trailing = np.where(sharded, scatter, reduce)  # the last scatter of a recomputed layer is not repeated
    # Each further gather of 16 bits takes as long as the scatter of its gradients.
    more = share * np.where(sharded, _further_gathers(comm, shape) * scatter, 0.0)
    heads = split_heads_bytes(comm, shape)
    more = more + np.where(heads > 0, comm.topology.all_gather_s(heads, comm.groups.tp), 0.0)
    return Exposed(
        share * pairs * forward + more,
        pairs * backward + more,
        share * np.maximum(pairs * forward - trailing, 0.0) + more,
        gathers_s=np.where(sharded, share * pairs * gather, 0.0) + more,
    )


def activation_bytes(comm: CommContext) -> FloatArray:
    """Bytes of a micro-batch's hidden states, before tensor parallelism shards them, (n,)."""
    return BF16_BYTES * comm.keys.tokens * comm.compute.model.hidden


def split_heads_bytes(comm: CommContext, shape: LayerShape) -> FloatArray:
    """Bytes (n,) of queries, keys and values that ranks gather where they outnumber key-value heads and none repeats.

    NVIDIA/Megatron-LM core/transformer/attention.py get_query_key_value_tensors, core 0.16.
    """
    model, tp = comm.compute.model, comm.keys.tp
    # Latent attention expands keys for every head: it has as many of them as queries.
    repeats = comm.compute.preset.repeats_keys or model.mla is not None or comm.compute.rates.ideal
    if repeats or shape.mixer is not Mixer.ATTENTION:
        return np.zeros_like(tp)
    # A gate comes out of the same matrix as the queries, as wide as they are.
    queries = model.heads * (2 if model.attention_gate else 1)
    keys = model.kv_heads_of(shape)
    width = BF16_BYTES * ((queries + keys) * model.head_dim + keys * model.value_dim)
    return np.where(tp > keys, width * comm.keys.tokens, 0.0)


def gathered_operand_bytes(comm: CommContext) -> tuple[FloatArray, FloatArray]:
    """Bytes of hidden states that ranks gather to multiply, (n,) each: of a pair's input, and of its output's gradient."""
    size, operands = activation_bytes(comm), comm.compute.operands
    if comm.compute.rates.ideal or not comm.compute.rates.eight_bit or not operands.gathers_narrow:
        return size, size
    elements = size / BF16_BYTES
    return operands.element_bytes * elements, operands.gathered_gradient_bytes * elements


def _largest_s(comm: CommContext) -> FloatArray:
    """Seconds in which ranks agree on the largest value of a tensor that they have shares of and scale as one.

    With current scaling, before it is cast and gathered (NVIDIA/TransformerEngine ``amax_reduction_group``).
    """
    one = np.full_like(comm.keys.tp, FP32_BYTES)
    current = comm.compute.training.fp8_recipe is Fp8Recipe.CURRENT and comm.compute.rates.eight_bit
    return comm.topology.all_reduce_s(one, comm.groups.tp) if current else 0.0 * one


FP32_BYTES = 4.0


def tp_pairs(comm: CommContext, shape: LayerShape) -> int:
    """Column/row-parallel pairs of a layer that live on the tensor-parallel group."""
    moe = comm.compute.model.moe
    shared = shape.mlp is Mlp.MOE and moe is not None and moe.shared_ffn > 0
    return int(shape.mixer is not Mixer.NONE) + int(shape.mlp is Mlp.DENSE or shared)


def _further_gathers(comm: CommContext, shape: LayerShape) -> int:
    """Gathers of a layer beyond one in front of each pair, where every column-parallel matrix has its own."""
    if comm.compute.preset.gathers_once:
        return 0
    attention = 2 if shape.mixer is not Mixer.NONE else 0
    return attention + int(shape.mlp is Mlp.DENSE and comm.compute.model.gated)


def _cover(comm: CommContext, work: dict[str, Work], pairs: int) -> tuple[FloatArray, FloatArray]:
    """Backward compute per pair that hides asynchronous collectives; none in the simple model."""
    zero = np.zeros_like(comm.keys.tp)
    if comm.compute.rates.ideal:
        return zero, zero
    linear = [work[part] for part in ("qkv", "proj", "mlp", "shared_experts") if part in work]
    dgrad = sum((part.dgrad_s for part in linear), zero) / pairs
    wgrad = sum((part.wgrad_s for part in linear), zero) / pairs
    return dgrad, wgrad


def context_parallel(comm: CommContext, shape: LayerShape, core: Work | None) -> Exposed:
    """Price context parallelism of a layer's mixer, whose own work is ``core``.

    Rows that stand for all kinds take what attention and its traffic take together with the best of them.
    """
    if shape.mixer is Mixer.NONE or core is None or not (comm.keys.cp > 1).any():
        return comm.nothing()
    ctx, keys = comm.compute, comm.keys
    if shape.mixer is not Mixer.ATTENTION:
        forward, backward = scanned_s(comm, shape)
    elif not ctx.switches.any_cp_kind:
        forward, backward = of_kind(ctx, keys, lambda kind: attended_s(comm, shape, core, kind))
    else:
        both = of_kind(ctx, keys, lambda kind: _attention_s(comm, shape, kind))
        # Attention alone takes no longer than it does with any kind.
        forward, backward = both[0] - core.forward_s, both[1] - core.dgrad_s
    # Keys and values of other ranks are not kept: attention that is repeated fetches them again.
    return Exposed(forward, backward, forward)


def _attention_s(comm: CommContext, shape: LayerShape, kind: CpComm) -> tuple[FloatArray, FloatArray]:
    """Seconds of attention and its exposed traffic together, forward and backward, (n,) each."""
    steps = division(comm.compute, comm.keys, shape, kind).ring
    core = core_attention_work(comm.compute, comm.keys, shape, steps)
    forward, backward = attended_s(comm, shape, core, kind)
    return core.forward_s + forward, core.dgrad_s + backward


def covering_work(comm: CommContext, shape: LayerShape, parts: dict[str, Work]) -> dict[str, Work]:
    """Return the work of a layer's parts that other traffic can run beside.

    Where rows stand for all kinds of context parallelism, attention covers as much as with the slowest.
    """
    ctx, keys = comm.compute, comm.keys
    attends = shape.mixer is Mixer.ATTENTION and ctx.switches.any_cp_kind
    if not attends or shape.mlp is not Mlp.MOE or not (keys.cp > 1).any():
        return parts
    return parts | {"core_attn": core_attention_work(ctx, keys, shape, most_ring_steps(ctx, keys, shape))}


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
