"""``layoutopt simulate``: a plan run as events."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from click.testing import Result

KEYS = {
    "schedule", "pp", "vp", "micro_batches", "simulated_step_s", "analytic_step_s", "deviation", "tolerance",
    "upper_bound", "bubble_share", "exposed_hops_s", "ranks",
}  # fmt: skip
PIPELINED = "tp=2,pp=2,vp=2,micro_batch=1,zero=1"


@pytest.fixture
def plan(tmp_path: Path, plan_text: str) -> Path:
    """A solved plan in a file."""
    path = tmp_path / "plan.json"
    path.write_text(plan_text, "utf-8")
    return path


def test_answer_and_trace(run: Callable[..., Result], plan: Path, tmp_path: Path) -> None:
    """A plan is simulated beside its estimate, and the trace has one compute and one communication track per stage."""
    trace = tmp_path / "trace.json"
    done = run("simulate", str(plan), "--layout", PIPELINED, "--trace", str(trace), "--json")
    assert done.exit_code == 0
    found: dict[str, Any] = json.loads(done.stdout)
    assert set(found) == KEYS
    assert [rank["rank"] for rank in found["ranks"]] == [0, 1]
    assert abs(found["deviation"]) < 0.06
    events = json.loads(trace.read_text("utf-8"))["traceEvents"]
    tracks = {(event["pid"], event["args"]["name"]) for event in events if event["name"] == "thread_name"}
    assert tracks == {(stage, name) for stage in (0, 1) for name in ("compute", "communication")}


def test_plan_of_its_own(ask: Callable[..., dict[str, Any]], plan: Path, plan_text: str) -> None:
    """Without a stated layout the plan's answer is run, under the plan's own inputs."""
    found = ask("simulate", str(plan))
    assert found["analytic_step_s"] == json.loads(plan_text)["estimate"]["step_time_s"]


def test_tables(run: Callable[..., Result], plan: Path) -> None:
    """People see both times, what the difference means, and memory over time."""
    shown = run("simulate", str(plan), "--layout", PIPELINED).stdout
    assert all(word in shown for word in ("simulated", "estimated", "memory over time", "idle"))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"layout": None}, "the plan found no layout"),
        ({"inputs": None}, "a plan is a mapping with inputs"),
    ],
)
def test_plans_without_answer(
    run: Callable[..., Result], plan: Path, change: dict[str, Any], says: str
) -> None:
    """A plan that can't be simulated is one line and exit code 2."""
    plan.write_text(json.dumps(json.loads(plan.read_text("utf-8")) | change), "utf-8")
    done = run("simulate", str(plan))
    assert done.exit_code == 2
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
