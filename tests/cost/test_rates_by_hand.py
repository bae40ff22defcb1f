"""Constants, rates of a GPU and the three kinds of kernels, and switches of rows, each by its formula."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from layoutopt.optimizer.cost import compressed, work
from layoutopt.optimizer.cost.batch import batch_of, batch_of_one
from layoutopt.optimizer.cost.communication import _further_gathers
from layoutopt.optimizer.cost.constants import load_constants
from layoutopt.optimizer.cost.factory import build_cost_model
from layoutopt.optimizer.cost.flops import compressed_keys, score_width
from layoutopt.optimizer.cost.hardware import attention_s, gemm_s, memory_bound_s, occupancy, sustained_rates
from layoutopt.optimizer.cost.launch_switches import of_preset, row_switches
from layoutopt.optimizer.cost.work import linear
from layoutopt.optimizer.frameworks.preset import EpOverlap, load_preset
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.layout import Layout, Switches
from layoutopt.optimizer.specs.loading import load_cluster, load_workload
from layoutopt.optimizer.specs.model import CompressedSpec, IndexerSpec, LayerShape, Mixer, Mlp
from layoutopt.optimizer.specs.vocabulary import CudaGraph, Dispatcher, Fp8Recipe, Precision

CLUSTER = load_cluster("h100x8")
H100, CONSTANTS, PRESET = CLUSTER.gpu, load_constants(), load_preset(Framework.MEGATRON)
OWN = {"gemm_occupancy_exponent": 0.5, "gemm_inner_half": 100.0, "gemm_misaligned": 0.5, "attention_head_half": 32.0,
       "attention_backward": 0.8}  # fmt: skip
RATES = replace(
    sustained_rates(H100, Precision.BF16, CONSTANTS, PRESET), linear_flops_per_s=200.0, wide_flops_per_s=100.0,
    attention_flops_per_s=50.0, attention_half=1000.0, memory_bytes_per_s=10.0, sm_count=4,
    constants=CONSTANTS.with_values(OWN),
)  # fmt: skip
"""Round numbers: 200 and 100 FLOP/s, four SMs, ten bytes a second."""


def test_a_clusters_own_constants() -> None:
    """Known names, and other GPUs of a family that is there; what belongs to the network is left to it."""
    own = load_constants(
        {"kernel_gap_s": 7.0, "fp8_gain.volta": 0.5, "nvlink_fraction.hopper": 0.9, "kernel_gap_s.x": 1.0}
    )
    assert own["kernel_gap_s"] == 7.0 and own["fp8_gain.volta"] == 0.5
    assert set(own.values) == {*CONSTANTS.values, "fp8_gain.volta"}
    assert (
        own.of("fp8_gain", "none", "volta") == 0.5
        and own.has("fp8_gain", "volta")
        and not own.has("fp8_gain", "none")
    )
    assert own.of("fp8_gain", "hopper", "volta") == CONSTANTS["fp8_gain.hopper"]
    with pytest.raises(InputError, match=r"no constant nvfp4_gain\.volta") as lacking:
        own.of("nvfp4_gain", "hopper", "volta")
    assert "known: nvfp4_gain.blackwell, nvfp4_gain.blackwell-rtx" in str(lacking.value)
    with pytest.raises(InputError, match="unknown constant 'b'"):
        own.with_values({"c": 1.0, "b": 1.0, "kernel_gap_s": 2.0})


@pytest.mark.parametrize(("precision", "switches", "ideal", "reserved"), [
    (Precision.BF16, {}, False, 0.0), (Precision.FP8, {"fp8_attention": True}, False, 0.25), (Precision.FP8, {}, True, 0.0),
    (Precision.BF16, {"fp8_attention": True, "hopper_gemm_speed": 0.5, "attention_speed": 0.75}, False, 0.0),
])  # fmt: skip
def test_rates_of_a_gpu(precision: Precision, switches: dict[str, Any], ideal: bool, reserved: float) -> None:
    """Shares of the datasheet: by format, kernels of a trainer, and SMs that are left."""
    preset = replace(
        PRESET, **{"fp8_attention": False, "hopper_gemm_speed": 1.0, "attention_speed": 1.0} | switches
    )
    found = sustained_rates(H100, precision, CONSTANTS, preset, ideal=ideal, reserved_sm_share=reserved)
    cap = CONSTANTS["gemm_cap.hopper"] * (1.0 if ideal else preset.hopper_gemm_speed) * (1 - reserved)
    gain = CONSTANTS["fp8_gain.hopper"] if precision is Precision.FP8 else 1.0
    wide = H100.dense_flops[Precision.BF16]
    assert found.linear_flops_per_s == pytest.approx(H100.dense_flops[precision] * cap * gain)
    assert found.wide_flops_per_s == pytest.approx(wide * cap)
    narrow = CONSTANTS["fp8_attention"] if preset.fp8_attention and precision is Precision.FP8 else 1.0
    kernels = narrow * (1.0 if ideal else preset.attention_speed) * (1 - reserved)
    assert found.attention_flops_per_s == pytest.approx(wide * CONSTANTS["attention_cap.hopper"] * kernels)
    assert found.attention_half == CONSTANTS["attention_sequence_half.hopper"]
    assert found.memory_bytes_per_s == pytest.approx(
        H100.hbm_bytes_per_s * CONSTANTS.of("hbm_fraction", "hopper")
    )
    assert found.optimizer_bytes_per_s == pytest.approx(
        H100.hbm_bytes_per_s * CONSTANTS["optimizer_hbm_fraction"]
    )
    assert found.eight_bit is (precision is Precision.FP8)


def array(value: float) -> Any:
    """One row."""
    return np.array([float(value)])


@pytest.mark.parametrize(
    ("tiles", "share"), [(4, 1), (5, (5 / 8) ** 0.5), (8, 1), (1, 0.5), (9, (9 / 12) ** 0.5)]
)
def test_waves_of_tiles(tiles: float, share: float) -> None:
    """Of four SMs the last wave may be part empty."""
    assert occupancy(array(tiles), 4, 0.5).tolist() == pytest.approx([share])


@pytest.mark.parametrize(("sizes", "options", "peak", "tiles", "aligned"), [
    ((512, 512, 640), {}, 200, 8, True), ((513, 512, 640), {}, 200, 10, True), ((512, 576, 640), {}, 200, 12, True),
    ((512, 513, 640), {}, 200, 12, False), ((512, 512, 641), {}, 200, 8, False),
    ((512, 512, 640), {"wide": True}, 100, 8, True),
    ((128, 256, 640), {"groups": 3.0}, 200, 3, True), ((512, 520, 648), {"alignment": 8}, 200, 12, True),
    ((512, 516, 640), {"alignment": 8, "misaligned": "attention_backward"}, 200, 12, False),
])  # fmt: skip
def test_a_multiplication(
    sizes: tuple[int, int, int], options: dict[str, Any], peak: float, tiles: int, aligned: bool
) -> None:
    """By whole tiles on whole waves, by the inner dimension, and by alignment; a faster peak needs a longer one."""
    rows, columns, inner = map(array, sizes)
    groups = options.get("groups", 1.0)
    share = (tiles / (4 * -(-tiles // 4))) ** 0.5 * sizes[2] / (sizes[2] + 100 * peak / 100)
    share *= 1.0 if aligned else OWN[options.get("misaligned", "gemm_misaligned")]
    quick = replace(RATES, memory_bytes_per_s=1e12)
    expected = 2 * groups * sizes[0] * sizes[1] * sizes[2] / (peak * share)
    assert gemm_s(quick, rows, columns, inner, **options).tolist() == pytest.approx([expected])
    assert gemm_s(replace(quick, ideal=True), rows, columns, inner, **options).tolist() == pytest.approx(
        [2 * groups * sizes[0] * sizes[1] * sizes[2] / peak]
    )


@pytest.mark.parametrize(("options", "precision", "bytes_"), [
    ({}, Precision.BF16, 2 * 64 * (128 + 256) + 2 * 128 * 256),
    ({"output_bytes": 8}, Precision.BF16, 2 * 64 * 384 + 8 * 128 * 256),
    ({"groups": 3.0}, Precision.BF16, 3 * (2 * 64 * 384 + 2 * 128 * 256)),
    ({}, Precision.FP8, (1 + 4 / 128) * 64 * 384 + 2 * 128 * 256),
    ({"wide": True}, Precision.FP8, 2 * 64 * 384 + 2 * 128 * 256),
])  # fmt: skip
def test_memory_bounds_a_multiplication(options: dict[str, Any], precision: Precision, bytes_: float) -> None:
    """Both operands in their format, and the output."""
    quick = replace(RATES, linear_flops_per_s=1e15, wide_flops_per_s=1e15, precision=precision)
    assert gemm_s(quick, array(128), array(256), array(64), **options).tolist() == pytest.approx(
        [bytes_ / 10]
    )
    assert memory_bound_s(quick, array(50)).tolist() == [5]
    assert memory_bound_s(replace(quick, ideal=True), array(50)).tolist() == [0]


@pytest.mark.parametrize(("backward", "flops", "speed"), [(False, 1000, 1.0), (True, 2500, 0.8)])
def test_an_attention_kernel(backward: bool, flops: float, speed: float) -> None:
    """By the length that is attended, the head's width and whole waves; backward 2.5 times the FLOPs."""
    share = 3000 / 4000 * (64 / 96) * (160 / 128) * (5 / 8) ** 0.5
    found = attention_s(
        RATES, array(1000), tiles=array(5), length=array(3000), head_dim=64, backward=backward
    )
    assert found.tolist() == pytest.approx([flops / (50 * share * speed)])
    simple = attention_s(
        replace(RATES, ideal=True),
        array(1000),
        tiles=array(5),
        length=array(9),
        head_dim=64,
        backward=backward,
    )
    assert simple.tolist() == [(2000 if backward else 1000) / 100]


