"""Measured and predicted step on one time axis, as a Chrome trace that Perfetto opens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from layoutopt.optimizer.diagnose.terms import COLLECTIVE, PARTS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layoutopt.optimizer.diagnose.diagnosis import Diagnosis
    from layoutopt.optimizer.diagnose.peers import Matched
    from layoutopt.optimizer.diagnose.profile import RankProfile

    Event = dict[str, Any]

MOST_EVENTS = 200_000
"""Events of one rank that are written: those of as many whole steps as fit, one at least."""

PREDICTED = 1_000_000
"""Added to a stage's number for the process of its prediction, so that no rank has it."""


def diagnosis_trace(found: Diagnosis) -> dict[str, Any]:
    """Return a trace: each rank a process with a track per stream, and below it each stage's predicted terms.

    Clocks are aligned; times are microseconds from the first rank's first step. Predicted terms follow one another, each as
    long as its seconds: their order is that of the breakdown.
    """
    origin = int(found.profiles[0].steps[0, 0])
    events: list[Event] = []
    for profile, matched in zip(found.profiles, found.matched, strict=True):
        events += _measured(profile, matched, origin)
    stages = sorted({speed.stage for speed in found.speeds})
    for stage in stages if found.expected is not None else ():
        events += _predicted(found, stage)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _measured(profile: RankProfile, matched: Matched, origin: int) -> Iterator[Event]:
    """Yield a rank's events, with how long each collective waited for its peers."""
    pid, events = profile.rank, profile.events
    yield _name("process_name", pid, 0, f"rank {profile.rank} measured")
    shown = _shown(profile)
    ready = np.full(len(events.start_ns), -1)
    ready[matched.event] = matched.ready_ns
    streams = np.unique(events.stream[shown])
    for stream in streams.tolist():
        yield _name("thread_name", pid, stream, f"stream {stream}")
    for at in np.flatnonzero(shown).tolist():
        start, end = int(events.start_ns[at]), int(events.end_ns[at])
        args: dict[str, Any] = {}
        part = int(events.part[at])
        if part == COLLECTIVE and ready[at] >= 0:
            args["waiting_us"] = max(int(ready[at]) - start, 0) / 1e3
        yield {
            "ph": "X", "name": profile.names[events.name[at]][:80], "pid": pid, "tid": int(events.stream[at]),
            "ts": (start - matched.offset_ns - origin) / 1e3, "dur": (end - start) / 1e3,
            "cat": "collective" if part == COLLECTIVE else PARTS[part].value, "args": args,
        }  # fmt: skip
    for number, (low, high) in enumerate(profile.steps.tolist()):
        moment = (low - matched.offset_ns - origin) / 1e3
        yield {
            "ph": "X",
            "name": f"step {number}",
            "pid": pid,
            "tid": -1,
            "ts": moment,
            "dur": (high - low) / 1e3,
        }


def _shown(profile: RankProfile) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Tell which events to write: those of the first steps that together stay below the limit."""
    events = profile.events
    counts = [
        int(((events.start_ns >= low) & (events.start_ns < high)).sum())
        for low, high in profile.steps.tolist()
    ]
    fit = max(int(np.searchsorted(np.cumsum(counts), MOST_EVENTS, side="right")), 1)
    inside = (events.start_ns >= profile.steps[0, 0]) & (events.start_ns < profile.steps[fit - 1, 1])
    return np.asarray(inside)


def _predicted(found: Diagnosis, stage: int) -> Iterator[Event]:
    """Yield a stage's terms one after another, for every measured step."""
    assert found.expected is not None
    pid = PREDICTED + stage
    yield _name("process_name", pid, 0, f"stage {stage} predicted")
    start = 0.0
    for label, seconds in found.expected.stages[stage].labels_s.items():
        yield {
            "ph": "X", "name": label.words, "pid": pid, "tid": 0, "ts": start, "dur": seconds * 1e6,
            "cat": label.component.value, "args": {},
        }  # fmt: skip
        start += seconds * 1e6


def _name(kind: str, pid: int, tid: int, text: str) -> Event:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": text}}
