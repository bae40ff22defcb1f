"""Launch files of published recipes are judged without being rejected; what they leave to the command line is named."""

from __future__ import annotations

import json

import pytest
from checks.published import FORMATS
from click.testing import CliRunner

from layoutopt.cli import main

FOLDER = FORMATS / "launch"
FILES = sorted(path.name for path in FOLDER.iterdir())


@pytest.mark.parametrize("name", FILES)
def test_launch_files_are_judged(name: str) -> None:
    """A verdict other than invalid, or one line for each thing that the file does not say."""
    words = ["evaluate", "--from", str(FOLDER / name), "--cluster", "h100x16384", "--json"]
    done = CliRunner().invoke(main, words)
    if done.exit_code == 2:
        assert done.stdout == ""
        assert "missing" in done.stderr or "not stated by the launch file" in done.stderr
        assert all(len(line) < 200 for line in done.stderr.splitlines())
        return
    plain = json.loads(done.stdout)
    assert plain["verdict"] in ("fits", "borderline", "does_not_fit"), plain["reasons"]
    assert plain["estimate"]["step_time_s"] > 0


def test_most_files_are_complete() -> None:
    """Only configurations that leave model or batch to a script of their own can't be judged alone."""
    codes = [
        CliRunner()
        .invoke(main, ["evaluate", "--from", str(FOLDER / name), "--cluster", "h100x16384"])
        .exit_code
        for name in FILES
    ]
    assert sum(code != 2 for code in codes) >= len(FILES) / 2
