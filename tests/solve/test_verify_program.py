"""Verify's own programs: walked paths, verdicts as if all were priced, faults of the search found."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from checks.enumeration import solve_stages
from checks.operations import folded_terms, terms_of

from layoutopt.optimizer.cost.orders import HopOverlap
from layoutopt.optimizer.cost.step import durations, graph_of, step_s
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.frameworks.stage_rule import Recomputation, Split, StageRule
from layoutopt.optimizer.solve.api import solve_layout
from layoutopt.optimizer.solve.inputs import Question
from layoutopt.optimizer.solve.plan import SolveOptions
from layoutopt.optimizer.solve.search import enumerate_stages, one_tuple
from layoutopt.optimizer.solve.verify import exclusion
from layoutopt.optimizer.solve.verify.program import MARGIN, OwnPaths, ProgramOutcome, look_for_faster
from layoutopt.optimizer.solve.verify.walk import longest_path
from layoutopt.optimizer.space.options import SpaceOptions
from layoutopt.optimizer.specs.loading import load_cluster, load_workload
from layoutopt.optimizer.specs.vocabulary import Schedule

if TYPE_CHECKING:
    from layoutopt.optimizer.cost.terms import StageTerms
    from layoutopt.optimizer.solve.verify.exclusion import Exclusion

RULES = [StageRule(split=split, recomputation=how) for split in Split for how in Recomputation]
COUNTS = [(5,), (7,), (1, 4), (2, 3), (1, 2, 2)]


@pytest.mark.parametrize("overlap", list(HopOverlap))
@pytest.mark.parametrize("schedule", list(Schedule))
def test_a_walk_takes_as_long_as_the_price(schedule: Schedule, overlap: HopOverlap) -> None:
    """Whatever the schedule and its transfers: the same seconds, and the path found is as long."""
    rng = np.random.default_rng(7)
    for pp, vp, rounds in ((2, 1, 1), (2, 2, 3), (4, 2, 2), (4, 3, 4)):
        ranks = 1 if schedule is Schedule.NONE else pp
        chunks = 2 if schedule.v_shape else vp if schedule is Schedule.INTERLEAVED else 1
        terms = terms_of(rng, schedule, ranks, chunks, 2 * pp * rounds, 2, overlap=overlap)
        graph = graph_of(terms, 0)
        if graph is None:
            continue
        shape = (1, int(terms.vp[0]), int(terms.pp[0]), 2)
        blocks = rng.integers(0, 4, shape)
        times = durations(terms, 0, blocks, blocks // 2)
        seconds, path = longest_path(graph.pipeline, times.by_kind[..., 0], float(times.hop_s[0]), overlap)
        price = step_s(terms, 0, blocks, blocks // 2)[0] - terms.outside_s[0]
        assert seconds == pytest.approx(price, rel=1e-9)
        assert path.seconds(times)[0] == pytest.approx(price, rel=1e-9)


def _some_terms(kit: Any, rng: np.random.Generator, rule: StageRule, counts: tuple[int, ...]) -> StageTerms:
    if rng.random() < 0.3:
        return folded_terms(rng, int(rng.integers(2, 4)), len(counts))
    space = kit.space(rule, counts, seed=int(rng.integers(1000)), tight=float(rng.uniform(0.7, 1.5)))
    batch, _ = space.expand(space.degrees)
    terms: StageTerms = space.terms(batch)
    return terms.take(np.array([rng.integers(len(batch))]))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.split}-{rule.recomputation}")
def test_verdicts_are_those_of_pricing_everything(kit: Any, rule: StageRule) -> None:
    """Nothing is excluded that exists, what is proposed is real, and little is left open."""
    rng, seen = np.random.default_rng(RULES.index(rule)), Counter[ProgramOutcome]()
    while sum(seen.values()) < 16:
        counts = COUNTS[rng.integers(len(COUNTS))]
        terms, number = _some_terms(kit, rng, rule, counts), np.array(counts)
        best = solve_stages(terms, counts, rule)
        if best is None:
            assert look_for_faster(terms, number, rule, np.inf, OwnPaths())[0] is not ProgramOutcome.FASTER
            continue
        for share, wrong in (
            (1 - 1e-9, ProgramOutcome.FASTER), (1 + 2 * MARGIN, ProgramOutcome.NONE_FASTER),
            (1.02, ProgramOutcome.NONE_FASTER),
            (np.inf, ProgramOutcome.NONE_FASTER),
        ):  # fmt: skip
            below_s = best.step_time_s * share
            outcome, found = look_for_faster(terms, number, rule, below_s, OwnPaths())
            assert outcome is not wrong
            seen[outcome] += 1
            if found is not None:
                exact = step_s(terms, 0, found.blocks[None], found.recomputed[None])[0]
                assert best.step_time_s * (1 - 1e-12) <= exact == found.step_s < below_s
    assert seen[ProgramOutcome.FASTER] and seen[ProgramOutcome.NONE_FASTER]
    assert seen[ProgramOutcome.OPEN] <= sum(seen.values()) // 3


def _excluded(monkeypatch: pytest.MonkeyPatch, share: float, options: SolveOptions, model: str) -> Exclusion:
    """Search, and exclude what is faster than the answer, both with an enumeration that thinks ``share`` is enough."""
    right = enumerate_stages.fastest_stages

    def eager(terms: Any, counts: Any, rule: Any, paths: Any, below_s: float, *rest: Any, **more: Any) -> Any:
        return right(terms, counts, rule, paths, below_s * share, *rest, **more)

    for module in (one_tuple, exclusion):
        monkeypatch.setattr(module, "fastest_stages", eager)
    workload, cluster = load_workload(model), load_cluster("h100x16")
    plan = solve_layout(workload, cluster, options)
    assert plan.bound_s is not None and plan.status == "optimal"
    space = Question(workload=workload, cluster=cluster, options=options).costed_space()
    return exclusion.exclude_tuples(space, plan.bound_s * (1 - 1e-10))


ASKED = {
    "megatron": SolveOptions(space=SpaceOptions(min={"pp": 4})),
    "any": SolveOptions(framework=Framework.ANY, space=SpaceOptions(min={"pp": 2}, max={"pp": 2})),
}


@pytest.mark.parametrize("asked", ASKED)
def test_a_fault_of_the_enumeration_is_found(monkeypatch: pytest.MonkeyPatch, asked: str) -> None:
    """An enumeration that drops the best two percent lets a slower layout pass as optimal; the programs refute it.

    Without them verification, which asks the same enumeration, would agree.
    """
    found = _excluded(monkeypatch, 0.98, ASKED[asked], "llama3-8b")
    assert found.witness is not None and not found.holds
    monkeypatch.undo()
    with monkeypatch.context() as blind:
        blind.setattr(exclusion, "look_for_faster", lambda *_: (ProgramOutcome.OPEN, None))
        assert _excluded(blind, 0.98, ASKED[asked], "llama3-8b").witness is None
    with monkeypatch.context() as right:
        honest = _excluded(right, 1.0, ASKED[asked], "llama3-8b")
    assert honest.holds
    assert honest.programmed == honest.exactly > 0


def test_tuples_beyond_many_are_a_sample(kit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind the first ones every so many-th is decided by the programs too, always the same."""
    space = kit.space()
    below_s = 3 * kit.layouts(space)[0].step_time_s
    monkeypatch.setattr(exclusion, "ALWAYS", 2)
    monkeypatch.setattr(exclusion, "EVERY", 3)
    monkeypatch.setattr(exclusion, "look_for_faster", lambda *_: (ProgramOutcome.NONE_FASTER, None))
    monkeypatch.setattr(exclusion, "_nothing_faster", lambda *_: True)
    monkeypatch.setattr(exclusion, "EVEN_PRICED", 0)
    found = exclusion.exclude_tuples(space, below_s)
    assert found.exactly > 6
    assert found.programmed == 2 + found.exactly // 3
