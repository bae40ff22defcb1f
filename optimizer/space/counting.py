"""How many tuples a space declares, how many each rule removes, and modifier choices counted without building them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from layoutopt.optimizer.cost.batch import compact
from layoutopt.optimizer.specs.vocabulary import Granularity

if TYPE_CHECKING:
    from layoutopt.optimizer.cost.batch import IntArray, LayoutBatch
    from layoutopt.optimizer.space.modifiers import BoolArray, Masks, Modifiers

    Counts = list[tuple[str, IntArray]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleCount:
    """Tuples that one rule removed from those that the rules before it left."""

    rule: str
    degrees: int
    tuples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceCounts:
    """Sizes of a space.

    ``degrees`` counts tuples of tp, sp, cp, pp, vp, dp, ep, etp and micro-batch, ``tuples`` the same times
    ZeRO choice, recomputation, mesh order, schedule and precision. Declared equals remaining plus everything
    removed, for both.
    """

    declared_degrees: int
    declared_tuples: int
    removed: tuple[RuleCount, ...]
    remaining_degrees: int
    remaining_tuples: int

    def beside(self, rule: str, sets: int) -> SpaceCounts:
        """Count as declared, and as removed by a rule, what every declared tuple would be with ``sets`` further choices."""
        if not sets:
            return self
        more = sets * self.declared_tuples
        first = RuleCount(rule=rule, degrees=0, tuples=more)
        return replace(self, declared_tuples=self.declared_tuples + more, removed=(first, *self.removed))

    @property
    def last_rule(self) -> str:
        """The rule that removed the last degree tuples."""
        return next((count.rule for count in reversed(self.removed) if count.degrees), "")


@dataclass(slots=True)
class Tally:
    """Collects counts while a space is built; rules of one name add up where the name came first."""

    declared_degrees: int = 0
    declared_tuples: int = 0
    removed: dict[str, tuple[int, int]] = field(default_factory=dict)

    def remove(self, rule: str, degrees: int, tuples: int) -> None:
        """Count what a rule removed."""
        # Trainers have rules of one name for several eras and levels: a reader sees one line for each name.
        before = self.removed.get(rule, (0, 0))
        self.removed[rule] = (before[0] + degrees, before[1] + tuples)

    def counts(self, remaining_degrees: int, remaining_tuples: int) -> SpaceCounts:
        """Close the books."""
        return SpaceCounts(
            declared_degrees=self.declared_degrees,
            declared_tuples=self.declared_tuples,
            removed=tuple(
                RuleCount(rule=rule, degrees=degrees, tuples=tuples)
                for rule, (degrees, tuples) in self.removed.items()
                # A rule that removed nothing is no part of why the space is so large.
                if degrees or tuples
            ),
            remaining_degrees=remaining_degrees,
            remaining_tuples=remaining_tuples,
        )


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
    """Valid choices: of schedule per row, of precision per ``sort`` (n,) of rows, of ZeRO and order per fold, and the (R, P)
    table."""

    schedule: BoolArray
    precision: BoolArray
    sort: IntArray
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
    # Modifiers that are judged apart multiply: a choice of one stands for all choices of the others.
    others = len(m.zero) * len(m.orders)
    pairs = len(m.recomputes) * len(m.precisions)
    # The order here is the order of the certificate: schedule, precision with recomputation, ZeRO, mesh
    # order.
    masks = m.masks("schedule", rows)
    declared = _left(m.declared_schedules(rows.pp, rows.vp))
    schedules = _step(tally, _lefts(masks), declared, np.full(len(rows), others * pairs))
    precision, sort, table, paired = _pairs(m, tally, rows, schedules * others)
    # ZeRO and order are judged per fold: until then a row counts with all that its fold declares.
    per_row = schedules * paired
    per_fold = np.bincount(fold, weights=per_row, minlength=len(folds)).astype(np.int64)
    # Rows of a fold that are gone already must not be counted again as removed by ZeRO or order.
    alive = np.bincount(fold, weights=per_row > 0, minlength=len(folds)).astype(np.int64)
    zeros, orders = m.masks("zero", folds), m.masks("order", folds)
    zero = _step(tally, _lefts(zeros), np.full(len(folds), len(m.zero)), per_fold * len(m.orders), alive)
    order = _step(tally, _lefts(orders), np.full(len(folds), len(m.orders)), per_fold * zero, alive)
    per_choice = (zero * order)[fold]
    tuples = per_row * per_choice
    # A row without a choice in any one modifier has no layout at all.
    keep = np.flatnonzero(tuples)
    full = np.array([r.granularity is Granularity.FULL for r in m.recomputes], dtype=bool)
    whole = _weighted(precision, table[full].sum(axis=0))[sort] * schedules * per_choice
    final = _Final(masks[-1][1], precision, sort, zeros[-1][1], orders[-1][1], table)
    return CountedRows(
        rows=_with_choice(m, folds, rows.take(keep), fold[keep], keep, final),
        tuples=tuples[keep],
        whole_layer_tuples=whole[keep],
        counts=tally.counts(len(keep), int(tuples.sum())),
    )


def _pairs(
    m: Modifiers, tally: Tally, rows: LayoutBatch, others: IntArray
) -> tuple[BoolArray, IntArray, BoolArray, IntArray]:
    """Count pairs of recomputation and precision: the precision mask (s, P) of each sort of rows, the sort of every row, the
    (R, P) table, pairs per row."""
    choices, (alike, sort) = len(m.recomputes), m.sorts(rows)
    masks, tables = m.masks("precision", alike), m.recompute_masks
    precision = masks[-1][1]
    steps = [(name, (choices * left)[sort]) for name, left in _lefts(masks)]
    steps += [(name, _weighted(precision, table.sum(axis=0))[sort]) for name, table in tables]
    declared = np.full(len(rows), len(m.precisions) * choices)
    return precision, sort, tables[-1][1], _step(tally, steps, declared, others)


def _left(mask: BoolArray) -> IntArray:
    """Count the choices of each row."""
    left: IntArray = mask.sum(axis=1, dtype=np.int32).astype(np.int64)
    return left


def _lefts(masks: Masks) -> Counts:
    return [(name, _left(mask)) for name, mask in masks]


def _weighted(mask: BoolArray, weights: IntArray) -> IntArray:
    """Add up the weights of each row's choices; choices of one weight are counted first."""
    total = np.zeros(len(mask), dtype=np.int64)
    # Few weights differ: one sum over columns for each is cheaper than a product with all.
    for weight in np.unique(weights[weights != 0]).tolist():
        total += weight * _left(mask[:, weights == weight])
    return total


