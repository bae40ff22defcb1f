"""Optimistic terms: nothing that a row's modifiers may choose costs less, element by element."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.solve.inputs import Question
from layoutopt.optimizer.solve.plan import SolveOptions
from layoutopt.optimizer.space.options import SpaceOptions
from layoutopt.optimizer.specs.cluster import ClusterSpec, NetworkLevel
from layoutopt.optimizer.specs.loading import load_gpu, load_workload
from layoutopt.optimizer.specs.vocabulary import Precision, Saver, Schedule

if TYPE_CHECKING:
    from layoutopt.optimizer.cost.batch import IntArray, LayoutBatch
    from layoutopt.optimizer.cost.terms import StageTerms
    from layoutopt.optimizer.solve.search.source import Refinement

MODELS = ("llama3-8b", "mixtral-8x7b", "deepseek-v3", "deepseek-v2", "gpt-oss-120b", "kimi-k2")
FRAMEWORKS = (Framework.MEGATRON, Framework.TORCHTITAN, Framework.ANY, Framework.DEEPSEEK_INTERNAL)
PRECISIONS = {
    "h100": (Precision.BF16, Precision.FP8),
    "gb200": (Precision.MXFP8, Precision.NVFP4, Precision.BF16),
}
MOST_TUPLES = 300
LARGER_IS_OPTIMISTIC = ("capacity_bytes", "may_recompute")
SAME = ("pp", "vp", "folded", "micro_batches")
WHOLE_LAYERS = ("recompute_s", "recomputed_activation_bytes", "recompute_transient_bytes")
"""Terms that only count where whole layers may be recomputed."""


def question(model: str, framework: Framework, gpu: str, gpus: int, length: int) -> Question:
    """A published model on a small cluster whose outer level is oversubscribed, with every modifier open."""
    part = load_gpu(gpu)
    workload = load_workload(model)
    training = replace(
        workload.training,
        sequence_length=length,
        global_batch=4 * gpus,
        precision=PRECISIONS[gpu][0],
        fp8_recipe=None,
    )
    cluster = ClusterSpec(
        name="small",
        gpu=part,
        gpu_count=gpus,
        gpus_per_node=part.gpus_per_node,
        nvlink_domain=part.nvlink_domain,
        nics_per_node=part.gpus_per_node,
        nic_bytes_per_s=part.nic_bytes_per_s,
        levels=(
            NetworkLevel(name="leaf", gpus=2 * part.nvlink_domain, latency_s=1e-6),
            NetworkLevel(name="spine", gpus=gpus, oversubscription=3.0, latency_s=3e-6),
        ),
    )
    space = SpaceOptions(schedules=tuple(Schedule), precisions=PRECISIONS[gpu], allow=tuple(Saver))
    options = SolveOptions(framework=framework, space=space)
    return Question(workload=replace(workload, training=training), cluster=cluster, options=options)


def assert_optimistic(relaxed: StageTerms, exact: StageTerms) -> None:
    """Every element of ``relaxed`` is at least as favourable as that of ``exact``, but for rounding."""
    width = exact.in_flight.shape[1]
    for field in fields(relaxed):
        low, high = getattr(relaxed, field.name), getattr(exact, field.name)
        if field.name == "in_flight":
            low = low[:, :width]
        if field.name in WHOLE_LAYERS:
            low, high = low[exact.may_recompute], high[exact.may_recompute]
        if field.name in SAME:
            assert (low == high).all(), field.name
            continue
        if field.name in LARGER_IS_OPTIMISTIC:
            low, high = high, low
        assert (low <= high + 1e-9 * np.abs(high) + 1e-15).all(), (field.name, np.max(low - high))


@settings(max_examples=12)
@given(
    model=st.sampled_from(MODELS),
    framework=st.sampled_from(FRAMEWORKS),
    gpu=st.sampled_from(sorted(PRECISIONS)),
    nodes=st.sampled_from([2, 4, 8]),
    length=st.sampled_from([2048, 8192, 65536]),
    seed=st.integers(0, 2**16),
)
def test_optimistic_over_every_modifier(
    model: str, framework: Framework, gpu: str, nodes: int, length: int, seed: int
) -> None:
    """Sharding, order, precision and recomputation are covered by the row's terms, and by those of each step."""
    asked = question(model, framework, gpu, nodes * load_gpu(gpu).nvlink_domain, length)
    source = asked.costed_space()
    if not len(source.degrees):
        return
    rng = np.random.default_rng(seed)
    rows = source.degrees.take(np.unique(rng.integers(0, len(source.degrees), 4)))
    batch, owner = source.expand(rows)
    some = rng.permutation(len(batch))[:MOST_TUPLES]
    assert_optimistic(source.relaxed(rows).take(owner[some]), source.terms(batch.take(some)))
    steps = source.refinements
    for depth, step in enumerate(steps[:-1]):
        rows, _ = step.expand(rows)
        rows = rows.take(rng.permutation(len(rows))[:MOST_TUPLES])
        finer, owner = expand_by(steps[depth + 1 :], rows)
        some = rng.permutation(len(finer))[:MOST_TUPLES]
        assert_optimistic(step.terms(rows).take(owner[some]), source.terms(finer.take(some)))


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_optimistic_where_nodes_cut_groups(framework: Framework) -> None:
    """Five nodes share the eight groups of DeepSeek-V2's router unevenly: a token reaches more of them than of four."""
    source = question("deepseek-v2", framework, "h100", 40, 4096).costed_space()
    rows = source.degrees.take(np.flatnonzero(source.degrees.ep % 5 == 0)[::97])
    batch, owner = source.expand(rows)
    some = np.random.default_rng(5).permutation(len(batch))[: 4 * MOST_TUPLES]
    assert len(some)
    assert_optimistic(source.relaxed(rows).take(owner[some]), source.terms(batch.take(some)))


def expand_by(steps: tuple[Refinement, ...], rows: LayoutBatch) -> tuple[LayoutBatch, IntArray]:
    """Take further steps; return the tuples and the row that each came from."""
    owner = np.arange(len(rows))
    for step in steps:
        rows, index = step.expand(rows)
        owner = owner[index]
    return rows, owner


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_rows_have_one_schedule(framework: Framework) -> None:
    """Degree rows are listed once per schedule, and their tuples add up to those of the declared space."""
    source = question("mixtral-8x7b", framework, "h100", 32, 4096).costed_space()
    assert int(source.tuples.sum()) == int(source.space.tuples.sum())
    assert sum(source.tuples_by_shape().values()) == int(source.space.tuples.sum())
    assert len(source.degrees) >= len(source.space.degrees)
    batch, owner = source.expand(source.degrees.take(np.arange(50)))
    assert (batch.schedule == source.degrees.schedule[:50][owner]).all()
