"""The exact optimum of one layout's stages by parametric search, without a solver.

The step time is ``(m - w) * max T + w * sum T + fixed``. For a limit on max T, dynamic programming over the
ranks (``exact_graph``) gives the least sum of times S(limit), which never rises with the limit. Among limits
i < j the value is then at least ``(m - w) * limit_i + w * S(limit_j)``, so that bisection on the distinct
rank times closes in on the best limit and drops every interval whose bound is not below the best value found.
Freedom that is not the sum of independent ranks becomes a few separate searches: the number of recomputed
blocks per chunk, the sizes a near-equal split may take, and the chunk in which each kind of block ends.

With one kind the search costs about two milliseconds. With several, states are cumulative blocks per kind:
few when a kind has few blocks (leading dense layers), at most the product of the kinds' counts otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.frameworks.stage_rule import Recomputation, StageRule
from layoutopt.optimizer.solve.exact.graph import build_graph
from layoutopt.optimizer.solve.exact.options import stage_options
from layoutopt.optimizer.solve.exact.row import (
    ROUNDING,
    StageRow,
    cheapest_sums,
    quickest_floors,
    time_floors,
)
from layoutopt.optimizer.space.stage_splits import boxes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from layoutopt.optimizer.cost.terms import FloatArray, IntArray, StageTerms
    from layoutopt.optimizer.solve.exact.graph import StageGraph
    from layoutopt.optimizer.solve.exact.options import Options

    Box = tuple[IntArray, IntArray]

# First window of rank times above the least bottleneck, and how it widens until a split is inside: small
# enough to keep the graph thin, large enough for one or two rounds (an uneven block is 5-15% of a rank).
FIRST_SLACK, WIDER = 0.03, 4.0
# Rounds of bisection for the multiplier of the block count; any multiplier is valid, so this is speed only.
MULTIPLIER_ROUNDS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class StageOptimum:
    """The best stages of one layout.

    ``blocks`` and ``recomputed`` have shape (pp, K): blocks of each kind on each rank over all its chunks,
    and how many of them are fully recomputed. ``step_time_s`` in seconds.
    """

    step_time_s: float
    blocks: IntArray
    recomputed: IntArray


def solve_stages(
    terms: StageTerms, counts: Sequence[int] | IntArray, rule: StageRule, *, below_s: float = np.inf
) -> StageOptimum | None:
    """Return the fastest stages of the only row of ``terms`` that fit and take less than ``below_s`` seconds.

    ``counts`` are the model's blocks of each kind, in order. None means that no stages fit, or none below
    ``below_s``. All times and bytes must be non-negative and ``bubble_weight`` below ``micro_batches``.
    """
    row = StageRow.from_terms(terms, counts)
    best = _Best(row=row, step_time_s=below_s)
    for low, high in boxes(rule, row.ranks, row.chunks, row.blocks, folded=row.folded):
        for count in _recompute_counts(row, rule, high):
            if (
                count
                and np.isfinite(best.step_time_s)
                and _quickest_s(row, low, high, count) >= best.step_time_s
            ):
                break  # with more recomputation every rank only takes longer
            best = _improve(best, low, high, count)
            if count is not None and _memory_is_ample(best, low, high, count):
                break
    return best.answer


@dataclass(frozen=True, slots=True, kw_only=True)
class _Best:
    """The best stages so far, or only the time to beat."""

    row: StageRow
    step_time_s: float
    answer: StageOptimum | None = None

    def limit_s(self, least_sum_s: float) -> float:
        """Return the limit that every better split obeys if its times sum to at least ``least_sum_s``."""
        row = self.row
        return (self.step_time_s - row.fixed_s - row.sum_weight * least_sum_s) / row.peak_weight

    def value_s(self, limit_s: float, sum_s: float) -> float:
        """Return the step time of a bottleneck and a sum of stage times."""
        return self.row.peak_weight * limit_s + self.row.sum_weight * sum_s + self.row.fixed_s


def _recompute_counts(row: StageRow, rule: StageRule, high: IntArray) -> Sequence[int | None]:
    """Return the numbers of recomputed blocks per chunk to try, None where every rank is free."""
    if not row.may_recompute:
        return (0,)
    if rule.recomputation is Recomputation.PER_RANK:
        return (None,)
    if rule.recomputation is Recomputation.ALL_OR_NONE:
        return (0, row.blocks)
    fits = np.isfinite(time_floors(row, row.blocks)) | np.isfinite(time_floors(row, 0))
    fits &= np.arange(row.blocks + 1) <= high[:, None]
    most = (fits * np.arange(row.blocks + 1)).max()
    return range(-(-int(most) // row.chunks) + 1)


def _quickest_s(row: StageRow, low: IntArray, high: IntArray, count: int) -> float:
    """Return a floor under the step time with ``count`` recomputed blocks per chunk or more, memory aside."""
    slowest = _least_bottleneck_s(_mask(quickest_floors(row, count), low, high), row.blocks)
    return row.peak_weight * slowest + row.sum_weight * row.work_s + row.fixed_s


def _memory_is_ample(best: _Best, low: IntArray, high: IntArray, count: int) -> bool:
    """Tell whether any faster split fits with ``count`` recomputed blocks: more of them are useless then."""
    row = best.row
    within = _range_within(_mask(quickest_floors(row, count), low, high), best.limit_s(row.work_s))
    if not _holds(within, row.blocks):
        return True
    used = -cheapest_sums(-row.state_bytes - row.in_flight[:, None] * row.activation_bytes, row.counts)
    most = used[np.arange(row.ranks), within[1]] + row.end_bytes + row.transient_bytes * (count > 0)
    return bool((most <= row.capacity_bytes * (1 - ROUNDING)).all())


def _mask(floors: FloatArray, low: IntArray, high: IntArray) -> FloatArray:
    n = np.arange(floors.shape[1])
    return np.where((n >= low[:, None]) & (n <= high[:, None]), floors, np.inf)


def _range_within(floors: FloatArray, limit_s: float) -> Box:
    """Return the fewest and most blocks of each rank within the limit; fewest > most where there are none."""
    within = floors <= limit_s
    blocks = floors.shape[1] - 1
    low = np.where(within.any(axis=1), within.argmax(axis=1), blocks + 1)
    return low, blocks - within[:, ::-1].argmax(axis=1)


def _holds(box: Box, blocks: int) -> bool:
    low, high = box
    return bool((low <= high).all() and low.sum() <= blocks <= high.sum())


def _least_bottleneck_s(floors: FloatArray, blocks: int) -> float:
    """Return a floor under the slowest rank's time: the least limit within which all blocks may find room."""
    times = np.unique(floors[np.isfinite(floors)])
    if not len(times) or not _holds(_range_within(floors, times[-1]), blocks):
        return float(np.inf)
    below, enough = -1, len(times) - 1
    while enough - below > 1:
        middle = (below + enough) // 2
        if _holds(_range_within(floors, times[middle]), blocks):
            enough = middle
        else:
            below = middle
    return float(times[enough])


