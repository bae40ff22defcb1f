"""The weight matrices of a model's blocks, one by one: what optimizers that work on whole matrices see.

Query, key and value projections count apart (NVIDIA/Megatron-LM muon_split_qkv), and so do an MLP's gate and up projections
and every expert. Embedding, output matrix, router, convolutions and vectors are none of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING

from layoutopt.optimizer.cost.mixers import (
    compressed_inputs,
    compressed_outputs,
    compressed_queries,
    indexer_projections,
    linear_gates,
    linear_inputs,
    linear_output,
)
from layoutopt.optimizer.cost.parameters import Parameters, block_parameters, mlp_matrices, mtp_parameters
from layoutopt.optimizer.specs.model import Mixer, Mlp

if TYPE_CHECKING:
    from collections.abc import Iterable

    from layoutopt.optimizer.specs.model import LayerShape, ModelSpec, Run


class Held(StrEnum):
    """How ranks hold a matrix: over tensor parallelism, the key-value heads among them, whole, or as an expert's."""

    SHARDED = "sharded"
    KEY_VALUE = "key_value"
    REPLICATED = "replicated"
    EXPERT = "expert"


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """``count`` weights of ``rows`` by ``columns``; in a ``row_parallel`` one ranks share out the input, else the output."""

    rows: int
    columns: int
    held: Held = Held.SHARDED
    count: float = 1.0
    row_parallel: bool = field(default=False, compare=False)

    @property
    def elements(self) -> int:
        """Parameters of one."""
        return self.rows * self.columns

    @property
    def short(self) -> int:
        """The shorter side."""
        return min(self.rows, self.columns)

    @property
    def long(self) -> int:
        """The longer side."""
        return max(self.rows, self.columns)


@lru_cache(maxsize=256)
def block_matrices(model: ModelSpec, run: Run) -> tuple[Matrix, ...]:
    """Return the matrices of one block of a run."""
    return _merged(matrix for shape in run.block for matrix in layer_matrices(model, shape))


@lru_cache(maxsize=256)
def mtp_matrices(model: ModelSpec) -> tuple[Matrix, ...]:
    """Return the matrices of one multi-token-prediction layer."""
    joint = Matrix(rows=model.hidden, columns=2 * model.hidden)
    return _merged((joint, *layer_matrices(model, model.last_shape)))


def model_matrices(model: ModelSpec) -> tuple[Matrix, ...]:
    """Return the matrices of all blocks."""
    return _merged(
        replace(matrix, count=matrix.count * run.count)
        for run in model.runs
        for matrix in block_matrices(model, run)
    )


def layer_matrices(model: ModelSpec, shape: LayerShape) -> tuple[Matrix, ...]:
    """Return the matrices of one layer."""
    return (*mixer_matrices(model, shape), *mlp_block_matrices(model, shape))


def mixer_matrices(model: ModelSpec, shape: LayerShape) -> tuple[Matrix, ...]:
    """Return the matrices of a layer's mixer."""
    h = model.hidden
    if shape.mixer is Mixer.MAMBA and model.mamba is not None:
        inner = model.mamba.heads * model.mamba.head_dim
        streams = 2 * inner + 2 * model.mamba.groups * model.mamba.state + model.mamba.heads
        return Matrix(rows=streams, columns=h), Matrix(rows=h, columns=inner, row_parallel=True)
    if shape.mixer.is_linear:
        whole, out = (
            (*linear_inputs(model, shape.mixer), *linear_gates(model, shape.mixer)),
            linear_output(model),
        )
        return (
            *(Matrix(rows=one.rows, columns=one.columns) for one in whole),
            Matrix(rows=out.rows, columns=out.columns, row_parallel=True),
        )
    if shape.mixer is not Mixer.ATTENTION:
        return ()
    indexer = indexer_projections(model) if shape.indexes else ()
    chosen = tuple(Matrix(rows=one.rows, columns=one.columns, held=Held.REPLICATED) for one in indexer)
    return (*_attention_matrices(model, shape), *chosen)


