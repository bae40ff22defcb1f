"""Predictions of a few runs over a grid of one constant: all that fitting and leaving out needs."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING

from layoutopt.optimizer.evidence.prepare import prepare, step_times_s
from layoutopt.optimizer.evidence.robust import huber_location, huber_loss

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from layoutopt.optimizer.evidence.case import Case
    from layoutopt.optimizer.evidence.parameters import Parameter
    from layoutopt.optimizer.evidence.prepare import PreparedGroup

SPREAD = 0.03
"""Spread of log ratios inside which a run is as good as its repeats."""

PRIOR_SIGMA = {"gemm_cap": 0.15, "nvlink_fraction": 0.2, "network_fraction": 0.35, "host_layer_s": 0.6}
"""Standard deviation of the log of a constant around the package's value. Clusters share their chips, not
their fabric, and hosts differ most: fabrics reach 0.49-0.86 of nominal, hosts take 0.55-1.4 ms a layer."""

_STEPS = (0.4, 0.5, 0.6, 0.7, 0.8, 0.87, 0.93, 1.0, 1.07, 1.15, 1.25, 1.43, 1.67, 2.0, 2.5, 3.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Log of measured over predicted seconds, ``log_ratios[i][run]``, at values ``grid[i]`` of one constant.

    ``start`` is the index of the constant's present value, ``sigma`` its standard deviation in log units.
    """

    sigma: float
    grid: tuple[float, ...]
    log_ratios: tuple[tuple[float, ...], ...]
    start: int

    def fixed(self) -> Profile:
        """Return the profile at the present value alone."""
        return replace(
            self, grid=(self.grid[self.start],), log_ratios=(self.log_ratios[self.start],), start=0
        )

    def without(self, run: int) -> Profile:
        """Return the profile of the other runs."""
        return replace(self, log_ratios=tuple(row[:run] + row[run + 1 :] for row in self.log_ratios))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileFit:
    """The grid point with the least loss, the constant's value there, and the log scale that goes with it."""

    index: int
    value: float
    log_scale: float


def profile_of(cases: Sequence[Case], parameter: Parameter, values: Mapping[str, float]) -> Profile:
    """Price timed cases on a grid of one constant, the others at ``values``."""
    present = values.get(parameter.name, parameter.value)
    grid = sorted({parameter.clipped(present * step) for step in _STEPS} | {present})
    groups = prepare(cases)
    rows = [_log_ratios(cases, groups, {**values, parameter.name: value}) for value in grid]
    sigma = PRIOR_SIGMA[parameter.name.partition(".")[0]]
    return Profile(sigma=sigma, grid=tuple(grid), log_ratios=tuple(rows), start=grid.index(present))


def _log_ratios(
    cases: Sequence[Case], groups: Sequence[PreparedGroup], values: Mapping[str, float]
) -> tuple[float, ...]:
    seconds = step_times_s(groups, len(cases), values).tolist()
    return tuple(
        math.log((case.measured_s or 0.0) / predicted) for case, predicted in zip(cases, seconds, strict=True)
    )


def fit_profile(profile: Profile) -> ProfileFit:
    """Choose the constant's value: Huber loss after the best scale, plus a prior around the present value."""
    present = profile.grid[profile.start]
    losses, scales = [], []
    for value, ratios in zip(profile.grid, profile.log_ratios, strict=True):
        scale = huber_location(ratios, least_spread=SPREAD).value
        prior = (math.log(value / present) / profile.sigma) ** 2 / 2
        losses.append(sum(huber_loss(ratio - scale, SPREAD) for ratio in ratios) + prior)
        scales.append(scale)
    index = losses.index(min(losses))
    return ProfileFit(index=index, value=profile.grid[index], log_scale=scales[index])


def left_out_error(profile: Profile) -> float:
    """Return the mean absolute log ratio of each run after fitting the others."""
    errors = []
    for run in range(len(profile.log_ratios[0])):
        fit = fit_profile(profile.without(run))
        errors.append(abs(profile.log_ratios[fit.index][run] - fit.log_scale))
    return fmean(errors)
