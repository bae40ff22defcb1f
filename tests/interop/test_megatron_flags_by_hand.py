"""What Megatron-LM's exporter writes for one switch at a time: the flag, its value, its release, nothing where it is off."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from checks.agreement import windowed
from checks.targets import DENSE, EXPERTS, FULL, OVERLAPS, on, says, staged, target

from layoutopt.optimizer.frameworks.preset import NarrowWeights
from layoutopt.optimizer.interop.megatron import write, write_model
from layoutopt.optimizer.specs.layout import Recompute
from layoutopt.optimizer.specs.model import OptimizerSpec
from layoutopt.optimizer.specs.vocabulary import (
    CpComm,
    CudaGraph,
    Dispatcher,
    Fp8Recipe,
    Granularity,
    MuonSharing,
    Optimizer,
    Precision,
    Saver,
)

RUN: list[tuple[Any, dict[str, Any], dict[str, Any]]] = [
    (
        write.batch_flags, {"training": {"total_tokens": 4.8e6 * 2048 / 1000}},
        {
            "--seq-length": 2048, "--max-position-embeddings": 2048, "--micro-batch-size": 2, "--global-batch-size": 48,
            "--train-iters": 100,
        },
    ),
    (write.batch_flags, {"model": replace(DENSE, learned_positions=4096)}, {"--max-position-embeddings": 4096,
        "--train-iters": 1000}),
    (
        write.overlap_flags, {"preset": {"dp_overlap": True, "param_overlap": True, "tp_overlap": True, "pp_overlap": True}},
        {"--overlap-grad-reduce": True, "--overlap-param-gather": True},
    ),
    (write.overlap_flags, {"preset": {"dp_overlap": False, "param_overlap": True}}, {}),
    (write.overlap_flags, {"preset": {"dp_overlap": True, "param_overlap": True}, "zero": 0},
        {"--overlap-grad-reduce": True}),
    (write.overlap_flags, {"preset": {"dp_overlap": True, "param_overlap": False}, "dp": 1, "micro_batches": 24}, {}),
    (
        write.overlap_flags,
        {"preset": {"tp_overlap": True, "dp_overlap": False}, "tp": 2, "sp": True},
        {"--tp-comm-overlap": True},
    ),
    (
        write.overlap_flags,
        {"preset": {"pp_overlap": False, "dp_overlap": False}, **staged({"pp": 2, "vp": 2}, 2, 2, 2, 2)},
        {"--no-overlap-p2p-communication": True},
    ),
    (write.overlap_flags, {"preset": {"pp_overlap": False, "dp_overlap": False}, **staged({"pp": 2}, 4, 4)}, {}),
    (
        write.overlap_flags,
        {"preset": {**OVERLAPS, "delay_wgrad": True, "dp_overlap": False}, "model": EXPERTS, "ep": 2},
        {"--overlap-moe-expert-parallel-comm": True, "--delay-wgrad-compute": True},
    ),
    (write.overlap_flags, {"preset": {**OVERLAPS, "delay_wgrad": True, "dp_overlap": False}, "model": EXPERTS}, {}),
    (
        write.overlap_flags,
        {"preset": {**OVERLAPS, "dp_overlap": False}, "model": EXPERTS, "ep": 2, **staged({"pp": 2}, 4, 4, model=EXPERTS)},
        {},
    ),
    (
        write.overlap_flags,
        {"preset": {"ep_overlap": "shared", "dp_overlap": False}, "model": EXPERTS},
        {"--moe-shared-expert-overlap": True},
    ),
    (write.overlap_flags, {"preset": {"ep_overlap": "shared", "dp_overlap": False}}, {}),
    (write.recompute_flags, {}, {}),
    (
        write.recompute_flags, {"recompute": Recompute(granularity=Granularity.SELECTIVE, modules=("mlp",))},
        {"--recompute-granularity": "selective", "--recompute-modules": ["mlp"]},
    ),
    (
        write.recompute_flags,
        {"recompute": Recompute(granularity=Granularity.SELECTIVE, modules=("mlp",)), "release": (0, 11)},
        {"--recompute-granularity": "selective"},
    ),
    (
        write.recompute_flags, {"recompute": FULL, **staged({"pp": 2}, 4, 4, limit=8)},
        {"--recompute-granularity": "full", "--recompute-method": "uniform", "--recompute-num-layers": 1},
    ),
    (
        write.recompute_flags,
        {"recompute": Recompute(granularity=Granularity.FULL, group=2), **staged({"pp": 2}, 4, 4, limit=8)},
        {"--recompute-granularity": "full", "--recompute-method": "uniform", "--recompute-num-layers": 2},
    ),
    (
        write.recompute_flags, {"recompute": FULL, **staged({"pp": 2}, 4, 4, limit=3)},
        {"--recompute-granularity": "full", "--recompute-method": "block", "--recompute-num-layers": 3},
    ),
    (
        write.dispatch_flags, {"model": EXPERTS, "preset": {"dispatcher": Dispatcher.ALLTOALL}, "ep": 2},
        {"--moe-grouped-gemm": True, "--moe-token-dispatcher-type": "alltoall"},
    ),
    (
        write.dispatch_flags, {"model": EXPERTS, "preset": {"dispatcher": Dispatcher.DEEPEP}},
        {"--moe-grouped-gemm": True, "--moe-token-dispatcher-type": "alltoall"},
    ),
    (
        write.dispatch_flags, {"model": EXPERTS, "preset": {"dispatcher": Dispatcher.DEEPEP}, "ep": 2, "release": (0, 16)},
        {"--moe-grouped-gemm": True, "--moe-token-dispatcher-type": "flex", "--moe-flex-dispatcher-backend": "deepep"},
    ),
    (
        write.dispatch_flags, {"model": EXPERTS, "preset": {"dispatcher": Dispatcher.DEEPEP}, "ep": 2, "release": (0, 15)},
        {"--moe-grouped-gemm": True, "--moe-token-dispatcher-type": "flex", "--moe-enable-deepep": True},
    ),
    (write.graph_flags, {"preset": {"cuda_graph": CudaGraph.NONE}}, {}),
    (
        write.graph_flags, {"preset": {"cuda_graph": CudaGraph.FULL}, "release": (0, 18)},
        {"--cuda-graph-impl": "full_iteration", "--no-check-for-nan-in-loss-and-grad": True, "--te-rng-tracker": True},
    ),
    (
        write.graph_flags, {"preset": {"cuda_graph": CudaGraph.FULL}, "release": (0, 17), "model": EXPERTS, "ep": 2},
        {
            "--cuda-graph-impl": "local", "--cuda-graph-scope": "full_iteration",
            "--moe-pad-experts-for-cuda-graph-inference": True, "--no-check-for-nan-in-loss-and-grad": True,
            "--te-rng-tracker": True,
        },
    ),
    (
        write.graph_flags, {"preset": {"cuda_graph": CudaGraph.FULL}, "release": (0, 15), "model": EXPERTS, "ep": 2},
        {
            "--cuda-graph-impl": "local", "--cuda-graph-scope": "full_iteration",
            "--no-check-for-nan-in-loss-and-grad": True, "--te-rng-tracker": True,
        },
    ),
    (
        write.graph_flags, {"preset": {"cuda_graph": CudaGraph.PARTIAL, "dispatcher": Dispatcher.DEEPEP},
            "model": EXPERTS, "release": (0, 18)},
        {
            "--cuda-graph-impl": "transformer_engine", "--te-rng-tracker": True,
            "--cuda-graph-modules": ["attn", "mlp", "moe_router", "moe_preprocess"],
        },
    ),
    (write_model.mtp_flags, {"model": replace(DENSE, mtp_layers=2)}, {"--mtp-num-layers": 2}),
    (write_model.window_flags, {"model": windowed(4)}, {"--window-size": "511,0",
        "--window-attn-skip-freq": "([1]*1+[0]*1+[1]*1+[0]*1)"}),
]  # fmt: skip


@pytest.mark.parametrize(("function", "changes", "expected"), RUN)
def test_flags_of_megatron(function: Any, changes: dict[str, Any], expected: dict[str, Any]) -> None:
    """Every flag that one part of the launch writes."""
    asked = {**changes, "preset": says(changes.get("preset", {}))}
    made = target(**asked)
    given = made.model if function in (write_model.mtp_flags, write_model.window_flags) else made
    found = on(function(given))
    assert {name: found.get(name) for name in expected} == expected
    if function is not write.batch_flags:
        assert found == expected


NOTED: list[tuple[Any, dict[str, Any], dict[str, Any], int]] = [
    (write.saver_flags, {}, {}, 0),
    (
        write.saver_flags, {"savers": (Saver.BF16_MOMENTS,)},
        {
            "--use-precision-aware-optimizer": True, "--main-grads-dtype": "fp32", "--exp-avg-dtype": "bf16",
            "--exp-avg-sq-dtype": "bf16",
        }, 0,
    ),
    (write.saver_flags, {"savers": (Saver.BF16_MOMENTS,), "release": (0, 12)}, {}, 1),
    (
        write.saver_flags, {"training": {"moment_bytes": 2}},
        {
            "--use-precision-aware-optimizer": True, "--main-grads-dtype": "fp32", "--exp-avg-dtype": "bf16",
            "--exp-avg-sq-dtype": "bf16",
        }, 0,
    ),
    (write.saver_flags, {"training": {"moment_bytes": 2}, "zero": 0}, {}, 0),
    (
        write.saver_flags, {"savers": (Saver.OFFLOAD_OPTIMIZER,), "zero": 0},
        {
            "--use-distributed-optimizer": True, "--use-precision-aware-optimizer": True, "--optimizer-cpu-offload": True,
            "--optimizer-offload-fraction": "1.0",
        }, 0,
    ),
    (
        write.saver_flags, {"savers": (Saver.OFFLOAD_ACTIVATIONS,),
            "recompute": Recompute(granularity=Granularity.SELECTIVE, modules=("moe",))},
        {
            "--fine-grained-activation-offloading": True,
            "--offload-modules": ["attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm"],
        }, 0,
    ),
    (write.precision_flags, {}, {"--bf16": True}, 0),
    (write.precision_flags, {"precision": Precision.FP16}, {"--fp16": True}, 0),
    (write.precision_flags, {"precision": Precision.NVFP4, "cluster": "b200x64"}, {"--bf16": True,
        "--fp4-format": "e2m1"}, 0),
    (
        write.precision_flags, {"precision": Precision.FP8, "preset": {"narrow_weights": NarrowWeights.ALONE}},
        {"--bf16": True, "--fp8-format": "hybrid", "--fp8-recipe": "delayed", "--fp8-param-gather": True}, 1,
    ),
    (
        write.precision_flags, {"precision": Precision.FP8, "training": {"fp8_recipe": Fp8Recipe.BLOCKWISE}},
        {"--bf16": True, "--fp8-format": "e4m3", "--fp8-recipe": "blockwise"}, 0,
    ),
    (
        write.precision_flags, {"precision": Precision.FP8, "training": {"fp8_recipe": Fp8Recipe.CURRENT},
            "release": (0, 11)},
        {"--bf16": True, "--fp8-format": "hybrid"}, 0,
    ),
    (
        write.precision_flags, {"precision": Precision.MXFP8, "cluster": "b200x64"},
        {"--bf16": True, "--fp8-format": "e4m3", "--fp8-recipe": "mxfp8"}, 0,
    ),
    (
        write.optimizer_flags, {"zero": 0},
        {"--optimizer": "adam", "--lr": "1.5e-4", "--min-lr": "1.5e-5", "--lr-decay-style": "cosine"}, 0,
    ),
    (
        write.optimizer_flags, {"hsdp_shard": 4, "training": {"grad_bytes": 2}},
        {
            "--optimizer": "adam", "--lr": "1.5e-4", "--min-lr": "1.5e-5", "--lr-decay-style": "cosine",
            "--use-distributed-optimizer": True, "--num-distributed-optimizer-instances": 2, "--grad-reduce-in-bf16": True,
        }, 0,
    ),
    (
        write.optimizer_flags, {"training": {"grad_bytes": 2}, "release": (0, 11)},
        {
            "--optimizer": "adam", "--lr": "1.5e-4", "--min-lr": "1.5e-5", "--lr-decay-style": "cosine",
            "--use-distributed-optimizer": True,
        }, 1,
    ),
    (
        write.optimizer_flags, {"zero": 2, **staged({"pp": 2}, 4, 4)},
        {
            "--optimizer": "adam", "--lr": "1.5e-4", "--min-lr": "1.5e-5", "--lr-decay-style": "cosine",
            "--use-distributed-optimizer": True, "--use-megatron-fsdp": True,
            "--data-parallel-sharding-strategy": "optim_grads",
        }, 1,
    ),
    (
        write.optimizer_flags, {"zero": 3, "release": (0, 13)},
        {
            "--optimizer": "adam", "--lr": "1.5e-4", "--min-lr": "1.5e-5", "--lr-decay-style": "cosine",
            "--use-distributed-optimizer": True, "--use-custom-fsdp": True, "--no-gradient-accumulation-fusion": True,
            "--data-parallel-sharding-strategy": "optim_grads_params",
        }, 0,
    ),
    (
        write.optimizer_flags,
        {"training": {"optimizer": OptimizerSpec(kind=Optimizer.MUON, distribution=MuonSharing.DISTRIBUTED)},
            "release": (0, 17)},
        {
            "--optimizer": "dist_muon", "--muon-tp-mode": "distributed", "--muon-num-ns-steps": "5", "--lr": "1.5e-4",
            "--min-lr": "1.5e-5", "--lr-decay-style": "cosine",
        }, 0,
    ),
    (
        write.optimizer_flags,
        {"training": {"optimizer": OptimizerSpec(kind=Optimizer.MUON, steps=3)}, "release": (0, 18)},
        {
            "--optimizer": "muon", "--muon-tp-mode": "duplicated", "--muon-num-ns-steps": "3", "--lr": "1.5e-4",
            "--min-lr": "1.5e-5", "--lr-decay-style": "cosine", "--use-distributed-optimizer": True,
        }, 0,
    ),
    (
        write.cp_flags, {"cp": 2, "dp": 4, "preset": {"cp_comm": CpComm.P2P}},
        {"--cp-comm-type": ["p2p"]}, 0,
    ),
    (write.cp_flags, {"cp": 2, "dp": 4, "release": (0, 9)}, {}, 0),
    (
        write.cp_flags, {"cp": 2, "dp": 4, "preset": {"cp_comm": CpComm.P2P}, "model": windowed(4)},
        {"--cp-comm-type": ["all_gather", "p2p", "all_gather", "p2p"]}, 0,
    ),
    (
        write.cp_flags, {"cp": 16, "dp": 4, "preset": {"cp_comm": CpComm.A2A_P2P}},
        {"--cp-comm-type": ["a2a+p2p"], "--hierarchical-context-parallel-sizes": [8, 2]}, 1,
    ),
]  # fmt: skip


@pytest.mark.parametrize(("function", "changes", "expected", "count"), NOTED)
def test_flags_of_megatron_that_may_be_noted(
    function: Any, changes: dict[str, Any], expected: dict[str, Any], count: int
) -> None:
    """What is written, and how much is said about it."""
    notes: list[str] = []
    assert on(function(target(**changes), notes)) == expected
    assert len(notes) == count, notes


@pytest.mark.parametrize(
    ("changes", "line", "count"),
    [
        ({"zero": 2}, "unset CUDA_DEVICE_MAX_CONNECTIONS", 1),
        ({"release": (0, 11)}, "export CUDA_DEVICE_MAX_CONNECTIONS=1 ", 0),
        ({}, "export CUDA_DEVICE_MAX_CONNECTIONS=32", 0),
        ({"tp": 2, "dp": 4}, "export CUDA_DEVICE_MAX_CONNECTIONS=1 ", 0),
        ({"cp": 2, "dp": 4}, "export CUDA_DEVICE_MAX_CONNECTIONS=1 ", 0),
        ({"tp": 2, "dp": 4, "cluster": "b200x64"}, "export CUDA_DEVICE_MAX_CONNECTIONS=32", 0),
        (
            {"tp": 2, "dp": 4, "ep": 2, "model": EXPERTS, "preset": says({"ep_overlap": "batch"})},
            "export CUDA_DEVICE_MAX_CONNECTIONS=32  # merged",
            0,
        ),
    ],
)
def test_connections_of_a_device(changes: dict[str, Any], line: str, count: int) -> None:
    """One where streams are ordered by it, never under FSDP."""
    notes: list[str] = []
    assert write.environment(target(**changes), notes).startswith(line)
    assert len(notes) == count


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"release": (0, 16)}, {"--ckpt-format": "torch_dist", "--save-interval": 100, "--async-save": True,
            "--use-persistent-ckpt-worker": True}),
        ({"release": (0, 15)}, {"--ckpt-format": "torch_dist", "--save-interval": 100, "--async-save": True}),
        ({"release": (0, 6)}, {"--ckpt-format": "torch_dist", "--save-interval": 100}),
        ({"zero": 2, "saving": False}, {"--ckpt-format": "fsdp_dtensor"}),
        ({"zero": 2, "saving": False, "release": (0, 13)}, {"--ckpt-format": "torch_dist"}),
    ],
)  # fmt: skip
def test_checkpoints_by_release(changes: dict[str, Any], expected: dict[str, Any]) -> None:
    """Beside tokenizer, vocabulary and data."""
    found = on(write.checkpoint_flags(target(**changes)))
    fixed = {"--tokenizer-type": "NullTokenizer", "--vocab-size": 32_000, "--mock-data": True}
    saved = {"--save": "checkpoints"} if "--save-interval" in expected else {}
    assert found == {**fixed, **saved, **expected}


def test_one_gpu_checks_the_memory_of_a_rank() -> None:
    """Two steps that save nothing, from core 0.16 on."""
    words = [
        [["--train-iters", "1000"], ["--save", "x"], ["--save-interval", "9"], ["--async-save"], ["--bf16"]]
    ]
    check = write.memory_check(target(release=(0, 16)), words)
    assert check.replace("\\\n", "").split() == [
        "WORLD_SIZE=8",
        "RANK=0",
        "LOCAL_RANK=0",
        "MASTER_ADDR=localhost",
        "MASTER_PORT=29500",
        "python",
        "pretrain_gpt.py",
        "--fake-process-group",
        "--train-iters",
        "2",
        "--bf16",
    ]
    assert write.memory_check(target(release=(0, 15)), words).startswith("none")


@pytest.mark.parametrize(
    ("counts", "pp", "vp", "release", "flags"),
    [
        ((4, 4), 2, 1, (0, 16), {}),
        ((2, 2, 2, 2), 2, 2, (0, 16), {"--num-layers-per-virtual-pipeline-stage": 2}),
        ((3, 5), 2, 1, (0, 13), {"--pipeline-model-parallel-layout": "Et*3|t*5L"}),
        ((3, 5), 2, 1, (0, 12), {"--decoder-first-pipeline-num-layers": 3}),
        ((1, 2, 2, 3), 4, 1, (0, 12), {"--decoder-first-pipeline-num-layers": 1, "--decoder-last-pipeline-num-layers": 3}),
        (
            (1, 2, 2, 3), 2, 2, (0, 12),
            {"--num-virtual-stages-per-pipeline-rank": 2, "--account-for-embedding-in-pipeline-split": None},
        ),
    ],
)  # fmt: skip
def test_stages_in_the_words_of_their_release(
    counts: tuple[int, ...], pp: int, vp: int, release: tuple[int, ...], flags: dict[str, Any]
) -> None:
    """Equal ones by their number, others by a layout string, before core 0.13 by their ends."""
    layout = staged({"pp": pp, "vp": vp}, *counts)
    made = target(**layout, release=release)
    made = replace(made, layout=replace(made.layout, stages=layout["stages"]))
    found = on(write.stage_flags(made.layout, made))
    assert found == {name: value for name, value in flags.items() if value is not None}


def test_layout_strings_need_a_release() -> None:
    """Core 0.13; core 0.14 where layers predict."""
    predicting = replace(DENSE, mtp_layers=1)
    asked = [((0, 12), DENSE), ((0, 13), DENSE), ((0, 13), predicting), ((0, 14), predicting)]
    assert [write.takes_string(target(release=release, model=model)) for release, model in asked] == [
        False,
        True,
        False,
        True,
    ]
