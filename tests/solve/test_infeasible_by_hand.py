"""What is said where no layout fits, for every reason there may be, and floors under memory on paper."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from checks.plain_terms import terms_of

from layoutopt.optimizer.cost.batch import batch_of
from layoutopt.optimizer.solve.explain import infeasible
from layoutopt.optimizer.solve.explain.infeasible import (
    CUT_SHORT,
    IDLE,
    LARGEST_CLUSTER,
    _batch,
    _conditions,
    _idle,
    _nothing_meets,
    _required,
    _saver,
    _why,
    _with_size,
    explain_infeasible,
    minimal_conflict,
    runs,
    suggestions,
)
from layoutopt.optimizer.solve.explain.least_memory import LeastMemory, _Candidates, _distinct, peak_floor
from layoutopt.optimizer.solve.inputs import Question
from layoutopt.optimizer.solve.plan import SolveOptions, Suggestion
from layoutopt.optimizer.solve.search.demands import NO_DEMANDS
from layoutopt.optimizer.space.options import SpaceOptions
from layoutopt.optimizer.specs.layout import Layout
from layoutopt.optimizer.specs.loading import load_cluster, load_workload, override_training

if TYPE_CHECKING:
    from collections.abc import Callable

WORKLOAD = override_training(load_workload("llama3-8b"), global_batch=64, sequence_length=4096)
CLUSTER = load_cluster("h100x8")


def asked(batch: int = 64, **space: Any) -> Question:
    """Llama 3 8B on a node."""
    training = replace(WORKLOAD.training, global_batch=batch)
    options = SolveOptions(space=SpaceOptions(**space))
    return Question(workload=replace(WORKLOAD, training=training), cluster=CLUSTER, options=options)


def after(calls: int) -> Callable[[], bool]:
    """A clock that is up after so many looks at it."""
    looks = iter(range(10**6))
    return lambda: next(looks) >= calls


ROW = batch_of([Layout(tp=8, pp=2, cp=4, ep=3, zero=1)])


@pytest.fixture
def dark(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A question whose searches are told what they find."""
    told: Any = SimpleNamespace(least=None, fewest=None, conflict=("tp = 8",))
    monkeypatch.setattr(infeasible, "least_memory", lambda source, stopped: told.least)
    monkeypatch.setattr(infeasible, "fewest_gpus", lambda question, stopped: told.fewest)
    monkeypatch.setattr(infeasible, "minimal_conflict", lambda question, stopped: told.conflict)
    told.source = SimpleNamespace(
        space=SimpleNamespace(empty=None), demands=NO_DEMANDS,
        terms=lambda row: SimpleNamespace(capacity_bytes=np.array([64.2e9])),
    )  # fmt: skip
    return told


def test_rules_and_axes_that_leave_nothing(dark: Any) -> None:
    """A rule by its name; without one no axis value."""
    dark.source.space.empty = SimpleNamespace(message="nothing left", rule="tp_divides")
    found = _why(asked(), dark.source, None)
    assert (found.message, found.binding, found.conflict) == ("nothing left", "rule tp_divides", ("tp = 8",))
    dark.source.space.empty.rule = ""
    assert _why(asked(), dark.source, None).binding == "no axis value"


def test_what_is_said_of_memory(dark: Any) -> None:
    """The leanest layout, what it needs and what there is, and how many GPUs would do."""
    dark.least = LeastMemory(peak_bytes=80.5e9, layout=ROW, floor_bytes=1.0, proven=True)
    words = (
        "no layout fits in memory: the leanest (tp 8, cp 4, pp 2, ep 3, zero 1) needs 80.5 GB on its fullest rank, "
        "64.2 GB are usable; "
    )
    none = _why(asked(), dark.source, None)
    assert none.message == words + "no size up to 131,072 GPUs was found to fit"
    assert (none.binding, none.least_bytes, none.capacity_bytes, none.fewest_gpus) == (
        "memory",
        80.5e9,
        64.2e9,
        None,
    )
    assert none.conflict == ("tp = 8",)
    dark.fewest = 1024
    more = _why(asked(), dark.source, lambda: True)
    assert more.message.endswith("; 1,024 GPUs of this kind fit") and more.fewest_gpus == 1024
    assert more.conflict == ("tp = 8", "8 GPUs")
    dark.fewest = None
    late = _why(asked(), dark.source, lambda: True)
    assert late.message.endswith("; more GPUs were not tried to the end")
    assert _why(asked(), dark.source, lambda: False).message == none.message
    assert _with_size(asked(), (), 16) == () and _with_size(asked(), ("a",), None) == ("a",)
    assert LARGEST_CLUSTER == 131_072


