"""The phases of kernels whose launches are not known, by their names and order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.diagnose.parts import Part, Phase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from layoutopt.optimizer.diagnose.kernels import KernelKind

    IntArray = NDArray[np.int64]


def phases_by_name(device: dict[str, IntArray], kinds: Sequence[KernelKind]) -> IntArray:
    """Return phases from names that tell forward from backward; other kernels have the phase of the last one that does.

    A forward kernel between two backward ones that has no backward kernel of its own yet is recomputation: of every kind of
    kernel the calls in forward are counted, and those beyond one per backward call repeat it.
    """
    order = np.argsort(device["start"], kind="stable")
    name = device["name"][order]
    stated = np.array([-1 if kind.phase is None else int(kind.phase) for kind in kinds], dtype=np.int64)
    stated[[place for place, kind in enumerate(kinds) if kind.part is Part.OPTIMIZER]] = int(Phase.OPTIMIZER)
    mark = stated[name] if len(stated) else np.zeros(0, dtype=np.int64)
    seen = np.maximum.accumulate(np.where(mark >= 0, np.arange(len(mark)), 0))
    found = np.maximum(mark[seen], int(Phase.FORWARD))
    again = _repeated(found, mark, [kinds[one].part for one in name.tolist()])
    phases = np.empty(len(found), dtype=np.int64)
    phases[order] = np.where(again, int(Phase.RECOMPUTE), found)
    return phases


def _repeated(found: IntArray, mark: IntArray, parts: Sequence[Part | None]) -> NDArray[np.bool_]:
    """Tell which stretches of forward kernels repeat attention that was run before."""
    attention = np.array([part is Part.ATTENTION for part in parts], dtype=bool)
    forward, backward = attention & (mark == Phase.FORWARD), attention & (mark == Phase.BACKWARD)
    total_forward, total_backward = int(forward.sum()), int(backward.sum())
    if not total_backward or total_forward < 1.5 * total_backward:
        return np.zeros(len(found), dtype=bool)
    # a repeated forward comes right before its backward: in each run of forwards the last one before a backward
    runs = np.cumsum(np.concatenate([[0], np.diff((found == Phase.BACKWARD).astype(np.int64)) != 0]))
    count = np.bincount(runs, weights=forward, minlength=int(runs.max()) + 1)
    follows = np.bincount(runs, weights=backward, minlength=len(count))
    after = np.concatenate([follows[1:], [0.0]])
    before = np.concatenate([[0.0], follows[:-1]])
    between = (count > 0) & (after > 0) & (before > 0) & (count <= after + 0.5)
    again: NDArray[np.bool_] = between[runs] & (found == Phase.FORWARD)
    return again
