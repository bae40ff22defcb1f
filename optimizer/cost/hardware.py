"""Rates of one GPU at one precision, and the time of its three kinds of kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.formats import NARROW_BYTES, element_bytes
from layoutopt.optimizer.specs.errors import input_error
from layoutopt.optimizer.specs.vocabulary import Precision

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from layoutopt.optimizer.cost.constants import Constants
    from layoutopt.optimizer.frameworks.preset import FrameworkPreset
    from layoutopt.optimizer.specs.cluster import GpuSpec

    FloatArray = NDArray[np.float64]

TILE_ROWS, TILE_COLUMNS = 128, 256
"""Output tile of a large cuBLAS multiplication on tensor cores (CUTLASS default for Ampere to Blackwell)."""

ALIGNMENT = 64
"""Elements to which N and K should align for full tensor-core speed."""

HEAD_ALIGNMENT = 8
"""Elements to which a head should align: 16 bytes (NVIDIA matrix multiplication guide, section 4.1)."""

HOPPER = "hopper"
"""The generation of which ``hopper_gemm_speed`` of a preset speaks."""

EIGHT_BIT = tuple(NARROW_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What one GPU sustains: FLOP/s of linear layers and of 16-bit kernels, attention, bytes/s of memory.

    ``attention_half`` is the length in tokens at which attention reaches half its rate.
    ``ideal`` turns every shape effect off (the simple model of a constant share of peak).
    """

    linear_flops_per_s: float
    wide_flops_per_s: float
    attention_flops_per_s: float
    attention_half: float
    memory_bytes_per_s: float
    optimizer_bytes_per_s: float
    sm_count: int
    precision: Precision
    eight_bit: bool
    any_arrangement: bool
    sized_experts: bool
    ideal: bool
    constants: Constants


def sustained_rates(
    gpu: GpuSpec,
    precision: Precision,
    constants: Constants,
    preset: FrameworkPreset,
    *,
    ideal: bool = False,
    reserved_sm_share: float = 0.0,
) -> Rates:
    """Return the rates of ``gpu`` at ``precision`` with the kernels of a framework's release.

    ``reserved_sm_share`` of the SMs do other work. A precision that the GPU lacks is an error naming the supported
    ones. Raises ``InputError`` for it.
    """
    # GPUs before Ampere multiply in fp16 alone.
    wide = Precision.BF16 if Precision.BF16 in gpu.dense_flops else Precision.FP16
    # A format that the tensor cores lack would run at no known rate.
    if precision not in gpu.dense_flops:
        supported = ", ".join(item.value for item in gpu.dense_flops)
        raise input_error(
            f"{gpu.name} has no {precision.value} arithmetic", f"supported: {supported}", key="precision"
        )
    cap = constants.of("gemm_cap", gpu.architecture, gpu.generation.name)
    narrow = constants["fp8_attention"] if preset.fp8_attention and precision in EIGHT_BIT else 1.0
    if not ideal:
        cap *= preset.hopper_gemm_speed if gpu.generation.name == HOPPER else 1.0
        narrow *= preset.attention_speed
    # SMs of communication kernels and a power limit both take from every kernel that computes.
    left = (1.0 - reserved_sm_share) * capped_speed(gpu, constants)
    gain = _narrow_gain(precision, gpu, constants)
    generation = gpu.generation.name
    kernels = _attention_kernels(gpu, preset, constants)
    # Memory has its own clock: a limit slows it only below the knee.
    bandwidth = gpu.hbm_bytes_per_s * min(1.0, _cap(gpu) / constants["power_knee"])
    return Rates(
        linear_flops_per_s=gpu.dense_flops[precision] * cap * gain * left,
        wide_flops_per_s=gpu.dense_flops[wide] * cap * left,
        attention_flops_per_s=gpu.dense_flops[wide] * constants.of("attention_cap", *kernels) * narrow * left,
        attention_half=constants.of("attention_sequence_half", *kernels),
        memory_bytes_per_s=bandwidth * constants.of("hbm_fraction", gpu.architecture, generation),
        optimizer_bytes_per_s=bandwidth * constants["optimizer_hbm_fraction"],
        sm_count=gpu.sm_count,
        precision=precision,
        eight_bit=precision in EIGHT_BIT,
        any_arrangement=gpu.generation.any_arrangement,
        sized_experts=gpu.generation.sized_experts,
        ideal=ideal,
        constants=constants,
    )


def _cap(gpu: GpuSpec) -> float:
    """Power limit over the part's rated one; a limit above it gains nothing, clocks are at their highest."""
    return min(1.0, gpu.tdp_w / gpu.rated_w)


