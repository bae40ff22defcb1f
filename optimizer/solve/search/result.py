"""What a search is asked for, how it goes on, and what it found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from layoutopt.optimizer.cost.batch import IntArray, LayoutBatch


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


@dataclass(slots=True)
class BestLayouts:
    """The fastest layout found so far of each family: degrees that are worth telling apart."""

    _of: dict[tuple[int, ...], Found] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self._of)

    @property
    def step_s(self) -> float:
        """Seconds of the fastest of all; inf without any."""
        return min((item.step_time_s for item in self._of.values()), default=float("inf"))

    def of(self, family: tuple[int, ...]) -> Found | None:
        """Return the fastest of one family."""
        return self._of.get(family)

    def keep(self, family: tuple[int, ...], found: Found) -> None:
        """Remember a layout if it is the fastest of its family."""
        known = self._of.get(family)
        # The first of equally fast ones stays, so that answers do not depend on how long a search went on.
        if known is None or found.step_time_s < known.step_time_s:
            self._of[family] = found

    def within(self, limit_s: float) -> list[Found]:
        """Return those that take ``limit_s`` seconds at most, the fastest first."""
        near = [item for item in self._of.values() if item.step_time_s <= limit_s]
        return sorted(near, key=lambda item: item.step_time_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """State of a running search: best step time (inf: none yet), proven bound, degree rows left, CP-SAT solves."""

    best_s: float
    bound_s: float
    rows_left: int
    solves: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """ObjectiveAnswer. ``found`` is sorted, the best first; ``bound_s`` holds for every layout (inf: nothing fits).

    ``complete`` says whether the search ended by itself. The tuples of the space are ``by_memory`` (proven not to fit),
    ``solved`` by CP-SAT, and the rest, excluded by their bound. ``rounding_s`` bounds CP-SAT's rounding.
    ``open_ties`` tuples may be nearer to the best than a layout of ``found``, or than what was asked for: they were not
    tried again.
    """

    found: tuple[Found, ...]
    bound_s: float
    complete: bool
    by_memory: int
    solved: int
    rounding_s: float
    open_ties: int = 0

    @property
    def best(self) -> Found | None:
        """The fastest layout found."""
        return self.found[0] if self.found else None
