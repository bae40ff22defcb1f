"""Switches that are declared on alone: off, no tuple is faster or smaller, and the certificate counts those tuples."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from layoutopt.optimizer.cost.terms import price_stages
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.frameworks.switches import BY_NAME
from layoutopt.optimizer.solve.api import describe_space, solve_layout
from layoutopt.optimizer.solve.inputs import Question
from layoutopt.optimizer.solve.plan import SolveOptions
from layoutopt.optimizer.space.openable import openable
from layoutopt.optimizer.space.options import SpaceOptions
from layoutopt.optimizer.space.switch_sets import NEVER_SLOWER
from layoutopt.optimizer.specs.loading import load_cluster, load_workload, override_training

FIX: dict[str, Any] = {
    "tp": (1, 2),
    "cp": (1, 2),
    "pp": (1, 2),
    "micro_batch": (1,),
    "vp": (1, 2),
    "cp_kind": ("p2p",),
}
MORE = {"dispatcher": ("alltoall", "deepep"), "ep": (1, 8), "cuda_graph": ("none", "partial")}
QUESTIONS = [
    ("llama3-8b", Framework.MEGATRON, "tp_overlap"),
    ("llama3-8b", Framework.MEGATRON, "dp_overlap"),
    ("llama3-8b", Framework.MEGATRON, "param_overlap"),
    ("qwen3-30b-a3b", Framework.MEGATRON, "tp_overlap"),
    ("qwen3-30b-a3b", Framework.MEGATRON, "dp_overlap"),
    ("qwen3-30b-a3b", Framework.MEGATRON_BRIDGE, "param_overlap"),
    ("llama3-8b", Framework.TORCHTITAN, "compiled"),
    ("qwen3-30b-a3b", Framework.TORCHTITAN, "compiled"),
]


def question(model: str, framework: Framework, **fix: tuple[str, ...]) -> Question:
    """A question of 16 GPUs with few degrees."""
    workload = override_training(load_workload(model), sequence_length=8192, global_batch=32)
    more = MORE if model.startswith("qwen") and framework is not Framework.TORCHTITAN else {}
    own = FIX | more
    if (
        framework is Framework.TORCHTITAN
    ):  # it has one kind, and asynchronous tensor parallelism needs a compiler
        own = {**own, "tp_overlap": ("0", "1")}
        del own["cp_kind"]
    options = SolveOptions(space=SpaceOptions(fix={**own, **fix}), top=1, framework=framework)
    return Question(workload=workload, cluster=load_cluster("h100x16"), options=options)


@pytest.mark.parametrize(("model", "framework", "name"), QUESTIONS)
def test_off_is_never_better(model: str, framework: Framework, name: str) -> None:
    """Every tuple with the switch off has a twin with it on, no larger in any term and no slower in the same stages.

    Compute that becomes shorter hides less traffic after the last micro-batch, so that terms of time alone may grow.
    """
    source = question(model, framework, **{name: ("0", "1")}).costed_space()
    batch, _ = source.expand(source.degrees)
    book = source.space.modifiers.codebook
    sets = book.formats
    without = [(*entry[:2], replace(entry[2], **{name: None})) for entry in sets]
    partner = {}
    for code, entry in enumerate(sets):
        if getattr(entry[2], name):
            partner[without[code]] = code
    off = np.array([getattr(entry[2], name) is False for entry in sets])
    rows = np.flatnonzero(off[batch.precision] & np.broadcast_to(BY_NAME[name].traffic(batch), len(batch)))
    rows = rows[np.random.default_rng(0).permutation(len(rows))[:4000]]
    codes = np.array([partner.get(entry, -1) for entry in without])
    chosen = batch.take(rows)
    assert len(chosen)
    twin = replace(chosen, precision=codes[chosen.precision])
    assert (twin.precision >= 0).all()
    theirs, ours = source.terms(chosen), source.terms(twin)
    for field in (one.name for one in fields(theirs) if one.name.endswith("_bytes")):
        sign = -1 if field == "capacity_bytes" else 1
        assert (sign * getattr(ours, field) <= sign * getattr(theirs, field) * (1 + sign * 1e-12)).all(), (
            field
        )
    ranks, layers = np.arange(theirs.in_flight.shape[1]), int(source.counts.sum())
    blocks = layers // theirs.pp[:, None] + (ranks < layers % theirs.pp[:, None])
    blocks = np.where(ranks < theirs.pp[:, None], blocks, 0)[:, :, None]
    slow, fast = (price_stages(one, blocks, 0 * blocks).step_time_s for one in (theirs, ours))
    assert (fast <= slow * (1 + 1e-12)).all()
    assert (fast < slow * (1 - 1e-6)).any()


def test_the_certificate_counts_them() -> None:
    """Declared are all launchable sets of such switches; seven of eight, less what needs another, fall to one rule."""
    asked = question("llama3-8b", Framework.MEGATRON)
    plan = solve_layout(asked.workload, asked.cluster, asked.options)
    record = plan.certificate
    # tp_overlap times both overlaps of replicas, of which one needs the other: 2 * 3 sets, one of them is searched
    assert record.removed_by_rule[NEVER_SLOWER] * 6 == record.declared_tuples * 5
    space = describe_space(asked.workload, asked.cluster, asked.options)
    covered = {one.name: one.covered_by for one in openable(space.axes) if one.covered_by}
    assert covered == dict.fromkeys(("tp_overlap", "dp_overlap", "param_overlap"), NEVER_SLOWER)
    opened = question("llama3-8b", Framework.MEGATRON, **{name: ("0", "1") for name in covered})
    every = solve_layout(opened.workload, opened.cluster, opened.options)
    assert NEVER_SLOWER not in every.certificate.removed_by_rule
    assert plan.estimate is not None
    assert every.estimate is not None
    assert every.estimate.step_time_s == pytest.approx(plan.estimate.step_time_s, rel=1e-9)
