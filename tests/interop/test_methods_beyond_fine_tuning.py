"""Preferences and rewards: what of them is not priced is said, by every launcher that starts them."""

from __future__ import annotations

import pytest

from layoutopt.optimizer.interop.sources import import_text

LLAMA_FACTORY = (
    "model_name_or_path: Qwen/Qwen2.5-7B-Instruct\nstage: {}\nfinetuning_type: full\ncutoff_len: 4096\n"
    "per_device_train_batch_size: 2\nbf16: true\n{}"
)
AXOLOTL = "base_model: Qwen/Qwen2.5-7B\nsequence_len: 4096\nmicro_batch_size: 1\nbf16: true\nrl: {}\n"
SWIFT = (
    "NPROC_PER_NODE=8 swift {} --model Qwen/Qwen2.5-7B --train_type full --per_device_train_batch_size 1 "
    "--gradient_accumulation_steps 2 --max_length 8192 --torch_dtype bfloat16\n"
)
TRL = (
    "accelerate launch --num_processes 8 {} --model_name_or_path Qwen/Qwen2.5-7B --per_device_train_batch_size 1 "
    "--bf16 --max_length 2048\n"
)


def left_out(text: str, file: str) -> str:
    """Return what a job says of its method."""
    notes = import_text(text, file).value.notes
    return " ".join(note for note in notes if "priced as fine-tuning of the policy" in note)


@pytest.mark.parametrize(
    ("text", "file", "word"),
    [
        (LLAMA_FACTORY.format("dpo", ""), "l.yaml", "reference model"),
        (LLAMA_FACTORY.format("kto", ""), "l.yaml", "reference model"),
        (LLAMA_FACTORY.format("ppo", ""), "l.yaml", "generation"),
        (LLAMA_FACTORY.format("dpo", "pref_loss: simpo\n"), "l.yaml", "simpo"),
        (AXOLOTL.format("kto"), "a.yml", "reference model"),
        (SWIFT.format("rlhf --rlhf_type dpo"), "s.sh", "second sequence of every pair"),
        (SWIFT.format("rlhf"), "s.sh", "dpo"),
        (TRL.format("trl/scripts/dpo.py"), "t.sh", "reference model"),
    ],
)
def test_what_is_left_out_is_said(text: str, file: str, word: str) -> None:
    """By the words of LLaMA-Factory, axolotl, ms-swift and TRL."""
    assert word in left_out(text, file)


@pytest.mark.parametrize(
    ("text", "file"),
    [
        (LLAMA_FACTORY.format("sft", ""), "l.yaml"),
        (SWIFT.format("sft"), "s.sh"),
        (TRL.format("sft.py"), "t.sh"),
    ],
)
def test_fine_tuning_says_nothing(text: str, file: str) -> None:
    """Nothing is left out of it."""
    assert left_out(text, file) == ""


def test_a_loss_without_a_reference_leaves_out_none() -> None:
    """SimPO and ORPO compare the policy with itself."""
    assert "reference" not in left_out(LLAMA_FACTORY.format("dpo", "pref_loss: orpo\n"), "l.yaml")
