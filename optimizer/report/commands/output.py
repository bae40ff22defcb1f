"""Where answers go: JSON or tables to stdout, notes to stderr, plans to files."""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from layoutopt.optimizer.specs.errors import input_error

if TYPE_CHECKING:
    from rich.console import RenderableType

    from layoutopt.optimizer.report.commands.options import OutputOptions


def to_json(plain: object) -> str:
    """Write plain data as strict JSON: no NaN, no infinity."""
    return json.dumps(plain, indent=2, allow_nan=False)


def print_json(plain: object) -> None:
    """Print plain data as JSON."""
    click.echo(to_json(plain))


def print_tables(renderable: RenderableType) -> None:
    """Print what a person reads, as wide as the terminal, without colour where it is not wanted."""
    from layoutopt.optimizer.report.tables import console

    console.print_tables(renderable)


def note(text: str, output: OutputOptions) -> None:
    """Print a note to stderr unless the user wants quiet."""
    if not output.quiet:
        click.echo(text, err=True)


def require_writable(path: Path | None, *, key: str = "--output") -> None:
    """Check before any work that a file can be written; raises ``InputError`` naming the option."""
    if path is None:
        return
    folder = path.parent
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise input_error("cannot be written", "a file in a folder that exists", key=key, file=str(path))


def write_json(path: Path, plain: Any) -> None:
    """Write JSON so that a reader sees the old file or the whole new one; raises ``InputError``."""
    write_file(path, (to_json(plain) + "\n").encode())


def write_file(path: Path, content: bytes, *, key: str = "--output") -> None:
    """Write a file so that a reader sees the old one or the whole new one; raises ``InputError`` naming the option."""
    temporary = ""
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(temporary).chmod(0o666 & ~_umask())
        Path(temporary).replace(path)
    except OSError as error:
        with suppress(OSError):
            Path(temporary).unlink(missing_ok=True)
        raise input_error(f"cannot be written: {error.strerror}", key=key, file=str(path)) from None


def _umask() -> int:
    """Return the process's mask of file permissions, which can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
