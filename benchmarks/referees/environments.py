"""An environment for each referee, outside the repository: made from its requirements, kept between runs."""

from __future__ import annotations

import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

REQUIREMENTS = Path(__file__).parent / "requirements"


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The interpreter of an environment, or why there is none."""

    python: Path | None
    reason: str = ""
    size_bytes: int = 0


def environment(name: str, folder: Path) -> Environment:
    """Make the environment of ``requirements/NAME.txt``, or say in a line what could not be had."""
    place = folder / f"environment-{name}"
    python, done = place / "bin" / "python", place / "installed"
    if not done.exists():
        print(f"{name}: installing requirements/{name}.txt", file=sys.stderr, flush=True)
        venv.create(place, with_pip=True)
        command = [str(python), "-m", "pip", "install", "-q", "-r", str(REQUIREMENTS / f"{name}.txt")]
        tried = subprocess.run(command, capture_output=True, text=True)
        if tried.returncode:
            last = (tried.stderr.strip().splitlines() or ["pip failed"])[-1]
            return Environment(python=None, reason=f"requirements/{name}.txt cannot be had: {last}")
        done.touch()
    size_bytes = sum(path.lstat().st_size for path in place.rglob("*") if path.is_file())
    return Environment(python=python, size_bytes=size_bytes)
