"""Launch files of each trainer, a few keys each: what its documentation says they mean, defaults and refusals included."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import pytest

from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.interop.deepspeed.named import named_deepspeed, require_agreement
from layoutopt.optimizer.interop.launch.flags import ArgFields
from layoutopt.optimizer.interop.megatron.read_model import layer_windows, megatron_model, vocabulary
from layoutopt.optimizer.interop.megatron.variants import read_variant
from layoutopt.optimizer.interop.reading import Fields
from layoutopt.optimizer.interop.shell.record import Outside
from layoutopt.optimizer.interop.sources import import_text
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.model import LayerShape, Mixer, Mlp, Norm
from layoutopt.optimizer.specs.vocabulary import CpComm, Granularity, Optimizer, Precision, Schedule

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

HF = "torchrun --nproc_per_node 8 train.py --model_name_or_path x/y --max_length 64 "
HF_TRAINER = [
    (
        HF + "--per_device_train_batch_size 2 --gradient_accumulation_steps 4 --bf16 True --fsdp 'full_shard auto_wrap'",
        {
            "gpus": 8, "layout.dp": 8, "layout.zero": 3, "training.global_batch": 64, "layout.micro_batches": 4,
            "training.precision": BF16, "layout.recompute.granularity": NONE, "training.sequence_length": 64,
            "options.optimizer_offload": None, "training.adapter": None,
        },
    ),
    (
        HF + "--fsdp 'shard_grad_op offload' --gradient_checkpointing True --fp16 yes",
        {
            "layout.zero": 2, "options.optimizer_offload": 1.0, "layout.micro_batch": 8, "training.global_batch": 64,
            "layout.recompute.granularity": FULL, "training.precision": FP16,
            "notes": (
                "Hugging Face's trainer: judged as DeepSpeed's or accelerate's",
                "parameters in host memory are not modelled; memory is overestimated",
                "assumed: per_device_train_batch_size 8, the trainer's default",
            ),
        },
    ),
    (
        HF + "--per_device_train_batch_size 1 --zero_stage 2 --offload --mixed_precision bf16",
        {
            "layout.zero": 2, "framework": Framework.DEEPSPEED, "options.optimizer_offload": 1.0,
            "training.precision": BF16, "training.global_batch": 8, "layout.micro_batches": 1,
        },
    ),
    (
        HF + "--per_device_train_batch_size 1 --use_fsdp --fsdp_sharding_strategy 2 --use_lora --lora_r 4 --dtype float16",
        {"layout.zero": 2, "training.adapter.rank": 4, "training.precision": FP16},
    ),
    (
        HF + "--per_device_train_batch_size 1 --use_fsdp --fsdp_sharding_strategy NO_SHARD --use_lora False",
        {"layout.zero": 0, "training.adapter": None},
    ),
    (HF + "--per_device_train_batch_size 1 --use_fsdp", {"layout.zero": 3}),
    (HF + "--per_device_train_batch_size 1 --fsdp hybrid_shard_zero2", {"layout.zero": 2}),
    (
        HF + "--per_device_train_batch_size 1",
        {
            "layout.zero": 0,
            "notes": (
                "Hugging Face's trainer: judged as DeepSpeed's or accelerate's",
                "assumed: no sharding, neither deepspeed nor fsdp is stated",
            ),
        },
    ),
]  # fmt: skip

SWIFT = "NPROC_PER_NODE=8 swift sft --model x/y --max_length 64 "
MS_SWIFT = [
    (
        SWIFT + "--per_device_train_batch_size 1 --train_type full --deepspeed zero3",
        {
            "gpus": 8, "layout.zero": 3, "training.global_batch": 16, "layout.micro_batches": 2, "training.adapter": None,
            "framework": Framework.DEEPSPEED, "layout.recompute.granularity": FULL,
            "notes": (
                "Hugging Face's trainer: judged as DeepSpeed's or accelerate's",
                "assumed: one node, NNODES is not set",
                "assumed: gradient_accumulation_steps 2, the trainer's default",
            ),
        },
    ),
    (
        SWIFT + "--per_device_train_batch_size 3 --train_type full --fsdp fsdp2 --sequence_parallel_size 2 "
        "--torch_dtype float16 --gradient_checkpointing false",
        {
            "layout.zero": 3, "layout.cp": 2, "layout.dp": 4, "training.global_batch": 12, "options.cp_comm": CpComm.A2A,
            "training.precision": FP16, "layout.recompute.granularity": NONE,
        },
    ),
    (
        SWIFT + "--per_device_train_batch_size 4 --gradient_accumulation_steps 2",
        {"layout.zero": 0, "training.global_batch": 64, "training.adapter.rank": 8, "options.cp_comm": None},
    ),
    (
        "NPROC_PER_NODE=8 NNODES=2 megatron sft --model x/y --max_length 64 --tensor_model_parallel_size 2 "
        "--recompute_granularity none",
        {
            "gpus": 16, "layout.tp": 2, "layout.dp": 8, "layout.micro_batch": 1, "training.global_batch": 16,
            "layout.zero": 1, "training.precision": BF16, "training.sequence_length": 64,
            "layout.recompute.granularity": NONE, "layout.etp": 1, "training.dropout": False,
        },
    ),
    (
        "NPROC_PER_NODE=8 megatron pt --model x/y --max_length 64 --global_batch_size 32",
        {"training.global_batch": 32, "layout.recompute.granularity": Granularity.SELECTIVE},
    ),
]  # fmt: skip

AXOLOTL = [
    (
        "base_model: x/y\nsequence_len: 64\nmicro_batch_size: 2\ngradient_accumulation_steps: 4\ndp_shard_size: 4\n"
        "dp_replicate_size: 2\ncontext_parallel_size: 2\ntensor_parallel_size: 2\nbf16: auto\n"
        "gradient_checkpointing: true\nsample_packing: true\nfsdp_config: {offload_params: true}",
        {
            "gpus": 32, "layout.dp": 8, "layout.cp": 2, "layout.tp": 2, "layout.hsdp_shard": 8, "layout.zero": 3,
            "training.global_batch": 64, "layout.micro_batches": 4, "training.precision": BF16, "layout.micro_batch": 2,
            "layout.recompute.granularity": FULL, "options.cp_comm": CpComm.P2P, "training.adapter": None,
            "notes": (
                "Hugging Face models on PyTorch FSDP or DeepSpeed: judged as accelerate's or DeepSpeed's",
                "offload_params: parameters in host memory are not modelled; memory is overestimated",
                "sample_packing: a sequence is a packed row",
            ),
        },
    ),
    (
        "base_model: x/y\nsequence_len: 64\nmicro_batch_size: 2\ndp_shard_size: 4\nfp16: true\nadapter: qlora\n"
        "lora_r: 4\nlora_target_linear: true\ngradient_checkpointing: offload\n"
        "fsdp_config: {reshard_after_forward: false}",
        {
            "gpus": 4, "layout.dp": 4, "layout.zero": 2, "layout.hsdp_shard": None, "training.precision": FP16,
            "training.global_batch": 8, "training.adapter.rank": 4, "layout.recompute.granularity": FULL,
            "options.cp_comm": None,
            "notes": (
                "Hugging Face models on PyTorch FSDP or DeepSpeed: judged as accelerate's or DeepSpeed's",
                "gradient_checkpointing offload: kept inputs count as memory of the GPU",
            ),
        },
    ),
    ("base_model: x\nmicro_batch_size: 2\nfp8: true", {"layout.zero": 0, "training.precision": Precision.FP8, "gpus": None}),
    ("base_model: x\nmicro_batch_size: 2\ndp_shard_size: 2", {"layout.zero": 3, "layout.recompute.granularity": NONE}),
    ("base_model: x\nmicro_batch_size: 2\ndp_shard_size: 1", {"layout.zero": 0}),
    ("base_model: x\nmicro_batch_size: 2\nfsdp_version: 2", {"layout.zero": 3}),
]  # fmt: skip

FACTORY = "model_name_or_path: x/y\ncutoff_len: 64\nfinetuning_type: full\nper_device_train_batch_size: 2\n"
LLAMA_FACTORY = [
    (
        FACTORY + "bf16: true\ngradient_accumulation_steps: 4",
        {
            "layout.zero": 0, "training.precision": BF16, "layout.recompute.granularity": FULL,
            "training.global_batch": None,
            "training.adapter": None, "training.sequence_length": 64,
            "notes": (
                "the global batch is 2 * 4 sequences per data-parallel rank",
                "assumed: no sharding, neither deepspeed nor fsdp is stated",
            ),
        },
    ),
    (
        FACTORY.replace("finetuning_type: full\n", "") + "fp16: true\nfsdp: full_shard\n"
        "disable_gradient_checkpointing: true",
        {"layout.zero": 3, "training.precision": FP16, "layout.recompute.granularity": NONE, "training.adapter.rank": 8},
    ),
    (FACTORY + "fp8: true\nbf16: true", {"training.precision": Precision.FP8}),
]  # fmt: skip
LAUNCHED = [
    (
        "torchrun --nproc_per_node 8 src/train.py f.yaml",
        FACTORY + "gradient_accumulation_steps: 4\nfsdp: x",
        {"training.global_batch": 64, "gpus": 8, "layout.micro_batches": 4},
    ),
    (
        "torchrun --nproc_per_node 8 src/train.py f.yaml gradient_accumulation_steps=2",
        FACTORY + "tensor_model_parallel_size: 2\npipeline_model_parallel_size: 2\nuse_distributed_optimizer: 1\nbf16: true",
        {
            "training.global_batch": 8, "gpus": 8, "layout.tp": 2, "layout.pp": 2, "layout.dp": 2, "layout.zero": 1,
            "layout.micro_batches": 2, "training.precision": BF16,
        },
    ),
]  # fmt: skip

VERL = (
    "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=x/y actor_rollout_ref.actor.ppo_mini_batch_size=64 "
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2 trainer.n_gpus_per_node=8 trainer.nnodes=2 "
    "data.max_prompt_length=64 data.max_response_length=32 actor_rollout_ref.rollout.n=4 "
)
ACTOR = "actor_rollout_ref.actor."
VERLS = [
    (
        VERL + f"{ACTOR}ulysses_sequence_parallel_size=2 {ACTOR}fsdp_config.fsdp_size=8",
        {
            "gpus": 16, "training.global_batch": 256, "training.sequence_length": 96, "layout.cp": 2, "layout.dp": 8,
            "layout.hsdp_shard": 8, "layout.zero": 3, "options.cp_comm": CpComm.A2A, "training.precision": BF16,
            "layout.micro_batches": 16, "layout.recompute.granularity": FULL,
        },
    ),
    (VERL + f"{ACTOR}fsdp_config.fsdp_size=1", {"layout.zero": 0, "layout.hsdp_shard": None, "options.cp_comm": None}),
    (VERL + f"{ACTOR}fsdp_config.fsdp_size=-1", {"layout.zero": 3, "layout.hsdp_shard": None}),
    (
        VERL + f"{ACTOR}fsdp_config.reshard_after_forward=False actor_rollout_ref.model.enable_gradient_checkpointing=False",
        {"layout.zero": 2, "layout.recompute.granularity": NONE},
    ),
    (
        VERL + f"{ACTOR}strategy=megatron {ACTOR}megatron.tensor_model_parallel_size=2 {ACTOR}megatron.param_offload=True",
        {
            "framework": Framework.MEGATRON, "layout.tp": 2, "layout.sp": True, "layout.zero": 1, "training.precision": BF16,
            "layout.dp": 8, "training.global_batch": 256, "training.sequence_length": 96,
        },
    ),
    (
        VERL + f"{ACTOR}use_dynamic_bsz=True {ACTOR}ppo_max_token_len_per_gpu=999",
        {
            "layout.micro_batch": None,
            "notes": (
                "micro-batches hold up to 999 tokens of unequal sequences: the micro-batch is left open",
                "other roles on the same GPUs (rollout, reference, critic) are not part of the actor's step",
                "PyTorch FSDP with Hugging Face models: judged as accelerate's",
            ),
        },
    ),
]  # fmt: skip
SFT = "torchrun --nproc_per_node 8 -m verl.trainer.fsdp_sft_trainer model.partial_pretrain=x/y "
VERL_SFT = [
    (
        SFT,
        {
            "gpus": 8, "training.global_batch": 256, "training.sequence_length": 1024, "layout.micro_batch": 4,
            "layout.zero": 3, "layout.cp": 1, "layout.dp": 8, "layout.micro_batches": 8, "training.adapter": None,
        },
    ),
    (
        SFT + "ulysses_sequence_parallel_size=2 model.lora_rank=4 data.micro_batch_size_per_gpu=2 data.train_batch_size=64 "
        "engine.fsdp_size=4 model.enable_gradient_checkpointing=False",
        {
            "layout.cp": 2, "layout.dp": 4, "layout.hsdp_shard": 4, "training.adapter.rank": 4, "layout.micro_batches": 8,
            "layout.recompute.granularity": NONE, "options.cp_comm": CpComm.A2A,
        },
    ),
    (SFT + "engine.fsdp_size=1", {"layout.zero": 0, "layout.hsdp_shard": None}),
    (SFT + "engine.reshard_after_forward=False", {"layout.zero": 2}),
    (
        SFT.replace("fsdp_sft_trainer", "sft_trainer") + "data.max_token_len_per_gpu=77",
        {"layout.micro_batch": None},
    ),
    (
        SFT.replace("fsdp_sft_trainer", "sft_trainer") + "data.use_dynamic_bsz=False",
        {"layout.micro_batch": 4},
    ),
    (
        "python -m verl.trainer.sft_trainer_ray model.path=x/y trainer.n_gpus_per_node=4 trainer.nnodes=3",
        {"gpus": 12},
    ),
]  # fmt: skip

SLIME = "python3 train.py --actor-num-nodes 2 --hf-checkpoint x/y --bf16 "
SLIMES = [
    (
        SLIME + "--rollout-batch-size 32 --n-samples-per-prompt 8 --num-steps-per-rollout 2 --rollout-max-response-len 64",
        {
            "gpus": 16, "training.global_batch": 128, "training.sequence_length": 64, "layout.micro_batch": 1,
            "layout.dp": 16,
        },
    ),
    (
        SLIME + "--actor-num-gpus-per-node 4 --global-batch-size 64 --seq-length 32 --rollout-max-response-len 64 "
        "--micro-batch-size 2",
        {"gpus": 8, "training.global_batch": 64, "training.sequence_length": 32, "layout.micro_batch": 2},
    ),
    (
        SLIME + "--rollout-batch-size 32 --num-steps-per-rollout 2 --rollout-max-prompt-len 16 "
        "--rollout-max-response-len 64 --use-dynamic-batch-size --max-tokens-per-gpu 99",
        {"training.global_batch": 16, "training.sequence_length": 80, "layout.micro_batch": None},
    ),
]  # fmt: skip

ALL = [
    *(("deepspeed-json", *case) for case in DEEPSPEED),
    *(("accelerate-yaml", *case) for case in ACCELERATE),
    *(("nanotron-yaml", *case) for case in NANOTRON),
    *(("hf-trainer", *case) for case in HF_TRAINER),
    *(("ms-swift", *case) for case in MS_SWIFT),
    *(("axolotl", *case) for case in AXOLOTL),
    *(("llama-factory", *case) for case in LLAMA_FACTORY),
    *(("verl", *case) for case in (*VERLS, *VERL_SFT)),
    *(("slime", *case) for case in SLIMES),
]


@pytest.mark.parametrize(("kind", "text", "expected"), ALL)
def test_settings_mean_what_their_trainer_says(kind: str, text: str, expected: dict[str, Any]) -> None:
    """Each field that a setting or its default decides."""
    job = imported(kind, text)
    assert {name: attrgetter(name)(job) for name in expected} == expected


@pytest.mark.parametrize(("command", "config", "expected"), LAUNCHED)
def test_launchers_count_the_gpus_of_a_configuration(
    command: str, config: str, expected: dict[str, Any]
) -> None:
    """The global batch follows from them."""
    outside = Outside(beside=lambda name: config if name == "f.yaml" else None)
    job = imported("llama-factory", f"#!/bin/bash\n{command}\n", outside=outside)
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
    (
        "axolotl",
        "base_model: x\nexpert_parallel_size: 2",
        "f: expert_parallel_size: axolotl takes it out of the world",
    ),
    (
        "slime",
        SLIME + "--rollout-batch-size 32 --num-steps-per-rollout 3",
        "--rollout-batch-size * --n-samples-per-prompt over --num-steps-per-rollout: 32 is not a multiple of 3",
    ),
    (
        "slime",
        SLIME + "--rollout-batch-size 32 --num-steps-per-rollout 2 --global-batch-size 8",
        "f: --global-batch-size: 8 is not the 16 samples of a rollout over its steps (16)",
    ),
    (
        "verl",
        SFT + "engine=megatron",
        "engine: verl's fsdp_sft_trainer on megatron is not read (engine=fsdp)",
    ),
]


@pytest.mark.parametrize(("kind", "text", "said"), REFUSED)
def test_settings_that_no_trainer_runs_are_refused(kind: str, text: str, said: str) -> None:
    """The place, what is wrong, and what would be valid."""
    with pytest.raises(InputError) as raised:
        imported(kind, text)
    assert str(raised.value).removeprefix("f: ").startswith(said.removeprefix("f: "))


@pytest.mark.parametrize(
    ("name", "built_in", "found", "notes", "missing"),
    [
        ("ds_z3_offload", True, {"zero": 3, "offload": 1.0}, 1, 0),
        ("zero2", True, {"zero": 2, "offload": None}, 0, 0),
        ("zero2_offload", True, {"zero": 2, "offload": 1.0}, 0, 0),
        ("conf/stage1.json", True, {"zero": 1, "offload": None}, 1, 0),
        ("zero-0", False, {"zero": 0, "offload": None}, 1, 0),
        ("x.json", True, {}, 0, 1),
    ],
)
def test_deepspeed_by_the_name_of_its_file(
    name: str, built_in: bool, found: dict[str, Any], notes: int, missing: int
) -> None:
    """The stage is in the name where the file is not there; a word of the trainer's own is no assumption."""
    said: list[str] = []
    lacking: list[str] = []
    read = named_deepspeed(name, lambda _: None, said, lacking, built_in=built_in)
    assert read == {"framework": Framework.DEEPSPEED, **found}
    assert (len(said), len(lacking)) == (notes, missing)


