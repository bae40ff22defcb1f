"""How many layouts a space holds, stages included."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from math import comb
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from layoutopt.optimizer.cost.schedules import SCHEDULES
from layoutopt.optimizer.frameworks.stage_rule import Recomputation, Split, StageRule
from layoutopt.optimizer.space.stage_splits import boxes
from layoutopt.optimizer.specs.vocabulary import Granularity

if TYPE_CHECKING:
    from collections.abc import Mapping

    from layoutopt.optimizer.cost.batch import LayoutBatch
    from layoutopt.optimizer.cost.terms import IntArray
    from layoutopt.optimizer.specs.vocabulary import Schedule


class CountedSpace(Protocol):
    """The part of a space of layouts that can be counted without prices. A *tuple* is a layout without its stages."""

    @property
    def degrees(self) -> LayoutBatch:
        """The valid degree rows."""

    @property
    def counts(self) -> IntArray:
        """Blocks of each kind in the model, shape (K,), in the order of the stack."""

    @property
    def rule(self) -> StageRule:
        """Which splits and which recomputation the framework can launch."""

    def expand(self, rows: LayoutBatch) -> tuple[LayoutBatch, IntArray]:
        """Return all tuples of the degree rows, and for each the position (k,) of its degree row in ``rows``."""


class StageShape(NamedTuple):
    """Distinct ranks, virtual stages on each, whether they run to and back, and whether blocks may be recomputed."""

    ranks: int
    chunks: int
    folded: bool
    may_recompute: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceSize:
    """Numbers of degree rows, of tuples (layouts without stages), and of layouts with stages, at least."""

    degree_rows: int
    tuples: int
    joint_assignments: int


def space_size(space: CountedSpace, *, chunk: int = 16384) -> SpaceSize:
    """Count a space, expanding ``chunk`` degree rows at a time."""
    shapes: Counter[StageShape] = Counter()
    for start in range(0, len(space.degrees), chunk):
        rows = np.arange(start, min(start + chunk, len(space.degrees)))
        batch, _ = space.expand(space.degrees.take(rows))
        full = np.array([entry.granularity is Granularity.FULL for entry in batch.codebook.recomputes])
        # One integer per shape: counting distinct rows of a table takes several times as long.
        keys = ((batch.pp * 2**20 + batch.vp) * 2**8 + batch.schedule) * 2 + full[batch.recompute]
        values, numbers = np.unique(keys, return_counts=True)
        for key, number in zip(values.tolist(), numbers.tolist(), strict=True):
            schedule = batch.codebook.schedules[(key >> 1) % 2**8]
            shapes[stage_shape(schedule, key >> 29, (key >> 9) % 2**20, bool(key & 1))] += number
    return size_of_shapes(shapes, len(space.degrees), int(np.sum(space.counts)), space.rule)


def stage_shape(schedule: Schedule, pp: int, vp: int, may_recompute: bool) -> StageShape:
    """Return what decides the number of stage choices of a tuple."""
    model = SCHEDULES[schedule]
    copies = model.parameter_copies
    return StageShape(pp // copies, vp * copies, model.folded, may_recompute)


def size_of_shapes(
    shapes: Mapping[StageShape, int], degree_rows: int, blocks: int, rule: StageRule
) -> SpaceSize:
    """Sum up tuples counted by what decides their stages."""
    joint = sum(number * stage_choices(shape, blocks, rule) for shape, number in shapes.items())
    return SpaceSize(degree_rows=degree_rows, tuples=sum(shapes.values()), joint_assignments=joint)


@lru_cache(maxsize=4096)
def stage_choices(shape: StageShape, blocks: int, rule: StageRule) -> int:
    """Return how many stages one tuple has, at least.

    Splits are counted exactly, but near-equal ones by the largest of their families. Recomputation counts as
    one number per rank (per layout where the rule has one number), however many kinds a rank holds.
    """
    ranks, chunks, folded, may_recompute = shape
    if rule.split is Split.FREE and rule.recomputation is Recomputation.PER_RANK and may_recompute:
        return _free_choices(ranks, chunks, blocks, folded=folded)
    allowed = boxes(rule, ranks, chunks, blocks, folded=folded)
    sizes = [_splits_in_box(low, high, blocks) for low, high in allowed]
    # Near-equal families overlap, the others are apart.
    splits = max(sizes, default=0) if rule.split is Split.NEAR_EQUAL else sum(sizes)
    if not may_recompute or not splits:
        return splits
    if rule.recomputation is Recomputation.ALL_OR_NONE:
        return 2 * splits
    if rule.recomputation is Recomputation.UNIFORM_COUNT:
        return splits * (-(-blocks // (ranks * chunks)) + 1)
    fewest = max(blocks // ranks - chunks, 1)
    return splits * int(fewest**ranks)


def _free_choices(ranks: int, chunks: int, blocks: int, *, folded: bool) -> int:
    """Sum the product of (blocks + 1) over ranks, over all splits.

    A rank of at least a - 1 blocks has the generating function (a - (a - 1) z) / (1 - z)^2 of numbers of
    recomputed blocks; the coefficient of their product is a sum of binomials.
    """
    if ranks == 1:
        return blocks + 1 if folded or blocks >= chunks else 0
    rest = blocks - (ranks * chunks - 2)
    numerator = [1]
    ends = [chunks - 2, chunks] if folded else [chunks - 1, chunks - 1]
    for least in [*ends, *[chunks] * (ranks - 2)]:
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
    # Limits that never bind: combinations with repetition.
    if (high - low >= rest).all():
        return comb(rest + len(low) - 1, rest)
    ways = [1] + [0] * rest
    for width in (high - low + 1).tolist():
        sums = list(accumulate(ways))
        ways = [total - (sums[i - width] if i >= width else 0) for i, total in enumerate(sums)]
    return ways[rest]
