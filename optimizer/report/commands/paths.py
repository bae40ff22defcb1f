"""Files that a command writes: never one that it reads, and never two answers into one."""

from __future__ import annotations

import os
import re
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from layoutopt.optimizer.report.commands.values import param_key
from layoutopt.optimizer.specs.errors import input_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_READS = re.compile("FILE|PATH|LOG|CLUSTER|csv")
"""What the placeholder of an option that takes a file says; other texts are no names of files."""

_PROFILES = (".json", ".gz", ".sqlite")
"""Endings of the files that are read of a folder."""


class WrittenFile(click.Path):
    """The type of every option that names a file to write."""

    def __init__(self) -> None:
        super().__init__(path_type=Path, dir_okay=False)


WRITTEN = WrittenFile()


def keeps_inputs(command: Callable[..., Any]) -> Callable[..., Any]:
    """Refuse, before any work, to write over what the command reads, or two answers into one file."""

    @wraps(command)
    def checked(**given: Any) -> Any:
        """Check every path that will be written before the command runs."""
        written: list[tuple[Path, str]] = []
        ctx = click.get_current_context()
        for param in ctx.command.params:
            path = ctx.params.get(param.name or "")
            # A stream may lead into any file: whoever redirects means it.
            if not isinstance(param.type, WrittenFile) or path is None or _is_stream(path):
                continue
            key = param_key(param)
            require_no_input(path, key=key)
            for other, name in written:
                if _same(path, other):
                    raise input_error(
                        f"is what {name} writes too", "a file for each", key=key, file=str(path)
                    )
            written.append((path, key))
        return command(**given)

    return checked


def require_no_input(path: Path, *, key: str) -> None:
    """Raise ``InputError`` where ``path`` is a file that the running command was given to read."""
    for name, source in _inputs(click.get_current_context()):
        if _same(path, source) or (source.is_dir() and _is_member(path, source)):
            raise input_error(f"is read as {name}", "a file of another name", key=key, file=str(path))


def _is_member(path: Path, folder: Path) -> bool:
    """Tell whether a name leads to a profile of a folder, or to a new file that the next run would read as one."""
    target = Path(os.path.realpath(path))
    named = [one for one in (path, target) if one.name.endswith(_PROFILES)]
    if any(_same(one.parent, folder) for one in named):
        return True
    try:
        return any(_same(path, one) for one in folder.iterdir() if one.name.endswith(_PROFILES))
    except OSError:
        return False


def _inputs(ctx: click.Context) -> Iterator[tuple[str, Path]]:
    """Yield what may name files to read, with the arguments or options that do."""
    for param in ctx.command.params:
        option = isinstance(param, click.Option)
        if isinstance(param.type, WrittenFile) or (option and not _READS.search(param.metavar or "")):
            continue
        for value in _values(ctx.params.get(param.name or "")):
            # A file may also stand behind a name and an equals sign.
            for text in {str(value), str(value).rpartition("=")[2]}:
                # folders are looked into where profiles are meant; a model's holds more than its configuration
                if _is_file(text) or (isinstance(value, Path) and Path(text).is_dir()):
                    yield param_key(param), Path(text)


def _is_stream(path: Path) -> bool:
    """Tell whether a name is that of a stream or device, which may be a file by a redirection."""
    return path.parts[:2] == ("/", "dev")


def _values(value: object) -> Iterator[str | Path]:
    if isinstance(value, tuple):
        for one in value:
            yield from _values(one)
    elif isinstance(value, str | Path):
        yield value


def _is_file(text: str) -> bool:
    """Tell whether a text names a file; a layout or a long list can be no name."""
    try:
        return Path(text).is_file()
    except (OSError, ValueError):
        return False


def _same(path: Path, other: Path) -> bool:
    """Tell whether two names lead to one file or folder; pipes and devices may be read and written."""
    try:
        if path.exists() and other.exists():
            return (path.is_file() or path.is_dir()) and path.samefile(other)
        return os.path.realpath(path) == os.path.realpath(other)
    except (OSError, ValueError):
        return False
