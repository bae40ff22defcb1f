"""Constraints of one's own from Python: texts, functions, second goals; each answer is proven over the whole space."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

import layoutopt
from layoutopt import InputError, evaluate, load_cluster, load_model, solve
from layoutopt.optimizer.report.verification import verify_plan


@pytest.fixture(scope="module")
def free() -> layoutopt.Result:
    """The question of the reproductions without any constraint."""
    return solve(load_model("llama3-70b"), load_cluster("h100x64"))


@pytest.fixture(scope="module")
def small() -> layoutopt.Result:
    """A smaller question without any constraint."""
    return solve(load_model("llama3-8b", global_batch=64), load_cluster("h100x16"))


@pytest.mark.parametrize(("text", "step_s"), [("tp*cp <= 2", 65.374), ("tp == 8", 58.828)])
def test_layouts_exist_and_are_found(free: layoutopt.Result, text: str, step_s: float) -> None:
    """Constraints far from the optimum are met by the best layout that meets them, as fixing the axes gives it."""
    found = free.again(require=text)
    assert found.status == "optimal" and found.layout is not None and found.step_time_s is not None
    assert free.step_time_s is not None and found.step_time_s > free.step_time_s
    assert found.step_time_s == pytest.approx(
        step_s, rel=0.02
    )  # constants of the cost model move by a percent
    pairs: list[dict[str, Any]] = (
        [{"tp": 8}] if "8" in text else [{"tp": 1, "cp": (1, 2)}, {"tp": 2, "cp": 1}]
    )
    fixed = [solve(free.workload, free.cluster, fix=pair).step_time_s or float("inf") for pair in pairs]
    assert found.step_time_s == pytest.approx(min(fixed), rel=1e-9)
    assert f"require {text}" in found.plan.certificate.removed_by_rule
    assert text in str(found)


def test_few_layers_on_the_first_rank(free: layoutopt.Result) -> None:
    """At most 5 layers on rank 0 is proven without a gap, whoever says it: text, numbers, solver variables."""
    text = free.again(require="layers[0] <= 5")
    numbers = free.again(lambda model, v: model.add(v.layers[0] <= 5))
    assert text.status == numbers.status == "optimal"
    assert text.layout is not None and text.step_time_s is not None
    assert sum(stage.layers for stage in text.layout.stages if stage.rank == 0) <= 5
    assert numbers.step_time_s == pytest.approx(text.step_time_s, rel=1e-9)
    assert free.step_time_s is not None and text.step_time_s > free.step_time_s


def test_functions_reach_every_slice(free: layoutopt.Result) -> None:
    """Arithmetic of axes in a function equals the text; solver variables may be mixed in; the plan names the function."""

    def narrow(model: Any, v: Any) -> None:
        model.add(v.tp * v.cp <= 2)

    def mixed(model: Any, v: Any) -> None:
        few = model.new_bool_var("few")
        model.add(sum(v.variables.blocks[0]) <= 14).only_enforce_if(few)
        model.add(few == 1)

    text = free.again(require="tp*cp <= 2")
    found = free.again(narrow)
    assert found.status == "optimal"
    assert found.step_time_s == pytest.approx(text.step_time_s, rel=1e-9)
    assert found.plan.inputs["constrain"] == "narrow" and "the function narrow" in str(found)
    model, cluster = load_model("llama3-8b", global_batch=64), load_cluster("h100x16")
    axes: dict[str, Any] = {"fix": {"tp": 2}, "most": {"vp": 1, "cp": 1}}
    small = solve(model, cluster, constrain=mixed, **axes)
    same = solve(model, cluster, require="layers[0] <= 14", **axes)
    assert small.status == same.status
    assert small.step_time_s == pytest.approx(same.step_time_s, rel=1e-9)


def test_mistakes_in_functions_are_told(free: layoutopt.Result) -> None:
    """A name that layouts lack and a chained comparison raise instead of being ignored."""
    with pytest.raises(AttributeError, match="no 'tpp'"):
        free.again(lambda model, v: model.add(v.tpp <= 2))
    with pytest.raises(TypeError, match="no truth value"):
        free.again(lambda model, v: model.add(1 <= v.tp <= 2))
    with pytest.raises(InputError, match="forbidden assignments lose solutions"):
        free.again(lambda model, v: model.add_forbidden_assignments([v.variables.row], [(0,)]))
    with pytest.raises(InputError, match="can only be limited from above"):
        free.again(lambda model, v: model.add(v.step_s >= 60))


def test_second_goal_within_some_percent(free: layoutopt.Result) -> None:
    """Memory among layouts up to 5% slower: less than the fastest's, proven, and within the stated distance."""
    found = free.again(then="memory")
    assert found.plan.then is not None and found.plan.then.proven and found.status == "optimal"
    lean = solve(free.workload, free.cluster, then="memory", within=0.05)
    second = lean.plan.then
    assert second is not None and second.proven and lean.estimate is not None and free.estimate is not None
    assert second.value == pytest.approx(lean.estimate.memory.peak_bytes / 1e9)
    assert second.value < second.first_value == pytest.approx(free.estimate.memory.peak_bytes / 1e9, rel=1e-6)
    assert lean.estimate.step_time_s <= free.estimate.step_time_s * 1.05 * (1 + 1e-6)
    assert "second goal memory" in str(lean)
    stated = lean.to_dict()["objective"]
    assert stated["name"] == "time" and stated["value"] == stated["step_time_s"]
    assert stated["then"]["name"] == "memory" and stated["then"]["value"] == second.value


