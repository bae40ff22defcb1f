"""Whole-number arithmetic as the shell does it; a name is looked up, and what it does not know makes the result unknown."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d{1,2}#[0-9A-Za-z@_]{1,20}|0[xX][0-9a-fA-F]{1,16}|\d{1,18})"
    r"|(?P<name>[A-Za-z_]\w*(?:\[[^\]]*\])?)"
    r"|(?P<mark>\*\*|<<=?|>>=?|<=|>=|==|!=|&&|\|\||\+\+|--|[-+*/%&|^]=|[-+*/%<>=!~&|^?:(),]))"
)
# C's order of operators, which bash follows, and above it **, which C does not have.
_LEVELS: dict[str, int] = {
    **dict.fromkeys(("||",), 2), **dict.fromkeys(("&&",), 3), "|": 4, "^": 5, "&": 6,
    **dict.fromkeys(("==", "!="), 7), **dict.fromkeys(("<", ">", "<=", ">="), 8),
    **dict.fromkeys(("<<", ">>"), 9), **dict.fromkeys(("+", "-"), 10), **dict.fromkeys(("*", "/", "%"), 11), "**": 12,
}  # fmt: skip
_ASSIGNING = ("=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>=")
_LARGEST = 2**63


class NotArithmetic(ValueError):
    """The text is no arithmetic expression."""


def evaluate(
    text: str, look_up: Callable[[str], int | None], assign: Callable[[str, int | None], None]
) -> int | None:
    """Return the value of an expression, None when it depends on what ``look_up`` does not know.

    Raises ``NotArithmetic`` where bash would complain.
    """
    return _Parser(text, look_up, assign).whole()


class _Parser:
    """Precedence climbing over the tokens of one expression."""

    def __init__(
        self, text: str, look_up: Callable[[str], int | None], assign: Callable[[str, int | None], None]
    ) -> None:
        self.tokens = _tokens(text)
        self.at = 0
        self.look_up, self._assign = look_up, assign
        self.live: bool | None = True
        """Whether the part that is read is evaluated; None where only the outside knows."""

    def assign(self, name: str, value: int | None) -> None:
        """Assign, unless ``&&``, ``||`` or ``?`` passes the part over."""
        if self.live is not False:
            self._assign(name, value if self.live else None)

    def aside(self, live: bool | None, read: Callable[[], int | None]) -> int | None:
        """Read a part that is evaluated only if ``live``."""
        # The part has to be read even when it is passed over: only its assignments must not happen. Inside a part that
        # is not evaluated nothing comes to life again.
        before, self.live = self.live, live if self.live else self.live
        try:
            return read()
        finally:
            self.live = before

    def whole(self) -> int | None:
        """Read the text to its end; commas keep the last value, and nothing at all is 0."""
        if not self.tokens:
            return 0
        value = self.ternary()
        while self.take(","):
            value = self.ternary()
        if self.at < len(self.tokens):
            raise NotArithmetic(self.tokens[self.at])
        return value

    def peek(self) -> str:
        """Return the next token, empty at the end."""
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self, mark: str) -> bool:
        """Step over a token if it is the next."""
        if self.peek() != mark:
            return False
        self.at += 1
        return True

    def ternary(self) -> int | None:
        """Read an assignment, ``a ? b : c``, or what binds tighter."""
        name, mark = self.peek(), self.tokens[self.at + 1] if self.at + 1 < len(self.tokens) else ""
        if mark in _ASSIGNING and (name[:1].isalpha() or name[:1] == "_"):
            self.at += 2
            value = self.ternary()
            value = value if mark == "=" else _apply(mark[:-1], self.look_up(name), value)
            self.assign(name, value)
            return value
        condition = self.binary(2)
        if not self.take("?"):
            return condition
        holds = None if condition is None else bool(condition)
        first = self.aside(holds, self.ternary)
        if not self.take(":"):
            raise NotArithmetic("?")
        second = self.aside(None if holds is None else not holds, self.ternary)
        return None if condition is None else first if condition else second

    def binary(self, level: int) -> int | None:
        """Read operators that bind at least as tightly as ``level``."""
        left = self.unary()
        while (own := _LEVELS.get(self.peek(), 0)) >= level:
            mark = self.peek()
            self.at += 1
            # ** alone groups from the right: 2**3**2 is 512.
            left = _apply(mark, left, self.right(mark, left, own if mark == "**" else own + 1))
        return left

    def right(self, mark: str, left: int | None, level: int) -> int | None:
        """Read the right side of an operator, which ``&&`` and ``||`` may pass over."""
        if mark not in ("&&", "||"):
            return self.binary(level)
        live = None if left is None else (left != 0) == (mark == "&&")
        return self.aside(live, lambda: self.binary(level))

    def unary(self) -> int | None:
        """Read signs, negation, steps, parentheses, numbers and names."""
        mark = self.peek()
        self.at += 1
        if mark in ("++", "--"):
            return self.step(self.peek(), 1 if mark == "++" else -1, after=False)
        # A sign binds tighter than **: to bash -2**2 is 4.
        if mark in ("+", "-", "!", "~"):
            value = self.unary()
            if value is None:
                return None
            return {"+": value, "-": -value, "!": int(not value), "~": ~value}[mark]
        if mark == "(":
            value = self.ternary()
            if not self.take(")"):
                raise NotArithmetic("(")
            return value
        if mark[:1].isdecimal():
            return _number(mark)
        if not (mark[:1].isalpha() or mark[:1] == "_"):
            raise NotArithmetic(mark)
        if self.peek() in ("++", "--"):
            self.at -= 1
            return self.step(mark, 1 if self.tokens[self.at + 1] == "++" else -1, after=True)
        return self.look_up(mark)

    def step(self, name: str, by: int, *, after: bool) -> int | None:
        """Read ``name++`` or ``--name``."""
        self.at += 2 if after else 1
        before = self.look_up(name)
        changed = None if before is None else before + by
        self.assign(name, changed)
        return before if after else changed


def _number(text: str) -> int:
    """Read a number as C does, and ``base#digits``."""
    base, mark, digits = text.partition("#")
    if not mark:
        octal = text[0] == "0" and len(text) > 1 and text[1] not in "xX"
        base, digits = ("16", text[2:]) if text[1:2] in ("x", "X") else ("8" if octal else "10", text)
    # Up to base 36 capitals and small letters are the same digits; above, capitals follow the small ones, then @ and _.
    letters = "0123456789abcdefghijklmnopqrstuvwxyz"
    order = letters if int(base) <= 36 else f"{letters}{letters[10:].upper()}@_"
    value = 0
    for char in digits.lower() if int(base) <= 36 else digits:
        place = order.find(char)
        if not 0 <= place < int(base):
            raise NotArithmetic(text)
        value = value * int(base) + place
    return value


