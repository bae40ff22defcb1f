"""Agreement of predictions with measurements: errors, bias, and order inside groups."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from statistics import fmean, median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

CLEAR_GAP = 0.10
"""Measured times at least this far apart are a pair whose order a planner has to get right."""

SMALLEST_GROUP = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorSummary:
    """Errors of ``rows`` predictions; None without rows.

    The absolute percentage error (APE) of a row is \\|predicted / measured - 1\\|. ``mape`` is its mean,
    ``p90_ape`` its 90th percentile (linear between rows), ``bias`` the mean of predicted / measured - 1,
    positive when too slow. All are fractions.
    """

    rows: int
    mape: float | None
    median_ape: float | None
    p90_ape: float | None
    bias: float | None


def relative_error(predicted: float, measured: float) -> float:
    """Return predicted / measured - 1."""
    return predicted / measured - 1


def summarize(errors: Sequence[float]) -> ErrorSummary:
    """Summarize signed relative errors."""
    if not errors:
        return ErrorSummary(rows=0, mape=None, median_ape=None, p90_ape=None, bias=None)
    sizes = [abs(error) for error in errors]
    return ErrorSummary(
        rows=len(errors),
        # The mean follows the worst rows, the median does not see them: both are quoted.
        mape=fmean(sizes),
        median_ape=median(sizes),
        p90_ape=quantile(sizes, 0.9),
        bias=fmean(errors),
    )


def quantile(values: Sequence[float], share: float) -> float:
    """Return a quantile with linear interpolation between the sorted values (the usual type 7)."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedGroup:
    """Layouts of one group: measured and predicted seconds, repeats of a layout averaged, in equal order."""

    name: str
    measured_s: tuple[float, ...]
    predicted_s: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRanking:
    """How well one group is ordered.

    ``kendall_tau`` is tau-b, None when all measured or all predicted times are equal. ``clear_pairs`` counts
    pairs whose measured times differ by more than 10% of the smaller, ``clear_right`` those ordered right (a
    predicted tie counts half). Regret is measured time over the best measured time, less 1: of the layout
    predicted fastest, and of the best among the three predicted fastest.
    """

    name: str
    layouts: int
    kendall_tau: float | None
    clear_pairs: int
    clear_right: float
    top1_regret: float
    top3_regret: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RankingSummary:
    """Means over groups of at least three layouts; None without groups."""

    groups: int
    kendall_tau: float | None
    pairs_over_10pct: float | None
    clear_pairs: int
    top1_regret_mean: float | None
    top1_regret_median: float | None
    top3_regret_mean: float | None


def rank_group(group: RankedGroup) -> GroupRanking:
    """Compare the predicted with the measured order of a group's layouts."""
    measured, predicted = group.measured_s, group.predicted_s
    # Closer pairs are in the order in which their noise fell.
    pairs = [(i, j) for i, j in combinations(range(len(measured)), 2) if is_clear(measured[i], measured[j])]
    best = min(measured)
    # Ties in their order in the table, so that the figure is the same in every run.
    order = sorted(range(len(measured)), key=lambda index: (predicted[index], index))
    return GroupRanking(
        name=group.name,
        layouts=len(measured),
        kendall_tau=kendall_tau(measured, predicted),
        clear_pairs=len(pairs),
        clear_right=sum(_agreement(measured, predicted, pair) for pair in pairs),
        top1_regret=measured[order[0]] / best - 1,
        top3_regret=min(measured[index] for index in order[:3]) / best - 1,
    )


def is_clear(first: float, second: float) -> bool:
    """Whether two measured times differ by more than 10% of the smaller."""
    return max(first, second) > (1 + CLEAR_GAP) * min(first, second)


def _agreement(measured: Sequence[float], predicted: Sequence[float], pair: tuple[int, int]) -> float:
    i, j = pair
    if predicted[i] == predicted[j]:
        # Neither right nor wrong.
        return 0.5
    return float((measured[i] < measured[j]) == (predicted[i] < predicted[j]))


def kendall_tau(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Return Kendall's tau-b, which corrects for ties; None when a sequence has no two different values.

    Kendall, M. G. (1945). The treatment of ties in ranking problems. Biometrika 33, 239-251.
    """
    agree = only_first = only_second = 0
    for i, j in combinations(range(len(first)), 2):
        a, b = _sign(first[i] - first[j]), _sign(second[i] - second[j])
        agree += a * b
        only_first += a != 0
        only_second += b != 0
    if not only_first or not only_second:
        return None
    return float(agree / (only_first * only_second) ** 0.5)


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)


def summarize_ranking(groups: Sequence[GroupRanking]) -> RankingSummary:
    """Average over groups; pairs are pooled over all groups."""
    ranked = [group for group in groups if group.layouts >= SMALLEST_GROUP]
    taus = [group.kendall_tau for group in ranked if group.kendall_tau is not None]
    # Pooled, or a group with a single clear pair would count as much as one with a hundred.
    pairs = sum(group.clear_pairs for group in ranked)
    return RankingSummary(
        groups=len(ranked),
        kendall_tau=fmean(taus) if taus else None,
        pairs_over_10pct=sum(group.clear_right for group in ranked) / pairs if pairs else None,
        clear_pairs=pairs,
        top1_regret_mean=fmean(group.top1_regret for group in ranked) if ranked else None,
        top1_regret_median=median(group.top1_regret for group in ranked) if ranked else None,
        top3_regret_mean=fmean(group.top3_regret for group in ranked) if ranked else None,
    )
