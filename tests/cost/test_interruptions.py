"""Expected days with failures are those that simulated runs take; what a layout can do about them is in its shape."""

from __future__ import annotations

import heapq
from dataclasses import replace

import numpy as np
import pytest

from layoutopt.optimizer.cost.faults import job_mean_time_between_failures_s
from layoutopt.optimizer.cost.interruptions import hot_slowdown, job_schedule, slowdowns, state_replicas
from layoutopt.optimizer.cost.quantities import GOALS
from layoutopt.optimizer.cost.run_facts import RunFacts, footprint_of
from layoutopt.optimizer.plan.monte_carlo import simulate_runs
from layoutopt.optimizer.space.rows import row_of
from layoutopt.optimizer.specs.layout import Layout
from layoutopt.optimizer.specs.loading import load_cluster, load_workload
from layoutopt.optimizer.specs.units import DAY_S

STEP_S = 6.0
OFTEN = 2_000.0
"""GPU-hours per failure of a cluster that fails a lot."""


@pytest.mark.parametrize(
    ("name", "gpu_hours"), [("h100-16384", 50_700.0), ("h100-8192", OFTEN), ("h100-1024", OFTEN)]
)
def test_days_are_those_of_simulated_runs(name: str, gpu_hours: float) -> None:
    """The days of a whole run, which a search minimises, are within 1% of the Monte Carlo simulation's mean."""
    workload, cluster = load_workload("llama3-405b"), load_cluster(name)
    cluster = replace(cluster, failures=replace(cluster.failures, gpu_hours_per_failure=gpu_hours))
    facts = RunFacts(model=workload.model, training=workload.training, cluster=cluster)
    layout = row_of(Layout(tp=8, pp=16, dp=cluster.gpu_count // 128, zero=1))
    per_second = np.ravel(GOALS["days"].of(facts, footprint_of(layout)).per_second)[0]
    schedule = job_schedule(workload.model, cluster, cluster.gpu_count)
    runs = simulate_runs(
        facts.steps * STEP_S,
        schedule.interval_s,
        schedule.stall_s,
        schedule.restart_s,
        job_mean_time_between_failures_s(gpu_hours, cluster.gpu_count),
        runs=2000,
    )
    assert per_second * STEP_S == pytest.approx(runs.mean_s / DAY_S, rel=0.01)
    assert per_second * STEP_S > 1.02 * facts.steps * STEP_S / DAY_S


@pytest.mark.parametrize(("replicas", "away_s", "mtbf_s"), [(2, 600.0, 9_000.0), (16, 300.0, 1_000.0)])
def test_hot_restarts_are_those_of_simulated_replicas(replicas: int, away_s: float, mtbf_s: float) -> None:
    """Replicas that fail one by one and come back on their own need the time that the renewal process says."""
    rng, work_s = np.random.default_rng(0), 4e6
    waiting = [(float(rng.exponential(mtbf_s * replicas)), 0, one) for one in range(replicas)]
    heapq.heapify(waiting)
    now, done, up = 0.0, 0.0, replicas
    while True:
        at, back, one = heapq.heappop(waiting)
        if done + (at - now) * up / replicas >= work_s:
            now += (work_s - done) * replicas / up
            break
        done, now = done + (at - now) * up / replicas, at
        up += 1 if back else -1
        gap = rng.exponential(mtbf_s * replicas) if back else away_s
        heapq.heappush(waiting, (at + float(gap), 1 - back, one))
    expected = hot_slowdown(away_s, np.array([mtbf_s]), np.array([float(replicas)]))
    assert now / work_s == pytest.approx(float(expected[0]), rel=0.01)


@pytest.mark.parametrize(
    ("layout", "replicas"),
    [
        (Layout(tp=8, pp=4, dp=16), 16),
        (Layout(tp=8, pp=4, dp=16, zero=1), 1),
        (Layout(tp=8, dp=16, zero=3, hsdp_shard=4), 4),
        (Layout(tp=4, cp=2, dp=16, ep=16), 8),
        (Layout(tp=1, dp=16, ep=16, zero=1), 1),
    ],
)
def test_copies_of_the_state(layout: Layout, replicas: int) -> None:
    """A replica holds every layer and every expert; ZeRO leaves one copy, shard groups one each."""
    assert state_replicas(row_of(layout)).tolist() == [replicas]
    assert state_replicas(row_of(layout), exact=False)[0] >= replicas


def test_smaller_replicas_lose_less_where_they_restart_alone() -> None:
    """Without hot restarts only the number of GPUs counts; with them a replica of fewer nodes, if it has a copy."""
    model, cluster = load_workload("llama3-8b").model, load_cluster("h100-1024")
    gpus, replicas = np.full(3, 1024.0), np.array([1.0, 8.0, 64.0])
    assert len(set(slowdowns(model, cluster, gpus, replicas).tolist())) == 1
    hot = replace(cluster, failures=replace(cluster.failures, hot_restart_s=120.0))
    alone = slowdowns(model, hot, gpus, replicas).tolist()
    assert alone[0] > alone[1] > alone[2] > 1.0
