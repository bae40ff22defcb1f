"""What a verification says it rests on, and what it reads and repeats of a plan, each case written out."""

from __future__ import annotations

import json
from dataclasses import replace
from math import inf
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from layoutopt.optimizer.cost.factory import CostKind
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.report.json_forms import plan_to_plain
from layoutopt.optimizer.solve.api import solve_layout
from layoutopt.optimizer.solve.certificate import Status
from layoutopt.optimizer.solve.inputs import Question
from layoutopt.optimizer.solve.plan import SolveOptions
from layoutopt.optimizer.solve.verify.api import (
    _bad_inputs,
    _listed,
    _of_space,
    _restated,
    rebuild,
    restrictions,
    verify_written,
)
from layoutopt.optimizer.solve.verify.plan_file import read_plan
from layoutopt.optimizer.solve.verify.rebuilt import estimated_tuples
from layoutopt.optimizer.solve.verify.report import Check, VerifyReport
from layoutopt.optimizer.space.options import SpaceOptions
from layoutopt.optimizer.specs.errors import InputError, input_error
from layoutopt.optimizer.specs.loading import load_cluster, load_workload, override_training

WORKLOAD = override_training(load_workload("llama3-8b"), global_batch=64, sequence_length=4096)
CLUSTER = load_cluster("h100x8")
SMALL = SpaceOptions(fix={"tp": (8,), "pp": (1,), "cp": (1,), "micro_batch": (1,)})
TRAINER = "what megatron can launch"


def asked(**options: Any) -> Question:
    """Llama 3 8B on a node."""
    return Question(workload=WORKLOAD, cluster=CLUSTER, options=SolveOptions(**options))


def test_values_of_a_restriction_on_one_line() -> None:
    """Alternatives joined by or, parts of one by +."""
    assert _listed(3) == "3"
    assert _listed([1, 2]) == "1 or 2"
    assert _listed([["full", "mlp"], "none"]) == "full+mlp or none"


def test_restrictions_of_the_space_one_by_one() -> None:
    """What is asked as by default is left out; every limit has its own words."""
    default: dict[str, Any] = {
        "fix": {},
        "forbid": {},
        "max": {},
        "min": {},
        "run": {},
        "software": None,
        "allow_idle": None,
    }
    changed: dict[str, Any] = {
        "fix": {"tp": [1, 2]}, "forbid": {"zero": [3]}, "max": {"pp": 4}, "min": {"dp": 2}, "run": {"idle_gpus": True},
        "software": "core 0.15", "allow_idle": None, "require": ["tp <= 4", "cp == 1"], "allow": ["offload"],
    }  # fmt: skip
    assert list(_of_space(changed, default)) == [
        "tp = 1 or 2", "zero other than 3", "pp at most 4", "dp at least 2", "idle_gpus = True", "software: core 0.15",
        "what meets tp <= 4", "what meets cp == 1", "allow: offload",
    ]  # fmt: skip
    assert list(_of_space(default, default)) == []


@pytest.mark.parametrize(("options", "words"), [
    ({}, ()), ({"framework": Framework.ANY}, ()),
    ({"gap": 0.01}, ("a gap of at most 1.000%: that near the best was asked for",)),
    ({"cost": CostKind.SIMPLE}, ("prices of the simple cost model",)),
    ({"top": 1200}, ("at most 1,200 layouts reported, none more than 2.000% slower than the first",)),
    ({"near": None}, ("at most 3 layouts reported",)), ({"minimize": "memory"}, ("the best in memory, not the fastest",)),
    ({"minimize": "expected", "samples": ({}, {})}, ("the best in expected over 2 sets of constants, not the fastest",)),
    ({"reserve": 0.125}, ("layouts that leave 12.500% of usable memory free",)),
    ({"then": "memory"}, ("the best in memory of what is as fast as the fastest",)),
    ({"then": "memory", "within": 0.02}, ("the best in memory of what is at most 2.000% slower than the fastest",)),
    ({"constrain": restrictions}, ("what the Python function restrictions allows",)),
    ({"space": SpaceOptions(max={"tp": 4})}, ("tp at most 4",)),
])  # fmt: skip
def test_what_a_claim_is_restricted_to(options: dict[str, Any], words: tuple[str, ...]) -> None:
    """The trainer always; all else where it differs from what is asked by default."""
    first, *rest = restrictions(asked(**options))
    assert first == (TRAINER if "framework" not in options else "what any can launch")
    assert tuple(rest) == words


