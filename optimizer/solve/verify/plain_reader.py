"""Typed reading of plain data (parsed JSON) that collects every problem before it complains."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeVar

from layoutopt.optimizer.specs.errors import InputError, Problem

if TYPE_CHECKING:
    from collections.abc import Callable

_T = TypeVar("_T")
_MISSING = object()


class PlainReader:
    """Reads values by dotted path from nested mappings.

    A missing or wrong value is noted and a neutral one returned; ``finish`` raises ``InputError`` with all
    problems. ``file`` and ``prefix`` say where the data came from; readers may share ``problems``.
    """

    def __init__(
        self, data: object, *, file: str = "", prefix: str = "", problems: list[Problem] | None = None
    ) -> None:
        self.file = file
        self._data = data
        self._prefix = prefix
        self._problems = [] if problems is None else problems
        if not isinstance(data, dict):
            self._note("", "not a JSON object", "an object with named keys")

    def finish(self) -> None:
        """Raise ``InputError`` if any value was missing or wrong."""
        if self._problems:
            raise InputError(*self._problems)

    def has(self, path: str) -> bool:
        """Whether the key is there and not null."""
        return self._get(path) not in (_MISSING, None)

    def number(self, path: str) -> float:
        """Read a finite number."""
        return self._as_number(path, self._need(path, "a number"))

    def optional_number(self, path: str) -> float | None:
        """Read a finite number, or None where the key is missing or null."""
        return self.number(path) if self.has(path) else None

    def integer(self, path: str) -> int:
        """Read a whole number, 0 or more."""
        return self._as_integer(path, self._need(path, "a whole number"))

    def text(self, path: str) -> str:
        """Read a string."""
        value = self._need(path, "text")
        return value if isinstance(value, str) else self._wrong(path, value, "text", "")

    def choice(self, path: str, allowed: list[str]) -> str:
        """Read one of several words; the first stands in for a wrong one."""
        value = self._need(path, " or ".join(allowed))
        return (
            value
            if isinstance(value, str) and value in allowed
            else self._wrong(path, value, " or ".join(allowed), allowed[0])
        )

    def flag(self, path: str) -> bool:
        """Read true or false."""
        value = self._need(path, "true or false")
        return value if isinstance(value, bool) else self._wrong(path, value, "true or false", False)

    def mapping(self, path: str) -> dict[str, object]:
        """Read an object."""
        value = self._need(path, "an object")
        return value if isinstance(value, dict) else self._wrong(path, value, "an object", {})

    def numbers(self, path: str) -> dict[str, float]:
        """Read an object whose values are finite numbers."""
        return {key: self._as_number(f"{path}.{key}", value) for key, value in self.mapping(path).items()}

    def integers(self, path: str) -> dict[str, int]:
        """Read an object whose values are whole numbers."""
        return {key: self._as_integer(f"{path}.{key}", value) for key, value in self.mapping(path).items()}

    def items(self, path: str) -> list[object]:
        """Read a list."""
        value = self._need(path, "a list")
        return value if isinstance(value, list) else self._wrong(path, value, "a list", [])

    def texts(self, path: str) -> tuple[str, ...]:
        """Read a list of strings."""
        values = [value for value in self.items(path) if isinstance(value, str)]
        if len(values) < len(self.items(path)):
            self._wrong(path, self.items(path), "a list of text", None)
        return tuple(values)

    def under(self, path: str) -> PlainReader:
        """Return a reader of a nested object."""
        return self._nested(path, self.mapping(path))

    def read_with(self, read: Callable[[object], _T], path: str) -> _T | None:
        """Let ``read`` make something of a value; its problems join the others, and None is returned."""
        value = self._need(path, "an object")
        try:
            return None if value is _MISSING else read(value)
        except InputError as error:
            self._problems.extend(problem for problem in error.problems if problem not in self._problems)
            return None

    def entries(self, path: str) -> list[PlainReader]:
        """Return a reader for each object of a list."""
        return [self._nested(f"{path}[{index}]", item) for index, item in enumerate(self.items(path))]

    def _nested(self, path: str, data: object) -> PlainReader:
        return PlainReader(data, file=self.file, prefix=self._key(path), problems=self._problems)

    def _key(self, path: str) -> str:
        return ".".join(part for part in (self._prefix, path) if part)

    def _note(self, path: str, what: str, allowed: str) -> None:
        problem = Problem(what=what, allowed=allowed, file=self.file, key=self._key(path))
        if problem not in self._problems:
            self._problems.append(problem)

    def _get(self, path: str) -> object:
        value: object = self._data
        for part in path.split("."):
            if not isinstance(value, dict) or part not in value:
                return _MISSING
            value = value[part]
        return value

    def _need(self, path: str, allowed: str) -> object:
        value = self._get(path)
        if value is _MISSING:
            self._note(path, "missing", allowed)
        return value

    def _as_number(self, path: str, value: object) -> float:
        # True is an int to Python, and no number to a reader.
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not _is_finite(value):
            return self._wrong(path, value, "a finite number", 0.0)
        return float(value)

    def _as_integer(self, path: str, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            return self._wrong(path, value, "a whole number, 0 or more", 0)
        return value

    def _wrong(self, path: str, value: object, allowed: str, neutral: _T) -> _T:
        if value is not _MISSING:
            self._note(path, f"{short(value)} is not valid", allowed)
        return neutral


def _is_finite(value: float) -> bool:
    """Whether a number is one that arithmetic can take; whole numbers may be too large for a float."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def short(value: object) -> str:
    """Write any value of parsed JSON on one line of at most 40 characters; whole numbers may have any length."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # Python refuses to print more than 4,300 digits, or to go too deep
        return "a huge number" if isinstance(value, int) else f"a huge {type(value).__name__}"
    return text if len(text) <= 40 else text[:37] + "..."
