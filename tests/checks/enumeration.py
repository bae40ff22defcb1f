"""The best stages of a small layout by pricing every one of them: sizes of all virtual stages, all recomputations."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.step import step_s
from layoutopt.optimizer.cost.terms import price_stages
from layoutopt.optimizer.frameworks.stage_rule import Recomputation
from layoutopt.optimizer.solve.splits import within_limits
from layoutopt.optimizer.space.stage_splits import allowed_sizes, balanced, stage_numbers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from layoutopt.optimizer.cost.terms import IntArray, StageTerms
    from layoutopt.optimizer.frameworks.stage_rule import StageRule


@dataclass(frozen=True, slots=True, kw_only=True)
class Enumerated:
    """The best stages: blocks and recomputed blocks (V, P, K) and their exact step."""

    step_time_s: float
    blocks: IntArray
    recomputed: IntArray


def solve_stages(
    terms: StageTerms, counts: Sequence[int] | IntArray, rule: StageRule, *, below_s: float = np.inf
) -> Enumerated | None:
    """Return the fastest stages of the only row of ``terms`` that fit and take less than ``below_s``, None without any."""
    number = np.asarray(counts, dtype=np.int64)
    choices = [
        (blocks, again)
        for blocks in all_blocks(terms, number, rule)
        for again in all_recomputations(terms, blocks, rule)
    ]
    if not choices:
        return None
    blocks, again = (np.stack(part) for part in zip(*choices, strict=True))
    many = terms.take(np.zeros(len(choices), dtype=np.int64))
    width = terms.in_flight.shape[1] - blocks.shape[2]
    wide = [np.pad(part.sum(axis=1), ((0, 0), (0, width), (0, 0))) for part in (blocks, again)]
    fits = price_stages(many, *wide).fits
    steps = np.where(fits, step_s(terms, 0, blocks, again), np.inf)
    best = int(steps.argmin())
    if not steps[best] < below_s:
        return None
    return Enumerated(step_time_s=float(steps[best]), blocks=blocks[best], recomputed=again[best])


def all_blocks(terms: StageTerms, counts: IntArray, rule: StageRule) -> Iterator[IntArray]:
    """Yield the blocks (V, P, K) of all splits that the rule searches."""
    pp, vp, folded = int(terms.pp[0]), int(terms.vp[0]), bool(terms.folded[0])
    total, stages = int(counts.sum()), pp * vp
    place = stage_numbers(terms.pp, terms.folded, vp, pp)[0]
    kinds = np.array(rule.order) if rule.order else np.repeat(np.arange(len(counts)), counts)
    ends = {0, stages - 1} if pp > 1 or folded else set()
    for cuts in _compositions(total, stages):
        if any(size == 0 and j not in ends for j, size in enumerate(cuts)):
            continue
        sizes = np.array(cuts)[place]
        one = (np.array([pp]), np.array([vp]))
        keeps = balanced(rule, sizes[None], *one, np.array([folded]))[0]
        if not (keeps and allowed_sizes(rule, rule.split, sizes[None], *one, np.array([folded]))[0]):
            continue
        if not within_limits(sizes.sum(axis=0)[None], terms, rule)[0] or (sizes % terms.group[0]).any():
            continue
        holder = np.repeat(np.arange(stages), cuts)
        of_stage = np.zeros((stages, len(counts)), dtype=np.int64)
        np.add.at(of_stage, (holder, kinds), 1)
        yield of_stage[place]


def first_blocks(terms: StageTerms, blocks: IntArray, rule: StageRule, count: int) -> IntArray:
    """Return the kinds (V, P, K) of the first ``count`` blocks of every stage."""
    order = rule.order or np.repeat(np.arange(blocks.shape[2]), blocks.sum(axis=(0, 1))).tolist()
    place = stage_numbers(terms.pp, terms.folded, *blocks.shape[:2])[0]
    first, start = np.zeros_like(blocks), 0
    for stage in range(place.size):
        seat = tuple(np.argwhere(place == stage)[0])
        size = int(blocks[seat].sum())
        np.add.at(first[seat], np.array(order[start : start + min(size, count)], dtype=np.int64), 1)
        start += size
    return first


def _compositions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    if parts == 1:
        yield (total,)
        return
    for first in range(total + 1):
        for rest in _compositions(total - first, parts - 1):
            yield (first, *rest)


def all_recomputations(terms: StageTerms, blocks: IntArray, rule: StageRule) -> Iterator[IntArray]:
    """Yield the recomputed blocks (V, P, K) that the rule allows with these blocks."""
    yield np.zeros_like(blocks)
    if not terms.may_recompute[0]:
        return
    if rule.recomputation is Recomputation.ALL_OR_NONE:
        yield blocks
    elif rule.recomputation is Recomputation.UNIFORM_COUNT:
        for count in range(1, int(blocks.sum(axis=2).max()) + 1):
            yield first_blocks(terms, blocks, rule, count)
    else:
        yield from (
            np.array(chosen).reshape(blocks.shape)
            for chosen in product(*(range(int(n) + 1) for n in blocks.ravel()))
            if any(chosen)
        )
