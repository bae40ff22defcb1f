"""Lower bounds: never above any allowed layout's price, exact where they claim to be, tight on realistic terms."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from checks.enumeration import solve_stages
from checks.operations import exact_price, with_operations
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
from layoutopt.optimizer.solve.search.bound import lower_bound, quick_bound
from layoutopt.optimizer.solve.search.construct import construct, good_stages
from layoutopt.optimizer.solve.splits import chunks, fewest_blocks
from layoutopt.optimizer.space.stage_splits import allowed_sizes

RULES = [StageRule(split=split, recomputation=how) for split in Split for how in Recomputation]


def random_terms(
    rng: np.random.Generator, rows: int, kinds: int, blocks: int, ranks: int | None = None
) -> StageTerms:
    """Rows of up to five ranks and three chunks, from plenty of memory to too little."""
    pp = rng.integers(1, 6, rows) if ranks is None else np.full(rows, ranks)
    vp = np.where(pp > 1, rng.integers(1, 4, rows), 1)
    vp = np.where(pp * vp - 2 * (pp > 1) > blocks, 1, vp)
    pp = np.minimum(pp, blocks)
    pp, vp = np.where(pp * vp > blocks, 1, pp), np.where(pp * vp > blocks, 1, vp)
    activation, state = rng.uniform(1, 4, (rows, kinds)), rng.uniform(0.2, 2, (rows, kinds))
    depth = pp[:, None] - np.arange(int(pp.max()))
    flight = np.where(depth > 0, depth * rng.uniform(1, 1.5, (rows, 1)), 0.0)
    layer_s = rng.uniform(0.5, 1.5, (rows, kinds))
    full = blocks / pp * (state.mean(axis=1) + flight.mean(axis=1) * activation.mean(axis=1))
    return with_operations(
        pp=pp,
        vp=vp,
        folded=np.zeros(rows, dtype=bool),
        micro_batches=pp * rng.integers(1, 5, rows),
        layer_s=layer_s,
        recompute_s=layer_s * rng.uniform(0.1, 0.5, (rows, kinds)),
        first_s=rng.uniform(0, 0.6, rows),
        last_s=rng.uniform(0, 1.4, rows),
        bubble_weight=rng.uniform(0, 0.95, rows),
        fixed_s=rng.uniform(0, 1, rows),
        layer_state_bytes=state,
        layer_activation_bytes=activation,
        recomputed_activation_bytes=activation * rng.uniform(0, 0.5, (rows, kinds)),
        first_bytes=rng.uniform(0, 2, rows),
        last_bytes=rng.uniform(0, 3, rows),
        common_bytes=rng.uniform(0, 1, rows),
        flight_bytes=rng.uniform(0, 0.2, rows),
        recompute_transient_bytes=rng.uniform(0, 1, rows) * (rng.random(rows) < 0.5),
        capacity_bytes=full * rng.uniform(0.4, 2, rows),
        in_flight=flight,
        may_recompute=rng.random(rows) < 0.8,
    )


def random_counts(rng: np.random.Generator, kinds: int, most: int) -> np.ndarray:
    """Blocks of each kind, at least one."""
    return rng.multinomial(int(rng.integers(0, most - kinds + 1)), np.full(kinds, 1 / kinds)) + 1


def random_layout(
    rng: np.random.Generator, terms: StageTerms, counts: np.ndarray, rule: StageRule
) -> tuple[np.ndarray, np.ndarray] | None:
    """Draw blocks and recomputed blocks of one layout that the rule allows; None when the draw breaks the rule."""
    ranks, total = terms.in_flight.shape[1], int(counts.sum())
    fewest = fewest_blocks(terms, ranks)[0]
    spare = total - int(fewest.sum())
    if spare < 0:
        return None
    pp = int(terms.pp[0])
    even = np.full(pp, 1 / pp) if rule.split is Split.NEAR_EQUAL else rng.dirichlet(np.full(pp, 2.0))
    extra = np.floor(spare * even).astype(np.int64)
    extra[: spare - extra.sum()] += 1
    totals = fewest + np.pad(extra, (0, ranks - pp))
    cut = chunks(totals[None], terms)
    if not allowed_sizes(rule, rule.split, cut.size, terms.pp, terms.vp, terms.folded)[0]:
        return None
    blocks = cut.kinds(counts).sum(axis=1)
    if not terms.may_recompute[0]:
        return blocks, np.zeros_like(blocks)
    if rule.recomputation is Recomputation.PER_RANK:
        return blocks, rng.integers(0, blocks + 1)
    number = int(rng.integers(0, cut.size.max() + 1))
    if rule.recomputation is Recomputation.ALL_OR_NONE:
        number = total * int(rng.integers(0, 2))
    return blocks, cut.kinds(counts, (), np.array(number)).sum(axis=1)


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    kinds=st.integers(1, 3),
    ranks=st.integers(1, 5),
    rule=st.sampled_from(RULES),
)
def test_bound_is_below_every_layout(seed: int, kinds: int, ranks: int, rule: StageRule) -> None:
    """Sixteen random layouts per example: any that the rule allows and that fits costs at least every bound."""
    rng = np.random.default_rng(seed)
    counts = random_counts(rng, kinds, 14)
    terms = random_terms(rng, 16, kinds, int(counts.sum()), ranks)
    price, step = np.full(16, np.inf), np.ones(16)
    for row in range(16):
        one = terms.take(np.array([row]))
        drawn = random_layout(rng, one, counts, rule)
        if drawn is not None:
            costs = price_stages(one, *drawn)
            step[row] = exact_price(one, counts, drawn[0][0], drawn[1][0])
            price[row] = step[row] if costs.fits[0] else np.inf
    assert np.all(quick_bound(terms, counts) <= price)
    assert np.all(lower_bound(terms, counts, rule) <= price)
    assert np.all(lower_bound(terms, counts, rule, free=True) <= price)
    cutoff = float(rng.uniform(0.8, 1.2) * rng.choice(step))
    assert np.all(lower_bound(terms, counts, rule, cutoff) <= price)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.split}-{rule.recomputation}")
@pytest.mark.parametrize("kinds", [1, 2, 3])
def test_bound_is_below_the_optimum(rule: StageRule, kinds: int) -> None:
    """The bound, constructed stages and the exact optimum of another algorithm are in order."""
    rng = np.random.default_rng(kinds)
    for _ in range(6):
        counts = random_counts(rng, kinds, 5)
        terms = random_terms(rng, 4, kinds, int(counts.sum()))
        bound = lower_bound(terms, counts, rule)
        built = construct(terms, counts, rule)
        for row in range(4):
            one = terms.take(np.array([row]))
            found = solve_stages(one, counts, rule)
            best = found.step_time_s if found else np.inf
            better = good_stages(one, counts, rule)
            assert bound[row] <= best * (1 + 1e-9)
            assert better.step_time_s[0] <= built.step_time_s[row]
            if np.isfinite(better.step_time_s[0]):
                assert best <= exact_price(one, counts, better.blocks[0], better.recomputed[0]) * (1 + 1e-9)


def test_cutoff_hides_only_what_is_above_it() -> None:
    """Bounds below the cutoff are those without it; others are reported as the cutoff, or infinite."""
    rng = np.random.default_rng(3)
    counts = np.array([4, 7])
    terms = random_terms(rng, 200, 2, 11)
    plain = lower_bound(terms, counts, MEGATRON)
    cutoff = float(np.median(plain[np.isfinite(plain)]))
    cut = lower_bound(terms, counts, MEGATRON, cutoff)
    below = plain < cutoff
    assert cut[below] == pytest.approx(plain[below], rel=1e-9)
    assert np.all(np.isinf(cut[~below]) | (cut[~below] == cutoff))


def test_optimistic_terms_lower_the_bound() -> None:
    """A bound over better terms covers the worse ones."""
    rng = np.random.default_rng(4)
    counts = np.array([9])
    terms = random_terms(rng, 100, 1, 9)
    better = replace(
        terms,
        layer_s=terms.layer_s * 0.9,
        layer_activation_bytes=terms.layer_activation_bytes * 0.8,
        recomputed_activation_bytes=terms.recomputed_activation_bytes * 0.8,
        may_recompute=np.ones(100, dtype=bool),
    )
    for rule in (FREE, MEGATRON, NEAR_EQUAL):
        bound = lower_bound(terms, counts, rule)
        assert np.all(lower_bound(better, counts, rule) <= bound * (1 + 1e-9))
        assert np.all(lower_bound(terms, counts, rule, free=True) <= bound * (1 + 1e-9))
