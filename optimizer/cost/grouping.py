"""Find the distinct rows of integer columns quickly, so that shared work is done once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from layoutopt.optimizer.cost.batch import LayoutBatch

    IntArray = NDArray[np.int64]

_TABLE_LIMIT = 4_000_000
"""Largest product of distinct values for which a look-up table beats sorting."""


def distinct_rows(columns: list[IntArray]) -> tuple[IntArray, IntArray]:
    """Return (index of one representative per distinct row, inverse index of every row).

    Columns are non-negative int arrays of one length n >= 1.
    """
    packed, radix = np.zeros(len(columns[0]), dtype=np.int64), 1
    for column in columns:
        codes, count = _compress(column)
        if radix * count >= 2**62:
            packed, radix = _compress_sorted(packed)
        packed, radix = packed * count + codes, radix * count
    if radix > _TABLE_LIMIT:
        _, first, inverse = np.unique(packed, return_index=True, return_inverse=True)
        return first, inverse
    where = np.full(radix, -1, dtype=np.int64)
    where[packed] = np.arange(len(packed))
    present = where >= 0
    rank = np.cumsum(present) - 1
    return where[present], rank[packed]


def homogeneous(batch: LayoutBatch, columns: list[IntArray]) -> Iterator[tuple[IntArray, LayoutBatch]]:
    """Split a batch into rows that are alike in some columns."""
    first, inverse = distinct_rows(columns)
    for group in range(len(first)):
        rows = np.flatnonzero(inverse == group)
        yield rows, batch.take(rows) if len(first) > 1 else batch


def _compress(column: IntArray) -> tuple[IntArray, int]:
    """Replace values by their rank among the distinct ones."""
    top = int(column.max())
    if top > _TABLE_LIMIT:
        return _compress_sorted(column)
    present = np.zeros(top + 1, dtype=bool)
    present[column] = True
    rank = np.cumsum(present) - 1
    return rank[column], int(rank[-1]) + 1


def _compress_sorted(column: IntArray) -> tuple[IntArray, int]:
    values, inverse = np.unique(column, return_inverse=True)
    return inverse, len(values)
