"""Configurations of DeepSpeed, accelerate and nanotron, a few keys each, with defaults and refusals."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import pytest

from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.interop.sources import import_text
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.model import Norm
from layoutopt.optimizer.specs.vocabulary import CpComm, Granularity, Precision, Schedule

FULL, NONE = Granularity.FULL, Granularity.NONE
BF16, FP16 = Precision.BF16, Precision.FP16


def imported(kind: str, text: str, **options: Any) -> Any:
    """What is in a launch file."""
    return import_text(text, "f", kind, **options).value


DEEPSPEED = [
    (
        '{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4,'
        ' "zero_optimization": {"stage": 3, "mics_shard_size": 4, "offload_optimizer": {"device": "cpu", "ratio": 0.5}},'
        ' "bf16": {"enabled": true}, "data_types": {"grad_accum_dtype": "fp32"}}',
        {
            "layout.dp": 8, "layout.micro_batches": 4, "layout.micro_batch": 2, "layout.zero": 3, "layout.hsdp_shard": 4,
            "layout.tp": 1, "layout.cp": 1, "layout.pp": 1, "layout.vp": 1, "layout.ep": 1, "layout.etp": 1, "gpus": 8,
            "training.precision": BF16, "training.grad_bytes": 4, "options.dp_overlap": True,
            "options.optimizer_offload": 0.5, "options.cp_comm": None, "training.global_batch": 64, "notes": (),
        },
    ),
    (
        '{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4,'
        ' "tensor_parallel": {"autotp_size": 2}, "sequence_parallel_size": 2, "pipeline": {"stages": 2},'
        ' "expert_parallel": {"enabled": true, "autoep_size": 4}, "fp16": {"enabled": true},'
        ' "zero_optimization": {"stage": 1, "mics_shard_size": 4, "overlap_comm": true, "zero_hpz_partition_size": 2,'
        ' "offload_param": {"device": "nvme"}}, "data_types": {"grad_accum_dtype": "bf16"},'
        ' "activation_checkpointing": {"cpu_checkpointing": true}}',
        {
            "layout.dp": 8, "layout.tp": 2, "layout.cp": 2, "layout.pp": 2, "layout.ep": 4, "gpus": 64, "layout.zero": 1,
            "layout.hsdp_shard": None, "training.precision": FP16, "training.grad_bytes": 2, "options.dp_overlap": True,
            "options.cp_comm": CpComm.A2A, "options.activation_offload": True, "options.optimizer_offload": None,
            "notes": (
                "zero_hpz_partition_size 2: the second weight shard is not modelled",
                "offload_param nvme: parameters in host memory are not modelled; memory is overestimated",
            ),
        },
    ),
    (
        '{"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": "auto", "expert_parallel": {"autoep_size": 4},'
        ' "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "none", "ratio": 0.5}}}',
        {
            "layout.dp": None, "gpus": None, "layout.zero": 2, "layout.ep": 1, "layout.micro_batches": None,
            "options.dp_overlap": False, "options.optimizer_offload": None, "training.global_batch": None,
            "training.precision": None, "training.grad_bytes": None, "notes": (),
            "missing": (
                "the model (a DeepSpeed JSON has none)", "sequence length",
                "activation checkpointing (the model's code turns it on)", "number of GPUs",
                "train_batch_size or gradient_accumulation_steps",
            ),
        },
    ),
    (
        '{"gradient_accumulation_steps": 2, "zero_optimization": {"stage": 1}, "pipeline": {"stages": true}}',
        {"layout.pp": None, "layout.micro_batches": 2, "notes": ()},
    ),
    (
        '{"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2, "zero_optimization": {"stage": 0}}',
        {
            "layout.pp": 1,
            "notes": ("assumed: one stage, the file has no pipeline section; stages are in the model's code",),
        },
    ),
]  # fmt: skip

ACCELERATE = [
    (
        "distributed_type: FSDP\nnum_processes: 16\nmixed_precision: bf16\n"
        "fsdp_config: {fsdp_activation_checkpointing: true}",
        {
            "layout.dp": 16, "layout.zero": 3, "layout.hsdp_shard": None, "layout.tp": 1, "layout.cp": 1, "gpus": 16,
            "training.precision": BF16, "layout.recompute.granularity": FULL, "options.optimizer_offload": None,
            "missing": ("the model", "sequence length", "micro-batch and global batch (in the training script)"),
        },
    ),
    (
        "distributed_type: FSDP\nnum_processes: 16\nnum_machines: 2\nmixed_precision: fp16\n"
        "fsdp_config: {fsdp_sharding_strategy: HYBRID_SHARD, fsdp_activation_checkpointing: false}",
        {"layout.dp": 16, "layout.zero": 3, "layout.hsdp_shard": 8, "layout.recompute.granularity": NONE},
    ),
    (
        "distributed_type: FSDP\nnum_processes: 16\nnum_machines: 2\nfsdp_config: {fsdp_sharding_strategy: 5}",
        {
            "layout.zero": 2, "layout.hsdp_shard": 8,
            "missing": (
                "the model", "sequence length", "micro-batch and global batch (in the training script)",
                "activation checkpointing (fsdp_activation_checkpointing, or in the training script)", "mixed_precision",
            ),
        },
    ),
    (
        "distributed_type: FSDP\nnum_processes: 8\nfsdp_config: {fsdp_sharding_strategy: 3}",
        {"layout.zero": 0, "layout.dp": 8},
    ),
    ("distributed_type: FSDP\nfsdp_config: {fsdp_sharding_strategy: 2}", {"layout.zero": 2, "layout.dp": None}),
    (
        "distributed_type: FSDP\nnum_processes: 8\nfsdp_config: {fsdp_version: 2, fsdp_sharding_strategy: 3, "
        "fsdp_reshard_after_forward: false, fsdp_offload_params: true}",
        {
            "layout.zero": 2, "options.optimizer_offload": 1.0,
            "notes": ("parameters in host memory are not modelled; memory is overestimated",),
        },
    ),
    (
        "distributed_type: FSDP\nnum_processes: 32\nparallelism_config: {parallelism_config_dp_replicate_size: 2, "
        "parallelism_config_dp_shard_size: 4, parallelism_config_tp_size: 2, parallelism_config_cp_size: 2, "
        "parallelism_config_cp_comm_strategy: alltoall}",
        {
            "layout.dp": 8, "layout.tp": 2, "layout.cp": 2, "layout.hsdp_shard": 8, "options.cp_comm": CpComm.P2P,
            "notes": ("cp_comm_strategy alltoall passes keys and values around a ring: priced as p2p",),
        },
    ),
    (
        "distributed_type: FSDP\nnum_processes: 8\nparallelism_config: {parallelism_config_dp_shard_size: 4, "
        "parallelism_config_cp_size: 2}",
        {"layout.dp": 4, "layout.cp": 2, "options.cp_comm": CpComm.ALL_GATHER, "layout.hsdp_shard": None, "notes": ()},
    ),
    (
        "distributed_type: FSDP\nnum_processes: 8\nparallelism_config: {parallelism_config_dp_shard_size: 4, "
        "parallelism_config_sp_size: 2}",
        {"layout.dp": 4, "layout.cp": 2, "options.cp_comm": CpComm.A2A},
    ),
    ("distributed_type: MULTI_GPU\nnum_processes: 8", {"layout.zero": 0, "layout.dp": 8}),
    ("distributed_type: 'no'\nmixed_precision: 'no'\nnum_processes: 1", {"layout.zero": 0, "layout.dp": 1}),
    (
        "distributed_type: DEEPSPEED\nnum_processes: 8\ndeepspeed_config: {offload_optimizer_device: cpu, "
        "offload_param_device: nvme}",
        {
            "layout.zero": 2, "options.optimizer_offload": 1.0,
            "notes": (
                "assumed: zero_stage 2, accelerate's default",
                "parameters in host memory are not modelled; memory is overestimated",
            ),
        },
    ),
    ("distributed_type: DEEPSPEED\nnum_processes: 8\ndeepspeed_config: {zero_stage: 3}", {"layout.zero": 3, "notes": ()}),
    (
        "distributed_type: DEEPSPEED\nnum_processes: 8\ndeepspeed_config: {deepspeed_config_file: ds.json}",
        {"layout.zero": None, "notes": ()},
    ),
    (
        "distributed_type: MEGATRON_LM\nnum_processes: 8\nmixed_precision: bf16\nmegatron_lm_config: {"
        "megatron_lm_tp_degree: 2, megatron_lm_pp_degree: 2, megatron_lm_num_micro_batches: 4, "
        "megatron_lm_sequence_parallelism: true}",
        {
            "layout.tp": 2, "layout.pp": 2, "layout.dp": 2, "layout.micro_batches": 4, "layout.sp": True,
            "training.precision": BF16, "framework": Framework.MEGATRON,
        },
    ),
]  # fmt: skip

NANO = "parallelism: {dp: 4, tp: 2, pp: 2}\ntokens: {sequence_length: 8}"
LLAMA = (
    "model: {model_config: {is_llama_config: true, hidden_size: 8, num_attention_heads: 4, num_key_value_heads: 2, "
    "num_hidden_layers: 5, vocab_size: 16, intermediate_size: 32, rope_theta: 5.0}}"
)
NANOTRON = [
    (
        NANO,
        {
            "layout.dp": 4, "layout.tp": 2, "layout.pp": 2, "layout.cp": 1, "gpus": 16, "layout.zero": 0,
            "layout.sp": False,
            "layout.micro_batch": 1, "layout.micro_batches": 1, "training.global_batch": 4,
            "layout.schedule": Schedule.GPIPE,
            "training.precision": BF16, "training.grad_bytes": 2, "training.pad_vocab": False, "layout.vp": 1,
            "layout.ep": 1,
            "options.tp_overlap": False, "options.cp_comm": None, "layout.recompute.granularity": NONE, "layout.etp": 1,
            "options.checkpoint_async": False, "missing": ("the model (no model.model_config)",),
            "notes": ("pp_engine afab (all forward, all backward): nanotron's default",),
        },
    ),
    (
        "parallelism: {dp: 2, tp: 2, pp: 1, context_parallel_size: 2, tp_mode: REDUCE_SCATTER, recompute_layer: true, "
        "tp_linear_async_communication: true}\n"
        "tokens: {sequence_length: 8, micro_batch_size: 2, batch_accumulation_per_replica: 3, train_steps: 7}\n"
        "optimizer: {zero_stage: 1, accumulate_grad_in_fp32: true}\ncheckpoints: {checkpoint_interval: 9}\n"
        "model: {dtype: float16, make_vocab_size_divisible_by: 2}",
        {
            "layout.cp": 2, "gpus": 8, "layout.zero": 1, "layout.sp": True, "training.global_batch": 12,
            "training.train_steps": 7, "training.precision": FP16, "training.grad_bytes": 4, "training.pad_vocab": True,
            "options.cp_comm": CpComm.P2P, "layout.recompute.granularity": FULL, "options.checkpoint_interval": 9,
            "options.tp_overlap": True, "layout.schedule": Schedule.NONE, "notes": (),
        },
    ),
    (
        NANO.replace("pp: 2", "pp: 2, pp_engine: 1f1b, tp_mode: ALL_REDUCE") + "\n" + LLAMA,
        {
            "layout.schedule": Schedule.ONE_F_ONE_B, "model.layers": 5, "model.hidden": 8, "model.kv_heads": 2,
            "model.head_dim": 2, "model.gated": True, "model.norm": Norm.RMS, "model.rope_base": 5.0, "missing": (),
            "model.qkv_bias": False, "model.attention_bias": False, "model.mlp_bias": False, "model.name": "nanotron-llama",
        },
    ),
    (
        NANO + "\n" + LLAMA.replace("is_llama_config", "is_qwen2_config").replace("num_key_value_heads: 2, ", ""),
        {"model.kv_heads": 4, "model.qkv_bias": True, "model.attention_bias": False, "model.norm": Norm.RMS},
    ),
    (
        NANO + "\n" + LLAMA.replace("is_llama_config", "is_starcoder2_config"),
        {
            "model.gated": False, "model.norm": Norm.LAYER, "model.attention_bias": True, "model.qkv_bias": True,
            "model.mlp_bias": True,
        },
    ),
]  # fmt: skip

ALL = [
    *(("deepspeed-json", *case) for case in DEEPSPEED),
    *(("accelerate-yaml", *case) for case in ACCELERATE),
    *(("nanotron-yaml", *case) for case in NANOTRON),
]


@pytest.mark.parametrize(("kind", "text", "expected"), ALL)
def test_settings_mean_what_their_trainer_says(kind: str, text: str, expected: dict[str, Any]) -> None:
    """Each field that a setting or its default decides."""
    job = imported(kind, text)
    assert {name: attrgetter(name)(job) for name in expected} == expected


REFUSED = [
    ("deepspeed-json", '{"a": 1}', "f: no DeepSpeed settings (any of train_batch_size,"),
    (
        "deepspeed-json",
        '{"train_batch_size": 7, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4}',
        "f: train_batch_size: 7 is not a multiple of micro-batch 2 * accumulation 4",
    ),
    (
        "deepspeed-json",
        '{"train_batch_size": 8, "bf16": {"enabled": true}, "fp16": {"enabled": true}}',
        "f: fp16.enabled: bf16 and fp16 exclude each other",
    ),
    (
        "deepspeed-json",
        '{"zero_optimization": {"stage": 4}}',
        "f: zero_optimization.stage: 4 is out of range (0 to 3)",
    ),
    (
        "accelerate-yaml",
        "a: 1",
        "f: distributed_type: missing (one of FSDP, MULTI_GPU, DEEPSPEED, MEGATRON_LM, NO)",
    ),
    ("accelerate-yaml", "distributed_type: TPU", "f: distributed_type: 'TPU' is not supported (one of FSDP,"),
    (
        "accelerate-yaml",
        "distributed_type: FSDP\nnum_processes: 8\nparallelism_config: {parallelism_config_tp_size: 2}",
        "f: parallelism_config: dp_replicate=1 * dp_shard=1 * tp=2 * cp=1 * sp=1 = 2 does not match num_processes 8"
        " (set dp_replicate_size to 4)",
    ),
    (
        "accelerate-yaml",
        "distributed_type: FSDP\nnum_processes: 8\nparallelism_config: {parallelism_config_tp_size: 3}",
        "f: parallelism_config: dp_replicate=1 * dp_shard=1 * tp=3 * cp=1 * sp=1 = 3 does not match num_processes 8"
        " (a divisor of 8)",
    ),
    (
        "accelerate-yaml",
        "distributed_type: FSDP\nnum_processes: 4\nparallelism_config: {parallelism_config_cp_size: 2, "
        "parallelism_config_sp_size: 2}",
        "f: parallelism_config.parallelism_config_sp_size: context and Ulysses parallelism exclude each other",
    ),
    (
        "accelerate-yaml",
        "distributed_type: FSDP\nnum_processes: 4\nfsdp_config: {fsdp_sharding_strategy: 6}",
        "f: fsdp_config.fsdp_sharding_strategy: '6' is not known (FULL_SHARD, SHARD_GRAD_OP, NO_SHARD,",
    ),
    ("nanotron-yaml", "a: 1", "f: no nanotron settings (sections parallelism, tokens and model)"),
    ("nanotron-yaml", "tokens: {sequence_length: 1}", "f: no nanotron settings"),
    (
        "nanotron-yaml",
        NANO + "\nmodel: {dtype: int8}",
        "f: model.dtype: 'int8' is not modelled (bfloat16 or float16)",
    ),
    (
        "nanotron-yaml",
        NANO.replace("pp: 2", "pp: 2, expert_parallel_size: 2"),
        "f: parallelism.expert_parallel_size: expert parallelism above 1 is broken in nanotron (1)",
    ),
    (
        "nanotron-yaml",
        NANO + "\n" + LLAMA.replace("hidden_size: 8", "hidden_size: 9"),
        "f: model.model_config.num_attention_heads: hidden 9, heads 4, kv heads 2 do not divide",
    ),
    (
        "nanotron-yaml",
        NANO + "\n" + LLAMA.replace("num_key_value_heads: 2", "num_key_value_heads: 3"),
        "f: model.model_config.num_attention_heads: hidden 8, heads 4, kv heads 3 do not divide",
    ),
    (
        "nanotron-yaml",
        NANO + "\n" + LLAMA.replace("is_llama", "is_other"),
        "f: model.model_config.is_llama_config: model class",
    ),
]


@pytest.mark.parametrize(("kind", "text", "said"), REFUSED)
def test_settings_that_no_trainer_runs_are_refused(kind: str, text: str, said: str) -> None:
    """The place, what is wrong, and what would be valid."""
    with pytest.raises(InputError) as raised:
        imported(kind, text)
    assert str(raised.value).removeprefix("f: ").startswith(said.removeprefix("f: "))
