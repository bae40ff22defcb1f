"""Command line of layoutopt: which commands there are, and how errors become one line and an exit code.

Every command is a module in ``optimizer/report/commands`` that is imported when the command runs, so that ``--help``
costs no more than parsing.
"""

from __future__ import annotations

import os
import sys
import traceback
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

import click

from layoutopt import __version__
from layoutopt.optimizer.report.commands.exit_code import ExitCode
from layoutopt.optimizer.report.commands.options import Settings
from layoutopt.optimizer.report.commands.values import near_hint
from layoutopt.optimizer.report.terminal import open_streams, say, say_lines
from layoutopt.optimizer.specs.errors import InputError, Problem

if TYPE_CHECKING:
    from collections.abc import Sequence

OUT_OF_MEMORY = Problem(
    key="layoutopt",
    what="this machine has too little free memory",
    allowed="a smaller question: --fix, --max, --gpus",
)
NO_ROOM = ("failed to map segment", "Cannot allocate memory")
"""What the loader of shared libraries says when memory is short (glibc elf/dl-load.c)."""

ISSUES = "please report it with the command and its inputs"


@dataclass(frozen=True, slots=True)
class Entry:
    """One command: the module that holds it as ``command``, and its line in ``layoutopt --help``."""

    module: str
    help: str


_HOME = "layoutopt.optimizer.report.commands"
COMMANDS: dict[str, Entry] = {
    "solve": Entry(f"{_HOME}.solve", "Find the fastest layout and prove that none is faster."),
    "evaluate": Entry(f"{_HOME}.evaluate", "Price a given layout and judge whether it runs."),
    "explain": Entry(f"{_HOME}.explain", "Say why a layout is invalid, too large or slow, and what helps."),
    "sweep": Entry(f"{_HOME}.sweep", "Solve every combination of models, clusters and sizes."),
    "plan": Entry(f"{_HOME}.plan", "Plan a training run: days, cost, failures, what to watch."),
    "pareto": Entry(f"{_HOME}.pareto", "Find the layouts that nothing beats in two goals at once."),
    "simulate": Entry(f"{_HOME}.simulate", "Run a plan's pipeline as events, with its memory over time."),
    "verify": Entry(f"{_HOME}.verify", "Check a plan's proof on an independent path."),
    "validate": Entry(f"{_HOME}.validate", "Say how far predictions are off measured runs."),
    "calibrate": Entry(f"{_HOME}.calibrate", "Fit the cost model to a cluster with a few own runs."),
    "next-runs": Entry(f"{_HOME}.next_runs", "Say which measurements would change the choice of a layout."),
    "diagnose": Entry(f"{_HOME}.diagnose", "Hold a run against its plan, or a throughput against the peak."),
    "import": Entry(f"{_HOME}.import_file", "Read a file of another tool: model, launch file, log, network."),
    "export": Entry(f"{_HOME}.export", "Write a plan as the launch configuration of a trainer."),
    "published": Entry(f"{_HOME}.published", "Compare published layouts with predictions and the optimum."),
    "topology": Entry(f"{_HOME}.topology", "Show a cluster's network and what collectives cost."),
    "model": Entry(f"{_HOME}.model", "Show a model: parameters, layers by kind."),
    "cluster": Entry(f"{_HOME}.cluster", "Show a cluster, or write it as a file to edit."),
    "rules": Entry(f"{_HOME}.rules", "List what a trainer can launch: every rule with its formula."),
    "catalog": Entry(f"{_HOME}.catalog", "List the built-in models, clusters and GPUs."),
    "schema": Entry(f"{_HOME}.schema", "Print the JSON Schema of an input file."),
}
"""Every command, in the order of the help text."""


