"""Scripts are read as bash would run them: each is really run, with programs that only write down their arguments."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from layoutopt.optimizer.interop.shell.record import Outside
from layoutopt.optimizer.interop.shell.scripts import parse_script

CORPUS = Path(__file__).parent / "shell" / "corpus.txt"
BASH = shutil.which("bash")

_RECORDER = """#!{python}
import json, os, sys
with open(os.environ["RECORD"], "a") as out:
    out.write(json.dumps([{name!r}, *sys.argv[1:]]) + "\\n")
rest = sys.argv[1:]
if {launches}:
    for place, word in enumerate(rest):
        if word in ("sh", "bash", "python", "torchrun", "env") or word.endswith("/python"):
            os.execvp(word, rest[place:])
"""
_PROGRAMS = {"python": False, "torchrun": False, "srun": True, "mpirun": True, "nohup": True}
_INNERMOST = ("python", "torchrun")


def scripts() -> dict[str, str]:
    """Return the corpus by name."""
    parts = [part.partition("\n") for part in CORPUS.read_text().split("### ")[1:]]
    return {name: text for name, _, text in parts}


def recorded(text: str, folder: Path) -> list[list[str]]:
    """Run a script in an empty folder and return what the innermost programs were given."""
    programs = folder / "bin"
    programs.mkdir()
    for name, launches in _PROGRAMS.items():
        file = programs / name
        file.write_text(_RECORDER.format(python=sys.executable, name=name, launches=launches))
        file.chmod(0o755)
    work, record = folder / "work", folder / "record"
    work.mkdir()
    (work / "script.sh").write_text(text)
    env = {"PATH": f"{programs}:{os.environ['PATH']}", "RECORD": str(record), "HOME": str(work)}
    assert BASH
    subprocess.run([BASH, "script.sh"], cwd=work, env=env, check=False, timeout=20, capture_output=True)
    lines = record.read_text().splitlines() if record.exists() else []
    return [words for words in map(json.loads, lines) if words[0] in _INNERMOST]


@pytest.mark.skipif(BASH is None, reason="no bash to compare with")
@pytest.mark.parametrize("name", scripts())
def test_arguments_are_those_that_bash_passes(name: str, tmp_path: Path) -> None:
    """Word for word, for every program that the script starts, in order."""
    text = scripts()[name]
    started = recorded(text, tmp_path)
    assert started, "the script starts nothing"
    read = []
    for words in parse_script(text, outside=Outside()).commands:
        inner = max((place for place, word in enumerate(words) if word in _INNERMOST), default=None)
        first = min((place for place, word in enumerate(words) if word in _INNERMOST), default=inner)
        if first is not None:
            read.append(list(words[first:]))
    assert read == started
