"""Megatron-DeepSpeed: a launch script and the JSON that it names."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.interop.deepspeed.write import NO_CHECK, deepspeed_config, deepspeed_words
from layoutopt.optimizer.interop.launch.text import IN_HOSTFILE, command_text, flag_words, header
from layoutopt.optimizer.interop.megatron.write_model import dense_width, unstated_facts
from layoutopt.optimizer.interop.records import ExportedJob
from layoutopt.optimizer.interop.stages import full_recomputation
from layoutopt.optimizer.specs.model import Norm
from layoutopt.optimizer.specs.vocabulary import Granularity, Precision, Saver, Schedule

if TYPE_CHECKING:
    from layoutopt.optimizer.interop.launch.target import Target

Flags = list[tuple[str, Any]]

OPEN_FLAGS = {
    "rope_base": "--rotary-position-embeddings-theta (default 10000)",
    "norm_epsilon": "--layernorm-epsilon (default 1e-5)",
}


def export(target: Target) -> ExportedJob:
    """Write ``launch.sh`` and ``ds_config.json``."""
    notes: list[str] = unstated_facts(target, OPEN_FLAGS)
    sections = [_model_flags(target), _layout_flags(target), _run_flags(target)]
    start = deepspeed_words(target, "pretrain_gpt.py")
    script = "#!/bin/bash\n" + header(target, f"Megatron-DeepSpeed {target.version}", meeting=IN_HOSTFILE)
    script += "export CUDA_DEVICE_MAX_CONNECTIONS=1\n"
    script += command_text(start, [flag_words(section) for section in sections])
    if target.checkpoint is not None and target.checkpoint.asynchronous:
        notes.append("checkpoints are synchronous: Megatron-DeepSpeed has no asynchronous save")
    return ExportedJob(
        framework=target.framework,
        version=target.version,
        files={"launch.sh": script, "ds_config.json": json.dumps(deepspeed_config(target), indent=2) + "\n"},
        command="bash launch.sh",
        memory_check=NO_CHECK,
        layout=target.layout,
        notes=tuple(notes),
    )


def _model_flags(target: Target) -> Flags:
    model = target.model
    grouped = model.kv_heads != model.heads
    flags: Flags = [
        ("--num-layers", model.layers),
        ("--hidden-size", model.hidden),
        ("--ffn-hidden-size", dense_width(model) or (model.moe.ffn if model.moe else 0)),
        ("--num-attention-heads", model.heads),
        ("--num-key-value-heads", model.kv_heads if grouped else None),
        ("--kv-channels", model.head_dim if model.head_dim * model.heads != model.hidden else None),
        ("--swiglu", model.gated),
        ("--disable-bias-linear", not model.attention_bias),
        ("--normalization", "rmsnorm" if model.norm is Norm.RMS else "layernorm"),
        ("--layernorm-epsilon", model.norm_epsilon),
        ("--untie-embeddings-and-output-weights", not model.tied_embeddings),
        ("--use-rotary-position-embeddings", not model.learned_positions),
        ("--rotary-position-embeddings-theta", None if model.rope_base is None else round(model.rope_base)),
        ("--use-flash-attn-v2", target.training.flash),
        ("--attention-dropout", "0.1" if target.training.dropout else "0"),
        ("--hidden-dropout", "0.1" if target.training.dropout else "0"),
        ("--vocab-size", model.vocab),
    ]
    if model.moe is None:
        return flags
    # Its own default puts experts in every second layer (megatron/arguments.py, --expert-interval).
    experts: Flags = [("--num-experts", model.moe.experts), ("--topk", model.moe.top_k)]
    return [*flags, *experts, ("--expert-interval", 1)]


def _layout_flags(target: Target) -> Flags:
    layout = target.layout
    flags: Flags = [
        ("--tensor-model-parallel-size", layout.tp),
        ("--sequence-parallel", layout.sp),
        ("--ds-sequence-parallel-size", layout.cp if layout.cp > 1 else None),
        ("--pipeline-model-parallel-size", layout.pp),
        # Without it pretrain_gpt.py builds a PipelineModule even of one stage, whose engine refuses ZeRO-2 and 3.
        ("--no-pipeline-parallel", layout.pp == 1),
        ("--enable-zbh1-pipeline", layout.schedule is Schedule.ZB_H1),
    ]
    if target.model.is_moe:
        flags += [
            ("--moe-expert-parallel-size", layout.ep),
            ("--enable-expert-tensor-parallelism", layout.etp > 1),
            ("--create-moe-param-group", True),
        ]
    return flags + _recompute_flags(target)


def _recompute_flags(target: Target) -> Flags:
    layout = target.layout
    granularity = layout.recompute.granularity
    if granularity is Granularity.NONE:
        return []
    flags: Flags = [
        ("--deepspeed-activation-checkpointing", True),
        ("--recompute-granularity", granularity.value),
    ]
    if granularity is Granularity.SELECTIVE:
        return flags
    method, depth = full_recomputation(layout)
    return [*flags, ("--recompute-method", method), ("--recompute-num-layers", depth)]


def _run_flags(target: Target) -> Flags:
    layout, length = target.layout, target.training.sequence_length
    ckpt = target.checkpoint
    return [
        ("--seq-length", length),
        ("--max-position-embeddings", max(length, target.model.learned_positions)),
        ("--micro-batch-size", layout.micro_batch),
        ("--global-batch-size", target.global_batch),
        ("--train-iters", target.steps or 1000),
        ("--fp16" if layout.precision is Precision.FP16 else "--bf16", True),
        ("--lr", "1.5e-4"),
        ("--min-lr", "1.5e-5"),
        ("--lr-decay-style", "cosine"),
        ("--deepspeed", True),
        ("--deepspeed_config", "ds_config.json"),
        ("--zero-stage", layout.zero),
        ("--cpu-optimizer", Saver.OFFLOAD_OPTIMIZER in layout.savers),
        ("--save", "checkpoints" if ckpt else None),
        ("--save-interval", ckpt.interval_steps if ckpt else None),
    ]
