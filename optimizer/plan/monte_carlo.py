"""Monte-Carlo simulation of a training run with exponential failures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

MIN_RATIO = 0.2
"""A drawn prediction error never turns a run's time negative."""

DRAWN_ONE_BY_ONE = 1000
"""Attempts of one run up to which each is drawn; of more, the sum's relative spread is below 4%."""

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunQuantiles:
    """Wall-clock seconds over simulated runs: mean, deciles, and the mean number of interruptions."""

    mean_s: float
    p10_s: float
    p50_s: float
    p90_s: float
    mean_failures: float


def simulate_runs(
    work_s: float,
    interval_s: float,
    checkpoint_s: float,
    restart_s: float,
    mtbf_s: float,
    *,
    runs: int = 400,
    seed: int = 0,
    slower: FloatArray | None = None,
) -> RunQuantiles:
    """Simulate ``runs`` runs of ``work_s`` seconds of useful work.

    ``slower`` (runs,) is the true step time over the predicted one, one number for the whole of each run; None where
    predictions are taken at their word.

    A run is a row of segments (work, then a checkpoint). A failure costs the time since the segment began and a
    restart, which a failure may interrupt too. The attempts a segment needs are geometric, and each failed one
    lasts a truncated exponential, so whole runs are drawn at once.
    """
    rng = np.random.default_rng(seed)
    full, rest = divmod(work_s, interval_s)
    # The last segment is what is left of the work; a sliver from rounding is none.
    lengths = [(interval_s + checkpoint_s, int(full))] + (
        [(rest + checkpoint_s, 1)] if rest > 1e-9 * interval_s else []
    )
    wall, failures = np.zeros(runs), np.zeros(runs)
    for length, count in lengths:
        failed = _failed_attempts(rng, length, mtbf_s, count, runs)
        wall += (
            count * length
            + _lost_s(rng, failed, length, mtbf_s)
            + _restarts_s(rng, failed, restart_s, mtbf_s)
        )
        failures += failed
    if slower is not None:
        # A model that is off is off by the same share from the first step to the last: errors of steps do not cancel.
        wall *= slower
    p10, p50, p90 = np.quantile(wall, (0.1, 0.5, 0.9))
    return RunQuantiles(
        mean_s=float(wall.mean()),
        p10_s=float(p10),
        p50_s=float(p50),
        p90_s=float(p90),
        mean_failures=float(failures.mean()),
    )


def drawn_ratios(quantiles: Sequence[tuple[float, float]], runs: int, seed: int) -> FloatArray:
    """Draw true over predicted step times, (runs,), from their ``quantiles`` (standard normal deviate, ratio), rising.

    Between two quantiles the ratio is linear in the deviate, and beyond the outermost it goes on as between the last two:
    with quantiles of a normal distribution the ratios are exactly normal, with others their skew stays.
    """
    deviates, ratios = np.array(quantiles).T
    # A stream of its own: the failures drawn stay those of the run without an error.
    drawn = np.random.default_rng((seed, 1)).normal(size=runs)
    part = np.clip(np.searchsorted(deviates, drawn) - 1, 0, len(deviates) - 2)
    slope = (np.diff(ratios) / np.diff(deviates))[part]
    # A wide range goes on to below zero at the far end, and time would run backwards.
    return np.asarray(np.maximum(ratios[part] + slope * (drawn - deviates[part]), MIN_RATIO))


def _failed_attempts(
    rng: np.random.Generator, length_s: float, mtbf_s: float, count: int, runs: int
) -> FloatArray:
    """Failed attempts over ``count`` segments: a negative binomial with success chance exp(-length/MTBF)."""
    if count == 0:
        return np.zeros(runs)
    return rng.negative_binomial(count, np.exp(-length_s / mtbf_s), size=runs).astype(np.float64)


def _lost_s(rng: np.random.Generator, failed: FloatArray, length_s: float, mtbf_s: float) -> FloatArray:
    """Time lost in failed attempts, each an exponential truncated to the attempt's length.

    The sum of very many attempts is drawn from the normal distribution that it tends to, so that memory stays flat.
    """
    many = failed > DRAWN_ONE_BY_ONE
    counts = (failed * ~many).astype(np.int64)
    chance = -np.expm1(-length_s / mtbf_s)
    # Inverse of the exponential's distribution function, cut off at the segment's end.
    drawn = -mtbf_s * np.log1p(-rng.random(int(counts.sum())) * chance)
    owner = np.repeat(np.arange(len(failed)), counts)
    lost = np.bincount(owner, weights=drawn, minlength=len(failed)).astype(np.float64)
    if not many.any():
        return lost
    mean = mtbf_s - length_s * (1 - chance) / chance
    spread = mtbf_s**2 - length_s**2 * (1 - chance) / chance**2
    noise = rng.normal(size=len(failed)) * np.sqrt(np.maximum(spread, 0.0) * failed)
    return np.where(many, np.clip(mean * failed + noise, 0.0, length_s * failed), lost)


def _restarts_s(rng: np.random.Generator, failed: FloatArray, restart_s: float, mtbf_s: float) -> FloatArray:
    """Restart time, including restarts that fail themselves."""
    # numpy refuses zero successes; those rows are set to none below.
    again = rng.negative_binomial(np.maximum(failed, 1), np.exp(-restart_s / mtbf_s)).astype(np.float64)
    again = np.where(failed > 0, again, 0.0)
    return failed * restart_s + _lost_s(rng, again, restart_s, mtbf_s)
