"""A measured step over time: what each rank mostly does in each of equal stretches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.diagnose.intervals import shares
from layoutopt.optimizer.diagnose.parts import LABELS
from layoutopt.optimizer.diagnose.terms import stretches

if TYPE_CHECKING:
    from layoutopt.optimizer.cost.components import Component
    from layoutopt.optimizer.diagnose.diagnosis import Diagnosis

BINS = 160
"""Stretches of the step: a few pixels each on a page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """One rank's first step: runs of equal stretches as (start, end, component), seconds from the first rank's start."""

    rank: int
    stage: int
    runs: tuple[tuple[float, float, Component | None], ...]


def tracks(found: Diagnosis, most: int = 16) -> tuple[Track, ...]:
    """Return the tracks of one rank per stage and, where there is room, of more, by stage."""
    first_of: dict[int, list[int]] = {}
    for place, speed in enumerate(found.speeds):
        first_of.setdefault(speed.stage, []).append(place)
    # Stages differ by plan, ranks of one stage by accident: every stage is shown before a second rank of any.
    each = max(most // max(len(first_of), 1), 1)
    chosen = [place for stage in sorted(first_of) for place in first_of[stage][:each]]
    origin = min(int(found.profiles[place].steps[0, 0]) - found.matched[place].offset_ns for place in chosen)
    return tuple(_track(found, place, origin) for place in chosen)


def _track(found: Diagnosis, place: int, origin: int) -> Track:
    profile, matched, speed = found.profiles[place], found.matched[place], found.speeds[place]
    low, high = (int(moment) for moment in profile.steps[0])
    staged = any(one.stage for one in found.speeds)
    sharded = found.expected is not None and found.expected.layout.zero == 3
    start, end, code = stretches(profile, matched, sharded=sharded, staged=staged, low=low, high=high)
    inside = (end > low) & (start < high)
    start, end, code = start[inside], end[inside], code[inside]
    cuts = np.linspace(low, high, BINS + 1).round().astype(np.int64)
    runs: list[tuple[float, float, Component | None]] = []
    for left, right in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
        here = (end > left) & (start < right)
        found_ns = shares(start[here], end[here], code[here], left, right, len(LABELS))
        by_component: dict[Component | None, int] = {}
        for label, ns in zip((*LABELS, None), found_ns.tolist(), strict=True):
            component = label.component if label else None
            by_component[component] = by_component.get(component, 0) + ns
        most = max(by_component, key=lambda one: by_component[one])
        begin, stop = ((moment - matched.offset_ns - origin) * 1e-9 for moment in (left, right))
        # One bar for a run of equal stretches: a page of single ones would be as many times larger.
        if runs and runs[-1][2] is most:
            runs[-1] = (runs[-1][0], stop, most)
        else:
            runs.append((begin, stop, most))
    return Track(rank=profile.rank, stage=speed.stage, runs=tuple(runs))
