"""Process groups as digits of the rank number, and how many members share a block of consecutive ranks."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from math import lcm
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    IntArray = NDArray[np.int64]
    FloatArray = NDArray[np.float64]
    BoolArray = NDArray[np.bool_]


class Digit(NamedTuple):
    """One digit of a rank number: how many values it takes, and how far apart they are, arrays (n,)."""

    size: IntArray
    stride: IntArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GroupBatch:
    """One process group in each of ``n`` layouts, together with its sibling groups.

    ``digits`` go from inner to outer and nest: each stride is a multiple of the inner digit's stride * size.
    ``ranks`` is the number of ranks of the whole layout, (n,): siblings start at every rank whose own digits are 0.
    """

    digits: tuple[Digit, ...]
    ranks: IntArray
    memo: dict[Any, Any] = field(default_factory=dict, repr=False)

    @property
    def size(self) -> IntArray:
        """Members of the group, (n,)."""
        if "size" not in self.memo:
            size = self.digits[0].size
            for digit in self.digits[1:]:
                size = size * digit.size
            self.memo["size"] = size
        return self.memo["size"]  # type: ignore[no-any-return]

    def members_within(self, block_gpus: int) -> IntArray:
        """Return how many members share one aligned block of ``block_gpus`` consecutive ranks, (n,).

        Where blocks cut groups unevenly it is the fewest members that any sibling group has in a block that it
        touches: that part of a group has the fewest links for the traffic it exchanges with the rest.
        """
        if block_gpus not in self.memo:
            self.memo[block_gpus] = _fewest_within(self, block_gpus)
        return self.memo[block_gpus]  # type: ignore[no-any-return]

    def most_within(self, block_gpus: int) -> IntArray:
        """Return an upper bound of the members in one block, equal to ``members_within`` where blocks cut evenly."""
        key = ("most", block_gpus)
        if key not in self.memo:
            product = np.ones_like(self.size)
            for digit in self.digits:
                product = product * np.minimum(digit.size, -(-block_gpus // digit.stride))
            self.memo[key] = product
        return self.memo[key]  # type: ignore[no-any-return]


def group_members(group: GroupBatch, row: int = 0) -> NDArray[np.int64]:
    """Return the ranks of every sibling group of one layout, ascending: an array (groups, members)."""
    digits = tuple((int(digit.size[row]), int(digit.stride[row])) for digit in group.digits)
    return _members(digits, int(group.ranks[row]))


def _members(digits: tuple[tuple[int, int], ...], ranks: int) -> NDArray[np.int64]:
    offsets = np.zeros(1, dtype=np.int64)
    starts = np.ones(ranks, dtype=np.bool_)
    every = np.arange(ranks)
    for size, stride in digits:
        offsets = (np.arange(size)[:, None] * stride + offsets).ravel()
        starts &= every // stride % size == 0
    return every[starts][:, None] + offsets


def _fewest_within(group: GroupBatch, block: int) -> IntArray:
    """Multiply what each digit contributes; digits that blocks cut unevenly go the exact way, per distinct row."""
    result, uneven = np.ones_like(group.size), np.zeros(len(group.size), dtype=np.bool_)
    for size, stride in group.digits:
        reach = stride * size
        whole = (size == 1) | (block % reach == 0)
        apart = stride >= block
        even = (block % stride == 0) & (reach % block == 0)
        result = result * np.where(whole, size, np.where(apart, 1, np.maximum(block // stride, 1)))
        uneven |= ~(whole | apart | even)
    one_block = group.ranks <= block
    result, uneven = np.where(one_block, group.size, result), uneven & ~one_block
    if uneven.any():
        result[uneven] = _fewest_exact(group, block, np.flatnonzero(uneven))
    return result


def _fewest_exact(group: GroupBatch, block: int, rows: IntArray) -> IntArray:
    columns = [part[rows] for digit in group.digits for part in digit] + [group.ranks[rows]]
    first, inverse = distinct_rows(columns)
    table = np.stack([column[first] for column in columns], axis=1).tolist()
    answers = [_fewest_of(tuple(row[:-1]), row[-1], block) for row in table]
    return np.array(answers, dtype=np.int64)[inverse]


@lru_cache(maxsize=65536)
def _fewest_of(flat: tuple[int, ...], ranks: int, block: int) -> int:
    """Fewest members in a touched block, exactly, for one group."""
    digits = _merged([(flat[i], flat[i + 1]) for i in range(0, len(flat), 2)])
    factor = 1
    while digits and block % (digits[0][0] * digits[0][1]) == 0:  # never cut: it multiplies the count
        factor *= digits.pop(0)[0]
    if len(digits) == 1 and block % digits[0][1] == 0:
        size, stride = digits[0]
        return factor * _fewest_of_run(size, block // stride, ranks // (size * stride))
    return factor * _fewest_by_count(tuple(digits), ranks, block)


def _merged(digits: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Drop digits of one value and join digits that count on from one another."""
    result: list[tuple[int, int]] = []
    for size, stride in digits:
        if size == 1:
            continue
        if result and result[-1][0] * result[-1][1] == stride:
            result[-1] = (result[-1][0] * size, result[-1][1])
        else:
            result.append((size, stride))
    return result


def _fewest_of_run(size: int, block: int, runs: int) -> int:
    """Runs of ``size`` consecutive ranks laid end to end from 0: the shortest piece that block borders cut off."""
    borders = np.arange(1, min(runs, block) + 1) * size % block
    left = borders[borders > 0]
    right = block - borders[: runs - 1 if runs <= block else block]
    right = right[right < block]
    return int(min(size, block, left.min(initial=block), right.min(initial=block)))


def _fewest_by_count(digits: tuple[tuple[int, int], ...], ranks: int, block: int) -> int:
    """Count members per block over one period of groups and blocks."""
    size, stride = digits[-1]
    period = min(ranks, lcm(size * stride, block))
    members = _members(digits, period) // block
    changes = np.flatnonzero(np.diff(members, axis=1, append=-1).ravel())
    return int(np.diff(changes, prepend=-1).min())


_TABLE_LIMIT = 4_000_000
"""Largest value for which a look-up table beats sorting."""


def distinct_rows(columns: list[IntArray]) -> tuple[IntArray, IntArray]:
    """Return (index of one representative per distinct row, inverse index of every row) of non-negative columns."""
    packed, radix = np.zeros(len(columns[0]), dtype=np.int64), 1
    for column in columns:
        codes, count = _compress(column)
        packed, radix = _compress(packed * count + codes)
    first = np.zeros(radix, dtype=np.int64)
    first[packed] = np.arange(len(packed))
    return first, packed


def _compress(column: IntArray) -> tuple[IntArray, int]:
    """Replace values by their rank among the distinct ones."""
    top = int(column.max())
    if top > _TABLE_LIMIT:
        values, inverse = np.unique(column, return_inverse=True)
        return inverse.astype(np.int64), len(values)
    present = np.zeros(top + 1, dtype=np.bool_)
    present[column] = True
    rank = np.cumsum(present) - 1
    return rank[column], int(rank[-1]) + 1
