"""Jobs with one fault each, of twelve kinds, and clean ones; which cause each should be named first."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from checks.traced_files import write_traces
from checks.traced_plan import (
    in_other_micro_batches,
    job_of,
    launched_late,
    recomputed,
    slower,
    without_fusion,
)
from checks.traced_run import Run
from layoutopt.optimizer.cost.factory import build_cost_model
from layoutopt.optimizer.diagnose.cause import CauseKind
from layoutopt.optimizer.diagnose.causes import causes
from layoutopt.optimizer.diagnose.difference import difference
from layoutopt.optimizer.diagnose.parts import Activity
from layoutopt.optimizer.diagnose.peers import match
from layoutopt.optimizer.diagnose.predicted import expectation
from layoutopt.optimizer.diagnose.terms import rank_terms
from layoutopt.optimizer.frameworks.preset import load_preset
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.interop.profiles.kineto import read_kineto
from layoutopt.optimizer.interop.profiles.options import ProfileOptions
from layoutopt.optimizer.specs.loading import load_cluster, load_workload, override_training, parse_layout
from layoutopt.optimizer.specs.vocabulary import CudaGraph

if TYPE_CHECKING:
    from pathlib import Path

    from checks.traced_job import Job
    from layoutopt.optimizer.cost.cost_model import CostModel
    from layoutopt.optimizer.diagnose.cause import Cause
    from layoutopt.optimizer.specs.layout import Layout

NOISE = 0.03
DENSE = ("llama3-8b", "tp=2,pp=2,zero=1,micro_batch=1", 8, 8192)
PLANS = (
    DENSE,
    ("llama3-8b", "tp=2,pp=2,vp=2,zero=1,micro_batch=1", 8, 8192),
    ("llama3-8b", "tp=4,zero=1,micro_batch=1", 4, 8192),
    ("llama3-8b", "cp=2,tp=2,zero=1,micro_batch=1", 8, 8192),
    ("qwen3-30b-a3b", "ep=4,pp=2,zero=1,micro_batch=1", 16, 4096),
    ("qwen3-30b-a3b", "ep=4,zero=1,micro_batch=1", 16, 4096),
)
"""Models of eight layers: name, layout, global batch, sequence length."""

EXPERTS = tuple(plan for plan in PLANS if plan[0].startswith("qwen"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A job with the plan that it is held against; ``expected`` None: clean."""

    name: str
    job: Job
    cost: CostModel
    layout: Layout
    expected: CauseKind | None


@cache
def planned(plan: tuple[str, str, int, int], graphs: bool = False) -> tuple[CostModel, Layout]:
    """Return a plan's prices and layout, on eight H100."""
    name, text, batch, sequence = plan
    workload = override_training(load_workload(name), sequence_length=sequence, global_batch=batch)
    model = replace(workload.model, runs=(replace(workload.model.runs[-1], count=8),))
    workload, cluster = replace(workload, model=model), load_cluster("h100x8")
    preset = load_preset(Framework.MEGATRON, None)
    preset = replace(preset, cuda_graph=CudaGraph.FULL) if graphs else preset
    cost = build_cost_model(model, workload.training, cluster, framework=Framework.MEGATRON, preset=preset)
    return cost, parse_layout(text).complete(workload, cluster)


def clean(seed: int) -> Case:
    """Return a job without a fault."""
    return _case("clean", PLANS[seed % len(PLANS)], seed, None)


def faulty(seed: int) -> Case:
    """Return a job with one fault; twelve seeds in a row have the twelve kinds."""
    rng, kind = np.random.default_rng(seed), seed % len(FAULTS)
    return FAULTS[kind](seed, rng)


def _case(
    name: str,
    plan: tuple[str, str, int, int],
    seed: int,
    expected: CauseKind | None,
    change: Any = lambda job: job,
    *,
    graphs: bool = False,
) -> Case:
    cost, layout = planned(plan, graphs)
    job = replace(change(job_of(cost, layout)), noise=NOISE, seed=seed)
    return Case(name=f"{name}: {plan[0]} {plan[1]}", job=job, cost=cost, layout=layout, expected=expected)


def _any(
    rng: np.random.Generator, plans: tuple[tuple[str, str, int, int], ...] = PLANS
) -> tuple[str, str, int, int]:
    return plans[int(rng.integers(len(plans)))]


def _between(rng: np.random.Generator, low: float, high: float) -> float:
    return float(rng.uniform(low, high))


def _step_us(job: Job) -> float:
    """Roughly a step's microseconds: what its kernels take on one rank."""
    total = sum(item.us for stage in job.stages for item in (*stage.forward, *stage.backward))
    return total * job.pipeline.micro_batches / job.pipeline.pp


def _no_overlap(seed: int, rng: np.random.Generator) -> Case:
    plan = _any(rng, tuple(one for one in PLANS if "tp=4" not in one[1]))
    return _case("no overlap", plan, seed, CauseKind.NO_OVERLAP, lambda job: replace(job, overlaps=False))


