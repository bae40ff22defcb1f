"""What was found to disagree, each with its right value."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from checks.judge import agrees, judge
from checks.judged_answers import Asked
from checks.launches import nearest_layout
from click.testing import CliRunner

from layoutopt.cli import main
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.interop.launch.export import NotExpressible, export, fitting
from layoutopt.optimizer.interop.launch.target import context_of
from layoutopt.optimizer.report.json_forms import plan_to_plain
from layoutopt.optimizer.report.verification import verify_plan
from layoutopt.optimizer.solve.api import solve_layout
from layoutopt.optimizer.solve.judge import judge_layout
from layoutopt.optimizer.solve.plan import SolveOptions
from layoutopt.optimizer.space.check import check_layout
from layoutopt.optimizer.space.context import RunOptions
from layoutopt.optimizer.space.options import SpaceOptions
from layoutopt.optimizer.specs.canonical import to_plain
from layoutopt.optimizer.specs.document import Document
from layoutopt.optimizer.specs.layout import Layout, Recompute
from layoutopt.optimizer.specs.layout_file import read_layout, read_layout_text
from layoutopt.optimizer.specs.loading import load_cluster, load_workload
from layoutopt.optimizer.specs.stage_split import build_stages
from layoutopt.optimizer.specs.vocabulary import Granularity, Precision, Saver, Schedule, Verdict

if TYPE_CHECKING:
    from layoutopt.optimizer.solve.plan import Judgement, Plan
    from layoutopt.optimizer.specs.workload import Workload

F = Framework


def solved(workload: Workload, cluster: str, framework: Framework, **space: Any) -> Plan:
    """The proven plan."""
    options = SolveOptions(framework=framework, space=SpaceOptions(**space))
    return solve_layout(workload, load_cluster(cluster), options)


def judged(
    workload: Workload, cluster: str, framework: Framework, layout: Any, software: str | None
) -> Judgement:
    """The verdict on a layout."""
    return judge_layout(workload, load_cluster(cluster), layout, framework=framework, software=software)


def reread(plan: Plan) -> Any:
    """The layout as ``evaluate --layout plan.json`` reads it."""
    return read_layout(Document({"layout": to_plain(plan.layout), "idle_gpus": plan.idle_gpus}, ""))


@pytest.mark.parametrize(
    ("software", "step_time_s", "layers"),
    [
        ("0.12", 57.637, [19, 21, 21, 19]),  # not 19/20/21/20, slower and nothing that the release can launch
        ("0.10", 58.362, [1] * 80),  # keys exchanged by heads; 18/21/21/20 layers come 0.4% behind
        ("0.8", 58.879, [1] * 80),
        ("0.5", 58.879, [1] * 80),
    ],
)
def test_older_releases_split_as_they_can(software: str, step_time_s: float, layers: list[int]) -> None:
    """llama3-70b on 64 H100s: the answer is what the release can launch, at the price that evaluate gives it."""
    workload = load_workload("llama3-70b")
    plan = solved(workload, "h100x64", F.MEGATRON, software=software)
    assert plan.layout is not None and plan.estimate is not None
    assert [stage.layers for stage in plan.layout.stages] == layers
    assert plan.estimate.step_time_s == pytest.approx(step_time_s, rel=1e-3)
    found = judged(workload, "h100x64", F.MEGATRON, reread(plan), software)
    assert found.broken == ()
    assert found.estimate is not None
    assert found.estimate.step_time_s == plan.estimate.step_time_s


@pytest.mark.parametrize("framework", [F.MEGATRON_DEEPSPEED, F.MEGATRON, F.TORCHTITAN, F.NANOTRON], ids=str)
def test_stages_of_mixed_stacks_are_counted_in_one_unit(framework: Framework) -> None:
    """gpt-oss alternates windowed and full layers: what is solved in blocks is valid in layers, at the same price."""
    workload = load_workload("gpt-oss-120b")
    model = replace(workload.model, runs=workload.model.runs, attention_sinks=False)
    sparse = [replace(run, block=tuple(replace(s, window=None) for s in run.block)) for run in model.runs]
    if framework is F.MEGATRON_DEEPSPEED:  # it has no windows: two kinds of layers that look alike
        model = replace(model, runs=tuple(sparse))
    workload = replace(workload, model=model)
    if framework is F.NANOTRON:  # nor has it experts
        workload = load_workload("llama3-8b")
        (run,) = workload.model.runs
        pairs = replace(run, block=run.block * 2, count=run.count // 2)
        workload = replace(workload, model=replace(workload.model, runs=(pairs,)))
    plan = solved(workload, "h100x64", framework)
    assert plan.layout is not None and plan.estimate is not None
    found = judged(workload, "h100x64", framework, reread(plan), None)
    assert found.broken == ()
    assert found.estimate is not None
    assert found.estimate.step_time_s == plan.estimate.step_time_s


def test_stages_may_end_inside_a_repeating_block() -> None:
    """gpt-oss with 9 layers on each of four stages: valid, and two stages together do what 8 and 10 layers do."""
    workload = load_workload("gpt-oss-120b")
    text = "tp=1,pp=4,ep=8,dp=16,mb=1,zero=1,sp=0,stages="
    odd = judged(workload, "h100x64", F.MEGATRON, read_layout_text(text + "9/9/9/9"), None)
    even = judged(workload, "h100x64", F.MEGATRON, read_layout_text(text + "8/10/10/8"), None)
    assert odd.verdict is not Verdict.INVALID and odd.broken == ()
    assert odd.estimate is not None and even.estimate is not None
    assert [stage.layers for stage in odd.layout.stages] == [9, 9, 9, 9]
    first_two = [sum(found.estimate.rank_time_s[:2]) for found in (odd, even) if found.estimate]
    assert first_two[0] == pytest.approx(first_two[1], rel=1e-9)


def test_plans_with_idle_gpus_are_valid() -> None:
    """A plan that leaves GPUs out says so, and evaluate and verify accept it."""
    workload = load_workload("llama3-8b")
    options = SolveOptions(framework=F.MEGATRON, space=SpaceOptions(allow_idle=0.5, fix={"dp": (4,)}))
    cluster = load_cluster("h100x11")
    plan = solve_layout(workload, cluster, options)
    assert plan.layout is not None and plan.estimate is not None
    assert plan.idle_gpus > 0
    found = judged(workload, "h100x11", F.MEGATRON, reread(plan), None)
    assert found.broken == ()
    assert found.estimate is not None
    assert found.estimate.step_time_s == plan.estimate.step_time_s
    stated = read_layout_text("tp=2,dp=4,mb=1,zero=1,idle_gpus=3")
    assert judged(workload, "h100x11", F.MEGATRON, stated, None).broken == ()
    missing = judged(workload, "h100x11", F.MEGATRON, read_layout_text("tp=2,dp=4,mb=1,zero=1"), None)
    assert {rule.rule for rule in missing.broken} == {"world_size_product"}


def test_the_405b_job_of_nemo_25_01_is_in_its_space() -> None:
    """It ran with embedding and loss counted as layers, tp8 pp8 vp8 cp2, at which evaluate finds nothing wrong."""
    workload = load_workload("llama3-405b")
    training = replace(workload.training, global_batch=1152, precision=Precision.FP8)
    workload = replace(workload, training=training)
    layers = [1, *[2] * 62, 1]
    text = f"tp=8,pp=8,vp=8,cp=2,dp=4,mb=1,zero=1,precision=fp8,stages={'/'.join(map(str, layers))}"
    for software, valid in (("NeMo 25.01", True), ("NeMo 24.12", False)):
        found = judged(workload, "h100x512", F.MEGATRON_BRIDGE, read_layout_text(text), software)
        assert ("stage_split" not in {rule.rule for rule in found.broken}) == valid, found.reasons
    plan = solved(workload, "h100x512", F.MEGATRON_BRIDGE, software="NeMo 25.01", precisions=(Precision.FP8,))
    assert plan.layout is not None


def test_later_containers_are_never_slower() -> None:
    """llama3-405b on 512 H100s in FP8: each container's space holds its predecessor's, by steps of at most 3%."""
    workload = load_workload("llama3-405b")
    workload = replace(
        workload, training=replace(workload.training, global_batch=1152, precision=Precision.FP8)
    )
    plans = [
        solved(workload, "h100x512", F.MEGATRON_BRIDGE, software=name, precisions=(Precision.FP8,))
        for name in ("NeMo 24.12", "NeMo 25.01", "NeMo 25.04", "NeMo 25.09")
    ]
    times = [plan.estimate.step_time_s for plan in plans if plan.estimate is not None]
    assert len(times) == len(plans)
    assert all(newer <= older <= 1.03 * newer for older, newer in pairwise(times)), times


def test_a_year_can_be_named(tmp_path: Path) -> None:
    """``--software 2022`` is Megatron-LM of that year: no context parallelism, for solve and evaluate alike."""
    plan = tmp_path / "plan.json"
    words = ["solve", "llama3-8b", "a100x64", "--software", "2022", "--fix", "tp=4", "-q", "-o", str(plan)]
    assert CliRunner().invoke(main, words).exit_code == 0
    assert json.loads(plan.read_text())["layout"]["cp"] == 1
    question = ["evaluate", "llama3-8b", "a100x64", "--json", "--layout"]
    for words, code in (([str(plan), "--software", "2022"], 0), (["tp=4,cp=2", "--software", "2022"], 3)):
        found = CliRunner().invoke(main, [*question, *words])
        assert found.exit_code == code, found.output


@pytest.mark.parametrize(
    ("stages", "slower"),
    [
        ("4/4/4/4/4/4/4/4", 1.0),
        ("5/3/5/3/3/5/3/5", 1.02),  # every rank has 8 layers, and waits for the larger chunks of the others
    ],
)
def test_a_rank_whose_chunks_differ_is_priced_by_its_order(stages: str, slower: float) -> None:
    """Not by the rank's total: the price is the judged one, and above that of equal chunks."""
    asked = Asked.named("llama3-8b", "h100x16", F.ANY, batch=64)
    prices = []
    for text in (stages, "4/4/4/4/4/4/4/4"):
        layout = read_layout_text(f"pp=4,vp=2,dp=4,mb=1,zero=1,stages={text}")
        found = judge_layout(asked.workload, asked.cluster, layout, framework=F.ANY)
        assert found.estimate is not None and found.broken == ()
        assert agrees(found.estimate.step_time_s, judge(asked.cost, found.layout, F.ANY))
        prices.append(found.estimate.step_time_s)
    assert prices[0] >= slower * prices[1]


