"""What the trainers' own validators refused of launches that the rules called valid, each as a rule or as a flag."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from checks.agreement import dense_model, dense_then_moe, workload_of

from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.interop.launch.complete import complete_layout
from layoutopt.optimizer.interop.launch.export import export
from layoutopt.optimizer.interop.sources import import_text
from layoutopt.optimizer.solve.judge import judge_layout
from layoutopt.optimizer.space.check import check_layout
from layoutopt.optimizer.space.context import RunOptions
from layoutopt.optimizer.specs.layout import Layout, Recompute, Switches
from layoutopt.optimizer.specs.layout_file import read_layout_text
from layoutopt.optimizer.specs.loading import load_cluster, load_workload
from layoutopt.optimizer.specs.stage_split import build_stages
from layoutopt.optimizer.specs.vocabulary import (
    CudaGraph,
    Dispatcher,
    Granularity,
    Precision,
    Saver,
    Schedule,
)

if TYPE_CHECKING:
    from layoutopt.optimizer.specs.model import ModelSpec

CLUSTER = load_cluster("h100x64")
DENSE, SPARSE = dense_model(8), dense_then_moe(8, 0)
PLAIN = Layout(dp=4, micro_batches=4, zero=1)
LINEAR = load_workload("qwen3-next-80b-a3b").model
WINDOWED = load_workload("gpt-oss-120b").model
CHOSEN_KEYS = replace(load_workload("deepseek-v3.2").model, mtp_layers=0)


def laid(model: ModelSpec, layout: Layout, layers: list[int]) -> Layout:
    """A layout with the layers of its virtual stages."""
    schedule = Schedule.INTERLEAVED if layout.vp > 1 else Schedule.ONE_F_ONE_B
    stages = build_stages(model, layers, layout.pp, schedule, 0)
    return replace(layout, schedule=schedule, stages=tuple(stages))


def broken(layout: Layout, model: ModelSpec, release: str) -> set[str]:
    """The rules that a layout breaks under Megatron-LM."""
    options = RunOptions(processes=layout.gpus)
    training = workload_of(model, layout).training
    found = check_layout(layout, model, training, CLUSTER, Framework.MEGATRON, f"core {release}", options)
    return {rule.rule for rule in found}


def script(layout: Layout, model: ModelSpec, release: str, **training: Any) -> tuple[str, str]:
    """The launch script of a layout, and its notes."""
    workload = workload_of(model, layout, **training)
    job = export(layout, workload, CLUSTER, "megatron-lm", version=f"core {release}")
    return job.files["launch.sh"], "\n".join(job.notes)


@pytest.mark.parametrize(
    ("layout", "model", "refused", "accepted", "rule"),
    [
        (replace(PLAIN, cp=2), dense_model(8, mtp_layers=1), "0.13", "0.14", "mtp_with_cp"),
        (PLAIN, dense_model(8, mtp_layers=1), "0.11", "0.12", "model_supported"),
        (PLAIN, SPARSE, "0.9", "0.10", "model_supported"),
        (replace(PLAIN, ep=4), CHOSEN_KEYS, "0.17", "0.18", "model_supported"),
        (replace(PLAIN, ep=4, cp=2), CHOSEN_KEYS, "0.18", "0.19", "sparse_without_cp"),
        (
            laid(DENSE, replace(PLAIN, cp=2, pp=2, mesh_order="tp-cp-ep-pp-dp"), [4, 4]),
            DENSE, "0.10", "0.11", "order_without_cp_or_ep",
        ),
        (replace(PLAIN, ep=4, cp=2), LINEAR, "0.17", "0.18", "linear_without_cp"),
        (replace(PLAIN, switches=Switches(cuda_graph=CudaGraph.PARTIAL)), DENSE, "0.15", "0.16", "switch_supported"),
        (
            replace(
                PLAIN,
                recompute=Recompute(granularity=Granularity.FULL),
                switches=Switches(cuda_graph=CudaGraph.FULL),
            ),
            DENSE, "0.15", "0.16", "full_graph_recompute",
        ),
        (replace(PLAIN, precision=Precision.FP16), SPARSE, "0.15", "0.16", "grouped_gemm_fp16"),
        (replace(PLAIN, ep=4, cp=2), WINDOWED, "0.16", "0.17", "one_cp_kind"),
        (
            replace(PLAIN, ep=4, switches=Switches(shared_expert_overlap=True, dispatcher=Dispatcher.DEEPEP)),
            SPARSE, "0.17", "0.18", "shared_overlap_dispatcher",
        ),
        (
            laid(dense_then_moe(31, 0), replace(PLAIN, pp=4, vp=2, dp=1), [3, *[4] * 7]),
            dense_then_moe(31, 0), "0.11", "0.12", "stage_split",
        ),
    ],
    ids=[
        *("mtp-cp", "mtp", "shared-experts", "chosen-keys", "chosen-keys-cp", "linear-cp", "graph-parts",
          "graph-recompute", "order", "fp16-experts"),
        "kinds-by-layer",
        "shared-experts-dispatcher",
        "counted-ends",
    ],
)  # fmt: skip
def test_rules_by_release(layout: Layout, model: ModelSpec, refused: str, accepted: str, rule: str) -> None:
    """Refused by the parser of one release, accepted by the next."""
    assert rule in broken(layout, model, refused)
    assert rule not in broken(layout, model, accepted)


def test_merged_passes_of_prediction_layers_need_a_pipeline() -> None:
    """Core 0.16 and 0.17 refuse them at pp 1, under Megatron-Bridge too; 0.15 and 0.18 do not."""
    model = replace(SPARSE, mtp_layers=1)
    layout = replace(PLAIN, ep=4, switches=Switches(ep_overlap=True))
    for release, refused in (("0.15", False), ("0.16", True), ("0.17", True), ("0.18", False)):
        assert ("mtp_batch_overlap" in broken(layout, model, release)) == refused
        assert "mtp_batch_overlap" not in broken(layout, SPARSE, release)
    training = workload_of(model, layout).training
    for release, refused in (("0.3", True), ("0.4", True), ("0.5", False)):
        found = check_layout(layout, model, training, CLUSTER, Framework.MEGATRON_BRIDGE, release)
        assert ("mtp_batch_overlap" in {rule.rule for rule in found}) == refused


def test_recomputed_experts_have_no_merged_passes() -> None:
    """Core 0.17 refuses them; before, merged passes ran past the recomputed region."""
    recompute = Recompute(granularity=Granularity.SELECTIVE, modules=("moe",))
    layout = replace(PLAIN, ep=4, recompute=recompute, switches=Switches(ep_overlap=True))
    for release in ("0.14", "0.16", "0.17", "0.19"):
        assert "moe_batch_overlap" in broken(layout, SPARSE, release)


def test_graphs_of_experts_with_a_capacity() -> None:
    """Core 0.16 and 0.17 ask for padded decoding beside experts over ranks, and merge no passes in such graphs."""
    assert SPARSE.moe is not None
    padded = replace(SPARSE, moe=replace(SPARSE.moe, capacity_factor=1.25))
    layout = replace(
        PLAIN, ep=4, switches=Switches(cuda_graph=CudaGraph.FULL, dispatcher=Dispatcher.ALLTOALL)
    )
    merged = replace(layout, switches=replace(layout.switches, ep_overlap=True))
    flag = "--moe-pad-experts-for-cuda-graph-inference"
    for release, asked in (("0.15", False), ("0.16", True), ("0.17", True), ("0.18", False), ("0.19", False)):
        assert broken(layout, padded, release) == set()
        assert (flag in script(layout, padded, release)[0].split()) == asked
        assert flag not in script(replace(layout, ep=1), padded, release)[0]
        assert ("full_graph_batch_overlap" in broken(merged, padded, release)) == asked


@pytest.mark.parametrize("release", ["0.3", "0.4", "0.5", "0.6"])
def test_graphs_of_bridges_iterations_look_for_no_nan(release: str) -> None:
    """Every release of Megatron-Bridge refuses the check, on by default, beside such a graph."""
    for graph, silent in ((CudaGraph.FULL, True), (CudaGraph.PARTIAL, False)):
        layout = replace(PLAIN, switches=Switches(cuda_graph=graph))
        workload = workload_of(load_workload("llama3-8b").model, layout)
        text = export(layout, workload, CLUSTER, "megatron-bridge", version=release).files["launch.sh"]
        for key in ("rerun_state_machine.check_for_nan_in_loss=", "ddp.check_for_nan_in_grad="):
            assert (f"{key}false" in text.lower()) == silent, text


def test_one_connection_at_tp_1() -> None:
    """Before core 0.12 asynchronous gradient all-reduces want it at tp 1 too."""
    assert "CUDA_DEVICE_MAX_CONNECTIONS=1 " in script(PLAIN, DENSE, "0.11")[0]
    assert "CUDA_DEVICE_MAX_CONNECTIONS=32\n" in script(PLAIN, DENSE, "0.12")[0]


def test_flags_by_release() -> None:
    """No flag that the release's parser does not know, and a note where the run then differs."""
    for release, known in (("0.11", False), ("0.12", True)):
        text, notes = script(PLAIN, DENSE, release, grad_bytes=2)
        assert ("--grad-reduce-in-bf16" in text) == known
        assert ("--grad-reduce-in-bf16 came" in notes) != known
    for release, known in (("0.12", False), ("0.13", True)):
        text, notes = script(PLAIN, DENSE, release, moment_bytes=2)
        assert ("--exp-avg-dtype bf16" in text) == known
        assert ("--exp-avg-dtype bf16 came" in notes) != known


