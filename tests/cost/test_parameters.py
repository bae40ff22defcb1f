"""Parameter and FLOP counts against published and independently computed values."""

import pytest

from layoutopt.optimizer.cost.flops import attended_tokens, model_flops_per_token
from layoutopt.optimizer.cost.parameters import (
    active_parameters,
    attention_parameters,
    model_parameters,
    mtp_parameters,
    padded_vocab,
)
from layoutopt.optimizer.specs.model import LayerShape, MlaSpec, Mlp, ModelSpec, MoeSpec, Norm, Run


def dense(
    layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, vocab: int, **options: object
) -> ModelSpec:
    """Build a dense decoder with head dimension 128."""
    run = Run(name="dense", block=(LayerShape(ffn=ffn),), count=layers)
    shape = {"hidden": hidden, "heads": heads, "kv_heads": kv_heads, "vocab": vocab, "head_dim": 128}
    return ModelSpec(name="test", runs=(run,), **shape, **options)  # type: ignore[arg-type]


LLAMA3_8B = dense(32, 4096, 32, 8, 14336, 128256)
LLAMA3_70B = dense(80, 8192, 64, 8, 28672, 128256)
LLAMA3_405B = dense(126, 16384, 128, 8, 53248, 128256)
DEEPSEEK_V3 = ModelSpec(
    name="deepseek-v3",
    hidden=7168,
    heads=128,
    kv_heads=128,
    head_dim=128,
    vocab=129280,
    runs=(
        Run(name="dense", block=(LayerShape(ffn=18432),), count=3),
        Run(name="moe", block=(LayerShape(mlp=Mlp.MOE),), count=58),
    ),
    moe=MoeSpec(experts=256, top_k=8, ffn=2048, shared_ffn=2048, router_bias=True),
    mla=MlaSpec(
        q_lora_rank=1536, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128
    ),
    mtp_layers=1,
)


@pytest.mark.parametrize(
    ("model", "count"),
    [
        (LLAMA3_8B, 8_030_261_248),
        (LLAMA3_70B, 70_553_706_496),
        (LLAMA3_405B, 405_853_388_800),
        (dense(32, 4096, 32, 32, 11008, 32000), 6_738_415_616),
        (dense(64, 5120, 64, 8, 25600, 151936, qk_norm=True), 32_762_123_264),
        (DEEPSEEK_V3, 671_026_419_200),
    ],
)
def test_parameter_counts_are_exact(model: ModelSpec, count: int) -> None:
    """Counts equal the published checkpoints' to the last parameter."""
    assert model_parameters(model) == count


def test_gpt3_counts_biases_layernorm_and_positions() -> None:
    """GPT-3 with padded vocabulary, biases, LayerNorm and learned positions."""
    options = {"gated": False, "tied_embeddings": True, "norm": Norm.LAYER, "attention_bias": True}
    gpt3 = dense(96, 12288, 96, 96, 49152, 51200, mlp_bias=True, learned_positions=2048, **options)
    assert model_parameters(gpt3) == 174_615_846_912


def test_deepseek_parts() -> None:
    """MLA, active and multi-token-prediction parameters of DeepSeek-V3."""
    assert attention_parameters(DEEPSEEK_V3).total == 187_107_328
    assert active_parameters(DEEPSEEK_V3, with_input_embedding=True) == 37_552_282_624
    assert active_parameters(DEEPSEEK_V3) == 36_625_603_584
    assert mtp_parameters(DEEPSEEK_V3).total == pytest.approx(11.61e9, rel=1e-3)


def test_vocabulary_padding() -> None:
    """Megatron-LM pads to multiples of 128 per tensor-parallel rank."""
    assert [padded_vocab(50257, tp, True) for tp in (1, 8)] == [50304, 51200]
    assert padded_vocab(50257, 8, False) == 50257


def test_flops_of_llama3_70b_in_both_conventions() -> None:
    """Megatron's causal count, and the 6N + 12LdT rule less the input embedding."""
    causal = model_flops_per_token(LLAMA3_70B, 8192, causal=True)
    full = model_flops_per_token(LLAMA3_70B, 8192, causal=False)
    assert causal == pytest.approx(4.492e11, rel=1e-3)
    assert full + 6 * 128256 * 8192 == pytest.approx(4.880e11, rel=1.5e-3)
    assert causal / 4.880e11 == pytest.approx(0.9205, abs=1e-3)


def test_attended_tokens_of_windows() -> None:
    """A window counts its band; one as long as the sequence counts the causal half."""
    assert attended_tokens(4096, None, causal=True) == 2048
    assert attended_tokens(4096, 4096, causal=True) == 2048
    assert attended_tokens(4096, 128, causal=True) == pytest.approx(128 - 128**2 / 8192)
    assert attended_tokens(4096, None, causal=False) == 4096
