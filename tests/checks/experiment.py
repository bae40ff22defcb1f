"""How well a few runs of a group predict the rest of it: the value of calibrating with own runs."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean
from typing import TYPE_CHECKING

from layoutopt.optimizer.evidence.calibrate import LEAST_SPREAD
from layoutopt.optimizer.evidence.robust import huber_location
from layoutopt.optimizer.evidence.validate import members

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from layoutopt.optimizer.evidence.case import Case

MOST_DRAWS = 500
"""Choices of own runs per group that are tried; groups with more choices draw this many, seeded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupGain:
    """One group: mean absolute error of the rest before and after scaling, over the choices of own runs."""

    name: str
    family: str
    rows: int
    before: float
    after: float


def calibration_gain(
    cases: Sequence[Case],
    predicted_s: Mapping[int, float],
    *,
    own: int = 3,
    smallest: int = 4,
    seed: int = 0,
) -> tuple[GroupGain, ...]:
    """Scale each group by ``own`` of its runs and compare the others with it.

    ``predicted_s`` maps indices of ``cases`` to predicted seconds. Groups below ``smallest`` rows are left
    out.
    """
    gains = []
    for name, indices in members(cases).items():
        ratios = [predicted_s[i] / (cases[i].measured_s or 0.0) for i in indices if i in predicted_s]
        if len(ratios) >= max(smallest, own + 1):
            family = cases[indices[0]].family.value
            gains.append(_gain(name, family, ratios, own, seed))
    return tuple(gains)


def _gain(name: str, family: str, ratios: Sequence[float], own: int, seed: int) -> GroupGain:
    before, after = [], []
    for chosen in _choices(len(ratios), own, seed):
        logs = [-math.log(ratios[index]) for index in chosen]
        scale = math.exp(huber_location(logs, least_spread=LEAST_SPREAD).value)
        rest = [ratio for index, ratio in enumerate(ratios) if index not in chosen]
        before.append(fmean(abs(ratio - 1) for ratio in rest))
        after.append(fmean(abs(scale * ratio - 1) for ratio in rest))
    return GroupGain(name=name, family=family, rows=len(ratios), before=fmean(before), after=fmean(after))


def _choices(rows: int, own: int, seed: int) -> list[tuple[int, ...]]:
    if math.comb(rows, own) <= MOST_DRAWS:
        return list(combinations(range(rows), own))
    draw = random.Random(seed)
    return [tuple(draw.sample(range(rows), own)) for _ in range(MOST_DRAWS)]
