"""DeepSpeed beside a Hugging Face model: its JSON and the trainer's command."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.interop.launch.optimizers import optimizer_word
from layoutopt.optimizer.interop.launch.text import IN_HOSTFILE, command_text, flag_words
from layoutopt.optimizer.interop.records import ExportedJob
from layoutopt.optimizer.specs.vocabulary import Granularity, Optimizer, Precision, Saver

if TYPE_CHECKING:
    from layoutopt.optimizer.interop.launch.target import Target
    from layoutopt.optimizer.specs.model import ModelSpec

Flags = list[tuple[str, Any]]

NO_CHECK = "none: DeepSpeed has no single-GPU mode with fake communication"


def deepspeed_config(target: Target) -> dict[str, Any]:
    """Return the JSON's content: batch, precision, ZeRO, and DeepSpeed's own axes."""
    layout, preset = target.layout, target.preset
    zero: dict[str, Any] = {
        "stage": layout.zero,
        "overlap_comm": preset.dp_overlap,
        # DeepSpeed's own defaults (deepspeed/runtime/zero/config.py).
        "reduce_bucket_size": 500_000_000,
        "allgather_bucket_size": 500_000_000,
    }
    if layout.hsdp_shard:
        zero["mics_shard_size"] = layout.hsdp_shard
    if Saver.OFFLOAD_OPTIMIZER in layout.savers:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    chosen = target.training.optimizer
    own = {"optimizer": {"type": optimizer_word(Framework.DEEPSPEED, chosen), "params": {"lr": 1.5e-4}}}
    half = "fp16" if layout.precision is Precision.FP16 else "bf16"
    # Stated: left out it is the weights' type, and the memory that was priced another.
    grad = "fp32" if preset.grad_bytes == 4 else half
    return {
        "train_batch_size": target.global_batch,
        "train_micro_batch_size_per_gpu": layout.micro_batch,
        "gradient_accumulation_steps": layout.micro_batches,
        "gradient_clipping": 1.0,
        half: {"enabled": True},
        "data_types": {"grad_accum_dtype": grad},
        "zero_optimization": zero,
        # AdamW is what the trainer builds itself, from its own arguments; an optimizer here would take their place.
        **({} if chosen.kind is Optimizer.ADAMW else own),
    }


def deepspeed_words(target: Target, script: str) -> list[str]:
    """Return how DeepSpeed's launcher starts a script, one process per GPU."""
    return ["deepspeed", "--num_nodes", str(target.nodes), "--num_gpus", str(target.gpus_per_node), script]


def export(target: Target) -> ExportedJob:
    """Write ``ds_config.json`` for a Hugging Face model and the trainer's command line."""
    layout = target.layout
    config = deepspeed_config(target)
    if layout.tp > 1:
        config["tensor_parallel"] = {"autotp_size": layout.tp}
    if layout.cp > 1:
        config["sequence_parallel_size"] = layout.cp
    if layout.ep > 1:
        preset = _preset_model(target.model)
        config["expert_parallel"] = {"enabled": True, "autoep_size": layout.ep, "preset_model": preset}
    recompute = layout.recompute.granularity is Granularity.FULL
    notes = ["a JSON has no comments: written for DeepSpeed " + target.version]
    if target.nodes > 1:
        notes.append(f"placeholder: {IN_HOSTFILE}")
    if recompute:
        said = (
            "recomputation is turned on by the trainer (--gradient_checkpointing), the JSON has no key for it"
        )
        notes.append(said)
    flags: Flags = [
        ("--deepspeed", "ds_config.json"),
        ("--per_device_train_batch_size", layout.micro_batch),
        ("--gradient_accumulation_steps", layout.micro_batches),
        ("--fp16" if layout.precision is Precision.FP16 else "--bf16", True),
        ("--gradient_checkpointing", recompute),
        ("--save_steps", target.checkpoint.interval_steps if target.checkpoint else None),
    ]
    start = deepspeed_words(target, "train.py")
    return ExportedJob(
        framework=target.framework,
        version=target.version,
        files={"ds_config.json": json.dumps(config, indent=2) + "\n"},
        command=command_text(start, [flag_words(flags)]).strip(),
        memory_check=NO_CHECK,
        layout=layout,
        notes=tuple(notes),
    )


def _preset_model(model: ModelSpec) -> str:
    """The AutoEP preset whose module names fit (deepspeedai/DeepSpeed module_inject/auto_ep_config.py)."""
    if model.mla is not None:
        return "deepseek_v3" if model.moe is not None and model.moe.router_bias else "deepseek_v2"
    return "qwen3_moe" if model.qk_norm else "mixtral"
