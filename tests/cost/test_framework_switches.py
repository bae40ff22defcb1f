"""Switches of framework presets that change the price of a step, one at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from layoutopt.optimizer.cost.components import Component
from layoutopt.optimizer.cost.constants import load_constants
from layoutopt.optimizer.cost.estimate import estimate
from layoutopt.optimizer.cost.factory import build_cost_model
from layoutopt.optimizer.frameworks.preset import load_preset
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.specs.loading import load_cluster, load_workload, parse_layout

if TYPE_CHECKING:
    from layoutopt.optimizer.cost.estimate import Estimate

HBM_BYTES_PER_S = 3.35e12


def price(
    layout: str, *, imbalance: float | None = None, model: str = "llama3-70b", **switches: Any
) -> Estimate:
    """Price a layout of 64 H100s under Megatron's preset with switches replaced."""
    workload, cluster = load_workload(model), load_cluster("h100x64")
    training = replace(workload.training, moe_imbalance=imbalance)
    workload = replace(workload, training=training)
    preset = replace(load_preset(Framework.MEGATRON), **switches)
    cost = build_cost_model(workload.model, training, cluster, preset=preset)
    return estimate(cost, parse_layout(layout).complete(workload, cluster))


def test_gradients_added_by_a_kernel_of_their_own_cost_its_traffic() -> None:
    """Ten bytes per parameter and micro-batch: a 16-bit gradient read, an fp32 one read and written."""
    layout = "tp=8,pp=8,mb=1,zero=1"
    fused, apart = (price(layout, adds_gradients=own) for own in (False, True))
    added = apart.breakdown_s[Component.BACKWARD] - fused.breakdown_s[Component.BACKWARD]
    workload = load_workload("llama3-70b")
    matrices = 10 * (8192 * (2 * 8192 + 2 * 1024) + 3 * 8192 * 28672) / 8  # ten layers on the fullest rank
    head = 128256 * 8192 / 8
    speed = HBM_BYTES_PER_S * load_constants().of("hbm_fraction", "hopper")
    expected = [workload.training.global_batch * 10 * own / speed for own in (matrices, matrices + head)]
    assert expected[0] * 0.999 <= added <= expected[1] * 1.001
    assert apart.breakdown_s[Component.FORWARD] == fused.breakdown_s[Component.FORWARD]


@pytest.mark.parametrize("overlap", [False, True])
def test_collectives_of_a_backward_pass_that_are_not_asynchronous_are_exposed(overlap: bool) -> None:
    """Of six collectives per pair of matrices Megatron exposes three, plain autograd four."""
    asynchronous, plain = (
        price("tp=8,pp=8,mb=1,zero=1", tp_async_backward=own, tp_overlap=overlap).breakdown_s[Component.TP]
        for own in (True, False)
    )
    assert plain / asynchronous == pytest.approx(4 / 3, rel=0.03)


def test_all_reduces_of_a_backward_pass_may_wait_where_gathers_do_not() -> None:
    """Of two all-reduces of a pair, one each way, the backward one shows; with sequence parallelism nothing changes."""
    for sharded, ratio in ((False, 2.0), (True, 1.0)):
        layout = f"tp=8,pp=8,mb=1,zero=1,sp={int(sharded)}"
        beside, waiting = (
            price(layout, tp_async_all_reduce=own).breakdown_s[Component.TP] for own in (True, False)
        )
        assert waiting / beside == pytest.approx(ratio, rel=0.03)


def test_each_way_of_a_send_is_shared_out_for_itself() -> None:
    """Eight ranks send an eighth of activations and of gradients each; whole gradients are eight times as many bytes."""
    layout = "tp=8,pp=8,mb=1,zero=1,sp=0"
    shared, half, whole = (
        price(layout, partitioned_sends=sends, partitioned_gradients=gradients, pp_overlap=False)
        for sends, gradients in ((True, True), (True, False), (False, False))
    )
    seconds = [one.breakdown_s[Component.PP] for one in (shared, half, whole)]
    assert seconds[0] < seconds[1] < seconds[2]
    assert seconds[2] - seconds[1] == pytest.approx(seconds[1] - seconds[0], rel=0.02)


