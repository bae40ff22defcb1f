"""Time and activations of one block per micro-batch: compute, exposed communication, host time, recomputation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.activations import LayerActivations, layer_activations
from layoutopt.optimizer.cost.communication import (
    Exposed,
    context_parallel,
    covering_work,
    tensor_parallel,
)
from layoutopt.optimizer.cost.components import Component
from layoutopt.optimizer.cost.compute import gaps_work, last_matrix_s, mixer_work, mlp_work
from layoutopt.optimizer.cost.expert_exchange import counts_awaited_s, expert_parallel
from layoutopt.optimizer.cost.frozen import trained_work
from layoutopt.optimizer.cost.work import Work
from layoutopt.optimizer.frameworks.preset import EpOverlap
from layoutopt.optimizer.specs.model import Mixer, Mlp
from layoutopt.optimizer.specs.vocabulary import OP_MODULE, RECOMPUTE_MODULES, CudaGraph, Granularity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from layoutopt.optimizer.cost.communication import CommContext
    from layoutopt.optimizer.cost.work import ComputeContext
    from layoutopt.optimizer.specs.layout import Recompute
    from layoutopt.optimizer.specs.model import LayerShape

    FloatArray = NDArray[np.float64]
    IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockUnit:
    """One block for one micro-batch, arrays (n,).

    ``parts_s`` sums to forward and backward together, ``recompute_parts_s`` to what whole-block recomputation
    adds. ``forward_s``, ``backward_s`` and ``wgrad_s`` split the same total for schedules and overlap;
    ``hidden_forward_s`` and ``hidden_backward_s`` is traffic that only another micro-batch's compute hides;
    ``cover_forward_s`` and ``cover_backward_s`` is compute that data-parallel traffic can run beside.
    """

    parts_s: dict[Component, FloatArray]
    recompute_parts_s: dict[Component, FloatArray]
    forward_s: FloatArray
    backward_s: FloatArray
    wgrad_s: FloatArray
    hidden_forward_s: FloatArray
    hidden_backward_s: FloatArray
    cover_forward_s: FloatArray
    cover_backward_s: FloatArray
    kept_bytes: FloatArray
    checkpoint_bytes: FloatArray
    transient_bytes: FloatArray
    delayed_bytes: FloatArray


def recompute_members(recomputes: tuple[Recompute, ...]) -> dict[str, NDArray[np.bool_]]:
    """Tell, per module, which of the ``r`` entries of a codebook recompute it selectively, (r,) each."""
    return {
        module: np.array([r.granularity is Granularity.SELECTIVE and module in r.modules for r in recomputes])
        for module in (*RECOMPUTE_MODULES, OP_MODULE)
    }


def layer_units(
    comm: CommContext,
    shapes: Sequence[LayerShape],
    recompute: IntArray,
    members: dict[str, NDArray[np.bool_]],
) -> dict[LayerShape, BlockUnit]:
    """Price every distinct shape of layers as ``layer_unit`` does; shapes that differ in their MLP share their mixer."""
    mixers: dict[LayerShape, dict[str, Work]] = {}
    units = {}
    for shape in dict.fromkeys(shapes):
        # The first dense layers of a mixture have the mixer of all the others.
        alike = replace(shape, mlp=Mlp.NONE, ffn=0)
        if alike not in mixers:
            mixers[alike] = mixer_work(comm.compute, comm.keys, alike)
        units[shape] = layer_unit(comm, shape, recompute, members, mixers[alike])
    return units


def layer_unit(
    comm: CommContext,
    shape: LayerShape,
    recompute: IntArray,
    members: dict[str, NDArray[np.bool_]],
    mixer: dict[str, Work] | None = None,
) -> BlockUnit:
    """Price one layer of a micro-batch; ``recompute`` (n,) are the rows' entries in ``members`` (r,).

    ``mixer`` is the work of the layer's mixer where that is known.
    """
    ctx, keys = comm.compute, comm.keys
    mixer = mixer_work(ctx, keys, shape) if mixer is None else mixer
    mlp = mlp_work(ctx, keys, shape)
    parts = {name: work for name, work in {**mixer, **mlp}.items() if name != "norm"}
    parts = trained_work(ctx, keys, shape, mixer, parts)
    norms = [side["norm"] for side in (mixer, mlp) if "norm" in side]
    work = _total([*parts.values(), *norms, gaps_work(ctx, keys.tp)], keys.tp)
    traffic = {
        Component.TP: tensor_parallel(comm, shape, parts),
        Component.CP: context_parallel(comm, shape, mixer.get("core_attn")),
        Component.EP: expert_parallel(comm, shape, covering_work(comm, shape, parts)),
    }
    modules = {**parts, "layernorm": _total(norms, keys.tp), "moe": _routed(parts, keys.tp)}
    modules[OP_MODULE] = _half_of_multiplications(parts, norms, keys.tp)
    again = _selective(modules, traffic, recompute, members)
    repeated = _repeated(modules, recompute, members)
    return _assemble(
        ctx,
        comm,
        shape,
        work,
        traffic,
        again,
        repeated,
        layer_activations(ctx, keys, shape),
        recompute,
        members,
    )


def _total(works: list[Work], like: FloatArray) -> Work:
    zero = np.zeros_like(like)
    total = Work(zero, zero, zero)
    for work in works:
        total = total + work
    return total


def _routed(parts: dict[str, Work], like: FloatArray) -> Work:
    return _total(
        [parts[name] for name in ("router", "permute", "experts", "moe_act") if name in parts], like
    )


def _half_of_multiplications(parts: dict[str, Work], norms: list[Work], like: FloatArray) -> Work:
    """Work that selective-op checkpointing repeats: element-wise kernels and every second multiplication."""
    halves = _total([parts[name] for name in ("qkv", "proj", "mlp", "shared_experts") if name in parts], like)
    others = _total([parts[name] for name in ("rotary",) if name in parts] + norms, like)
    return Work(halves.forward_s / 2 + others.forward_s, others.dgrad_s, others.wgrad_s)


def _selective(
    modules: dict[str, Work],
    traffic: dict[Component, Exposed],
    recompute: IntArray,
    members: dict[str, NDArray[np.bool_]],
) -> FloatArray:
    """Seconds of forward work and traffic that the selective modules of each row repeat in backward."""
    again = np.zeros_like(traffic[Component.TP].forward_s)
    for module, chosen in members.items():
        if module not in modules or not chosen.any():
            continue
        cost = modules[module].forward_s
        if module == "core_attn":
            cost = cost + traffic[Component.CP].forward_s
        elif module == "moe":
            cost = cost + traffic[Component.EP].recompute_s
        elif module == "mlp":
            cost = cost + traffic[Component.TP].forward_s / 4  # the gather in front of the first matrix
        elif module == OP_MODULE:
            # pytorch/torchtitan activation_checkpoint.py saves the outputs of scatters, not of gathers.
            cost = cost + traffic[Component.TP].gathers_s
        again = again + chosen[recompute] * cost
    return again


def _repeated(
    modules: dict[str, Work], recompute: IntArray, members: dict[str, NDArray[np.bool_]]
) -> FloatArray:
    """Count the modules of a layer that each row recomputes selectively."""
    own = [
        chosen for module, chosen in members.items() if module in modules and modules[module].forward_s.any()
    ]
    return np.asarray(sum((chosen[recompute] for chosen in own), np.zeros(len(recompute))))


def _saved(
    activations: LayerActivations, recompute: IntArray, members: dict[str, NDArray[np.bool_]]
) -> FloatArray:
    """Bytes that the selective modules of each row do not keep ("moe" covers "moe_act")."""
    saved = np.zeros_like(activations.kept_bytes)
    for module, amount in activations.saved_bytes.items():
        chosen = members[module]
        if module == "moe_act":
            # What the whole layer's recomputation saves holds the activation function's share already.
            chosen = chosen & ~members["moe"]
        if chosen.any():
            saved = saved + chosen[recompute] * amount
    return saved


def least_kept_bytes(
    activations: LayerActivations, recomputes: tuple[int, ...], members: dict[str, NDArray[np.bool_]]
) -> FloatArray:
    """Bytes (n,) that one layer keeps under the leanest of some recompute entries."""
    codes = [np.full(len(activations.kept_bytes), code) for code in recomputes]
    saved: FloatArray = np.maximum.reduce([_saved(activations, code, members) for code in codes])
    return activations.kept_bytes - saved


def with_least_kept(
    comm: CommContext, shape: LayerShape, layer: BlockUnit, members: dict[str, NDArray[np.bool_]]
) -> BlockUnit:
    """Return a layer that keeps no more than under the leanest of the codebook's entries, of which ``members`` (r,) tell."""
    entries = tuple(range(len(members[OP_MODULE])))
    least = least_kept_bytes(layer_activations(comm.compute, comm.keys, shape), entries, members)
    return replace(layer, kept_bytes=np.minimum(layer.kept_bytes, least))