def test_names_that_mean_something_else() -> None:
    """A changed model or cluster of a built-in name is told with what differs, at most four of it."""
    calibrated = replace(CLUSTER, calibration={"gemm_cap.hopper": 0.5})
    told = restrictions(Question(workload=WORKLOAD, cluster=calibrated, options=SolveOptions()))
    assert told == (TRAINER, "the cluster's own constant gemm_cap.hopper = 0.5")
    smaller = replace(CLUSTER, reserve_bytes=CLUSTER.reserve_bytes + 1e9)
    told = restrictions(Question(workload=WORKLOAD, cluster=smaller, options=SolveOptions()))
    assert told == (TRAINER, "a cluster that is not the built-in h100x8: reserve_bytes")
    own = replace(smaller, name="mine")
    assert restrictions(Question(workload=WORKLOAD, cluster=own, options=SolveOptions())) == (TRAINER,)
    words = "a model that is not the built-in llama3-8b: hidden, heads, kv_heads, vocab"
    four = {"hidden": 64, "heads": 3, "kv_heads": 1, "vocab": 7}
    assert named(**four) == words
    assert named(**four, tied_embeddings=True) == f"{words} and more"


def named(**changes: Any) -> str:
    """What is told of a model of a built-in name with other numbers."""
    other = replace(WORKLOAD, model=replace(WORKLOAD.model, **changes))
    _, words = restrictions(Question(workload=other, cluster=CLUSTER, options=SolveOptions()))
    return words


def test_arithmetic_of_impossible_inputs_is_bad_input() -> None:
    """One line with the kind of the error; what is named already stays as it is, and an interruption is none."""
    with (
        pytest.raises(InputError, match="inputs that no plan has: ValueError: two lines") as error,
        _bad_inputs("a.json"),
    ):
        raise ValueError("two\n  lines")
    assert error.value.problems[0].file == "a.json" and error.value.problems[0].key == "inputs"
    with pytest.raises(InputError, match="own words"), _bad_inputs(""):
        raise input_error("own words", key="tp")
    with pytest.raises(KeyboardInterrupt), _bad_inputs(""):
        raise KeyboardInterrupt
    with _bad_inputs(""):
        assert np.float64(1.0) / np.float64(0.0) == inf
    nothing: tuple[object, ...] = ([], {}, {"inputs": []})
    for plain in nothing:
        with pytest.raises(InputError, match="a plan is a mapping with inputs"):
            verify_written(plain, None)  # type: ignore[arg-type]


def test_what_a_plan_is_compared_with() -> None:
    """The search's own options, one more place where a second goal joins, and what restates leaves out."""
    question = asked(space=SMALL, top=5, near=0.01, workers=2, warm_start_s=9.0, gap=0.125)
    rebuilt = rebuild(
        question, lambda plan, asked_, stated: {"status": str(plan.status), "reasons": 1, "open_ties": 2}
    )
    assert (rebuilt.top, rebuilt.near, rebuilt.warm_start_s, rebuilt.gap_target) == (5, 0.01, 9.0, 0.125)
    assert not rebuilt.repeatable and rebuilt.objective == ""
    assert rebuilt.restrictions == restrictions(question) and rebuilt.inputs == question.to_plain()
    nearest = rebuild(asked(space=SMALL, then="memory"), lambda *_: {})
    assert (nearest.top, nearest.repeatable, nearest.objective) == (4, True, "")
    second = rebuild(asked(space=SMALL, minimize="memory"), lambda *_: {"objective": {"a": 1}})
    assert (second.top, second.objective) == (3, "memory")
    stated: Any = SimpleNamespace(
        status="infeasible", plain={}, freer_gain=0.5, certificate=SimpleNamespace(bound_s=1.5, gap=None)
    )
    assert rebuilt.restate is not None and second.restate is not None
    assert rebuilt.restate(stated, ()) == {"status": "infeasible"}
    assert second.restate(stated, ()) == {"objective": {}}
    stated.status = "optimal"
    assert rebuilt.restate(stated, ()) == {"status": "optimal", "reasons": 1}
    stated.status = "a lie"
    again = _restated(question, question.costed_space(), stated, ())
    assert (again.status, again.freer_gain, again.layout) == (Status.STOPPED, 0.5, None)
    assert rebuilt.freer is not None
    assert len(rebuilt.freer().degrees) >= len(question.costed_space().degrees)


