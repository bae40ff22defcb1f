"""The bytes of a whole layout, component by component, and the transfers of every schedule, each worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from layoutopt.optimizer.cost import flows
from layoutopt.optimizer.cost.batch import batch_of, batch_of_one
from layoutopt.optimizer.cost.bubbles import Pipelines
from layoutopt.optimizer.cost.components import Component
from layoutopt.optimizer.cost.estimate import distinct_ranks, estimate, rank_breakdowns
from layoutopt.optimizer.cost.factory import build_cost_model
from layoutopt.optimizer.cost.optimizers import MomentBytes
from layoutopt.optimizer.cost.states import (
    RankParameters,
    owned_parameters,
    shard_sizes,
    state_bytes,
    working_set_bytes,
)
from layoutopt.optimizer.cost.term_parts import placed, scatter_terms
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.specs.layout import Layout, Recompute
from layoutopt.optimizer.specs.loading import load_cluster, load_workload, override_training
from layoutopt.optimizer.specs.stage_split import build_stages
from layoutopt.optimizer.specs.vocabulary import Granularity, Schedule

WORKLOAD = override_training(load_workload("llama3-8b"), global_batch=64, sequence_length=4096)
CLUSTER = load_cluster("h100x8")
H, A, K, E, F, V = 4096, 32, 8, 128, 14336, 128256
TOKENS, LOCAL = 4096, 2048
MATRICES = H * E * (A + 2 * K) + A * E * H + 3 * H * F
BLOCK = MATRICES / 2 + 2 * H
SIXTEEN_BIT_KEPT = (
    2 * 2 * LOCAL * H  # both norms' inputs
    + 2 * LOCAL * H + 2 * (A + 2 * K) / 2 * E * TOKENS + 2 * A / 2 * E * TOKENS + 4 * TOKENS * A / 2  # attention
    + 2 * LOCAL * H + (2 * 2 + 2) * TOKENS * F / 2  # MLP
)  # fmt: skip


def layout_of(recomputed: int = 0, **fields: Any) -> Layout:
    """Two stages of sixteen layers, two tensor ranks, two replicas."""
    stages = build_stages(WORKLOAD.model, [16, 16], 2, Schedule.ONE_F_ONE_B, recomputed)
    return Layout(
        tp=2,
        sp=True,
        pp=2,
        dp=2,
        micro_batches=32,
        zero=1,
        schedule=Schedule.ONE_F_ONE_B,
        stages=stages,
        **fields,
    )


def test_every_component_of_a_rank() -> None:
    """States, activations in flight, logits, transients, buffers and scratch of Megatron-LM with ZeRO-1."""
    cost = build_cost_model(WORKLOAD.model, WORKLOAD.training, CLUSTER)
    memory = estimate(cost, layout_of()).memory
    for rank, (end, flight) in enumerate(((V * H / 2, 2), (V * H / 2 + H, 1))):
        held = 16 * BLOCK + end
        expected = {
            "weights": 2 * held, "gradients": 4 * held, "optimizer": 12 * held / 2, "gathered": 0.0,
            "activations": 16 * SIXTEEN_BIT_KEPT * flight, "recompute_transient": 0.0,
            "transient": 2 * (TOKENS * H + 2 * 2 * TOKENS * F / 2), "receive": 2 * (2 * TOKENS * H / 2),
            "scratch_gradients": 2 * BLOCK, "logits": 0.0,
        }  # fmt: skip
        if rank:
            expected["logits"] = 6 * TOKENS * V / 2 + (2 * LOCAL + 2 * LOCAL) * H + 2 * V * H / 2
        found = memory.stages[rank]
        assert found.components_bytes == pytest.approx(expected)
        assert found.total_bytes == pytest.approx(sum(expected.values()))
    preset, gpu = cost.preset, CLUSTER.gpu
    assert memory.peak_bytes == max(stage.total_bytes for stage in memory.stages)
    assert memory.reserved_bytes == memory.peak_bytes * (1 + preset.allocator_reserve)
    assert memory.device_bytes == memory.reserved_bytes + preset.overhead_bytes
    free = gpu.memory_bytes - preset.overhead_bytes - CLUSTER.reserve_bytes
    assert memory.capacity_bytes == pytest.approx(free / (1 + preset.allocator_reserve))
    assert memory.borderline_bytes == pytest.approx(memory.capacity_bytes * preset.borderline_share)
    assert memory.weight_bytes == 2


def test_recomputed_layers_keep_their_input_alone() -> None:
    """Three layers of each stage: their input instead of all they keep, and one layer's activations meanwhile."""
    cost = build_cost_model(WORKLOAD.model, WORKLOAD.training, CLUSTER)
    full = Recompute(granularity=Granularity.FULL)
    stages = estimate(cost, layout_of(3, recompute=full)).memory.stages
    for rank, flight in ((0, 2), (1, 1)):
        held = 13 * SIXTEEN_BIT_KEPT + 3 * 2 * LOCAL * H
        assert stages[rank].components_bytes["activations"] == pytest.approx(held * flight)
        assert stages[rank].components_bytes["recompute_transient"] == pytest.approx(SIXTEEN_BIT_KEPT)
    without = estimate(cost, layout_of(0, recompute=full)).memory.stages
    assert without[0].components_bytes["recompute_transient"] == 0.0


