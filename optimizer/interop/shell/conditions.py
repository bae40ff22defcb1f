"""Conditions of a script, three-valued: true, false, or open because only the outside knows."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from layoutopt.optimizer.interop.shell.patterns import glob_matches
from layoutopt.optimizer.interop.shell.syntax import text_of
from layoutopt.optimizer.interop.shell.values import has_hole, hole, without_holes

if TYPE_CHECKING:
    from collections.abc import Callable

    from tree_sitter import Node

    from layoutopt.optimizer.interop.shell.expand import Expander

_NUMBERS: dict[str, Callable[[int, int], bool]] = {
    "-eq": int.__eq__, "-ne": int.__ne__, "-lt": int.__lt__, "-le": int.__le__, "-gt": int.__gt__, "-ge": int.__ge__,
}  # fmt: skip
_TEXTS = ("=", "==", "!=", "=~", "<", ">")
_UNARY = re.compile(r"-[a-zA-Z]")
_OPERANDS = (
    "word", "string", "raw_string", "ansi_c_string", "translated_string", "simple_expansion", "expansion", "number",
    "concatenation", "command_substitution", "arithmetic_expansion", "extglob_pattern", "regex", "command_name",
    "variable_name", "process_substitution",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Token:
    """One token of a test: an operator, or an operand with its text, its source, and whether all of it stood in quotes."""

    text: str
    operand: bool
    quoted: bool = False
    source: str = ""


def test_node(node: Node, expander: Expander) -> bool | None:
    """Judge ``[ ... ]`` or ``[[ ... ]]``."""
    double = text_of(node.children[0]).strip() == "[["
    tokens = [token for child in node.children[1:-1] for token in _tokens(child, expander, double=double)]
    return _Judge(tokens, expander, double=double).whole()


def test_words(words: list[str], expander: Expander) -> bool | None:
    """Judge the arguments of ``test`` or ``[``."""
    known = (*_NUMBERS, *_TEXTS, "-a", "-o", "!", "(", ")")
    operands = [not (word in known or _UNARY.fullmatch(word)) for word in words]
    tokens = [Token(word, operand, quoted=operand) for word, operand in zip(words, operands, strict=True)]
    return _Judge(tokens, expander, double=False).whole()


def _tokens(node: Node, expander: Expander, *, double: bool) -> list[Token]:
    kind = node.type
    if kind in _OPERANDS:
        quoted = kind in ("string", "raw_string", "ansi_c_string")
        if double:
            return [Token(expander.text(node), True, quoted, text_of(node).strip())]
        return [Token(word, True, quoted) for word in expander.words(node)]
    if node.children:
        return [token for child in node.children for token in _tokens(child, expander, double=double)]
    text = text_of(node).strip()
    return [Token(text, operand=False)] if text else []


class _Judge:
    """Recursive descent: ``||`` binds least, then ``&&``, then ``!``."""

    def __init__(self, tokens: list[Token], expander: Expander, *, double: bool) -> None:
        self.tokens, self.expander, self.double, self.at = tokens, expander, double, 0

    def whole(self) -> bool | None:
        """Judge all tokens; none is false, and what is not understood is open."""
        if not self.tokens:
            return False
        result = self.either()
        return result if self.at == len(self.tokens) else None

    def either(self) -> bool | None:
        """Read alternatives."""
        # Every side is read, as the tokens have to be passed over: one that holds decides, whatever is open.
        results = [self.both()]
        while self.take("||", "-o"):
            results.append(self.both())
        return True if True in results else None if None in results else False

    def both(self) -> bool | None:
        """Read conditions that have to hold together."""
        results = [self.negated()]
        while self.take("&&", "-a"):
            results.append(self.negated())
        return False if False in results else None if None in results else True

    def negated(self) -> bool | None:
        """Read ``!`` and parentheses."""
        if self.take("!"):
            result = self.negated()
            return None if result is None else not result
        if self.take("("):
            result = self.either()
            return result if self.take(")") else None
        return self.primary()

    def take(self, *marks: str) -> bool:
        """Step over an operator if it is next."""
        following = self.tokens[self.at] if self.at < len(self.tokens) else None
        taken = following is not None and not following.operand and following.text in marks
        self.at += taken
        return taken

    def next(self) -> Token | None:
        """Return the next token and step over it."""
        self.at += 1
        return self.tokens[self.at - 1] if self.at <= len(self.tokens) else None

    def primary(self) -> bool | None:
        """Read one comparison, one question about a text, or a text that must not be empty."""
        first = self.next()
        if first is None:
            return False
        following = self.tokens[self.at] if self.at < len(self.tokens) else None
        if _UNARY.fullmatch(first.text) and not first.quoted and following and following.operand:
            self.at += 1
            return self.question(first.text, following.text)
        if _UNARY.fullmatch(first.text) and not first.operand and following is None:
            return True  # [ -n $EMPTY ] is [ -n ], a text that is not empty
        compares = following and (following.text in _NUMBERS or following.text in _TEXTS)
        if following and compares and self.at + 1 < len(self.tokens):
            self.at += 2
            return self.compare(first.text, following.text, self.tokens[self.at - 1])
        # A text beside a hole is not empty, whatever fills the hole.
        return None if has_hole(first.text) and not without_holes(first.text) else first.text != ""

    def question(self, mark: str, text: str) -> bool | None:
        """``-z`` and ``-n`` ask for a text, ``-v`` for a variable; files are known if the script writes them."""
        state = self.expander.state
        if mark == "-v" and not has_hole(text):
            name, bracket, key = text.partition("[")
            value = state.value(name)
            if value is None:
                return None
            return not bracket or (isinstance(value, dict) and self.expander.key_of(name, key[:-1]) in value)
        if mark in ("-f", "-e", "-s", "-r"):
            return state.has_file(text, filled=mark == "-s")
        if mark not in ("-z", "-n") or (has_hole(text) and not without_holes(text)):
            return None
        return (without_holes(text) == "") == (mark == "-z")

    def compare(self, left: str, mark: str, right: Token) -> bool | None:
        """Judge a comparison of texts, patterns or numbers."""
        if has_hole(left) or has_hole(right.text):
            return None
        if mark in _NUMBERS:
            return self.numbers(left, mark, right.text)
        if mark == "=~":
            return self.matches(left, self.expander.regex(right.source or right.text))
        if mark in ("<", ">"):
            return left < right.text if mark == "<" else left > right.text
        equal: bool | None = left == right.text
        if self.double:  # the right side of == in [[ is a pattern where it is not quoted, in [ it never is
            glob = self.expander.pattern(right.source)
            equal = None if has_hole(glob) else glob_matches(left, glob)
        return equal if mark != "!=" or equal is None else not equal

    def numbers(self, left: str, mark: str, right: str) -> bool | None:
        """Compare whole numbers; ``[[`` takes expressions as well."""
        whole = re.compile(r"\s*[-+]?\d{1,18}\s*").fullmatch
        first, second = (
            self.expander.number(text) if self.double else int(text) if whole(text) else None
            for text in (left, right)
        )
        return None if first is None or second is None else _NUMBERS[mark](first, second)

    def matches(self, text: str, pattern: str) -> bool | None:
        """Search a regular expression and keep its groups."""
        found = None if has_hole(pattern) else search(text, pattern)
        if found is None:
            self.expander.state.assign("BASH_REMATCH", hole("BASH_REMATCH"))
            return None
        groups = () if isinstance(found, bool) else (found[0], *found.groups(""))
        self.expander.state.assign("BASH_REMATCH", {str(place): group for place, group in enumerate(groups)})
        return bool(found)


MOST_STEPS = 10**7
"""Places that a search with several repeats may try: as many as the text's length to their number and one."""

_POSIX = {
    "[:digit:]": r"\d", "[:space:]": r"\s", "[:alnum:]": "0-9A-Za-z", "[:alpha:]": "A-Za-z", "[:lower:]": "a-z",
    "[:upper:]": "A-Z", "[:xdigit:]": "0-9A-Fa-f", "[:blank:]": r" \t",
}  # fmt: skip


def search(text: str, pattern: str) -> re.Match[str] | bool | None:
    """Search an extended regular expression that cannot run away: False without a match, None where that stays open."""
    compiled = expression(pattern, len(text))
    return None if compiled is None else compiled.search(text) or False


def expression(pattern: str, length: int) -> re.Pattern[str] | None:
    """Return an extended regular expression that cannot run away on a text of that length; None for others."""
    # Repeats of repeats may take exponential time; \w and its kin are no part of POSIX.
    if re.search(r"\)[*+{]|[*+}][*+{]|\\[a-zA-Z0-9<>]", pattern) or len(pattern) > 200 or length > 2_000:
        return None
    repeats = len(re.findall(r"[*+{]", pattern))
    if repeats > 1 and max(length, 1) ** (repeats + 1) > MOST_STEPS:
        return None
    for name, letters in _POSIX.items():
        pattern = pattern.replace(name, letters)
    try:
        return re.compile(pattern)
    except re.error:
        return None
