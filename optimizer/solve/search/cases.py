"""Cases of a stage problem: together they cover every split and every recomputation that a stage rule allows.

A case fixes how many blocks a rank recomputes as a function of the blocks it holds, so that the time and the memory
of a rank depend on its blocks alone:

    free        any number (only for ``Recomputation.PER_RANK``)
    from, to    at least min(from, blocks) cost time, at most min(to, blocks) save memory; from = to is one exact
                number, from < to is a relaxation that covers every number between them
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.frameworks.stage_rule import Recomputation, StageRule
from layoutopt.optimizer.solve.splits import split_ranges

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from layoutopt.optimizer.cost.batch import IntArray
    from layoutopt.optimizer.cost.terms import FloatArray, StageTerms

ALL = np.inf
EXACT_COUNTS = 12  # recomputed blocks per virtual stage that get a case of their own; larger ones share cases
COVER = 2.0  # ratio of the ends of a shared case


@dataclass(frozen=True, slots=True, kw_only=True)
class Cases:
    """``c`` cases. ``row`` is the layout; ``low`` and ``high`` are the recomputed blocks of a rank (see above).

    ``low`` is ``ALL`` when every block is recomputed. ``fewest`` and ``most`` (c, P) are the blocks a rank may hold,
    ``order`` the kinds of the model's blocks where these alternate.
    """

    row: IntArray
    free: NDArray[np.bool_]
    low: FloatArray
    high: FloatArray
    fewest: IntArray
    most: IntArray
    order: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.row)

    def take(self, index: NDArray[np.int64] | NDArray[np.bool_]) -> Cases:
        """Return the cases selected by an index (k,) or mask (c,)."""
        return Cases(order=self.order, **{name: getattr(self, name)[index] for name in _COLUMNS})


_COLUMNS = ("row", "free", "low", "high", "fewest", "most")


def stage_cases(terms: StageTerms, blocks: int, rule: StageRule) -> Cases:
    """Return the cases of every layout, sorted by layout."""
    ranges = split_ranges(terms, blocks, rule)
    parts = []
    for position, (free, low, high) in enumerate(_recomputations(terms, blocks, rule)):
        use = np.ones(len(ranges.row), dtype=bool)
        if position:
            # A number above what the stages hold says the same as the number below it.
            reachable = (low[ranges.row] - terms.vp[ranges.row] < ranges.most.max(axis=1)) | (
                low[ranges.row] == ALL
            )
            use = terms.may_recompute[ranges.row] & reachable
        row = ranges.row[use]
        parts.append(
            Cases(
                row=row,
                free=np.full(len(row), free) & terms.may_recompute[row],
                low=low[row],
                high=high[row],
                fewest=ranges.fewest[use],
                most=ranges.most[use],
            )
        )
    merged = {name: np.concatenate([getattr(part, name) for part in parts]) for name in _COLUMNS}
    return Cases(order=rule.order, **merged).take(np.argsort(merged["row"], kind="stable"))


def free_cases(terms: StageTerms, blocks: int, rule: StageRule) -> Cases:
    """Return fewer, weaker cases: the rule's splits, but any recomputation where the layout allows some."""
    return stage_cases(terms, blocks, replace(rule, recomputation=Recomputation.PER_RANK))


def _recomputations(
    terms: StageTerms, blocks: int, rule: StageRule
) -> list[tuple[bool, FloatArray, FloatArray]]:
    """List (free, low, high) per layout. The first also serves the layouts that may not recompute."""
    none, every = np.zeros(len(terms)), np.full(len(terms), ALL)
    if rule.recomputation is Recomputation.PER_RANK:
        return [(True, none, none)]
    if rule.recomputation is Recomputation.ALL_OR_NONE:
        return [(False, none, none), (False, every, every)]
    width = terms.vp.astype(np.float64)
    numbers = [(float(n), float(n)) for n in range(min(EXACT_COUNTS, blocks) + 1)]
    first = len(numbers)
    while first <= blocks:
        # Ranges grow with their numbers: relative errors stay alike, and deep models have few cases.
        last = int(first * COVER)
        numbers.append((float(first), ALL if last >= blocks else float(last)))
        first = last + 1
    return [(False, width * low, every if high == ALL else width * high) for low, high in numbers]
