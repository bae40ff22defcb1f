"""Explanations: memory shares, remedies, the way to the optimum, wishes, conflicts."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.solve.api import solve_layout
from layoutopt.optimizer.solve.explain.api import explain_layout, why_not
from layoutopt.optimizer.solve.explain.path import cheapest_path
from layoutopt.optimizer.solve.judge import BORDERLINE, judge_layout
from layoutopt.optimizer.solve.plan import SolveOptions
from layoutopt.optimizer.space.options import SpaceOptions
from layoutopt.optimizer.specs.loading import load_cluster, load_workload, override_training, parse_layout
from layoutopt.optimizer.specs.vocabulary import Verdict

if TYPE_CHECKING:
    from layoutopt.optimizer.solve.explain.records import Explanation
    from layoutopt.optimizer.space.options import Value

HELD = ("tp", "sp", "cp", "pp", "vp", "ep", "etp", "micro_batch", "zero", "hsdp_shard", "mesh_order")


def explain(model: str, cluster: str, layout: str, *, compare: bool = False) -> Explanation:
    """Explain a layout given as text."""
    return explain_layout(load_workload(model), load_cluster(cluster), parse_layout(layout), compare=compare)


@pytest.fixture(scope="module")
def full_up() -> Explanation:
    """An 8B model whose activations don't fit without tensor parallelism."""
    return explain("llama3-8b", "h100x64", "tp=1,pp=1,zero=1,mb=2")


@pytest.fixture(scope="module")
def slow() -> Explanation:
    """A layout that runs, far from the optimum in several choices."""
    return explain("llama3-70b", "h100x256", "tp=8,pp=8,zero=0,mb=1,recompute=full", compare=True)


def test_fullest_rank_is_the_memory_estimate_split_by_component(full_up: Explanation) -> None:
    """The components sum to the fullest rank's bytes, the largest first."""
    found, price = full_up.fullest, full_up.judgement.estimate
    assert found is not None and price is not None
    sizes = [part.size_bytes for part in found.parts]
    assert sum(sizes) == pytest.approx(price.memory.peak_bytes, rel=1e-12)
    assert sizes == sorted(sizes, reverse=True)


def test_experts_divide_by_the_expert_grid_only() -> None:
    """Expert weights of one rank are the model's over ep * etp * pp, whatever tp and dp are, and it is said so."""
    found = explain("qwen3-30b-a3b", "h100x64", "tp=2,pp=2,ep=8,zero=1,mb=1").fullest
    assert found is not None
    part = next(part for part in found.parts if part.name == "weights, experts")
    model = load_workload("qwen3-30b-a3b").model
    assert model.moe is not None
    experts = model.layers * model.moe.experts * 3 * model.hidden * model.moe.ffn
    assert part.size_bytes == pytest.approx(2 * experts / 16)
    assert part.divided_by == "2 B / (ep 8 x etp 1 x pp 2 = 16 only)"
    optimizer = next(part for part in found.parts if part.name == "optimizer state, experts")
    assert optimizer.divided_by.endswith("(ep 8 x etp 1 x pp 2 = 16 x expert-dp 4)")


def test_remedies_run_and_hold_everything_else(full_up: Explanation) -> None:
    """Each single change gives a valid layout that fits; no other choice moves but what follows from it."""
    given_layout, remedies = full_up.judgement.layout, full_up.remedies
    assert full_up.judgement.verdict is Verdict.DOES_NOT_FIT
    assert {remedy.axes for remedy in remedies} >= {("tp",), ("recompute",), ("micro_batch",)} - {
        ("micro_batch",)
    }
    workload, cluster = load_workload("llama3-8b"), load_cluster("h100x64")
    for remedy in remedies:
        judged = judge_layout(workload, cluster, remedy.layout)
        assert judged.verdict in (Verdict.FITS, Verdict.BORDERLINE), remedy.changes
        assert judged.estimate is not None
        assert judged.estimate.step_time_s == pytest.approx(remedy.estimate.step_time_s)
        loose = {
            *remedy.axes,
            *({"sp"} if "tp" in remedy.axes else ()),
            *({"vp"} if "pp" in remedy.axes else ()),
        }
        for axis in HELD:
            if axis not in loose:
                assert getattr(remedy.layout, axis) == getattr(given_layout, axis), (remedy.axes, axis)


def test_remedies_are_ranked_by_predicted_slow_down(full_up: Explanation) -> None:
    """The least slow remedy comes first, and slower is relative to the layout that doesn't fit."""
    price = full_up.judgement.estimate
    assert price is not None
    times = [remedy.estimate.step_time_s for remedy in full_up.remedies]
    assert times == sorted(times)
    assert full_up.remedies[0].slower == pytest.approx(times[0] / price.step_time_s - 1)


