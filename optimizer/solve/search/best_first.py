"""Best-first search: bound all degree rows, expand the survivors, let CP-SAT choose stages in order of the bound.

A degree row is dropped when its bound, over optimistic terms of all its modifiers, is not below what is wanted; then its
tuples one by one by their own bound; the rest wait in a heap. CP-SAT solves the tuple with the least bound until no
bound is below the best layout found. What the bound drops can't beat it, so that layout is optimal.
"""

from __future__ import annotations

import heapq
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.batch import LayoutBatch
from layoutopt.optimizer.cost.terms import price_stages
from layoutopt.optimizer.solve.model.coefficients import rounding_s
from layoutopt.optimizer.solve.model.cp_model import CpModel, SliceResult, SliceStatus, SolverLimits
from layoutopt.optimizer.solve.model.paths import Paths
from layoutopt.optimizer.solve.model.slices import stack_terms, tuple_slice
from layoutopt.optimizer.solve.search.bound import likely_s, lower_bound, quick_bound
from layoutopt.optimizer.solve.search.construct import Stages, by_chunk, construct, good_stages
from layoutopt.optimizer.solve.search.demands import Finished
from layoutopt.optimizer.solve.search.enumerate_stages import AT_FIRST, MOST_STATES, fastest_stages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from layoutopt.optimizer.cost.batch import IntArray
    from layoutopt.optimizer.cost.terms import FloatArray, StageCosts, StageTerms
    from layoutopt.optimizer.solve.search.demands import StageDemand
    from layoutopt.optimizer.solve.search.source import Refinement, TermsSource

RELAXED_ROWS, CELLS = 65_536, 1 << 20
"""Rows priced at once, and rows times the deepest pipeline among them, so that memory stays flat."""

FIRST_ROWS, GROWTH, ROWS = 64, 8, 8_192
"""Degree rows bounded tightly at once: few first, for a layout to compare with; then more, which is cheaper per row."""

LIKELY = 4
"""Rows that are followed down first, so that everything else is compared with a good layout."""

TRIED = 48
"""Tuples of such a row whose stages are constructed, the likeliest first."""

PROMISING = 0.995
"""A row is followed down at once when its bound is below this share of the best step time."""

OVERTIME_STEPS = 8
"""Steps of the search after a time limit as long as no layout is known: an answer without one helps nobody."""

FIRST_CHOICES, CHOICES = 16, 1_024
"""Rows with chosen sharding whose other modifiers are expanded at once: few first, for an even better layout."""

MOST_IN_SLICE = 4
"""Tuples of one model at most: more of them solve no faster together than apart."""

RAISED = (0.98, 0.9, 0.75, 0.5, 0.25)
"""Shares of the way from a tuple's bound to what is wanted that are tried as its bound."""

MOST_TRIED = 64
"""Tuples tried for runners-up where bounds miss what is demanded: most of them have none."""

SLOWER, BEAM = (1.05, 1.5, 3.0), 500
"""How much slower than without demands stages may be that meet them, and the partial choices looked at."""

SHAPE = ("tp", "cp", "pp", "micro_batch", "ep")
"""Degrees that make two rows worth a try each."""

FAMILY = ("tp", "cp", "pp", "dp", "ep", "etp", "micro_batch")
"""Degrees that make two near-ties worth telling apart; of layouts that differ in others only the best is kept."""


