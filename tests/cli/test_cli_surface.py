"""The command line's surface: a change of an option or command is a change of this test and of the docs."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest

from layoutopt.cli import COMMANDS, main
from layoutopt.optimizer.frameworks.registry import EXPORTED, Framework
from layoutopt.optimizer.report.commands.options import AXES
from layoutopt.optimizer.space.options import NAMED_AXES, NUMERIC_AXES
from layoutopt.optimizer.specs.vocabulary import Saver

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
SURFACE = Path(__file__).with_name("surface.txt")


def commands(group: click.Group = main, path: str = "") -> Iterator[tuple[str, click.Command]]:
    """Yield every command with the words that call it."""
    ctx = click.Context(group)
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        assert command is not None
        words = f"{path} {name}".strip()
        if isinstance(command, click.Group):
            yield from commands(command, words)
        else:
            yield words, command


def surface() -> list[str]:
    """Write every argument and every spelling of every option on a line, sorted."""
    lines = []
    for words, command in commands():
        for param in command.params:
            spelling = param.opts if isinstance(param, click.Option) else [param.name or ""]
            lines.append(f"{words}: {' '.join(sorted(spelling))}")
    return sorted(lines)


def test_surface_is_frozen() -> None:
    """No option appears or vanishes unnoticed; surface.txt lists them all."""
    assert surface() == SURFACE.read_text("utf-8").splitlines()


def test_every_command_is_explained() -> None:
    """Every command and every option has a help text."""
    for words, command in commands():
        assert command.help, words
        for param in command.params:
            if isinstance(param, click.Option):
                assert param.help, f"{words} {param.opts}"


def test_help_lists_what_restrictions_take() -> None:
    """Axes, trainers, savers and export targets are listed in the help, all of them."""
    assert tuple(AXES.split(", ")) == NUMERIC_AXES + NAMED_AXES
    found = {f"{words} {param.opts[0]}": param.help or "" for words, command in commands() for param in command.params
             if isinstance(param, click.Option)}  # fmt: skip
    assert AXES in found["solve --fix"]
    for option, words in (
        ("solve --framework", Framework), ("solve --allow", Saver), ("export --to", EXPORTED), ("rules --framework", ()),
    ):  # fmt: skip
        assert [str(word) for word in words if word not in found[option]] == []


def test_every_command_takes_json() -> None:
    """Machines can read every answer; an export writes the formats it is told."""
    without = [
        words for words, command in commands() if not any("--json" in param.opts for param in command.params)
    ]
    assert [words for words in without if not words.endswith("export")] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_list_of_commands_starts_as_their_help(name: str) -> None:
    """A command that is listed can be imported, and its line in the list is one sentence."""
    entry = COMMANDS[name]
    assert main.get_command(click.Context(main), name) is not None
    assert entry.help.endswith(".")
    assert len(entry.help) <= 66  # fits the list of commands at 80 columns


def test_reference_is_current() -> None:
    """docs/cli.md is what docs/cli_reference.py writes."""
    written = runpy.run_path(str(ROOT / "docs" / "cli_reference.py"))["reference"]()
    assert (ROOT / "docs" / "cli.md").read_text("utf-8") == written


if __name__ == "__main__":
    print("\n".join(surface()))
