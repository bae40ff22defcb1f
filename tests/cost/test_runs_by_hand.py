"""What a whole run adds to its layers' work, by hand: passes, offloading, failures, power, copies of the state."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from layoutopt.optimizer.cost.batch import FEW_ROWS, batch_of, batch_of_one, compact, homogeneous
from layoutopt.optimizer.cost.budget import HOST_POWER_SHARE, node_power_w, switch_power_w, training_budget
from layoutopt.optimizer.cost.checkpoints import checkpoint_bytes, checkpoint_cost, checkpoint_schedules
from layoutopt.optimizer.cost.data_parallel import covering_micro_batches, exposed_once_s, passes
from layoutopt.optimizer.cost.factory import build_cost_model
from layoutopt.optimizer.cost.faults import (
    LARGEST_EXPONENT,
    daly_interval_s,
    expected_wall_time_s,
    goodput,
    waste,
)
from layoutopt.optimizer.cost.interruptions import NEVER, failure_words, state_replicas
from layoutopt.optimizer.cost.kernel_times import stage_times
from layoutopt.optimizer.cost.launch_switches import of_preset
from layoutopt.optimizer.cost.offload import BUFFERED_BLOCKS, Host
from layoutopt.optimizer.cost.parameters import model_parameters
from layoutopt.optimizer.cost.pipeline import lone_share
from layoutopt.optimizer.cost.states import RankParameters
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.specs.cluster import NetworkLevel, StorageSpec
from layoutopt.optimizer.specs.layout import Layout
from layoutopt.optimizer.specs.loading import load_cluster, load_workload, override_training
from layoutopt.optimizer.specs.stage_split import build_stages
from layoutopt.optimizer.specs.vocabulary import Schedule

if TYPE_CHECKING:
    from layoutopt.optimizer.cost.cost_model import CostModel

WORKLOAD = override_training(load_workload("llama3-8b"), global_batch=64, sequence_length=4096)
CLUSTER = load_cluster("h100x8")
SPREAD = Layout(tp=2, sp=True, cp=2, dp=2, micro_batch=2, micro_batches=16, zero=1)


def cost_of(*, framework: Framework = Framework.MEGATRON, **changes: Any) -> CostModel:
    """Prices of an 8B model, some of its fields, or of its run's, changed."""
    run = {name: changes.pop(name) for name in ("dropout", "flash") if name in changes}
    model, training = replace(WORKLOAD.model, **changes), replace(WORKLOAD.training, **run)
    return build_cost_model(model, training, CLUSTER, framework=framework)


def test_traffic_beside_compute() -> None:
    """A share of the compute covers, and is slowed by what it covers; the last bucket has nothing beside it."""
    cost, batch = cost_of(), batch_of([SPREAD, SPREAD])
    dp = cost.dp_context(batch, cost.comm_context(batch, SPREAD.mesh_order).groups)
    hidden, slow = cost.constants["dp_hidden"], cost.constants["overlap_slowdown"]
    traffic, cover = np.array([1.0, 10.0]), np.array([5.0, 5.0])
    beside = [slow * 1.0, 10 - hidden * 5 + slow * hidden * 5]
    assert dp.beside(traffic, cover) == pytest.approx(beside)
    assert exposed_once_s(dp, traffic, cover, np.array([4.0, 4.0]), True) == pytest.approx([0.25, beside[1]])
    assert exposed_once_s(dp, traffic, cover, np.array([4.0, 4.0]), False).tolist() == [1.0, 10.0]
    bucketed = replace(dp, preset=replace(dp.preset, bucket_parameters=100, rank_bucket_parameters=10.0))
    blocks = np.full(2, 7.0)
    assert dp.groups.dp_cp.size.tolist() == [4, 4]
    # of 100 parameters each, but of no fewer than 10 for each of four ranks, and one at least
    assert bucketed.calls(np.array([800.0, 50.0]), blocks).tolist() == [8.0, 1.0]
    assert replace(bucketed, preset=replace(bucketed.preset, rank_bucket_parameters=50.0)).calls(
        np.array([800.0, 50.0]), blocks
    ).tolist() == [4.0, 1.0]
    assert dp.calls(np.array([1e9, 5.0]), blocks).tolist() == [7.0, 1.0]
    copying = replace(dp, preset=replace(dp.preset, copies_gathered=True), memory_bytes_per_s=10.0)
    held = RankParameters(np.array([30.0, 30.0]), np.array([10.0, 0.0]))
    forward, backward = copying.copied_s(held)
    assert forward.tolist() == pytest.approx([2 * 2 * 40 / 10, 2 * 2 * 30 / 10])
    assert backward.tolist() == pytest.approx(
        [(4 * 40 + 2 * 40 + 4 * 40) / 10, (4 * 30 + 2 * 30 + 4 * 30) / 10]
    )


