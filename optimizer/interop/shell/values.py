"""Values of a script: texts in which what only the outside knows stands as a named hole, and bash's rules for words.

A hole is written between two private characters, so that it survives every text operation and is found again in the words
of a command.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

HOLE = "\ue000{}\ue001"
"""Template of a hole; the name inside says what would fill it."""

_HOLES = re.compile("\ue000([^\ue001]*)\ue001")
_BLANK = "\ue002"
"""A blank in the name of a hole, where no word may be split."""

_PRIVATE = re.compile("[\ue000-\ue002]")
_WHITE = " \t\n"

Array = dict[str, str]
"""A shell array: elements by index or key, both texts, in order."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Part of a word; what stood in quotes or in the script itself is kept whole, the rest is split at blanks.

    ``glob`` is the pattern of names of files that the script's own text is, if it is one.
    """

    text: str
    quoted: bool
    glob: str = ""


def array_of(values: Iterable[str]) -> Array:
    """Return the array of some elements in turn."""
    return {str(place): value for place, value in enumerate(values)}


def hole(name: str) -> str:
    """Return a text that stands for what only the outside knows."""
    # A hole within a hole would end at the first closing mark, and a blank in it would split the word.
    return HOLE.format(re.sub(r"\s", _BLANK, _PRIVATE.sub("", name)))


def holes(text: str) -> list[str]:
    """Return the names of the holes in a text."""
    return [name.replace(_BLANK, " ") for name in _HOLES.findall(text)]


def has_hole(text: str) -> bool:
    """Tell whether part of a text comes from outside."""
    return "\ue000" in text


def without_holes(text: str, instead: str = "") -> str:
    """Return a text with something, or nothing, in place of what comes from outside."""
    return _HOLES.sub(instead, text)


def show(text: str) -> str:
    """Write a text for people: holes as ``$NAME``, those of an expansion as the script writes it."""
    shown = _HOLES.sub(lambda match: ("" if match[1][:1] in "$`{<" else "$") + match[1], text)
    return shown.replace(_BLANK, " ")


def without_private(text: str) -> str:
    """Drop the characters that mark holes from a text of a file."""
    # Else a file could hold holes of its own, and name what it likes as open.
    return _PRIVATE.sub("", text)


def split_fields(fields: list[list[Piece]], blanks: str | None = None) -> list[str]:
    """Turn pieces into words: unquoted text is split at blanks (or ``blanks``), empty unquoted words vanish."""
    words: list[str] = []
    for pieces in fields:
        words += _split_one(pieces, blanks)
    return words


@lru_cache(maxsize=64)
def separators(blanks: str | None) -> re.Pattern[str] | None:
    """Return what ends a field under a value of IFS (None: not set), None where nothing does.

    Blanks count once however many there are; any other character ends a field, an empty one too.
    """
    if blanks == "":
        return None
    marks = _WHITE if blanks is None else blanks
    white = "".join(re.escape(char) for char in marks if char in _WHITE)
    hard = "".join(re.escape(char) for char in marks if char not in _WHITE)
    soft = f"[{white}]" if white else ""
    if not hard:
        return re.compile(f"{soft}+")
    around = f"{soft}*" if white else ""
    return re.compile(f"{around}(?P<hard>[{hard}]){around}" + (f"|{soft}+" if white else ""))


def _split_one(pieces: list[Piece], blanks: str | None) -> list[str]:
    separator = separators(blanks)
    words: list[str] = []
    current: str | None = None
    for piece in pieces:
        if piece.quoted or separator is None:
            # "" is a word, an unquoted variable that is empty is none.
            current = (current or "") + piece.text if piece.quoted or piece.text else current
            continue
        at = 0
        for match in separator.finditer(piece.text):
            if match.start() > at:
                current = (current or "") + piece.text[at : match.start()]
            if current is not None:
                words.append(current)
            elif match.groupdict().get("hard"):
                words.append("")
            current, at = None, match.end()
        if at < len(piece.text):
            current = (current or "") + piece.text[at:]
    return words if current is None else [*words, current]


def joined(pieces: list[Piece]) -> str:
    """Return pieces as one text, without splitting."""
    return "".join(piece.text for piece in pieces)
