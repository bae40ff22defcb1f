"""``layoutopt diagnose PLAN PROFILE...``: what it prints of a job with a fault, as tables and JSON, and bad input."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from checks.traced_files import write_traces
from checks.traced_plan import job_of
from checks.traced_run import Run
from click.testing import CliRunner, Result

from layoutopt import diagnose
from layoutopt.cli import main
from layoutopt.optimizer.ask.planned import load_planned

if TYPE_CHECKING:
    from pathlib import Path


def run(*words: str) -> Result:
    """Run the command line."""
    return CliRunner(env={"COLUMNS": "100"}).invoke(main, list(words))


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a plan and the folder of its traces, in which rank 5 is slow."""
    folder = tmp_path_factory.mktemp("job")
    plan, traces = folder / "plan.json", folder / "traces"
    question = ("solve", "llama3-8b", "h100x8", "--batch", "8", "--fix", "tp=2", "--fix", "pp=2")
    assert run(*question, "-q", "-o", str(plan)).exit_code == 0
    planned = load_planned(plan)
    traces.mkdir()
    job = job_of(planned.cost, planned.layout, rank_factor={5: 1.2}, noise=0.03)
    write_traces(Run(replace(job, steps=2)), traces)
    return plan, traces


def test_tables(job: tuple[Path, Path]) -> None:
    """Both steps, the three questions, the cause, terms, traffic and ranks."""
    result = run("diagnose", *map(str, job))
    assert result.exit_code == 0, result.stderr
    first, *lines = result.stdout.splitlines()
    assert first.startswith("measured ") and "predicted" in first and "8 ranks, 2 steps" in first
    assert [line.split()[0] for line in lines[:3]] == ["most", "traffic", "ranks"]
    assert "1. rank 5 is " in result.stdout
    for heading in ("Causes", "Step", "Traffic", "Ranks"):
        assert any(line.startswith(heading) for line in lines), heading
    assert max(map(len, lines)) <= 100
    assert "norms" in run("diagnose", *map(str, job), "-v").stdout


def test_json(job: tuple[Path, Path]) -> None:
    """Terms sum to both steps, parts to their terms, and a rank's breakdown to its step."""
    found: dict[str, Any] = json.loads(run("diagnose", *map(str, job), "--json").stdout)
    for kind in ("predicted", "measured"):
        step_s = found[f"{kind}_step_s"]
        assert sum(term[f"{kind}_s"] for term in found["terms"]) == pytest.approx(step_s)
        assert sum(term[f"{kind}_s"] for term in found["parts"]) == pytest.approx(step_s)
    assert found["causes"][0]["kind"] == "slow_rank" and found["causes"][0]["about"] == "rank 5"
    for rank in found["ranks"]:
        assert sum(rank["breakdown_s"].values()) == pytest.approx(rank["step_s"])
    assert len(found["speeds"]) == 8 and max(found["speeds"], key=lambda one: one["ratio"])["rank"] == 5


def test_python_call(job: tuple[Path, Path]) -> None:
    """The call from Python says the same."""
    found = diagnose(job[0], job[1])
    assert found.causes[0].about == "rank 5" and "rank 5" in repr(found) and "Causes" in str(found)
    assert found.to_dict()["causes"][0]["kind"] == "slow_rank"


def test_one_rank_of_several(job: tuple[Path, Path]) -> None:
    """A single rank's profile is enough for its terms; nothing tells a slow rank then, nor what calls with others waited."""
    found = json.loads(run("diagnose", str(job[0]), str(job[1] / "rank0_trace.json.gz"), "--json").stdout)
    assert len(found["ranks"]) == 1 and found["answers"][-2].startswith("ranks: one profile")
    assert found["answers"][-1].startswith("missing: no profile of ranks 1-7")


SPEED = ("llama3-8b", "--gpu", "h100", "--gpus", "8", "--tokens-per-s", "80k")


@pytest.mark.parametrize("option", [("--axis", "all_reduce=dp"), ("--steps", "2"), ("--plan", "plan.json")])
def test_what_is_said_of_profiles_needs_some(option: tuple[str, str], tmp_path: Path) -> None:
    """``calibrate`` with runs alone does not ignore what is said of profiles."""
    runs = str(tmp_path / "runs.csv")
    result = run("calibrate", runs, "--cluster", "h100x8", "-o", str(tmp_path / "c.yaml"), *option)
    assert result.exit_code == 2 and len(result.stderr.splitlines()) == 1
    assert f"{option[0]}: is used beside profiles alone" in result.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("PLAN",), "PROFILE: nothing to diagnose"),
        (("PLAN", "nowhere.json"), "nowhere.json: cannot be read: No such file"),
        (("PLAN", "EMPTY"), "holds no profiles"),
        (("PLAN", "PLAN"), "holds no traceEvents"),
        (("PLAN", "TRACE", "TRACE"), "is of rank 0, as is"),
        (("PLAN", "TRACE", "--axis", "dp"), "'dp' is no axis of a group"),
        (("TRACE", "TRACE"), "is not UTF-8 text"),
        (("PLAN", "TRACE", "--rank", "64"), "--rank: is 64, and the profile says it is of rank 0"),
        (("PLAN", "TRACE", "--steps", "5"), "marks 2 steps, not 5"),
        (("PLAN", "LOG", "--axis", "all_reduce=dp"), "--axis: is said of traces, and this is a log"),
        (("PLAN", "LOG", "--steps", "5"), "--steps: is said of traces, and this is a log"),
        (("PLAN", "TRACE", "--tokens-per-s", "1M"), "--tokens-per-s: is used without profiles alone"),
        (("PLAN", "TRACE", "--cluster", "h100x8"), "--cluster: is used with a launch file alone"),
        (("PLAN", "TRACE", "--seq", "4096"), "--seq: is used with a launch file alone"),
        ((*SPEED, "--axis", "all_reduce=dp"), "--axis: is used beside profiles alone"),
        ((*SPEED, "--calibrate", "c.yaml"), "--calibrate: is used beside profiles alone"),
    ],
)
def test_bad_input(words: tuple[str, ...], message: str, job: tuple[Path, Path], tmp_path: Path) -> None:
    """One line each."""
    log = tmp_path / "log" / "train.log"
    log.parent.mkdir()
    log.write_text("using world size: 8\n")
    known = {
        "PLAN": str(job[0]),
        "TRACE": str(job[1] / "rank0_trace.json.gz"),
        "EMPTY": str(tmp_path),
        "LOG": str(log),
    }
    result = run("diagnose", *(known.get(word, word) for word in words))
    assert result.exit_code == 2
    assert message in result.stderr and len(result.stderr.splitlines()) == 1


def test_a_launch_file_needs_its_cluster(job: tuple[Path, Path], tmp_path: Path) -> None:
    """A launch file says what ran in which layout, but not on what; exported from the plan it finds what the plan finds."""
    assert run("export", str(job[0]), "--to", "megatron", "-o", str(tmp_path)).exit_code == 0
    launch = str(tmp_path / "launch.sh")
    result = run("diagnose", launch, str(job[1]))
    assert result.exit_code == 2 and "needs the cluster that it ran on" in result.stderr
    found = run("diagnose", launch, str(job[1]), "--cluster", "h100x8", "--json")
    assert found.exit_code == 0, found.stderr
    assert json.loads(found.stdout)["causes"][0]["about"] == "rank 5"