class CommandLine(click.Group):
    """The root: imports commands when they are asked for, and turns every error into a line and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name the commands in the order of the registry."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        command: click.Command = import_module(entry.module).command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; an unknown one raises ``InputError`` with the nearest."""
        unknown = args and not args[0].startswith("-") and args[0] not in COMMANDS
        if unknown and not ctx.resilient_parsing:  # shell completion asks silently
            what = f"no such command {args[0][:60]}"
            raise InputError(Problem(key="layoutopt", what=what, allowed=near_hint(args[0], COMMANDS)))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command and flush, so that a closed pipe shows here and not at exit.

        Raises click's ``Exit`` for such a pipe.
        """
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            _close_stdout()
            raise click.exceptions.Exit(ExitCode.BROKEN_PIPE) from None
        return result

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> NoReturn:
        """Run and exit with an ``ExitCode``; user errors are one line for each problem on stderr."""
        settings: Settings = extra.setdefault("obj", Settings())
        open_streams()
        try:
            result = super().main(
                args, prog_name or "layoutopt", complete_var, standalone_mode=False,
                windows_expand_args=windows_expand_args, **extra,
            )  # fmt: skip
            code = ExitCode.OK if result is None else ExitCode(result)
        except InputError as error:
            code = _complain(*error.problems)
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.ctx.get_help() if error.ctx else "", err=True)
            code = ExitCode.BAD_INPUT
        except click.ClickException as error:
            code = _complain(usage_problem(error))
        except click.exceptions.Abort:
            code = ExitCode.INTERRUPTED
        except MemoryError:
            code = _complain(OUT_OF_MEMORY)
        except OSError as error:  # a full disk, a file that vanished: the machine's fault, not the code's
            if settings.verbose:
                say_lines("".join(traceback.format_exception(error)).rstrip())
            what = error.strerror or type(error).__name__
            code = _complain(Problem(key="layoutopt", what=what, file=str(error.filename or "")))
        except ImportError as error:
            short = any(word in str(error) for word in NO_ROOM)
            code = _complain(OUT_OF_MEMORY) if short else _internal_error(error, verbose=settings.verbose)
        except Exception as error:
            code = _internal_error(error, verbose=settings.verbose)
        sys.exit(code)


def usage_problem(error: click.ClickException) -> Problem:
    """Say in one line what is wrong with the arguments and what would be right."""
    ctx = error.ctx if isinstance(error, click.UsageError) else None
    place = ctx.command_path.strip() if ctx else "layoutopt"
    if isinstance(error, click.NoSuchOption):
        near = get_close_matches(error.option_name, error.possibilities or [], n=1)
        hint = f"did you mean {near[0]}?" if near else f"{place} --help lists them"
        return Problem(key=place, what=f"no such option {error.option_name}", allowed=hint)
    if isinstance(error, click.MissingParameter) and error.param is not None:
        named = isinstance(error.param, click.Option)
        what = f"missing {max(error.param.opts, key=len) if named else error.param.human_readable_name}"
        return Problem(key=place, what=what, allowed=_usage(ctx))
    if isinstance(error, click.BadParameter) and isinstance(error.param, click.Option):
        key, what = max(error.param.opts, key=len), " ".join(error.message.split()).rstrip(".")
        return Problem(key=key, what=what[:1].lower() + what[1:])
    what = " ".join(error.format_message().split()).rstrip(".")
    return Problem(key=place, what=what[:1].lower() + what[1:], allowed=_usage(ctx))


def _usage(ctx: click.Context | None) -> str:
    """Write the command's usage on one line."""
    if ctx is None:
        return ""
    return f"usage: {' '.join([ctx.command_path.strip(), *ctx.command.collect_usage_pieces(ctx)])}"


def _complain(*problems: Problem) -> ExitCode:
    for problem in problems:
        say(str(problem))
    return ExitCode.BAD_INPUT


def _internal_error(error: Exception, *, verbose: bool) -> ExitCode:
    """Say that the fault is not the user's; the traceback only when detail is asked for."""
    if verbose:
        say_lines("".join(traceback.format_exception(error)).rstrip())
    what = " ".join(f"{type(error).__name__}: {error}".split())
    hint = ISSUES if verbose else f"{ISSUES}; -v shows where it happened"
    say(f"layoutopt: internal error: {what} ({hint})")
    return ExitCode.INTERNAL


def _close_stdout() -> None:
    """Point stdout at nothing: the interpreter flushes it again when it exits."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
    os.close(devnull)


@click.group(
    "layoutopt",
    cls=CommandLine,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="layoutopt")
def main() -> None:
    """Find the parallel layout that trains a model fastest on a GPU cluster, with a proof.

    MODEL and CLUSTER are YAML files or built-in names, see "layoutopt catalog". NAMExN is N GPUs of the catalog on
    their reference network, e.g. h100x4096. Exit codes: 0 optimal or fits, 1 a committed baseline is exceeded, 2 bad
    input, 3 infeasible, invalid, does not fit or refuted, 4 stopped before the proof.
    """


if __name__ == "__main__":
    main()
