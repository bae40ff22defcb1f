"""A command line in a forked child: its own streams, encoding, limits and exit code, without starting Python again."""

from __future__ import annotations

import importlib
import io
import os
import pkgutil
import resource
import signal
import sys
import tempfile
import traceback
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

CPU_LIMIT_S = 60
MEMORY_LIMIT_BYTES = 8 * 2**30
TRACEBACK_EXIT = 1
"""What the interpreter ends with after an exception that nobody caught."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """What the child finds at its standard streams.

    ``stdin`` is what can be read there; ``closed`` holds descriptors that are not open; ``full`` puts stdout on a device
    without room; ``encoding`` is that of all three.
    """

    stdin: bytes = b""
    closed: tuple[int, ...] = ()
    full: bool = False
    encoding: str = "utf-8"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a child ended: exit code (minus the number of a signal that killed it), output, CPU time in seconds."""

    code: int
    stdout: bytes
    stderr: bytes
    cpu_s: float


def load_everything() -> None:
    """Import all modules of the product, so that no child has to."""
    import layoutopt.optimizer

    for found in pkgutil.walk_packages(layoutopt.optimizer.__path__, "layoutopt.optimizer."):
        importlib.import_module(found.name)
    for name in ("layoutopt.cli", "ortools.sat.python.cp_model", "rich.table", "scipy.optimize", "networkx"):
        importlib.import_module(name)


def run_forked(words: Sequence[str], folder: Path, streams: Streams) -> Ended:
    """Run ``layoutopt`` with these words in ``folder``; POSIX alone."""
    with tempfile.TemporaryFile() as source, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        source.write(streams.stdin)
        source.seek(0)
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if child == 0:
            _become(words, folder, streams, (source, out, err))
        _, status, usage = os.wait4(child, 0)
        out.seek(0)
        err.seek(0)
        return Ended(
            code=os.waitstatus_to_exitcode(status),
            stdout=out.read(),
            stderr=err.read(),
            cpu_s=usage.ru_utime + usage.ru_stime,
        )


def _become(words: Sequence[str], folder: Path, streams: Streams, files: tuple[IO[bytes], ...]) -> None:
    """Be the command line; ends the process."""
    code = TRACEBACK_EXIT
    try:
        os.chdir(folder)
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_LIMIT_S, CPU_LIMIT_S + 5))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _open(streams, files)
        sys.argv = ["layoutopt", *words]
        from layoutopt.__main__ import run

        try:
            run()
            code = 0
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else TRACEBACK_EXIT
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                with suppress(OSError):  # said already, by the command line
                    stream.flush()
    except BaseException:
        code = TRACEBACK_EXIT
        os.write(2, traceback.format_exc().encode("ascii", "replace"))
    finally:
        os._exit(code)


def _open(streams: Streams, files: tuple[IO[bytes], ...]) -> None:
    """Put the streams where the interpreter would have put them at its start."""
    for number, file in enumerate(files):
        os.dup2(file.fileno(), number)
    if streams.full:
        full = os.open("/dev/full", os.O_WRONLY)
        os.dup2(full, 1)
        os.close(full)
    for number in streams.closed:
        os.close(number)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if number in streams.closed:
            setattr(sys, name, None)
            continue
        errors = "backslashreplace" if number == 2 else "strict"  # as the interpreter opens them
        raw = io.FileIO(number, "r" if number == 0 else "w", closefd=False)
        binary = io.BufferedReader(raw) if number == 0 else io.BufferedWriter(raw)
        setattr(sys, name, io.TextIOWrapper(binary, streams.encoding, errors, line_buffering=number == 2))
