"""verl's supervised fine-tuning is read by its own keys, not as PPO's actor."""

from __future__ import annotations

import pytest

from layoutopt.optimizer.interop.sources import import_text
from layoutopt.optimizer.specs.errors import InputError

FSDP = (
    "torchrun --standalone --nnodes=1 --nproc_per_node=8 -m verl.trainer.fsdp_sft_trainer "
    "data.train_batch_size=256 data.max_length=4096 data.micro_batch_size_per_gpu=4 "
    "model.partial_pretrain=Qwen/Qwen2.5-7B-Instruct ulysses_sequence_parallel_size=2 use_remove_padding=true "
    "model.lora_rank=32\n"
)
ENGINE = (
    "torchrun --nnodes=2 --nproc_per_node=8 -m verl.trainer.sft_trainer data.train_batch_size=96 "
    "data.max_length=2048 data.micro_batch_size_per_gpu=2 model.path=Qwen/Qwen3-8B engine=fsdp "
    "engine.ulysses_sequence_parallel_size=2{}\n"
)


def test_the_fsdp_trainer_is_read_by_its_own_keys() -> None:
    """Batch, length, GPUs and adapters are those of the command, and no mini-batch of PPO is assumed."""
    job = import_text(FSDP, "a.sh").value
    assert (job.gpus, job.layout.cp, job.layout.dp, job.layout.micro_batch) == (8, 2, 4, 4)
    assert (job.training.global_batch, job.training.sequence_length) == (256, 4096)
    assert job.layout.micro_batches == 256 // (4 * 4) and job.training.adapter.rank == 32
    assert not any("ppo" in note or "rollout" in note for note in job.notes)


def test_the_engine_trainer_fills_micro_batches_by_tokens() -> None:
    """``use_dynamic_bsz`` is on unless turned off; then the stated micro-batch counts."""
    job = import_text(ENGINE.format(""), "a.sh").value
    assert (job.gpus, job.layout.cp, job.training.global_batch) == (16, 2, 96)
    assert job.training.sequence_length == 2048 and job.layout.micro_batch is None
    assert import_text(ENGINE.format(" data.use_dynamic_bsz=False"), "a.sh").value.layout.micro_batch == 2


def test_another_engine_is_refused_by_name() -> None:
    """Megatron's engine has other keys."""
    with pytest.raises(InputError, match="sft_trainer on megatron is not read"):
        import_text(ENGINE.format("").replace("engine=fsdp", "engine=megatron"), "a.sh")
