"""Paths through schedules that bound the exact step: found at one split, valid for every split of the shape."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.step import durations, form_of, graph_of

if TYPE_CHECKING:
    from layoutopt.optimizer.cost.batch import IntArray
    from layoutopt.optimizer.cost.step import PathForm
    from layoutopt.optimizer.cost.terms import StageTerms

    Key = tuple[int, ...]


@dataclass(slots=True)
class Paths:
    """The paths known of every shape: schedule, ranks, chunks, micro-batches and whether transfers overlap.

    Every layout's step is at least as long as any path of its shape, and as long as the longest of them all.
    """

    _known: dict[Key, dict[tuple[bytes, int], PathForm]] = field(default_factory=dict)

    @staticmethod
    def _key(terms: StageTerms, row: int) -> Key:
        names = ("schedule", "pp", "vp", "micro_batches", "hops_overlap")
        return tuple(int(getattr(terms, name)[row]) for name in names)

    def alike(self, terms: StageTerms, row: int, other: int) -> bool:
        """Whether two layouts run the same operations."""
        return self._key(terms, row) == self._key(terms, other)

    def of(self, terms: StageTerms, row: int) -> list[PathForm]:
        """Return the paths of a layout's shape."""
        return list(self._known.get(self._key(terms, row), {}).values())

    def price(
        self, terms: StageTerms, row: int, blocks: IntArray, recomputed: IntArray
    ) -> tuple[float, PathForm | None]:
        """Return the exact step of given stages (V, P, K) in seconds, and its longest path, which is kept.

        Infinite and None where no order runs the layout.
        """
        graph = graph_of(terms, row)
        if graph is None:
            return np.inf, None
        makespan, paths = graph.longest(durations(terms, row, blocks[None], recomputed[None]))
        form = form_of(paths[0], terms, row)
        known = self._known.setdefault(self._key(terms, row), {})
        known[form.weights.tobytes(), form.hops] = form
        return float(makespan[0] + terms.outside_s[row]), form
