"""Low-rank adapters on frozen weights (Hu et al. 2021, LoRA; Dettmers et al. 2023, QLoRA).

A frozen matrix is multiplied forward and for its input's gradient, not for its own: 4 FLOPs per parameter and token instead
of 6. Beside an adapted matrix of ``in`` by ``out`` runs a pair of ``in`` by r and r by ``out``, which is trained. Frozen
weights have neither gradients nor optimizer state; QLoRA stores those of the blocks in 4 bits and widens each before use.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.flops import mixer_linear_flops, mlp_flops, model_flops_per_token
from layoutopt.optimizer.cost.hardware import memory_bound_s
from layoutopt.optimizer.cost.matrices import Held, mixer_matrices, mlp_block_matrices
from layoutopt.optimizer.cost.parameters import Parameters, mlp_matrices
from layoutopt.optimizer.cost.work import Work, moved
from layoutopt.optimizer.specs.vocabulary import AdapterMethod, AdapterTarget

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from layoutopt.optimizer.cost.matrices import Matrix
    from layoutopt.optimizer.cost.work import ComputeContext, Keys
    from layoutopt.optimizer.frameworks.preset import FrameworkPreset
    from layoutopt.optimizer.specs.model import AdapterSpec, LayerShape, ModelSpec, Run

    FloatArray = NDArray[np.float64]

NF4_BYTES = 0.5 + 1 / 64 + 4 / (64 * 256)
"""Bytes of a 4-bit weight; its scales are quantised too: 8 bits per 64 weights, 32 per 256 of those (QLoRA, section 3)."""

BF16_BYTES = 2.0


def frozen_bytes(adapter: AdapterSpec, preset: FrameworkPreset) -> float:
    """Return the bytes of a frozen weight of a block: in 4 bits, in 16, or as sharded weights are stored."""
    if adapter.method is AdapterMethod.QLORA:
        return NF4_BYTES
    # Without a master copy the sharded weights are in the optimizer's format, frozen or not.
    return BF16_BYTES if preset.master_bytes else preset.fsdp_weight_bytes


def adapted_matrices(model: ModelSpec, adapter: AdapterSpec, shape: LayerShape) -> Iterator[Matrix]:
    """Yield a layer's matrices that have an adapter; those that ranks hold whole, as latent projections, among them."""
    if AdapterTarget.ATTENTION in adapter.targets:
        yield from mixer_matrices(model, shape)
    gates = mlp_matrices(model) - 1
    for matrix in mlp_block_matrices(model, shape):
        wanted = AdapterTarget.EXPERTS if matrix.held is Held.EXPERT else AdapterTarget.MLP
        if wanted in adapter.targets:  # the one back to the model's width, and those before it
            down = replace(matrix, count=matrix.count / (gates + 1))
            yield replace(down, row_parallel=True)
            yield replace(down, rows=down.columns, columns=down.rows, count=gates * down.count)


def adapter_parameters(model: ModelSpec, adapter: AdapterSpec, run: Run) -> Parameters:
    """Count the trained parameters of one block of a run: r (in + out) for each adapted matrix."""
    dense = expert = 0.0
    for shape in run.block:
        for matrix in adapted_matrices(model, adapter, shape):
            number = adapter.rank * (matrix.rows + matrix.columns) * matrix.count
            dense, expert = (
                (dense, expert + number) if matrix.held is Held.EXPERT else (dense + number, expert)
            )
    return Parameters(sharded=dense, expert=expert)


