"""Stage splits: from the blocks that each rank holds to its chunks, its kinds and its recomputed blocks.

The chunks of one rank differ by at most one block and their order is fixed (``StageRule``), so the number of blocks of
every rank decides the whole split. All functions are vectorised over layouts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.space.stage_rule import Split

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from layoutopt.optimizer.cost.batch import IntArray
    from layoutopt.optimizer.space.stage_rule import StageRule


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRange:
    """Blocks that each rank may hold, in ``c`` alternatives that together cover every split of ``n`` layouts.

    ``row`` (c,) is the layout of an alternative; ``fewest`` and ``most`` are (c, P), zero beyond the layout's pp.
    """

    row: IntArray
    fewest: IntArray
    most: IntArray


def fewest_blocks(pp: IntArray, vp: IntArray, ranks: int) -> IntArray:
    """Return the fewest blocks of each rank, (n, ranks): one per chunk, none in the first and the last stage if pp > 1."""
    rank = np.arange(ranks)
    pp, vp = pp[:, None], vp[:, None]
    at_end = (pp > 1) & ((rank == 0) | (rank == pp - 1))
    return np.where(rank < pp, vp - at_end, 0)


def split_ranges(pp: IntArray, vp: IntArray, ranks: int, blocks: int, rule: StageRule) -> SplitRange:
    """Return the ranges of blocks per rank for models of ``blocks`` blocks."""
    fewest = fewest_blocks(pp, vp, ranks)
    row = np.arange(len(pp))
    if rule.split is Split.FREE:
        others = fewest.sum(axis=1, keepdims=True) - fewest
        return SplitRange(row=row, fewest=fewest, most=(blocks - others) * _real(pp, ranks))
    return _near_equal_ranges(pp, vp, ranks, blocks, fewest)


def _real(pp: IntArray, ranks: int) -> NDArray[np.bool_]:
    return np.arange(ranks) < pp[:, None]


def _near_equal_ranges(pp: IntArray, vp: IntArray, ranks: int, blocks: int, fewest: IntArray) -> SplitRange:
    """Enumerate the smallest inner stage ``a``: inner stages hold a or a+1 blocks, the first and the last a-1, a or a+1."""
    stages = pp * vp
    lowest = -(-blocks // stages) - 1
    parts = []
    for step in range(2):  # stages*a - 2 <= blocks <= stages*(a+1) has at most two solutions
        smallest = lowest + step
        end_less = (stages > 2).astype(np.int64)
        possible = (stages * smallest - 2 * end_less <= blocks) & (blocks <= stages * (smallest + 1)) & (smallest >= 0)
        row = np.flatnonzero(possible)
        rank = np.arange(ranks)
        at_end = (rank == 0) | (rank == pp[row, None] - 1)
        least = vp[row, None] * smallest[row, None] - at_end * end_less[row, None] * (pp[row, None] > 1)
        real = _real(pp[row], ranks)
        most = np.where(real, vp[row, None] * (smallest[row, None] + 1), 0)
        parts.append((row, np.where(real, np.maximum(least, fewest[row]), 0), most))
    row, least, most = (np.concatenate([part[i] for part in parts]) for i in range(3))
    order = np.argsort(row, kind="stable")
    return SplitRange(row=row[order], fewest=least[order], most=most[order])


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunks:
    """Half-open block ranges of every virtual stage, (n, C, P) with C the largest vp; empty beyond vp and pp."""

    start: IntArray
    size: IntArray

    def kinds(self, counts: IntArray, limit: IntArray | None = None) -> IntArray:
        """Return the blocks of each kind, (n, C, P, K), among the first ``limit`` blocks (broadcast) of every stage."""
        size = self.size if limit is None else np.minimum(self.size, limit)
        ends = np.cumsum(counts)
        start, stop = self.start[..., None], (self.start + size)[..., None]
        return np.maximum(np.minimum(stop, ends) - np.maximum(start, ends - counts), 0)


def chunks(totals: IntArray, pp: IntArray, vp: IntArray) -> Chunks:
    """Cut the blocks of each rank, (n, P), into its chunks and lay them out chunk-major."""
    ranks, depth = totals.shape[1], int(vp.max(initial=1))
    chunk = np.arange(depth)[None, :, None]
    per_rank, width = totals[:, None, :], vp[:, None, None]
    size, larger = per_rank // width, per_rank % width
    last = np.arange(ranks) == pp[:, None, None] - 1
    size = size + np.where(last, chunk < larger, chunk >= width - larger)
    size = np.where((chunk < width) & _real(pp, ranks)[:, None, :], size, 0)
    ends = np.cumsum(size.reshape(len(totals), -1), axis=1).reshape(size.shape)
    return Chunks(start=ends - size, size=size)


def obeys_near_equal(sizes: IntArray, pp: IntArray, vp: IntArray) -> NDArray[np.bool_]:
    """Tell which chunk sizes, (n, C, P), keep to ``Split.NEAR_EQUAL``."""
    depth, ranks = sizes.shape[1:]
    stage = np.arange(depth)[:, None] * pp[:, None, None] + np.arange(ranks)
    real = (np.arange(ranks) < pp[:, None, None]) & (np.arange(depth)[:, None] < vp[:, None, None])
    final = (pp * vp - 1)[:, None, None]
    at_end = (stage == 0) | (stage == final)
    inner = real & ~(at_end & (final > 1))
    big = np.iinfo(np.int64).max
    least = np.where(inner, sizes, big).min(axis=(1, 2))
    most = np.where(real, sizes, 0).max(axis=(1, 2))
    inner_most = np.where(inner, sizes, 0).max(axis=(1, 2))
    least_end = np.where(real & at_end, sizes, big).min(axis=(1, 2))
    near = (most <= least + 1) & (inner_most <= least + 1)
    return near & (least_end >= least - 1)
