"""What one layer keeps for its backward pass, part by part, and what recomputing its modules saves."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from layoutopt.optimizer.cost.activations import (
    _indexer_bytes,
    _mixer_bytes,
    _mlp_bytes,
    _widest,
    layer_activations,
    routed_rows,
)
from layoutopt.optimizer.cost.batch import batch_of_one
from layoutopt.optimizer.cost.factory import build_cost_model
from layoutopt.optimizer.cost.mixers import linear_kept_bytes
from layoutopt.optimizer.frameworks.preset import load_preset
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.specs.layout import Layout
from layoutopt.optimizer.specs.loading import load_cluster, load_workload, override_training
from layoutopt.optimizer.specs.model import (
    IndexerSpec,
    LayerShape,
    LinearSpec,
    MambaSpec,
    Mixer,
    MlaSpec,
    Mlp,
    MoeSpec,
    Norm,
)
from layoutopt.optimizer.specs.vocabulary import Precision

if TYPE_CHECKING:
    from layoutopt.optimizer.cost.work import ComputeContext, Keys

WORKLOAD = override_training(load_workload("llama3-8b"), global_batch=64, sequence_length=4096)
CLUSTER = load_cluster("h100x64")
H, T, L = 4096, 2 * 2048, 2 * 2048 // 4
"""Hidden width, tokens of two half sequences on a context rank, and a tensor rank's share of them."""
DENSE = LayerShape(ffn=14336)
PLAIN: dict[str, Any] = {
    "stored_fp8_inputs": False, "norm_bytes": 2.0, "keeps_gathered_inputs": False, "casts_inputs": False,
    "fused_function": True, "keeps_function_output": True, "fused_sinks": True, "router_input_bytes": 4.0,
    "routed_output_bytes": 2.0, "routed_index_bytes": 0, "fp8_function_inputs": False, "copies_values": False,
    "compiled": False,
}  # fmt: skip
"""Switches of a preset that decide what is kept."""


def asked(
    *, run: dict[str, Any] | None = None, switches: dict[str, Any] | None = None, eight: bool = False, etp: int = 1,
    **model: Any,
) -> tuple[ComputeContext, Keys]:  # fmt: skip
    """Layers of an 8B model on four tensor ranks and two context ranks."""
    preset = replace(load_preset(Framework.MEGATRON), **PLAIN | (switches or {}))
    training = replace(WORKLOAD.training, **{"flash": True, "dropout": False} | (run or {}))
    cost = build_cost_model(replace(WORKLOAD.model, **model), training, CLUSTER, preset=preset)
    layout = Layout(tp=4, sp=True, cp=2, dp=8, etp=etp, micro_batch=2, micro_batches=4)
    comm = cost.comm_context(batch_of_one(layout), layout.mesh_order)
    rates = replace(comm.compute.rates, precision=Precision.FP8) if eight else comm.compute.rates
    return replace(comm.compute, rates=rates), comm.keys


def bytes_of(parts: dict[str, Any]) -> dict[str, float]:
    """Values of the one row."""
    return {name: float(np.ravel(size)[0]) for name, size in parts.items()}


ATTENTION = {
    "input": 2 * L * H,
    "qkv": 2 * T * 128 * (8 + 2 + 2),
    "out": 2 * T * 8 * 128,
    "scores": 4 * T * 8,
}
"""Of 32 heads and 8 key-value heads of 128."""


@pytest.mark.parametrize(("changes", "expected"), [
    ({}, {}), ({"switches": {"casts_inputs": True}}, {"input": 3 * 2 * L * H}),
    ({"switches": {"keeps_gathered_inputs": True}}, {"input": 2 * T * H}), ({"v_head_dim": 64},
     {"qkv": 2 * T * (128 * (8 + 2) + 64 * 2), "out": 2 * T * 8 * 64}),
    ({"kv_heads": 2}, {"qkv": 2 * T * 128 * (8 + 1 + 1)}), ({"attention_gate": True}, {"gate": 4 * T * 8 * 128}),
    ({"qk_norm": True}, {"qk_norm": 2 * T * 128 * (8 + 2)}), ({"attention_sinks": True}, {}),
    ({"attention_sinks": True, "switches": {"fused_sinks": False}}, {"sinks": 2 * T * 8 * 128}),
    ({"run": {"dropout": True}}, {"mask": L * H}), ({"run": {"flash": False}}, {"scores": 2 * T * 4096 * 8}),
    ({"run": {"flash": False, "dropout": True}}, {"scores": 5 * T * 4096 * 8, "mask": L * H}),
    ({"switches": {"stored_fp8_inputs": True, "fp8_attention_output_bytes": None}, "eight": True},
     {"input": (1 + 4 / 128) * L * H, "out": (3 + 4 / 128) * T * 8 * 128}),
    ({"switches": {"stored_fp8_inputs": True, "fp8_attention_output_bytes": 1.5}, "eight": True},
     {"input": (1 + 4 / 128) * L * H, "out": 1.5 * T * 8 * 128}),
])  # fmt: skip
def test_attention_keeps(changes: dict[str, Any], expected: dict[str, float]) -> None:
    """Its input, queries, keys and values, its output, statistics of softmax, and what switches add."""
    ctx, keys = asked(**changes)
    parts, saved = _mixer_bytes(ctx, keys, DENSE)
    assert bytes_of(parts) == pytest.approx(ATTENTION | expected)
    assert bytes_of(saved) == {"core_attn": bytes_of(parts)["scores"]}


