"""Scripts that start a trainer on a configuration file: the file is read, with what the command and its GPUs change."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from layoutopt.optimizer.interop.sources import import_path, import_text
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.vocabulary import CpComm

if TYPE_CHECKING:
    from pathlib import Path

    from layoutopt.optimizer.interop.records import ImportedJob

FACTORY = """
model_name_or_path: meta-llama/Meta-Llama-3-8B
stage: sft
finetuning_type: full
deepspeed: ds_z3.json
cutoff_len: 2048
per_device_train_batch_size: 2
gradient_accumulation_steps: 8
bf16: true
"""
AXOLOTL = """
base_model: Qwen/Qwen3-32B
sequence_len: 8192
micro_batch_size: 1
gradient_accumulation_steps: 4
bf16: true
fsdp_version: 2
fsdp_config: {reshard_after_forward: true}
tensor_parallel_size: 2
"""
TITAN = """
[model]
name = "llama3"
flavor = "70b"
[training]
local_batch_size = 2
seq_len = 8192
[parallelism]
tensor_parallel_degree = 8
data_parallel_shard_degree = -1
[activation_checkpoint]
mode = "full"
"""
PRIMUS = """
modules:
  pre_trainer:
    framework: megatron
    model: mixtral_8x7B_v0.1.yaml
    overrides:
      micro_batch_size: 4
      global_batch_size: 256
      tensor_model_parallel_size: ${PRIMUS_TP:1}
      pipeline_model_parallel_size: ${PRIMUS_PP:2}
      expert_model_parallel_size: 8
      use_distributed_optimizer: true
"""
FILES = {
    "sft.yaml": FACTORY,
    "qwen.yaml": AXOLOTL,
    "titan.toml": TITAN,
    "exp.yaml": PRIMUS,
    "fsdp.yaml": "distributed_type: FSDP\nnum_processes: 16\nmixed_precision: bf16\n"
    "fsdp_config: {fsdp_version: 2}\nparallelism_config: {parallelism_config_dp_shard_size: 4, "
    "parallelism_config_tp_size: 2, parallelism_config_cp_size: 2}\n",
}


def started(tmp_path: Path, script: str) -> ImportedJob:
    """Read a script beside all of the files."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "run.sh").write_text(script)
    job: ImportedJob = import_path(tmp_path / "run.sh").value
    return job


@pytest.mark.parametrize(
    ("script", "degrees", "gpus", "batch"),
    [
        (
            "FORCE_TORCHRUN=1 NNODES=2 NPROC_PER_NODE=8 llamafactory-cli train sft.yaml",
            (1, 1, 1, 16),
            16,
            256,
        ),
        (
            "NPROC_PER_NODE=8 llamafactory-cli train sft.yaml gradient_accumulation_steps=1",
            (1, 1, 1, 8),
            8,
            16,
        ),
        (
            "export NPROC_PER_NODE=8\nllamafactory-cli train --stage sft --finetuning_type full --bf16 True "
            "--model_name_or_path Qwen/Qwen3-8B --cutoff_len 4096 --per_device_train_batch_size 1 "
            "--gradient_accumulation_steps 4 --deepspeed ds_z2.json",
            (1, 1, 1, 8),
            8,
            32,
        ),
        ("accelerate launch --num_processes 32 -m axolotl.cli.train qwen.yaml", (2, 1, 1, 16), 32, 64),
        (
            "torchrun --nproc_per_node 8 -m axolotl.cli.train qwen.yaml --micro-batch-size 2",
            (2, 1, 1, 4),
            8,
            32,
        ),
        (
            "C=${CONFIG_FILE:-./titan.toml}\ntorchrun --nproc_per_node=8 --nnodes 8 -m torchtitan.train "
            '--job.config_file "$C" --parallelism.tensor_parallel_degree 4',
            (4, 1, 1, 16),
            64,
            32,
        ),
        (
            "export EXP=exp.yaml PRIMUS_TP=2 NNODES=4 GPUS_PER_NODE=8\nbash run_pretrain.sh",
            (2, 1, 2, 8),
            32,
            256,
        ),
        (
            "srun -N 2 --ntasks-per-node=8 ./primus-cli direct -- train pretrain --config exp.yaml "
            "--pipeline_model_parallel_size 4 2>&1 | tee log",
            (1, 1, 4, 4),
            16,
            256,
        ),
    ],
)
def test_the_file_is_read_with_what_the_command_changes(
    tmp_path: Path, script: str, degrees: tuple[int, ...], gpus: int, batch: int
) -> None:
    """Degrees tp, cp, pp and dp, GPUs of the launcher, and the batch that follows."""
    job = started(tmp_path, f"#!/bin/bash\n{script}\n")
    layout = job.layout
    assert (layout.tp, layout.cp, layout.pp, layout.dp) == degrees
    assert (job.gpus, job.training.global_batch) == (gpus, batch)
    assert any(note.startswith("read from ") for note in job.notes) or "--cutoff_len" in script


