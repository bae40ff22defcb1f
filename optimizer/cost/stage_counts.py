"""From a layout's list of virtual stages to block counts per distinct rank and kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.schedules import seats
from layoutopt.optimizer.specs.errors import input_error
from layoutopt.optimizer.specs.stage_split import model_order

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from layoutopt.optimizer.specs.errors import InputError
    from layoutopt.optimizer.specs.layout import Layout, VirtualStage
    from layoutopt.optimizer.specs.model import ModelSpec

    IntArray = NDArray[np.int64]


def rank_blocks(layout: Layout, model: ModelSpec) -> tuple[IntArray, IntArray]:
    """Return (blocks, recomputed blocks), each (distinct ranks, K), summed over a rank's virtual stages.

    Raises InputError when a stage cuts a block or names an unknown kind.
    """
    blocks, recomputed = seat_blocks(layout, model)
    return blocks.sum(axis=0), recomputed.sum(axis=0)


def seat_blocks(layout: Layout, model: ModelSpec) -> tuple[IntArray, IntArray]:
    """Return (blocks, recomputed blocks) by chunk, distinct rank and kind, each (V, P, K).

    Raises InputError when a stage cuts a block or names an unknown kind.
    """
    seat = seats(layout.schedule, layout.pp, layout.vp)
    blocks, recomputed = stage_blocks(layout, model)
    return blocks[seat], recomputed[seat]


def stage_blocks(layout: Layout, model: ModelSpec) -> tuple[IntArray, IntArray]:
    """Return (blocks, recomputed blocks) of every entry of the stage list, each (pp*vp, K).

    Stages hold the model's layers one after another, as tokens pass them. Raises InputError when a stage cuts a block
    or names an unknown kind, or when the list doesn't hold the model.
    """
    blocks = np.zeros((len(layout.stages), len(model.runs)), dtype=np.int64)
    recomputed = np.zeros_like(blocks)
    ends = block_ends(model)
    kinds = np.repeat(np.arange(len(model.runs)), [run.count for run in model.runs])
    start = done = 0
    for entry in model_order(layout.pp, layout.vp, layout.schedule):
        stage = layout.stages[entry]
        stop = int(np.searchsorted(ends, done + stage.layers))
        if stop >= len(ends) or ends[stop] != done + stage.layers:
            raise _cut(done + stage.layers, ends, entry)
        blocks[entry] = np.bincount(kinds[start:stop], minlength=len(model.runs))
        recomputed[entry] = _recomputed(stage, model, kinds[start:stop], ends[start : stop + 1] - done, entry)
        start, done = stop, done + stage.layers
    if start != len(kinds):
        raise input_error(f"stages hold {done} layers, the model has {model.layers}", key="stages")
    return blocks, recomputed


def block_ends(model: ModelSpec) -> IntArray:
    """Return the layers before each block and behind the last, (blocks + 1,)."""
    sizes = [np.full(run.count, len(run.block), dtype=np.int64) for run in model.runs]
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(np.concatenate(sizes))])


def cuts_blocks(layout: Layout, model: ModelSpec) -> bool:
    """Whether a stage ends inside a repeating block, or recomputes a part of one."""
    if all(len(run.block) == 1 for run in model.runs):
        return False
    order = model_order(layout.pp, layout.vp, layout.schedule)
    cuts = np.cumsum([layout.stages[entry].layers for entry in order])
    starts = cuts - [layout.stages[entry].layers for entry in order]
    again = starts + [
        0 if layout.stages[entry].recomputed_kinds else layout.stages[entry].recomputed for entry in order
    ]
    ends = block_ends(model)
    return not (np.isin(cuts, ends).all() and np.isin(again, ends).all())


def _recomputed(
    stage: VirtualStage, model: ModelSpec, held: IntArray, ends: IntArray, entry: int
) -> IntArray:
    """Recomputed blocks of each kind: as the stage says, else its first ones."""
    if not stage.recomputed_kinds:
        number = int(np.searchsorted(ends, stage.recomputed))
        if number >= len(ends) or ends[number] != stage.recomputed:
            raise _cut(stage.recomputed, ends, entry)
        return np.bincount(held[:number], minlength=len(model.runs))
    left, result = dict(stage.recomputed_kinds), np.zeros(len(model.runs), dtype=np.int64)
    for kind, run in enumerate(model.runs):
        own = int((held == kind).sum())
        result[kind] = min(left.get(run.name, 0) // len(run.block), own)
        left[run.name] = left.get(run.name, 0) - int(result[kind]) * len(run.block)
    wrong = [name for name, layers in left.items() if layers]
    if wrong:
        names = ", ".join(dict.fromkeys(run.name for run in model.runs))
        raise input_error(
            f"can't recompute {stage.recomputed_kinds[wrong[0]]} layers of kind {wrong[0]!r}",
            f"whole blocks of {names} that the stage holds",
            key=f"stages[{entry}]",
        )
    return result


def _cut(layers: int, ends: IntArray, entry: int) -> InputError:
    above = min(int(np.searchsorted(ends, layers)), len(ends) - 1)
    return input_error(
        f"{layers} layers cut a repeating block",
        f"{ends[max(above - 1, 0)]} or {ends[above]} layers",
        key=f"stages[{entry}]",
    )
