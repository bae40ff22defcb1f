"""Verification accepts what exhaustive enumeration finds, and nothing that was changed afterwards."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from layoutopt.optimizer.solve.certificate import Certificate, inputs_digest, table_digest
from layoutopt.optimizer.solve.verify.claim import COUNTS, verify_plan
from layoutopt.optimizer.solve.verify.plain_reader import PlainReader
from layoutopt.optimizer.specs.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    Plan = dict[str, Any]
    Solved = tuple[Any, list[Any]]


def test_accepts_the_enumerated_optimum(kit: Any, solved: Solved) -> None:
    """The fastest of all layouts is accepted, after every tuple was priced."""
    space, choices = solved
    report = verify_plan(kit.plan(space, choices), kit.rebuilt(space))
    assert report.accepted, str(report)
    assert (report.degree_rows, report.tuples) == (6, 48)
    assert report.even_layouts > 40
    assert len(report.checks) == 12
    unread = {text.split()[0] for text in report.not_checked}
    assert {f"certificate.{name}" for name in COUNTS} < unread and not unread & {"objective", "estimate"}
    assert json.dumps(report.to_plain())


def test_rejects_the_second_best(kit: Any, solved: Solved) -> None:
    """A consistent plan that answers with a slower layout is refuted by the faster one."""
    space, choices = solved
    slower = next(
        i for i, choice in enumerate(choices) if choice.step_time_s > choices[0].step_time_s * 1.00001
    )
    report = verify_plan(kit.plan(space, choices[slower:]), kit.rebuilt(space))
    assert [check.name for check in report.failures] == ["no faster layout"]
    assert "takes" in report.failures[0].reason


def test_accepts_less_than_optimal_with_its_gap(kit: Any, solved: Solved) -> None:
    """A stopped plan with a slower layout is accepted with the true optimum as bound, not a higher one."""
    space, choices = solved
    best_s = choices[0].step_time_s
    slower = next(i for i, choice in enumerate(choices) if choice.step_time_s > best_s * 1.01)
    assert verify_plan(kit.plan(space, choices[slower:], bound_s=best_s), kit.rebuilt(space)).accepted
    report = verify_plan(kit.plan(space, choices[slower:], bound_s=best_s * 1.001), kit.rebuilt(space))
    assert [check.name for check in report.failures] == ["no faster layout"]


def test_optimistic_terms_give_the_same_verdict(kit: Any, solved: Solved) -> None:
    """Excluding whole degree rows first accepts and rejects the same plans with fewer tuples priced."""
    space, choices = solved
    few = verify_plan(kit.plan(space, choices), kit.rebuilt(space), max_tuples=1, audit_rows=0)
    assert few.accepted, str(few)
    assert few.tuples == 8 * (6 - few.rows_by_optimistic_terms)
    slower = next(
        i for i, choice in enumerate(choices) if choice.step_time_s > choices[0].step_time_s * 1.00001
    )
    assert not verify_plan(kit.plan(space, choices[slower:]), kit.rebuilt(space), max_tuples=1).accepted


def test_infeasible(kit: Any) -> None:
    """That nothing fits is accepted where it is so, and refuted with a layout that fits where it isn't."""
    space = kit.space(tight=0.1)
    assert kit.layouts(space) == []
    report = verify_plan(kit.infeasible_plan(space), kit.rebuilt(space))
    assert report.accepted, str(report)
    roomy = kit.space()
    report = verify_plan(kit.infeasible_plan(roomy), kit.rebuilt(roomy))
    assert [check.name for check in report.failures] == ["no faster layout"]


def put(path: str, value: object) -> Callable[[Plan], None]:
    """A change of one value; a callable makes the new value from the old one."""

    def change(plan: Plan) -> None:
        *parents, last = path.split("/")
        target: Any = plan
        for part in parents:
            target = target[int(part) if isinstance(target, list) else part]
        key = int(last) if isinstance(target, list) else last
        target[key] = value(target[key]) if callable(value) else value

    return change


def both(*changes: Callable[[Plan], None]) -> Callable[[Plan], None]:
    """Several changes at once, as someone would who knows what is compared."""

    def change(plan: Plan) -> None:
        for each in changes:
            each(plan)

    return change


def faster(time: float) -> float:
    """One part in a thousand less."""
    return time * 0.999


def digest_inputs(plan: Plan) -> None:
    """The digest that follows from the inputs."""
    plan["certificate"]["inputs_sha256"] = inputs_digest(plan["inputs"])


def lower_bound(plan: Plan) -> None:
    """A bound 10% lower, with the gap that follows, everywhere."""
    bound_s = plan["objective"]["step_time_s"] * 0.9
    plan["objective"] |= {"bound_s": bound_s, "gap": 0.1}
    plan["certificate"] |= {"bound_s": bound_s, "gap": 0.1}


