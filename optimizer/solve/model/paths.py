"""Paths through schedules that bound the exact step: found at one split, valid for every split of the shape."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.step import durations, form_of, graph_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from layoutopt.optimizer.cost.batch import IntArray
    from layoutopt.optimizer.cost.step import PathForm
    from layoutopt.optimizer.cost.terms import FloatArray, StageTerms

    Key = tuple[int, ...]


@dataclass(slots=True)
class Paths:
    """The paths known of every shape: schedule, ranks, chunks, micro-batches and whether transfers overlap.

    Every layout's step is at least as long as any path of its shape, and as long as the longest of them all.
    """

    _known: dict[Key, dict[tuple[bytes, int], PathForm]] = field(default_factory=dict)

    @property
    def linear(self) -> bool:
        """Whether every path by itself bounds what is minimised."""
        return True

    def met(self, below: NDArray[np.bool_], terms: StageTerms) -> NDArray[np.bool_]:
        """Tell which choices (n,) may be good enough, given which columns are: no path, the paths ``of``, demands."""
        every: NDArray[np.bool_] = np.all(below, axis=1)
        return every

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

    def number(self, terms: StageTerms, row: int) -> int:
        """Return how many paths of a layout's shape are known."""
        return len(self._known.get(self._key(terms, row), {}))

    def price(
        self, terms: StageTerms, row: int, blocks: IntArray, recomputed: IntArray
    ) -> tuple[float, PathForm | None]:
        """Return the exact step of given stages (V, P, K) in seconds, and its longest path, which is kept.

        Infinite and None where no order runs the layout.
        """
        steps, forms = self._priced(terms, row, blocks[None], recomputed[None])
        return float(steps[0]), forms[0] if forms else None

    def prices(self, terms: StageTerms, row: int, blocks: IntArray, recomputed: IntArray) -> FloatArray:
        """Return the exact steps, (n,) seconds, of several choices of stages (n, V, P, K); longest paths are kept."""
        return self._priced(terms, row, blocks, recomputed)[0]

    def _priced(
        self, terms: StageTerms, row: int, blocks: IntArray, recomputed: IntArray
    ) -> tuple[FloatArray, list[PathForm]]:
        graph = graph_of(terms, row)
        if graph is None:
            return np.full(len(blocks), np.inf), []
        makespan, paths = graph.longest(durations(terms, row, blocks, recomputed))
        forms = [form_of(path, terms, row) for path in paths]
        known = self._known.setdefault(self._key(terms, row), {})
        for form in forms:
            # One path by its weights: the same one comes up for many splits.
            known[form.weights.tobytes(), form.hops] = form
        return makespan + terms.outside_s[row], forms