def test_more_gpus_are_a_remedy_of_sharded_state() -> None:
    """Qwen3-30B with ep 8 doesn't fit one node; with expert data parallelism it does, counted in GPU-time."""
    found = explain("qwen3-30b-a3b", "h100x8", "ep=8,zero=1,mb=1").remedies[-1]
    assert found.axes == ("gpus",)
    assert found.gpus > 8
    assert found.layout.dp == found.gpus


def test_smaller_state_is_offered_and_marked() -> None:
    """A model that misses by its moments alone is told of 16-bit ones, and that numerics change."""
    workload = override_training(load_workload("llama3-8b"), global_batch=8, sequence_length=4096)
    found = explain_layout(workload, load_cluster("h100x8"), parse_layout("tp=2,zero=0,mb=1"), compare=False)
    settings_only = [remedy for remedy in found.remedies if not remedy.axes]
    assert settings_only and all(remedy.note == "changes numerics" for remedy in settings_only)


def test_remedies_of_a_borderline_layout_leave_room() -> None:
    """A layout at 97% of memory is not sent to one at 99%: what is offered fits without being borderline."""
    workload = override_training(load_workload("llama3-8b"), global_batch=8, sequence_length=1024)
    found = explain_layout(workload, load_cluster("h100x8"), parse_layout("tp=2,zero=0,mb=1"), compare=False)
    assert found.judgement.verdict is Verdict.BORDERLINE
    assert found.remedies
    for remedy in found.remedies:
        memory = remedy.estimate.memory
        assert memory.peak_bytes <= BORDERLINE * memory.capacity_bytes * (1 + 1e-9)
        assert memory.capacity_bytes == found.judgement.estimate.memory.capacity_bytes  # type: ignore[union-attr]


def test_invalid_layout_names_rules_and_the_nearest_layouts_that_run() -> None:
    """Every broken rule comes with its factors and valid values; remedies have no slow-down against what can't run."""
    found = explain("llama3-70b", "h100x256", "tp=8,pp=3,zero=1,mb=4")
    broken = {rule.rule: rule for rule in found.judgement.broken}
    assert broken["world_size_product"].factors["model_parallel"] == 24
    assert found.remedies and all(remedy.slower is None for remedy in found.remedies)
    assert found.remedies[0].axes == ("pp",)


def test_pairs_are_tried_where_no_single_change_helps() -> None:
    """tp 7 has to go, but then memory doesn't fit: two changes together do."""
    found = explain("llama3-70b", "h100x256", "tp=7,pp=1,zero=1,mb=4")
    assert found.remedies and all(
        len(remedy.axes) == 2 for remedy in found.remedies if remedy.axes != ("gpus",)
    )


def test_gap_is_the_sum_of_its_steps(slow: Explanation) -> None:
    """Savings add up to the gap, the last step is the optimum, and each layout on the way has the price that is named."""
    gap, best = slow.gap, slow.optimum
    assert gap is not None and best is not None and best.estimate is not None
    assert sum(step.saved_s for step in gap.steps) == pytest.approx(gap.step_time_s - gap.best_s)
    assert gap.steps[-1].layout == best.layout
    assert gap.best_s == best.estimate.step_time_s
    workload, cluster = load_workload("llama3-70b"), load_cluster("h100x256")
    for step in gap.steps:
        judged = judge_layout(workload, cluster, step.layout)
        assert judged.verdict in (Verdict.FITS, Verdict.BORDERLINE)
        assert judged.estimate is not None
        assert judged.estimate.step_time_s == pytest.approx(step.step_time_s)


def test_gap_changes_one_choice_at_a_time(slow: Explanation) -> None:
    """Neighbours on the path differ in the named choice alone, and recomputation is the first and largest saving here."""
    gap = slow.gap
    assert gap is not None
    assert all(len(step.axes) == 1 for step in gap.steps)
    assert gap.steps[0].axes == ("recompute",)
    before = slow.judgement.layout
    for step in gap.steps:
        moved = {axis for axis in HELD if getattr(before, axis) != getattr(step.layout, axis)}
        assert moved <= set(step.axes) | {"sp"}
        before = step.layout


def test_optimum_has_no_gap() -> None:
    """Explaining the optimum itself finds nothing to gain."""
    workload, cluster = load_workload("llama3-8b"), load_cluster("h100x64")
    best = solve_layout(workload, cluster, SolveOptions(top=1))
    assert best.layout is not None
    found = explain_layout(workload, cluster, best.layout)
    assert found.gap is not None
    assert found.gap.slower == pytest.approx(0.0, abs=1e-12)
    assert found.remedies == ()


