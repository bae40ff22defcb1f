"""A new contributor: a copy of the package that is edited as CONTRIBUTING.md says, and run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from filecmp import dircmp
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "layoutopt"
_SKIP = shutil.ignore_patterns("__pycache__")


def row(what: str) -> str:
    """Return the line of the table "Where things go" that says how to add something."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {what} |")]
    return line


def files_named(line: str, **names: str) -> list[str]:
    """Return the files that a line names, with what stands for a name filled in."""
    return [_filled(word, names) for word in re.findall(r"`([^`]+/[^`]+\.\w+)`", line)]


def constants_named(line: str, **names: str) -> dict[str, str]:
    """Return the constants that a line names, each with the file that the line puts it in."""
    words = [_filled(word, names) for word in re.findall(r"`([^`]+)`", line)]
    found: dict[str, str] = {}
    waiting: list[str] = []
    for word in words:
        if "/" in word:
            found |= dict.fromkeys(waiting, word)
            waiting = []
        elif re.fullmatch(r"\w+\.\w+", word):
            waiting.append(word)
    return found


def _filled(word: str, names: dict[str, str]) -> str:
    for name, value in names.items():
        word = word.replace(name, value)
    return word


@dataclass(frozen=True, slots=True)
class Tree:
    """A copy of the package in ``folder``."""

    folder: Path

    @classmethod
    def copy(cls, folder: Path) -> Tree:
        """Copy the package, links and all, as real files."""
        shutil.copytree(PACKAGE, folder / "layoutopt", ignore=_SKIP)
        return cls(folder)

    def path(self, name: str) -> Path:
        """Return the place of a file that CONTRIBUTING.md names."""
        return self.folder / "layoutopt" / name

    def write(self, name: str, text: str) -> None:
        """Write a file, folders included."""
        self.path(name).parent.mkdir(parents=True, exist_ok=True)
        self.path(name).write_text(text, encoding="utf-8")

    def insert(self, name: str, before: str, text: str) -> None:
        """Insert a text in front of the first line that starts with ``before``."""
        old = self.path(name).read_text(encoding="utf-8")
        at = re.search(rf"^{re.escape(before)}", old, re.MULTILINE)
        assert at is not None, f"{name}: no line starts with {before!r}"
        self.write(name, old[: at.start()] + text + old[at.start() :])

    def append(self, name: str, text: str) -> None:
        """Add a text at the end of a file."""
        self.write(name, self.path(name).read_text(encoding="utf-8") + text)

    def touched(self) -> set[str]:
        """Return the files that differ from the package's, or that it does not have."""
        return set(_different(dircmp(PACKAGE, self.folder / "layoutopt", ignore=["__pycache__"]), ""))

    def run(self, *words: str, check: int | None = 0) -> subprocess.CompletedProcess[str]:
        """Run the command line of the copy; a traceback or an internal error is never right."""
        done = subprocess.run(
            [sys.executable, "-m", "layoutopt", *words],
            cwd=self.folder, env={**os.environ, "PYTHONPATH": str(self.folder)},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        told = f"{' '.join(words)}: exit {done.returncode}\n{done.stdout[-1500:]}{done.stderr}"
        assert "Traceback" not in done.stderr and "KeyError" not in done.stderr, told
        assert check is None or done.returncode == check, told
        return done

    def mypy(self, *files: str) -> str:
        """Type-check files of the copy and return what mypy says."""
        done = subprocess.run(
            [sys.executable, "-m", "mypy", "--strict", "--ignore-missing-imports", *map(str, map(self.path, files))],
            cwd=self.folder, env={**os.environ, "MYPYPATH": str(self.folder)},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        return done.stdout


def _different(compared: dircmp[str], inside: str) -> Iterator[str]:
    yield from (f"{inside}{name}" for name in compared.diff_files)
    for name in compared.right_only:
        place = Path(compared.right) / name
        found = place.rglob("*") if place.is_dir() else [place]
        yield from (
            f"{inside}{one.relative_to(compared.right)}"
            for one in found
            if one.is_file() and "__pycache__" not in one.parts
        )
    for name, below in compared.subdirs.items():
        yield from _different(below, f"{inside}{name}/")
