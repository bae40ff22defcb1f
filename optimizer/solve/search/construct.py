"""Good stages for many layouts at once: an early incumbent for the search and a hint for CP-SAT. No proof rests on it."""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.terms import StageCosts, price_stages, whole_groups
from layoutopt.optimizer.frameworks.stage_rule import Recomputation, Split
from layoutopt.optimizer.solve.search.bound import by_depth, case_bounds, case_slices
from layoutopt.optimizer.solve.search.cases import stage_cases
from layoutopt.optimizer.solve.search.fill import Filling
from layoutopt.optimizer.solve.search.floors import runs
from layoutopt.optimizer.solve.splits import Chunks, chunks, fewest_blocks, within_limits
from layoutopt.optimizer.space.stage_splits import allowed_sizes
from layoutopt.optimizer.space.stages import spread
from layoutopt.optimizer.specs.vocabulary import Schedule

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from layoutopt.optimizer.cost.batch import IntArray
    from layoutopt.optimizer.cost.terms import FloatArray, StageTerms
    from layoutopt.optimizer.frameworks.stage_rule import StageRule

RELAXATIONS = (
    1.0,
    1.002,
    1.01,
)  # bottlenecks tried, relative to the least one: slower ones may recompute less
ROUNDS = 40  # of moving one block
MOVED_CELLS = 1 << 20  # chunks of all the moves tried in a round
NONE_FITS = np.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """Stages of ``n`` layouts: blocks and recomputed blocks (n, P, K), and about the step time, inf where they don't fit."""

    blocks: IntArray
    recomputed: IntArray
    step_time_s: FloatArray

    def take(self, index: NDArray[np.int64]) -> Stages:
        """Return the layouts at some positions (k,)."""
        return Stages(
            blocks=self.blocks[index], recomputed=self.recomputed[index], step_time_s=self.step_time_s[index]
        )


def complete(terms: StageTerms, totals: IntArray, counts: IntArray, rule: StageRule) -> Stages:
    """Add kinds and the least recomputation that fits to the blocks of every rank, ``totals`` (n, P)."""
    cut = chunks(totals, terms, in_step=rule.split is Split.FREE)
    blocks = cut.kinds(counts, rule.order).sum(axis=1)
    if rule.recomputation is Recomputation.PER_RANK:
        recomputed = _least_per_rank(terms, blocks)
        costs = price_stages(terms, blocks, recomputed)
    else:
        recomputed, costs = _least_shared(terms, cut, blocks, counts, rule)
    whole = totals.sum(axis=1) == counts.sum()  # a bottleneck in floats may leave no room for the last blocks
    allowed = costs.fits & whole & (totals >= fewest_blocks(terms, totals.shape[1])).all(axis=1)
    if rule.limits:
        allowed &= within_limits(totals, terms, rule)
    allowed &= allowed_sizes(rule, rule.split, cut.size, terms.pp, terms.vp, terms.folded)
    allowed &= whole_groups(terms, cut.size)
    step = np.where(allowed, costs.step_time_s + _waits_s(terms, cut, counts, rule, recomputed), NONE_FITS)
    return Stages(blocks=blocks, recomputed=recomputed, step_time_s=step)


def _waits_s(
    terms: StageTerms, cut: Chunks, counts: IntArray, rule: StageRule, recomputed: IntArray
) -> FloatArray:
    """Estimate how long ranks of interleaved layouts wait for each other, (n,) seconds of a step.

    A group of micro-batches passes chunk by chunk through all ranks, so that each chunk takes what its slowest rank takes:
    more than the slowest rank takes in all where ranks are slow in different chunks.
    """
    waits = np.zeros(len(terms))
    rows = np.flatnonzero(runs(terms, (Schedule.INTERLEAVED,)))
    if not len(rows):
        return waits
    part, pp, vp = terms.take(rows), terms.pp[rows], terms.vp[rows]
    own = Chunks(start=cut.start[rows], size=cut.size[rows])
    again_s = (recomputed[rows] @ part.recompute_s[:, :, None])[..., 0] / vp[:, None]
    chunk_s = (own.kinds(counts, rule.order) @ part.layer_s[:, None, :, None])[..., 0]
    chunk_s += np.where(np.arange(chunk_s.shape[1])[:, None] < vp[:, None, None], again_s[:, None], 0.0)
    row = np.arange(len(rows))
    chunk_s[row, 0, 0] += part.first_s
    chunk_s[row, vp - 1, pp - 1] += part.last_s
    together_s = chunk_s.max(axis=2).sum(axis=1) - chunk_s.sum(axis=1).max(axis=1)
    waits[rows] = (part.micro_batches - part.bubble_weight) * together_s
    return waits