@pytest.mark.parametrize(
    ("stated", "flags", "batch", "said"),
    [
        ({"micro_batch": 2}, {"per_device_train_batch_size": 1}, None, "1 contradicts 2, which train_micro_batch"),
        ({"accumulation": 2}, {"gradient_accumulation_steps": 1}, None, "1 contradicts 2, which gradient_acc"),
        ({"global_batch": 8}, {}, 4, "4 contradicts 8, which train_batch_size of n states"),
        ({"precision": FP16}, {"bf16": True}, None, "bf16 contradicts fp16, which fp16.enabled of n states"),
        ({"precision": BF16}, {"fp16": "true"}, None, "fp16 contradicts bf16, which bf16.enabled of n states"),
        ({"global_batch": 8, "micro_batch": 2, "precision": BF16}, {"per_device_train_batch_size": 2, "bf16": True}, 8, ""),
        ({"micro_batch": 2}, {}, 8, ""),
    ],
)  # fmt: skip
def test_both_places_agree(
    stated: dict[str, Any], flags: dict[str, Any], batch: int | None, said: str
) -> None:
    """Equal values, or one of them; a global batch is compared where nothing else differs."""
    whole = {
        "micro_batch": None,
        "accumulation": None,
        "precision": None,
        "global_batch": None,
        "named": "n",
        **stated,
    }
    require_agreement({}, Fields(flags), batch)
    if not said:
        require_agreement(whole, Fields(flags), batch)
        return
    with pytest.raises(InputError) as raised:
        require_agreement(whole, Fields(flags), batch)
    assert said in str(raised.value) and len(raised.value.problems) == 1


