"""What is believed of the step times of several layouts, and what measuring one of them would change.

Logarithms of step times are jointly normal. A measurement of one item moves all others by their covariance with it (Gaussian
conditioning), and its worth is the knowledge gradient: by how much the smallest expected step time falls in the mean over
what it may read (Frazier, Powell and Dayanik 2009, "The knowledge-gradient policy for correlated normal beliefs").
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    FloatArray = NDArray[np.float64]

Z = np.linspace(-5.0, 5.0, 201)
"""Readings over which a mean is taken, in standard deviations from what is expected."""

_WEIGHTS = np.exp(-(Z**2) / 2) / np.exp(-(Z**2) / 2).sum()

ALMOST = 0.8
"""A cheaper measurement that is worth this share of the best one is as good."""

DRAWS = 4096
"""Joint draws behind the chance of being the best and the expected loss; their own error is below half a percent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Belief:
    """A joint normal distribution of logs of seconds: ``mean`` (n,) and ``covariance`` (n, n).

    The first ``layouts`` items are what is chosen from, the others may be measured only. Measurements repeat within
    ``noise`` (standard deviation of the log).
    """

    layouts: int
    mean: FloatArray
    covariance: FloatArray
    noise: float

    @property
    def best(self) -> int:
        """The layout with the smallest expected log of a step time."""
        return int(np.argmin(self.mean[: self.layouts]))

    def observed(self, item: int, log_s: float | None, noise: float | None = None) -> Belief:
        """Return the belief after a measurement within ``noise``; None for one that reads what was expected."""
        column = self.covariance[:, item]
        own = self.noise if noise is None else noise
        gain = column / (float(self.covariance[item, item]) + own**2)
        # Conditioning of a joint normal: the reading moves every item by its covariance with it.
        mean = self.mean if log_s is None else self.mean + gain * (log_s - self.mean[item])
        return Belief(
            layouts=self.layouts,
            mean=mean,
            covariance=self.covariance - np.outer(gain, column),
            noise=self.noise,
        )

    def gain(self, items: Sequence[int]) -> float:
        """Return by what share the expected step time of the choice falls by measuring some items.

        Of one item it is its knowledge gradient; of several the same for all readings together, in the mean over ``DRAWS``.
        """
        # Items beyond ``layouts`` are probes, which can be measured and never chosen.
        before = self.mean[: self.layouts].min()
        if len(items) == 1:
            chosen = self._means_by_reading(items[0]).min(axis=0)
            return max(float(before - _WEIGHTS @ chosen), 0.0)
        chosen = (self.mean[: self.layouts] + _normals(len(items)) @ self._slopes(items)).min(axis=1)
        return max(float(before - chosen.mean()), 0.0)

    def _slopes(self, items: Sequence[int]) -> FloatArray:
        """Return what independent standard normals add to the layouts' means when the items are read, (items, layouts)."""
        own = np.array(items)
        # Two readings share the errors of the model and not those of the measurement.
        readings = self.covariance[np.ix_(own, own)] + self.noise**2 * np.eye(len(own))
        return np.asarray(
            np.linalg.solve(np.linalg.cholesky(readings), self.covariance[own, : self.layouts]),
            dtype=np.float64,
        )

    def turns(self, item: int) -> tuple[tuple[float, int], ...]:
        """Return from which log of a reading on the choice is another layout: (log, layout), nearest side first."""
        choices = self._means_by_reading(item).argmin(axis=0)
        deviation = self._reading_variance(item) ** 0.5
        # From the expected reading outwards on either side: the nearest turn is what a user should watch for.
        middle = len(Z) // 2
        found = []
        for way in (range(middle, -1, -1), range(middle, len(Z))):
            turn = next((index for index in way if choices[index] != self.best), None)
            if turn is not None:
                found.append((float(self.mean[item] + Z[turn] * deviation), int(choices[turn])))
        return tuple(sorted(found, key=lambda pair: abs(pair[0] - self.mean[item])))

    def chances(self, seed: int = 0) -> FloatArray:
        """Return the chance of every layout to be the fastest, (layouts,)."""
        fastest = self._draws(seed).argmin(axis=1)
        return np.bincount(fastest, minlength=self.layouts) / DRAWS

    def regrets(self, seed: int = 0) -> FloatArray:
        """Return by what share each layout is slower in the mean than the one that is really the fastest, (layouts,)."""
        draws = self._draws(seed)
        return np.asarray((np.exp(draws - draws.min(axis=1, keepdims=True)) - 1).mean(axis=0))

    def expected_loss(self, seed: int = 0) -> float:
        """Return the mean regret of the choice."""
        return float(self.regrets(seed)[self.best])

    def _means_by_reading(self, item: int) -> FloatArray:
        slope = self.covariance[: self.layouts, item] / self._reading_variance(item) ** 0.5
        return np.asarray(self.mean[: self.layouts, None] + slope[:, None] * Z)

    def _reading_variance(self, item: int) -> float:
        return float(self.covariance[item, item]) + self.noise**2

    def _draws(self, seed: int) -> FloatArray:
        own = slice(0, self.layouts)
        generator = np.random.default_rng(seed)
        return generator.multivariate_normal(
            self.mean[own], self.covariance[own, own], size=DRAWS, method="eigh"
        )


@cache
def _normals(count: int) -> FloatArray:
    """Return the same pairs of opposite draws for every question, (DRAWS, count): differences between sets are not noise."""
    half = np.random.default_rng(0).standard_normal((DRAWS // 2, count))
    return np.concatenate([half, -half])


def suggest(belief: Belief, hours: FloatArray, *, runs: int, least: float) -> tuple[int, ...]:
    """Return which items to measure next, at most ``runs``, none where they are worth less than ``least``.

    The first two are chosen together where two are left: an error that all layouts share hides what one run says of their
    order. Of sets that are worth about the same the one that takes the fewest GPU-hours (``hours`` per item).
    ``hours`` is (items,).
    """
    chosen: tuple[int, ...] = ()
    while len(chosen) < runs:
        items = [item for item in range(len(belief.mean)) if item not in chosen]
        # Alone, a run mostly tells what moves all layouts alike; two tell their difference.
        more = 2 if not chosen and runs >= 2 and len(items) >= 2 else 1
        worth = {(*chosen, *added): belief.gain((*chosen, *added)) for added in combinations(items, more)}
        most = max(worth.values()) if worth else 0.0
        if most - (belief.gain(chosen) if chosen else 0.0) < least:
            break
        good = [each for each, gain in worth.items() if gain >= ALMOST * most]
        chosen = min(good, key=lambda each: (hours[list(each)].sum(), -worth[each]))
    return chosen
