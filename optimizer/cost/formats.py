"""Bytes of tensors in narrow formats: scales included, and the copies of weights that each generation of GPUs needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutopt.optimizer.frameworks.preset import NarrowWeights
from layoutopt.optimizer.specs.vocabulary import Precision

if TYPE_CHECKING:
    from layoutopt.optimizer.frameworks.preset import FrameworkPreset

NARROW_BYTES = {Precision.FP8: 1 + 4 / 128, Precision.MXFP8: 1 + 1 / 32, Precision.NVFP4: 0.5 + 1 / 16}
"""Bytes per element: an fp32 scale per 128 values (DeepSeek-V3 report, section 3.3), an 8-bit one per 32 (OCP MX),
an 8-bit one per 16 (NVFP4)."""


def is_narrow(precision: Precision) -> bool:
    """Tell whether linear layers multiply in 8 or 4 bits."""
    return precision in NARROW_BYTES


def element_bytes(precision: Precision) -> float:
    """Bytes of one element of a linear layer's operand."""
    return NARROW_BYTES.get(precision, 2.0)


def weight_copies(precision: Precision, *, any_arrangement: bool) -> int:
    """Copies of a narrow weight, for use as it is and transposed.

    Hopper multiplies 8-bit matrices in one arrangement only, Blackwell in any; formats with scales along one axis need
    a copy scaled along either (NVIDIA/TransformerEngine, tensor/float8_tensor.py and mxfp8_tensor.py).
    """
    return 1 if precision is Precision.FP8 and any_arrangement else 2


def keeps_narrow_alone(preset: FrameworkPreset, precision: Precision) -> bool:
    """Tell whether weights exist in the narrow format alone; 4-bit ones are always cast from 16 bits."""
    return preset.narrow_weights is NarrowWeights.ALONE and precision in (Precision.FP8, Precision.MXFP8)


def weight_bytes(preset: FrameworkPreset, precision: Precision, *, any_arrangement: bool) -> float:
    """Bytes per parameter of the weights of linear layers on a rank that holds them whole."""
    if not is_narrow(precision) or preset.narrow_weights is NarrowWeights.CAST:
        return preset.weight_bytes
    narrow = weight_copies(precision, any_arrangement=any_arrangement) * NARROW_BYTES[precision]
    return narrow if keeps_narrow_alone(preset, precision) else preset.weight_bytes + narrow


def gathered_bytes(preset: FrameworkPreset, precision: Precision) -> float:
    """Bytes per parameter that ranks send when they gather weights of linear layers."""
    return NARROW_BYTES[precision] if keeps_narrow_alone(preset, precision) else preset.weight_bytes
