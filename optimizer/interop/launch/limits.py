"""What a framework cannot launch, as small checks that each name an axis, a reason and the nearest layout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.space.stage_splits import nanotron_counts
from layoutopt.optimizer.specs.layout import Layout, Recompute
from layoutopt.optimizer.specs.stage_split import build_stages, kinds_of, model_order
from layoutopt.optimizer.specs.vocabulary import DEFAULT_MESH_ORDER, Granularity, Schedule

if TYPE_CHECKING:
    from layoutopt.optimizer.frameworks.record import Release
    from layoutopt.optimizer.specs.model import ModelSpec
    from layoutopt.optimizer.specs.vocabulary import Precision, Saver


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a check may look at beside the layout."""

    model: ModelSpec
    release: Release


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """An axis that cannot be expressed, why, and the nearest layout that can (None: there is none nearby)."""

    axis: str
    why: str
    nearest: Layout | None


Limit = Callable[[Layout, Context], Finding | None]


def regroup(layout: Layout, **degrees: int) -> Layout | None:
    """Change tp, cp, pp or vp and let dp take up the GPUs, at the same global batch.

    The micro-batch shrinks if it must; None when no micro-batch fits. The stages are split anew.
    """
    batch = layout.dp * layout.micro_batch * layout.micro_batches
    settings: dict[str, Any] = {**degrees, "stages": ()}
    changed = replace(layout, **settings)
    inner = changed.tp * changed.cp * changed.pp
    if layout.gpus % inner:
        return None
    dp = layout.gpus // inner
    # the batch is the user's: micro-batches shrink before it changes
    sizes = [size for size in range(layout.micro_batch, 0, -1) if batch % (dp * size) == 0]
    if not sizes:
        return None
    schedule = Schedule.NONE if changed.pp == 1 else changed.schedule
    return replace(
        changed,
        dp=dp,
        vp=changed.vp if changed.pp > 1 else 1,
        micro_batch=sizes[0],
        micro_batches=batch // (dp * sizes[0]),
        hsdp_shard=None,
        schedule=schedule,
    )


def fixed(axis: str, value: int, why: str) -> Limit:
    """Require one value of a degree."""

    def check(layout: Layout, _: Context) -> Finding | None:
        if getattr(layout, axis) == value:
            return None
        if axis in ("ep", "etp"):
            alone: dict[str, Any] = {axis: value}
            return Finding(axis=axis, why=why, nearest=replace(layout, **alone))
        nearest = regroup(layout, **{axis: value})
        if nearest is not None and axis == "vp" and nearest.pp > 1:
            nearest = replace(nearest, schedule=Schedule.ONE_F_ONE_B)
        return Finding(axis=axis, why=why, nearest=nearest)

    return check


def zero_stages(allowed: tuple[int, ...], why: str) -> Limit:
    """Require a ZeRO stage of a set; of two equally near ones the higher, which needs less memory."""

    def check(layout: Layout, _: Context) -> Finding | None:
        if layout.zero in allowed:
            return None
        near = min(allowed, key=lambda stage: (abs(stage - layout.zero), -stage))
        return Finding(axis="zero", why=why, nearest=replace(layout, zero=near))

    return check


def zero_without_pipeline(most: int, why: str) -> Limit:
    """Limit the ZeRO stage where there is a pipeline."""

    def check(layout: Layout, _: Context) -> Finding | None:
        if layout.pp == 1 or layout.zero <= most:
            return None
        return Finding(axis="zero", why=why, nearest=replace(layout, zero=most, hsdp_shard=None))

    return check


def shard_groups(stages: tuple[int, ...], why: str, *, whole_cp: bool = False) -> Limit:
    """Allow sharding inside groups for some ZeRO stages; the group must divide the data-parallel ranks.

    ``whole_cp``: a group holds whole context-parallel groups.
    """

    def check(layout: Layout, _: Context) -> Finding | None:
        shard = layout.hsdp_shard
        if shard is None:
            return None
        divides = layout.dp * layout.cp % shard == 0 and (not whole_cp or shard % layout.cp == 0)
        if layout.zero in stages and divides:
            return None
        return Finding(axis="hsdp_shard", why=why, nearest=replace(layout, hsdp_shard=None))

    return check


def schedules(allowed: tuple[Schedule, ...], why: str) -> Limit:
    """Require a pipeline schedule of a set; without a pipeline there is none."""

    def check(layout: Layout, _: Context) -> Finding | None:
        if layout.pp == 1 or layout.schedule in allowed:
            return None
        looped = layout.vp > 1 and Schedule.INTERLEAVED in allowed
        near = Schedule.INTERLEAVED if looped else Schedule.ONE_F_ONE_B
        nearest = replace(layout, schedule=near, vp=layout.vp if looped else 1, stages=())
        return Finding(axis="schedule", why=f"{layout.schedule.value}: {why}", nearest=nearest)

    return check


