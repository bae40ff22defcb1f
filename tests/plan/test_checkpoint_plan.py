"""Checkpoint schedules, spare nodes, goodput, and simulated runs as a plan uses them."""

from __future__ import annotations

from dataclasses import replace
from math import exp, inf, isinf
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from layoutopt.optimizer.cost.checkpoints import CheckpointMode, checkpoint_cost, checkpoint_schedules
from layoutopt.optimizer.cost.faults import daly_interval_s, expected_wall_time_s, goodput
from layoutopt.optimizer.plan.fault_plan import plan_faults, spare_nodes
from layoutopt.optimizer.plan.monte_carlo import (
    DRAWN_ONE_BY_ONE,
    MIN_RATIO,
    _lost_s,
    drawn_ratios,
    simulate_runs,
)
from layoutopt.optimizer.plan.options import PlanOptions
from layoutopt.optimizer.specs.cluster import FailureSpec, StorageSpec
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.loading import load_cluster
from layoutopt.optimizer.specs.units import DAY_S

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray


def test_checkpoint_costs_come_from_the_storage_spec() -> None:
    """70.6e9 parameters on 1,024 GPUs: the store limits writing, the host link copying, a second at least."""
    storage = StorageSpec(write_bytes_per_s=100e9, per_gpu_bytes_per_s=1e9)
    cluster = replace(load_cluster("h100x1024"), storage=storage)
    cost = checkpoint_cost(70.6e9, 1024, cluster)
    assert cost.write_s == pytest.approx(988.4e9 / 100e9)
    assert cost.asynchronous_stall_s == pytest.approx(988.4e9 / 1024 / cluster.gpu.host_link_bytes_per_s)
    assert checkpoint_cost(70.6e9, 1024, cluster, least_stall_s=1.0).asynchronous_stall_s == 1.0
    few = checkpoint_cost(70.6e9, 10, cluster)
    assert few.write_s == pytest.approx(988.4e9 / 10e9)  # ten GPUs can't fill the store


def test_background_writes_delay_the_interval_and_lose_more_on_a_failure() -> None:
    """A snapshot counts only when it has reached storage: the interval and the loss include the write."""
    cluster = replace(
        load_cluster("h100x1024"), storage=StorageSpec(write_bytes_per_s=1e9, per_gpu_bytes_per_s=1e9)
    )
    cost = checkpoint_cost(70.6e9, 1024, cluster, least_stall_s=1.0)
    by_mode = {s.mode: s for s in checkpoint_schedules(20 * DAY_S, cost, 600.0, 178_000.0)}
    background, standing = by_mode[CheckpointMode.ASYNCHRONOUS], by_mode[CheckpointMode.SYNCHRONOUS]
    assert background.interval_s == cost.write_s > background.daly_s
    assert background.restart_s == 600.0 + cost.write_s
    assert standing.interval_s == standing.daly_s == daly_interval_s(cost.write_s, 178_000.0)
    assert standing.restart_s == 600.0


def test_the_better_mode_comes_first() -> None:
    """Slow storage: writing in the background wins."""
    cluster = load_cluster("h100x4096")
    options = PlanOptions()
    faults = plan_faults(20 * DAY_S, 405e9, 4096, cluster, options)
    assert [s.mode for s in faults.schedules] == [CheckpointMode.ASYNCHRONOUS, CheckpointMode.SYNCHRONOUS]
    assert faults.best.wall_s <= faults.schedules[1].wall_s
    assert faults.best.failures == pytest.approx(faults.best.wall_s / faults.mtbf_s)


