"""The gap between a layout and the optimum, one change at a time.

All layouts between the two are priced by their bound; the way over valid layouts that fit whose step times sum to the
least is the cheapest path, so that large gains come first. The layouts on it get the best stages that a search finds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.batch import Codebook, LayoutBatch
from layoutopt.optimizer.cost.estimate import estimate
from layoutopt.optimizer.solve.api import layout_of
from layoutopt.optimizer.solve.explain.changes import axis_value, list_changes, with_silent
from layoutopt.optimizer.solve.explain.records import Gap, GapStep
from layoutopt.optimizer.solve.search.best_first import BestFirst
from layoutopt.optimizer.solve.search.bound import lower_bound
from layoutopt.optimizer.solve.search.result import SearchOptions
from layoutopt.optimizer.space.axes import DEFAULT_SCHEDULES
from layoutopt.optimizer.space.rule import search_rules
from layoutopt.optimizer.space.rules import RULES
from layoutopt.optimizer.specs.vocabulary import Schedule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layoutopt.optimizer.cost.estimate import Estimate
    from layoutopt.optimizer.cost.terms import FloatArray
    from layoutopt.optimizer.solve.search.costed_space import CostedSpace
    from layoutopt.optimizer.specs.layout import Layout

    Priced = tuple[Layout, Estimate]
    from numpy.typing import NDArray

    from layoutopt.optimizer.cost.batch import IntArray


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
    # What does nothing in one of them must not count as a change.
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
    # The given layout need not keep the search's rules: it is a start without a price of its own.
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


CHOICES = (
    "tp", "sp", "cp", "pp", "vp", "ep", "etp", "micro_batch", "zero", "recompute", "mesh_order", "schedule", "precision",
    "switches",
)  # fmt: skip
DEGREES = ("tp", "cp", "pp", "vp", "ep", "etp", "micro_batch", "zero")


def differing(one: Layout, other: Layout) -> tuple[str, ...]:
    """Name the choices in which two layouts differ; what follows from others (dp, 1F1B or interleaved) is none."""
    named = [axis for axis in CHOICES if axis_value(one, axis) != axis_value(other, axis)]
    if min(one.tp, other.tp) == 1:
        named = [axis for axis in named if axis != "sp"]
    if one.schedule in DEFAULT_SCHEDULES and other.schedule in DEFAULT_SCHEDULES:
        named = [axis for axis in named if axis != "schedule"]
    if one.hsdp_shard != other.hsdp_shard and "zero" not in named:
        named.append("zero")
    return tuple(named)


@dataclass(frozen=True)
class Lattice:
    """Subset ``i`` of the differing choices is row ``i``: bit ``j`` set means that choice ``j`` is the second layout's."""

    source: CostedSpace
    first: Layout
    second: Layout
    axes: tuple[str, ...]

    @cached_property
    def batch(self) -> LayoutBatch:
        """Every subset without its stages. dp and micro-batches follow from the GPUs and the batch, rounded down."""
        a, b = self.first, self.second
        columns = {name: self._pick(name, getattr(a, name), getattr(b, name)) for name in DEGREES}
        columns["hsdp_shard"] = self._pick("zero", a.hsdp_shard or 0, b.hsdp_shard or 0)
        # The codebook holds just the two layouts' own values: code 0 is the first one's.
        columns["recompute"] = self._pick("recompute", 0, 1)
        columns["order"] = self._pick("mesh_order", 0, 1)
        columns["precision"] = self._pick("precision", 0, 1) + self._pick("switches", 0, 2)
        own = [(x if x.tp > 1 else y).sp for x, y in ((a, b), (b, a))]
        # Without tensor ranks there is nothing to say about sequence parallelism: the other layout says it.
        columns["sp"] = np.where(columns["tp"] > 1, self._pick("sp", *map(int, own)), 0)
        # Where this does not divide, the subset is not valid and has no price.
        columns["dp"] = b.gpus // (columns["tp"] * columns["cp"] * columns["pp"])
        replicas = np.maximum(columns["dp"] * columns["micro_batch"], 1)
        columns["micro_batches"] = self.source.space.ctx.training.global_batch // replicas
        book = Codebook(
            recomputes=(a.recompute, b.recompute),
            orders=(a.mesh_order, b.mesh_order),
            schedules=tuple(dict.fromkeys((*DEFAULT_SCHEDULES, a.schedule, b.schedule))),
            precisions=(a.precision, b.precision) * 2,
            savers=(a.savers, b.savers) * 2,
            switches=(a.switches, a.switches, b.switches, b.switches),
        )
        return LayoutBatch(
            codebook=book, schedule=self._schedule(book, columns["pp"], columns["vp"]), **columns
        )

    def _pick(self, axis: str, old: int, new: int) -> IntArray:
        subsets = np.arange(1 << len(self.axes))
        if axis not in self.axes:
            return np.full(len(subsets), old, dtype=np.int64)
        return np.where((subsets >> self.axes.index(axis)) & 1, new, old).astype(np.int64)

    def _schedule(self, book: Codebook, pp: IntArray, vp: IntArray) -> IntArray:
        """A special schedule stays where it is chosen; else pp and vp decide."""
        code = {schedule: i for i, schedule in enumerate(book.schedules)}
        special = [
            code[x.schedule] if x.schedule not in DEFAULT_SCHEDULES else -1 for x in (self.first, self.second)
        ]
        chosen = self._pick("schedule", *special)
        usual = np.where(vp > 1, code[Schedule.INTERLEAVED], code[Schedule.ONE_F_ONE_B])
        return np.where(pp == 1, code[Schedule.NONE], np.where(chosen >= 0, chosen, usual))

    def bounds_s(self) -> FloatArray:
        """Return a lower bound on the step of every subset, (2**choices,), inf where it is invalid or does not fit."""
        rows = np.flatnonzero(self._valid())
        bounds = np.full(len(self.batch), np.inf)
        terms = self.source.terms(self.batch.take(rows)) if len(rows) else None
        if terms is not None:
            bounds[rows] = lower_bound(terms, self.source.counts, self.source.rule)
        return bounds

    def _valid(self) -> NDArray[np.bool_]:
        """Tell which subsets use the GPUs, meet the batch, and keep the rules of the search."""
        batch, ctx = self.batch, self.source.space.ctx
        options = self.source.space.axes.options
        divides = batch.tp * batch.cp * batch.pp * batch.dp == self.second.gpus
        divides &= batch.dp * batch.micro_batch * batch.micro_batches == ctx.training.global_batch
        rows = np.flatnonzero(divides)
        held = batch.take(rows)
        keeps = np.ones(len(rows), dtype=bool)
        for rule in search_rules(RULES, ctx, options) if len(rows) else ():
            keeps &= rule.holds(held, ctx)
        valid = np.zeros(len(batch), dtype=bool)
        valid[rows] = keeps
        return valid