class Rows(list[int]):
    """Degree rows of which only the number counts."""

    def take(self, index: Any) -> Any:
        """The rows by their places."""
        return index


def test_tuples_are_estimated_by_their_share() -> None:
    """Rows of one, two and three tuples: counted where they are few, by 256 of them where there are more."""

    def space(rows: int) -> Any:
        return SimpleNamespace(
            degrees=Rows(range(rows)), expand=lambda index: (np.repeat(index, 1 + index % 3), None)
        )

    assert [estimated_tuples(space(rows)) for rows in (0, 1, 6, 256)] == [0.0, 1.0, 12.0, 511.0]
    assert estimated_tuples(space(3 * 1024)) == pytest.approx(2 * 3 * 1024, rel=0.1)


def test_a_plan_is_read_as_it_was_written() -> None:
    """Layouts, numbers and the certificate; where nothing fits there is no layout, and its numbers are not asked for."""
    options = SolveOptions(space=SMALL)
    plan = solve_layout(WORKLOAD, CLUSTER, options)
    plain: Any = json.loads(json.dumps(plan_to_plain(plan)))
    read = read_plan(plain)
    assert plan.estimate is not None
    assert (read.status, read.step_time_s, read.gap) == ("optimal", plan.estimate.step_time_s, plan.gap)
    assert (read.layout, read.bound_s) == (plan.layout, plan.bound_s)
    assert read.alternatives == tuple(other.layout for other in plan.alternatives)
    assert (
        read.certificate == plan.certificate and read.record is plain["certificate"] and read.plain is plain
    )
    del plain["layout"]
    plain["objective"] = {"step_time_s": "much", "bound_s": None, "gap": "large"}
    bare = read_plan(plain)
    assert (bare.layout, bare.step_time_s, bare.gap, bare.bound_s) == (None, None, None, None)
    plain["alternatives"] = [{"layout": {"tp": "eight"}}]
    plain["solve_time_s"] = "long"
    with pytest.raises(InputError) as error:
        read_plan(plain, file="plan.json")
    assert {problem.key for problem in error.value.problems} >= {"alternatives[0].layout.tp", "solve_time_s"}
    assert {problem.file for problem in error.value.problems} == {"plan.json"}


def test_a_report_is_a_line_for_each_check() -> None:
    """Passed and failed ones, then what the claim rests on and what was not rebuilt, the verdict last."""
    checks = (
        Check(name="bound", passed=True, reason="at 2 s"),
        Check(name="sum", passed=False, reason="6, not 7"),
    )
    numbers: dict[str, Any] = {
        "degree_rows": 1, "tuples": 2, "even_layouts": 3, "solved_exactly": 4, "rows_by_optimistic_terms": 5, "seconds": 6.0,
    }  # fmt: skip
    report = VerifyReport(
        accepted=False, checks=checks, not_checked=("solve_time_s",), restrictions=("tp = 1",), **numbers
    )
    assert str(report).splitlines() == [
        "ok   bound: at 2 s", "FAIL sum: 6, not 7", "restricted to tp = 1", "not checked: solve_time_s", "rejected",
    ]  # fmt: skip
    assert report.failures == checks[1:]
    assert str(replace(report, accepted=True)).endswith("\naccepted")
    assert report.to_plain() == {
        "accepted": False, "checks": tuple(vars_of(check) for check in checks), "not_checked": ("solve_time_s",),
        "restrictions": ("tp = 1",), **numbers,
    }  # fmt: skip


def vars_of(check: Check) -> dict[str, Any]:
    """A check as plain data."""
    return {"name": check.name, "passed": check.passed, "reason": check.reason}
