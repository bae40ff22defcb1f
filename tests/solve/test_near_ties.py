"""Near-ties are the nearest layouts of other degrees, each with its family's best stages; what stays open is counted."""

from __future__ import annotations

from dataclasses import replace

import pytest
from checks.agreement import dense_then_moe

from layoutopt.optimizer.solve.api import solve_layout
from layoutopt.optimizer.solve.inputs import Question
from layoutopt.optimizer.solve.plan import SolveOptions
from layoutopt.optimizer.solve.search import best_first
from layoutopt.optimizer.solve.search.near import near_tuples
from layoutopt.optimizer.solve.search.one_tuple import FAMILY
from layoutopt.optimizer.space.options import SpaceOptions
from layoutopt.optimizer.specs.loading import load_cluster
from layoutopt.optimizer.specs.model import TrainingSpec
from layoutopt.optimizer.specs.vocabulary import Precision
from layoutopt.optimizer.specs.workload import Workload

NEAR, TOP = 0.12, 12
OPTIONS = SolveOptions(space=SpaceOptions(software="core 0.15"), top=TOP, near=NEAR)


def question() -> Question:
    """A small mixture of experts on two nodes whose memory is tight."""
    cluster = load_cluster("h100x16")
    gpu = replace(cluster.gpu, memory_bytes=0.12 * cluster.gpu.memory_bytes)
    training = TrainingSpec(sequence_length=2048, global_batch=24, precision=Precision.FP8)
    workload = Workload(model=dense_then_moe(10), training=training)
    return Question(workload=workload, cluster=replace(cluster, gpu=gpu), options=OPTIONS)


def best_of_families(asked: Question, limit_s: float) -> list[float]:
    """Solve every family of degrees by itself; return the steps below a limit, the fastest first."""
    batch, _ = near_tuples(asked.costed_space(), limit_s)
    families = {tuple(int(getattr(batch, name)[i]) for name in FAMILY) for i in range(len(batch))}
    steps = []
    for family in families:
        fix = {name: (value,) for name, value in zip(FAMILY, family, strict=True) if name != "dp"}
        options = replace(OPTIONS, space=replace(OPTIONS.space, fix=fix), top=1)
        found = solve_layout(asked.workload, asked.cluster, options).estimate
        steps += [] if found is None else [found.step_time_s]
    return sorted(step for step in steps if step <= limit_s)


def test_near_ties_are_the_nearest() -> None:
    """Every family within the band is there with its own best stages, in order, as many as were asked for."""
    asked = question()
    plan = solve_layout(asked.workload, asked.cluster, OPTIONS)
    assert plan.estimate is not None
    assert plan.open_ties == 0
    steps = [plan.estimate.step_time_s, *(other.estimate.step_time_s for other in plan.alternatives)]
    expected = best_of_families(asked, steps[0] * (1 + NEAR))
    assert len(expected) > 5
    assert steps == pytest.approx(expected[:TOP], rel=1e-6)


def test_what_stays_open_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that tries nothing again finds fewer near-ties, and says how many tuples may be nearer."""
    monkeypatch.setattr(best_first, "IN_VAIN", 0)
    monkeypatch.setattr(best_first, "MOST_AGAIN", 0)
    asked = question()
    plan = solve_layout(asked.workload, asked.cluster, OPTIONS)
    assert plan.open_ties > 0
    assert plan.status == "optimal"