def _least_per_rank(terms: StageTerms, blocks: IntArray) -> IntArray:
    """Recompute the kinds that free most bytes per second first, whole blocks, until the rank fits."""
    saved = (
        terms.in_flight[..., None]
        * (terms.layer_activation_bytes - terms.recomputed_activation_bytes)[:, None]
    )
    plain = price_stages(terms, blocks, np.zeros_like(blocks)).rank_bytes
    missing = plain - terms.capacity_bytes[:, None]
    may = terms.may_recompute[:, None] & (missing > 0)
    missing = np.where(may, missing + terms.recompute_transient_bytes[:, None], 0.0)
    result = np.zeros_like(blocks)
    useful = saved > 0
    # The kind that frees most bytes per second goes first, as a knapsack is filled.
    pace = np.where(useful, saved, 0.0) / np.maximum(terms.recompute_s, 1e-30)[:, None]
    order = np.argsort(-pace, axis=2)
    for turn in range(blocks.shape[2]):
        kind = order[..., turn : turn + 1]
        each = np.take_along_axis(saved, kind, axis=2)[..., 0]
        own = np.take_along_axis(blocks, kind, axis=2)[..., 0]
        wanted = np.ceil(np.maximum(missing, 0.0) / np.where(each > 0, each, np.inf) * (1 + 1e-12))
        taken = np.minimum(own, wanted.astype(np.int64))
        np.put_along_axis(result, kind, taken[..., None], axis=2)
        missing = missing - taken * each
    return result


def _least_shared(
    terms: StageTerms, cut: Chunks, blocks: IntArray, counts: IntArray, rule: StageRule
) -> tuple[IntArray, StageCosts]:
    """Find the least number of recomputed blocks per stage that fits, by halving; more of them only cost time."""
    recomputed = np.zeros_like(blocks)
    costs = price_stages(terms, blocks, recomputed)
    most = int(cut.size.max(initial=0))
    open_ = np.flatnonzero(~costs.fits & terms.may_recompute)
    if not (len(open_) and most):
        return recomputed, costs
    part, held = terms.take(open_), blocks[open_]
    own = Chunks(start=cut.start[open_], size=cut.size[open_])

    def again(number: IntArray) -> IntArray:
        """Kinds of the first ``number`` (n,) blocks of every chunk, summed by rank, (n, P, K)."""
        kinds: IntArray = own.kinds(counts, rule.order, number[:, None, None]).sum(axis=1)
        return kinds

    # More recomputed blocks never need more memory, so that halving finds the fewest.
    high = np.full(len(open_), most)
    low = np.zeros_like(high) if rule.recomputation is Recomputation.UNIFORM_COUNT else high - 1
    while (high - low > 1).any():
        middle = (low + high) // 2
        fits = price_stages(part, held, again(middle)).fits
        low, high = np.where(fits, low, middle), np.where(fits, middle, high)
    recomputed[open_] = again(high)
    return recomputed, price_stages(terms, blocks, recomputed)


