"""Every collective of a step counted by hand: layers, ends, experts, recomputed modules and data parallelism."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from layoutopt.optimizer.cost.collectives import collectives
from layoutopt.optimizer.cost.factory import build_cost_model
from layoutopt.optimizer.frameworks.preset import load_preset
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.specs.layout import Layout, Recompute
from layoutopt.optimizer.specs.loading import load_cluster, load_workload, override_training
from layoutopt.optimizer.specs.model import LayerShape, Mlp, MoeSpec, Run
from layoutopt.optimizer.specs.stage_split import build_stages
from layoutopt.optimizer.specs.vocabulary import Dispatcher, Granularity

WORKLOAD = override_training(load_workload("llama3-8b"), global_batch=8, sequence_length=4096)
CLUSTER = load_cluster("h100x8")
H, LAYERS, M, T = 4096, 4, 4, 2048
"""Width, layers, micro-batches, tokens of a micro-batch on one of two context ranks."""
S, PIECE = 2 * T * H, 2 * T * 4 * 256
Calls = dict[tuple[str, str, int, int], int]


def counted(
    *, modules: tuple[str, ...] = (), whole: int = 0, dense: bool = True, switches: dict[str, Any] | None = None,
    **fields: Any,
) -> Calls:  # fmt: skip
    """Calls of the only stage of four layers."""
    preset = replace(
        load_preset(Framework.MEGATRON),
        dispatcher=Dispatcher.ALLTOALL,
        **{"dispatch_fp8": False} | (switches or {}),
    )
    shape = LayerShape(ffn=14336) if dense else LayerShape(mlp=Mlp.MOE)
    model = replace(
        WORKLOAD.model, runs=(Run(name="own", block=(shape,), count=LAYERS),),
        moe=None if dense else MoeSpec(experts=8, top_k=2, ffn=1024),
    )  # fmt: skip
    training = replace(WORKLOAD.training, moe_imbalance=1.0)
    cost = build_cost_model(model, training, CLUSTER, preset=preset)
    chosen = Recompute()
    if modules or whole:
        granularity = Granularity.SELECTIVE if modules else Granularity.FULL
        chosen = Recompute(granularity=granularity, modules=modules)
    defaults: dict[str, Any] = {"tp": 2, "sp": True, "cp": 2, "dp": 2, "zero": 1, "micro_batches": M}
    layout = Layout(**defaults | fields, recompute=chosen)
    stages = build_stages(model, [LAYERS], 1, layout.schedule, whole)
    calls = collectives(cost, replace(layout, stages=stages))
    return {(one.axis, one.kind, one.ranks, one.bytes): one.count for one in calls}


def of_axis(calls: Calls, axis: str) -> Calls:
    """Those along an axis."""
    return {call: count for call, count in calls.items() if call[0] == axis}


LOSS = {("tp", "all_reduce", 2, 4 * T): 3 * M}
NORMS = {("tp", "all_reduce", 2, 4 * (2 * LAYERS + 1) * H): 1}


@pytest.mark.parametrize(("modules", "whole", "switches", "gathers", "scatters"), [
    ((), 0, {}, LAYERS * 2 * 3, LAYERS * 2 * 2), ((), 3, {}, LAYERS * 2 * 3 + 3 * 2, LAYERS * 2 * 2 + 3),
    (("mlp",), 0, {}, LAYERS * 2 * 3 + LAYERS, LAYERS * 2 * 2), (("core_attn",), 0, {}, LAYERS * 2 * 3, LAYERS * 2 * 2),
    ((), 0, {"tp_async_backward": False}, LAYERS * 2 * 2, LAYERS * 2 * 2),
    ((), 3, {"tp_async_backward": False}, LAYERS * 2 * 2 + 3 * 2, LAYERS * 2 * 2 + 3),
])  # fmt: skip
def test_tensor_ranks(
    modules: tuple[str, ...], whole: int, switches: dict[str, Any], gathers: int, scatters: int
) -> None:
    """Of a pair gathers forward, of the gradient and of the input again; scatters each way; both ends once; the loss."""
    found = of_axis(counted(modules=modules, whole=whole, switches=switches), "tp")
    assert found == {
        ("tp", "all_gather", 2, S): (gathers + 2) * M, ("tp", "reduce_scatter", 2, S): (scatters + 2) * M, **LOSS, **NORMS,
    }  # fmt: skip


@pytest.mark.parametrize(("whole", "sums"), [(0, LAYERS * 4), (3, LAYERS * 4 + 3)])
def test_tensor_ranks_without_sequence_parallelism(whole: int, sums: int) -> None:
    """A sum each way of a pair, of a recomputed layer one; nothing is replicated unevenly."""
    found = of_axis(counted(whole=whole, sp=False), "tp")
    assert found == {("tp", "all_reduce", 2, S): (sums + 2) * M, **LOSS}


@pytest.mark.parametrize(
    ("modules", "whole", "again"), [((), 0, 0), ((), 3, 3), (("core_attn",), 0, 4), (("mlp",), 0, 0)]
)
def test_context_ranks(modules: tuple[str, ...], whole: int, again: int) -> None:
    """A ring of two: one send forward, one with gradients back, and one more where attention runs again."""
    found = of_axis(counted(modules=modules, whole=whole), "cp")
    assert found == {("cp", "send", 2, PIECE): (LAYERS + again) * M, ("cp", "send", 2, 2 * PIECE): LAYERS * M}


@pytest.mark.parametrize(
    ("modules", "whole", "again"), [((), 0, 0), ((), 3, 3), (("moe",), 0, 4), (("core_attn",), 0, 0)]
)
def test_expert_ranks(modules: tuple[str, ...], whole: int, again: int) -> None:
    """Dispatch, combine and both backward; dispatch and combine again; gathers and scatters of an expert-tensor group."""
    sent = 2 * T // 2 * 2 * H
    found = of_axis(counted(modules=modules, whole=whole, dense=False, ep=4), "ep")
    assert found == {("ep", "all_to_all", 4, sent): (4 * LAYERS + 2 * again) * M}
    narrow = of_axis(counted(modules=modules, whole=whole, dense=False, ep=2, etp=2), "etp")
    rows = sent * 2
    assert narrow == {
        ("etp", kind, 2, rows): (2 * LAYERS + again) * M for kind in ("all_gather", "reduce_scatter")
    }


BLOCK = (H * 128 * (32 + 16) + 32 * 128 * H + 3 * H * 14336) // 2 + 2 * H
TABLE = 128_256 * H // 2


@pytest.mark.parametrize(("zero", "switches", "expected"), [
    (0, {}, {("all_reduce", 4): 1}), (1, {}, {("reduce_scatter", 4): 1, ("all_gather", 2): 1}),
    (2, {"reduce_each_micro_batch": True}, {("reduce_scatter", 4): M, ("all_gather", 2): 1}),
    (3, {"reduce_each_micro_batch": True}, {("reduce_scatter", 4): M, ("all_gather", 2): 2 * M}),
    (3, {"reduce_each_micro_batch": False}, {("reduce_scatter", 4): 1, ("all_gather", 2): 2 * M}),
])  # fmt: skip
def test_data_ranks(zero: int, switches: dict[str, Any], expected: dict[tuple[str, int], int]) -> None:
    """Every block and both ends by the stage's passes; the last end stays gathered for its backward pass."""
    preset = {"grad_comm_bytes": 4, "keep_gathered_with_pp": False, "zero1_all_reduce": False} | switches
    found = of_axis(counted(zero=zero, switches=preset), "dp")
    total: Counter[tuple[str, str, int, int]] = Counter()
    for (kind, width), times in expected.items():
        total["dp", kind, 4, width * BLOCK] += LAYERS * times
        total["dp", kind, 4, width * TABLE] += times
        last = times // 2 if (zero, kind) == (3, "all_gather") else times
        total["dp", kind, 4, width * (TABLE + H)] += last
    assert found == dict(total)


def test_shard_groups_add_up_their_copies() -> None:
    """Shards in groups of two, then a sum of every shard over both groups."""
    found = of_axis(
        counted(zero=2, hsdp_shard=2, switches={"grad_comm_bytes": 4, "reduce_each_micro_batch": False}), "dp"
    )
    blocks = {call: count for call, count in found.items() if call[3] in (2 * BLOCK, 4 * BLOCK)}
    assert blocks == {
        ("dp", "reduce_scatter", 2, 4 * BLOCK): LAYERS, ("dp", "all_gather", 2, 2 * BLOCK): LAYERS,
        ("dp", "all_reduce", 2, 2 * BLOCK): LAYERS,
    }  # fmt: skip
