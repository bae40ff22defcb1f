"""What is made of a layout's steps under several sets of constants: one number to minimise."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from layoutopt.optimizer.cost.terms import FloatArray


class StatisticKind(StrEnum):
    """Mean, an order statistic, or the largest of the weighted steps."""

    MEAN = "mean"
    QUANTILE = "quantile"
    LARGEST = "largest"


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistic:
    """A statistic of steps (n, S) seconds, each times its set's weight, ``weights`` (S,).

    ``place`` counts the sets up to a quantile, which is the place-th smallest. ``must`` is one set whose own step counts in
    any case: the quantile is the least over any S - place + 1 such sets, since one of them is not above it.
    """

    kind: StatisticKind
    weights: FloatArray
    place: int = 0
    must: int | None = None

    @property
    def samples(self) -> int:
        """Number of sets of constants."""
        return len(self.weights)

    @property
    def averages(self) -> bool:
        """Whether it is a weighted sum."""
        return self.kind is StatisticKind.MEAN

    @property
    def linear(self) -> bool:
        """Whether no set may be above it: then every set alone bounds it from below."""
        return self.kind is not StatisticKind.QUANTILE

    def of(self, steps_s: FloatArray) -> FloatArray:
        """Return the statistic of steps (n, S), (n,)."""
        weighted = steps_s * self.weights
        match self.kind:
            case StatisticKind.MEAN:
                value = weighted.sum(axis=1)
            case StatisticKind.LARGEST:
                value = weighted.max(axis=1)
            case StatisticKind.QUANTILE:
                value = np.partition(weighted, self.place - 1, axis=1)[:, self.place - 1]
                if self.must is not None:
                    value = np.maximum(value, weighted[:, self.must])
        result: FloatArray = value
        return result

    def telling(self, steps_s: FloatArray) -> list[int]:
        """Return the sets whose longest paths show why stages with these steps (S,) are no better."""
        if self.kind is StatisticKind.LARGEST:
            return [int((steps_s * self.weights).argmax())]
        return list(range(self.samples))

    def possible(self, below: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Tell whether a quantile may be below a value, given under which sets (n, S) the step may be."""
        enough: NDArray[np.bool_] = below.sum(axis=1) >= self.place
        return enough if self.must is None else enough & below[:, self.must]


def quantile_place(share: float, samples: int) -> int:
    """Return which of so many values in order, counted from 1, is the least that is not below the ``share`` quantile."""
    # A float product just above a whole number is that number.
    return min(max(int(np.ceil(share * samples - 1e-9)), 1), samples)
