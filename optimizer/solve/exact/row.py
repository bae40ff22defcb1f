"""The stage problem of one layout: its terms as plain arrays, and floors under the time of every rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from layoutopt.optimizer.cost.terms import FloatArray, IntArray, StageTerms

# Relative room left where a floor sums in another order than the exact price does.
ROUNDING = 1e-12
_HUGE_BYTES = 1e30  # stands for "no limit", so that products with a zero slope stay 0 instead of nan


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRow:
    """One row of ``StageTerms`` without the kinds that have no blocks.

    Shapes: (K,) per kind in model order, (P,) per rank. ``kinds`` gives the original index of each kind,
    ``all_kinds`` their number. ``first`` and ``last`` values are 0 but on the first and the last rank,
    ``end_s`` and ``end_bytes`` hold what a rank bears without any block. The step time is
    ``peak_weight * max T + sum_weight * sum T + fixed_s``.
    """

    ranks: int
    chunks: int
    folded: bool
    kinds: IntArray
    all_kinds: int
    counts: IntArray
    layer_s: FloatArray
    recompute_s: FloatArray
    state_bytes: FloatArray
    activation_bytes: FloatArray
    saved_bytes: FloatArray
    in_flight: FloatArray
    first_s: FloatArray
    last_s: FloatArray
    first_bytes: FloatArray
    last_bytes: FloatArray
    common_bytes: float
    transient_bytes: float
    capacity_bytes: float
    may_recompute: bool
    peak_weight: float
    sum_weight: float
    micro_batches: int
    fixed_s: float

    @classmethod
    def from_terms(cls, terms: StageTerms, counts: Sequence[int] | IntArray) -> StageRow:
        """Read the only row of ``terms``; ``counts`` are the blocks of each kind in the model."""
        ranks = int(terms.pp[0])
        all_counts = np.asarray(counts, dtype=np.int64)
        kinds = np.flatnonzero(all_counts)
        first, last = np.zeros(ranks), np.zeros(ranks)
        first[0], last[-1] = 1.0, 1.0
        weight = float(terms.bubble_weight[0])
        activation = terms.layer_activation_bytes[0, kinds]
        return cls(
            ranks=ranks,
            chunks=int(terms.vp[0]),
            folded=bool(terms.folded[0]),
            kinds=kinds,
            all_kinds=len(all_counts),
            counts=all_counts[kinds],
            layer_s=terms.layer_s[0, kinds],
            recompute_s=terms.recompute_s[0, kinds],
            state_bytes=terms.layer_state_bytes[0, kinds],
            activation_bytes=activation,
            saved_bytes=activation - terms.recomputed_activation_bytes[0, kinds],
            in_flight=terms.in_flight[0, :ranks],
            first_s=first * terms.first_s[0],
            last_s=last * terms.last_s[0],
            first_bytes=first * terms.first_bytes[0],
            last_bytes=last * terms.last_bytes[0],
            common_bytes=float(terms.common_bytes[0]),
            transient_bytes=float(terms.recompute_transient_bytes[0]),
            capacity_bytes=min(float(terms.capacity_bytes[0]), _HUGE_BYTES),
            may_recompute=bool(terms.may_recompute[0]),
            peak_weight=float(terms.micro_batches[0]) - weight,
            sum_weight=weight,
            micro_batches=int(terms.micro_batches[0]),
            fixed_s=float(terms.fixed_s[0]),
        )

    @property
    def blocks(self) -> int:
        """Number of blocks in the model."""
        return int(self.counts.sum())

    @property
    def end_s(self) -> FloatArray:
        """Time (P,) of each rank without blocks."""
        return self.first_s + self.last_s

    @property
    def end_bytes(self) -> FloatArray:
        """Bytes (P,) on each rank without blocks."""
        return self.first_bytes + self.last_bytes + self.common_bytes

    @property
    def work_s(self) -> float:
        """Time of all ranks together without recomputation."""
        return float(self.counts @ self.layer_s + self.end_s.sum())

    def chunk_sizes(self, rank: IntArray, blocks: IntArray) -> IntArray:
        """Return the blocks of each chunk (n, V) of ranks that hold ``blocks`` (n,).

        Smaller chunks come first; on the last rank the last chunk is one of the smaller.
        """
        least, extra = np.divmod(blocks, self.chunks)
        chunk = np.arange(self.chunks)
        fuller = np.where(
            ((rank == self.ranks - 1) & (self.ranks > 1))[:, None],
            (chunk >= self.chunks - 1 - extra[:, None]) & (chunk < self.chunks - 1),
            chunk >= self.chunks - extra[:, None],
        )
        return least[:, None] + fuller

    def step_time_s(self, rank_time_s: FloatArray) -> float:
        """Step time from the ranks' times, as ``price_stages`` computes it."""
        slowest = rank_time_s.max()
        waiting = self.sum_weight * (rank_time_s.sum() - slowest)
        return float(self.micro_batches * slowest + waiting + self.fixed_s)