def test_chunks_without_layers_are_priced_by_their_order() -> None:
    """llama3-405b on 16,384 H100s as 16 x 16 chunks, many of them empty: what is judged, far from a rank's total."""
    asked = Asked.named("llama3-405b", "h100-16384", F.ANY)
    sizes = [int(place % 2 == 0) for place in range(256)]
    sizes[0] = sizes[2] = 0
    text = f"tp=8,pp=16,vp=16,cp=1,mb=1,zero=1,stages={'/'.join(map(str, sizes))}"
    found = judge_layout(asked.workload, asked.cluster, read_layout_text(text), framework=F.ANY)
    assert found.estimate is not None
    assert agrees(found.estimate.step_time_s, judge(asked.cost, found.layout, F.ANY))
    totals = sum(found.estimate.rank_time_s) / len(found.estimate.rank_time_s)
    assert found.estimate.step_time_s > 1.2 * totals


@pytest.mark.parametrize(
    ("framework", "micro_batches", "runs"),
    [
        (F.MEGATRON, 6, False),  # whole groups of one micro-batch per rank
        (F.TORCHTITAN, 6, True),  # one round of six
        (F.TORCHTITAN, 9, False),  # two rounds of four and a half
        (F.ANY, 6, True),
        (F.ANY, 9, False),
    ],
)
def test_interleaving_takes_the_micro_batches_that_some_order_runs(
    framework: Framework, micro_batches: int, runs: bool
) -> None:
    """Four ranks of two chunks: what no order runs is invalid, under ``any`` too; what one runs has its price."""
    asked = Asked.named("llama3-8b", "h100x64", framework, batch=8 * micro_batches)
    text = f"tp=2,pp=4,vp=2,dp=8,mb=1,zero={2 if framework is F.TORCHTITAN else 1}"
    found = judge_layout(asked.workload, asked.cluster, read_layout_text(text), framework=framework)
    broken = {rule.rule for rule in found.broken}
    assert bool(broken & {"interleaved_groups", "interleaved_rounds"}) is not runs
    assert found.estimate is not None and (not broken) is runs
    if runs:
        assert agrees(found.estimate.step_time_s, judge(asked.cost, found.layout, framework))