def test_what_is_outside_the_pipeline() -> None:
    """The optimizer's traffic on the fuller end, the host's fixed time; within a node nobody waits for a slower GPU."""
    cost = build_cost_model(WORKLOAD.model, WORKLOAD.training, CLUSTER)
    priced = estimate(cost, layout_of())
    held = 16 * BLOCK + V * H / 2 + H
    rate = cost.compute_context(batch_of_one(layout_of())).rates.optimizer_bytes_per_s
    assert priced.breakdown_s[Component.OPTIMIZER] == pytest.approx((4 * held + (22 + 16) * held / 2) / rate)
    assert priced.breakdown_s[Component.STEP] == pytest.approx(cost.preset.host_step_s)
    assert priced.breakdown_s[Component.SYNC] == 0.0
    assert sum(priced.breakdown_s.values()) == pytest.approx(priced.step_time_s)
    tokens_per_s = 64 * 4096 / priced.step_time_s / 8
    assert priced.tokens_per_s_per_gpu == pytest.approx(tokens_per_s)
    flops = 6 * (32 * MATRICES + V * H) + 3 * 32 * 2 * 2048 * A * 2 * E
    assert priced.tflops_per_gpu == pytest.approx(flops * tokens_per_s / 1e12)
    peak = CLUSTER.gpu.dense_flops[layout_of().precision]
    assert priced.mfu_causal == priced.hfu == pytest.approx(flops * tokens_per_s / peak)
    assert priced.mfu_full == pytest.approx((flops + 3 * 32 * 2 * 2048 * A * 2 * E) * tokens_per_s / peak)


@pytest.mark.parametrize(
    ("fields", "count", "extra"),
    [
        (
            {"recompute": Recompute(granularity=Granularity.SELECTIVE, modules=("mlp",))},
            0,
            32 * 2 * 3 * H * F,
        ),
        (
            {"recompute": Recompute(granularity=Granularity.SELECTIVE, modules=("core_attn",))},
            0,
            32 * 2 * 2048 * A * 2 * E,
        ),
        (
            {"recompute": Recompute(granularity=Granularity.FULL)},
            4,
            8 * (2 * MATRICES + 2 * 2048 * A * 2 * E),
        ),
    ],
)
def test_repeated_flops_are_the_hardwares(fields: dict[str, Any], count: int, extra: float) -> None:
    """What is recomputed counts once more in the utilisation of hardware, and not in that of the model."""
    cost = build_cost_model(WORKLOAD.model, WORKLOAD.training, CLUSTER)
    priced = estimate(cost, layout_of(count, **fields))
    peak = CLUSTER.gpu.dense_flops[layout_of().precision]
    assert (priced.hfu - priced.mfu_causal) * peak / priced.tokens_per_s_per_gpu == pytest.approx(extra)


