"""Collectives are counted as torch calls them, and their prices add up to the step's."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from checks.counted import alive, counted, judged, states

from layoutopt.optimizer.ask.load import load_cluster, load_layout, load_model
from layoutopt.optimizer.cost.batch import batch_of_one
from layoutopt.optimizer.cost.collectives import CollectiveCall, collectives
from layoutopt.optimizer.cost.components import Component
from layoutopt.optimizer.cost.estimate import estimate
from layoutopt.optimizer.cost.factory import build_cost_model
from layoutopt.optimizer.cost.placement import groups_of, order_of
from layoutopt.optimizer.frameworks.preset import EpOverlap, FrameworkPreset, load_preset
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.specs.vocabulary import CpComm

if TYPE_CHECKING:
    from collections.abc import Callable

    from layoutopt.optimizer.cost.cost_model import CostModel
    from layoutopt.optimizer.specs.layout import Layout

RECORDED = json.loads((Path(__file__).parents[1] / "data" / "referees" / "collectives.json").read_text())
"""Calls of torch's own APIs in tiny jobs (``benchmarks/referees``, ``--record``)."""


@pytest.mark.parametrize("row", RECORDED, ids=lambda row: "-".join(map(str, row["job"].values())))
def test_bytes_and_counts_are_those_of_torch(row: dict[str, Any]) -> None:
    """Every rank of jobs with tensor, pipeline, data parallelism, FSDP and HSDP."""
    assert counted(row["job"]) == row["calls"]


@pytest.mark.parametrize("row", RECORDED, ids=lambda row: "-".join(map(str, row["job"].values())))
def test_state_bytes_are_those_of_torch(row: dict[str, Any]) -> None:
    """Shards of weights, gradients and moments on every pipeline rank."""
    for ours, theirs in zip(states(row["job"]), row["states"], strict=True):
        assert ours == {name: theirs[name] for name in ours}


def test_enough_layouts_are_recorded() -> None:
    """Of the process job and of the fake back-end."""
    backends = [row["job"]["backend"] for row in RECORDED]
    assert backends.count("gloo") >= 12 and backends.count("fake") >= 4


def bare(**switches: Any) -> FrameworkPreset:
    """Megatron's preset, but nothing hides traffic."""
    hidden = {"tp_async_backward": False, "dp_overlap": False, "param_overlap": False, "tp_overlap": False}
    return replace(load_preset(Framework.MEGATRON), ep_overlap=EpOverlap.NONE, **{**hidden, **switches})


def priced(model: str, text: str, preset: FrameworkPreset) -> tuple[CostModel, Layout]:
    """A cost model and a layout on 64 GPUs."""
    workload, cluster = load_model(model).value, load_cluster("h100x64")
    workload = replace(workload, training=replace(workload.training, global_batch=256, sequence_length=4096))
    cost = build_cost_model(workload.model, workload.training, cluster, preset=preset)
    return cost, load_layout(text).complete(workload, cluster)


def seconds(
    cost: CostModel, layout: Layout, axes: tuple[str, ...], wanted: Callable[[CollectiveCall], bool]
) -> float:
    """Price of the counted calls of rank 0 along some axes."""
    batch = batch_of_one(layout)
    groups = groups_of(order_of(batch, closest=False), batch)
    top, total = cost.topology, 0.0
    by_axis = {name: getattr(groups, name) for name in ("tp", "cp", "ep", "etp", "edp", "pp")}
    for call in collectives(cost, layout):
        if call.stage == 0 and call.axis in axes and wanted(call):
            whole = (
                groups.dp_cp
                if call.ranks == int(groups.dp_cp.size[0])
                else groups.hsdp_inner(batch.hsdp_shard)
            )
            if call.axis == "dp" and call.ranks not in (int(whole.size[0]),):
                whole = groups.hsdp_outer(batch.hsdp_shard)
            price = getattr(top, f"{call.kind}_s")
            total += call.count * float(price(call.bytes, by_axis.get(call.axis, whole))[0])
    return total