def test_shares_that_are_gathered_after_a_send_take_whole_tensors_of_memory() -> None:
    """As much as where whole tensors were sent, in less time."""
    layout = "tp=8,pp=8,mb=1,zero=1,sp=0"
    shares, gathered, whole = (
        price(layout, partitioned_sends=sends, partitioned_gradients=sends, gathers_received=gathers)
        for sends, gathers in ((True, False), (True, True), (False, False))
    )
    assert shares.memory.peak_bytes < gathered.memory.peak_bytes == whole.memory.peak_bytes
    assert gathered.step_time_s == shares.step_time_s < whole.step_time_s


def test_positions_spelled_out_for_every_element_are_written_and_read() -> None:
    """16 bytes for every element of routed rows, written, read and read again in the backward pass."""
    layout = "ep=8,mb=1,zero=1,pp=8,tp=1"
    plain, spelled = (price(layout, model="mixtral-8x7b", routed_index_bytes=own) for own in (0, 16))
    workload = load_workload("mixtral-8x7b")
    elements = workload.training.sequence_length * 2 * workload.model.hidden
    speed = HBM_BYTES_PER_S * load_constants().of("hbm_fraction", "hopper")
    layers = workload.training.global_batch / 8 * workload.model.layers / 8
    for component, times in ((Component.FORWARD, 2), (Component.BACKWARD, 1)):
        added = spelled.breakdown_s[component] - plain.breakdown_s[component]
        assert added == pytest.approx(times * 16 * elements / speed * layers, rel=0.02), component


def test_launches_that_block_show_the_whole_host_time() -> None:
    """A forward, a backward and a repeated forward of ten layers, whatever the GPU takes; more for small micro-batches."""
    constants, forward = load_constants(), load_preset(Framework.MEGATRON).host_layer_s
    awaited = constants["layer_kernels"] * constants["blocking_launch_s"]
    each = (forward * constants["host_tp"] + awaited) * (2 + constants["host_backward"])
    costs = []
    for micro_batch in (1, 4):
        layout = f"tp=8,pp=8,mb={micro_batch},zero=1,recompute=full"
        ahead, blocking = (price(layout, blocking_launches=own) for own in (False, True))
        assert blocking.breakdown_s[Component.FORWARD] == ahead.breakdown_s[Component.FORWARD]
        micro_batches = load_workload("llama3-70b").training.global_batch / micro_batch
        assert blocking.breakdown_s[Component.HOST] == pytest.approx(10 * each * micro_batches, rel=1e-3)
        costs.append(blocking.step_time_s - ahead.step_time_s)
    assert costs[0] > 3 * costs[1] > 0


def test_memory_of_experts_follows_a_stated_imbalance() -> None:
    """A margin is for routing that nobody states; balanced routing has none, a stated imbalance is its own."""
    layout = "ep=8,mb=1,zero=1,pp=8,tp=1"
    unknown, balanced, uneven = (
        price(layout, model="mixtral-8x7b", imbalance=own).memory.peak_bytes for own in (None, 1.0, 1.3)
    )
    assert balanced < unknown < uneven
    margin = load_constants()["moe_memory_imbalance"] - 1
    assert (unknown - balanced) / (uneven - balanced) == pytest.approx(margin / 0.3)


def test_gradients_in_buckets_stay_beside_the_gradient_buffer() -> None:
    """Two more bytes for every parameter that the fullest rank holds."""
    layout = "tp=8,pp=8,mb=1,zero=1"
    plain, buckets = (price(layout, bucket_bytes=own).memory.stages[0].components_bytes for own in (0, 2))
    assert buckets["gradients"] == pytest.approx(1.5 * plain["gradients"])