def test_two_uneven_ranks_state_the_first_alone() -> None:
    """Core 0.11 and 0.12 divide the rest by the ranks between the ends, of which two ranks have none."""
    text = script(laid(DENSE, replace(PLAIN, pp=2), [3, 5]), DENSE, "0.12")[0]
    assert "--decoder-first-pipeline-num-layers 3" in text
    assert "--decoder-last" not in text


def test_rope_is_not_fused_beside_latent_attention() -> None:
    """Core 0.11 and 0.12 refuse the pair, of which the first is on by default."""
    mla = replace(load_workload("deepseek-v3").model, mtp_layers=0)
    layout = replace(PLAIN, dp=8, ep=8)
    for release, refuses in (("0.11", True), ("0.12", True), ("0.13", False)):
        assert ("--no-rope-fusion" in script(layout, mla, release)[0]) == refuses


def test_the_model_never_changes_without_a_note() -> None:
    """A file that states no rope base, norm epsilon or router scaling; the built-in model's and its groups are written."""
    known = load_workload("deepseek-v3").model
    assert known.moe is not None
    router = replace(known.moe, router_scaling=None)
    bare = replace(known, rope_base=None, norm_epsilon=None, moe=router)
    notes = script(replace(PLAIN, dp=8, ep=8), bare, "0.19")[1]
    for word in ("--rotary-base", "--norm-epsilon", "--moe-router-topk-scaling-factor"):
        assert word in notes
    assert "groups" not in script(PLAIN, DENSE, "0.19")[1]
    text, notes = script(replace(PLAIN, dp=8, ep=8), known, "0.19")
    assert "--moe-router-num-groups 8" in text and "does not state" not in notes and "groups" not in notes


