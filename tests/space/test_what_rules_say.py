"""What every rule says of the layout that it rejects: which numbers do not fit, and by how much."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

import pytest
from checks.rule_cases import KEYED, REJECTED_QUESTION, rules_of

from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.space.rows import row_of
from layoutopt.optimizer.specs.layout import Layout

if TYPE_CHECKING:
    from collections.abc import Callable

    from checks.rule_cases import Workbench

    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.model import ModelSpec, TrainingSpec

SAID = {
    "world_size_product-any-newest":
        "tp 2 x cp 1 x pp 1 x dp 4 = 8, but 16 GPUs are launched; tp x cp x pp = 2 must divide them",
    "tp_supported-llm-foundry-newest": "tp 2, but llm-foundry has no tp axis",
    "cp_supported-llm-foundry-newest": "cp 2, but llm-foundry has no cp axis",
    "pp_supported-accelerate-newest": "pp 4, but accelerate has no pp axis",
    "vp_supported-nanotron-newest": "vp 2, but nanotron has no vp axis",
    "ep_supported-nanotron-newest": "ep 2, but nanotron has no ep axis",
    "gbs_mod_mbs_dp-any-newest": "dp 16 x micro-batch 1 x 3 micro-batches = 48, not the global batch 32",
    "heads_mod_tp-megatron-newest": "heads 8 % tp 16 = 8",
    "kv_heads_mod_tp-megatron-core 0.15": "key-value heads 4 % tp 8 = 4 and tp 8 % key-value heads 4 = 0",
    "kv_heads_mod_tp-any-newest": "key-value heads 4 % tp 6 = 4 and tp 6 % key-value heads 4 = 2",
    "heads_mod_kv_heads-nanotron-newest": "heads 8 % key-value heads 3 = 2",
    "mamba_heads_mod_tp-megatron-newest": "Mamba heads 12 % tp 8 = 4, groups 4 % tp = 4",
    "linear_heads_mod_tp-megatron-newest": "key heads 4 of linear attention over tp 8, cp 1",
    "linear_heads_mod_cp-megatron-newest": "key heads 4 of linear attention over tp 4, cp 2",
    "ffn_mod_tp-megatron-newest": "MLP width 1028 % tp 8 = 4",
    "seq_mod_cp_tp-megatron-newest": "sequence 1,024 % 2,048 = 1,024 with tp 4, cp 512",
    "seq_mod_cp_tp-torchtitan-newest": "micro-batch of 1,000 tokens % 16 = 8",
    "seq_mod_cp_tp-torchtitan-era A": "sequence 1,000 % (tp 8 x 2 x cp 1) = 8",
    "ulysses_heads-megatron-newest":
        "head-scattering cp 8 over 8 heads and 4 key-value heads per tensor rank",
    "window_needs_gathered_cp-megatron-newest":
        "sliding-window attention with cp 2 over p2p; use a2a or all_gather",
    "sparse_needs_gathered_cp-megatron-newest": "sparse attention with cp 2 over p2p; use all_gather",
    "sparse_without_cp-deepspeed-newest": "sparse attention with cp 2",
    "linear_without_cp-megatron-core 0.17": "linear attention with cp 2",
    "moe_needs_sp-megatron-newest": "mixture of experts with tp 2 but no sequence parallelism",
    "sp_or_ulysses-megatron-deepspeed-newest": "sequence parallelism together with Ulysses degree 2",
    "ulysses_alone-megatron-deepspeed-newest": "Ulysses degree 4 with tp 2 and pp 1",
    "sp_supported-deepspeed-newest": "tp 2 with sequence parallelism",
    "sp_with_tp-torchtitan-v0.2.2": "tp 2 without sequence parallelism",
    "cp_needs_qwen-nanotron-newest": "cp 2 for test",
    "stages_hold_blocks-any-newest": (
        "pp 2 x vp 6 = 12 virtual stages for 8 blocks; only the first and the last may hold none, so at most 10"
    ),
    "layers_mod_pp_vp-megatron-newest": "layers 8 / pp 4 = 2 per rank, % vp 3 = 2; no layer may be dropped",
    "stage_split-megatron-core 0.12": "megatron has no split of 8 layers over pp 4 x vp 3; 8 % 12 = 8",
    "windows_supported-megatron-core 0.13": "test has layers with a sliding window",
    "model_supported-nanotron-newest": "nanotron has no mixture of experts, which test needs",
    "pipeline_needs_modules-deepspeed-newest": "pp 4 of a Hugging Face model",
    "tied_with_pp-torchtitan-newest": "tied embeddings with pp 4",
    "mtp_with_pp-torchtitan-newest": "multi-token prediction layers with pp 4",
    "vp_needs_pp-any-newest": "vp 2 with pp 1",
    "microbatches_ge_pp-megatron-newest": (
        "3 micro-batches < pp 4; m = 32 / (micro-batch 1 x dp 4): "
        "raise the global batch, or lower pp, dp or the micro-batch"
    ),
    "interleaved_groups-megatron-newest": (
        "9 micro-batches in groups of 4 leave 1, which must be 0 or at least pp 4; m = 32 / (micro-batch 1 x dp 4)"
    ),
    "interleaved_groups-megatron-newest#2": (
        "14 micro-batches in groups of 6 leave 2, which must be 0 or at least pp 4; m = 32 / (micro-batch 1 x dp 4)"
    ),
    "interleaved_rounds-any-newest": "9 micro-batches % 2 rounds (m // pp 4) = 1",
    "zero_bubble_without_sp-megatron-deepspeed-newest": "schedule zb-h1 with sequence parallelism",
    "schedule_chunks-any-newest": "schedule 1f1b runs 1 to 1 chunks per rank, not vp 2",
    "schedule_micro_batches-any-newest": "schedule dualpipe needs m >= 2 x pp 4, m is 7; both must be even",
    "experts_mod_ep-any-newest": "experts 8 % ep 16 = 8",
    "expert_world_product-any-newest": (
        "etp 1 x ep 8 x pp 4 = 32 doesn't divide tp 1 x cp 1 x pp 4 x dp 4 = 16 GPUs; "
        "an unset etp means etp = tp in megatron-core"
    ),
    "dp_mod_ep-megatron-core 0.9": "dp 4 % ep 8 = 4",
    "ep_without_cp-megatron-core 0.7": "ep 2 together with cp 2",
    "etp_supported-megatron-core 0.9": "etp 1 with tp 2 and ep 1",
    "expert_ffn_mod_etp-megatron-newest": "expert width 512 % etp 3 = 2",
    "ep_within_nvlink-megatron-newest":
        "hybridep among 12 ranks with NVLink domains of 8; others have no such rule",
    "dispatch_kernel_tokens-torchtitan-newest": "deepep with ep 1 and 1,024 tokens over cp x tp = 1",
    "zero_supported-nanotron-newest": "nanotron can't launch ZeRO stage 3",
    "zero_with_pp-deepspeed-newest": "ZeRO-2 with pp 4; use ZeRO-1 with the pipeline, or ZeRO-2 without it",
    "ddp_alone-torchtitan-v0.2.2": "ZeRO-0 with tp 2, cp 1, dp 8",
    "savers_need_zero-megatron-newest": "bf16-moments with ZeRO-0",
    "zero3_experts_alone-deepspeed-newest": "ZeRO-3 with ep 2, tp 2, cp 1",
    "fsdp2_axes-megatron-newest": "FSDP2 with pp 4, ep 1, zero 3, bf16",
    "megatron_fsdp_v2_axes-megatron-newest": "Megatron-FSDP version 2 with pp 1, tp 2, cp 1",
    "hsdp_shard_divides-any-newest": "shard groups of 6 ranks in dp 16 x cp 1 = 16",
    "hsdp_supported-deepspeed-0.19.6": "deepspeed shards only ZeRO 3 inside groups, not ZeRO-1",
    "hsdp_supported-deepspeed-newest": "deepspeed shards no ZeRO stage inside groups, not ZeRO-3",
    "replicas_divide_expert_dp-megatron-newest": "expert dp 2 % 4 replicas = 2",
    "hsdp_shard_mod_cp-torchtitan-newest": "shard groups of 2 ranks % cp 4 = 2",
    "shard_holds_experts-torchtitan-newest": "(dp_shard x cp 4 x tp 1) % (ep 8 x etp 1) = 4",
    "expert_dp_equals_dp-megatron-newest": "expert dp 4 differs from dp 2 in the order tp-cp-ep-pp-dp",
    "order_without_cp_or_ep-megatron-core 0.10": "cp 2 and ep 1 in the order tp-cp-ep-pp-dp",
    "shard_nests_axes-any-newest": "shard groups of 6 ranks across cp 4 and dp 6 in the order cp-tp-ep-dp-pp",
    "expert_grid_nests-any-newest":
        "etp 1 x ep 8 straddles the pipeline axis in the order tp-pp-cp-ep-dp",
    "fsdp_mesh_order-megatron-bridge-newest": "ZeRO-3 in the order tp-cp-ep-pp-dp",
    "recompute_groups_supported-torchtitan-newest":
        "torchtitan recomputes every layer from its own input, not groups of 4",
    "recompute_groups_divide-any-newest": "8 layers are no whole groups of 5",
    "recompute_modules_present-megatron-newest": "the model has no moe_act",
    "recompute_with_delayed_fp8-megatron-newest": "recomputing layernorm with delayed fp8 scaling",
    "recompute_with_fp8-megatron-core 0.13": "recomputing layernorm in fp8",
    "optimizer_sharding-megatron-newest": "muon with ZeRO-2",
    "muon_owner_needs_zero-any-newest": "muon owner with ZeRO-0",
    "savers_need_adam-any-newest": "bf16-moments with muon",
    "grouped_gemm_fp16-megatron-core 0.13": "8 experts in grouped GEMMs in fp16",
    "fp8_shapes-megatron-newest": "width 1088 / 8 % 16 = 8 in fp8",
    "fp8_shapes-megatron-newest#2": "6 tokens per rank % 8 = 6 in fp8",
    "fp8_shapes-megatron-newest#3": "width 96 / 4 % 16 = 8 in fp8",
    "moe_batch_overlap-megatron-newest#2": "overlap of expert all-to-all with vp 1 with pp 4 (needs vp > 1)",
    "tp_overlap_needs_sp-megatron-newest": "tp_comm_overlap needs sequence parallelism, but sp 0, tp 2",
    "cuda_device_max_connections-megatron-newest":
        "CUDA_DEVICE_MAX_CONNECTIONS is 1, must be other than 1 for FSDP",
    "cuda_device_max_connections-megatron-newest#2":
        "CUDA_DEVICE_MAX_CONNECTIONS is 8, must be 1 for tp or cp > 1 before Blackwell",
    "vocab_mod_tp-megatron-bridge-newest": "vocabulary 1,026 % tp 4 = 2; padded it would have 1,536 rows",
}  # fmt: skip
"""The text of each case in front of what it offers."""


@pytest.mark.parametrize("key", SAID)
def test_what_does_not_fit_is_said(key: str, bench: Workbench) -> None:
    """Every number in the sentence is the layout's or the question's, and its factors are the same numbers."""
    case = KEYED[key]
    ctx = bench.context(case, REJECTED_QUESTION.get(str(case), {}))
    layout = Layout(**case.bad)
    rule = next(rule for rule in rules_of(case, ctx) if not rule.holds(row_of(layout), ctx)[0])
    text, factors = rule.detail(layout, ctx)
    assert text == SAID[key]
    assert rule.explain(layout, ctx).message.startswith(text)
    own, digits = {one.name for one in fields(Layout)}, text.replace(",", "")
    for name, value in factors.items():
        if name in own and isinstance(value, int):
            assert value == int(getattr(layout, name) or 0), name
        elif value and name != "multiple":  # a product that is written out
            assert str(value) in digits, name


@pytest.mark.parametrize(
    ("layout", "rule", "text"),
    [
        (
            Layout(dp=5), "gbs_mod_mbs_dp",
            "global batch 32 % (micro-batch 1 x dp 5) = 2; nearest global batches: 30, 35",
        ),
        (
            Layout(dp=64), "gbs_mod_mbs_dp",
            "global batch 32 % (micro-batch 1 x dp 64) = 32; nearest global batches: 64",
        ),
        (Layout(zero=0, dp=8, hsdp_shard=4), "hsdp_shard_divides",
         "shard groups of 4 ranks in dp 8 x cp 1 = 8 with ZeRO-0, which shards nothing"),
        (Layout(ep=4, dp=4), "experts_mod_ep", "ep 4, but the model has no experts"),
    ],
)  # fmt: skip
def test_other_sentences_of_a_rule(
    layout: Layout,
    rule: str,
    text: str,
    make_model: Callable[..., ModelSpec],
    make_training: Callable[..., TrainingSpec],
    make_cluster: Callable[..., ClusterSpec],
) -> None:
    """What a rule says where its numbers lie otherwise."""
    from layoutopt.optimizer.space.check import check_layout

    broken = check_layout(layout, make_model(), make_training(), make_cluster(), Framework.ANY)
    (message,) = [reason.message for reason in broken if reason.rule == rule]
    assert message.partition("; valid")[0] == text
