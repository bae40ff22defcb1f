"""A log's timers against a plan: which stretches of a step they tell, which not apart, and what was predicted."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from statistics import fmean
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.cost.components import Component
from layoutopt.optimizer.cost.kernel_times import stage_times
from layoutopt.optimizer.diagnose.difference import Compared, StepDifference, share_of
from layoutopt.optimizer.specs.document import packaged
from layoutopt.optimizer.specs.errors import input_error
from layoutopt.optimizer.specs.units import counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from layoutopt.optimizer.cost.components import Hue
    from layoutopt.optimizer.cost.kernel_times import PassTimes, StageTimes
    from layoutopt.optimizer.diagnose.predicted import Expectation, PredictedStage


class LoggedSpan(StrEnum):
    """A stretch of a step that timers bracket. Together they are the step."""

    FORWARD = "forward"
    BACKWARD = "backward"
    PIPELINE = "pipeline"
    GRADIENTS = "gradients"
    OPTIMIZER = "optimizer"
    DATA = "data"
    REST = "rest"

    @property
    def words(self) -> str:
        """The span's name for people."""
        return _WORDS[self]


_WORDS = {
    LoggedSpan.FORWARD: "forward passes",
    LoggedSpan.BACKWARD: "backward passes",
    LoggedSpan.PIPELINE: "pipeline sends and bubble",
    LoggedSpan.GRADIENTS: "gradient sums and weight gathers",
    LoggedSpan.OPTIMIZER: "optimizer",
    LoggedSpan.DATA: "batches",
    LoggedSpan.REST: "rest of the step",
}
_HUES: dict[LoggedSpan, Hue] = {
    LoggedSpan.FORWARD: "blue", LoggedSpan.BACKWARD: "sky", LoggedSpan.PIPELINE: "grey",
    LoggedSpan.GRADIENTS: "green", LoggedSpan.OPTIMIZER: "plum", LoggedSpan.DATA: "gold", LoggedSpan.REST: "slate",
}  # fmt: skip
WHOLE = "whole step"
"""What a row of all spans is called."""

PASSES = (LoggedSpan.FORWARD, LoggedSpan.BACKWARD)

IN_PASSES = (Component.TP, Component.CP, Component.EP, Component.FSDP)
"""Traffic within passes, part of it in each direction."""

MOST_OVER = 0.05
"""Share of a step by which timers of different ranks, each a mean over an interval, may exceed it."""

UNTOLD_S = 1e-9
"""Seconds below which a span that a timer cannot hold apart does not matter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedProfile:
    """What a trainer's log says of its steps.

    ``step_s`` is None where the log states a rate alone: ``tokens_s_gpu`` (per GPU) or ``samples_per_s`` (whole job).
    ``stated`` are degrees and sizes by the names of measured runs' columns (``tp``, ``n_gpus``, ``global_batch``).
    ``timers_s`` are the least and the most seconds a step over ranks, ``rank_timers_s`` those of each rank where listed.
    """

    source: str
    trainer: str
    steps: int
    step_s: float | None
    tokens_s_gpu: float | None = None
    samples_per_s: float | None = None
    stated: Mapping[str, int] = field(default_factory=dict)
    timers_s: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    rank_timers_s: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def steps_words(self) -> str:
        """How many steps there are, in words."""
        return counted(self.steps, "step")

    def mean_s(self, timer: str) -> float:
        """Return a timer's seconds a step: the mean of its ranks, else the middle of the least and the most."""
        ranks = self.rank_timers_s.get(timer)
        return fmean(ranks.values()) if ranks else fmean(self.timers_s[timer])


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanRow(Compared):
    """Spans that a log tells as one sum."""

    spans: tuple[LoggedSpan, ...]

    @property
    def words(self) -> str:
        """All spans in words."""
        if {LoggedSpan.FORWARD, LoggedSpan.REST} <= set(self.spans):
            return WHOLE
        return ", ".join(span.words for span in self.spans)

    @property
    def hue(self) -> Hue:
        """The first span's colour."""
        return _HUES[self.spans[0]]


def step_seconds(profile: LoggedProfile, expected: Expectation) -> float:
    """Return the measured step, from the rate and the plan's batch where the log states no time.

    Raises ``InputError`` where neither is there nor timers of whole steps.
    """
    training = expected.cost.training
    # In order of trust: a stated time, a rate over the plan's batch, and timers, which leave out what no timer brackets.
    if profile.step_s:
        return profile.step_s
    if profile.tokens_s_gpu:
        return training.tokens_per_step / (profile.tokens_s_gpu * expected.layout.gpus)
    if profile.samples_per_s:
        return training.global_batch / profile.samples_per_s
    table = _table().get(profile.trainer, {})
    outer = [name for name in profile.timers_s if name in table and _outside(name, profile, table) is None]
    step_s = sum(profile.mean_s(name) for name in outer)
    if not step_s:
        raise input_error("states no step time", "lines of steps, or timers", file=profile.source)
    return step_s


