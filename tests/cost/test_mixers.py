"""Attention kinds: parameters by hand and as instantiated, FLOPs by hand, chosen keys, what trainers build, files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from layoutopt.optimizer.ask.describe import describe_model
from layoutopt.optimizer.cost.components import Component
from layoutopt.optimizer.cost.estimate import Estimate, estimate
from layoutopt.optimizer.cost.factory import build_cost_model
from layoutopt.optimizer.cost.flops import attention_flops, layer_flops, model_flops_per_token
from layoutopt.optimizer.cost.parameters import layer_parameters, model_parameters
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.interop.files import model_file
from layoutopt.optimizer.interop.huggingface.config import import_config
from layoutopt.optimizer.solve.judge import judge_layout
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.loading import (
    load_cluster,
    load_workload,
    override_training,
    parse_layout,
    parse_workload,
)
from layoutopt.optimizer.specs.model import Mixer, ModelSpec

INSTANTIATED = json.loads((Path(__file__).parents[1] / "data" / "published_models.json").read_text())
BUILT_IN = ("qwen3-next-80b-a3b", "kimi-linear-48b-a3b", "deepseek-v3.2", "glm-5", "gpt-oss-120b")


def mlp(hidden: int, width: int) -> int:
    """A gated MLP."""
    return 3 * hidden * width


def mla(h: int, heads: int, q: int, nope: int, v: int, kv: int = 512, rope: int = 64) -> int:
    """Multi-head latent attention with its latents' norms; ``q`` 0 is a whole query projection."""
    query = q * h + q + q * heads * (nope + rope) if q else h * heads * (nope + rope)
    return query + (kv + rope) * h + kv + kv * heads * (nope + v) + heads * v * h


def qwen3_next() -> int:
    """36 gated-delta and 12 gated-attention layers, each with 512 experts, a shared one and its gate."""
    h, key, value = 2048, 16 * 128, 32 * 128
    delta = h * (2 * key + 2 * value + 2 * 32) + 4 * (2 * key + value) + 2 * 32 + 128 + value * h
    attention = h * 16 * 256 * 2 + 2 * h * 2 * 256 + 16 * 256 * h + 2 * 256
    moe = 512 * mlp(h, 512) + 512 * h + mlp(h, 512) + h
    return 36 * delta + 12 * attention + 48 * (moe + 2 * h) + 2 * 151_936 * h + h


def kimi_linear() -> int:
    """20 layers of Kimi delta attention and 7 of latent attention; the first MLP is dense, the others have experts."""
    h, d = 2304, 32 * 128
    low = 2 * (h * 128 + 128 * d)
    delta = 3 * h * d + low + h * 32 + 4 * 3 * d + d + 32 + 128 + d * h
    moe = 256 * (mlp(h, 1024) + h + 1) + mlp(h, 1024)
    mixers = 20 * delta + 7 * mla(h, 32, 0, 128, 128)
    return mixers + mlp(h, 9216) + 26 * moe + 27 * 2 * h + 2 * 163_840 * h + h


def chosen(
    h: int, layers: int, heads: int, q: int, nope: int, v: int, index: int, dense: int, vocab: int
) -> int:
    """Latent attention with an indexer of ``index`` heads of 128 in every layer; three dense MLPs, then 256 experts."""
    indexer = q * index * 128 + h * 128 + 2 * 128 + h * index
    moe = 257 * mlp(h, 2048) + 256 * (h + 1)
    attention = layers * (mla(h, heads, q, nope, v) + indexer + 2 * h)
    return attention + 3 * mlp(h, dense) + (layers - 3) * moe + 2 * vocab * h + h


def gpt_oss() -> int:
    """36 layers with biases, sinks, 128 experts with biases."""
    h, q, kv = 2880, 64 * 64, 8 * 64
    attention = (h + 1) * (q + 2 * kv) + q * h + h + 64
    moe = 128 * (mlp(h, 2880) + 2 * 2880 + h) + 128 * (h + 1)
    return 36 * (attention + moe + 2 * h) + 2 * 201_088 * h + h


def gemma3() -> int:
    """62 dense layers with four norms and norms on queries and keys; tied."""
    h, q, kv = 5376, 32 * 128, 16 * 128
    return 62 * (h * (q + 2 * kv) + q * h + 2 * 128 + mlp(h, 21_504) + 4 * h) + 262_208 * h + h


