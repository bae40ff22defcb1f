"""Slurm hostlist expressions: ``gpu[001-016,018],login1`` with zero padding kept."""

from __future__ import annotations

import re

from layoutopt.optimizer.interop.reading import importer, shorten
from layoutopt.optimizer.specs.errors import input_error

MAX_HOSTS = 200_000
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")


@importer
def expand_hostlist(text: str, *, key: str = "") -> tuple[str, ...]:
    """Expand a hostlist to its names, in order. Raises ``InputError`` where it names no host or too many."""
    names: list[str] = []
    for part in _split(text, key):
        names += _expand(part, key)
        if len(names) > MAX_HOSTS:
            raise input_error("hostlist is too long", f"at most {MAX_HOSTS} hosts", key=key)
    if not names:
        raise input_error(f"hostlist {shorten(text)!r} is empty", "like gpu[001-016]", key=key)
    return tuple(names)


def _split(text: str, key: str) -> list[str]:
    """Split at the commas outside of brackets."""
    parts, depth, start = [], 0, 0
    for index, char in enumerate(text):
        depth += (char == "[") - (char == "]")
        if depth not in (0, 1):
            break
        if char == "," and depth == 0:
            parts.append(text[start:index])
            start = index + 1
    if depth != 0:
        raise input_error(f"hostlist {shorten(text)!r} has unbalanced brackets", "like gpu[001-016]", key=key)
    return [part.strip() for part in [*parts, text[start:]] if part.strip()]


def _expand(part: str, key: str) -> list[str]:
    match = _BRACKETS.search(part)
    if match is None:
        if not re.fullmatch(r"[\w.\-]+", part):
            raise input_error(f"{shorten(part)!r} is not a host name", "like gpu[001-016]", key=key)
        return [part]
    tails = _expand(part[match.end() :], key) if part[match.end() :] else [""]
    numbers = _numbers(match[1], part, key)
    if len(numbers) * len(tails) > MAX_HOSTS:
        raise input_error("hostlist is too long", f"at most {MAX_HOSTS} hosts", key=key)
    return [part[: match.start()] + number + tail for number in numbers for tail in tails]


def _numbers(inside: str, part: str, key: str) -> list[str]:
    numbers: list[str] = []
    for piece in inside.split(","):
        match = _RANGE.fullmatch(piece.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if match is None or last < first or last - first > MAX_HOSTS or len(numbers) > MAX_HOSTS:
            raise input_error(f"{shorten(part)!r} is not a hostlist", "like gpu[001-016,018]", key=key)
        # the start of a range fixes the zero padding of all its numbers
        width = len(match[1])
        numbers += [str(number).zfill(width) for number in range(first, last + 1)]
    return numbers
