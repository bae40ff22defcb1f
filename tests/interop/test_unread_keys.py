"""A key that may change the layout and is not read is named, by every importer of launch files."""

from __future__ import annotations

from pathlib import Path

import pytest

from layoutopt.optimizer.interop.launch.launchers import LAUNCHERS
from layoutopt.optimizer.interop.reading import UNREAD, Fields
from layoutopt.optimizer.interop.sources import LAUNCH_FORMATS, import_text

SAMPLES = Path(__file__).parent / "samples"
SIZES = (
    "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 --vocab-size 128256 --bf16"
)


def sample(name: str, old: str, new: str) -> str:
    """A sample with one more key."""
    text = (SAMPLES / name).read_text()
    assert old in text
    return text.replace(old, new, 1)


PRIMUS = "modules:\n  pre_trainer:\n    framework: {}\n    overrides:\n"
CASES = {
    "megatron-args": f"torchrun --nproc-per-node 8 pretrain_gpt.py {SIZES} --micro-batch-size 1 --novel-parallel-size 4",
    "megatron-test": "MODEL_ARGS:\n  --num-layers: 8\n  --micro-batch-size: 1\n  --novel-parallel-size: 4\n",
    "bridge-command": "python run_recipe.py --recipe llama3_70b_pretrain_config model.novel_parallel_size=4 -tp 2",
    "bridge-run-config": sample("bridge_run_config.yaml", "model:\n", "model:\n  novel_parallel_size: 4\n"),
    "torchtitan-toml": sample(
        "torchtitan_era_a.toml", "[parallelism]", "[parallelism]\nnovel_parallel_degree = 4"
    ),
    "torchtitan-python": sample(
        "torchtitan_era_c.py.txt",
        "ParallelismConfig(\n",
        "ParallelismConfig(\n        novel_parallel_degree=4,\n",
    ),
    "megatron-deepspeed": sample(
        "megatron_deepspeed.sh", "--micro-batch-size", "--novel-parallel-size 4 --micro-batch-size"
    ),
    "deepspeed-json": '{"train_batch_size": 8, "zero_optimization": {"stage": 1, "novel_shard_size": 4}}',
    "nanotron-yaml": sample("nanotron.yaml", "parallelism: {", "parallelism: {novel_parallel_size: 4, "),
    "accelerate-yaml": "distributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 8\n"
    "fsdp_config: {novel_shard_size: 4}\n",
    "verl": "python3 -m verl.trainer.main_ppo trainer.nnodes=2 trainer.n_gpus_per_node=8 "
    "actor_rollout_ref.actor.strategy=megatron actor_rollout_ref.actor.megatron.novel_parallel_size=4",
    "slime": "python3 train.py --actor-num-nodes 2 --rollout-num-gpus-per-engine 8 --novel-parallel-size 4 "
    "--micro-batch-size 1 --num-layers 4",
    "ms-swift": "megatron sft --model Qwen/Qwen3-30B-A3B --novel_parallel_size 4",
    "nemo": "model:\n  mcore_gpt: true\n  novel_parallel_size: 4\n  micro_batch_size: 1\ntrainer: {devices: 8}\n",
    "primus": PRIMUS.format("megatron") + "      novel_parallel_size: 4\n",
    "axolotl": "base_model: x\nsequence_len: 4096\nnovel_parallel_size: 4\n",
    "llama-factory": "finetuning_type: full\ncutoff_len: 4096\nnovel_parallel_size: 4\n",
    "hf-trainer": "torchrun x.py --per_device_train_batch_size 4 --novel_parallel_size 4",
}


def test_every_launch_file_is_asked() -> None:
    """No importer of launch files is left out."""
    assert set(CASES) == {*LAUNCH_FORMATS, *LAUNCHERS}


@pytest.mark.parametrize("kind", CASES)
def test_unknown_keys_of_a_layout_are_named(kind: str) -> None:
    """Once, with the words that say so; the same file without it says nothing of the kind."""
    job = import_text(CASES[kind], "x", kind).value
    said = [note for note in job.notes if note.startswith(UNREAD)]
    assert len(said) == 1 and "novel" in said[0]


def test_what_is_off_is_not_named() -> None:
    """False, nothing, a degree of 1 and keys of checkpoints change no layout; a key that was asked for was read."""
    fields = Fields(
        {
            "a_parallel": False,
            "b_parallel_size": 1,
            "c_shard": None,
            "ckpt_parallel": True,
            "d_parallel": 2,
            "e_shard": 4,
        }
    )
    fields.integer("d_parallel")
    notes: list[str] = []
    fields.name_unread(notes)
    assert notes == [f"{UNREAD}: e_shard"]


def test_one_is_on_for_a_switch_and_off_for_a_degree() -> None:
    """A degree, count or batch of 1 changes nothing; a switch of 1 does."""
    degrees = (
        "novel_parallel_size",
        "x_parallel_degree",
        "num_shards",
        "shard_count",
        "micro_batches",
        "pipeline_tp",
    )
    switches = ("novel_sharding", "use_parallel_loss", "zero_quantized")
    fields = Fields({key: 1 for key in (*degrees, *switches)})
    assert fields.unread() == list(switches)
