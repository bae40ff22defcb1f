"""The source of a word, part by part: plain characters, quotes and expansions."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from layoutopt.optimizer.interop.shell.patterns import balanced, skip

if TYPE_CHECKING:
    from collections.abc import Iterator

PLAIN, SINGLE, DOUBLE, ANSI, EXPANSION = "plain", "single", "double", "ansi", "expansion"
_NAME = re.compile(r"\$(?:[A-Za-z_]\w*|[0-9@*#?$!_-])")
_ESCAPES = {
    "n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f", "v": "\v",
}  # fmt: skip
_ESCAPED = re.compile(
    r"\\(?:x(?P<hex>[0-9A-Fa-f]{1,2})|u(?P<u>[0-9A-Fa-f]{1,4})|U(?P<U>[0-9A-Fa-f]{1,8})|0?(?P<octal>[0-7]{1,3})|(?P<char>.))",
    re.DOTALL,
)


def scan(source: str, *, quotes: bool = True) -> Iterator[tuple[str, str]]:
    """Yield kinds and sources of the parts of a word; ``quotes`` False reads a text in which they mean nothing."""
    at = 0
    while at < len(source):
        kind, end = _part(source, at, quotes)
        yield kind, source[at:end]
        at = end


def _part(source: str, at: int, quotes: bool) -> tuple[str, int]:
    char, following = source[at], source[at + 1 : at + 2]
    if char == "\\":
        return PLAIN, min(at + 2, len(source))
    if quotes and char == "'":
        return SINGLE, skip(source, at)
    if quotes and char == '"':
        return DOUBLE, skip(source, at)
    # $"..." is translated by the locale's catalog, of which a script has none: a double-quoted text.
    if quotes and char == "$" and following in ("'", '"'):
        return (ANSI, skip(source, at)) if following == "'" else (DOUBLE, skip(source, at + 1))
    if char == "`":
        return EXPANSION, skip(source, at)
    if char == "$" and following in ("{", "("):
        return EXPANSION, balanced(source, at + 1)
    match = _NAME.match(source, at) if char == "$" else None
    if match:
        return EXPANSION, match.end()
    match = re.compile(r"[^\\'\"`$]+").match(source, at)
    return PLAIN, match.end() if match else at + 1


def unescaped(text: str, special: str | None = None) -> str:
    """Take the character after a backslash as it is (``special``: only these); a line break vanishes."""

    def plain(match: re.Match[str]) -> str:
        """Return what one escaped character stands for."""
        char = match[1]
        if special is not None and char not in special:
            return match[0]
        return "" if char == "\n" else char

    return re.sub(r"\\(.)", plain, text, flags=re.DOTALL)


def decoded(text: str) -> str:
    """Return what a text with C's escapes stands for, as in ``$'...'``, ``echo -e`` and ``printf``."""

    def char(match: re.Match[str]) -> str:
        """Return one escaped character."""
        number = match["hex"] or match["u"] or match["U"]
        if number or match["octal"]:
            value = int(number, 16) if number else int(match["octal"], 8)
            # Halves of surrogate pairs are no characters, and the private ones behind them mark holes.
            return chr(value) if value < 0xD800 or 0xE003 < value <= 0x10FFFF else match[0]
        kept = match["char"] if match["char"] in "\\'\"?" else match[0]
        return _ESCAPES.get(match["char"], kept)

    return _ESCAPED.sub(char, text)
