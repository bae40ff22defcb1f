"""Rules on layers over pipeline ranks and their chunks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.frameworks.stage_rule import COUNTED
from layoutopt.optimizer.space.repairs import regrouped
from layoutopt.optimizer.space.rule import MEGATRONS, Rule, everywhere, mask, varying
from layoutopt.optimizer.space.rules.stage_lists import nearest_totals
from layoutopt.optimizer.space.stage_splits import boxes
from layoutopt.optimizer.space.stages import chunk_layers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from layoutopt.optimizer.cost.batch import IntArray, LayoutBatch
    from layoutopt.optimizer.space.context import Context
    from layoutopt.optimizer.space.rule import BoolArray, Detail, Factors
    from layoutopt.optimizer.specs.layout import Layout


def _slots(rows: LayoutBatch, ctx: Context) -> BoolArray:
    return mask((rows.pp == 1) | (rows.pp * rows.vp <= ctx.blocks + 2))


def _slots_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    slots = layout.pp * layout.vp
    text = (
        f"pp {layout.pp} x vp {layout.vp} = {slots} virtual stages for {ctx.blocks} blocks"
        f"; only the first and the last may hold none, so at most {ctx.blocks + 2}"
    )
    return text, {"pp": layout.pp, "vp": layout.vp, "blocks": ctx.blocks}


def _chunks_need_ranks(least: int) -> Callable[[LayoutBatch, Context], BoolArray]:
    def holds(rows: LayoutBatch, ctx: Context) -> BoolArray:
        """Tell which rows (n,) have ranks enough for chunks."""
        return mask((rows.vp == 1) | (rows.pp >= least))

    return holds


def _no_p2p_overlap(rows: LayoutBatch, ctx: Context) -> BoolArray:
    if ctx.options.overlap_p2p:
        return everywhere(rows)
    return _chunks_need_ranks(3)(rows, ctx)


def _chunks_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    return f"vp {layout.vp} with pp {layout.pp}", {"vp": layout.vp, "pp": layout.pp}


def _split_layers(ctx: Context) -> int:
    """Return the units that Megatron divides over ranks: layers, and the ends where they count as one."""
    ends = (ctx.options.embedding_as_layer, ctx.options.loss_as_layer)
    return ctx.model.layers + sum(bool(end) for end in ends)


def _even(rows: LayoutBatch, ctx: Context) -> BoolArray:
    return mask(_split_layers(ctx) % rows.pp == 0)


def _even_chunks(rows: LayoutBatch, ctx: Context) -> BoolArray:
    layers = _split_layers(ctx)
    return mask((layers % rows.pp != 0) | (layers // rows.pp % rows.vp == 0))


def _even_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    layers, pp = _split_layers(ctx), layout.pp
    text = f"layers {layers} % pp {pp} = {layers % pp} and no stage split is given"
    # Megatron-LM can count both ends as layers: often all that a model lacks to divide.
    if (ctx.model.layers + 2) % (pp * layout.vp) == 0:
        text += f"; with embedding and loss counted as layers {ctx.model.layers + 2} divides"
    uneven = uneven_ends(ctx.model.layers, pp, layout.vp)
    words, totals = "uneven ends", np.array(uneven, dtype=np.int64)
    # Uneven ends are what the older releases have flags for: they are offered first.
    if not uneven or not _launchable(totals, layout, ctx):
        words, level = "a split", nearest_totals(layout, [], ctx)
        totals = totals[:0] if level is None else level
    if len(totals):
        # --layout reads one number for each virtual stage
        stages = "/".join(map(str, chunk_layers(totals, pp, layout.vp).tolist()))
        by_rank = f"{'/'.join(map(str, totals.tolist()))} by rank; " if layout.vp > 1 else ""
        text += f"; {words} that work{'s' * (words == 'a split')}: stages={stages}; {by_rank}without"
        text += " them" if words == "uneven ends" else " it"
    return text, {"layers": layers, "pp": pp, "remainder": layers % pp}


def _launchable(totals: IntArray, layout: Layout, ctx: Context) -> bool:
    """Tell whether the trainer has a split with these layers per rank (pp,)."""
    rule = replace(ctx.launch_rule, split=ctx.launch_rule.launchable)
    ranges = boxes(rule, layout.pp, layout.vp, ctx.model.layers)
    return any(bool(((low <= totals) & (totals <= high)).all()) for low, high in ranges)


def uneven_ends(layers: int, pp: int, vp: int) -> tuple[int, ...]:
    """Return layers per rank with equal middle ranks and other ends, every count a multiple of vp, as level as can be.

    Megatron-LM's ``--decoder-first-pipeline-num-layers`` and ``--decoder-last-pipeline-num-layers``. Empty if there is no
    such split.
    """
    found = []
    for middle in range(vp, layers // max(pp - 2, 1) + 1, vp):
        ends = layers - middle * (pp - 2)
        half = ends // 2 // vp * vp
        for first in {middle, ends - middle, half, ends - half}:
            last = ends - first
            if min(first, last) > 0 and not (first % vp or last % vp):
                counts = (first, last, middle)
                # The fullest rank sets the pace, then the spread; the rest only makes the choice unique.
                found.append((max(counts), max(counts) - min(counts), last != middle, first, middle, last))
    if pp < 2 or not found:
        return ()
    *_, first, middle, last = min(found)
    return (first, *[middle] * (pp - 2), last)


def _even_chunks_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    layers, pp, vp = _split_layers(ctx), layout.pp, layout.vp
    per_rank = layers // pp
    rest = per_rank % vp
    text = f"layers {layers} / pp {pp} = {per_rank} per rank, % vp {vp} = {rest}; no layer may be dropped"
    return text, {"layers": layers, "pp": pp, "vp": vp, "remainder": layers % (pp * vp)}


def _has_split(rows: LayoutBatch, ctx: Context) -> BoolArray:
    """Whether the framework that counts layers itself has a split for these stages."""
    rule = ctx.stage_rule
    if rule.split not in COUNTED:
        return everywhere(rows)
    # Splits depend on pp and vp alone, of which many rows have few.
    shapes, which = np.unique(np.stack([rows.pp, rows.vp], axis=1), axis=0, return_inverse=True)
    found = [next(boxes(rule, pp, vp, ctx.blocks), None) is not None for pp, vp in shapes.tolist()]
    return np.array(found, dtype=bool)[which.ravel()]


def _has_split_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    layers, slots = ctx.model.layers, layout.pp * layout.vp
    text = f"{ctx.framework} has no split of {layers} layers over pp {layout.pp} x vp {layout.vp}"
    text += f"; {layers} % {slots} = {layers % slots}"
    return text, {"layers": layers, "pp": layout.pp, "vp": layout.vp, "remainder": layers % slots}


def _even_chunks_valid(rule: Rule, layout: Layout, ctx: Context) -> Mapping[str, tuple[int, ...]]:
    per_rank = _split_layers(ctx) // layout.pp
    return {"vp": tuple(vp for vp in range(1, per_rank + 1) if per_rank % vp == 0)}


def _no_windows(rows: LayoutBatch, ctx: Context) -> BoolArray:
    return np.full(len(rows), not ctx.has_windows)


def _windows_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    return f"{ctx.model.name} has layers with a sliding window", {"model": ctx.model.name}


def _no_pipeline(rows: LayoutBatch, ctx: Context) -> BoolArray:
    return mask(rows.pp == 1)


def _tied(rows: LayoutBatch, ctx: Context) -> BoolArray:
    return mask(rows.pp == 1) if ctx.model.tied_embeddings else everywhere(rows)


def _mtp(rows: LayoutBatch, ctx: Context) -> BoolArray:
    return mask(rows.pp == 1) if ctx.model.mtp_layers else everywhere(rows)


def _says(text: str) -> Detail:
    """Build a detail function whose text is a template over the layout's degrees."""

    def detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
        """Say the pipeline's depth in the text."""
        return text.format(pp=layout.pp), {"pp": layout.pp}

    return detail