def cheapest_sums(values: FloatArray, counts: IntArray) -> FloatArray:
    """Return the least sums (P, L+1) of ``values`` (P, K) over n blocks, ``counts`` (K,) of each kind."""
    total = int(counts.sum())
    if len(counts) == 1:
        return values * np.arange(total + 1)
    order = np.argsort(values, axis=1)
    sums = np.zeros((len(values), total + 1))
    for sums_of_rank, rank_values, rank_order in zip(sums, values, order, strict=True):
        np.cumsum(np.repeat(rank_values[rank_order], counts[rank_order]), out=sums_of_rank[1:])
    return sums


def time_floors(row: StageRow, count: int | None) -> FloatArray:
    """Return (P, L+1): a floor under the time of rank s with n blocks, inf where they don't fit in memory.

    ``count`` is the number of blocks that each chunk recomputes (the first ones), or None when every rank
    is free to recompute any. With one kind of block it is the exact least time.
    """
    if count is not None:
        return _floors_at_count(row, count)
    return _floors_one_kind(row) if len(row.counts) == 1 else _floors_many_kinds(row)


def quickest_floors(row: StageRow, count: int) -> FloatArray:
    """Return ``time_floors`` as if memory were unlimited: they never fall when ``count`` grows."""
    return _times_at_count(row, count)[0]


def _times_at_count(row: StageRow, count: int) -> tuple[FloatArray, IntArray]:
    least, extra = np.divmod(np.arange(row.blocks + 1), row.chunks)
    recomputed = (row.chunks - extra) * np.minimum(count, least) + extra * np.minimum(count, least + 1)
    time = cheapest_sums(row.layer_s[None], row.counts)
    time = time + cheapest_sums(row.recompute_s[None], row.counts)[:, recomputed]
    return time + row.end_s[:, None], recomputed


def _floors_at_count(row: StageRow, count: int) -> FloatArray:
    time, recomputed = _times_at_count(row, count)
    flight = row.in_flight[:, None]
    full = cheapest_sums(row.state_bytes + flight * row.activation_bytes, row.counts)
    saved = -cheapest_sums(-row.saved_bytes[None], row.counts)[:, recomputed]
    used = full - flight * saved + row.end_bytes[:, None] + row.transient_bytes * (recomputed > 0)
    return np.where(used <= row.capacity_bytes * (1 + ROUNDING), time, np.inf)


def _floors_one_kind(row: StageRow) -> FloatArray:
    n = np.broadcast_to(np.arange(row.blocks + 1), (row.ranks, row.blocks + 1)).reshape(-1, 1)
    rank = np.repeat(np.arange(row.ranks), row.blocks + 1)
    recomputed, fits = least_recompute(row, rank, n)
    return np.where(fits, time_taken(row, rank, n, recomputed), np.inf).reshape(row.ranks, -1)


def _floors_many_kinds(row: StageRow) -> FloatArray:
    """Price memory by multipliers at which recomputing a kind is neutral, and sum the n cheapest blocks."""
    time = cheapest_sums(row.layer_s[None], row.counts) + row.end_s[:, None]
    room = (row.capacity_bytes - row.end_bytes)[:, None]
    flight = row.in_flight[:, None]
    saved = flight * np.maximum(row.saved_bytes, 0.0) if row.may_recompute else np.zeros((row.ranks, 1))
    most = row.state_bytes + flight * row.activation_bytes
    fits = cheapest_sums(most - saved, row.counts) <= room + ROUNDING * row.capacity_bytes
    for kind in range(len(row.counts)) if row.may_recompute else ():
        saved_k = saved[:, kind]
        price = np.divide(row.recompute_s[kind], saved_k, out=np.zeros(row.ranks), where=saved_k > 0)[:, None]
        cost = row.layer_s + price * most + np.minimum(0.0, row.recompute_s - price * saved)
        floor = cheapest_sums(cost, row.counts) - price * room + row.end_s[:, None]
        time = np.maximum(time, floor - ROUNDING * np.abs(price * room))
    return np.where(fits, time, np.inf)