def test_torchtitan_takes_any_list_and_near_equal_ones_are_searched() -> None:
    """One record says both: evaluate accepts an uneven list, the space holds near-equal ones."""
    workload = load_workload("llama3-8b")
    uneven = read_layout_text("pp=4,dp=4,mb=1,zero=2,stages=4/12/12/4")
    assert judged(workload, "h100x16", F.TORCHTITAN, uneven, None).broken == ()
    plan = solved(workload, "h100x16", F.TORCHTITAN, fix={"pp": (4,)})
    assert plan.layout is not None
    sizes = [stage.layers for stage in plan.layout.stages]
    assert max(sizes) - min(sizes[1:-1]) <= 1


def test_nearest_layouts_fit_the_memory() -> None:
    """What export offers for an older release fits the GPUs, or it offers nothing and says so."""
    workload, cluster = load_workload("llama3-70b"), load_cluster("h100x64")
    plan = solved(workload, "h100x64", F.MEGATRON)
    assert plan.layout is not None
    skewed = build_stages(workload.model, [18, 21, 21, 20], 4, Schedule.ONE_F_ONE_B, 0)
    layout = replace(plan.layout, stages=skewed, pp=4, vp=1, schedule=Schedule.ONE_F_ONE_B)
    tight = replace(cluster, gpu=replace(cluster.gpu, memory_bytes=30e9))
    ctx = context_of(layout, workload, tight, F.MEGATRON, "core 0.12")
    near = nearest_layout(layout, workload, cluster, "megatron", version="core 0.8")
    assert check_layout(near, workload.model, workload.training, cluster, F.MEGATRON, "core 0.8") == ()
    assert fitting(layout, ctx, "core 0.12") is None
    with pytest.raises(NotExpressible, match="none that fits the GPUs' memory") as caught:
        export(layout, workload, tight, "megatron", version="core 0.8")
    assert caught.value.nearest is None