def test_layout_outside_the_search_is_compared_all_the_same() -> None:
    """ZeRO-3 with a pipeline isn't searched under Megatron; the way to the optimum still sums up."""
    found = explain("llama3-70b", "h100x256", "tp=4,pp=4,zero=3,mb=1", compare=True)
    gap = found.gap
    assert gap is not None
    assert sum(step.saved_s for step in gap.steps) == pytest.approx(gap.step_time_s - gap.best_s)


@settings(max_examples=60)
@given(st.integers(1, 4), st.data())
def test_cheapest_path_equals_trying_every_order(choices: int, data: st.DataObject) -> None:
    """Where single changes lead to the end, no order of them sums to less."""
    size = 1 << choices
    times = st.one_of(st.floats(0.1, 10.0), st.just(np.inf))
    costs = np.array(data.draw(st.lists(times, min_size=size, max_size=size)))
    costs[-1] = 1.0
    sums = []
    for order in permutations(range(choices)):
        subsets = np.cumsum([1 << j for j in order])
        sums.append(costs[subsets].sum())
    path = cheapest_path(costs, choices)
    assert path[0] == 0 and path[-1] == size - 1
    if np.isfinite(min(sums)):
        assert len(path) == choices + 1
        assert costs[list(path[1:])].sum() == pytest.approx(min(sums))
    else:
        assert np.isfinite(costs[list(path[1:])]).all()


def test_a_wish_costs_what_the_restricted_solve_says() -> None:
    """``why_not`` agrees with a solve under the same restriction, and costs nothing where the optimum has it."""
    workload, cluster = load_workload("llama3-70b"), load_cluster("h100x256")
    wish = why_not(workload, cluster, {"tp": 8})
    fixed: dict[str, tuple[Value, ...]] = {"tp": (8,)}
    alone = solve_layout(workload, cluster, SolveOptions(top=1, space=SpaceOptions(fix=fixed)))
    assert wish.slower is not None and wish.slower > 0
    assert wish.plan.estimate is not None and alone.estimate is not None
    assert wish.plan.estimate.step_time_s == alone.estimate.step_time_s
    assert wish.best.layout is not None
    own = why_not(workload, cluster, {"tp": wish.best.layout.tp}, best=wish.best)
    assert own.slower == pytest.approx(0.0) and own.why == "the optimum has it"


CONFLICTS: list[tuple[str, str, SpaceOptions]] = [
    ("llama3-70b", "h100x256", SpaceOptions(fix={"tp": (1,), "pp": (1,), "zero": (1,), "micro_batch": (2,)})),
    ("llama3-70b", "h100x256", SpaceOptions(max={"pp": 2, "tp": 2}, forbid={"zero": (3,)}, fix={"cp": (1,)})),
    ("llama3-8b", "h100x64", SpaceOptions(fix={"tp": (3,), "pp": (1,)})),
]


@pytest.mark.parametrize(("model", "cluster", "space"), CONFLICTS)
def test_conflict_is_minimal(model: str, cluster: str, space: SpaceOptions) -> None:
    """What is named excludes any layout; without any one of the user's restrictions in it, some layout runs."""
    workload, machine = load_workload(model), load_cluster(cluster)
    plan = solve_layout(workload, machine, SolveOptions(space=space))
    assert plan.infeasibility is not None
    conflict = plan.infeasibility.conflict
    named = [name for name in conflict if name.split()[0] in {*space.fix, *space.max, *space.forbid}]
    assert named
    kept = {
        axis: value
        for axis, value in space.fix.items()
        if any(name.startswith(f"{axis} =") for name in named)
    }
    bounds = {
        axis: value
        for axis, value in space.max.items()
        if any(name.startswith(f"{axis} <=") for name in named)
    }
    barred = {axis: value for axis, value in space.forbid.items() if f"{axis} not" in " ".join(named)}
    only = replace(space, fix=kept, max=bounds, forbid=barred)
    assert solve_layout(workload, machine, SolveOptions(space=only)).layout is None
    for axis in kept:
        fewer = replace(only, fix={name: value for name, value in kept.items() if name != axis})
        assert solve_layout(workload, machine, SolveOptions(space=fewer, gap=1.0)).layout is not None, axis
    for axis in bounds:
        fewer = replace(only, max={name: value for name, value in bounds.items() if name != axis})
        assert solve_layout(workload, machine, SolveOptions(space=fewer, gap=1.0)).layout is not None, axis


def test_every_framework_can_be_explained() -> None:
    """No framework's preset or rules trip over a layout with pipeline and sharding."""
    workload, cluster = load_workload("llama3-8b"), load_cluster("h100x16")
    for framework in Framework:
        options = SolveOptions(framework=framework)
        found = explain_layout(
            workload, cluster, parse_layout("tp=2,pp=2,zero=1,mb=1"), options, compare=False
        )
        assert found.judgement.verdict in Verdict