def chunks_fit_schedule(layout: Layout, _: Context) -> Finding | None:
    """One chunk per rank for 1F1B and GPipe, two for V schedules, at least two for interleaving."""
    needs = {
        Schedule.ONE_F_ONE_B: layout.vp == 1,
        Schedule.GPIPE: layout.vp == 1,
        Schedule.INTERLEAVED: layout.vp > 1,
        Schedule.ZB_V: layout.vp == 2,
        Schedule.DUALPIPE_V: layout.vp == 2,
    }
    if layout.pp == 1 or needs.get(layout.schedule, True):
        return None
    near = Schedule.INTERLEAVED if layout.vp > 1 else Schedule.ONE_F_ONE_B
    why = f"{layout.schedule.value} does not run {layout.vp} chunks per rank"
    return Finding(axis="vp", why=why, nearest=replace(layout, schedule=near, stages=()))


def mesh_orders(allowed: tuple[str, ...], why: str) -> Limit:
    """Require a mesh order of a set."""

    def check(layout: Layout, _: Context) -> Finding | None:
        if layout.mesh_order in allowed:
            return None
        return Finding(axis="mesh_order", why=why, nearest=replace(layout, mesh_order=DEFAULT_MESH_ORDER))

    return check


def precisions(allowed: tuple[Precision, ...], why: str) -> Limit:
    """Require a precision of a set; the nearest is the first one."""

    def check(layout: Layout, _: Context) -> Finding | None:
        if layout.precision in allowed:
            return None
        return Finding(axis="precision", why=why, nearest=replace(layout, precision=allowed[0]))

    return check


def savers(allowed: tuple[Saver, ...], why: str) -> Limit:
    """Allow some memory savers; the nearest layout keeps those."""

    def check(layout: Layout, _: Context) -> Finding | None:
        kept = tuple(saver for saver in layout.savers if saver in allowed)
        if kept == layout.savers:
            return None
        return Finding(axis="savers", why=why, nearest=replace(layout, savers=kept))

    return check


def savers_need_zero(least: int, savers: tuple[Saver, ...], why: str) -> Limit:
    """Require a sharded optimizer where one of some memory savers is used and there is more than one replica."""

    def check(layout: Layout, _: Context) -> Finding | None:
        free = layout.dp * layout.cp == 1 or not set(savers) & set(layout.savers)
        if free or layout.zero >= least:
            return None
        return Finding(axis="zero", why=why, nearest=replace(layout, zero=least))

    return check


def recompute_modules(allowed: tuple[str, ...], why: str) -> Limit:
    """Allow selective recomputation of some modules; with an empty set it is refused."""

    def check(layout: Layout, _: Context) -> Finding | None:
        chosen = layout.recompute
        if chosen.granularity is not Granularity.SELECTIVE or (
            chosen.modules and set(chosen.modules) <= set(allowed)
        ):
            return None
        known = tuple(module for module in chosen.modules if module in allowed) or allowed[:1]
        near = Recompute(granularity=Granularity.SELECTIVE, modules=known) if known else Recompute()
        return Finding(axis="recompute", why=why, nearest=replace(layout, recompute=near))

    return check


def with_recomputed(layout: Layout, counts: dict[int, int]) -> Layout:
    """Set the recomputed layers of each stage by its index."""
    stages = tuple(
        replace(stage, recomputed=counts[index], recomputed_kinds={})
        for index, stage in enumerate(layout.stages)
    )
    return replace(layout, stages=stages)


def recompute_all_or_none(why: str) -> Limit:
    """Whole-layer recomputation of every layer or of none."""

    def check(layout: Layout, _: Context) -> Finding | None:
        if layout.recompute.granularity is not Granularity.FULL:
            return None
        if all(stage.recomputed == stage.layers for stage in layout.stages):
            return None
        everything = {index: stage.layers for index, stage in enumerate(layout.stages)}
        return Finding(axis="recompute", why=why, nearest=with_recomputed(layout, everything))

    return check


def recompute_first_layers(layout: Layout, context: Context) -> Finding | None:
    """The first N layers of every chunk, one N for all (Megatron-LM ``--recompute-method block``)."""
    if layout.recompute.granularity is not Granularity.FULL:
        return None
    # the deepest stage decides, so that the nearest layout needs no more memory
    depth = max(stage.recomputed for stage in layout.stages)
    wanted = {index: min(stage.layers, depth) for index, stage in enumerate(layout.stages)}
    uniform = all(stage.recomputed == wanted[index] for index, stage in enumerate(layout.stages))
    if uniform and _recompute_kinds_are_first(layout, context):
        return None
    why = "one number of recomputed layers holds for every chunk, and it counts a chunk's first layers"
    return Finding(axis="recompute", why=why, nearest=with_recomputed(layout, wanted))


