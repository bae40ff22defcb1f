"""The size of the joint space: tuples, stage splits and recompute counts together."""

from __future__ import annotations

from math import lgamma, log
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.space.stage_rule import Recomputation, Split
from layoutopt.optimizer.specs.vocabulary import Granularity

if TYPE_CHECKING:
    from layoutopt.optimizer.cost.batch import LayoutBatch
    from layoutopt.optimizer.space.context import Context
    from layoutopt.optimizer.space.counting import SpaceCounts
    from layoutopt.optimizer.space.modifiers import Modifiers
    from layoutopt.optimizer.space.stage_rule import StageRule


def log10_assignments(
    degrees: LayoutBatch, counts: SpaceCounts, ctx: Context, rule: StageRule, modifiers: Modifiers
) -> float:
    """Estimate log10 of the number of layouts with their stages; minus infinity for an empty space.

    Tuples are spread evenly over the degree rows; recompute counts are those of an even split, so the figure is an
    estimate, while the number of free splits of one (pp, vp) is exact.
    """
    if not len(degrees):
        return float("-inf")
    shapes, rows = np.unique(np.stack([degrees.pp, degrees.vp]), axis=1, return_counts=True)
    per_row = log(counts.remaining_tuples / len(degrees))
    whole = sum(r.granularity is Granularity.FULL for r in modifiers.recomputes) / len(modifiers.recomputes)
    logs = [
        log(count)
        + _log_splits(ctx.blocks, int(pp), int(vp), rule.split)
        + _log_mean_counts(ctx.blocks, int(pp), int(vp), rule.recomputation, whole)
        for (pp, vp), count in zip(shapes.T, rows, strict=True)
    ]
    top = max(logs)
    total = top + log(sum(np.exp(np.array(logs) - top)))
    return float(total + per_row) / log(10)


def _log_splits(blocks: int, pp: int, vp: int, split: Split) -> float:
    """Natural logarithm of the ways to give ranks their totals: at least vp blocks each, the ends one fewer."""
    spare = blocks + 2 - pp * vp if pp > 1 else 0
    if pp == 1 or spare <= 0:
        return 0.0
    if split is Split.FREE:
        return _log_choose(spare + pp - 1, pp - 1)
    return _log_choose(pp, (blocks + 2) % pp)


def _log_mean_counts(blocks: int, pp: int, vp: int, recomputation: Recomputation, whole: float) -> float:
    """Natural logarithm of the recompute counts of an even split, averaged over whole-layer and other choices."""
    per_rank = blocks / pp
    if recomputation is Recomputation.PER_RANK:
        choices = pp * log(per_rank + 1)
    elif recomputation is Recomputation.UNIFORM_COUNT:
        choices = log(per_rank / vp + 1)
    else:
        choices = log(2)
    return choices + log(whole + (1 - whole) * np.exp(-choices)) if whole else 0.0


def _log_choose(total: int, chosen: int) -> float:
    return lgamma(total + 1) - lgamma(chosen + 1) - lgamma(total - chosen + 1)
