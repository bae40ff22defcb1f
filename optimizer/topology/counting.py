"""Count the members of process groups in aligned blocks of consecutive ranks, exactly."""

from __future__ import annotations

from functools import lru_cache
from math import gcd, lcm
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    IntArray = NDArray[np.int64]
    Digits = tuple[tuple[int, int], ...]

_TABLE_PER_ROW = 8
"""Largest value per row for which a look-up table beats sorting."""


class BlockCounts(NamedTuple):
    """Fewest members of a group in a block it touches; most groups that reach out of one block, (n,)."""

    fewest: IntArray
    exits: IntArray


def count_blocks(digits: Sequence[tuple[IntArray, IntArray]], ranks: IntArray, block: int) -> BlockCounts:
    """Count per row, for groups given by their (size, stride) digits in a layout of ``ranks`` ranks.

    Digits that blocks cut evenly multiply; rows with others go the exact way.
    """
    fewest, size, uneven = np.ones_like(ranks), np.ones_like(ranks), np.zeros(len(ranks), dtype=np.bool_)
    for count, stride in digits:
        reach = stride * count
        whole, apart = (count == 1) | (block % reach == 0), stride >= block
        even = (block % stride == 0) & (reach % block == 0)
        fewest = fewest * np.where(whole, count, np.where(apart, 1, np.maximum(block // stride, 1)))
        size = size * count
        # Blocks that cut a digit between its members leave siblings with different counts: no product holds
        # them.
        uneven |= ~(whole | apart | even)
    inside = ranks <= block
    # A layout that fits into one block has all of its groups whole in it.
    fewest, uneven = np.where(inside, size, fewest), uneven & ~inside
    exits = np.where(fewest < size, block // fewest, 0)
    for row in np.flatnonzero(uneven):
        exact = tuple((int(count[row]), int(stride[row])) for count, stride in digits)
        fewest[row], exits[row] = _count_exactly(exact, int(ranks[row]), block)
    return BlockCounts(fewest, exits)


def ranks_of_groups(digits: Digits, ranks: int) -> IntArray:
    """Return the ranks of every sibling group, ascending: an array (groups, members)."""
    offsets = np.zeros(1, dtype=np.int64)
    starts, every = np.ones(ranks, dtype=np.bool_), np.arange(ranks, dtype=np.int64)
    for size, stride in digits:
        offsets = (np.arange(size)[:, None] * stride + offsets).ravel()
        starts &= every // stride % size == 0
    return every[starts][:, None] + offsets


@lru_cache(maxsize=65536)
def _count_exactly(digits: Digits, ranks: int, block: int) -> tuple[int, int]:
    """Fewest members in a touched block and most groups that leave one block, for one group."""
    left, intact = _merged(digits), 1
    while left and block % (left[0][0] * left[0][1]) == 0:  # members that no border parts count as one
        intact *= left.pop(0)[0]
    alike = gcd(left[0][1], block)  # so many neighbouring ranks always share a block: count one of them
    left = [(size, stride // alike) for size, stride in left]
    fewest, exits = _count_scaled(left, ranks // alike, block // alike)
    return intact * fewest, exits * alike // intact


def _count_scaled(digits: list[tuple[int, int]], ranks: int, block: int) -> tuple[int, int]:
    """Count runs of ranks if the group, or what can meet in a block, is one; else look at every rank."""
    parts = list(digits)
    # Repetitions further apart than a block never meet in one: they count as groups of their own.
    while len(parts) > 1 and parts[-1][1] - parts[-2][0] * parts[-2][1] >= block:
        parts.pop()
    size, stride = parts[0]
    if len(parts) == 1 and stride == 1:
        return _count_runs(size, block, ranks // size, joined=len(digits) == 1)
    return _count_members(tuple(digits), ranks, block)


def _merged(digits: Digits) -> list[tuple[int, int]]:
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


def _count_runs(size: int, block: int, runs: int, *, joined: bool) -> tuple[int, int]:
    """Count for runs of ``size`` consecutive ranks laid end to end from 0.

    A run is a whole group if ``joined``, else a part of a group that has others far away.
    """
    # Only runs that a border cuts are in two blocks; all others are whole.
    borders = np.arange(1, -(-runs * size // block), dtype=np.int64) * block  # block borders inside the ranks
    left, cut = borders % size, borders % size > 0
    # A cut run leaves its two pieces as members of one group in different blocks.
    pieces = np.concatenate([left[cut], (size - left)[cut]])
    shortest = int(pieces.min(initial=min(block, size)))
    if not joined:
        starts, ends = np.append(0, borders), np.append(borders, runs * size)
        return shortest, int(((ends - 1) // size - starts // size).max()) + 1
    cutting = np.where(cut, borders // size, -1)
    before, after = np.append(-1, cutting), np.append(cutting, -1)  # runs cut at a block's two borders
    exits = (before >= 0).astype(np.int64) + ((after >= 0) & (after != before))
    return shortest, int(exits.max())


def _count_members(digits: Digits, ranks: int, block: int) -> tuple[int, int]:
    """Count by looking at every rank in one period of groups and blocks."""
    size, stride = digits[-1]
    # Behind this number of ranks, groups and blocks begin together again.
    period = min(ranks, lcm(size * stride, block))
    blocks = ranks_of_groups(digits, period) // block
    ends = np.flatnonzero(np.diff(blocks, axis=1, append=-1).ravel())
    fewest = int(np.diff(ends, prepend=-1).min())
    leaving = blocks[:, 0] != blocks[:, -1]
    first_of_block = np.diff(blocks, axis=1, prepend=-1) != 0
    touched = blocks[leaving][first_of_block[leaving]]
    return fewest, int(np.bincount(touched, minlength=1).max())


def distinct_rows(columns: list[IntArray]) -> tuple[IntArray, IntArray]:
    """Return (index of one representative per distinct row, index of every row among them).

    Columns are non-negative integers of one length n >= 1.
    """
    packed, radix = np.zeros(len(columns[0]), dtype=np.int64), 1
    for column in columns:
        if column.strides == (0,):  # one value for all rows
            continue
        codes, count = _compress(column)
        if count == 1:
            continue
        if radix * count > _TABLE_PER_ROW * len(column):
            packed, radix = _compress(packed)
        packed, radix = packed * count + codes, radix * count
    packed, radix = _compress(packed)
    first = np.zeros(radix, dtype=np.int64)
    first[packed] = np.arange(len(packed))
    return first, packed


def _compress(column: IntArray) -> tuple[IntArray, int]:
    """Replace values by their rank among the distinct ones."""
    top = int(column.max())
    if top > _TABLE_PER_ROW * len(column):
        values, inverse = np.unique(column, return_inverse=True)
        return inverse.astype(np.int64), len(values)
    present = np.zeros(top + 1, dtype=np.bool_)
    present[column] = True
    rank = np.cumsum(present) - 1
    return rank[column], int(rank[-1]) + 1