def test_a_norm_after_the_embedding_is_left_out_with_a_note() -> None:
    """BigScience's Megatron-DeepSpeed has it, Megatron-LM's model none."""
    bloom = load_workload("bloom-176b").model
    assert "norm after the embedding is left out" in script(PLAIN, bloom, "0.19")[1]
    assert "norm after the embedding" not in script(PLAIN, DENSE, "0.19")[1]


def test_weights_in_8_bits_alone_need_a_distributed_optimizer() -> None:
    """Every release refuses ``--fp8-param-gather`` without one."""
    layout = replace(PLAIN, precision=Precision.FP8, switches=Switches(fp8_param_gather=True))
    for zero, refused in ((0, True), (1, False)):
        assert ("fp8_gather_needs_zero" in broken(replace(layout, zero=zero), DENSE, "0.19")) == refused
    # the flag is not written where nothing multiplies in 8 bits
    wide = replace(layout, zero=0, precision=Precision.BF16)
    assert "fp8_gather_needs_zero" not in broken(wide, DENSE, "0.19")
    assert "--fp8-param-gather" not in script(wide, DENSE, "0.19")[0]


def test_biases_of_experts_are_not_fused_with_dropout() -> None:
    """Grouped experts take biases from core 0.15 on, and refuse the fusion, which is on by default."""
    model, layout = load_workload("gpt-oss-120b").model, replace(PLAIN, dp=8, ep=8)
    text = script(layout, model, "0.15")[0]
    assert "--no-bias-dropout-fusion" in text
    # gpt-oss's routers have their matrix's biases, not those that balance experts by sigmoid scores
    assert "--moe-router-enable-expert-bias" not in text and "sigmoid" not in text
    assert "--moe-router-enable-expert-bias" in script(layout, CHOSEN_KEYS, "0.19")[0]
    assert "--no-bias-dropout-fusion" not in script(layout, load_workload("mixtral-8x7b").model, "0.15")[0]


