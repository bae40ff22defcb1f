"""Help costs parsing alone: nothing heavy is imported, and it is quicker than importing the solver."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from layoutopt.cli import COMMANDS

HEAVY = ("numpy", "ortools", "networkx", "scipy", "pydantic", "yaml", "rich", "plotly", "dask", "pandas")
MOST_OF_SOLVER_IMPORT = 0.7


@pytest.mark.parametrize(
    "words", [[], *([name] for name in COMMANDS)], ids=lambda words: " ".join(words) or "root"
)
def test_help_imports_nothing_heavy(words: list[str]) -> None:
    """``--help`` of the root and of every command leaves the scientific stack alone."""
    script = (
        "import sys\n"
        "from layoutopt.cli import main\n"
        "try:\n"
        f"    main({[*words, '--help']!r})\n"
        "except SystemExit:\n"
        "    pass\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
    assert done.stdout.startswith("Usage: layoutopt")


def test_importing_commands_imports_nothing_heavy() -> None:
    """Shell completion imports a command's module; that too is light."""
    modules = ", ".join(entry.module for entry in COMMANDS.values())
    script = f"import sys, {modules}; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_help_is_quicker_than_importing_the_solver() -> None:
    """``layoutopt --help`` takes at most 0.7 of the solver's import: the best of five, in turns."""
    helping = [sys.executable, "-m", "layoutopt", "--help"]
    importing = [sys.executable, "-c", "from ortools.sat.python import cp_model"]
    times = [(_seconds(helping), _seconds(importing)) for _ in range(5)]
    help_s, import_s = (min(column) for column in zip(*times, strict=True))
    assert help_s <= MOST_OF_SOLVER_IMPORT * import_s


def _seconds(command: list[str]) -> float:
    """Return the CPU time of a process, which a busy machine does not lengthen."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
