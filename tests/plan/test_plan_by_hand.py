"""The plan's rules, draws and watch list against values that a reader can work out from what their docstrings say."""

from __future__ import annotations

from dataclasses import replace
from math import exp
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from layoutopt.optimizer.cost.estimate import estimate
from layoutopt.optimizer.cost.factory import build_cost_model
from layoutopt.optimizer.cost.faults import expected_wall_time_s
from layoutopt.optimizer.cost.parameters import model_parameters
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.plan import recipe, training_plan
from layoutopt.optimizer.plan.fault_plan import spare_nodes
from layoutopt.optimizer.plan.monte_carlo import simulate_runs
from layoutopt.optimizer.plan.options import PlanOptions
from layoutopt.optimizer.plan.recipe import PublishedLayout, Recipe, _Rules, vendor_layout
from layoutopt.optimizer.plan.training_plan import _baseline, _require_tokens, phase_workloads
from layoutopt.optimizer.plan.watch import slow_rank, watch_list
from layoutopt.optimizer.solve.plan import Judgement, SolveOptions
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.layout import Layout, Recompute
from layoutopt.optimizer.specs.loading import load_cluster, load_workload
from layoutopt.optimizer.specs.partial_layout import PartialLayout
from layoutopt.optimizer.specs.stage_split import build_stages
from layoutopt.optimizer.specs.vocabulary import Granularity, Schedule, Verdict
from layoutopt.optimizer.topology.one import bus_factor

if TYPE_CHECKING:
    from layoutopt.optimizer.specs.workload import Workload

DENSE, EXPERTS = load_workload("llama3-8b"), load_workload("mixtral-8x7b")
PP_INSIDE, DP_INSIDE = "tp-cp-ep-pp-dp", "tp-cp-ep-dp-pp"


def rules(
    workload: Workload = DENSE,
    framework: Framework = Framework.MEGATRON,
    *,
    layers: int | None = None,
    heads: int | None = None,
    sequence: int = 8192,
    batch: int = 8,
    memory_bytes: float = 1e15,
    **cluster: Any,
) -> _Rules:
    """The rules of thumb for a changed model, batch and cluster."""
    model = workload.model
    model = replace(model, heads=heads or model.heads)
    if layers:
        model = replace(model, runs=(replace(model.runs[0], count=layers),))
    training = replace(workload.training, sequence_length=sequence, global_batch=batch)
    machine = load_cluster("h100x8")
    machine = replace(machine, gpu=replace(machine.gpu, memory_bytes=memory_bytes), **cluster)
    return _Rules(
        replace(workload, model=model, training=training), machine, SolveOptions(framework=framework)
    )


def test_layouts_come_in_the_recipes_order() -> None:
    """Every choice for six layers on four GPUs: four micro-batches first, recomputation, tensor groups, stages, chunks."""
    chunks = {1: [1], 2: [4, 3, 2, 1], 4: [2, 1]}  # those that divide 6 layers, or 6 layers and both ends
    expected = [
        (again, tp, pp, vp, micro_batch, order)
        for least in (4, 1)
        for again in (False, True)
        for tp in (1, 2, 4)
        for pp in (1, 2, 4)
        if tp * pp in (1, 2, 4)
        for vp in chunks[pp]
        for micro_batch in (1, 2)
        for order in (PP_INSIDE, DP_INSIDE)
        if 8 // (4 // (tp * pp) * micro_batch) >= max(least, pp)
    ]
    full = Recompute(granularity=Granularity.FULL)
    found = [
        (one.recompute == full, one.tp, one.pp, one.vp, one.micro_batch, one.mesh_order)
        for one in rules(layers=6, gpu_count=4).layouts()
    ]
    assert found == expected


