"""A log against a plan: the step and its spans, the three questions as far as a log answers them, and causes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from layoutopt.optimizer.cost.components import Component
from layoutopt.optimizer.diagnose.cause import (
    FLAGS,
    LEAST_RATIO,
    LEAST_SHARE,
    LINK_RATIO,
    Cause,
    CauseKind,
    by_seconds,
    cause,
)
from layoutopt.optimizer.diagnose.logged import (
    PASSES,
    WHOLE,
    LoggedProfile,
    LoggedSpan,
    SpanRow,
    alone_s,
    predicted_spans,
    span_difference,
    untold,
)
from layoutopt.optimizer.diagnose.outliers import SLOWER
from layoutopt.optimizer.diagnose.predicted import Expectation, expectation
from layoutopt.optimizer.diagnose.unexplained import unexplained
from layoutopt.optimizer.diagnose.utilization import require_possible
from layoutopt.optimizer.specs.errors import input_error
from layoutopt.optimizer.specs.units import format_seconds
from layoutopt.optimizer.specs.vocabulary import Axis, Granularity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from layoutopt.optimizer.cost.cost_model import CostModel
    from layoutopt.optimizer.diagnose.difference import StepDifference
    from layoutopt.optimizer.diagnose.predicted import Expectation
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
    # A step above the GPUs' peak is of another batch or model, and every term of it would be "faster".
    require_possible(cost, layout.gpus, apart.measured_s, file=profile.source)
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


FORWARD_TIMERS = ("forward-compute", "fwd")
UPDATE = (LoggedSpan.GRADIENTS, LoggedSpan.OPTIMIZER)
TRACES = "traces of a few ranks tell which"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowPasses:
    """The ranks' forward passes: most over least, the plan's stages aside; ``rank`` where the log lists ranks."""

    rank: int | None
    ratio: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Log:
    """What causes are looked for in."""

    profile: LoggedProfile
    expected: Expectation
    apart: StepDifference[SpanRow]

    @property
    def rows(self) -> tuple[SpanRow, ...]:
        """The rows, sums of gradients apart from the optimizer where timers tell them.

        What is left is the optimizer with the gathers of its weights, whose prediction stays with the gradients': neither is
        blamed for more than it took.
        """
        return tuple(part for row in self.apart.rows for part in self._parts(row))

    def _parts(self, row: SpanRow) -> tuple[SpanRow, ...]:
        summed_s = alone_s(self.profile, LoggedSpan.GRADIENTS)
        if row.spans != UPDATE or summed_s is None:
            return (row,)
        planned = predicted_spans(self.expected)
        measured = (summed_s, row.measured_s - summed_s)
        return tuple(
            SpanRow(spans=(span,), predicted_s=planned[span], measured_s=seconds, gap_share=None)
            for span, seconds in zip(UPDATE, measured, strict=True)
        )

    def row(self, *spans: LoggedSpan) -> SpanRow | None:
        """Return the row of exactly these spans."""
        return next((row for row in self.rows if row.spans == spans), None)


def causes_in_log(
    profile: LoggedProfile, expected: Expectation, apart: StepDifference[SpanRow]
) -> tuple[Cause, ...]:
    """Return the causes that a log's timers show, the largest first."""
    log = _Log(profile=profile, expected=expected, apart=apart)
    least_s = LEAST_SHARE * expected.step_s
    named = [one for rule in RULES for one in rule(log) if one.seconds >= least_s]
    return by_seconds([*named, *unexplained(apart, named)])


def slowest_passes(profile: LoggedProfile, expected: Expectation) -> SlowPasses | None:
    """Compare the ranks' forward passes; None where the log does not tell them apart."""
    name = next((name for name in FORWARD_TIMERS if name in profile.timers_s), None)
    if name is None:
        return None
    least_s, most_s = profile.timers_s[name]
    if least_s == most_s:
        return None
    planned = [stage.seconds(Component.FORWARD) for stage in expected.stages]
    # Stages hold different layers by plan: only what is beyond that sets ranks apart.
    ratio = most_s / least_s / (max(planned) / min(planned) if min(planned) else 1.0)
    ranks = profile.rank_timers_s.get(name, {})
    rank = max(ranks, key=lambda one: ranks[one] / planned[expected.stage_of(one)], default=None)
    return SlowPasses(rank=rank, ratio=max(ratio, 1.0), seconds=most_s * (1 - 1 / max(ratio, 1.0)))


def _data(log: _Log) -> Iterator[Cause]:
    row = log.row(LoggedSpan.DATA)
    if row is not None:
        yield cause(
            CauseKind.DATA_LOADER,
            "data loader",
            row.measured_s,
            f"batches take {format_seconds(row.measured_s)} of a step",
            "timer batch-generator",
        )


def _ranks(log: _Log) -> Iterator[Cause]:
    slow = slowest_passes(log.profile, log.expected)
    if slow is None or slow.ratio <= SLOWER:
        return
    who = "one rank" if slow.rank is None else f"rank {slow.rank}"
    # A timer holds experts and all else: which of the two is slow it does not tell.
    experts = log.expected.cost.model.moe is not None
    yield cause(
        CauseKind.SLOW_RANK,
        who,
        slow.seconds,
        f"forward passes of {who} take {slow.ratio:.2f} times those of the fastest, stages aside",
        f"a slow GPU, or experts that get more tokens: {TRACES}" if experts else "the others wait for it",
        remedy="that GPU's clocks, temperature and power limit; --timing-log-option all lists ranks (Megatron-LM)",
    )