BASE = {"num_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 100}
MODELS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (
        {},
        {
            "layers": 4, "kv_heads": 4, "head_dim": 16, "gated": False, "norm": Norm.LAYER, "attention_bias": True,
            "mlp_bias": True, "qkv_bias": False, "tied_embeddings": True, "qk_norm": False, "moe": None, "mla": None,
            "mtp_layers": 0, "learned_positions": 0, "attention_sinks": False, "runs": 256,
        },
    ),
    ({"swiglu": True, "normalization": "RMSNorm"}, {"gated": True, "norm": Norm.RMS, "runs": 128}),
    ({"hidden_size": 4096, "swiglu": True}, {"runs": 10880}),  # 4 * 4096 * 2 / 3 = 10922, down to a multiple of 64
    ({"ffn_hidden_size": 77}, {"runs": 77}),
    ({"disable_bias_linear": True, "add_qkv_bias": True}, {"attention_bias": False, "qkv_bias": True, "mlp_bias": False}),
    ({"add_bias_linear": True, "add_qkv_bias": True}, {"attention_bias": True, "qkv_bias": False}),
    ({"untie_embeddings_and_output_weights": True}, {"tied_embeddings": False}),
    ({"share_embeddings_and_output_weights": False}, {"tied_embeddings": False}),
    ({"group_query_attention": True, "num_query_groups": 2}, {"kv_heads": 2}),
    ({"group_query_attention": True}, {"kv_heads": 1}),
    ({"num_query_groups": 2}, {"kv_heads": 2}),
    ({"group_query_attention": False, "num_query_groups": 2}, {"kv_heads": 4}),
    ({"num_key_value_heads": 2}, {"kv_heads": 2}),
    ({"kv_channels": 10}, {"head_dim": 10}),
    ({"qk_layernorm": True}, {"qk_norm": True}),
    ({"softmax_type": "learnable"}, {"attention_sinks": True}),
    ({"mtp_num_layers": 1, "rotary_base": 5e5, "norm_epsilon": 1e-5}, {"mtp_layers": 1, "rope_base": 5e5}),
    ({"position_embedding_type": "learned_absolute", "max_position_embeddings": 9}, {"learned_positions": 9}),
    ({"position_embedding_type": "learned_absolute", "seq_length": 8}, {"learned_positions": 8}),
    ({"position_embedding_type": "rope", "seq_length": 8}, {"learned_positions": 0}),
    (
        {"multi_latent_attention": True, "qk_layernorm": True},
        {
            "mla.q_lora_rank": 0, "mla.kv_lora_rank": 32, "mla.qk_nope_head_dim": 128, "mla.qk_rope_head_dim": 64,
            "mla.v_head_dim": 128, "head_dim": 192, "kv_heads": 4, "qk_norm": False,
        },
    ),
    (
        {"num_experts": 8, "disable_bias_linear": True},
        {
            "moe.experts": 8, "moe.top_k": 2, "moe.ffn": 256, "moe.shared_ffn": 0, "moe.router_bias": False,
            "moe.expert_bias": False, "moe.shared_gate": False, "moe.router_groups": None, "moe.capacity_factor": None,
        },
    ),
    (
        {
            "num_moe_experts": 8, "moe_router_topk": 8, "moe_ffn_hidden_size": 7, "moe_shared_expert_intermediate_size": 5,
            "moe_router_num_groups": 4, "moe_router_group_topk": 2, "moe_router_enable_expert_bias": True,
            "moe_layer_freq": "[0,1,1,1]", "disable_bias_linear": True, "moe_shared_expert_gate": True,
            "moe_expert_capacity_factor": 1.5, "moe_router_topk_scaling_factor": 2.5,
        },
        {
            "moe.top_k": 8, "moe.ffn": 7, "moe.shared_ffn": 5, "moe.router_groups": 4, "moe.router_group_limit": 2,
            "moe.router_bias": True, "moe.expert_bias": False, "moe.shared_gate": True, "moe.capacity_factor": 1.5,
            "moe.router_scaling": 2.5,
        },
    ),
    ({"num_experts": 8, "moe_router_num_groups": 4}, {"moe.router_groups": None, "moe.router_group_limit": None}),
]  # fmt: skip


