"""Checkpoint intervals and waste against Young, Daly, and a published run's figures."""

from math import sqrt

import pytest

from layoutopt.optimizer.cost.checkpoints import checkpoint_bytes
from layoutopt.optimizer.cost.faults import (
    daly_interval_s,
    expected_wall_time_s,
    goodput,
    job_mean_time_between_failures_s,
    waste,
    young_interval_s,
)
from layoutopt.optimizer.plan.monte_carlo import simulate_runs
from layoutopt.optimizer.specs.errors import InputError

LLAMA3_GPU_HOURS_PER_FAILURE = 54 * 24 * 16384 / 419
MTBF_1024_S = LLAMA3_GPU_HOURS_PER_FAILURE / 1024 * 3600


def test_gpu_hours_per_failure_of_llama3() -> None:
    """419 unexpected interruptions in 54 days of 16,384 GPUs: one per 50,677 GPU-hours, every 3.1 hours."""
    assert pytest.approx(50_677.0, abs=0.5) == LLAMA3_GPU_HOURS_PER_FAILURE
    assert job_mean_time_between_failures_s(LLAMA3_GPU_HOURS_PER_FAILURE, 1024) / 3600 == pytest.approx(
        49.489, abs=1e-3
    )
    assert job_mean_time_between_failures_s(LLAMA3_GPU_HOURS_PER_FAILURE, 100_000) / 60 == pytest.approx(
        30.41, abs=0.01
    )
    assert job_mean_time_between_failures_s(LLAMA3_GPU_HOURS_PER_FAILURE, 16384) / 3600 == pytest.approx(
        3.0931, abs=1e-4
    )
    assert pytest.approx(9.699, abs=1e-3) == 20 * 24 / 49.489


@pytest.mark.parametrize(
    ("mtbf_min", "daly_min", "young_min"), [(1440, 116.7, 120.0), (360, 56.7, 60.0), (15, 9.14, 12.25)]
)
def test_daly_and_young_intervals(mtbf_min: float, daly_min: float, young_min: float) -> None:
    """Daly 2006 gives 117, 57 and 9.1 minutes for a 5-minute checkpoint."""
    assert daly_interval_s(300, mtbf_min * 60) / 60 == pytest.approx(daly_min, abs=0.05)
    assert young_interval_s(300, mtbf_min * 60) / 60 == pytest.approx(young_min, abs=0.005)


def test_young_interval_of_a_five_minute_checkpoint_on_16384_gpus() -> None:
    """Five minutes every 3.1 hours: 43.13 minutes between checkpoints, 21.56 lost on average."""
    assert young_interval_s(300, 186 * 60) / 60 == pytest.approx(43.13, abs=0.01)
    assert young_interval_s(300, 186 * 60) / 120 == pytest.approx(21.56, abs=0.01)


@pytest.mark.parametrize(
    ("checkpoint_s", "interval_s", "share"), [(1, 596.93, 0.0067182), (60, 4623.8, 0.029321)]
)
def test_waste_on_1024_gpus(checkpoint_s: float, interval_s: float, share: float) -> None:
    """A one-second stall every ten minutes wastes 0.7%, a one-minute stall every 77 minutes 3%."""
    best = young_interval_s(checkpoint_s, MTBF_1024_S)
    assert best == pytest.approx(interval_s, rel=1e-4)
    assert waste(best, checkpoint_s, 600, MTBF_1024_S).total == pytest.approx(share, rel=1e-4)


def test_daly_for_a_one_minute_checkpoint_on_1024_gpus() -> None:
    """Daly shortens Young's 77.06 minutes to 76.40."""
    assert daly_interval_s(60, MTBF_1024_S) / 60 == pytest.approx(76.40, abs=0.01)


def test_asynchronous_checkpoints_waste_the_root_of_the_ratio_less() -> None:
    """Without restart time, waste grows with the square root of the checkpoint's cost: 7.746 for 60 times."""
    slow, fast = (waste(young_interval_s(d, MTBF_1024_S), d, 0, MTBF_1024_S).total for d in (60, 1))
    assert slow / fast == pytest.approx(sqrt(60), rel=1e-9)
    assert (fast, slow) == pytest.approx((0.0033505, 0.0259528), rel=1e-4)


def test_100000_gpus_waste_a_third() -> None:
    """A 10-minute restart every 30.4 minutes wastes 36.2% even with one-second checkpoints."""
    interval = young_interval_s(1, 1824.4)
    lost = waste(interval, 1, 600, 1824.4)
    assert interval == pytest.approx(60.40, abs=0.01)
    assert (lost.total, lost.restart) == pytest.approx((0.36199, 0.32888), abs=2e-5)


def test_checkpoint_sizes() -> None:
    """70.6e9 parameters: 847 GB of optimizer state, 988 GB with weights, under 1 GB per GPU on 1,024."""
    assert checkpoint_bytes(70.6e9, with_weights=False) == pytest.approx(847.2e9)
    assert checkpoint_bytes(70.6e9) == pytest.approx(988.4e9)
    assert checkpoint_bytes(70.6e9) / 1024 == pytest.approx(0.9652e9, rel=1e-4)


def test_first_order_waste_agrees_with_the_exact_formula_when_failures_are_rare() -> None:
    """Goodput is 1 - waste to second order."""
    interval = daly_interval_s(60, MTBF_1024_S)
    exact = goodput(interval, 60, 600, MTBF_1024_S)
    assert exact == pytest.approx(1 - waste(interval, 60, 600, MTBF_1024_S).total, abs=1e-3)


@pytest.mark.parametrize("mtbf_s", [1824.4, 11_135.0, MTBF_1024_S])
def test_monte_carlo_mean_is_within_two_percent_of_the_exact_formula(mtbf_s: float) -> None:
    """Simulated runs agree with Daly's expectation; deciles are ordered."""
    interval = daly_interval_s(30, mtbf_s)
    result = simulate_runs(20 * 86400, interval, 30, 600, mtbf_s, seed=7)
    assert result.mean_s == pytest.approx(
        expected_wall_time_s(20 * 86400, interval, 30, 600, mtbf_s), rel=0.02
    )
    assert result.p10_s <= result.p50_s <= result.p90_s


def test_monte_carlo_is_reproducible() -> None:
    """The same seed gives the same run."""
    assert simulate_runs(1e6, 1e3, 10, 60, 1e5, seed=3) == simulate_runs(1e6, 1e3, 10, 60, 1e5, seed=3)


def test_nonsense_rates_are_refused() -> None:
    """Zero GPUs and zero hours have no failure rate."""
    with pytest.raises(InputError):
        job_mean_time_between_failures_s(0, 10)