def test_contexts_take_their_gpus_first() -> None:
    """With 16K tokens half of the GPUs hold the other half of a sequence, so that copies and stages are half as many."""
    found = list(rules(layers=6, gpu_count=4, sequence=16384).layouts())
    assert {(one.tp, one.cp, one.pp) for one in found} == {(1, 2, 1), (2, 2, 1), (1, 2, 2)}
    assert {(one.zero, one.ep) for one in found} == {(1, 1)}


STATES_BYTES = 16 * model_parameters(DENSE.model)


@pytest.mark.parametrize(
    ("asked", "degrees"),
    [
        ({}, [1, 2, 4, 8]),
        ({"memory_bytes": STATES_BYTES / 2}, [2, 4, 8]),
        ({"memory_bytes": STATES_BYTES / 2.001}, [4, 8]),
        ({"memory_bytes": 1.0}, [8, 4, 2, 1]),  # none is wide enough: the widest first
        ({"nvlink_domain": 4}, [1, 2, 4]),
        ({"nvlink_domain": 1, "gpus_per_node": 2}, [1, 2]),
        ({"gpu_count": 2}, [1, 2]),
        ({"gpu_count": 72, "nvlink_domain": 72}, [1, 2, 4, 8]),  # 32 heads are not split in 3 or 6
    ],
)
def test_tensor_groups_are_as_wide_as_states_ask(asked: dict[str, Any], degrees: list[int]) -> None:
    """Widths that hold 16 bytes a parameter, at most 8, the domain and the GPUs, and that divide the heads."""
    assert rules(**asked).tensor_degrees() == degrees


def test_no_tensor_group_is_wider_than_eight() -> None:
    """Nine would divide heads, GPUs and domain alike."""
    asked = rules(heads=72, gpu_count=72, nvlink_domain=72)
    assert asked.tensor_degrees() == [1, 2, 3, 4, 6, 8]


@pytest.mark.parametrize(
    ("sequence", "degree"), [(1, 1), (16383, 1), (16384, 2), (65535, 4), (65536, 8), (131072, 16)]
)
def test_contexts_are_split_by_eight_thousand_tokens(sequence: int, degree: int) -> None:
    """The widest degree that divides 64 GPUs and leaves each rank 8,192 tokens."""
    assert rules(gpu_count=64, sequence=sequence).context_degree() == degree


@pytest.mark.parametrize(
    ("layers", "pp", "chunks"),
    [(6, 1, [1]), (6, 2, [4, 3, 2, 1]), (6, 4, [2, 1]), (7, 2, [1]), (8, 2, [5, 4, 2, 1]), (10, 4, [3, 1])],
)
def test_chunks_keep_stages_even(layers: int, pp: int, chunks: list[int]) -> None:
    """Chunks that divide the layers, or the layers with one more for each end; one where none does."""
    assert rules(layers=layers).chunks(pp) == chunks


@pytest.mark.parametrize(
    ("gpus", "domain", "pp", "degrees"),
    [(64, 8, 2, [8, 4, 2, 1]), (64, 4, 2, [4, 2, 1, 8]), (12, 8, 1, [4, 2, 1]), (12, 8, 3, [4, 2, 1])],
)
def test_experts_stay_inside_the_domain_first(gpus: int, domain: int, pp: int, degrees: list[int]) -> None:
    """Eight experts over as many ranks of a stage as divide it, the widest inside first, then those beyond."""
    found = rules(EXPERTS, gpu_count=gpus, nvlink_domain=domain)
    assert found.expert_degrees(1, pp) == degrees
    assert rules(gpu_count=gpus).expert_degrees(1, pp) == [1]


@pytest.mark.parametrize(
    ("framework", "zero", "orders"),
    [
        (Framework.MEGATRON, 1, [PP_INSIDE, DP_INSIDE]),
        (Framework.TORCHTITAN, 2, [DP_INSIDE]),
        (Framework.NANOTRON, 1, [DP_INSIDE]),
        (Framework.ANY, 1, [PP_INSIDE, DP_INSIDE]),
    ],
)
def test_the_first_sharding_and_the_orders_are_the_trainers(
    framework: Framework, zero: int, orders: list[str]
) -> None:
    """The least sharding that a trainer has; pipeline inside data parallelism where it can be."""
    found = rules(framework=framework)
    assert found.orders() == orders
    assert next(found.layouts()).zero == zero


