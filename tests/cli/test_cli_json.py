"""``--json``: keys that do not change, and nothing but JSON on stdout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import networkx as nx
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from click.testing import Result

SMALL = ("llama3-8b", "h100x8", "--batch", "64")

HONESTY = {"error_band", "choice"}
PLAN = {
    *HONESTY, "switches_worth", "comfortable", "open_ties",
    "status", "objective", "verdict", "reasons", "layout", "estimate", "alternatives", "infeasibility", "binds",
    "idle_gpus", "freer_gain", "warnings", "certificate", "solve_time_s", "inputs",
}  # fmt: skip
LAYOUT = {
    "tp", "sp", "cp", "pp", "vp", "ep", "etp", "dp", "zero", "hsdp_shard", "micro_batch", "micro_batches", "recompute",
    "schedule", "mesh_order", "precision", "switches", "stages",
}  # fmt: skip
ALTERNATIVE = {
    "step_time_s", "slower", "why", "layout", "estimate", "distinguishable", "measurement", "carried_by",
}  # fmt: skip
STAGE = {"rank", "chunk", "layers", "kinds", "recomputed", "embedding", "head", "mtp"}
ESTIMATE = {
    "step_time_s", "tokens_per_s_per_gpu", "tflops_per_gpu", "mfu_causal", "mfu_full", "hfu", "memory", "breakdown_s",
    "rank_time_s",
}  # fmt: skip
MEMORY = {"peak_bytes", "capacity_bytes", "reserved_bytes", "device_bytes", "stages"}
JUDGEMENT = {"verdict", "reasons", "broken", "warnings", "layout", "estimate", "collectives"}
SPACE = {"axes", "declared", "openable", "removed_by_rule", "remaining", "joint_assignments_log10", "empty"}
LEVEL = {"name", "gpus", "part_gpus", "blocks", "bytes_per_s", "oversubscription", "latency_s"}
COLLECTIVE = {"collective", "group", "stride", "size_bytes", "seconds", "bus_bytes_per_s", "members"}


def assert_layout(plain: dict[str, Any]) -> None:
    """Check the keys of a layout and the length of its stage list."""
    assert set(plain) | {"switches"} == LAYOUT  # an answer states its launch switches
    assert set(plain["recompute"]) == {"granularity", "modules"}
    assert len(plain["stages"]) == plain["pp"] * plain["vp"]
    assert all(set(stage) - {"recomputed_kinds"} == STAGE for stage in plain["stages"])


def assert_estimate(plain: dict[str, Any]) -> None:
    """Check the keys of an estimate, and that its breakdown sums to the step time."""
    assert set(plain) - {"interval_s"} == ESTIMATE  # explain prices without one
    assert set(plain["memory"]) - {"interval_bytes"} == MEMORY
    assert all(
        set(stage) == {"rank", "total_bytes", "components_bytes"} for stage in plain["memory"]["stages"]
    )
    assert sum(plain["breakdown_s"].values()) == pytest.approx(plain["step_time_s"], rel=1e-12)


def test_plan_keys(plan_text: str) -> None:
    """A plan has exactly the keys that users rely on."""
    plan = json.loads(plan_text)
    assert set(plan) | HONESTY == PLAN
    assert plan["status"] == "optimal"
    assert set(plan["objective"]) >= {"step_time_s", "bound_s", "gap"}
    assert plan["objective"]["bound_s"] <= plan["objective"]["step_time_s"]
    assert_layout(plan["layout"])
    assert_estimate(plan["estimate"])
    for other in plan["alternatives"]:
        assert set(other) == ALTERNATIVE
        assert_layout(other["layout"])


def test_alternatives_are_slower(ask: Callable[..., dict[str, Any]]) -> None:
    """Runners-up are slower than the answer and each says why."""
    plan = ask("solve", "llama3-70b", "h100-1024", "--top", "4")
    assert len(plan["alternatives"]) == 3
    for other in plan["alternatives"]:
        assert other["step_time_s"] >= plan["objective"]["step_time_s"]
        assert other["why"]


def test_top_reports_so_many_layouts(ask: Callable[..., dict[str, Any]]) -> None:
    """``--top`` lists layouts of different degrees however slow; without it runners-up are within 2%."""
    near, wide = ask("solve", *SMALL), ask("solve", *SMALL, "--top", "9")
    slower = [other["slower"] for other in wide["alternatives"]]
    assert len(slower) == 8
    assert slower == sorted(slower)
    assert slower[-1] > 0.02 >= max(other["slower"] for other in near["alternatives"])
    assert wide["objective"] == near["objective"]


def test_infeasible_plan(ask: Callable[..., dict[str, Any]]) -> None:
    """Where nothing fits the plan has the same keys but a band, no layout, and says why."""
    plan = ask("solve", "llama3-405b", "h100x64")
    assert set(plan) == PLAN - HONESTY
    assert (plan["status"], plan["layout"], plan["estimate"], plan["verdict"]) == (
        "infeasible",
        None,
        None,
        None,
    )
    why = plan["infeasibility"]
    assert set(why) == {
        "message",
        "binding",
        "least_bytes",
        "capacity_bytes",
        "fewest_gpus",
        "conflict",
        "suggestions",
        "cut_short",
    }
    assert plan["reasons"] == [why["message"]]
    assert why["least_bytes"] > why["capacity_bytes"]


def test_judgement_keys(ask: Callable[..., dict[str, Any]]) -> None:
    """A verdict has its keys; a broken rule brings the values that would do."""
    plain = ask("evaluate", "llama3-8b", "h100x8", "--batch", "64", "--layout", "tp=2,dp=4,recompute=full")
    assert set(plain) == JUDGEMENT
    assert_layout(plain["layout"])
    assert_estimate(plain["estimate"])
    broken = ask("evaluate", "llama3-8b", "h100x8", "--batch", "63", "--layout", "tp=2,dp=4,zero=1")
    assert broken["verdict"] == "invalid"
    assert broken["reasons"]
    assert set(broken["broken"][0]) == {
        "rule", "message", "formula", "reason", "factors", "valid", "axis",
    }  # fmt: skip


def test_plan_is_priced_again_the_same(
    ask: Callable[..., dict[str, Any]], plan_text: str, tmp_path: Path
) -> None:
    """``evaluate`` reads a plan's layout and gives it the price that ``solve`` gave."""
    file = tmp_path / "plan.json"
    file.write_text(plan_text)
    judged = ask("evaluate", *SMALL, "--layout", str(file))
    plan = json.loads(plan_text)
    assert judged["estimate"] == plan["estimate"]
    assert judged["layout"] == plan["layout"]


