"""Rules on products: GPUs, batch, and axes that a framework doesn't have."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.frameworks.registry import abilities_of
from layoutopt.optimizer.space.repairs import MESH, regrouped, setting
from layoutopt.optimizer.space.rule import EVERY, Rule, mask, varying

if TYPE_CHECKING:
    from collections.abc import Mapping

    from layoutopt.optimizer.cost.batch import LayoutBatch
    from layoutopt.optimizer.space.context import Context
    from layoutopt.optimizer.space.rule import BoolArray, Factors
    from layoutopt.optimizer.specs.layout import Layout


def _world(rows: LayoutBatch, ctx: Context) -> BoolArray:
    used = rows.tp * rows.cp * rows.pp * rows.dp
    # Idle GPUs have to be allowed: a launcher otherwise starts a process on each.
    return used <= ctx.gpus if ctx.options.idle_gpus else used == ctx.gpus


def _world_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    product = f"tp {layout.tp} x cp {layout.cp} x pp {layout.pp} x dp {layout.dp} = {layout.gpus:,}"
    model = layout.tp * layout.cp * layout.pp
    text = f"{product}, but {ctx.gpus:,} GPUs are launched; tp x cp x pp = {model:,} must divide them"
    return text, {"product": layout.gpus, "gpus": ctx.gpus, "model_parallel": model}


def _world_valid(rule: Rule, layout: Layout, ctx: Context) -> Mapping[str, tuple[int, ...]]:
    """The data-parallel degree that fills the GPUs, if the other axes divide them."""
    model = layout.tp * layout.cp * layout.pp
    return {"dp": (ctx.gpus // model,) if ctx.gpus % model == 0 else ()}


def _batch(rows: LayoutBatch, ctx: Context) -> BoolArray:
    batch = ctx.training.global_batch
    return mask(rows.dp * rows.micro_batch * rows.micro_batches == batch)


def _batch_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    batch, replicas = ctx.training.global_batch, layout.dp * layout.micro_batch
    rest = batch % replicas
    text = f"global batch {batch:,} % (micro-batch {layout.micro_batch} x dp {layout.dp:,}) = {rest:,}"
    if not rest:
        text = (
            f"dp {layout.dp:,} x micro-batch {layout.micro_batch} x {layout.micro_batches:,} micro-batches "
            f"= {replicas * layout.micro_batches:,}, not the global batch {batch:,}"
        )
    # Both neighbours: whoever cannot grow the batch can shrink it.
    below = batch - rest
    near = ", ".join(f"{size:,}" for size in (below, below + replicas) if size and rest)
    text += f"; nearest global batches: {near}" if near else ""
    return text, {
        "global_batch": batch,
        "micro_batch": layout.micro_batch,
        "dp": layout.dp,
        "remainder": rest,
    }


def _batch_valid(rule: Rule, layout: Layout, ctx: Context) -> Mapping[str, tuple[int, ...]]:
    """Micro-batch sizes that divide what one replica gets, and the micro-batches of the layout's own size."""
    batch, replicas = ctx.training.global_batch, layout.dp * layout.micro_batch
    if batch % replicas == 0:
        return {"micro_batches": (batch // replicas,)}
    return {"micro_batch": valid_micro_batches(batch, layout.dp)}


def valid_micro_batches(
    global_batch: int, dp: int, allowed: tuple[int, ...] = (1, 2, 4, 8, 16)
) -> tuple[int, ...]:
    """Return the micro-batch sizes that divide one replica's share of the batch.

    The share is ``global_batch / dp``: model-parallel ranks work on the same samples, so the batch is divided
    by the data-parallel degree and not by the GPUs. Empty when ``dp`` doesn't divide the batch.
    """
    if global_batch % dp:
        return ()
    return tuple(size for size in allowed if (global_batch // dp) % size == 0)


def _absent(axis: str) -> Rule:
    """Build the rule that an axis which a framework doesn't have is 1."""

    def holds(rows: LayoutBatch, ctx: Context) -> BoolArray:
        """Tell which rows (n,) leave a fixed axis at 1."""
        degrees = getattr(rows, axis)
        if axis not in abilities_of(ctx.framework, ctx.release).fixed_axes:
            return np.ones(len(degrees), dtype=bool)
        return mask(degrees == 1)

    def detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
        """Say the degree that the framework does not have."""
        degree = getattr(layout, axis)
        return f"{axis} {degree}, but {ctx.framework} has no {axis} axis", {axis: degree}

    return Rule(
        name=f"{axis}_supported",
        formula=f"{axis} = 1",
        reason=f"the framework doesn't implement the {axis} axis",
        source=_ABSENT_SOURCES,
        reads=frozenset({axis}),
        holds=holds,
        detail=detail,
        valid=varying(axis),
        repair=regrouped(**{axis: 1}) if axis in MESH else setting(**{axis: 1}),
    )


_ABSENT_SOURCES = (
    "mosaicml/llm-foundry (FSDP only); huggingface/accelerate parallelism_config.py (no pp, no ep); "
    "huggingface/nanotron parallel/context.py (its rank array multiplies ep in, its world check doesn't, so "
    "ep > 1 can't start); deepspeedai/DeepSpeed runtime/pipe/engine.py (no interleaving)"
)

RULES: tuple[Rule, ...] = (
    Rule(
        name="world_size_product",
        formula="tp * cp * pp * dp = GPUs",
        reason="every process holds one coordinate of the mesh, so dp = GPUs / (tp*cp*pp) must be an integer",
        source=(
            "NVIDIA/Megatron-LM training/arguments.py; pytorch/torchtitan parallel_dims.py; nanotron "
            "parallel/context.py"
        ),
        reads=frozenset({"tp", "cp", "pp", "dp"}),
        holds=_world,
        detail=_world_detail,
        valid=_world_valid,
        frameworks=EVERY,
    ),
    *(_absent(axis) for axis in ("tp", "cp", "pp", "vp", "ep")),
    Rule(
        name="gbs_mod_mbs_dp",
        formula="dp * micro_batch * micro_batches = global batch",
        reason="every replica runs the same whole number of micro-batches; the batch is never rounded",
        source="NVIDIA/Megatron-LM num_microbatches_calculator.py; DeepSpeed runtime/config.py",
        reads=frozenset({"dp", "micro_batch", "micro_batches"}),
        holds=_batch,
        detail=_batch_detail,
        valid=_batch_valid,
    ),
)