def host_forward_s(comm: CommContext, shape: LayerShape) -> FloatArray:
    """Host time (n,) to launch one layer's forward kernels.

    A graph replays what it holds in one launch: all of the layer, or all but what follows the router. Where experts are
    padded to a capacity, nothing follows that the router sizes (NVIDIA/Megatron-LM transformer_config.py, scope ``moe``).
    """
    constants, switches = comm.compute.constants, comm.compute.switches
    dense = np.where(comm.keys.tp > 1, constants["host_tp"], 1.0)
    if shape.mixer is not Mixer.NONE and not shape.mixer.is_linear and comm.compute.model.mla is not None:
        dense = dense + constants["host_mla"]
    experts = _host_of_experts(comm, shape)
    # Both kinds of graph hold the dense part of a layer.
    dense = dense * np.where(switches.graph, constants["host_full_graph"], 1.0)
    left = constants["host_full_graph" if _padded(comm.compute) else "host_partial_graph"]
    partial = np.where(switches.graphs[CudaGraph.PARTIAL], left, 1.0)
    experts = experts * np.where(switches.graphs[CudaGraph.FULL], constants["host_full_graph"], partial)
    merged: FloatArray | float = 1.0
    if shape.mlp is Mlp.MOE and not switches.cheapest:
        merged = np.where(switches.overlap[EpOverlap.BATCH], 1.0 + constants["host_overlap"], 1.0)
    launched_s = _host_layer_s(comm) * (dense + experts) * merged + counts_awaited_s(comm, shape)
    return launched_s + (_awaited_s(comm) if comm.compute.preset.blocking_launches else 0.0)


