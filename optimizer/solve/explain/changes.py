"""Layouts that differ in few choices: how to hold the others, and how to say what changed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from layoutopt.optimizer.frameworks.switches import BY_NAME, switch_text
from layoutopt.optimizer.space.axes import DEFAULT_SCHEDULES
from layoutopt.optimizer.space.recompute_sets import recompute_text
from layoutopt.optimizer.space.savers import savers_text
from layoutopt.optimizer.space.switch_sets import switches_text
from layoutopt.optimizer.specs.vocabulary import Schedule

if TYPE_CHECKING:
    from layoutopt.optimizer.space.options import SpaceOptions, Value
    from layoutopt.optimizer.specs.layout import Layout

AXES = ("tp", "cp", "pp", "vp", "ep", "etp", "micro_batch", "zero", "recompute", "mesh_order")
"""Choices that are made one by one. dp and the number of micro-batches follow from them."""

FOLLOWERS = {"tp": ("sp", "etp"), "pp": ("vp",), "zero": ("hsdp_shard",)}
"""Choices without a meaning of their own under another value: sequence parallelism needs tp > 1, chunks need stages."""

SHOWN = (
    "tp", "sp", "cp", "pp", "vp", "ep", "etp", "dp", "zero", "hsdp_shard", "micro_batch", "micro_batches", "recompute",
    "schedule", "mesh_order", "precision", "savers", "switches",
)  # fmt: skip
DERIVED = ("dp", "micro_batches", "sp", "schedule")


def pinned(layout: Layout, options: SpaceOptions, free: tuple[str, ...] = ()) -> SpaceOptions:
    """Return restrictions under which only the stages, the ``free`` axes and what follows from them can change.

    An expert-tensor degree that equals tp is read as following it (megatron-core's default).
    """
    # A value that follows from a free one must be free to follow.
    loose = {*free, *(name for axis in free for name in FOLLOWERS.get(axis, ()))}
    fix: dict[str, tuple[Value, ...]] = {"savers": (savers_text(layout.savers),)}
    fix |= {name: (switch_text(value),) for name, value in layout.switches.stated().items()}
    fix |= {
        name: (int(getattr(layout, name)),)
        for name in ("tp", "sp", "cp", "pp", "vp", "ep", "etp", "micro_batch", "zero")
        if name not in loose
    }
    # A degree of its own was chosen, and stays; one that equals tp is a default that follows it.
    if "etp" in loose and "etp" not in free and layout.etp != layout.tp:
        fix["etp"] = (layout.etp,)
    if "hsdp_shard" not in loose:
        fix["hsdp_shard"] = (layout.hsdp_shard or 0,)
    if "mesh_order" not in loose:
        fix["mesh_order"] = (layout.mesh_order,)
    return replace(
        options,
        fix={**options.fix, **fix},
        recomputes=options.recomputes if "recompute" in loose else (layout.recompute,),
        schedules=schedules_like(layout),
        precisions=(layout.precision,),
        allow=tuple(layout.savers),
    )


def schedules_like(layout: Layout) -> tuple[Schedule, ...]:
    """Return the layout's own schedule where it is a special one, else those that follow from pp and vp."""
    return DEFAULT_SCHEDULES if layout.schedule in DEFAULT_SCHEDULES else (Schedule.NONE, layout.schedule)


def axis_value(layout: Layout, axis: str) -> str:
    """Write one choice."""
    if axis == "recompute":
        return recompute_text(layout.recompute)
    if axis == "savers":
        return savers_text(layout.savers)
    if axis == "switches":
        return switches_text(layout.switches) or "preset's"
    value = getattr(layout, axis)
    if isinstance(value, bool):
        return "on" if value else "off"
    return "whole" if value is None else str(value)


def with_silent(layout: Layout, other: Layout) -> Layout:
    """Return a layout with the other's launch switches where they do nothing in the first: there they are no choice."""
    silent = {
        name: value for name, value in other.switches.stated().items() if not BY_NAME[name].acts(layout, None)
    }
    return replace(layout, switches=replace(layout.switches, **silent)) if silent else layout  # type: ignore[arg-type]


def list_changes(before: Layout, after: Layout) -> tuple[str, ...]:
    """Say which choices differ, ``axis old -> new``; what only follows from others comes last, stages where nothing else."""
    before, after = with_silent(before, after), with_silent(after, before)
    changed = [axis for axis in SHOWN if axis_value(before, axis) != axis_value(after, axis)]
    # Stable: each group keeps the order in which axes are known.
    ordered = sorted(changed, key=lambda axis: axis in DERIVED)
    words = [f"{axis} {axis_value(before, axis)} -> {axis_value(after, axis)}" for axis in ordered]
    again = [sum(stage.recomputed for stage in layout.stages) for layout in (before, after)]
    if again[0] != again[1] and before.stages:
        words.append(f"recomputed layers {again[0]} -> {again[1]}")
    if not words and _layers(before) != _layers(after):
        words.append(f"layers per stage {_sizes(before)} -> {_sizes(after)}")
    return tuple(words)


def _layers(layout: Layout) -> list[int]:
    return [stage.layers for stage in layout.stages]


def _sizes(layout: Layout) -> str:
    """Write the layers of the stages, equal neighbours as ``6x10``."""
    sizes, words = _layers(layout), []
    while sizes:
        count = next((i for i, size in enumerate(sizes) if size != sizes[0]), len(sizes))
        words.append(str(sizes[0]) if count == 1 else f"{sizes[0]}x{count}")
        sizes = sizes[count:]
    return ",".join(words) or "none"
