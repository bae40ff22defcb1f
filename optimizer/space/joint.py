"""The size of the joint space: tuples, stage splits and recompute counts together."""

from __future__ import annotations

from math import exp, lgamma, log
from typing import TYPE_CHECKING

from layoutopt.optimizer.frameworks.stage_rule import COUNTED, Recomputation, Split
from layoutopt.optimizer.space.stage_splits import boxes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from layoutopt.optimizer.frameworks.stage_rule import StageRule


def log10_assignments(tuples: Mapping[tuple[int, int, bool], int], blocks: int, rule: StageRule) -> float:
    """Estimate log10 of the number of layouts with their stages; minus infinity for an empty space.

    ``tuples`` counts layouts without stages by (pp, vp, whether whole layers may be recomputed). Free splits
    are counted exactly; near-equal splits and recompute counts are those of the even split, hence an
    estimate.
    """
    logs = [
        log(count)
        + _log_splits(blocks, pp, vp, rule)
        + (_log_counts(blocks, pp, vp, rule.recomputation) if may_recompute else 0.0)
        for (pp, vp, may_recompute), count in tuples.items()
    ]
    if not logs:
        return float("-inf")
    top = max(logs)
    return (top + log(sum(exp(value - top) for value in logs))) / log(10)


def _log_splits(blocks: int, pp: int, vp: int, rule: StageRule) -> float:
    """Log of the ways to give ranks their totals: at least vp blocks, the ends one fewer."""
    spare = blocks + 2 - pp * vp if pp > 1 else 0
    if pp == 1 or spare <= 0:
        return 0.0
    if rule.split in COUNTED:
        return log(max(sum(1 + int((high - low).max()) for low, high in boxes(rule, pp, vp, blocks)), 1))
    if rule.split is Split.FREE:
        return _log_choose(spare + pp - 1, pp - 1)
    return _log_choose(pp, (blocks + 2) % pp)


def _log_counts(blocks: int, pp: int, vp: int, recomputation: Recomputation) -> float:
    """Log of the recompute counts of an even split."""
    per_rank = blocks / pp
    if recomputation is Recomputation.PER_RANK:
        return pp * log(per_rank + 1)
    return log(per_rank / vp + 1) if recomputation is Recomputation.UNIFORM_COUNT else log(2)


def _log_choose(total: int, chosen: int) -> float:
    return lgamma(total + 1) - lgamma(chosen + 1) - lgamma(total - chosen + 1)
