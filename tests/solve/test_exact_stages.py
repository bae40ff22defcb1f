"""The exact stage search against plain enumeration of virtual stages."""

from __future__ import annotations

from dataclasses import fields
from itertools import pairwise, product
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutopt.optimizer.cost.terms import StageTerms, price_stages
from layoutopt.optimizer.frameworks.stage_rule import (
    FREE,
    MEGATRON,
    NEAR_EQUAL,
    Recomputation,
    Split,
    StageRule,
)
from layoutopt.optimizer.solve.exact.stages import solve_stages
from layoutopt.optimizer.space.stage_splits import allowed_sizes, boxes, counts_by_cost

if TYPE_CHECKING:
    from collections.abc import Iterator

RULES = [StageRule(split=split, recomputation=how) for split in Split for how in Recomputation]


def make_terms(**changes: object) -> StageTerms:
    """One row; keyword arguments replace fields, lists become rows."""
    values: dict[str, object] = {
        "pp": 2,
        "vp": 1,
        "folded": False,
        "micro_batches": 8,
        "layer_s": [1.0],
        "recompute_s": [0.25],
        "first_s": 0.5,
        "last_s": 1.5,
        "bubble_weight": 1.0,
        "fixed_s": 0.5,
        "layer_state_bytes": [4.0],
        "layer_activation_bytes": [3.0],
        "recomputed_activation_bytes": [1.0],
        "first_bytes": 4.0,
        "last_bytes": 5.0,
        "common_bytes": 1.0,
        "recompute_transient_bytes": 2.0,
        "capacity_bytes": np.inf,
        "in_flight": [2.0, 1.0],
        "may_recompute": True,
    }
    values |= changes
    return StageTerms(**{name: np.asarray([value]) for name, value in values.items()})


def rank_of(stage: int, ranks: int, folded: bool) -> int:
    """The rank of a virtual stage; in a folded pipeline the second half runs back."""
    return min(stage, 2 * ranks - 1 - stage) if folded else stage % ranks


def valid_sizes(
    ranks: int, chunks: int, blocks: int, split: Split, folded: bool = False
) -> Iterator[tuple[int, ...]]:
    """Enumerate virtual stage sizes straight from the wording of the stage rule."""
    stages = ranks * chunks
    of = [rank_of(j, ranks, folded) for j in range(stages)]
    for head in product(range(blocks + 1), repeat=stages - 1):
        sizes = (*head, blocks - sum(head))
        ends = {0, stages - 1} if ranks > 1 or folded else set()
        if any(size < (0 if j in ends else 1) for j, size in enumerate(sizes)):
            continue
        own = [tuple(size for size, r in zip(sizes, of, strict=True) if r == rank) for rank in range(ranks)]
        if all(chunks_ok(mine, s == ranks - 1 > 0) for s, mine in enumerate(own)) and split_ok(
            sizes, own, split
        ):
            yield sizes


def chunks_ok(sizes: tuple[int, ...], last: bool) -> bool:
    """The chunks of one rank differ by at most one block, smaller first; on the last rank the last chunk is small."""
    rising = [sizes[-1], *sizes[:-1]] if last else list(sizes)
    return max(sizes) - min(sizes) <= 1 and rising == sorted(sizes)


