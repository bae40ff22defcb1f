"""A layout as it takes effect: stages named, and no settings that change nothing, so that equal layouts look equal."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.frameworks.preset import preset_of_release, telling
from layoutopt.optimizer.frameworks.registry import abilities_of
from layoutopt.optimizer.frameworks.stage_rule import COUNTED
from layoutopt.optimizer.space.orders import same_order
from layoutopt.optimizer.space.rows import row_of, schedule_of
from layoutopt.optimizer.space.stage_splits import own_split
from layoutopt.optimizer.space.switch_sets import stated
from layoutopt.optimizer.specs.layout import Recompute, Switches
from layoutopt.optimizer.specs.stage_split import build_stages, even_layers, kinds_of, model_order
from layoutopt.optimizer.specs.vocabulary import Granularity

if TYPE_CHECKING:
    from layoutopt.optimizer.space.context import Context
    from layoutopt.optimizer.specs.layout import Layout, VirtualStage
    from layoutopt.optimizer.specs.model import ModelSpec


def effective(layout: Layout, ctx: Context) -> Layout:
    """Drop what has no effect.

    Sequence parallelism needs tp > 1, sharding more than one rank, expert axes experts, a schedule a pipeline,
    recomputation recomputed layers; axes of degree 1 have no place in the mesh order; a launch switch needs what it acts
    on, and says nothing where it is as the trainer's preset has it.
    """
    ranks, full = layout.dp * layout.cp, layout.recompute.granularity is Granularity.FULL
    stages = _first_unnamed(layout, ctx.model)
    if not full:
        stages = tuple(replace(stage, recomputed=0, recomputed_kinds={}) for stage in stages)
    # "Full" with no recomputed layer is how searches write a layout that recomputes nothing.
    idle = full and bool(stages) and not any(stage.recomputed for stage in stages)
    # A shard group of everybody is no group, and without sharding there is none.
    whole = ranks == 1 or layout.zero == 0 or layout.hsdp_shard == ranks
    return replace(
        layout,
        sp=layout.sp and layout.tp > 1,
        zero=layout.zero if ranks > 1 else 0,
        hsdp_shard=None if whole else layout.hsdp_shard,
        etp=layout.etp if ctx.model.is_moe else 1,
        recompute=Recompute() if idle else _grouped(layout.recompute),
        schedule=schedule_of(layout),
        mesh_order=_usual_order(layout, ctx),
        switches=_telling(layout, ctx),
        stages=stages,
    )


def _grouped(recompute: Recompute) -> Recompute:
    """Groups of one layer are none: every layer starts from its own input."""
    return replace(recompute, group=0) if recompute.group == 1 else recompute


def _telling(layout: Layout, ctx: Context) -> Switches:
    """Drop switches that do nothing, and those that are as the preset has them where the launch says nothing else."""
    preset = preset_of_release(ctx.framework, ctx.release).with_training(ctx.training)
    own = telling(layout.switches, layout, ctx.model, preset)
    # What a launch states is kept: the preset's own value would be overruled by it.
    flags: dict[str, Any] = {
        name: getattr(layout.switches, name) for name in stated(Switches(), ctx.options).stated()
    }
    return replace(own, **flags) if flags else own


def _first_unnamed(layout: Layout, model: ModelSpec) -> tuple[VirtualStage, ...]:
    """Drop the kinds of recomputed layers that are a stage's first ones, which needs no saying."""
    # Walking over the model's order is only needed where kinds are named.
    if not any(stage.recomputed_kinds for stage in layout.stages):
        return layout.stages
    stages, start = list(layout.stages), 0
    for entry in (
        model_order(layout.pp, layout.vp, layout.schedule) if len(stages) == layout.pp * layout.vp else ()
    ):
        stage = stages[entry]
        # The first layers are what a trainer repeats: only others have to be named.
        if _counted(stage.recomputed_kinds) == kinds_of(model, start, stage.recomputed):
            stages[entry] = replace(stage, recomputed_kinds={})
        start += stage.layers
    return tuple(stages)


def _counted(kinds: dict[str, int]) -> dict[str, int]:
    return {name: layers for name, layers in kinds.items() if layers}


def _usual_order(layout: Layout, ctx: Context) -> str:
    """Name the order by the first of the framework's that numbers the ranks alike."""
    orders = abilities_of(ctx.framework, ctx.release).orders
    alike = same_order(row_of(layout), orders)[0]
    return next((order for order, same in zip(orders, alike, strict=True) if same), layout.mesh_order)


def with_stages(layout: Layout, ctx: Context) -> Layout:
    """Return a layout with its stages; where it names none, the framework's own split or the most even one.

    No stages where the layers can't fill them.
    """
    if layout.stages:
        return layout
    # A limit above any stage's layers: "full" without a number recomputes all of them.
    full = layout.recompute.granularity is Granularity.FULL
    return replace(layout, stages=_own_stages(layout, ctx, ctx.model.layers if full else 0))


def _own_stages(layout: Layout, ctx: Context, limit: int) -> tuple[VirtualStage, ...]:
    rule, layers = ctx.launch_rule, ctx.model.layers
    counts: list[int] | tuple[int, ...] | None = None
    if rule.split in COUNTED and layout.pp > 1:
        own = own_split(rule, layout.pp, layout.vp, layers)
        if own is not None and not (own % layout.vp).any():
            # Chunks of a trainer's own split are equal.
            counts = [int(held) // layout.vp for _ in range(layout.vp) for held in own]
    counts = counts or even_layers(ctx.model, layout.pp, layout.vp, layout.schedule)
    return () if counts is None else restaged(ctx.model, layout, counts, limit)


def restaged(
    model: ModelSpec, layout: Layout, counts: list[int] | tuple[int, ...], limit: int
) -> tuple[VirtualStage, ...]:
    """Build stages of ``counts`` layers, of which each recomputes its first ``limit``."""
    return build_stages(model, counts, layout.pp, layout.schedule, limit)