def raise_bound(plan: Plan) -> None:
    """A bound above the answer."""
    bound_s = plan["objective"]["step_time_s"] * 1.01
    plan["objective"]["bound_s"] = plan["certificate"]["bound_s"] = bound_s


def move_block(plan: Plan) -> None:
    """One layer from the first stage to the second, or swapped ends where there is one stage."""
    stages = plan["layout"]["stages"]
    for stage, step in ((stages[0], -1), (stages[1], 1)):
        stage["layers"] += step
        stage["kinds"] = {"kind0": stage["layers"]}


def cancel_in_breakdown(plan: Plan) -> None:
    """Two parts changed so that the sum stays."""
    parts = plan["estimate"]["breakdown_s"]
    parts["compute"] += 0.25
    parts["rest"] -= 0.25


TAMPERED: dict[str, tuple[Callable[[Plan], object], str]] = {
    "step time": (put("objective/step_time_s", faster), "step time"),
    "step time everywhere": (
        both(
            put("objective/step_time_s", faster),
            put("objective/bound_s", faster),
            put("certificate/bound_s", faster),
            put("estimate/step_time_s", faster),
        ),
        "step time",
    ),
    "estimate": (put("estimate/step_time_s", faster), "step time"),
    "dropped tuple: rows": (put("certificate/degree_tuples", lambda n: n - 1), "tuple table"),
    "dropped tuple: hash": (put("certificate/table_sha256", "0" * 64), "tuple table"),
    "dropped tuple: count": (
        both(
            put("certificate/tuples", lambda n: n - 1),
            put("certificate/removed_by_bound", lambda n: n - 1),
        ),
        "counts",
    ),
    "smaller joint space": (put("certificate/joint_assignments", lambda n: n - 1), "counts"),
    "parts of the tuples": (put("certificate/solved", lambda n: n + 1), "counts"),
    "huge number of solved tuples": (put("certificate/solved", 10**400), "counts"),
    "huge joint space": (put("certificate/joint_assignments", 10**400), "counts"),
    "rules": (put("certificate/removed_by_rule", {}), "counts"),
    "inputs": (put("inputs/cluster/gpus", 16), "inputs"),
    "inputs and their digest": (
        both(
            put("inputs/cluster/gpus", 16),
            digest_inputs,
        ),
        "inputs",
    ),
    "cost model": (put("certificate/versions/cost_model", "fedcba"), "cost model"),
    "zero": (put("layout/zero", lambda z: 1 - z), "step time"),
    "unknown degree": (put("layout/tp", 17), "layout"),
    "unknown order": (put("layout/mesh_order", "pp-dp-ep-cp-tp"), "layout"),
    "stage too many": (put("layout/stages", lambda s: [*s, s[-1]]), "layout"),
    "stage missing": (put("layout/stages", lambda s: s[:-1]), "layout"),
    "layer missing": (put("layout/stages/0/layers", lambda n: n - 1), "layout"),
    "rank": (put("layout/stages/0/rank", 5), "layout"),
    "embedding": (put("layout/stages/0/embedding", False), "layout"),
    "recomputed too much": (put("layout/stages/0/recomputed", 99), "layout"),
    "bound lowered": (lower_bound, "claim"),
    "bound raised": (raise_bound, "claim"),
    "bound of the objective": (put("objective/bound_s", faster), "claim"),
    "gap": (put("objective/gap", 0.01), "claim"),
    "status stopped": (put("status", "stopped"), "claim"),
    "status infeasible": (put("status", "infeasible"), "claim"),
    "status unknown": (put("status", "perfect"), "claim"),
    "solver status": (put("certificate/solver_status", "FEASIBLE"), "claim"),
    "rounding": (put("certificate/rounding_s", 0.5), "claim"),
    "no breakdown": (lambda plan: plan["estimate"].pop("breakdown_s"), "breakdown"),
    "breakdown of nothing": (put("estimate/breakdown_s/compute", None), "breakdown"),
    "breakdown": (put("estimate/breakdown_s/compute", lambda s: s * 1.01), "breakdown"),
    "breakdown that cancels": (cancel_in_breakdown, "breakdown"),
    "peak memory": (put("estimate/memory/peak_bytes", lambda b: b * 0.9), "memory"),
    "capacity": (put("estimate/memory/capacity_bytes", lambda b: b * 2), "memory"),
    "alternative's time": (put("alternatives/0/step_time_s", lambda s: s * 1.01), "alternatives"),
    "alternative's layout": (put("alternatives/1/layout/tp", 17), "alternatives"),
}


@pytest.mark.parametrize("name", TAMPERED)
def test_rejects_tampering(kit: Any, free: Solved, name: str) -> None:
    """Each change is rejected by the check that is meant for it, and the search is not run in vain."""
    space, choices = free
    plan = copy.deepcopy(kit.plan(space, choices))
    change, check = TAMPERED[name]
    change(plan)
    report = verify_plan(plan, kit.rebuilt(space))
    assert not report.accepted
    assert check in [failure.name for failure in report.failures], str(report)
    assert report.tuples == 0


