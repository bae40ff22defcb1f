"""nanotron: one YAML file with model, layout and batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.interop.launch.text import header, torchrun_words, yaml_text
from layoutopt.optimizer.interop.megatron.write_model import dense_width, unstated_facts
from layoutopt.optimizer.interop.records import ExportedJob
from layoutopt.optimizer.specs.vocabulary import Granularity, Precision, Schedule

if TYPE_CHECKING:
    from layoutopt.optimizer.interop.launch.target import Target

OPEN_KEYS = {"rope_base": "rope_theta (default 10000)", "norm_epsilon": "rms_norm_eps (default 1e-6)"}

VOCABULARY_MULTIPLE = 128
"""A padded vocabulary is a multiple of this times tp, as the price has it."""


def export(target: Target) -> ExportedJob:
    """Write ``config.yaml``."""
    layout, ckpt = target.layout, target.checkpoint
    notes = unstated_facts(target, OPEN_KEYS)
    if ckpt is not None and ckpt.asynchronous:
        notes.append("checkpoints are synchronous: nanotron has no asynchronous save")
    steps = target.steps or 1000
    data = {
        "checkpoints": {
            "checkpoints_path": "checkpoints",
            "checkpoint_interval": ckpt.interval_steps if ckpt else steps,
        },
        # without a data set nanotron trains on random words
        "data_stages": [
            {
                "name": "stable",
                "start_training_step": 1,
                "data": {"dataset": None, "num_loading_workers": 1, "seed": 42},
            }
        ],
        "general": {"project": "layoutopt", "run": target.model.name, "seed": 42},
        "model": {
            "dtype": "float16" if layout.precision is Precision.FP16 else "bfloat16",
            # The default of torch's DistributedDataParallel.
            "ddp_bucket_cap_mb": 25,
            "make_vocab_size_divisible_by": VOCABULARY_MULTIPLE if target.preset.pad_vocab else 1,
            "init_method": {"std": 0.02},
            "model_config": model_config(target),
        },
        "optimizer": _optimizer(target, steps),
        "parallelism": _parallelism(target),
        "tokens": {
            "sequence_length": target.training.sequence_length,
            "train_steps": steps,
            "micro_batch_size": layout.micro_batch,
            "batch_accumulation_per_replica": layout.micro_batches,
        },
    }
    launch = " ".join([*torchrun_words(target), "run_train.py --config-file config.yaml"])
    return ExportedJob(
        framework=target.framework,
        version=target.version,
        files={"config.yaml": header(target, f"nanotron main ({target.version})") + yaml_text(data)},
        command=f"CUDA_DEVICE_MAX_CONNECTIONS=1 {launch}",
        memory_check="none: nanotron has no single-GPU mode with fake communication",
        layout=layout,
        notes=tuple(notes),
    )


def _optimizer(target: Target, steps: int) -> dict[str, Any]:
    warmup = min(100, steps)
    return {
        "zero_stage": target.layout.zero,
        "accumulate_grad_in_fp32": target.preset.grad_bytes == 4,
        "clip_grad": 1.0,
        "weight_decay": 0.1,
        "learning_rate_scheduler": {
            "learning_rate": 1.5e-4,
            "lr_warmup_steps": warmup,
            "lr_warmup_style": "linear",
            "lr_decay_style": "cosine",
            # A run that is all warm-up still needs a step: the schedule divides by them.
            "lr_decay_steps": max(1, steps - warmup),
            "min_decay_lr": 1.5e-5,
        },
        "optimizer_factory": {
            "name": "adamW",
            "adam_beta1": 0.9,
            "adam_beta2": 0.95,
            "adam_eps": 1.0e-8,
            "torch_adam_is_fused": True,
        },
    }


def _parallelism(target: Target) -> dict[str, Any]:
    layout = target.layout
    return {
        "dp": layout.dp,
        "pp": layout.pp,
        "tp": layout.tp,
        "context_parallel_size": layout.cp,
        "expert_parallel_size": 1,
        "pp_engine": "afab" if layout.schedule is Schedule.GPIPE else "1f1b",
        "tp_mode": "REDUCE_SCATTER" if layout.sp else "ALL_REDUCE",
        "tp_linear_async_communication": target.preset.tp_overlap and layout.sp,
        "recompute_layer": layout.recompute.granularity is Granularity.FULL,
    }


def model_config(target: Target) -> dict[str, Any]:
    """The model section: nanotron's Llama or Qwen2 class, which must fit the architecture exactly."""
    model = target.model
    kind = "is_qwen2_config" if model.qkv_bias else "is_llama_config"
    config: dict[str, Any] = {
        kind: True,
        "hidden_act": "silu",
        "hidden_size": model.hidden,
        "intermediate_size": dense_width(model),
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "max_position_embeddings": target.training.sequence_length,
        "rope_interleaved": False,
        "tie_word_embeddings": model.tied_embeddings,
        "vocab_size": model.vocab,
    }
    if model.rope_base is not None:
        config["rope_theta"] = float(model.rope_base)
    if model.norm_epsilon is not None:
        config["rms_norm_eps"] = float(model.norm_epsilon)
    if target.layout.cp > 1:
        config["_attn_implementation"] = "ring_flash_triton"
    return config
