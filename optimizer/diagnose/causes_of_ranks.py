"""Ranks that differ from the others: one that computes slowly, one whose experts get more tokens."""

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


def slowest_rank(ranks: Sequence[RankTerms], expected: Expectation) -> Outlier | None:
    """Return the rank whose kernels take longest relative to the plan's for its stage, if it stands out."""
    if len(ranks) < 2:
        return None
    ratios = [_kernel_ratio(terms, expected) for terms in ranks]
    middle = median(ratios)
    slow = [place for place, ratio in enumerate(ratios) if middle > 0 and ratio / middle > SLOWER]
    if not slow or len(slow) > max(1, FEW * len(ranks)):
        return None
    worst = max(slow, key=lambda place: ratios[place])
    terms, ratio = ranks[worst], ratios[worst] / middle
    busy = sum(terms.seconds(part=part) for part in Activity if part.is_kernel)
    shown = []
    for part in (Activity.GEMM, Activity.ATTENTION):
        own, others = terms.kernel_s(part), median(one.kernel_s(part) for one in ranks)
        if own:
            shown.append(
                f"{part.words}: {format_seconds(own)} of a step, {format_seconds(others)} on the middle rank"
            )
    shown.append(f"it comes last to {terms.late:.0%} of its collectives")
    return Outlier(rank=terms.rank, ratio=ratio, seconds=busy * (1 - 1 / ratio), evidence=tuple(shown))


def _kernel_ratio(terms: RankTerms, expected: Expectation) -> float:
    """Return a rank's steady kernels over the plan's for its stage."""
    stage = expected.stages[expected.stage_of(terms.rank)]
    planned = sum(stage.seconds(part=part) for part in STEADY)
    return sum(terms.kernel_s(part) for part in STEADY) / planned if planned else 0.0


def slowest_experts(ranks: Sequence[RankTerms], expected: Expectation) -> Outlier | None:
    """Return the rank whose expert kernels take longest of its stage, if by more than the plan reckons with."""
    if expected.cost.model.moe is None or len(ranks) < 2:
        return None
    planned = max(imbalance(expected.cost.compute_context(batch_of_one(expected.layout))), 1.0)
    by_stage: dict[int, list[RankTerms]] = {}
    for terms in ranks:
        by_stage.setdefault(expected.stage_of(terms.rank), []).append(terms)
    found: Outlier | None = None
    for same in (group for group in by_stage.values() if len(group) > 1):
        times = [terms.kernel_s(Activity.EXPERTS) for terms in same]
        mean, worst = fmean(times), max(range(len(same)), key=lambda place: times[place])
        if mean <= 0 or times[worst] / mean <= SLOWER:
            continue
        own = [terms.kernel_s(*STEADY) for terms in same]
        ratio = times[worst] / mean / (own[worst] / fmean(own) if fmean(own) else 1.0)
        if ratio <= SLOWER or (found is not None and found.ratio >= ratio):
            continue
        shown = (
            f"expert multiplications: {format_seconds(times[worst])} of a step, {format_seconds(mean)} in the stage's mean",
            f"the plan reckons with {planned:.2f} times the mean",
        )
        found = Outlier(rank=same[worst].rank, ratio=ratio, seconds=times[worst] - mean, evidence=shown)
    return found