def test_files_that_a_script_writes_are_those_that_it_starts(tmp_path: Path) -> None:
    """Filled in by the script itself, from a here-document or by sed."""
    script = (
        "sed 's/cutoff_len: 2048/cutoff_len: 4096/' sft.yaml > own.yaml\n"
        "cat >> own.yaml <<E\ndisable_gradient_checkpointing: true\nE\n"
        "NPROC_PER_NODE=8 llamafactory-cli train own.yaml\n"
    )
    job = started(tmp_path, script)
    assert job.training.sequence_length == 4096
    assert job.layout.recompute is not None and job.layout.recompute.granularity == "none"


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("llamafactory-cli train other.yaml", "the configuration other.yaml was not found beside the script"),
        (
            "axolotl train $CONFIG",
            "comes from $CONFIG, which the script does not set (give --set CONFIG=...)",
        ),
        (
            "torchrun -m torchtitan.train --module llama3 --config llama3_8b",
            "config_registry.py with --function",
        ),
        (
            "cat > own.yaml <<E\nstage: sft\ncutoff_len: $LENGTH\nE\nllamafactory-cli train own.yaml",
            "own.yaml states cutoff_len by $LENGTH, which the script does not set (give --set LENGTH=...)",
        ),
    ],
)
def test_what_is_not_there_is_one_line(tmp_path: Path, script: str, says: str) -> None:
    """A file that is missing or open is never a launch with defaults."""
    with pytest.raises(InputError) as caught:
        started(tmp_path, f"#!/bin/bash\n{script}\n")
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_settings_that_concern_no_layout_may_be_open(tmp_path: Path) -> None:
    """Where the output goes is no question."""
    script = f"cat > own.yaml <<E{FACTORY}output_dir: $OUT/run\nE\nNPROC_PER_NODE=8 llamafactory-cli train own.yaml\n"
    assert started(tmp_path, script).layout.dp == 8


def test_a_launcher_that_starts_other_processes_contradicts_the_file(tmp_path: Path) -> None:
    """Both numbers are named."""
    job = started(tmp_path, "torchrun --nproc_per_node 8 -m torchtitan.train --job.config_file=titan.toml\n")
    assert job.gpus == 8 and job.layout.dp == 1
    more = "torchrun --nproc_per_node 4 -m torchtitan.train --job.config_file=titan.toml\n"
    assert any("contradictory: 4 GPUs" in note for note in started(tmp_path, more).notes)


def test_accelerate_names_its_file_before_the_script(tmp_path: Path) -> None:
    """The script's name is no part of the option's value; a file that is not there leaves its degrees open."""
    words = "train.py --model_name_or_path meta-llama/Llama-3.1-8B --per_device_train_batch_size 2 --bf16"
    job = started(tmp_path, f"accelerate launch --config_file fsdp.yaml {words}\n")
    assert (job.layout.tp, job.layout.cp, job.layout.dp, job.gpus) == (2, 2, 4, 16)
    assert job.options.cp_comm is CpComm.ALL_GATHER
    job = started(tmp_path, f"accelerate launch --config_file gone.yaml {words}\n")
    assert (job.layout.tp, job.layout.cp, job.layout.zero) == (None, None, None)
    assert any("gone.yaml was not found" in text for text in job.missing)


SWIFT = (
    "megatron pt --model Qwen/Qwen3-32B --tensor_model_parallel_size 4 --micro_batch_size 1 --max_length 4096"
)


@pytest.mark.parametrize(
    ("before", "gpus"),
    [
        ("# NPROC_PER_NODE=2 was too slow\nexport NPROC_PER_NODE=8\nNNODES=${NODES:-4}", 32),
        ("n=4\nNPROC_PER_NODE=$((n * 2)) NNODES=1", 8),
        ("NPROC_PER_NODE=8\nexport NNODES=2\nexport NPROC_PER_NODE;", 16),
        ("export NPROC_PER_NODE=$GPUS;", None),
        ("NPROC_PER_NODE=8\nNNODES=2;", None),
        ("env NPROC_PER_NODE=8 NNODES=2", 16),
    ],
)
def test_the_environment_is_the_one_that_the_command_sees(before: str, gpus: int | None) -> None:
    """Not what a remark says, nor a variable that is not exported."""
    job = import_text(f"{before} {SWIFT}\n", "run.sh", "ms-swift").value
    assert job.gpus == gpus