def split_ok(sizes: tuple[int, ...], own: list[tuple[int, ...]], split: Split) -> bool:
    """The words of ``Split`` for stages as tokens pass them, ``own`` those of each rank; a single rank is no split."""
    middle = sizes[1:-1]
    if len(own) == 1:
        return True
    if split is Split.LARGER_FIRST:
        held = [sum(mine) for mine in own]
        return min(held) > 0 and max(held) - min(held) <= 1 and held == sorted(held, reverse=True)
    if split is Split.BY_COST:  # a head without cost: the running share is exceeded at once
        held = [sum(mine) for mine in own]
        return held == list(counts_by_cost(sum(sizes), len(own), 1, 0)) and min(held[1:-1], default=1) > 0
    if split is Split.EQUAL or (split is Split.EQUAL_MIDDLE_UNCHUNKED and len(own[0]) > 1):
        return min(sizes) == max(sizes) > 0
    if split in (Split.EQUAL_MIDDLE, Split.EQUAL_MIDDLE_UNCHUNKED):
        alike = all(len(set(mine)) == 1 for mine in own) and len({sum(mine) for mine in own[1:-1]}) <= 1
        ends = split is Split.EQUAL_MIDDLE and len(set(middle)) == 1 and middle[0] > 0
        counted = ends and all(middle[0] - 1 <= end <= middle[0] for end in (sizes[0], sizes[-1]))
        return min(sizes) >= 1 and (alike or counted)
    if split is Split.FREE or max(sizes) - min(sizes) <= 1:
        return True
    if not middle or max(middle) - min(middle) > 1:
        return False
    return all(min(middle) - 1 <= end <= min(middle) + 1 for end in (sizes[0], sizes[-1]))


def brute_force(terms: StageTerms, counts: list[int], rule: StageRule) -> float:
    """Price every split with every allowed recomputation; return the least step time, inf if none fits."""
    ranks, chunks, folded = int(terms.pp[0]), int(terms.vp[0]), bool(terms.folded[0])
    kinds = [kind for kind, count in enumerate(counts) for _ in range(count)]
    blocks, recomputed = [], []
    for sizes in valid_sizes(ranks, chunks, len(kinds), rule.split, folded):
        bounds = np.cumsum([0, *sizes])
        stages = [kinds[a:b] for a, b in pairwise(bounds)]
        held = rank_counts(stages, ranks, len(counts), folded)
        for choice in recomputations(stages, held, rule, bool(terms.may_recompute[0]), folded):
            blocks.append(held)
            recomputed.append(choice)
    if not blocks:
        return np.inf
    costs = price_stages(terms.take(np.zeros(len(blocks), dtype=int)), np.array(blocks), np.array(recomputed))
    return float(np.min(costs.step_time_s, where=costs.fits, initial=np.inf))


def rank_counts(stages: list[list[int]], ranks: int, kinds: int, folded: bool = False) -> np.ndarray:
    """Blocks of each kind on each rank."""
    held = np.zeros((ranks, kinds), dtype=np.int64)
    for j, stage in enumerate(stages):
        for kind in stage:
            held[rank_of(j, ranks, folded), kind] += 1
    return held


def recomputations(
    stages: list[list[int]], held: np.ndarray, rule: StageRule, allowed: bool, folded: bool = False
) -> Iterator[np.ndarray]:
    """Every recomputation the rule allows for given stages."""
    if not allowed:
        yield np.zeros_like(held)
    elif rule.recomputation is Recomputation.PER_RANK:
        for flat in product(*(range(n + 1) for n in held.ravel())):
            yield np.array(flat).reshape(held.shape)
    elif rule.recomputation is Recomputation.ALL_OR_NONE:
        yield np.zeros_like(held)
        yield held
    else:
        for count in range(max(map(len, stages)) + 1):
            ranks, kinds = held.shape
            yield rank_counts([stage[:count] for stage in stages], ranks, kinds, folded)