def construct(terms: StageTerms, counts: IntArray, rule: StageRule, cutoff_s: float = np.inf) -> Stages:
    """Find stages, for blocks by kind (K,), of layouts with a bound below ``cutoff_s``; the others' take infinite time."""
    shape = (len(terms), terms.in_flight.shape[1], len(counts))
    empty = np.zeros(shape, dtype=np.int64)
    best = Stages(blocks=empty, recomputed=empty.copy(), step_time_s=np.full(len(terms), NONE_FITS))
    for index, part in by_depth(terms):
        for cases in case_slices(stage_cases(part, int(counts.sum()), rule), counts):
            found = case_bounds(part, counts, cases, cutoff_s)
            alive = np.flatnonzero(np.isfinite(found.slowest_s))
            if not len(alive):
                continue
            cases = cases.take(alive)
            filling = Filling(part, counts, cases, found.slowest_s[alive])
            own = part.take(cases.row)
            tried = [filling.totals(factor) for factor in RELAXATIONS]
            if (own.vp > 1).any():
                tried.append(filling.equal_chunks())
            for totals in tried:
                _keep_best(best, index[cases.row], complete(own, totals, counts, rule))
    return best


def good_stages(terms: StageTerms, counts: IntArray, rule: StageRule, below_s: float = np.inf) -> Stages:
    """Construct and improve one layout's stages, for blocks by kind (K,); infinite time where none is below ``below_s``."""
    return improve(terms, construct(terms, counts, rule, below_s), counts, rule)


def by_chunk(
    terms: StageTerms, stages: Stages, counts: IntArray, rule: StageRule
) -> tuple[IntArray, IntArray]:
    """Return blocks and recomputed blocks (V, P, K) of every chunk of the first layout."""
    one = terms.take(np.array([0]))
    cut = chunks(stages.blocks[:1].sum(axis=2), one, in_step=rule.split is Split.FREE)
    pp = int(terms.pp[0])
    kinds = cut.kinds(counts, rule.order)[0, :, :pp]

    def first(number: int) -> IntArray:
        """Kinds of the first ``number`` blocks of every stage, (V, P, K)."""
        return cut.kinds(counts, rule.order, np.array(number))[0, :, :pp]

    return kinds, spread(kinds, stages.recomputed[0, :pp], first)


def _keep_best(best: Stages, row: IntArray, found: Stages) -> None:
    order = np.argsort(found.step_time_s, kind="stable")
    rows, first = np.unique(row[order], return_index=True)
    pick = order[first]
    better = found.step_time_s[pick] < best.step_time_s[rows]
    rows, pick = rows[better], pick[better]
    ranks = found.blocks.shape[1]
    best.blocks[rows, :ranks], best.recomputed[rows, :ranks] = found.blocks[pick], found.recomputed[pick]
    best.step_time_s[rows] = found.step_time_s[pick]


def improve(terms: StageTerms, stages: Stages, counts: IntArray, rule: StageRule) -> Stages:
    """Move single blocks between ranks of one layout, of kinds (K,), while the step gets shorter."""
    movable = terms.pp[0] > 1 and np.isfinite(stages.step_time_s[0])
    for _ in range(ROUNDS if movable else 0):
        totals = stages.blocks[0].sum(axis=1)
        moved = _neighbours(totals, _moves(terms, stages))
        found = complete(terms.take(np.zeros(len(moved), dtype=np.int64)), moved, counts, rule)
        best = int(np.argmin(found.step_time_s))
        if not found.step_time_s[best] < stages.step_time_s[0]:
            break
        stages = found.take(np.array([best]))
    return stages


def _moves(terms: StageTerms, stages: Stages) -> tuple[IntArray, IntArray]:
    """Pair the ranks that give a block with those that take one: all of them, or of a deep pipeline the extreme ones."""
    pp, cells = int(terms.pp[0]), int(terms.vp[0]) * stages.blocks[0].size
    fewest = max(isqrt(MOVED_CELLS // cells), 2)
    order = np.arange(pp)
    if pp > fewest:
        order = np.argsort(
            price_stages(terms, stages.blocks, stages.recomputed).rank_time_s[0, :pp], kind="stable"
        )
    source, target = (axis.ravel() for axis in np.meshgrid(order[-fewest:], order[:fewest], indexing="ij"))
    return source, target


def _neighbours(totals: IntArray, moves: tuple[IntArray, IntArray]) -> IntArray:
    source, target = moves
    different = source != target
    source, target = source[different], target[different]
    moved = np.repeat(totals[None], len(source), axis=0)
    moved[np.arange(len(source)), source] -= 1
    moved[np.arange(len(target)), target] += 1
    return moved[(moved >= 0).all(axis=1)]