def refused(
    model: str, layout: Layout, framework: Framework, software: str | None = None, **training: Any
) -> set[str]:
    """Names of the rules that a layout breaks; the layout's GPUs are all there are."""
    workload = load_workload(model)
    batch = layout.dp * layout.micro_batch * layout.micro_batches
    run = replace(workload.training, global_batch=batch, **training)
    options = RunOptions(processes=layout.gpus)
    broken = check_layout(layout, workload.model, run, load_cluster("h100x256"), framework, software, options)
    return {rule.rule for rule in broken}


CP2 = Layout(cp=2, dp=8, micro_batches=4)


@pytest.mark.parametrize(
    ("model", "layout", "framework", "software", "rule"),
    [
        ("llama3-8b", CP2, F.TORCHTITAN, None, "ddp_without_cp"),
        ("llama3-8b", CP2, F.ACCELERATE, None, "ddp_without_cp"),
        ("llama3-8b", CP2, F.NANOTRON, None, "cp_needs_qwen"),
        ("llama3-8b", replace(CP2, tp=2), F.MEGATRON_DEEPSPEED, None, "ulysses_alone"),
        ("llama3-8b", Layout(dp=8, precision=Precision.FP16, micro_batches=4), F.TORCHTITAN, None, "precision_supported"),
        ("llama3-8b", Layout(dp=8, savers=(Saver.OFFLOAD_OPTIMIZER,)), F.DEEPSPEED, None, "savers_need_zero"),
        ("llama3-8b", Layout(dp=8, zero=3, hsdp_shard=4), F.DEEPSPEED, "0.19.8", "hsdp_supported"),
        ("deepseek-v3", replace(CP2, zero=3), F.TORCHTITAN, None, "mtp_with_cp"),
        ("mixtral-8x7b", Layout(cp=2, ep=2, dp=8), F.MEGATRON, "core 0.7", "ep_without_cp"),
        ("mixtral-8x7b", Layout(tp=2, dp=8), F.MEGATRON, None, "moe_needs_sp"),
        ("mixtral-8x7b", Layout(dp=8, precision=Precision.FP16), F.MEGATRON, "core 0.13", "grouped_gemm_fp16"),
        ("gpt-oss-120b", Layout(dp=8), F.MEGATRON, "core 0.13", "windows_supported"),
    ],
)  # fmt: skip
def test_rules_know_what_only_one_side_knew(
    model: str, layout: Layout, framework: Framework, software: str | None, rule: str
) -> None:
    """A layout that a trainer refuses is invalid, and export refuses it by the same rule."""
    assert rule in refused(model, layout, framework, software)
    workload = load_workload(model)
    batch = layout.dp * layout.micro_batch * layout.micro_batches
    workload = replace(workload, training=replace(workload.training, global_batch=batch))
    with pytest.raises(NotExpressible):
        export(layout, workload, load_cluster("h100x256"), framework.value, version=software)