_PP_VP = frozenset({"pp", "vp"})
_PP = frozenset({"pp"})

_LAYER_RULES = (
    Rule(
        name="stages_hold_blocks",
        formula="pp * vp <= blocks + 2",
        reason=(
            "every virtual stage holds a block, except the first and the last, which hold the embedding and"
            " the head"
        ),
        source=(
            "NVIDIA/Megatron-LM transformer_config.py (pipeline_model_parallel_layout); torchtitan "
            "pipeline_parallel.py"
        ),
        reads=_PP_VP,
        holds=_slots,
        detail=_slots_detail,
        valid=varying("vp", "pp"),
        unless_staged=True,
    ),
    Rule(
        name="layers_mod_pp",
        formula="(layers + [embedding] + [loss]) % pp = 0, or a stage split is given",
        reason=(
            "the automatic split gives every rank as many layers; before core 0.10 it silently dropped the "
            "rest"
        ),
        source="NVIDIA/Megatron-LM arguments.py, transformer_block.py",
        reads=frozenset({"pp"}),
        holds=_even,
        detail=_even_detail,
        valid=varying("pp"),
        frameworks=MEGATRONS,
        launch_only=True,
        unless_staged=True,
    ),
    Rule(
        name="layers_mod_pp_vp",
        formula="(layers / pp) % vp = 0, or a stage split is given",
        reason="every chunk of a rank has equally many layers",
        source="NVIDIA/Megatron-LM transformer_config.py",
        reads=_PP_VP,
        holds=_even_chunks,
        detail=_even_chunks_detail,
        valid=_even_chunks_valid,
        frameworks=MEGATRONS,
        launch_only=True,
        unless_staged=True,
    ),
    Rule(
        name="stage_split",
        formula="the framework can split the layers over pp * vp stages",
        reason="it counts layers itself: equal stages, free ends, or by its own balance",
        source=(
            "NVIDIA/Megatron-LM transformer_config.py before core 0.13; deepspeedai/DeepSpeed runtime/utils.py "
            "(partition_balanced); huggingface/nanotron models/base.py (build_model)"
        ),
        reads=_PP_VP,
        holds=_has_split,
        detail=_has_split_detail,
        valid=varying("vp", "pp"),
        unless_staged=True,
    ),
    Rule(
        name="windows_supported",
        formula="no sliding windows",
        reason="pretrain_gpt.py has no flag for them before core 0.15",
        source="NVIDIA/Megatron-LM training/arguments.py (--window-size, --window-attn-skip-freq)",
        reads=frozenset(),
        holds=_no_windows,
        detail=_windows_detail,
        frameworks=frozenset({Framework.MEGATRON}),
        until=(0, 15),
    ),
    Rule(
        name="tied_with_pp",
        formula="tied embeddings => pp = 1",
        reason="input and output embedding would live on different stages, which this framework refuses",
        source="pytorch/torchtitan models/common/decoder.py",
        reads=frozenset({"pp"}),
        holds=_tied,
        detail=_says("tied embeddings with pp {pp}"),
        repair=regrouped(pp=1, vp=1),
        valid=varying("pp", limit=1),
        frameworks=frozenset({Framework.TORCHTITAN}),
    ),
    Rule(
        name="mtp_with_pp",
        formula="multi-token prediction => pp = 1",
        reason="the prediction layers need the embedding of the first stage, which this framework refuses",
        source="pytorch/torchtitan models/common/mtp.py",
        reads=frozenset({"pp"}),
        holds=_mtp,
        detail=_says("multi-token prediction layers with pp {pp}"),
        repair=regrouped(pp=1, vp=1),
        valid=varying("pp", limit=1),
        frameworks=frozenset({Framework.TORCHTITAN}),
    ),
)

