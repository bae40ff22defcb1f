"""Lower bounds on the step time of a layout over all its stage splits and recomputations.

Both bounds rest on the bottleneck: no split is faster than the least time T at which the ranks together can hold all
blocks, each a whole number of them within T and within its memory, a rank's time being that of a path that stays on it
(``floors``). With several kinds the ranks are added up under weights per kind (a surrogate constraint), which forgets
that blocks are contiguous. The step then costs at least m * T, and where the paths pass all ranks, the least
recomputation with a bottleneck of T, for the best T. A bound is infinite only when provably no split fits.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.terms import own_bytes
from layoutopt.optimizer.frameworks.stage_rule import Recomputation
from layoutopt.optimizer.solve.search.capacity import SLACK, TINY, RankCapacity, at_most, mixes
from layoutopt.optimizer.solve.search.cases import Cases, free_cases, stage_cases
from layoutopt.optimizer.solve.search.floors import PLAIN, HeldBlocks, runs
from layoutopt.optimizer.solve.search.mean_blocks import is_long, mean_blocks, shortened
from layoutopt.optimizer.solve.splits import fewest_in
from layoutopt.optimizer.specs.vocabulary import Schedule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from layoutopt.optimizer.cost.batch import IntArray
    from layoutopt.optimizer.cost.terms import FloatArray, StageTerms
    from layoutopt.optimizer.frameworks.stage_rule import StageRule

CELLS = 1 << 16  # rank states handled at once: they should stay in a core's cache
SPARE_CELLS = 1_000  # ranks that layouts don't have, which arrays may hold: as much work as another call
HALVINGS = 8  # of the bracket around the bottleneck; the last step to the next whole block is exact
FIRST_BRACKET = 1.05
BREAKPOINTS = 3
SHARPENINGS = 4  # rounds in which what ranks must hold below the cutoff lengthens the paths that pass them
TRADE_OFFS = (1.01, 1.04, 1.2)  # slower bottlenecks at which the least recomputation is evaluated
FLOAT_ERROR = 1e-12  # relative, of a step time summed in another order


def quick_bound(terms: StageTerms, counts: IntArray) -> FloatArray:
    """Return a lower bound in closed form, (n,) seconds: whole blocks, no recomputation, the least memory.

    Infinite when some rank can't hold its fewest blocks or the ranks can't hold all of them. Ranks are busy for all
    their blocks; 1F1B and GPipe also pass every other rank once.
    """
    blocks = int(counts.sum())
    slowest_s = np.maximum(mean_rank_s(terms, counts), whole_blocks_s(terms, blocks))
    bound = np.maximum(terms.micro_batches * slowest_s, _passing_s(terms, counts)) + terms.outside_s
    return np.where(memory_fits(terms, blocks), bound * (1 - FLOAT_ERROR), np.inf)


def _passing_s(terms: StageTerms, counts: IntArray) -> FloatArray:
    """Bound 1F1B and GPipe: all ranks once, and the rank whose path is the longest.

    With f the forward's largest share of a rank's time T_s, the path of rank s takes at least (m - 1 - q f) T_s beside
    the work of all, q forwards being missed. The longest is at least the work over the sum of the reciprocals, which an
    integral over q bounds.
    """
    work = work_s(terms, counts)
    both = np.maximum(terms.forward_s + terms.backward_s, TINY)
    ends = np.maximum(np.stack([terms.embedding_s, terms.head_s])[..., :2].sum(axis=2), TINY)
    share = (terms.forward_s / both).max(axis=1)
    share = np.maximum(share, (np.stack([terms.embedding_s, terms.head_s])[..., 0] / ends).max(axis=0))
    left = np.maximum(terms.micro_batches - 1.0, 0.0)
    missed = np.where(runs(terms, (Schedule.ONE_F_ONE_B,)), share, 0.0)
    shrunk = left - missed * np.minimum(terms.pp, left)
    with np.errstate(divide="ignore", invalid="ignore"):
        late = np.maximum(terms.pp - left, 0.0) / shrunk  # ranks that miss all forwards but one
        sum_ = np.where(missed > 0, np.log(left / shrunk) / missed + late, terms.pp / left)
        longest = np.where((left > 0) & (shrunk > 0), work / sum_, 0.0)
    return np.where(runs(terms, PLAIN), work + longest, 0.0)


def work_s(terms: StageTerms, counts: IntArray) -> FloatArray:
    """Return the seconds (n,) that one micro-batch spends on all ranks without recomputation."""
    return terms.layer_s @ counts.astype(np.float64) + terms.first_s + terms.last_s


def mean_rank_s(terms: StageTerms, counts: IntArray) -> FloatArray:
    """Return the seconds (n,) of a micro-batch on the mean rank, of the model's ends where one takes longer alone."""
    return np.maximum(work_s(terms, counts) / terms.pp, np.maximum(terms.first_s, terms.last_s))