def test_swift_divides_sequences() -> None:
    """``sequence_parallel_size`` takes its ranks out of data parallelism; steps are the trainer's default."""
    script = (
        "NPROC_PER_NODE=8 swift sft --model Qwen/Qwen3-32B --train_type full --torch_dtype bfloat16 "
        "--per_device_train_batch_size 1 --max_length 65536 --deepspeed zero3 --sequence_parallel_size 4\n"
    )
    job = import_text(script, "run.sh").value
    assert (job.layout.cp, job.layout.dp, job.training.global_batch) == (4, 2, 4)
    assert job.options.cp_comm is CpComm.A2A


BASE = (
    "pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 8192 --bf16 "
    "--vocab-size 128256 --micro-batch-size 1 --global-batch-size 128"
)
EIGHT = "--nodes=4\n#SBATCH --gpus-per-node=8\n#SBATCH --ntasks-per-node=1"


@pytest.mark.parametrize(
    ("head", "launcher", "gpus"),
    [
        (EIGHT, "srun torchrun --nnodes $SLURM_NNODES --nproc_per_node $SLURM_GPUS_ON_NODE", 32),
        (
            "-N 4\n#SBATCH --gres=gpu:h100:8",
            "srun torchrun --nnodes 4 --nproc_per_node ${SLURM_GPUS_ON_NODE}",
            32,
        ),
        (EIGHT, "srun torchrun --nnodes 4 --nproc_per_node $NPROC", None),
        (EIGHT, "srun accelerate launch --num_machines 4 --num_processes 32", 32),
        (EIGHT, "srun accelerate launch", None),
        ("--nodes=4 --gres=gpu:8 --ntasks-per-node=8  # all", "srun python", 32),
        ("--ntasks=64 --gpus-per-task=1", "srun -l python", 64),
        ("--nodes=2", "jsrun -n 16 -r 1 -a 4 -g 4 python", 64),
        ("--nodes=2", "mpirun -H n1:8,n2:8 -x PATH python", 16),
        ("--nodes=2", "mpirun -n 16 -N 8 python", 16),
        ("--nodes=2", "mpiexec -n 16 --ppn 8 python", 16),
        ("--nodes=4 --gpus-per-node=8", "deepspeed --hostfile hosts", 32),
    ],
)
def test_processes_of_a_launcher_and_of_the_batch_system(head: str, launcher: str, gpus: int | None) -> None:
    """One task of a node may start a process per GPU; who starts nothing itself leaves that to the tasks."""
    text = f"#!/bin/bash\n#SBATCH {head}\n{launcher} {BASE}\n"
    assert import_text(text, "run.sh", "megatron-args").value.gpus == gpus


def test_accelerate_starts_megatron() -> None:
    """Its plugin's keys are Megatron-LM's arguments; the micro-batches are stated, the batch is not."""
    text = (
        "distributed_type: MEGATRON_LM\nmixed_precision: bf16\nnum_processes: 16\nmegatron_lm_config:\n"
        "  megatron_lm_tp_degree: 2\n  megatron_lm_pp_degree: 4\n  megatron_lm_sequence_parallelism: true\n"
        "  megatron_lm_num_micro_batches: 8\n  megatron_lm_recompute_activations: true\n"
        "  megatron_lm_use_distributed_optimizer: true\n"
    )
    job = import_text(text, "accelerate.yaml").value
    part = job.layout
    assert (part.tp, part.pp, part.sp, part.dp, part.zero, part.micro_batches) == (2, 4, True, 2, 1, 8)
    assert part.recompute.granularity == "selective" and job.framework == "megatron"
    assert job.missing[-1].startswith("the model")


def test_a_command_with_its_settings_says_what_it_took_for_the_nodes() -> None:
    """A command that carries its settings assumes one node, as one that names a file does, and says so too."""
    flags = "--stage sft --finetuning_type full --model_name_or_path meta-llama/Meta-Llama-3-8B --bf16 True"
    batch = "--cutoff_len 2048 --per_device_train_batch_size 2 --gradient_accumulation_steps 8"
    job = import_text(
        f"#!/bin/bash\nNPROC_PER_NODE=8 llamafactory-cli train {flags} {batch}\n", "run.sh"
    ).value
    assert job.gpus == 8
    assert any("one node, NNODES is not set" in note for note in job.notes)
