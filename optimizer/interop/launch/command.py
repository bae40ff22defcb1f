"""The command of a launch script that starts the trainer: its words, its GPUs, and what the script leaves open."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.interop.launch.flags import ArgFields, scalar, split_flags
from layoutopt.optimizer.interop.shell.record import Outside
from layoutopt.optimizer.interop.shell.scripts import ambiguous, read_commands, too_open
from layoutopt.optimizer.interop.shell.values import has_hole, hole, holes, show
from layoutopt.optimizer.specs.errors import InputError, input_error

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from layoutopt.optimizer.interop.records import ImportedJob
    from layoutopt.optimizer.interop.shell.scripts import Script

_KEYS = {
    **dict.fromkeys(("nnodes", "num_nodes", "nodes", "num_machines", "N"), "nodes"),
    **dict.fromkeys(
        ("nproc_per_node", "num_gpus", "ntasks_per_node", "gpus_per_node", "npernode"), "per_node"
    ),
    **dict.fromkeys(("num_processes", "np", "n", "ntasks"), "processes"),
}
"""Launchers' options (torchrun, deepspeed, accelerate, srun, mpirun, SBATCH lines) and what they count."""

_SBATCH = re.compile(r"^#SBATCH\s+(?:--([a-z-]+)[= ]\s*|-(N|n)\s*)(\S+)", re.MULTILINE)
_OF_SLURM = {
    "nodes": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    "per_node": ("SLURM_NTASKS_PER_NODE", "SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"),
    "processes": ("SLURM_NTASKS", "SLURM_NPROCS"),
}
_ONE_NODE = ("torchrun", "torch.distributed.launch", "torch.distributed.run", "deepspeed")
"""Launchers that start one node unless told otherwise."""

_BAGS = re.compile(r"(ARGS?|OPTS?|OPTIONS?|FLAGS?|PARAMS?|CONFIG)$", re.IGNORECASE)
_WORD = re.compile(r"\w+")
MAX_GPUS = 10**7


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchCommand:
    """A trainer's command.

    ``open_words`` names variables that may hold any further flags; ``gpus`` are the processes started, None where the
    script does not say.
    """

    words: tuple[str, ...]
    script: Script
    gpus: int | None
    open_words: tuple[str, ...]
    beside: Callable[[str], str | None] = lambda name: None

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
) -> ImportedJob:
    """Build the job of the script's command that has most of the given flags.

    Raises ``InputError`` where no command has any, or where the outside decides between commands that ``build`` makes
    different jobs of: it names the condition and how to decide it.
    """
    outside = outside or Outside()
    slurm = _batch_lines(text)
    given, texts, beside = outside.variables, [text], outside.beside

    def noticed(name: str) -> str | None:
        """Read a file beside the script, and keep its text."""
        found = beside(name)
        texts.append(found or "")
        return found

    known = {name: str(slurm[key]) for key, names in _OF_SLURM.items() if key in slurm for name in names}
    outside = replace(outside, variables={**known, **given}, beside=noticed)
    found, complete = read_commands(text, lambda script: _best(script, flags), file, outside)
    if not found:
        raise input_error(
            "no training command found", f"one with {', '.join(flags[:2])} or the like", file=file
        )
    commands = [
        LaunchCommand(
            words=words,
            script=script,
            gpus=launched_gpus(words, text),
            open_words=_open_words(words),
            beside=outside.beside,
        )
        for script, words in found
    ]
    _require_read(given, texts, file)
    first = _built(build, commands[0])
    for command in commands[1:]:
        if _essence(_built(build, command)) != _essence(first):
            raise ambiguous([commands[0].script, command.script], file)
    if isinstance(first, InputError):
        raise first
    if not complete:
        raise too_open(commands[0].script, file)
    return replace(first, notes=(*first.notes, *commands[0].notes))


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


def _best(script: Script, flags: Sequence[str]) -> tuple[str, ...] | None:
    best = max(script.commands, key=lambda words: _hits(words, flags), default=())
    return best if _hits(best, flags) else None


def _hits(words: Sequence[str], flags: Sequence[str]) -> int:
    names = {word.partition("=")[0] for word in words}
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
        if array or _BAGS.search(name) or not before.startswith("-"):
            found.append(name)
    return tuple(dict.fromkeys(found))


def _batch_lines(text: str) -> dict[str, int]:
    """Return what ``#SBATCH`` lines ask for."""
    found: dict[str, int] = {}
    for name, short, value in _SBATCH.findall(text):
        key = _KEYS.get(short or name.replace("-", "_"))
        number = scalar(value.split(":")[-1])  # --gpus-per-node=h100:8 names the type in front
        if key and type(number) is int and 0 < number <= MAX_GPUS:
            found[key] = number
    return found


def launched_gpus(words: Sequence[str], text: str = "") -> int | None:
    """Processes that torchrun, deepspeed, accelerate, srun, mpirun or ``#SBATCH`` lines start, None if not stated."""
    found = _batch_lines(text)
    launcher = list(_launcher_words(words))
    # the command line comes after the batch system's lines and wins
    for flag, value in {**_short_flags(launcher), **split_flags(launcher)}.items():
        number = value[0] if isinstance(value, list) else value
        if isinstance(number, str):
            number = scalar(number.split(":")[-1])
        key = _KEYS.get(flag)
        if key and type(number) is int and 0 < number <= MAX_GPUS:
            found[key] = number
    if any(PurePosixPath(word).name in _ONE_NODE for word in launcher) and "per_node" in found:
        stated = any("nnodes" in word or "num_nodes" in word or "num-nodes" in word for word in launcher)
        if not stated:
            found.setdefault("nodes", 1)
    if "nodes" in found and "per_node" in found:
        return found["nodes"] * found["per_node"]
    return found.get("processes")


def _launcher_words(words: Sequence[str]) -> Sequence[str]:
    """Return the words in front of the trainer's own script."""
    for place, word in enumerate(words):
        if word.endswith((".py", ".pyz")):
            return words[:place]
    return words


def _short_flags(words: Sequence[str]) -> dict[str, object]:
    """Read ``-N 4``, ``-n8`` and ``-np 64``."""
    found: dict[str, object] = {}
    for word, following in zip(words, [*words[1:], ""], strict=False):
        if match := re.fullmatch(r"-(N|np|n|npernode)(\d{1,7})?", word):
            found[match[1]] = scalar(match[2] or following)
    return found
