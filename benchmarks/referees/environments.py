"""An environment for each referee, outside the repository: made from its requirements, kept between runs.

All of them stand on one that holds torch, which is large; what a framework pins beside it meets no other framework's pins.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import venv
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

REQUIREMENTS = Path(__file__).parent / "requirements"
BASE = "torch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The interpreter of an environment, or why there is none; its size without the one it stands on."""

    python: Path | None
    reason: str = ""
    size_bytes: int = 0


def environment(name: str, folder: Path) -> Environment:
    """Make the environment of ``requirements/NAME.txt``, or say in a line what could not be had."""
    below = environment(BASE, folder) if name != BASE else None
    if below is not None and below.python is None:
        return below
    place = folder / f"environment-{name}"
    python, done = place / "bin" / "python", place / "installed"
    if not done.exists():
        print(f"{name}: installing requirements/{name}.txt", file=sys.stderr, flush=True)
        venv.create(place, with_pip=True)
        if below is not None:
            own = next(place.glob("lib/python*/site-packages"))
            packages = next((folder / f"environment-{BASE}").glob("lib/python*/site-packages"))
            (own / "base.pth").write_text(f"{packages}\n")
        command = [str(python), "-m", "pip", "install", "-q", "-r", str(REQUIREMENTS / f"{name}.txt")]
        tried = subprocess.run(command, capture_output=True, text=True)
        if tried.returncode:
            last = (tried.stderr.strip().splitlines() or ["pip failed"])[-1]
            return Environment(python=None, reason=f"requirements/{name}.txt cannot be had: {last}")
        done.touch()
    size_bytes = sum(path.lstat().st_size for path in place.rglob("*") if path.is_file())
    return Environment(python=python, size_bytes=size_bytes)


def tree_of(checkout: Path, commit: str, part: str, folder: Path) -> Path:
    """The sources of a commit or tag, out of a checkout or a bare repository; ``part`` are the paths that are read."""
    parts = "" if part in (".", "megatron", "src", "torchtitan") else f"-{part}"
    name = f"tree-{checkout.resolve().parent.name}-{checkout.name}-{commit}{parts}".replace("/", "-").replace(
        " ", "+"
    )
    place = folder / name
    if not place.exists():
        command = ["git", "-C", str(checkout), "archive", commit, *part.split()]
        done = subprocess.run(command, capture_output=True)
        archive = (
            done.stdout
        )  # git complains of pictures elsewhere that a snapshot left out, and archives nonetheless
        if not archive:
            raise RuntimeError(f"{checkout} at {commit}: {done.stderr.decode().strip().splitlines()[-1]}")
        with tarfile.open(fileobj=BytesIO(archive)) as tar:
            tar.extractall(place, filter="data")
    return place