_CHUNK_RULES = (
    Rule(
        name="pipeline_needs_modules",
        formula="pp = 1",
        reason="a Hugging Face model has no pipeline under DeepSpeed; megatron-deepspeed has one: not searched",
        source="deepspeedai/DeepSpeed runtime/pipe/module.py",
        reads=_PP,
        holds=_no_pipeline,
        detail=_says("pp {pp} of a Hugging Face model"),
        repair=regrouped(pp=1, vp=1),
        valid=varying("pp", limit=1),
        frameworks=frozenset({Framework.DEEPSPEED}),
        search_only=True,
    ),
    Rule(
        name="vp_needs_pp",
        formula="vp > 1 => pp >= 2",
        reason="chunks interleave over pipeline ranks",
        source="NVIDIA/Megatron-LM arguments.py, core 0.8",
        reads=_PP_VP,
        holds=_chunks_need_ranks(2),
        detail=_chunks_detail,
        repair=regrouped(vp=1),
        valid=varying("vp", "pp"),
    ),
    Rule(
        name="vp_needs_three_ranks",
        formula="vp > 1 => pp > 2",
        reason="with two ranks both transfers of a batch go between the same pair",
        source="NVIDIA/Megatron-LM arguments.py, core 0.7",
        reads=_PP_VP,
        holds=_chunks_need_ranks(3),
        detail=_chunks_detail,
        repair=regrouped(vp=1),
        valid=varying("vp", "pp"),
        frameworks=MEGATRONS,
        until=(0, 8),
    ),
    Rule(
        name="vp_needs_three_ranks",
        formula="vp > 1 and no overlapped p2p => pp > 2",
        reason="with two ranks both transfers of a batch go between the same pair",
        source="NVIDIA/Megatron-LM arguments.py (--no-overlap-p2p-communication)",
        reads=_PP_VP,
        holds=_no_p2p_overlap,
        detail=_chunks_detail,
        repair=regrouped(vp=1),
        valid=varying("vp", "pp"),
        frameworks=MEGATRONS,
        since=(0, 8),
        flag="overlap_p2p",
    ),
)

RULES: tuple[Rule, ...] = (*_LAYER_RULES, *_CHUNK_RULES)
