"""Plain forms of plans: what verification reads, and strict JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from layoutopt.optimizer.report.json_forms import plan_to_plain
from layoutopt.optimizer.report.verification import verify_plan
from layoutopt.optimizer.solve.api import solve_layout
from layoutopt.optimizer.solve.plan import Plan, SolveOptions
from layoutopt.optimizer.solve.verify.plan_file import read_plan
from layoutopt.optimizer.space.options import SpaceOptions
from layoutopt.optimizer.specs.loading import load_cluster, load_workload, override_training

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture(scope="module")
def plan() -> Plan:
    """Return a small plan."""
    workload = override_training(load_workload("llama3-8b"), global_batch=64)
    return solve_layout(workload, load_cluster("h100x8"), SolveOptions())


def through_json(plain: object) -> Any:
    """Write and read strict JSON."""
    return json.loads(json.dumps(plain, allow_nan=False))


def test_verification_reads_what_is_written(plan: Plan) -> None:
    """Every number that verification looks at survives JSON exactly."""
    stated = read_plan(through_json(plan_to_plain(plan)))
    assert plan.estimate is not None
    assert plan.layout is not None
    assert stated.step_time_s == plan.estimate.step_time_s
    assert (stated.bound_s, stated.gap) == (plan.bound_s, plan.gap)
    assert stated.certificate == plan.certificate
    assert stated.inputs == plan.inputs
    assert stated.layout == plan.layout
    assert stated.alternatives == tuple(other.layout for other in plan.alternatives)


def test_emitted_plan_is_accepted(plan: Plan) -> None:
    """The proof that is written is accepted after a trip through JSON."""
    report = verify_plan(through_json(plan_to_plain(plan)))
    assert report.accepted, str(report)


TAMPERINGS: dict[str, Callable[[dict[str, Any]], object]] = {
    "faster": lambda plain: plain["objective"].update(step_time_s=plain["objective"]["step_time_s"] / 2),
    "other layout": lambda plain: plain["layout"].update(micro_batch=plain["layout"]["micro_batch"] * 2),
    "fewer tuples": lambda plain: plain["certificate"].update(tuples=plain["certificate"]["tuples"] - 1),
    "other inputs": lambda plain: plain["inputs"]["space"].update(allow_idle=0.5),
    "less memory": lambda plain: plain["estimate"]["memory"].update(peak_bytes=1.0),
}


@pytest.mark.parametrize("name", TAMPERINGS)
def test_tampered_plan_is_rejected(plan: Plan, name: str) -> None:
    """A plan whose JSON was changed in any part that matters is rejected."""
    plain = through_json(plan_to_plain(plan))
    TAMPERINGS[name](plain)
    assert not verify_plan(plain).accepted


def test_stopped_plan_without_a_layout(plan: Plan) -> None:
    """A search stopped before its first layout writes null where an answer would be, and can be read."""
    workload, cluster = load_workload("llama3-70b"), load_cluster("h100-1024")
    stopped = solve_layout(workload, cluster, SolveOptions(), should_stop=lambda: True)
    plain = through_json(plan_to_plain(stopped))
    assert plain["status"] == "stopped"
    assert plain["objective"]["step_time_s"] is None
    assert plain["layout"] is None
    assert read_plan(plain).layout is None


def test_infeasible_plan_is_accepted() -> None:
    """The claim that nothing fits is written, read and accepted too."""
    options = SolveOptions(space=SpaceOptions(fix={"zero": (0,)}, forbid={"recompute": ("full",)}))
    answer = solve_layout(load_workload("llama3-70b"), load_cluster("h100x8"), options)
    plain = through_json(plan_to_plain(answer))
    assert plain["status"] == "infeasible"
    report = verify_plan(plain)
    assert report.accepted, str(report)


def test_not_a_number_is_refused(plan: Plan) -> None:
    """A number that JSON can't hold is an error and not a silent null."""
    with pytest.raises(ValueError, match="not JSON compliant"):
        through_json(plan_to_plain(replace(plan, gap=float("nan"))))
