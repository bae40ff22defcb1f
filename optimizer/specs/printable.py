"""What a terminal may be sent: text in which control characters are written out; and what may be a name."""

from __future__ import annotations

import unicodedata

from layoutopt.optimizer.specs.errors import input_error
from layoutopt.optimizer.specs.units import shown

LONGEST_NAME = 200

KEPT = frozenset("\n\t")
"""Controls that lay out text; within one line they are written out too."""

HIDDEN = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))
"""Unicode categories that steer a terminal or hide what is there: controls, directions, half pairs, line separators."""


def printable(text: str, *, lines: bool = False) -> str:
    """Write out the characters that a terminal would act on, as ``\\x1b`` or ``\\u202e``.

    With ``lines`` line ends and tabs stay; without, the result is one line.
    """
    if text.isascii() and text.isprintable():
        return text
    kept = KEPT if lines else frozenset()
    return "".join(_shown(sign) if _is_hidden(sign) and sign not in kept else sign for sign in text)


def _is_hidden(sign: str) -> bool:
    return unicodedata.category(sign) in HIDDEN


def _shown(sign: str) -> str:
    return sign.encode("ascii", "backslashreplace").decode() if ord(sign) > 0x7F else repr(sign)[1:-1]


def is_name(text: object) -> bool:
    """Tell whether something may name a model, a cluster or a GPU: one line of printable characters."""
    # Names stand in tables, file names and comments of scripts: a line end in one would end those.
    return isinstance(text, str) and bool(text.strip()) and text.isprintable() and len(text) <= LONGEST_NAME


def require_name(text: object, key: str = "name") -> None:
    """Raise ``InputError`` for what may not be a name, wherever it comes from."""
    if not is_name(text):
        what = f"{shown(text)} is not a name"
        raise input_error(what, f"one line of 1 to {LONGEST_NAME} printable characters", key=key)


def as_name(text: str, otherwise: str = "unnamed") -> str:
    """Return the nearest name to a text that was not written as one, such as a path or another tool's field."""
    return " ".join(printable(text).split())[:LONGEST_NAME].strip() or otherwise
