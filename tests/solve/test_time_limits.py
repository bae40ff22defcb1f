"""Time limits: what they bound beside the search, and what a search that is stopped knows by then."""

from __future__ import annotations

import json
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from layoutopt.optimizer.cost.makespan import step_graph
from layoutopt.optimizer.cost.orders import HopOverlap, Pipeline
from layoutopt.optimizer.report.json_forms import plan_to_plain
from layoutopt.optimizer.report.verification import verify_plan
from layoutopt.optimizer.solve import api
from layoutopt.optimizer.solve.api import _comfortable
from layoutopt.optimizer.solve.certificate import Status
from layoutopt.optimizer.solve.explain import infeasible, least_memory
from layoutopt.optimizer.solve.inputs import Question
from layoutopt.optimizer.solve.plan import SolveOptions
from layoutopt.optimizer.solve.search import best_first
from layoutopt.optimizer.solve.search.best_first import BestFirst
from layoutopt.optimizer.solve.search.result import SearchOptions
from layoutopt.optimizer.solve.search.rows import RowBounds
from layoutopt.optimizer.specs.loading import load_cluster, load_workload
from layoutopt.optimizer.specs.vocabulary import Schedule, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layoutopt.optimizer.solve.plan import Plan
    from layoutopt.optimizer.solve.search.one_tuple import Waiting
    from layoutopt.optimizer.solve.search.rows import Partial

TOO_LARGE = ("llama3-70b", "h100x8")
OPERATION_BYTES = 32
"""Bytes that are kept of an operation: three 4-byte predecessors, three 4-byte hops, a 4-byte place."""


@pytest.fixture(scope="module")
def cut_short() -> Plan:
    """A proof that nothing fits, for whose explanation no time was left."""
    workload, cluster = load_workload(TOO_LARGE[0]), load_cluster(TOO_LARGE[1])
    return api.solve_layout(workload, cluster, SolveOptions(time_limit_s=1e-9))


