"""Primus experiments: its own defaults by the module file that one names, under overrides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from layoutopt.optimizer.interop.shell.record import Outside
from layoutopt.optimizer.interop.sources import import_text

if TYPE_CHECKING:
    from layoutopt.optimizer.interop.records import ImportedJob

PRIMUS = """
work_group: ${{TEAM:amd}}
modules:
  pre_trainer:
    framework: {framework}
    config: pre_trainer.yaml
    model: llama3.1_8B.yaml
    overrides:
{overrides}
"""


def read(text: str, kind: str, file: str = "x", **options: Any) -> ImportedJob:
    """Import a text that gives itself away as ``kind``."""
    found = import_text(text, file, **options)
    assert found.kind == kind
    job: ImportedJob = found.value
    return job


def degrees(job: ImportedJob, *names: str) -> tuple[Any, ...]:
    """Return some axes of a job's layout."""
    return tuple(getattr(job.layout, name) for name in names)


def test_primus_variables_count_as_their_defaults() -> None:
    """A colon separates a default; what is not stated is Primus' own, and said."""
    text = "      tensor_model_parallel_size: ${PRIMUS_TP:2}\n      micro_batch_size: 4\n      recompute_granularity: full\n"
    text += (
        "      recompute_method: block\n      recompute_num_layers: 8\n      zero_bubble_v_schedule: true\n"
    )
    job = read(PRIMUS.format(framework="megatron", overrides=text), "primus")
    assert degrees(job, "tp", "zero", "micro_batch", "recompute_layers") == (2, 1, 4, 8)
    assert (job.training.global_batch, job.training.sequence_length) == (16, 1024)
    assert job.layout.sp is True
    said = " ".join(job.notes)
    assert "PRIMUS_TP is not set outside: '2'" in said
    assert "zero_bubble_v_schedule" in said
    assert job.model_name == "llama3-8b"
    assert "number of GPUs" in job.missing


@pytest.mark.parametrize(
    ("config", "numbers"),
    [("sft_trainer.yaml", (1, 1, 128, 2048)), ("my_trainer.yaml", (None, None, None, None))],
)
def test_primus_takes_what_its_module_file_states(config: str, numbers: tuple[int | None, ...]) -> None:
    """A file of one's own may state anything: what nothing else states is left open, the ZeRO stage among it."""
    text = PRIMUS.format(framework="megatron", overrides="      tensor_model_parallel_size: 2\n")
    job = read(text.replace("pre_trainer.yaml", config), "primus")
    batch = (job.training.global_batch, job.training.sequence_length)
    assert (job.layout.zero, job.layout.micro_batch, *batch) == numbers
    assert any(text.startswith("zero") for text in job.missing) is (numbers[0] is None)


def test_primus_drives_torchtitan_too() -> None:
    """Its sections are torchtitan's of the TOML era."""
    text = "      training:\n        local_batch_size: 4\n        seq_len: 8192\n      parallelism:\n"
    text += "        data_parallel_shard_degree: 8\n      activation_checkpoint:\n        mode: full\n"
    job = read(PRIMUS.format(framework="torchtitan", overrides=text), "primus")
    assert (job.framework, job.gpus) == ("torchtitan", 8)
    assert degrees(job, "zero", "micro_batch", "micro_batches") == (3, 4, 1)
    assert job.model_name == "llama3-8b" and not any(text.startswith("the model") for text in job.missing)


@pytest.mark.parametrize(
    ("command", "tp", "gpus"),
    [
        ("EXP=x.yaml GPUS_PER_NODE=8 NNODES=2 bash ./examples/run_pretrain.sh", 2, 16),
        ("EXP=x.yaml GPUS_PER_NODE=8 bash ./run_pretrain.sh --tensor_model_parallel_size 4", 4, 8),
        ("EXP=y.yaml GPUS_PER_NODE=4 primus-cli direct -- train pretrain --config x.yaml", 2, 4),
    ],
)
def test_primus_scripts_name_their_experiment(command: str, tp: int, gpus: int) -> None:
    """An option of the command before the variable EXP; GPUs are those of the environment, one node unless it says."""
    text = PRIMUS.format(framework="megatron", overrides="      tensor_model_parallel_size: 2")
    outside = Outside(beside=lambda name: text if name == "x.yaml" else None)
    job = import_text(f"#!/bin/bash\n{command}\n", "f.sh", "primus", outside=outside).value
    assert (job.layout.tp, job.gpus) == (tp, gpus)
