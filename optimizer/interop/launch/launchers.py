"""Launchers that drive a trainer of the records: their files, and how each gives itself away.

A launcher has no preset and no rules of its own: a job that it starts is one of the trainer it drives.
"""

from __future__ import annotations

import re

from layoutopt.optimizer.frameworks.record import LaunchFormat

SCRIPT = re.compile(r"\.(sh|bash|slurm|sbatch)$", re.IGNORECASE)
"""How the names of scripts end."""

# A text is taken for the first of these whose sign it has: verl, slime and ms-swift pass Megatron's own flags on, and the
# keys of Hugging Face's trainer stand in the files of axolotl and LLaMA-Factory too.
LAUNCHERS = {
    launch.kind: launch
    for launch in (
        LaunchFormat(kind="verl", reader="import_verl", sign=r"\bverl\.trainer\.|\bactor_rollout_ref\."),
        LaunchFormat(
            kind="slime", reader="import_slime", sign=r"--actor-num-nodes\b|--rollout-num-gpus-per-engine\b"
        ),
        LaunchFormat(
            kind="ms-swift",
            reader="import_swift",
            sign=r"^[ \t]*([A-Z_]+=\S*[ \t]+)*(megatron|swift) (pt|sft|rlhf)\b",
        ),
        LaunchFormat(
            kind="nemo",
            reader="import_nemo",
            sign=r"^  (activations_checkpoint_granularity|megatron_amp_O2|mcore_gpt|encoder_seq_length):"
            r"|megatron_gpt_(pretraining|finetuning|sft)\w*\.py\b|\.(pretrain|finetune)_recipe\b"
            r"|\bnemo llm (pretrain|finetune)\b",
        ),
        LaunchFormat(
            kind="primus",
            reader="import_primus",
            sign=r"^[ \t]+pre_trainer:|\bprimus-cli\b|\btrain pretrain\b|\bEXP=\S+\.ya?ml\b",
        ),
        LaunchFormat(
            kind="axolotl",
            reader="import_axolotl",
            sign=r"^base_model:|^sequence_len:|\baxolotl train\b|\baxolotl\.cli\.train\b",
        ),
        LaunchFormat(
            kind="llama-factory",
            reader="import_llama_factory",
            sign=r"^finetuning_type:|^cutoff_len:|^stage: *(pt|sft|dpo|rm|kto|ppo)\b"
            r"|\bllamafactory-cli train\b|\bllamafactory\.launcher\b",
        ),
        LaunchFormat(
            kind="hf-trainer",
            reader="import_trainer",
            sign=r"--per_device_train_batch_size\b|^per_device_train_batch_size:",
        ),
    )
}
"""Launch files by kind; the reader is in ``interop/KIND/read.py`` with underscores for dashes."""
