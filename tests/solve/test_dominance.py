"""A settled tuple excludes those of its shape whose terms are nowhere smaller, and no others."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from layoutopt.optimizer.frameworks.stage_rule import FREE
from layoutopt.optimizer.solve.search.dominance import GROWING, AlikeTuples, Settled, least_terms
from layoutopt.optimizer.solve.search.one_tuple import TupleSolver, Waiting

if TYPE_CHECKING:
    from layoutopt.optimizer.cost.terms import StageTerms


def changed(item: Waiting, **terms: Any) -> Waiting:
    """Return a tuple with other terms."""
    return replace(item, terms=replace(item.terms, **terms))


def larger(item: Waiting, factor: float) -> Waiting:
    """Return a tuple with all terms larger that may grow."""
    return changed(item, **{name: getattr(item.terms, name) * factor for name in GROWING})


@pytest.fixture
def item(kit: Any) -> Waiting:
    """The first tuple of a random space that recomputes, of three ranks."""
    space = kit.space(FREE, (1, 4), tight=3.0)
    batch, _ = space.expand(space.degrees)
    batch = batch.take(np.flatnonzero((batch.recompute == 1) & (batch.pp == 3)))
    return Waiting.of(batch, space.terms(batch), 0)


def test_slower_and_fuller_tuples_are_excluded_up_to_the_floor(item: Waiting) -> None:
    """What is proven of a tuple holds for itself and for larger ones, below its floor alone."""
    settled = Settled()
    assert not settled.excludes(item, 1.0)
    settled.add(item, 10.0)
    for other in (item, larger(item, 1.1), changed(item, capacity_bytes=item.terms.capacity_bytes * 0.9)):
        assert settled.excludes(other, 10.0)
        assert not settled.excludes(other, 10.1)


@pytest.mark.parametrize("name", [*GROWING, "capacity_bytes", "in_flight"])
def test_one_better_term_is_enough_to_stay(item: Waiting, name: str) -> None:
    """A tuple that is quicker, lighter or roomier in one term may be faster."""
    settled, terms = Settled(), larger(item, 1.1).terms
    value = getattr(item.terms, name) + 1.0
    settled.add(changed(item, **{name: value}), 10.0)
    better = {name: value + 1.0 if name == "capacity_bytes" else value - 0.5}
    assert not settled.excludes(replace(item, terms=replace(terms, **better)), 10.0)


def test_gradients_apart_are_compared_apart(item: Waiting) -> None:
    """A longer weight gradient leaves less of the same backward."""
    settled = Settled()
    settled.add(item, 10.0)
    assert not settled.excludes(changed(item, wgrad_s=item.terms.wgrad_s * 1.1 + 0.1), 10.0)


def test_other_shapes_and_families_are_no_evidence(item: Waiting) -> None:
    """Other operations, or degrees of another near-tie, leave a tuple in the search."""
    settled = Settled()
    settled.add(item, 10.0)
    assert not settled.excludes(changed(item, micro_batches=item.terms.micro_batches + 1), 10.0)
    assert not settled.excludes(replace(item, family=(*item.family[:-1], 99)), 10.0)


def test_exclusion_agrees_with_enumeration(kit: Any) -> None:
    """No stages of a larger tuple are faster than the best of the smaller one."""
    space = kit.space(FREE, (5,), tight=3.0)
    batch, _ = space.expand(space.degrees)
    terms = space.terms(batch)
    solver = TupleSolver(space, lambda: False)
    compared = 0
    for index in range(0, len(batch), 5):
        item = Waiting.of(batch, terms, index)
        best, decided = solver.tried(item, 1e3, np.inf)
        if best is None or not decided:
            continue
        settled = Settled()
        settled.add(item, best.step_time_s)
        other = larger(item, 1.02)
        assert settled.excludes(other, best.step_time_s)
        slower, _ = solver.tried(other, 1e3, np.inf)
        assert slower is None or slower.step_time_s >= best.step_time_s
        compared += 1
    assert compared > 3


def test_least_terms_dominate_all_that_they_are_of(item: Waiting) -> None:
    """The least of tuples whose terms grow in turn excludes each, gradients of which one is shorter apart too."""
    others = [changed(item, **{name: getattr(item.terms, name) * 1.2 + 0.1}) for name in GROWING]
    quick = changed(item, backward_s=item.terms.backward_s + 0.2, wgrad_s=item.terms.wgrad_s + 0.5)
    items = [item, quick, *others, changed(item, capacity_bytes=item.terms.capacity_bytes * 1.1)]
    settled = Settled()
    settled.add(replace(item, terms=least_terms(items)), 10.0)
    assert all(settled.excludes(other, 10.0) for other in items)
    assert not settled.excludes(changed(item, backward_s=item.terms.backward_s * 0.5), 10.0)


@pytest.mark.parametrize("proven", [True, False])
def test_alike_tuples_are_excluded_together(item: Waiting, proven: bool) -> None:
    """One proof for the least terms of a shape holds for all that waited; where it fails it is not tried again in vain."""
    asked: list[float] = []

    def nothing_below(_: StageTerms, below_s: float) -> bool:
        asked.append(below_s)
        return proven

    alike = AlikeTuples(nothing_below)
    waiting = [item, larger(item, 1.1), larger(item, 0.9)]
    for other in waiting:
        alike.add(other)
    assert [alike.excludes(other, 10.0, set()) for other in waiting] == [proven] * 3
    assert asked == [10.0]
    alike.excludes(item, 9.0, set())
    assert asked == ([10.0] if proven else [10.0, 9.0])
    assert not alike.excludes(changed(item, micro_batches=item.terms.micro_batches + 1), 10.0, set())
