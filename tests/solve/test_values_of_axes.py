"""An answer is no slower than the best that holds one axis at any of its values: nothing that runs is left out by another
axis's name."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest

from layoutopt import evaluate, load_cluster, solve
from layoutopt.optimizer.solve.certificate import Status
from layoutopt.optimizer.specs.loading import parse_workload

MIXTURE = """
architecture:
  layers: 9
  hidden: 2048
  heads: 16
  kv_heads: 4
  head_dim: 128
  ffn: 6144
  vocab: 32000
  moe: {experts: 64, top_k: 6, ffn: 1024, dense_layers: 1, router_groups: 8, router_group_limit: 3}
training: {sequence_length: 4096, global_batch: 32, precision: bf16}
"""
AXES = {
    "recompute": ("none", "full", "moe_act", "layernorm"),
    "cuda_graph": ("none", "partial"),
    "ep_overlap": (0, 1),
    "dispatcher": ("alltoall", "deepep"),
    "zero": (0, 1, 2, 3),
}


CLUSTER = load_cluster("h100x16")


def step_s(text: str, **fixed: Any) -> float:
    """Seconds of the proven answer, infinite where nothing runs."""
    plan = solve(parse_workload(text, "m.yaml"), CLUSTER, fix=fixed).plan
    assert plan.status in (Status.OPTIMAL, Status.INFEASIBLE)
    return plan.estimate.step_time_s if plan.estimate else inf


@pytest.fixture(scope="module", name="best")
def _best() -> float:
    return step_s(MIXTURE)


@pytest.mark.parametrize("axis", AXES)
def test_no_value_of_an_axis_beats_the_answer(axis: str, best: float) -> None:
    """Where graphs of parts of a layer refuse whole-layer recomputation, layers without any are still searched."""
    steps = [step_s(MIXTURE, **{axis: value}) for value in AXES[axis]]
    assert sum(step < inf for step in steps) >= 2
    assert min(steps) >= best * (1 - 1e-9)


def test_layers_without_recomputation_keep_their_graphs(best: float) -> None:
    """``full`` is any number of layers, none included: also where a graph lets none be recomputed."""
    whole = step_s(MIXTURE, cuda_graph="partial", recompute="full")
    assert whole == step_s(MIXTURE, cuda_graph="partial", recompute="none") < inf
    plan = solve(parse_workload(MIXTURE, "m.yaml"), CLUSTER, forbid={"recompute": "full"}).plan
    assert plan.estimate is not None and plan.estimate.step_time_s == best, "none is no whole layer"
    layout = "tp=1,pp=1,ep=8,zero=1,mb=2,recompute=none,dispatcher=hybridep,cuda_graph=partial"
    by_hand = evaluate(parse_workload(MIXTURE, "m.yaml"), CLUSTER, layout).estimate
    assert by_hand is not None and best <= by_hand.step_time_s * (1 + 1e-9)


def test_batches_without_powers_of_two_have_their_own_divisors() -> None:
    """Of 120 sequences 16 is no part, so that whatever divides them is tried."""
    odd = MIXTURE.replace("global_batch: 32", "global_batch: 120").replace("length: 4096", "length: 512")
    assert step_s(odd) == step_s(odd, micro_batch=(1, 2, 3, 4, 5, 6, 8, 10, 12, 15))
    assert step_s(odd) < step_s(odd, micro_batch=(1, 2, 4, 8))
