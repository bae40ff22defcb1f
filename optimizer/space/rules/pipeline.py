"""Rules on pipelines: layers over virtual stages, micro-batches, schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.schedules import LAUNCHABLE, SCHEDULES
from layoutopt.optimizer.space.rule import MEGATRONS, TORCH_PIPELINES, Rule, everywhere, varying
from layoutopt.optimizer.specs.vocabulary import Framework, Schedule

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from layoutopt.optimizer.cost.batch import LayoutBatch
    from layoutopt.optimizer.cost.schedules import ScheduleModel
    from layoutopt.optimizer.space.context import Context
    from layoutopt.optimizer.space.rule import BoolArray, Detail, Factors
    from layoutopt.optimizer.specs.layout import Layout

_SCHEDULES_PY = "NVIDIA/Megatron-LM core/pipeline_parallel/schedules.py"


def _slots(rows: LayoutBatch, ctx: Context) -> BoolArray:
    result: BoolArray = (rows.pp == 1) | (rows.pp * rows.vp <= ctx.blocks + 2)
    return result


def _slots_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    slots = layout.pp * layout.vp
    text = (
        f"pp {layout.pp} x vp {layout.vp} = {slots} virtual stages for {ctx.blocks} blocks"
        f"; only the first and the last may hold none, so at most {ctx.blocks + 2}"
    )
    return text, {"pp": layout.pp, "vp": layout.vp, "blocks": ctx.blocks}


def _chunks_need_ranks(least: int) -> Callable[[LayoutBatch, Context], BoolArray]:
    def holds(rows: LayoutBatch, ctx: Context) -> BoolArray:
        result: BoolArray = (rows.vp == 1) | (rows.pp >= least)
        return result

    return holds


def _no_p2p_overlap(rows: LayoutBatch, ctx: Context) -> BoolArray:
    if ctx.options.overlap_p2p:
        return everywhere(rows)
    return _chunks_need_ranks(3)(rows, ctx)


def _chunks_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    return f"vp {layout.vp} with pp {layout.pp}", {"vp": layout.vp, "pp": layout.pp}


def micro_batch_formula(layout: Layout, ctx: Context) -> str:
    """Write out how the number of micro-batches comes about."""
    batch = ctx.training.global_batch
    return f"m = {batch:,} / (micro-batch {layout.micro_batch} x dp {layout.dp:,})"


def _fewer_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    m, pp = layout.micro_batches, layout.pp
    text = (
        f"{m} micro-batches < pp {pp}; {micro_batch_formula(layout, ctx)}: "
        "raise the global batch, or lower pp, dp or the micro-batch"
    )
    return text, {"micro_batches": m, "pp": pp}


def _enough(rows: LayoutBatch, ctx: Context) -> BoolArray:
    result: BoolArray = (rows.pp == 1) | (rows.micro_batches >= rows.pp)
    return result


def _enough_interleaved(rows: LayoutBatch, ctx: Context) -> BoolArray:
    return (rows.vp == 1) | _enough(rows, ctx)


def _enough_but_one(rows: LayoutBatch, ctx: Context) -> BoolArray:
    result: BoolArray = rows.micro_batches >= rows.pp - 1
    return result


def _is(rows: LayoutBatch, *schedules: Schedule) -> BoolArray:
    """Mask the rows that run one of the schedules."""
    codes = [code for code, schedule in enumerate(rows.codebook.schedules) if schedule in schedules]
    return np.isin(rows.schedule, codes)


def _enough_1f1b(rows: LayoutBatch, ctx: Context) -> BoolArray:
    return ~_is(rows, Schedule.ONE_F_ONE_B) | _enough(rows, ctx)


def _groups(rows: LayoutBatch, ctx: Context) -> BoolArray:
    """Megatron runs micro-batches in groups of N per virtual stage; a last group must keep the pipeline full."""
    group = ctx.options.microbatch_group or rows.pp
    rest = rows.micro_batches % group
    fits = (group >= rows.pp) & (group <= rows.micro_batches) & ((rest == 0) | (rest >= rows.pp))
    result: BoolArray = (rows.vp == 1) | (rows.pp == 1) | fits
    return result


def _groups_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    group, m = ctx.options.microbatch_group or layout.pp, layout.micro_batches
    text = (
        f"{m} micro-batches in groups of {group} leave {m % group}, which must be 0 or at least pp {layout.pp}"
        f"; {micro_batch_formula(layout, ctx)}"
    )
    return text, {"micro_batches": m, "group": group, "remainder": m % group, "pp": layout.pp}


def _multiple(rows: LayoutBatch, ctx: Context) -> BoolArray:
    result: BoolArray = (rows.vp == 1) | (rows.micro_batches % rows.pp == 0)
    return result


def _rounds(rows: LayoutBatch, ctx: Context) -> BoolArray:
    """PyTorch runs m // pp rounds of equally many micro-batches."""
    rounds = np.maximum(rows.micro_batches // rows.pp, 1)
    return ~_is(rows, Schedule.INTERLEAVED) | (rows.micro_batches % rounds == 0)


def _rounds_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    m = layout.micro_batches
    rounds = max(m // layout.pp, 1)
    text = f"{m} micro-batches % {rounds} rounds (m // pp {layout.pp}) = {m % rounds}"
    return text, {"micro_batches": m, "rounds": rounds, "pp": layout.pp}


def _per_schedule(
    fits: Callable[[ScheduleModel, LayoutBatch, Context], BoolArray],
) -> Callable[..., BoolArray]:
    """Build a predicate that judges the rows of each schedule by its entry in ``SCHEDULES``."""

    def holds(rows: LayoutBatch, ctx: Context) -> BoolArray:
        result = everywhere(rows)
        for code, schedule in enumerate(rows.codebook.schedules):
            mine = (rows.schedule == code) & (rows.pp > 1)
            result &= ~mine | fits(SCHEDULES[schedule], rows, ctx)
        return result

    return holds


def _chunk_bounds(model: ScheduleModel, rows: LayoutBatch, ctx: Context) -> BoolArray:
    result: BoolArray = (rows.vp >= model.min_chunks) & (rows.vp <= (model.max_chunks or rows.vp))
    return result


def _micro_batch_bounds(model: ScheduleModel, rows: LayoutBatch, ctx: Context) -> BoolArray:
    if model.schedule is Schedule.INTERLEAVED:  # frameworks differ: rules of their own
        return everywhere(rows)
    enough = rows.micro_batches >= model.min_micro_batches * rows.pp
    even = (rows.pp % 2 == 0) & (rows.micro_batches % 2 == 0)
    result: BoolArray = enough & even if model.even else enough
    return result


def _launchable(model: ScheduleModel, rows: LayoutBatch, ctx: Context) -> BoolArray:
    return np.full(len(rows), model.schedule in LAUNCHABLE[ctx.framework])


def schedule_of(layout: Layout) -> ScheduleModel:
    """Return what is known of the schedule that a layout runs."""
    from layoutopt.optimizer.space.rows import batch_of

    return SCHEDULES[batch_of(layout).codebook.schedules[0]]


def _bounds_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    model = schedule_of(layout)
    most = "any number" if model.max_chunks is None else str(model.max_chunks)
    text = f"schedule {model.schedule} runs {model.min_chunks} to {most} chunks per rank, not vp {layout.vp}"
    return text, {"schedule": model.schedule.value, "vp": layout.vp}


def _schedule_batches_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    model, m = schedule_of(layout), layout.micro_batches
    text = f"schedule {model.schedule} needs m >= {model.min_micro_batches} x pp {layout.pp}, m is {m}"
    text += "; both must be even" if model.even else ""
    return text, {"schedule": model.schedule.value, "micro_batches": m, "pp": layout.pp}


def _launchable_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    schedule = schedule_of(layout).schedule
    known = ", ".join(LAUNCHABLE[ctx.framework])
    return f"{ctx.framework} has no schedule {schedule}; valid: {known}", {"schedule": schedule.value}


def _split_layers(ctx: Context) -> int:
    """Return the units that Megatron divides over ranks: layers, and the ends where they count as one."""
    ends = (ctx.options.embedding_as_layer, ctx.options.loss_as_layer)
    return ctx.model.layers + sum(bool(end) for end in ends)


def _even(rows: LayoutBatch, ctx: Context) -> BoolArray:
    result: BoolArray = _split_layers(ctx) % rows.pp == 0
    return result


def _even_chunks(rows: LayoutBatch, ctx: Context) -> BoolArray:
    layers = _split_layers(ctx)
    result: BoolArray = (layers % rows.pp != 0) | (layers // rows.pp % rows.vp == 0)
    return result


def _even_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    layers, pp = _split_layers(ctx), layout.pp
    text = f"layers {layers} % pp {pp} = {layers % pp} and no stage split is given"
    uneven = uneven_ends(ctx.model.layers, pp, layout.vp)
    text += f"; uneven ends that work: {'/'.join(map(str, uneven))}" if uneven else ""
    return text, {"layers": layers, "pp": pp, "remainder": layers % pp}


def uneven_ends(layers: int, pp: int, vp: int) -> tuple[int, ...]:
    """Return layers per rank with equal middle ranks and a smaller first rank, every count a multiple of vp.

    Megatron-LM's ``--decoder-first-pipeline-num-layers``; where that leaves too little, both ends shrink. Empty if
    there is no such split.
    """
    middle = -(-layers // pp // vp) * vp
    for ends in (1, 2):
        for count in (middle, middle + vp):
            rest = layers - count * (pp - ends)
            first = rest - rest // 2 if ends == 2 else rest
            split = (first, *[count] * (pp - ends), *([rest // 2] if ends == 2 else []))
            if pp > ends and all(0 < part <= count and part % vp == 0 for part in split):
                return split
    return ()


def _even_chunks_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    layers, pp, vp = _split_layers(ctx), layout.pp, layout.vp
    per_rank = layers // pp
    text = f"layers {layers} / pp {pp} = {per_rank} per rank, % vp {vp} = {per_rank % vp}; no layer may be dropped"
    return text, {"layers": layers, "pp": pp, "vp": vp, "remainder": layers % (pp * vp)}


def _even_chunks_valid(rule: Rule, layout: Layout, ctx: Context) -> Mapping[str, tuple[int, ...]]:
    per_rank = _split_layers(ctx) // layout.pp
    return {"vp": tuple(vp for vp in range(1, per_rank + 1) if per_rank % vp == 0)}


def _tied(rows: LayoutBatch, ctx: Context) -> BoolArray:
    result: BoolArray = rows.pp == 1
    return result if ctx.model.tied_embeddings else everywhere(rows)


def _mtp(rows: LayoutBatch, ctx: Context) -> BoolArray:
    result: BoolArray = rows.pp == 1
    return result if ctx.model.mtp_layers else everywhere(rows)


def _says(text: str) -> Detail:
    """Build a detail function whose text is a template over the layout's degrees."""

    def detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
        return text.format(pp=layout.pp), {"pp": layout.pp}

    return detail


_PP_VP = frozenset({"pp", "vp"})
_PP_VP_M = frozenset({"pp", "vp", "micro_batches"})
_PIPE_M = frozenset({"pp", "micro_batches"})
_PIPELINES = "torch/distributed/pipelining/schedules.py"

_LAYER_RULES = (
    Rule(
        name="stages_hold_blocks",
        formula="pp * vp <= blocks + 2",
        reason="every virtual stage holds a block, except the first and the last, which hold the embedding and the head",
        source="NVIDIA/Megatron-LM transformer_config.py (pipeline_model_parallel_layout); torchtitan pipeline_parallel.py",
        reads=_PP_VP,
        holds=_slots,
        detail=_slots_detail,
        valid=varying("vp", "pp"),
    ),
    Rule(
        name="layers_mod_pp",
        formula="(layers + [embedding] + [loss]) % pp = 0, or a stage split is given",
        reason="the automatic split gives every rank as many layers; before core 0.10 it silently dropped the rest",
        source="NVIDIA/Megatron-LM arguments.py, transformer_block.py",
        reads=frozenset({"pp"}),
        holds=_even,
        detail=_even_detail,
        valid=varying("pp"),
        frameworks=MEGATRONS,
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
        unless_staged=True,
    ),
    Rule(
        name="tied_with_pp",
        formula="tied embeddings => pp = 1",
        reason="input and output embedding would live on different stages, which this framework refuses",
        source="pytorch/torchtitan models/common/decoder.py",
        reads=frozenset({"pp"}),
        holds=_tied,
        detail=_says("tied embeddings with pp {pp}"),
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
        valid=varying("pp", limit=1),
        frameworks=frozenset({Framework.TORCHTITAN}),
    ),
)

_CHUNK_RULES = (
    Rule(
        name="vp_needs_pp",
        formula="vp > 1 => pp >= 2",
        reason="chunks interleave over pipeline ranks",
        source="NVIDIA/Megatron-LM arguments.py, core 0.8",
        reads=_PP_VP,
        holds=_chunks_need_ranks(2),
        detail=_chunks_detail,
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
        valid=varying("vp", "pp"),
        frameworks=MEGATRONS,
        since=(0, 8),
        flag="overlap_p2p",
    ),
)

_MICRO_BATCH_RULES = (
    Rule(
        name="microbatches_ge_pp",
        formula="vp > 1 => m >= pp",
        reason="the interleaved schedule fills every rank before its first backward",
        source=_SCHEDULES_PY,
        reads=_PP_VP_M,
        holds=_enough_interleaved,
        detail=_fewer_detail,
        valid=varying("pp", "micro_batches"),
        frameworks=MEGATRONS,
    ),
    Rule(
        name="microbatches_ge_pp",
        formula="1f1b => m >= pp",
        reason="PyTorch's 1F1B raises when there are fewer micro-batches than stages",
        source=_PIPELINES,
        reads=frozenset({"pp", "micro_batches", "schedule"}),
        holds=_enough_1f1b,
        detail=_fewer_detail,
        valid=varying("pp", "micro_batches"),
        frameworks=TORCH_PIPELINES,
    ),
    Rule(
        name="microbatches_ge_pp",
        formula="m >= pp - 1",
        reason="the pipeline engine asserts it",
        source="huggingface/nanotron parallel/pipeline_parallel/engine.py",
        reads=_PIPE_M,
        holds=_enough_but_one,
        detail=_fewer_detail,
        valid=varying("pp", "micro_batches"),
        frameworks=frozenset({Framework.NANOTRON}),
    ),
    Rule(
        name="interleaved_groups",
        formula="vp > 1 => pp <= N <= m and m % N in {0} or >= pp, N = group size, by default pp",
        reason="a last group smaller than the pipeline would stall it",
        source=_SCHEDULES_PY,
        reads=_PP_VP_M,
        holds=_groups,
        detail=_groups_detail,
        valid=varying("pp", "micro_batches"),
        frameworks=MEGATRONS,
        since=(0, 10),
    ),
    Rule(
        name="interleaved_groups",
        formula="vp > 1 => m % pp = 0",
        reason="groups of other sizes came with core 0.10",
        source=_SCHEDULES_PY + ", core 0.9",
        reads=_PP_VP_M,
        holds=_multiple,
        detail=_groups_detail,
        valid=varying("pp", "micro_batches"),
        frameworks=MEGATRONS,
        until=(0, 10),
    ),
    Rule(
        name="interleaved_rounds",
        formula="interleaved => m % max(1, m // pp) = 0",
        reason="PyTorch runs equally many micro-batches in every round",
        source=_PIPELINES,
        reads=frozenset({"pp", "micro_batches", "schedule"}),
        holds=_rounds,
        detail=_rounds_detail,
        valid=varying("micro_batches"),
        frameworks=TORCH_PIPELINES,
    ),
    Rule(
        name="full_pipeline",
        formula="pp > 1 => m >= pp",
        reason="fewer micro-batches than stages leave ranks idle throughout: it runs, but isn't searched",
        source="Narayanan et al. 2021, section 2.2",
        reads=_PIPE_M,
        holds=_enough,
        detail=_fewer_detail,
        valid=varying("pp", "micro_batches"),
        search_only=True,
    ),
)

_SCHEDULE_RULES = (
    Rule(
        name="schedule_supported",
        formula="schedule in the framework's list",
        reason="the framework has to implement the schedule",
        source="layoutopt.optimizer.cost.schedules.LAUNCHABLE",
        reads=frozenset({"pp", "schedule"}),
        holds=_per_schedule(_launchable),
        detail=_launchable_detail,
    ),
    Rule(
        name="schedule_chunks",
        formula="vp within the schedule's chunks per rank",
        reason="1F1B, GPipe, ZB-H1 and DualPipe run one chunk per rank, the V-shaped schedules two, interleaved more",
        source=_PIPELINES,
        reads=frozenset({"pp", "vp", "schedule"}),
        holds=_per_schedule(_chunk_bounds),
        detail=_bounds_detail,
        valid=varying("vp"),
    ),
    Rule(
        name="schedule_micro_batches",
        formula="m >= 2*pp for DualPipe and DualPipeV; DualPipe: pp and m even",
        reason="both directions of the pipeline need their own micro-batches",
        source="deepseek-ai/DualPipe dualpipe.py; " + _PIPELINES,
        reads=frozenset({"pp", "micro_batches", "schedule"}),
        holds=_per_schedule(_micro_batch_bounds),
        detail=_schedule_batches_detail,
        valid=varying("micro_batches", "pp"),
    ),
)

RULES: tuple[Rule, ...] = (*_LAYER_RULES, *_CHUNK_RULES, *_MICRO_BATCH_RULES, *_SCHEDULE_RULES)
