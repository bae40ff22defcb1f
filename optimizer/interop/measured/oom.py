"""torch's out-of-memory messages, of all its generations."""

from __future__ import annotations

import re

from layoutopt.optimizer.interop.reading import importer
from layoutopt.optimizer.interop.records import OutOfMemory
from layoutopt.optimizer.specs.errors import input_error

UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_SIZE = r"([\d.]{1,18}) (bytes|KiB|MiB|GiB|TiB)"
_START = re.compile(rf"out of memory\.\s+Tried to allocate {_SIZE}")
_FIELDS = {
    # torch 2.1 writes capacty; up to torch 2.0: (GPU 2; 39.50 GiB total capacity; 33.25 GiB already allocated; ...)
    "capacity": (rf"{_SIZE} total capacity", rf"total capaci?ty of {_SIZE}"),
    "free": (rf"{_SIZE} free", rf"of which {_SIZE} is free"),
    "in_use": (rf"this process has {_SIZE} memory in use", rf"Process \d+ has {_SIZE} memory in use"),
    "allocated": (rf"{_SIZE} already allocated", rf"Of the allocated memory {_SIZE} is allocated by PyTorch"),
    "reserved": (rf"{_SIZE} reserved in total by PyTorch",),
    # torch up to 1.3 prints what is cached beside what is allocated
    "unallocated": (rf"{_SIZE} is reserved by PyTorch but unallocated", rf"{_SIZE} cached\)"),
}
_PROCESS = re.compile(r"Process \d+ has ")
_GPU = re.compile(r"GPU (\d{1,4})")


@importer
def import_oom(text: str, file: str = "") -> tuple[OutOfMemory, ...]:
    """Read every out-of-memory message in a log. Raises ``InputError`` where there is none."""
    starts = list(_START.finditer(text))
    # A message ends where the next one begins: ranks that die together print theirs one behind another.
    ends = [*(match.start() for match in starts[1:]), len(text)][: len(starts)]
    messages = [
        _message(match, " ".join(text[match.start() : end].split()))
        for match, end in zip(starts, ends, strict=True)
    ]
    found = tuple(message for message in messages if message is not None)
    if not found:
        raise input_error("no out-of-memory message", "torch's line with 'Tried to allocate'", file=file)
    return found


def _message(match: re.Match[str], text: str) -> OutOfMemory | None:
    sizes = {name: _find(patterns, text) for name, patterns in _FIELDS.items()}
    tried, capacity = _bytes(match[1], match[2]), sizes["capacity"]
    if tried is None or capacity is None:
        return None
    allocated, unallocated = sizes["allocated"], sizes["unallocated"]
    reserved = sizes["reserved"]
    if reserved is None and allocated is not None and unallocated is not None:
        reserved = allocated + unallocated
    gpu = _GPU.search(text)
    if len(_PROCESS.findall(text)) > 1 and "this process has" not in text:
        sizes["in_use"] = None  # several processes, and none is said to be this one
    return OutOfMemory(
        tried_bytes=tried,
        capacity_bytes=capacity,
        free_bytes=sizes["free"],
        in_use_bytes=sizes["in_use"],
        allocated_bytes=allocated,
        reserved_bytes=reserved,
        gpu=int(gpu[1]) if gpu else None,
    )


def _find(patterns: tuple[str, ...], text: str) -> float | None:
    for pattern in patterns:
        if match := re.search(pattern, text):
            return _bytes(match[1], match[2])
    return None


def _bytes(number: str, unit: str) -> float | None:
    try:
        return float(number) * UNITS[unit]
    except ValueError:
        return None
