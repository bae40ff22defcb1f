"""A layer's work counted by hand: multiplications and bytes by part, what a block puts together, and what waits.

Kernels are replaced by counters: a multiplication takes a second for each product, or traffic one for each byte.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from layoutopt.optimizer.cost import adapters, compute, work
from layoutopt.optimizer.cost.batch import batch_of_one
from layoutopt.optimizer.cost.communication import Exposed
from layoutopt.optimizer.cost.components import Component
from layoutopt.optimizer.cost.compute import (
    activation_function_work,
    core_attention_work,
    gaps_work,
    mixer_work,
    mlp_work,
    norm_work,
)
from layoutopt.optimizer.cost.factory import build_cost_model
from layoutopt.optimizer.cost.hardware import gemm_s, occupancy
from layoutopt.optimizer.cost.layer_units import (
    _half_of_multiplications,
    _repeated,
    _saved,
    _selective,
    least_kept_bytes,
    recompute_members,
)
from layoutopt.optimizer.cost.work import Work
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.specs.layout import Layout, Recompute
from layoutopt.optimizer.specs.loading import load_cluster, load_workload, override_training
from layoutopt.optimizer.specs.model import LayerShape, LinearSpec, MambaSpec, Mixer, Mlp, Run
from layoutopt.optimizer.specs.vocabulary import Granularity

if TYPE_CHECKING:
    from layoutopt.optimizer.cost.cost_model import CostModel

WORKLOAD = override_training(load_workload("llama3-8b"), global_batch=64, sequence_length=4096)
CLUSTER = load_cluster("h100x8")
DENSE = LayerShape(ffn=14336)
SPREAD = Layout(tp=2, sp=True, cp=2, dp=2, micro_batch=2, micro_batches=16, zero=1)
TOKENS, LOCAL, SEQUENCE = 2 * 2048, 2048, 2048


def cost_of(*, framework: Framework = Framework.MEGATRON, **changes: Any) -> CostModel:
    """Prices of an 8B model, some of its fields, or of its run's, changed."""
    run = {name: changes.pop(name) for name in ("dropout", "flash") if name in changes}
    model, training = replace(WORKLOAD.model, **changes), replace(WORKLOAD.training, **run)
    return build_cost_model(model, training, CLUSTER, framework=framework)


class Counted:
    """A context whose kernels count: ``products`` of multiplications alone, or ``bytes`` of traffic alone."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cost: CostModel, layout: Layout = SPREAD) -> None:
        comm = cost.comm_context(batch_of_one(layout), layout.mesh_order)
        self.ctx, self.keys, self.patch = comm.compute, comm.keys, monkeypatch
        self.shapes: list[tuple[float, float, float, float]] = []

    def products(self) -> None:
        """Let multiplications take a second for each product, and traffic nothing."""

        def multiplied(
            rates: Any, rows: Any, columns: Any, inner: Any, *, groups: Any = 1.0, **_: Any
        ) -> Any:
            self.shapes.append(tuple(float(np.ravel(one)[0]) for one in (groups, rows, columns, inner)))  # type: ignore[arg-type]
            return np.asarray(groups * rows * columns * inner)

        self.patch.setattr(work, "gemm_s", multiplied)
        self.patch.setattr(compute, "gemm_s", multiplied)
        for module in (work, compute):
            self.patch.setattr(module, "memory_bound_s", lambda rates, moved: np.zeros_like(moved))

    def bytes(self) -> None:
        """Let traffic take a second for each byte, and multiplications nothing."""
        for module in (work, compute):
            self.patch.setattr(module, "gemm_s", lambda rates, rows, *_, **__: 0.0 * np.asarray(rows))
            self.patch.setattr(module, "memory_bound_s", lambda rates, moved: np.asarray(moved))


def seconds(part: Work) -> tuple[float, float, float]:
    """Forward, input gradient and weight gradient of one row."""
    forward, dgrad, wgrad = (
        float(np.ravel(time)[0]) for time in (part.forward_s, part.dgrad_s, part.wgrad_s)
    )
    return forward, dgrad, wgrad


def test_products_of_a_dense_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pass of a matrix has the same products: tokens times the matrix's share on a rank."""
    counted = Counted(monkeypatch, cost_of())
    counted.products()
    parts = mixer_work(counted.ctx, counted.keys, DENSE) | mlp_work(counted.ctx, counted.keys, DENSE)
    own = {"qkv": 4096 * (32 + 2 * 8) * 128 / 2, "proj": 32 * 128 / 2 * 4096, "mlp": 3 * 4096 * 14336 / 2}
    for name, matrix in own.items():
        assert seconds(parts[name]) == (TOKENS * matrix,) * 3, name
    gated = Counted(monkeypatch, cost_of(attention_gate=True))
    gated.products()
    with_gate = mixer_work(gated.ctx, gated.keys, DENSE)["qkv"]
    assert seconds(with_gate)[0] == TOKENS * 4096 * (2 * 32 + 2 * 8) * 128 / 2


