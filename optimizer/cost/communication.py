"""Communication inside a layer: tensor and context parallelism, and what of it compute cannot hide.

Volumes and counts: NVIDIA/Megatron-LM megatron/core/tensor_parallel/layers.py (sequence-parallel gathers and
scatters) and Transformer Engine context_parallel.py; prices from the topology room. Experts: ``expert_exchange``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.compute import core_attention_work
from layoutopt.optimizer.cost.context_parallel import (
    BF16_BYTES,
    attended_s,
    division,
    most_ring_steps,
    of_kind,
    scanned_s,
)
from layoutopt.optimizer.specs.model import Mixer, Mlp
from layoutopt.optimizer.specs.vocabulary import Fp8Recipe

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from layoutopt.optimizer.cost.work import ComputeContext, Keys, Work
    from layoutopt.optimizer.specs.model import LayerShape
    from layoutopt.optimizer.specs.vocabulary import CpComm
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
        late = np.maximum(reduce - wgrad, 0.0) if ctx.preset.tp_async_all_reduce else late
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