def whole_blocks_s(terms: StageTerms, blocks: int) -> FloatArray:
    """Return the least time (n,) at which the ranks hold ``blocks`` whole blocks of the fastest kind."""
    block_s = np.maximum(terms.layer_s.min(axis=1), TINY)
    alone = terms.pp == 1
    first = (terms.first_s + np.where(alone, terms.last_s, 0.0)) / block_s
    last = np.where(alone, first, terms.last_s / block_s)
    inner = np.maximum(terms.pp - 2, 0)

    def next_breakpoint(time: FloatArray) -> FloatArray:
        """The least time >= ``time``, in blocks, at which a rank is exactly full."""
        at_first = np.ceil(time - first - SLACK) + first
        at_last = np.ceil(time - last - SLACK) + last
        at_inner = np.where(inner > 0, np.ceil(time - SLACK), np.inf)
        earliest: FloatArray = np.minimum(np.minimum(at_first, at_last), at_inner)
        return earliest

    time = next_breakpoint((blocks + first + np.where(alone, 0.0, last)) / terms.pp)
    held = inner * np.floor(time + SLACK) + np.maximum(np.floor(time - first + SLACK), 0)
    held += np.where(alone, 0.0, np.maximum(np.floor(time - last + SLACK), 0))
    slowest_s: FloatArray = np.where(held < blocks, next_breakpoint(time + 3 * SLACK), time) * block_s
    return slowest_s


def memory_fits(terms: StageTerms, blocks: int) -> NDArray[np.bool_]:
    """Tell (n,) whether the ranks can hold all blocks when each block takes the least memory of any kind and mode."""
    again = np.minimum(terms.layer_activation_bytes, terms.recomputed_activation_bytes)
    activation = np.where(terms.may_recompute[:, None], again, terms.layer_activation_bytes)
    room = terms.capacity_bytes[:, None] - own_bytes(terms)
    fits = np.zeros(len(terms), dtype=bool)
    for pp in np.flatnonzero(np.bincount(terms.pp)):
        index = np.flatnonzero(terms.pp == pp)
        flight = terms.in_flight[index, :pp]
        per_block = np.full_like(flight, np.inf)
        for kind in range(activation.shape[1]):
            held = flight * activation[index, kind, None] + terms.layer_state_bytes[index, kind, None]
            np.minimum(per_block, held, out=per_block)
        count = at_most(room[index, :pp] / np.maximum(per_block, TINY))
        fewest = fewest_in(terms.vp[index], terms.folded[index], int(pp))
        fits[index] = (
            (count >= fewest).all(axis=1) & (count.sum(axis=1) >= blocks) & (fewest.sum(axis=1) <= blocks)
        )
    return fits


