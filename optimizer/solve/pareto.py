"""Layouts of which none is better in one goal without being worse in another, each proven by the search.

Epsilon constraint (Haimes 1971): the best in one goal under a limit on the other. A layout that is the best under its own
value as the limit is on the front once nothing as good lies below; what lies below is the next point. The ends are found
first, then the widest part of the front is halved, so that few points show all of it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf, log
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.estimate import estimate
from layoutopt.optimizer.cost.objectives import TIME, parse_objective
from layoutopt.optimizer.cost.run_facts import footprint_of
from layoutopt.optimizer.solve.api import layout_of, search_options, solver_limits
from layoutopt.optimizer.solve.inputs import Question
from layoutopt.optimizer.solve.search.best_by import (
    REACHED,
    Asked,
    best_by,
    is_rate,
    proves,
    rated_space,
    reference_rate,
)
from layoutopt.optimizer.solve.search.best_first import BestFirst
from layoutopt.optimizer.space.requirement import parse_requirement
from layoutopt.optimizer.space.rows import row_of
from layoutopt.optimizer.specs.errors import input_error

if TYPE_CHECKING:
    from collections.abc import Callable

    from layoutopt.optimizer.cost.estimate import Estimate
    from layoutopt.optimizer.cost.quantities import Quantity
    from layoutopt.optimizer.solve.plan import SolveOptions
    from layoutopt.optimizer.solve.search.costed_space import CostedSpace
    from layoutopt.optimizer.solve.search.result import Found, Progress, SearchOptions
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.layout import Layout
    from layoutopt.optimizer.specs.workload import Workload

APART = 1e-6
"""Relative distance in a goal below which two points are one."""

MOST = 12
"""Points of a front unless another number is asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontPoint:
    """One layout of the front with its price and its values in both goals; ``proven``: no layout dominates it."""

    layout: Layout
    estimate: Estimate
    values: tuple[float, float]
    proven: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
    """The front in two goals, the best in the first one first; ``complete``: there is no other point."""

    goals: tuple[str, str]
    units: tuple[str, str]
    points: tuple[FrontPoint, ...]
    complete: bool

    @property
    def proven(self) -> bool:
        """Whether no layout dominates any of the points."""
        return all(point.proven for point in self.points)