@pytest.mark.parametrize(
    ("zero", "fields", "expected"),
    [
        (0, {}, (1, 0, 0, 0)), (1, {}, (0, 1, 1, 1)), (2, {}, (0, 8, 1, 1)), (3, {}, (0, 8, 16, 1)),
        (0, {"holds_back_traffic": False}, (8, 0, 0, 0)), (1, {"zero1_all_reduce": True}, (1, 0, 1, 1)),
        (3, {"reduce_each_micro_batch": False}, (0, 1, 16, 1)), (2, {"reduce_each_micro_batch": False}, (0, 1, 1, 1)),
        (2, {"master_bytes": 0, "holds_back_traffic": False}, (0, 8, 8, 8)),
        (3, {"holds_back_traffic": False}, (0, 8, 16, 8)),
    ],
)  # fmt: skip
def test_passes_of_every_stage(zero: int, fields: dict[str, Any], expected: tuple[int, ...]) -> None:
    """All-reduces, reduce-scatters, gathers and sums between replicas in a step of eight micro-batches."""
    cost, batch = cost_of(), batch_of_one(Layout(dp=8, micro_batches=8, zero=zero))
    dp = cost.dp_context(batch, cost.comm_context(batch, Layout().mesh_order).groups)
    found = passes(replace(dp, preset=replace(dp.preset, **fields)))
    counts = (found.all_reduce, found.reduce_scatter, found.all_gather, found.replicas)
    assert tuple(int(count[0]) for count in counts) == expected


def test_interleaved_chunks_hide_what_is_sent_once() -> None:
    """A group of pp micro-batches less one chunk's; with others the last backward alone."""
    loops = batch_of(
        [
            Layout(pp=4, vp=v, micro_batches=m, schedule=Schedule.INTERLEAVED)
            for v, m in ((2, 8), (4, 8), (2, 1), (4, 2))
        ]
    )
    assert covering_micro_batches(loops).tolist() == [2.0, 3.0, 1.0, 1.5]
    plain = batch_of_one(Layout(pp=4, micro_batches=8, schedule=Schedule.ONE_F_ONE_B))
    assert covering_micro_batches(plain).tolist() == [1.0]
    assert lone_share(loops).tolist() == pytest.approx([(3 + 4 + 1) / 16, (3 + 12 + 1) / 32, 1.0, 1.0])
    assert lone_share(plain).tolist() == pytest.approx([3 / 8])
    assert lone_share(batch_of_one(Layout(micro_batches=8))).tolist() == [1 / 8]


def test_a_calibrated_scale_lengthens_everything_alike() -> None:
    """Twice the time scale is twice the step, and twice every kernel of a rank's profile."""
    stages = build_stages(WORKLOAD.model, [16, 16], 2, Schedule.ONE_F_ONE_B, 0)
    layout = Layout(
        tp=4, sp=True, pp=2, micro_batches=64, zero=1, schedule=Schedule.ONE_F_ONE_B, stages=stages
    )
    times = []
    for scale in (1.0, 2.0):
        cluster = replace(CLUSTER, calibration={"time_scale": scale})
        cost = build_cost_model(WORKLOAD.model, WORKLOAD.training, cluster)
        times.append(stage_times(cost, layout))
    for one, twice in zip(*times, strict=True):
        for way in ("forward", "backward", "again"):
            small, large = getattr(one, way), getattr(twice, way)
            assert large.kernels_s == pytest.approx(
                {name: 2 * value for name, value in small.kernels_s.items()}
            )
            assert large.traffic_s == pytest.approx(
                {name: 2 * value for name, value in small.traffic_s.items()}
            )
            assert large.host_s == pytest.approx(2 * small.host_s)
        assert "embedding" in times[0][0].forward.kernels_s and "loss" in times[0][1].forward.kernels_s
        assert (
            "embedding" not in times[0][1].forward.kernels_s and "loss" not in times[0][0].forward.kernels_s
        )