@pytest.mark.parametrize(("switches", "options", "more"), [
    ({"adds_gradients": False}, {}, (0, 0, 0)), ({"adds_gradients": True}, {}, (0, 0, (2 + 2 * 4) * 256 * 64)),
    ({"adds_gradients": False, "joint_projections": False}, {"split": (64.0, 64.0, 128.0)}, (0, 2 * 6 * 128 * 64, 0)),
    ({"adds_gradients": False, "joint_projections": False, "compiled": True}, {"split": (64.0, 64.0, 128.0)},
     (0, 2 * 4 * 128 * 64, 0)),
    ({"adds_gradients": False, "joint_projections": True}, {"split": (64.0, 64.0, 128.0)}, (0, 0, 0)),
    ({"adds_gradients": True}, {"groups": 3.0}, (0, 0, 3 * 10 * 256 * 64)),
])  # fmt: skip
def test_a_linear_layer(
    switches: dict[str, Any], options: dict[str, Any], more: tuple[float, float, float], monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """Products of every matrix each way; kernels that add gradients, and sums of what several matrices give an input."""
    monkeypatch.setattr(work, "gemm_s", lambda _, m, n, k, *, groups=1.0, **__: groups * m * n * k)
    workload = load_workload("llama3-8b")
    preset = replace(PRESET, **{"weight_bytes": 2, "grad_bytes": 4, "compiled": False} | switches)
    cost = build_cost_model(workload.model, workload.training, CLUSTER, preset=preset)
    ctx = cost.compute_context(batch_of_one(Layout(dp=8)))
    ctx = replace(ctx, rates=replace(ctx.rates, memory_bytes_per_s=1.0))
    options = {
        name: tuple(map(array, value)) if name == "split" else value for name, value in options.items()
    }
    found = linear(ctx, array(128), array(256), array(64), **options)
    product = 128 * 256 * 64 * options.get("groups", 1.0)
    times = [found.forward_s, found.dgrad_s, found.wgrad_s]
    assert [float(time[0]) for time in times] == [product + extra for extra in more]


def test_casts_of_a_linear_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Input and output's gradient, of which a rank makes a share; rows scaled one by one multiply slower."""
    monkeypatch.setattr(work, "gemm_s", lambda _, m, n, k, **__: m * n * k)
    workload = load_workload("llama3-8b")
    preset = replace(PRESET, adds_gradients=False)
    for recipe, speed in ((Fp8Recipe.DELAYED, 1.0), (Fp8Recipe.ROWWISE, CONSTANTS["fp8_rowwise"])):
        training = replace(workload.training, precision=Precision.FP8, fp8_recipe=recipe)
        cost = build_cost_model(workload.model, training, CLUSTER, preset=preset)
        ctx = cost.compute_context(batch_of_one(Layout(dp=8, precision=Precision.FP8)))
        ctx = replace(ctx, rates=replace(ctx.rates, memory_bytes_per_s=1.0))
        whole, (part, gathered) = (
            sum(ctx.operands.cast_bytes(normed=False, gathered=False)),
            ctx.operands.cast_bytes(normed=False, gathered=True),
        )
        found = linear(ctx, array(128), array(256), array(64), input_share=0.25, cast_share=0.5)
        product, traffic = 128 * 256 * 64, CONSTANTS["cast_traffic"] / 2
        cast_in = traffic * 128 * 64 * (0.25 * part + gathered)
        assert found.forward_s.tolist() == pytest.approx([product / speed + cast_in])
        assert found.dgrad_s.tolist() == pytest.approx([product / speed + traffic * 128 * 256 * whole])
        assert found.wgrad_s.tolist() == pytest.approx([product / speed])
        wide = linear(ctx, array(128), array(256), array(64), wide=True)
        assert wide.forward_s.tolist() == [product]


@pytest.mark.parametrize(("mixer", "mlp", "gated", "once", "expected"), [
    (Mixer.ATTENTION, Mlp.DENSE, True, False, 3), (Mixer.ATTENTION, Mlp.DENSE, False, False, 2),
    (Mixer.ATTENTION, Mlp.NONE, True, False, 2), (Mixer.NONE, Mlp.DENSE, True, False, 1),
    (Mixer.NONE, Mlp.NONE, True, False, 0), (Mixer.ATTENTION, Mlp.DENSE, True, True, 0),
])  # fmt: skip
def test_gathers_of_every_matrix(mixer: Mixer, mlp: Mlp, gated: bool, once: bool, expected: int) -> None:
    """Two more of queries, keys and values, one of a gate; none where one gather serves them all."""
    workload = load_workload("llama3-8b")
    cost = build_cost_model(
        replace(workload.model, gated=gated),
        workload.training,
        CLUSTER,
        preset=replace(PRESET, gathers_once=once),
    )
    comm = cost.comm_context(batch_of_one(Layout(tp=2, sp=True, dp=4)), "tp-cp-ep-dp-pp")
    assert (
        _further_gathers(comm, LayerShape(mixer=mixer, mlp=mlp, ffn=64 if mlp is Mlp.DENSE else 0))
        == expected
    )


def test_switches_of_rows() -> None:
    """One value where all rows agree, a column where not; rows that stand for all take whatever helps."""
    states = (
        Switches(dispatcher=Dispatcher.ALLGATHER, loss_chunks=4), Switches(dispatcher=Dispatcher.ALLTOALL, ep_overlap=True),
        Switches(dispatcher=Dispatcher.ALLTOALL, tp_overlap=True, cuda_graph=CudaGraph.FULL),
    )  # fmt: skip
    batch = batch_of([Layout(dp=8, switches=state) for state in states])
    plain = replace(
        PRESET, ep_overlap=EpOverlap.NONE, tp_overlap=False, loss_chunks=1, cuda_graph=CudaGraph.NONE
    )
    found = row_switches(plain, batch)
    assert found.loss_chunks.tolist() == [4, 1, 1] and found.tp_overlap.tolist() == [False, False, True]
    assert found.overlap[EpOverlap.BATCH].tolist() == [False, True, False] and found.graph.tolist() == [
        False,
        False,
        True,
    ]
    assert found.delay_wgrad.shape == () and not found.cheapest
    prices = {Dispatcher.ALLGATHER: array(7), Dispatcher.ALLTOALL: array(5)}
    assert found.per_dispatcher(prices.__getitem__).tolist() == [7, 5, 5]
    assert found.least_kept(lambda chunks: 8 / chunks).tolist() == [2, 8, 8]
    every = row_switches(plain, batch.take(np.array([0, 0])), cheapest=True)
    assert every.cheapest and every.loss_chunks == 1 and every.tp_overlap and every.graph
    assert every.overlap[EpOverlap.BATCH] and not every.delay_wgrad
    assert [float(chunks) for chunks in every.kept_chunks] == [1, 4]
    assert every.per_dispatcher(prices.__getitem__).tolist() == [5]
    assert every.least_kept(lambda chunks: np.array([8 / chunks])).tolist() == [2]
    nothing = row_switches(plain, batch_of([Layout(dp=8)] * 2))
    assert nothing.loss_chunks == 1 and nothing.loss_chunks.shape == ()
    assert of_preset(replace(plain, loss_chunks=3)).loss_chunks == 3


@pytest.mark.parametrize(("sparse", "length"), [(False, 1024), (True, 64)])
def test_attention_to_compressed_keys(sparse: bool, length: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Projections by whose tokens they see; the kernel by the keys that are left of the sequence, or that are chosen."""
    asked: list[dict[str, Any]] = []

    def kernel(_: Any, flops: Any, **given: Any) -> Any:
        asked.append(
            {"flops": float(flops[0])} | {name: float(np.ravel(value)[0]) for name, value in given.items()}
        )
        return flops

    monkeypatch.setattr(work, "gemm_s", lambda _, m, n, k, **__: m * n * k)
    monkeypatch.setattr(compressed, "attention_s", kernel)
    workload = load_workload("llama3-8b")
    model = replace(
        workload.model, compressed=CompressedSpec(query_rank=96, output_groups=2, output_rank=64),
        indexer=IndexerSpec(heads=4, head_dim=20, top_k=64) if sparse else None,
    )  # fmt: skip
    training = replace(workload.training, sequence_length=4096)
    cost = build_cost_model(model, training, CLUSTER, preset=replace(PRESET, adds_gradients=False))
    comm = cost.comm_context(batch_of_one(Layout(tp=2, sp=True, cp=2, dp=2, micro_batch=2)), "tp-cp-ep-dp-pp")
    ctx, keys, shape = comm.compute, comm.keys, LayerShape(ffn=64, compression=4, sparse=sparse)
    core = compressed.compressed_attention_work(ctx, keys, shape)
    flops = 2 * compressed_keys(model, shape, 4096.0, causal=True) * score_width(model) * 4096 / 2
    each = {"flops": flops, "tiles": 2 * 16 * 16, "length": length, "head_dim": 128}
    assert asked == [each | {"backward": 0.0}, each | {"backward": 1.0}]
    assert [float(part[0]) for part in (core.forward_s, core.dgrad_s, core.wgrad_s)] == [flops, flops, 0]
    parts = compressed.compressed_projections(ctx, keys, shape)
    series = 2 if sparse else 1
    down = 2048 * 4096 * (96 + 128 + 2 * series * 128)
    assert parts["qkv"].wgrad_s.tolist() == [down + 4096 * 32 * 128 / 2 * 96]
    assert parts["proj"].wgrad_s.tolist() == [4096 * (128 / 2 * 32 * 128 / 2 + 4096 * 128 / 2)]
    turned = 4096 * 128 * (2 * 16 + 1) * 8 / ctx.rates.memory_bytes_per_s
    assert parts["rotary"].forward_s.tolist() == pytest.approx([turned * ctx.traffic])