@pytest.mark.parametrize(("data", "expected"), MODELS)
def test_models_of_megatrons_arguments(data: dict[str, Any], expected: dict[str, Any]) -> None:
    """Sizes and switches with the defaults of arguments.py; ``runs`` stands for the width of the first layer."""
    model = megatron_model(Fields({**BASE, **data}), [])
    assert model is not None
    found = {
        name: model.runs[0].block[0].ffn if name == "runs" else attrgetter(name)(model) for name in expected
    }
    assert found == expected


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (
            {"hybrid_override_pattern": "M*"},
            "hybrid_override_pattern: hybrid and heterogeneous stacks are not supported",
        ),
        ({"num_query_groups": 3}, "num_query_groups: 4 heads are not a multiple of 3 groups"),
        ({"hidden_size": 66}, "kv_channels: missing, and hidden size 66 is not a multiple of 4 heads"),
        ({"num_experts": 4, "moe_router_topk": 5}, "moe_router_topk: top-5 of 4 experts"),
        ({"window_size": "x"}, "window_size: 'x' is not a window (LEFT,RIGHT in tokens)"),
        ({"mtp_num_layers": 65}, "mtp_num_layers: 65 is out of range (0 to 64)"),
    ],
)
def test_models_that_megatron_does_not_build(data: dict[str, Any], said: str) -> None:
    """Which argument, and why."""
    with pytest.raises(InputError) as raised:
        megatron_model(Fields({**BASE, **data}), [])
    assert str(raised.value).startswith(said)