def _passes(log: _Log) -> Iterator[Cause]:
    """Backward that is slower than forward recomputes; both slow alike is speed."""
    forward, backward = log.row(LoggedSpan.FORWARD), log.row(LoggedSpan.BACKWARD)
    if forward is None or backward is None or not forward.ratio or not backward.ratio:
        # Where a log does not tell the directions apart, only their sum can be judged.
        both = [row for row in log.apart.rows if LoggedSpan.FORWARD in row.spans]
        yield from (
            _slow(row.words, row.ratio, row.gap_s) for row in both if row.ratio and row.ratio > LEAST_RATIO
        )
        return
    # Forward's ratio is what speed explains: a slow GPU slows both directions alike, and only recomputation one of them.
    again_s = backward.measured_s - backward.predicted_s * forward.ratio
    recompute = log.expected.layout.recompute
    if backward.ratio > LEAST_RATIO * forward.ratio and recompute.granularity is not Granularity.FULL:
        yield cause(
            CauseKind.RECOMPUTATION,
            "recompute",
            again_s,
            f"backward takes {format_seconds(again_s)} more than forward's speed explains: recomputation",
            f"backward {format_seconds(backward.measured_s)}, forward {format_seconds(forward.measured_s)} of a step; "
            f"the plan has {backward.predicted_s / forward.predicted_s:.2f} times forward",
        )
    if forward.ratio > LEAST_RATIO:
        slower = min(forward.ratio, backward.ratio)
        seconds = forward.gap_s + max(min(forward.ratio, backward.ratio) - 1, 0.0) * backward.predicted_s
        yield _slow(
            "forward and backward passes" if slower > LEAST_RATIO else forward.words, forward.ratio, seconds
        )


def _slow(words: str, ratio: float, seconds: float) -> Cause:
    return cause(
        CauseKind.SLOW_KERNELS,
        "passes",
        seconds,
        f"{words} {'takes' if words == WHOLE else 'take'} {ratio:.2f} times as long as predicted",
        f"kernels, the layers' traffic or the host: {TRACES}",
        remedy="traces of a few ranks; or calibrate, if all layouts of this machine show it",
    )


def _gradients(log: _Log) -> Iterator[Cause]:
    """Traffic after the passes: alone where it takes what was to be hidden, slow where it takes more than all of it."""
    row = log.row(LoggedSpan.GRADIENTS)
    if row is None or row.gap_s <= 0 or not row.measured_s:
        return
    # What takes longer than all of its calls one after another can't be missing overlap alone.
    whole_s = max(_whole_s(log.expected), row.predicted_s)
    slow = row.measured_s > LINK_RATIO * whole_s
    what = row.words if row in log.apart.rows else "gradient sums"
    yield cause(
        CauseKind.SLOW_LINK if slow else CauseKind.NO_OVERLAP,
        Axis.DP.value,
        row.gap_s,
        f"{what} take {format_seconds(row.measured_s)} of a step beside the passes: "
        + ("longer than all of that traffic" if slow else "they are not overlapped"),
        f"{format_seconds(row.predicted_s)} predicted beside the passes, {format_seconds(whole_s)} for all of it alone",
        remedy="" if slow else FLAGS[Axis.DP],
    )


def _whole_s(expected: Expectation) -> float:
    """Return the seconds of a step's data-parallel calls one after another, of the stage that has most."""
    from layoutopt.optimizer.cost.collectives import collectives

    stages: dict[int, float] = {}
    for call in collectives(expected.cost, expected.layout):
        price_s = expected.transfer_s(Axis.DP, call.kind, call.bytes) if call.axis in ("dp", "edp") else None
        stages[call.stage] = stages.get(call.stage, 0.0) + call.count * (price_s or 0.0)
    return max(stages.values(), default=0.0)


def _others(log: _Log) -> Iterator[Cause]:
    """Name the other spans that are longer than predicted."""
    known = (
        (LoggedSpan.OPTIMIZER, CauseKind.SLOW_KERNELS, "the optimizer", "a fused, distributed optimizer"),
        (LoggedSpan.PIPELINE, CauseKind.SLOW_LINK, "sends and waiting in the pipeline",
         "stages of equal time; the links between them"),
        (LoggedSpan.REST, CauseKind.HOST_BOUND, "what lies between the timers",
         "logging, evaluation and checkpoints within the logged steps; the data loader"),
    )  # fmt: skip
    for span, kind, words, remedy in known:
        row = next((row for row in log.rows if row.spans[-1] is span and len(row.spans) < 3), None)
        # A sum of three spans or more says nothing of the one that it would be named after.
        if row is not None and (row.ratio is None or row.ratio > LEAST_RATIO):
            if len(row.spans) > 1:
                words = row.words
            elif row not in log.apart.rows and log.expected.layout.zero:
                words = f"{words} with gathers of weights"
            yield cause(
                kind,
                span.value,
                row.gap_s,
                f"{words} took {format_seconds(row.measured_s)}, {format_seconds(row.predicted_s)} predicted",
                f"timers of {log.profile.trainer}, {log.profile.steps_words}",
                remedy=remedy,
            )


RULES: tuple[Callable[[_Log], Iterator[Cause]], ...] = (_data, _ranks, _passes, _gradients, _others)
"""Every rule that looks for causes in a log."""
