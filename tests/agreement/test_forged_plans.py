"""What solve writes is accepted, and nothing that was changed afterwards: false figures are rejected, none crashes."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
from checks.forgeries import Forgery, Others, Right, listed, of_infeasible, shared

from layoutopt.optimizer.evidence.honesty import assess
from layoutopt.optimizer.report.json_forms import plan_to_plain
from layoutopt.optimizer.report.verification import verify_plan, write_again
from layoutopt.optimizer.solve.api import freer_gain, solve_layout
from layoutopt.optimizer.solve.inputs import question_from_plain
from layoutopt.optimizer.solve.plan import SolveOptions
from layoutopt.optimizer.solve.verify.api import rebuild
from layoutopt.optimizer.solve.verify.claim import verify_plan as check_plan
from layoutopt.optimizer.space.options import SpaceOptions
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.loading import load_cluster, load_workload

if TYPE_CHECKING:
    from layoutopt.optimizer.solve.verify.rebuilt import Rebuilt
    from layoutopt.optimizer.solve.verify.report import VerifyReport
    from layoutopt.optimizer.specs.cluster import ClusterSpec

Json = dict[str, Any]

SMALL = SpaceOptions(max={"vp": 2, "cp": 1}, fix={"mesh_order": ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp")})
NO_ROOM = SpaceOptions(fix={"zero": (0,)}, forbid={"recompute": ("full",)})
QUESTIONS = {
    "dense": ("llama3-8b", "h100x16", SpaceOptions()),
    "moe": ("mixtral-8x7b", "h100x16", SMALL),
    "infeasible": ("llama3-70b", "h100x8", NO_ROOM),
}


def solved(
    model: str,
    cluster: str | ClusterSpec,
    options: SolveOptions | None = None,
    *,
    robust: bool = False,
    compared: bool = False,
    stop_after_s: float | None = None,
) -> Json:
    """Solve and write as the command line does."""
    options = options or SolveOptions()
    workload = load_workload(model)
    machine = load_cluster(cluster) if isinstance(cluster, str) else cluster
    end = None if stop_after_s is None else time.perf_counter() + stop_after_s
    plan = solve_layout(
        workload, machine, options, should_stop=lambda: end is not None and time.perf_counter() > end
    )
    if compared:
        plan = replace(plan, freer_gain=freer_gain(workload, machine, plan, options))
    honesty = assess(plan, workload, machine, options, robust=robust)
    written: Json = json.loads(json.dumps(plan_to_plain(plan, honesty)))
    return written


@dataclass(frozen=True)
class Case:
    """One honest plan and what it is compared with; rebuilt once for all changes that leave the inputs alone."""

    plan: Json
    rebuilt: Rebuilt

    def verify(self, plan: Json) -> VerifyReport:
        """Verify a plan as the command does."""
        if plan.get("inputs") == self.plan["inputs"]:
            return check_plan(plan, self.rebuilt)
        return verify_plan(plan)


@cache
def case(name: str) -> Case:
    """Solve one of the questions."""
    model, cluster, space = QUESTIONS[name]
    plan = solved(model, cluster, SolveOptions(space=space, near=0.2))
    return Case(plan, rebuild(question_from_plain(plan["inputs"]), write_again))


@cache
def others() -> Others:
    """Solve the dense question with twice the memory, and with a restricted space."""
    cluster = load_cluster("h100x16")
    roomy = replace(cluster, gpu=replace(cluster.gpu, memory_bytes=2 * cluster.gpu.memory_bytes))
    fixed = SolveOptions(space=SpaceOptions(fix={"tp": (8,)}))
    return Others(solved("llama3-8b", roomy), solved("llama3-8b", cluster, fixed))


def table(name: str) -> dict[str, Forgery]:
    """Return the forgeries of a question."""
    if name == "infeasible":
        return of_infeasible()
    return shared() | (listed(others()) if name == "dense" else {})


NAMES = [
    *(("dense", forgery) for forgery in {**listed(Others()), **shared()}),
    *(("moe", forgery) for forgery in shared()),
    *(("infeasible", forgery) for forgery in of_infeasible()),
]


def test_there_are_enough() -> None:
    """All recorded forgeries are among them, but for two that are honest plans of other inputs."""
    assert len(listed(Others())) == 57
    assert len(NAMES) >= 120


@pytest.mark.parametrize(("question", "name"), NAMES)
def test_forgery(question: str, name: str) -> None:
    """Every false plan is rejected with a reason on one line, every unreadable one is bad input, none crashes."""
    honest = case(question)
    forgery = table(question)[name]
    plan = forgery.made_of(honest.plan)
    if forgery.right is Right.UNREADABLE:
        with pytest.raises(InputError) as error:
            honest.verify(plan)
        lines = [str(problem) for problem in error.value.problems]
    else:
        report = honest.verify(plan)
        assert report.accepted is (forgery.right is Right.ACCEPTED), str(report)
        lines = [check.reason for check in report.failures]
        assert bool(lines) is not report.accepted
    assert all(line and "\n" not in line and len(line) < 1000 for line in lines), lines


@pytest.mark.parametrize("question", QUESTIONS)
def test_honest_plan(question: str) -> None:
    """The plan itself is accepted, and all of it was checked but for the time that it took."""
    honest = case(question)
    report = honest.verify(honest.plan)
    assert report.accepted, str(report)
    assert [text.split()[0] for text in report.not_checked] == ["solve_time_s"]
