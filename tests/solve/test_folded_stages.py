"""Pipelines whose stages run to the last rank and back: bounds, CP-SAT and construction against exact stages."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from checks.enumeration import solve_stages
from checks.operations import exact_price, folded_terms

from layoutopt.optimizer.cost.batch import CODES, DEGREES, LayoutBatch
from layoutopt.optimizer.cost.terms import StageTerms
from layoutopt.optimizer.frameworks.stage_rule import FREE, Recomputation, Split, StageRule
from layoutopt.optimizer.solve.model.cp_model import CpModel, SliceStatus
from layoutopt.optimizer.solve.model.slices import tuple_slice
from layoutopt.optimizer.solve.search.bound import lower_bound, quick_bound
from layoutopt.optimizer.solve.search.construct import construct
from layoutopt.optimizer.solve.splits import chunks
from layoutopt.optimizer.solve.verify.exclusion import even_split
from layoutopt.optimizer.solve.verify.room import may_be_below
from layoutopt.optimizer.space.stage_splits import balanced
from layoutopt.optimizer.space.stages import chunk_layers

RULES = [StageRule(split=split, recomputation=how) for split in Split for how in Recomputation]
COUNTS = [[5], [1, 4], [2, 3], [1, 2, 2]]


def blank_row(terms: StageTerms) -> LayoutBatch:
    """A tuple for the terms; what its codes mean doesn't matter."""
    columns = {name: np.ones(1, dtype=np.int64) for name in DEGREES}
    columns |= {name: np.zeros(1, dtype=np.int64) for name in CODES}
    columns |= {"pp": terms.pp, "vp": terms.vp, "micro_batches": terms.micro_batches}
    return LayoutBatch(codebook=None, **columns)  # type: ignore[arg-type]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.split}-{rule.recomputation}")
@pytest.mark.parametrize("counts", COUNTS, ids=str)
def test_every_part_of_the_search_agrees_with_exact_stages(rule: StageRule, counts: list[int]) -> None:
    """No bound exceeds the optimum, CP-SAT reaches it, construction never undercuts it."""
    rng, blocks = np.random.default_rng(len(counts)), np.array(counts)
    for ranks in (2, 3):
        for _ in range(4):
            terms = folded_terms(rng, ranks, len(counts))
            found = solve_stages(terms, counts, rule)
            best = found.step_time_s if found else np.inf
            assert quick_bound(terms, blocks)[0] <= best * (1 + 1e-9)
            assert lower_bound(terms, blocks, rule)[0] <= best * (1 + 1e-9)
            built = construct(terms, blocks, rule)
            if np.isfinite(built.step_time_s[0]):
                assert exact_price(terms, blocks, built.blocks[0], built.recomputed[0]) >= best * (1 - 1e-9)
            if found:
                assert may_be_below(terms, blocks, best * (1 + 1e-9))[0]
            result = CpModel(tuple_slice(blank_row(terms), terms, blocks, rule)).solve()
            if not found:
                assert result.status is SliceStatus.NO_BETTER
                continue
            assert result.step_time_s == pytest.approx(best, abs=1e-6)


@pytest.mark.parametrize(("ranks", "counts"), [(2, (1, 4)), (3, (2, 3, 3)), (4, (1, 9))])
def test_even_split_is_contiguous(ranks: int, counts: tuple[int, ...]) -> None:
    """The even split of a folded pipeline is one that the exact stages could choose."""
    rng = np.random.default_rng(0)
    blocks = even_split(ranks, 2, counts, folded=True)
    assert blocks.sum(axis=0).tolist() == list(counts)
    assert np.ptp(blocks.sum(axis=1)) <= 1
    terms = folded_terms(rng, ranks, len(counts))
    roomy = StageTerms(
        **{name: getattr(terms, name) for name in terms.__slots__} | {"capacity_bytes": np.array([1e9])}
    )
    step = exact_price(roomy, np.array(counts), blocks, np.zeros_like(blocks))
    best = solve_stages(roomy, counts, RULES[0])
    assert best is not None
    assert best.step_time_s <= step * (1 + 1e-12)


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_chunks_are_cut_in_the_searched_order(ranks: int) -> None:
    """The last rank of a folded pipeline holds no end: its smaller chunk comes first, in the search and in stage lists."""
    terms = folded_terms(np.random.default_rng(0), ranks, 1)
    for totals in product(range(2, 6), repeat=ranks):
        sizes = chunks(np.array([totals]), terms).size
        assert balanced(FREE, sizes, terms.pp, terms.vp, terms.folded)[0]
        assert chunk_layers(np.array(totals), ranks, 2, folded=True).tolist() == sizes.ravel().tolist()
