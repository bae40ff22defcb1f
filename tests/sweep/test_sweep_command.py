"""``layoutopt sweep`` and ``layoutopt sweep export`` from the command line."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

from layoutopt.cli import main
from layoutopt.optimizer.sweep.store import SweepStore

if TYPE_CHECKING:
    from pathlib import Path

SWEEP = ["sweep", "llama3-8b", "h100", "--gpus", "8:32:x2", "--batch", "64", "--top", "1", "-j", "1"]


def run(*arguments: str) -> Result:
    """Run the command line in this process."""
    return CliRunner().invoke(main, arguments)


def test_a_sweep_resumes_and_exports(tmp_path: Path) -> None:
    """Three sizes, then the same command again, then CSV."""
    store = str(tmp_path / "s.db")
    first = run(*SWEEP, "--store", store, "--json", "--nested")
    assert first.exit_code == 0, first.output
    plain = json.loads(first.stdout)
    assert (plain["total"], plain["solved"], plain["failed"], plain["interrupted"]) == (3, 3, 0, False)
    assert [row["gpus"] for row in plain["rows"]] == [8, 16, 32]
    # every row says how sure its step is: four of five such runs lie between, by so many measured ones
    assert all(row["step_low_s"] < row["step_time_s"] < row["step_high_s"] for row in plain["rows"])
    assert all(row["measured_runs"] > 20 for row in plain["rows"])
    assert [row["nested_step_time_s"] for row in plain["rows"]] == [
        row["step_time_s"] for row in plain["rows"]
    ]
    again = run(*SWEEP, "--store", store)
    assert again.exit_code == 0
    assert "3 points: 0 solved, 3 reused" in again.stdout
    for row in plain["rows"]:
        assert f"{row['step_low_s']:.3g} to {row['step_high_s']:.3g} " in again.stdout
    assert " ?" not in again.stdout
    exported = run("sweep", "export", "--store", store, "--where", "gpus=16")
    rows = list(csv.DictReader(io.StringIO(exported.stdout)))
    assert [(row["gpus"], row["status"]) for row in rows] == [("16", "optimal")]
    assert run("sweep", "export", "--store", store, "-o", str(tmp_path / "a.json")).exit_code == 0
    assert len(json.loads((tmp_path / "a.json").read_text())) == 3


def test_intervals_of_unmeasured_kinds_are_marked(tmp_path: Path) -> None:
    """Table and page mark the interval of a kind that nobody measured, and say what the mark means."""
    page = tmp_path / "sweep.html"
    asked = ("sweep", "llama3-8b", "h200", "--gpus", "8", "--batch", "16", "--top", "1", "-j", "1")
    told = run(*asked, "--store", str(tmp_path / "s.db"), "--report", str(page))
    assert told.exit_code == 0, told.output
    assert " ? " in told.stdout and "?: no measured run of this kind" in " ".join(told.stdout.split())
    assert " ?<" in page.read_text() and "?: no measured run of this kind" in page.read_text()


def test_every_size_says_how_sure_it_is(tmp_path: Path) -> None:
    """Inside a node there are measured runs, over a fabric that joins no such GPUs there are none: both are said."""
    machine = tmp_path / "odd.yaml"
    machine.write_text("base: h100x16\nname: odd\nfabric: slingshot\n")
    store = ("--store", str(tmp_path / "s.db"))
    told = run(
        "sweep", "llama3-8b", str(machine), "--gpus", "8,16", "--batch", "16", "--top", "1", "-j", "1", *store
    )
    words = " ".join(told.stdout.split())
    assert told.exit_code == 0, told.output
    assert "measured runs of this kind (dense 16-bit H100)" in words
    assert "no measured run of this kind (slingshot between hopper GPUs)" in words


def test_infeasible_points_are_answers(tmp_path: Path) -> None:
    """A size on which nothing fits is a row, not a failure."""
    result = run(
        "sweep",
        "llama3-70b",
        "h100",
        "--gpus",
        "8",
        "--store",
        str(tmp_path / "s.db"),
        "-j",
        "1",
        "--top",
        "1",
    )
    assert result.exit_code == 0, result.output
    assert "1 infeasible" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sweep", "llama3-8b", "--gpus", "8"], "a CLUSTER is missing"),
        (["sweep", "h100x8"], "a MODEL is missing"),
        (["sweep", "llama3-8b", "h100"], "names a GPU, not a cluster"),
        (["sweep", "llama3-8b", "h100", "--gpus", "8:64"], "--gpus: '8:64' is no range"),
        (["sweep", "llama3-8b", "h100x8", "--network", "fast"], "--network: 'fast' is not a number"),
        (["sweep", "llama3-8b", "h100x8", "--scheduler", "tcp://a:1", "-j", "2"], "one of the two"),
        (["sweep", "lama3-8b", "h100x8"], "lama3-8b"),
        (["sweep", "export", "--store", "none.db"], "none.db: no such file"),
        (["sweep", "export", "--format", "xlsx"], "no export format"),
        (["sweep", "export", "--format", "parquet"], "Parquet is no text"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(tmp_path: Path, arguments: list[str], message: str) -> None:
    """Every mistake names what is wrong; nothing is solved or written."""
    store = [] if "export" in arguments else ["--store", str(tmp_path / "s.db")]
    result = run(*arguments, *store)
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_a_foreign_store_is_refused(tmp_path: Path) -> None:
    """A file of something else is kept."""
    path = tmp_path / "notes.txt"
    path.write_text("my notes")
    result = run(*SWEEP, "--store", str(path))
    assert result.exit_code == 2
    assert f"{path}: is no SQLite file" in result.stderr
    assert path.read_text() == "my notes"


@pytest.mark.skipif(os.name != "posix", reason="sends an interrupt to a process group")
def test_ctrl_c_stops_cleanly(tmp_path: Path) -> None:
    """An interrupt of the whole process group: exit 4, no traceback, answers kept, no process left."""
    store = tmp_path / "s.db"
    command = [sys.executable, "-m", "layoutopt", "sweep", "llama3-70b", "h100", "--gpus", "256:4096:+64"]
    command += ["--store", str(store), "-j", "2", "--top", "1", "-q"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (store.exists() and _answers(store) >= 2):
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 4, err
    assert "Traceback" not in err
    assert "interrupted with" in " ".join(out.split())
    assert _answers(store) >= 2
    assert _is_gone(process.pid)


def _is_gone(group: int) -> bool:
    """Whether the last process of a group ends soon (the interpreter's own helpers follow it)."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


def _answers(store: Path) -> int:
    with SweepStore(store) as opened:
        return len(opened.solved_keys())


@pytest.mark.parametrize("command", ["solve", "sweep"])
def test_misspelt_calibrations_are_refused(tmp_path: Path, command: str) -> None:
    """A constant that does not exist would change nothing: its nearest name is shown instead."""
    file = tmp_path / "own.yaml"
    file.write_text("gpu: h100\nnodes: 1\ncalibration: {gemm_cap.hoper: 0.6, nvlink_fraction: 0.8}\n")
    result = CliRunner().invoke(main, [command, "llama3-8b", str(file)])
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert "unknown constant 'gemm_cap.hoper'; did you mean gemm_cap.hopper?" in line