def span_difference(profile: LoggedProfile, expected: Expectation) -> StepDifference[SpanRow]:
    """Hold what a log tells against the plan's spans, in the mean over its stages.

    Raises ``InputError`` for timers that are not of the log's steps.
    """
    step_s = step_seconds(profile, expected)
    planned = predicted_spans(expected)
    gap_s = step_s - expected.step_s
    rows = []
    for spans, seconds in _told(profile, step_s):
        if seconds < -MOST_OVER * step_s:
            what = f"has timers that add up to {step_s - seconds:.4g} s in steps of {step_s:.4g} s"
            raise input_error(what, "the log of one run, whose timers are of its steps", file=profile.source)
        was = sum(planned[span] for span in spans)
        # Spans that the plan has nothing in would make a row look as if it told less than it does.
        shown = tuple(span for span in spans if planned[span] > UNTOLD_S) or spans[:1]
        share = share_of(seconds - was, gap_s)
        rows.append(SpanRow(spans=shown, predicted_s=was, measured_s=seconds, gap_share=share))
    return StepDifference(predicted_s=expected.step_s, measured_s=step_s, rows=tuple(rows))


def alone_s(profile: LoggedProfile, span: LoggedSpan) -> float | None:
    """Return the seconds of the timers that hold this span and no other; None where none does."""
    table = _table().get(profile.trainer, {})
    mine = [name for name in profile.timers_s if name in table and table[name]["holds"] == [span.value]]
    return sum(map(profile.mean_s, mine)) if mine else None


def untold(profile: LoggedProfile, apart: StepDifference[SpanRow]) -> str:
    """Say in a line what the log does not tell apart; empty where it tells all."""
    sums = [row.words for row in apart.rows if len(row.spans) > 1]
    if not sums:
        return ""
    if sums == [WHOLE]:
        return f"the log of {profile.trainer} tells whole steps alone, not passes, traffic or optimizer. Traces of ranks do"
    return f"the log of {profile.trainer} does not tell apart: {'; '.join(sums)}. Traces of ranks do"


def predicted_spans(expected: Expectation) -> dict[LoggedSpan, float]:
    """Return the plan's seconds of every span, in the mean over its stages; they sum to the step."""
    times = stage_times(expected.cost, expected.layout)
    stages = [_spans_of(stage, times[stage.stage :: expected.layout.pp]) for stage in expected.stages]
    return {span: fmean(stage[span] for stage in stages) for span in LoggedSpan}


def _spans_of(stage: PredictedStage, times: Sequence[StageTimes]) -> dict[LoggedSpan, float]:
    """Divide a stage's step: traffic and host time within passes as its kernels' list has them by direction."""
    forward_s = stage.seconds(Component.FORWARD)
    for component in (*IN_PASSES, Component.HOST):
        ways = [
            sum(_in_pass(getattr(one, way), component) for one in times)
            for way in ("forward", "backward", "again")
        ]
        # A component without a price by direction is in both alike.
        share = ways[0] / sum(ways) if sum(ways) else 0.5
        forward_s += share * stage.seconds(component)
    within = (
        Component.FORWARD,
        Component.BACKWARD,
        Component.RECOMPUTE,
        Component.OFFLOAD,
        Component.HOST,
        *IN_PASSES,
    )
    return {
        LoggedSpan.FORWARD: forward_s,
        LoggedSpan.BACKWARD: sum(stage.seconds(component) for component in within) - forward_s,
        LoggedSpan.PIPELINE: stage.seconds(Component.PP) + stage.seconds(Component.BUBBLE),
        LoggedSpan.GRADIENTS: stage.seconds(Component.DP) + stage.seconds(Component.SYNC),
        LoggedSpan.OPTIMIZER: stage.seconds(Component.OPTIMIZER),
        LoggedSpan.DATA: 0.0,
        LoggedSpan.REST: stage.seconds(Component.STEP),
    }


def _in_pass(passed: PassTimes, component: Component) -> float:
    return passed.host_s if component is Component.HOST else passed.traffic_s.get(component, 0.0)


def _table() -> Mapping[str, Mapping[str, Mapping[str, Any]]]:
    found: Mapping[str, Any] = packaged("diagnose", "timers")
    return found


def _outside(name: str, profile: LoggedProfile, table: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Return the timer that is logged too and whose seconds hold this one's; None: the step's."""
    outer = table[name].get("inside")
    while outer is not None and outer not in profile.timers_s:
        outer = table[outer].get("inside")
    return outer


def _told(profile: LoggedProfile, step_s: float) -> list[tuple[tuple[LoggedSpan, ...], float]]:
    """Return disjoint sets of spans with their seconds, which sum to the step.

    A timer's own seconds are what the timers inside of it leave, for the spans that none of them holds; sets that share a
    span are one.
    """
    table = _table().get(profile.trainer, {})
    known = [name for name in profile.timers_s if name in table]
    # None stands for the step itself: what no timer takes is left there.
    left: dict[str | None, float] = {None: step_s} | {name: profile.mean_s(name) for name in known}
    holds: dict[str | None, set[LoggedSpan]] = {None: set(LoggedSpan)} | {
        name: set(map(LoggedSpan, table[name]["holds"])) for name in known
    }
    own = {name: set(spans) for name, spans in holds.items()}
    for name in known:
        outer = _outside(name, profile, table)
        left[outer] -= profile.mean_s(name)
        own[outer] -= holds[name]
    # a timer that holds nothing but its inner timers: what they leave is the step's
    left[None] += sum(left[name] for name in known if not own[name])
    sums: list[tuple[set[LoggedSpan], float]] = []
    for timer in (None, *(name for name in known if own[name])):
        joined, seconds = own[timer], left[timer]
        for spans, others in [one for one in sums if one[0] & joined]:
            joined, seconds = joined | spans, seconds + others
            sums.remove((spans, others))
        sums.append((joined, seconds))
    listed = [(tuple(span for span in LoggedSpan if span in spans), seconds) for spans, seconds in sums]
    return sorted(listed, key=lambda one: tuple(LoggedSpan).index(one[0][0]))
