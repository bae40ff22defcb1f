"""Kill whole processes of solve, sweep and plan at drawn moments; nothing may be lost, half written or left running."""

from __future__ import annotations

import csv
import io
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.sweep.store import SweepStore

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

OLD = '{"what": "was here before"}\n'
QUESTION = ("mixtral-8x7b", "h100x16", "--batch", "64")
SIZES = ("llama3-8b", "h100", "--gpus", "8:48:+8", "--batch", "96")
STORE = ("--store", "s.db")
COMMANDS: dict[str, tuple[str, ...]] = {
    "solve": ("solve", *QUESTION, "-o", "out.json"),
    "sweep local": ("sweep", *SIZES, *STORE, "-j", "2"),
    "plan": ("plan", *QUESTION, "--tokens", "1T", "-o", "out.json"),
    "sweep serial": ("sweep", *SIZES, *STORE, "-j", "1"),
    "sweep dask": ("sweep", *SIZES, *STORE, "--scheduler", "ADDRESS"),
}
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
ENDS = {
    signal.SIGKILL: {-signal.SIGKILL, 0},
    signal.SIGTERM: {-signal.SIGTERM, 0},
    signal.SIGINT: {130, 4, 0, -signal.SIGINT},
}
"""How a command may end under each signal: 0 where it was done before, 4 with the best answer so far, and by SIGINT
itself, without a word, while the interpreter does not listen yet or no longer; an interrupt that nobody caught shows."""

LATE_S = 60.0
VARYING = ("solve_time_s", "solved_at", "warm_started")


@dataclass(frozen=True, slots=True)
class Killed:
    """How many were killed, by command and signal, where they were, and what went wrong."""

    counts: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)


