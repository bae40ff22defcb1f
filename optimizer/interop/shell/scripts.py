"""Read a script: the commands it would start, in every way that its open conditions allow."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from layoutopt.optimizer.interop.shell.record import MAX_SPENT, Choice, Outside, Record
from layoutopt.optimizer.interop.shell.run import Shell
from layoutopt.optimizer.interop.shell.syntax import first_error, line_of, parse, text_of
from layoutopt.optimizer.interop.shell.values import show, without_private
from layoutopt.optimizer.specs.errors import InputError, input_error

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tree_sitter import Node

MAX_READINGS = 200
"""Ways through open conditions that are tried."""

_GIVEN = re.compile(r"\w+|[#@*]")
"""Names that a caller can give."""

Picked = TypeVar("Picked")
_Decisions = dict[tuple[int, tuple[str, ...]], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """One way through a script.

    ``commands`` are word tuples in order, holes shown as private characters (``shell.values``), ``environments`` the
    exported variables that each sees, ``lines`` where each stands; ``files`` what it writes;
    ``missing`` the variables that only the outside sets, by line; ``unread`` the files that it sources and that were not
    found; ``assumptions`` in words; ``choices`` the open conditions on the way, ``decided`` the lines
    of those that the caller decided by ``LINE_<line>``.
    """

    commands: tuple[tuple[str, ...], ...]
    environments: tuple[Mapping[str, str], ...]
    lines: tuple[int, ...]
    files: Mapping[str, str]
    missing: Mapping[str, int]
    unread: Mapping[str, int]
    assumptions: tuple[str, ...]
    choices: tuple[Choice, ...]
    decided: tuple[int, ...] = ()


def read_commands(
    text: str,
    pick: Callable[[Script], Picked | None],
    file: str = "",
    outside: Outside | None = None,
) -> tuple[list[tuple[Script, Picked]], bool]:
    """Return every command, or whatever else, that ``pick`` finds in a script, with the way that leads to it.

    Every open condition is tried both ways. Empty if no way leads to a command; the flag tells whether all ways were
    tried.
    """
    text, outside = without_private(text.replace("\r\n", "\n")), outside or Outside()
    root = parse(text, file)
    found: list[tuple[Script, Picked]] = []
    budget = [MAX_SPENT]
    waiting: list[_Decisions] = [{}]
    seen: set[tuple[tuple[tuple[int, tuple[str, ...]], int], ...]] = set()
    while waiting and len(seen) < MAX_READINGS:
        # In the order in which they were found: ways that differ in one condition come before those that differ in two.
        decisions = waiting.pop(0)
        mark = tuple(sorted(decisions.items()))
        if mark in seen:
            continue
        seen.add(mark)
        try:
            script = _read(root, Record(file=file, outside=outside, decisions=decisions, budget=budget))
        except InputError:
            # The budget is shared by all ways: the later ones may run out of it, and what was found before still counts.
            if not found:
                raise
            return found, False
        words = pick(script)
        if any(words == other for _, other in found):  # a way that changes nothing is not followed further
            continue
        if words is not None:
            found.append((script, words))
        waiting += _flips(script, decisions)
    return found, not waiting


def _require_sense(wrong: Node, record: Record) -> None:
    """Refuse what bash refuses too; what only the grammar does not know is passed over if commands were found."""
    start = text_of(wrong).strip()[:1]
    if start in ("'", '"', "`"):
        raise input_error(f"quote {start} is never closed", file=record.file, line=line_of(wrong))
    if not record.commands:
        raise input_error("not understood as a shell script", file=record.file, line=line_of(wrong))
    record.assume(f"line {line_of(wrong)} changes nothing, which is not understood")


def _flips(script: Script, decisions: _Decisions) -> list[_Decisions]:
    """Return the ways that differ in one open condition."""
    return [
        {**decisions, choice.key: other}
        for choice in script.choices
        if choice.key not in decisions
        for other in range(len(choice.labels))
        if other != choice.taken
    ]


def ambiguous(scripts: list[Script], file: str) -> InputError:
    """Say which open condition tells ways through a script apart, what it changes, and how to decide it."""
    taken: dict[tuple[int, tuple[str, ...]], set[int]] = {}
    choices = {choice.key: choice for script in scripts for choice in script.choices}
    for script in scripts:
        for choice in script.choices:
            taken.setdefault(choice.key, set()).add(choice.taken)
    # Of all open conditions the one that the ways differ in: another one would not decide between them.
    deciding = [key for key, ways in taken.items() if len(ways) > 1]
    choice = choices[deciding[0] if deciding else next(iter(choices))]
    names = list(dict.fromkeys(choice.names))
    changes = ", ".join(choice.changes) or "the command"
    ways = " | ".join(show(label) for label in choice.labels)
    what = f"{changes} set in one of several branches ({ways})"
    how = how_to_give(names) if any(map(_GIVEN.fullmatch, names)) else _by_line(choice)
    return input_error(what, f"decide it with {how}", file=file, line=choice.line)


def too_open(script: Script, file: str) -> InputError:
    """Say that a script has more ways than are tried, and how the first open conditions are decided."""
    names = list(dict.fromkeys(name for choice in script.choices for name in choice.names))
    what = f"{len(script.choices)} open conditions, more ways through the script than are tried"
    return input_error(what, f"decide some with {how_to_give(names[:4])}", file=file)


def _by_line(choice: Choice) -> str:
    """Say how a condition is decided that asks for a file or a program, and for no variable."""
    ways = [f"LINE_{choice.line}={place}" for place in range(1, len(choice.labels) + 1)]
    return f"--set {ways[0]} (the first of them), " + ", ".join(f"--set {way}" for way in ways[1:])


def how_to_give(names: list[str]) -> str:
    """Say by which options values come from outside; what a program prints is no variable, and has to be written down."""
    known = [name for name in names if _GIVEN.fullmatch(name)]
    # $#, $@ and $* follow from the arguments: giving one gives them.
    known = ["1" if name in "#@*" else name for name in known]
    shown = [f"--{'arg' if name.isdecimal() else 'set'} {name}=..." for name in known]
    return " or ".join(dict.fromkeys(shown)) or "the value itself in the script"


def _read(root: Node, record: Record) -> Script:
    shell = Shell(record)
    wrong = first_error(root)
    shell.ended(lambda: shell.run(root))
    if wrong is not None:
        _require_sense(wrong, record)
    return Script(
        commands=tuple(command.words for command in record.commands),
        environments=tuple(command.environment for command in record.commands),
        lines=tuple(command.line for command in record.commands),
        files=record.files,
        missing=record.missing,
        unread=record.unread,
        assumptions=tuple(record.notes),
        choices=tuple(record.choices.values()),
        decided=tuple(record.decided),
    )