@st.composite
def rows(draw: st.DrawFn) -> tuple[StageTerms, list[int]]:
    """Small integer terms, so that ties and memory limits are hit exactly."""
    ranks, chunks = draw(st.sampled_from([(1, 1), (1, 2), (2, 1), (2, 2), (2, 3), (3, 1), (3, 2), (4, 1)]))
    counts = draw(st.lists(st.integers(0, 3), min_size=1, max_size=4).filter(lambda c: 1 <= sum(c) <= 6))
    kinds = len(counts)
    per_kind = st.lists(st.integers(0, 9), min_size=kinds, max_size=kinds)
    activation = draw(per_kind)
    flights = sorted(draw(st.lists(st.integers(1, 12), min_size=ranks, max_size=ranks)), reverse=True)
    terms = make_terms(
        pp=ranks,
        vp=chunks,
        folded=chunks == 2 and draw(st.booleans()),
        micro_batches=draw(st.integers(1, 12)) + 1,
        bubble_weight=draw(st.sampled_from([0.0, 0.25, 0.5, 1.0])),
        layer_s=[float(x) + 1 for x in draw(per_kind)],
        recompute_s=[float(x) for x in draw(per_kind)],
        first_s=float(draw(st.integers(0, 9))),
        last_s=float(draw(st.integers(0, 9))),
        fixed_s=float(draw(st.integers(0, 3))),
        layer_state_bytes=[float(x) for x in draw(per_kind)],
        layer_activation_bytes=[float(x) for x in activation],
        recomputed_activation_bytes=[float(draw(st.integers(0, x))) for x in activation],
        first_bytes=float(draw(st.integers(0, 9))),
        last_bytes=float(draw(st.integers(0, 9))),
        common_bytes=float(draw(st.integers(0, 3))),
        recompute_transient_bytes=float(draw(st.integers(0, 6))),
        capacity_bytes=float(draw(st.integers(5, 140))),
        in_flight=[x / 2 for x in flights],
        may_recompute=draw(st.booleans()) or draw(st.booleans()),
    )
    return terms, counts


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.split}-{rule.recomputation}")
@settings(max_examples=120, deadline=None)
@given(row=rows())
def test_equals_enumeration(rule: StageRule, row: tuple[StageTerms, list[int]]) -> None:
    """The optimum, or that nothing fits, equals enumeration of all virtual stages and recomputations."""
    terms, counts = row
    expected = brute_force(terms, counts, rule)
    found = solve_stages(terms, counts, rule)
    assert (found.step_time_s if found else np.inf) == pytest.approx(expected, rel=1e-12)
    if found:
        costs = price_stages(terms, found.blocks[None], found.recomputed[None])
        assert costs.fits[0]
        assert costs.step_time_s[0] == pytest.approx(found.step_time_s, rel=1e-12)
        assert found.blocks.sum(axis=0).tolist() == counts
        assert solve_stages(terms, counts, rule, below_s=found.step_time_s) is None
        assert solve_stages(terms, counts, rule, below_s=found.step_time_s * (1 + 1e-9)) is not None


@pytest.mark.parametrize("split", list(Split))
def test_boxes_are_the_rule(split: Split) -> None:
    """The ranges of blocks per rank contain exactly the totals of the valid virtual stages."""
    rule = StageRule(split=split, recomputation=Recomputation.PER_RANK)
    for ranks, chunks, blocks, folded in product((1, 2, 3, 4), (1, 2, 3), range(1, 9), (False, True)):
        if ranks * chunks > 6 or (folded and chunks != 2):
            continue
        expected = {
            tuple(
                sum(size for j, size in enumerate(sizes) if rank_of(j, ranks, folded) == r)
                for r in range(ranks)
            )
            for sizes in valid_sizes(ranks, chunks, blocks, split, folded)
        }
        found = set()
        for low, high in boxes(rule, ranks, chunks, blocks, folded=folded):
            spans = (range(a, b + 1) for a, b in zip(low, high, strict=True))
            found |= {held for held in product(*spans) if sum(held) == blocks}
        assert found == expected, (ranks, chunks, blocks, folded)


def test_uneven_ends() -> None:
    """A heavy head moves blocks from the last rank to the others."""
    found = solve_stages(make_terms(first_s=0.0, last_s=2.0), [10], FREE)
    assert found is not None
    assert found.blocks.ravel().tolist() == [6, 4]


def test_recomputes_only_where_memory_binds() -> None:
    """Free recomputation touches the first rank only; one number for all chunks touches both."""
    terms = make_terms(capacity_bytes=48.0, first_s=1.5)
    free, uniform = solve_stages(terms, [10], FREE), solve_stages(terms, [10], MEGATRON)
    assert free is not None
    assert uniform is not None
    assert free.recomputed[1, 0] == 0 < free.recomputed[0, 0]
    assert uniform.recomputed[0, 0] == uniform.recomputed[1, 0] > 0
    assert free.step_time_s < uniform.step_time_s


