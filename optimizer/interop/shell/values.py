"""Values of a script: texts in which what only the outside knows stands as a named hole, and bash's rules for words.

A hole is written between two private characters, so that it survives every text operation and is found again in the words
of a command.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import translate
from functools import cache

HOLE = "\ue000{}\ue001"
"""Template of a hole; the name inside says what would fill it."""

_HOLES = re.compile("\ue000([^\ue001]*)\ue001")
_BLANK = "\ue002"
"""A blank in the name of a hole, where no word may be split."""

_PRIVATE = re.compile("[\ue000-\ue002]")
_BRACES = re.compile(r"\{([^{}]*)\}")
MAX_WORDS = 5_000
"""Most words that one word of a script may become, and longest text that is searched for a glob."""

_BLANKS = re.compile(r"[ \t\n]+")

Array = dict[str, str]
"""A shell array: elements by index or key, both texts, in order."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Part of a word; what stood in quotes is kept whole, the rest is split at blanks."""

    text: str
    quoted: bool


def hole(name: str) -> str:
    """Return a text that stands for what only the outside knows."""
    return HOLE.format(re.sub(r"\s", _BLANK, _PRIVATE.sub("", name)))


def holes(text: str) -> list[str]:
    """Return the names of the holes in a text."""
    return [name.replace(_BLANK, " ") for name in _HOLES.findall(text)]


def has_hole(text: str) -> bool:
    """Tell whether part of a text comes from outside."""
    return "\ue000" in text


def show(text: str) -> str:
    """Write a text for people: holes as ``$NAME``."""
    return _HOLES.sub(lambda match: f"${match[1].replace(_BLANK, ' ')}", text)


def without_private(text: str) -> str:
    """Drop the characters that mark holes from a text of a file."""
    return _PRIVATE.sub("", text)


def split_fields(fields: list[list[Piece]], blanks: str | None = None) -> list[str]:
    """Turn pieces into words: unquoted text is split at blanks (or ``blanks``), empty unquoted words vanish."""
    words: list[str] = []
    for pieces in fields:
        words += _split_one(pieces, blanks)
    return words


def _split_one(pieces: list[Piece], blanks: str | None) -> list[str]:
    separator = _BLANKS if blanks is None else re.compile(f"[{re.escape(blanks)}]+") if blanks else None
    words: list[str] = []
    current: str | None = None
    for piece in pieces:
        if piece.quoted or separator is None:
            current = (current or "") + piece.text if piece.quoted or piece.text else current
            continue
        first, *others = separator.split(piece.text)
        if first:
            current = (current or "") + first
        for other in others:
            if current is not None:
                words.append(current)
            current = other or None
    return words if current is None else [*words, current]


def joined(pieces: list[Piece]) -> str:
    """Return pieces as one text, without splitting."""
    return "".join(piece.text for piece in pieces)


@cache
def glob_pattern(glob: str) -> re.Pattern[str]:
    """Return the pattern of a shell glob."""
    return re.compile(translate(re.sub(r"\[\^", "[!", glob)))


def glob_matches(text: str, glob: str) -> bool:
    """Tell whether a whole text matches a shell glob."""
    return glob_pattern(glob).fullmatch(text) is not None


def trim(text: str, glob: str, *, front: bool, longest: bool) -> str:
    """Cut off what matches a glob at one end (``${x#glob}``, ``##``, ``%``, ``%%``)."""
    if not re.search(r"[*?\[]", glob):
        return text.removeprefix(glob) if front else text.removesuffix(glob)
    if len(text) > MAX_WORDS // 5:
        return hole("pattern")
    ends = range(len(text) + 1)
    order = reversed(ends) if longest else ends
    for size in order:
        part = text[:size] if front else text[len(text) - size :]
        if glob_matches(part, glob):
            return text[size:] if front else text[: len(text) - size]
    return text


def replace_glob(text: str, glob: str, new: str, *, every: bool) -> str:
    """Replace what matches a glob (``${x/glob/new}``, ``//``); ``#`` and ``%`` in front bind it to an end."""
    if glob.startswith(("#", "%")):
        front = glob[0] == "#"
        rest = trim(text, glob[1:], front=front, longest=True)
        if rest == text:
            return text
        return new + rest if front else rest + new
    if not re.search(r"[*?\[]", glob):
        return text.replace(glob, new, -1 if every else 1) if glob else text
    if len(text) > MAX_WORDS // 5:
        return hole("pattern")
    result, at = [], 0
    while at < len(text):
        end = next((end for end in range(len(text), at, -1) if glob_matches(text[at:end], glob)), None)
        if end is None:
            result.append(text[at])
            at += 1
            continue
        result.append(new)
        at = end
        if not every:
            break
    return "".join(result) + text[at:]


def brace_expand(text: str, most: int = MAX_WORDS) -> list[str]:
    """Expand ``{a,b}`` and ``{1..4}`` in an unquoted word; without braces, or beyond ``most`` words, the word itself."""
    words = _braces(text, most)
    return [text] if words is None else words


def _braces(text: str, most: int) -> list[str] | None:
    match = _BRACES.search(text)
    while match:
        inner = match[1]
        span = re.fullmatch(r"(-?\d{1,6})\.\.(-?\d{1,6})(?:\.\.(-?\d{1,6}))?", inner)
        parts = _span(span) if span else inner.split(",") if "," in inner else None
        if parts is not None:
            before, after = text[: match.start()], text[match.end() :]
            words: list[str] = []
            for part in parts:
                found = _braces(before + part + after, most - len(words))
                if found is None or len(words) + len(found) > most:
                    return None
                words += found
            return words
        match = _BRACES.search(text, match.end())
    return [text]


def _span(span: re.Match[str]) -> list[str]:
    first, last = int(span[1]), int(span[2])
    step = abs(int(span[3] or 1)) or 1
    ends = range(first, last + 1, step) if first <= last else range(first, last - 1, -step)
    return [str(value) for value in ends[: MAX_WORDS + 1]]
