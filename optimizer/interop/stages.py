"""Stages as launch files list them: their order, and how a split can be written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutopt.optimizer.specs.layout_string import StageItems
from layoutopt.optimizer.specs.stage_split import model_order
from layoutopt.optimizer.specs.vocabulary import Schedule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutopt.optimizer.specs.layout import Layout
    from layoutopt.optimizer.specs.model import ModelSpec


def stage_items(
    counts: Sequence[int], pp: int, schedule: Schedule = Schedule.NONE
) -> tuple[StageItems, ...] | None:
    """Return a layout's ``split`` from the layers of every stage in model order; None where there are none.

    The MTP layers are left to their default place, the stage with the head.
    """
    if not counts:
        return None
    items: dict[int, StageItems] = {}
    for position, entry in enumerate(model_order(pp, len(counts) // pp, schedule)):
        items[entry] = StageItems(
            layers=counts[position], embedding=position == 0, loss=position == len(counts) - 1
        )
    return tuple(items[entry] for entry in range(len(counts)))


def stage_counts(layout: Layout) -> list[int]:
    """Layers of each stage in model order."""
    return [layout.stages[index].layers for index in model_order(layout.pp, layout.vp, layout.schedule)]


def predicts_last(layout: Layout) -> bool:
    """Whether all MTP layers sit on the last stage."""
    last = model_order(layout.pp, layout.vp, layout.schedule)[-1]
    return all(stage.mtp == 0 for index, stage in enumerate(layout.stages) if index != last)


def is_even_split(layout: Layout, model: ModelSpec) -> bool:
    """Whether equal stages with the MTP layers on the last one are what the layout has."""
    count = layout.pp * layout.vp
    even = model.layers % count == 0 and stage_counts(layout) == [model.layers // count] * count
    return even and predicts_last(layout)


def uneven_ends(layout: Layout) -> tuple[int, int] | None:
    """Layers of the first and last rank where the ranks between are equal, and chunks too; else None."""
    counts = [stage.layers for stage in layout.stages]
    chunks = [counts[chunk * layout.pp : (chunk + 1) * layout.pp] for chunk in range(layout.vp)]
    if layout.pp < 2 or any(chunk != chunks[0] for chunk in chunks) or len(set(chunks[0][1:-1])) > 1:
        return None
    return None if 0 in chunks[0] else (chunks[0][0] * layout.vp, chunks[0][-1] * layout.vp)


def full_recomputation(layout: Layout) -> tuple[str, int]:
    """Return Megatron-LM's method and number of layers for full recomputation.

    ``uniform`` cuts all layers into groups of the number, ``block`` repeats the first ones of every chunk. Where every
    layer is repeated both are the same work, and ``uniform`` is how it is usually written.
    """
    if all(stage.recomputed == stage.layers for stage in layout.stages):
        return "uniform", max(layout.recompute.group, 1)
    return "block", max(stage.recomputed for stage in layout.stages)


def counted_ends(layout: Layout) -> tuple[bool, bool] | None:
    """Whether the first and the last of otherwise equal stages hold one layer fewer, else None."""
    counts = stage_counts(layout)
    inner = set(counts[1:-1])
    if len(inner) != 1:
        return None
    fewer = (inner.pop() - counts[0], counts[1] - counts[-1])
    return (fewer[0] == 1, fewer[1] == 1) if set(fewer) <= {0, 1} else None
