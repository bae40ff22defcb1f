"""Processor time and memory of whole processes that have a limit, as ratios to importing OR-Tools in the same run.

    python benchmarks/timing.py [--runs 5] [CASE...]

Seconds are the processor's, user and system, so that other work of the machine changes little; modules are compiled by a
run that is not counted, as an installation does. The import is measured anew beside every case. Exit code 1 when a median
ratio or a peak exceeds its limit.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Sequence

IMPORT = ("-c", "from ortools.sat.python import cp_model")
SOLVE = ("-m", "layoutopt", "solve")
PEAK_LIMIT_BYTES = 600e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A command with the most it may take, relative to another measured command."""

    arguments: tuple[str, ...]
    limit: float
    relative_to: str = "import"


CASES = {
    "help": Case(arguments=("-m", "layoutopt", "--help"), limit=0.7),
    "llama3-405b": Case(arguments=(*SOLVE, "llama3-405b", "h100-16384"), limit=6.0),
    "llama3-405b-expected": Case(
        arguments=(*SOLVE, "llama3-405b", "h100-16384", "--minimize", "expected", "--draws", "32"), limit=40.0
    ),
    "llama3-70b": Case(arguments=(*SOLVE, "llama3-70b", "h100-1024"), limit=6.0),
    "deepseek-v3": Case(arguments=(*SOLVE, "deepseek-v3", "h800-2048"), limit=12.0),
    "gpt3-175b": Case(arguments=(*SOLVE, "gpt3-175b", "a100-512", "--batch", "512"), limit=6.0),
    "mt-nlg-530b": Case(arguments=(*SOLVE, "mt-nlg-530b", "a100x2240", "--batch", "1920"), limit=6.0),
    "mt-nlg-530b-idle": Case(
        arguments=(*SOLVE, "mt-nlg-530b", "a100x5128", "--batch", "1920", "--allow-idle"), limit=6.0
    ),
    "llama3-8b": Case(arguments=(*SOLVE, "llama3-8b", "h100x6", "--batch", "96"), limit=6.0),
    "qwen3-235b-a22b": Case(arguments=(*SOLVE, "qwen3-235b-a22b", "h100-256", "--batch", "2048"), limit=12.0),
    "deepseek-v3-numbers": Case(
        arguments=(
            *SOLVE,
            "deepseek-v3",
            "h800-2048",
            "--fix",
            "fp8_param_gather=0,1",
            "--allow",
            "bf16-moments",
            "--precision",
            "fp8,bf16",
        ),
        limit=25.0,
    ),
    "deepseek-v3-nvl72": Case(arguments=(*SOLVE, "deepseek-v3", "gb200-nvl72-576"), limit=12.0),
    "kimi-k2-nvl72": Case(arguments=(*SOLVE, "kimi-k2", "gb200-nvl72-576"), limit=12.0),
    "llama3-405b-128k": Case(
        arguments=(*SOLVE, "llama3-405b", "h100-16384", "--seq", "131072", "--batch", "128"), limit=6.0
    ),
    "h100x16384": Case(arguments=(*SOLVE, "llama3-405b", "h100x16384"), limit=6.0),
    "h100x131072": Case(
        arguments=(*SOLVE, "llama3-405b", "h100x131072"), limit=2.0, relative_to="h100x16384"
    ),
}
"""Limits: at most 6 (dense), 12 (mixture of experts) or 25 times the import (a mixture of experts with the switches that
change numbers opened too), and growth at most twofold for 8 times the GPUs."""


@dataclass(frozen=True, slots=True)
class Figures:
    """One run: seconds of the processor and peak resident bytes."""

    cpu_s: float
    peak_bytes: float


def measure(arguments: Sequence[str]) -> Figures:
    """Run a command of this interpreter to its end; its output is thrown away, a failure is an error."""
    compiled = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    child = subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=compiled
    )
    _, status, usage = os.wait4(child.pid, 0)
    if os.waitstatus_to_exitcode(status):
        message = child.stderr.read().decode() if child.stderr else ""
        raise click.ClickException(f"{' '.join(arguments)} failed: {message.strip()}")
    return Figures(usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024.0)


def median_figures(arguments: Sequence[str], beside: Sequence[str], runs: int) -> tuple[Figures, float]:
    """Return medians over ``runs`` runs, and the ratio to those of a command that runs in turn with it.

    A first run of each warms the file cache.
    """
    measure(beside)
    measure(arguments)
    others, figures = [], []
    for _ in range(runs):
        others.append(measure(beside).cpu_s)
        figures.append(measure(arguments))
    cpu_s = statistics.median(item.cpu_s for item in figures)
    peak_bytes = max(item.peak_bytes for item in figures)
    return Figures(cpu_s, peak_bytes), cpu_s / statistics.median(others)


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(sorted(CASES)))
@click.option("--runs", default=5, show_default=True, help="Counted runs of each command.")
def main(names: tuple[str, ...], runs: int) -> None:
    """Measure the cases and compare them with their limits."""
    failed = False
    for name in names or CASES:
        case = CASES[name]
        beside = IMPORT if case.relative_to == "import" else CASES[case.relative_to].arguments
        figures, ratio = median_figures(case.arguments, beside, runs)
        over = ratio > case.limit or figures.peak_bytes > PEAK_LIMIT_BYTES
        failed |= over
        click.echo(
            f"{name:18} {ratio:6.2f} x {case.relative_to} (limit {case.limit:g}), {figures.cpu_s:.2f} s, peak "
            f"{figures.peak_bytes / 1e6:.0f} MB{'  OVER THE LIMIT' if over else ''}"
        )
    sys.exit(int(failed))


if __name__ == "__main__":
    main()
