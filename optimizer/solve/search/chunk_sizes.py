"""Numbers of blocks of ranks and their chunks: which complete a model, and how they may be shared out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from layoutopt.optimizer.cost.terms import IntArray

    Mask = NDArray[np.bool_]


class Unlisted(Exception):
    """The options of a tuple's ranks can't be listed."""


def closed(allowed: Mask, total: int) -> Mask | None:
    """Keep the totals (P, blocks + 1) that the other ranks' totals complete to the model; None where there are none."""
    held = np.arange(total + 1)
    # What is ruled out on one rank may rule out more on the others.
    while allowed.any(axis=1).all():
        low, high = allowed.argmax(axis=1), total - allowed[:, ::-1].argmax(axis=1)
        fewest = total - (high.sum() - high)
        most = total - (low.sum() - low)
        kept: Mask = allowed & (held >= fewest[:, None]) & (held <= most[:, None])
        if (kept == allowed).all():
            return kept
        allowed = kept
    return None


def balanced(chunks: int, totals: IntArray) -> IntArray:
    """Return balanced chunks (o, chunks) of the totals that have at least one block for each."""
    totals = totals[totals >= chunks]
    least, larger = np.divmod(totals, max(chunks, 1))
    sizes: IntArray = least[:, None] + (np.arange(chunks) >= chunks - larger[:, None])
    return sizes


def with_end(chunks: int, totals: IntArray, *, first: bool) -> IntArray:
    """Cut totals (n,) where the first or last chunk may hold any fewer and at most one more than the least other, (m, V)."""
    if chunks == 1:
        return totals[:, None]
    end = np.arange(int(totals.max(initial=0)) // chunks + 2)
    rest = totals[:, None] - end
    row, column = np.nonzero((rest >= chunks - 1) & (end <= rest // (chunks - 1) + 1))
    inner, own = balanced(chunks - 1, rest[row, column]), end[column][:, None]
    return np.concatenate((own, inner) if first else (inner, own), axis=1)


def shares(number: int, room: IntArray, alike: IntArray, most: int) -> list[IntArray]:
    """List the ways to take so many blocks from chunks (V,) with some room, those of like chunks from the first on.

    Raises ``Unlisted`` for more than ``most``.
    """
    groups = [np.flatnonzero(alike == group) for group in np.unique(alike)]
    behind = np.cumsum([0, *(int(room[group].sum()) for group in groups[::-1])])[-2::-1]
    found = [(np.zeros_like(room), number)]
    for group, later in zip(groups, behind.tolist(), strict=True):
        held = int(room[group].sum())
        before = np.cumsum(room[group]) - room[group]
        grown = []
        for share, left in found:
            for taken in range(max(left - later, 0), min(left, held) + 1):
                more = share.copy()
                more[group] = np.clip(taken - before, 0, room[group])
                grown.append((more, left - taken))
        if len(grown) > most:
            raise Unlisted
        found = grown
    return [share for share, _ in found]
