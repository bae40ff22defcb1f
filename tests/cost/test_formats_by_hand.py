"""Narrow formats, linear attention and small weights counted by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from layoutopt.optimizer.cost.formats import Operands, element_bytes, weight_bytes, weight_cast_bytes
from layoutopt.optimizer.cost.mixers import (
    indexer_vectors,
    linear_kept_bytes,
    linear_state_bytes,
    linear_vectors,
    recurrence_flops,
    stream_weights,
)
from layoutopt.optimizer.frameworks.preset import NarrowWeights, load_preset
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.specs.loading import load_workload
from layoutopt.optimizer.specs.model import IndexerSpec, LayerShape, LinearSpec, Mixer
from layoutopt.optimizer.specs.vocabulary import Fp8Recipe, Precision

MODEL = load_workload("llama3-8b").model
B, MX, FOUR = 1 + 4 / 128, 1 + 1 / 32, 0.5 + 1 / 16
"""Bytes per element: a scale of 4 bytes per 128 values, one of 1 per 32, 4 bits and one of 1 per 16."""
MX_READ, FOUR_READ = MX + 2 / 32, FOUR + 2 / 16
"""With scales that are read and written once more, in the order of tensor cores."""


@pytest.mark.parametrize(("precision", "way", "any_arrangement", "held", "cast"), [
    (Precision.BF16, NarrowWeights.COPIES, True, 2, 0), (Precision.FP8, NarrowWeights.CAST, True, 2, 0),
    (Precision.FP8, NarrowWeights.COPIES, True, 2 + B, 2 + B),
    (Precision.FP8, NarrowWeights.COPIES, False, 2 + 2 * B, 2 + 2 * B),
    (Precision.FP8, NarrowWeights.ALONE, True, B, 0), (Precision.FP8, NarrowWeights.ALONE, False, 2 * B, 2),
    (Precision.MXFP8, NarrowWeights.ALONE, True, 2 * MX, 4 + 2 * MX),
    (Precision.MXFP8, NarrowWeights.COPIES, True, 2 + 2 * MX, 2 + 2 * MX),
    (Precision.NVFP4, NarrowWeights.ALONE, True, 2 + 2 * FOUR, 2 + 2 * FOUR),
])  # fmt: skip
def test_narrow_weights(
    precision: Precision, way: NarrowWeights, any_arrangement: bool, held: float, cast: float
) -> None:
    """Copies for both arrangements beside 16 bits or alone; what a step's casts read, write and clear."""
    preset = replace(load_preset(Framework.MEGATRON), narrow_weights=way, weight_bytes=2)
    assert weight_bytes(preset, precision, any_arrangement=any_arrangement) == held
    assert weight_cast_bytes(preset, precision, any_arrangement=any_arrangement) == cast


@pytest.mark.parametrize(("precision", "recipe", "any_arrangement", "expected"), [
    (Precision.FP8, Fp8Recipe.ROWWISE, True, (2 * (2 + B), 2 * (2 + B), (2 * (2 + B), 0), 2 * B)),
    (Precision.NVFP4, None, True, (2 + 2 + 2 * (FOUR_READ), 2 + 2 * (FOUR_READ), (4 + 2 * (FOUR_READ), 0), 2 * FOUR)),
    (Precision.MXFP8, Fp8Recipe.MX, True, (2 + 2 * (MX_READ), 2 + 2 * (MX_READ), (2 + 2 * (MX_READ), 0), 2 * MX)),
    (Precision.FP8, Fp8Recipe.CURRENT, False, (6, 4, (5, 2), 1)),
    (Precision.FP8, Fp8Recipe.DELAYED, True, (3, 0, (3, 0), 1)),
])  # fmt: skip
def test_casts(
    precision: Precision, recipe: Fp8Recipe | None, any_arrangement: bool, expected: tuple[Any, ...]
) -> None:
    """Of a tensor alone, one that a norm writes, one that ranks gather; and an output's gradient as it travels."""
    operands = Operands(precision=precision, recipe=recipe, any_arrangement=any_arrangement)
    assert sum(operands.cast_bytes(normed=False, gathered=False)) == expected[0]
    assert sum(operands.cast_bytes(normed=True, gathered=False)) == expected[1]
    assert operands.cast_bytes(normed=False, gathered=True) == expected[2]
    assert operands.gathered_gradient_bytes == expected[3]
    assert element_bytes(Precision.BF16) == 2


@pytest.mark.parametrize(("mixer", "vectors", "flops", "kept"), [
    (Mixer.LIGHTNING, 256, 4 * 4096 + 256 * (64 + 256), 2 * (384 + 256 + 256)),
    (Mixer.GATED_DELTA, 4 * 384 + 8 + 8 + 32, 2 * (4 * 384 + 4 * 4096), 2 * (2 * 384 + 256 + 16 + 64 * 8 + 256)),
    (Mixer.KIMI_DELTA, 4 * 384 + 8 + 64 + 32, 2 * (4 * 384 + 4 * 4096), 2 * (2 * 384 + 256 + 64 + 8 + 64 * 8 + 256)),
])  # fmt: skip
def test_linear_attention_by_hand(mixer: Mixer, vectors: int, flops: float, kept: float) -> None:
    """Queries and keys of 4 heads by 16, values of 8 by 32: a state of 4096."""
    model = replace(
        MODEL,
        linear=LinearSpec(key_heads=4, value_heads=8, key_head_dim=16, value_head_dim=32, conv=4),
    )
    assert linear_vectors(model, mixer) == vectors
    assert recurrence_flops(model, mixer) == flops
    assert linear_kept_bytes(model, mixer) == kept
    assert linear_state_bytes(model) == 4 * 8 * 16 * (32 + 16)


def test_small_weights_by_hand() -> None:
    """Norms of an indexer, plain or of pooled keys; streams mixed around every layer and joined at the end."""
    model = replace(MODEL, indexer=IndexerSpec(heads=4, head_dim=20, top_k=64))
    assert indexer_vectors(model, LayerShape()) == 40
    assert indexer_vectors(model, LayerShape(compression=3)) == 20 + 2 * 3 * 20
    assert stream_weights(MODEL) == (0, 0)
    assert stream_weights(replace(MODEL, streams=4)) == (24 * 4 * 4096 + 24 + 3, 4 * 4 * 4096 + 4 + 1)
