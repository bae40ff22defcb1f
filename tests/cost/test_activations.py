"""Activations and kernel times of one layer against published formulas and tables."""

from dataclasses import replace

import numpy as np
import pytest

from layoutopt.optimizer.cost.activations import layer_activations
from layoutopt.optimizer.cost.compute import mixer_work
from layoutopt.optimizer.cost.constants import load_constants
from layoutopt.optimizer.cost.hardware import attention_s, gemm_s, sustained_rates
from layoutopt.optimizer.cost.launch_switches import of_preset
from layoutopt.optimizer.cost.work import ComputeContext, Keys, make_keys
from layoutopt.optimizer.frameworks.preset import load_preset
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.specs.cluster import GpuSpec
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.gpu_catalog import generations
from layoutopt.optimizer.specs.model import LayerShape, MlaSpec, Mlp, ModelSpec, MoeSpec, Run, TrainingSpec
from layoutopt.optimizer.specs.vocabulary import Precision

H100 = GpuSpec(
    name="h100",
    architecture="hopper",
    generation=generations()["hopper"],
    dense_flops={Precision.BF16: 989.4e12, Precision.FP8: 1978.9e12},
    memory_bytes=85e9,
    nominal_memory_bytes=80e9,
    hbm_bytes_per_s=3.35e12,
    nvlink_bytes_per_s=450e9,
    nvlink_domain=8,
    gpus_per_node=8,
    nic_bytes_per_s=50e9,
    sm_count=132,
    tdp_w=700,
    host_link_bytes_per_s=64e9,
    source="test",
)


def context(model: ModelSpec, precision: Precision = Precision.BF16, **training: object) -> ComputeContext:
    """Build a compute context on one H100."""
    spec = {"sequence_length": 8192, "global_batch": 64, "precision": precision} | training
    constants = load_constants()
    return ComputeContext(
        model=model,
        training=TrainingSpec(**spec),  # type: ignore[arg-type]
        preset=load_preset(Framework.MEGATRON),
        constants=constants,
        rates=sustained_rates(H100, precision, constants, load_preset(Framework.MEGATRON)),
        switches=of_preset(load_preset(Framework.MEGATRON)),
    )


def keys(ctx: ComputeContext, *, tp: int = 1, cp: int = 1, micro_batch: int = 1, ep: int = 1) -> Keys:
    """Build one degree combination with sequence parallelism where tp > 1."""
    values = {"tp": tp, "sp": int(tp > 1), "cp": cp, "micro_batch": micro_batch, "ep": ep, "etp": 1}
    return make_keys(ctx.training, **{name: np.array([float(value)]) for name, value in values.items()})


