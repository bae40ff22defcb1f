"""Files of launchers, a few keys each: what their documentation says they mean, defaults and refusals included."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import pytest

from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.interop.shell.record import Outside
from layoutopt.optimizer.interop.sources import import_text
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.vocabulary import CpComm, Granularity, Precision

FULL, NONE = Granularity.FULL, Granularity.NONE
BF16, FP16 = Precision.BF16, Precision.FP16


def imported(kind: str, text: str, **options: Any) -> Any:
    """What is in a launch file."""
    return import_text(text, "f", kind, **options).value


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
