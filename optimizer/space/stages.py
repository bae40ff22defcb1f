"""Blocks on pipeline stages: even splits, chunks of a rank, a layout's stage list and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.schedules import SCHEDULES, seats
from layoutopt.optimizer.specs.layout import VirtualStage
from layoutopt.optimizer.specs.vocabulary import Schedule

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from layoutopt.optimizer.specs.model import ModelSpec

    IntArray = NDArray[np.int64]


def block_count(model: ModelSpec) -> int:
    """Return the number of blocks of the stack."""
    return sum(run.count for run in model.runs)


def chunk_layers(rank_totals: IntArray, pp: int, vp: int, *, folded: bool = False) -> IntArray:
    """Return the blocks of every virtual stage, shape (pp*vp,), entry ``chunk*pp + rank``.

    The chunks of a rank differ by at most one block. Smaller chunks come first, so that the one with the
    embedding is among them and ranks work on large chunks at the same time; on the last of several ranks the last
    chunk, which holds the head, is one of the smaller, unless ``folded``: then the first rank holds both ends.
    """
    small, larger = np.divmod(np.asarray(rank_totals, dtype=np.int64), vp)
    chunk = np.arange(vp)[:, None]
    rising = chunk >= vp - larger
    but_last = (chunk >= vp - 1 - larger) & (chunk < vp - 1)
    last = (np.arange(pp) == pp - 1) & (pp > 1 and not folded)
    result: IntArray = (small + np.where(last, but_last, rising)).reshape(-1)
    return result


def model_order(pp: int, vp: int, schedule: Schedule = Schedule.NONE) -> IntArray:
    """Return the entries of the stage list in the order in which a token passes them.

    Entry ``chunk*pp + rank`` is passed in list order, except that V-shaped schedules run the second chunks
    backwards through the ranks.
    """
    entries = np.arange(pp * vp, dtype=np.int64)
    if vp == 2 and schedule.v_shape:
        return np.concatenate([entries[:pp], entries[pp:][::-1]])
    return entries


def kinds_of(model: ModelSpec, counts: IntArray, order: IntArray) -> IntArray:
    """Return the blocks of each kind on every virtual stage, shape (stages, K), for contiguous stages.

    ``counts`` holds the blocks of each entry of the stage list, ``order`` the entries as a token passes them.
    """
    stop = np.cumsum(counts[order])
    start = stop - counts[order]
    run_stop = np.cumsum([run.count for run in model.runs])
    run_start = run_stop - np.array([run.count for run in model.runs])
    overlap = np.minimum(stop[:, None], run_stop) - np.maximum(start[:, None], run_start)
    result = np.zeros(overlap.shape, dtype=np.int64)
    result[order] = np.maximum(overlap, 0)
    return result


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
    if counts.sum() != block_count(model) or (there != blocks).any():
        raise ValueError(f"no contiguous split of {block_count(model)} blocks gives {blocks.tolist()}")
    repeated = np.zeros_like(kinds)
    repeated[seat] = spread(kinds[seat], recomputed) if by_rank else recomputed
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
    """Write one entry of the stage list, blocks turned into layers."""
    sizes = [len(run.block) for run in model.runs]
    layers: dict[str, int] = {}
    again: dict[str, int] = {}
    names = [run.name for run in model.runs]
    for run, size, count, redone in zip(model.runs, sizes, kinds.tolist(), repeated.tolist(), strict=True):
        if count:
            layers[run.name] = layers.get(run.name, 0) + count * size
            again[run.name] = again.get(run.name, 0) + redone * size
    return VirtualStage(
        rank=entry % pp,
        chunk=entry // pp,
        layers=sum(layers.values()),
        kinds=layers,
        recomputed=sum(again.values()),
        recomputed_kinds=again if len(again) > 1 and any(again.values()) and _unique(names) else {},
        embedding=embedding,
        head=head,
        mtp=model.mtp_layers if head else 0,
    )


def _unique(names: list[str]) -> bool:
    """Runs that share a name are one run taken apart, whose framework recomputes a stage's first layers."""
    return len(set(names)) == len(names)


def spread(kinds: IntArray, recomputed: IntArray) -> IntArray:
    """Spread each rank's recomputed blocks over its chunks, (C, P, K) and (P, K) to (C, P, K).

    If one number N for all virtual stages gives these counts (each repeats its first min(N, blocks)), that is
    the spread; otherwise every chunk of a rank gets as equal a number as it can hold.
    """
    largest = int(kinds.sum(axis=2).max(initial=0))
    for uniform in range(largest + 1):
        spread = first_blocks(kinds, np.full(kinds.shape[:2], uniform))
        if (spread.sum(axis=0) == recomputed).all():
            return spread
    level = np.zeros_like(kinds)
    left = np.minimum(recomputed, kinds.sum(axis=0))
    while left.any():
        for chunk in range(len(kinds)):
            room = (level[chunk] < kinds[chunk]) & (left > 0)
            level[chunk] += room
            left = left - room
    return level


def first_blocks(kinds: IntArray, counts: IntArray) -> IntArray:
    """Return how many of a stage's first ``counts`` (...) blocks are of each kind (..., K)."""
    stop = np.cumsum(kinds, axis=-1)
    result: IntArray = np.clip(counts[..., None] - (stop - kinds), 0, kinds)
    return result