def _attention_matrices(model: ModelSpec, shape: LayerShape) -> tuple[Matrix, ...]:
    h = model.hidden
    if model.compressed is not None:
        own = compressed_queries(model), *compressed_outputs(model)
        return (
            # The groups' outputs are brought back to the model's width from what each rank holds of them.
            *(Matrix(rows=one.rows, columns=one.columns, row_parallel=one.rows == h) for one in own),
            *(
                Matrix(rows=one.rows, columns=one.columns, held=Held.REPLICATED)
                for one in compressed_inputs(model, shape)
            ),
        )
    if model.mla is None:
        query, groups = model.heads * model.head_dim, model.kv_heads_of(shape)
        widths = {model.head_dim, model.value_dim}
        return (
            Matrix(rows=query, columns=h, count=2 if model.attention_gate else 1),
            *(
                # Keys and values of one width are two equal matrices, else one of each.
                Matrix(rows=groups * width, columns=h, held=Held.KEY_VALUE, count=2 / len(widths))
                for width in sorted(widths)
            ),
            Matrix(rows=h, columns=model.heads * model.value_dim, row_parallel=True),
        )
    mla, a = model.mla, model.heads
    query = a * (mla.qk_nope_head_dim + mla.qk_rope_head_dim)
    down = mla.kv_lora_rank + mla.qk_rope_head_dim
    found = [
        Matrix(rows=down, columns=h, held=Held.REPLICATED),
        Matrix(rows=a * (mla.qk_nope_head_dim + mla.v_head_dim), columns=mla.kv_lora_rank),
        Matrix(rows=h, columns=a * mla.v_head_dim, row_parallel=True),
        Matrix(rows=query, columns=mla.q_lora_rank or h),
    ]
    if mla.q_lora_rank:
        found.append(Matrix(rows=mla.q_lora_rank, columns=h, held=Held.REPLICATED))
    return tuple(found)


def mlp_block_matrices(model: ModelSpec, shape: LayerShape) -> tuple[Matrix, ...]:
    """Return the matrices of a layer's MLP, its experts' and the shared ones'."""
    each, h = mlp_matrices(model), model.hidden
    if shape.mlp is Mlp.DENSE:
        return (Matrix(rows=h, columns=shape.ffn, count=each),)
    moe = model.moe
    if shape.mlp is not Mlp.MOE or moe is None:
        return ()
    experts = Matrix(rows=h, columns=moe.ffn, held=Held.EXPERT, count=each * moe.experts)
    shared = (Matrix(rows=h, columns=moe.shared_ffn, count=each),) if moe.shared_ffn else ()
    return (experts, *shared)


def _merged(matrices: Iterable[Matrix]) -> tuple[Matrix, ...]:
    """Count equal matrices once."""
    counts: dict[Matrix, float] = {}
    for matrix in matrices:
        one = replace(matrix, count=1.0)
        counts[one] = counts.get(one, 0.0) + matrix.count
    return tuple(replace(matrix, count=count) for matrix, count in counts.items())


def matrix_parameters(matrices: Iterable[Matrix]) -> Parameters:
    """Count the parameters of matrices by how ranks share them."""
    sums = dict.fromkeys(Held, 0.0)
    for matrix in matrices:
        sums[matrix.held] += matrix.count * matrix.elements
    return Parameters(
        sharded=sums[Held.SHARDED] + sums[Held.KEY_VALUE],
        key_value=sums[Held.KEY_VALUE],
        replicated=sums[Held.REPLICATED],
        expert=sums[Held.EXPERT],
    )


def other_parameters(model: ModelSpec, run: Run) -> Parameters:
    """Count what of a block is in none of its matrices."""
    return block_parameters(model, run) - matrix_parameters(block_matrices(model, run))


def other_mtp_parameters(model: ModelSpec) -> Parameters:
    """Count what of a multi-token-prediction layer is in none of its matrices."""
    return mtp_parameters(model) - matrix_parameters(mtp_matrices(model))
