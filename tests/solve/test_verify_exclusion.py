"""No layout below the limit escapes: room, even splits, portions and the audit of optimistic terms."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from checks.enumeration import solve_stages

from layoutopt.optimizer.frameworks.stage_rule import FREE, MEGATRON, NEAR_EQUAL, StageRule
from layoutopt.optimizer.solve.verify import exclusion
from layoutopt.optimizer.solve.verify.exclusion import even_split, exclude_tuples, unsound_terms
from layoutopt.optimizer.solve.verify.room import may_be_below

if TYPE_CHECKING:
    Solved = tuple[Any, list[Any]]


def test_portions_do_not_matter(solved: Solved, monkeypatch: pytest.MonkeyPatch) -> None:
    """One tuple at a time or all at once: the same numbers."""
    space, choices = solved
    below_s = choices[0].step_time_s * (1 - 1e-9)
    whole = exclude_tuples(space, below_s)
    monkeypatch.setattr(exclusion, "CELLS", 1)
    seen: list[tuple[int, int]] = []
    single = exclude_tuples(space, below_s, progress=lambda done, total: seen.append((done, total)))
    # which tuples are searched again depends on the portion
    assert replace(single, demanded=0) == replace(whole, demanded=0)
    assert seen[-1] == (6, 6)


@pytest.mark.parametrize("cells", [1, 40, 300, 300_000])
def test_every_tuple_is_priced_once(kit: Any, monkeypatch: pytest.MonkeyPatch, cells: int) -> None:
    """Whatever the portions, all tuples of all rows are priced, and again through the audit of every row."""
    space = kit.space(rows=50)
    monkeypatch.setattr(exclusion, "CELLS", cells)
    assert exclude_tuples(space, 1e-3).tuples == 400
    by_rows = exclude_tuples(space, 1e-3, every_tuple=False, audit_rows=50)
    assert (by_rows.tuples, by_rows.rows_at_sight, by_rows.rows_audited) == (400, 50, 50)
    assert exclude_tuples(space, 1e-3, every_tuple=False, audit_rows=0).tuples == 0


def test_audit_finds_terms_that_are_not_optimistic(free: Solved) -> None:
    """Degree rows excluded by wrong terms are refuted by the tuples of the sample."""
    space, choices = free
    wrong = replace(space)
    slow = space.relaxed
    wrong.relaxed = lambda rows: replace(slow(rows), outside_s=np.full(len(rows), 1e6))
    below_s = choices[0].step_time_s * 1.01
    assert exclude_tuples(wrong, below_s, every_tuple=False, audit_rows=6).witness is not None
    assert exclude_tuples(wrong, below_s, every_tuple=False, audit_rows=0).holds


def test_room_leaves_ends_empty(kit: Any) -> None:
    """A first rank without room for any block doesn't exclude a tuple, a middle rank without room does."""
    space = kit.space(rows=4)
    terms = space.terms(space.expand(space.degrees)[0])
    deep = terms.take(np.flatnonzero(terms.pp == 3)[:1])
    deep = replace(deep, capacity_bytes=np.array([1e3]), first_bytes=np.array([1e3 - 2.0]))
    assert solve_stages(deep, space.counts, FREE) is not None
    assert may_be_below(deep, space.counts, np.inf)[0]
    flight = np.array([[1.0, 1e6, 1.0]])
    assert not may_be_below(replace(deep, in_flight=flight), space.counts, np.inf)[0]


@pytest.mark.parametrize("rule", [FREE, MEGATRON, NEAR_EQUAL])
@pytest.mark.parametrize("counts", [(6,), (2, 5), (1, 3, 2)])
def test_room_excludes_nothing_that_exists(kit: Any, rule: StageRule, counts: tuple[int, ...]) -> None:
    """A tuple excluded at sight has no stages below the limit, around its optimum and without any limit."""
    excluded = kept = 0
    for seed in range(6):
        space = kit.space(rule, counts, seed=seed, tight=0.6 + 0.2 * seed)
        batch, _ = space.expand(space.degrees)
        terms = space.terms(batch)
        for row in range(0, len(batch), 3):
            one = terms.take(np.array([row]))
            best = solve_stages(one, space.counts, rule)
            if best is None:
                excluded += not may_be_below(one, space.counts, np.inf)[0]
                continue
            assert may_be_below(one, space.counts, np.inf)[0]
            assert may_be_below(one, space.counts, best.step_time_s * (1 + 1e-9))[0]
            excluded += not may_be_below(one, space.counts, best.step_time_s * 0.9)[0]
            kept += 1
    assert excluded > 30
    assert kept > 30


def test_even_split() -> None:
    """Ranks are within one block of each other, chunks in the order of the rule, the ends lighter."""
    for ranks, chunks, first in product((1, 2, 3, 5), (1, 2, 3), (0, 1, 4)):
        for total in range(max(ranks * chunks - 2 * (ranks > 1), 1), 24):
            counts = (min(first, total), total - min(first, total))
            blocks = even_split(ranks, chunks, counts)
            held = blocks.sum(axis=1)
            assert tuple(blocks.sum(axis=0)) == counts
            assert held.max() - held.min() <= 1
    assert even_split(2, 2, (3, 3)).tolist() == [[1, 2], [2, 1]]
    assert even_split(4, 1, (2, 8)).tolist() == [[2, 0], [0, 3], [0, 3], [0, 2]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_s": -1.0}, "layer_s"),
        ({"fixed_s": np.nan}, "fixed_s"),
        ({"bubble_weight": 8.0}, "bubble_weight"),
        ({"recomputed_activation_bytes": 9.0}, "increases its activations"),
        ({"first_bytes": np.nan}, "first_bytes"),
        ({"common_bytes": 0.0, "flight_bytes": 0.0, "first_bytes": -1.0}, "own_bytes"),
    ],
)
def test_cost_model_out_of_range(kit: Any, changes: dict[str, float], message: str) -> None:
    """Terms for which no bound would hold are named, and end the verification."""
    space = kit.space()
    terms = space.terms(space.expand(space.degrees)[0])
    assert unsound_terms(terms) == ""
    broken = replace(
        terms, **{name: np.full_like(getattr(terms, name), value) for name, value in changes.items()}
    )
    assert message in unsound_terms(broken)
    space.terms = lambda batch: broken.take(np.arange(len(batch)))
    assert message in exclude_tuples(space, 1.0).unsound


def test_ends_may_add_less_than_nothing(kit: Any) -> None:
    """A first stage keeps no tensors of a neighbour, so it may hold less than a middle one, but not less than nothing."""
    space = kit.space()
    terms = space.terms(space.expand(space.degrees)[0])
    less = replace(
        terms, common_bytes=terms.common_bytes + 2.0, first_bytes=np.full_like(terms.first_bytes, -1.0)
    )
    assert unsound_terms(less) == ""


def test_audit_of_rows_with_many_tuples_stays_small(monkeypatch: pytest.MonkeyPatch, kit: Any) -> None:
    """The sample of excluded rows ends with the row that reaches the most tuples that an audit expands."""
    space = kit.space(rows=50)
    monkeypatch.setattr(exclusion, "AUDITED_TUPLES", 20)
    found = exclude_tuples(space, 1e-3, every_tuple=False, audit_rows=40)
    assert (found.rows_audited, found.tuples) == (3, 24)
