"""Count modifier choices by rule without building their combinations:

masks of different modifiers multiply.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.specs.vocabulary import Granularity

if TYPE_CHECKING:
    from layoutopt.optimizer.cost.batch import IntArray, LayoutBatch
    from layoutopt.optimizer.space.counting import SpaceCounts, Tally
    from layoutopt.optimizer.space.modifiers import BoolArray, Masks, Modifiers


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedRows:
    """Degree rows that have a valid modifier choice, with one such choice each.

    ``tuples`` (n,) is the number of valid choices of a row, ``whole_layer_tuples`` of those with whole-layer
    recomputation.
    """

    rows: LayoutBatch
    tuples: IntArray
    whole_layer_tuples: IntArray
    counts: SpaceCounts


@dataclass(frozen=True, slots=True)
class _Final:
    """Valid choices: of schedule and precision per row, of ZeRO and order per fold, and the (R, P) table."""

    schedule: BoolArray
    precision: BoolArray
    zero: BoolArray
    order: BoolArray
    table: BoolArray


def count_modifiers(
    modifiers: Modifiers, tally: Tally, folds: LayoutBatch, rows: LayoutBatch, fold: IntArray
) -> CountedRows:
    """Count what each rule on modifiers removes from ``rows`` and keep the rows that have a choice left.

    ``folds`` are the rows' distinct (tp, cp, pp, dp, ep, etp) and ``fold`` each row's position among them:
    ZeRO and mesh order depend on nothing else.
    """
    m = modifiers
    others = len(m.zero) * len(m.orders)
    chunks = m.declared_schedules(rows.pp, rows.vp).sum(axis=1)
    masks = m.masks("schedule", rows)
    schedules = _step(
        tally, masks, chunks, np.full(len(rows), others * len(m.precisions) * len(m.recomputes))
    )
    precision, table, pairs = _pairs(m, tally, rows, schedules * others)
    per_row = schedules * pairs
    per_fold = np.bincount(fold, weights=per_row, minlength=len(folds)).astype(np.int64)
    alive = np.bincount(fold, weights=per_row > 0, minlength=len(folds)).astype(np.int64)
    zero_masks, order_masks = m.masks("zero", folds), m.masks("order", folds)
    zero = _step(tally, zero_masks, np.full(len(folds), len(m.zero)), per_fold * len(m.orders), alive)
    order = _step(tally, order_masks, np.full(len(folds), len(m.orders)), per_fold * zero, alive)
    tuples = per_row * (zero * order)[fold]
    keep = np.flatnonzero(tuples)
    full = np.array([r.granularity is Granularity.FULL for r in m.recomputes], dtype=bool)
    whole = precision @ table[full].sum(axis=0)
    final = _Final(masks[-1][1], precision, zero_masks[-1][1], order_masks[-1][1], table)
    return CountedRows(
        rows=_with_choice(m, folds, rows.take(keep), fold[keep], keep, final),
        tuples=tuples[keep],
        whole_layer_tuples=(tuples // np.maximum(pairs, 1) * whole)[keep],
        counts=tally.counts(len(keep), int(tuples.sum())),
    )


def _pairs(
    m: Modifiers, tally: Tally, rows: LayoutBatch, others: IntArray
) -> tuple[BoolArray, BoolArray, IntArray]:
    """Count pairs of recomputation and precision:

    return the precision mask, the (R, P) table, pairs per row.
    """
    choices = len(m.recomputes)
    pairs = np.full(len(rows), len(m.precisions) * choices)
    masks = m.masks("precision", rows)
    pairs = _step(tally, [(name, np.repeat(mask, choices, axis=1)) for name, mask in masks], pairs, others)
    precision = masks[-1][1]
    tables = m.recompute_masks()
    weighted = [(name, precision * table.sum(axis=0)) for name, table in tables]
    return precision, tables[-1][1], _step(tally, weighted, pairs, others)


def _step(
    tally: Tally,
    masks: Masks | list[tuple[str, IntArray]],
    count: IntArray,
    others: IntArray,
    degrees: IntArray | None = None,
) -> IntArray:
    """Count what each rule removes, given the choices of all other modifiers; return the choices left per
    row.

    ``degrees`` is the number of degree tuples behind each row, by default one where any tuple is left.
    """
    for name, mask in masks:
        left = mask.sum(axis=1).astype(np.int64)
        lost = (left == 0) & (count > 0) & (others > 0)
        gone = int(lost.sum() if degrees is None else degrees[lost].sum())
        tally.remove(name, gone, int(((count - left) * others).sum()))
        count = left
    return count


def _with_choice(
    m: Modifiers, folds: LayoutBatch, rows: LayoutBatch, fold: IntArray, keep: IntArray, final: _Final
) -> LayoutBatch:
    """Give every row its first valid choices:

    ZeRO-1 over the whole group where that is one, else the nearest stage.
    """
    if not len(rows):
        return rows
    stages = np.array([choice.stage for choice in m.zero], dtype=np.int64)
    grouped = np.array([bool(choice.level_gpus or choice.shard) for choice in m.zero])
    preference = np.lexsort((grouped, np.abs(stages - 1)))
    chosen = preference[final.zero[:, preference].argmax(axis=1)]
    shard = m.shards(folds)[np.arange(len(folds)), chosen]
    precision = (final.precision[keep] & final.table.any(axis=0)).argmax(axis=1)
    return replace(
        rows,
        zero=stages[chosen][fold],
        hsdp_shard=shard[fold],
        order=final.order.argmax(axis=1)[fold],
        schedule=final.schedule[keep].argmax(axis=1),
        precision=precision,
        recompute=final.table.argmax(axis=0)[precision],
    )
