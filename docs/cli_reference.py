"""Write docs/cli.md from the commands themselves: ``python docs/cli_reference.py > docs/cli.md``."""

from __future__ import annotations

from inspect import cleandoc
from typing import TYPE_CHECKING

import click

from layoutopt.cli import main
from layoutopt.optimizer.report.commands.buyer import command as buyer
from layoutopt.optimizer.report.commands.plan import PlanCommand

if TYPE_CHECKING:
    from collections.abc import Iterator

HEAD = """# Command line

Written by `python docs/cli_reference.py > docs/cli.md`; a test keeps it current.

Every command takes `--json`. The answer goes to stdout, progress and notes to stderr. Colours follow `NO_COLOR`.

| exit code | meaning |
|---|---|
| 0 | optimal, valid, fits or borderline |
| 1 | a committed baseline is exceeded |
| 2 | bad input: one line for each problem on stderr |
| 3 | infeasible, invalid, does not fit, or a plan that `verify` rejects |
| 4 | stopped before the proof |
| 70 | internal error, please report it |
| 130, 141 | aborted with Ctrl-C, closed pipe |
"""


def reference() -> str:
    """Return the whole page."""
    ctx = click.Context(main, info_name="layoutopt")
    return "\n".join([HEAD, *_commands(main, ctx)])


def _commands(group: click.Group, ctx: click.Context) -> Iterator[str]:
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        assert command is not None
        inner = click.Context(command, info_name=name, parent=ctx)
        if isinstance(command, click.Group):
            yield from _commands(command, inner)
        else:
            yield from _command(command, inner)
            if isinstance(command, PlanCommand):
                yield from _command(buyer, inner, " of several machines")


def _command(command: click.Command, ctx: click.Context, more: str = "") -> Iterator[str]:
    """Write one command: usage, what it does, its options. ``more`` tells two forms of a command apart."""
    arguments = [param.human_readable_name for param in command.params if isinstance(param, click.Argument)]
    path = " ".join(ctx.command_path.split())
    yield f"## {path}{more}\n"
    yield f"```\n{' '.join([path, '[OPTIONS]', *arguments])}\n```\n"
    yield f"{cleandoc(command.help or '')}\n"
    yield "| option | meaning |\n|---|---|"
    for param in command.params:
        if isinstance(param, click.Option):
            yield f"| {_spelling(param, ctx)} | {_meaning(param)} |"
    yield ""


def _spelling(option: click.Option, ctx: click.Context) -> str:
    names = ", ".join(f"`{name}`" for name in option.opts)
    if option.is_flag:
        return names
    value = option.metavar or option.type.get_metavar(option, ctx) or option.type.name.upper()
    return f"{names} `{value}`".replace("|", "\\|")


def _meaning(option: click.Option) -> str:
    text = option.help or ""
    if option.show_default:
        text += f" Default {option.default}."
    return text + (" May be repeated." if option.multiple else "")


if __name__ == "__main__":
    print(reference(), end="")
