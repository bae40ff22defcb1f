"""How many layouts a space holds, stages included."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from math import comb
from typing import TYPE_CHECKING, Protocol

import numpy as np

from layoutopt.optimizer.solve.exact_stages import boxes
from layoutopt.optimizer.space.stage_rule import Recomputation, Split, StageRule
from layoutopt.optimizer.specs.vocabulary import Granularity

if TYPE_CHECKING:
    from collections.abc import Mapping

    from layoutopt.optimizer.cost.batch import LayoutBatch
    from layoutopt.optimizer.cost.terms import IntArray


class Space(Protocol):
    """The part of a space of layouts that can be counted without prices."""

    @property
    def degrees(self) -> LayoutBatch:
        """Valid degree rows."""

    @property
    def counts(self) -> IntArray:
        """Blocks of each kind, shape (K,)."""

    @property
    def rule(self) -> StageRule:
        """Which splits and which recomputation are allowed."""

    def expand(self, rows: LayoutBatch) -> tuple[LayoutBatch, IntArray]:
        """All tuples of degree rows, and the position of each one's degree row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceSize:
    """Numbers of degree rows, of tuples (layouts without stages), and of layouts with stages, at least."""

    degree_rows: int
    tuples: int
    joint_assignments: int


def space_size(space: Space, *, chunk: int = 16384) -> SpaceSize:
    """Count a space, expanding ``chunk`` degree rows at a time."""
    shapes: Counter[tuple[int, int, bool]] = Counter()
    for start in range(0, len(space.degrees), chunk):
        rows = np.arange(start, min(start + chunk, len(space.degrees)))
        batch, _ = space.expand(space.degrees.take(rows))
        full = np.array([entry.granularity is Granularity.FULL for entry in batch.codebook.recomputes])
        # One integer per shape: counting distinct rows of a table takes several times as long.
        keys = (batch.pp * 2**20 + batch.vp) * 2 + full[batch.recompute]
        values, numbers = np.unique(keys, return_counts=True)
        for key, number in zip(values.tolist(), numbers.tolist(), strict=True):
            shapes[key >> 21, (key >> 1) % 2**20, bool(key & 1)] += number
    return size_of_shapes(shapes, len(space.degrees), int(np.sum(space.counts)), space.rule)


def size_of_shapes(
    shapes: Mapping[tuple[int, int, bool], int], degree_rows: int, blocks: int, rule: StageRule
) -> SpaceSize:
    """Sum up tuples counted by (pp, vp, whether whole layers may be recomputed)."""
    joint = sum(
        number * stage_choices(ranks, chunks, blocks, rule, may)
        for (ranks, chunks, may), number in shapes.items()
    )
    return SpaceSize(degree_rows=degree_rows, tuples=sum(shapes.values()), joint_assignments=joint)


@lru_cache(maxsize=4096)
def stage_choices(ranks: int, chunks: int, blocks: int, rule: StageRule, may_recompute: bool) -> int:
    """Return how many stages one tuple has, at least.

    Free splits are counted exactly, near-equal ones by the largest of their families. Recomputation counts as
    one number per rank (per layout where the rule has one number), however many kinds a rank holds.
    """
    if rule.split is Split.FREE and rule.recomputation is Recomputation.PER_RANK and may_recompute:
        return _free_choices(ranks, chunks, blocks)
    splits = max(
        (_splits_in_box(low, high, blocks) for low, high in boxes(ranks, chunks, blocks, rule.split)),
        default=0,
    )
    if not may_recompute or not splits:
        return splits
    if rule.recomputation is Recomputation.ALL_OR_NONE:
        return 2 * splits
    if rule.recomputation is Recomputation.UNIFORM_COUNT:
        return splits * (-(-blocks // (ranks * chunks)) + 1)
    fewest = max(blocks // ranks - chunks, 1)
    return splits * int(fewest**ranks)


def _free_choices(ranks: int, chunks: int, blocks: int) -> int:
    """Sum the product of (blocks + 1) over ranks, over all splits.

    A rank of at least a - 1 blocks has the generating function (a - (a - 1) z) / (1 - z)^2 of numbers of
    recomputed blocks; the coefficient of their product is a sum of binomials.
    """
    if ranks == 1:
        return blocks + 1 if blocks >= chunks else 0
    rest = blocks - (ranks * chunks - 2)
    numerator = [1]
    for least in [chunks - 1, chunks - 1, *[chunks] * (ranks - 2)]:
        numerator = _times(numerator, [least + 1, -least])
    poles = 2 * ranks
    return sum(c * comb(rest - i + poles - 1, poles - 1) for i, c in enumerate(numerator) if i <= rest)


def _times(left: list[int], right: list[int]) -> list[int]:
    product = [0] * (len(left) + len(right) - 1)
    for i, a in enumerate(left):
        for j, b in enumerate(right):
            product[i + j] += a * b
    return product


def _splits_in_box(low: IntArray, high: IntArray, blocks: int) -> int:
    """Count the ways to put ``blocks`` on ranks of ``low`` to ``high`` blocks."""
    rest = blocks - int(low.sum())
    if rest < 0:
        return 0
    ways = [1] + [0] * rest
    for width in (high - low + 1).tolist():
        sums = list(accumulate(ways))
        ways = [total - (sums[i - width] if i >= width else 0) for i, total in enumerate(sums)]
    return ways[rest]
