"""The gap between a layout and the optimum, one change at a time.

All layouts between the two are priced by their bound; the way over valid layouts that fit whose step times sum to the
least is the cheapest path, so that large gains come first. The layouts on it get the best stages that a search finds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.estimate import estimate
from layoutopt.optimizer.solve.api import layout_of
from layoutopt.optimizer.solve.explain.changes import list_changes, with_silent
from layoutopt.optimizer.solve.explain.lattice import Lattice, cheapest_path, differing
from layoutopt.optimizer.solve.explain.records import Gap, GapStep
from layoutopt.optimizer.solve.search.best_first import BestFirst
from layoutopt.optimizer.solve.search.result import SearchOptions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layoutopt.optimizer.cost.estimate import Estimate
    from layoutopt.optimizer.cost.terms import FloatArray
    from layoutopt.optimizer.solve.search.costed_space import CostedSpace
    from layoutopt.optimizer.specs.layout import Layout

    Priced = tuple[Layout, Estimate]

MOST_CHOICES = 12
"""Choices told apart; every subset of them is priced, 4,096 layouts at most. Further ones change with the last step."""

LONGEST_S = 10.0
"""Time for the stages of one layout on the way: what is proven of the answer does not rest on it."""

WORTH_NAMING = 1e-3
"""Share of the step from which a component that changed is named."""


def explain_gap(source: CostedSpace, given: Priced, best: Priced) -> Gap:
    """Decompose the difference of two step times along the cheapest path of single changes.

    ``source`` gives rules and prices. The given layout need not keep the rules of the search, the best one does.
    """
    first, second = with_silent(given[0], best[0]), with_silent(best[0], given[0])
    lattice = Lattice(source, first, second, differing(first, second)[:MOST_CHOICES])
    return Gap(
        step_time_s=given[1].step_time_s,
        best_s=best[1].step_time_s,
        slower=given[1].step_time_s / best[1].step_time_s - 1.0,
        steps=tuple(_steps(lattice, given, best)),
    )


@dataclass(slots=True)
class _Solver:
    """Exact layouts of subsets, solved when asked for."""

    lattice: Lattice
    known: dict[int, Priced | None] = field(default_factory=dict)

    def solve(self, subset: int) -> Priced | None:
        """Return the subset with its best stages, None if no stages fit."""
        if subset not in self.known:
            self.known[subset] = self._solve(subset)
        return self.known[subset]

    def _solve(self, subset: int) -> Priced | None:
        source = self.lattice.source
        row = self.lattice.batch.take(np.array([subset]))
        found = BestFirst(source, SearchOptions(time_limit_s=LONGEST_S)).solve_tuple(row)
        if found is None:
            return None
        layout = layout_of(source, found)
        return layout, estimate(source.cost, layout)


def _steps(lattice: Lattice, given: Priced, best: Priced) -> Iterator[GapStep]:
    solver, bounds = _Solver(lattice), lattice.bounds_s()
    full = len(bounds) - 1
    path = _solved_path(solver, bounds, len(lattice.axes), best)
    before, taken = given, 0
    for subset in path:
        after = best if subset == full else solver.solve(subset)
        if after is None:  # the given tuple itself keeps no rule of the search or fits with no stages
            continue
        changes = list_changes(before[0], after[0])
        if changes or after[1].step_time_s != before[1].step_time_s:
            axes = tuple(axis for j, axis in enumerate(lattice.axes) if (subset & ~taken) >> j & 1)
            yield _step(axes or (_freed_stages(before[0], after[0]),), changes, before[1], after)
        before, taken = after, subset


def _solved_path(solver: _Solver, bounds: FloatArray, choices: int, best: Priced) -> tuple[int, ...]:
    """Return the cheapest path whose layouts all have stages that fit; a bound alone doesn't promise any."""
    bounds[-1] = best[1].step_time_s
    if np.isinf(bounds[0]):
        solver.known[0] = None
    solver.known[len(bounds) - 1] = best
    while True:
        path = cheapest_path(bounds, choices)
        empty = [subset for subset in path[1:] if solver.solve(subset) is None]
        if not empty:
            return path
        bounds[empty] = np.inf


def _freed_stages(before: Layout, after: Layout) -> str:
    """Name what a better choice of stages alone changed: recomputed layers, or how layers are split."""
    again = [sum(stage.recomputed for stage in layout.stages) for layout in (before, after)]
    return "recompute" if again[0] != again[1] else "stages"


def _step(axes: tuple[str, ...], changes: tuple[str, ...], before: Estimate, after: Priced) -> GapStep:
    layout, estimate = after
    return GapStep(
        axes=axes,
        changes=changes,
        layout=layout,
        step_time_s=estimate.step_time_s,
        saved_s=before.step_time_s - estimate.step_time_s,
        why=what_changed(before, estimate),
    )


def what_changed(before: Estimate, after: Estimate) -> str:
    """Name the two components of the step time that changed most."""
    change = {name: after.breakdown_s[name] - before.breakdown_s[name] for name in after.breakdown_s}
    largest = sorted(change.items(), key=lambda item: -abs(item[1]))[:2]
    words = [
        f"{name.words} {value:+.3g} s"
        for name, value in largest
        if abs(value) > WORTH_NAMING * before.step_time_s
    ]
    return ", ".join(words) or "nothing that shows"
