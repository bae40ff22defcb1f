"""From a layout's list of virtual stages to block counts per distinct rank and kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.schedules import distinct_rank_of_entry
from layoutopt.optimizer.specs.errors import input_error

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from layoutopt.optimizer.specs.layout import Layout, VirtualStage
    from layoutopt.optimizer.specs.model import ModelSpec

    IntArray = NDArray[np.int64]


def rank_blocks(layout: Layout, model: ModelSpec) -> tuple[IntArray, IntArray]:
    """Return (blocks, recomputed blocks), each (distinct ranks, K), summed over a rank's virtual stages.

    Raises InputError when a stage cuts a block or names an unknown kind.
    """
    ranks = distinct_rank_of_entry(layout.schedule, layout.pp, layout.vp)
    of_stages = stage_blocks(layout, model)
    summed = np.zeros((2, int(ranks.max()) + 1, len(model.runs)), dtype=np.int64)
    for total, own in zip(summed, of_stages, strict=True):
        np.add.at(total, ranks, own)
    return summed[0], summed[1]


def stage_blocks(layout: Layout, model: ModelSpec) -> tuple[IntArray, IntArray]:
    """Return (blocks, recomputed blocks) of every entry of the stage list, each (pp*vp, K).

    Raises InputError when a stage cuts a block or names an unknown kind.
    """
    sizes = {run.name: len(run.block) for run in model.runs}
    names = list(sizes)
    blocks = np.zeros((len(layout.stages), len(names)), dtype=np.int64)
    recomputed = np.zeros_like(blocks)
    for index, stage in enumerate(layout.stages):
        for name, layers in stage_kinds(stage, names).items():
            blocks[index, names.index(name)] += _whole(layers, sizes, name, index)
        for name, layers in recomputed_kinds(stage, names).items():
            recomputed[index, names.index(name)] += _whole(layers, sizes, name, index)
    return blocks, recomputed


def stage_kinds(stage: VirtualStage, names: list[str]) -> dict[str, int]:
    """Layers of each kind in a stage; without ``kinds`` all are of the only kind."""
    if stage.kinds or stage.layers == 0:
        return stage.kinds
    if len(names) > 1:
        raise input_error(
            "a stage of a model with several layer kinds needs kinds", ", ".join(names), key="stages"
        )
    return {names[0]: stage.layers}


def recomputed_kinds(stage: VirtualStage, names: list[str]) -> dict[str, int]:
    """Recomputed layers of each kind; by default the chunk's first layers."""
    if stage.recomputed_kinds or stage.recomputed == 0:
        return stage.recomputed_kinds
    left, chosen = stage.recomputed, {}
    for name, layers in stage_kinds(stage, names).items():
        chosen[name] = min(left, layers)
        left -= chosen[name]
    return chosen


def _whole(layers: int, sizes: dict[str, int], name: str, index: int) -> int:
    """Convert layers to blocks."""
    if name not in sizes:
        raise input_error(f"unknown layer kind {name!r}", ", ".join(sizes), key=f"stages[{index}].kinds")
    blocks, rest = divmod(layers, sizes[name])
    if rest:
        raise input_error(
            f"{layers} layers of kind {name!r} cut a repeating block",
            f"a multiple of {sizes[name]}",
            key=f"stages[{index}]",
        )
    return blocks