def lower_bound(
    terms: StageTerms, counts: IntArray, rule: StageRule, cutoff_s: float = np.inf, *, free: bool = False
) -> FloatArray:
    """Return a tight lower bound, (n,) seconds, on ``price_stages`` of every split and recomputation of the rule.

    ``counts`` (K,) are the blocks of each kind. Bounds of ``cutoff_s`` or more are returned as ``cutoff_s``, which
    is much cheaper than their value. ``free`` lets every layout that may recompute do so as it likes: weaker
    and faster, for terms that are themselves relaxed.
    """
    bound = np.full(len(terms), np.inf)
    blocks, quick = int(counts.sum()), np.zeros(len(terms))
    if is_long(rule.order, counts):
        quick = np.minimum(quick_bound(terms, counts), cutoff_s)
        anywhere = rule.recomputation is Recomputation.PER_RANK
        terms, counts = mean_blocks(terms, counts, rule.order, anywhere=anywhere)
        rule = replace(rule, order=())
    for index, part in by_depth(terms):
        least = _over_cases(part, counts, free_cases(part, blocks, rule), cutoff_s)
        bound[index] = least
        if not free and rule.recomputation is not Recomputation.PER_RANK:
            # Free recomputation rules out most layouts with one case each; with several kinds neither bound
            # is always the better one.
            alive = np.flatnonzero(least < cutoff_s)
            part, index, least = part.take(alive), index[alive], least[alive]
            own = _over_cases(part, counts, stage_cases(part, blocks, rule), cutoff_s)
            bound[index] = np.maximum(own, least)
    # mean blocks may say nothing of few on a rank
    return np.where(bound > 0, bound, quick)


def may_fit(terms: StageTerms, counts: IntArray, rule: StageRule) -> NDArray[np.bool_]:
    """Tell for which layouts (n,) the ranks may hold all blocks, whatever time it takes; False is a proof.

    Layouts that may recompute are taken to recompute as they like.
    """
    fits = np.zeros(len(terms), dtype=bool)
    blocks = int(counts.sum())
    for index, part in by_depth(terms):
        for cases in case_slices(free_cases(part, blocks, rule), counts):
            enough = _Bottleneck(part, counts, cases).enough(np.full(len(cases), np.inf))
            fits[index[cases.row[enough]]] = True
    return fits


def by_depth(terms: StageTerms) -> Iterator[tuple[NDArray[np.int64], StageTerms]]:
    """Yield the layouts of about one pp, as positions (k,) and terms: arrays spend few cells on ranks that they don't have.

    Shallow ones join the next deeper ones while they are few, since arrays of few cells take as long as smaller ones.
    """
    depths, sizes = np.unique(terms.pp, return_counts=True)
    least, joined = 0, 0
    for place, (pp, size) in enumerate(zip(depths.tolist(), sizes.tolist(), strict=True)):
        joined += size
        if place + 1 < len(depths) and joined * (int(depths[place + 1]) - pp) <= SPARE_CELLS:
            continue
        index = np.flatnonzero((terms.pp > least) & (terms.pp <= pp))
        part = terms.take(index)
        yield index, replace(part, in_flight=np.ascontiguousarray(part.in_flight[:, :pp]))
        least, joined = pp, 0


def _over_cases(terms: StageTerms, counts: IntArray, cases: Cases, cutoff_s: float) -> FloatArray:
    """Take the least bound over the cases of each layout."""
    bound = np.full(len(terms), np.inf)
    for part in case_slices(cases, counts):
        np.minimum.at(bound, part.row, case_bounds(terms, counts, part, cutoff_s).bound_s)
    return bound