def test_the_plan_agrees_with_the_exact_formula_and_its_simulation() -> None:
    """Goodput, expected wall-clock time and the simulated mean are one number seen three ways."""
    faults = plan_faults(20 * DAY_S, 405e9, 16384, load_cluster("h100x16384"), PlanOptions())
    best = faults.best
    exact = expected_wall_time_s(20 * DAY_S, best.interval_s, best.stall_s, best.restart_s, faults.mtbf_s)
    assert best.wall_s == exact
    assert best.goodput == pytest.approx(
        goodput(best.interval_s, best.stall_s, best.restart_s, faults.mtbf_s)
    )
    assert best.goodput == pytest.approx(1 - best.waste.total, abs=0.005)
    assert faults.simulated is not None
    assert faults.simulated_with_error is not None
    assert faults.simulated.mean_s == pytest.approx(exact, rel=0.02)
    assert faults.simulated_with_error.mean_s == pytest.approx(exact, rel=0.02)
    spread = faults.simulated.p90_s - faults.simulated.p10_s
    assert faults.simulated_with_error.p90_s - faults.simulated_with_error.p10_s > 3 * spread


def test_goodput_falls_with_size_to_100000_gpus() -> None:
    """The curve reaches 100,000 GPUs, where a ten-minute restart costs a third, and holds the own size."""
    curve = plan_faults(20 * DAY_S, 70.6e9, 3000, load_cluster("h100x3000"), PlanOptions()).curve
    assert [point.gpus for point in curve] == sorted(
        {3000, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 100_000}
    )
    shares = [point.goodput for point in curve]
    assert shares == sorted(shares, reverse=True)
    assert curve[-1].first_order_waste == pytest.approx(0.36, abs=0.03)


def test_runs_that_never_end_are_said_to() -> None:
    """Restarts far longer than the time between failures: infinite or absurd times, and nothing is simulated."""
    cluster = replace(
        load_cluster("h100x1024"), failures=FailureSpec(gpu_hours_per_failure=10.0, restart_s=100_000.0)
    )
    faults = plan_faults(DAY_S, 70e9, 1024, cluster, PlanOptions())
    assert isinf(faults.best.wall_s)
    assert faults.best.goodput == 0
    assert faults.simulated is None
    finite = replace(cluster, failures=FailureSpec(gpu_hours_per_failure=1000.0, restart_s=18_000.0))
    faults = plan_faults(DAY_S, 70e9, 1024, finite, PlanOptions())
    assert 100 * DAY_S < faults.best.wall_s < inf
    assert faults.simulated is None and faults.simulated_with_error is None


@pytest.mark.parametrize(
    ("mean", "confidence", "spares"),
    [
        (0.0, 0.99, 0),
        (0.01, 0.99, 0),  # e^-0.01 = 0.990
        (1.0, 0.99, 4),  # Poisson tables: P(X <= 4) = 0.9963, P(X <= 3) = 0.9810
        (10.0, 0.99, 18),  # P(X <= 18) = 0.9928, P(X <= 17) = 0.9857
    ],
)
def test_spare_nodes_are_a_poisson_quantile(mean: float, confidence: float, spares: int) -> None:
    """Nodes in repair at once, from tables of the Poisson distribution."""
    assert spare_nodes(1000.0, 1000.0 * mean, confidence) == spares


def test_spare_nodes_of_many_failures() -> None:
    """Far beyond exp()'s range the quantile stays a little above the mean."""
    assert 10_000 < spare_nodes(1.0, 10_000.0, 0.99) < 10_400


@given(st.floats(0.5, 20.0), st.floats(0.001, 0.3))
def test_sums_of_many_lost_attempts_have_the_right_mean(failures_per_segment: float, stall: float) -> None:
    """Runs of thousands of failures are drawn from a normal sum whose mean is the exact one."""
    mtbf_s, interval_s = 1000.0, 1000.0 / failures_per_segment
    work_s = 3000 * interval_s * max(1.0, 1.0 / (exp(interval_s / mtbf_s) - 1))
    work_s = min(work_s, 20_000 * interval_s)
    result = simulate_runs(work_s, interval_s, stall * interval_s, 100.0, mtbf_s, runs=50, seed=1)
    exact = expected_wall_time_s(work_s, interval_s, stall * interval_s, 100.0, mtbf_s)
    assert result.mean_s == pytest.approx(exact, rel=0.02)