def _least_sum_s(row: StageRow, floors: FloatArray) -> float:
    """Return a floor under the sum of rank times: Lagrangian relaxation of the number of blocks."""
    best, n = row.work_s, np.arange(row.blocks + 1)
    low, high = 0.0, 2 * float((row.layer_s + row.recompute_s).max())
    for _ in range(MULTIPLIER_ROUNDS):
        price = (low + high) / 2
        reduced = floors - price * n
        best = max(best, price * row.blocks + float(reduced.min(axis=1).sum()))
        if reduced.argmin(axis=1).sum() < row.blocks:
            low = price
        else:
            high = price
    return best


def _improve(best: _Best, low: IntArray, high: IntArray, count: int | None) -> _Best:
    """Search one box, in windows of rank times that widen until nothing better can be outside."""
    row = best.row
    floors = _mask(time_floors(row, count), low, high)
    if _hopeless(best, floors):
        return best
    slowest = _least_bottleneck_s(floors, row.blocks)
    if not np.isfinite(slowest):
        return best
    least_sum = _least_sum_s(row, floors) if row.sum_weight else row.work_s
    # A rank with everything on it takes just this long: not less by another order of summation.
    top = float(row.counts @ (row.layer_s + row.recompute_s) + row.end_s.sum()) * (1 + ROUNDING)
    unit, slack = max(slowest, top / row.blocks, np.finfo(float).tiny), FIRST_SLACK
    while slowest <= (most := min(best.limit_s(least_sum), top)):
        limit = min(most, slowest + slack * unit)
        better = _search_window(best, floors, count, limit)
        slack = np.inf if better is not best else slack * WIDER
        best = better
        if limit >= most or limit >= best.limit_s(least_sum):
            break
    return best