def minimax_m2() -> int:
    """62 layers, norms over all queries and keys, 256 experts with a correction each."""
    h, q, kv = 3072, 48 * 128, 8 * 128
    attention = h * (q + 2 * kv) + q * h + q + kv
    return 62 * (attention + 256 * (mlp(h, 1536) + h + 1) + 2 * h) + 2 * 200_064 * h + h


def minimax_text() -> int:
    """70 lightning and 10 softmax layers, 32 experts of two."""
    h, d, kv = 6144, 64 * 128, 8 * 128
    lightning, softmax = 3 * h * d + h * d + d * h + d, h * (d + 2 * kv) + d * h
    return 70 * lightning + 10 * softmax + 80 * (32 * (mlp(h, 9216) + h) + 2 * h) + 2 * 200_064 * h + h


def nemotron_h() -> int:
    """24 Mamba blocks, 24 plain MLPs and 4 of attention, one norm each."""
    h, inner, groups = 4096, 128 * 64, 2 * 8 * 128
    mamba = h * (2 * inner + groups + 128) + 5 * (inner + groups) + 3 * 128 + inner + inner * h
    attention = h * (32 + 2 * 8) * 128 + 32 * 128 * h
    return 24 * mamba + 24 * 2 * h * 21_504 + 4 * attention + 52 * h + 2 * 131_072 * h + h


BY_HAND = {
    "qwen3-next-80b-a3b": qwen3_next(),
    "kimi-linear-48b-a3b": kimi_linear(),
    "deepseek-v3.2": chosen(7168, 61, 128, 1536, 128, 128, 64, 18_432, 129_280),
    "glm-5": chosen(6144, 78, 64, 2048, 192, 256, 32, 12_288, 154_880),
    "gpt-oss-120b": gpt_oss(),
    "gemma3-27b": gemma3(),
    "minimax-m2": minimax_m2(),
    "minimax-text-01": minimax_text(),
    "nemotron-h-8b": nemotron_h(),
}


def imported(name: str) -> ModelSpec:
    """The model of a published configuration."""
    return import_config(json.dumps(INSTANTIATED[name]["config"]), "config.json").model


@pytest.mark.parametrize("name", INSTANTIATED)
def test_parameters_by_hand_and_as_instantiated(name: str) -> None:
    """To the last one: by hand, as transformers builds the model on the meta device, and as this model counts."""
    counted = INSTANTIATED[name]
    assert BY_HAND[name] == counted["parameters"] + counted["corrections"]
    assert model_parameters(imported(name)) == BY_HAND[name]


@pytest.mark.parametrize("name", [name for name in BUILT_IN if name != "gpt-oss-120b"])
def test_built_in_models_are_the_published_ones(name: str) -> None:
    """Layer by layer."""
    built = load_workload(name).model
    found = replace(imported(name), name=built.name, mtp_layers=built.mtp_layers)
    assert replace(built, published_parameters=None) == found


@pytest.mark.parametrize("name", INSTANTIATED)
def test_model_files_hold_every_kind(name: str) -> None:
    """What an import writes is read back as the same model."""
    model = imported(name)
    training = {"sequence_length": 4096, "global_batch": 8, "precision": "bf16"}
    text = yaml.safe_dump(model_file(model, training))
    assert replace(parse_workload(text, "m.yaml").model, published_parameters=None) == model


def mla_flops(h: int, heads: int, q: int, nope: int, v: int, keys: float) -> float:
    """Latent attention of one token: its matrices without their norms, scores and values over ``keys`` keys."""
    norms = q + 512
    return 2 * (mla(h, heads, q, nope, v) - norms) + 2 * keys * heads * (nope + 64 + v)


def chosen_flops(
    h: int, layers: int, heads: int, q: int, nope: int, v: int, index: int, dense: int, vocab: int
) -> float:
    """At 4,096 tokens a query sees the mean of min(2,048, its position): 2,048 less the triangle at the start."""
    keys = 2048 * (1 - 2048 / (2 * 4096))
    indexer = 2 * (q * index * 128 + h * 128 + h * index) + 2 * 2048 * index * 128
    attention = layers * (mla_flops(h, heads, q, nope, v, keys) + indexer)
    experts = (layers - 3) * 2 * (9 * mlp(h, 2048) + h * 256)
    return attention + 3 * 2 * mlp(h, dense) + experts + 2 * vocab * h