def test_an_absent_flag_is_off_on_a_command_line() -> None:
    """What is unstated in a dump is the default on a command line, and is said."""
    notes: list[str] = []
    found = megatron_model(
        ArgFields({**BASE, "num_query_groups": 2, "max_position_embeddings": 9, "seq_length": 8}), notes,
        command_line=True,
    )  # fmt: skip
    assert found is not None and (found.kv_heads, found.learned_positions) == (4, 9)
    assert notes == [
        "ffn_hidden_size 256: Megatron-LM's default from the hidden size",
        "num_query_groups 2 is ignored: --group-query-attention is absent",
        "learned positions: Megatron-LM's default --position-embedding-type",
    ]
    assert megatron_model(Fields({**BASE, "vocab_size": None}), []) is None


@pytest.mark.parametrize(
    ("data", "size", "count"),
    [
        ({"padded_vocab_size": 7}, 7, 0),
        ({"tokenizer_type": "GPT2BPETokenizer"}, 50257, 1),
        ({"merge_file": "m", "vocab_file": "gpt2-vocab.json"}, 50257, 1),
        ({"merge_file": "m", "vocab_file": "own.json"}, None, 0),
        ({"tokenizer_type": "Llama2Tokenizer"}, 32_000, 1),
        (
            {"tokenizer_type": "HuggingFaceTokenizer", "tokenizer_model": "meta-llama/Llama-3.1-8B"},
            128_256,
            1,
        ),
        ({"tokenizer_type": "HuggingFaceTokenizer", "tokenizer_model": "a/other"}, None, 0),
        ({"tokenizer_type": "Other", "tokenizer_model": "meta-llama/Llama-3.1-8B"}, None, 0),
    ],
)
def test_vocabularies_by_their_tokenizer(data: dict[str, Any], size: int | None, count: int) -> None:
    """Those of the models that the tokenizers belong to."""
    notes: list[str] = []
    assert vocabulary(Fields(data), notes) == size
    assert len(notes) == count