@pytest.mark.parametrize(
    ("framework", "cluster", "model"),
    [
        (F.MEGATRON_DEEPSPEED, "h100-256", "llama3-70b"),
        (F.MEGATRON_DEEPSPEED, "a100-512", "gpt3-175b"),
        (F.NANOTRON, "h100x64", "llama3-8b"),
        (F.ACCELERATE, "h100x16", "llama3-8b"),
        (F.TORCHTITAN, "h100x64", "llama3-70b"),
        (F.DEEPSPEED, "h100x64", "llama3-8b"),
    ],
)
def test_optima_start_in_their_own_trainer(framework: Framework, cluster: str, model: str) -> None:
    """What is proven for a trainer is exported to it: its own stages, its own context parallelism."""
    workload = load_workload(model)
    plan = solved(workload, cluster, framework)
    assert plan.layout is not None
    job = export(plan.layout, workload, load_cluster(cluster), framework.value)
    assert job.layout.gpus == plan.layout.gpus
    if framework is F.MEGATRON_DEEPSPEED:
        assert plan.layout.cp == 1 or plan.layout.tp * plan.layout.pp == 1


@pytest.mark.parametrize("software", ["core 0.13", "core 0.15", None])
def test_the_fp8_recipe_that_is_written_was_searched(software: str | None) -> None:
    """Without a stated recipe Megatron is launched with delayed scaling, which can't recompute norms."""
    norms = Recompute(granularity=Granularity.SELECTIVE, modules=("layernorm",))
    layout = Layout(dp=8, recompute=norms, precision=Precision.FP8)
    assert "recompute_with_delayed_fp8" in refused("llama3-8b", layout, F.MEGATRON, software)
    workload = load_workload("llama3-70b")
    workload = replace(workload, training=replace(workload.training, precision=Precision.FP8))
    plan = solved(workload, "h100x64", F.MEGATRON, software=software)
    assert plan.layout is not None
    job = export(plan.layout, workload, load_cluster("h100x64"), "megatron", version=software)
    assert "--fp8-recipe delayed" in job.files["launch.sh"]
    assert not {"layernorm", "moe_act"} & set(plan.layout.recompute.modules)


@pytest.mark.parametrize("module", ["moe", "shared_experts", "mlp"])
def test_modules_that_a_model_lacks_do_nothing(module: str) -> None:
    """Megatron refuses moe_act and mla_up_proj without their parts; the others have no effect."""
    chosen = Recompute(granularity=Granularity.SELECTIVE, modules=(module,))
    model = "mixtral-8x7b" if module == "mlp" else "llama3-8b"
    assert refused(model, Layout(dp=8, recompute=chosen), F.MEGATRON) == set()


def test_bridges_rule_on_mesh_orders_is_its_own() -> None:
    """Bridge refuses Megatron-FSDP with the pipeline inside data parallelism; Megatron-LM doesn't."""
    layout = Layout(
        pp=2, dp=8, micro_batches=4, zero=3, schedule=Schedule.ONE_F_ONE_B, mesh_order="tp-cp-ep-pp-dp"
    )
    assert "fsdp_mesh_order" in refused("llama3-8b", layout, F.MEGATRON_BRIDGE)
    assert refused("llama3-8b", layout, F.MEGATRON) == set()


@pytest.mark.parametrize(
    ("layout", "version", "model", "words"),
    [
        (Layout(dp=8, zero=3), "core 0.13", "llama3-8b", "--no-gradient-accumulation-fusion"),
        (Layout(dp=8, zero=1), "core 0.10", "llama3-8b", "CUDA_DEVICE_MAX_CONNECTIONS=1"),
        (Layout(dp=8, ep=8, zero=1, savers=(Saver.OFFLOAD_ACTIVATIONS,)), "core 0.16", "mixtral-8x7b",
         "NVTE_CPU_OFFLOAD_V1=1"),
    ],
)  # fmt: skip
def test_what_a_release_needs_is_written(layout: Layout, version: str, model: str, words: str) -> None:
    """Flags and variables without which the release refuses to start."""
    workload = load_workload(model)
    workload = replace(workload, training=replace(workload.training, global_batch=8))
    text = export(layout, workload, load_cluster("h100x8"), "megatron", version=version).files["launch.sh"]
    assert words in text


