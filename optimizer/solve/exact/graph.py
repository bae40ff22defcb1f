"""Dynamic programming over pipeline ranks: the least sum of rank times when no rank may exceed a limit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from layoutopt.optimizer.cost.terms import FloatArray, IntArray
    from layoutopt.optimizer.solve.exact.options import Options
    from layoutopt.optimizer.solve.exact.row import StageRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """The ways from the states before a rank to those after it, sorted by the state they lead to.

    ``source`` (n,) is the state before, ``option`` (n,) what the rank holds, ``time_s`` (n,) its time;
    ``starts`` marks the first way into each state after the rank.
    """

    source: IntArray
    option: IntArray
    time_s: FloatArray
    starts: IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class StageGraph:
    """All contiguous ways to give the blocks to the ranks; the only state after the last has placed all."""

    layers: tuple[Layer, ...]

    def least_sum_s(self, limit_s: float) -> float:
        """Return the least sum of rank times with every rank within ``limit_s``; inf if there is none."""
        return float(self._costs(limit_s)[-1][0][0])

    def path(self, limit_s: float) -> IntArray:
        """Return the option of each rank on a way of least sum."""
        costs = self._costs(limit_s)
        state, chosen = 0, np.zeros(len(self.layers), dtype=np.int64)
        for rank in range(len(self.layers) - 1, -1, -1):
            layer, ways = self.layers[rank], costs[rank][1]
            start = layer.starts[state]
            end = layer.starts[state + 1] if state + 1 < len(layer.starts) else len(ways)
            way = start + int(np.argmin(ways[start:end]))
            chosen[rank], state = layer.option[way], int(layer.source[way])
        return chosen

    def _costs(self, limit_s: float) -> list[tuple[FloatArray, FloatArray]]:
        costs, best = [], np.zeros(1)
        for layer in self.layers:
            ways = best[layer.source] + layer.time_s
            ways[layer.time_s > limit_s] = np.inf
            best = np.minimum.reduceat(ways, layer.starts)
            costs.append((best, ways))
        return costs


@dataclass(frozen=True, slots=True, kw_only=True)
class _Windows:
    """Cumulative blocks (P, K) after each rank from which the rest can be placed, by passed cut or not."""

    low_open: IntArray
    high_open: IntArray
    low_passed: IntArray
    high_passed: IntArray


def build_graph(
    row: StageRow, options: Options, low: IntArray, high: IntArray, cuts: tuple[int, ...]
) -> StageGraph | None:
    """Chain the options of all ranks, leaving out states from which the blocks can't all be placed.

    ``low`` and ``high`` (P,) limit the blocks per rank; None means that no way exists.
    """
    windows = _windows(row, low, high, cuts)
    ends = np.searchsorted(options.rank, np.arange(row.ranks + 1))
    state, passed = np.zeros((1, len(row.counts)), dtype=np.int64), np.zeros(1, dtype=np.int64)
    layers = []
    for rank in range(row.ranks):
        mine = slice(ends[rank], ends[rank + 1])
        source, option = np.nonzero(passed[:, None] == options.needs[None, mine])
        option = option + ends[rank]
        after, leaves = state[source] + options.cumulative[option], options.leaves[option]
        keep = np.flatnonzero(_inside(windows, rank, after, leaves))
        if not len(keep):
            return None
        source, option, after, leaves = source[keep], option[keep], after[keep], leaves[keep]
        order, starts = _group(after, leaves, 2 * row.blocks + 2)
        source, option = source[order], option[order]
        state, passed = after[order[starts]], leaves[order[starts]]
        layers.append(Layer(source=source, option=option, time_s=options.time_s[option], starts=starts))
    return StageGraph(layers=tuple(layers))


def _group(after: IntArray, leaves: IntArray, base: int) -> tuple[IntArray, IntArray]:
    """Sort ways by the state they lead to; ``base`` exceeds every coordinate, so a state is one integer."""
    if float(base) ** after.shape[1] * 2.0 ** after.shape[1] > np.iinfo(np.int64).max:
        state = np.column_stack([leaves, after])
        order = np.lexsort(state.T)
        changes = np.diff(state[order], axis=0).any(axis=1)
    else:
        key = leaves
        for column in after.T:
            key = key * base + column
        order = np.argsort(key, kind="stable")
        changes = np.diff(key[order]) != 0
    return order, np.concatenate([[0], np.flatnonzero(changes) + 1])


def _inside(windows: _Windows, rank: int, after: IntArray, leaves: IntArray) -> IntArray:
    cuts = after.shape[1] - 1
    # The last column counts all blocks: it has no cut and uses the window of a passed one.
    passed = np.ones(after.shape, dtype=bool)
    passed[:, :cuts] = (leaves[:, None] >> np.arange(cuts)) & 1
    low = np.where(passed, windows.low_passed[rank], windows.low_open[rank])
    high = np.where(passed, windows.high_passed[rank], windows.high_open[rank])
    inside: IntArray = ((after >= low) & (after <= high)).all(axis=1)
    return inside


def _windows(row: StageRow, low: IntArray, high: IntArray, cuts: tuple[int, ...]) -> _Windows:
    """Sum over later ranks the least and most blocks they may add to each cumulative count.

    The blocks of the first chunks of a rank never fall when the rank holds more, so the ends of the
    range are reached at ``low`` and ``high``.
    """
    ranks = np.arange(row.ranks)
    few, many = row.chunk_sizes(ranks, low), row.chunk_sizes(ranks, high)
    least = np.stack([*(few[:, :chunk].sum(axis=1) for chunk in cuts), low], axis=1)
    most = np.stack([*(many[:, :chunk].sum(axis=1) for chunk in cuts), high], axis=1)
    most_open = np.stack([*(many[:, : chunk + 1].sum(axis=1) for chunk in cuts), high], axis=1)
    least_after, most_after = least, most
    if row.folded:
        # Ranks after the cut's rank hold earlier stages: the whole second chunk is before the cut.
        back = np.array([*(chunk == 1 for chunk in cuts), False])
        behind = np.stack([*(few[:, : chunk + 1].sum(axis=1) for chunk in cuts), low], axis=1)
        least_after, most_after = np.where(back, behind, least), np.where(back, most_open, most)
    goal = np.cumsum(row.counts)
    return _Windows(
        low_open=goal - _later(most_open),
        high_open=goal - 1 - _later(least),
        low_passed=goal - _later(most_after),
        high_passed=goal - _later(least_after),
    )


def _later(per_rank: IntArray) -> IntArray:
    """Return the sums over the ranks after each rank."""
    total: IntArray = per_rank.sum(axis=0) - np.cumsum(per_rank, axis=0)
    return total
