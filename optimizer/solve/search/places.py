"""Where the chunks of ranks start in a stack whose kinds alternate: what a rank holds depends on all of these places.

A place, after some ranks, is the next block of every chunk. On the first rank chunk c starts where chunk c - 1 ends on the
last one, which is not known yet: every way that the ranks' sizes leave is tried, and what ends elsewhere is dropped.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.solve.search.chunk_sizes import Unlisted
from layoutopt.optimizer.space.stages import kinds_before

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutopt.optimizer.cost.terms import FloatArray, IntArray

MOST_PLACES = 4_000
"""Ways in which chunks may start on the first rank; a tuple with more is left to the solver."""

MOST_PAIRS = 1_000_000
"""Places times sizes of one rank that are looked at."""


@dataclass(frozen=True, slots=True)
class Steps:
    """The ways through one rank: sizes and first blocks of its chunks, (o, V), and the places before and after, (o,)."""

    sizes: IntArray
    start: IntArray
    place: IntArray
    reached: IntArray


class Walk:
    """The places that ranks reach one after another; ``sizes`` are the chunk sizes (o, V) that every rank may have.

    Raises ``Unlisted``.
    """

    def __init__(self, sizes: Sequence[IntArray], blocks: int, *, folded: bool) -> None:
        self._sizes, self._folded = sizes, folded
        fewest, most = (np.array([pick(own, axis=0) for own in sizes]) for pick in (np.min, np.max))
        # of all ranks after each one, (P, V)
        self._fewest = fewest[::-1].cumsum(axis=0)[::-1] - fewest
        self._most = most[::-1].cumsum(axis=0)[::-1] - most
        if folded:  # the second chunk is laid out from the end on
            self._at, self._goal = np.array([[0, blocks]]), np.zeros((1, 2), dtype=np.int64)
        else:
            self._goal = _ends(fewest.sum(axis=0), most.sum(axis=0), blocks)
            self._at = np.concatenate([np.zeros_like(self._goal[:, :1]), self._goal[:, :-1]], axis=1)

    def steps(self, rank: int) -> Steps:
        """List the ways through a rank from the places reached so far that the other ranks can complete.

        Raises ``Unlisted`` for too many pairs.
        """
        sizes = self._sizes[rank]
        if len(self._at) * len(sizes) > MOST_PAIRS:
            raise Unlisted
        place, way = (axis.ravel() for axis in np.indices((len(self._at), len(sizes))))
        at, own = self._at[place], sizes[way]
        if self._folded:
            start = np.stack([at[:, 0], at[:, 1] - own[:, 1]], axis=1)
            moved = np.stack([at[:, 0] + own[:, 0], start[:, 1]], axis=1)
            left = (moved[:, 1] - moved[:, 0])[:, None]
            fewest, most = self._fewest[rank].sum(), self._most[rank].sum()
        else:
            start, moved = at, at + own
            left, fewest, most = self._goal[place] - moved, self._fewest[rank], self._most[rank]
        kept = ((left >= fewest) & (left <= most)).all(axis=1)
        place, moved = place[kept], moved[kept]
        rows = np.concatenate([moved, self._goal[place]], axis=1)
        if rank == len(self._sizes) - 1:  # all ends are the end
            rows = np.zeros_like(rows)
        reached, inverse = np.unique(rows, axis=0, return_inverse=True)
        width = moved.shape[1]
        self._at, self._goal = reached[:, :width], reached[:, width:]
        return Steps(own[kept], start[kept], place, inverse.ravel())

    def keep(self, places: IntArray) -> None:
        """Go on from some of the places reached alone, by their positions (k,)."""
        self._at, self._goal = self._at[places], self._goal[places]


def _ends(fewest: IntArray, most: IntArray, blocks: int) -> IntArray:
    """List where every chunk may end on the last rank, (n, V), its blocks on all ranks being in a range."""
    found = np.zeros((1, 0), dtype=np.int64)
    for chunk, (low, high) in enumerate(zip(fewest, most, strict=True)):
        before = found[:, -1] if chunk else np.zeros(1, dtype=np.int64)
        row, more = (axis.ravel() for axis in np.indices((len(found), high - low + 1)))
        end = before[row] + low + more
        left = blocks - end
        kept = (left >= fewest[chunk + 1 :].sum()) & (left <= most[chunk + 1 :].sum())
        found = np.concatenate([found[row[kept]], end[kept][:, None]], axis=1)
        if len(found) > MOST_PLACES:
            raise Unlisted
    return found


def kinds_at(order: tuple[int, ...], kinds: int, start: IntArray, sizes: IntArray) -> IntArray:
    """Return the blocks of each kind, (..., K), of stages that start at some block."""
    before = kinds_before(order, kinds)
    held: IntArray = before[start + sizes] - before[start]
    return held


def least_in_a_row(order: tuple[int, ...], seconds: FloatArray) -> FloatArray:
    """Return the least seconds of so many blocks in a row, (n, blocks + 1); ``seconds`` (n, K) are those of one."""
    least: FloatArray = (seconds @ _in_a_row(order, seconds.shape[-1])).min(axis=0)
    return least


@lru_cache(maxsize=8)
def _in_a_row(order: tuple[int, ...], kinds: int) -> IntArray:
    """Return the blocks of each kind in all rows of so many blocks, (w, K, blocks + 1), those alike once."""
    before = kinds_before(order, kinds)
    blocks = len(order)
    ways = [np.unique(before[size:] - before[: blocks + 1 - size], axis=0) for size in range(blocks + 1)]
    # of shorter lists the first is repeated
    found = np.empty((max(map(len, ways)), kinds, blocks + 1), dtype=np.int64)
    for size, way in enumerate(ways):
        found[:, :, size] = way[0]
        found[: len(way), :, size] = way
    return found


def ways_from(state: IntArray, start: IntArray) -> tuple[IntArray, IntArray]:
    """Pair states (m,), by where their next rank starts, with its options (o,), each with all of its own in their order."""
    order = np.argsort(start, kind="stable")
    first, behind = (np.searchsorted(start[order], state, side=side) for side in ("left", "right"))
    ways = behind - first
    source = np.repeat(np.arange(len(state)), ways)
    place = np.arange(len(source)) - np.repeat(np.cumsum(ways) - ways, ways) + first[source]
    return source, order[place]
