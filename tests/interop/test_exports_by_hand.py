"""What DeepSpeed, Megatron-DeepSpeed, nanotron and accelerate are given, and what every launch says on top."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import yaml
from checks.agreement import dense_model
from checks.targets import BASE, DENSE, EXPERTS, FULL, on, staged, target

from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.interop.accelerate import write as accelerate
from layoutopt.optimizer.interop.deepspeed.write import deepspeed_config
from layoutopt.optimizer.interop.deepspeed.write import export as deepspeed_job
from layoutopt.optimizer.interop.launch.export import describe
from layoutopt.optimizer.interop.launch.target import release_for, version_text
from layoutopt.optimizer.interop.launch.text import header, torchrun_words
from layoutopt.optimizer.interop.megatron_deepspeed.write import _layout_flags, _model_flags, _run_flags
from layoutopt.optimizer.interop.nanotron import write as nanotron
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.layout import Recompute
from layoutopt.optimizer.specs.model import Norm, OptimizerSpec
from layoutopt.optimizer.specs.vocabulary import (
    CpComm,
    Granularity,
    Optimizer,
    Precision,
    Saver,
)


def test_deepspeeds_json() -> None:
    """Batch, precision, ZeRO and its own axes."""
    plain = deepspeed_config(target("deepspeed", preset={"grad_bytes": 4, "dp_overlap": True}))
    assert plain == {
        "train_batch_size": 48,
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 3,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
        "data_types": {"grad_accum_dtype": "fp32"},
        "zero_optimization": {
            "stage": 1,
            "overlap_comm": True,
            "reduce_bucket_size": 500_000_000,
            "allgather_bucket_size": 500_000_000,
        },
    }
    other = deepspeed_config(
        target(
            "deepspeed", preset={"grad_bytes": 2}, precision=Precision.FP16, hsdp_shard=4, zero=3,
            savers=(Saver.OFFLOAD_OPTIMIZER,), training={"optimizer": OptimizerSpec(kind=Optimizer.LION)},
        )
    )  # fmt: skip
    assert other["fp16"] == {"enabled": True} and other["data_types"] == {"grad_accum_dtype": "fp16"}
    assert other["zero_optimization"]["mics_shard_size"] == 4
    assert other["zero_optimization"]["offload_optimizer"] == {"device": "cpu", "pin_memory": True}
    assert other["optimizer"]["type"] == "Lion"


def test_deepspeeds_command() -> None:
    """Axes beyond one are in the JSON, what only the trainer knows in its flags."""
    job = deepspeed_job(target("deepspeed", tp=2, cp=2, dp=4, recompute=FULL))
    config = json.loads(job.files["ds_config.json"])
    assert job.files["ds_config.json"] == json.dumps(config, indent=2) + "\n"
    assert config["tensor_parallel"] == {"autotp_size": 2} and config["sequence_parallel_size"] == 2
    assert "expert_parallel" not in config
    assert job.command.replace("\\\n", "").split() == [
        "deepspeed",
        "--num_nodes",
        "2",
        "--num_gpus",
        "8",
        "train.py",
        "--deepspeed",
        "ds_config.json",
        "--per_device_train_batch_size",
        "2",
        "--gradient_accumulation_steps",
        "3",
        "--bf16",
        "--gradient_checkpointing",
        "--save_steps",
        "100",
    ]
    assert len(job.notes) == 3
    sparse = deepspeed_job(target("deepspeed", ep=4, model=EXPERTS, precision=Precision.FP16, saving=False))
    experts = json.loads(sparse.files["ds_config.json"])["expert_parallel"]
    assert experts == {"enabled": True, "autoep_size": 4, "preset_model": "mixtral"}
    assert "--fp16" in sparse.command and "--save_steps" not in sparse.command and len(sparse.notes) == 1


@pytest.mark.parametrize(
    ("function", "changes", "expected"),
    [
        (
            _layout_flags, {},
            {"--tensor-model-parallel-size": 1, "--pipeline-model-parallel-size": 1, "--no-pipeline-parallel": True},
        ),
        (
            _layout_flags,
            {"tp": 2, "sp": True, "cp": 2, "model": EXPERTS, "ep": 2, "etp": 2, **staged({"pp": 2}, 4, 4, model=EXPERTS)},
            {
                "--tensor-model-parallel-size": 2, "--sequence-parallel": True, "--ds-sequence-parallel-size": 2,
                "--pipeline-model-parallel-size": 2, "--moe-expert-parallel-size": 2,
                "--enable-expert-tensor-parallelism": True, "--create-moe-param-group": True,
            },
        ),
        (
            _layout_flags, {"recompute": FULL, **staged({"pp": 2}, 4, 4, limit=3)},
            {
                "--tensor-model-parallel-size": 1, "--pipeline-model-parallel-size": 2,
                "--deepspeed-activation-checkpointing": True, "--recompute-granularity": "full",
                    "--recompute-method": "block",
                "--recompute-num-layers": 3,
            },
        ),
        (
            _layout_flags, {"recompute": FULL, **staged({"pp": 2}, 4, 4, limit=4)},
            {
                "--tensor-model-parallel-size": 1, "--pipeline-model-parallel-size": 2,
                "--deepspeed-activation-checkpointing": True, "--recompute-granularity": "full",
                "--recompute-method": "uniform", "--recompute-num-layers": 1,
            },
        ),
        (
            _model_flags, {"model": dense_model(8, 16, rope_base=5e5, norm=Norm.LAYER)},
            {
                "--num-layers": 8, "--hidden-size": 1024, "--ffn-hidden-size": 2816, "--num-attention-heads": 16,
                "--swiglu": True, "--disable-bias-linear": True, "--normalization": "layernorm",
                "--untie-embeddings-and-output-weights": True, "--use-rotary-position-embeddings": True,
                "--rotary-position-embeddings-theta": 500_000, "--use-flash-attn-v2": True, "--attention-dropout": "0",
                "--hidden-dropout": "0", "--vocab-size": 32_000,
            },
        ),
        (
            _model_flags,
            {"model": replace(EXPERTS, head_dim=32, learned_positions=9), "training": {"dropout": True, "flash": False}},
            {
                "--num-layers": 8, "--hidden-size": 1024, "--ffn-hidden-size": 2816, "--num-attention-heads": 16,
                "--num-key-value-heads": 8, "--kv-channels": 32, "--swiglu": True, "--disable-bias-linear": True,
                "--normalization": "rmsnorm", "--untie-embeddings-and-output-weights": True, "--attention-dropout": "0.1",
                "--hidden-dropout": "0.1", "--vocab-size": 32_000, "--num-experts": 16, "--topk": 2, "--expert-interval": 1,
            },
        ),
        (
            _run_flags, {"savers": (Saver.OFFLOAD_OPTIMIZER,), "zero": 2, "model": replace(DENSE, learned_positions=4096)},
            {
                "--seq-length": 2048, "--max-position-embeddings": 4096, "--micro-batch-size": 2, "--global-batch-size": 48,
                "--train-iters": 1000, "--bf16": True, "--lr": "1.5e-4", "--min-lr": "1.5e-5", "--lr-decay-style": "cosine",
                "--deepspeed": True, "--deepspeed_config": "ds_config.json", "--zero-stage": 2, "--cpu-optimizer": True,
                "--save": "checkpoints", "--save-interval": 100,
            },
        ),
    ],
)  # fmt: skip
def test_flags_of_megatron_deepspeed(
    function: Any, changes: dict[str, Any], expected: dict[str, Any]
) -> None:
    """Every flag that is on."""
    assert on(function(target("megatron-deepspeed", **changes))) == expected


def test_nanotrons_sections() -> None:
    """Parallelism, model and optimizer with their numbers."""
    made = target(
        "nanotron",
        model=dense_model(8, rope_base=5e5, norm_epsilon=1e-6),
        tp=2,
        sp=True,
        cp=2,
        dp=2,
        recompute=FULL,
    )
    data = yaml.safe_load(nanotron.export(made).files["config.yaml"])
    assert data["parallelism"] == {
        "dp": 2, "pp": 1, "tp": 2, "context_parallel_size": 2, "expert_parallel_size": 1, "pp_engine": "1f1b",
        "tp_mode": "REDUCE_SCATTER", "tp_linear_async_communication": made.preset.tp_overlap, "recompute_layer": True,
    }  # fmt: skip
    assert data["tokens"] == {
        "sequence_length": 2048,
        "train_steps": 1000,
        "micro_batch_size": 2,
        "batch_accumulation_per_replica": 3,
    }
    config = data["model"]["model_config"]
    assert (config["rope_theta"], config["rms_norm_eps"], config["is_llama_config"]) == (5e5, 1e-6, True)
    assert config["_attn_implementation"] == "ring_flash_triton" and config["num_key_value_heads"] == 8
    assert data["model"]["make_vocab_size_divisible_by"] == (128 if made.preset.pad_vocab else 1)
    schedule = data["optimizer"]["learning_rate_scheduler"]
    assert (schedule["lr_warmup_steps"], schedule["lr_decay_steps"]) == (100, 900)
    short = target(
        "nanotron",
        training={"total_tokens": 48 * 2048 * 50.0},
        saving=False,
        precision=Precision.FP16,
        zero=0,
    )
    data = yaml.safe_load(nanotron.export(short).files["config.yaml"])
    schedule = data["optimizer"]["learning_rate_scheduler"]
    assert (schedule["lr_warmup_steps"], schedule["lr_decay_steps"]) == (50, 1)
    assert data["checkpoints"]["checkpoint_interval"] == 50 and data["model"]["dtype"] == "float16"
    assert (
        data["optimizer"]["zero_stage"] == 0 and "_attn_implementation" not in data["model"]["model_config"]
    )


@pytest.mark.parametrize(
    ("kind", "cp", "expected"),
    [
        (CpComm.P2P, 2, {"parallelism_config_cp_size": 2, "parallelism_config_cp_comm_strategy": "alltoall"}),
        (
            CpComm.ALL_GATHER,
            2,
            {"parallelism_config_cp_size": 2, "parallelism_config_cp_comm_strategy": "allgather"},
        ),
        (CpComm.A2A, 2, {"parallelism_config_cp_size": 1, "parallelism_config_sp_size": 2}),
        (CpComm.P2P, 1, {"parallelism_config_cp_size": 1}),
    ],
)
def test_accelerates_parallelism(kind: CpComm, cp: int, expected: dict[str, Any]) -> None:
    """Rings, gathers and exchanges of heads have keys of their own."""
    made = target("accelerate", preset={"cp_comm": kind}, cp=cp, dp=8 // cp, zero=3, recompute=FULL)
    data = yaml.safe_load(accelerate.export(made).files["accelerate.yaml"])
    sizes = {
        "parallelism_config_dp_replicate_size": 1,
        "parallelism_config_dp_shard_size": 8 // cp,
        "parallelism_config_tp_size": 1,
    }
    assert data["parallelism_config"] == {**sizes, **expected}
    fsdp = data["fsdp_config"]
    assert (
        fsdp["fsdp_version"],
        fsdp["fsdp_reshard_after_forward"],
        fsdp["fsdp_activation_checkpointing"],
    ) == (2, True, True)
    assert (data["num_machines"], data["num_processes"], data["mixed_precision"]) == (1, 8, "bf16")
    assert "rdzv_backend" not in data and len(accelerate.export(made).notes) == 2


def test_nodes_and_steps_of_a_launch() -> None:
    """As many processes on every node as fit, steps from tokens, and where several nodes meet."""
    asked: list[tuple[dict[str, Any], int, int]] = [
        ({}, 1, 8), ({"dp": 64}, 8, 8), ({"dp": 12}, 2, 6), ({"dp": 3}, 1, 3), ({"dp": 11}, 11, 1),
    ]  # fmt: skip
    for layout, nodes, each in asked:
        made = target(**layout)
        assert (made.nodes, made.gpus_per_node) == (nodes, each)
        words = torchrun_words(made)
        assert words[:5] == ["torchrun", "--nnodes", str(nodes), "--nproc-per-node", str(each)]
        assert words[5:] == (
            [] if nodes == 1 else ["--rdzv-backend", "c10d", "--rdzv-endpoint", "HEAD_NODE:29500"]
        )
    assert target().steps is None
    assert target(training={"total_tokens": 1.0}).steps == 1
    assert target(training={"total_tokens": 48 * 2048 * 10.4}).steps == 10
    with pytest.raises(InputError, match=r"= 8 \* 2 \* 3 = 48 is not the global batch 47"):
        target(training={"global_batch": 47})


def test_headers_say_the_product() -> None:
    """Degrees, batch and experts in comments that end with their lines."""
    text = header(target(model=EXPERTS, tp=2, ep=4, cp=2, dp=8), "X 1")
    assert text.splitlines() == [
        "# tiny on 32 GPUs = tp2 x cp2 x pp1 x dp8; written by layoutopt for X 1",
        "# vp1, ZeRO-1, 3 micro-batches of 2, global batch 48 sequences of 2048",
        "# placeholders, to replace with your own: learning rate and its schedule, data, tokenizer, where to save",
        "# placeholder: HEAD_NODE (the address of the first node)",
        "# experts: etp1 x ep4 x pp1 x expert-dp8",
    ]
    assert len(header(target(), "X 1").splitlines()) == 3


def test_layouts_in_one_line() -> None:
    """Every axis that is not at its default."""
    assert describe(BASE) == "tp=1 pp=1 dp=8 zero=1 micro-batch=2 micro-batches=3 bf16"
    whole = replace(
        BASE, cp=2, ep=4, etp=2, hsdp_shard=4, recompute=Recompute(granularity=Granularity.SELECTIVE, modules=("mlp",)),
        mesh_order="tp-cp-ep-pp-dp", savers=(Saver.BF16_MOMENTS,), **staged({"pp": 4}, 1, 2, 2, 3),
    )  # fmt: skip
    assert describe(whole) == (
        "tp=1 pp=4 dp=8 cp=2 ep=4 etp=2 zero=1 in groups of 4 micro-batch=2 micro-batches=3 schedule=1f1b layers=1,2*2,3 "
        "recompute=selective+mlp order=tp-cp-ep-pp-dp savers=bf16-moments bf16"
    )


def test_releases_of_an_export() -> None:
    """A plan's own where it goes to its trainer; torchtitan's eras may be one letter."""
    assert version_text(Framework.TORCHTITAN, "a") == "era A" and version_text(Framework.MEGATRON, "a") == "a"
    assert version_text(Framework.TORCHTITAN, "d") == "d"
    assert version_text(Framework.MEGATRON, None) == Framework.MEGATRON.record.exports
    assert release_for("megatron", Framework.MEGATRON, "core 0.12") == "core 0.12"
    assert release_for("torchtitan", Framework.MEGATRON, "core 0.12") is None