def test_space_keys(ask: Callable[..., dict[str, Any]]) -> None:
    """A space's books balance."""
    plain = ask("solve", *SMALL, "--space")
    assert set(plain) == SPACE
    assert all(set(axis) == {"axis", "range", "values"} for axis in plain["axes"])
    for size in ("degree_tuples", "tuples"):
        removed = sum(rule[size] for rule in plain["removed_by_rule"].values())
        assert plain["declared"][size] == plain["remaining"][size] + removed


def test_list_keys(ask: Callable[..., dict[str, Any]]) -> None:
    """Topology, catalog, verification and schema have their keys."""
    table = ask("topology", "show", "h100-16384")
    assert set(table) == {"cluster", "fabric", "gpus", "nodes", "levels", "collectives"}
    assert set(table["levels"][0]) == LEVEL
    assert set(table["collectives"][0]) == COLLECTIVE
    assert set(ask("catalog")) == {"models", "clusters", "gpus"}
    assert set(ask("catalog", "gpus")) == {"gpus"}
    assert ask("schema", "model")["$schema"].startswith("https://json-schema.org/")


def test_topology_graph(run: Callable[..., Result], tmp_path: Path) -> None:
    """``--graph`` writes the folded graph that prices are read from; a bad place is one line and exit code 2."""
    file = tmp_path / "graph.graphml"
    assert run("topology", "show", "h100-16384", "--graph", str(file)).exit_code == 0
    graph = nx.read_graphml(file)
    assert dict(graph.nodes(data="copies"))["gpu"] == 16384
    assert graph.edges["pod", "spine"]["bandwidth_bytes_per_s"] == pytest.approx(50e9 / 7)
    assert run("topology", "show", "h100x8", "--graph", str(tmp_path / "no" / "graph.graphml")).exit_code == 2


@pytest.mark.parametrize(("goal", "unit", "better"), [("gpus", "GPUs", 12 / 16), ("memory", "GB", 0.3)])
def test_second_goals(ask: Callable[..., dict[str, Any]], goal: str, unit: str, better: float) -> None:
    """``--then`` on 16 GPUs and a batch of 48: four GPUs less, or a quarter of the memory, proven within 40%."""
    question = ("llama3-8b", "h100x16", "--batch", "48", "--fix", "pp=1", "--fix", "micro_batch=1")
    plan = ask("solve", *question, "--allow-idle", "50%", "--within", "40%", "--then", goal)
    objective, then = plan["objective"], plan["objective"]["then"]
    assert (plan["status"], then["name"], then["unit"], then["proven"]) == ("within_gap", goal, unit, True)
    assert then["value"] <= better * then["first_value"]
    assert objective["bound_s"] < objective["step_time_s"] <= 1.4 * objective["bound_s"] * (1 + 1e-6)
    assert objective["gap"] == pytest.approx(1 - objective["bound_s"] / objective["step_time_s"])


def test_verify_keys(ask: Callable[..., dict[str, Any]], plan_text: str, tmp_path: Path) -> None:
    """A verification lists its checks."""
    file = tmp_path / "plan.json"
    file.write_text(plan_text)
    report = ask("verify", str(file))
    assert report["accepted"] is True
    assert set(report["checks"][0]) == {"name", "passed", "reason"}


def test_output_file_holds_the_plan(run: Callable[..., Result], tmp_path: Path) -> None:
    """-o writes what --json prints, with the usual permissions, and leaves no other file behind."""
    file = tmp_path / "plan.json"
    result = run("solve", *SMALL, "-o", str(file), "--json")
    written, printed = json.loads(file.read_text()), json.loads(result.stdout)
    assert written == printed
    assert [item.name for item in tmp_path.iterdir()] == ["plan.json"]
    assert file.stat().st_mode & 0o600 == 0o600
    assert result.stderr == f"wrote {file}\n"
    assert run("solve", *SMALL, "-o", str(file), "--quiet").stderr == ""


def test_failed_write_keeps_the_old_file(
    run: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan that cannot be written leaves the old file whole and no temporary one."""
    file = tmp_path / "plan.json"
    file.write_text("old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    result = run("solve", *SMALL, "-o", str(file))
    assert result.exit_code == 2
    assert "No space left on device" in result.stderr
    assert file.read_text() == "old"
    assert [item.name for item in tmp_path.iterdir()] == ["plan.json"]


def test_progress_stays_off_stdout(run: Callable[..., Result]) -> None:
    """With -v progress goes to stderr and stdout is still JSON."""
    result = run("solve", "llama3-70b", "h100-1024", "--json", "-v")
    assert json.loads(result.stdout)["status"] == "optimal"
    assert "best" in result.stderr
    assert "bound" in result.stderr