def test_stages_that_no_split_fills(dark: Any) -> None:
    """Or nothing that is known, where the time was up."""
    found = _why(asked(), dark.source, None)
    assert found.binding == "stages" and found.conflict == ("tp = 8",)
    assert (
        found.message
        == "the layers can't be split over the stages of any layout as the framework's rule asks"
    )
    assert _why(asked(), dark.source, lambda: False).binding == "stages"
    late = _why(asked(), dark.source, lambda: True)
    assert (late.message, late.binding) == (
        "no layout has memory and layers enough for its stages",
        "not known",
    )
    dark.source.demands = SimpleNamespace(any=True)
    nothing: Any = pytest.MonkeyPatch()
    with nothing.context() as patch:
        patch.setattr(infeasible, "_missed_demands", lambda *_: None)
        also = _why(asked(), dark.source, lambda: True)
        assert also.message.endswith(" for its stages, and meets what is demanded")
        patch.setattr(infeasible, "_missed_demands", lambda *_: late)
        assert _why(asked(), dark.source, None) is late


def test_an_explanation_that_was_cut_short_says_so(dark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """And one that was not says nothing of time."""
    one = (Suggestion(option="allow", value="x", effect="y"),)
    monkeypatch.setattr(infeasible, "suggestions", lambda question, stopped: one)
    whole = explain_infeasible(asked(), dark.source, lambda: False)
    assert not whole.cut_short and CUT_SHORT not in whole.message and whole.suggestions == one
    assert explain_infeasible(asked(), dark.source) == whole
    late = explain_infeasible(asked(), dark.source, lambda: True)
    assert late.cut_short and late.message.endswith(f"; {CUT_SHORT}")


def test_suggestions_are_the_first_that_help(monkeypatch: pytest.MonkeyPatch) -> None:
    """One saver before all of them, few idle GPUs before many, and the nearest batch where none divides."""
    tried: list[Question] = []
    helps: Any = SimpleNamespace(when=lambda question: False)

    def run(question: Question, stopped: object = None) -> bool:
        tried.append(question)
        return bool(helps.when(question))

    monkeypatch.setattr(infeasible, "runs", run)
    question = asked()
    assert suggestions(question) == ()
    sets = [one.options.space.allow for one in tried if one.options.space.allow]
    singles, whole = sets[:-1], sets[-1]
    assert [*singles] == [(saver,) for saver in whole] and len(whole) > 1
    assert [one.options.space.allow_idle for one in tried if one.options.space.allow_idle] == list(IDLE)
    helps.when = lambda one: whole[1] in one.options.space.allow
    found = _saver(question, None)
    assert found is not None and (found.option, found.value, found.effect) == (
        "allow",
        str(whole[1].value),
        "a layout fits",
    )
    helps.when = lambda one: len(one.options.space.allow) == len(whole)
    both = _saver(asked(allow=whole[:1]), None)
    assert both is not None and both.value == "+".join(whole[1:])
    helps.when = lambda one: False
    tried.clear()
    assert _saver(asked(allow=whole), None) is None and tried == []
    helps.when = lambda one: one.options.space.allow_idle == 0.5
    idle = _idle(question, None)
    assert idle is not None and (idle.option, idle.value) == ("allow_idle", "50%")
    assert _idle(asked(allow_idle=0.0), None) is None
    helps.when = lambda one: one.workload.training.global_batch >= 12
    assert _batch(question, None) is None
    # Seven sequences divide by no number of GPUs but one.
    odd = asked(7, fix={"tp": (1,), "pp": (1,), "cp": (1,)})
    tried.clear()
    found = _batch(odd, None)
    assert found is None and [one.workload.training.global_batch for one in tried] == [8]
    helps.when = lambda one: True
    found = _batch(odd, lambda: False)
    assert found is not None and (found.option, found.value, found.effect) == (
        "batch", "8", "the nearest larger batch that divides",
    )  # fmt: skip
    assert _batch(odd, lambda: True) is None


def test_a_conflict_keeps_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Conditions are dropped one by one while nothing meets the rest; without time there is no answer."""
    question = asked(fix={"tp": (8,)}, max={"pp": 4}, require=("dp <= 2",))
    needed = {"tp = 8", "dp <= 2"}
    monkeypatch.setattr(
        infeasible,
        "_nothing_meets",
        lambda _, kept, stopped: needed <= {condition.name for condition in kept},
    )
    assert minimal_conflict(question) == ("tp = 8", "dp <= 2")
    assert minimal_conflict(question, lambda: False) == ("tp = 8", "dp <= 2")
    assert minimal_conflict(question, lambda: True) == ()
    assert minimal_conflict(question, after(2)) == ()


def test_conditions_that_are_kept_and_dropped() -> None:
    """Restrictions by their axis, every GPU as half of them idle, memory as enough of it."""
    conditions = {one.name: one for one in _conditions(asked(fix={"tp": (7,)}, max={"pp": 1}).options.space)}
    every, memory, tp, pp = (conditions[name] for name in ("every GPU used", "memory", "tp = 7", "pp <= 1"))
    question = asked(fix={"tp": (7,)}, max={"pp": 1})
    assert _nothing_meets(question, [every, memory, tp, pp], None)
    assert not _nothing_meets(question, [every, memory, pp], None)
    assert _nothing_meets(question, [every, tp], None) and _nothing_meets(question, [], lambda: True)
    small = replace(CLUSTER, gpu=replace(CLUSTER.gpu, memory_bytes=2e9))
    tight = replace(asked(require=("layers[0] >= 1",)), cluster=small)
    (need,) = _required(tight.options.space)
    assert _nothing_meets(tight, [every, memory, need], None)
    assert not _nothing_meets(tight, [every, need], None) and not _nothing_meets(tight, [every], None)
    assert not runs(tight) and not runs(question) and runs(asked(max={"pp": 1}))
    assert not runs(asked(max={"pp": 1}), lambda: True)


def test_a_floor_under_the_fullest_rank() -> None:
    """Blocks of 1 + 4 bytes, 1 + 1 recomputed: three of five on one of two ranks; with two kinds the mean may be more."""
    five = np.array([5])
    fixed = terms_of([2, 2], [1, 1], may_recompute=np.array([False, True]))
    assert peak_floor(fixed, five) == pytest.approx([15.0, 6.0])
    # A buffer of 3 bytes: recomputing three blocks takes 9.
    buffer = terms_of([2], [1], recompute_transient_bytes=np.array([3.0]))
    assert peak_floor(buffer, five) == pytest.approx([9.0])
    ends = terms_of(
        [2], [1], first_bytes=np.array([2.5]), last_bytes=np.array([1.0]), common_bytes=np.array([0.5])
    )
    assert peak_floor(ends, five) == pytest.approx([7.5])
    heavy = terms_of([2], [1], first_bytes=np.array([40.0]))
    assert peak_floor(heavy, five) == pytest.approx([40.0])
    assert peak_floor(terms_of([3, 3], [3, 3]), np.array([6])).tolist() == [inf, inf]
    # One block of 100 bytes and one of 2: the leanest kind says 2, the mean of both ranks 51.
    two = terms_of(
        [2], [1], kinds=2, layer_state_bytes=np.array([[1.0, 99.0]]), may_recompute=np.array([False]),
        layer_activation_bytes=np.array([[1.0, 1.0]]), recomputed_activation_bytes=np.array([[9.0, 9.0]]),
    )  # fmt: skip
    assert peak_floor(two, np.array([1, 1])) == pytest.approx([51.0])
    again = replace(two, may_recompute=np.array([True]))
    assert peak_floor(again, np.array([1, 1])) == pytest.approx([51.0])


def test_the_leanest_candidates_first() -> None:
    """Sorted by their floors without those that have none, split where it is asked; of equal memory one of a row."""
    rows = batch_of([Layout(tp=tp) for tp in (1, 2, 3, 4)])
    ordered = _Candidates.sort(rows, np.array([3.0, inf, 1.0, 2.0]))
    assert (ordered.batch.tp.tolist(), ordered.floors.tolist()) == ([3, 4, 1], [1.0, 2.0, 3.0])
    for number, first, rest in ((1, [3], [4, 1]), (0, [], [3, 4, 1]), (3, [3, 4, 1], []), (9, [3, 4, 1], [])):
        now, later = ordered.split(number)
        assert (now.batch.tp.tolist(), later.batch.tp.tolist()) == (first, rest)
        assert len(now.floors) == len(first) and len(later.floors) == len(rest)
    terms = terms_of(
        [2] * 4, [1] * 4, first_bytes=np.array([1.0, 1.0, 2.0, 1.0]), fixed_s=np.array([0.0, 1.0, 2.0, 3.0])
    )
    assert _distinct(terms, np.array([0, 0, 0, 1])).tolist() == [0, 2, 3]