def test_an_offloaded_optimizer_moves_and_steps_on_the_host() -> None:
    """Gradients down and weights up over the link; gradient, weight, master and moments through the node's memory."""
    cost = cost_of()
    host = Host(cluster=CLUSTER, constants=cost.constants, preset=cost.preset, moment_bytes=8.0)
    link = CLUSTER.gpu.host_link_bytes_per_s * cost.constants["host_link_fraction"]
    speed = cost.constants["host_adam_bytes_per_s"] / 8
    assert host.optimizer_s(np.array([1e9])) == pytest.approx(
        [(4 + 2) * 1e9 / link + (4 + 2 + 2 * (4 + 8)) * 1e9 / speed]
    )
    forward, backward = host.block_s(np.array([[link]]), np.array([[0.25]]), np.array([[2.0]]))
    assert (forward.tolist(), backward.tolist()) == ([[0.75]], [[0.0]])
    assert host.memory_bytes == pytest.approx(2e12 * cost.constants["host_memory_fraction"] / 8)
    assert replace(host, cluster=replace(CLUSTER, host_memory_bytes=None)).memory_bytes == float("inf")
    batch = batch_of_one(Layout(pp=2, dp=4, micro_batches=8, schedule=Schedule.ONE_F_ONE_B))
    kept, counts = np.array([[3e9, 5e9]]), np.array([10, 20])
    full = replace(host, cluster=replace(CLUSTER, host_memory_bytes=8e9))
    needed = (3e9 * 10 + 5e9 * 20) / 2 * 2
    left = full.left_bytes(batch, np.array([1e9]), kept, counts)
    assert left == pytest.approx([BUFFERED_BLOCKS * 5e9 + needed - full.memory_bytes])
    both = replace(full, preset=replace(cost.preset, offload_optimizer=True, master_bytes=2))
    assert both.left_bytes(batch, np.array([1e9]), kept, counts) == pytest.approx(left + (4 + 4 + 8) * 1e9)


def test_checkpoints_and_failures_by_hand() -> None:
    """Bytes of state and weights, the slower of store and GPUs, the snapshot's least stall; waste by its causes."""
    assert (checkpoint_bytes(10.0), checkpoint_bytes(10.0, with_weights=False)) == (140.0, 120.0)
    cluster = replace(CLUSTER, storage=StorageSpec(write_bytes_per_s=1e9, per_gpu_bytes_per_s=2e8))
    link = CLUSTER.gpu.host_link_bytes_per_s
    four, eight = (checkpoint_cost(1e9, gpus, cluster, least_stall_s=0.01) for gpus in (4, 8))
    assert (four.write_s, eight.write_s, eight.total_bytes, eight.per_gpu_bytes) == (
        14e9 / 8e8,
        14.0,
        14e9,
        14e9 / 8,
    )
    assert (four.synchronous_stall_s, four.asynchronous_stall_s) == (four.write_s, max(14e9 / 4 / link, 0.01))
    assert checkpoint_cost(1e9, 8, cluster, least_stall_s=9.0).asynchronous_stall_s == 9.0
    lost = waste(100.0, 5.0, 20.0, 1000.0)
    assert (lost.checkpoint, lost.lost_work, lost.restart, lost.total) == pytest.approx(
        (0.05, 0.05, 0.02, 0.12)
    )
    assert daly_interval_s(2000.0, 1000.0) == 1000.0
    assert daly_interval_s(200.0, 1000.0) == pytest.approx(
        np.sqrt(4e5) * (1 + np.sqrt(0.1) / 3 + 0.1 / 9) - 200
    )
    wall = 1000 * np.exp(0.02) * np.expm1(0.105) * 7.0 / 100
    assert expected_wall_time_s(7.0, 100.0, 5.0, 20.0, 1000.0) == pytest.approx(wall)
    assert goodput(100.0, 5.0, 20.0, 1000.0) == pytest.approx(7.0 / wall)
    assert expected_wall_time_s(1.0, LARGEST_EXPONENT, 0.0, 0.0, 1.0) < float("inf")
    assert expected_wall_time_s(1.0, LARGEST_EXPONENT + 1, 0.0, 0.0, 1.0) == float("inf")
    fast, slow = checkpoint_schedules(1e6, eight, 600.0, 1e5)
    assert fast.wall_s <= slow.wall_s
    background = fast if fast.mode == "asynchronous" else slow
    assert background.interval_s == max(background.daly_s, eight.write_s)
    assert background.restart_s == 600 + eight.write_s
    assert fast.failures == fast.wall_s / 1e5
    assert fast.goodput == pytest.approx(1e6 / fast.wall_s)