def test_sums_of_many_lost_attempts_spread_as_single_ones_do() -> None:
    """The normal distribution that stands for many attempts has the mean and the spread of their sum."""
    mtbf_s, length_s, attempts = 1000.0, 1500.0, 20 * DRAWN_ONE_BY_ONE
    single = simulate_lost_s(np.ones(200_000), length_s, mtbf_s)
    sums = simulate_lost_s(np.full(20_000, float(attempts)), length_s, mtbf_s)
    assert sums.mean() == pytest.approx(attempts * single.mean(), rel=0.005)
    assert sums.std() == pytest.approx(attempts**0.5 * single.std(), rel=0.03)
    assert single.min() > 0 and single.max() < length_s


def simulate_lost_s(failed: NDArray[np.float64], length_s: float, mtbf_s: float) -> NDArray[np.float64]:
    """Time lost in so many failed attempts of each run."""
    return _lost_s(np.random.default_rng(5), failed, length_s, mtbf_s)


def test_the_error_of_the_prediction_widens_the_quantiles() -> None:
    """Without failures the quantiles are those of the normal error: 1.2816 standard deviations."""
    slower = drawn_ratios(PlanOptions(relative_error=0.1).ratio_quantiles, 20_000, 3)
    result = simulate_runs(1e6, 1e4, 0.0, 0.0, 1e15, runs=20_000, seed=3, slower=slower)
    assert result.mean_failures == 0
    assert np.array([result.p10_s, result.p50_s, result.p90_s]) / 1e6 == pytest.approx(
        [1 - 0.12816, 1.0, 1 + 0.12816], abs=0.005
    )


def test_a_skewed_interval_stays_skewed() -> None:
    """Shares of drawn runs between the ends are those of the intervals; a far tail never turns time backwards."""
    intervals = {"50": (0.9, 1.1), "80": (0.7, 1.3), "95": (0.4, 2.0)}
    drawn = drawn_ratios(PlanOptions(step_ratios=intervals).ratio_quantiles, 40_000, 3)
    for percent, (low, high) in intervals.items():
        outside = (1 - int(percent) / 100) / 2
        assert ((drawn < low).mean(), (drawn > high).mean()) == pytest.approx((outside, outside), abs=0.005)
    assert drawn.min() == MIN_RATIO


def test_exact_times_do_not_overflow() -> None:
    """Nonsense rates give infinity, not an exception."""
    assert expected_wall_time_s(1.0, 1e6, 1.0, 1e6, 1.0) == inf


@pytest.mark.parametrize(
    "bad",
    [
        {"relative_error": 1.0},
        {"relative_error": -0.1},
        {"gpu_hour_cost": -1.0},
        {"spare_confidence": 1.0},
        {"simulated_runs": 0},
        {"repair_s": -1.0},
        {"least_stall_s": -1.0},
        {"seed": -1},
    ],
)
def test_options_out_of_range(bad: dict[str, Any]) -> None:
    """Every option says what it takes."""
    with pytest.raises(InputError, match=next(iter(bad))):
        PlanOptions(**bad)


def test_without_stated_storage_checkpoints_take_what_llama_3s_cluster_gave() -> None:
    """2 TB/s for 16,384 GPUs (Grattafiori et al. 2024, section 3.3.1): 988 GB on 256 GPUs take half a minute, not half a
    second, and twice the GPUs write twice as fast."""
    parameters, cluster = 70.6e9, replace(load_cluster("h100x256"), storage=None)
    cost = checkpoint_cost(parameters, 256, cluster)
    assert checkpoint_cost(parameters, 256, load_cluster("h100x256")).write_s == pytest.approx(cost.write_s)
    assert cost.total_bytes == pytest.approx(988e9, rel=0.01)
    assert cost.write_s == pytest.approx(cost.total_bytes / (2e12 * 256 / 16_384), rel=0.01)
    assert 30 < cost.write_s < 33
    assert checkpoint_cost(parameters, 512, load_cluster("h100x512")).write_s == pytest.approx(
        cost.write_s / 2
    )
