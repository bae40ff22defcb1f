"""Commands that README and pages show in blocks are accepted by the command line, whatever they would take to run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from layoutopt.cli import main

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md", ROOT / "CONTRIBUTING.md",
    *sorted(set((ROOT / "docs").rglob("*.md")) - {ROOT / "docs" / "cli.md"}),
]  # fmt: skip
BLOCK = re.compile(r"^```\w*\n(.*?)\n```$", re.DOTALL | re.MULTILINE)


def commands() -> list[str]:
    """Return every line of a block that calls layoutopt, without what a shell would do around it."""
    lines = [
        line.rpartition("/layoutopt ")[2] if "/layoutopt " in line else line.removeprefix("layoutopt ")
        for page in PAGES
        for block in BLOCK.findall(page.read_text(encoding="utf-8"))
        for line in block.splitlines()
        if line.startswith("layoutopt ") or "bin/layoutopt " in line
    ]
    return sorted(set(lines))


def parse(command: click.Command, name: str, words: list[str], parent: click.Context | None = None) -> str:
    """Parse words as the command line does, without running anything; return the name of the command reached."""
    context = command.make_context(name, list(words), parent=parent)
    if not isinstance(command, click.Group):
        return name
    rest = [*getattr(context, "_protected_args", ()), *context.args]  # click parts a group's words in two
    found, inner, left = command.resolve_command(context, rest)
    assert inner is not None
    return parse(inner, found or "", left, context)


def test_blocks_show_commands() -> None:
    """The pages do show some, of several kinds."""
    first = {line.split()[0] for line in commands()}
    assert {"solve", "sweep", "plan"} <= first


@pytest.mark.parametrize("line", commands())
def test_command_is_accepted(line: str) -> None:
    """Its command exists and takes these options and values, and it is a word of the line that is reached."""
    words = shlex.split(line, comments=True)
    assert parse(main, "layoutopt", words) in (
        "layoutopt",
        *words,
        "",
    )  # the sweep itself has no name of its own


def test_a_wrong_option_is_noticed() -> None:
    """The check can fail."""
    with pytest.raises(click.UsageError):
        parse(main, "layoutopt", ["sweep", "llama3-70b", "h100", "--gpuz", "8"])
