"""Expected days with failures are those that simulated runs take; what a layout can do about them is in its shape."""

from __future__ import annotations

import heapq
from dataclasses import replace

import numpy as np
import pytest

from layoutopt.optimizer.cost.faults import job_mean_time_between_failures_s
from layoutopt.optimizer.cost.interruptions import (
    NEVER,
    blocking,
    hot_slowdown,
    job_schedule,
    slowdowns,
    state_replicas,
    waiting_for_nodes_s,
)
from layoutopt.optimizer.cost.quantities import GOALS
from layoutopt.optimizer.cost.run_facts import RunFacts, footprint_of
from layoutopt.optimizer.plan.monte_carlo import simulate_runs
from layoutopt.optimizer.plan.options import PlanOptions
from layoutopt.optimizer.plan.training_plan import make_training_plan
from layoutopt.optimizer.report.tables.plan import outcome_words
from layoutopt.optimizer.report.tables.training import replaced
from layoutopt.optimizer.solve.api import solve_layout
from layoutopt.optimizer.solve.plan import Plan, SolveOptions
from layoutopt.optimizer.space.rows import row_of
from layoutopt.optimizer.specs.layout import Layout
from layoutopt.optimizer.specs.loading import load_cluster, load_workload, override_training
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


@pytest.mark.parametrize(("spares", "load"), [(0, 0.5), (1, 0.5), (3, 4.0)])
def test_jobs_wait_for_nodes_as_simulated(spares: int, load: float) -> None:
    """The share of time without enough nodes is that of a simulated job whose nodes fail while it runs."""
    rng, repair_s, now, stopped = np.random.default_rng(1), 1.0, 0.0, 0.0
    back: list[float] = []
    for _ in range(200_000):
        failed = now + rng.exponential(repair_s / load)
        back = [at for at in back if at > failed] + [failed + repair_s]
        now = failed
        if len(back) > spares:
            now = min(back)
            stopped += now - failed
            back.remove(now)
    expected = blocking(np.array([float(spares)]), np.array([load]))
    assert stopped / now == pytest.approx(float(expected[0]), rel=0.02)
    assert 1 / (1 - stopped / now) == pytest.approx(1 / (1 - float(expected[0])), rel=0.01)


def test_nodes_that_never_come_back_are_a_number() -> None:
    """Repairs that take for ever, and failures at once, make a run that never ends, not an infinity or a warning."""
    model, cluster = load_workload("llama3-8b").model, load_cluster("h100x64")
    for failures in ({"repair_s": 1e300}, {"gpu_hours_per_failure": 1e-30, "repair_s": 1.0}):
        for hot in (None, 60.0):
            stated = replace(cluster.failures, **failures, hot_restart_s=hot)  # type: ignore[arg-type]
            found = slowdowns(model, replace(cluster, failures=stated), np.array([64.0]), np.array([8.0]))
            assert 1e3 < found[0] <= NEVER


@pytest.mark.parametrize(("spares", "load"), [(0, 0.7), (2, 3.0)])
def test_failed_replicas_wait_for_nodes_as_simulated(spares: int, load: float) -> None:
    """A replica waits until repair brings a node back that no earlier one waits for; the mean is the closed form's."""
    rng, repair_s = np.random.default_rng(2), 1.0
    failed = np.cumsum(rng.exponential(repair_s / load, 200_000))
    # The n-th failure takes a spare node, or the node of the failure so many before it, once that is repaired.
    ready = np.concatenate([np.zeros(spares), failed + repair_s])[: len(failed)]
    waited = np.maximum(ready - failed, 0.0).mean()
    closed = waiting_for_nodes_s(np.array([float(spares)]), np.array([load]), np.array([repair_s / load]))
    assert waited == pytest.approx(float(closed[0]), rel=0.01)


SMALL = override_training(load_workload("llama3-8b"), global_batch=256)
FAILING = 500.0
"""GPU-hours per failure of a young cluster: 64 GPUs fail every eight hours."""