def test_recomputed_experts_are_not_offloaded() -> None:
    """Core 0.19 refuses the names of what stays inside recomputed expert layers."""
    layout = replace(PLAIN, savers=(Saver.OFFLOAD_ACTIVATIONS,))
    recompute = Recompute(granularity=Granularity.SELECTIVE, modules=("moe",))
    for layers, names in ((layout, True), (replace(layout, recompute=recompute), False)):
        words = script(layers, SPARSE, "0.19")[0].split()
        assert "core_attn" in words
        assert ("expert_fc1" in words, "moe_act" in words) == (names, names)


def test_recomputed_experts_have_no_captured_router() -> None:
    """Core 0.16 to 0.19 refuse graphs of the router, which partial graphs of expert layers hold, beside it."""
    layout = replace(PLAIN, ep=4, switches=Switches(cuda_graph=CudaGraph.PARTIAL))
    for modules, refused in ((("moe",), True), (("moe_act",), False)):
        recompute = Recompute(granularity=Granularity.SELECTIVE, modules=modules)
        for release in ("0.16", "0.19"):
            rules = broken(replace(layout, recompute=recompute), SPARSE, release)
            assert ("partial_graph_recompute" in rules) == refused


def test_rope_is_not_fused_beside_an_indexer() -> None:
    """Core 0.18 and 0.19 refuse chosen keys with fused rotary positions, which are on by default."""
    model = CHOSEN_KEYS
    for release in ("0.18", "0.19"):
        assert "--no-rope-fusion" in script(replace(PLAIN, dp=8, ep=8), model, release)[0]


@pytest.mark.parametrize(
    ("name", "family", "base", "flavor"),
    [
        ("mixtral-8x7b", "qwen3", "qwen3_30b_a3b", "mixtral-8x7b"),
        ("gpt-oss-120b", "gpt_oss", "gpt_oss_120b", "120b"),
        ("qwen3-235b-a22b", "qwen3", "qwen3_30b_a3b", "235B-A22B"),
        ("llama3-405b", "llama3", "llama3_8b", "405B"),
        ("llama3-70b", "llama3", "llama3_70b", "70B"),
        ("deepseek-v2", "deepseek_v3", "deepseek_v3_671b", "236B"),
    ],
)
def test_torchtitan_starts_from_plain_configurations(name: str, family: str, base: str, flavor: str) -> None:
    """The family whose classes build the model, its flavor, and a base that exists and converts nothing to 8 bits."""
    model = load_workload(name).model
    layout = Layout(dp=8, micro_batches=2, zero=3)
    job = export(layout, workload_of(model, layout), load_cluster("h100x8"), "torchtitan")
    text = job.files["layoutopt_config.py"]
    assert f"from torchtitan.models.{family}.config_registry import {base}\n" in text
    assert f'model_registry("{flavor}", attn_backend="flex"' in text
    assert "quantization" not in text