def test_buffer_of_recomputation_needs_blocks_of_its_own() -> None:
    """When recomputing itself takes as much as four blocks free, those blocks are recomputed as well."""
    terms = make_terms(pp=1, capacity_bytes=99.0, in_flight=[1.0], recompute_transient_bytes=8.0)
    found = solve_stages(terms, [13], FREE)
    assert found is not None
    # 13 * 7 + 10 = 101 bytes are 2 too many, 8 more for the buffer: 2 bytes freed by each of 5 blocks.
    assert found.recomputed.tolist() == [[5]]


def test_does_not_fit() -> None:
    """Nothing fits when the states alone exceed the capacity."""
    assert solve_stages(make_terms(capacity_bytes=20.0), [10], FREE) is None


@pytest.mark.parametrize("rule", [FREE, MEGATRON, NEAR_EQUAL])
def test_too_few_blocks(rule: StageRule) -> None:
    """Two chunks on each of three ranks need four blocks: only the ends may be empty."""
    terms = make_terms(pp=3, vp=2, in_flight=[3.0, 2.0, 1.0])
    assert solve_stages(terms, [3], rule) is None
    assert solve_stages(terms, [4], rule) is not None


def test_many_kinds_use_wide_states() -> None:
    """With more kinds than fit into one integer key the answer is the same as with the kinds merged."""
    kinds, counts = 12, [1] * 12
    one = make_terms()
    names = [f.name for f in fields(one) if getattr(one, f.name).shape == (1, 1)]
    same = {name: [getattr(one, name)[0, 0]] * kinds for name in names}
    apart = solve_stages(make_terms(capacity_bytes=55.0, **same), counts, MEGATRON)
    merged = solve_stages(make_terms(capacity_bytes=55.0), [12], MEGATRON)
    assert apart is not None
    assert merged is not None
    assert apart.step_time_s == merged.step_time_s


def random_row(rng: np.random.Generator, ranks: int, chunks: int, kinds: int) -> StageTerms:
    """Uneven terms of one row, with memory between plenty and too little."""
    activation = rng.uniform(1, 3, kinds)
    return make_terms(
        pp=ranks,
        vp=chunks,
        micro_batches=int(rng.integers(2, 40)),
        bubble_weight=float(rng.choice([0.0, 0.3, 1.0])),
        layer_s=rng.uniform(0.5, 3, kinds),
        recompute_s=rng.uniform(0.05, 1, kinds),
        first_s=rng.uniform(0, 3),
        last_s=rng.uniform(0, 3),
        layer_state_bytes=rng.uniform(0.5, 2, kinds),
        layer_activation_bytes=activation,
        recomputed_activation_bytes=activation * rng.uniform(0, 0.5, kinds),
        recompute_transient_bytes=rng.uniform(0, 2),
        capacity_bytes=rng.uniform(15, 60),
        in_flight=np.sort(rng.uniform(1, 5, ranks))[::-1],
    )


