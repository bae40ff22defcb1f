"""Prices that order a search, buffers and messages, each counted by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from layoutopt.optimizer.cost.batch import batch_of_one
from layoutopt.optimizer.cost.collectives import collectives
from layoutopt.optimizer.cost.components import Component
from layoutopt.optimizer.cost.estimate import estimate
from layoutopt.optimizer.cost.factory import build_cost_model
from layoutopt.optimizer.cost.kernel_times import PassTimes, stage_times
from layoutopt.optimizer.cost.placement import order_of
from layoutopt.optimizer.cost.terms import price_stages
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.specs.layout import Layout
from layoutopt.optimizer.specs.loading import load_cluster, load_workload, override_training
from layoutopt.optimizer.specs.model import LayerShape, MambaSpec, Mixer, Mlp, Run
from layoutopt.optimizer.specs.stage_split import build_stages
from layoutopt.optimizer.specs.vocabulary import Schedule

WORKLOAD = override_training(load_workload("llama3-8b"), global_batch=64, sequence_length=4096)
CLUSTER = load_cluster("h100x8")


def test_the_closed_form_of_a_step_is_its_slowest_rank_and_what_waits() -> None:
    """Micro-batches times the slowest rank, the bubble's weight times the others, and what is outside."""
    cost = build_cost_model(WORKLOAD.model, WORKLOAD.training, CLUSTER)
    layout = Layout(tp=2, sp=True, pp=4, micro_batches=64, zero=1, schedule=Schedule.ONE_F_ONE_B)
    terms = cost.terms(batch_of_one(layout))
    blocks = np.array([[[5], [9], [10], [8]]])
    again = np.array([[[0], [3], [10], [1]]])
    found = price_stages(terms, blocks, again)
    ranks = blocks[0, :, 0] * terms.layer_s[0, 0] + again[0, :, 0] * terms.recompute_s[0, 0]
    ranks[0] += terms.first_s[0]
    ranks[3] += terms.last_s[0]
    others = ranks.sum() - ranks.max()
    step_s = 64 * ranks.max() + terms.bubble_weight[0] * others + terms.fixed_s[0]
    assert found.rank_time_s[0] == pytest.approx(ranks)
    assert found.step_time_s[0] == pytest.approx(step_s)
    assert found.peak_bytes[0] == found.rank_bytes[0].max()


@pytest.mark.parametrize(("pp", "vp"), [(2, 1), (2, 2), (4, 1), (4, 2)])
def test_torch_pipelines_receive_into_a_buffer_for_every_micro_batch(pp: int, vp: int) -> None:
    """One for each stage and way, less the end that has one neighbour; Megatron-LM has one each way."""
    schedule = Schedule.INTERLEAVED if vp > 1 else Schedule.ONE_F_ONE_B
    layers = [32 // (pp * vp)] * (pp * vp)
    sizes = []
    for framework in (Framework.TORCHTITAN, Framework.MEGATRON):
        cost = build_cost_model(WORKLOAD.model, WORKLOAD.training, CLUSTER, framework=framework)
        layout = Layout(
            pp=pp, vp=vp, dp=8 // pp, micro_batches=8 * pp, zero=2 if framework is Framework.TORCHTITAN else 1,
            schedule=schedule, stages=build_stages(WORKLOAD.model, layers, pp, schedule, 0),
        )  # fmt: skip
        stages = estimate(cost, layout).memory.stages
        sizes += [stages[place].components_bytes["receive"] for place in (0, 1)]
    message = 2 * 4096 * WORKLOAD.model.hidden
    end, inner = 2 * vp - 1, 2 * vp if pp > 2 else 2 * vp - 1
    assert sizes == pytest.approx(
        [8 * pp * end * message, 8 * pp * inner * message, 2 * message, 2 * message]
    )


def test_the_closest_placement_has_no_order() -> None:
    """The empty order stands for groups whose members lie side by side; a layout has its own."""
    batch = batch_of_one(Layout(dp=8, mesh_order="tp-cp-ep-pp-dp"))
    assert order_of(batch, closest=True) == ""
    assert order_of(batch, closest=False) == "tp-cp-ep-pp-dp"


def test_a_state_space_layer_exchanges_its_streams_for_heads() -> None:
    """Three of the inner width, keys and values of the state's groups, and a step for every head, in 16 bits."""
    mamba = MambaSpec(heads=64, head_dim=64, state=128, groups=8)
    run = Run(name="scan", block=(LayerShape(mixer=Mixer.MAMBA, mlp=Mlp.NONE),), count=8)
    model = replace(WORKLOAD.model, runs=(run,), mamba=mamba)
    cost = build_cost_model(model, WORKLOAD.training, CLUSTER)
    layout = Layout(
        tp=2, sp=True, cp=4, micro_batches=64, zero=1, stages=build_stages(model, [8], 1, Schedule.NONE, 0)
    )
    (found,) = [one for one in collectives(cost, layout) if one.axis == "cp"]
    streams = 3 * 64 * 64 + 2 * 8 * 128 + 64
    assert (found.kind, found.ranks, found.bytes) == ("all_to_all", 4, 2 * (4096 // 4) * streams // 2)
    assert found.count == 2 * 8 * 64


def test_passes_add_up_part_by_part() -> None:
    """A stage's pass is each block's as often as it has blocks: kernels, traffic and idle host apart."""
    total = PassTimes(kernels_s={"gemm": 1.0}, traffic_s={Component.TP: 2.0}, host_s=0.5)
    block = PassTimes(
        kernels_s={"gemm": 3.0, "norm": 0.25}, traffic_s={Component.TP: 4.0, Component.EP: 1.0}, host_s=2.0
    )
    total.add(block, 3.0)
    assert total.kernels_s == {"gemm": 10.0, "norm": 0.75}
    assert total.traffic_s == {Component.TP: 14.0, Component.EP: 3.0}
    assert total.host_s == 6.5


def test_the_kernels_of_stages_are_those_of_their_layers() -> None:
    """Twice the layers take twice the time of every kernel beside the ends, which only their stages have."""
    cost = build_cost_model(WORKLOAD.model, WORKLOAD.training, CLUSTER)
    stages = build_stages(WORKLOAD.model, [4, 8, 16, 4], 4, Schedule.ONE_F_ONE_B, 0)
    layout = Layout(
        tp=2, sp=True, pp=4, micro_batches=64, zero=1, schedule=Schedule.ONE_F_ONE_B, stages=stages
    )
    _, small, large, _ = stage_times(cost, layout)
    for one, other in ((small.forward, large.forward), (small.backward, large.backward)):
        assert {name: 2 * seconds for name, seconds in one.kernels_s.items()} == pytest.approx(
            other.kernels_s
        )
        assert {name: 2 * seconds for name, seconds in one.traffic_s.items()} == pytest.approx(
            other.traffic_s
        )
        assert all(seconds >= 0 for seconds in other.traffic_s.values())