def test_axes_that_a_trainer_lacks_stay_one() -> None:
    """LLM Foundry has data parallelism alone; nanotron splits neither experts nor stages into chunks."""
    found = rules(EXPERTS, Framework.LLM_FOUNDRY, gpu_count=64, sequence=131072, batch=1024)
    assert {(one.tp, one.cp, one.pp, one.vp, one.ep) for one in found.layouts()} == {(1, 1, 1, 1, 1)}
    nanotron = rules(EXPERTS, Framework.NANOTRON, gpu_count=64)
    assert (nanotron.chunks(2), nanotron.expert_degrees(1, 1)) == ([1], [1])
    assert nanotron.pipeline_degrees() == (1, 2, 4, 8, 16, 32)


@pytest.mark.parametrize("domain", [8, 1])
@pytest.mark.parametrize(("ep", "where"), [(8, "inside"), (16, "beyond")])
def test_a_recipe_says_what_every_rule_led_to(domain: int, ep: int, where: str) -> None:
    """All the words of one layout, in order."""
    layout = Layout(
        tp=2, cp=2, pp=4, vp=2, ep=ep, dp=4, zero=1, micro_batch=2, micro_batches=16, mesh_order=PP_INSIDE
    )
    judged = Judgement(layout=layout, verdict=Verdict.FITS, reasons=(), broken=(), estimate=None)
    one = EXPERTS.model.runs[0].block[0]
    assert one.ffn == 0  # routed experts have an axis of their own, so that they are no part of the states
    experts = 32 * 8 * 3 * 4096 * 14336
    states_gb = 16 * (model_parameters(EXPERTS.model) - experts) / 1e9
    joins = f"the NVLink domain of {domain}" if domain > 1 else "the node of 8"
    where = where if domain > 1 else "beyond"
    assert rules(EXPERTS, nvlink_domain=domain, sequence=16384).steps(judged) == (
        f"tensor parallel 2 inside {joins}: {states_gb:,.0f} GB of states",
        "4 pipeline stages, the fewest that fit and see 4 micro-batches, 2 chunks each",
        "context parallel 2 at 16,384 tokens",
        f"experts over {ep} ranks, {where} the NVLink domain",
        "data parallel 4 with ZeRO-1 on the rest, 16 micro-batches",
        "micro-batch 2, recomputation none",
        f"mesh {PP_INSIDE}, innermost first",
    )
    plain = replace(judged, layout=replace(layout, zero=0, vp=1, pp=1))
    words = rules().steps(plain)
    assert words[1] == "1 pipeline stage, the fewest that fit and see 4 micro-batches"
    assert words[3] == "data parallel 4 on the rest, 16 micro-batches"
    assert rules().steps(None) == ("no layout of the recipe can be launched and fits",)


PUBLISHED: dict[str, Any] = {"model": "llama3-8b", "gpu": "h100", "precision": "bf16", "name": "one"}


@pytest.mark.parametrize(
    ("recompute", "expected"),
    [
        ((), Recompute()),
        ("full", Recompute(granularity=Granularity.FULL)),
        (["mlp"], Recompute(granularity=Granularity.SELECTIVE, modules=("mlp",))),
    ],
)
def test_published_layouts_leave_out_degrees_of_one(recompute: Any, expected: Recompute) -> None:
    """What the table does not write is 1; states are sharded as the vendor's recipes do."""
    found = PublishedLayout(**PUBLISHED, gpus=8, recompute=recompute).partial()
    assert found == PartialLayout(tp=1, cp=1, pp=1, vp=1, ep=1, zero=1, micro_batch=1, recompute=expected)


