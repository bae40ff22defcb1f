"""Failures and checkpoints: how often to save, what is lost, how long a run really takes.

Symbols: interval between checkpoints, cost of one checkpoint, restart time, and the job's mean time between
interruptions, all in seconds. Young 1974; Daly 2006, "A higher order estimate of the optimum checkpoint interval
for restart dumps", Future Generation Computer Systems 22.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, expm1, inf, sqrt

from layoutopt.optimizer.specs.errors import input_error

LARGEST_EXPONENT = 700.0
"""exp() of more overflows a double."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waste:
    """Share of wall-clock time lost, by cause; they sum to ``total``."""

    checkpoint: float
    lost_work: float
    restart: float

    @property
    def total(self) -> float:
        """Lost share."""
        return self.checkpoint + self.lost_work + self.restart


def job_mean_time_between_failures_s(gpu_hours_per_failure: float, gpus: int) -> float:
    """Mean time between interruptions of a job on ``gpus`` GPUs. Raises ``InputError`` unless both are positive."""
    if gpu_hours_per_failure <= 0 or gpus < 1:
        raise input_error("failure rates need a positive number of GPU-hours and GPUs", key="failures")
    return gpu_hours_per_failure * 3600.0 / gpus


def waste(interval_s: float, checkpoint_s: float, restart_s: float, mtbf_s: float) -> Waste:
    """First-order waste: checkpoint/interval + (interval/2 + restart)/MTBF."""
    return Waste(
        checkpoint=checkpoint_s / interval_s, lost_work=interval_s / (2 * mtbf_s), restart=restart_s / mtbf_s
    )


def young_interval_s(checkpoint_s: float, mtbf_s: float) -> float:
    """Young's optimum interval, sqrt(2 * checkpoint * MTBF)."""
    return sqrt(2 * checkpoint_s * mtbf_s)


def daly_interval_s(checkpoint_s: float, mtbf_s: float) -> float:
    """Daly's higher-order optimum interval; the MTBF itself when a checkpoint costs twice that or more."""
    if checkpoint_s >= 2 * mtbf_s:
        return mtbf_s
    ratio = checkpoint_s / (2 * mtbf_s)
    return sqrt(2 * checkpoint_s * mtbf_s) * (1 + sqrt(ratio) / 3 + ratio / 9) - checkpoint_s


def expected_wall_time_s(
    work_s: float, interval_s: float, checkpoint_s: float, restart_s: float, mtbf_s: float
) -> float:
    """Exact expected time for exponential failures, which also strike checkpoints and restarts.

    Daly 2006, eq. 13. Infinity when failures come too fast for the run to ever end.
    """
    segment_s = interval_s + checkpoint_s
    if (restart_s + segment_s) / mtbf_s > LARGEST_EXPONENT:
        return inf
    # expm1: a segment is short beside the MTBF, where exp() - 1 would lose its digits.
    return mtbf_s * exp(restart_s / mtbf_s) * expm1(segment_s / mtbf_s) * work_s / interval_s


def goodput(interval_s: float, checkpoint_s: float, restart_s: float, mtbf_s: float) -> float:
    """Useful share of the expected wall-clock time, exact for exponential failures."""
    return 1.0 / expected_wall_time_s(1.0, interval_s, checkpoint_s, restart_s, mtbf_s)