@pytest.mark.parametrize(("text", "etp"), [("tp=2,dp=4", 2), ("tp=2,ep=4,dp=4", 1)])
def test_torchtitan_splits_experts_over_tp_where_there_is_no_ep(text: str, etp: int) -> None:
    """What torchtitan builds on the meta device: a tensor-parallel rank holds half of every expert, or some whole ones."""
    workload = load_workload("mixtral-8x7b")
    layout = read_layout_text(f"{text},mb=1,zero=3")
    found = judge_layout(workload, load_cluster("h100x8"), layout, framework=Framework.TORCHTITAN)
    assert (found.broken, found.layout.etp) == ((), etp)
    job = export(found.layout, workload, load_cluster("h100x8"), "torchtitan")
    read = import_text(job.files["layoutopt_config.py"], "", "torchtitan-python").value
    assert complete_layout(read, model=workload.model).etp == etp


FOUND = {
    "optima that their trainer can't start": (
        "agreement/test_reproductions.py::test_optima_start_in_their_own_trainer",
        "agreement/test_reproductions.py::test_rules_know_what_only_one_side_knew",
    ),
    "recipes, flags and variables that a release asks for": (
        "agreement/test_reproductions.py::test_the_fp8_recipe_that_is_written_was_searched",
        "agreement/test_reproductions.py::test_what_a_release_needs_is_written",
        "agreement/test_refereed_rules.py::test_rules_by_release",
        "agreement/test_refereed_rules.py::test_one_connection_at_tp_1",
        "agreement/test_recorded_flags.py::test_flags_of_valid_launches_are_known",
    ),
    "torchtitan's families, bases and prediction layers": (
        "agreement/test_refereed_rules.py::test_torchtitan_starts_from_plain_configurations",
        "agreement/test_reproductions.py::test_rules_know_what_only_one_side_knew",
    ),
    "MiCS by release": ("agreement/test_reproductions.py::test_rules_know_what_only_one_side_knew",),
    "models that change without a note": (
        "interop/test_model_facts.py::test_written_and_read_back",
        "interop/test_model_facts.py::test_a_note_names_what_the_model_file_leaves_open",
        "agreement/test_refereed_rules.py::test_the_model_never_changes_without_a_note",
    ),
    "layouts called invalid that start": (
        "agreement/test_reproductions.py::test_stages_may_end_inside_a_repeating_block",
        "agreement/test_reproductions.py::test_modules_that_a_model_lacks_do_nothing",
        "agreement/test_reproductions.py::test_bridges_rule_on_mesh_orders_is_its_own",
    ),
    "parameters of every rank": ("cost/test_megatron_parameters.py::test_ranks_hold_what_megatron_builds",),
    "bytes and counts of collectives": (
        "cost/test_collectives.py::test_bytes_and_counts_are_those_of_torch",
        "cost/test_collectives.py::test_counted_calls_add_up_to_the_price",
    ),
    "what is alive at most": (
        "cost/test_collectives.py::test_the_most_that_is_alive_is_the_prediction",
        "cost/test_collectives.py::test_each_part_of_the_most_is_the_predicted_one",
    ),
    "experts that are recomputed and offloaded": (
        "agreement/test_refereed_rules.py::test_recomputed_experts_are_not_offloaded",
    ),
    "launch files of the trainers' own examples": (
        "interop/test_launchers.py::test_model_args_lists_and_empty_values",
        "interop/test_launchers.py::test_torchtitan_registry_offers_its_functions",
        "interop/test_recipe_files.py::test_a_recipe_is_followed_through_its_files",
        "interop/test_interop_jobs.py::test_what_names_bridge_without_being_a_run",
    ),
}
"""What the trainers' own code said otherwise, and the tests that hold each to its right value."""


@pytest.mark.parametrize("what", FOUND)
def test_what_was_found_is_tested(what: str) -> None:
    """Every named test is there."""
    for place in FOUND[what]:
        file, name = place.split("::")
        assert f"\ndef {name}(" in (Path(__file__).parents[1] / file).read_text(encoding="utf-8"), place
