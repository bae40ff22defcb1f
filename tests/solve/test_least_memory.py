"""The least memory of a space: what enumeration finds, and floors that hold."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from checks.synthetic import SyntheticSource, dense_405b

from layoutopt.optimizer.cost.terms import price_stages
from layoutopt.optimizer.frameworks.stage_rule import FREE, MEGATRON, NEAR_EQUAL
from layoutopt.optimizer.solve.explain.least_memory import least_memory, peak_floor
from layoutopt.optimizer.solve.search.source import Refinement

if TYPE_CHECKING:
    from layoutopt.optimizer.cost.batch import IntArray

RULES = {"free": FREE, "megatron": MEGATRON, "torchtitan": NEAR_EQUAL}


@dataclass
class OneStep:
    """Wraps an artificial space: one step from degree rows to tuples."""

    space: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.space, name)

    @property
    def tuples(self) -> IntArray:
        """Tuples of each row."""
        return np.bincount(self.space.expand(self.space.degrees)[1])

    @property
    def refinements(self) -> tuple[Refinement, ...]:
        """Choose every modifier."""
        return (Refinement(expand=self.space.expand, terms=self.space.terms),)


def peaks(kit: Any, space: Any) -> list[float]:
    """The peak memory of every layout, whether it fits or not."""
    found = []
    for choice in kit.layouts(replace(space, tight=1e9)):
        terms = replace(space.terms(choice.layout), capacity_bytes=np.array([np.inf]))
        ranks, kinds = int(choice.layout.pp[0]), choice.blocks.shape[1]
        blocks, again = (
            stages.reshape(-1, ranks, kinds).sum(axis=0) for stages in (choice.blocks, choice.recomputed)
        )
        padding = ((0, terms.in_flight.shape[1] - ranks), (0, 0))
        costs = price_stages(terms, np.pad(blocks, padding)[None], np.pad(again, padding)[None])
        found.append(float(costs.peak_bytes[0]))
    return found


@pytest.mark.parametrize("counts", [(4,), (1, 3)], ids=str)
@pytest.mark.parametrize("rule", RULES)
def test_least_memory_is_that_of_enumeration(kit: Any, rule: str, counts: tuple[int, ...]) -> None:
    """The leanest of all layouts, proven, whatever the capacity."""
    for seed in range(2):
        space = kit.space(RULES[rule], counts, seed=seed, tight=0.1, rows=3)
        found = least_memory(OneStep(scaled(space)))
        assert found is not None
        assert found.proven
        assert found.peak_bytes == pytest.approx(min(peaks(kit, space)) * 2.0**30, rel=2e-6)
        assert found.floor_bytes <= found.peak_bytes


def scaled(space: Any) -> Any:
    """The space with bytes in GiB, whose KiB a model can tell apart."""
    plain_terms, plain_relaxed = space.terms, space.relaxed
    names = [f for f in plain_terms(space.degrees).__slots__ if f.endswith("_bytes")]

    def grow(terms: Any) -> Any:
        return replace(terms, **{name: getattr(terms, name) * 2.0**30 for name in names})

    @dataclass
    class Scaled:
        inner: Any

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

        def terms(self, batch: Any) -> Any:
            return grow(plain_terms(batch))

        def relaxed(self, rows: Any) -> Any:
            return grow(plain_relaxed(rows))

    return Scaled(space)


def test_limits_leave_a_floor_that_holds() -> None:
    """A search that ends early names a layout and a floor on either side of the least memory."""
    model = replace(dense_405b(gpus=64, global_batch=256), longest_cp=2)
    source = OneStep(SyntheticSource(model, MEGATRON))
    full = least_memory(source)
    assert full is not None
    assert full.proven
    short = least_memory(source, solves=1)
    assert short is not None
    assert short.floor_bytes <= full.peak_bytes * (1 + 1e-6)
    assert short.peak_bytes >= full.peak_bytes * (1 - 2e-6)


def test_floor_of_one_kind_is_reached() -> None:
    """With one kind of block and free recomputation the closed form is the least memory."""
    model = replace(dense_405b(gpus=64, global_batch=256), longest_cp=2)
    source = SyntheticSource(model, FREE)
    found = least_memory(OneStep(source))
    batch, _ = source.expand(source.degrees)
    floors = peak_floor(source.terms(batch), source.counts)
    assert found is not None
    assert found.peak_bytes == pytest.approx(floors.min(), rel=2e-6)