def _awaited_s(comm: CommContext) -> float:
    """Time in which a layer's kernels start and the host that waits for each notices its end, beside their own."""
    constants = comm.compute.constants
    return 0.0 if comm.compute.rates.ideal else constants["layer_kernels"] * constants["blocking_launch_s"]


def _host_layer_s(comm: CommContext) -> float:
    """Host time of a dense layer's forward without CUDA graphs."""
    ctx = comm.compute
    return 0.0 if ctx.rates.ideal else ctx.preset.host_layer_s * ctx.host_slower


def _host_of_experts(comm: CommContext, shape: LayerShape) -> FloatArray:
    """Host time that experts add to a layer, in dense layers; less where their sizes are fixed beforehand."""
    ctx, zero = comm.compute, np.zeros_like(comm.keys.tp)
    if shape.mlp is not Mlp.MOE or ctx.model.moe is None:
        return zero
    exchange = ctx.constants["host_moe"] * (ctx.constants["host_moe_padded"] if _padded(ctx) else 1.0)
    exchange += ctx.constants["host_shared"] if ctx.model.moe.shared_ffn else 0.0
    if ctx.preset.grouped_experts:
        return zero + exchange
    launches = ctx.constants["host_expert"] * (2.0 if ctx.rates.eight_bit else 1.0)
    return exchange + launches * ctx.model.moe.experts / comm.keys.ep


