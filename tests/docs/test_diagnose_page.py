"""The commands of docs/diagnose.md, run one after another in an empty folder with the job's traces as committed."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from click.testing import CliRunner

from layoutopt.cli import main
from layoutopt.optimizer.specs.loading import load_cluster

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"<!-- run -->\n```\n(.*?)\n```", re.DOTALL)


def test_the_page_runs_from_solve_to_solve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Solve, export, diagnose, calibrate, solve again: each succeeds, and what the page says is found first."""
    for file in (ROOT / "docs" / "examples").glob("*-cpu.yaml"):
        shutil.copy(file, tmp_path)
    shutil.copytree(ROOT / "tests" / "data" / "profiles" / "cpu_pp2_dp2", tmp_path / "traces")
    monkeypatch.chdir(tmp_path)
    lines = [
        line
        for block in BLOCK.findall((ROOT / "docs" / "diagnose.md").read_text("utf-8"))
        for line in block.splitlines()
    ]
    assert [line.split()[1] for line in lines] == [
        "solve",
        "export",
        "diagnose",
        "diagnose",
        "solve",
        "calibrate",
    ]
    printed = {}
    for line in lines:
        result = CliRunner().invoke(main, shlex.split(line)[1:])
        assert result.exit_code == 0, (line, result.stderr)
        printed[line] = result.stdout
    causes = printed[lines[2]].partition("Causes")[2].partition("Step")[0]
    assert "backward computes" in causes and "of the forward pass again" in causes and "rank 3 is" in causes
    assert "at bound" in printed[lines[3]]
    assert "at its bound, not identified" in (tmp_path / "calibrated.yaml").read_text("utf-8")
    assert "Calibration" in printed[lines[3]] and "the optimum becomes" in printed[lines[3]]
    assert (
        load_cluster(tmp_path / "same.yaml").calibration
        == load_cluster(tmp_path / "calibrated.yaml").calibration
    )
    for name in ("plan.json", "page.html", "both.json", "calibrated.yaml", "again.json"):
        assert (tmp_path / name).stat().st_size > 0


def test_figures_of_the_experiment_are_the_benchmarks() -> None:
    """The table of the experiment holds the committed baseline's figures."""
    baseline = json.loads((ROOT / "benchmarks" / "term_calibration_baseline.json").read_text("utf-8"))
    page = (ROOT / "docs" / "diagnose.md").read_text("utf-8")
    rows = {
        "nothing": "before",
        "totals of three runs, 3% noise": "totals_of_three",
        "totals of three runs, no noise": "exact_totals_of_three",
        "terms of one run, 3% noise of every kernel": "terms_of_one",
    }
    for words, name in rows.items():
        assert f"| {words} | {baseline['mean_abs_log_error'][name]:.1%} |" in page
    assert f"on {baseline['clusters_where_terms_are_nearer']} of the {baseline['clusters']} machines" in page
    assert baseline["mean_abs_log_error"]["terms_of_one"] < baseline["mean_abs_log_error"]["totals_of_three"]
