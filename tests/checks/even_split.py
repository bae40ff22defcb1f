"""The most even split of blocks over ranks: a reference for what is filled in where a layout lists no stages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.specs.vocabulary import Schedule

if TYPE_CHECKING:
    from numpy.typing import NDArray

    IntArray = NDArray[np.int64]


def even_blocks(blocks: int, pp: int, vp: int, schedule: Schedule = Schedule.NONE) -> IntArray:
    """Return the most even number of blocks per rank, shape (pp,).

    Ranks differ by at most one block. The last rank and then the first get fewer, since they also hold the
    head and the embedding; then early ranks, which hold more micro-batches at once. Where a V shape puts both ends on
    the first rank, that one gets fewer, and what is missing when the others need a block for each chunk.

    Raises
    ------
    ValueError
        If a virtual stage other than the first and the last would be empty.
    """
    slots = pp * vp
    if blocks < max(slots - 2, 1) or (pp == 1 and blocks < vp):
        raise ValueError(f"{blocks} blocks can't fill {slots} virtual stages")
    small, larger = divmod(blocks, pp)
    together = schedule.v_shape and pp > 1
    if together and small < vp:
        return np.array([blocks - vp * (pp - 1), *[vp] * (pp - 1)], dtype=np.int64)
    totals = np.full(pp, small + 1, dtype=np.int64)
    fewer_first = [pp - 1, 0, *range(1, pp - 1)] if pp > 1 and not together else [*range(pp)]
    totals[fewer_first[: pp - larger]] -= 1
    return totals