def least_recompute(row: StageRow, rank: IntArray, blocks: IntArray) -> tuple[IntArray, NDArray[np.bool_]]:
    """Return the recomputed blocks (n, K) that make ``blocks`` (n, K) on ``rank`` (n,) fit in the least time.

    The second value tells which rows fit at all. Every kind but the last is tried at every number of
    blocks, the last takes what is still needed: exact, and cheap since a rank holds few blocks of most kinds.
    """
    need = bytes_used(row, rank, blocks, np.zeros_like(blocks)) - row.capacity_bytes
    best, fits = np.zeros_like(blocks), need <= 0
    if not row.may_recompute or fits.all():
        return best, fits
    short = np.flatnonzero(~fits & (bytes_used(row, rank, blocks, blocks) <= row.capacity_bytes))
    if len(short):
        best[short], fits[short] = _cheapest_recompute(row, rank[short], blocks[short], need[short])
    return best, fits


def _cheapest_recompute(
    row: StageRow, rank: IntArray, blocks: IntArray, need: FloatArray
) -> tuple[IntArray, NDArray[np.bool_]]:
    """Choose blocks that save ``need`` bytes (n,) beside what recomputing takes itself."""
    best = np.zeros_like(blocks)
    best_s = np.full(len(blocks), np.inf)
    per_block = row.in_flight[rank, None] * row.saved_bytes
    for head in np.ndindex(*(blocks[:, :-1].max(axis=0) + 1)):
        has = np.flatnonzero((blocks[:, :-1] >= head).all(axis=1))
        tried = np.empty((len(has), blocks.shape[1]), dtype=np.int64)
        tried[:, :-1] = head
        rest = need[has] + row.transient_bytes - per_block[has, :-1] @ np.array(head, dtype=float)
        tried[:, -1] = _blocks_for(rest, per_block[has, -1], blocks[has, -1])
        tried = _repair(row, rank[has], blocks[has], tried)
        time = tried @ row.recompute_s
        works = (tried[:, -1] <= blocks[has, -1]) & (tried.sum(axis=1) > 0) & (time < best_s[has])
        works &= bytes_used(row, rank[has], blocks[has], tried) <= row.capacity_bytes
        best[has[works]], best_s[has[works]] = tried[works], time[works]
    return best, np.isfinite(best_s)


def _blocks_for(need: FloatArray, per_block: FloatArray, at_most: IntArray) -> IntArray:
    """Return the fewest blocks that save ``need`` bytes, one more than ``at_most`` when none do."""
    ratio = np.divide(need, per_block, out=np.full(len(need), np.inf), where=per_block > 0)
    ratio[need <= 0] = 0.0
    needed: IntArray = np.ceil(np.minimum(ratio, at_most + 1)).astype(np.int64)
    return needed


def _repair(row: StageRow, rank: IntArray, blocks: IntArray, tried: IntArray) -> IntArray:
    """Correct the last kind by one block where rounding of the quotient was decisive."""
    fewer, more = tried.copy(), tried.copy()
    fewer[:, -1] = np.maximum(fewer[:, -1] - 1, 0)
    more[:, -1] += bytes_used(row, rank, blocks, tried) > row.capacity_bytes
    lucky = (fewer.sum(axis=1) > 0) & (bytes_used(row, rank, blocks, fewer) <= row.capacity_bytes)
    repaired: IntArray = np.where(lucky[:, None], fewer, more)
    return repaired


def bytes_used(row: StageRow, rank: IntArray, blocks: IntArray, recomputed: IntArray) -> FloatArray:
    """Return the bytes (n,) of ranks with given blocks and recomputed blocks (n, K).

    Terms are added in the order of ``price_stages``, so that both agree to the last bit on what fits.
    """
    held = _weighted(blocks, row.activation_bytes) - _weighted(recomputed, row.saved_bytes)
    used = _weighted(blocks, row.state_bytes) + row.in_flight[rank] * held + row.common_bytes
    used += (recomputed.sum(axis=1) > 0) * row.transient_bytes
    return used + row.first_bytes[rank] + row.last_bytes[rank]


def time_taken(row: StageRow, rank: IntArray, blocks: IntArray, recomputed: IntArray) -> FloatArray:
    """Return the time (n,) of ranks with given blocks and recomputed blocks (n, K)."""
    time = _weighted(blocks, row.layer_s) + _weighted(recomputed, row.recompute_s)
    return time + row.first_s[rank] + row.last_s[rank]


def _weighted(blocks: IntArray, values: FloatArray) -> FloatArray:
    total: FloatArray = blocks[:, 0] * values[0]
    for kind in range(1, len(values)):
        total += blocks[:, kind] * values[kind]
    return total