@pytest.mark.parametrize(("copies", "beside"), [(False, 24), (True, 0)])
def test_latent_attention_keeps(copies: bool, beside: int) -> None:
    """Latents before and after their norms on sharded tokens; expanded queries, keys and values, of which most come back."""
    mla = MlaSpec(q_lora_rank=96, kv_lora_rank=64, qk_nope_head_dim=24, qk_rope_head_dim=8, v_head_dim=16)
    ctx, keys = asked(mla=mla, switches={"copies_values": copies})
    parts, saved = _mixer_bytes(ctx, keys, DENSE)
    expanded = 2 * T * 8 * (2 * 32 + 16 + beside)
    assert bytes_of(parts) == pytest.approx({
        "input": 2 * L * H, "latents": L * (4 * 160 + 2 * 8), "qkv": expanded, "out": 2 * T * 8 * 16, "scores": 4 * T * 8,
    })  # fmt: skip
    assert bytes_of(saved) == pytest.approx({"core_attn": 4 * T * 8, "mla_up_proj": 0.9 * expanded})


def test_other_mixers_keep() -> None:
    """Linear attention its streams on a rank's heads, Mamba both branches before and after the convolution."""
    linear = LinearSpec(key_heads=4, value_heads=8, key_head_dim=16, value_head_dim=32)
    mamba = MambaSpec(heads=24, head_dim=64, state=128, groups=8)
    ctx, keys = asked(linear=linear, mamba=mamba)
    shape = LayerShape(mixer=Mixer.GATED_DELTA)
    parts, saved = _mixer_bytes(ctx, keys, shape)
    streams = linear_kept_bytes(ctx.model, Mixer.GATED_DELTA) * T / 4
    assert bytes_of(parts) == {"input": 2 * L * H, "streams": streams, "out": 2 * T * 8 * 32 / 4}
    assert saved == {}
    parts, saved = _mixer_bytes(ctx, keys, LayerShape(mixer=Mixer.MAMBA))
    inner = 24 * 64 / 4
    widths = 2 * inner + (2 * 8 * 128 + 24) / 4
    assert bytes_of(parts) == {"input": 2 * L * H, "streams": 4 * T * widths, "out": 4 * T * inner}
    assert saved == {} and _mixer_bytes(ctx, keys, LayerShape(mixer=Mixer.NONE)) == ({}, {})


@pytest.mark.parametrize(("indexer", "indexes", "per_token"), [
    (IndexerSpec(heads=4, head_dim=20, top_k=64), True, 2 * (80 + 40 + 4) + 4 * 64),
    (IndexerSpec(heads=4, head_dim=20, top_k=9000), True, 2 * (80 + 40 + 4) + 4 * 4096),
    (IndexerSpec(heads=4, head_dim=20, top_k=64, block=16), True, 2 * (80 + 40 + 80) + 4 * 4 * 4),
    (IndexerSpec(heads=4, head_dim=20, top_k=64), False, 0),
])  # fmt: skip
def test_an_indexer_keeps(indexer: IndexerSpec, indexes: bool, per_token: float) -> None:
    """Queries, key and a weight of each head, chosen keys as 4 bytes; blocks by head, and what was normed."""
    ctx, keys = asked(indexer=indexer)
    kept = bytes_of(_indexer_bytes(ctx, keys, LayerShape(sparse=True, indexes=indexes)))
    assert kept == ({"indexer": per_token * T} if per_token else {})


@pytest.mark.parametrize(("changes", "per_element", "copies"), [
    ({}, 6, 1), ({"gated": False}, 4, 1), ({"switches": {"fused_function": False}}, 8, 1),
    ({"gated": False, "switches": {"fused_function": False}}, 4, 1), ({"switches": {"keeps_function_output": False}}, 4, 1),
    ({"switches": {"casts_inputs": True}}, 6, 2), ({"gated": False, "switches": {"casts_inputs": True}}, 4, 1),
    ({"switches": {"fp8_function_inputs": True}, "eight": True}, 2 * (1 + 4 / 128) + 2, 1),
])  # fmt: skip
def test_a_dense_mlp_keeps(changes: dict[str, Any], per_element: float, copies: int) -> None:
    """Both halves and their product, a product of its own one more; its input, once for each matrix that casts it."""
    ctx, keys = asked(**changes)
    parts, saved = _mlp_bytes(ctx, keys, DENSE)
    inside = per_element * T * 14336 / 4
    assert bytes_of(parts) == pytest.approx({"input": copies * 2 * L * H, "mlp": inside})
    assert bytes_of(saved) == pytest.approx({"mlp": inside})
    assert _mlp_bytes(ctx, keys, LayerShape(mlp=Mlp.NONE)) == ({}, {})