def _hopeless(best: _Best, floors: FloatArray) -> bool:
    """Tell at once, in the usual case, that no split of the box beats the best."""
    limit = best.limit_s(best.row.work_s)
    return not _holds(_range_within(floors, limit), best.row.blocks)


def _search_window(best: _Best, floors: FloatArray, count: int | None, limit_s: float) -> _Best:
    row = best.row
    low, high = _range_within(floors, limit_s)
    if not _holds((low, high), row.blocks):
        return best
    # What the other ranks can't hold, this one must; what they must hold, it can't.
    low, high = (
        np.maximum(low, row.blocks - (high.sum() - high)),
        np.minimum(high, row.blocks - (low.sum() - low)),
    )
    for cuts in _cut_chunks(row, low, high):
        options = stage_options(row, low, high, count, cuts, limit_s)
        graph = build_graph(row, options, low, high, cuts)
        if graph is not None:
            best = _search_limits(best, graph, options)
    return best


def _cut_chunks(row: StageRow, low: IntArray, high: IntArray) -> Iterator[tuple[int, ...]]:
    """Yield the chunks that can hold the last block of each kind but the last."""
    ranks = np.arange(row.ranks)
    reached = np.cumsum(row.chunk_sizes(ranks, high).sum(axis=0))
    passed = np.cumsum(row.chunk_sizes(ranks, low).sum(axis=0))
    ends = np.cumsum(row.counts)[:-1]
    for cuts in combinations_with_replacement(range(row.chunks), len(ends)):
        possible = (
            end <= reached[c] and (c == 0 or end > passed[c - 1]) for c, end in zip(cuts, ends, strict=True)
        )
        if all(possible):
            yield cuts


def _search_limits(best: _Best, graph: StageGraph, options: Options) -> _Best:
    """Bisect the distinct rank times as limits on the slowest rank."""
    limits = np.unique(options.time_s)
    intervals = [(0, len(limits) - 1, graph.least_sum_s(limits[-1]))]
    while intervals:
        start, end, least_sum = intervals.pop()
        end = min(end, int(np.searchsorted(limits, best.limit_s(least_sum), side="left")) - 1)
        if start > end:
            continue
        middle = (start + end) // 2
        sum_s = graph.least_sum_s(limits[middle])
        if best.value_s(limits[middle], sum_s) < best.step_time_s:
            best = _adopt(best, graph, options, float(limits[middle]))
        intervals.append((middle + 1, end, least_sum))
        if np.isfinite(sum_s):
            intervals.append((start, middle - 1, sum_s))
    return best


def _adopt(best: _Best, graph: StageGraph, options: Options, limit_s: float) -> _Best:
    row, chosen = best.row, graph.path(limit_s)
    step = row.step_time_s(options.time_s[chosen])
    if step >= best.step_time_s:
        return best
    blocks = np.zeros((row.ranks, row.all_kinds), dtype=np.int64)
    recomputed = np.zeros_like(blocks)
    blocks[:, row.kinds] = options.blocks[chosen]
    recomputed[:, row.kinds] = options.recomputed[chosen]
    answer = StageOptimum(step_time_s=step, blocks=blocks, recomputed=recomputed)
    return _Best(row=row, step_time_s=step, answer=answer)