def _pieces(pp: IntArray) -> Iterator[IntArray]:
    """Cut rows into pieces of few cells: all at once where they are few, else shallow pipelines apart from deep ones."""
    if 0 < len(pp) <= RELAXED_ROWS and len(pp) * int(pp.max(initial=1)) <= CELLS:
        yield np.arange(len(pp))
        return
    order = np.argsort(pp, kind="stable")
    while len(order):
        head = order[:RELAXED_ROWS]
        size = max(int(np.count_nonzero(np.arange(1, len(head) + 1) * pp[head] <= CELLS)), 1)
        yield order[:size]
        order = order[size:]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """How to search. ``top`` layouts of different families within ``near`` of the best are solved too.

    ``upper_s`` is a step time that a layout of the space is known to reach.
    """

    top: int = 1
    near: float = 0.02
    time_limit_s: float = float("inf")
    workers: int = 1
    gap: float = 0.0
    seed: int = 0
    one_model: bool = False
    upper_s: float = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One layout: a tuple (batch of one), blocks and recomputed blocks of every chunk (V, P, K), its exact price."""

    layout: LayoutBatch
    blocks: IntArray
    recomputed: IntArray
    step_time_s: float
    peak_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """State of a running search: best step time (inf: none yet), proven bound, degree rows left, CP-SAT solves."""

    best_s: float
    bound_s: float
    rows_left: int
    solves: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """Outcome. ``found`` is sorted, the best first; ``bound_s`` holds for every layout (inf: nothing fits).

    ``complete`` says whether the search ended by itself. The tuples of the space are ``by_memory`` (proven not to fit),
    ``solved`` by CP-SAT, and the rest, excluded by their bound. ``rounding_s`` bounds CP-SAT's rounding.
    """

    found: tuple[Found, ...]
    bound_s: float
    complete: bool
    by_memory: int
    solved: int
    rounding_s: float

    @property
    def best(self) -> Found | None:
        """The fastest layout found."""
        return self.found[0] if self.found else None


@dataclass(order=True, slots=True)
class _Waiting:
    """A tuple in the heap: ordered by its bound, then by the order of arrival."""

    bound_s: float
    serial: int
    family: tuple[int, ...] = field(compare=False)
    layout: LayoutBatch = field(compare=False)
    terms: StageTerms = field(compare=False)
    raised: bool = field(default=False, compare=False)
    """Whether enumeration could not decide it, and raised its bound as far as it could."""


@dataclass(frozen=True, slots=True)
class _Partial:
    """Rows with some modifiers chosen: how many tuples each stands for, its bound, and what it is likely to take."""

    batch: LayoutBatch
    weight: IntArray
    bound: FloatArray
    likely: FloatArray

    def take(self, index: IntArray) -> _Partial:
        """Return the selected rows."""
        return _Partial(self.batch.take(index), self.weight[index], self.bound[index], self.likely[index])

    @classmethod
    def concat(cls, parts: list[_Partial]) -> _Partial:
        """Stack parts."""
        return cls(
            LayoutBatch.concat([part.batch for part in parts]),
            np.concatenate([part.weight for part in parts]),
            np.concatenate([part.bound for part in parts]),
            np.concatenate([part.likely for part in parts]),
        )


class BestFirst:
    """One search over one space. ``run`` it once."""

    def __init__(
        self,
        source: TermsSource,
        options: SearchOptions,
        *,
        on_progress: Callable[[Progress], None] | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> None:
        self.source, self.options = source, options
        self._on_progress, self._should_stop = on_progress, should_stop
        self._deadline = time.perf_counter() + options.time_limit_s
        self._heap: list[_Waiting] = []
        self._serial = self._solved = self._by_memory = 0
        self._settled: set[bytes] = set()
        self._rounding_s = 0.0
        self._overtime_steps = OVERTIME_STEPS
        self._best_of: dict[tuple[int, ...], Found] = {}
        self._paths = Paths()
        self._aside: list[_Partial] = []
        self._next_bound_s = self._left_bound_s = self._left_open_s = np.inf
        self._loose = source.demands.any and source.demands.loose

    def run(self) -> SearchResult:
        """Search until the answer is proven, the time is up or a stop is asked for."""
        if self.options.one_model:
            return self._solve_whole()
        quick, likely = self._quick_bounds()
        self._by_memory += self._tuples_of(np.flatnonzero(~np.isfinite(quick)))
        quick = self.source.demands.kept(quick, self.source.degrees, exact=False)
        order = np.argsort(quick, kind="stable")
        order = order[np.isfinite(quick[order])]
        likely = np.where(np.isfinite(quick), likely, np.inf)
        for row in np.argsort(likely, kind="stable")[:LIKELY]:
            if likely[row] < self._best_s() and not self._stopped():
                self._descend(self.source.degrees.take(np.array([row])), self.source.refinements)
        start, size = 0, FIRST_ROWS
        while start < len(order) and quick[order[start]] < self._wanted_s() and not self._stopped():
            self._next_bound_s = float(quick[order[start]])
            following = order[start : start + size]
            for piece in _pieces(self.source.degrees.pp[following]):
                rows = following[piece]
                self._take_rows(rows[quick[rows] < self._wanted_s()])
            start, size = start + size, min(size * GROWTH, ROWS)
            self._report(len(order) - start)
        self._next_bound_s = float(quick[order[start]]) if start < len(order) else np.inf
        self._finish()
        self._solve_runners_up()
        return self._result()

    def solve_tuple(self, layout: LayoutBatch) -> Found | None:
        """Return one tuple with the best stages that are found; None where none fit."""
        item = self._waiting(layout, self.source.terms(layout), 0.0, 0)
        near, decided = self._tried(item, np.inf)
        if near is None and not decided:
            self._solve(item, np.inf)
        return self._best_of.get(item.family)

    def _solve_whole(self) -> SearchResult:
        """Put every tuple into one CP-SAT model: the reference for small spaces, without bounds of our own."""
        batch, _ = self.source.expand(self.source.degrees)
        if not len(batch):
            return self._result()
        data = tuple_slice(batch, self.source.terms(batch), self.source.counts, self.source.rule)
        result = CpModel(data, demands=self.source.demands, paths=self._paths).solve(self._limits())
        self._rounding_s, self._solved = data.rounding_ns / 1e9, len(batch)
        none = result.status is SliceStatus.NO_BETTER
        self._left_bound_s = np.inf if none else result.bound_s
        if result.status is SliceStatus.OPTIMAL and self.options.gap == 0:
            self._left_bound_s = result.step_time_s
        if result.blocks is not None:
            one = np.array([result.position])
            self._keep(_Waiting(0.0, 0, (), batch.take(one), data.terms.take(one)), result)
        return self._result()

    def _quick_bounds(self) -> tuple[FloatArray, FloatArray]:
        """Bound every degree row in closed form, and estimate what it is likely to take."""
        rows, counts = self.source.degrees, self.source.counts
        quick, likely = np.zeros(len(rows)), np.zeros(len(rows))
        for index in _pieces(rows.pp):
            terms = self.source.relaxed(rows.take(index))
            quick[index], likely[index] = quick_bound(terms, counts), likely_s(terms, counts)
        return quick, likely

    def _best_s(self) -> float:
        return min((item.step_time_s for item in self._best_of.values()), default=np.inf)

    def _limit_s(self) -> float:
        """Step time below which CP-SAT still has to look for the best layout."""
        # a step that is only known to be reached has to be found again, whatever the solver rounds
        reachable_s = self.options.upper_s * (1 + 1e-12) + 2 * rounding_s(self.source.counts)
        return min(self._best_s() * (1 - self.options.gap), reachable_s)

    def _wanted_s(self) -> float:
        """Step time below which tuples are kept: near-ties of the best too."""
        near = self.options.near if self.options.top > 1 else 0.0
        return min(self._best_s(), self.options.upper_s) * (1 + near)

    def _stopped(self) -> bool:
        """Whether to end; a time limit that is up before any layout is known leaves a few steps to find one."""
        if self._should_stop is not None and self._should_stop():
            return True
        late = time.perf_counter() > self._deadline
        if late and not self._best_of and self._overtime_steps:
            self._overtime_steps -= 1
            return False
        return late

    def _out_of_time(self) -> bool:
        """Whether what runs has to end."""
        if self._should_stop is not None and self._should_stop():
            return True
        enough = bool(self._best_of) or not self._overtime_steps
        return enough and time.perf_counter() > self._deadline

    def _tuples_of(self, rows: IntArray) -> int:
        """Count the tuples of degree rows."""
        return int(self.source.tuples[rows].sum())

    def _take_rows(self, rows: IntArray) -> None:
        """Bound degree rows over optimistic terms, shard the survivors, and set those aside that are wanted.

        The best of them is followed down to one tuple at once, so that later rows are compared with a good layout.
        """
        terms = self.source.relaxed(self.source.degrees.take(rows))
        bound = lower_bound(terms, self.source.counts, self.source.rule, self._wanted_s(), free=True)
        self._by_memory += self._tuples_of(rows[np.isinf(bound)])
        kept = bound < self._wanted_s()
        rows = rows[kept]
        if not len(rows):
            return
        first, *others = self.source.refinements
        likely = likely_s(terms.take(np.flatnonzero(kept)), self.source.counts)
        aside = self._refined(
            _Partial(self.source.degrees.take(rows), self.source.tuples[rows], bound[kept], likely),
            first,
            free=True,
        )
        if not len(aside.bound):
            return
        best = int(aside.likely.argmin())
        if aside.likely[best] < PROMISING * self._best_s():
            self._descend(aside.batch.take(np.array([best])), others)
        self._aside.append(aside)

    def _refined(self, partial: _Partial, step: Refinement, *, free: bool = False) -> _Partial:
        """Choose the modifiers of one step and keep what is wanted; ``free`` as in ``lower_bound``."""
        batch, owner = step.expand(partial.batch)
        weight = partial.weight[owner] // np.bincount(owner, minlength=len(partial.weight))[owner]
        bound, likely = np.zeros(len(batch)), np.zeros(len(batch))
        for index in _pieces(batch.pp):
            terms = step.terms(batch.take(index))
            bound[index], likely[index] = self._bounds(terms, free=free), likely_s(terms, self.source.counts)
        self._by_memory += int(weight[np.isinf(bound)].sum())
        bound = self.source.demands.kept(bound, batch, exact=False)
        return _Partial(batch, weight, bound, likely).take(np.flatnonzero(bound < self._wanted_s()))

    def _descend(self, batch: LayoutBatch, steps: Sequence[Refinement]) -> None:
        """Choose the remaining modifiers greedily by what is likely and construct stages of the tuple reached."""
        terms = None
        for step in steps:
            batch, _ = step.expand(batch)
            terms = step.terms(batch)
            likely = likely_s(terms, self.source.counts)
            near = np.argsort(likely, kind="stable")[:TRIED]
            if np.isinf(likely[near[0]]):
                return
            if step is steps[-1]:  # memory decides among what is likely
                stages = construct(terms.take(near), self.source.counts, self.source.rule)
                near = near[np.argsort(stages.step_time_s, kind="stable")]
            batch, terms = batch.take(near[:1]), terms.take(near[:1])
        if terms is None:
            return
        item = self._waiting(batch, terms, 0.0, 0)
        made = self._constructed(item, np.inf)
        if made is not None:
            self._keep(item, made)
        elif not self._best_of and np.isfinite(self._bounds(terms)[0]):  # else its row counts as without room
            self._solve(item, np.inf)

    def _finish(self) -> None:
        """Expand what was set aside in order of its bound, and solve what may beat the best layout."""
        self._overtime_steps = OVERTIME_STEPS
        if not self._aside:
            return
        partial = _Partial.concat(self._aside)
        self._aside = []
        self._try_likely(partial)
        partial = partial.take(np.argsort(partial.bound, kind="stable"))
        start, size = 0, FIRST_CHOICES
        while start < len(partial.bound) and partial.bound[start] < self._wanted_s() and not self._stopped():
            chosen = partial.take(np.arange(start, min(start + size, len(partial.bound))))
            start, size = start + size, min(size * GROWTH, CHOICES)
            self._push_tuples(chosen)
            self._left_bound_s = float(partial.bound[start]) if start < len(partial.bound) else np.inf
            self._solve_waiting(max(len(partial.bound) - start, 0))
        self._left_bound_s = float(partial.bound[start]) if start < len(partial.bound) else np.inf

    def _try_likely(self, partial: _Partial) -> None:
        """Follow the likeliest rows of different shapes down, until some in a row are no better."""
        tried: set[tuple[int, ...]] = set()
        vain = 0
        for row in np.argsort(partial.likely, kind="stable").tolist():
            batch = partial.batch.take(np.array([row]))
            shape = tuple(int(getattr(batch, name)[0]) for name in SHAPE)
            if shape in tried:
                continue
            if vain == LIKELY or partial.likely[row] >= self._best_s() or self._stopped():
                return
            tried.add(shape)
            before = self._best_s()
            self._descend(batch, self.source.refinements[1:])
            vain = 0 if self._best_s() < before else vain + 1

    def _push_tuples(self, partial: _Partial) -> None:
        """Choose the remaining modifiers and put the wanted tuples into the heap."""
        *middle, last = self.source.refinements[1:]
        for step in middle:
            partial = self._refined(partial, step)
        if not len(partial.bound):
            return
        batch, owner = last.expand(partial.batch)
        weight = partial.weight[owner] // np.bincount(owner, minlength=len(partial.weight))[owner]
        for piece in _pieces(batch.pp):
            if self._out_of_time():  # what is not looked at is bounded as it was
                self._left_open_s = min(self._left_open_s, float(partial.bound.min()))
                return
            self._push(batch.take(piece), weight[piece], last)

    def _push(self, batch: LayoutBatch, weight: IntArray, last: Refinement) -> None:
        """Put tuples into the heap as far as they are wanted."""
        terms = last.terms(batch)
        bound = self._bounds(terms)
        self._by_memory += int(weight[np.isinf(bound)].sum())
        bound = self.source.demands.kept(bound, batch)
        for index in np.flatnonzero(bound < self._wanted_s()):
            self._serial += 1
            heapq.heappush(self._heap, self._waiting(batch, terms, float(bound[index]), int(index)))

    def _waiting(self, batch: LayoutBatch, terms: StageTerms, bound_s: float, index: int) -> _Waiting:
        """Wrap one tuple of a batch."""
        family = tuple(int(getattr(batch, name)[index]) for name in FAMILY)
        one = np.array([index])
        return _Waiting(bound_s, self._serial, family, batch.take(one), terms.take(one))

    def _bounds(self, terms: StageTerms, *, free: bool = False) -> FloatArray:
        """Bound tuples as exactly as it matters: in closed form, then tightly where that is not enough."""
        bound = quick_bound(terms, self.source.counts)
        left = np.flatnonzero(bound < self._wanted_s())
        counts, rule = self.source.counts, self.source.rule
        bound[left] = lower_bound(terms.take(left), counts, rule, self._wanted_s(), free=free)
        return bound

    def _solve_waiting(self, left: int) -> None:
        """Solve tuples in order of their bound while one may beat the best layout."""
        size = 1
        while self._heap and self._heap[0].bound_s < self._limit_s() and not self._stopped():
            if size == 1:
                better = self._solve(heapq.heappop(self._heap), self._limit_s())
            else:
                better = self._solve_slice(size, self._limit_s())
            # Alone, tuples are solved fastest; where bounds miss what is demanded there are many that have nothing.
            size = 1 if better or not self._loose else min(size * 2, MOST_IN_SLICE)
            self._report(left)

    def _solve_slice(self, size: int, upper_s: float) -> bool:
        """Solve the tuples of the least bounds as one model; tell whether it holds a layout better than the best."""
        items: list[_Waiting] = []
        while self._heap and len(items) < size and self._heap[0].bound_s < upper_s:
            items.append(heapq.heappop(self._heap))
        better, open_ = False, []
        for item in items:
            near, decided = self._tried(item, upper_s)
            better = better or near is not None
            upper_s = near.step_time_s if near is not None else upper_s
            if not decided:
                open_.append(item)
        items = open_
        if not items:
            return better
        data = tuple_slice(
            LayoutBatch.concat([item.layout for item in items]),
            stack_terms([item.terms for item in items]),
            self.source.counts, self.source.rule, lower_s=items[0].bound_s, upper_s=upper_s,
        )  # fmt: skip
        self._rounding_s = max(self._rounding_s, data.rounding_ns / 1e9)
        result = CpModel(data, demands=self.source.demands, paths=self._paths).solve(self._limits())
        if result.status in (SliceStatus.UNKNOWN, SliceStatus.FEASIBLE):
            for item in items:
                heapq.heappush(self._heap, item)
        else:
            self._settle(items, result, upper_s)
        if result.blocks is not None:
            self._keep(items[result.position], result)
        return better or result.blocks is not None

    def _tried(self, item: _Waiting, upper_s: float) -> tuple[SliceResult | None, bool]:
        """Enumerate a tuple's stages and book what that decided; tell whether it needs no solver."""
        key = item.layout.table().tobytes()
        if key in self._settled:
            return None, True
        near, decided = self._enumerated(item, None, upper_s, AT_FIRST)
        if not (decided or self._out_of_time()):
            upper_s = near.step_time_s if near is not None else upper_s
            near = self._constructed(item, upper_s) or near
            upper_s = near.step_time_s if near is not None else upper_s
            near, decided = self._enumerated(item, near, upper_s, MOST_STATES)
        if not (decided or item.raised or self._out_of_time()):
            near, _ = self._enumerated(item, near, near.step_time_s if near else upper_s, BEAM, beam=True)
        if decided:
            self._settled.add(key)
            self._solved += 1
        if near is not None:
            self._keep(item, near)
        elif decided:
            self._excluded(upper_s)
        return near, decided

    def _excluded(self, below_s: float) -> None:
        """Note that some tuple has nothing below a step time, which is all that is known where a gap is accepted."""
        if self.options.gap > 0:
            self._left_open_s = min(self._left_open_s, below_s)

    def _settle(self, items: list[_Waiting], result: SliceResult, upper_s: float) -> None:
        """Book a solved slice: its best tuple is solved, the others reach no less than the slice does."""
        found = result.status is SliceStatus.OPTIMAL
        if found and self.options.gap > 0:
            self._left_open_s = min(self._left_open_s, result.bound_s)
        reached_s = result.step_time_s if found else upper_s
        for position, item in enumerate(items):
            if not np.isfinite(reached_s) or (found and position == result.position):
                self._settled.add(item.layout.table().tobytes())
                self._solved += 1
            elif reached_s < self._wanted_s():
                item.bound_s = max(item.bound_s, reached_s)
                heapq.heappush(self._heap, item)

    def _solve_runners_up(self) -> None:
        """Solve tuples of further families, as many as wanted and as near as wanted."""
        left = MOST_TRIED if self._loose else np.inf
        while left > 0 and self._heap and len(self._near_ties()) < self.options.top and not self._stopped():
            if self._heap[0].bound_s >= self._wanted_s():
                break
            left -= 1
            item = heapq.heappop(self._heap)
            known = self._best_of.get(item.family)
            upper_s = self._wanted_s() if known is None else min(self._wanted_s(), known.step_time_s)
            if item.bound_s < upper_s:
                self._solve(item, upper_s)

    def _near_ties(self) -> list[Found]:
        """Layouts found that are as near to the best as wanted."""
        return [item for item in self._best_of.values() if item.step_time_s <= self._wanted_s()]

    def _solve(self, item: _Waiting, upper_s: float) -> bool:
        """Find the best stages of one tuple with CP-SAT, unless that was done when it was reached greedily.

        Tell whether there are any below ``upper_s``.
        """
        near, decided = self._tried(item, upper_s)
        if decided or self._out_of_time():
            if not decided:
                heapq.heappush(self._heap, item)
            return near is not None
        upper_s = near.step_time_s if near is not None else upper_s
        if self._raised(item, upper_s):
            heapq.heappush(self._heap, item)
            return near is not None
        counts, rule = self.source.counts, self.source.rule
        data = tuple_slice(item.layout, item.terms, counts, rule, lower_s=item.bound_s, upper_s=upper_s)
        self._rounding_s = max(self._rounding_s, rounding_s(counts))
        result = CpModel(data, demands=self.source.demands, paths=self._paths).solve(self._limits())
        if result.status in (SliceStatus.UNKNOWN, SliceStatus.FEASIBLE):
            # Not proven: the tuple keeps waiting with its bound.
            heapq.heappush(self._heap, item)
        else:
            self._settled.add(item.layout.table().tobytes())
            self._solved += 1
            found = result.status is SliceStatus.OPTIMAL
            self._excluded(result.bound_s if found else upper_s)
        if result.blocks is not None:
            self._keep(item, result)
        return result.blocks is not None or near is not None

    def _raised(self, item: _Waiting, upper_s: float) -> bool:
        """Raise a tuple's bound by enumerating what is much better than wanted; then others have their turn first."""
        if item.raised or not np.isfinite(upper_s):
            return False
        item.raised, least_s = True, item.bound_s
        for share in RAISED:
            below_s = least_s + share * (upper_s - least_s)
            near, decided = self._enumerated(item, None, below_s, AT_FIRST)
            if near is not None:
                self._keep(item, near)
            if decided and near is None:
                item.bound_s = below_s
                break
        return True

    def _enumerated(
        self,
        item: _Waiting,
        near: SliceResult | None,
        upper_s: float,
        most_states: int,
        *,
        beam: bool = False,
    ) -> tuple[SliceResult | None, bool]:
        """Improve stages by enumeration; tell whether nothing better is left, so that the solver need not look."""
        rounding = rounding_s(self.source.counts)
        self._rounding_s = max(self._rounding_s, rounding)
        found = fastest_stages(
            item.terms, self.source.counts, self.source.rule, self._paths, upper_s, rounding,
            reached=near is not None or self._best_s() <= upper_s,
            demands=self._stage_demands(item),
            accept=lambda held, again, step: self._meets(item, held, again, step),
            most_states=most_states, beam=beam, stopped=self._out_of_time,
        )  # fmt: skip
        if found.blocks is None or found.recomputed is None:
            return near, found.proven
        room = ((0, item.terms.in_flight.shape[1] - found.blocks.shape[1]), (0, 0))
        held, again = (np.pad(part.sum(axis=0), room)[None] for part in (found.blocks, found.recomputed))
        better = SliceResult(
            status=SliceStatus.FEASIBLE,
            blocks=found.blocks,
            recomputed=found.recomputed,
            step_time_s=found.step_s,
            peak_bytes=float(price_stages(item.terms, held, again).peak_bytes[0]),
        )
        return better, found.proven

    def _stage_demands(self, item: _Waiting) -> tuple[StageDemand, ...]:
        """Return what is demanded of a tuple's stages, as far as they can be enumerated."""
        if not self.source.demands.any:
            return ()
        return self.source.demands.of_stages(item.layout, int(item.terms.pp[0]))

    def _demanded(self, item: _Waiting) -> SliceResult | None:
        """Look for some stages that meet what is demanded, not much slower than without demands."""
        if not self._stage_demands(item):
            return None
        freely = good_stages(item.terms, self.source.counts, self.source.rule)
        for factor in SLOWER:
            upper_s = min(float(freely.step_time_s[0]) * factor, self._best_s())
            near, _ = self._enumerated(item, None, upper_s, BEAM, beam=True)
            if near is not None:
                return near
        return None

    def _constructed(self, item: _Waiting, below_s: float) -> SliceResult | None:
        """Construct stages of one tuple and price them exactly; None where they are no answer below a step time."""
        near = good_stages(item.terms, self.source.counts, self.source.rule, below_s)
        if not np.isfinite(near.step_time_s[0]):
            return None
        blocks, recomputed = by_chunk(item.terms, near, self.source.counts)
        step_s, _ = self._paths.price(item.terms, 0, blocks, recomputed)
        costs = replace(
            price_stages(item.terms, near.blocks, near.recomputed), step_time_s=np.array([step_s])
        )
        if not (step_s < below_s and self._meets_demands(item, near, costs)):
            return None
        return SliceResult(
            status=SliceStatus.FEASIBLE,
            blocks=blocks,
            recomputed=recomputed,
            step_time_s=step_s,
            peak_bytes=float(costs.peak_bytes[0]),
        )

    def _meets(self, item: _Waiting, held: IntArray, again: IntArray, step: float) -> bool:
        """Whether enumerated stages are an answer to the question."""
        costs = replace(price_stages(item.terms, held, again), step_time_s=np.array([step]))
        near = Stages(blocks=held, recomputed=again, step_time_s=costs.step_time_s)
        return self._meets_demands(item, near, costs)

    def _meets_demands(self, item: _Waiting, near: Stages, costs: StageCosts) -> bool:
        """Whether constructed stages are an answer to the question."""
        demands = self.source.demands
        if not demands.any:
            return True
        if not demands.judged_outside:
            return False
        finished = Finished(
            batch=item.layout,
            ranks=int(item.terms.pp[0]),
            blocks=near.blocks,
            recomputed=near.recomputed,
            step_s=costs.step_time_s,
            peak_bytes=costs.peak_bytes,
        )
        return bool(demands.met(finished)[0])

    def _keep(self, item: _Waiting, result: SliceResult) -> None:
        """Remember a layout if it is the best of its family."""
        assert result.blocks is not None
        assert result.recomputed is not None
        known = self._best_of.get(item.family)
        if known is None or result.step_time_s < known.step_time_s:
            self._best_of[item.family] = Found(
                layout=item.layout,
                blocks=result.blocks,
                recomputed=result.recomputed,
                step_time_s=result.step_time_s,
                peak_bytes=result.peak_bytes,
            )

    def _limits(self) -> SolverLimits:
        left = self._deadline - time.perf_counter()
        return SolverLimits(
            time_limit_s=max(left, 0.01),
            workers=self.options.workers,
            seed=self.options.seed,
            gap=self.options.gap,
            should_stop=self._should_stop,
        )

    def _report(self, rows_left: int) -> None:
        if self._on_progress is not None:
            state = Progress(
                best_s=self._best_s(), bound_s=self._bound_s(), rows_left=rows_left, solves=self._solved
            )
            self._on_progress(state)

    def _bound_s(self) -> float:
        """Proven floor under every step time: the best found, or what still waits."""
        waiting = self._heap[0].bound_s if self._heap else np.inf
        aside = min((float(part.bound.min()) for part in self._aside), default=np.inf)
        open_s = min(self._next_bound_s, self._left_bound_s, self._left_open_s)
        return float(min(self._best_s(), waiting, aside, open_s))

    def _result(self) -> SearchResult:
        found = sorted(self._near_ties(), key=lambda item: item.step_time_s)
        bound = self._bound_s()
        proven = bound >= self._best_s() * (1 - self.options.gap) or (not found and np.isinf(bound))
        return SearchResult(
            found=tuple(found[: max(self.options.top, 1)]),
            bound_s=bound,
            complete=bool(proven),
            by_memory=self._by_memory,
            solved=self._solved,
            rounding_s=self._rounding_s,
        )