def capped_speed(gpu: GpuSpec, constants: Constants) -> float:
    """Share of its speed that a GPU keeps under its power limit.

    Dynamic power is about the cube of the clock where voltage follows it; at the voltage's floor, below the knee, it is
    proportional to the clock. The exponent is measured (constants ``power_exponent``, ``power_knee``).
    """
    cap, knee = _cap(gpu), constants["power_knee"]
    return float(max(cap, knee) ** constants["power_exponent"] * min(1.0, cap / knee))


def _attention_kernels(gpu: GpuSpec, preset: FrameworkPreset, constants: Constants) -> tuple[str, ...]:
    """Name the attention kernels in use: where FlashAttention-2 has none for a generation, it runs older ones there."""
    older = f"{gpu.generation.name}-fa2"
    if preset.flash_attention_2 and constants.has("attention_cap", older):
        return (older,)
    return gpu.architecture, gpu.generation.name


def _narrow_gain(precision: Precision, gpu: GpuSpec, constants: Constants) -> float:
    """Share of the 16-bit cap that a narrower format reaches of its own peak."""
    families = gpu.architecture, gpu.generation.name
    if precision is Precision.NVFP4:
        return constants.of("nvfp4_gain", *families)
    return constants.of("fp8_gain", *families) if precision in EIGHT_BIT else 1.0


def occupancy(tiles: FloatArray, sm_count: int, exponent: float) -> FloatArray:
    """Wave quantisation: tiles, of any shape, over whole waves of SMs, softened by an exponent (split-K, stream-K)."""
    waves = np.ceil(tiles / sm_count)
    return np.asarray((tiles / (waves * sm_count)) ** exponent)


def gemm_s(
    rates: Rates,
    rows: FloatArray,
    columns: FloatArray,
    inner: FloatArray,
    *,
    wide: bool = False,
    output_bytes: float = 2,
    groups: FloatArray | float = 1.0,
    alignment: int = ALIGNMENT,
    misaligned: str = "gemm_misaligned",
) -> FloatArray:
    """Time of ``groups`` (rows x inner) by (inner x columns) multiplications, bounded below by memory traffic.

    ``wide`` multiplies in 16 bits whatever the precision; ``output_bytes`` is traffic per output element
    (8 for an fp32 gradient that is read, added to and written). Groups share the SMs in one kernel.
    ``misaligned`` names the speed where N or K is no multiple of ``alignment``.
    """
    flops = 2.0 * groups * rows * columns * inner
    peak = rates.wide_flops_per_s if wide else rates.linear_flops_per_s
    if rates.ideal:
        return np.asarray(flops / peak)
    constants = rates.constants
    # A tile at the edge takes as long as a full one.
    tiles = groups * np.ceil(rows / TILE_ROWS) * np.ceil(columns / TILE_COLUMNS)
    share = occupancy(tiles, rates.sm_count, constants["gemm_occupancy_exponent"])
    # Prologue and epilogue take as long in any format, so that a faster main loop needs a longer inner dimension.
    half = constants["gemm_inner_half"] * peak / rates.wide_flops_per_s
    share = share * inner / (inner + half)
    aligned = (columns % alignment == 0) & (inner % alignment == 0)
    share = share * np.where(aligned, 1.0, constants[misaligned])
    operand = 2.0 if wide else element_bytes(rates.precision)
    moved = groups * (operand * inner * (rows + columns) + output_bytes * rows * columns)
    return np.maximum(flops / (peak * share), moved / rates.memory_bytes_per_s)


def attention_s(
    rates: Rates,
    flops: FloatArray,
    *,
    tiles: FloatArray,
    length: FloatArray,
    head_dim: float,
    backward: bool = False,
) -> FloatArray:
    """Time (n,) of a fused attention kernel over ``flops`` FLOPs (counted on computed scores only).

    ``tiles`` is the number of query tiles over heads and sequences, ``length`` the attended keys.
    The backward kernel does 2.5 times the FLOPs (five multiplications for two; FlashAttention-2, section 3).
    """
    # The backward kernel has no scores at hand and multiplies them anew.
    work = 2.5 * flops if backward else flops
    if rates.ideal:
        # Model FLOPs do not count the scores that the kernel computes again.
        return np.asarray((2.0 * flops if backward else flops) / rates.wide_flops_per_s)
    constants = rates.constants
    half = constants["attention_head_half"]
    # Rates are measured at heads of 128: the last factor is 1 there.
    share = length / (length + rates.attention_half) * (head_dim / (head_dim + half)) * (128 + half) / 128
    share = share * occupancy(tiles, rates.sm_count, constants["gemm_occupancy_exponent"])
    speed = constants["attention_backward"] if backward else 1.0
    return np.asarray(work / (rates.attention_flops_per_s * share * speed))


def memory_bound_s(rates: Rates, moved_bytes: FloatArray) -> FloatArray:
    """Time of element-wise kernels that move ``moved_bytes``, in its shape; free in the ideal model."""
    return np.zeros_like(moved_bytes) if rates.ideal else moved_bytes / rates.memory_bytes_per_s