def test_traffic_of_a_dense_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Norms 4 and 8 bytes an element beside the residual's 6, positions 8, the gated function 6 and 10."""
    counted = Counted(monkeypatch, cost_of())
    counted.bytes()
    ctx, keys = counted.ctx, counted.keys
    parts = mixer_work(ctx, keys, DENSE) | mlp_work(ctx, keys, DENSE)
    assert seconds(parts["norm"]) == (LOCAL * 4096 * 10, LOCAL * 4096 * 14, 0)
    turned = TOKENS * 128 * (32 + 8) / 2 * 8
    assert seconds(parts["rotary"]) == (turned, turned, 0)
    assert seconds(parts["mlp"]) == (TOKENS * 7168 * 6, TOKENS * 7168 * 10, 0)
    dropping = Counted(monkeypatch, cost_of(dropout=True))
    assert seconds(norm_work(dropping.ctx, keys)) == (LOCAL * 4096 * 15, LOCAL * 4096 * 19, 0)
    normed = Counted(monkeypatch, cost_of(qk_norm=True, attention_gate=True))
    both = mixer_work(normed.ctx, normed.keys, DENSE)["rotary"]
    gate = TOKENS * 128 * 32 / 2
    assert seconds(both) == pytest.approx((turned * 1.5 + 6 * gate, turned * 1.5 + 10 * gate, 0))
    apart = replace(ctx, preset=replace(ctx.preset, fused_norm=False))
    assert seconds(norm_work(apart, keys)) == (LOCAL * 4096 * 46, LOCAL * 4096 * 78, 0)


