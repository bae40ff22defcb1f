"""Split batches into rows that are priced together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.topology.counting import distinct_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from layoutopt.optimizer.cost.batch import LayoutBatch

    IntArray = NDArray[np.int64]


def homogeneous(batch: LayoutBatch, columns: list[IntArray]) -> Iterator[tuple[IntArray, LayoutBatch]]:
    """Split a batch into rows that are alike in some columns (n,); yields their positions (k,) and themselves."""
    first, inverse = distinct_rows(columns)
    for group in range(len(first)):
        rows = np.flatnonzero(inverse == group)
        yield rows, batch.take(rows) if len(first) > 1 else batch
