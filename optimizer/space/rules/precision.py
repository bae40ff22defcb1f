"""Rules on number formats: what GPU and framework compute in, and shapes of 8-bit GEMMs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.frameworks.registry import abilities_of, savers_of
from layoutopt.optimizer.space.repairs import known_precision
from layoutopt.optimizer.space.rule import MEGATRONS, Rule, everywhere, varying
from layoutopt.optimizer.space.savers import savers_text
from layoutopt.optimizer.specs.vocabulary import Precision

if TYPE_CHECKING:
    from collections.abc import Callable

    from layoutopt.optimizer.cost.batch import LayoutBatch
    from layoutopt.optimizer.space.context import Context
    from layoutopt.optimizer.space.rule import BoolArray, Factors
    from layoutopt.optimizer.specs.layout import Layout

# TransformerEngine utils.py (assert_dim_for_fp8_exec): leading dims' product, last dim.
_FP8_ROWS, _FP8_COLUMNS, _MXFP8_BLOCK = 8, 16, 32


def _per_precision(fits: Callable[[Precision, LayoutBatch, Context], BoolArray]) -> Callable[..., BoolArray]:
    def holds(rows: LayoutBatch, ctx: Context) -> BoolArray:
        """Ask of each precision in use whether the rows (n,) fit it."""
        result = everywhere(rows)
        for code, precision in enumerate(rows.codebook.precisions):
            result &= (rows.precision != code) | fits(precision, rows, ctx)
        return result

    return holds


def _framework(precision: Precision, rows: LayoutBatch, ctx: Context) -> BoolArray:
    return np.full(len(rows), precision in abilities_of(ctx.framework, ctx.release).precisions)


def _framework_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    known = ", ".join(abilities_of(ctx.framework, ctx.release).precisions)
    return f"{ctx.framework} can't train in {layout.precision}; valid: {known}", {
        "precision": layout.precision.value
    }


def _savers(rows: LayoutBatch, ctx: Context) -> BoolArray:
    known = set(savers_of(ctx.framework, ctx.release, ctx.model))
    has = np.array([known.issuperset(savers) for _, savers, _ in rows.codebook.formats], dtype=bool)
    return np.asarray(has[rows.precision])


def _savers_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    known = savers_of(ctx.framework, ctx.release, ctx.model)
    lacking = savers_text(tuple(saver for saver in layout.savers if saver not in known))
    return f"{ctx.framework} has no {lacking} for {ctx.model.name}; valid: {', '.join(known) or 'none'}", {
        "savers": lacking
    }


def _known_savers(rule: Rule, layout: Layout, ctx: Context) -> Layout:
    known = savers_of(ctx.framework, ctx.release, ctx.model)
    return replace(layout, savers=tuple(saver for saver in layout.savers if saver in known))


def _hardware(precision: Precision, rows: LayoutBatch, ctx: Context) -> BoolArray:
    return np.full(len(rows), precision in ctx.cluster.gpu.dense_flops)


def _hardware_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    gpu = ctx.cluster.gpu
    known = ", ".join(precision for precision in Precision if precision in gpu.dense_flops)
    return f"{gpu.name} has no {layout.precision} GEMMs; valid: {known}", {
        "precision": layout.precision.value
    }


def _grouped(precision: Precision, rows: LayoutBatch, ctx: Context) -> BoolArray:
    # Unstated, experts are launched in grouped GEMMs.
    ungrouped = ctx.options.grouped_gemm is False
    return np.full(len(rows), not ctx.experts or ungrouped or precision is not Precision.FP16)


def _grouped_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    return f"{ctx.experts} experts in grouped GEMMs in {layout.precision}", {"experts": ctx.experts}


def _steps(precision: Precision) -> tuple[int, int]:
    """Return the multiples that token rows and weight columns must have."""
    if precision is Precision.FP8:
        return _FP8_ROWS, _FP8_COLUMNS
    return (_MXFP8_BLOCK, _MXFP8_BLOCK) if precision is Precision.MXFP8 else (1, 1)


def _widths(ctx: Context) -> tuple[int, ...]:
    """Widths that tp splits: attention output and MLPs."""
    model = ctx.model
    shared = (model.moe.shared_ffn,) if model.moe and model.moe.shared_ffn else ()
    heads = (
        (model.heads * (model.mla.v_head_dim if model.mla else model.value_dim),) if ctx.has_attention else ()
    )
    return heads + ctx.dense_ffns + shared


def _shapes(precision: Precision, rows: LayoutBatch, ctx: Context) -> BoolArray:
    token_step, column_step = _steps(precision)
    result = everywhere(rows)
    # Only 8-bit kernels assert their shapes.
    if token_step == 1:
        return result
    tokens = rows.micro_batch * ctx.training.sequence_length // (rows.cp * np.where(rows.sp > 0, rows.tp, 1))
    result &= tokens % token_step == 0
    for width in _widths(ctx):
        result &= width % (rows.tp * column_step) == 0
    if ctx.model.moe:
        result &= ctx.model.moe.ffn % (rows.etp * column_step) == 0
    return result


def _shapes_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    token_step, column_step = _steps(layout.precision)
    tokens = (
        layout.micro_batch * ctx.training.sequence_length // (layout.cp * (layout.tp if layout.sp else 1))
    )
    if tokens % token_step:
        text = f"{tokens:,} tokens per rank % {token_step} = {tokens % token_step} in {layout.precision}"
        return text, {"tokens": tokens, "multiple": token_step}
    expert = (ctx.model.moe.ffn, layout.etp) if ctx.model.moe else (0, 1)
    splits = [*((width, layout.tp) for width in _widths(ctx)), expert]
    width, degree = next((w, d) for w, d in splits if w % (d * column_step))
    text = (
        f"width {width} / {degree} % {column_step} = {width / degree % column_step:g} in {layout.precision}"
    )
    return text, {"width": width, "degree": degree, "multiple": column_step}


RULES: tuple[Rule, ...] = (
    Rule(
        name="precision_supported",
        formula="precision in the framework's list",
        reason="the framework has to implement the format",
        source="nanotron, DeepSpeed and Megatron-DeepSpeed configuration: 16-bit formats only",
        reads=frozenset({"precision"}),
        holds=_per_precision(_framework),
        detail=_framework_detail,
        repair=known_precision,
    ),
    Rule(
        name="precision_hardware",
        formula="the GPU has tensor cores for the precision",
        reason="fp8 needs compute capability 8.9, mxfp8 and nvfp4 10.0",
        source="TransformerEngine quantization.py; the GPU catalog",
        reads=frozenset({"precision"}),
        holds=_per_precision(_hardware),
        detail=_hardware_detail,
        repair=known_precision,
    ),
    Rule(
        name="savers_supported",
        formula="memory savers in the framework's list",
        reason="the framework has to offer 16-bit moments or offloading; Megatron-LM offloads attention, norms and "
        "experts, not dense MLPs",
        source="NVIDIA/Megatron-LM arguments.py (--exp-avg-dtype, --optimizer-cpu-offload 0.12, "
        "--fine-grained-activation-offloading and --offload-modules 0.16); torchtitan "
        "training.enable_cpu_offload; DeepSpeed offload_optimizer",
        reads=frozenset({"precision"}),
        axis="savers",
        holds=_savers,
        detail=_savers_detail,
        repair=_known_savers,
    ),
    Rule(
        name="grouped_gemm_fp16",
        formula="experts in grouped GEMMs => no fp16",
        reason="--moe-grouped-gemm, with which every launch here is written, takes bf16 alone",
        source="NVIDIA/Megatron-LM training/arguments.py, core 0.10 to 0.15",
        reads=frozenset({"precision"}),
        holds=_per_precision(_grouped),
        detail=_grouped_detail,
        repair=known_precision,
        frameworks=MEGATRONS,
        until=(0, 16),
    ),
    Rule(
        name="fp8_shapes",
        formula="fp8: tokens per rank % 8 = 0, widths per rank % 16 = 0; mxfp8: 32 and 32",
        reason="8-bit GEMMs take no other shapes",
        source="TransformerEngine utils.py (assert_dim_for_fp8_exec); NVIDIA/Megatron-LM core/fp8_utils.py",
        reads=frozenset({"tp", "cp", "sp", "etp", "micro_batch", "precision"}),
        holds=_per_precision(_shapes),
        detail=_shapes_detail,
        repair=known_precision,
        valid=varying("tp", "micro_batch"),
        frameworks=MEGATRONS,
    ),
)
