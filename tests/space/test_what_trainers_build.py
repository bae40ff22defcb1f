"""Parts of models that a trainer's code has no layers for, up to the release that brought them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from checks.agreement import dense_model, dense_then_moe

from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.space.context import make_context
from layoutopt.optimizer.space.rows import row_of
from layoutopt.optimizer.space.rules.mesh_orders import RULES as ORDERS
from layoutopt.optimizer.space.rules.models import RULES
from layoutopt.optimizer.space.rules.precision import RULES as PRECISION
from layoutopt.optimizer.specs.layout import Layout
from layoutopt.optimizer.specs.loading import load_cluster, load_workload
from layoutopt.optimizer.specs.model import IndexerSpec, LayerShape, Mixer, MlaSpec, Run
from layoutopt.optimizer.specs.vocabulary import Precision

if TYPE_CHECKING:
    from layoutopt.optimizer.specs.model import ModelSpec

DENSE = dense_model(4)
EXPERTS = dense_then_moe(4, mtp_layers=0)
MLA = MlaSpec(q_lora_rank=64, kv_lora_rank=64, qk_nope_head_dim=32, qk_rope_head_dim=32, v_head_dim=64)
INDEXER = IndexerSpec(heads=4, head_dim=32, top_k=64)
MEGATRON, BRIDGE = Framework.MEGATRON, Framework.MEGATRON_BRIDGE
TORCHTITAN, NANOTRON, DEEPSPEED = Framework.TORCHTITAN, Framework.NANOTRON, Framework.MEGATRON_DEEPSPEED


def routed(**changes: Any) -> ModelSpec:
    """Experts in every layer, none of them shared, with changes."""
    assert EXPERTS.moe is not None
    moe = replace(EXPERTS.moe, **{"shared_ffn": 0, **changes})
    return replace(EXPERTS, moe=moe, runs=(replace(EXPERTS.runs[1], count=4),))


def of(**changes: Any) -> ModelSpec:
    """A dense model whose layers all differ so from Llama's."""
    return replace(DENSE, runs=(Run(name="dense", block=(LayerShape(ffn=2816, **changes),), count=4),))


def missing(framework: Framework, model: ModelSpec, release: str | None) -> str:
    """What the rule says that the framework lacks, nothing where it holds."""
    training, cluster = load_workload("llama3-8b").training, load_cluster("h100x64")
    rule = next(one for one in RULES if framework in one.frameworks)
    ctx = make_context(model, training, cluster, framework, release)
    return str(rule.detail(Layout(), ctx)[1]["missing"])


@pytest.mark.parametrize(
    ("framework", "model", "last", "first", "words"),
    [
        (MEGATRON, replace(DENSE, mtp_layers=1), "core 0.11", "core 0.12", "multi-token prediction"),
        (MEGATRON, routed(router_bias=True), "core 0.10", "core 0.11", "router biases"),
        (MEGATRON, replace(DENSE, mla=MLA), "core 0.9", "core 0.10", "multi-head latent attention"),
        (MEGATRON, EXPERTS, "core 0.9", "core 0.10", "shared experts, or dense layers among sparse ones"),
        (MEGATRON, routed(shared_ffn=512), "core 0.9", "core 0.10", "shared experts, or dense layers among"),
        (
            MEGATRON,
            routed(shared_ffn=512, shared_gate=True),
            "core 0.15",
            "core 0.16",
            "gates of shared experts",
        ),
        (MEGATRON, replace(DENSE, qk_norm=True), "core 0.5", "core 0.6", "query and key norms"),
        (MEGATRON, replace(DENSE, attention_gate=True), "core 0.15", "core 0.16", "gates on attention"),
        (MEGATRON, of(mixer=Mixer.GATED_DELTA), "core 0.15", "core 0.16", "gated delta rule"),
        (MEGATRON, replace(DENSE, mla=MLA, indexer=INDEXER), "core 0.17", "core 0.18", "sparse attention"),
        (BRIDGE, of(mixer=Mixer.GATED_DELTA), "core 0.15", "core 0.16", "gated delta rule"),
        (
            BRIDGE,
            replace(of(mixer=Mixer.GATED_DELTA), attention_gate=True),
            "core 0.15",
            "core 0.16",
            "gates on attention",
        ),
        (BRIDGE, replace(DENSE, mla=MLA, indexer=INDEXER), "core 0.18", "core 0.19", "sparse attention"),
    ],
)
def test_a_part_is_missing_up_to_the_release_that_brought_it(
    framework: Framework, model: ModelSpec, last: str, first: str, words: str
) -> None:
    """Missing in the last release without it, there in the next one."""
    assert words in missing(framework, model, last)
    assert missing(framework, model, first) == ""