def _step(
    tally: Tally, steps: Counts, count: IntArray, others: IntArray, degrees: IntArray | None = None
) -> IntArray:
    """Tell the tally what each rule removes, given the choices of all other modifiers.

    ``steps`` lists the choices left per row after each rule, ``degrees`` the degree tuples behind each row,
    by default one. Returns the choices left at the end.
    """
    for name, left in steps:
        gone = count - left
        if gone.any():
            # A degree row is lost with the first modifier that has no choice left, and only once.
            lost = (left == 0) & (gone > 0) & (others > 0)
            rows = int(np.count_nonzero(lost) if degrees is None else degrees[lost].sum())
            tally.remove(name, rows, int((gone * others).sum()))
        count = left
    return count


def _with_choice(
    m: Modifiers, folds: LayoutBatch, rows: LayoutBatch, fold: IntArray, keep: IntArray, final: _Final
) -> LayoutBatch:
    """Give every row its first valid choices; of ZeRO stages the one nearest to 1, not grouped."""
    if not len(rows):
        return rows
    stages = np.array([choice.stage for choice in m.zero], dtype=np.int64)
    grouped = np.array([bool(choice.level_gpus or choice.shard) for choice in m.zero])
    # ZeRO-1 stands for the row: it shards the largest state at no more traffic.
    # Among equally near stages the whole group goes first: it shards the most.
    preference = np.lexsort((grouped, np.abs(stages - 1)))
    chosen = preference[final.zero[:, preference].argmax(axis=1)]
    shard = m.shards(folds)[np.arange(len(folds)), chosen]
    precision = (final.precision & final.table.any(axis=0)).argmax(axis=1)[final.sort[keep]]
    codes = {
        "zero": stages[chosen][fold],
        "hsdp_shard": shard[fold],
        "order": final.order.argmax(axis=1)[fold],
        "schedule": final.schedule[keep].argmax(axis=1),
        "precision": precision,
        "recompute": final.table.argmax(axis=0)[precision],
    }
    stored: dict[str, Any] = {name: compact(column) for name, column in codes.items()}
    return replace(rows, **stored)