@pytest.mark.parametrize(("bias", "etp", "shared"), [(False, 1, 0), (True, 2, 512)])
def test_experts_keep(bias: bool, etp: int, shared: int) -> None:
    """Rows at a stated imbalance: input, function, probabilities and positions; outputs of all, scores in 32 bits."""
    moe = MoeSpec(experts=16, top_k=4, ffn=768, router_bias=bias, shared_ffn=shared)
    ctx, keys = asked(moe=moe, run={"moe_imbalance": 1.5}, etp=etp)
    parts, saved = _mlp_bytes(ctx, keys, LayerShape(mlp=Mlp.MOE))
    rows, width = L * 4 * 1.5 * etp, 768 / etp
    assert routed_rows(ctx, keys).tolist() == [rows]
    activated = 2 * rows * width
    expected = {
        "input": 2 * L * H, "router": 4 * L * H * bias, "experts": rows * (2 * H + 4 * width + 8) + activated,
        "combined": 2 * L * H * 4 * etp, "scores": 4 * L * 16,
    }  # fmt: skip
    of_shared = {"shared": 6 * T * 512 / 4} if shared else {}
    assert bytes_of(parts) == expected | of_shared
    modules = {"moe_act": activated, "moe": expected["experts"] + expected["combined"] + expected["scores"]}
    assert bytes_of(saved) == modules | ({"shared_experts": of_shared["shared"]} if shared else {})


@pytest.mark.parametrize(("changes", "shape", "expected"), [
    ({}, DENSE, 4 * T * 14336 / 4), ({"gated": False}, DENSE, 2 * T * 14336 / 4),
    ({}, LayerShape(mlp=Mlp.NONE), 2 * T * H / 4),
    ({"run": {"flash": False}}, DENSE, 2 * T * 4096 * 32 / 4),
    ({"run": {"flash": False}}, LayerShape(ffn=90_000), 4 * T * 90_000 / 4),
    ({"run": {"flash": False}}, LayerShape(mixer=Mixer.NONE, ffn=100), 4 * T * 100 / 4),
])  # fmt: skip
def test_the_widest_intermediate(changes: dict[str, Any], shape: LayerShape, expected: float) -> None:
    """An MLP's halves with their gradients, or the scores twice."""
    ctx, keys = asked(**changes)
    assert _widest(ctx, keys, shape).tolist() == [expected]


@pytest.mark.parametrize(("norm", "compiled", "inputs"), [
    (Norm.RMS, False, 3.0), (Norm.LAYER, False, 2.0), (Norm.RMS, True, 3.0),
])  # fmt: skip
def test_a_whole_layer_keeps(norm: Norm, compiled: bool, inputs: float) -> None:
    """Parts and the norms' inputs; a checkpoint is the input; a compiled layer delays one gradient, others all outputs'."""
    ctx, keys = asked(norm=norm, switches={"norm_bytes": 3.0, "compiled": compiled})
    found = layer_activations(ctx, keys, DENSE)
    mlp = 6 * T * 14336 / 4
    kept = inputs * 2 * L * H + sum(ATTENTION.values()) + 2 * L * H + mlp
    assert found.kept_bytes.tolist() == [kept]
    assert found.checkpoint_bytes.tolist() == [2 * L * H]
    outputs = T * 128 * (8 + 2 + 2) + 2 * L * H + 2 * T * 14336 / 4
    op_kept = 2 * L * H + 2 * T * 8 * 128 + outputs
    assert bytes_of(found.saved_bytes) == {
        "core_attn": ATTENTION["scores"], "mlp": mlp, "layernorm": 4 * L * H, "op": max(kept - op_kept, 0),
    }  # fmt: skip
    assert found.delayed_bytes.tolist() == [2 * L * H if compiled else 2 * outputs]
    assert found.transient_bytes.tolist() == [2 * (T * H + 4 * T * 14336 / 4) + 2 * 2 * T * 2 * 256]


def test_positions_of_routed_rows() -> None:
    """Eight bytes an element of every row where every element has its own."""
    moe = MoeSpec(experts=16, top_k=4, ffn=768)
    run, shape = {"moe_imbalance": 1.0}, LayerShape(mlp=Mlp.MOE)
    without, with_them = (
        layer_activations(
            *asked(moe=moe, run=run, switches={"routed_index_bytes": size}), shape
        ).transient_bytes
        for size in (0, 8)
    )
    assert (with_them - without).tolist() == [8 * L * 4 * H]
    rows = L * 4
    assert _widest(*asked(moe=moe, run=run), shape).tolist() == [rows * (768 * 2 + H)]
