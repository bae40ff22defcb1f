"""Single words of launch files and logs: what a flag is, which overlap is on, which preset fits a model, what is a row."""

from __future__ import annotations

from dataclasses import replace

import pytest

from layoutopt.optimizer.interop.deepspeed.write import _preset_model
from layoutopt.optimizer.interop.launch.export import export
from layoutopt.optimizer.interop.launch.flags import split_flags
from layoutopt.optimizer.interop.launch.processes import launched_gpus
from layoutopt.optimizer.interop.launch.target import make_target
from layoutopt.optimizer.interop.machines.nccl_log import import_nccl_tests
from layoutopt.optimizer.interop.megatron_bridge.write import overlap_overrides
from layoutopt.optimizer.specs.layout import Layout
from layoutopt.optimizer.specs.loading import load_cluster, load_workload, override_training


@pytest.mark.parametrize(
    ("words", "flags"),
    [
        ("--a 1 --b", {"a": 1, "b": True}),
        ("-- 3 --a x y", {"a": ["x", "y"]}),
        ("--a=2 3 --long-name 4", {"a": 2, "long_name": 4}),
        ("--nnodes 2 train.py --tp 4", {"nnodes": 2, "tp": 4}),
        ("--a --a 5", {"a": 5}),
        ("--b --", {"b": "--"}),
    ],
)
def test_flags_are_split(words: str, flags: dict[str, object]) -> None:
    """Two dashes alone are no flag; a value behind = is the only one; the last mention wins."""
    assert split_flags(words.split()) == flags


@pytest.mark.parametrize(
    ("model", "preset"),
    [
        ("deepseek-v3", "deepseek_v3"),
        ("deepseek-v2", "deepseek_v2"),
        ("qwen3-30b-a3b", "qwen3_moe"),
        ("mixtral-8x7b", "mixtral"),
    ],
)
def test_experts_are_found_by_the_preset_whose_names_fit(model: str, preset: str) -> None:
    """Latent attention is DeepSeek's, with a routing bias its third; normed queries are Qwen3's."""
    assert _preset_model(load_workload(model).model) == preset


@pytest.mark.parametrize("zero", [0, 1])
@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("parameters", [False, True])
def test_parameter_gathers_overlap_where_they_can(zero: int, gradients: bool, parameters: bool) -> None:
    """Only a sharded optimizer gathers, and only beside gradient reductions that overlap too."""
    workload = override_training(load_workload("llama3-8b"), global_batch=8)
    layout = Layout(dp=8, zero=zero, micro_batches=1, precision=workload.training.precision)
    target = make_target(layout, workload, load_cluster("h100x8"), "megatron-bridge")
    preset = replace(target.preset, dp_overlap=gradients, param_overlap=parameters)
    said = dict(overlap_overrides(replace(target, preset=preset)))
    assert said["ddp.overlap_grad_reduce"] is gradients
    assert said["ddp.overlap_param_gather"] is (zero == 1 and gradients and parameters)


def test_only_lines_that_begin_with_a_size_are_rows() -> None:
    """What a job prints between the rows of nccl-tests is not one of them."""
    text = (
        "# all_reduce_perf\n"
        "#  Rank  0 Group  0 Pid 1 on a device  0 [0x10] V\n"
        "#  Rank  1 Group  0 Pid 2 on a device  1 [0x10] V\n"
        "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong\n"
        "node0: NCCL INFO 1 2 3 4 5 6 7 8 9 10\n"
        "\n"
        "1048576 1 float sum -1 10.0 100.0 100.0 0 10.0 100.0 100.0 0\n"
        "srun: step 1 2 3 4 5 6 7 8 9 10 11\n"
    )
    (found,) = import_nccl_tests(text, collective="all_reduce")
    assert [row.size_bytes for row in found.rows] == [1048576]


@pytest.mark.parametrize(
    ("words", "gpus"),
    [
        ("torchrun --nproc-per-node 8 train.py", 8),
        ("torchrun --nnodes 4 --nproc-per-node 8 train.py", 32),
        ("deepspeed --num_gpus 4 train.py", 4),
        ("srun --ntasks-per-node 8 train.py", None),
        ("/usr/bin/torchrun --nproc_per_node=2 train.py --nnodes 3", 2),
    ],
)
def test_launchers_of_one_node_start_one_unless_told(words: str, gpus: int | None) -> None:
    """torchrun and deepspeed mean one node where they name none; a batch system says nothing of its nodes."""
    assert launched_gpus(words.split()) == gpus


@pytest.mark.parametrize(
    ("release", "data"), [("core 0.16", "--mode pretrain"), ("core 0.17", "--dataset llm-pretrain-mock")]
)
def test_recipes_are_told_of_data_as_their_release_reads_it(release: str, data: str) -> None:
    """Bridge 0.4, of Megatron-core 0.17, knows data sets; the one before knows a mode."""
    workload = override_training(load_workload("llama3-8b"), global_batch=8)
    layout = Layout(dp=8, zero=1, micro_batches=1, precision=workload.training.precision)
    job = export(layout, workload, load_cluster("h100x8"), "megatron-bridge", version=release)
    text = " ".join(" ".join(job.files.values()).replace("\\\n", " ").split())
    assert data in text