def _tokens(text: str) -> list[str]:
    found, at, text = [], 0, text.strip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if not match:
            raise NotArithmetic(text[at : at + 20])
        found.append(match["number"] or match["name"] or match["mark"])
        at = match.end()
    return found


def _apply(mark: str, left: int | None, right: int | None) -> int | None:
    """Combine two values; one that is settled whatever the other is stays known."""
    if mark == "&&" and (left == 0 or right == 0):
        return 0
    if mark == "||" and ((left or 0) != 0 or (right or 0) != 0):
        return 1
    if left is None or right is None:
        return None
    if mark in ("/", "%") and right == 0:
        raise NotArithmetic("division by zero")
    # Bash refuses negative powers and leaves wider shifts to the processor; 9**9**9 would fill the memory here.
    if mark in ("<<", ">>", "**") and not 0 <= right < 64:
        raise NotArithmetic(mark)
    value = _OPERATIONS[mark](left, right)
    # Bash counts in 64 bits and goes round.
    return (value + _LARGEST) % (2 * _LARGEST) - _LARGEST


def _quotient(left: int, right: int) -> int:
    """Divide towards zero, as C does."""
    size = abs(left) // abs(right)
    return size if (left < 0) == (right < 0) else -size


_OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "+": int.__add__, "-": int.__sub__, "*": int.__mul__, "/": _quotient,
    "%": lambda left, right: left - right * _quotient(left, right), "**": lambda left, right: int(left**right),
    "<<": int.__lshift__, ">>": int.__rshift__, "&": int.__and__, "|": int.__or__, "^": int.__xor__,
    "&&": lambda left, right: int(bool(left) and bool(right)), "||": lambda left, right: int(bool(left) or bool(right)),
    "==": lambda left, right: int(left == right), "!=": lambda left, right: int(left != right),
    "<": lambda left, right: int(left < right), ">": lambda left, right: int(left > right),
    "<=": lambda left, right: int(left <= right), ">=": lambda left, right: int(left >= right),
}  # fmt: skip