def test_infeasible_requirements_are_named(free: layoutopt.Result) -> None:
    """What no layout meets is named, with what the fastest layout without it has."""
    none = free.again(require="days <= 50")
    assert none.status == "infeasible" and none.plan.infeasibility is not None
    found = none.plan.infeasibility
    assert found.binding == "requirement" and found.conflict == ("days <= 50",)
    assert found.message.startswith("no layout meets days <= 50; the fastest without takes ")
    assert "<= 50 does not hold" in found.message
    never = free.again(require="tp >= 16").plan.infeasibility
    assert never is not None and never.conflict == ("tp >= 16",)


def test_evaluate_agrees_with_solve(free: layoutopt.Result) -> None:
    """The layout that solve proves under a requirement meets it for evaluate; the free optimum does not."""
    found = free.again(require=("layers[0] <= 5", "peak_gb <= 75"))
    assert found.layout is not None and free.layout is not None
    required = ("layers[0] <= 5", "peak_gb <= 75")
    met = evaluate(free.workload, free.cluster, found.layout, require=required)
    assert met.verdict in ("fits", "borderline")
    missed = evaluate(free.workload, free.cluster, free.layout, require=required)
    assert missed.verdict == "invalid" and any("layers[0] <= 5" in reason for reason in missed.reasons)


REQUIRED = (
    "layers[0] <= 2",
    "layers[0] <= layers[-1]",
    "recomputed[0] + 0*tp <= 0",
    "peak_gb <= 60",
    "tp*cp <= 2",
)


@pytest.mark.parametrize("text", REQUIRED)
def test_verify_accepts_honest_plans_and_rejects_freed_ones(small: layoutopt.Result, text: str) -> None:
    """A plan under a requirement is verified; without its requirement, or with the free layout, it is rejected."""
    plan = small.again(require=text)
    stated = json.loads(json.dumps(plan.to_dict()))
    report = verify_plan(stated)
    assert report.accepted, [check for check in report.checks if not check.passed]
    assert f"what meets {text}" in report.restrictions
    freed = json.loads(json.dumps(stated))
    freed["inputs"]["space"].pop("require")
    assert not verify_plan(freed).accepted
    if small.layout == plan.layout:
        return
    forged = json.loads(json.dumps(stated))
    for key in ("layout", "estimate", "objective"):
        forged[key] = json.loads(json.dumps(small.to_dict()[key]))
    assert not verify_plan(forged).accepted


def test_a_rank_compared_with_itself(small: layoutopt.Result) -> None:
    """Where the first rank is the last, a requirement on both holds: the answer without it stays the answer."""
    assert small.layout is not None and small.layout.pp == 1
    assert small.again(require="layers[0] <= layers[-1]").step_time_s == small.step_time_s


def test_verify_says_what_it_cannot_know() -> None:
    """A function is not in the plan: verify says so instead of accepting."""
    model, cluster = load_model("llama3-8b", global_batch=64), load_cluster("h100x16")

    def few(model: Any, v: Any) -> None:
        model.add(v.layers[0] <= 2)

    report = verify_plan(json.loads(json.dumps(solve(model, cluster, constrain=few).to_dict())))
    assert not report.accepted
    assert any(
        "rests on the Python function few, which no plan holds" in check.reason for check in report.checks
    )


def test_second_goals_are_verified() -> None:
    """A plan with a second goal is verified as a whole; another value of it is rejected."""
    plan = solve(
        load_model("llama3-8b", global_batch=64), load_cluster("h100x16"), then="memory", within=0.05
    )
    stated = json.loads(json.dumps(plan.to_dict()))
    assert verify_plan(stated).accepted
    stated["objective"]["then"]["value"] *= 0.9
    assert not verify_plan(stated).accepted


def test_sweeps_start_from_layouts_that_meet_the_requirements() -> None:
    """A neighbour's layout that misses a requirement gives no step time to beat."""
    from layoutopt.optimizer.solve.inputs import Question
    from layoutopt.optimizer.sweep.work import warm_start_s

    model = load_model("llama3-8b", global_batch=64)
    neighbour = solve(model, load_cluster("h100x8"))
    assert neighbour.layout is not None
    question = Question(workload=model, cluster=load_cluster("h100x16"), options=neighbour.options)
    assert warm_start_s(question, neighbour.layout) < float("inf")
    space = replace(question.options.space, require=("step_s <= 1e-3",))
    required = replace(question, options=replace(question.options, space=space))
    assert warm_start_s(required, neighbour.layout) == float("inf")