@pytest.mark.parametrize(
    ("frameworks", "model", "words"),
    [
        ((MEGATRON, BRIDGE), of(mixer=Mixer.LIGHTNING), "lightning attention"),
        ((MEGATRON, BRIDGE), of(mixer=Mixer.KIMI_DELTA), "Kimi delta attention"),
        ((TORCHTITAN, NANOTRON, DEEPSPEED), of(mixer=Mixer.NONE), "layers without attention"),
        ((TORCHTITAN, NANOTRON, DEEPSPEED), of(bidirectional=True), "encoder layers"),
        ((NANOTRON, DEEPSPEED), of(window=128), "sliding windows"),
        ((NANOTRON, DEEPSPEED), replace(DENSE, qk_norm=True), "query and key norms"),
        ((NANOTRON, DEEPSPEED), replace(DENSE, mla=MLA), "multi-head latent attention"),
        ((NANOTRON, DEEPSPEED), replace(DENSE, mtp_layers=1), "multi-token prediction"),
        ((NANOTRON,), routed(), "mixture of experts"),
        ((DEEPSPEED,), routed(shared_ffn=512), "shared experts, or dense layers among sparse ones"),
        ((NANOTRON,), replace(DENSE, head_dim=128), "head dimension other than hidden/heads"),
        ((NANOTRON,), replace(DENSE, gated=False), "LayerNorm, ungated MLPs or full biases"),
        ((MEGATRON,), replace(DENSE, indexer=INDEXER), "sparse attention without latent attention"),
        ((BRIDGE,), replace(DENSE, indexer=INDEXER), "sparse attention"),
        ((BRIDGE,), replace(DENSE, attention_gate=True), "gates on attention"),
        ((TORCHTITAN,), replace(DENSE, layer_norms=4), "layers with 4 norms"),
        ((TORCHTITAN,), replace(DENSE, head_bias=True), "a bias of the output matrix"),
        ((TORCHTITAN,), replace(DENSE, activation_scalars=1), "learned numbers in the activation"),
    ],
)
def test_a_part_that_no_release_has(frameworks: tuple[Framework, ...], model: ModelSpec, words: str) -> None:
    """It is named, and nothing else is; the plain model lacks nothing."""
    for framework in frameworks:
        assert missing(framework, model, None) == words
        assert missing(framework, DENSE, None) == ""


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ((True, True, True, True), ""),
        ((True, False, True, False), ""),
        ((True, False, False, True), ""),
        ((False, True, False, True), "indexers in no period of layers"),
        ((True, False, True, True), "indexers in no period of layers"),
    ],
)
def test_indexers_have_to_come_in_periods_that_begin_with_one(own: tuple[bool, ...], words: str) -> None:
    """Which layers have an indexer is stated as a period; the first layer always has one."""
    shapes = [LayerShape(ffn=2816, sparse=True, indexes=indexes) for indexes in own]
    runs = tuple(Run(name=f"layer {place}", block=(shape,), count=1) for place, shape in enumerate(shapes))
    model = replace(DENSE, mla=MLA, indexer=INDEXER, runs=runs)
    for framework in (MEGATRON, BRIDGE):
        assert missing(framework, model, "core 0.19") == words


@pytest.mark.parametrize(
    ("layout", "length", "said"),
    [
        (Layout(precision=Precision.FP8, micro_batch=3), 4100, "12,300 tokens per rank % 8 = 4 in fp8"),
        (Layout(precision=Precision.FP8, cp=3, tp=2, sp=True), 4104, "684 tokens per rank % 8 = 4 in fp8"),
        (Layout(precision=Precision.FP8, tp=128), 4096, "width 1024 / 128 % 16 = 8 in fp8"),
    ],
)
def test_shapes_that_eight_bits_refuse_are_told_with_their_numbers(
    layout: Layout, length: int, said: str
) -> None:
    """Tokens of all micro-batch's sequences on a rank first, then the first width that does not divide."""
    cluster, training = (
        load_cluster("h100x64"),
        replace(load_workload("llama3-8b").training, sequence_length=length),
    )
    ctx = make_context(DENSE, training, cluster, MEGATRON)
    rule = next(one for one in PRECISION if one.name == "fp8_shapes")
    assert not rule.holds(row_of(layout), ctx)[0]
    assert rule.detail(layout, ctx)[0] == said


@pytest.mark.parametrize(("ep", "known"), [(1, True), (2, False)])
def test_an_order_that_only_experts_tell_apart_is_known_without_them(ep: int, known: bool) -> None:
    """Megatron numbers expert-data-parallel ranks outside expert-parallel ones; of one expert rank both are the same."""
    workload, cluster = load_workload("mixtral-8x7b"), load_cluster("h100x64")
    ctx = make_context(workload.model, workload.training, cluster, MEGATRON)
    rule = next(one for one in ORDERS if one.name == "order_supported" and MEGATRON in one.frameworks)
    for order, holds in (("tp-cp-ep-dp-pp", True), ("tp-cp-dp-ep-pp", known)):
        assert bool(rule.holds(row_of(Layout(mesh_order=order, ep=ep, dp=8)), ctx)[0]) is holds


@pytest.mark.parametrize("framework", [MEGATRON, BRIDGE, TORCHTITAN])
def test_no_window_stands_for_chunks(framework: Framework) -> None:
    """Tokens that attend within chunks of the sequence are refused; a chunk of all of it (8,192) is plain attention."""
    assert missing(framework, of(window=2048, chunked=True), None) == "chunked attention"
    assert not missing(framework, of(window=8192, chunked=True), None)
    assert not missing(framework, of(window=2048), None)


def test_torchtitan_had_chunks() -> None:
    """Its Llama 4, with attention of fixed blocks, was there until 2026 (pytorch/torchtitan#3573)."""
    assert not missing(TORCHTITAN, of(window=2048, chunked=True), "era B")
