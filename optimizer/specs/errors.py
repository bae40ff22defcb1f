"""What is wrong with an input, said in one line each."""

from __future__ import annotations

import re
from dataclasses import dataclass

_ENDLESS = re.compile(r"(\S{200})\S{800,}")
"""A word of more than a thousand characters is nobody's path or name: its start says enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One problem: where (file, line, key), what is wrong, and what would be valid."""

    what: str
    allowed: str = ""
    file: str = ""
    line: int | None = None
    key: str = ""

    def __str__(self) -> str:
        place = self.file + (f":{self.line}" if self.line is not None else "")
        parts = [part for part in (place, self.key, self.what) if part]
        return _ENDLESS.sub(r"\1...", ": ".join(parts)) + (f" ({self.allowed})" if self.allowed else "")


class InputError(ValueError):
    """Bad input: carries every problem found, one line each. The command line exits with 2."""

    def __init__(self, *problems: Problem) -> None:
        self.problems = problems
        super().__init__("\n".join(str(problem) for problem in problems))


def input_error(
    what: str, allowed: str = "", *, key: str = "", file: str = "", line: int | None = None
) -> InputError:
    """Build an ``InputError`` with a single problem."""
    return InputError(Problem(what=what, allowed=allowed, key=key, file=file, line=line))