def _padded(ctx: ComputeContext) -> bool:
    """Whether every expert gets as many rows as its capacity."""
    return ctx.model.moe is not None and ctx.model.moe.capacity_factor is not None


def waiting_s(ctx: ComputeContext, host_s: FloatArray, device_s: FloatArray) -> FloatArray:
    """Time (n,) the GPU waits for the host, which runs ahead of it: what exceeds its own, or all where launches block."""
    return host_s if ctx.preset.blocking_launches else np.maximum(host_s - device_s, 0.0)


def _assemble(
    ctx: ComputeContext,
    comm: CommContext,
    shape: LayerShape,
    work: Work,
    traffic: dict[Component, Exposed],
    again: FloatArray,
    repeated: FloatArray,
    activations: LayerActivations,
    recompute: IntArray,
    members: dict[str, NDArray[np.bool_]],
) -> BlockUnit:
    """Combine the pieces; the host's time shows forward, backward and repeated as far as the GPU waits for it.

    What covers data-parallel traffic is the same whichever modules are recomputed.
    """
    zero = np.zeros_like(again)
    device_f = work.forward_s + sum((t.forward_s for t in traffic.values()), zero)
    device_b = work.dgrad_s + work.wgrad_s + again + sum((t.backward_s for t in traffic.values()), zero)
    repeated_s = work.forward_s
    if not ctx.preset.repeats_last_matrix and not ctx.rates.ideal:
        # The layer's output is not needed again: the next layer has its own copy of it.
        repeated_s = repeated_s - last_matrix_s(ctx, comm.keys, shape)
    repeat = repeated_s + sum((t.recompute_s for t in traffic.values()), zero)
    host_f = host_forward_s(comm, shape)
    host_once_b = host_f * ctx.constants["host_backward"]
    # A graph of the whole iteration holds the repeated kernels too.
    launched = np.where(ctx.switches.graphs[CudaGraph.FULL], ctx.constants["host_full_graph"], 1.0)
    host_b = host_once_b + repeated * _host_layer_s(comm) * ctx.constants["host_recompute"] * launched
    idle_f, idle_b = waiting_s(ctx, host_f, device_f), waiting_s(ctx, host_b, device_b)
    # Repeating a layer launches its forward kernels once more.
    idle_again = waiting_s(ctx, host_f, repeat)
    parts = {name: t.forward_s + t.backward_s for name, t in traffic.items()}
    parts |= {
        Component.FORWARD: work.forward_s,
        Component.BACKWARD: work.dgrad_s + work.wgrad_s,
        Component.RECOMPUTE: again,
    }
    more = {name: t.recompute_s for name, t in traffic.items()}
    more |= {Component.FORWARD: zero, Component.BACKWARD: zero}
    return BlockUnit(
        parts_s=parts | {Component.HOST: idle_f + idle_b},
        recompute_parts_s=more | {Component.RECOMPUTE: repeated_s, Component.HOST: idle_again},
        forward_s=device_f + idle_f,
        backward_s=device_b + idle_b,
        wgrad_s=work.wgrad_s,
        hidden_forward_s=zero + traffic[Component.EP].hidden_forward_s,
        hidden_backward_s=zero + traffic[Component.EP].hidden_backward_s,
        # The network does not wait for the host: traffic runs on while the GPU idles.
        cover_forward_s=device_f if ctx.rates.ideal else np.maximum(work.forward_s, host_f),
        cover_backward_s=device_b
        if ctx.rates.ideal
        else np.maximum(work.dgrad_s + work.wgrad_s, host_once_b),
        kept_bytes=activations.kept_bytes - _saved(activations, recompute, members),
        checkpoint_bytes=activations.checkpoint_bytes,
        transient_bytes=activations.transient_bytes,
        delayed_bytes=activations.delayed_bytes,
    )