def test_the_published_layout_of_the_nearest_size_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes are compared by their ratio: for 32 GPUs 64 are nearer than 8."""
    cluster = load_cluster("h100x32")
    rows = [PublishedLayout(**{**PUBLISHED, "name": f"on {n}"}, gpus=n, tp=2) for n in (8, 64)]
    rows[0] = replace(rows[0], gpu=cluster.gpu.name)
    rows[1] = replace(rows[1], gpu=cluster.gpu.name)
    monkeypatch.setattr(recipe, "published_layouts", lambda: tuple(rows))
    found = vendor_layout(DENSE, cluster, SolveOptions())
    assert found is not None
    assert (found.gpus, found.name) == (64, "NVIDIA-NeMo/Megatron-Bridge on 64")


def test_without_failures_a_run_is_its_work_and_its_checkpoints() -> None:
    """Whole intervals and what is left of the work, each with a checkpoint; a sliver from rounding is no segment."""
    for work_s, wall_s in ((30.0, 30.0 + 3 * 2), (35.0, 35.0 + 4 * 2), (5.0, 5.0 + 2)):
        found = simulate_runs(work_s, 10.0, 2.0, 0.0, 1e15)
        assert (found.p10_s, found.p50_s, found.p90_s) == pytest.approx((wall_s,) * 3)
        assert found.mean_s == pytest.approx(wall_s) and found.mean_failures == 0
    assert 0.1 + 0.2 > 3 * 0.1 - 1e-9 and divmod(0.1 + 0.2, 0.1)[1] > 0
    assert simulate_runs(0.1 + 0.2, 0.1, 2.0, 0.0, 1e15).mean_s == pytest.approx(0.3 + 3 * 2)


@pytest.mark.parametrize("restart_s", [0.0, 400.0])
def test_a_single_segment_fails_as_often_as_the_exact_formula_says(restart_s: float) -> None:
    """Rare failures of one attempt, whose restarts fail too: the draws agree with the exact mean."""
    found = simulate_runs(400.0, 1000.0, 100.0, restart_s, 1000.0, runs=40_000, seed=1)
    assert found.mean_failures == pytest.approx(exp(0.5) - 1, rel=0.02)
    exact = expected_wall_time_s(400.0, 400.0, 100.0, restart_s, 1000.0)
    assert found.mean_s == pytest.approx(exact, rel=0.01)


def test_a_plan_simulates_what_its_options_say() -> None:
    """As many runs from the seed; the defaults are those that the command's help states."""
    assert (PlanOptions().simulated_runs, PlanOptions().seed) == (1000, 0)
    asked = (4000.0, 1000.0, 100.0, 100.0, 10_000.0)
    assert simulate_runs(*asked) == simulate_runs(*asked, runs=400, seed=0)
    assert simulate_runs(*asked, seed=1) != simulate_runs(*asked) != simulate_runs(*asked, runs=401)


def test_many_nodes_in_repair_are_normal() -> None:
    """Mean 10,000: 3.1 standard deviations of 100 above it, and one for the fraction."""
    assert spare_nodes(1.0, 10_000.0, 0.99) == 10_000 + 310 + 1


def _phases(*tokens: float | None) -> Workload:
    first, *others = (replace(DENSE.training, total_tokens=count) for count in tokens)
    return replace(DENSE, training=first, phases=tuple(others), phase_names=())


def test_phases_without_names_are_counted() -> None:
    """The main training is the first."""
    assert [name for name, _ in phase_workloads(_phases(1e9, 1e9, 1e9))] == ["main", "phase 2", "phase 3"]


@pytest.mark.parametrize(
    ("tokens", "key"),
    [
        ((None, 1e9), "training.total_tokens"),
        ((1e9, 1e9, None), "phases[1].total_tokens"),
        ((1e9, None), "phases[0].total_tokens"),
    ],
)
def test_the_phase_without_a_length_is_named(tokens: tuple[float | None, ...], key: str) -> None:
    """Where it stands in the file."""
    with pytest.raises(InputError) as raised:
        _require_tokens(phase_workloads(_phases(*tokens)))
    assert [problem.key for problem in raised.value.problems] == [key]


