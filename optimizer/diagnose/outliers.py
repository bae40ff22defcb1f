"""Ranks that differ from the others of their pipeline stage: slower kernels, or experts that get more tokens."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean, median
from typing import TYPE_CHECKING

from layoutopt.optimizer.cost.batch import batch_of_one
from layoutopt.optimizer.cost.compute import imbalance
from layoutopt.optimizer.diagnose.parts import Activity
from layoutopt.optimizer.specs.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutopt.optimizer.diagnose.predicted import Expectation
    from layoutopt.optimizer.diagnose.terms import RankTerms

SLOWER = 1.04
"""Kernel time over that of the middle rank from which a rank counts as slow: GPUs of one kind differ by 1 to 2%."""

FEW = 0.25
"""Share of the ranks that may be slow for them to be the exception."""

STEADY = (Activity.GEMM, Activity.ATTENTION, Activity.NORM, Activity.ACTIVATION, Activity.ELEMENTWISE)
"""Kernels whose time does not depend on where tokens go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlier:
    """A rank that differs: by which ratio, the seconds that others wait for it, and what shows it."""

    rank: int
    ratio: float
    seconds: float
    evidence: tuple[str, ...]


def over_others(times: Sequence[float]) -> list[float]:
    """Return each rank's time over the middle of the others', 1 of a rank alone: of two, one over the other."""
    ratios = []
    for place, own in enumerate(times):
        others = [*times[:place], *times[place + 1 :]]
        middle = median(others) if others else own
        ratios.append(own / middle if middle else 1.0)
    return ratios


def by_stage(ranks: Sequence[RankTerms], expected: Expectation) -> list[list[RankTerms]]:
    """Return the ranks of each pipeline stage of which several are profiled: others do not compare."""
    stages: dict[int, list[RankTerms]] = {}
    for terms in ranks:
        stages.setdefault(expected.stage_of(terms.rank), []).append(terms)
    return [group for group in stages.values() if len(group) > 1]


def slowest_rank(ranks: Sequence[RankTerms], expected: Expectation) -> Outlier | None:
    """Return the rank whose kernels take longest beside the others of its stage, if it stands out."""
    found: Outlier | None = None
    for same in by_stage(ranks, expected):
        # Kernels alone: in collectives a slow rank is the one that waits least.
        ratios = over_others([terms.kernel_s(*STEADY) for terms in same])
        slow = [place for place, ratio in enumerate(ratios) if ratio > SLOWER]
        # Where many are slow, the fast ones are the exception, and no GPU is to blame.
        if not slow or len(slow) > max(1, FEW * len(same)):
            continue
        worst = max(slow, key=lambda place: ratios[place])
        if found is None or ratios[worst] > found.ratio:
            found = _outlier(same, worst, ratios[worst])
    return found


def _outlier(same: Sequence[RankTerms], worst: int, ratio: float) -> Outlier:
    """Say what shows that a rank is slower than the others of its stage."""
    terms, others = same[worst], [*same[:worst], *same[worst + 1 :]]
    whom = "the middle of the others of its stage" if len(others) > 1 else f"rank {others[0].rank}"
    shown = []
    for part in (Activity.GEMM, Activity.ATTENTION):
        own, middle = terms.kernel_s(part), median(one.kernel_s(part) for one in others)
        if own:
            shown.append(f"{part.words}: {format_seconds(own)} of a step, {format_seconds(middle)} on {whom}")
    shown.append(f"it comes last to {terms.late:.0%} of its collectives")
    seconds = terms.computing_s * (1 - 1 / ratio)
    return Outlier(rank=terms.rank, ratio=ratio, seconds=seconds, evidence=tuple(shown))


def slowest_experts(ranks: Sequence[RankTerms], expected: Expectation) -> Outlier | None:
    """Return the rank whose expert kernels take longest of its stage, if by more than the plan reckons with."""
    if expected.cost.model.moe is None:
        return None
    planned = max(imbalance(expected.cost.compute_context(batch_of_one(expected.layout))), 1.0)
    found: Outlier | None = None
    for same in by_stage(ranks, expected):
        times = [terms.kernel_s(Activity.EXPERTS) for terms in same]
        mean, worst = fmean(times), max(range(len(same)), key=lambda place: times[place])
        if mean <= 0 or times[worst] / mean <= SLOWER:
            continue
        own = [terms.kernel_s(*STEADY) for terms in same]
        # A slow GPU has slow experts too: what its other kernels explain is no imbalance of tokens.
        ratio = times[worst] / mean / (own[worst] / fmean(own) if fmean(own) else 1.0)
        if ratio <= SLOWER or (found is not None and found.ratio >= ratio):
            continue
        shown = (
            f"expert multiplications: {format_seconds(times[worst])} of a step, {format_seconds(mean)} in the stage's mean",
            f"the plan reckons with {planned:.2f} times the mean",
        )
        found = Outlier(rank=same[worst].rank, ratio=ratio, seconds=times[worst] - mean, evidence=shown)
    return found
