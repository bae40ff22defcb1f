"""Stages as launch files list them, and the stages of a layout that names none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutopt.optimizer.specs.errors import input_error
from layoutopt.optimizer.specs.layout_string import StageItems
from layoutopt.optimizer.specs.stage_split import build_stages, even_layers, model_order
from layoutopt.optimizer.specs.vocabulary import Granularity, Schedule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutopt.optimizer.specs.layout import Layout, VirtualStage
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


def with_stages(layout: Layout, model: ModelSpec) -> tuple[VirtualStage, ...]:
    """Return a layout's stages, or the most even split where it names none."""
    if layout.stages:
        return layout.stages
    layers = even_layers(model, layout.pp, layout.vp, layout.schedule)
    if layers is None:
        stages = f"pp={layout.pp} * vp={layout.vp}"
        raise input_error(f"{model.layers} layers do not fill {stages} virtual stages", key="stages")
    full = layout.recompute.granularity is Granularity.FULL
    return build_stages(model, layers, layout.pp, layout.schedule, model.layers if full else 0)