def test_every_rank_sees_the_same_step() -> None:
    """Its own work and the rest idle; the slowest rank's view is the estimate's."""
    cost = build_cost_model(WORKLOAD.model, WORKLOAD.training, CLUSTER)
    priced, seen = estimate(cost, layout_of()), rank_breakdowns(cost, layout_of())
    assert [sum(view.values()) for view in seen] == pytest.approx([priced.step_time_s] * 2)
    slowest = int(np.argmax(priced.rank_time_s))
    assert seen[slowest] == pytest.approx(priced.breakdown_s)
    assert seen[1 - slowest][Component.BUBBLE] > seen[slowest][Component.BUBBLE]
    assert distinct_ranks(2, 4) == [0, 1, 1, 0]
    assert distinct_ranks(4, 4) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("framework", "zero", "whole", "sharded"),
    [
        (Framework.MEGATRON, 0, (2, 4, 12), (0, 0, 0)), (Framework.MEGATRON, 1, (2, 4, 0), (0, 0, 12)),
        (Framework.MEGATRON, 2, (2, 0, 0), (0, 4, 12)), (Framework.MEGATRON, 3, (0, 0, 0), (2, 4, 12)),
        (Framework.TORCHTITAN, 2, (2, 0, 0), (4, 4, 8)), (Framework.TORCHTITAN, 3, (0, 0, 0), (4, 4, 8)),
    ],
)  # fmt: skip
def test_bytes_of_states_by_stage(
    framework: Framework, zero: int, whole: tuple[int, ...], sharded: tuple[int, ...]
) -> None:
    """Weights, gradients and optimizer state per parameter, whole on a rank and divided by the shard group."""
    preset = build_cost_model(WORKLOAD.model, WORKLOAD.training, CLUSTER, framework=framework).preset
    batch = batch_of_one(Layout(dp=8, micro_batches=1, zero=zero))
    found = state_bytes(preset, batch, MomentBytes(8.0, 8.0))
    names = ("weights", "gradients", "optimizer")
    assert tuple(float(found.whole[name][0]) for name in names) == whole
    assert tuple(float(found.sharded[name][0]) for name in names) == sharded
    held = RankParameters(np.array([100.0]), np.array([0.0]))
    bytes_ = found.of(held, held)
    assert [float(bytes_[name][0]) for name in names] == [
        100 * a + 100 * b / 8 for a, b in zip(whole, sharded, strict=True)
    ]
    unit = np.array([10.0])
    sets = {0: 0.0, 1: 0.0, 2: preset.grad_comm_bytes * 10.0, 3: (2 * 2 + 2 * preset.grad_comm_bytes) * 10.0}
    assert working_set_bytes(preset, batch, unit, 2.0)[0] == sets[zero]


def test_who_shares_a_state() -> None:
    """Data and context ranks, or a shard group; experts what is left; copies of a stage join under ZeRO."""
    batch = batch_of([
        Layout(tp=2, dp=4, cp=2, ep=4), Layout(tp=2, dp=4, cp=2, ep=4, hsdp_shard=2, zero=1),
        Layout(dp=1), Layout(dp=8, ep=8, etp=1, tp=1),
    ])  # fmt: skip
    dense, expert = shard_sizes(batch)
    assert (dense.tolist(), expert.tolist()) == ([8, 2, 1, 8], [4, 1, 1, 1])
    twice, _ = shard_sizes(batch, 2)
    assert twice.tolist() == [16, 2, 1, 16]
    held = RankParameters(np.full(4, 80.0), np.full(4, 40.0))
    sharded, whole = (replace(batch, zero=np.full(4, zero)) for zero in (1, 0))
    assert owned_parameters(sharded, held).tolist() == [20, 80, 120, 50]
    assert owned_parameters(whole, held).tolist() == [120] * 4


def pipelines(pp: int, vp: int, m: int, group: int = 0) -> Pipelines:
    """One pipeline."""
    return Pipelines(**{
        name: np.array([float(value)])
        for name, value in (("pp", pp), ("vp", vp), ("micro_batches", m), ("group", group or pp))
    })  # fmt: skip


