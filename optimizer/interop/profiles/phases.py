"""The phases of kernels whose launches are not known, by their names and order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.diagnose.parts import Activity, Phase
from layoutopt.optimizer.diagnose.terms import PARTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from layoutopt.optimizer.diagnose.kernels import KernelKind

    IntArray = NDArray[np.int64]


TWICE = 1.5
"""Forward over backward calls of attention from which layers count as recomputed: 1 without, 2 with full recomputation."""


def phases_by_name(
    device: dict[str, IntArray], kinds: Sequence[KernelKind], launch: IntArray, begun: IntArray
) -> IntArray:
    """Return phases (kernels,) from names that tell forward from backward; other kernels have the last such one's.

    That one is of the same step: ``launch`` (kernels,) is when the host launched each, -1 where that is not known and its
    own start counts, ``begun`` (steps,) when the host began each step. What stands before a step's first such kernel is
    forward.
    Where attention runs forward about twice for each time backward, every backward follows a repetition of its forward:
    the last forward that no other backward has taken.
    """
    order = np.argsort(device["start"], kind="stable")
    name = device["name"][order]
    stated = np.array([-1 if kind.phase is None else int(kind.phase) for kind in kinds], dtype=np.int64)
    stated[[kind.part is Activity.OPTIMIZER for kind in kinds]] = int(Phase.OPTIMIZER)
    mark = stated[name] if len(stated) else np.zeros(0, dtype=np.int64)
    # For every kernel the place of the last one before it whose name tells.
    seen = np.maximum.accumulate(np.where(mark >= 0, np.arange(len(mark)), 0))
    step = np.searchsorted(begun, np.where(launch >= 0, launch, device["start"])[order], side="right")
    found = np.where(step[seen] == step, np.maximum(mark[seen], int(Phase.FORWARD)), int(Phase.FORWARD))
    fused = np.array([kind.part is Activity.ATTENTION for kind in kinds], dtype=bool)
    again = _repeated(found, mark, fused[name])
    phases = np.empty(len(found), dtype=np.int64)
    phases[order] = np.where(again, int(Phase.RECOMPUTE), found)
    return phases


def in_optimizer(phase: IntArray, part: IntArray) -> IntArray:
    """Return phases (n,) in which the optimizer's kernels, norms too, are its own wherever they were launched."""
    mine: IntArray = np.where(part == PARTS.index(Activity.OPTIMIZER), int(Phase.OPTIMIZER), phase)
    return mine


def _repeated(found: IntArray, mark: IntArray, attention: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Tell which kernels of the forward pass are repeated: of each run of forwards the share that its attention is."""
    forward, backward = attention & (mark == Phase.FORWARD), attention & (mark == Phase.BACKWARD)
    again = np.zeros(len(found), dtype=bool)
    if not backward.any() or forward.sum() < TWICE * backward.sum():
        return again
    taken = _taken(forward, backward)
    runs = np.cumsum(np.concatenate([[0], np.diff((found == Phase.FORWARD).astype(np.int64)) != 0]))
    for run in np.unique(runs[taken]):
        mine = np.flatnonzero((runs == run) & (found == Phase.FORWARD))
        # A run may hold layers of both kinds: a pass forward that goes over into the first repetition. That comes last.
        share = taken[mine].sum() / forward[mine].sum()
        again[mine[len(mine) - round(share * len(mine)) :]] = True
    return again


def _taken(forward: NDArray[np.bool_], backward: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Tell which forwards are the last open ones before a backward."""
    taken, open_ones = np.zeros(len(forward), dtype=bool), list[int]()
    for place in np.flatnonzero(forward | backward).tolist():
        if forward[place]:
            open_ones.append(place)
        elif open_ones:
            taken[open_ones.pop()] = True
    return taken
