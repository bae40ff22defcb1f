"""The command of a launch script that starts the trainer: its words, its GPUs, and what the script leaves open."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.interop.launch.flags import ArgFields, split_flags
from layoutopt.optimizer.interop.launch.processes import launched_gpus, slurm_variables
from layoutopt.optimizer.interop.reading import shorten
from layoutopt.optimizer.interop.shell.record import Outside
from layoutopt.optimizer.interop.shell.scripts import ambiguous, read_commands, too_open
from layoutopt.optimizer.interop.shell.values import has_hole, hole, holes, show
from layoutopt.optimizer.specs.errors import InputError, input_error

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from layoutopt.optimizer.interop.records import ImportedJob
    from layoutopt.optimizer.interop.shell.scripts import Script

_BAGS = re.compile(r"(ARGS?|OPTS?|OPTIONS?|FLAGS?|PARAMS?|CONFIG)$", re.IGNORECASE)
_WORD = re.compile(r"\w+")

OF_A_NODE = ("node_rank", "machine_rank", "local_rank", "master_addr", "master_port")
MOST_NAMED = 3
"""Other jobs of a script that are named one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchCommand:
    """A trainer's command.

    ``open_words`` names variables that may hold any further flags; ``gpus`` are the processes started, None where the
    script does not say; ``environment`` are those of the asked variables that the command sees.
    """

    words: tuple[str, ...]
    script: Script
    gpus: int | None
    open_words: tuple[str, ...]
    beside: Callable[[str], str | None] = lambda name: None
    environment: Mapping[str, str] = field(default_factory=dict)

    def text_of(self, name: str) -> str | None:
        """Return the text of a file that the script writes or that lies beside it; what is open in it stays a hole."""
        own = self.script.files.get(name.removeprefix("./"))
        return self.beside(name) if own is None and not has_hole(name) else own

    def fields(self, *, file: str, data: Mapping[str, Any] | None = None) -> ArgFields:
        """Return the flags as typed fields."""
        return ArgFields(self.flags if data is None else data, file=file, unsaid=self.unsaid)

    @property
    def flags(self) -> dict[str, Any]:
        """The flags that the script holds, without the words that only the outside knows."""
        return split_flags(word for word in self.words if not _is_open(word, self.open_words))

    @property
    def unsaid(self) -> str:
        """Say which variables may hold what no flag states, empty where none may."""
        if not self.open_words:
            return ""
        places = [f"${name} (line {self.script.missing.get(name, '?')})" for name in self.open_words]
        given = " ".join(f"--set {name}=..." for name in self.open_words)
        beside = "".join(f"; {show(name)} was not found" for name in self.script.unread)
        return f"may be in {', '.join(places)}, not set here{beside}; give {given}"

    @property
    def notes(self) -> tuple[str, ...]:
        """What was taken for granted."""
        return tuple(f"assumed: {text}" for text in self.script.assumptions)


def read_launch(
    text: str,
    flags: Sequence[str],
    build: Callable[[LaunchCommand], ImportedJob],
    file: str = "",
    outside: Outside | None = None,
    environment: Sequence[str] = (),
) -> ImportedJob:
    """Build the job of the script's command that has most of the given flags.

    ``environment`` names the variables that the trainer's launcher reads.
    Raises ``InputError`` where no command has any, or where the outside decides between commands that ``build`` makes
    different jobs of: it names the condition and how to decide it.
    """
    outside = outside or Outside()
    given, texts, beside = outside.variables, [text], outside.beside

    def noticed(name: str) -> str | None:
        """Read a file beside the script, and keep its text."""
        found = beside(name)
        texts.append(found or "")
        return found

    # What the caller gives goes before what Slurm would set from the script's own lines.
    outside = replace(outside, variables={**slurm_variables(text), **given}, beside=noticed)
    found, complete = read_commands(text, lambda script: _best(script, flags, environment), file, outside)
    if not found:
        sets = re.search(r"^\s*[A-Z_]*ARGS\+?=", text, re.MULTILINE) is not None
        more = "; this one sets arguments for a script that sources it" if sets else ""
        allowed = f"one with {', '.join(flags[:2])} or the like{more}"
        raise input_error("no training command found", allowed, file=file)
    commands = [
        LaunchCommand(
            words=words,
            script=script,
            gpus=launched_gpus(words, text),
            open_words=_open_words(words),
            beside=outside.beside,
            environment={**dict(seen), **{name: given[name] for name in environment if name in given}},
        )
        for script, (words, seen) in found
    ]
    known = {*environment, *(f"LINE_{line}" for script, _ in found for line in script.decided)}
    _require_read({name: value for name, value in given.items() if name not in known}, texts, file)
    first = _built(build, commands[0])
    # Ways that lead to one job leave nothing to decide, however differently they get there.
    for command in commands[1:]:
        if _essence(_built(build, command)) != _essence(first):
            raise ambiguous([commands[0].script, command.script], file)
    if isinstance(first, InputError):
        raise first
    if not complete:
        raise too_open(commands[0].script, file)
    return replace(first, notes=(*first.notes, *commands[0].notes, *_other_jobs(commands[0], flags)))


