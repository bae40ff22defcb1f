"""Files as other tools write them, and published cases."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from checks.published import CASES, FORMATS

from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.interop.huggingface.config import import_config
from layoutopt.optimizer.interop.launch.complete import complete_layout
from layoutopt.optimizer.interop.machines.nccl_fit import find_anomalies, fit_collective
from layoutopt.optimizer.interop.records import GpuTopology, ImportedJob, ImportedModel, LoggedRun, NodeSet
from layoutopt.optimizer.interop.sources import FileKind, import_path

if TYPE_CHECKING:
    from pathlib import Path

FILES = sorted(path for path in FORMATS.rglob("*") if path.is_file())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_file_imports_or_is_refused_by_name(path: Path) -> None:
    """All samples are recognised without being told what they are."""
    value = import_path(path).value
    known = ImportedModel | ImportedJob | LoggedRun | NodeSet | GpuTopology
    assert isinstance(value, known) or (isinstance(value, tuple) and value)


def job(name: str, **options: Any) -> ImportedJob:
    """Import one of the worked launch files."""
    value: ImportedJob = import_path(FORMATS / "launch" / name, **options).value
    return value


@pytest.mark.parametrize(
    "name",
    [
        "megatron_llama3_70b_tp8_pp4_vp5_dp32.sh",
        "bridge_llama3_70b.sh",
        "torchtitan_v022_llama3_70b.toml",
        "torchtitan_main_llama3_70b.py",
    ],
)
def test_worked_example_1_is_the_same_layout_everywhere(name: str) -> None:
    """Llama-3 70B: tp8 pp4 vp5 dp32, 32 micro-batches of one sequence, whatever the framework."""
    layout = complete_layout(job(name))
    assert (layout.tp, layout.sp, layout.cp, layout.pp, layout.vp, layout.dp) == (8, True, 1, 4, 5, 32)
    assert (layout.micro_batch, layout.micro_batches) == (1, 32)
    assert layout.zero == (1 if "megatron" in name or "bridge" in name else 2)


@pytest.mark.parametrize("name", ["megatron_deepseek_v3_tp1_pp16_vp2_ep64.sh", "bridge_deepseek_v3.sh"])
def test_worked_example_2(name: str) -> None:
    """DeepSeek-V3: tp1 pp16 vp2 ep64, 61 layers as 3, 29 x 2, then MTP and loss on stages of their own."""
    got = job(name)
    layout = complete_layout(got)
    assert (layout.tp, layout.pp, layout.vp, layout.ep, layout.etp, layout.dp) == (1, 16, 2, 64, 1, 128)
    split = got.layout.split or ()
    assert [stage.layers for stage in split] == [3, *[2] * 29, 0, 0]
    assert [index for index, stage in enumerate(split) if stage.mtp] == [30]
    assert layout.recompute.modules == ("mla_up_proj", "mlp", "moe_act")


def test_deepspeed_variants() -> None:
    """The Megatron-DeepSpeed script, and JSONs with pipeline, ZeRO-3 and experts."""
    script = job("megatron_deepspeed_llama3_70b.sh")
    assert script.framework is Framework.MEGATRON_DEEPSPEED
    assert [stage.layers for stage in script.layout.split or ()] == [20] * 4
    experts = job("deepspeed_autoep_moe.json", gpus=64)
    assert (experts.layout.ep, experts.layout.dp, experts.training.global_batch) == (8, 64, 512)
    assert job("deepspeed_zero3_autotp_ulysses.json").options.optimizer_offload == 1.0


def test_nanotron_and_accelerate() -> None:
    """Both yield the degrees in their files."""
    nanotron = complete_layout(job("nanotron_llama3_70b.yaml"))
    assert (nanotron.tp, nanotron.pp, nanotron.dp, nanotron.micro_batches) == (8, 4, 32, 32)
    accelerate = job("accelerate_fsdp2_tp8.yaml").layout
    assert (accelerate.dp, accelerate.hsdp_shard, accelerate.zero) == (8, 4, 3)


def test_topology_cases() -> None:
    """NVIDIA/nccl#1264 and #1357: eight affine NICs of ten; four NICs for eight GPUs."""
    ten = import_path(FORMATS / "topo_h100_8gpu_10nic.txt").value
    assert (ten.nvlinks, ten.nvlink_domain, ten.nics, len(ten.other_nics)) == (18, 8, 8, 2)
    four = import_path(FORMATS / "topo_h100_8gpu_4nic.txt").value
    assert four.nics == 4
    assert four.nics * 400 == 1600
    assert [bool(near) for near in four.gpu_nics] == [True, False] * 4


@pytest.mark.parametrize(
    ("name", "latency_us", "bus_gbs"),
    [
        ("nccl_all_reduce_new.txt", 60, 360),
        ("nccl_all_gather_new.txt", 55, 190),
        ("nccl_all_reduce_old.txt", 64, 92),
        ("nccl_prefixed_launcher.txt", 55, 190),
        ("nccl_reduce_scatter_v219.txt", 50, 190),
        ("nccl_alltoall_v219_na_timestamps.txt", 143, 45),
    ],
)
def test_fits_recover_the_law_of_the_samples(name: str, latency_us: float, bus_gbs: float) -> None:
    """The tables come from a latency and a bandwidth; both are found within 2%."""
    (table,) = import_path(FORMATS / name).value
    fit = fit_collective(table)
    assert fit.latency_s * 1e6 == pytest.approx(latency_us, rel=0.02)
    assert fit.bus_bytes_per_s / 1e9 == pytest.approx(bus_gbs, rel=0.02)
    assert {anomaly.kind for anomaly in find_anomalies(table)} <= {"two_nodes"}


def test_all_gather_is_told_from_alltoall_without_names() -> None:
    """The prefixed log names no collective: the in-place half that was checked tells."""
    (table,) = import_path(FORMATS / "nccl_prefixed_launcher.txt").value
    assert table.collective == "all_gather"


def cases(kind: str) -> list[dict[str, Any]]:
    """Published cases of one kind."""
    return [case for case in yaml.safe_load(CASES.read_text(encoding="utf-8")) if case["kind"] == kind]


def test_config_file_cases() -> None:
    """Qwen3-4B's query projection, and a lost head_dim that is asked for instead of rounded."""
    for case in cases("config-file"):
        check = case.get("check") or {}
        if "q_proj" in check:
            shape = case["model"]
            config = {
                "model_type": "qwen3",
                "hidden_size": shape["hidden"],
                "num_hidden_layers": shape["layers"],
                "num_attention_heads": shape["heads"],
                "num_key_value_heads": shape["kv_heads"],
                "intermediate_size": shape["ffn"],
                "vocab_size": shape["vocab"],
            }
            model = import_config(json.dumps(config)).model
            assert model.heads * model.head_dim * model.hidden == check["q_proj"]


def test_dump_is_a_job_and_a_log() -> None:
    """The same file is a job and, asked for as such, a measured run."""
    assert import_path(FORMATS / "megatron_args_dump.txt").kind == FileKind.MEGATRON_DUMP
    run = import_path(FORMATS / "megatron_args_dump.txt", FileKind.MEGATRON_LOG).value
    assert run.columns["measured_step_s"] == pytest.approx(0.8124)
