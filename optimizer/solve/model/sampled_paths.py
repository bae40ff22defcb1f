"""Paths under several sets of constants: what a statistic of their steps is at least, linear in a layout's stages."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.makespan import Durations
from layoutopt.optimizer.cost.objective_cost import SampledTerms, mixed
from layoutopt.optimizer.cost.step import durations, form_of, graph_of
from layoutopt.optimizer.solve.model.paths import Paths

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from layoutopt.optimizer.cost.batch import IntArray
    from layoutopt.optimizer.cost.statistic import Statistic
    from layoutopt.optimizer.cost.step import PathForm
    from layoutopt.optimizer.cost.terms import FloatArray, StageTerms


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedPath:
    """One path for each set of constants, added up by weight: ``parts`` are weights (S,) and the path they belong to.

    ``sample`` is the only set that has a weight, -1 where several have.
    """

    parts: tuple[tuple[FloatArray, PathForm], ...]
    sample: int = -1

    def block_s(self, terms: StageTerms) -> FloatArray:
        """Return the value of one block of each kind in every chunk, (n, V, P, K)."""
        return self._sum("block_s", terms)

    def again_s(self, terms: StageTerms) -> FloatArray:
        """Return the value of recomputing one block of each kind, (n, V, P, K)."""
        return self._sum("again_s", terms)

    def constant_s(self, terms: StageTerms) -> FloatArray:
        """Return the value without blocks, (n,)."""
        return self._sum("constant_s", terms)

    def _sum(self, name: str, terms: StageTerms) -> FloatArray:
        parts = [getattr(form, name)(mixed(terms, weights)) for weights, form in self.parts]
        total: FloatArray = np.sum(parts, axis=0)
        return total

    @property
    def key(self) -> bytes:
        """What tells it from other paths."""
        return b"".join(
            weights.tobytes() + form.weights.tobytes() + str(form.hops).encode()
            for weights, form in self.parts
        )


@dataclass(slots=True)
class SampledPaths(Paths):
    """Paths of layouts whose terms are ``SampledTerms``; prices are a statistic of the steps under all sets of constants."""

    statistic: Statistic = field(kw_only=True)

    @property
    def linear(self) -> bool:
        """Whether every path bounds the statistic by itself."""
        return self.statistic.linear

    def met(self, below: NDArray[np.bool_], terms: StageTerms) -> NDArray[np.bool_]:
        """Tell which choices (n,) may be good enough, given which columns are: no path, the paths ``of``, demands."""
        if self.linear:
            return Paths.met(self, below, terms)
        samples = np.array([-1, *(getattr(form, "sample", -1) for form in self.of(terms, 0))])
        demanded = below[:, len(samples) :].all(axis=1)
        late = np.zeros((len(below), self.statistic.samples), dtype=bool)
        for column, sample in enumerate(samples.tolist()):
            if sample >= 0:
                late[:, sample] |= ~below[:, column]
        return demanded & self.statistic.possible(~late)

    def steps_s(self, terms: StageTerms, row: int, blocks: IntArray, recomputed: IntArray) -> FloatArray:
        """Return the exact steps of given stages (V, P, K) under every set of constants, (S,) seconds."""
        return self._run(terms, row, blocks[None], recomputed[None])[0][:, 0]

    def _run(
        self, terms: StageTerms, row: int, blocks: IntArray, recomputed: IntArray
    ) -> tuple[FloatArray, list[PathForm]]:
        """Return the steps (S, n) of choices of stages (n, V, P, K), and their longest paths in that order."""
        assert isinstance(terms, SampledTerms)
        one, samples = terms.take(np.array([row])), terms.sampled.shape[1]
        graph = graph_of(terms, row)
        if graph is None:
            return np.full((samples, len(blocks)), np.inf), []
        own = [mixed(one, unit) for unit in np.eye(samples)]
        found = [durations(under, 0, blocks, recomputed) for under in own]
        run = Durations(
            by_kind=np.concatenate([each.by_kind for each in found], axis=-1),
            hop_s=np.concatenate([each.hop_s for each in found]),
        )
        makespan, paths = graph.longest(run)
        outside = np.array([under.outside_s[0] for under in own])
        steps = makespan.reshape(samples, len(blocks)) + outside[:, None]
        return steps, [form_of(path, terms, row) for path in paths]

    def _priced(
        self, terms: StageTerms, row: int, blocks: IntArray, recomputed: IntArray
    ) -> tuple[FloatArray, list[PathForm]]:
        steps, forms = self._run(terms, row, blocks, recomputed)
        if not forms:
            return np.full(len(blocks), np.inf), []
        samples = len(steps)
        known = self._known.setdefault(self._key(terms, row), {})
        for place in range(len(blocks)):
            of_samples = [forms[sample * len(blocks) + place] for sample in range(samples)]
            for path in self._floors(of_samples, steps[:, place]):
                known[path.key, 0] = path  # type: ignore[assignment]
        return self.statistic.of(steps.T), []

    def _floors(self, forms: list[PathForm], steps_s: FloatArray) -> list[MixedPath]:
        """Return what the longest paths of one choice of stages say of all choices."""
        weights = self.statistic.weights
        if self.statistic.averages:
            grouped: dict[tuple[bytes, int], tuple[FloatArray, PathForm]] = {}
            for sample, form in enumerate(forms):
                own, _ = grouped.setdefault((form.weights.tobytes(), form.hops), (np.zeros(len(forms)), form))
                # Sets with the same longest path share one line: fewer and tighter constraints.
                own[sample] = weights[sample]
            return [MixedPath(parts=tuple(grouped.values()))]
        told = self.statistic.telling(steps_s)
        return [
            MixedPath(parts=((weights[sample] * np.eye(len(forms))[sample], forms[sample]),), sample=sample)
            for sample in told
        ]