def _other_jobs(command: LaunchCommand, flags: Sequence[str]) -> tuple[str, ...]:
    """Name the other jobs that a script starts, by where and in what they differ from the one that is read."""
    # Helpers of a script, a download or a conversion, share a flag or two with the trainer; jobs share most.
    own, least, script = _own_flags(command.words), _hits(command.words, flags) / 2, command.script
    others: dict[str, None] = {}
    for words, line in zip(script.commands, script.lines, strict=True):
        flagged = _own_flags(words) if words != command.words and _hits(words, flags) >= least else own
        differing = [name for name in {**own, **flagged} if own.get(name) != flagged.get(name)]
        if differing:
            others[f"line {line} ({', '.join(_said(name, flagged) for name in differing[:2])})"] = None
    if not others:
        return ()
    more = f" and {len(others) - MOST_NAMED} more" if len(others) > MOST_NAMED else ""
    line = script.lines[script.commands.index(command.words)]
    named = ", ".join([*others][:MOST_NAMED])
    return (f"the launch of line {line} is read; the script starts other jobs too: {named}{more}",)


def _own_flags(words: Sequence[str]) -> dict[str, Any]:
    """Return the flags of a job's program, without its launcher's and those that tell one node from another."""
    # Two launches of one job on two nodes differ in these alone.
    start = next((place for place, word in enumerate(words) if word.endswith(".py")), 0)
    return {name: value for name, value in split_flags(words[start:]).items() if name not in OF_A_NODE}


def _said(name: str, flags: Mapping[str, Any]) -> str:
    flag, value = f"--{name.replace('_', '-')}", flags.get(name)
    return f"no {flag}" if value is None else flag if value is True else shorten(show(f"{flag} {value}"))


def _require_read(given: Mapping[str, str], texts: Sequence[str], file: str) -> None:
    """Refuse a variable that neither the script nor a file that it reads has a word of: a typing error."""
    words = {word for text in texts for word in _WORD.findall(text)} if given else set()
    for name in given:
        if name not in words:
            near = difflib.get_close_matches(name, words, n=2)
            raise input_error(f"nothing reads the variable {name} that is given", ", ".join(near), file=file)


def _built(build: Callable[[LaunchCommand], ImportedJob], command: LaunchCommand) -> ImportedJob | InputError:
    """Return a command's job, or why there is none: a way through the script that leads nowhere is a way too."""
    try:
        return build(command)
    except InputError as error:
        return error


def _essence(job: ImportedJob | InputError) -> ImportedJob | str:
    """Return a job without what is said about it."""
    return str(job) if isinstance(job, InputError) else replace(job, notes=(), missing=())


def _best(
    script: Script, flags: Sequence[str], environment: Sequence[str]
) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]] | None:
    """Return the command that has most of the flags, with the variables that count."""
    pairs = list(zip(script.commands, script.environments, strict=True))
    best, seen = max(pairs, key=lambda pair: _hits(pair[0], flags), default=((), {}))
    if not _hits(best, flags):
        return None
    return best, tuple((name, seen[name]) for name in environment if name in seen)


def _hits(words: Sequence[str], flags: Sequence[str]) -> int:
    names = {word.partition("=")[0] for word in words}
    names |= {PurePosixPath(word).name for word in words if "/" in word}
    return sum(flag in names for flag in flags)


def _is_open(word: str, names: tuple[str, ...]) -> bool:
    return any(word in (hole(name), hole(f"{name}[@]")) for name in names)


def _open_words(words: Sequence[str]) -> tuple[str, ...]:
    """Return the variables from outside that stand where flags stand."""
    found = []
    for before, word in zip(("", *words), words, strict=False):
        names = holes(word)
        if len(names) != 1 or word != hole(names[0]):
            continue
        name, array, _ = names[0].partition("[@]")
        # Behind a flag a variable is that flag's value, unless its name says that it holds flags: $EXTRA_ARGS.
        if array or _BAGS.search(name) or not before.startswith("-"):
            found.append(name)
    return tuple(dict.fromkeys(found))
