"""Lower bounds never exceed the price of a layout that the stage rule allows and that fits."""

from dataclasses import replace

import numpy as np
import pytest
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
from layoutopt.optimizer.solve.model.slices import stack_terms
from layoutopt.optimizer.solve.search.bound import lower_bound, quick_bound

NEAR_UNIFORM = StageRule(split=Split.NEAR_EQUAL, recomputation=Recomputation.UNIFORM_COUNT)
RULES = (FREE, MEGATRON, NEAR_EQUAL, NEAR_UNIFORM)


def random_terms(rng: np.random.Generator, pp: int, vp: int, kinds: int) -> StageTerms:
    """Draw one row of terms; capacity is set later."""
    activation = rng.uniform(0.5, 8.0, (1, kinds)) * 1e9
    m = int(rng.integers(pp, 6 * pp + 1)) if vp == 1 else pp * int(rng.integers(1, 7))
    ranks = np.arange(pp)
    held = np.minimum(m * vp, 2 * (pp - ranks - 1) + (vp - 1) * pp + 1) / vp
    return with_operations(
        pp=np.array([pp]),
        vp=np.array([vp]),
        micro_batches=np.array([m]),
        layer_s=rng.uniform(0.01, 0.1, (1, kinds)),
        recompute_s=rng.uniform(0.0, 0.03, (1, kinds)),
        first_s=rng.uniform(0.0, 0.1, 1),
        last_s=rng.uniform(0.0, 0.2, 1),
        bubble_weight=rng.uniform(0.0, 1.0, 1) / vp * (pp > 1),
        fixed_s=rng.uniform(0.0, 1.0, 1),
        layer_state_bytes=rng.uniform(0.1, 5.0, (1, kinds)) * 1e9,
        layer_activation_bytes=activation,
        recomputed_activation_bytes=activation * rng.uniform(0.02, 0.6, (1, kinds)),
        first_bytes=rng.uniform(0.0, 5.0, 1) * 1e9,
        last_bytes=rng.uniform(0.0, 9.0, 1) * 1e9,
        common_bytes=rng.uniform(0.0, 2.0, 1) * 1e9,
        flight_bytes=rng.uniform(0.0, 0.5, 1) * 1e9,
        recompute_transient_bytes=rng.uniform(0.0, 8.0, 1) * 1e9,
        capacity_bytes=np.array([np.inf]),
        in_flight=held[None, :],
        may_recompute=np.array([bool(rng.random() < 0.8)]),
        folded=np.array([False]),
    )


def random_totals(rng: np.random.Generator, blocks: int, pp: int, vp: int, split: Split) -> np.ndarray | None:
    """Draw blocks per rank that the split allows, None where there are none."""
    least = np.full(pp, vp)
    if pp > 1:
        least[[0, -1]] -= 1
    spare = blocks - int(least.sum())
    if pp == 1:
        return np.array([blocks]) if blocks >= vp else None
    if spare < 0:
        return None
    if split is Split.NEAR_EQUAL:
        low, extra = divmod(blocks, pp * vp)
        if low == 0 or extra % pp:
            return None  # one near-equal split per draw is enough: equal ranks
        return np.full(pp, blocks // pp)
    return least + np.bincount(rng.integers(0, pp, spare), minlength=pp)


def rank_kinds(totals: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Blocks of each kind per rank (P, K) for one chunk per rank, contiguous."""
    end = np.cumsum(totals)
    start = end - totals
    last = np.cumsum(counts)
    overlap = np.minimum(end[:, None], last) - np.maximum(start[:, None], last - counts)
    return np.asarray(np.maximum(overlap, 0))


def random_recomputed(
    rng: np.random.Generator, blocks: np.ndarray, vp: int, rule: StageRule, may: bool
) -> np.ndarray:
    """Draw recomputed blocks (P, K) that the rule allows."""
    if not may:
        return np.zeros_like(blocks)
    if rule.recomputation is Recomputation.PER_RANK:
        return rng.integers(0, blocks + 1)
    if rule.recomputation is Recomputation.ALL_OR_NONE:
        return blocks * int(rng.integers(0, 2))
    left = np.minimum(int(rng.integers(0, blocks.sum() + 1)) * vp, blocks.sum(axis=1))
    again = np.zeros_like(blocks)
    for kind in range(blocks.shape[1]):
        again[:, kind] = np.minimum(left, blocks[:, kind])
        left = left - again[:, kind]
    return again


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.split}-{rule.recomputation}")
@settings(max_examples=600)
@given(seed=st.integers(0, 2**32 - 1))
def test_bounds_are_below_every_price(rule: StageRule, seed: int) -> None:
    """Quick, tight and relaxed bounds hold for a random split and recomputation, with memory just large enough or larger."""
    rng = np.random.default_rng(seed)
    pp, kinds = int(rng.integers(1, 7)), int(rng.integers(1, 4))
    vp = int(rng.integers(1, 4)) if kinds == 1 and pp > 1 else 1
    counts = rng.integers(1, 9, kinds)
    totals = random_totals(rng, int(counts.sum()), pp, vp, rule.split)
    if totals is None:
        return
    terms = random_terms(rng, pp, vp, kinds)
    blocks = rank_kinds(totals, counts)
    again = random_recomputed(rng, blocks, vp, rule, bool(terms.may_recompute[0]))
    costs = price_stages(terms, blocks[None], again[None])
    room = float(rng.choice([1.0, 1.0 + 1e-9, 1.2, np.inf]))
    terms.capacity_bytes[0] = float(costs.peak_bytes[0]) * room
    price = exact_price(terms, counts, blocks, again)
    assert quick_bound(terms, counts)[0] <= price * (1 + 1e-12)
    assert lower_bound(terms, counts, rule)[0] <= price * (1 + 1e-12)
    assert lower_bound(terms, counts, rule, free=True)[0] <= price * (1 + 1e-12)
    cutoff = price * float(rng.uniform(0.5, 1.5))
    assert lower_bound(terms, counts, rule, cutoff)[0] <= max(price * (1 + 1e-12), cutoff)


def test_bound_is_infinite_when_nothing_fits() -> None:
    """No memory at all is proven infeasible by both bounds."""
    terms = random_terms(np.random.default_rng(1), 4, 1, 1)
    terms.capacity_bytes[0] = 0.0
    counts = np.array([8])
    assert np.isinf(quick_bound(terms, counts)[0])
    assert np.isinf(lower_bound(terms, counts, FREE)[0])


@pytest.mark.parametrize("counts", [(24,), (3, 40), (30, 30, 30)])
def test_layouts_of_several_depths_are_bounded_as_each_alone(counts: tuple[int, ...]) -> None:
    rng = np.random.default_rng(len(counts))
    shapes = [(1, 1), (2, 1), (2, 3), (4, 2), (8, 1), (8, 2)]
    rows = [random_terms(rng, pp, vp, len(counts)) for pp, vp in shapes for _ in range(4)]
    several = stack_terms([replace(row, capacity_bytes=np.array([9e10])) for row in rows])
    blocks = np.array(counts)
    cutoff_s = float(np.median(lower_bound(several, blocks, MEGATRON)))
    together = lower_bound(several, blocks, MEGATRON, cutoff_s)
    alone = [
        lower_bound(several.take(np.array([row])), blocks, MEGATRON, cutoff_s)[0] for row in range(len(rows))
    ]
    assert len({*alone}) > 2
    np.testing.assert_allclose(together, alone, rtol=1e-9)
