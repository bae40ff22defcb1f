"""What the machine does to a command, not its user: closed and narrow streams, too little memory, Ctrl-C, pipes."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from layoutopt.__main__ import run as start
from layoutopt.optimizer.report import catalog
from layoutopt.optimizer.report.commands.exit_code import ExitCode
from layoutopt.optimizer.report.terminal import open_streams

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from click.testing import Result


@pytest.mark.parametrize("digit", ["²", "①", "\u0b72"])
@pytest.mark.parametrize(
    "words",
    [
        ("solve", "llama3-8b", "h100x8", "--batch", "DIGIT"),
        ("solve", "llama3-8b", "h100x8", "--max", "tp=DIGIT"),
        ("solve", "llama3-8b", "h100x8", "--fix", "tp=DIGIT"),
        ("solve", "llama3-8b", "h100x8", "--require", "tp<=DIGIT"),
        ("solve", "llama3-8b", "h100xDIGIT"),
        ("solve", "llama3-8b", "h100x8", "--software", "core 0.DIGIT"),
        ("sweep", "llama3-8b", "h100", "--gpus", "DIGIT"),
        ("sweep", "llama3-8b", "h100", "--gpus", "8:64:xDIGIT"),
        ("evaluate", "llama3-8b", "h100x8", "--layout", "tp=DIGIT"),
        ("topology", "show", "h100x8", "--group", "DIGIT"),
        ("plan", "llama3-8b", "h100x8", "--sizes", "DIGIT"),
    ],
    ids=lambda words: " ".join(words),
)
def test_digits_that_are_no_numbers(run: Callable[..., Result], words: tuple[str, ...], digit: str) -> None:
    """``str.isdigit`` holds of them and ``int`` refuses them: one line, exit 2."""
    done = run(*(word.replace("DIGIT", digit) for word in words))
    assert done.exit_code == ExitCode.BAD_INPUT
    assert len(done.stderr.splitlines()) == 1 and not done.stdout


def test_closed_streams_take_everything_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """A parent may close any stream (``>&-``): printing and reading then do nothing instead of failing."""
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    open_streams()
    print("to nobody")
    print("to nobody", file=sys.stderr)
    assert sys.stdin.read() == ""


def test_what_an_encoding_lacks_is_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name in another script reaches an ASCII terminal as escapes."""
    held = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(held, "ascii", "strict", write_through=True))
    open_streams()
    print("gro\u00dfes \u6a21\u578b")
    assert held.getvalue() == b"gro\\xdfes \\u6a21\\u578b" + os.linesep.encode()


def test_too_little_memory_is_one_line(run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    """Not our fault and not a traceback; a library that cannot be mapped is the same."""
    for error in (MemoryError(), ImportError("libx.so: failed to map segment from shared object")):

        def fail(*_: object, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr(catalog, "find_catalog", fail)
        done = run("catalog")
        assert done.exit_code == ExitCode.BAD_INPUT
        assert done.stderr.startswith("layoutopt: this machine has too little free memory")
        assert len(done.stderr.splitlines()) == 1


def test_ctrl_c_while_modules_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first half second is importing: a Ctrl-C there ends as quietly as later."""

    class Loading(ModuleType):
        """A module that is interrupted when something is taken from it."""

        def __getattr__(self, name: str) -> object:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "layoutopt.cli", Loading("layoutopt.cli"))
    with pytest.raises(SystemExit) as ended:
        start()
    assert ended.value.code == ExitCode.INTERRUPTED


@pytest.mark.skipif(sys.platform == "win32", reason="no pipes that break")
def test_an_export_into_head_is_silent(run: Callable[..., Result], tmp_path: Path) -> None:
    """``layoutopt sweep export | head -1``: nothing about the closed pipe."""
    store = tmp_path / "s.db"
    assert run("sweep", "llama3-8b", "h100x8", "--batch", "64", "--store", str(store), "-q").exit_code == 0
    script = f"set -o pipefail; {sys.executable} -m layoutopt sweep export --store {store} | true"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.returncode in (0, ExitCode.BROKEN_PIPE)
