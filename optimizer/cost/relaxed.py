"""Optimistic terms of degree rows: no choice of modifiers (ZeRO, recomputed modules, mesh order) costs less.

Time takes the cheapest modifiers, memory the leanest, each on its own, so a bound over these terms holds for every
tuple of a row. Data-parallel traffic counts as hidden; states as sharded by the highest ZeRO stage of the space.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from layoutopt.optimizer.cost.batch import priced_apart
from layoutopt.optimizer.cost.cost_model import View
from layoutopt.optimizer.specs.vocabulary import Granularity, Saver

if TYPE_CHECKING:
    from layoutopt.optimizer.cost.batch import Codebook, IntArray, LayoutBatch
    from layoutopt.optimizer.cost.cost_model import CostModel
    from layoutopt.optimizer.cost.terms import StageTerms

OFFLOADS = {Saver.OFFLOAD_ACTIVATIONS, Saver.OFFLOAD_OPTIMIZER}

MAX_ORDERS_PRICED = 1
"""With more mesh orders than this, every axis is priced as if it were innermost instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Relaxation:
    """The modifiers of a space: codes of recompute entries, orders and precisions, and the highest ZeRO stage."""

    recomputes: tuple[int, ...]
    orders: tuple[int, ...]
    precisions: tuple[int, ...]
    zero: int


def relaxed_terms(
    cost: CostModel, rows: LayoutBatch, over: Relaxation, *, any_sharding: bool = True
) -> StageTerms:
    """Return terms that are optimistic over all modifiers of each row but its schedule.

    Schedules differ in which stages share a rank: no terms are optimistic for two of them.
    ``any_sharding`` False keeps the rows' own ZeRO stage and shard size, with their traffic.
    """
    n = len(rows)
    # Few orders are priced each; over many the closest placement bounds all at once.
    far = len(over.orders) > MAX_ORDERS_PRICED
    variants = []
    for lean in _leanest_shardings(cost, rows, over.zero) if any_sharding else [rows]:
        for precision in _telling(rows.codebook, over.precisions):
            for order in over.orders[:1] if far else over.orders:
                batch = replace(lean, order=_all(order, n), precision=_all(precision, n))
                terms = _optimistic(cost, batch, over.recomputes, closest=far, traffic=not any_sharding)
                variants.append(terms)
    return elementwise_best(variants)


def _telling(book: Codebook, codes: tuple[int, ...]) -> tuple[int, ...]:
    """Drop precision codes that differ in launch switches alone, which are priced at once, and those of memory savers
    between two others: one larger set, and one that offloads nothing.

    Of sets at one precision the largest is the leanest in memory but for what hosts have no room for; the one
    without offloading, with short moments where there are any, takes the least time.
    """
    groups = book.groups
    codes = tuple({int(groups[code]): code for code in reversed(codes)}.values())[::-1]
    kept = []
    for code in codes:
        own = set(book.savers_of(code))
        others = [
            set(book.savers_of(c))
            for c in codes
            if book.precisions[c] is book.precisions[code]
            and c != code
            and priced_apart(book.switches_of(c)) == priced_apart(book.switches_of(code))
        ]
        larger = any(own < other for other in others)
        # Between a leaner and a quicker set, this one is optimistic in nothing.
        quicker = any(not OFFLOADS & other and own - OFFLOADS <= other for other in others)
        if not (larger and quicker):
            kept.append(code)
    return tuple(kept)


def _leanest_shardings(cost: CostModel, rows: LayoutBatch, zero: int) -> list[LayoutBatch]:
    """Return rows under the ZeRO stages of which one is the leanest: the highest.

    Where weights stay gathered, that keeps a copy beside the shard: without replicas, of experts too, stage 0 is leaner.
    """
    stages = (zero, 0) if cost.preset.keep_gathered_with_pp and zero else (zero,)
    n = len(rows)
    return [replace(rows, zero=_all(stage, n), hsdp_shard=_all(0, n)) for stage in stages]


def _all(value: int, count: int) -> IntArray:
    """Return a column of one value, without storing it ``count`` times."""
    return np.broadcast_to(np.int64(value), (count,))


def _optimistic(
    cost: CostModel, batch: LayoutBatch, recomputes: tuple[int, ...], *, closest: bool, traffic: bool
) -> StageTerms:
    """Terms without selective recomputation's time, where that is a choice, but with the least activations."""
    entries = batch.codebook.recomputes
    # Whole-layer entries cost no time until layers are chosen; full first, since it allows any number.
    whole = [code for code in recomputes if entries[code].granularity is not Granularity.SELECTIVE]
    whole.sort(key=lambda code: entries[code].granularity is not Granularity.FULL)
    cheapest = whole[:1] or recomputes
    columns = [replace(batch, recompute=_all(code, len(batch))) for code in cheapest]
    view = View(closest=closest, data_parallel=traffic, least=True, any_set=True, any_switches=True)
    terms = elementwise_best([cost.terms_in(column, view) for column in columns])
    least = cost.least_kept_bytes(batch, recomputes)
    return replace(
        terms,
        layer_activation_bytes=least,
        recomputed_activation_bytes=np.minimum(terms.recomputed_activation_bytes, least),
    )


def elementwise_best(variants: list[StageTerms]) -> StageTerms:
    """Combine terms of the same rows: least seconds and bytes, largest capacity, recomputation if any allows it."""
    best, *others = variants
    for other in others:
        merged: dict[str, Any] = {}
        for field in fields(best):
            pick = np.maximum if field.name in _LARGER else np.minimum
            merged[field.name] = pick(getattr(best, field.name), getattr(other, field.name))
        best = replace(best, **merged)
    return best


def undominated(terms: StageTerms, owner: IntArray) -> IntArray:
    """Return the positions (k,) of rows that no other row of the same owner (n,) equals or beats in every term.

    Of equal rows the first is kept. Whatever stages a dominated row has, the other is as fast and as small with them.
    """
    if not len(terms):
        return np.zeros(0, dtype=np.int64)
    lower = [
        getattr(terms, field.name).reshape(len(terms), -1).astype(np.float64)
        for field in fields(terms)
        if field.name not in _LARGER
    ]
    table = np.concatenate([*lower, *(-1.0 * getattr(terms, name)[:, None] for name in _LARGER)], axis=1)
    order = np.argsort(owner, kind="stable")
    _, first, sizes = np.unique(owner[order], return_index=True, return_counts=True)
    kept = np.ones(len(terms), dtype=bool)
    # Owners with equally many rows at once.
    for size in np.unique(sizes[sizes > 1]).tolist():
        starts, earlier = first[sizes == size], np.arange(size)[:, None] < np.arange(size)
        at_once = max(PAIR_CELLS // (size * size * table.shape[1]), 1)
        for low in range(0, len(starts), at_once):
            rows = order[starts[low : low + at_once, None] + np.arange(size)]
            # All pairs of one owner's rows: they are the few choices of switches.
            as_good = (table[rows][:, :, None] <= table[rows][:, None]).all(axis=3)
            kept[rows] = ~(as_good & (~as_good.transpose(0, 2, 1) | earlier)).any(axis=1)
    return np.flatnonzero(kept)


PAIR_CELLS = 1 << 20
"""Terms of pairs compared at once, so that memory stays flat."""

_LARGER = ("capacity_bytes", "may_recompute")
"""Terms of which more is better."""
