"""Monte-Carlo simulation of a training run with exponential failures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
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
) -> RunQuantiles:
    """Simulate ``runs`` runs of ``work_s`` seconds of useful work.

    A run is a row of segments (work, then a checkpoint). A failure costs the time since the segment began and a
    restart, which a failure may interrupt too. The attempts a segment needs are geometric, and each failed one
    lasts a truncated exponential, so whole runs are drawn at once.
    """
    rng = np.random.default_rng(seed)
    full, rest = divmod(work_s, interval_s)
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
    p10, p50, p90 = np.quantile(wall, (0.1, 0.5, 0.9))
    return RunQuantiles(
        mean_s=float(wall.mean()),
        p10_s=float(p10),
        p50_s=float(p50),
        p90_s=float(p90),
        mean_failures=float(failures.mean()),
    )


def _failed_attempts(
    rng: np.random.Generator, length_s: float, mtbf_s: float, count: int, runs: int
) -> FloatArray:
    """Failed attempts over ``count`` segments: a negative binomial with success chance exp(-length/MTBF)."""
    if count == 0:
        return np.zeros(runs)
    return rng.negative_binomial(count, np.exp(-length_s / mtbf_s), size=runs).astype(np.float64)


def _lost_s(rng: np.random.Generator, failed: FloatArray, length_s: float, mtbf_s: float) -> FloatArray:
    """Time lost in failed attempts, each an exponential truncated to the attempt's length."""
    total = int(failed.sum())
    uniform = rng.random(total)
    lost = -mtbf_s * np.log1p(-uniform * -np.expm1(-length_s / mtbf_s))
    owner = np.repeat(np.arange(len(failed)), failed.astype(np.int64))
    return np.bincount(owner, weights=lost, minlength=len(failed)).astype(np.float64)


def _restarts_s(rng: np.random.Generator, failed: FloatArray, restart_s: float, mtbf_s: float) -> FloatArray:
    """Restart time, including restarts that fail themselves."""
    if restart_s == 0:
        return np.zeros_like(failed)
    again = rng.negative_binomial(np.maximum(failed, 1), np.exp(-restart_s / mtbf_s)).astype(np.float64)
    again = np.where(failed > 0, again, 0.0)
    return failed * restart_s + _lost_s(rng, again, restart_s, mtbf_s)
