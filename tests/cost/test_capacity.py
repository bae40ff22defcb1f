"""Experts padded to a capacity: rows that are sent and computed, what graphs hold, and the launch that pads so."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from layoutopt.optimizer.ask.load import load_layout
from layoutopt.optimizer.cost.collectives import collectives
from layoutopt.optimizer.cost.components import Component
from layoutopt.optimizer.cost.estimate import estimate
from layoutopt.optimizer.cost.factory import build_cost_model
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.interop.launch.export import export
from layoutopt.optimizer.interop.sources import import_text
from layoutopt.optimizer.specs.layout import Switches
from layoutopt.optimizer.specs.loading import load_cluster, load_workload
from layoutopt.optimizer.specs.vocabulary import CudaGraph, Dispatcher

if TYPE_CHECKING:
    from layoutopt.optimizer.cost.cost_model import CostModel
    from layoutopt.optimizer.specs.layout import Layout
    from layoutopt.optimizer.specs.workload import Workload

CLUSTER = load_cluster("h100x16")


def mixture(capacity: float | None) -> Workload:
    """Qwen3-30B-A3B whose experts drop what is above a capacity, without imbalance."""
    workload = load_workload("qwen3-30b-a3b")
    assert workload.model.moe is not None
    moe = replace(workload.model.moe, capacity_factor=capacity)
    training = replace(workload.training, global_batch=64, sequence_length=1024, moe_imbalance=1.0)
    return replace(workload, model=replace(workload.model, moe=moe), training=training)


def priced(capacity: float | None, **switches: Any) -> tuple[CostModel, Layout]:
    """A cost model and a layout of 16 GPUs, eight of them with all experts."""
    workload = mixture(capacity)
    stated = load_layout("tp=1,pp=1,dp=16,ep=8,micro_batch=1,micro_batches=4,zero=1")
    layout = replace(stated.complete(workload, CLUSTER), switches=Switches(**switches))
    cost = build_cost_model(workload.model, workload.training, CLUSTER, framework=Framework.MEGATRON)
    return cost, layout


def exchanged_bytes(capacity: float | None, dispatcher: Dispatcher) -> float:
    """Bytes that a rank sends to other ranks' experts in a step."""
    calls = collectives(*priced(capacity, dispatcher=dispatcher))
    return sum(call.bytes * call.count for call in calls if call.axis == "ep")


def test_padding_is_sent_by_all_to_alls_alone() -> None:
    """They carry a capacity's rows, whether a token fills them or not; HybridEP carries tokens."""
    plain = exchanged_bytes(None, Dispatcher.ALLTOALL)
    assert exchanged_bytes(1.0, Dispatcher.ALLTOALL) == pytest.approx(plain)
    assert exchanged_bytes(1.5, Dispatcher.ALLTOALL) == pytest.approx(1.5 * plain)
    assert exchanged_bytes(1.5, Dispatcher.HYBRIDEP) == pytest.approx(plain)


def host_s(capacity: float | None, graph: CudaGraph) -> float:
    """Seconds of a step in which the GPU waits for launches."""
    return float(estimate(*priced(capacity, cuda_graph=graph)).breakdown_s[Component.HOST])


def test_graphs_of_layers_hold_padded_experts() -> None:
    """What follows the router has a size beforehand, so that nothing of a layer is launched kernel by kernel."""
    without, dropless = host_s(1.0, CudaGraph.NONE), host_s(None, CudaGraph.PARTIAL)
    assert host_s(1.0, CudaGraph.PARTIAL) < 0.2 * min(without, dropless)
    assert 0.3 * host_s(None, CudaGraph.NONE) < dropless


@pytest.mark.parametrize(
    ("framework", "kind", "words"),
    [
        (
            "megatron-lm", "megatron-args",
            ("--moe-expert-capacity-factor 1.25", "--moe-pad-expert-input-to-capacity", "--cuda-graph-modules attn moe"),
        ),
        (
            "megatron-bridge", "bridge-command",
            ("model.moe_expert_capacity_factor=1.25", "model.moe_pad_expert_input_to_capacity=true"),
        ),
    ],
)  # fmt: skip
def test_the_launch_pads_as_priced(framework: str, kind: str, words: tuple[str, ...]) -> None:
    """The trainer drops without padding by default; graphs capture the experts too."""
    _, layout = priced(1.25, cuda_graph=CudaGraph.PARTIAL, dispatcher=Dispatcher.ALLTOALL)
    job = export(layout, mixture(1.25), CLUSTER, framework)
    text = next(text for name, text in job.files.items() if not name.endswith(".json"))
    assert [word for word in words if word not in text.replace("\\\n", " ")] == []
    read = import_text(text, "", kind).value
    if framework == "megatron-lm":
        assert read.model.moe.capacity_factor == 1.25