def adapter_work(ctx: ComputeContext, keys: Keys, shape: LayerShape, adapter: AdapterSpec) -> Work:
    """Time a layer's adapters, and widening 4-bit weights before every use.

    Products of so small a width read and write their tokens at the speed of memory, or multiply at that of 16 bits. A
    pair's output is added to its matrix's, and to the gradient of what matrices share as their input: two reads and a
    write. Matrices of one input read it once, as those do that NVIDIA-NeMo/Megatron-Bridge runs as one.
    """
    zero = np.zeros_like(keys.tp)
    total, inputs = Work(zero, zero, zero), set[tuple[bool, int]]()
    for matrix in adapted_matrices(ctx.model, adapter, shape):
        expert = matrix.held is Held.EXPERT
        tokens, count = _routed(ctx.model, keys, matrix.count) if expert else (keys.tokens, matrix.count)
        share = keys.etp if expert else 1.0 if matrix.held is Held.REPLICATED else keys.tp
        if matrix.held is Held.KEY_VALUE:  # ranks beyond the groups hold copies
            share = np.minimum(share, ctx.model.kv_heads_of(shape))
        width = tokens * matrix.rows / (1.0 if matrix.row_parallel else share) * count
        first = (expert, matrix.columns) not in inputs
        inputs.add((expert, matrix.columns))
        inner = (
            first
            * tokens
            * matrix.columns
            / (share if matrix.row_parallel else 1.0)
            * (count if expert else 1.0)
        )
        one = _product_s(ctx, inner + width, adapter.rank)
        sums = moved(ctx, 3 * BF16_BYTES * width, 3 * BF16_BYTES * inner)
        total = total + Work(one, one, one) + sums
    return total + _widened(ctx, keys, shape) if adapter.method is AdapterMethod.QLORA else total


def _routed(model: ModelSpec, keys: Keys, count: float) -> tuple[FloatArray, FloatArray]:
    """Return the tokens of one expert and the matrices of a rank's experts."""
    assert model.moe is not None
    # All ranks of an expert group send to an expert, which gets top_k of every ``experts`` rows.
    return keys.tokens * keys.ep * model.moe.top_k / model.moe.experts, count / keys.ep


def _product_s(ctx: ComputeContext, elements: FloatArray, rank: int) -> FloatArray:
    multiplied = 2.0 * rank * elements / ctx.rates.wide_flops_per_s
    # Ranks of 8 to 64 do too few FLOPs per byte for tensor cores: memory mostly decides.
    return np.maximum(memory_bound_s(ctx.rates, BF16_BYTES * elements), multiplied)


def _widened(ctx: ComputeContext, keys: Keys, shape: LayerShape) -> Work:
    """Time reading a layer's weights in 4 bits and writing them in 16, forward and backward."""
    held = np.zeros_like(keys.tp)
    for matrix in _all_matrices(ctx.model, shape):
        ranks = keys.ep * keys.etp if matrix.held is Held.EXPERT else keys.tp
        held = held + matrix.elements * matrix.count / ranks
    # The 16-bit copy is not kept between the passes: every use widens the weights again.
    each = memory_bound_s(ctx.rates, (NF4_BYTES + BF16_BYTES) * held)
    return Work(each, each, 0.0 * each)


def _all_matrices(model: ModelSpec, shape: LayerShape) -> tuple[Matrix, ...]:
    return (*mixer_matrices(model, shape), *mlp_block_matrices(model, shape))


def adapter_flops(model: ModelSpec, adapter: AdapterSpec, shape: LayerShape) -> float:
    """Return the forward FLOPs per token of a layer's adapters; of experts' those that a token is routed to."""
    routed = model.moe.top_k / model.moe.experts if model.moe is not None else 1.0
    return sum(
        2.0 * adapter.rank * (m.rows + m.columns) * m.count * (routed if m.held is Held.EXPERT else 1.0)
        for m in adapted_matrices(model, adapter, shape)
    )


def adapted_flops_per_token(
    model: ModelSpec, sequence_length: float, adapter: AdapterSpec, *, causal: bool
) -> float:
    """Forward and backward FLOPs per token where adapters alone are trained: no gradients of frozen weights."""
    whole = model_flops_per_token(model, sequence_length, causal=causal)
    # The head is frozen too: its input's gradient is still needed, its own is not.
    frozen = 2.0 * model.hidden * model.vocab
    adapters = 0.0
    for run in model.runs:
        for shape in run.block:
            frozen += run.count * (mixer_linear_flops(model, shape) + mlp_flops(model, shape))
            adapters += run.count * adapter_flops(model, adapter, shape)
    # One of a frozen weight's three passes falls away; adapters run all three.
    return whole - frozen + 3 * adapters