@pytest.mark.parametrize(
    ("gated", "fused", "kept", "forward", "backward"),
    [
        (True, True, True, 6, 10),
        (True, False, True, 10, 16),
        (True, True, False, 6, 12),
        (False, True, True, 4, 6),
        (False, False, False, 4, 8),
    ],
)
def test_traffic_of_activation_functions(
    gated: bool, fused: bool, kept: bool, forward: float, backward: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A product of its own reads and writes once more; an output that is not kept is written again backward."""
    counted = Counted(monkeypatch, cost_of(gated=gated))
    counted.bytes()
    ctx = replace(
        counted.ctx, preset=replace(counted.ctx.preset, fused_function=fused, keeps_function_output=kept)
    )
    assert seconds(activation_function_work(ctx, np.array([100.0]))) == (100 * forward, 100 * backward, 0)


def test_latent_attention_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Down-projections on sharded tokens and whole matrices, up-projections on all tokens and shares of the heads."""
    model = load_workload("deepseek-v3").model
    cost = build_cost_model(model, WORKLOAD.training, CLUSTER)
    counted = Counted(monkeypatch, cost, replace(SPREAD, ep=4))
    counted.products()
    shape = model.runs[1].block[0]
    parts = mixer_work(counted.ctx, counted.keys, shape)
    assert seconds(parts["qkv"]) == (LOCAL * 7168 * (512 + 64 + 1536),) * 3
    assert seconds(parts["mla_up_proj"])[2] == TOKENS * 64 * ((128 + 128) * 512 + 192 * 1536)
    assert seconds(parts["proj"]) == (TOKENS * 64 * 128 * 7168,) * 3
    counted.bytes()
    joined = TOKENS * 64 * (2 * 192 + 128) * 4
    latent = LOCAL * (1536 + 512) * 4
    parts = mixer_work(counted.ctx, counted.keys, shape)
    assert seconds(parts["mla_up_proj"]) == (joined + latent, joined + 2 * latent, 0)


def test_experts_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Routed rows on a rank's experts; scores in 32 bits; permutations there and back, once more to sort by expert."""
    model = load_workload("deepseek-v3").model
    cost = build_cost_model(model, replace(WORKLOAD.training, moe_imbalance=1.5), CLUSTER)
    counted = Counted(monkeypatch, cost, replace(SPREAD, ep=4))
    counted.products()
    ctx, keys, shape = counted.ctx, counted.keys, model.runs[1].block[0]
    counted.shapes.clear()
    parts = mlp_work(ctx, keys, shape)
    rows = LOCAL * 8 * 1.5
    own = 256 / 4
    half = ctx.constants["grouped_gemm_half"]
    slow = (rows / own + half) / (rows / own)
    assert (own, rows / own, 2 * 2048, 7168) in counted.shapes
    assert (own, rows / own, 7168, 2048) in counted.shapes
    assert seconds(parts["experts"]) == pytest.approx((rows * 3 * 7168 * 2048 * slow,) * 3)
    assert seconds(parts["shared_experts"]) == (TOKENS * 3 * 7168 * 2048 / 2,) * 3
    small = ctx.constants["router_small_s"]
    assert seconds(parts["router"]) == pytest.approx(
        (LOCAL * 256 * 7168 + small, LOCAL * 256 * 7168 + 2 * small, LOCAL * 256 * 7168)
    )
    counted.bytes()
    parts = mlp_work(ctx, keys, shape)
    scores = LOCAL * 256 * 4 * ctx.constants["router_passes"]
    assert seconds(parts["router"])[:2] == pytest.approx((scores + small, scores + 2 * small))
    permuted = 2 * rows * 7168 * 2 * ctx.constants["permute_passes"]
    assert seconds(parts["permute"]) == pytest.approx((permuted, permuted, 0))
    assert seconds(parts["moe_act"]) == (rows * 2048 * 6, rows * 2048 * 10, 0)
    alone = Counted(monkeypatch, cost, replace(SPREAD, ep=1))
    once = mlp_work(alone.ctx, alone.keys, shape)["permute"]
    assert seconds(once)[0] == pytest.approx(permuted / 2)


def test_scores_that_are_stored_pass_memory_several_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight bytes a score forward and fourteen backward, five more for dropout, four for a mask apart."""
    counted = Counted(monkeypatch, cost_of(flash=False, dropout=True))
    scores = 2 * 32 / 2 * SEQUENCE * 4096
    counted.bytes()
    assert seconds(core_attention_work(counted.ctx, counted.keys, DENSE)) == (scores * 13, scores * 19, 0)
    apart = replace(counted.ctx, preset=replace(counted.ctx.preset, fused_softmax=False))
    assert seconds(core_attention_work(apart, counted.keys, DENSE)) == (scores * 17, scores * 23, 0)
    counted.products()
    assert seconds(core_attention_work(counted.ctx, counted.keys, DENSE)) == (
        2 * scores * 128,
        4 * scores * 128,
        0,
    )


def test_scans_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Mamba mixer's projections and passes; linear attention's projections, convolution, norm and gate."""
    mamba = MambaSpec(heads=64, head_dim=64, state=128, groups=8)
    run = Run(name="scan", block=(LayerShape(mixer=Mixer.MAMBA, mlp=Mlp.NONE),), count=8)
    counted = Counted(monkeypatch, cost_of(runs=(run,), mamba=mamba))
    counted.products()
    inner = 64 * 64 / 2
    width = 2 * inner + (2 * 8 * 128 + 64) / 2
    parts = mixer_work(counted.ctx, counted.keys, run.block[0])
    assert seconds(parts["qkv"]) == (TOKENS * width * 4096,) * 3
    assert seconds(parts["proj"]) == (TOKENS * inner * 4096,) * 3
    flops_s = 6 * 64 * 64 * 128 * TOKENS / 2 / counted.ctx.rates.attention_flops_per_s
    assert seconds(parts["core_attn"]) == pytest.approx((flops_s, 2.5 * flops_s, 0))
    counted.bytes()
    parts = mixer_work(counted.ctx, counted.keys, run.block[0])
    assert seconds(parts["core_attn"])[:2] == pytest.approx((TOKENS * inner * 12, TOKENS * inner * 24), abs=1)
    linear = LinearSpec(key_heads=16, value_heads=32, key_head_dim=128, value_head_dim=128)
    delta = LayerShape(mixer=Mixer.GATED_DELTA, ffn=14336)
    other = Counted(monkeypatch, cost_of(runs=(Run(name="d", block=(delta,), count=8),), linear=linear))
    other.bytes()
    key, value = 16 * 128, 32 * 128
    streams, output = TOKENS * (2 * key + value) / 2 * (4 if linear.conv else 2), TOKENS * value / 2
    parts = mixer_work(other.ctx, other.keys, delta)
    assert seconds(parts["core_attn"])[:2] == pytest.approx(
        (streams + 6 * output, 2 * streams + 10 * output), abs=1
    )
    other.products()
    parts = mixer_work(other.ctx, other.keys, delta)
    assert seconds(parts["qkv"])[0] == TOKENS * 4096 * (2 * key + 2 * value + 2 * 32) / 2
    assert seconds(parts["proj"])[0] == TOKENS * value / 2 * 4096


def test_gaps_between_kernels() -> None:
    """As many as a layer has kernels, twice as many backward."""
    ctx = cost_of().comm_context(batch_of_one(SPREAD), SPREAD.mesh_order).compute
    gaps = ctx.constants["kernel_gap_s"] * ctx.constants["layer_kernels"]
    assert seconds(gaps_work(ctx, np.ones(1))) == pytest.approx((gaps, 2 * gaps, 0))


def test_adapters_read_and_write_their_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where memory is the slower: inputs once for matrices that share them, outputs, and the additions to both."""
    from layoutopt.optimizer.specs.model import AdapterSpec
    from layoutopt.optimizer.specs.vocabulary import AdapterMethod, AdapterTarget

    counted = Counted(monkeypatch, cost_of())
    counted.bytes()
    monkeypatch.setattr(adapters, "memory_bound_s", lambda rates, moved: np.asarray(moved))
    spec = AdapterSpec(method=AdapterMethod.LORA, rank=16, targets=(AdapterTarget.MLP,))
    found = adapters.adapter_work(counted.ctx, counted.keys, DENSE, spec)
    inputs = (
        TOKENS * 4096 + TOKENS * 14336 / 2
    )  # gate and up share theirs; the way back has what ranks share out
    outputs = 2 * TOKENS * 14336 / 2 + TOKENS * 4096
    each = 2 * (inputs + outputs)
    assert seconds(found) == pytest.approx((each + 6 * outputs, each + 6 * inputs, each))
    narrow = adapters.adapter_work(
        counted.ctx, counted.keys, DENSE, replace(spec, method=AdapterMethod.QLORA)
    )
    weights = (4096 * (32 + 2 * 8) * 128 + 4096 * 4096 + 3 * 4096 * 14336) / 2
    widened = (0.5 + 1 / 64 + 4 / (64 * 256) + 2) * weights
    assert seconds(narrow) == pytest.approx((each + 6 * outputs + widened, each + 6 * inputs + widened, each))


def test_a_multiplication_is_as_slow_as_its_slowest_limit() -> None:
    """Tiles in waves, a prologue, misaligned sides; or its operands and output in memory."""
    rates = cost_of().comm_context(batch_of_one(SPREAD), SPREAD.mesh_order).compute.rates
    constants = rates.constants
    rows, columns, inner = np.array([1000.0]), np.array([4096.0]), np.array([8192.0])
    tiles = 8 * 16
    share = (
        (tiles / rates.sm_count) ** constants["gemm_occupancy_exponent"]
        * 8192
        / (8192 + constants["gemm_inner_half"])
    )
    assert gemm_s(rates, rows, columns, inner)[0] == pytest.approx(
        2 * 1000 * 4096 * 8192 / rates.linear_flops_per_s / share
    )
    bad = gemm_s(rates, rows, columns, inner, alignment=4096 * 3)[0]
    assert bad == pytest.approx(gemm_s(rates, rows, columns, inner)[0] / constants["gemm_misaligned"])
    thin = gemm_s(rates, np.array([1.0]), columns, inner, output_bytes=8, groups=3.0)[0]
    assert thin == pytest.approx(3 * (2 * 8192 * (1 + 4096) + 8 * 4096) / rates.memory_bytes_per_s)
    assert occupancy(np.array([132.0, 133.0, 66.0]), 132, 1.0) == pytest.approx([1.0, 133 / 264, 0.5])


RECOMPUTES = (
    Recompute(),
    Recompute(granularity=Granularity.SELECTIVE, modules=("core_attn", "moe")),
    Recompute(granularity=Granularity.SELECTIVE, modules=("moe", "moe_act")),
    Recompute(granularity=Granularity.SELECTIVE, modules=("mlp",)),
    Recompute(granularity=Granularity.FULL),
)


def test_what_selective_recomputation_repeats_and_saves() -> None:
    """Attention its exchange, experts theirs, an MLP the gather of four; moe holds moe_act's bytes already."""

    def one(value: float) -> Any:
        return np.full(5, value)

    modules = {
        name: Work(one(value), one(0), one(0))
        for name, value in (("core_attn", 1.0), ("moe", 2.0), ("moe_act", 4.0), ("mlp", 8.0))
    }
    traffic = {
        Component.TP: Exposed(one(0.4), one(9), one(9)), Component.CP: Exposed(one(0.5), one(9), one(9)),
        Component.EP: Exposed(one(9), one(9), one(0.25)),
    }  # fmt: skip
    codes, members = np.arange(5), recompute_members(RECOMPUTES)
    again = _selective(modules, traffic, codes, members)
    assert again.tolist() == pytest.approx([0, 1.5 + 2.25, 2.25 + 4, 8.1, 0])
    assert _repeated(modules, codes, members).tolist() == [0, 2, 2, 1, 0]
    saved_bytes = {"core_attn": one(1.0), "moe": one(10.0), "moe_act": one(3.0), "mlp": one(20.0)}
    activations: Any = SimpleNamespace(kept_bytes=one(100.0), saved_bytes=saved_bytes)
    assert _saved(activations, codes, members).tolist() == [0, 11, 10, 20, 0]
    assert least_kept_bytes(activations, (0, 1), members).tolist() == [89.0] * 5
    assert least_kept_bytes(activations, (0, 1, 2, 3), members).tolist() == [80.0] * 5
    halves = _half_of_multiplications(
        {"qkv": Work(one(2), one(1), one(1)), "mlp": Work(one(4), one(1), one(1)), "rotary": Work(one(1), one(5), one(0))},
        [Work(one(0.5), one(7), one(0))], one(0),
    )  # fmt: skip
    assert halves.forward_s.tolist() == [2 / 2 + 4 / 2 + 1 + 0.5] * 5
    assert (halves.dgrad_s.tolist(), halves.wgrad_s.tolist()) == ([12.0] * 5, [0.0] * 5)
