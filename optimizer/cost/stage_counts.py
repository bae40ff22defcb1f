"""From a layout's list of virtual stages to block counts per distinct rank and kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.schedules import seats
from layoutopt.optimizer.specs.errors import input_error
from layoutopt.optimizer.specs.stage_split import model_order

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from layoutopt.optimizer.specs.layout import Layout, VirtualStage
    from layoutopt.optimizer.specs.model import ModelSpec

    IntArray = NDArray[np.int64]


def rank_blocks(layout: Layout, model: ModelSpec) -> tuple[IntArray, IntArray]:
    """Return (blocks, recomputed blocks), each (distinct ranks, K), summed over a rank's virtual stages.

    Raises InputError when a stage names an unknown kind.
    """
    blocks, recomputed = seat_blocks(layout, model)
    return blocks.sum(axis=0), recomputed.sum(axis=0)


def seat_blocks(layout: Layout, model: ModelSpec) -> tuple[IntArray, IntArray]:
    """Return (blocks, recomputed blocks) by chunk, distinct rank and kind, each (V, P, K).

    Raises InputError when a stage names an unknown kind.
    """
    seat = seats(layout.schedule, layout.pp, layout.vp)
    blocks, recomputed = stage_blocks(layout, model)
    return blocks[seat], recomputed[seat]


def stage_blocks(layout: Layout, model: ModelSpec) -> tuple[IntArray, IntArray]:
    """Return (blocks, recomputed blocks) of every entry of the stage list, each (pp*vp, K).

    Stages hold the model's layers one after another, as tokens pass them. Raises InputError when a stage names an unknown
    kind, or when the list doesn't hold the model.
    """
    blocks = np.zeros((len(layout.stages), len(model.runs)), dtype=np.int64)
    recomputed = np.zeros_like(blocks)
    kinds = layer_kinds(model)
    done = 0
    for entry in model_order(layout.pp, layout.vp, layout.schedule):
        stage = layout.stages[entry]
        held = kinds[done : done + stage.layers]
        blocks[entry] = np.bincount(held, minlength=len(model.runs))
        recomputed[entry] = _recomputed(stage, model, held, entry)
        done += stage.layers
    if done != len(kinds):
        raise input_error(f"stages hold {done} layers, the model has {len(kinds)}", key="stages")
    return blocks, recomputed


def layer_kinds(model: ModelSpec) -> IntArray:
    """Return the kind of every layer, (layers,), of a model whose runs are kinds (``by_layer``)."""
    if model.order:
        return np.array(model.order, dtype=np.int64)
    return np.repeat(np.arange(len(model.runs)), [run.count for run in model.runs])


def _recomputed(stage: VirtualStage, model: ModelSpec, held: IntArray, entry: int) -> IntArray:
    """Recomputed blocks of each kind: as the stage says, else its first ones."""
    if not stage.recomputed_kinds:
        # Megatron-LM's method ``block`` recomputes from a chunk's first layer on (transformer_block.py).
        return np.bincount(held[: stage.recomputed], minlength=len(model.runs))
    own = np.bincount(held, minlength=len(model.runs))
    names = [run.name for run in model.runs]
    result = np.array([stage.recomputed_kinds.get(name, 0) for name in names], dtype=np.int64)
    wrong = [name for name, again, most in zip(names, result, own, strict=True) if again > most]
    wrong += [name for name, again in stage.recomputed_kinds.items() if again and name not in names]
    if wrong:
        raise input_error(
            f"can't recompute {stage.recomputed_kinds[wrong[0]]} layers of kind {wrong[0]!r}",
            f"layers of {', '.join(names)} that the stage holds",
            key=f"stages[{entry}]",
        )
    return result