def everything(_: CollectiveCall) -> bool:
    """All calls."""
    return True


CASES = [
    ("llama3-8b", "tp=4", {}, ("tp",), Component.TP),
    ("llama3-8b", "tp=4,sp=false", {}, ("tp",), Component.TP),
    ("qwen3-235b-a22b", "tp=8", {}, ("tp",), Component.TP),
    ("llama3-8b", "tp=2,cp=4", {"cp_comm": CpComm.ALL_GATHER}, ("cp",), Component.CP),
    ("llama3-8b", "tp=2,cp=4", {"cp_comm": CpComm.A2A}, ("cp",), Component.CP),
    ("mixtral-8x7b", "tp=2,ep=8", {}, ("ep", "etp"), Component.EP),
    ("mixtral-8x7b", "tp=2,ep=4,etp=2", {}, ("ep", "etp"), Component.EP),
    ("llama3-8b", "tp=2,zero=0", {}, ("dp", "edp"), Component.DP),
    ("llama3-8b", "tp=2,zero=1", {}, ("dp", "edp"), Component.DP),
    ("llama3-8b", "tp=2,zero=2", {}, ("dp", "edp"), Component.DP),
    ("mixtral-8x7b", "tp=2,ep=8,zero=1", {}, ("dp", "edp"), Component.DP),
    ("llama3-8b", "tp=2,zero=1,hsdp_shard=8", {}, ("dp", "edp"), Component.DP),
    ("llama3-8b", "tp=2,zero=2", {"master_bytes": 0, "holds_back_traffic": False}, ("dp",), Component.DP),
]


@pytest.mark.parametrize(("model", "text", "switches", "axes", "component"), CASES)
def test_counted_calls_add_up_to_the_price(
    model: str, text: str, switches: dict[str, Any], axes: tuple[str, ...], component: Component
) -> None:
    """Where nothing hides traffic, a component is the sum of its calls' prices.

    A block's parameters move in one call here and a stage's in one price: latencies of the others are all that differs.
    """
    cost, layout = priced(model, text, bare(**switches))
    tokens = 4.0 * layout.micro_batch * cost.training.sequence_length / layout.cp

    def has_price(call: CollectiveCall) -> bool:
        """All but the sums of replicated weights' gradients."""
        return not (layout.sp and (call.axis, call.kind) == ("tp", "all_reduce") and call.bytes != tokens)

    found = seconds(cost, layout, axes, has_price)
    wanted = estimate(cost, layout).breakdown_s[component]
    if component is Component.DP:
        calls = sum(c.count for c in collectives(cost, layout) if c.axis in axes)
        assert wanted <= found * (1 + 1e-9) and found - wanted <= calls * 2e-3
        return
    assert found == pytest.approx(wanted, rel=1e-6)


def test_fsdp_streams_blocks_as_priced() -> None:
    """Under ZeRO-3 a block is gathered forward and backward and reduced in every micro-batch."""
    cost, layout = priced("llama3-8b", "zero=3", bare())
    calls = [c for c in collectives(cost, layout) if c.axis == "dp" and c.count % cost.model.layers == 0]
    found = seconds(cost, layout, ("dp",), lambda call: call in calls)
    assert found == pytest.approx(estimate(cost, layout).breakdown_s[Component.FSDP], rel=1e-6)
    assert np.unique([c.kind for c in calls]).tolist() == ["all_gather", "reduce_scatter"]


PEAKS = [row for row in RECORDED if "peak" in row["states"][0]]
"""Jobs with processes, whose tensors that are alive were added up after every operator."""


def test_the_most_that_is_alive_is_the_prediction() -> None:
    """On every rank of every job with processes: 1F1B, GPipe, interleaved, ZB-V, context parallelism, experts."""
    assert len(PEAKS) >= 28 and {row["job"]["schedule"] for row in PEAKS} >= {"gpipe", "interleaved", "zb-v"}
    for row in PEAKS:
        for ours, state in zip(alive(row["job"]), row["states"], strict=True):
            assert max(ours.values()) == pytest.approx(state["peak"]["all"], rel=5e-4), row["job"]