def _fewest_days(**failures: object) -> Plan:
    cluster = load_cluster("h100x64")
    cluster = replace(cluster, failures=replace(cluster.failures, **failures))  # type: ignore[arg-type]
    options = SolveOptions(top=1, minimize="days")
    if "repair_s" in failures:
        options = replace(options, space=replace(options.space, allow_idle=0.5))
    return solve_layout(SMALL, cluster, options)


def test_days_of_a_search_are_those_of_simulated_runs() -> None:
    """What a search proves to be the fewest days is within 1% of the mean of simulated runs of its answer."""
    plan = _fewest_days(gpu_hours_per_failure=FAILING)
    assert plan.outcome is not None and plan.outcome.proven and plan.estimate is not None
    cluster = load_cluster("h100x64")
    cluster = replace(cluster, failures=replace(cluster.failures, gpu_hours_per_failure=FAILING))
    facts = RunFacts(model=SMALL.model, training=SMALL.training, cluster=cluster)
    schedule = job_schedule(SMALL.model, cluster, cluster.gpu_count)
    runs = simulate_runs(
        facts.steps * plan.estimate.step_time_s,
        schedule.interval_s,
        schedule.stall_s,
        schedule.restart_s,
        job_mean_time_between_failures_s(FAILING, cluster.gpu_count),
        runs=500,
    )
    assert plan.outcome.value == pytest.approx(runs.mean_s / DAY_S, rel=0.01)
    assert plan.outcome.value > 1.02 * facts.steps * plan.estimate.step_time_s / DAY_S


def test_replicas_that_restart_alone_change_the_layout() -> None:
    """With hot restarts a slower layout that keeps several copies of the state is done first, and the answer says why."""
    plain = _fewest_days(gpu_hours_per_failure=FAILING)
    hot = _fewest_days(gpu_hours_per_failure=FAILING, hot_restart_s=120.0)
    assert (
        plain.layout is not None
        and hot.layout is not None
        and hot.outcome is not None
        and plain.outcome is not None
    )
    assert plain.estimate is not None and hot.estimate is not None
    assert state_replicas(row_of(plain.layout)).tolist() == [1.0] and plain.outcome.why is None
    assert state_replicas(row_of(hot.layout))[0] > 1
    assert hot.estimate.step_time_s > plain.estimate.step_time_s
    assert hot.outcome.value < 0.99 * hot.outcome.first_value
    assert "copies of the training state instead of one copy" in outcome_words(hot.outcome)


def test_nodes_in_repair_change_the_layout() -> None:
    """Where failed nodes are away for a day, some are left idle to replace them; with spare ones all are used again."""
    few = _fewest_days(gpu_hours_per_failure=FAILING, repair_s=DAY_S)
    many = _fewest_days(gpu_hours_per_failure=FAILING, repair_s=DAY_S, spare_nodes=20)
    assert few.layout is not None and many.layout is not None
    assert few.outcome is not None and many.outcome is not None
    assert few.layout.gpus < 64 == many.layout.gpus
    assert many.outcome.value < 0.7 * few.outcome.value < 0.7 * few.outcome.first_value
    assert "nodes stand ready for failed ones instead of 0" in outcome_words(few.outcome)


def test_a_plan_counts_the_days_of_a_search() -> None:
    """A plan's expected days are those that a search in days proves, hot restarts and nodes in repair included."""
    for stated in ({}, {"hot_restart_s": 120.0}, {"repair_s": DAY_S, "spare_nodes": 2}):
        cluster = load_cluster("h100x64")
        cluster = replace(
            cluster,
            failures=replace(cluster.failures, gpu_hours_per_failure=FAILING, **stated),  # type: ignore[arg-type]
        )
        answer = solve_layout(SMALL, cluster, SolveOptions(top=1, minimize="days"))
        assert answer.outcome is not None
        planned = make_training_plan(SMALL, cluster, answer, PlanOptions(simulated_runs=1))
        assert planned.expected_days == pytest.approx(answer.outcome.value, rel=1e-6), stated
        assert replaced(planned) is bool(stated)