@pytest.mark.parametrize("cost", [None, 500.0])
def test_a_baseline_that_has_no_price_saves_nothing(
    monkeypatch: pytest.MonkeyPatch, cost: float | None
) -> None:
    """6 s a step instead of 4 s: half as much again, over ten days; None where there is nothing to compare."""

    def baseline(recipe_s: float | None, vendor_s: float | None, judged: bool = True) -> Any:
        def judgement(step_s: float | None) -> Any:
            priced = None if step_s is None else SimpleNamespace(step_time_s=step_s)
            return SimpleNamespace(estimate=priced)

        steps = Recipe(judgement=judgement(recipe_s) if judged else None, steps=())
        vendor = SimpleNamespace(judgement=judgement(vendor_s)) if judged else None
        monkeypatch.setattr(training_plan, "recipe_layout", lambda *_: steps)
        monkeypatch.setattr(training_plan, "vendor_layout", lambda *_: vendor)
        budget: Any = SimpleNamespace(days=10.0, cost=cost)
        found = _baseline(DENSE, load_cluster("h100x8"), 4.0, budget, PlanOptions())
        return found.slower, found.days_saved, found.cost_saved, found.vendor_slower

    saved = None if cost is None else 250.0
    assert baseline(6.0, 5.0) == (0.5, 5.0, saved, 0.25)
    assert baseline(None, None) == (None,) * 4 == baseline(None, None, judged=False)


def test_the_watch_list_follows_from_the_estimate() -> None:
    """Every probe of nccl-tests with its bus bandwidth, what tensors leave free, and what one slow rank costs."""
    cluster, counts = load_cluster("h100x64"), [8] * 4
    layout = Layout(tp=2, pp=4, dp=8, zero=1, micro_batches=4, schedule=Schedule.ONE_F_ONE_B, sp=True)
    layout = replace(layout, stages=build_stages(DENSE.model, counts, 4, layout.schedule, 0))
    training = replace(DENSE.training, sequence_length=8192, global_batch=32)
    workload = replace(DENSE, training=training)
    priced = estimate(build_cost_model(DENSE.model, training, cluster), layout)
    found = watch_list(workload, cluster, layout, priced, SolveOptions(), (0.9, 1.1))
    assert found.step_spread == (0.01, 0.02)
    assert found.headroom_bytes == priced.memory.capacity_bytes - priced.memory.peak_bytes
    assert (found.peak_bytes, found.device_bytes) == (priced.memory.peak_bytes, priced.memory.device_bytes)
    assert {one.size_bytes for one in found.bandwidths if not one.own} == {2.0**24, 2.0**28, 2.0**30}
    assert {(one.axis, one.members) for one in found.bandwidths} == {("tp", 2), ("pp", 4), ("dp_cp", 8)}
    for one in found.bandwidths:
        assert one.bus_bytes_per_s == one.size_bytes * bus_factor(one.collective, one.members) / one.seconds
    assert [one.slower for one in found.slow_ranks] == [0.02, 0.05, 0.10, 0.20]
    slow_s = 4 * max(priced.rank_time_s) * 0.05
    assert slow_rank(layout, priced, 0.05).step_slower == pytest.approx(slow_s / priced.step_time_s)
    gradients = max(stage.components_bytes["gradients"] for stage in priced.memory.stages)
    own = {(one.axis, one.collective): one.size_bytes for one in found.bandwidths if one.own}
    assert own["dp_cp", "reduce_scatter"] == own["dp_cp", "all_gather"] == gradients
    assert np.isclose(own["pp", "p2p"], 2 * 8192 * DENSE.model.hidden / 2)
