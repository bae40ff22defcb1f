"""Adapters in files of Hugging Face's trainers: rank, targets and bits reach the price."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from layoutopt.optimizer.interop.files import job_to_plain
from layoutopt.optimizer.interop.launch.complete import complete_workload, named_model
from layoutopt.optimizer.interop.launch.export import export
from layoutopt.optimizer.interop.sources import import_text
from layoutopt.optimizer.specs.layout import Layout
from layoutopt.optimizer.specs.loading import load_cluster, load_workload
from layoutopt.optimizer.specs.model import AdapterSpec
from layoutopt.optimizer.specs.vocabulary import AdapterMethod, AdapterTarget

if TYPE_CHECKING:
    from layoutopt.optimizer.interop.records import ExportedJob, ImportedJob

EVERY = tuple(AdapterTarget)
ATTENTION = (AdapterTarget.ATTENTION,)
AXOLOTL = (
    "base_model: Qwen/Qwen3-32B\nsequence_len: 4096\nmicro_batch_size: 1\nbf16: true\ndp_shard_size: 8\n"
    "gradient_accumulation_steps: 2\n{more}"
)
FACTORY = (
    "model_name_or_path: Qwen/Qwen3-32B\nstage: sft\ndo_train: true\ncutoff_len: 2048\nbf16: true\n"
    "per_device_train_batch_size: 1\ndeepspeed: ds_z3.json\n{more}"
)
TRAINER = (
    "torchrun --nproc_per_node 8 train.py --model_name_or_path Qwen/Qwen3-32B --bf16 True --max_seq_length 2048"
    " --per_device_train_batch_size 1 --fsdp full_shard {more}\n"
)
SWIFT = (
    "NPROC_PER_NODE=8 {program} sft --model Qwen/Qwen3-32B --max_length 2048 --torch_dtype bfloat16"
    " --per_device_train_batch_size 1 --gradient_accumulation_steps 2 --deepspeed zero3 {more}\n"
)


def read(text: str, kind: str) -> ImportedJob:
    """Read a launch file of a kind."""
    found = import_text(text)
    assert found.kind == kind
    value: ImportedJob = found.value
    return value


@pytest.mark.parametrize(
    ("kind", "text", "method", "rank", "targets"),
    [
        ("axolotl", AXOLOTL.format(more="adapter: qlora\nlora_r: 32\nlora_target_linear: true\n"), "qlora", 32, EVERY),
        (
            "axolotl",
            AXOLOTL.format(more="adapter: lora\nlora_r: 8\nlora_target_modules: [q_proj, v_proj, k_proj, o_proj]\n"),
            "lora",
            8,
            ATTENTION,
        ),
        ("llama-factory", FACTORY.format(more="finetuning_type: lora\nlora_rank: 64\nlora_target: all\n"),
         "lora", 64, EVERY),
        ("llama-factory", FACTORY.format(more="quantization_bit: 4\n"), "qlora", 8, EVERY),
        ("hf-trainer", TRAINER.format(more="--use_peft --lora_r 16 --load_in_4bit"), "qlora", 16, ATTENTION),
        ("hf-trainer", TRAINER.format(more="--use_lora True --lora_target_modules all-linear"), "lora", 8, EVERY),
        ("ms-swift", SWIFT.format(program="swift", more="--train_type lora --lora_rank 16"), "lora", 16, EVERY),
        (
            "ms-swift",
            SWIFT.format(program="swift", more="--target_modules q_proj k_proj v_proj o_proj gate_proj"),
            "lora",
            8,
            EVERY,
        ),
    ],
)  # fmt: skip
def test_adapters_reach_the_workload(
    kind: str, text: str, method: str, rank: int, targets: tuple[AdapterTarget, ...]
) -> None:
    """What the file says is what is trained, and what a model file would hold."""
    job = read(text, kind)
    found = replace(job, model=named_model(job))
    adapter = complete_workload(found, global_batch=16).training.adapter
    assert adapter is not None
    assert (adapter.method, adapter.rank, adapter.targets) == (AdapterMethod(method), rank, targets)
    assert not any("all parameters" in note for note in job.notes)
    plain = job_to_plain(job)
    assert plain["training"]["adapter"] == {
        "method": method,
        "rank": rank,
        "targets": [target.value for target in targets],
    }


@pytest.mark.parametrize("more", ["adapter: llama-adapter\n", ""])
def test_other_methods_are_named(more: str) -> None:
    """What is no low-rank adapter is priced as full training, with a word; without an adapter nothing is said."""
    job = read(AXOLOTL.format(more=more), "axolotl")
    assert job.training.adapter is None
    assert any("all parameters" in note for note in job.notes) == bool(more)


def test_defaults_are_said() -> None:
    """Without a rank and targets the trainer's own are taken, and the answer says so."""
    job = read(FACTORY.format(more=""), "llama-factory")
    said = " ".join(job.notes)
    assert "finetuning_type lora" in said
    assert "lora_rank 8" in said
    assert "lora_target all-linear" in said
    assert named_model(job) is not None


def exported(adapter: AdapterSpec, to: str, version: str | None = None) -> ExportedJob:
    """Export one node's layout of Llama 3 8B that trains an adapter."""
    workload = load_workload("llama3-8b")
    workload = replace(workload, training=replace(workload.training, adapter=adapter, global_batch=64))
    layout = Layout(dp=8, zero=1, micro_batch=1, micro_batches=8)
    return export(layout, workload, load_cluster("h100x8"), to, version=version)


@pytest.mark.parametrize("version", ["core 0.19", "core 0.17"])
def test_bridge_trains_what_was_priced(version: str) -> None:
    """Its recipe of adapters with rank and modules comes back as the same adapter."""
    spec = AdapterSpec(method=AdapterMethod.LORA, rank=16, targets=ATTENTION)
    job = exported(spec, "megatron-bridge", version)
    script = job.files["launch.sh"]
    assert "llama3_8b_peft_config" in script
    assert read(script, "bridge-command").training.adapter == spec
    assert not any("adapters" in note for note in job.notes)


@pytest.mark.parametrize(
    ("method", "to", "said"),
    [
        (AdapterMethod.QLORA, "megatron-bridge", "4 bits of frozen weights, so that they take 16"),
        (AdapterMethod.LORA, "megatron-lm", "adapters, so that all parameters are trained"),
    ],
)
def test_what_a_trainer_has_no_words_for_is_said(method: AdapterMethod, to: str, said: str) -> None:
    """Megatron-LM has no adapters, Megatron-Bridge no 4-bit weights: it trains the same adapters on whole ones."""
    job = exported(AdapterSpec(method=method, rank=16, targets=EVERY), to)
    assert any(said in note for note in job.notes)
    if to == "megatron-bridge":
        back = read(job.files["launch.sh"], "bridge-command").training.adapter
        assert back == AdapterSpec(method=AdapterMethod.LORA, rank=16, targets=EVERY)
