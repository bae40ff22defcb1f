"""Best-first search over artificial spaces: the optimum, near-ties, and what holds when it is stopped."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from checks.synthetic import SyntheticSource, dense_405b

from layoutopt.optimizer.cost.step import step_s
from layoutopt.optimizer.cost.terms import price_stages
from layoutopt.optimizer.frameworks.stage_rule import FREE, MEGATRON, NEAR_EQUAL, StageRule
from layoutopt.optimizer.solve.search import rows
from layoutopt.optimizer.solve.search.best_first import BestFirst
from layoutopt.optimizer.solve.search.construct import construct
from layoutopt.optimizer.solve.search.first import FirstTuples
from layoutopt.optimizer.solve.search.one_tuple import FAMILY
from layoutopt.optimizer.solve.search.result import SearchOptions
from layoutopt.optimizer.solve.search.source import Refinement

if TYPE_CHECKING:
    from layoutopt.optimizer.cost.batch import IntArray, LayoutBatch
    from layoutopt.optimizer.cost.terms import StageTerms
    from layoutopt.optimizer.solve.search.result import Found, Progress, SearchResult

RULES = {"free": FREE, "megatron": MEGATRON, "torchtitan": NEAR_EQUAL}
COUNTS = [(5,), (1, 4), (1, 2, 2)]


@dataclass
class Stepwise:
    """Wraps an artificial space, with two steps from rows to tuples: first half of the modifiers, then the rest."""

    space: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.space, name)

    @property
    def tuples(self) -> IntArray:
        """Tuples of each row."""
        return np.bincount(self.space.expand(self.space.degrees)[1])

    @property
    def refinements(self) -> tuple[Refinement, ...]:
        """Choose ZeRO, then the others."""
        return (
            Refinement(expand=self._zero, terms=self._relaxed_but_zero),
            Refinement(expand=self._others, terms=self.space.terms),
        )

    def _zero(self, rows: LayoutBatch) -> tuple[LayoutBatch, IntArray]:
        stages = np.unique(self.space.expand(self.space.degrees.take(np.array([0])))[0].zero)
        owner = np.repeat(np.arange(len(rows)), len(stages))
        return replace(rows.take(owner), zero=np.tile(stages, len(rows))), owner

    def _others(self, rows: LayoutBatch) -> tuple[LayoutBatch, IntArray]:
        batch, owner = self.space.expand(rows)
        keep = np.flatnonzero(batch.zero == rows.zero[owner])
        return batch.take(keep), owner[keep]

    def _relaxed_but_zero(self, rows: LayoutBatch) -> StageTerms:
        return self.space.relaxed(rows)  # type: ignore[no-any-return]


def search(space: Any, **options: Any) -> SearchResult:
    """Run a search to its end."""
    return BestFirst(Stepwise(space), SearchOptions(**options)).run()


def obeyed(space: Any, found: Found) -> bool:
    """Whether a layout fits and costs what it says."""
    terms = space.terms(found.layout)
    padding = ((0, terms.in_flight.shape[1] - found.blocks.shape[1]), (0, 0))
    held, again = (np.pad(part.sum(axis=0), padding)[None] for part in (found.blocks, found.recomputed))
    exact = step_s(terms, 0, found.blocks[None], found.recomputed[None])[0]
    fits = bool(price_stages(terms, held, again).fits[0])
    return fits and exact == pytest.approx(found.step_time_s, rel=1e-12)


@pytest.mark.parametrize(("rule", "counts"), [*product(RULES, COUNTS)], ids=str)
def test_search_finds_the_optimum(kit: Any, rule: str, counts: tuple[int, ...]) -> None:
    """Search, one model over the whole table and exhaustive enumeration agree, from plenty of memory to none."""
    for seed, tight in enumerate((3.0, 1.0, 0.8, 0.6)):
        space = kit.space(RULES[rule], counts, seed=seed, tight=tight, rows=3)
        layouts = kit.layouts(space)
        result, whole = search(space), search(space, one_model=True)
        assert result.complete
        assert whole.complete
        if not layouts:
            assert result.best is whole.best is None
            assert np.isinf(result.bound_s)
            continue
        best = layouts[0].step_time_s
        for answer in (result, whole):
            assert answer.best is not None
            assert answer.best.step_time_s == pytest.approx(best, abs=answer.rounding_s)
            assert answer.bound_s <= best
            assert obeyed(space, answer.best)


def test_every_tuple_is_accounted_for(kit: Any) -> None:
    """Tuples without room and solved tuples are no more than there are; where nothing fits all lack room."""
    none = search(kit.space(MEGATRON, (5,), tight=0.01))
    assert none.best is None
    assert none.by_memory + none.solved == 48
    some = search(kit.space(MEGATRON, (5,), tight=1.0))
    assert 0 < some.by_memory + some.solved <= 48


def test_near_ties_are_the_best_of_their_families(kit: Any) -> None:
    """Runners-up are other families' optima in order, none skipped within the range asked for."""
    space = kit.space(FREE, (5,), tight=2.0)
    by_family: dict[tuple[int, ...], float] = {}
    for choice in kit.layouts(space):
        family = tuple(int(getattr(choice.layout, name)[0]) for name in FAMILY)
        by_family.setdefault(family, choice.step_time_s)
    expected = sorted(by_family.values())
    result = search(space, top=len(expected), near=10.0)
    assert [found.step_time_s for found in result.found] == pytest.approx(expected, abs=result.rounding_s)
    assert all(obeyed(space, found) for found in result.found)
    near = expected[1] / expected[0] - 1
    assert len(search(space, top=9, near=near * 1.01).found) == 2
    assert len(search(space, top=9, near=near * 0.99).found) == 1