@pytest.mark.parametrize("software", ["0.8", "0.10", "0.12"])
def test_verify_accepts_older_releases(software: str) -> None:
    """The independent path knows the same splits."""
    plan = solved(load_workload("llama3-8b"), "h100x16", F.MEGATRON, software=software)
    assert verify_plan(plan_to_plain(plan)).accepted


FOUND = {
    "two rule books for stages": (
        "agreement/test_reproductions.py::test_older_releases_split_as_they_can",
        "agreement/test_reproductions.py::test_stages_of_mixed_stacks_are_counted_in_one_unit",
        "agreement/test_reproductions.py::test_plans_with_idle_gpus_are_valid",
        "agreement/test_reproductions.py::test_torchtitan_takes_any_list_and_near_equal_ones_are_searched",
        "agreement/test_reproductions.py::test_nearest_layouts_fit_the_memory",
    ),
    "two rule books for frameworks": (
        "agreement/test_rules.py::test_rules_accept_what_export_writes",
        "agreement/test_reproductions.py::test_rules_know_what_only_one_side_knew",
        "agreement/test_reproductions.py::test_optima_start_in_their_own_trainer",
    ),
    "release gates wrong in time": (
        "agreement/test_reproductions.py::test_the_405b_job_of_nemo_25_01_is_in_its_space",
        "agreement/test_reproductions.py::test_later_containers_are_never_slower",
        "agreement/test_reproductions.py::test_a_year_can_be_named",
        "frameworks/test_release_gates.py::test_ends_of_their_own_by_release",
        "frameworks/test_release_gates.py::test_published_rows_compete_with_their_own_year",
    ),
    "prices that no order of operations has": (
        "agreement/test_reproductions.py::test_a_rank_whose_chunks_differ_is_priced_by_its_order",
        "agreement/test_reproductions.py::test_chunks_without_layers_are_priced_by_their_order",
        "agreement/test_reproductions.py::test_interleaving_takes_the_micro_batches_that_some_order_runs",
        "agreement/test_judged_prices.py::test_answers_are_priced_as_judged",
        "solve/test_exact_prices.py::test_no_bound_is_above_the_exact_step",
    ),
    "verify accepts what is not true": (
        "agreement/test_forged_plans.py::test_forgery",
        "agreement/test_forged_plans.py::test_exit_codes",
        "solve/test_inputs.py::test_digest_covers_what_a_solve_loads",
        "solve/test_inputs.py::test_search_is_part_of_the_inputs",
    ),
    "constraints of one's own not proven": (
        "api/test_requirements_api.py::test_layouts_exist_and_are_found",
        "api/test_requirements_api.py::test_few_layers_on_the_first_rank",
        "api/test_requirements_api.py::test_second_goal_within_some_percent",
    ),
    "a graph that prices nothing": (
        "topology/test_graph.py::test_prices_follow_every_link_of_the_graph",
        "cli/test_cli_json.py::test_topology_graph",
    ),
    "one idea in many tables": (
        "contributing/test_new_framework.py::test_the_page_names_what_is_touched",
        "contributing/test_new_component.py::test_a_component_is_a_record_its_seconds_and_its_constant",
        "contributing/test_new_gpu.py::test_a_gpu_of_a_new_generation",
        "packaging/test_names.py::test_a_class_name_means_one_thing",
        "ask/test_ask_load.py::test_the_library_prints_nothing_and_needs_no_click",
        "ask/test_ask_load.py::test_messages_name_what_was_given",
    ),
    "presolve loses solutions": ("solve/test_presolve.py::test_a_small_model_whose_optimum_presolve_loses",),
}
"""What was found, and the tests that hold each to its right value."""


@pytest.mark.parametrize("what", FOUND)
def test_what_was_found_is_tested(what: str) -> None:
    """Every named test is there."""
    for place in FOUND[what]:
        file, name = place.split("::")
        assert f"\ndef {name}(" in (Path(__file__).parents[1] / file).read_text(encoding="utf-8"), place