def case_slices(cases: Cases, counts: IntArray) -> Iterator[Cases]:
    """Cut cases into pieces whose intermediate arrays are small, for blocks by kind (K,)."""
    width = cases.fewest.shape[1] * len(mixes(counts).low)
    size = max(CELLS // width, 64)
    for at in range(0, len(cases), size):
        yield cases.take(np.arange(at, min(at + size, len(cases))))


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseBounds:
    """Per case: the bound, and a bottleneck time at which the ranks can hold all blocks (inf: pruned)."""

    bound_s: FloatArray
    slowest_s: FloatArray


def case_bounds(terms: StageTerms, counts: IntArray, cases: Cases, cutoff_s: float = np.inf) -> CaseBounds:
    """Bound each case, for blocks by kind (K,); see ``lower_bound``."""
    terms, counts, cases = shortened(terms, counts, cases)
    bound, slowest = np.full(len(cases), np.inf), np.full(len(cases), np.inf)
    problem = _Bottleneck(terms, counts, cases)
    # Without a limit of time memory alone decides; what fails here fits nowhere.
    enough = problem.enough(np.full(len(cases), np.inf))
    alive = np.arange(len(cases))
    if np.isfinite(cutoff_s):
        bound[enough] = cutoff_s
        # A bottleneck this slow already costs the cutoff.
        enough &= problem.enough(problem.limit_s(cutoff_s))
    problem, alive = problem.take(enough), alive[enough]
    held = None
    for _ in range(SHARPENINGS if np.isfinite(cutoff_s) and not problem.capacity.fixed else 0):
        if not len(alive):
            break
        # Blocks that the others have no room for lie on a rank in any such step, and lengthen paths that pass
        # it.
        before, held = held, problem.held_below(cutoff_s)
        if held.same(before):
            break
        problem = problem.sharpened(held)
        enough = problem.enough(problem.limit_s(cutoff_s))
        problem, alive, held = problem.take(enough), alive[enough], held.take(enough)
    if len(alive):
        least, slowest[alive] = problem.bracket()
        bound[alive] = np.minimum(problem.step_s(least) * (1 - FLOAT_ERROR), cutoff_s)
    return CaseBounds(bound_s=bound, slowest_s=slowest)


def most_blocks(
    terms: StageTerms, counts: IntArray, cases: Cases, cutoff_s: float
) -> tuple[NDArray[np.bool_], FloatArray]:
    """Return which cases (c,) may have a step below ``cutoff_s``, and the most blocks (c, P) of each rank in such a step."""
    problem = _Bottleneck(terms, counts, cases)
    limit = problem.limit_s(cutoff_s) if np.isfinite(cutoff_s) else np.full(len(cases), np.inf)
    return problem.enough(limit), problem.units(problem.capacity.held(np.minimum(limit, 1e15)))[0]


class _Bottleneck:
    """The search for the least bottleneck time of each case."""

    def __init__(self, terms: StageTerms, counts: IntArray, cases: Cases) -> None:
        self.capacity = RankCapacity(terms, counts, cases)
        self.terms = own = self.capacity.terms
        self.cases, self._counts = cases, counts
        self.kinds = _weights(self.capacity)
        # Ranks that hold all blocks hold at least this much under every choice of weights.
        self.need = self.kinds @ counts.astype(np.float64)
        all_again = np.isinf(cases.low) * (own.recompute_s @ counts.astype(np.float64))
        self.weight = own.micro_batches.astype(np.float64)
        self.all_again = self.capacity.floors.all_again
        self.constant_s = self.all_again * all_again
        self.mix_units = np.einsum("qk,cyk->yqc", self.capacity.mixes.high, self.kinds)[..., None]

    def take(self, mask: NDArray[np.bool_]) -> _Bottleneck:
        """Return the search for some of the cases, given by a mask (c,)."""
        if mask.all():
            return self
        new, index = copy(self), np.flatnonzero(mask)
        new.capacity = self.capacity.take(index)
        new.terms, new.cases = new.capacity.terms, new.capacity.cases
        for name in ("kinds", "need", "weight", "all_again", "constant_s"):
            setattr(new, name, getattr(self, name)[index])
        new.mix_units = self.mix_units[:, :, index]
        return new

    def sharpened(self, held: HeldBlocks) -> _Bottleneck:
        """Return the search for cases whose ranks are known to hold some blocks."""
        new = copy(self)
        new.capacity = self.capacity.sharpened(held)
        return new

    def limit_s(self, cutoff_s: float) -> FloatArray:
        """Return the bottleneck (c,) that every step below a cutoff keeps to."""
        # The slowest rank works through every micro-batch, whatever else a step has.
        limit = (cutoff_s - self.constant_s) / np.maximum(self.weight, TINY)
        least: FloatArray = np.maximum(limit, 0.0)
        return least

    def held_below(self, cutoff_s: float) -> HeldBlocks:
        """Return what ranks hold in any step below a cutoff: at least what the others have no room for."""
        # Infinity times zero blocks would be no number.
        most = self.units(self.capacity.held(np.minimum(self.limit_s(cutoff_s), 1e15)))[0]
        most = np.where(self.capacity.real, np.maximum(most, 0.0), 0.0)
        left = self._counts.sum() - (most.sum(axis=1, keepdims=True) - most)
        fewest = np.ceil(np.maximum(left, 0.0) * (1 - SLACK))
        largest = np.ceil(most / self.terms.vp[:, None]).max(axis=1)
        every = ~self.cases.free & (self.cases.low >= largest * self.terms.vp)
        alike = ~(self.cases.free & self.terms.may_recompute) & (len(self._counts) == 1)
        return HeldBlocks(fewest=fewest, most=most, every=every, alike=alike)

    def units(self, held: FloatArray) -> FloatArray:
        """Weigh what each rank can hold: (Y, c, P), one row per choice of weights."""
        if len(held) == 1:
            return held
        units = np.stack([(held + mix_units).max(axis=0) for mix_units in self.mix_units])
        # A mix that stands for several holds none of them on ranks that a layout doesn't have.
        return units if self.capacity.real.all() else np.where(self.capacity.real, units, 0.0)

    def enough(self, slowest_s: FloatArray) -> NDArray[np.bool_]:
        """Tell whether the ranks can together hold all blocks, each within ``slowest_s`` (c,)."""
        held = self.capacity.held(np.minimum(slowest_s, 1e15))
        return self._suffices(self.units(held))

    def _suffices(self, units: FloatArray) -> NDArray[np.bool_]:
        suffices: NDArray[np.bool_] = (units.sum(axis=2) >= self.need.T * (1 - SLACK)).all(axis=0)
        return suffices

    def bracket(self) -> tuple[FloatArray, FloatArray]:
        """Return a time below which the blocks can't be held (0: none known), and one at which they can, if they fit."""
        # All work shared out evenly: no bottleneck is below the mean.
        work_s = self._counts @ self.capacity.least_s
        low = (self.capacity.floors.base_s.sum(axis=1) + work_s) / self.terms.pp * (1 - SLACK)
        unsure = low <= 0  # time outside makes up for all work, and more
        low = np.where(unsure, np.maximum((FIRST_BRACKET - 1) * work_s / self.terms.pp, TINY), low)
        unsure &= self.enough(low) if unsure.any() else False
        high = low * FIRST_BRACKET
        factor = FIRST_BRACKET
        while (short := ~self.enough(high)).any():
            low = np.where(short, high, low)
            # Most brackets close at once; the few far ones should not take many rounds.
            factor = factor**1.5
            high = np.where(short, high * factor, high)
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            holds = self.enough(middle)
            low, high = np.where(holds, low, middle), np.where(holds, middle, high)
        low, high = self._snap(low, high)
        return np.where(unsure, 0.0, low), high

    def _snap(self, low: FloatArray, high: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Move up to the next times at which some rank holds one block more, until the blocks are held."""
        # Between breakpoints nothing changes, so that the least time is one of them.
        open_ = ~self.enough(low)
        for _ in range(BREAKPOINTS):
            following = self.capacity.next_time_s(self.capacity.held(low))
            following = np.where(open_, np.clip(following, low, high), low)
            holds = self.enough(following)
            low, high = following, np.where(holds & open_, following, high)
            open_ = open_ & ~holds
        return low * (1 - 3 * SLACK), high

    def step_s(self, slowest_s: FloatArray) -> FloatArray:
        """Bound the step from the least bottleneck, trading a slower bottleneck for less recomputation."""
        result = np.full(len(slowest_s), np.inf)
        at = np.maximum(slowest_s, TINY)
        for factor in (*TRADE_OFFS, np.inf):
            until = np.minimum(np.maximum(slowest_s, TINY) * factor, 1e15)
            recompute = self._least_recompute_s(until)
            # The bottleneck is at least ``at``, the recomputation at least that of ``until``: true for all
            # between.
            value = self.weight * at + self.all_again * recompute + self.constant_s
            result = np.minimum(result, value)
            at = until
        # Where no bottleneck is known, neither is the recomputation beside it.
        return np.where(slowest_s > 0, result, 0.0)

    def _least_recompute_s(self, slowest_s: FloatArray) -> FloatArray:
        """Return the least seconds of recomputation, over all ranks, with no rank slower than ``slowest_s``."""
        units = self.units(self.capacity.held(slowest_s))
        result = self._counted_recompute_s(units[0])
        free = np.flatnonzero(self.cases.free)
        if len(free):
            result[free] = self._free_recompute_s(units[:, free], free)
        return result

    def _counted_recompute_s(self, blocks: FloatArray) -> FloatArray:
        """Every rank recomputes ``low`` blocks unless it has fewer; blocks beyond that are spared."""
        low = np.where(np.isinf(self.cases.low) | self.cases.free, 0.0, self.cases.low)
        spared = np.maximum(blocks - low[:, None], 0.0).sum(axis=1)
        # What a rank must hold anyway is recomputed up to ``low``.
        forced = np.minimum(low[:, None], self.cases.fewest).sum(axis=1)
        again = np.maximum(self.need[:, 0] - spared, forced) * (low > 0)
        return self._cheapest_recompute_s(again)

    def _cheapest_recompute_s(self, blocks: FloatArray) -> FloatArray:
        """Seconds of recomputing so many blocks, (c,), those of the kinds that take least first."""
        # Which kinds recompute is free: the cheapest ones give the floor.
        order = np.argsort(self.terms.recompute_s, axis=1)
        each = np.take_along_axis(self.terms.recompute_s, order, axis=1)
        number = self._counts[order]
        before = np.cumsum(number, axis=1) - number
        time_s: FloatArray = (np.clip(blocks[:, None] - before, 0.0, number) * each).sum(axis=1)
        return time_s

    def _free_recompute_s(self, units: FloatArray, index: NDArray[np.int64]) -> FloatArray:
        """Fill the ranks up to their memory, then the cheapest ranks with recomputation (fractional)."""
        held_bytes = self.capacity.held_bytes[:, index]
        saves = self.capacity.saved_bytes[:, index]
        saving = saves > 0
        per_byte = self.terms.recompute_s.T[:, index, None] / np.where(saving, saves, 1.0)
        per_byte = np.where(saving, per_byte, np.inf).min(axis=0)
        useful = np.isfinite(per_byte)
        result = np.zeros(len(index))
        for y, held in enumerate(units):
            weights = self.kinds[index, y].T[:, :, None]
            per_unit = np.maximum((held_bytes / weights).min(axis=0), TINY)
            most = np.maximum(held, 0.0)
            spared = np.where(useful, np.clip(self.capacity.room_bytes[index] / per_unit, 0.0, most), most)
            more = self.need[index, y] * (1 - SLACK) - spared.sum(axis=1)
            cost = np.where(most > spared, per_unit * np.where(useful, per_byte, 0.0), np.inf)
            # A fractional plan takes the cheapest ranks first: less than any plan of whole blocks.
            order = np.argsort(cost, axis=1)
            room = np.take_along_axis(most - spared, order, axis=1)
            cost = np.take_along_axis(cost, order, axis=1)
            before = np.cumsum(room, axis=1) - room
            taken = np.clip(more[:, None] - before, 0.0, room)
            result = np.maximum(result, (taken * np.where(taken > 0, cost, 0.0)).sum(axis=1))
        if self.kinds.shape[2] == 1:
            block_s = np.maximum(self.terms.recompute_s[index, 0], TINY)
            # Of one kind, whole blocks are recomputed.
            result = np.ceil(result / block_s * (1 - SLACK) - 1e-6) * block_s
        return result


def _weights(capacity: RankCapacity) -> FloatArray:
    """Choose weights of the kinds, (c, Y, K), 1 for the counted kind; the first choice counts blocks.

    The best weights are prices in an optimal fractional plan: seconds when time binds, bytes when memory does,
    and in between when recomputation trades one for the other.
    """
    terms, counted = capacity.terms, capacity.mixes.counted
    kinds = terms.layer_s.shape[1]
    ones = np.ones((len(terms), 1, kinds))
    # One kind is counted in its own blocks.
    if kinds == 1:
        return ones
    # The middle rank holds about the mean number of micro-batches in flight.
    middle = capacity.held_bytes[:, np.arange(len(terms)), terms.pp // 2].T
    by_time = terms.layer_s / np.maximum(terms.layer_s[:, counted, None], TINY)
    by_memory = middle / np.maximum(middle[:, counted, None], TINY)
    by_all_again = terms.layer_s + terms.recompute_s
    by_all_again = by_all_again / np.maximum(by_all_again[:, counted, None], TINY)
    choices = [by_time, (by_time + by_memory) / 2, by_memory, by_all_again]
    stack = np.stack([np.clip(choice, 1e-3, 1e3) for choice in choices], axis=1)
    return np.concatenate([ones, stack], axis=1)