def qwen3_next_flops() -> float:
    """36 states of 32 heads of 128 by 128, four multiply-adds an element; 12 layers attend; 10 and 1 of 513 experts."""
    h, key, value = 2048, 16 * 128, 32 * 128
    delta = 2 * (h * (2 * key + 2 * value + 64) + 4 * (2 * key + value) + 4 * 32 * 128**2 + value * h)
    attention = 2 * h * (3 * 16 * 256 + 2 * 2 * 256) + 2 * 2048 * 16 * 512
    moe = 2 * (11 * mlp(h, 512) + 512 * h)
    return 36 * delta + 12 * attention + 48 * moe + 2 * 151_936 * h


def kimi_linear_flops() -> float:
    """20 states and 7 latent attentions; a dense MLP, then 8 and 1 of 257 experts."""
    h, d = 2304, 4096
    kimi = 2 * (4 * h * d + 2 * (h * 128 + 128 * d) + h * 32 + 4 * 3 * d + 4 * 32 * 128**2)
    latent = mla_flops(h, 32, 0, 128, 128, 2048)
    moe = 2 * (9 * mlp(h, 1024) + 256 * h)
    return 20 * kimi + 7 * latent + 2 * mlp(h, 9216) + 26 * moe + 2 * 163_840 * h


def gpt_oss_flops() -> float:
    """Every other layer sees 128 tokens, the first 128 fewer; 4 of 128 experts."""
    h, q, kv = 2880, 64 * 64, 8 * 64
    window = 128 * (1 - 128 / (2 * 4096))
    scores = 2 * 64 * 128 * (18 * window + 18 * 2048)
    return scores + 36 * 2 * (h * (q + 2 * kv) + q * h + 4 * mlp(h, 2880) + 128 * h) + 2 * 201_088 * h


def gemma3_flops() -> float:
    """Every sixth of 62 layers sees all tokens, the others 1,024."""
    h, q, kv = 5376, 32 * 128, 16 * 128
    window = 1024 * (1 - 1024 / (2 * 4096))
    scores = 2 * 32 * 256 * (52 * window + 10 * 2048)
    return scores + 62 * 2 * (h * (q + 2 * kv) + q * h + mlp(h, 21_504)) + 2 * 262_208 * h


def minimax_m2_flops() -> float:
    """All layers attend; 8 of 256 experts."""
    h, q, kv = 3072, 48 * 128, 8 * 128
    attention = 2 * (h * (q + 2 * kv) + q * h) + 2 * 2048 * 48 * 256
    return 62 * (attention + 2 * (8 * mlp(h, 1536) + 256 * h)) + 2 * 200_064 * h


def minimax_text_flops() -> float:
    """70 states of 64 heads of 128 by 128, inside blocks of 256 tokens as products; 10 layers attend; 2 of 32 experts."""
    h, d, kv = 6144, 8192, 8 * 128
    lightning = 2 * 5 * h * d + 4 * d * 128 + 2 * d * 256
    softmax = 2 * (h * (d + 2 * kv) + d * h) + 2 * 2048 * 64 * 256
    return 70 * lightning + 10 * softmax + 80 * 2 * (2 * mlp(h, 9216) + 32 * h) + 2 * 200_064 * h


def nemotron_h_flops() -> float:
    """24 Mamba-2 states of 128 heads of 64 by 128, three multiply-adds an element; 24 MLPs of two matrices; 4 attend."""
    h, inner, groups = 4096, 128 * 64, 2 * 8 * 128
    mamba = 2 * h * (2 * inner + groups + 128 + inner) + 6 * inner * 128
    attention = 2 * h * (2 * 32 + 2 * 8) * 128 + 2 * 2048 * 32 * 256
    return 24 * mamba + 24 * 2 * 2 * h * 21_504 + 4 * attention + 2 * 131_072 * h


