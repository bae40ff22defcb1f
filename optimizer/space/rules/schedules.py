"""Rules on micro-batches and pipeline schedules."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.schedules import SCHEDULES
from layoutopt.optimizer.frameworks.registry import Framework, abilities_of
from layoutopt.optimizer.space.repairs import first_of, known_schedule, lowered, setting
from layoutopt.optimizer.space.rows import row_of
from layoutopt.optimizer.space.rule import FREEST, MEGATRONS, TORCH_PIPELINES, Rule, everywhere, mask, varying
from layoutopt.optimizer.specs.stage_split import running_schedule
from layoutopt.optimizer.specs.vocabulary import Schedule

if TYPE_CHECKING:
    from collections.abc import Callable

    from layoutopt.optimizer.cost.batch import LayoutBatch
    from layoutopt.optimizer.cost.schedules import ScheduleModel
    from layoutopt.optimizer.space.context import Context
    from layoutopt.optimizer.space.rule import BoolArray, Factors
    from layoutopt.optimizer.specs.layout import Layout

_SCHEDULES_PY = "NVIDIA/Megatron-LM core/pipeline_parallel/schedules.py"


def micro_batch_formula(layout: Layout, ctx: Context) -> str:
    """Write out how the number of micro-batches comes about."""
    batch = ctx.training.global_batch
    return f"m = {batch:,} / (micro-batch {layout.micro_batch} x dp {layout.dp:,})"


def _zero_bubble(rows: LayoutBatch, ctx: Context) -> BoolArray:
    result: BoolArray = (rows.pp == 1) | (rows.sp == 0)
    return ~_is(rows, Schedule.ZB_H1) | result


def _zero_bubble_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    return f"schedule {layout.schedule} with sequence parallelism", {"schedule": layout.schedule.value}


def _fewer_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    m, pp = layout.micro_batches, layout.pp
    text = (
        f"{m} micro-batches < pp {pp}; {micro_batch_formula(layout, ctx)}: "
        "raise the global batch, or lower pp, dp or the micro-batch"
    )
    return text, {"micro_batches": m, "pp": pp}


def _enough(rows: LayoutBatch, ctx: Context) -> BoolArray:
    return mask((rows.pp == 1) | (rows.micro_batches >= rows.pp))


def _enough_interleaved(rows: LayoutBatch, ctx: Context) -> BoolArray:
    return mask((rows.vp == 1) | _enough(rows, ctx))


def _enough_but_one(rows: LayoutBatch, ctx: Context) -> BoolArray:
    return mask(rows.micro_batches >= rows.pp - 1)


def _is(rows: LayoutBatch, *schedules: Schedule) -> BoolArray:
    """Mask the rows that run one of the schedules."""
    codes = [code for code, schedule in enumerate(rows.codebook.schedules) if schedule in schedules]
    return np.isin(rows.schedule, codes)


def _enough_1f1b(rows: LayoutBatch, ctx: Context) -> BoolArray:
    return ~_is(rows, Schedule.ONE_F_ONE_B) | _enough(rows, ctx)


def _groups(rows: LayoutBatch, ctx: Context) -> BoolArray:
    """Megatron runs micro-batches in groups of N; a last group must keep the pipeline full."""
    group = ctx.options.microbatch_group or rows.pp
    rest = rows.micro_batches % group
    fits = (group >= rows.pp) & (group <= rows.micro_batches) & ((rest == 0) | (rest >= rows.pp))
    return mask((rows.vp == 1) | (rows.pp == 1) | fits)


def _groups_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    group, m = ctx.options.microbatch_group or layout.pp, layout.micro_batches
    text = (
        f"{m} micro-batches in groups of {group} leave {m % group}, which must be 0 or at least "
        f"pp {layout.pp}; {micro_batch_formula(layout, ctx)}"
    )
    return text, {"micro_batches": m, "group": group, "remainder": m % group, "pp": layout.pp}


def _multiple(rows: LayoutBatch, ctx: Context) -> BoolArray:
    return mask((rows.vp == 1) | (rows.micro_batches % rows.pp == 0))


def _rounds(rows: LayoutBatch, ctx: Context) -> BoolArray:
    """PyTorch runs m // pp rounds of equally many micro-batches."""
    # Fewer micro-batches than ranks are a single round.
    rounds = np.maximum(rows.micro_batches // rows.pp, 1)
    return mask(~_is(rows, Schedule.INTERLEAVED) | (rows.micro_batches % rounds == 0))


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
        """Ask of each schedule in use whether the rows (n,) with a pipeline fit it."""
        result = everywhere(rows)
        for code, schedule in enumerate(rows.codebook.schedules):
            # A single stage runs no schedule, whatever is named.
            mine = (rows.schedule == code) & (rows.pp > 1)
            result &= ~mine | fits(SCHEDULES[schedule], rows, ctx)
        return result

    return holds


def _chunk_bounds(model: ScheduleModel, rows: LayoutBatch, ctx: Context) -> BoolArray:
    return mask((rows.vp >= model.min_chunks) & (rows.vp <= (model.max_chunks or rows.vp)))


def _micro_batch_bounds(model: ScheduleModel, rows: LayoutBatch, ctx: Context) -> BoolArray:
    if model.schedule is Schedule.INTERLEAVED:  # frameworks differ: rules of their own
        return everywhere(rows)
    enough = rows.micro_batches >= model.min_micro_batches * rows.pp
    even = (rows.pp % 2 == 0) & (rows.micro_batches % 2 == 0)
    return mask(enough & even if model.even else enough)


def _launchable(model: ScheduleModel, rows: LayoutBatch, ctx: Context) -> BoolArray:
    return np.full(len(rows), model.schedule in abilities_of(ctx.framework, ctx.release).schedules)


def schedule_of(layout: Layout) -> ScheduleModel:
    """Return what is known of the schedule that a layout runs."""
    return SCHEDULES[row_of(layout).codebook.schedules[0]]


def _bounds_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    model = schedule_of(layout)
    most = "any number" if model.max_chunks is None else str(model.max_chunks)
    text = f"schedule {model.schedule} runs {model.min_chunks} to {most} chunks per rank, not vp {layout.vp}"
    return text, {"schedule": model.schedule.value, "vp": layout.vp}


def _follow_chunks(rule: Rule, layout: Layout, ctx: Context) -> Layout:
    """Take 1F1B for one chunk and interleaving for several."""
    return replace(layout, schedule=running_schedule(Schedule.NONE, layout.pp, layout.vp), stages=())


def _schedule_batches_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    model, m = schedule_of(layout), layout.micro_batches
    text = f"schedule {model.schedule} needs m >= {model.min_micro_batches} x pp {layout.pp}, m is {m}"
    text += "; both must be even" if model.even else ""
    return text, {"schedule": model.schedule.value, "micro_batches": m, "pp": layout.pp}


def _launchable_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    schedule = schedule_of(layout).schedule
    known = ", ".join(abilities_of(ctx.framework, ctx.release).schedules)
    return f"{ctx.framework} has no schedule {schedule}; valid: {known}", {"schedule": schedule.value}


_PP_VP_M = frozenset({"pp", "vp", "micro_batches"})
_PIPE_M = frozenset({"pp", "micro_batches"})
_PIPELINES = "torch/distributed/pipelining/schedules.py"

_FILLED = Rule(
    name="microbatches_ge_pp",
    formula="vp > 1 => m >= pp",
    reason="the interleaved schedule fills every rank before its first backward",
    source=_SCHEDULES_PY,
    reads=_PP_VP_M,
    holds=_enough_interleaved,
    detail=_fewer_detail,
    repair=lowered("vp", "pp"),
    valid=varying("pp", "micro_batches"),
    frameworks=MEGATRONS,
)

_GROUPS = Rule(
    name="interleaved_groups",
    formula="vp > 1 => pp <= N <= m and m % N in {0} or >= pp, N = group size, by default pp",
    reason="a last group smaller than the pipeline would stall it",
    source=_SCHEDULES_PY,
    reads=_PP_VP_M,
    holds=_groups,
    detail=_groups_detail,
    repair=lowered("vp", "pp"),
    valid=varying("pp", "micro_batches"),
    frameworks=MEGATRONS,
    since=(0, 10),
)

_ROUNDS = Rule(
    name="interleaved_rounds",
    formula="interleaved => m % max(1, m // pp) = 0",
    reason="PyTorch runs equally many micro-batches in every round",
    source=_PIPELINES,
    reads=frozenset({"pp", "micro_batches", "schedule"}),
    holds=_rounds,
    detail=_rounds_detail,
    repair=lowered("vp", "pp"),
    valid=varying("micro_batches"),
    frameworks=TORCH_PIPELINES,
)

_MICRO_BATCH_RULES = (
    _FILLED,
    replace(
        _FILLED,
        formula="1f1b => m >= pp",
        reason="PyTorch's 1F1B raises when there are fewer micro-batches than stages",
        source=_PIPELINES,
        reads=frozenset({"pp", "micro_batches", "schedule"}),
        holds=_enough_1f1b,
        frameworks=TORCH_PIPELINES,
    ),
    replace(
        _FILLED,
        formula="m >= pp - 1",
        reason="the pipeline engine asserts it",
        source="huggingface/nanotron parallel/pipeline_parallel/engine.py",
        reads=_PIPE_M,
        holds=_enough_but_one,
        frameworks=frozenset({Framework.NANOTRON}),
    ),
    _GROUPS,
    replace(
        _GROUPS,
        formula="vp > 1 => m % pp = 0",
        reason="groups of other sizes came with core 0.10",
        source=_SCHEDULES_PY + ", core 0.9",
        holds=_multiple,
        until=(0, 10),
        since=(),
    ),
    _ROUNDS,
    replace(
        _ROUNDS,
        reason="no order of operations runs rounds of different lengths",
        source=f"{_SCHEDULES_PY}; {_PIPELINES}",
        frameworks=FREEST,
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
        source="the schedules of layoutopt.optimizer.frameworks",
        reads=frozenset({"pp", "schedule"}),
        holds=_per_schedule(_launchable),
        detail=_launchable_detail,
        repair=known_schedule,
    ),
    Rule(
        name="zero_bubble_without_sp",
        formula="zb-h1 => no sequence parallelism",
        reason="--enable-zbh1-pipeline excludes --sequence-parallel",
        source="deepspeedai/Megatron-DeepSpeed megatron/arguments.py",
        reads=frozenset({"pp", "sp", "schedule"}),
        holds=_zero_bubble,
        detail=_zero_bubble_detail,
        repair=setting(schedule=Schedule.ONE_F_ONE_B),
        frameworks=frozenset({Framework.MEGATRON_DEEPSPEED}),
    ),
    Rule(
        name="schedule_chunks",
        formula="vp within the schedule's chunks per rank",
        reason=(
            "1F1B, GPipe, ZB-H1 and DualPipe run one chunk per rank, the V-shaped schedules two, "
            "interleaved more"
        ),
        source=_PIPELINES,
        reads=frozenset({"pp", "vp", "schedule"}),
        holds=_per_schedule(_chunk_bounds),
        detail=_bounds_detail,
        repair=first_of(_follow_chunks, known_schedule),
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
        repair=known_schedule,
        valid=varying("micro_batches", "pp"),
    ),
)

RULES: tuple[Rule, ...] = (*_MICRO_BATCH_RULES, *_SCHEDULE_RULES)