def quickest_by_totals(terms: StageTerms, counts: list[int], rule: StageRule) -> float:
    """Try all totals per rank, each with the least recomputation of each rank by itself."""
    ranks, chunks, blocks = int(terms.pp[0]), int(terms.vp[0]), sum(counts)
    kinds = np.repeat(np.arange(len(counts)), counts)
    best = np.inf
    for held in product(range(chunks - 1, blocks + 1), repeat=ranks - 1):
        totals = [*held, blocks - sum(held)]
        sizes = [
            chunk_size(total, chunks, c, s == ranks - 1)
            for c in range(chunks)
            for s, total in enumerate(totals)
        ]
        if min(sizes[1:-1]) < 1 or min(totals[0], totals[-1]) < chunks - 1:
            continue
        own = [tuple(sizes[rank::ranks]) for rank in range(ranks)]
        if not split_ok(tuple(sizes), own, rule.split):
            continue
        stages = [piece.tolist() for piece in np.split(kinds, np.cumsum(sizes)[:-1])]
        have = rank_counts(stages, ranks, len(counts))
        if rule.recomputation is Recomputation.PER_RANK:
            options = [np.stack([least_by_rank(terms, have, rank) for rank in range(ranks)])]
        else:
            options = [
                rank_counts([stage[:n] for stage in stages], *have.shape) for n in range(max(sizes) + 1)
            ]
        for recomputed in options:
            costs = price_stages(terms, have[None], recomputed[None])
            if costs.fits[0]:
                best = min(best, float(costs.step_time_s[0]))
    return best


def chunk_size(total: int, chunks: int, chunk: int, last: bool) -> int:
    """Blocks of one chunk: smaller first, on the last rank a small one last."""
    sizes = sorted(total // chunks + (c < total % chunks) for c in range(chunks))
    return [*sizes[1:], sizes[0]][chunk] if last else sizes[chunk]


def least_by_rank(terms: StageTerms, have: np.ndarray, rank: int) -> np.ndarray:
    """The quickest recomputation with which one rank fits; all blocks if none does."""
    choices = np.array(list(product(*(range(n + 1) for n in have[rank]))))
    recomputed = np.zeros((len(choices), *have.shape), dtype=np.int64)
    recomputed[:, rank] = choices
    every = terms.take(np.zeros(len(choices), dtype=int))
    costs = price_stages(every, np.broadcast_to(have, recomputed.shape), recomputed)
    time = np.where(costs.rank_bytes[:, rank] <= terms.capacity_bytes, costs.rank_time_s[:, rank], np.inf)
    fastest: np.ndarray = choices[time.argmin()] if np.isfinite(time).any() else have[rank]
    return fastest


PIPELINES = [
    (4, 1, [13]),
    (4, 2, [15]),
    (4, 1, [3, 10]),
    (4, 2, [5, 10]),
    (3, 3, [8, 7]),
    (3, 2, [4, 5, 4]),
    (2, 4, [3, 9, 5]),
]


@pytest.mark.parametrize(("ranks", "chunks", "counts"), PIPELINES)
@pytest.mark.parametrize("rule", [FREE, MEGATRON, RULES[3]])
def test_longer_pipelines(ranks: int, chunks: int, counts: list[int], rule: StageRule) -> None:
    """More than can be enumerated with their recomputation: totals per rank are, the rest is separable."""
    rng = np.random.default_rng(ranks * 100 + chunks * 10 + len(counts))
    infeasible = 0
    for _ in range(3):
        terms = random_row(rng, ranks, chunks, len(counts))
        expected, found = quickest_by_totals(terms, counts, rule), solve_stages(terms, counts, rule)
        infeasible += found is None
        assert (found.step_time_s if found else np.inf) == pytest.approx(expected, rel=1e-12)
    assert infeasible < 3


@pytest.mark.parametrize("split", list(Split))
def test_predicate_is_the_rule(split: Split) -> None:
    """Of all lists with the chunks in order, the predicate takes those that the wording names."""
    rule = StageRule(split=split, recomputation=Recomputation.PER_RANK)
    for ranks, chunks, blocks in ((2, 1, 5), (3, 1, 6), (4, 1, 7), (2, 2, 7), (3, 2, 9), (2, 3, 8)):
        lists = sorted(valid_sizes(ranks, chunks, blocks, Split.FREE))
        sizes = np.array(lists).reshape(len(lists), chunks, ranks)
        row = np.full(len(lists), 1)
        taken = allowed_sizes(rule, split, sizes, row * ranks, row * chunks, np.zeros(len(lists), dtype=bool))
        assert [one for one, ok in zip(lists, taken, strict=True) if ok] == sorted(
            valid_sizes(ranks, chunks, blocks, split)
        )