def test_explanation_ends_with_the_time(cut_short: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the time up no second space is built or searched: what is proven is said, and that the rest is not known."""
    why = cut_short.infeasibility
    assert cut_short.status is Status.INFEASIBLE
    assert why is not None
    assert why.cut_short
    assert infeasible.CUT_SHORT in why.message
    assert (why.least_bytes, why.fewest_gpus, why.conflict, why.suggestions) == (None, None, (), ())
    workload, cluster = load_workload(TOO_LARGE[0]), load_cluster(TOO_LARGE[1])
    question = Question(workload=workload, cluster=cluster, options=SolveOptions())
    source = question.costed_space()
    monkeypatch.setattr(infeasible, "BestFirst", None)
    monkeypatch.setattr(least_memory, "CpModel", None)
    monkeypatch.setattr(Question, "costed_space", None)
    assert infeasible.explain_infeasible(question, source, lambda: True).cut_short


def test_what_is_known_by_then_is_told() -> None:
    """An explanation that is ended on its way states nothing that the whole one does not."""
    workload, cluster = load_workload(TOO_LARGE[0]), load_cluster(TOO_LARGE[1])
    question = Question(workload=workload, cluster=cluster, options=SolveOptions())
    source = question.costed_space()
    whole = infeasible.explain_infeasible(question, source)
    assert not whole.cut_short
    assert whole.least_bytes is not None
    for asks in (3, 20):
        left = iter(range(asks))
        part = infeasible.explain_infeasible(question, source, partial(_used_up, left))
        assert part.cut_short
        assert part.least_bytes is None or part.least_bytes >= whole.least_bytes * (1 - 1e-9)
        assert part.fewest_gpus in (None, whole.fewest_gpus)
        assert part.conflict in ((), whole.conflict)


def _used_up(left: Iterator[int]) -> bool:
    return next(left, None) is None


def test_verify_names_what_was_cut_short(cut_short: Plan) -> None:
    """That nothing fits is verified; the explanation counts as not checked, and a false status is rejected."""
    plain = json.loads(json.dumps(plan_to_plain(cut_short)))
    report = verify_plan(plain)
    assert report.accepted
    assert any(text.startswith("infeasibility ") for text in report.not_checked)
    roomy = api.solve_layout(load_workload("llama3-8b"), load_cluster("h100x16"))
    forged = json.loads(json.dumps(plan_to_plain(roomy)))
    forged |= {"status": "infeasible", "infeasibility": plain["infeasibility"], "reasons": plain["reasons"]}
    assert not verify_plan(forged).accepted


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("binding", "rule tp_divides_heads"),
        ("least_bytes", 1e9),
        ("capacity_bytes", 1e9),
        ("fewest_gpus", 9),
        ("conflict", ["memory", "pp = 3"]),
        ("suggestions", [{"option": "--allow-idle", "value": "0.5", "effect": "runs"}]),
    ],
)
def test_what_is_cut_short_says_nothing_false(cut_short: Plan, key: str, value: object) -> None:
    """That the time was up excuses what is left out of an explanation, not what it says."""
    plain = json.loads(json.dumps(plan_to_plain(cut_short)))
    plain["infeasibility"][key] = value
    report = verify_plan(plain)
    assert not report.accepted
    assert any(f"infeasibility.{key}" in check.reason for check in report.checks if not check.passed)


def test_a_whole_explanation_may_be_told_in_part() -> None:
    """What was known when the time was up is accepted where it is so; words are named as not checked."""
    whole = api.solve_layout(load_workload(TOO_LARGE[0]), load_cluster(TOO_LARGE[1]))
    plain = json.loads(json.dumps(plan_to_plain(whole)))
    plain["infeasibility"] |= {"cut_short": True, "suggestions": [], "message": "not enough GPUs"}
    report = verify_plan(plain)
    assert report.accepted
    assert any(text.startswith("infeasibility ") and "not enough GPUs" in text for text in report.not_checked)


def test_building_the_space_takes_of_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search has what is left after a space that took long to build."""
    now, given = [0.0], []

    class Stopped(Exception):
        pass

    def slow(question: Question) -> Any:
        now[0] += 3.0
        return SimpleNamespace()

    def search(source: Any, options: SolveOptions, **_: Any) -> Any:
        given.append(options.time_limit_s)
        raise Stopped

    monkeypatch.setattr(api, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(Question, "costed_space", slow)
    monkeypatch.setattr(api, "_search", search)
    with pytest.raises(Stopped):
        api.solve_layout(load_workload("llama3-8b"), load_cluster("h100x16"), SolveOptions(time_limit_s=5.0))
    assert given == [5.0 - (3.0 - api.SPACE_S)]


def test_rows_that_are_not_looked_at_may_be_as_fast_as_can_be() -> None:
    """A stop that is asked for while rows are bounded leaves bounds that hold."""
    question = Question(
        workload=load_workload("llama3-8b"), cluster=load_cluster("h100x16"), options=SolveOptions()
    )
    source = question.costed_space()
    assert (RowBounds(source).quick(lambda: True) == 0).all()


def test_stages_are_constructed_at_least() -> None:
    """A stop that is asked for before a tuple's stages are enumerated leaves constructed ones, which are no faster."""
    question = Question(
        workload=load_workload("llama3-8b"), cluster=load_cluster("h100x16"), options=SolveOptions()
    )
    source = question.costed_space()
    best = BestFirst(source, SearchOptions()).run().best
    assert best is not None
    stopped = BestFirst(source, SearchOptions(), should_stop=lambda: True)
    found = stopped.solve_tuple(best.layout, 2 * best.step_time_s)
    assert found is not None
    assert best.step_time_s * (1 - 1e-9) <= found.step_time_s < 2 * best.step_time_s


def test_no_search_for_free_memory_begins_after_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the time up no second space is searched for a layout that leaves memory free; before, it is."""
    question = Question(
        workload=load_workload("llama3-8b"), cluster=load_cluster("h100x16"), options=SolveOptions()
    )
    source = question.costed_space()
    result = BestFirst(source, SearchOptions()).run()
    memory = SimpleNamespace(capacity_bytes=1.0)
    plan: Any = SimpleNamespace(verdict=Verdict.BORDERLINE, estimate=SimpleNamespace(memory=memory))

    class Searched(Exception):
        pass

    def run(search: BestFirst) -> Any:
        raise Searched

    monkeypatch.setattr(BestFirst, "run", run)
    assert _comfortable(question, source, result, plan, (0.0, lambda: True)) is None
    with pytest.raises(Searched):
        _comfortable(question, source, result, plan, (1.0, lambda: False))


class Watched(BestFirst):
    """Counts, before every expansion, the slower tuples that were solved in vain in a row."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.in_vain = [0]

    def _solve(self, item: Waiting, upper_s: float) -> bool:
        slower = item.bound_s > self._left_bound_s
        better = super()._solve(item, upper_s)
        self.in_vain[-1] = self.in_vain[-1] + 1 if slower and not better else 0
        return better

    def _push_tuples(self, partial: Partial) -> None:
        self.in_vain.append(0)
        super()._push_tuples(partial)


def test_what_may_be_faster_is_expanded_before_slower_tuples_are_solved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without patience no more than one tuple in a row is solved in vain behind rows that are not expanded; same answer."""
    question = Question(
        workload=load_workload("llama3-8b"), cluster=load_cluster("h100x16"), options=SolveOptions()
    )
    source = question.costed_space()
    patient = BestFirst(source, SearchOptions()).run()
    monkeypatch.setattr(best_first, "PATIENCE", 0)
    monkeypatch.setattr(best_first, "FEWEST", 1)
    monkeypatch.setattr(best_first, "FIRST_CHOICES", 2)
    monkeypatch.setattr(best_first, "CHOICES", 2)
    search = Watched(source, SearchOptions())
    result = search.run()
    assert len(search.in_vain) > 2
    assert max(search.in_vain[:-1]) <= 1
    assert result.complete
    assert result.best is not None
    assert patient.best is not None
    assert result.best.step_time_s == patient.best.step_time_s


def test_steps_of_deep_models_take_few_bytes() -> None:
    """Of a step with half a million operations at most 32 bytes of each are kept."""
    pipeline = Pipeline(schedule=Schedule.INTERLEAVED, pp=64, vp=40, micro_batches=96)
    graph = step_graph(pipeline, overlap=HopOverlap.ALL)
    size = len(graph.cell)
    kept = graph.before.nbytes + graph.hops.nbytes + graph.cell.nbytes
    assert size > 400_000
    assert kept <= OPERATION_BYTES * size