FLOPS_BY_HAND = {
    "qwen3-next-80b-a3b": qwen3_next_flops(),
    "kimi-linear-48b-a3b": kimi_linear_flops(),
    "deepseek-v3.2": chosen_flops(7168, 61, 128, 1536, 128, 128, 64, 18_432, 129_280),
    "glm-5": chosen_flops(6144, 78, 64, 2048, 192, 256, 32, 12_288, 154_880),
    "gpt-oss-120b": gpt_oss_flops(),
    "gemma3-27b": gemma3_flops(),
    "minimax-m2": minimax_m2_flops(),
    "minimax-text-01": minimax_text_flops(),
    "nemotron-h-8b": nemotron_h_flops(),
}


@pytest.mark.parametrize("name", INSTANTIATED)
def test_flops_by_hand(name: str) -> None:
    """Of one token of 4,096, causal, all layers and the logits; the backward pass is twice the forward."""
    model = replace(imported(name), mtp_layers=0)
    found = model_flops_per_token(model, 4096, causal=True)
    assert found == pytest.approx(3 * FLOPS_BY_HAND[name], rel=1e-12)


CHOSEN = 2048 - 2048 * (1 - 2048 / 8192)
"""Keys that the whole square adds at 4,096 tokens to the triangle where 2,048 are chosen."""
SQUARE_BY_HAND = {
    "qwen3-next-80b-a3b": 12 * 2048 * 16 * 512,
    "kimi-linear-48b-a3b": 7 * 2048 * 32 * 320,
    "deepseek-v3.2": 61 * (CHOSEN * 128 * 320 + 2048 * 64 * 128),
    "glm-5": 78 * (CHOSEN * 64 * 512 + 2048 * 32 * 128),
    "gpt-oss-120b": 18 * (256 - 126 + 2048) * 64 * 128,
    "gemma3-27b": (52 * (2048 - 896) + 10 * 2048) * 32 * 256,
    "minimax-m2": 62 * 2048 * 48 * 256,
    "minimax-text-01": 10 * 2048 * 64 * 256,
    "nemotron-h-8b": 4 * 2048 * 32 * 256,
}
"""Multiply-adds of a token forward that only the convention of the whole square counts."""


@pytest.mark.parametrize("name", INSTANTIATED)
def test_flops_of_the_whole_square_by_hand(name: str) -> None:
    """Scores alone differ: a query sees all tokens, of a window the band on both sides, of chosen keys each."""
    model = replace(imported(name), mtp_layers=0)
    triangle, square = (model_flops_per_token(model, 4096, causal=causal) for causal in (True, False))
    assert square - triangle == pytest.approx(3 * 2 * SQUARE_BY_HAND[name], rel=1e-9)


def layer(model: ModelSpec, mixer: Mixer) -> float:
    """FLOPs of the mixer of one layer, forward, at 4,096 tokens, causal."""
    shape = next(s for run in model.runs for s in run.block if s.mixer is mixer and s.mlp.value == "moe")
    bare = replace(shape, mixer=Mixer.NONE, sparse=False, indexes=False)
    return layer_flops(model, shape, 4096, causal=True) - layer_flops(model, bare, 4096, causal=True)


def test_flops_of_linear_attention_by_hand() -> None:
    """Projections, convolution and state: independent of the sequence."""
    h, key, value = 2048, 2048, 4096
    gated = 2 * (h * (2 * key + 2 * value + 64) + 4 * (2 * key + value) + 4 * 32 * 128**2 + h * value)
    assert layer(imported("qwen3-next-80b-a3b"), Mixer.GATED_DELTA) == pytest.approx(gated, rel=1e-12)
    h, d = 2304, 4096
    kimi = 2 * (4 * h * d + 2 * (h * 128 + 128 * d) + h * 32 + 4 * 3 * d + 4 * 32 * 128**2)
    assert layer(imported("kimi-linear-48b-a3b"), Mixer.KIMI_DELTA) == pytest.approx(kimi, rel=1e-12)
    h, d = 6144, 8192
    lightning = 2 * 5 * h * d + 4 * d * 128 + 2 * d * 256
    assert layer(imported("minimax-text-01"), Mixer.LIGHTNING) == pytest.approx(lightning, rel=1e-12)
    gate = 2 * 2048 * (3 * 16 * 256 + 2 * 2 * 256) + 2 * 16 * 256 * 4096
    assert layer(imported("qwen3-next-80b-a3b"), Mixer.ATTENTION) == pytest.approx(gate, rel=1e-12)


