"""How a layout that breaks a rule becomes the nearest one that meets it, at the same GPUs and global batch."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.frameworks.registry import abilities_of
from layoutopt.optimizer.space.divisors import divisors
from layoutopt.optimizer.space.rows import row_of
from layoutopt.optimizer.specs.layout import Recompute
from layoutopt.optimizer.specs.vocabulary import Granularity, Precision, Schedule

if TYPE_CHECKING:
    from layoutopt.optimizer.space.context import Context
    from layoutopt.optimizer.space.rule import Repair, Rule
    from layoutopt.optimizer.specs.layout import Layout

MESH = ("tp", "cp", "pp", "vp")
"""Degrees that dp makes room for; those of experts lie inside of them."""


def regroup(layout: Layout, **degrees: int) -> Layout | None:
    """Change tp, cp, pp or vp and let dp take up the GPUs, at the same global batch.

    The micro-batch shrinks if it must; None when no micro-batch fits. The stages are split anew.
    """
    # A stage list was made for the old degrees.
    settings: dict[str, Any] = {**degrees, "stages": ()}
    changed = replace(layout, **settings)
    inner = changed.tp * changed.cp * changed.pp
    # Idle ranks would be another question than the one that was asked.
    if layout.gpus % inner:
        return None
    dp, batch = layout.gpus // inner, layout.dp * layout.micro_batch * layout.micro_batches
    # The batch is the user's: micro-batches shrink before it changes.
    sizes = [size for size in range(layout.micro_batch, 0, -1) if batch % (dp * size) == 0]
    # Even single sequences do not divide among so many replicas.
    if not sizes:
        return None
    vp = changed.vp if changed.pp > 1 else 1
    return replace(
        changed,
        dp=dp,
        vp=vp,
        micro_batch=sizes[0],
        micro_batches=batch // (dp * sizes[0]),
        # A shard group of the old data parallelism need not divide the new one.
        hsdp_shard=None,
        schedule=_schedule_for(changed.schedule, changed.pp, vp),
    )


def _schedule_for(schedule: Schedule, pp: int, vp: int) -> Schedule:
    """Keep a schedule that runs the chunks; 1F1B and interleaving follow their number."""
    if pp == 1:
        return Schedule.NONE
    # A schedule of its own kind is the user's choice: it is kept, and judged.
    plain = schedule in (Schedule.NONE, Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED)
    return (Schedule.INTERLEAVED if vp > 1 else Schedule.ONE_F_ONE_B) if plain else schedule


def setting(**values: Any) -> Repair:
    """Set fields that leave the GPUs and the batch alone."""

    def repair(rule: Rule, layout: Layout, ctx: Context) -> Layout:
        """Return the layout with the values set."""
        return replace(layout, **values)

    return repair


def regrouped(**degrees: int) -> Repair:
    """Set degrees and let dp take up the GPUs."""

    def repair(rule: Rule, layout: Layout, ctx: Context) -> Layout | None:
        """Return the layout with the degrees set, its GPUs and batch kept."""
        return regroup(layout, **degrees)

    return repair


def lowered(*axes: str) -> Repair:
    """Lower one of some axes to its largest divisor with which the rule holds, the first axis that can be."""

    def repair(rule: Rule, layout: Layout, ctx: Context) -> Layout | None:
        """Return the layout with the largest smaller value of the first axis that makes it hold."""
        for axis in axes:
            # Divisors keep GPUs and batch whole; the largest one changes the layout least.
            for value in reversed(divisors(getattr(layout, axis))[:-1]):
                found = regroup(layout, **{axis: value}) if axis in MESH else _with(layout, axis, value)
                if found is not None and rule.holds(row_of(found), ctx)[0]:
                    return found
        return None

    return repair


def _with(layout: Layout, axis: str, value: int) -> Layout:
    changes: dict[str, Any] = {axis: value}
    return replace(layout, **changes)


def first_of(*repairs: Repair) -> Repair:
    """Try repairs in turn and take the first with which the rule holds."""

    def repair(rule: Rule, layout: Layout, ctx: Context) -> Layout | None:
        """Return the first repair that makes it hold."""
        for one in repairs:
            found = one(rule, layout, ctx)
            if found is not None and rule.holds(row_of(found), ctx)[0]:
                return found
        return None

    return repair


def nearest_zero(rule: Rule, layout: Layout, ctx: Context) -> Layout:
    """Take the nearest ZeRO stage there is; of two equally near ones the higher, which needs less memory."""
    stages = abilities_of(ctx.framework, ctx.release).zero
    near = min(stages, key=lambda stage: (abs(stage - layout.zero), -stage))
    return replace(layout, zero=near, hsdp_shard=layout.hsdp_shard if near else None)


def known_schedule(rule: Rule, layout: Layout, ctx: Context) -> Layout:
    """Take interleaving where there are chunks and the framework has it, else 1F1B with one chunk."""
    known = abilities_of(ctx.framework, ctx.release).schedules
    looped = layout.vp > 1 and Schedule.INTERLEAVED in known
    # Every trainer with pipelines has 1F1B.
    schedule = Schedule.INTERLEAVED if looped else Schedule.ONE_F_ONE_B
    return replace(layout, schedule=schedule, vp=layout.vp if looped else 1, stages=())


def default_order(rule: Rule, layout: Layout, ctx: Context) -> Layout:
    """Number the ranks in the framework's first order."""
    return replace(layout, mesh_order=abilities_of(ctx.framework, ctx.release).orders[0])


def known_precision(rule: Rule, layout: Layout, ctx: Context) -> Layout | None:
    """Take bf16, or the first format that both the framework and the GPU have."""
    known = abilities_of(ctx.framework, ctx.release).precisions
    # bf16 first: it changes no more about convergence than a 16-bit format has to.
    both = [p for p in (Precision.BF16, *known) if p in known and p in ctx.cluster.gpu.dense_flops]
    return replace(layout, precision=both[0]) if both else None


def without_modules(*names: str) -> Repair:
    """Leave modules out of selective recomputation."""

    def repair(rule: Rule, layout: Layout, ctx: Context) -> Layout:
        """Return the layout without these recomputed modules."""
        return with_modules(layout, [name for name in layout.recompute.modules if name not in names])

    return repair


def known_modules(rule: Rule, layout: Layout, ctx: Context) -> Layout:
    """Keep the modules that the release knows, or take its first one; without any, recompute nothing."""
    known = abilities_of(ctx.framework, ctx.release).modules
    kept = [name for name in layout.recompute.modules if name in known]
    # A user who asked for recomputation keeps some: none at all may not fit any more.
    return with_modules(layout, kept or list(known[:1]))


def with_modules(layout: Layout, names: list[str]) -> Layout:
    """Recompute the named modules; none of them is no recomputation."""
    chosen = Recompute(granularity=Granularity.SELECTIVE, modules=tuple(sorted(names)))
    return replace(layout, recompute=chosen if names else Recompute())
