"""Waiting for the slowest GPU: zero on one node, growing with the job as the maximum of many draws does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from layoutopt.optimizer.cost.components import Component
from layoutopt.optimizer.cost.estimate import estimate
from layoutopt.optimizer.cost.factory import build_cost_model
from layoutopt.optimizer.cost.synchronization import expected_maximum, slowest_share
from layoutopt.optimizer.specs.loading import load_cluster, load_workload, parse_layout


@pytest.mark.parametrize(
    ("count", "known"),
    [(2, 0.564), (8, 1.424), (64, 2.34), (1024, 3.25), (16384, 3.97), (131072, 4.44)],
)
def test_expected_maximum(count: int, known: float) -> None:
    """Known values of normal order statistics; one draw has the mean."""
    assert expected_maximum(count) == pytest.approx(known, rel=0.05 if count == 2 else 0.01)
    assert expected_maximum(1) == 0.0


def test_expected_maximum_is_what_draws_give() -> None:
    """Simulated: the mean of the largest of 256 draws."""
    drawn = np.random.default_rng(7).standard_normal((4000, 256)).max(axis=1).mean()
    assert expected_maximum(256) == pytest.approx(drawn, rel=0.01)


def test_share_is_zero_on_a_node_and_grows() -> None:
    """Nodes carry their own slowest GPU in every constant; more GPUs wait longer, ever more slowly."""
    shares = slowest_share(np.array([1, 4, 8, 16, 64, 1024, 16384]), 8, 0.0125)
    assert (shares[:3] == 0).all()
    assert (np.diff(shares[2:]) > 0).all()
    assert shares[-1] == pytest.approx(0.0125 * (3.97 - 1.424), rel=0.01)


def test_step_grows_with_the_job_and_says_why() -> None:
    """A constant batch per GPU: no sync on a node, then more of it and longer steps with every size."""
    steps, waits = [], []
    for gpus in (8, 16, 64, 256, 1024):
        stated, cluster = load_workload("llama2-7b"), load_cluster(f"a100x{gpus}")
        workload = replace(stated, training=replace(stated.training, global_batch=4 * gpus))
        layout = parse_layout("tp=1,zero=1,recompute=full").complete(workload, cluster)
        priced = estimate(build_cost_model(workload.model, workload.training, cluster), layout)
        steps.append(priced.step_time_s)
        waits.append(priced.breakdown_s[Component.SYNC])
        assert sum(priced.breakdown_s.values()) == pytest.approx(priced.step_time_s)
    assert waits[0] == 0.0
    assert (np.diff(waits) > 0).all()
    assert (np.diff(steps) > 0).all()
    assert steps[1] < 1.15 * steps[0]
