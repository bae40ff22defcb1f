"""What a plan's options may be, what hot restarts save, and what a recipe says of its own layout."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from layoutopt.optimizer.plan.fault_plan import expected_wall_s, plan_faults
from layoutopt.optimizer.plan.options import PlanOptions
from layoutopt.optimizer.plan.recipe import recipe_layout
from layoutopt.optimizer.solve.plan import SolveOptions
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.layout import Layout
from layoutopt.optimizer.specs.loading import load_cluster, load_workload
from layoutopt.optimizer.specs.units import DAY_S


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("relative_error", (0.0, 0.99), (-0.01, 1.0, 1.5)),
        ("step_ratios", ({}, {"80": (0.9, 1.2)}), ({"80": (0.0, 1.2)}, {"50": (0.9, 1.1), "80": (1.2, 0.9)})),
        ("gpu_hour_cost", (None, 0.0, 2.5), (-0.01,)),
        ("least_stall_s", (0.0,), (-1.0,)),
        ("repair_s", (0.0,), (-1.0,)),
        ("spare_confidence", (0.01, 0.99), (0.0, 1.0)),
        ("simulated_runs", (1,), (0, -1)),
        ("seed", (0,), (-1,)),
    ],
)
def test_options_out_of_range_are_named(name: str, good: tuple[Any, ...], bad: tuple[Any, ...]) -> None:
    """Both ends of every range; the problem names the option."""
    for value in good:
        assert getattr(PlanOptions(**{name: value}), name) == value
    for value in bad:
        with pytest.raises(InputError) as raised:
            PlanOptions(**{name: value})
        assert [problem.key for problem in raised.value.problems] == [name]


def test_hot_restarts_leave_less_to_wait_for() -> None:
    """Without them the wall clock is that of checkpoints; with replicas that restart each other it is less, part by part."""
    workload, cluster = load_workload("llama3-8b"), load_cluster("h100x1024")
    layout, work_s = Layout(tp=8, dp=128, micro_batches=2), 10 * DAY_S
    faults = plan_faults(work_s, 8e9, 1024, cluster, PlanOptions(simulated_runs=1))
    cold_s = expected_wall_s([(work_s, layout)], workload.model, cluster, faults)
    assert cold_s == faults.best.wall_s > work_s
    hot = replace(cluster, failures=replace(cluster.failures, hot_restart_s=60.0))
    hot_s = expected_wall_s([(work_s, layout)], workload.model, hot, faults)
    assert work_s < hot_s < cold_s
    halves_s = expected_wall_s([(work_s / 2, layout)] * 2, workload.model, hot, faults)
    assert halves_s == pytest.approx(hot_s)
    alone = replace(layout, dp=1, pp=128)  # nobody has the state that was lost
    assert expected_wall_s([(work_s, alone)], workload.model, hot, faults) > hot_s


def test_a_recipe_says_its_layout() -> None:
    """Every degree that the rules of thumb led to is in the words, experts where there are some."""
    for model in ("llama3-8b", "mixtral-8x7b"):
        recipe = recipe_layout(load_workload(model), load_cluster("h100x64"), SolveOptions())
        assert recipe.judgement is not None
        layout, words = recipe.judgement.layout, "; ".join(recipe.steps)
        assert f"tensor parallel {layout.tp} inside the NVLink domain of 8: " in words
        assert f"{layout.pp} pipeline stage" in words
        assert f"data parallel {layout.dp} with ZeRO-{layout.zero} on the rest" in words
        assert f"mesh {layout.mesh_order}, innermost first" in words
        assert (f"experts over {layout.ep} ranks, inside" in words) == (model == "mixtral-8x7b")
        assert ("chunks each" in words) == (layout.vp > 1)
