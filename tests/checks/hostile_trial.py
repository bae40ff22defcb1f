"""Try one bad input and judge how the command ended."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from checks.forked import CPU_LIMIT_S, Ended, run_forked
from checks.hostile import case_of

if TYPE_CHECKING:
    from checks.hostile import Case

ALLOWED = {0, 2, 3, 4}
"""Exit codes that an input alone may lead to; a full disk behind stdout is 2, a broken pipe does not occur here."""

LONGEST_LINE = 1500
OLD = b"what was here before\n"
WRITTEN = ("old.json", "old.html", "old.csv", "old.yaml", "old.graphml")
END = {".json": b"}\n", ".html": b"</html>", ".csv": b"\n", ".yaml": b"\n", ".graphml": b"</graphml>"}
"""How a whole file of each kind ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """How one input ended, and what is wrong with that."""

    kind: str
    words: tuple[str, ...]
    code: int
    stderr: str
    cpu_s: float
    faults: tuple[str, ...]

    def words_for_people(self, seed: int) -> str:
        """Write the trial on a few lines of ASCII."""
        said = " ".join(word if len(word) < 60 else f"{word[:57]}..." for word in self.words)
        text = f"{seed} [{self.kind}] {said} -> {self.code} ({self.cpu_s:.1f} s) {' | '.join(self.faults)}"
        return f"{text}\n    {self.stderr[-700:]}".encode("ascii", "backslashreplace").decode()


def tried(seed: int, source: Path) -> Trial:
    """Run a case in a copy of the folder ``source``."""
    case = case_of(seed, source)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(source, folder, dirs_exist_ok=True)
        for written in WRITTEN:
            (folder / written).write_bytes(OLD)
        _arrange(case, folder)
        before = _contents(folder)
        ended = run_forked(case.words, folder, case.streams)
        faults = (*_ending_faults(case, ended), *_file_faults(case, folder, before))
    return Trial(
        kind=case.kind.split()[0], words=case.words, code=ended.code,
        stderr=ended.stderr.decode(case.streams.encoding, "backslashreplace"), cpu_s=ended.cpu_s, faults=faults,
    )  # fmt: skip


def _arrange(case: Case, folder: Path) -> None:
    """Put the case's files and places where the command will find them."""
    for name, content in case.files:
        (folder / os.fsencode(name).decode("utf-8", "surrogateescape")).write_bytes(content)
    for name, place in case.places:
        path = folder / name
        path.unlink()
        if place == "folder":
            path.mkdir()
        elif place != "gone":
            path.symlink_to("nowhere/at/all" if place == "lost" else name)


def _contents(folder: Path) -> dict[str, bytes]:
    """Return a digest of every file by its name."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).digest() for path in files}


def _ending_faults(case: Case, ended: Ended) -> list[str]:
    """Say what is wrong with exit code, lines and time."""
    said = ended.stderr.decode(case.streams.encoding, "backslashreplace")
    faults = []
    if ended.code not in ALLOWED:
        faults.append(f"exit {ended.code}")
    if "Traceback" in said or "internal error" in said or "Exception ignored" in said:
        faults.append("traceback")
    if ended.cpu_s > CPU_LIMIT_S / 2:
        faults.append(f"{ended.cpu_s:.0f} CPU s")
    if ended.code == 2 and 2 not in case.streams.closed:
        lines = said.splitlines()
        if not lines or not all(line.strip() for line in lines):
            faults.append("refused without a word")
        if max(map(len, lines), default=0) > LONGEST_LINE:
            faults.append("a line without end")
        if ended.stdout and not case.streams.full and "wrote" not in said:
            faults.append("refused after it had answered")
    return faults


def _file_faults(case: Case, folder: Path, before: dict[str, bytes]) -> list[str]:
    """Say which files are gone, half written, changed though they are read only, or left over."""
    after = _contents(folder)
    faults = [f"{name} is gone" for name in before.keys() - after.keys()]
    for name in before.keys() & after.keys():
        content = (folder / name).read_bytes()
        if before[name] == after[name] or name.startswith("s.db"):
            continue
        if name not in WRITTEN:
            faults.append(f"{name} was changed")
        elif not content.rstrip(b"\n").endswith(END[Path(name).suffix].rstrip(b"\n")):
            faults.append(f"{name} is half written")
    left = [
        name for name in after.keys() - before.keys() if Path(name).name.startswith((".layoutopt", ".s.db"))
    ]
    faults += [f"{name} was left behind" for name in left]
    return faults
