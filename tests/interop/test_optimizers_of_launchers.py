"""Optimizers in the words of launchers of Hugging Face's trainer: priced as what they are, or named as not priced."""

from __future__ import annotations

import pytest

from layoutopt.optimizer.interop.launch.optimizers import HF_OPTIMIZERS
from layoutopt.optimizer.interop.sources import import_text
from layoutopt.optimizer.specs.vocabulary import Optimizer

AXOLOTL = """
base_model: NousResearch/Meta-Llama-3.1-8B
sequence_len: 4096
micro_batch_size: 1
gradient_accumulation_steps: 2
bf16: true
optimizer: {}
"""
LLAMA_FACTORY = """
model_name_or_path: Qwen/Qwen2.5-7B-Instruct
stage: sft
finetuning_type: full
cutoff_len: 4096
per_device_train_batch_size: 2
gradient_accumulation_steps: 8
bf16: true
optim: {}
"""
SWIFT = (
    "NPROC_PER_NODE=8 swift sft --model Qwen/Qwen2.5-7B --train_type full --per_device_train_batch_size 1 "
    "--gradient_accumulation_steps 1 --max_length 2048 --torch_dtype bfloat16 --optim {}\n"
)
TRAINER = (
    "torchrun --nproc-per-node 8 run_clm.py --model_name_or_path Qwen/Qwen2.5-7B --per_device_train_batch_size 1 "
    "--bf16 --block_size 2048 --optim {}\n"
)
FILES = {"a.yml": AXOLOTL, "l.yaml": LLAMA_FACTORY, "s.sh": SWIFT, "t.sh": TRAINER}


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize(
    ("word", "kind"),
    [
        ("adamw_bnb_8bit", Optimizer.ADAM_8BIT),
        ("adamw_8bit", Optimizer.ADAM_8BIT),
        ("adafactor", Optimizer.ADAFACTOR),
        ("sgd", Optimizer.SGD),
        ("lion_32bit", Optimizer.LION),
        ("adamw_torch_fused", Optimizer.ADAMW),
    ],
)
def test_every_launcher_reads_the_trainers_optimizers(file: str, word: str, kind: Optimizer) -> None:
    """One table of words, four launchers."""
    job = import_text(FILES[file].format(word), file).value
    assert job.training.optimizer is not None and job.training.optimizer.kind is kind
    assert HF_OPTIMIZERS[word] is kind and not any("priced as AdamW" in note for note in job.notes)


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("word", ["galore_adamw", "muon", "lion_8bit"])
def test_an_optimizer_that_is_not_priced_is_named(file: str, word: str) -> None:
    """AdamW in its place is no silence."""
    job = import_text(FILES[file].format(word), file).value
    assert any(repr(word) in note and "priced as AdamW" in note for note in job.notes)


def test_a_switch_that_replaces_the_optimizer_is_named() -> None:
    """LLaMA-Factory's BAdam updates a block at a time."""
    job = import_text(LLAMA_FACTORY.format("adamw_8bit") + "use_badam: true\n", "l.yaml").value
    assert "use_badam is not modelled: priced without it" in job.notes


def test_under_deepspeed_an_optimizer_without_a_word_there_is_named() -> None:
    """The client's 8-bit Adam has no word in DeepSpeed's record."""
    text = LLAMA_FACTORY.format("adamw_8bit") + "deepspeed: examples/deepspeed/ds_z3_config.json\n"
    assert any("judged as deepspeed's" in note for note in import_text(text, "l.yaml").value.notes)
