"""Bytes of tensors in narrow formats: scales included, and the copies of weights that each generation of GPUs needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from layoutopt.optimizer.frameworks.preset import NarrowWeights
from layoutopt.optimizer.specs.vocabulary import Fp8Recipe, Precision

if TYPE_CHECKING:
    from layoutopt.optimizer.frameworks.preset import FrameworkPreset

NARROW_BYTES = {Precision.FP8: 1 + 4 / 128, Precision.MXFP8: 1 + 1 / 32, Precision.NVFP4: 0.5 + 1 / 16}
"""Bytes per element: an fp32 scale per 128 values (DeepSeek-V3 report, section 3.3), an 8-bit one per 32 (OCP MX),
an 8-bit one per 16 (NVFP4)."""


SCALE_BYTES = {Precision.MXFP8: 1 / 32, Precision.NVFP4: 1 / 16}
"""Bytes per element of scales that are put into the order in which tensor cores read them before they multiply."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Operands:
    """How tokens come to multiply in a narrow format, once as they are and once transposed.

    A cast reads 16 bits and writes every copy that it can. Scales along an axis (blocks of a row, whole rows) make two
    copies, one along either; one scale for the tensor makes one, which is transposed where the GPU multiplies one
    arrangement alone. With current scaling the tensor is read once more for its largest value, unless the kernel that
    writes it, a norm's, finds it on its way; with delayed scaling that kernel writes the narrow tensor instead of 16 bits
    (NVIDIA/TransformerEngine csrc/quantizer.cpp, csrc/extensions/normalization.cpp). Rows that torchao scales one by one
    are read again for the other axis (pytorch/ao float8_linear.py). ``any_arrangement``: as in ``weight_copies``.
    """

    precision: Precision
    recipe: Fp8Recipe | None
    any_arrangement: bool

    @property
    def along_axis(self) -> bool:
        """Whether scales belong to pieces of rows or columns."""
        narrow = self.precision is not Precision.FP8
        return narrow or self.recipe in (Fp8Recipe.BLOCKWISE, Fp8Recipe.MX, Fp8Recipe.ROWWISE)

    @property
    def gathers_narrow(self) -> bool:
        """Whether tensor-parallel ranks cast their share and gather the narrow tensor.

        NVIDIA/TransformerEngine distributed.py gather_along_first_dim; in torchtitan with one scale per tensor alone.
        """
        return self.recipe is not Fp8Recipe.ROWWISE

    @property
    def element_bytes(self) -> float:
        """Bytes per element of one copy, scales included; one scale for a tensor is none for an element."""
        return NARROW_BYTES[self.precision] if self.along_axis else 1.0

    @property
    def copies(self) -> int:
        """Copies that multiply."""
        return 2 if self.along_axis or not self.any_arrangement else 1

    @property
    def gathered_gradient_bytes(self) -> float:
        """Bytes per element that ranks send of an output gradient: both its copies where one cannot be had of the other."""
        return self.element_bytes * (self.copies if self.along_axis else 1)

    def cast_bytes(self, *, normed: bool, gathered: bool) -> tuple[float, float]:
        """Memory traffic per element where a tensor is cast, and where ranks have gathered it.

        ``normed``: a norm's kernel writes it.
        """
        one = self.element_bytes
        if self.recipe is Fp8Recipe.ROWWISE:
            return self.copies * (2.0 + one), 0.0
        if self.along_axis:
            # NVFP4 has a 32-bit scale of the tensor above those of blocks: its largest value is looked for
            # first.
            searched = 2.0 if self.precision is Precision.NVFP4 and not normed else 0.0
            ordered = 2.0 * SCALE_BYTES.get(self.precision, 0.0)
            return searched + 2.0 + self.copies * (one + ordered), 0.0
        # A transpose reads the narrow tensor and writes it.
        again = 2.0 * one * (self.copies - 1)
        # The norm's kernel knows the scale of the step before, so that it writes 8 bits at once.
        if normed and self.recipe is not Fp8Recipe.CURRENT:
            return 0.0, again
        searched = 2.0 if self.recipe is Fp8Recipe.CURRENT and not normed else 0.0
        return searched + 2.0 + one * (1 if gathered else self.copies), again if gathered else 0.0


def weight_cast_bytes(preset: FrameworkPreset, precision: Precision, *, any_arrangement: bool) -> float:
    """Memory traffic per parameter of a step's casts of the weights that a rank holds.

    Copies are cast of 16 bits once a step (``is_first_microbatch``). Weights in 8 bits alone come from the optimizer, and
    are transposed where they need it; those with scales along an axis are gathered in 16 bits into the gradients' buffer,
    cast out of it, and the buffer cleared (NVIDIA/Megatron-LM param_and_grad_buffer.py ``_post_param_sync``). Weights cast
    anew for every multiplication, their shares before they are gathered, are not counted.
    """
    if not is_narrow(precision) or preset.narrow_weights is NarrowWeights.CAST:
        return 0.0
    copies = weight_copies(precision, any_arrangement=any_arrangement)
    cast = preset.weight_bytes + copies * NARROW_BYTES[precision]
    if not keeps_narrow_alone(preset, precision):
        return cast
    return cast + preset.weight_bytes if precision is Precision.MXFP8 else 2.0 * (copies - 1)


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
    """Bytes per parameter that ranks send when they gather weights of linear layers.

    Of weights scaled along one axis the copy along the other cannot be had: they are gathered in 16 bits (NVIDIA/Megatron-LM
    ``reuse_grad_buf_for_mxfp8_param_ag``).
    """
    narrow = keeps_narrow_alone(preset, precision) and precision is Precision.FP8
    return NARROW_BYTES[precision] if narrow else preset.weight_bytes