def test_rejects_moved_block(kit: Any) -> None:
    """Stages of another split are priced as what they are."""
    space = kit.space(seed=7)
    choices = [choice for choice in kit.layouts(space) if len(choice.sizes) > 1 and choice.sizes[0] > 1]
    choices = [choice for choice in choices if not choice.recomputed.any()]
    plan = kit.plan(space, choices, bound_s=0.5)
    assert verify_plan(plan, kit.rebuilt(space)).accepted
    move_block(plan)
    assert {"step time", "memory"} & {check.name for check in verify_plan(plan, kit.rebuilt(space)).failures}


def test_rejects_faster_alternative(kit: Any, free: Solved) -> None:
    """A plan whose own alternative is faster contradicts itself."""
    space, choices = free
    slower = next(i for i, choice in enumerate(choices) if choice.step_time_s > choices[0].step_time_s * 1.01)
    plan = kit.plan(space, [choices[slower], *choices[:2]], bound_s=choices[0].step_time_s)
    report = verify_plan(plan, kit.rebuilt(space))
    assert "alternatives" in [failure.name for failure in report.failures]


def test_rejects_layout_that_does_not_fit(kit: Any, free: Solved) -> None:
    """A consistent plan for a smaller memory than the cluster's is rejected."""
    space, choices = free
    smaller = replace(space, tight=0.2)
    report = verify_plan(kit.plan(space, choices), kit.rebuilt(smaller))
    assert "memory" in [failure.name for failure in report.failures]


def test_rejects_dropped_row(kit: Any, free: Solved) -> None:
    """A plan made from a table without one row has another digest, also if that row is the best one."""
    space, choices = free
    kept = space.degrees.take(np.flatnonzero(space.degrees.tp != choices[0].layout.tp[0]))
    thinner = replace(space)
    thinner.__dict__["degrees"] = kept
    plan = kit.plan(thinner, kit.layouts(thinner))
    assert verify_plan(plan, kit.rebuilt(thinner)).accepted
    report = verify_plan(plan, kit.rebuilt(space))
    assert "tuple table" in [failure.name for failure in report.failures]
    plan["certificate"] |= {"table_sha256": table_digest(space), "degree_tuples": 6}
    assert "counts" in [failure.name for failure in verify_plan(plan, kit.rebuilt(space)).failures]
    plan["certificate"] |= kit.plan(space, choices)["certificate"] | {
        key: plan["certificate"][key] for key in ("bound_s", "gap")
    }
    plan["certificate"] = Certificate.read(PlainReader(plan["certificate"])).sealed().to_plain()
    assert [failure.name for failure in verify_plan(plan, kit.rebuilt(space)).failures] == [
        "no faster layout"
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda plan: plan.pop("status"), "status: missing"),
        (lambda plan: plan.pop("objective"), "objective.step_time_s: missing"),
        (lambda plan: plan.pop("certificate"), "certificate: missing"),
        (lambda plan: plan.pop("inputs"), "inputs: missing"),
        (lambda plan: plan.pop("alternatives"), "alternatives: missing"),
        (
            put("objective/step_time_s", "fast"),
            "objective.step_time_s: 'fast' is not valid (a finite number)",
        ),
        (put("layout/tp", 2.5), "layout.tp: 2.5 is not valid"),
        (put("layout/recompute/granularity", "some"), "layout.recompute.granularity: 'some' is not valid"),
        (put("layout/recompute/modules", [1]), "layout.recompute.modules[0]: 1 is not valid"),
        (put("layout/stages/0", 3), "layout.stages[0]: 3 is not valid (an object)"),
        (put("layout/stages/0/kinds", {"kind0": "x"}), "layout.stages[0].kinds.kind0: 'x' is not valid"),
        (put("layout/sp", 1), "layout.sp: 1 is not valid (true or false)"),
        (put("objective/bound_s", 10**400), "objective.bound_s"),
        (put("alternatives/0/layout", None), "alternatives[0].layout: nothing is not valid (an object)"),
    ],
)
def test_malformed_plan(kit: Any, free: Solved, change: Callable[[Plan], object], message: str) -> None:
    """A plan that can't be read raises one line per problem with file and key."""
    space, choices = free
    plan = kit.plan(space, choices)
    change(plan)
    with pytest.raises(InputError) as error:
        verify_plan(plan, kit.rebuilt(space), file="plan.json")
    assert f"plan.json: {message}" in str(error.value)


@pytest.mark.parametrize("plan", [None, [], "plan", 3])
def test_not_a_plan(kit: Any, plan: object, free: Solved) -> None:
    """Anything but an object is bad input."""
    with pytest.raises(InputError, match="not a JSON object"):
        verify_plan(plan, kit.rebuilt(free[0]))