@pytest.mark.parametrize(
    ("count", "sizes", "expected"),
    [
        ("fill_and_drain", (4, 1, 8), 6), ("gpipe_waiting", (4, 1, 8), 20), ("one_f_one_b_hops", (4, 1, 8), 12 + 4),
        ("one_f_one_b_waiting", (4, 1, 8), 16 + 8 - 5), ("one_f_one_b_waiting", (2, 1, 8), 9),
        ("one_f_one_b_waiting", (3, 1, 8), 16 + 6 - 5), ("interleaved_hops", (4, 2, 8), 14),
        ("interleaved_waiting", (4, 2, 8), 3 * 8 + 8 - 3), ("zb_h1_hops", (4, 1, 8), 12), ("zb_h1_waiting", (4, 1, 8), 25),
        ("zb_v_hops", (4, 2, 8), 16), ("zb_v_waiting", (4, 2, 8), 48), ("dualpipe_hops", (8, 1, 16), 28 + 6),
        ("dualpipe_hops", (2, 1, 8), 8 - 1), ("dualpipe_waiting", (4, 1, 8), 16 + 6 - 5), ("dualpipe_waiting", (2, 1, 8), 9),
        ("dualpipe_v_hops", (4, 2, 8), 24 + 5), ("dualpipe_v_waiting", (4, 2, 8), 32), ("dualpipe_v_waiting", (2, 2, 8), 34),
        ("no_hops", (4, 1, 8), 0),
    ],
)  # fmt: skip
def test_transfers_of_every_schedule(count: str, sizes: tuple[int, int, int], expected: float) -> None:
    """How many lengthen a step, beside compute and where ranks wait."""
    assert getattr(flows, count)(pipelines(*sizes)).tolist() == [expected]


@pytest.mark.parametrize(
    ("held", "sizes", "expected"),
    [
        ("hold_one", (1, 1, 8), [1, 1, 1, 1]), ("hold_all", (4, 1, 8), [8, 8, 8, 8]),
        ("hold_one_f_one_b", (4, 1, 8), [4, 3, 2, 1]),
        ("hold_one_f_one_b", (4, 1, 2), [2, 2, 2, 1]), ("hold_interleaved", (4, 2, 8), [5.5, 4.5, 3.5, 2.5]),
        ("hold_interleaved", (4, 2, 8, 8), [7.5, 6.5, 5.5, 4.5]), ("hold_interleaved", (4, 2, 4), [4, 4, 3.5, 2.5]),
        ("hold_zb_h1", (4, 1, 8), [4, 4, 4, 4]), ("hold_zb_h1", (4, 1, 3), [3, 3, 3, 3]),
        ("hold_zb_v", (4, 2, 8), [4, 4, 4, 4]),
        ("hold_zb_v", (4, 2, 4), [2.5, 3, 3.5, 4]), ("hold_dualpipe", (4, 1, 8), [5, 5, 5, 5]),
        ("hold_dualpipe_v", (4, 2, 8), [4.5, 4.5, 4.5, 4.5]),
    ],
)  # fmt: skip
def test_micro_batches_held_by_every_rank(held: str, sizes: tuple[int, ...], expected: list[float]) -> None:
    """In whole ranks, rank by rank."""
    assert getattr(flows, held)(pipelines(*sizes), np.arange(4))[0].tolist() == expected


def test_ends_are_placed_and_pieces_put_back() -> None:
    """Folded pipelines have both ends on the first rank; rows go back to where they came from."""
    first, last = {"a": np.array([1.0])}, {"a": np.array([2.0]), "b": np.array([4.0])}
    assert placed(first, last, folded=False) == (first, last)
    both, none = placed(first, last, folded=True)
    assert ({name: value.tolist() for name, value in both.items()}, none) == ({"a": [3.0], "b": [4.0]}, {})
    cost = build_cost_model(WORKLOAD.model, WORKLOAD.training, CLUSTER)
    pairs = [cost.terms(batch_of([Layout(pp=pp, dp=8 // pp, micro_batches=8 * pp, schedule=schedule)])) for pp, schedule in (
        (4, Schedule.ONE_F_ONE_B), (2, Schedule.ONE_F_ONE_B),
    )]  # fmt: skip
    whole = scatter_terms(2, [(np.array([1]), pairs[0]), (np.array([0]), pairs[1])])
    assert whole.pp.tolist() == [2, 4]
    assert whole.in_flight.tolist() == [[2, 1, 0, 0], [4, 3, 2, 1]]
    assert scatter_terms(1, [(np.array([0]), pairs[0])]) is pairs[0]