@pytest.mark.parametrize(
    ("data", "windows"),
    [
        ({}, [None] * 4),
        ({"window_size": "(127, 0)"}, [128] * 4),
        ({"window_size": [127, 0], "window_attn_skip_freq": 2}, [128, None, 128, None]),
        ({"window_size": "127,0", "window_attn_skip_freq": "[1,0,0,1]"}, [128, None, None, 128]),
        ({"window_size": "-1,0"}, [None] * 4),
        ({"window_size": "0,0"}, [1] * 4),
    ],
)
def test_windows_count_the_token_itself(data: dict[str, Any], windows: list[int | None]) -> None:
    """Tokens to the left and one; every n-th layer sees everything."""
    assert layer_windows(Fields(data), 4) == windows


def test_variants_of_attention() -> None:
    """Linear layers by a list or all but every n-th, with the defaults of TransformerConfig; chosen keys with theirs."""
    shapes = [LayerShape(mlp=Mlp.DENSE, ffn=8)] * 4
    plain, none, _ = read_variant(Fields({}), shapes)
    assert plain == shapes and none is None
    for freq, marks in ((2, "1010"), ("[1,1,0,1]", "1101"), (4, "1110")):
        data = {"experimental_attention_variant": "gdn", "linear_attention_freq": freq}
        mixed, linear, indexer = read_variant(Fields(data), shapes)
        assert "".join(str(int(shape.mixer is Mixer.GATED_DELTA)) for shape in mixed) == marks
        assert linear is not None and indexer is None
        sizes = (
            linear.key_heads,
            linear.value_heads,
            linear.key_head_dim,
            linear.value_head_dim,
            linear.conv,
        )
        assert sizes == (16, 32, 128, 128, 4)
    data = {
        "experimental_attention_variant": "dsa", "dsa_indexer_n_heads": 2, "dsa_indexer_head_dim": 3,
        "dsa_indexer_topk": 4, "dsa_indexer_topk_freq": 2, "dsa_indexer_skip_topk_offset": 0,
    }  # fmt: skip
    chosen, _, own = read_variant(Fields(data), shapes)
    assert own is not None and (own.heads, own.head_dim, own.top_k) == (2, 3, 4)
    assert [shape.indexes for shape in chosen] == [True, False, True, False]
    with pytest.raises(InputError, match="x is not supported"):
        read_variant(Fields({"experimental_attention_variant": "x"}), shapes)
    with pytest.raises(InputError, match="linear_attention_freq: missing"):
        read_variant(Fields({"experimental_attention_variant": "gdn"}), shapes)


def test_optimizers_that_a_configuration_names() -> None:
    """DeepSpeed's own type of optimizer."""
    job = imported("deepspeed-json", '{"train_batch_size": 8, "optimizer": {"type": "Lion"}}')
    assert job.training.optimizer.kind is Optimizer.LION
