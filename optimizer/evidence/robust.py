"""Robust location of a few numbers: Huber's M-estimate with the median absolute deviation as scale.

Huber, P. J. (1964). Robust estimation of a location parameter. Annals of Mathematical Statistics 35, 73-101.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean, median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

EFFICIENT = 1.345
"""Huber's constant: 95% efficiency on normal errors."""

MAD_TO_SIGMA = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation."""

_ITERATIONS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """A robust mean, the weight (0 to 1] each value has in it, and the spread the weights are judged by."""

    value: float
    weights: tuple[float, ...]
    spread: float


def huber_location(values: Sequence[float], *, least_spread: float) -> Location:
    """Return the Huber estimate of location of at least one value.

    ``least_spread`` bounds the spread from below, so that a few nearly equal values don't condemn the next
    one. One or two values have no outlier: their mean.
    """
    if len(values) < 3:
        return Location(value=fmean(values), weights=(1.0,) * len(values), spread=least_spread)
    # The spread stays that of the start: computed anew it would shrink with the weights, and condemn ever more values.
    center = median(values)
    spread = max(MAD_TO_SIGMA * median(abs(value - center) for value in values), least_spread)
    weights = _weights(values, center, spread)
    for _ in range(_ITERATIONS):
        center = sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)
        weights = _weights(values, center, spread)
    return Location(value=center, weights=weights, spread=spread)


def huber_loss(residual: float, spread: float) -> float:
    """Return Huber's loss of a residual in units of the spread: quadratic inside, linear outside."""
    size = abs(residual) / spread
    return size * size / 2 if size <= EFFICIENT else EFFICIENT * (size - EFFICIENT / 2)


def _weights(values: Sequence[float], center: float, spread: float) -> tuple[float, ...]:
    limit = EFFICIENT * spread
    return tuple(min(1.0, limit / abs(value - center)) if value != center else 1.0 for value in values)