def _recompute_kinds_are_first(layout: Layout, context: Context) -> bool:
    first = 0
    for index in model_order(layout.pp, layout.vp, layout.schedule):
        stage = layout.stages[index]
        kinds = {kind: count for kind, count in stage.recomputed_kinds.items() if count}
        if kinds and kinds != kinds_of(context.model, first, stage.recomputed):
            return False
        first += stage.layers
    return True


def stage_counts(layout: Layout) -> list[int]:
    """Layers of each stage in model order."""
    return [layout.stages[index].layers for index in model_order(layout.pp, layout.vp, layout.schedule)]


def even_stages(why: str) -> Limit:
    """Require equal layers on every stage, MTP layers on the last."""

    def check(layout: Layout, context: Context) -> Finding | None:
        stages = layout.pp * layout.vp
        layers = context.model.layers
        if layers % stages:
            fits = [pp for pp in range(layout.pp, 0, -1) if layout.pp % pp == 0 and layers % pp == 0]
            nearest = regroup(layout, pp=fits[0], vp=1)
            if nearest is not None and nearest.pp > 1:
                nearest = replace(nearest, schedule=Schedule.ONE_F_ONE_B)
            return Finding(
                axis="stages", why=f"{why}; {layers} layers do not split over {stages}", nearest=nearest
            )
        counts = [layers // stages] * stages
        if stage_counts(layout) == counts and mtp_is_last(layout):
            return None
        return Finding(axis="stages", why=why, nearest=replace(layout, stages=()))

    return check


def is_even_split(layout: Layout, model: ModelSpec) -> bool:
    """Whether equal stages with the MTP layers on the last one are what the layout has."""
    count = layout.pp * layout.vp
    even = model.layers % count == 0 and stage_counts(layout) == [model.layers // count] * count
    return even and mtp_is_last(layout)


def uneven_ends(layout: Layout) -> tuple[int, int] | None:
    """Layers of the first and last rank where the ranks between are equal, and chunks too; else None."""
    counts = [stage.layers for stage in layout.stages]
    chunks = [counts[chunk * layout.pp : (chunk + 1) * layout.pp] for chunk in range(layout.vp)]
    if layout.pp < 3 or any(chunk != chunks[0] for chunk in chunks) or len(set(chunks[0][1:-1])) != 1:
        return None
    first, last, middle = chunks[0][0], chunks[0][-1], chunks[0][1]
    return None if 0 in (first, last, middle) else (first * layout.vp, last * layout.vp)


def even_or_uneven_ends(chunked: bool) -> Limit:
    """Equal stages, or a first and a last rank of their own size (``chunked``: with virtual stages too)."""
    even = even_stages(
        "only the first and the last rank may differ before layout strings came with core 0.13"
    )

    def check(layout: Layout, context: Context) -> Finding | None:
        fits = layout.vp == 1 or chunked
        if fits and mtp_is_last(layout) and uneven_ends(layout) is not None:
            return None
        return even(layout, context)

    return check


def mtp_is_last(layout: Layout) -> bool:
    """Whether all MTP layers sit on the last stage."""
    last = model_order(layout.pp, layout.vp, layout.schedule)[-1]
    return all(stage.mtp == 0 for index, stage in enumerate(layout.stages) if index != last)


def nanotron_stages(layout: Layout, context: Context) -> Finding | None:
    """Only the split that nanotron chooses by its own costs."""
    if layout.pp > context.model.layers:
        why = f"{context.model.layers} layers do not fill {layout.pp} stages"
        return Finding(axis="pp", why=why, nearest=regroup(layout, pp=1, vp=1))
    counts = nanotron_counts(context.model, layout.pp)
    if stage_counts(layout) == counts:
        return None
    full = layout.recompute.granularity is Granularity.FULL
    stages = build_stages(
        context.model, counts, layout.pp, layout.schedule, context.model.layers if full else 0
    )
    why = f"nanotron balances the stages by its own costs: {'/'.join(map(str, counts))}"
    return Finding(axis="stages", why=why, nearest=replace(layout, stages=stages))


def heads_hold_kv(why: str) -> Limit:
    """No more tensor-parallel ranks than kv heads."""

    def check(layout: Layout, context: Context) -> Finding | None:
        kv_heads = context.model.kv_heads
        if context.model.mla is not None or layout.tp <= kv_heads:
            return None
        # a divisor of both keeps head shards and GPU count whole
        fits = [tp for tp in range(kv_heads, 0, -1) if kv_heads % tp == 0 and layout.tp % tp == 0]
        return Finding(axis="tp", why=why, nearest=regroup(layout, tp=fits[0]))

    return check


def sequence_parallel(value: bool, why: str) -> Limit:
    """Require sequence parallelism on or off wherever tp > 1."""

    def check(layout: Layout, _: Context) -> Finding | None:
        if layout.tp == 1 or layout.sp == value:
            return None
        return Finding(axis="sp", why=why, nearest=replace(layout, sp=value))

    return check
