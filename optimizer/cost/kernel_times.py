"""What each virtual stage of a layout does with one micro-batch, by kind of kernel: what a profile of a rank shows.

The same parts of layers that the price sums up, kept apart; a price knows them by component alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.batch import batch_of_one
from layoutopt.optimizer.cost.communication import context_parallel, tensor_parallel
from layoutopt.optimizer.cost.components import Component
from layoutopt.optimizer.cost.compute import (
    activation_function_work,
    gaps_work,
    last_matrix_s,
    mixer_work,
    mlp_work,
    norm_work,
)
from layoutopt.optimizer.cost.data_parallel import fsdp_layer_s
from layoutopt.optimizer.cost.ends import embedding_unit, head_unit, vocabulary_rows
from layoutopt.optimizer.cost.expert_exchange import expert_parallel
from layoutopt.optimizer.cost.layer_units import host_forward_s, layer_unit, recompute_members, waiting_s
from layoutopt.optimizer.cost.parameters import block_parameters
from layoutopt.optimizer.cost.placement import order_of
from layoutopt.optimizer.cost.stage_counts import stage_blocks
from layoutopt.optimizer.cost.states import on_rank
from layoutopt.optimizer.cost.work import linear
from layoutopt.optimizer.specs.model import Mixer, Mlp

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layoutopt.optimizer.cost.batch import LayoutBatch
    from layoutopt.optimizer.cost.communication import CommContext
    from layoutopt.optimizer.cost.cost_model import CostModel
    from layoutopt.optimizer.specs.layout import Layout, VirtualStage
    from layoutopt.optimizer.specs.model import LayerShape

KERNELS_OF_PART = {
    "qkv": "gemm", "proj": "gemm", "mla_up_proj": "gemm", "mlp": "gemm", "shared_experts": "gemm", "core_attn": "attention",
    "indexer": "attention", "norm": "norm", "rotary": "elementwise", "router": "permute", "permute": "permute",
    "experts": "experts", "moe_act": "activation",
}  # fmt: skip
"""The kind of kernel that each part of a layer mostly is, by the names that ``compute`` gives parts."""


@dataclass(slots=True, kw_only=True)
class PassTimes:
    """Seconds of one pass of a micro-batch through a stage: kernels by kind, exposed traffic by component, idle host."""

    kernels_s: dict[str, float] = field(default_factory=dict)
    traffic_s: dict[Component, float] = field(default_factory=dict)
    host_s: float = 0.0

    def add(self, other: PassTimes, times: float) -> None:
        """Add another pass several times."""
        for name, seconds in other.kernels_s.items():
            self.kernels_s[name] = self.kernels_s.get(name, 0.0) + times * seconds
        for component, seconds in other.traffic_s.items():
            self.traffic_s[component] = self.traffic_s.get(component, 0.0) + times * seconds
        self.host_s += times * other.host_s


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTimes:
    """One entry of a layout's stage list: a micro-batch forward, backward, and what recomputation repeats."""

    forward: PassTimes
    backward: PassTimes
    again: PassTimes


def stage_times(cost: CostModel, layout: Layout) -> tuple[StageTimes, ...]:
    """Return what every entry of the stage list does with one micro-batch.

    Selective recomputation of modules and MTP layers are in the price's components alone, not among these kernels.
    """
    batch = batch_of_one(layout)
    comm = cost.saving(batch).comm_context(batch, order_of(batch, closest=False))
    blocks, recomputed = stage_blocks(layout, cost.model)
    kinds = [_block(comm, run.block, cost.constants["time_scale"]) for run in cost.model.runs]
    for kind, ways in zip(kinds, _streamed(cost, comm, batch), strict=True):
        for passed, seconds in zip((kind.forward, kind.backward), ways, strict=True):
            passed.traffic_s[Component.FSDP] = seconds * cost.constants["time_scale"]
    found = []
    for entry, stage in enumerate(layout.stages):
        times = StageTimes(forward=PassTimes(), backward=PassTimes(), again=PassTimes())
        for kind, number, again in zip(kinds, blocks[entry], recomputed[entry], strict=True):
            times.forward.add(kind.forward, float(number))
            times.backward.add(kind.backward, float(number))
            times.again.add(kind.again, float(again))
        _add_ends(comm, times, stage, cost.constants["time_scale"])
        found.append(times)
    return tuple(found)


def _streamed(cost: CostModel, comm: CommContext, batch: LayoutBatch) -> Iterator[tuple[float, float]]:
    """Yield what stays exposed of gathering and reducing one block of each kind layer by layer, forward and backward."""
    dp = cost.dp_context(batch, comm.groups)
    members = recompute_members(batch.codebook.recomputes)
    for run in cost.model.runs:
        unit = layer_unit(comm, run.block[0], batch.recompute, members)
        held = on_rank(cost.model, block_parameters(cost.model, run), batch, cost.preset)
        forward, backward = fsdp_layer_s(dp, held, unit.cover_forward_s, unit.cover_backward_s)
        yield _one(forward), _one(backward)


def _block(comm: CommContext, shapes: tuple[LayerShape, ...], scale: float) -> StageTimes:
    """Time one block's layers."""
    found = StageTimes(forward=PassTimes(), backward=PassTimes(), again=PassTimes())
    for shape in shapes:
        layer = _layer(comm, shape)
        for name in ("forward", "backward", "again"):
            getattr(found, name).add(getattr(layer, name), scale)
    return found