def decoder(
    hidden: int, heads: int, kv_heads: int, ffn: int, *, head_dim: int = 128, gated: bool = True
) -> ModelSpec:
    """Build a one-layer dense decoder."""
    run = Run(name="dense", block=(LayerShape(ffn=ffn),), count=1)
    sizes = {"hidden": hidden, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
    return ModelSpec(name="test", vocab=128, runs=(run,), gated=gated, **sizes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("model", "coefficient"),
    [
        (decoder(4096, 32, 8, 14336), 34.03),
        (decoder(8192, 64, 8, 28672), 33.53),
        (decoder(16384, 128, 8, 53248), 31.78),
        (decoder(4096, 32, 32, 11008), 32.16),
        (decoder(12288, 96, 96, 49152, gated=False), 32.03),
    ],
)
def test_modern_layer_keeps_about_34_bytes_per_element(model: ModelSpec, coefficient: float) -> None:
    """Flash attention, no dropout: bytes over tokens times hidden size."""
    ctx = context(model)
    kept = layer_activations(ctx, keys(ctx), model.runs[0].block[0]).kept_bytes
    assert kept[0] / 8192 / model.hidden == pytest.approx(coefficient, abs=0.005)


def test_old_stack_gives_korthikanti_table_2() -> None:
    """Materialised scores, dropout and GELU: s*b*h*(34 + 5*a*s/h)/t."""
    model = decoder(6144, 64, 64, 24576, head_dim=96, gated=False)
    ctx = context(model, sequence_length=2048, flash=False, dropout=True)
    kept = layer_activations(ctx, keys(ctx, tp=8, micro_batch=4), model.runs[0].block[0]).kept_bytes
    assert kept[0] == pytest.approx(2048 * 4 * 6144 * (34 + 5 * 64 * 2048 / 6144) / 8)


def test_deepseek_layer_matches_the_published_tensor_list() -> None:
    """DeepSeek-V3 at 4096 tokens: attention 201,344 B, MLP input 28,672 B, shared 12,288 B, routed 213,056 B per token."""
    mla = MlaSpec(
        q_lora_rank=1536, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128
    )
    run = Run(name="moe", block=(LayerShape(mlp=Mlp.MOE),), count=1)
    moe = MoeSpec(experts=256, top_k=8, ffn=2048, shared_ffn=2048)
    sizes = {"hidden": 7168, "heads": 128, "kv_heads": 128, "head_dim": 128, "vocab": 129280}
    model = ModelSpec(name="v3", runs=(run,), moe=moe, mla=mla, **sizes)  # type: ignore[arg-type]
    ctx = context(model, sequence_length=4096, moe_imbalance=1.0)
    balanced = ComputeContext(
        model=model,
        training=ctx.training,
        preset=ctx.preset,
        constants=ctx.constants.with_values({"moe_memory_imbalance": 1.0}),
        rates=ctx.rates,
        switches=ctx.switches,
    )
    kept = layer_activations(balanced, keys(balanced, ep=8), run.block[0]).kept_bytes
    scores = 4 * 256 * 4096  # the fp32 router scores, not in the published list
    assert kept[0] - scores == pytest.approx(1.865e9, rel=0.005)


def test_tensor_parallelism_divides_activations_evenly_with_sequence_parallelism() -> None:
    """Every kept tensor is sharded when sp is on."""
    model = decoder(8192, 64, 8, 28672)
    ctx = context(model)
    one, eight = (
        layer_activations(ctx, keys(ctx, tp=t), model.runs[0].block[0]).kept_bytes[0] for t in (1, 8)
    )
    assert eight == pytest.approx(one / 8)


def test_gemm_time_is_bounded_by_peak_and_by_memory() -> None:
    """A large square multiplication runs below its cap; a thin one is bound by memory traffic."""
    rates = context(decoder(8192, 64, 8, 28672)).rates
    big = gemm_s(rates, *(np.array([float(n)]) for n in (8192, 8192, 8192)))
    assert 0.8 < 2 * 8192**3 / big[0] / rates.linear_flops_per_s <= 1.0
    thin = gemm_s(rates, *(np.array([float(n)]) for n in (1, 8192, 8192)))
    assert thin[0] >= 2 * 8192**2 / rates.memory_bytes_per_s


def test_attention_speed_grows_with_length_and_heads() -> None:
    """FLOP/s rise with sequence length and with filled query tiles."""
    rates = context(decoder(8192, 64, 8, 28672)).rates
    lengths = np.array([512.0, 2048.0, 16384.0])
    speed = 1e12 / attention_s(
        rates, np.full(3, 1e12), tiles=np.full(3, 4096.0), length=lengths, head_dim=128
    )
    assert (np.diff(speed) > 0).all()
    few = attention_s(rates, np.full(1, 1e12), tiles=np.array([16.0]), length=lengths[2:], head_dim=128)
    assert few[0] > 1e12 / speed[2]


def test_flash_attention_2_on_hopper_reaches_its_published_speed() -> None:
    """335 TFLOP/s forward, causal, with 16 heads of 128 at 16,384 tokens (FlashAttention-3 paper)."""
    preset = replace(load_preset(Framework.MEGATRON), flash_attention_2=True)
    rates = sustained_rates(H100, Precision.BF16, load_constants(), preset)
    flops, tiles, length = (np.array([value]) for value in (2.0 * 16 * 128 * 16384.0**2, 16 * 128.0, 16384.0))
    seconds = attention_s(rates, flops, tiles=tiles, length=length, head_dim=128)
    assert flops[0] / seconds[0] == pytest.approx(335e12, rel=0.06)  # its slope over lengths is fitted


def test_unsupported_precision_names_the_supported_ones() -> None:
    """A100-like FP8 requests fail with the list of formats."""
    with pytest.raises(InputError, match="bf16, fp8"):
        sustained_rates(H100, Precision.NVFP4, load_constants(), load_preset(Framework.MEGATRON))


def test_fp8_speeds_up_linear_layers_only() -> None:
    """Core attention stays at 16 bits; projections run faster."""
    model = decoder(8192, 64, 8, 28672)
    wide, narrow = context(model), context(model, Precision.FP8)
    parts16, parts8 = (mixer_work(ctx, keys(ctx), model.runs[0].block[0]) for ctx in (wide, narrow))
    assert parts8["core_attn"].forward_s[0] == parts16["core_attn"].forward_s[0]
    assert parts8["qkv"].forward_s[0] < 0.75 * parts16["qkv"].forward_s[0]
