"""Best-first search: bound all degree rows, expand the survivors, choose stages in order of the bound.

A degree row is dropped when its bound, over optimistic terms of all its modifiers, is not below what is wanted; then its
tuples one by one by their own bound; the rest wait in a heap. The stages of the tuple with the least bound are enumerated
until no bound is below the best layout found. What enumeration leaves open waits until all else is decided: by then the
best layout excludes most of it, and CP-SAT decides the rest. What the bound drops can't beat the best layout, so that
it is optimal.
"""

from __future__ import annotations

import heapq
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.solve.model.coefficients import rounding_s
from layoutopt.optimizer.solve.model.cp_model import SliceStatus, SolverLimits
from layoutopt.optimizer.solve.search.deadline import Deadline
from layoutopt.optimizer.solve.search.dominance import AlikeTuples, Settled
from layoutopt.optimizer.solve.search.first import FirstTuples
from layoutopt.optimizer.solve.search.one_tuple import TupleSolver, Waiting
from layoutopt.optimizer.solve.search.result import BestLayouts, Found, Progress, SearchResult
from layoutopt.optimizer.solve.search.rows import Partial, RowBounds, pieces

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from layoutopt.optimizer.cost.batch import IntArray, LayoutBatch
    from layoutopt.optimizer.cost.terms import StageTerms
    from layoutopt.optimizer.solve.model.cp_model import SliceResult
    from layoutopt.optimizer.solve.model.paths import Paths
    from layoutopt.optimizer.solve.search.result import SearchOptions
    from layoutopt.optimizer.solve.search.source import TermsSource

FIRST_ROWS, GROWTH, ROWS = 64, 8, 8_192
"""Degree rows bounded tightly at once: few first, for a layout to compare with; then more, which is cheaper per row."""

LIKELY = 4
"""Likely tuples in a row that bring nothing better before the search begins."""

PROMISING = 0.998
"""Share of the best step time below which a likely tuple counts as better."""

FIRST_CHOICES, CHOICES = 16, 1_024
"""Rows with chosen sharding whose other modifiers are expanded at once: few first, for an even better layout."""

PATIENCE, FEWEST = 2_048, 2
"""Layers of the rounds around likely tuples, and of those solved in a row without a better layout before rows that may be
faster are expanded; the least of both. Tuples of deep models take long, and a stopped search knows its gap by what is
expanded."""

MOST_IN_SLICE = 4
"""Tuples of one model at most: more of them solve no faster together than apart."""

MOST_TRIED = 64
"""Tuples tried for runners-up where bounds miss what is demanded: most of them have none."""


IN_VAIN, MOST_AGAIN = 2, 24
"""Tuples of a family without anything faster than the best that are tried again in a row for runners-up, and then of all."""