def test_bytes_of_an_unfused_loss_per_logit() -> None:
    """A fused loss keeps the 16-bit logits alone, others add fp32 copies."""
    layout = "tp=8,pp=8,mb=1,zero=1"
    kept = [
        price(layout, **switches).memory.stages[-1].components_bytes["logits"]
        for switches in ({"fused_loss": True}, {"logit_bytes": 6}, {"logit_bytes": 10})
    ]
    logits = 8192 * 129024 / 8  # the vocabulary is padded to a multiple of 128 on every rank
    assert [size - kept[0] for size in kept[1:]] == pytest.approx([4 * logits, 8 * logits])


def test_a_layer_whose_repetition_stops_early_repeats_all_but_its_last_matrix() -> None:
    """The down projection is more than a quarter of a block's multiplications."""
    layout = "tp=1,pp=8,mb=1,zero=1,recompute=full"
    whole, early = (
        price(layout, repeats_last_matrix=own).breakdown_s[Component.RECOMPUTE] for own in (True, False)
    )
    last = 8192 * 28672 / (8192 * (2 * 8192 + 2 * 1024) + 3 * 8192 * 28672)
    assert 0.8 * last < 1 - early / whole < last


def test_normalisation_step_by_step_reads_and_writes_what_its_kernels_do() -> None:
    """Forward 36 bytes an element more, backward 64, twice a layer; a compiler fuses them."""
    layout = "tp=8,pp=8,mb=1,zero=1,sp=true"
    fused, apart = (price(layout, fused_norm=own).breakdown_s for own in (True, False))
    speed = HBM_BYTES_PER_S * load_constants().of("hbm_fraction", "hopper")
    batch = load_workload("llama3-70b").training.global_batch
    elements = batch * 8192 * 8192 / 8
    expected = [
        36 * (2 * 10 + own) * elements / speed for own in (0, 1)
    ]  # ten layers, and the norm in front of the head
    assert expected[0] * 0.999 <= apart[Component.FORWARD] - fused[Component.FORWARD] <= expected[1] * 1.001
    compiled = [price(layout, fused_norm=own, compiled=True).step_time_s for own in (True, False)]
    assert compiled[0] == compiled[1]


def test_ranks_that_gather_logits_keep_and_pass_over_all_of_them() -> None:
    """Eight times the logits of a rank of eight beside what else waits, and their gather in place of three small sums."""
    layout = "tp=8,pp=8,mb=1,zero=1"
    split, whole = (price(layout, splits_loss=own) for own in (True, False))
    kept = [one.memory.stages[-1].components_bytes["logits"] for one in (split, whole)]
    assert kept[1] > 6 * kept[0]
    assert whole.breakdown_s[Component.TP] > split.breakdown_s[Component.TP]
    assert whole.breakdown_s[Component.FORWARD] > split.breakdown_s[Component.FORWARD]


def test_every_matrix_that_gathers_for_itself_adds_a_gather_and_a_scatter() -> None:
    """Of query, key and value two, of gate and up one more each way: six beside the eight exposed ones."""
    layout = "tp=8,pp=8,mb=1,zero=1,sp=true"
    once, each = (
        price(layout, gathers_once=own, tp_async_backward=False).breakdown_s[Component.TP]
        for own in (True, False)
    )
    assert each / once == pytest.approx(14 / 8, rel=0.03)


def test_gradients_that_wait_for_the_last_micro_batch_are_whole() -> None:
    """Four bytes of every parameter on the rank instead of its share."""
    layout = "tp=1,pp=1,mb=1,zero=3"
    shares, whole = (
        price(layout, whole_gradients=own).memory.stages[0].components_bytes["gradients"]
        for own in (False, True)
    )
    assert whole == pytest.approx(64 * shares, rel=0.01)


def test_tensors_that_their_owners_broadcast_pass_every_rank_one_after_the_other() -> None:
    """More tensors take more passes of the ring; no more of them than ranks."""
    layout = "tp=1,pp=1,mb=1,zero=1"
    few, many, most = (
        price(layout, broadcast_parameters=own, param_overlap=False).breakdown_s[Component.DP]
        for own in (70e9 / 8, 70e9 / 64, 70e9 / 1000)
    )
    assert few < many
    assert most == pytest.approx(many, rel=0.01)
