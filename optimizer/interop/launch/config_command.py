"""Scripts that start a trainer on a configuration file: the file, what the command overrides in it, and its GPUs."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.interop.launch.command import read_launch
from layoutopt.optimizer.interop.launch.flags import split_flags
from layoutopt.optimizer.interop.launch.keys import gpus_of_environment, hydra_values
from layoutopt.optimizer.interop.launch.launchers import SCRIPT
from layoutopt.optimizer.interop.reading import Fields, parse_yaml, shorten
from layoutopt.optimizer.interop.shell.scripts import how_to_give
from layoutopt.optimizer.interop.shell.values import has_hole, holes, show
from layoutopt.optimizer.specs.errors import input_error

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from layoutopt.optimizer.interop.launch.command import LaunchCommand
    from layoutopt.optimizer.interop.records import ImportedJob
    from layoutopt.optimizer.interop.shell.record import Outside

_KEY = re.compile(r"^[a-z_]+:", re.MULTILINE)
INLINE = "<flags>"
"""In place of a configuration's name: its settings are the command's own flags."""

_SETTING = re.compile(r"[\s-]*[\"']?([\w.]+)[\"']?\s*[:=]")
CONCERNS = re.compile(
    r"parallel|shard|micro|batch|degree|_(tp|pp|cp|ep|dp)$|^(tp|pp|cp|ep|dp)|_len$|length|accum|checkpointing|recompute"
    r"|deepspeed|fsdp|offload|bf16|fp16|fp8|precision|zero|adapter|lora_r$|finetuning_type|nodes|gpus"
)
"""Settings that may decide a layout or its price."""

TORCHRUN = ("NPROC_PER_NODE", "NNODES")
"""Variables by which launchers start torchrun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigLaunch:
    """A configuration that a script starts: its text and name, what words behind it override, the GPUs."""

    text: str
    name: str
    overrides: dict[str, Any]
    gpus: int | None
    command: LaunchCommand


def is_script(text: str, file: str) -> bool:
    """Tell a script from the configuration that it would start."""
    return bool(text.startswith("#!") or SCRIPT.search(file) or not _KEY.search(text))


def read_config_or_launch(
    text: str,
    signs: Sequence[str],
    place: Callable[[LaunchCommand], tuple[str, Sequence[str]] | None],
    build: Callable[[Fields, Callable[[str], str | None], int | None], ImportedJob],
    file: str = "",
    outside: Outside | None = None,
) -> ImportedJob:
    """Build the job of a YAML configuration, or of the one that a script starts with what its command changes.

    ``build`` takes the settings, what returns the text of a file beside them, and the launcher's processes (None where no
    launcher is seen). Raises ``InputError`` as ``read_config_launch`` does.
    """
    if not is_script(text, file):
        beside = outside.beside if outside else lambda name: None
        return build(Fields(parse_yaml(text, file), file=file), beside, None)

    def started(launch: ConfigLaunch) -> ImportedJob:
        """Read the configuration with what the command changes."""
        data = parse_yaml(launch.text, launch.name) | launch.overrides
        return build(Fields(data, file=launch.name), launch.command.text_of, launch.gpus)

    return read_config_launch(text, signs, place, started, file, outside)


def read_config_launch(
    text: str,
    signs: Sequence[str],
    place: Callable[[LaunchCommand], tuple[str, Sequence[str]] | None],
    build: Callable[[ConfigLaunch], ImportedJob],
    file: str = "",
    outside: Outside | None = None,
    environment: Sequence[str] = TORCHRUN,
) -> ImportedJob:
    """Build the job of the configuration that a script starts.

    ``signs`` are words of the command, ``place`` returns the configuration's name and the words behind it. Raises
    ``InputError`` where the script names none, or one that is not beside it.
    """

    def started(command: LaunchCommand) -> ImportedJob:
        """Read the configuration that one command names."""
        found = place(command)
        if found is None or not found[0]:
            raise input_error("starts no configuration file", "the file that holds the training", file=file)
        name, words = found
        notes: list[str] = []
        config = "{}" if name == INLINE else _config_text(command, name, file)
        gpus = command.gpus or gpus_of_environment(command, environment[0], environment[1], notes)
        launch = ConfigLaunch(
            text=config,
            name=file if name == INLINE else name,
            overrides=overrides_in(words),
            gpus=gpus,
            command=command,
        )
        job = build(launch)
        if name != INLINE:
            notes.append(f"read from {shorten(name)}, which the script starts")
        # Both numbers are stated, and a trainer starts with the launcher's: neither is silently dropped.
        if gpus and job.gpus and job.gpus != gpus:
            said = f"contradictory: the launcher starts {gpus} processes, {shorten(name)} states {job.gpus}"
            job = replace(job, notes=(*job.notes, said))
        return replace(job, notes=(*notes, *job.notes))

    return read_launch(text, signs, started, file, outside, environment)


def _config_text(command: LaunchCommand, name: str, file: str) -> str:
    """Return the text of a configuration that a command names."""
    if has_hole(name):
        what = f"the configuration comes from {shorten(show(name))}, which the script does not set"
        raise input_error(what, f"give {how_to_give(holes(name))}", file=file)
    config = command.text_of(name)
    if config is None:
        what = f"the configuration {shorten(name)} was not found beside the script"
        raise input_error(what, "the configuration itself, or the script with it beside", file=file)
    return _closed(config, name, file)


def _closed(config: str, name: str, file: str) -> str:
    """Refuse a written configuration whose layout only the outside knows; of other settings the variable stays."""
    lines = config.split("\n")
    for place, line in enumerate(lines):
        if not has_hole(line):
            continue
        key = _SETTING.match(line)
        if key and CONCERNS.search(key[1]):
            stated = shorten(show(line).partition(key[1])[2].strip(" :="))
            what = f"{shorten(name)} states {key[1]} by {stated}, which the script does not set"
            raise input_error(what, f"give {how_to_give(holes(line))}", file=file)
        lines[place] = show(line)
    return "\n".join(lines)


def overrides_in(words: Sequence[str]) -> dict[str, Any]:
    """Read ``--key value``, ``--key=value`` and ``key=value``; words that only the outside knows are left out."""
    known = [word for word in words if not has_hole(word)]
    return {**hydra_values(known), **split_flags(known)}


def after(words: Sequence[str], *marks: str) -> tuple[str, Sequence[str]] | None:
    """Return the first word behind one of the marks that is no option, and the words behind it.

    A mark may be an option, whose value is the word: ``--config-file NAME`` or ``--config-file=NAME``.
    """
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        if equals and name in marks:
            return value, [*words[place + 1 :]]
        if word in marks:
            rest = [*words[place + 1 :]]
            at = next((index for index, one in enumerate(rest) if not one.startswith("-")), None)
            return None if at is None else (rest[at], [*rest[:at], *rest[at + 1 :]])
    return None
