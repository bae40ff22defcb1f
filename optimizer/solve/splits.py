"""Stage splits: from the blocks that each rank holds to its chunks, its kinds and its recomputed blocks.

The chunks of one rank differ by at most one block and their order is fixed (``StageRule``), so the number of blocks of
every rank decides the whole split. All functions are vectorised over layouts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.frameworks.stage_rule import Split
from layoutopt.optimizer.space.stage_splits import boxes
from layoutopt.optimizer.space.stages import kinds_before

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from layoutopt.optimizer.cost.batch import IntArray
    from layoutopt.optimizer.cost.terms import StageTerms
    from layoutopt.optimizer.frameworks.stage_rule import StageLimit, StageRule
    from layoutopt.optimizer.space.stage_splits import Box


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRange:
    """Blocks that each rank may hold, in ``c`` alternatives that together cover every split of ``n`` layouts.

    ``row`` (c,) is the layout of an alternative; ``fewest`` and ``most`` are (c, P), zero beyond the layout's pp.
    """

    row: IntArray
    fewest: IntArray
    most: IntArray


def end_stages(terms: StageTerms, ranks: int) -> IntArray:
    """Return how many of the two ends, stages that may be empty, each rank holds, (n, ranks)."""
    rank, pp, folded = np.arange(ranks), terms.pp[:, None], terms.folded[:, None]
    apart = (pp > 1) & ((rank == 0) | (rank == pp - 1))
    ends: IntArray = np.where(folded, 2 * (rank == 0), apart)
    return ends


def fewest_blocks(terms: StageTerms, ranks: int) -> IntArray:
    """Return the fewest blocks of each rank, (n, ranks): one per chunk, none in the first and the last stage if pp > 1."""
    real = np.arange(ranks) < terms.pp[:, None]
    return np.where(real, terms.vp[:, None] - end_stages(terms, ranks), 0)


def fewest_in(vp: IntArray, folded: NDArray[np.bool_], pp: int) -> IntArray:
    """Return ``fewest_blocks`` of layouts that all have ``pp`` ranks, (n, pp)."""
    fewest = np.repeat(vp[:, None], pp, axis=1)
    fewest[:, 0] -= np.where(folded, 2, int(pp > 1))
    fewest[:, -1] -= np.where(folded, 0, int(pp > 1))
    return fewest


def split_ranges(terms: StageTerms, blocks: int, rule: StageRule) -> SplitRange:
    """Return the ranges of blocks per rank for models of ``blocks`` blocks."""
    ranks = terms.in_flight.shape[1]
    fewest = fewest_blocks(terms, ranks)
    row = np.arange(len(terms))
    if rule.split is Split.FREE:
        others = fewest.sum(axis=1, keepdims=True) - fewest
        # A rank may hold whatever the others leave at their fewest.
        found = SplitRange(row=row, fewest=fewest, most=(blocks - others) * _real(terms.pp, ranks))
    elif rule.split is Split.NEAR_EQUAL:
        found = _near_equal_ranges(terms, ranks, blocks, fewest)
    else:
        found = _listed_ranges(terms, ranks, blocks, rule)
    return _limited(found, terms, rule) if rule.limits else found


def _limited(ranges: SplitRange, terms: StageTerms, rule: StageRule) -> SplitRange:
    """Narrow ranges to the limits that the question sets; an empty range is a rank that nothing fits."""
    fewest, most = ranges.fewest.copy(), ranges.most.copy()
    for index, rank, limit in limited_ranks(terms, rule):
        concerned = np.zeros(len(terms), dtype=bool)
        concerned[index] = True
        place = np.flatnonzero(concerned[ranges.row])
        column = rank[ranges.row[place]]
        fewest[place, column] = np.maximum(fewest[place, column], limit.fewest)
        most[place, column] = np.minimum(most[place, column], limit.most)
    return SplitRange(row=ranges.row, fewest=fewest, most=most)


def limited_ranks(terms: StageTerms, rule: StageRule) -> Iterator[tuple[IntArray, IntArray, StageLimit]]:
    """Yield for each limit the layouts it concerns, the rank (n,) it means in each layout, and the limit.

    Folded pipelines may hold every stage twice, which terms don't tell: there no limit is claimed.
    """
    for limit in rule.limits:
        rank = np.where(limit.rank >= 0, limit.rank, terms.pp + limit.rank)
        yield np.flatnonzero((rank >= 0) & (rank < terms.pp) & ~terms.folded), rank, limit


def within_limits(totals: IntArray, terms: StageTerms, rule: StageRule) -> NDArray[np.bool_]:
    """Tell where the blocks of each rank, (n, P), keep to the limits that the question sets."""
    within = np.ones(len(totals), dtype=bool)
    for index, rank, limit in limited_ranks(terms, rule):
        held = totals[index, rank[index]]
        within[index] &= (limit.fewest <= held) & (held <= limit.most)
    return within


NEAR_MIDDLE = 6
"""Middle ranks this close to the mean, in blocks per chunk, get a range of their own; those further off share two."""


def _listed_ranges(terms: StageTerms, ranks: int, blocks: int, rule: StageRule) -> SplitRange:
    """Take the boxes of each shape; far from the mean their hulls stand for them, so that there are few."""
    row, least, most = [np.zeros(0, dtype=np.int64)], [np.zeros((0, ranks), dtype=np.int64)], []
    most.append(least[0])
    keys = np.stack([terms.pp, terms.vp, terms.folded], axis=1)
    shapes, inverse = np.unique(keys, axis=0, return_inverse=True)
    for shape, (pp, vp, folded) in enumerate(shapes.tolist()):
        members = np.flatnonzero(inverse.ravel() == shape)
        for low, high in _few(list(boxes(rule, pp, vp, blocks, folded=bool(folded))), blocks // pp, vp):
            row.append(members)
            least.append(np.tile(np.pad(low, (0, ranks - pp)), (len(members), 1)))
            most.append(np.tile(np.pad(high, (0, ranks - pp)), (len(members), 1)))
    order = np.argsort(np.concatenate(row), kind="stable")
    fewest, largest = np.concatenate(least)[order], np.concatenate(most)[order]
    return SplitRange(row=np.concatenate(row)[order], fewest=fewest, most=largest)


def _few(found: list[Box], mean: int, vp: int) -> list[Box]:
    """Group boxes by their second rank: near the mean each number alone, else smaller ones and larger ones together."""
    groups: dict[int, list[Box]] = {}
    for low, high in found:
        # With two ranks there is no middle one, and all splits are near.
        away = int(low[min(1, len(low) - 1)]) - mean if len(low) > 2 else 0
        groups.setdefault(int(np.clip(away, -(NEAR_MIDDLE + 1) * vp, (NEAR_MIDDLE + 1) * vp)), []).append(
            (low, high)
        )
    return [
        (np.min([low for low, _ in group], axis=0), np.max([high for _, high in group], axis=0))
        for group in groups.values()
    ]


def _real(pp: IntArray, ranks: int) -> NDArray[np.bool_]:
    return np.arange(ranks) < pp[:, None]


def _near_equal_ranges(terms: StageTerms, ranks: int, blocks: int, fewest: IntArray) -> SplitRange:
    """Enumerate the smallest inner stage ``a``: inner stages hold a or a+1 blocks, the first and the last a-1, a or a+1."""
    pp, vp, ends = terms.pp, terms.vp, end_stages(terms, ranks)
    stages = pp * vp
    # Rounded up, less one: the even split, or the one just below it.
    lowest = -(-blocks // stages) - 1
    parts = []
    for step in range(2):  # stages*a - 2 <= blocks <= stages*(a+1) has at most two solutions
        smallest = lowest + step
        end_less = (stages > 2).astype(np.int64)
        possible = (
            (stages * smallest - 2 * end_less <= blocks)
            & (blocks <= stages * (smallest + 1))
            & (smallest >= 0)
        )
        row = np.flatnonzero(possible)
        least = vp[row, None] * smallest[row, None] - ends[row] * end_less[row, None]
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

    def kinds(self, counts: IntArray, order: tuple[int, ...] = (), limit: IntArray | None = None) -> IntArray:
        """Return the blocks of each kind, (n, C, P, K), among the first ``limit`` blocks (broadcast) of every stage.

        ``counts`` (K,) are the model's blocks of each kind, ``order`` their kinds where these alternate.
        """
        size = self.size if limit is None else np.minimum(self.size, limit)
        if order:
            before = kinds_before(order, len(counts))
            held: IntArray = before[self.start + size] - before[self.start]
            return held
        ends = np.cumsum(counts)
        start, stop = self.start[..., None], (self.start + size)[..., None]
        shared: IntArray = np.maximum(np.minimum(stop, ends) - np.maximum(start, ends - counts), 0)
        return shared


def chunks(totals: IntArray, terms: StageTerms, *, in_step: bool = False) -> Chunks:
    """Cut the blocks of each rank, (n, P), into its chunks and lay them out in the order of the model.

    ``in_step``: where the split allows it, ranks at the ends keep step with those between them (``_in_step``).
    """
    pp, vp = terms.pp, terms.vp
    ranks, depth = totals.shape[1], int(vp.max(initial=1))
    chunk = np.arange(depth)[None, :, None]
    per_rank, width = totals[:, None, :], vp[:, None, None]
    # Chunks of a rank are equal to within one block (``StageRule``): the total decides them all.
    size, larger = per_rank // width, per_rank % width
    head_alone = (pp > 1) & ~terms.folded
    last = (np.arange(ranks) == pp[:, None, None] - 1) & head_alone[:, None, None]
    but_last = (chunk >= width - 1 - larger) & (chunk < width - 1)
    size = size + np.where(last, but_last, chunk >= width - larger)
    size = np.where((chunk < width) & _real(pp, ranks)[:, None, :], size, 0)
    size = _in_step(size, totals, terms) if in_step else size
    # Second chunks of a folded pipeline are passed from the last rank to the first.
    back = terms.folded[:, None, None] & (chunk == 1)
    ordered = np.where(back, size[:, :, ::-1], size)
    ends = np.cumsum(ordered.reshape(len(totals), -1), axis=1).reshape(size.shape)
    ends = np.where(back, ends[:, :, ::-1], ends)
    return Chunks(start=ends - size, size=size)


def _in_step(size: IntArray, totals: IntArray, terms: StageTerms) -> IntArray:
    """Give end ranks chunks as large as those of the fullest rank between them, and their end stage what is left.

    ``size`` (n, C, P) are chunks as equal as can be. Interleaved ranks wait for the slowest of each chunk, so that end
    stages that hold less, beside the embedding or the head, should be the only ones that differ.
    """
    pp, vp, row = terms.pp, terms.vp, np.arange(len(size))
    rank, chunk = np.arange(size.shape[2]), np.arange(size.shape[1])
    inner = (rank > 0) & (rank < pp[:, None] - 1)
    fullest = size[row, :, np.where(inner, totals, -1).argmax(axis=1)]
    able = inner.any(axis=1) & (vp > 1) & ~terms.folded
    result = size.copy()
    for end, stage in ((np.zeros_like(pp), np.zeros_like(vp)), (pp - 1, vp - 1)):
        place = chunk == stage[:, None]
        left = totals[row, end] - np.where(place, 0, fullest).sum(axis=1)
        own = np.where(place, left[:, None], fullest)
        fits = able & (left >= 0) & (left <= fullest[row, stage])
        result[row[fits], :, end[fits]] = own[fits]
    return result
