"""The least memory that any layout of a space needs on its fullest rank, and the tuple that gets by with it.

Degree rows are refined to tuples in order of a floor under their peak memory; CP-SAT minimises the peak of a tuple's
stages, until no floor is below the least peak found.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.batch import LayoutBatch
from layoutopt.optimizer.cost.terms import own_bytes
from layoutopt.optimizer.solve.model.coefficients import KIB
from layoutopt.optimizer.solve.model.cp_model import CpModel, SolverLimits
from layoutopt.optimizer.solve.model.slices import Goal, tuple_slice
from layoutopt.optimizer.solve.search.bound import may_fit
from layoutopt.optimizer.solve.search.capacity import TINY, at_most
from layoutopt.optimizer.solve.search.rows import pieces
from layoutopt.optimizer.solve.splits import fewest_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from layoutopt.optimizer.cost.batch import IntArray
    from layoutopt.optimizer.cost.terms import FloatArray, StageTerms
    from layoutopt.optimizer.solve.search.source import TermsSource

FEW, MANY = 16, 1024  # candidates refined at once, before and after the first layout is known
SOLVES, PRICED = 60, 100_000  # a second or two: the proof may need more where tuples differ little in memory
HALVINGS = 40  # of the bracket around a floor: below a byte
ROUGH_HALVINGS = 12  # of a floor that takes all kinds into account
HUGE_BYTES = 1e30
CLOSE = 1e-6  # relative: peaks that differ by less count as the same
MEMORY_TERMS = (
    "layer_state_bytes",
    "layer_activation_bytes",
    "recomputed_activation_bytes",
    "first_bytes",
    "last_bytes",
    "common_bytes",
    "flight_bytes",
    "recompute_transient_bytes",
    "in_flight",
    "may_recompute",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastMemory:
    """``peak_bytes`` of the leanest layout, its tuple (a batch of one), and a floor under every layout's peak.

    ``proven`` tells whether the floor is the peak, to ``CLOSE``; else the search reached its limits.
    """

    peak_bytes: float
    layout: LayoutBatch
    floor_bytes: float
    proven: bool


def least_memory(
    source: TermsSource,
    *,
    solves: int = SOLVES,
    priced: int = PRICED,
    stopped: Callable[[], bool] | None = None,
) -> LeastMemory | None:
    """Return the least peak memory of the space's layouts, None when no tuple has enough blocks for its stages.

    None, too, where ``stopped`` ends it before a layout is known.

    ``solves`` limits how many tuples CP-SAT looks at, ``priced`` how many candidates get terms beside the degree
    rows; beyond them the answer is the best found, and its floor says how far from the least it may be.
    """
    rows = source.degrees
    floors = np.full(len(rows), np.inf)
    for index in pieces(rows.pp):
        if stopped is not None and stopped():
            return None
        floors[index] = peak_floor(source.relaxed(rows.take(index)), source.counts)
    search = _Search(source, solves, priced)
    search.add(0, rows, floors)
    while not (stopped is not None and stopped()) and search.step():
        pass
    return search.result()


@dataclass(frozen=True, slots=True)
class _Candidates:
    """Rows with some modifiers chosen, sorted by a floor under their peak memory."""

    batch: LayoutBatch
    floors: FloatArray

    @classmethod
    def sort(cls, batch: LayoutBatch, floors: FloatArray) -> _Candidates:
        """Order rows by their floors, without those that have none."""
        order = np.argsort(floors, kind="stable")
        order = order[np.isfinite(floors[order])]
        return cls(batch.take(order), floors[order])

    def split(self, number: int) -> tuple[_Candidates, _Candidates]:
        """Return the leanest ones and the rest."""
        return (
            _Candidates(self.batch.take(np.arange(min(number, len(self.floors)))), self.floors[:number]),
            _Candidates(
                self.batch.take(np.arange(number, max(number, len(self.floors)))), self.floors[number:]
            ),
        )


class _Search:
    """Candidates by level, and the leanest layout so far.

    Level 0 are degree rows with a rough floor, level 1 those with a better one, then each refinement adds a level.
    """

    def __init__(self, source: TermsSource, solves: int, priced: int) -> None:
        self._source, self._solves, self._priced = source, solves, priced
        self._levels: list[_Candidates | None] = [None] * (len(source.refinements) + 2)
        self._peak_bytes = np.inf
        self._layout: LayoutBatch | None = None

    def add(self, level: int, batch: LayoutBatch, floors: FloatArray) -> None:
        """Add candidates of a level."""
        own = self._levels[level]
        if own is not None:
            batch, floors = LayoutBatch.concat([own.batch, batch]), np.concatenate([own.floors, floors])
        self._levels[level] = _Candidates.sort(batch, floors)

    def _least(self, level: int) -> float:
        own = self._levels[level]
        return float(own.floors[0]) if own is not None and len(own.floors) else np.inf

    def step(self) -> bool:
        """Refine or solve the leanest candidates; False when none may be leaner or the limits are reached."""
        levels = [level for level in reversed(range(len(self._levels))) if np.isfinite(self._least(level))]
        if not levels:
            return False
        # Until a layout is known, the candidates that are closest to one; then the leanest.
        level = levels[0] if self._layout is None else min(levels, key=self._least)
        own = self._levels[level]
        if own is None or self._least(level) >= self._limit() or self._solves <= 0 or self._priced <= 0:
            return False
        exact = level == len(self._levels) - 1
        together = MANY if level == 0 or self._layout is not None else FEW
        now, self._levels[level] = own.split(1 if exact else together)
        if exact:
            self._solve(now)
        elif level:
            self._refine(level, now)
        else:
            self._raise_and_add(1, now.batch, self._source.relaxed(now.batch), now.floors)
        return True

    def _limit(self) -> float:
        return self._peak_bytes * (1 - CLOSE)

    def _refine(self, level: int, now: _Candidates) -> None:
        step = self._source.refinements[level - 1]
        batch, owner = step.expand(now.batch)
        terms = step.terms(batch)
        self._priced -= len(batch)
        # Choices that differ in time alone need the same memory: one of them tells.
        keep = _distinct(terms, owner)
        batch, terms, owner = batch.take(keep), terms.take(keep), owner[keep]
        # A choice more never lowers a floor: the row's own still holds.
        floors = np.maximum(peak_floor(terms, self._source.counts), now.floors[owner])
        self._raise_and_add(level + 1, batch, terms, floors)

    def _raise_and_add(self, level: int, batch: LayoutBatch, terms: StageTerms, floors: FloatArray) -> None:
        keep = np.flatnonzero(floors < self._limit())
        keep = keep[self._may_peak_at(terms.take(keep), np.full(len(keep), self._limit()))]
        self.add(level, batch.take(keep), self._raised(terms.take(keep), floors[keep]))

    def _may_peak_at(self, terms: StageTerms, peak_bytes: FloatArray) -> NDArray[np.bool_]:
        """Tell for which tuples a peak is not ruled out."""
        capped = replace(terms, capacity_bytes=np.minimum(peak_bytes, HUGE_BYTES))
        return may_fit(capped, self._source.counts, self._source.rule)

    def _raised(self, terms: StageTerms, floors: FloatArray) -> FloatArray:
        """Raise the floors of tuples by what the ranks can hold together, all kinds of blocks counted."""
        # Floors are seldom half of the truth; where one is, it stays a floor.
        low, high = floors, floors * 2
        for _ in range(ROUGH_HALVINGS):
            middle = (low + high) / 2
            fits = self._may_peak_at(terms, middle)
            low, high = np.where(fits, low, middle), np.where(fits, middle, high)
        return low

    def _solve(self, tuple_: _Candidates) -> None:
        """Look for stages of a tuple with a lower peak."""
        self._solves -= 1
        layout, rounding_kib = tuple_.batch, 3 * int(self._source.counts.sum()) + 3
        terms = self._source.terms(layout)
        data = tuple_slice(layout, terms, self._source.counts, self._source.rule, goal=Goal.PEAK_MEMORY)
        model = CpModel(data)
        # The solver counts whole KiB, each component rounded: its floor is a little below.
        model.model.add(model.variables.peak_kib >= int(tuple_.floors[0] * (1 - CLOSE) / KIB) - rounding_kib)
        if np.isfinite(self._peak_bytes):
            model.model.add(model.variables.peak_kib <= int(self._limit() / KIB))
        result = model.solve(SolverLimits())
        if result.blocks is not None and result.peak_bytes < self._peak_bytes:
            self._peak_bytes, self._layout = result.peak_bytes, layout

    def result(self) -> LeastMemory | None:
        """Return the answer."""
        if self._layout is None:
            return None
        floor = min(self._peak_bytes, *(self._least(level) for level in range(len(self._levels))))
        return LeastMemory(
            peak_bytes=self._peak_bytes,
            layout=self._layout,
            floor_bytes=floor,
            proven=floor >= self._limit(),
        )


def _distinct(terms: StageTerms, owner: IntArray) -> NDArray[np.int64]:
    """Keep one of the choices of a row that need the same memory."""
    columns = [getattr(terms, name).reshape(len(terms), -1) for name in MEMORY_TERMS]
    table = np.column_stack([owner, *columns])
    return np.sort(np.unique(table, axis=0, return_index=True)[1])


def peak_floor(terms: StageTerms, counts: IntArray) -> FloatArray:
    """Return a floor (n,) under the memory of the fullest rank, in bytes, inf where the stages can't be filled.

    Every rank holds whole blocks of the leanest kind, recomputed or not, whichever is leaner: exact with one kind of
    block and free recomputation. With several kinds, the mean over the ranks of all bytes may be the higher floor.
    """
    floor = np.full(len(terms), np.inf)
    blocks = int(counts.sum())
    for pp in np.flatnonzero(np.bincount(terms.pp)):
        index = np.flatnonzero(terms.pp == pp)
        fewest = fewest_in(terms.vp[index], terms.folded[index], int(pp))
        index = index[fewest.sum(axis=1) <= blocks]
        if len(index):
            peaks = _Peaks(terms.take(index), int(pp), blocks)
            floor[index] = np.maximum(peaks.least(), peaks.mean(counts))
    return floor


class _Peaks:
    """Bisection on the memory of the fullest rank, for layouts of ``pp`` ranks."""

    def __init__(self, terms: StageTerms, pp: int, blocks: int) -> None:
        self._blocks, self._flight = blocks, terms.in_flight[:, :pp]
        self._fewest = fewest_in(terms.vp, terms.folded, pp)
        self._buffer = terms.recompute_transient_bytes[:, None]
        self._state = terms.layer_state_bytes
        self._plain = _leanest(self._state, self._flight, terms.layer_activation_bytes)
        # Under selective recomputation a whole layer recomputed may keep more than it keeps anyway.
        again = np.minimum(terms.recomputed_activation_bytes, terms.layer_activation_bytes)
        self._activation = np.where(terms.may_recompute[:, None], again, terms.layer_activation_bytes)
        self._again = _leanest(self._state, self._flight, self._activation)
        self._may = terms.may_recompute[:, None]
        self._ends = own_bytes(terms)[:, :pp]

    def least(self) -> FloatArray:
        """Return the least memory within which the ranks hold all blocks."""
        low = self._ends.max(axis=1)
        # All blocks on one rank: more than any rank of any split needs.
        high = (self._ends + self._blocks * self._plain).max(axis=1) + 1.0
        fits = self._hold(low)
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            holds = self._hold(middle)
            low, high = np.where(holds, low, middle), np.where(holds, middle, high)
        floor: FloatArray = np.where(fits, self._ends.max(axis=1), low)
        return floor

    def mean(self, counts: IntArray) -> FloatArray:
        """Return the mean of all ranks' bytes, each block where fewest micro-batches are in flight."""
        block = self._state + self._flight.min(axis=1, keepdims=True) * self._activation
        total: FloatArray = block @ counts.astype(np.float64) + self._ends.sum(axis=1)
        mean: FloatArray = total / self._flight.shape[1]
        return mean

    def _hold(self, peak_bytes: FloatArray) -> NDArray[np.bool_]:
        room = peak_bytes[:, None] - self._ends
        held = at_most(room / self._plain)
        again = at_most((room - self._buffer) / self._again)
        held = np.where(self._may, np.maximum(held, again), held)
        enough: NDArray[np.bool_] = np.all(held >= self._fewest, axis=1) & (held.sum(axis=1) >= self._blocks)
        return enough


def _leanest(state: FloatArray, flight: FloatArray, activation: FloatArray) -> FloatArray:
    """Bytes (n, P) of a block of the leanest kind on each rank."""
    least = np.full_like(flight, np.inf)
    for kind in range(state.shape[1]):
        np.minimum(least, state[:, kind, None] + flight * activation[:, kind, None], out=least)
    return np.maximum(least, TINY)
