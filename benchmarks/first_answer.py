"""What a search that is stopped after a second has found: every built-in question, against its proven optimum.

    python benchmarks/first_answer.py [--limit 1] [--only NAME] [--renew]

An answer may be 5% above the optimum and half a second late. Seconds are those of the processor, so that other work of the
machine changes nothing. ``--renew`` proves the optima anew, as far as that takes no more than two minutes each, and writes
the baseline. Exit code 1 if an answer is worse or later.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

import click

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from checks.builtin_questions import questions

from layoutopt.optimizer.solve.api import solve_layout
from layoutopt.optimizer.solve.plan import SolveOptions

if TYPE_CHECKING:
    from checks.judged_answers import Asked

    from layoutopt.optimizer.solve.plan import Plan

BASELINE = Path(__file__).with_name("first_answer_baseline.json")
MOST_ABOVE, MOST_LATE_S = 0.05, 0.5
PROOF_S = 120.0
"""Time to prove an optimum in; what is not proven then stands as the best known, with its bound."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A plan and the seconds that it took."""

    plan: Plan
    seconds: float

    @property
    def step_s(self) -> float:
        """Step time, infinite without a layout."""
        return self.plan.estimate.step_time_s if self.plan.estimate else float("inf")


def answer(asked: Asked, limit_s: float) -> Answer:
    """Ask a question with a time limit."""
    options = SolveOptions(framework=asked.framework, time_limit_s=limit_s, top=1)
    with patch("time.perf_counter", time.process_time):
        start = time.process_time()
        plan = solve_layout(asked.workload, asked.cluster, options)
        return Answer(plan, time.process_time() - start)


def renew(only: str) -> None:
    """Prove the optima and write them down."""
    known = json.loads(BASELINE.read_text(encoding="utf-8")) if BASELINE.exists() else {}
    for name, asked in questions():
        if only in name:
            found = answer(asked, PROOF_S)
            known[name] = {"step_s": found.step_s, "bound_s": found.plan.bound_s}
            click.echo(f"{name:45} {found.step_s:10.4f} s  {found.plan.status}")
    BASELINE.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")


@click.command(help=__doc__)
@click.option("--limit", default=1.0, show_default=True, help="Seconds after which a search is stopped.")
@click.option("--only", default="", help="Ask only questions whose name contains this text.")
@click.option("--renew", "renewed", is_flag=True, help="Write the baseline.")
def main(limit: float, only: str, renewed: bool) -> None:
    """Ask all questions."""
    if renewed:
        renew(only)
        return
    known, bad = json.loads(BASELINE.read_text(encoding="utf-8")), 0
    click.echo(f"{'question':45} {'answer s':>10} {'above':>8} {'late s':>7}")
    for name, asked in questions():
        if only not in name:
            continue
        found = answer(asked, limit)
        above, late = found.step_s / known[name]["step_s"] - 1.0, found.seconds - limit
        wrong = above > MOST_ABOVE or late > MOST_LATE_S
        bad += wrong
        click.echo(f"{name:45} {found.step_s:10.4f} {above:8.2%} {late:7.2f}{'  WORSE' if wrong else ''}")
    click.echo(f"{bad} worse than allowed")
    sys.exit(int(bad > 0))


if __name__ == "__main__":
    main()
