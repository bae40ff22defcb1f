"""Optimizers: what each keeps of a parameter, and what its step moves.

Adam, SGD with momentum, Lion: NVIDIA/Megatron-LM core/optimizer; 8-bit Adam: Dettmers et al. 2022 (bitsandbytes), blocks of
256 with one fp32 scale; Adafactor: Shazeer and Stern 2018, section 4; Muon: Jordan et al. 2024, KellerJordan/Muon.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, assert_never

from layoutopt.optimizer.cost.matrices import model_matrices
from layoutopt.optimizer.cost.parameters import model_parameters
from layoutopt.optimizer.specs.vocabulary import Optimizer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from layoutopt.optimizer.frameworks.preset import FrameworkPreset
    from layoutopt.optimizer.specs.model import ModelSpec

SCALE_BYTES = 4 / 256
"""One fp32 scale per block of 256 8-bit elements (bitsandbytes, torchao)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerRecord:
    """One optimizer.

    ``matrix_moments`` are the tensors of a weight's size that it keeps of matrices in blocks, ``other_moments`` of all other
    parameters: embedding, output matrix, router, norms, biases. ``matrix_bytes`` per element of the former, None for the
    run's ``moment_dtype``; ``other_bytes`` of the latter. ``factored``: it keeps a number per row and per column of a
    matrix. ``orthogonal``: it orthogonalises the update of every matrix.
    """

    matrix_moments: int
    other_moments: int
    matrix_bytes: float | None = None
    other_bytes: float | None = None
    factored: bool = False
    orthogonal: bool = False


def _record(kind: Optimizer) -> OptimizerRecord:
    """Return what is known of an optimizer; one case for each, one that is forgotten is a type error."""
    match kind:
        case Optimizer.ADAMW:
            return OptimizerRecord(matrix_moments=2, other_moments=2)
        case Optimizer.ADAM_8BIT:
            # Embeddings, and tensors too small to gain, stay in 32 bits (bitsandbytes GlobalOptimManager, min_8bit_size).
            return OptimizerRecord(
                matrix_moments=2, other_moments=2, matrix_bytes=1 + SCALE_BYTES, other_bytes=4
            )
        case Optimizer.LION | Optimizer.SGD:
            return OptimizerRecord(matrix_moments=1, other_moments=1)
        case Optimizer.ADAFACTOR:
            return OptimizerRecord(matrix_moments=0, other_moments=1, factored=True)
        case Optimizer.MUON:
            # Embedding, output matrix, router, norms and biases stay on AdamW.
            return OptimizerRecord(matrix_moments=1, other_moments=2, orthogonal=True)
        case _:
            assert_never(kind)


OPTIMIZERS: Mapping[Optimizer, OptimizerRecord] = {kind: _record(kind) for kind in Optimizer}


@dataclass(frozen=True, slots=True)
class MomentBytes:
    """Bytes of optimizer state beside master weights per parameter: of matrices in blocks, and of everything else."""

    matrix: float
    other: float


def moment_bytes(preset: FrameworkPreset, model: ModelSpec | None = None) -> MomentBytes:
    """Return what the run's optimizer keeps of a parameter beside its master weight.

    Rows and columns of a factored optimizer are those of the model's matrices, 0 without one.
    """
    record = OPTIMIZERS[preset.optimizer.kind]
    each = preset.moment_bytes
    matrix = record.matrix_moments * (each if record.matrix_bytes is None else record.matrix_bytes)
    other = record.other_moments * (each if record.other_bytes is None else record.other_bytes)
    if record.factored and model is not None:
        matrix += 4.0 * _lines_per_element(model)
        other = _vectors_and_tables(model, other)
    return MomentBytes(matrix, other)


def _vectors_and_tables(model: ModelSpec, vector_bytes: float) -> float:
    """Bytes per parameter outside of the layers' matrices: embedding and output matrix are factored too, vectors are not."""
    elements = sum(one.count * one.elements for one in model_matrices(model))
    outside = model_parameters(model) - elements
    tables = 1 if model.tied_embeddings else 2
    vectors = max(outside - tables * model.vocab * model.hidden, 0.0)
    return (vector_bytes * vectors + 4.0 * tables * (model.vocab + model.hidden)) / outside


def _lines_per_element(model: ModelSpec) -> float:
    """Rows and columns of the model's matrices over their elements."""
    found = model_matrices(model)
    elements = sum(one.count * one.elements for one in found)
    return sum(one.count * (one.rows + one.columns) for one in found) / elements if elements else 0.0