def kill_all(kills: int, seed: int) -> Killed:
    """Kill ``kills`` processes at moments drawn by ``seed``, one command and signal after the other."""
    draw, counts, faults = random.Random(seed), Counter[str](), list[str]()
    known: dict[str, tuple[float, Any]] = {}
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        address = ""
        for number in range(kills):
            command = list(COMMANDS)[number % len(COMMANDS)]
            if "ADDRESS" in COMMANDS[command] and not address:
                address = stack.enter_context(dask_cluster(Path(name)))
            words = [address if word == "ADDRESS" else word for word in COMMANDS[command]]
            if command not in known:
                known[command] = _undisturbed(words)
            took_s, answer = known[command]
            sent = SIGNALS[number // len(COMMANDS) % len(SIGNALS)]
            found, code = _kill(words, draw.uniform(0.02, 1.0) * took_s, sent, answer)
            counts[f"{command}, {sent.name}: {'in time' if code == 0 else 'killed'}"] += 1
            faults += [f"kill {number} ({command}, {sent.name}, code {code}): {fault}" for fault in found]
    return Killed(counts=dict(sorted(counts.items())), faults=faults)


def _start(words: Sequence[str], folder: Path) -> subprocess.Popen[str]:
    """Start the command line in a session of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "layoutopt", *words, "-q"], cwd=folder, text=True, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip


def _undisturbed(words: Sequence[str]) -> tuple[float, Any]:
    """Return how long the command takes in seconds, and its answer."""
    with tempfile.TemporaryDirectory() as name:
        started = time.monotonic()
        process = _start(words, Path(name))
        _, said = process.communicate()
        assert process.returncode == 0, said
        return time.monotonic() - started, _answer(words, Path(name))


def _kill(words: Sequence[str], after_s: float, sent: signal.Signals, answer: Any) -> tuple[list[str], int]:
    """Kill the command once, run it again, and say what is wrong with either end."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if "-o" in words:
            (folder / "out.json").write_text(OLD, encoding="utf-8")
        process = _start(words, folder)
        time.sleep(after_s)
        process.send_signal(sent)
        _, said = process.communicate()
        code = process.returncode
        faults = [f"{said[-300:]!r}"] if "Traceback" in said or "internal error" in said else []
        faults += [] if code in ENDS[sent] else ["this exit code"]
        faults += _left_running(process.pid) + _half_written(folder)
        again = _start(words, folder)
        _, said = again.communicate()
        if again.returncode != 0:
            faults.append(f"the same command again: {again.returncode} {said[-300:]!r}")
        elif (other := _difference(_answer(words, folder), answer)) is not None:
            faults.append(f"the same command again comes to another answer: {other}")
        return faults, code


def _answer(words: Sequence[str], folder: Path) -> Any:
    """Return what the command came to, without times."""
    if "-o" in words:
        return _timeless(json.loads((folder / "out.json").read_text(encoding="utf-8")))
    export = [sys.executable, "-m", "layoutopt", "sweep", "export", "--store", "s.db"]
    done = subprocess.run(export, cwd=folder, capture_output=True, text=True, check=True)
    columns = ("model", "gpus", "status", "step_time_s", "tp", "pp", "dp")
    return [[row[name] for name in columns] for row in csv.DictReader(io.StringIO(done.stdout))]


def _timeless(plain: Any) -> Any:
    """Leave out what differs from run to run."""
    if isinstance(plain, dict):
        return {key: _timeless(value) for key, value in plain.items() if key not in VARYING}
    return [_timeless(value) for value in plain] if isinstance(plain, list) else plain


def _difference(found: Any, expected: Any, place: str = "answer") -> str | None:
    """Return where two answers differ first, None where they are equal."""
    if isinstance(found, dict) and isinstance(expected, dict) and found.keys() == expected.keys():
        pairs = [(f"{place}.{key}", value, expected[key]) for key, value in found.items()]
    elif isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        pairs = [(f"{place}[{at}]", *both) for at, both in enumerate(zip(found, expected, strict=True))]
    else:
        return None if found == expected else f"{place}: {str(found)[:80]} instead of {str(expected)[:80]}"
    return next(filter(None, (_difference(one, other, where) for where, one, other in pairs)), None)


def _half_written(folder: Path) -> list[str]:
    """Say which files are neither the old ones nor whole."""
    faults = []
    out, store = folder / "out.json", folder / "s.db"
    if out.exists() and out.read_text(encoding="utf-8") != OLD:
        try:
            json.loads(out.read_text(encoding="utf-8"))
        except ValueError:
            faults.append("out.json is half written")
    if store.exists():
        try:
            with SweepStore(store, read_only=True) as opened:
                list(opened.rows())
        except InputError as error:
            faults.append(f"the store: {error}")
    return faults


def _left_running(session: int) -> list[str]:
    """Say whether a process of the session outlives it; it has a while to end."""
    deadline = time.monotonic() + LATE_S
    while _members(session):
        if time.monotonic() > deadline:
            left = _members(session)
            for process in left:
                os.kill(process, signal.SIGKILL)
            return [f"{len(left)} processes left running"]
        time.sleep(0.1)
    return []


def _members(session: int) -> list[int]:
    """Return the living processes of a session, from ``/proc`` (Linux)."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, _, _, of = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
            except OSError:
                continue
            if int(of) == session and state != "Z":
                found.append(int(entry.name))
    return found


@contextmanager
def dask_cluster(folder: Path) -> Iterator[str]:
    """Start a scheduler and two workers on this machine; yields the scheduler's address."""
    file, quiet = folder / "scheduler.json", subprocess.DEVNULL

    def start(*words: str) -> subprocess.Popen[bytes]:
        """Start one of them."""
        return subprocess.Popen([sys.executable, "-m", "distributed.cli.dask_" + words[0], *words[1:]], cwd=folder,
                                stdout=quiet, stderr=quiet)  # fmt: skip

    where = ("--scheduler-file", str(file), "--no-dashboard")
    started = [start("scheduler", "--host", "127.0.0.1", "--port", "0", *where)]
    started += [
        start("worker", *where, "--nthreads", "1", "--no-nanny", "--memory-limit", "0") for _ in range(2)
    ]
    try:
        deadline = time.monotonic() + LATE_S
        while not (file.exists() and file.read_text()) and time.monotonic() < deadline:
            time.sleep(0.05)
        yield str(json.loads(file.read_text())["address"])
    finally:
        for process in started:
            process.kill()
            process.wait()
