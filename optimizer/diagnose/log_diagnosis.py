"""A log against a plan: the step and its spans, the three questions as far as a log answers them, and causes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from layoutopt.optimizer.diagnose.log_causes import causes_in_log, slowest_passes
from layoutopt.optimizer.diagnose.logged import PASSES, LoggedProfile, SpanRow, span_difference, untold
from layoutopt.optimizer.diagnose.predicted import Expectation, expectation
from layoutopt.optimizer.specs.errors import input_error
from layoutopt.optimizer.specs.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterable

    from layoutopt.optimizer.cost.cost_model import CostModel
    from layoutopt.optimizer.diagnose.cause import Cause
    from layoutopt.optimizer.diagnose.difference import StepDifference
    from layoutopt.optimizer.specs.layout import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDiagnosis:
    """Everything that a log tells of a run against its plan."""

    profile: LoggedProfile
    expected: Expectation
    difference: StepDifference[SpanRow]
    causes: tuple[Cause, ...]

    @property
    def step_s(self) -> float:
        """The measured step."""
        return self.difference.measured_s

    @property
    def notes(self) -> tuple[str, ...]:
        """What the log leaves open."""
        line = untold(self.profile, self.difference)
        return (*self.profile.notes, *([line] if line else []))


def diagnose_log(profile: LoggedProfile, cost: CostModel, layout: Layout) -> LogDiagnosis:
    """Hold a log against the plan that it ran.

    ``layout`` has explicit stages, ``cost`` prices it. Raises ``InputError`` for the log of another job, and for one that
    states no time.
    """
    _check(profile, cost, layout)
    expected = expectation(cost, layout)
    apart = span_difference(profile, expected)
    return LogDiagnosis(
        profile=profile,
        expected=expected,
        difference=apart,
        causes=causes_in_log(profile, expected, apart),
    )


def _check(profile: LoggedProfile, cost: CostModel, layout: Layout) -> None:
    """Refuse the log of another layout or batch."""
    planned = {
        "n_gpus": layout.gpus, "tp": layout.tp, "cp": layout.cp, "pp": layout.pp, "dp": layout.dp,
        "global_batch": cost.training.global_batch,
    }  # fmt: skip
    words = {"n_gpus": "GPUs", "global_batch": "global batch"}
    wrong = [name for name, value in planned.items() if profile.stated.get(name, value) != value]
    ranks = {rank for timers in profile.rank_timers_s.values() for rank in timers}
    if max(ranks, default=0) >= layout.gpus:
        what = f"has timers of rank {max(ranks)}, the plan has {layout.gpus:,} GPUs"
        raise input_error(what, "the log of the run of the plan", file=profile.source)
    if wrong:
        ran, was = (
            ", ".join(f"{words.get(name, name)} {values[name]}" for name in wrong)
            for values in (profile.stated, planned)
        )
        raise input_error(
            f"is of a run with {ran}", f"the log of the run of the plan: {was}", file=profile.source
        )


def answers_of_log(found: LogDiagnosis) -> Iterable[str]:
    """Answer the three questions of a profile as far as a log does."""
    apart = found.difference
    first = sorted(apart.rows, key=lambda row: -row.measured_s)[:3]
    yield "most time: " + ", ".join(f"{row.words} {row.measured_s / apart.measured_s:.0%}" for row in first)
    waited = [row for row in apart.rows if row.spans[0] not in PASSES and len(row.spans) == 1]
    shown = ", ".join(f"{row.words} {format_seconds(row.measured_s)}" for row in waited if row.measured_s > 0)
    yield f"traffic: {shown or 'not told'}; what kernels hide is in traces alone"
    slow = slowest_passes(found.profile, found.expected)
    if slow is None:
        yield "ranks: the log tells no ranks apart"
    else:
        who = "the slowest rank" if slow.rank is None else f"rank {slow.rank}"
        yield f"ranks: forward passes of {who} take {slow.ratio:.2f} times those of the fastest, stages aside"
