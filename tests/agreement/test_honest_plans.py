"""Plans of random questions and options are verified as they are, and rejected when a figure is changed."""

from __future__ import annotations

import copy
import json
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from layoutopt.optimizer.evidence.honesty import assess
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.report.json_forms import plan_to_plain
from layoutopt.optimizer.report.verification import verify_plan
from layoutopt.optimizer.solve.api import freer_gain, solve_layout
from layoutopt.optimizer.solve.plan import SolveOptions
from layoutopt.optimizer.space.options import SpaceOptions
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.loading import load_cluster, load_workload
from layoutopt.optimizer.specs.vocabulary import Saver

if TYPE_CHECKING:
    from collections.abc import Callable

    from layoutopt.optimizer.specs.workload import Workload

    Change = Callable[[dict[str, Any], Random], None]

RELEASES: dict[Framework, tuple[str | None, ...]] = {
    Framework.MEGATRON: (None, "core 0.7", "core 0.9", "core 0.12"),
    Framework.TORCHTITAN: (None, "era A"),
    Framework.ANY: (None, "2022"),
}
SPACE: tuple[dict[str, Any], ...] = (
    {}, {}, {"allow_idle": 0.3}, {"require": ("tp*cp <= 2",)}, {"require": ("peak_gb <= 60",)},
    {"require": ("layers[0] <= 3",)}, {"fix": {"tp": (2,)}}, {"min": {"pp": 2}}, {"max": {"vp": 4, "cp": 1}},
    {"forbid": {"zero": (1,)}}, {"allow": (Saver.OFFLOAD_OPTIMIZER,)}, {"fix": {"recompute": ("full",)}, "min": {"pp": 2}},
)  # fmt: skip
SEARCH: tuple[dict[str, Any], ...] = (
    {}, {}, {"gap": 0.05}, {"top": 1}, {"top": 6, "near": None}, {"then": "memory", "within": 0.02},
    {"then": "gpus", "within": 0.0}, {"time_limit_s": 0.05}, {"workers": 2},
)  # fmt: skip


def _small(rng: Random) -> Workload:
    """A built-in with few layers and a small batch, of one kind of block or two."""
    workload = load_workload(rng.choice(("llama3-8b", "llama3-8b", "mixtral-8x7b", "deepseek-v2")))
    model, layers = workload.model, rng.choice((3, 4, 6))
    runs = [replace(run, count=min(run.count, 1)) for run in model.runs[:-1]]
    runs.append(replace(model.runs[-1], count=layers - len(runs)))
    scale = rng.choice((1, 1, 2))
    training = replace(workload.training, global_batch=rng.choice((8, 16, 24)) * scale, sequence_length=4096)
    return replace(
        workload, model=replace(model, runs=tuple(runs)), training=training, phases=(), phase_names=()
    )


def _plan(rng: Random) -> dict[str, Any]:
    """Solve a random question as the command line does."""
    workload = _small(rng)
    cluster = load_cluster(rng.choice(("h100x4", "h100x6", "h100x8")))
    if rng.random() < 0.3 and not workload.model.is_moe:  # memory for some layouts, or none
        gpu = replace(cluster.gpu, memory_bytes=cluster.gpu.memory_bytes * rng.choice((0.1, 0.5)))
        cluster = replace(cluster, gpu=gpu)
    framework = rng.choice(list(RELEASES))
    space = SpaceOptions(
        software=rng.choice(RELEASES[framework]), **({"max": {"vp": 2, "cp": 2}} | rng.choice(SPACE))
    )
    options = SolveOptions(framework=framework, space=space, **rng.choice(SEARCH))
    plan = solve_layout(workload, cluster, options)
    if rng.random() < 0.4:
        plan = replace(plan, freer_gain=freer_gain(workload, cluster, plan, options))
    written: dict[str, Any] = json.loads(
        json.dumps(plan_to_plain(plan, assess(plan, workload, cluster, options, robust=rng.random() < 0.2)))
    )
    return written


def _numbers(plain: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """List where a plan states a number, but for its inputs and the time that it took."""
    if isinstance(plain, dict):
        left_out = () if path else ("inputs", "solve_time_s")
        return [place for key in plain if key not in left_out for place in _numbers(plain[key], (*path, key))]
    if isinstance(plain, list):
        return [place for index, item in enumerate(plain) for place in _numbers(item, (*path, index))]
    return [path] if isinstance(plain, int | float) and not isinstance(plain, bool) else []


def _tampered(plan: dict[str, Any], rng: Random) -> tuple[dict[str, Any], str]:
    """Change one number of a plan by a percent or by one."""
    place = rng.choice(_numbers(plan))
    changed = inner = copy.deepcopy(plan)
    for key in place[:-1]:
        inner = inner[key]  # type: ignore[index]
    value = inner[place[-1]]  # type: ignore[index]
    inner[place[-1]] = value + 1 if isinstance(value, int) else value * 1.01 + 1e-3  # type: ignore[index]
    return changed, ".".join(map(str, place))


def judge(seed: int) -> str:
    """Verify the plan of a seed and one change of it; return its status."""
    rng = Random(seed)
    plan = _plan(rng)
    report = verify_plan(plan)
    assert report.accepted, (seed, [check.reason for check in report.failures])
    changed, where = _tampered(plan, rng)
    with suppress(InputError):
        assert not verify_plan(changed).accepted, (seed, where)
    return str(plan["status"])


@pytest.mark.parametrize("seed", range(8))
def test_honest_plans_are_accepted_and_changed_ones_are_not(seed: int) -> None:
    """Trainers, releases, requirements, gaps, second goals, time limits, savers, idle GPUs, too little memory."""
    assert judge(seed) in ("optimal", "within_gap", "stopped", "infeasible")
