"""Architecture and training numbers of a measured run."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from layoutopt.optimizer.evidence.case import SkipRow
from layoutopt.optimizer.specs.loading import load_workload, model_names
from layoutopt.optimizer.specs.model import (
    AdapterSpec,
    LayerShape,
    Mlp,
    ModelSpec,
    MoeSpec,
    Norm,
    Run,
    TrainingSpec,
)
from layoutopt.optimizer.specs.vocabulary import AdapterMethod, AdapterTarget, Fp8Recipe, Precision

if TYPE_CHECKING:
    from layoutopt.optimizer.evidence.notes import NoteFacts
    from layoutopt.optimizer.evidence.run import MeasuredRun

FP8_RECIPES = {
    "delayed": Fp8Recipe.DELAYED,
    "current": Fp8Recipe.CURRENT,
    "tensorwise": Fp8Recipe.CURRENT,
    "blockwise": Fp8Recipe.BLOCKWISE,
    "mx": Fp8Recipe.MX,
    "rowwise": Fp8Recipe.ROWWISE,
}
"""``tensorwise`` is torchao's word for one scale per tensor from its current values."""

DROPPED_CAPACITY = 1.0
"""Capacity factor of dropped routing where none is named (NVIDIA/Megatron-LM MoE README examples)."""


def model_of(run: MeasuredRun, facts: NoteFacts) -> ModelSpec:
    """Build the model of a row, or raise SkipRow for what the row leaves open.

    The table has no columns for norms and biases: gated models are read as RMSNorm without biases (Llama and
    its kin), others as LayerNorm with biases (GPT).
    """
    if run.heads is None and run.mla is None:
        raise SkipRow("number of attention heads not stated")
    if run.gated is None:
        raise SkipRow("gated or plain MLP not stated")
    heads = run.heads or 1
    return ModelSpec(
        name=run.model or run.id,
        hidden=run.hidden or 0,
        heads=heads,
        kv_heads=run.kv_heads or heads,
        head_dim=_head_dim(run, heads),
        vocab=run.vocab or 0,
        runs=_layer_runs(run),
        gated=run.gated,
        tied_embeddings=bool(run.tied),
        norm=Norm.RMS if run.gated else Norm.LAYER,
        attention_bias=not run.gated,
        mlp_bias=not run.gated,
        mtp_layers=run.mtp_depth or 0,
        moe=_moe(run, facts),
        mla=run.mla,
    )


def _head_dim(run: MeasuredRun, heads: int) -> int:
    if run.head_dim is not None:
        return run.head_dim
    if run.mla is not None:
        return run.mla.qk_nope_head_dim + run.mla.qk_rope_head_dim
    hidden = run.hidden or 0
    if hidden % heads:
        raise SkipRow(f"head width not stated, and {heads} heads do not divide hidden {hidden}")
    return hidden // heads


def _layer_runs(run: MeasuredRun) -> tuple[Run, ...]:
    layers = run.layers or 0
    dense = min(run.moe_dense_layers or 0, layers) if run.is_moe else layers
    if dense and not run.ffn:
        raise SkipRow("width of the dense MLP not stated")
    runs = (
        Run(name="dense", block=(LayerShape(mlp=Mlp.DENSE, ffn=run.ffn or 0),), count=dense),
        Run(name="moe", block=(LayerShape(mlp=Mlp.MOE),), count=layers - dense),
    )
    return tuple(part for part in runs if part.count)


def _moe(run: MeasuredRun, facts: NoteFacts) -> MoeSpec | None:
    if not run.moe_experts:
        return None
    if not run.moe_topk or not run.moe_ffn:
        raise SkipRow("experts per token or expert width not stated")
    if run.moe_topk > run.moe_experts:
        raise SkipRow(f"{run.moe_topk} experts per token of {run.moe_experts} experts")
    dropped = run.routing == "dropped"
    capacity = facts.capacity_factor or (DROPPED_CAPACITY if dropped else None)
    groups, limit = _router_groups().get(
        (run.hidden, run.moe_experts, run.moe_topk, run.moe_ffn), (None, None)
    )
    return MoeSpec(
        experts=run.moe_experts,
        top_k=run.moe_topk,
        ffn=run.moe_ffn,
        shared_ffn=run.moe_shared_ffn or 0,
        router_groups=groups,
        router_group_limit=limit,
        capacity_factor=capacity,
    )


@cache
def _router_groups() -> dict[tuple[int | None, ...], tuple[int | None, int | None]]:
    """The router's groups and their limit, which have no column, of the built-in models by hidden size and experts."""
    models = [load_workload(name).model for name in model_names()]
    return {
        (model.hidden, model.moe.experts, model.moe.top_k, model.moe.ffn): (
            model.moe.router_groups,
            model.moe.router_group_limit,
        )
        for model in models
        if model.moe is not None
    }


def training_of(run: MeasuredRun, facts: NoteFacts, *, dropout: bool) -> TrainingSpec:
    """Build the training numbers of a row; state dtypes go to the preset's switches instead.

    ``dropout``: what a launch that says nothing of it does.
    """
    precision = _precision(run)
    return TrainingSpec(
        sequence_length=run.seq or 0,
        global_batch=run.global_batch or 0,
        precision=precision,
        fp8_recipe=_recipe(run, precision),
        # Unstated it counts as on, and stands among the row's unstated cells.
        flash=run.flash is not False,
        dropout=dropout if facts.dropout is None else facts.dropout,
        # Benchmarks force tokens to be balanced; natural routing has the imbalance of the constants.
        moe_imbalance=1.0 if run.routing == "balanced" else None,
        adapter=_adapter(run, facts),
    )


BRIDGE_RANK = 32
"""Rank of an adapter that states none (NVIDIA-NeMo/Megatron-Bridge peft/lora.py, ``dim``)."""


def _adapter(run: MeasuredRun, facts: NoteFacts) -> AdapterSpec | None:
    """Return the adapters of a row that trains them: on all matrices, unless its notes name attention alone."""
    if run.method != "lora":
        return None
    targets = (AdapterTarget.ATTENTION,) if facts.adapter_attention else tuple(AdapterTarget)
    rank = facts.adapter_rank or BRIDGE_RANK
    return AdapterSpec(method=AdapterMethod.LORA, rank=rank, targets=targets)


def _precision(run: MeasuredRun) -> Precision:
    if run.precision is None:
        raise SkipRow("precision not stated")
    try:
        return Precision(run.precision)
    except ValueError:
        allowed = ", ".join(item.value for item in Precision)
        raise SkipRow(f"precision {run.precision!r} is none of {allowed}") from None


def _recipe(run: MeasuredRun, precision: Precision) -> Fp8Recipe | None:
    if precision is Precision.MXFP8:
        return Fp8Recipe.MX
    return FP8_RECIPES.get(run.fp8_recipe or "") if precision is Precision.FP8 else None
