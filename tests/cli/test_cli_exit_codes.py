"""The process ends with the code that its outcome has."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from layoutopt.optimizer.report.commands.exit_code import ExitCode

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from click.testing import Result

SMALL = ("llama3-8b", "h100x8", "--batch", "64")


def test_codes_do_not_change() -> None:
    """Scripts rely on the numbers."""
    assert {code.name: code.value for code in ExitCode} == {
        "OK": 0,
        "BASELINE_EXCEEDED": 1,
        "BAD_INPUT": 2,
        "REJECTED": 3,
        "STOPPED": 4,
        "INTERNAL": 70,
        "INTERRUPTED": 130,
        "BROKEN_PIPE": 141,
    }


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--help",), 0),
        (("--version",), 0),
        (("solve", "--help"), 0),
        ((), 2),  # no command
        (("slove",), 2),  # unknown command
        (("solve",), 2),  # missing arguments
        (("solve", *SMALL, "--bacth", "3"), 2),  # unknown option
        (("solve", *SMALL), 0),
        (("solve", *SMALL, "--space"), 0),
        (("solve", *SMALL, "--fix", "tp=3"), 3),  # 3 divides no 8 GPUs
        (("solve", *SMALL, "--fix", "tp=3", "--space"), 3),  # an empty space
        (("solve", "llama3-405b", "h100x8"), 3),  # 405B parameters on 8 GPUs
        (("solve", *SMALL, "--time-limit", "1 ns"), 4),
        (("evaluate", *SMALL, "--layout", "tp=2,dp=4,zero=1,recompute=full"), 0),
        (("evaluate", *SMALL, "--layout", "tp=1,zero=0"), 3),  # 16 bytes per parameter on every GPU
        (("evaluate", *SMALL, "--layout", "tp=3"), 3),  # breaks rules
        (("evaluate", *SMALL, "--layout", "tp=x"), 2),
        (("evaluate", *SMALL, "--layout", "tp=99999999,dp=99999999"), 3),  # a slip, answered at once
        (("topology", "show", "h100x8"), 0),
        (("topology", "show", "h100x8", "--group", "9"), 2),
        (("catalog", "gpus", "h100"), 0),
        (("catalog", "gpus", "h1000000"), 2),
        (("schema", "layout"), 0),
        (("schema", "plan"), 2),
        (("verify", "no-such-plan.json"), 2),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else str(value),
)
def test_exit_code(run: Callable[..., Result], words: tuple[str, ...], code: int) -> None:
    """Every outcome has its code, and no command line leads to a traceback."""
    result = run(*words)
    assert result.exit_code == code, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)


def test_verify_accepts_and_rejects(run: Callable[..., Result], plan_text: str, tmp_path: Path) -> None:
    """A plan that solve wrote is accepted, one with another step time is not, one for another model neither."""
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text(plan_text)
    plan: dict[str, Any] = json.loads(plan_text)
    plan["objective"]["step_time_s"] *= 0.99
    bad.write_text(json.dumps(plan))
    assert run("verify", str(good)).exit_code == 0
    assert run("verify", str(bad)).exit_code == 3
    assert run("verify", str(good), "--model", "llama2-7b").exit_code == 3


def test_ctrl_c_stops_with_the_best_so_far(
    run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first Ctrl-C ends the search; the answer has a layout and a gap above none, and the code says so."""
    import signal

    from layoutopt.optimizer.report import progress

    def press(self: progress.Silent, state: object) -> None:
        monkeypatch.undo()  # press once
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(progress.Silent, "update", press)
    result = run("solve", "llama3-70b", "h100-1024", "--json")
    plan = json.loads(result.stdout)
    assert result.exit_code == 4
    assert plan["status"] == "stopped"
    assert plan["layout"]["tp"] >= 1
    assert plan["objective"]["gap"] > 0.001
    assert "stopping" in result.stderr


def test_second_ctrl_c_aborts(run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    """The second Ctrl-C ends the process without an answer."""
    import signal

    from layoutopt.optimizer.report import progress

    def press(self: progress.Silent, state: object) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(progress.Silent, "update", press)
    result = run("solve", *SMALL)
    assert result.exit_code == 130
    assert result.stdout == ""


def test_internal_errors_are_one_line(run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of ours is one line that asks for a report; -v adds the traceback."""
    from layoutopt.optimizer.report import catalog

    def fail(*_: object) -> None:
        raise RuntimeError("out of\ncheese")

    monkeypatch.setattr(catalog, "find_catalog", fail)
    result = run("catalog")
    assert result.exit_code == 70
    assert result.stderr.splitlines()[0].startswith("layoutopt: internal error: RuntimeError: out of cheese")
    assert len(result.stderr.splitlines()) == 1
    assert "Traceback" in run("catalog", "-v").stderr


@pytest.mark.skipif(sys.platform == "win32", reason="no pipes that break")
def test_closed_pipe_is_silent() -> None:
    """``layoutopt ... | head`` says nothing about the closed pipe."""
    script = f"set -o pipefail; {sys.executable} -m layoutopt schema cluster | true"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.returncode in (0, 141)  # 0 when all was written before the pipe closed


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/dev/full")
def test_full_disk_is_one_line() -> None:
    """An answer that cannot be written is reported on one line."""
    script = f"{sys.executable} -m layoutopt catalog > /dev/full"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines() == ["layoutopt: No space left on device"]
    assert done.returncode == 2
