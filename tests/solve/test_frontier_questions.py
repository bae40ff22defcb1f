"""Questions of frontier runs are proven, and the layouts that such runs publish can be launched."""

from __future__ import annotations

from dataclasses import replace

import pytest

from layoutopt.optimizer.evidence.published import references
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.solve.api import solve_layout
from layoutopt.optimizer.solve.plan import SolveOptions
from layoutopt.optimizer.space.check import check_layout
from layoutopt.optimizer.space.options import SpaceOptions
from layoutopt.optimizer.specs.loading import load_cluster, load_workload
from layoutopt.optimizer.specs.vocabulary import Precision, Saver, Schedule


@pytest.mark.parametrize("position", range(4))
def test_published_layouts_are_valid(position: int) -> None:
    """Three rows of Llama 3 405B and DeepSeek-V3's layout break no rule of their own framework or of none."""
    case = references()[position].case
    question = case.model, case.training, case.cluster
    assert check_layout(case.layout, *question, Framework.ANY) == ()
    assert check_layout(case.layout, *question, case.framework) == ()


def test_every_axis_open_is_proven() -> None:
    """DeepSeek-V3 on 2,048 H800s: schedules, precision, offloading and the framework's other axes at once."""
    space = SpaceOptions(
        schedules=tuple(Schedule),
        precisions=(Precision.BF16, Precision.FP8),
        allow=(Saver.OFFLOAD_ACTIVATIONS, Saver.OFFLOAD_OPTIMIZER),
    )
    options = SolveOptions(framework=Framework.DEEPSEEK_INTERNAL, space=space)
    plan = solve_layout(load_workload("deepseek-v3"), load_cluster("h800-2048"), options)
    assert plan.status == "optimal"
    assert plan.layout is not None
    assert plan.layout.precision is Precision.FP8
    assert plan.layout.ep > 1


@pytest.mark.parametrize("model", ["kimi-k2", "deepseek-v3"])
def test_large_nvlink_domains_are_proven(model: str) -> None:
    """Mixtures of experts on 576 GB200s in domains of 72 GPUs: experts stay inside a domain."""
    plan = solve_layout(load_workload(model), load_cluster("gb200-nvl72-576"), SolveOptions())
    assert plan.status == "optimal"
    assert plan.layout is not None
    assert 1 < plan.layout.ep <= 72


def test_long_context_needs_context_parallelism() -> None:
    """Llama 3 405B at 131,072 tokens on 16,384 GPUs: cp within a factor of two of the 16 that its authors chose."""
    workload = load_workload("llama3-405b")
    training = replace(workload.training, sequence_length=131_072, global_batch=128)
    options = SolveOptions(framework=Framework.META_INTERNAL)
    plan = solve_layout(replace(workload, training=training), load_cluster("h100-16384"), options)
    assert plan.status == "optimal"
    assert plan.layout is not None
    assert 8 <= plan.layout.cp <= 32


def test_a_million_tokens() -> None:
    """An 8B model at 2^20 tokens per sequence fits only with context parallelism, and is proven."""
    workload = load_workload("llama3-8b")
    training = replace(workload.training, sequence_length=2**20, global_batch=32)
    plan = solve_layout(replace(workload, training=training), load_cluster("h100-1024"), SolveOptions())
    assert plan.status == "optimal"
    assert plan.layout is not None
    assert plan.layout.cp * plan.layout.tp >= 16
