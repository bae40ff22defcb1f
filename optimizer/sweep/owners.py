"""Who holds a claim: one process on one machine, recognisable when it is gone."""

from __future__ import annotations

import os
import platform
import uuid
from functools import cache
from pathlib import Path

_NO_START = "-"


def new_owner() -> str:
    """Name this process: machine, process number, when it started, and a random word for the sweep in it."""
    return f"{_machine()}/{os.getpid()}/{_started(os.getpid())}/{uuid.uuid4().hex[:8]}"


def is_dead(owner: str) -> bool:
    """Tell whether an owner is certainly gone: its process ran on this machine and no longer does.

    Of other machines, and where the system doesn't say, nothing is known: their claims end with their lease.
    """
    machine, process, started = [*owner.split("/"), "", ""][:3]
    # No process of ours wrote anything else: a process number is a C int, of which more would be an OverflowError below.
    if not process.isdecimal() or len(process) > 10 or int(process) >= 1 << 31:
        return True
    if machine != _machine() or os.name != "posix":
        return False
    try:
        # Signal 0 asks whether the process is there and sends nothing (kill(2)).
        os.kill(int(process), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    # Numbers are given again: one that started at another time is another process.
    return started != _started(int(process))


@cache
def _machine() -> str:
    """Name the machine since its last start, and the namespace that process numbers belong to."""
    boot = _read("/proc/sys/kernel/random/boot_id")
    try:
        # Two containers on one host share its name and its boot, and count processes each for itself (pid_namespaces(7)).
        space = os.readlink("/proc/self/ns/pid")
    except OSError:
        space = ""
    return f"{platform.node()}|{boot}|{space}".replace("/", "_")


def _started(process: int) -> str:
    """Return when a process started, in clock ticks since boot (proc(5), field 22 of stat)."""
    # The program's name stands in parentheses and may hold blanks and parentheses itself.
    fields = _read(f"/proc/{process}/stat").rpartition(")")[2].split()
    return fields[19] if len(fields) > 19 else _NO_START


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
