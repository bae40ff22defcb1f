"""Bad inputs drawn by seed: the short form of ``benchmarks/hostile.py``, which tries 600 of them and 40 kills."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "hostile.py"
INPUTS = 40


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks, /proc and /dev/full")
def test_nothing_ends_in_a_traceback_and_no_file_is_lost() -> None:
    """Inputs that the committed figures do not hold; kills are left to the benchmark and to the tests of sweeps."""
    words = ["--inputs", str(INPUTS), "--kills", "0", "--seed", "20000"]
    done = subprocess.run([sys.executable, str(SCRIPT), *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout[done.stdout.index("{\n") :])
    assert sum(found["exit_codes"].values()) == INPUTS
    assert set(found["exit_codes"]) <= {"0", "2", "3", "4"}
    assert found["exit_codes"]["2"] > INPUTS / 4


def test_the_committed_figures_are_whole() -> None:
    """600 inputs of every kind and 40 kills, none with a fault."""
    plain = json.loads(SCRIPT.with_name("hostile_baseline.json").read_text("utf-8"))
    assert plain["inputs"] >= 600 and sum(plain["kills"].values()) >= 40
    assert plain["faults"] == []
    assert {"option", "argument", "file", "stdin", "streams", "place"} <= set(plain["kinds"])
