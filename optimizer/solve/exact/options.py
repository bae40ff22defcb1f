"""What one pipeline rank may hold: numbers of blocks by kind, with their time, for the exact stage problem.

Blocks are contiguous over virtual stages in chunk-major order, so the kinds on a rank depend on where each
kind ends. For every kind but the last, its *cut*, fix the chunk that holds its last block. Then a rank is in
one of three relations to the cut, which decides how many blocks of the kinds up to the cut it has: those of
all earlier chunks, and of the cut's own chunk all (the cut comes at a later rank), some (here), or none (it
came at an earlier rank). A rank's time and memory depend on nothing else: each option is priced once.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from layoutopt.optimizer.solve.exact.row import StageRow, bytes_used, least_recompute, time_taken

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from layoutopt.optimizer.cost.terms import FloatArray, IntArray

LATER, HERE, EARLIER = 0, 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """``n`` options of all ranks, by rank.

    ``cumulative`` (n, K) are the blocks of the kinds up to and including k, ``blocks`` and ``recomputed``
    (n, K) those of each kind. ``needs`` and ``leaves`` are bit sets of the cuts passed before and after it.
    """

    rank: IntArray
    needs: IntArray
    leaves: IntArray
    cumulative: IntArray
    blocks: IntArray
    recomputed: IntArray
    time_s: FloatArray

    def take(self, index: NDArray[Any]) -> Options:
        """Return the options selected by an index or mask array."""
        return replace(self, **{f.name: getattr(self, f.name)[index] for f in fields(self)})


def stage_options(
    row: StageRow, low: IntArray, high: IntArray, count: int | None, cuts: tuple[int, ...], limit_s: float
) -> Options:
    """List what each rank may hold with ``low`` to ``high`` (P,) blocks, in memory and within ``limit_s``.

    ``count`` blocks of each chunk are recomputed, or the quickest set that fits when it is None. ``cuts`` are
    the chunks that hold the last block of each kind but the last.
    """
    width = high - low + 1
    rank = np.repeat(np.arange(row.ranks), width)
    held = np.arange(len(rank)) - np.repeat(np.cumsum(width) - width - low, width)
    sizes = row.chunk_sizes(rank, held)
    which, relation, part = _cross(sizes, cuts)
    rank, held, sizes = rank[which], held[which], sizes[which]
    cumulative = _up_to_cuts(sizes, cuts, part, held)
    blocks = np.diff(cumulative, axis=1, prepend=0)
    if count is None:
        recomputed, fits = _free_recompute(row, rank, blocks, limit_s)
    else:
        capped = np.minimum(sizes, count)
        recomputed = np.diff(
            _up_to_cuts(capped, cuts, np.minimum(part, count), capped.sum(axis=1)), axis=1, prepend=0
        )
        fits = bytes_used(row, rank, blocks, recomputed) <= row.capacity_bytes
    time = time_taken(row, rank, blocks, recomputed)
    bits = 1 << np.arange(len(cuts))
    # Where chunks run back, a rank's stage lies behind those of later ranks.
    back = np.array([row.folded and chunk == 1 for chunk in cuts], dtype=bool)
    options = Options(
        rank=rank,
        needs=np.where(back, relation == LATER, relation == EARLIER) @ bits,
        leaves=np.where(back, relation != EARLIER, relation != LATER) @ bits,
        cumulative=cumulative,
        blocks=blocks,
        recomputed=recomputed,
        time_s=time,
    )
    return options.take(fits & (time <= limit_s))


def _free_recompute(
    row: StageRow, rank: IntArray, blocks: IntArray, limit_s: float
) -> tuple[IntArray, NDArray[np.bool_]]:
    """Find the quickest recomputation once for each different content that can meet the limit."""
    meets = np.flatnonzero(time_taken(row, rank, blocks, np.zeros_like(blocks)) <= limit_s)
    recomputed, fits = np.zeros_like(blocks), np.zeros(len(blocks), dtype=bool)
    if blocks.shape[1] == 1:
        recomputed[meets], fits[meets] = least_recompute(row, rank[meets], blocks[meets])
        return recomputed, fits
    content, which = np.unique(np.column_stack([rank[meets], blocks[meets]]), axis=0, return_inverse=True)
    chosen, works = least_recompute(row, content[:, 0], content[:, 1:])
    recomputed[meets], fits[meets] = chosen[which], works[which]
    return recomputed, fits


def _cross(sizes: IntArray, cuts: tuple[int, ...]) -> tuple[IntArray, IntArray, IntArray]:
    """Combine every rank's sizes (n, V) with every relation to the cuts.

    Returns the row of ``sizes`` (m,), the relation and the blocks of the cut's own chunk up to it (m, cuts).
    """
    which = np.arange(len(sizes))
    relation = np.zeros((len(sizes), 0), dtype=np.int64)
    part = np.zeros((len(sizes), 0), dtype=np.int64)
    for position, chunk in enumerate(cuts):
        size = sizes[which, chunk]
        source = np.repeat(np.arange(len(which)), size + 2)
        step = np.arange(len(source)) - np.repeat(np.cumsum(size + 2) - (size + 2), size + 2)
        size = size[source]
        here = np.where(step == 0, LATER, np.where(step <= size, HERE, EARLIER))
        blocks = np.where(here == LATER, size, np.where(here == HERE, step, 0))
        which = which[source]
        relation = np.column_stack([relation[source], here])
        part = np.column_stack([part[source], blocks])
        if position and cuts[position - 1] == chunk:
            keep = _in_order(relation[:, -2:], part[:, -2:])
            which, relation, part = which[keep], relation[keep], part[keep]
    return which, relation, part


def _in_order(relation: IntArray, part: IntArray) -> NDArray[np.bool_]:
    """Tell where two cuts of one chunk come in the order of their kinds, with a block between them."""
    together = (relation == HERE).all(axis=1)
    ordered: NDArray[np.bool_] = relation[:, 0] >= relation[:, 1]
    ordered &= ~together | (part[:, 0] < part[:, 1])
    return ordered


def _up_to_cuts(sizes: IntArray, cuts: tuple[int, ...], part: IntArray, total: IntArray) -> IntArray:
    """Return the blocks (n, K) of the kinds up to each cut, and all of them."""
    columns = [sizes[:, :chunk].sum(axis=1) + part[:, a] for a, chunk in enumerate(cuts)]
    return np.stack([*columns, total], axis=1)
