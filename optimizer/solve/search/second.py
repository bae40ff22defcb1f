"""A second goal: of all layouts as fast as the fastest one, that which is best in another quantity, proven.

The step time becomes one more demand, every tuple whose bound allows it is a candidate, and candidates are solved in the
order of what they can reach at best until the next one can't beat the best found.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.run_facts import footprint_of
from layoutopt.optimizer.cost.step import graph_of
from layoutopt.optimizer.cost.terms import own_bytes
from layoutopt.optimizer.solve.model.coefficients import KIB, rounding_s
from layoutopt.optimizer.solve.model.cp_model import CpModel, SliceResult, SliceStatus
from layoutopt.optimizer.solve.model.slices import Goal, tuple_slice
from layoutopt.optimizer.solve.search.bound import lower_bound
from layoutopt.optimizer.solve.search.near import ROWS, near_tuples
from layoutopt.optimizer.solve.search.one_tuple import TupleSolver, Waiting
from layoutopt.optimizer.solve.search.result import Found
from layoutopt.optimizer.space.requirement import parse_requirement

if TYPE_CHECKING:
    from collections.abc import Callable

    from layoutopt.optimizer.cost.batch import LayoutBatch
    from layoutopt.optimizer.cost.quantities import Linear, Quantity
    from layoutopt.optimizer.cost.terms import FloatArray, StageTerms
    from layoutopt.optimizer.solve.model.cp_model import SolverLimits
    from layoutopt.optimizer.solve.model.slices import TupleSlice
    from layoutopt.optimizer.solve.search.costed_space import CostedSpace
    from layoutopt.optimizer.solve.search.result import SearchResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Second:
    """The outcome for a second goal.

    ``value`` in ``unit``, ``first_value`` that of the layout found for step time alone. ``within`` is the share that the
    step may take longer, ``tuples`` how many tuples may be that fast. ``proven``: none of them is better in the second goal.
    """

    name: str
    unit: str
    value: float
    first_value: float
    within: float
    tuples: int
    proven: bool


class SecondSearch:
    """Chooses among tuples of a space whose step may take ``limit_s``, inf for any. ``run`` it once."""

    def __init__(
        self,
        source: CostedSpace,
        goal: Quantity,
        limit_s: float,
        limits: Callable[[], SolverLimits],
    ) -> None:
        if np.isfinite(limit_s):
            demands, fast = source.demands, parse_requirement(f"step_s <= {limit_s!r}")
            source = replace(source, demands=replace(demands, requirements=(*demands.requirements, fast)))
        self._source = source
        self._goal, self._limit_s = goal, limit_s
        self._limits = limits
        self._solver = TupleSolver(source, self._stopped)
        self.tuples = 0

    def value(self, found: Found) -> float:
        """Return the goal of a layout."""
        linear = self._linear(found.layout)
        total = linear.constant + linear.per_second * found.step_time_s + linear.per_byte * found.peak_bytes
        return float(np.broadcast_to(total, (1,))[0])

    def _linear(self, batch: LayoutBatch) -> Linear:
        assert self._source.demands.facts is not None
        return self._goal.of(self._source.demands.facts, footprint_of(batch))

    def run(self, best: Found) -> tuple[Found, bool]:
        """Return the best layout, ``best`` or a better one, and whether that is proven."""
        batch, _ = near_tuples(self._source, self._limit_s * (1 + 1e-12))
        self.tuples = len(batch)
        floors, bounds = self._floors(batch)
        for index in np.lexsort([bounds, floors]).tolist():
            reached = self.value(best)
            # In the order of their floors: no later one reaches less.
            if floors[index] >= reached * (1 - 1e-9):
                return best, True
            if self._stopped():
                return best, False
            one = batch.take(np.array([index]))
            result = self._solve(one, float(bounds[index]), reached)
            if result.status in (SliceStatus.UNKNOWN, SliceStatus.FEASIBLE):
                return best, False
            if result.blocks is not None and result.recomputed is not None:
                found = Found(
                    layout=one, blocks=result.blocks, recomputed=result.recomputed,
                    step_time_s=result.step_time_s, peak_bytes=result.peak_bytes,
                )  # fmt: skip
                best = found if self.value(found) < reached else best
        return best, True

    def _stopped(self) -> bool:
        limits = self._limits()
        return limits.time_limit_s <= 0 or (limits.should_stop is not None and limits.should_stop())

    def _floors(self, batch: LayoutBatch) -> tuple[FloatArray, FloatArray]:
        """Return what each tuple reaches at best in the goal, and its bound on step time; equal tuples only once."""
        floors, bounds = np.zeros(len(batch)), np.zeros(len(batch))
        for start in range(0, len(batch), ROWS):
            rows = np.arange(start, min(start + ROWS, len(batch)))
            part = batch.take(rows)
            terms, linear = self._source.terms(part), self._linear(part)
            bounds[rows] = lower_bound(terms, self._source.counts, self._source.rule, self._limit_s * 2)
            least = least_peak_bytes(terms, int(self._source.counts.sum()))
            floors[rows] = linear.constant + linear.per_second * bounds[rows] + linear.per_byte * least
        return floors, bounds

    def _solve(self, one: LayoutBatch, bound_s: float, reached: float) -> SliceResult:
        """Find the best stages of one tuple for the goal: its leanest ones, or its fastest."""
        source = self._source
        # What meets the limit may be rounded down to it: a little more room, and the demand itself is judged in floats.
        upper_s = self._limit_s + 2 * rounding_s(source.counts)
        data = tuple_slice(
            one, source.terms(one), source.counts, source.rule, lower_s=bound_s, upper_s=upper_s
        )
        per_byte = float(np.ravel(self._linear(one).per_byte)[0])
        # Without memory in the goal a tuple's value falls with its step: its fastest stages are its best.
        if not per_byte:
            return CpModel(data, demands=source.demands).solve(self._limits())
        if np.isinf(self._limit_s) and not source.demands.any:
            return self._leanest(replace(data, goal=Goal.PEAK_MEMORY))
        return self._leaner(Waiting.of(one, data.terms, 0, bound_s=bound_s), reached / per_byte)

    def _leanest(self, data: TupleSlice) -> SliceResult:
        """Find the stages with the least memory, however slow; none where no order runs the tuple."""
        result = CpModel(data).solve(self._limits())
        if graph_of(data.terms, 0) is None:
            return replace(result, status=SliceStatus.NO_BETTER, blocks=None, recomputed=None)
        return result

    def _leaner(self, item: Waiting, below_bytes: float) -> SliceResult:
        """Find the leanest stages that meet the demands and hold less than ``below_bytes``: halve what is open.

        After every success a little less is asked for, since memory comes in steps of whole layers.
        """
        best = SliceResult(status=SliceStatus.NO_BETTER)
        # One KiB less: the floor itself may be reached.
        low = float(least_peak_bytes(item.terms, int(self._source.counts.sum()))[0]) - KIB
        high, close = below_bytes, True
        while high - low > 2 * KIB:
            most_bytes = high - KIB if close else (low + high) / 2
            result = self._within(item, most_bytes)
            if result.status is SliceStatus.UNKNOWN:
                return result
            close = result.blocks is not None and not close
            if result.blocks is None:
                low = most_bytes
            else:
                best, high = result, result.peak_bytes
        return replace(best, status=SliceStatus.OPTIMAL if best.blocks is not None else best.status)

    def _within(self, item: Waiting, most_bytes: float) -> SliceResult:
        """Find stages of a tuple that meet the demands within some memory; those that come up first."""
        capacity = np.minimum(item.terms.capacity_bytes, most_bytes)
        tight = replace(item, terms=replace(item.terms, capacity_bytes=capacity))
        limit_s = min(self._limit_s, float(self._source.demands.limit_s(item.layout)[0]))
        if np.isfinite(limit_s):
            near, decided = self._solver.tried(tight, float(np.nextafter(limit_s, np.inf)), np.inf)
            if near is not None or decided:
                return near or SliceResult(status=SliceStatus.NO_BETTER)
        limits = replace(self._limits(), first=True)
        upper_s = limit_s + 2 * rounding_s(self._source.counts)
        return self._solver.solved([tight], item.bound_s, upper_s, limits)


def least_peak_bytes(terms: StageTerms, blocks: int) -> FloatArray:
    """Return a floor (n,) under the memory of the fullest rank, over all splits: blocks as if they could be cut.

    Within P bytes rank s holds at most (P - its own bytes) / (bytes of a block); together the ranks hold all blocks.
    """
    real = np.arange(terms.in_flight.shape[1]) < terms.pp[:, None]
    again = np.minimum(terms.layer_activation_bytes, terms.recomputed_activation_bytes)
    kept = np.where(terms.may_recompute[:, None], again, terms.layer_activation_bytes)
    per_block = (terms.layer_state_bytes[:, None] + terms.in_flight[..., None] * kept[:, None]).min(axis=2)
    own = own_bytes(terms)
    room = np.where(real, 1.0 / np.maximum(per_block, 1e-30), 0.0)
    level = (blocks + (own * room).sum(axis=1)) / room.sum(axis=1)
    least: FloatArray = np.maximum(level * (1 - 1e-12), np.where(real, own, 0.0).max(axis=1))
    return least


def choose_second(
    source: CostedSpace,
    goal: Quantity,
    result: SearchResult,
    limits: Callable[[], SolverLimits],
    *,
    within: float,
) -> tuple[SearchResult, Second]:
    """Put the best layout for a second goal in front of a complete search's answers.

    ``within`` is the share that a step may take longer than the fastest; 0 leaves the solver's rounding.
    """
    first = result.found[0]
    # Layouts closer than the solver's rounding count as equally fast.
    limit_s = first.step_time_s * (1 + within) + result.rounding_s
    search = SecondSearch(source, goal, limit_s, limits)
    best, proven = search.run(first)
    rest = [
        other for other in result.found if other.step_time_s >= best.step_time_s and not _same(other, best)
    ]
    second = Second(
        name=goal.goal,
        unit=goal.unit,
        value=search.value(best),
        first_value=search.value(first),
        within=within,
        tuples=search.tuples,
        proven=proven,
    )
    return replace(result, found=(best, *rest)), second


def _same(one: Found, other: Found) -> bool:
    """Whether two answers are one layout: the second search may find a runner-up again."""
    return (
        one.layout.table().tobytes() == other.layout.table().tobytes()
        and np.array_equal(one.blocks, other.blocks)
        and np.array_equal(one.recomputed, other.recomputed)
    )