@pytest.mark.parametrize(
    ("length", "indexer", "selected", "whole"),
    [
        (4096, 0.0336e9, 0.126e9, 0.168e9),
        (32_768, 0.268e9, 0.163e9, 1.34e9),
        (131_072, 1.074e9, 0.166e9, 5.37e9),
    ],
)
def test_deepseek_v32_follows_its_chosen_keys(
    length: int, indexer: float, selected: float, whole: float
) -> None:
    """Of 131,072 tokens a query sees 2,048; what grows with the square is the indexer's scores alone."""
    model = imported("deepseek-v3.2")
    shape = model.runs[-1].block[0]
    found = attention_flops(model, shape, length, causal=True)
    own = attention_flops(model, replace(shape, indexes=False), length, causal=True)
    dense = attention_flops(model, replace(shape, sparse=False, indexes=False), length, causal=True)
    assert own == pytest.approx(selected, rel=5e-3)
    assert found - own == pytest.approx(indexer, rel=5e-3)
    assert dense == pytest.approx(whole, rel=5e-3)
    square = attention_flops(model, replace(shape, indexes=False), length, causal=False)
    assert square == 2 * min(2048, length) * 128 * 320


def priced(name: str, layout: str, cluster: str, length: int, batch: int = 256) -> Estimate:
    """Price a layout of a built-in model."""
    machine = load_cluster(cluster)
    workload = override_training(load_workload(name), sequence_length=length, global_batch=batch)
    model = build_cost_model(workload.model, workload.training, machine, framework=Framework.ANY)
    return estimate(model, parse_layout(layout).complete(workload, machine))


def test_the_price_of_long_sequences_follows_the_chosen_keys() -> None:
    """Against DeepSeek-V3, which attends to all: as long at 4,096 tokens but for the indexer, shorter at 131,072."""
    layout = "tp=1,pp=16,ep=64,dp=128,mb=1,zero=1,recompute=full"
    ratio = [
        priced("deepseek-v3.2", layout, "h800-2048", length, 2048).step_time_s
        / priced("deepseek-v3", layout, "h800-2048", length, 2048).step_time_s
        for length in (4096, 131_072)
    ]
    assert 1.0 < ratio[0] < 1.25
    assert ratio[1] < 0.7
    workload = load_workload("deepseek-v3.2")
    flops = [model_flops_per_token(workload.model, n, causal=True) for n in (4096, 131_072)]
    assert flops[1] - flops[0] == pytest.approx(3 * 62 * (1.074e9 - 0.0336e9 + 0.166e9 - 0.126e9), rel=5e-3)


def test_the_answer_says_what_is_modelled() -> None:
    """Layers are named by the keys that they see."""
    kinds = describe_model(load_workload("deepseek-v3.2")).layers_by_kind
    assert kinds == {
        "attention to 2,048 chosen keys + dense MLP": 3,
        "attention to 2,048 chosen keys + moe": 58,
    }
    assert "gated-delta + moe" in describe_model(load_workload("qwen3-next-80b-a3b")).layers_by_kind


def test_linear_attention_costs_as_much_for_any_length() -> None:
    """Per token, Qwen3-Next grows with the sequence a quarter as fast as if all layers attended."""
    layout = "tp=1,ep=8,dp=64,mb=4,zero=1,recompute=full"  # enough tokens that no step waits for the host
    short, long = (
        priced("qwen3-next-80b-a3b", layout, "h200x64", n, 256).step_time_s / n for n in (8192, 65_536)
    )
    assert short < long < 3 * short


def test_context_parallelism_of_states_and_chosen_keys() -> None:
    """States and latents are small: context parallelism costs little where ring attention's keys would."""
    found = priced("kimi-linear-48b-a3b", "cp=8,ep=8,dp=8,mb=1,zero=1,recompute=full", "h200x64", 131_072, 64)
    assert found.breakdown_s[Component.CP] < 0.1 * found.step_time_s
    chosen_keys = priced(
        "glm-5", "cp=8,pp=8,ep=32,dp=16,mb=1,zero=1,recompute=full", "h200x1024", 131_072, 128
    )
    assert chosen_keys.breakdown_s[Component.CP] < 0.05 * chosen_keys.step_time_s


