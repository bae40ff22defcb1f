"""Blocks on pipeline stages: even splits, chunks of a rank, a layout's stage list and back."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.schedules import SCHEDULES, seats
from layoutopt.optimizer.cost.stage_counts import layer_kinds
from layoutopt.optimizer.specs.layout import VirtualStage
from layoutopt.optimizer.specs.vocabulary import Schedule

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from layoutopt.optimizer.specs.model import ModelSpec

    IntArray = NDArray[np.int64]


def chunk_layers(rank_totals: IntArray, pp: int, vp: int, *, folded: bool = False) -> IntArray:
    """Return the blocks of every virtual stage, shape (pp*vp,), entry ``chunk*pp + rank``.

    The chunks of a rank differ by at most one block. Smaller chunks come first, so that the one with the
    embedding is among them and ranks work on large chunks at the same time; on the last of several ranks the last
    chunk, which holds the head, is one of the smaller, unless ``folded``: then the first rank holds both ends.
    """
    small, larger = np.divmod(np.asarray(rank_totals, dtype=np.int64), vp)
    chunk = np.arange(vp)[:, None]
    # The last chunks are the larger ones, but for the one with the head.
    rising = chunk >= vp - larger
    but_last = (chunk >= vp - 1 - larger) & (chunk < vp - 1)
    last = (np.arange(pp) == pp - 1) & (pp > 1 and not folded)
    result: IntArray = (small + np.where(last, but_last, rising)).reshape(-1)
    return result


def model_order(pp: int, vp: int, schedule: Schedule = Schedule.NONE) -> IntArray:
    """Return the entries of the stage list, (pp * vp,), in the order in which a token passes them.

    Entry ``chunk*pp + rank`` is passed in list order, except that V-shaped schedules run the second chunks
    backwards through the ranks.
    """
    entries = np.arange(pp * vp, dtype=np.int64)
    if vp == 2 and schedule.v_shape:
        return np.concatenate([entries[:pp], entries[pp:][::-1]])
    return entries


def kinds_of(model: ModelSpec, counts: IntArray, order: IntArray, limit: int | None = None) -> IntArray:
    """Return the blocks of each kind among the first ``limit`` of every virtual stage, (stages, K), for contiguous stages.

    ``counts`` holds the blocks of each entry of the stage list, ``order`` the entries as a token passes them. The
    model's runs are kinds (``by_layer``).
    """
    start = np.cumsum(counts[order]) - counts[order]
    size = counts[order] if limit is None else np.minimum(counts[order], limit)
    before = kinds_before(tuple(layer_kinds(model).tolist()), len(model.runs))
    result = np.zeros((len(counts), len(model.runs)), dtype=np.int64)
    result[order] = before[start + size] - before[start]
    return result


@lru_cache(maxsize=64)
def kinds_before(order: tuple[int, ...], number: int) -> IntArray:
    """Return how many of the first blocks are of each of ``number`` kinds, (blocks + 1, number), to be read alone."""
    before = np.zeros((len(order) + 1, number), dtype=np.int64)
    np.cumsum(np.array(order)[:, None] == np.arange(number), axis=0, out=before[1:])
    # Cached: whoever wrote to it would change the answer of everybody else.
    before.flags.writeable = False
    return before


def virtual_stages(
    model: ModelSpec,
    pp: int,
    vp: int,
    blocks: IntArray,
    recomputed: IntArray,
    schedule: Schedule = Schedule.NONE,
) -> tuple[VirtualStage, ...]:
    """Write block counts as a layout's stage list.

    Parameters
    ----------
    blocks, recomputed
        Blocks of each kind in every chunk of each distinct rank and how many of them are recomputed, (V, P, K); or those
        of whole ranks, (P, K), which ``chunk_layers`` and ``spread`` cut. Ranks that hold the same stages, as
        DualPipe's s and pp - 1 - s, are one.
    schedule
        Decides on which rank each stage is.

    Raises
    ------
    ValueError
        If no contiguous split has these counts per rank and kind.
    """
    blocks, recomputed = np.asarray(blocks, dtype=np.int64), np.asarray(recomputed, dtype=np.int64)
    order, seat = model_order(pp, vp, schedule), seats(schedule, pp, vp)
    by_rank = blocks.ndim == 2
    if by_rank:
        counts = chunk_layers(blocks.sum(axis=1), *seat.shape[::-1], folded=SCHEDULES[schedule].folded)
    else:
        counts = blocks.sum(axis=2).ravel()
    counts = counts[np.argsort(seat.ravel())]
    kinds = kinds_of(model, counts, order)
    there = kinds[seat].sum(axis=0) if by_rank else kinds[seat]
    if counts.sum() != model.layers or (there != blocks).any():
        raise ValueError(f"no contiguous split of {model.layers} blocks gives {blocks.tolist()}")
    repeated = np.zeros_like(kinds)

    def first_blocks(number: int) -> IntArray:
        """Kinds of the first ``number`` blocks by chunk and rank, (V, P, K)."""
        return kinds_of(model, counts, order, limit=number)[seat]

    repeated[seat] = spread(kinds[seat], recomputed, first_blocks) if by_rank else recomputed
    first, last = int(order[0]), int(order[-1])
    return tuple(
        _stage(model, entry, pp, kinds[entry], repeated[entry], embedding=entry == first, head=entry == last)
        for entry in range(pp * vp)
    )


def _stage(
    model: ModelSpec,
    entry: int,
    pp: int,
    kinds: IntArray,
    repeated: IntArray,
    *,
    embedding: bool,
    head: bool,
) -> VirtualStage:
    """Write one entry of the stage list."""
    held = list(zip(model.runs, kinds.tolist(), repeated.tolist(), strict=True))
    layers = {run.name: count for run, count, _ in held if count}
    again = {run.name: redone for run, count, redone in held if count}
    return VirtualStage(
        rank=entry % pp,
        chunk=entry // pp,
        layers=sum(layers.values()),
        kinds=layers,
        recomputed=sum(again.values()),
        recomputed_kinds=again if len(again) > 1 and any(again.values()) else {},
        embedding=embedding,
        head=head,
        mtp=model.mtp_layers if head else 0,
    )


def spread(kinds: IntArray, recomputed: IntArray, first: Callable[[int], IntArray]) -> IntArray:
    """Spread each rank's recomputed blocks over its chunks, (C, P, K) and (P, K) to (C, P, K).

    If one number N for all virtual stages gives these counts (each repeats its ``first(N)``, (C, P, K)), that is
    the spread; otherwise every chunk of a rank gets as equal a number as it can hold.
    """
    largest = int(kinds.sum(axis=2).max(initial=0))
    # Megatron-LM takes one number for all stages: what it can say is preferred.
    for uniform in range(largest + 1):
        spread = first(uniform)
        if (spread.sum(axis=0) == recomputed).all():
            return spread
    level = np.zeros_like(kinds)
    left = np.minimum(recomputed, kinds.sum(axis=0))
    while left.any():
        for chunk in range(len(kinds)):
            # One block at a time and chunk, so that chunks stay as equal as they can.
            room = (level[chunk] < kinds[chunk]) & (left > 0)
            level[chunk] += room
            left = left - room
    return level
