"""The one way to a terminal: everything that is printed passes here, and its control characters are written out."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from io import TextIOWrapper
from typing import TYPE_CHECKING

import click

from layoutopt.optimizer.specs.printable import printable
from layoutopt.optimizer.specs.writing import to_json

if TYPE_CHECKING:
    from rich.console import RenderableType

    from layoutopt.optimizer.report.commands.options import OutputOptions


def open_streams() -> None:
    """Let every standard stream take what comes: a closed one takes it nowhere, a narrow encoding takes escapes."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:  # closed by the parent, as ``>&-`` does
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
        elif mode == "w" and isinstance(stream, TextIOWrapper) and stream.errors == "strict":
            # A name that the terminal's encoding lacks is shown escaped; it ends no command.
            stream.reconfigure(errors="backslashreplace")


def say(text: str) -> None:
    """Print one line to stderr; where that is full or gone, nobody can be told."""
    with suppress(OSError):
        click.echo(printable(text), err=True)


def note(text: str, output: OutputOptions) -> None:
    """Print a note to stderr unless the user wants quiet."""
    if not output.quiet:
        say(text)


def notes(texts: tuple[str, ...], output: OutputOptions) -> None:
    """Print notes to stderr unless the user wants quiet."""
    for text in texts:
        note(text, output)


def say_lines(text: str) -> None:
    """Print lines to stderr."""
    with suppress(OSError):
        click.echo(printable(text, lines=True), err=True)


def print_document(text: str) -> None:
    """Print a file's text to stdout: as it is into a file or pipe, without control characters on a terminal."""
    # A file must be what it is; only a terminal obeys control characters.
    click.echo(printable(text, lines=True) if sys.stdout.isatty() else text, nl=False)


def print_json(plain: object) -> None:
    """Print plain data as JSON."""
    click.echo(to_json(plain))


def print_tables(renderable: RenderableType) -> None:
    """Print what a person reads to stdout; in a file or pipe lines end where their text ends."""
    from layoutopt.optimizer.report.tables.console import Printable, console

    target = console()
    if target.is_terminal:
        target.print(Printable(renderable), crop=False)
        return
    with target.capture() as captured:
        target.print(Printable(renderable), crop=False)
    click.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))
