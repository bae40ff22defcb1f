"""What reading a script brings to light: commands, files it writes, what is open, and which way open conditions went."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from layoutopt.optimizer.specs.errors import input_error

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MAX_SPENT = 3_000_000
"""Work that reading one script may cost, over all ways through it: characters of values, statements weighted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """What the caller says about the world around a script.

    ``variables`` by name, ``arguments`` by position from 1, and ``beside``, which returns the text of a file that
    the script names (None where there is none).
    """

    variables: Mapping[str, str] = field(default_factory=dict)
    arguments: Mapping[int, str] = field(default_factory=dict)
    beside: Callable[[str], str | None] = lambda name: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """An open condition: its line, its branches in words, the one taken, what it depends on, what it sets."""

    line: int
    labels: tuple[str, ...]
    taken: int
    names: tuple[str, ...]
    changes: tuple[str, ...]

    @property
    def key(self) -> tuple[int, tuple[str, ...]]:
        """The condition's identity."""
        return self.line, self.labels


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command that the script would start: its words behind those of its launchers, its line, what it sees exported."""

    words: tuple[str, ...]
    line: int
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Record:
    """Collects for one reading of a script; ``decisions`` says which way each open condition goes."""

    file: str
    outside: Outside
    decisions: Mapping[tuple[int, tuple[str, ...]], int] = field(default_factory=dict)
    commands: list[Command] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    unwritten: set[str] = field(default_factory=set)
    """Files that a program writes, so that only running it would tell their text."""

    gone: set[str] = field(default_factory=set)
    """Files that the script removes."""

    missing: dict[str, int] = field(default_factory=dict)
    own: set[str] = field(default_factory=set)
    """Variables that the script sets somewhere."""

    notes: dict[str, None] = field(default_factory=dict)
    choices: dict[tuple[int, tuple[str, ...]], Choice] = field(default_factory=dict)
    decided: dict[int, list[tuple[str, ...]]] = field(default_factory=dict)
    """Open conditions that the caller decided, by their line, in order."""

    unread: dict[str, int] = field(default_factory=dict)
    budget: list[int] = field(default_factory=lambda: [MAX_SPENT])
    """What is left, shared by all readings of one script."""

    @property
    def given(self) -> Mapping[str, str]:
        """Variables that the caller gave."""
        return self.outside.variables

    @property
    def arguments(self) -> list[str] | None:
        """Arguments from the first to the last given, None if none is."""
        given = self.outside.arguments
        if not given:
            return None
        return [given.get(place, "") for place in range(1, max(given) + 1)]

    @property
    def numbered(self) -> Mapping[str, str]:
        """Arguments by position as text."""
        return {str(place): value for place, value in self.outside.arguments.items()}

    def spend(self, size: int) -> None:
        """Count work. Raises ``InputError`` for a script that grows beyond all use."""
        self.budget[0] -= size
        if self.budget[0] < 0:
            raise input_error("script is too long", "one that configures a run", file=self.file)

    def assume(self, text: str) -> None:
        """Note what is taken for granted."""
        self.notes[text] = None

    def decide(
        self, line: int, labels: tuple[str, ...], names: tuple[str, ...], changes: tuple[str, ...]
    ) -> int:
        """Return which branch of an open condition is taken, and remember that it was open."""
        # By its line and its branches: loops and functions come to one condition often, and it goes the same way.
        key = (line, labels)
        given = self._stated(line, labels)
        if given is not None:
            return given
        taken = self.decisions.get(key, 0)
        self.choices[key] = Choice(line=line, labels=labels, taken=taken, names=names, changes=changes)
        return taken

    def _stated(self, line: int, labels: tuple[str, ...]) -> int | None:
        """Return the branch that the caller's ``LINE_<line>`` names, counted from 1; of several conditions by commas."""
        name = f"LINE_{line}"
        text = self.given.get(name)
        if text is None:
            return None
        here = self.decided.setdefault(line, [])
        if labels not in here:
            here.append(labels)
        parts = text.split(",")
        part = parts[min(here.index(labels), len(parts) - 1)].strip()
        if not part.isdecimal() or len(part) > 3 or not 1 <= int(part) <= len(labels):
            what = f"{name}={text[:60]} is no branch of line {line}"
            raise input_error(what, f"1 to {len(labels)}, in the script's order", file=self.file)
        return int(part) - 1