def cheapest_path(cost_s: FloatArray, choices: int) -> tuple[int, ...]:
    """Return the subsets from the empty one to the full one, both included, whose costs (2**choices,) sum to the least.

    Steps change one choice; only where no such path exists, up to two, three, and so on. ``cost_s`` is indexed by subset,
    inf where there is no layout; the first and the last subset always exist.
    """
    # One change at a time reads best, but some only work together.
    for width in range(1, choices + 1):
        path = _path(cost_s, choices, width)
        if path:
            return path
    return (0,)


def _path(cost_s: FloatArray, choices: int, width: int) -> tuple[int, ...]:
    total = np.full(len(cost_s), np.inf)
    before = np.zeros(len(cost_s), dtype=np.int64)
    total[0] = 0.0
    for subset in range(1, len(cost_s)):
        # No layout there: a path can't rest on it.
        if not np.isfinite(cost_s[subset]):
            continue
        for smaller in _without(subset, choices, width):
            if total[smaller] + cost_s[subset] < total[subset]:
                total[subset], before[subset] = total[smaller] + cost_s[subset], smaller
    full = len(cost_s) - 1
    if not np.isfinite(total[full]):
        return ()
    path = [full]
    while path[-1]:
        path.append(int(before[path[-1]]))
    return tuple(reversed(path))


def _without(subset: int, choices: int, width: int) -> Iterator[int]:
    """Yield the subset less up to ``width`` of its members."""
    taken = [subset]
    for _ in range(width):
        taken = sorted({less & ~(1 << j) for less in taken for j in range(choices) if less >> j & 1})
        yield from taken
