"""Command words to flags: ``--flag value``, ``--flag=value``, lists, switches and the launcher in front."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.interop.reading import LARGEST, Fields, shorten
from layoutopt.optimizer.interop.shell.scripts import how_to_give
from layoutopt.optimizer.interop.shell.values import has_hole, holes, show
from layoutopt.optimizer.specs.errors import InputError, Problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_NUMBER = re.compile(r"[+-]?\d{1,18}")
_REAL = re.compile(r"[+-]?(\d+\.\d*|\.\d+|\d+)([eE][+-]?\d{1,3})?")


def split_flags(words: Iterable[str]) -> dict[str, Any]:
    """Map each ``--flag`` (dashes as underscores) to True, one value, or a list; the last mention wins."""
    flags: dict[str, Any] = {}
    current: list[str] | None = None
    for word in words:
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word[2:].partition("=")
            current = [value] if equals else []
            flags[name.replace("-", "_")] = current
            current = None if equals else current
        elif current and word.endswith(".py"):
            # the script that a launcher starts; its own flags follow. Right behind a flag it is that flag's value.
            current = None
        elif current is not None:
            current.append(word)
    return {name: _value(values) for name, values in flags.items()}


def _value(values: list[str]) -> Any:
    if not values:
        return True
    scalars = [scalar(value) for value in values]
    return scalars[0] if len(scalars) == 1 else scalars


def scalar(text: str) -> Any:
    """Read one word as a number, a truth value, None or, else, itself without surrounding quotes."""
    bare = text.strip().strip("'\"")
    if _NUMBER.fullmatch(bare):
        return int(bare)
    if _REAL.fullmatch(bare):
        return float(bare)
    return {"true": True, "false": False, "none": None, "null": None}.get(bare.lower(), bare)


class LeftOpen(InputError):
    """A value that only the outside knows stands where nothing can be said without it."""


class ArgFields(Fields):
    """Fields of a command line: a value that comes from outside the script is reported by its name.

    ``unsaid`` says where flags may be that the script itself does not hold, empty where there can be none.
    """

    def __init__(
        self, data: Mapping[str, Any], *, file: str = "", prefix: str = "", unsaid: str = ""
    ) -> None:
        super().__init__(data, file=file, prefix=prefix)
        self.unsaid = unsaid

    def find(self, *keys: str) -> tuple[str, Any]:
        """Return the first flag present; one whose value is not in the script is left open and counts as absent."""
        key, value = super().find(*keys)
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, str) and has_hole(part):
                self.left_open[key] = f"{self.unresolved(part)} ({self.remedy(part)})"
                return key, None
        return key, value

    def required(self, *keys: str, least: int = 1, most: int = LARGEST) -> int:
        """Read a whole number that must be there; one that is open raises ``LeftOpen``."""
        key, value = self.find(*keys)
        if value is None and key in self.left_open:
            raise LeftOpen(Problem(what=self.left_open[key], key=self.path(key), file=self.file))
        return super().required(*keys, least=least, most=most)

    def unresolved(self, value: str) -> str:
        """Say where a value would have to come from."""
        return f"comes from {shorten(show(value))}, which the script does not set"

    def remedy(self, value: str) -> str:
        """Say how such a value can be given."""
        return how_to_give(holes(value))

    def flag(self, *keys: str) -> bool | None:
        """Read a switch: there or not; words behind it belong to somebody else."""
        for key in keys:
            if key in self.data:
                value = self.data[key]
                return value if value is None or isinstance(value, bool) else True
        return None

    def path(self, key: str) -> str:
        """Name of the flag, for messages."""
        return "--" + key.replace("_", "-")

    def items(self, *keys: str) -> list[Any] | None:
        """Read a list; a single value is a list of one."""
        # argparse makes a list of one word behind a flag of several, and an empty one of none.
        _, value = self.find(*keys)
        if value is None or isinstance(value, list):
            return value
        return [] if value is True else [value]


class SettingFields(ArgFields):
    """Settings of a configuration, which are strict about their types, and may be computed like those of a command."""

    path = Fields.path
    flag = Fields.flag
    items = Fields.items