def _layer(comm: CommContext, shape: LayerShape) -> StageTimes:
    ctx, keys = comm.compute, comm.keys
    mixer, mlp = mixer_work(ctx, keys, shape), mlp_work(ctx, keys, shape)
    parts = {name: work for name, work in {**mixer, **mlp}.items() if name != "norm"}
    works = [(KERNELS_OF_PART.get(name, "other"), work) for name, work in parts.items()]
    if shape.mixer is Mixer.MAMBA or shape.mixer.is_linear:
        # A state-space mixer has no attention kernel: what stands in its place is a scan.
        works = [("scan" if kind == "attention" else kind, work) for kind, work in works]
    works += [("norm", side["norm"]) for side in (mixer, mlp) if "norm" in side]
    # What a GPU waits between kernels is in the price of a layer and belongs to none of them.
    works.append(("gap", gaps_work(ctx, keys.tp)))
    widths = _dense_widths(comm, shape)
    activation = [activation_function_work(ctx, keys.tokens * width / keys.tp) for width in widths]
    works += [("activation", work) for work in activation] + [
        ("gemm", work.scaled(-1.0)) for work in activation
    ]
    traffic = {
        Component.TP: tensor_parallel(comm, shape, parts),
        Component.CP: context_parallel(comm, shape, mixer.get("core_attn")),
        Component.EP: expert_parallel(comm, shape, parts),
    }
    forward = PassTimes(traffic_s={name: float(t.forward_s[0]) for name, t in traffic.items()})
    backward = PassTimes(traffic_s={name: float(t.backward_s[0]) for name, t in traffic.items()})
    again = PassTimes(traffic_s={name: float(t.recompute_s[0]) for name, t in traffic.items()})
    for kind, work in works:
        _count(forward, kind, work.forward_s)
        _count(again, kind, work.forward_s)
        _count(backward, kind, work.dgrad_s + work.wgrad_s)
    if not ctx.preset.repeats_last_matrix:
        # Nothing in the backward pass needs the output of the last matrix: most trainers do not repeat it.
        _count(again, "gemm", -last_matrix_s(ctx, keys, shape))
    host_s = float(np.ravel(host_forward_s(comm, shape))[0])
    for passed, launched in (
        (forward, host_s),
        (again, host_s),
        (backward, host_s * ctx.constants["host_backward"]),
    ):
        busy = sum(passed.kernels_s.values()) + sum(passed.traffic_s.values())
        passed.host_s = _one(waiting_s(ctx, np.asarray(launched), np.asarray(busy)))
    return StageTimes(forward=forward, backward=backward, again=again)


def _dense_widths(comm: CommContext, shape: LayerShape) -> list[float]:
    """Widths of the dense MLPs of a layer, shared experts among them, whose activation is in their matrices' part."""
    moe = comm.compute.model.moe
    if shape.mlp is Mlp.DENSE:
        return [float(shape.ffn)]
    return [float(moe.shared_ffn)] if shape.mlp is Mlp.MOE and moe is not None and moe.shared_ffn else []


def _count(passed: PassTimes, kind: str, seconds: object) -> None:
    passed.kernels_s[kind] = passed.kernels_s.get(kind, 0.0) + _one(seconds)


def _add_ends(comm: CommContext, times: StageTimes, stage: VirtualStage, scale: float) -> None:
    """Add the embedding, and the head's multiplication, norm and loss, with their traffic, half of it in each direction."""
    for held, unit, split in ((stage.embedding, embedding_unit, _embedding), (stage.head, head_unit, _head)):
        if not held:
            continue
        parts_s = unit(comm).parts_s
        for passed, component in ((times.forward, Component.FORWARD), (times.backward, Component.BACKWARD)):
            for kind, seconds in split(comm, component, _one(parts_s[component])).items():
                _count(passed, kind, scale * seconds)
            traffic = scale * _one(parts_s[Component.TP]) / 2
            passed.traffic_s[Component.TP] = passed.traffic_s.get(Component.TP, 0.0) + traffic


def _embedding(comm: CommContext, component: Component, seconds: float) -> dict[str, float]:
    return {"embedding": seconds}


def _head(comm: CommContext, component: Component, seconds: float) -> dict[str, float]:
    """Divide the head's seconds: what is neither its multiplication nor its norm is the loss."""
    ctx, keys = comm.compute, comm.keys
    rows, chunks = vocabulary_rows(comm), float(ctx.preset.loss_chunks)
    width = np.full_like(rows, float(ctx.model.hidden))
    logits = linear(ctx, keys.tokens / chunks, rows, width, wide=True).scaled(chunks)
    norm = norm_work(ctx, keys)
    forward = component is Component.FORWARD
    gemm_s, norm_s = (
        _one(work.forward_s if forward else work.dgrad_s + work.wgrad_s) for work in (logits, norm)
    )
    return {"gemm": gemm_s, "norm": norm_s, "loss": seconds - gemm_s - norm_s}


def _one(value: object) -> float:
    return float(np.ravel(np.asarray(value))[0])
