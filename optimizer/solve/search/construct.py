"""Good stages for many layouts at once: an early incumbent for the search and a hint for CP-SAT. No proof rests on it."""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.terms import StageCosts, price_stages, whole_groups
from layoutopt.optimizer.frameworks.stage_rule import Recomputation
from layoutopt.optimizer.solve.search.bound import case_bounds, case_slices, stage_units
from layoutopt.optimizer.solve.search.cases import stage_cases
from layoutopt.optimizer.solve.splits import Chunks, chunks, fewest_blocks, within_limits
from layoutopt.optimizer.space.stage_splits import allowed_sizes
from layoutopt.optimizer.space.stages import spread

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from layoutopt.optimizer.cost.batch import IntArray
    from layoutopt.optimizer.cost.terms import FloatArray, StageTerms
    from layoutopt.optimizer.frameworks.stage_rule import StageRule
    from layoutopt.optimizer.solve.search.cases import Cases

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
    """Stages of ``n`` layouts: blocks and recomputed blocks (n, P, K), and the step time, inf where they don't fit."""

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
    cut = chunks(totals, terms)
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
    step = np.where(allowed, costs.step_time_s, NONE_FITS)
    return Stages(blocks=blocks, recomputed=recomputed, step_time_s=step)


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
    ranks = terms.in_flight.shape[1]
    shape = (len(terms), ranks, len(counts))
    empty = np.zeros(shape, dtype=np.int64)
    best = Stages(blocks=empty, recomputed=empty.copy(), step_time_s=np.full(len(terms), NONE_FITS))
    for cases in case_slices(stage_cases(terms, int(counts.sum()), rule), counts):
        found = case_bounds(terms, counts, cases, cutoff_s)
        alive = np.flatnonzero(np.isfinite(found.slowest_s))
        if not len(alive):
            continue
        part, slowest = cases.take(alive), found.slowest_s[alive]
        for factor in RELAXATIONS:
            totals = _fill(terms, counts, part, slowest * factor)
            _keep_best(best, part.row, complete(terms.take(part.row), totals, counts, rule))
    return best


def good_stages(terms: StageTerms, counts: IntArray, rule: StageRule, below_s: float = np.inf) -> Stages:
    """Construct and improve one layout's stages, for blocks by kind (K,); infinite time where none is below ``below_s``."""
    return improve(terms, construct(terms, counts, rule, below_s), counts, rule)


def by_chunk(
    terms: StageTerms, stages: Stages, counts: IntArray, rule: StageRule
) -> tuple[IntArray, IntArray]:
    """Return blocks and recomputed blocks (V, P, K) of every chunk of the first layout."""
    cut = chunks(stages.blocks[:1].sum(axis=2), terms.take(np.array([0])))
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
    best.blocks[rows], best.recomputed[rows] = found.blocks[pick], found.recomputed[pick]
    best.step_time_s[rows] = found.step_time_s[pick]


def _fill(terms: StageTerms, counts: IntArray, cases: Cases, slowest_s: FloatArray) -> IntArray:
    """Fill the ranks up to a bottleneck time, then take the surplus from where it spares most recomputation."""
    most, unaided = stage_units(terms, counts, cases, slowest_s)
    full: IntArray = np.minimum(np.maximum(most, cases.fewest), cases.most).astype(np.int64)
    spared: IntArray = np.clip(unaided, cases.fewest, full).astype(np.int64)
    surplus = full.sum(axis=1) - int(counts.sum())
    # In-flight micro-batches fall along the pipeline, so earlier ranks recompute more per block.
    first = _take(surplus, full - spared)
    return full - first - _take(surplus - first.sum(axis=1), full - first - cases.fewest)


def _take(wanted: IntArray, available: IntArray) -> IntArray:
    """Take ``wanted`` (n,) from ``available`` (n, P) from the first rank on."""
    before = np.cumsum(available, axis=1) - available
    return np.clip(wanted[:, None] - before, 0, available)


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
