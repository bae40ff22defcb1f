"""Everything that people install from: wheel, sdist, a zip without links, every Python at hand, the oldest dependencies.

``python benchmarks/packaging.py`` builds each from the tracked files, compares what is in the wheels, installs them in fresh
environments, and lets each solve and verify a question. Needs the package index. Exit code 1 when anything differs or fails.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LINKS = ("cli.py", "optimizer", "models", "topologies")
PYTHONS = ("3.11", "3.12", "3.13")
SMOKE = (
    ["solve", "llama3-8b", "h100x16", "--batch", "64", "-q", "-o", "plan.json"],
    ["verify", "plan.json"],
    ["evaluate", "llama3-8b", "h100x16", "--batch", "64", "--layout", "plan.json"],
)


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command; its output where it succeeds, SystemExit with its last lines where it does not."""
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        raise SystemExit(f"{' '.join(map(str, command))}\n{tail}")
    return done.stdout


def sources(folder: Path, *, links: bool) -> Path:
    """Copy the tracked files; without links each of them is a file with its target, as zip tools leave it."""
    names = run("git", "ls-files", "-z", cwd=ROOT).split("\0")
    for name in filter(None, names):
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
    for part in () if links else LINKS:
        place = folder / "src" / "layoutopt" / part
        place.unlink()
        place.write_text(f"../../{part}", encoding="utf-8")
    return folder


def build_wheel(source: Path, out: Path) -> Path:
    """Build a wheel of a folder or an sdist."""
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", out, source, cwd=out)
    return next(out.glob("*.whl"))


def names_in(wheel: Path) -> set[str]:
    """Name the modules and data files of a wheel."""
    return {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}


def oldest() -> list[str]:
    """Return every runtime dependency at the release of its lower bound."""
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return [re.sub(r"\s*>=\s*([\d.]+)", r"==\1.*", text) for text in project["dependencies"]]


def works(python: str) -> bool:
    """Whether an interpreter starts: a shim may stand for one that is not installed."""
    found = shutil.which(python)
    return bool(found) and subprocess.run([str(found), "-c", ""], capture_output=True).returncode == 0


def try_out(python: str, wheel: Path, folder: Path, pins: list[str]) -> str:
    """Install a wheel in a fresh environment and ask it something; say with which versions."""
    venv = folder / "venv"
    run(python, "-m", "venv", venv, cwd=folder)
    own = venv / "bin" / "python"
    run(own, "-m", "pip", "install", "-q", wheel, *pins, cwd=folder)
    for words in SMOKE:
        run(own, "-m", "layoutopt", *words, cwd=folder)
    frozen = run(own, "-m", "pip", "freeze", cwd=folder)
    named = [
        line for line in frozen.splitlines() if re.match(r"(numpy|ortools|scipy|pydantic|click)==", line)
    ]
    shutil.rmtree(venv)
    return ", ".join(named)


def main() -> int:
    """Build, compare, install, ask."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--no-install", action="store_true", help="only build and compare the wheels")
    parser.add_argument("--python", action="append", help="interpreters to try; default those on the path")
    given = parser.parse_args()
    install, pythons = not given.no_install, given.python or [f"python{version}" for version in PYTHONS]
    with tempfile.TemporaryDirectory() as text:
        work = Path(text)
        for name in ("tree", "zip", "out", "out-zip", "out-sdist", "sdist", "try"):
            (work / name).mkdir()
        wheel = build_wheel(sources(work / "tree", links=True), work / "out")
        run(sys.executable, "-m", "build", "-q", "--sdist", "-o", work / "sdist", work / "tree", cwd=work)
        made = {
            "checkout": wheel,
            "zip without links": build_wheel(sources(work / "zip", links=False), work / "out-zip"),
            "sdist": build_wheel(next((work / "sdist").glob("*.tar.gz")), work / "out-sdist"),
        }
        failed = 0
        for name, built in made.items():
            same = names_in(built) == names_in(wheel)
            failed += not same
            print(f"wheel of the {name}: {len(names_in(built))} files{'' if same else ', which differ'}")
        if install:
            for python in pythons:
                said = try_out(python, wheel, work / "try", []) if works(python) else "not on this machine"
                print(f"{Path(python).name}: {said}", flush=True)
            print(f"oldest dependencies: {try_out(sys.executable, wheel, work / 'try', oldest())}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