def pareto_front(
    workload: Workload,
    cluster: ClusterSpec,
    options: SolveOptions,
    goals: tuple[str, str],
    *,
    most: int = MOST,
    on_progress: Callable[[Progress], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Front:
    """Find at most ``most`` points of the front in two goals, quantities of a run, spread over all of it.

    Raises ``InputError`` for a goal named twice and for what is no quantity.
    """
    first, second = (_quantity(name) for name in goals)
    # A front in one goal is a point.
    if first.name == second.name:
        raise input_error("names one goal twice", "two goals, e.g. days,cost", key="of")
    # A gap would let dominated points in: every end of a search has to be the best.
    asked = replace(options, minimize=TIME, then=None, within=0.0, top=1, gap=0.0)
    source = Question(workload=workload, cluster=cluster, options=asked).costed_space()
    # Only what is proportional to the step has a fast search: it goes first, and points are turned back.
    turned = not is_rate(source, first) and is_rate(source, second)
    searched = (second, first) if turned else (first, second)
    search = _Search(source, asked, searched, on_progress, should_stop)
    points, complete = _spread(search, most)
    if turned:
        points = [replace(one, values=(one.values[1], one.values[0])) for one in reversed(points)]
    return Front(goals=goals, units=(first.unit, second.unit), points=tuple(points), complete=complete)


def _quantity(name: str) -> Quantity:
    found = parse_objective(name, key="of").quantity
    if found is None:
        raise input_error(
            f"{name} is no quantity of a run", "time, days, cost, energy, gpus or memory", key="of"
        )
    return found


def _spread(search: _Search, most: int) -> tuple[list[FrontPoint], bool]:
    """Find the ends and then what lies in the widest part between two points, the best in the first goal first."""
    start, after = search.settled(search.below(inf))
    # A point that may be dominated is no place from which to divide what is left.
    if start is None or not start.proven:
        return [start] if start is not None else [], start is None and search.proven
    if after is None or most == 1:
        return [start], after is None
    end = search.least()
    if end is None or not end.proven:
        return [start], False
    points, following = [start, end], {start.values: after}
    while len(points) < most:
        gaps = [pair for pair in pairwise(points) if not _same(following[pair[0].values], pair[1])]
        if not gaps:
            return points, True
        # The widest gap first: wherever the number of points ends, they show all of the front.
        left, right = max(gaps, key=lambda pair: _width(*pair))
        found = search.below(_between(left.values[1], right.values[1]))
        if found is None or _same(found, right):
            found = following[left.values]
        point, after = search.settled(found)
        if point is None or not point.proven:
            break
        following[point.values] = after or right
        points.insert(points.index(right), point)
    open_ = any(not _same(following[one.values], other) for one, other in pairwise(points))
    return points, not open_ and all(point.proven for point in points)


def _same(one: FrontPoint, other: FrontPoint) -> bool:
    return all(abs(a - b) <= APART * abs(b) for a, b in zip(one.values, other.values, strict=True))


def _width(left: FrontPoint, right: FrontPoint) -> float:
    """Return how far two points are apart in both goals, in doublings of either."""
    pairs = zip(left.values, right.values, strict=True)
    # Ratios, since goals have other units; a goal may be zero.
    return sum(abs(log(max(a, 1e-300) / max(b, 1e-300))) for a, b in pairs)


def _between(one: float, other: float) -> float:
    # The geometric mean halves the gap as its width is counted.
    return (one * other) ** 0.5 if min(one, other) > 0 else (one + other) / 2


class _Search:
    """Searches one space for the best in either of two goals under a limit on the other.

    ``proven`` says whether all searches so far ended by themselves. What was found stays known: a later search need not
    find it again.
    """

    def __init__(
        self,
        source: CostedSpace,
        options: SolveOptions,
        goals: tuple[Quantity, Quantity],
        on_progress: Callable[[Progress], None] | None,
        should_stop: Callable[[], bool] | None,
    ) -> None:
        self._source, self._goals = source, goals
        self._options = search_options(options, 0.0)
        self._limits = solver_limits(options, time.perf_counter(), should_stop)
        self._on_progress, self._should_stop = on_progress, should_stop
        self._known: list[FrontPoint] = []
        self.proven = True

    def below(self, limit: float) -> FrontPoint | None:
        """Return the best in the first goal whose second is not above a limit; None where no layout is."""
        return self._best(0, limit)

    def least(self) -> FrontPoint | None:
        """Return the other end of the front: the best in the first goal of those that are best in the second."""
        found = self._best(1, inf)
        # The least of the second goal may be had by many layouts: the best of them in the first goal counts.
        return found and self.settled(self.below(found.values[1] * REACHED) or found)[0]

    def settled(self, found: FrontPoint | None) -> tuple[FrontPoint | None, FrontPoint | None]:
        """Return the point of the front that is at least as good as what was found, and the next one below it."""
        while found is not None:
            # Proven by the search just below it: nothing as good in the first goal takes less of the second.
            # Below by a millionth: the same value again would find the same layout for ever.
            limit = found.values[1] * (1 - APART)
            after = self.below(limit) if 0 < limit < found.values[1] else None
            if after is None or after.values[0] > found.values[0] * REACHED:
                return replace(found, proven=self.proven), after
            found = after
        return None, None

    def _best(self, which: int, limit: float) -> FrontPoint | None:
        """Return the best in one goal with the other one's value not above a limit, None where nothing is."""
        goal, other = self._goals[which], self._goals[1 - which]
        source = self._under(other, limit)
        # What an earlier search found meets this limit as well, and bounds the search from the start.
        known = [point for point in self._known if point.values[1 - which] <= limit]
        rate = is_rate(source, goal)
        found = self._by_rate(source, which, known) if rate else self._by_order(source, goal)
        if found is None:
            return min(known, key=lambda point: point.values[which], default=None)
        layout = layout_of(self._source, found)
        priced = estimate(self._source.cost, layout)
        values = tuple(self._value(one, layout, priced) for one in self._goals)
        point = FrontPoint(layout=layout, estimate=priced, values=(values[0], values[1]), proven=False)
        # Whatever was found serves later searches as a step that is known to be reached.
        self._known.append(point)
        return point

    def _by_rate(self, source: CostedSpace, which: int, known: list[FrontPoint]) -> Found | None:
        """Search for the least of what is proportional to the step."""
        goal = self._goals[which]
        scaled, unit = rated_space(source, goal), reference_rate(source, goal)
        reached = min((point.values[which] for point in known), default=inf) / unit
        options = self._left(reached * REACHED)
        result = BestFirst(
            scaled, options, on_progress=self._on_progress, should_stop=self._should_stop
        ).run()
        best = result.found[0].step_time_s if result.found else reached
        self.proven = self.proven and proves(best, result.bound_s, result, options)
        return result.best

    def _by_order(self, source: CostedSpace, goal: Quantity) -> Found | None:
        """Search tuples in the order of what they reach at best, beginning with the fastest layout."""
        first = BestFirst(source, self._left(inf), should_stop=self._should_stop).run()
        if first.best is None:
            self.proven = self.proven and first.complete
            return None
        asked = Asked(
            source=source,
            options=self._options,
            limits=self._limits,
            should_stop=self._should_stop,
        )
        result, outcome = best_by(parse_objective(goal.goal), asked, first)
        self.proven = self.proven and outcome.proven
        return result.best

    def _left(self, upper_s: float) -> SearchOptions:
        return replace(self._options, time_limit_s=self._limits().time_limit_s, upper_s=upper_s)

    def _under(self, quantity: Quantity, limit: float) -> CostedSpace:
        """Return the space with a limit on a quantity."""
        if limit == inf:
            return self._source
        demands, most = self._source.demands, parse_requirement(f"{quantity.name} <= {limit!r}")
        return replace(self._source, demands=replace(demands, requirements=(*demands.requirements, most)))

    def _value(self, quantity: Quantity, layout: Layout, priced: Estimate) -> float:
        facts = self._source.demands.facts
        assert facts is not None
        linear = quantity.of(facts, footprint_of(row_of(layout)))
        value = linear.constant + linear.per_second * priced.step_time_s
        return float(np.ravel(value + linear.per_byte * priced.memory.peak_bytes)[0])