@pytest.mark.parametrize(
    ("name", "framework", "software", "lacks"),
    [
        ("qwen3-next-80b-a3b", Framework.MEGATRON, None, ""),
        ("qwen3-next-80b-a3b", Framework.MEGATRON, "core 0.15", "gated delta rule"),
        ("kimi-linear-48b-a3b", Framework.MEGATRON, None, "Kimi delta attention"),
        ("kimi-linear-48b-a3b", Framework.ANY, None, ""),
        ("glm-5", Framework.MEGATRON, None, ""),
        ("glm-5", Framework.MEGATRON, "core 0.15", "sparse attention"),
        ("glm-5", Framework.NANOTRON, None, "sparse attention"),
        ("glm-5", Framework.TORCHTITAN, None, "sparse attention"),
        ("qwen3-next-80b-a3b", Framework.TORCHTITAN, None, "layers without attention"),
        ("qwen3-next-80b-a3b", Framework.MEGATRON_BRIDGE, None, ""),
        ("glm-5", Framework.MEGATRON_BRIDGE, None, ""),
        ("glm-5", Framework.MEGATRON_BRIDGE, "core 0.18", "sparse attention"),
        ("kimi-linear-48b-a3b", Framework.MEGATRON_BRIDGE, None, "Kimi delta attention"),
    ],
)
def test_what_trainers_build(name: str, framework: Framework, software: str | None, lacks: str) -> None:
    """Kinds of layers came with releases."""
    cluster = load_cluster("h200x64")
    workload = replace(load_workload(name), training=replace(load_workload(name).training, global_batch=64))
    layout = parse_layout("tp=1,dp=64,mb=1,zero=1").complete(workload, cluster)
    judged = judge_layout(workload, cluster, layout, framework=framework, software=software)
    named = [rule.message for rule in judged.broken if rule.rule == "model_supported"]
    assert (lacks in named[0]) if lacks else not named


def test_heads_bound_tensor_and_context_parallelism() -> None:
    """Sixteen key heads: tp up to 16, under Megatron-LM tp*cp too."""
    workload, cluster = load_workload("qwen3-next-80b-a3b"), load_cluster("h200x64")
    for framework, layout, broken in (
        (Framework.MEGATRON, "tp=4,cp=8,dp=2", True),
        (Framework.MEGATRON, "tp=2,cp=8,dp=4", False),
        (Framework.ANY, "tp=4,cp=8,dp=2", False),
    ):
        whole = parse_layout(f"{layout},ep=8,mb=1,zero=1").complete(workload, cluster)
        judged = judge_layout(workload, cluster, whole, framework=framework)
        assert ("linear_heads_mod_cp" in {rule.rule for rule in judged.broken}) is broken


def test_a_shared_index_has_fewer_indexers() -> None:
    """GLM-5.2 runs the indexer in the first layers and then in each fourth."""
    config = INSTANTIATED["glm-5"]["config"] | {"index_topk_freq": 4, "index_skip_topk_offset": 3}
    config.pop("indexer_types", None)
    model = import_config(json.dumps(config), "config.json").model
    owns = [shape.indexes for run in model.runs for _ in range(run.count) for shape in run.block]
    assert owns == [max(i - 2, 0) % 4 == 0 for i in range(78)]
    saved = layer_parameters(model, model.runs[0].block[0])
    assert model_parameters(imported("glm-5")) - model_parameters(model) == owns.count(False) * 9_371_904
    assert saved.total > 9_371_904


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("linear: {value_heads: 4, key_head_dim: 16}", "architecture.linear: is not used"),
        (
            "indexer: {heads: 4, head_dim: 16, top_k: 64}\n  sliding_window: 8",
            "architecture.indexer: is not used with",
        ),
        ("blocks: [{kind: gated-delta-dense, count: 2}]", "architecture.linear: missing"),
    ],
)
def test_parts_and_layers_go_together(text: str, message: str) -> None:
    """A part that no layer has, and a layer without its part, are one line."""
    layers = "" if "blocks" in text else "  layers: 2\n"
    file = f"architecture:\n{layers}  hidden: 64\n  heads: 4\n  ffn: 128\n  vocab: 100\n  {text}\n"
    file += "training: {sequence_length: 64, global_batch: 8, precision: bf16}\n"
    with pytest.raises(InputError, match=message):
        parse_workload(file, "m.yaml")
