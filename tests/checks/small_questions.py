"""Small questions whose every layout can be priced, and all of their layouts under several sets of constants."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from checks.enumeration import all_blocks, all_recomputations
from layoutopt.optimizer.cost.quantities import GOALS
from layoutopt.optimizer.cost.run_facts import footprint_of
from layoutopt.optimizer.cost.step import step_s
from layoutopt.optimizer.cost.terms import price_stages
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.solve.inputs import Question
from layoutopt.optimizer.solve.plan import SolveOptions
from layoutopt.optimizer.space.options import SpaceOptions
from layoutopt.optimizer.specs.cluster import ClusterSpec, FailureSpec, NetworkLevel
from layoutopt.optimizer.specs.loading import load_gpu
from layoutopt.optimizer.specs.model import LayerShape, Mlp, ModelSpec, MoeSpec, Run, TrainingSpec
from layoutopt.optimizer.specs.vocabulary import Precision
from layoutopt.optimizer.specs.workload import Workload

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from layoutopt.optimizer.solve.search.costed_space import CostedSpace

    FloatArray = NDArray[np.float64]

VARIED = (
    "gemm_cap.hopper", "attention_cap.hopper", "gemm_occupancy_exponent", "gemm_inner_half", "pp_exposed", "host_tp",
    "tp_exposed_overlapped", "grouped_gemm_half", "dp_hidden", "ep_hidden", "optimizer_hbm_fraction", "hbm_fraction.hopper",
)  # fmt: skip
"""Constants that move small layouts against each other."""


def small_question(seed: int, **options: object) -> Question:
    """Draw a model of few layers, 4 to 16 GPUs that may stay idle, and scarce memory on two questions of three."""
    rng = np.random.default_rng(seed)
    gpus, hidden, moe = int(rng.choice([4, 6, 8, 12, 16])), int(rng.choice([512, 1024, 2048])), seed % 3 == 1
    shape = LayerShape(mlp=Mlp.MOE) if moe else LayerShape(ffn=4 * hidden)
    model = ModelSpec(
        name="small", hidden=hidden, heads=8, kv_heads=int(rng.choice([4, 8])), head_dim=hidden // 8,
        vocab=int(rng.choice([1000, 32000])), runs=(Run(name="all", block=(shape,), count=int(rng.integers(3, 6))),),
        moe=MoeSpec(experts=8, top_k=2, ffn=hidden, shared_ffn=0) if moe else None,
    )  # fmt: skip
    training = TrainingSpec(
        sequence_length=512,
        global_batch=gpus * int(rng.choice([2, 4])),
        precision=Precision.BF16,
        total_tokens=1e12,
    )
    often = FailureSpec(
        gpu_hours_per_failure=float(rng.choice([20.0, 2_000.0, 50_000.0])),
        hot_restart_s=60.0 if seed % 4 == 0 else None,
    )
    cluster = ClusterSpec(
        name="small", gpu=load_gpu("h100"), gpu_count=gpus, gpus_per_node=min(gpus, 8), nvlink_domain=min(gpus, 8),
        nics_per_node=min(gpus, 8), nic_bytes_per_s=float(rng.choice([10e9, 50e9])), failures=often,
        levels=(NetworkLevel(name="leaf", gpus=gpus, oversubscription=2.0, latency_s=1e-6),),
    )  # fmt: skip
    space = SpaceOptions(
        max={"pp": 3, "vp": 2, "tp": 4, "cp": 2, "ep": 2},
        fix={"mesh_order": ("tp-cp-ep-dp-pp",)},
        micro_batches=(1, 2),
        allow_idle=0.5 if seed % 2 else None,
        gpu_hour_cost=2.0,
    )
    framework = (Framework.MEGATRON, Framework.ANY)[seed // 2 % 2]
    asked = SolveOptions(framework=framework, space=space, top=1, **options)  # type: ignore[arg-type]
    question = Question(workload=Workload(model=model, training=training), cluster=cluster, options=asked)
    return _scarce(question, seed) if seed % 3 else question


def _scarce(question: Question, seed: int) -> Question:
    """Leave so little memory that part of the layouts no longer fits."""
    source = question.costed_space()
    terms = source.terms(source.expand(source.degrees)[0])
    usage = (terms.layer_state_bytes + terms.in_flight[:, :1] * terms.layer_activation_bytes) @ source.counts
    share = np.quantile(usage / terms.pp, np.random.default_rng(seed).uniform(0.1, 0.6))
    reserve = float(terms.capacity_bytes[0] - share - np.median(terms.first_bytes + terms.common_bytes))
    factor = 1 + source.cost.preset.allocator_reserve
    return replace(question, cluster=replace(question.cluster, reserve_bytes=max(reserve, 0.0) * factor))


def varied_constants(question: Question, seed: int, samples: int) -> tuple[dict[str, float], ...]:
    """Draw sets of constants far enough apart for other layouts to be the best under some of them."""
    base = question.costed_space().cost.constants
    rng = np.random.default_rng(seed)
    return tuple(
        {
            name: min(base[name] * float(rng.lognormal(0.0, 0.5)), 0.99 if base[name] < 1 else 1e9)
            for name in VARIED
        }
        for _ in range(samples)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Enumerated:
    """Every layout that fits: objectives by goal (n,), steps under every set of constants (n, S), (n, 0) without any."""

    goals: dict[str, FloatArray]
    steps_s: FloatArray


def enumerate_question(question: Question) -> Enumerated:
    """Price every tuple with every choice of stages, under the base constants and every other set."""
    source = question.costed_space()
    batch, _ = source.expand(source.degrees)
    under = [
        source.terms(batch),
        *(cost.terms(batch) for cost in question.costs_under(question.options.samples, source.cost)),
    ]
    goals: dict[str, list[FloatArray]] = {name: [] for name in GOALS}
    steps: list[FloatArray] = []
    assert source.demands.facts is not None
    for row in range(len(batch)):
        priced = _stages(source, under, row)
        if priced is None:
            continue
        times, peaks = priced
        use = footprint_of(batch.take(np.array([row])))
        for name, quantity in GOALS.items():
            linear = quantity.of(source.demands.facts, use)
            value = linear.constant + linear.per_second * times[0] + linear.per_byte * peaks
            goals[name].append(np.broadcast_to(value, peaks.shape))
        steps.append(np.stack(times[1:], axis=1) if len(times) > 1 else np.zeros((len(peaks), 0)))
    return Enumerated(
        goals={name: np.concatenate([*values, np.zeros(0)]) for name, values in goals.items()},
        steps_s=np.concatenate([*steps, np.zeros((0, len(under) - 1))]),
    )


def _stages(source: CostedSpace, under: list, row: int) -> tuple[list[FloatArray], FloatArray] | None:  # type: ignore[type-arg]
    """Return a tuple's exact steps under each set of constants and its peaks, for all choices of stages that fit."""
    terms = under[0].take(np.array([row]))
    choices = [
        (blocks, again)
        for blocks in all_blocks(terms, source.counts, source.rule)
        for again in all_recomputations(terms, blocks, source.rule)
    ]
    if not choices:
        return None
    blocks, again = (np.stack(part) for part in zip(*choices, strict=True))
    room = ((0, 0), (0, terms.in_flight.shape[1] - blocks.shape[2]), (0, 0))
    by_rank = [np.pad(part.sum(axis=1), room) for part in (blocks, again)]
    costs = price_stages(terms.take(np.zeros(len(choices), dtype=np.int64)), *by_rank)
    fits = np.flatnonzero(costs.fits)
    if not len(fits):
        return None
    return [step_s(one, row, blocks[fits], again[fits]) for one in under], costs.peak_bytes[fits]