def test_power_of_nodes_and_switches_by_hand() -> None:
    """GPUs at their limit, their rated power's share for the host, NICs; ports up to the top of an oversubscribed tree."""
    gpu = replace(CLUSTER.gpu, tdp_w=CLUSTER.gpu.rated_w / 2, nominal_tdp_w=CLUSTER.gpu.rated_w)
    capped = replace(CLUSTER, gpu=gpu)
    nics = CLUSTER.nics_per_node * CLUSTER.nic_power_w
    assert node_power_w(capped) == pytest.approx(
        8 * gpu.tdp_w + HOST_POWER_SHARE * 8 * CLUSTER.gpu.rated_w + nics
    )
    assert node_power_w(replace(capped, host_power_w=100.0)) == pytest.approx(8 * gpu.tdp_w + 100 + nics)
    assert switch_power_w(CLUSTER) == 0.0
    levels = tuple(
        NetworkLevel(name=f"l{i}", gpus=gpus, oversubscription=over)
        for i, (gpus, over) in enumerate(((16, 1.0), (64, 2.0), (256, 2.0)))
    )
    large = replace(CLUSTER, gpu_count=256, levels=levels)
    assert switch_power_w(large) == pytest.approx(8 * (1 + 2 / 2 + 2 / 4) * CLUSTER.switch_power_w)
    budget = training_budget(
        WORKLOAD.model,
        WORKLOAD.training,
        CLUSTER,
        step_time_s=2.0,
        gpus=8,
        step_ratio=(0.9, 1.2),
        gpu_hour_cost=3.0,
    )
    steps = 15e12 / (64 * 4096)
    assert (budget.steps, budget.days) == pytest.approx((steps, steps * 2 / 86400))
    assert (budget.days_low, budget.days_high) == pytest.approx((0.9 * budget.days, 1.2 * budget.days))
    assert budget.gpu_hours == pytest.approx(steps * 2 * 8 / 3600)
    assert budget.cost == pytest.approx(3 * budget.gpu_hours)
    assert budget.energy_kwh == pytest.approx(
        budget.gpu_hours * node_power_w(CLUSTER) / 8 * CLUSTER.pue / 1000
    )
    twice = budget + budget
    assert (twice.days, twice.cost, twice.tokens) == pytest.approx(
        (2 * budget.days, 2 * (budget.cost or 0), 30e12)
    )
    assert (budget + replace(budget, cost=None)).cost is None


def test_copies_of_the_state_and_why_failures_cost_less() -> None:
    """Experts take ranks of a copy; ZeRO shares it out; words name what differs."""
    layouts = [
        Layout(tp=2, cp=2, dp=8), Layout(tp=2, cp=2, dp=8, zero=1), Layout(tp=2, cp=2, dp=8, zero=1, hsdp_shard=2),
        Layout(tp=2, dp=8, ep=4), Layout(tp=2, dp=8, ep=8, etp=2),
    ]  # fmt: skip
    assert state_replicas(batch_of(layouts)).tolist() == [8, 1, 4, 4, 1]
    assert state_replicas(batch_of(layouts), exact=False).tolist() == [8, 8, 8, 4, 1]
    hot = replace(CLUSTER, failures=replace(CLUSTER.failures, hot_restart_s=60.0))
    said = failure_words(hot, (1000.0, 4.0), (2000.0, 1.0))
    assert "4 copies of the training state instead of one copy" in said
    assert "fewer of 1,000 GPUs fail than of 2,000" in said
    assert "instead of 2 copies" in failure_words(hot, (8.0, 4.0), (8.0, 2.0))
    assert NEVER > 1e6


def test_rows_are_taken_compacted_and_told_apart() -> None:
    """Equal columns store one value; rows that are alike in some columns come together, each once."""
    column = compact(np.array([4, 4, 4]))
    assert (column.strides, column.tolist()) == ((0,), [4, 4, 4])
    assert compact(np.array([4, 5])).strides != (0,)
    assert len(compact(np.zeros(0, dtype=np.int64))) == 0
    batch = batch_of([Layout(tp=2), Layout(tp=1, dp=2), Layout(tp=2, dp=4)])
    groups = [(rows.tolist(), part.dp.tolist()) for rows, part in homogeneous(batch, [batch.tp])]
    assert sorted(groups) == [([0, 2], [1, 4]), ([1], [2])]
    many = batch_of([Layout(dp=d + 1) for d in range(3)]).take(np.resize([0, 1, 2], FEW_ROWS + 1))
    assert many.take(np.arange(len(many))) is many
    assert many.take(np.arange(len(many))[::-1]).dp[0] == many.dp[-1]
    assert many.take(many.dp == 2).dp.tolist() == [2] * int((many.dp == 2).sum())
    few = batch.take(np.arange(3))
    assert few is not batch and few.tp.tolist() == batch.tp.tolist()
    assert batch.table().shape == (3, 16)


def test_switches_of_a_preset_are_single_values() -> None:
    """Rows that state none have the preset's, without an axis of rows."""
    preset = cost_of().preset
    switches = of_preset(preset)
    assert switches.loss_chunks.shape == ()
    assert float(switches.loss_chunks) == preset.loss_chunks
    assert [way for way, used in switches.overlap.items() if used] == [preset.ep_overlap]
    assert switches.dispatchers == (preset.dispatcher,)
    assert bool(switches.tp_overlap) is preset.tp_overlap


def test_parameters_of_prediction_layers_count_on_request() -> None:
    """A projection of 2h to h and three norms beside a layer of the last kind."""
    model = load_workload("deepseek-v3").model
    layer = model_parameters(replace(model, runs=(replace(model.runs[1], count=1),), mtp_layers=0))
    ends = model_parameters(replace(model, runs=(), mtp_layers=0))
    extra = model_parameters(model, with_mtp=True) - model_parameters(model)
    assert extra == layer - ends + 2 * 7168**2 + 3 * 7168