def _slow_link(seed: int, rng: np.random.Generator) -> Case:
    plan = _any(rng)
    axis = "ep" if plan in EXPERTS else "tp"
    factor = _between(rng, 2.0, 4.0)
    return _case(
        "slow link", plan, seed, CauseKind.SLOW_LINK, lambda job: replace(job, axis_factor={axis: factor})
    )


def _slow_rank(seed: int, rng: np.random.Generator) -> Case:
    rank, factor = int(rng.integers(8)), _between(rng, 1.09, 1.3)
    return _case(
        "slow rank",
        _any(rng),
        seed,
        CauseKind.SLOW_RANK,
        lambda job: replace(job, rank_factor={rank: factor}),
    )


def _slow_kernels(seed: int, rng: np.random.Generator) -> Case:
    plan = _any(rng)
    part, least = [(Activity.GEMM, 1.2), (Activity.ATTENTION, 1.5), (Activity.NORM, 2.5)][
        int(rng.integers(3))
    ]
    factor = _between(rng, least, least + 0.5)
    return _case("slow kernels", plan, seed, CauseKind.SLOW_KERNELS, lambda job: slower(job, part, factor))


def _host_bound(seed: int, rng: np.random.Generator) -> Case:
    share = _between(rng, 0.04, 0.2)
    return _case(
        "host-bound",
        _any(rng),
        seed,
        CauseKind.HOST_BOUND,
        lambda job: launched_late(job, _late_us(job, share)),
    )


def _late_us(job: Job, share: float) -> int:
    """Microseconds before every kernel that add up to a share of the step."""
    kernels = sum(len(stage.forward) + len(stage.backward) for stage in job.stages)
    passes = kernels * job.pipeline.micro_batches / job.pipeline.pp
    return max(2, round(share * _step_us(job) / passes))


def _micro_batches(seed: int, rng: np.random.Generator) -> Case:
    factor = int(rng.integers(2, 4))
    return _case(
        "micro-batches",
        _any(rng),
        seed,
        CauseKind.MICRO_BATCHES,
        lambda job: in_other_micro_batches(job, factor),
    )


def _no_graph(seed: int, rng: np.random.Generator) -> Case:
    share = _between(rng, 0.04, 0.2)
    return _case(
        "no graph",
        _any(rng),
        seed,
        CauseKind.NO_CUDA_GRAPH,
        lambda job: launched_late(job, _late_us(job, share)),
        graphs=True,
    )


def _recomputation(seed: int, rng: np.random.Generator) -> Case:
    return _case("recomputation", _any(rng), seed, CauseKind.RECOMPUTATION, recomputed)


def _unfused(seed: int, rng: np.random.Generator) -> Case:
    return _case("unfused attention", _any(rng), seed, CauseKind.UNFUSED_ATTENTION, without_fusion)


def _imbalance(seed: int, rng: np.random.Generator) -> Case:
    most = _between(rng, 1.4, 2.2)
    rest = (4 - most) / 3
    factors = tuple(np.roll([most, rest, rest, rest], int(rng.integers(4))).tolist())
    return _case(
        "imbalance",
        _any(rng, EXPERTS),
        seed,
        CauseKind.EXPERT_IMBALANCE,
        lambda job: replace(job, expert_factor=factors),
    )


def _checkpoint(seed: int, rng: np.random.Generator) -> Case:
    share = _between(rng, 0.1, 1.0)
    return _case(
        "checkpoint",
        _any(rng),
        seed,
        CauseKind.CHECKPOINT,
        lambda job: replace(job, checkpoint_us=round(share * _step_us(job))),
    )


def _data(seed: int, rng: np.random.Generator) -> Case:
    share = _between(rng, 0.04, 0.3)
    return _case(
        "data stall",
        _any(rng),
        seed,
        CauseKind.DATA_LOADER,
        lambda job: replace(job, data_stall_us=round(share * _step_us(job))),
    )


FAULTS = (
    _no_overlap, _slow_link, _slow_rank, _slow_kernels, _host_bound, _micro_batches, _no_graph, _recomputation, _unfused,
    _imbalance, _checkpoint, _data,
)  # fmt: skip
"""The twelve kinds of fault."""


def named(case: Case, folder: Path) -> tuple[Cause, ...]:
    """Run the job, write its traces, read them, and return the causes that are named."""
    files = write_traces(Run(case.job), folder, compress=False)
    profiles = [read_kineto(file, ProfileOptions()) for file in files]
    terms = [
        rank_terms(profile, matched, sharded=case.layout.zero == 3, staged=case.layout.pp > 1)
        for profile, matched in zip(profiles, match(profiles), strict=True)
    ]
    expected = expectation(case.cost, case.layout)
    return causes(terms, expected, difference(terms, expected))