class BestFirst:
    """One search over one space. ``run`` it once. ``paths`` price stages; None: by seconds of a step."""

    def __init__(
        self,
        source: TermsSource,
        options: SearchOptions,
        *,
        paths: Paths | None = None,
        on_progress: Callable[[Progress], None] | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> None:
        self.source, self.options = source, options
        self._on_progress, self._should_stop = on_progress, should_stop
        self._deadline = Deadline(options.time_limit_s, should_stop)
        self._patience = max(PATIENCE // max(int(source.counts.sum()), 1), FEWEST)
        self._rows, self._tuples = RowBounds(source), TupleSolver(source, self._out_of_time, paths)
        self._heap: list[Waiting] = []
        self._hard: list[Waiting] = []
        self._serial = 0
        self._settled: set[bytes] = set()
        self._solved: set[bytes] = set()
        self._passed: list[Waiting] = []
        self._open: list[Waiting] = []
        # a demand or another objective may ask for more than time and memory
        self._proven = Settled() if paths is None and not source.demands.any else None
        self._alike = AlikeTuples(self._tuples.nothing_below)
        self._best = BestLayouts()
        self._aside: list[Partial] = []
        self._next_bound_s = self._left_bound_s = self._left_open_s = np.inf
        self._loose = self._tuples.linear and source.demands.any and source.demands.loose
        self._with_solver = self._loose

    def run(self) -> SearchResult:
        """Search until the answer is proven, the time is up or a stop is asked for."""
        if self.options.one_model:
            return self._solve_whole()
        self._try_likely()
        # One closed form for every row; all that follows touches only rows it leaves.
        quick = self._rows.quick(self._should_stop)
        order = np.argsort(quick, kind="stable")
        # Infinite is a proof that no split of the row fits.
        order = order[np.isfinite(quick[order])]
        start, size = 0, FIRST_ROWS
        while start < len(order) and quick[order[start]] < self._wanted_s() and not self._stopped():
            self._next_bound_s = float(quick[order[start]])
            following = order[start : start + size]
            for piece in pieces(self.source.degrees.pp[following]):
                rows = following[piece]
                # The best layout may have become better since the rows were chosen.
                rows = rows[quick[rows] < self._wanted_s()]
                if len(rows):
                    self._take_rows(rows)
            start, size = start + size, min(size * GROWTH, ROWS)
            self._report(len(order) - start)
        # The rows are in order: whatever was not looked at is at least as slow as the first of them.
        self._next_bound_s = float(quick[order[start]]) if start < len(order) else np.inf
        self._finish()
        self._solve_hard()
        self._solve_runners_up()
        return self._result()

    def solve_tuple(self, layout: LayoutBatch, below_s: float = np.inf) -> Found | None:
        """Return one tuple with the best stages that are found below a step time; None where none fit.

        Stages are enumerated where ``below_s`` is finite: with none that fit the solver need not look.
        """
        item = Waiting.of(layout, self.source.terms(layout), 0)
        self._with_solver = True
        near, decided = self._tried(item, below_s)
        if near is None and not decided:
            self._solve(item, below_s)
        # Constructed stages, which take no time, are better than none after a stop.
        made = (
            None
            if decided or self._best or not self._deadline.asked()
            else self._tuples.constructed(item, below_s)
        )
        if made is not None:
            self._keep(item, made)
        return self._best.of(item.family)

    def _solve_whole(self) -> SearchResult:
        """Put every tuple into one CP-SAT model: the reference for small spaces, without bounds of our own."""
        batch, _ = self.source.expand(self.source.degrees)
        if not len(batch):
            return self._result()
        terms = self.source.terms(batch)
        items = [Waiting.of(batch, terms, index) for index in range(len(batch))]
        result = self._tuples.solved(items, 0.0, np.inf, self._limits())
        self._solved = {item.key for item in items}
        # No stages of any tuple: that is a proof, not a stop.
        none = result.status is SliceStatus.NO_BETTER
        self._left_bound_s = np.inf if none else result.bound_s
        # The solver's integers round down; a proven optimum is the floor of all, not its rounded bound.
        if result.status is SliceStatus.OPTIMAL and self.options.gap == 0:
            self._left_bound_s = result.step_time_s
        if result.blocks is not None:
            self._keep(items[result.position], result)
        return self._result()

    def _limit_s(self) -> float:
        """Step time below which the best layout is still looked for."""
        # a step that is only known to be reached has to be found again, whatever the solver rounds
        reachable_s = self.options.upper_s * (1 + 1e-12) + 2 * rounding_s(self.source.counts)
        # Any layout will do for a gap of 1: until there is one, an infinite step times 0 would be no number.
        return min(self._best.step_s * (1 - self.options.gap), reachable_s) if self._best else reachable_s

    def _wanted_s(self) -> float:
        """Step time below which tuples are kept: near-ties of the best too."""
        # Whoever asks for one layout pays for no near-ties.
        near = self.options.near if self.options.top > 1 else 0.0
        return min(self._best.step_s, self.options.upper_s) * (1 + near)

    def _stopped(self) -> bool:
        return self._deadline.reached(known=bool(self._best))

    def _out_of_time(self) -> bool:
        return self._deadline.over(known=bool(self._best))

    def _try_likely(self) -> None:
        """Look for a good layout among tuples that are likely to be the fastest, and then around it."""
        first = FirstTuples(self.source, self._out_of_time)
        best = self._best_likely(first.of_all_depths(self._limit_s))
        for _ in range(self._patience):
            # The other half of a short limit is for what all rows take at least.
            if best is None or self._stopped() or self._deadline.half_over:
                break
            best = self._best_likely(first.near(best, self._limit_s))

    def _best_likely(self, portions: Iterator[list[Waiting]]) -> Waiting | None:
        """Construct stages of tuples until some in a row are no better, and enumerate those of the best.

        Return it, None if it is no better than what was known.
        """
        best: Waiting | None = None
        for items in portions:
            vain = 0
            for item in items:
                if vain == LIKELY or self._stopped():
                    break
                before_s = self._best.step_s
                made = self._tuples.constructed(item, before_s)
                if made is not None:
                    self._keep(item, made)
                    best = item
                # A hair's breadth better is no reason to go on.
                vain = 0 if self._best.step_s < PROMISING * before_s else vain + 1
        if best is not None:
            self._tried(best, self._best.step_s)
        return best

    def _take_rows(self, rows: IntArray) -> None:
        """Bound degree rows over optimistic terms, shard the survivors, and set those aside that are wanted."""
        partial = self._rows.degree_rows(rows, self._wanted_s())
        if len(partial):
            first = self.source.refinements[0]
            partial = self._rows.refined(partial, first, self._wanted_s(), free=True)
        if len(partial):
            self._aside.append(partial)

    def _finish(self) -> None:
        """Expand what was set aside in order of its bound, and solve what may beat the best layout."""
        self._deadline.grant()
        if not self._aside:
            return
        partial = Partial.concat(self._aside)
        self._aside = []
        partial = partial.take(np.argsort(partial.bound, kind="stable"))
        start, size = 0, FIRST_CHOICES
        while start < len(partial) and partial.bound[start] < self._wanted_s() and not self._stopped():
            chosen = partial.take(np.arange(start, min(start + size, len(partial))))
            start, size = start + size, min(size * GROWTH, CHOICES)
            self._push_tuples(chosen)
            self._left_bound_s = float(partial.bound[start]) if start < len(partial) else np.inf
            self._solve_waiting(max(len(partial) - start, 0), self._left_bound_s)
        self._left_bound_s = float(partial.bound[start]) if start < len(partial) else np.inf

    def _push_tuples(self, partial: Partial) -> None:
        """Choose the remaining modifiers and put the wanted tuples into the heap."""
        # The first refinement was done when the rows were set aside.
        *middle, last = self.source.refinements[1:]
        for step in middle:
            partial = self._rows.refined(partial, step, self._wanted_s())
        if not len(partial):
            return
        batch, owner, terms = last.choices(partial.batch)
        weight = last.weights(partial.weight, batch, owner)
        for piece in pieces(batch.pp):
            if self._out_of_time():  # what is not looked at is bounded as it was
                self._left_open_s = min(self._left_open_s, float(partial.bound.min()))
                return
            self._push(batch.take(piece), weight[piece], terms.take(piece))

    def _push(self, batch: LayoutBatch, weight: IntArray, terms: StageTerms) -> None:
        """Put tuples into the heap as far as they are wanted."""
        bound = self._rows.tuples(batch, weight, terms, self._wanted_s())
        for index in np.flatnonzero(bound < self._wanted_s()).tolist():
            self._serial += 1
            item = Waiting.of(batch, terms, index, bound_s=float(bound[index]), serial=self._serial)
            heapq.heappush(self._heap, item)
            self._alike.add(item)

    def _solve_waiting(self, left: int, ahead_s: float = np.inf) -> None:
        """Solve tuples in order of their bound while one may beat the best layout.

        Those that may take longer than ``ahead_s`` wait for what is not expanded yet once some were no better.
        """
        size, vain = 1, 0
        while self._heap and self._heap[0].bound_s < self._limit_s() and not self._stopped():
            # What is not expanded yet may have better tuples with lower bounds.
            if vain >= self._patience and self._heap[0].bound_s > ahead_s:
                break
            if size == 1:
                better = self._solve(heapq.heappop(self._heap), self._limit_s())
            else:
                better = self._solve_slice(size, self._limit_s())
            # Alone, tuples are solved fastest; where bounds miss what is demanded there are many that have nothing.
            size = 1 if better or not self._loose else min(size * 2, MOST_IN_SLICE)
            vain = 0 if better else vain + 1
            self._report(left)

    def _solve_hard(self) -> None:
        """Solve what enumeration has left open, now that the best layout excludes most of it."""
        self._with_solver = True
        for item in self._hard:
            heapq.heappush(self._heap, item)
        self._hard = []
        self._solve_waiting(0)

    def _solve_slice(self, size: int, upper_s: float) -> bool:
        """Solve the tuples of the least bounds as one model; tell whether it holds a layout better than the best."""
        items: list[Waiting] = []
        while self._heap and len(items) < size and self._heap[0].bound_s < upper_s:
            items.append(heapq.heappop(self._heap))
        better, open_ = False, []
        for item in items:
            near, decided = self._tried(item, upper_s)
            better = better or near is not None
            upper_s = near.step_time_s if near is not None else upper_s
            if not decided:
                open_.append(item)
        return self._solve_model(open_, upper_s) or better if open_ else better

    def _tried(self, item: Waiting, upper_s: float) -> tuple[SliceResult | None, bool]:
        """Enumerate a tuple's stages and book what that decided; tell whether it needs no solver."""
        # Tuples reached greedily at the start come again in the order of their bounds.
        if item.key in self._settled:
            return None, True
        # Terms that another tuple's terms equal or exceed in everything can't be faster than it.
        excluded = self._proven is not None and self._proven.excludes(item, upper_s)
        if excluded:
            near, decided = None, True
        else:
            if self._proven is not None and self._alike.excludes(item, upper_s, self._settled):
                near, decided = None, True
            else:
                near, decided = self._tuples.tried(item, upper_s, self._best.step_s)
            if decided and self._proven is not None:
                self._proven.add(item, upper_s if near is None else near.step_time_s)
        if decided:
            self._book(item, upper_s, found=near is not None or excluded)
        if near is not None:
            self._keep(item, near)
        elif decided:
            self._excluded(upper_s)
        return near, decided

    def _book(self, item: Waiting, below_s: float, *, found: bool) -> None:
        """Note that a tuple is decided: its best stages are known, or another's of its family, or none below a step time."""
        self._settled.add(item.key)
        self._solved.add(item.key)
        if not found:
            item.floor_s = below_s
            self._passed.append(item)

    def _excluded(self, below_s: float) -> None:
        """Note that some tuple has nothing below a step time, which is all that is known where a gap is accepted."""
        if self.options.gap > 0:
            self._left_open_s = min(self._left_open_s, below_s)

    def _solve(self, item: Waiting, upper_s: float) -> bool:
        """Find the best stages of one tuple, unless that was done when it was reached greedily.

        Tell whether there are any below ``upper_s``.
        """
        near, decided = self._tried(item, upper_s)
        if decided:
            return near is not None
        upper_s = near.step_time_s if near is not None else upper_s
        if self._out_of_time():
            heapq.heappush(self._heap, item)
        # Raising costs less than the solver and puts most such tuples behind the best layout.
        elif not item.raised and np.isfinite(upper_s):
            near = self._raise(item, upper_s) or near
        elif np.isfinite(upper_s) and not self._with_solver:
            self._hard.append(item)
        elif not self._tuples.linear:
            self._left_open_s = min(self._left_open_s, item.bound_s)
        else:
            return self._solve_model([item], upper_s) or near is not None
        return near is not None

    def _raise(self, item: Waiting, upper_s: float) -> SliceResult | None:
        """Raise the bound of a tuple that enumeration leaves open; then others have their turn first."""
        near = self._tuples.raised(item, upper_s, self._best.step_s)
        if near is not None:
            self._keep(item, near)
        heapq.heappush(self._heap, item)
        return near

    def _solve_model(self, items: list[Waiting], upper_s: float) -> bool:
        """Solve tuples as one model of CP-SAT; tell whether they have a layout below ``upper_s``."""
        result = self._tuples.solved(items, min(item.bound_s for item in items), upper_s, self._limits())
        if result.status in (SliceStatus.UNKNOWN, SliceStatus.FEASIBLE):
            for item in items:  # not proven: they keep waiting with their bounds
                heapq.heappush(self._heap, item)
        else:
            self._settle(items, result, upper_s)
        if result.blocks is not None:
            self._keep(items[result.position], result)
        return result.blocks is not None

    def _settle(self, items: list[Waiting], result: SliceResult, upper_s: float) -> None:
        """Book a solved slice: its best tuple is solved, the others reach no less than the slice does."""
        found = result.status is SliceStatus.OPTIMAL
        self._excluded(result.bound_s if found else upper_s)
        reached_s = result.step_time_s if found else upper_s
        for position, item in enumerate(items):
            # A slice's optimum says of its other tuples only that they reach no less.
            alone = len(items) == 1 or not np.isfinite(reached_s)
            own = found and position == result.position
            if alone or own:
                self._book(item, reached_s, found=own)
            elif reached_s < self._wanted_s():
                # Still a near-tie, perhaps: it waits with what the slice has proven.
                item.bound_s = max(item.bound_s, reached_s)
                heapq.heappush(self._heap, item)

    def _solve_runners_up(self) -> None:
        """Solve tuples of further families, as many as wanted and as near as wanted.

        What had nothing faster than the best may be nearer to it than what is known: it waits again, behind the others
        where some of its family in a row brought nothing, and stays open beyond ``MOST_AGAIN``.
        """
        if self.options.top == 1:
            return
        # Settled was that they have nothing faster than the best: near it they may have something.
        self._settled.difference_update(item.key for item in self._passed)
        for item in self._passed:
            heapq.heappush(self._heap, item)
        self._passed, behind = [], []
        vain: Counter[tuple[int, ...]] = Counter()
        left = MOST_TRIED if self._loose else np.inf
        while left > 0 and self._heap and self._heap[0].bound_s < self._runner_up_s() and not self._stopped():
            if self.options.gap > 0 and len(self._best.within(self._wanted_s())) >= self.options.top:
                break  # what a gap leaves open may be nearer: it is counted, not solved
            item = heapq.heappop(self._heap)
            if not self._may_be_near(item):
                continue
            if item.floor_s > 0 and vain[item.family] == IN_VAIN:
                behind.append(item)
                continue
            left -= 1
            vain[item.family] = 0 if self._solve(item, self._near_s(item)) else vain[item.family] + 1
        behind.sort(key=lambda item: self._best.of(item.family) is not None)
        again = MOST_AGAIN
        while again and behind and not self._stopped():
            item = behind.pop(0)
            if self._may_be_near(item):
                self._solve(item, self._near_s(item))
                again -= 1
        for item in self._heap:  # what had nothing below the best is bounded by that, tried again or not
            item.bound_s = max(item.bound_s, item.floor_s)
        heapq.heapify(self._heap)
        self._open = [item for item in (*behind, *self._heap) if self._may_be_near(item)]

    def _near_s(self, item: Waiting) -> float:
        """Step time below which a tuple's stages are wanted as a runner-up."""
        known = self._best.of(item.family)
        return self._runner_up_s() if known is None else min(self._runner_up_s(), known.step_time_s)

    def _may_be_near(self, item: Waiting) -> bool:
        return max(item.bound_s, item.floor_s) < self._near_s(item)

    def _runner_up_s(self) -> float:
        """Step time below which a layout of a further family is one of those wanted."""
        known = self._best.within(self._wanted_s())[: self.options.top]
        return known[-1].step_time_s if len(known) == self.options.top else self._wanted_s()

    def _keep(self, item: Waiting, result: SliceResult) -> None:
        """Remember a layout if it is the best of its family."""
        assert result.blocks is not None
        assert result.recomputed is not None
        found = Found(
            layout=item.layout,
            blocks=result.blocks,
            recomputed=result.recomputed,
            step_time_s=result.step_time_s,
            peak_bytes=result.peak_bytes,
        )
        self._best.keep(item.family, found)

    def _limits(self) -> SolverLimits:
        return SolverLimits(
            time_limit_s=max(self._deadline.left_s, 0.01),
            workers=self.options.workers,
            seed=self.options.seed,
            gap=self.options.gap,
            should_stop=self._should_stop,
        )

    def _report(self, rows_left: int) -> None:
        if self._on_progress is not None:
            state = Progress(
                best_s=self._best.step_s,
                bound_s=self._bound_s(),
                rows_left=rows_left,
                solves=len(self._solved),
            )
            self._on_progress(state)

    def _bound_s(self) -> float:
        """Proven floor under every step time: the best found, or what still waits."""
        waiting = min((item.bound_s for item in (*self._heap[:1], *self._hard)), default=np.inf)
        # Rows set aside are open as well: no floor may be above theirs.
        aside = min((float(part.bound.min()) for part in self._aside), default=np.inf)
        open_s = min(self._next_bound_s, self._left_bound_s, self._left_open_s)
        return float(min(self._best.step_s, waiting, aside, open_s))

    def _result(self) -> SearchResult:
        found = self._best.within(self._wanted_s())
        bound = self._bound_s()
        proven = bound >= self._best.step_s * (1 - self.options.gap) or (not found and np.isinf(bound))
        return SearchResult(
            found=tuple(found[: max(self.options.top, 1)]),
            bound_s=bound,
            complete=bool(proven),
            by_memory=self._rows.by_memory,
            solved=len(self._solved),
            rounding_s=self._tuples.rounding_s,
            open_ties=len(self._open),
        )
