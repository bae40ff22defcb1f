"""What a terminal may be sent: text in which control characters are written out."""

from __future__ import annotations

import unicodedata

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
