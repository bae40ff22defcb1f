"""Estimates of what layouts take: for a search's order, not its proof."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.terms import own_bytes
from layoutopt.optimizer.solve.search.bound import mean_rank_s, memory_fits, whole_blocks_s, work_s
from layoutopt.optimizer.solve.search.capacity import SLACK, TINY, at_most

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from layoutopt.optimizer.cost.batch import IntArray
    from layoutopt.optimizer.cost.terms import FloatArray, StageTerms


def likely_s(terms: StageTerms, counts: IntArray, fits: NDArray[np.bool_] | None = None) -> FloatArray:
    """Estimate the best step, (n,) seconds, by the closed form of ranks as equal as memory lets them be.

    ``fits`` (n,) are the layouts that may fit, where that is known.
    """
    blocks = int(counts.sum())
    fits = memory_fits(terms, blocks) if fits is None else fits
    again, fullest = _within_memory(terms, counts)
    slowest_s = np.maximum(mean_rank_s(terms, counts), whole_blocks_s(terms, blocks))
    block_s = terms.layer_s @ (counts / blocks)
    slowest_s = np.maximum(slowest_s, fullest * block_s)
    bound = (terms.micro_batches - terms.bubble_weight) * (slowest_s + again / terms.pp)
    bound += terms.bubble_weight * (work_s(terms, counts) + again) + terms.fixed_s
    # what fills and drains an interleaved pipeline are its larger chunks
    chunk = blocks / (terms.pp * terms.vp)
    larger = (np.ceil(chunk * (1 - SLACK)) - chunk) * block_s
    bound += np.where(terms.vp > 1, (terms.pp - 1) * larger, 0.0)
    return np.where(fits, bound, np.inf)


def _within_memory(terms: StageTerms, counts: IntArray) -> tuple[FloatArray, FloatArray]:
    """Estimate what memory costs: seconds of recomputation over all ranks that equal ones need to fit, and the blocks of the
    fullest rank of layouts that may not recompute, both (n,)."""
    again_s, fullest = np.zeros(len(terms)), np.zeros(len(terms))
    blocks = float(counts.sum())
    share = counts / blocks
    saved = (terms.layer_activation_bytes - terms.recomputed_activation_bytes) @ share
    kept, state = terms.layer_activation_bytes @ share, terms.layer_state_bytes @ share
    block_s = terms.recompute_s @ share
    may = terms.may_recompute & (saved > 0)
    buffer = np.where(may, terms.recompute_transient_bytes, 0.0)
    room = (terms.capacity_bytes - buffer)[:, None] - own_bytes(terms)
    for pp in np.unique(terms.pp).tolist():
        index = np.flatnonzero(terms.pp == pp)
        flight, mean = terms.in_flight[index, :pp], blocks / pp
        each = np.maximum(state[index, None] + flight * kept[index, None], TINY)
        missing = mean * each - room[index, :pp]
        again = np.clip(missing / np.maximum(flight * saved[index, None], TINY), 0.0, mean).sum(axis=1)
        again_s[index] = np.where(may[index], again * block_s[index], 0.0)
        short = np.flatnonzero(~may[index] & (missing > 0).any(axis=1))
        fullest[index[short]] = _fullest(room[index[short], :pp] / each[short], blocks)
    return again_s, fullest


def _fullest(most: FloatArray, blocks: float) -> FloatArray:
    """Return the blocks of the fullest rank, (n,), where ranks hold ``most`` (n, P) or less, as equally as can be."""
    most = np.sort(np.maximum(at_most(most), 0.0), axis=1)
    before = np.cumsum(most, axis=1) - most
    # Those that memory fills first hold what fits, the others equal shares of the rest.
    level = np.ceil((blocks - before) / np.arange(most.shape[1], 0, -1) * (1 - SLACK))
    enough = level <= most
    first = enough.argmax(axis=1)
    rows = np.arange(len(most))
    # What has no room for all blocks of the mean kind is not likely.
    return np.where(enough.any(axis=1), level[rows, first], blocks)