def test_known_step_time_narrows_the_search(kit: Any) -> None:
    """A step time that is reachable leaves the optimum; one below it leaves nothing."""
    space = kit.space(MEGATRON, (1, 4))
    best = kit.layouts(space)[0].step_time_s
    warm = search(space, upper_s=best)
    assert warm.best is not None
    assert warm.best.step_time_s == pytest.approx(best, abs=warm.rounding_s)


def test_likely_tuples_come_first(kit: Any) -> None:
    """They fit, the fastest first; the search goes on to neighbours of the best that were not proposed yet, or to none."""
    space = Stepwise(kit.space(FREE, (5,), tight=2.0))
    first = FirstTuples(space)
    portions = list(first.of_all_depths())
    items = [item for portion in portions for item in portion]
    assert items
    for portion in portions:
        steps = [construct(item.terms, space.counts, space.rule).step_time_s[0] for item in portion]
        assert steps == sorted(steps) and np.isfinite(steps).all()
    assert list(first.near(items[0], lambda: 0.0)) == []
    others = [item.key for portion in first.near(items[0], lambda: np.inf) for item in portion]
    assert set(others).isdisjoint(item.key for item in items)


def test_pieces_of_rows_change_nothing(kit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows bounded in many small pieces, of which some hold nothing that is still wanted, give the same answer."""
    space = kit.space(NEAR_EQUAL, (5,), tight=2.0, rows=6)
    whole = search(space)
    monkeypatch.setattr(rows, "CELLS", 1)
    cut = search(space)
    assert whole.best is not None and cut.best is not None
    assert cut.complete and cut.best.step_time_s == pytest.approx(whole.best.step_time_s, rel=1e-12)


def test_gap_ends_the_search_with_a_true_bound() -> None:
    """With a gap allowed the answer is within it of the bound, and the bound below the optimum."""
    source = SyntheticSource(replace(dense_405b(gpus=512), longest_cp=2), MEGATRON)
    exact, rough = search(source), search(source, gap=0.2)
    assert exact.best is not None
    assert rough.best is not None
    assert rough.bound_s <= exact.best.step_time_s
    assert rough.best.step_time_s * 0.8 <= rough.bound_s


def test_stopping_leaves_the_best_so_far_and_its_bound() -> None:
    """A stop asked for once a layout is known, and a time limit, end the search without a false proof."""
    source = SyntheticSource(replace(dense_405b(gpus=1024, memory_bytes=60e9), longest_cp=2), MEGATRON)
    optimum = search(source).best
    assert optimum is not None
    states: list[Progress] = []
    search_ = BestFirst(
        Stepwise(source), SearchOptions(), on_progress=states.append, should_stop=lambda: len(states) > 1
    )
    stopped = search_.run()
    assert stopped.bound_s <= optimum.step_time_s
    assert not stopped.complete or stopped.best is not None
    timed = search(source, time_limit_s=0.0)
    assert timed.best is not None
    assert obeyed(source, timed.best)
    assert not timed.complete
    assert timed.bound_s <= optimum.step_time_s
    assert timed.best is None or timed.best.step_time_s >= optimum.step_time_s * (1 - 1e-9)


def test_progress_narrows_the_gap() -> None:
    """Reported step times fall, reported bounds never exceed the optimum."""
    source = SyntheticSource(replace(dense_405b(gpus=512), longest_cp=2), MEGATRON)
    states: list[Progress] = []
    result = BestFirst(Stepwise(source), SearchOptions(), on_progress=states.append).run()
    assert result.best is not None
    times = [state.best_s for state in states]
    assert times == sorted(times, reverse=True)
    assert all(state.bound_s <= result.best.step_time_s * (1 + 1e-12) for state in states)


def test_seed_and_workers_do_not_change_the_optimum(kit: Any) -> None:
    """The optimum is the same for any seed and number of workers."""
    space = kit.space(NEAR_EQUAL, (2, 3), tight=1.2)
    expected = search(space).best
    assert expected is not None
    for options in ({"seed": 7}, {"workers": 2}):
        again = search(space, **options).best
        assert again is not None
        assert again.step_time_s == pytest.approx(expected.step_time_s, abs=1e-6)


def test_rules_grow_freer() -> None:
    """The freest stages are never slower than Megatron's."""
    model = replace(dense_405b(gpus=512, memory_bytes=50e9), longest_cp=1)
    best = []
    for rule in (FREE, MEGATRON, StageRule(split=MEGATRON.split, recomputation=NEAR_EQUAL.recomputation)):
        found = search(SyntheticSource(model, rule)).best
        best.append(found.step_time_s if found else np.inf)
    assert best == sorted(best)