def test_receive_buffers_are_the_predicted_ones() -> None:
    """Of torch's schedules, for every micro-batch; at the turn of a V they hold what a rank hands to itself."""
    rows = [row for row in PEAKS if row["job"]["pp"] > 1 and row["job"]["schedule"] != "zb-v"]
    assert len(rows) >= 9
    for row in rows:
        priced = judged(row["job"]).estimate
        assert priced is not None
        for memory, state in zip(priced.memory.stages, row["states"], strict=True):
            assert state["peak"]["receive"] == memory.components_bytes["receive"]


def test_each_part_of_the_most_is_the_predicted_one() -> None:
    """Weights, moments, gradients and what blocks keep, where nothing is computed between them and a pipeline's sends.

    Counted beside ours: 4 bytes a token of every norm, and the optimizer's step counters.
    """
    for row in PEAKS:
        job, state = row["job"], row["states"][0]["peak"]
        if job["pp"] > 1 or job["experts"] or job["zero"] == 0 or job["micro_batches"] == 1:
            continue
        priced = judged(job).estimate
        assert priced is not None
        ours = priced.memory.stages[0].components_bytes
        sharded = job["zero"] == 3
        assert state["weights"] + (0 if sharded else state["gathered"]) == ours["weights"]
        assert state["gradients"] == ours["gradients"]
        assert 0 <= state["optimizer"] - ours["optimizer"] < 200
        tokens = job["micro_batch"] * job["sequence"] / job["cp"] / job["tp"]
        assert state["saved"] - ours["activations"] == 2 * sum(job["layers"]) * 4 * tokens


@pytest.mark.parametrize(("tied", "mtp", "schedule", "calls"), [
    (False, 0, "1f1b", 0), (True, 0, "1f1b", 1), (False, 1, "1f1b", 1), (True, 2, "1f1b", 1), (False, 1, "zb-v", 0),
])  # fmt: skip
def test_ends_that_share_the_embedding_add_up_its_gradient(
    tied: bool, mtp: int, schedule: str, calls: int
) -> None:
    """Tied or for prediction layers, once a step, in fp32 and padded; in a V both ends are on one rank."""
    loaded, cluster = load_model("llama3-8b").value, load_cluster("h100x64")
    model = replace(loaded.model, tied_embeddings=tied, mtp_layers=mtp, vocab=100_001)
    training = replace(loaded.training, global_batch=256, sequence_length=4096)
    cost = build_cost_model(model, training, cluster, preset=bare())
    text = f"tp=2,pp=4,schedule={schedule}" + (",vp=2" if schedule == "zb-v" else "")
    layout = load_layout(text).complete(replace(loaded, model=model, training=training), cluster)
    shared = [call for call in collectives(cost, layout) if (call.axis, call.kind) == ("pp", "all_reduce")]
    by_hand = 4 * 100_096 * 4096 // 2  # 100,001 rows padded to 256s
    ends = [
        CollectiveCall(stage=s, axis="pp", kind="all_reduce", ranks=2, count=1, bytes=by_hand) for s in (0, 3)
    ]
    assert shared == ends * calls

    batch = batch_of_one(layout)
    alone = replace(cost, model=replace(cost.model, tied_embeddings=False, mtp_layers=0))
    dp_s, without_s = (estimate(one, layout).breakdown_s[Component.DP] for one in (cost, alone))
    pp = groups_of(order_of(batch, closest=False), batch).pp
    priced_s = calls * float(cost.topology.p2p_s(np.array([float(by_hand)]), pp)[0])
    assert dp_s - without_s >= priced_s * 0.99  # prediction layers have parameters of their own beside it
    assert tied is False or mtp or dp_s - without_s == pytest.approx(priced_s, rel=0.01)
    assert (cost.closest_terms(batch).fixed_s <= cost.terms(batch).fixed_s).all()
