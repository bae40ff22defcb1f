"""A model of many tuples, what is worth a switch, and what makes a layout run: small cases, each written out."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from layoutopt.optimizer.cost.batch import batch_of
from layoutopt.optimizer.cost.estimate import estimate
from layoutopt.optimizer.cost.factory import CostKind
from layoutopt.optimizer.cost.memory import usable_bytes
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.frameworks.switches import BY_NAME
from layoutopt.optimizer.solve.api import solve_layout
from layoutopt.optimizer.solve.explain.infeasible import LARGEST_CLUSTER
from layoutopt.optimizer.solve.explain.remedies import (
    GRADIENTS,
    MOMENTS,
    NUMERICS,
    Patient,
    _by_axes,
    _by_gpus,
    _settings,
    cost_of,
    find_remedies,
    with_room,
)
from layoutopt.optimizer.solve.explain.switch_worth import _without, worth_of_switches
from layoutopt.optimizer.solve.inputs import Question
from layoutopt.optimizer.solve.model.cp_model import SliceStatus
from layoutopt.optimizer.solve.plan import SolveOptions
from layoutopt.optimizer.solve.resolve import TUPLES, OpenModel, _same_tuple, open_model
from layoutopt.optimizer.solve.search import near as near_module
from layoutopt.optimizer.solve.search.near import near_tuples
from layoutopt.optimizer.space.options import SpaceOptions
from layoutopt.optimizer.specs.layout import Layout, Recompute, Switches
from layoutopt.optimizer.specs.loading import load_cluster, load_workload, override_training
from layoutopt.optimizer.specs.stage_split import build_stages
from layoutopt.optimizer.specs.vocabulary import Granularity, Precision, Schedule

WORKLOAD = override_training(load_workload("llama3-8b"), global_batch=64, sequence_length=4096)
CLUSTER = load_cluster("h100x8")
FULL = Recompute(granularity=Granularity.FULL)


def asked(**options: Any) -> Question:
    """Llama 3 8B on a node; a space of few tuples."""
    space = SpaceOptions(
        fix={"cp": (1,), "micro_batch": (1,), "pp": (1, 2), "zero": (1,), "vp": (1,)},
        recomputes=(Recompute(), FULL), **options,
    )  # fmt: skip
    return Question(workload=WORKLOAD, cluster=CLUSTER, options=SolveOptions(space=space))


@pytest.fixture(scope="module")
def answer() -> tuple[Question, Layout, float]:
    """A small question with its best layout and step."""
    question = asked()
    plan = solve_layout(question.workload, question.cluster, question.options)
    assert plan.layout is not None and plan.estimate is not None
    return question, plan.layout, plan.estimate.step_time_s


def test_the_likeliest_tuples_are_modelled(answer: tuple[Question, Layout, float]) -> None:
    """The answer's own and the next by their bounds; the floor of the rest is the least of theirs, at most 5% above."""
    question, best, best_s = answer
    batch, bounds = near_tuples(question.costed_space(), 1.05 * best_s)
    own = _same_tuple(batch, best, question.workload.model)
    assert own.sum() == 1 and len(batch) > 3
    others = np.sort(bounds[~own])
    for tuples in (1, 3):
        opened = open_model(question, best, best_s, tuples=tuples)
        assert len(opened.model.data) == tuples
        assert _same_tuple(opened.model.data.batch, best, question.workload.model).sum() == 1
        assert opened.others_s == min(others[tuples - 1], 1.05 * best_s)
    assert open_model(question, best, best_s, tuples=1, bound_s=best_s).others_s == max(best_s, others[0])
    whole = open_model(question, best, best_s, tuples=len(batch))
    assert whole.others_s == 1.05 * best_s
    assert TUPLES == 16


def test_a_layouts_own_tuple_is_that_of_every_axis(answer: tuple[Question, Layout, float]) -> None:
    """Each axis by itself tells it from others; layers that nobody recomputes belong to whole layers too."""
    model = WORKLOAD.model
    plain = Layout(tp=4, pp=2, sp=True, zero=1, schedule=Schedule.ONE_F_ONE_B)
    changes: list[dict[str, Any]] = [
        {"tp": 2}, {"cp": 2}, {"pp": 4}, {"vp": 2}, {"dp": 2}, {"micro_batch": 2}, {"micro_batches": 2}, {"sp": False},
        {"zero": 2}, {"hsdp_shard": 2}, {"mesh_order": "tp-cp-ep-pp-dp"}, {"schedule": Schedule.GPIPE},
        {"precision": Precision.FP8}, {"recompute": Recompute(granularity=Granularity.SELECTIVE, modules=("mlp",))},
    ]  # fmt: skip
    batch = batch_of([plain, *(replace(plain, **change) for change in changes)])
    for place, change in enumerate([{}, *changes]):
        assert np.flatnonzero(_same_tuple(batch, replace(plain, **change), model)).tolist() == [place]
    both = batch_of([replace(plain, recompute=FULL), replace(plain, dp=2)])
    assert _same_tuple(both, plain, model).tolist() == [True, False]
    assert not _same_tuple(batch_of([plain]), replace(plain, recompute=FULL), model).any()


def test_what_a_model_proves_is_the_less_of_two_floors(answer: tuple[Question, Layout, float]) -> None:
    """An optimum of the model is one of the space where nothing outside reaches it; a stopped model has its own bound."""
    question, best, best_s = answer
    opened = open_model(question, best, best_s, tuples=2, bound_s=best_s)
    solved = opened.model.solve()
    found = opened.resolve()
    assert found.layout == best and found.proven and found.gap == 0.0
    assert found.estimate is not None and found.estimate.step_time_s == best_s

    def resolved(others_s: float, **changed: Any) -> Any:
        model: Any = SimpleNamespace(data=opened.model.data, solve=lambda limits: replace(solved, **changed))
        return OpenModel(source=opened.source, model=model, others_s=others_s).resolve()

    below = resolved(0.75 * best_s)
    assert (below.bound_s, below.proven) == (0.75 * best_s, False)
    assert below.gap == pytest.approx(0.25)
    stopped = resolved(inf, status=SliceStatus.FEASIBLE, bound_s=0.5 * best_s)
    assert (stopped.bound_s, stopped.proven) == (0.5 * best_s, False)
    assert resolved(inf).bound_s == solved.step_time_s and resolved(inf).proven
    for lost in ({"blocks": None}, {"recomputed": None}):
        nothing = resolved(3.0, **lost)
        assert (nothing.layout, nothing.estimate, nothing.bound_s) == (None, None, 3.0)
        assert (nothing.gap, nothing.proven) == (None, False)


def test_rows_in_pieces_are_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many are looked at together, the tuples below a step time are the same, and none at it."""
    source = asked().costed_space()
    batch, bounds = near_tuples(source, 9.0)
    assert len(batch) and (bounds < 9.0).all()
    monkeypatch.setattr(near_module, "ROWS", 1)
    monkeypatch.setattr(near_module, "RELAXED_ROWS", 2)
    again, same = near_tuples(source, 9.0)
    assert sorted(same.tolist()) == sorted(bounds.tolist())
    assert sorted(again.tp.tolist()) == sorted(batch.tp.tolist())
    least = float(bounds.min())
    none, nothing = near_tuples(source, least)
    assert len(none) == len(nothing) == 0
    # A bound may be lower where the limit is, as it is no longer sharpened up to it.
    assert len(near_tuples(source, least * (1 + 1e-6))[0]) >= 1


def test_what_a_switch_is_worth_is_its_price_without() -> None:
    """Relative to the layout's step; what rests on a switch goes with it, and what does nothing is no switch."""
    question = asked()
    cost = cost_of(question)
    layout = Layout(
        tp=4, sp=True, dp=2, zero=1, micro_batches=32,
        switches=Switches(tp_overlap=True, dp_overlap=True, param_overlap=True, ep_overlap=True),
    )  # fmt: skip
    cost_price = estimate(cost, replace(layout, stages=solve_stages(layout)))
    staged = replace(layout, stages=solve_stages(layout))
    worth = worth_of_switches(cost, staged, cost_price)
    # Of a dense model expert traffic is nothing that a switch acts on.
    assert set(worth) == {"tp_overlap", "dp_overlap", "param_overlap"}
    changes: tuple[tuple[str, dict[str, Any]], ...] = (
        ("tp_overlap", {"tp_overlap": False}), ("param_overlap", {"param_overlap": False}),
        ("dp_overlap", {"dp_overlap": False, "param_overlap": False}),
    )  # fmt: skip
    for name, changed in changes:
        without = estimate(cost, replace(staged, switches=replace(staged.switches, **changed)))
        assert worth[name] == without.step_time_s / cost_price.step_time_s - 1.0
    assert worth["dp_overlap"] > 0
    off = Switches(dp_overlap=False)
    assert (
        _without(off, BY_NAME["dp_overlap"]) is None and _without(Switches(), BY_NAME["dp_overlap"]) is None
    )
    assert _without(Switches(ep_overlap=True, delay_wgrad=True), BY_NAME["ep_overlap"]) == Switches(
        ep_overlap=False, delay_wgrad=False
    )
    # Without compilation overlapping tensor parallelism can't be had.
    assert _without(Switches(tp_overlap=True, compiled=True), BY_NAME["compiled"]) is None


def solve_stages(layout: Layout) -> tuple[Any, ...]:
    """All layers on the first rank."""
    return build_stages(WORKLOAD.model, [WORKLOAD.model.layers], layout.pp, layout.schedule, 0)


def test_room_for_a_layout_that_is_not_borderline() -> None:
    """A twentieth less of what tensors may take."""
    question = asked()
    for own in (question, replace(question, options=replace(question.options, cost=CostKind.SIMPLE))):
        cost = cost_of(own)
        before = usable_bytes(own.cluster, cost.preset, ideal=cost.ideal)
        after = usable_bytes(with_room(own).cluster, cost.preset, ideal=cost.ideal)
        assert after == pytest.approx(0.95 * before)


@pytest.mark.parametrize(("framework", "training", "words"), [
    (Framework.MEGATRON, {}, {GRADIENTS: NUMERICS, MOMENTS: NUMERICS, "fused loss": ""}),
    (Framework.MEGATRON, {"flash": False},
     {"fused attention": "", GRADIENTS: NUMERICS, MOMENTS: NUMERICS, "fused loss": ""}),
    (Framework.MEGATRON, {"grad_bytes": 2, "moment_bytes": 2, "fused_loss": True}, {}),
    (Framework.TORCHTITAN, {}, {}), (Framework.TORCHTITAN, {"flash": False}, {"fused attention": ""}),
])  # fmt: skip
def test_settings_that_save_bytes(
    framework: Framework, training: dict[str, Any], words: dict[str, str]
) -> None:
    """Only those that the trainer has and the run lacks; what changes numerics is marked."""
    question = asked()
    workload = replace(WORKLOAD, training=replace(WORKLOAD.training, **training))
    own = replace(question, workload=workload, options=replace(question.options, framework=framework))
    settings = list(_settings(own))
    assert {name: note for name, note, _ in settings} == words
    for _, _, changed in settings:
        once = replace(workload, training=replace(workload.training, **changed))
        assert len(list(_settings(replace(own, workload=once)))) == len(settings) - 1


class Tried(Patient):
    """A patient that notes what is tried, and finds an answer where it is told to."""

    helps: Any = None
    tried: Any = None

    def solve(self, free: tuple[str, ...], question: Question) -> Any:
        """Note axes and GPUs."""
        self.tried.append((free, question.cluster.gpu_count))
        price: Any = SimpleNamespace(step_time_s=10.0 - len(self.tried))
        return (replace(self.layout, dp=1 + len(self.tried)), price) if self.helps(free, question) else None


def tried(helps: Any, layout: Layout, **fields: Any) -> Tried:
    """A patient of the small question."""
    patient = Tried(question=fields.pop("question", asked()), layout=layout, estimate=None, **fields)
    object.__setattr__(patient, "helps", helps)
    object.__setattr__(patient, "tried", [])
    return patient


def test_more_gpus_are_tried_by_whole_nodes() -> None:
    """Data-parallel degrees that divide the sequences, three at most, the first that helps is told."""
    layout = Layout(tp=4, dp=2, micro_batch=2)
    nobody = tried(lambda *_: False, layout)
    assert list(_by_gpus(nobody)) == []
    assert nobody.tried == [((), 16), ((), 32), ((), 64)]
    second = tried(lambda _, question: question.cluster.gpu_count >= 32, layout)
    (remedy,) = _by_gpus(second)
    assert [gpus for _, gpus in second.tried] == [16, 32]
    assert (remedy.axes, remedy.changes[0], remedy.note) == (("gpus",), "GPUs 8 -> 32", "")
    price: Any = SimpleNamespace(step_time_s=16.0)
    priced = replace_estimate(tried(lambda *_: True, layout), price)
    (remedy,) = _by_gpus(priced)
    assert remedy.note == "slow-down counts GPU-time"
    # 9 s on 4 x 2 GPUs after 16 s on 8.
    assert (remedy.gpus, remedy.slower) == (8, 9.0 * 8 / (16.0 * 8) - 1.0)
    # Three ranks of two: 12 and 24 GPUs are no whole nodes but the latter.
    odd = tried(lambda *_: False, Layout(tp=2, pp=3, dp=1, micro_batch=8))
    assert list(_by_gpus(odd)) == []
    assert [gpus for _, gpus in odd.tried] == [24, 48]
    assert list(_by_gpus(tried(lambda *_: True, Layout(tp=2, micro_batch=128)))) == []
    huge = tried(lambda *_: False, Layout(tp=LARGEST_CLUSTER // 2, dp=1, micro_batch=1))
    assert list(_by_gpus(huge)) == []
    assert [gpus for _, gpus in huge.tried] == [LARGEST_CLUSTER]


def replace_estimate(patient: Tried, price: Any) -> Tried:
    """The same patient with a price."""
    object.__setattr__(patient, "estimate", price)
    return patient


def test_single_changes_come_before_pairs() -> None:
    """Each axis alone, then settings; pairs only where nothing helps; ranked by their step, more GPUs last."""
    layout = Layout(tp=4, dp=2)
    none = tried(lambda *_: False, layout)
    assert find_remedies(none) == ()
    singles = [free for free, _ in none.tried if len(free) == 1]
    pairs = [free for free, _ in none.tried if len(free) == 2]
    assert none.tried[0][0] == () and len(pairs) == len(singles) * (len(singles) - 1) // 2
    some = tried(lambda free, question: free in (("tp",), ("pp",)) or question.cluster.gpu_count > 8, layout)
    found = find_remedies(some)
    assert not [free for free, _ in some.tried if len(free) == 2]
    # Later tries are faster here: the one tried last stands first, but for more GPUs.
    order = [axes for (axes, _) in some.tried if axes in (("tp",), ("pp",))]
    assert [remedy.axes for remedy in found] == [*reversed(order), ("gpus",)]
    stages = list(_by_axes(tried(lambda free, _: not free, layout), [("stages",), ("tp",)]))
    assert [remedy.axes for remedy in stages] == [("stages",)]


def test_a_stopped_patient_tries_nothing() -> None:
    """And one that is asked to go on does."""
    question = asked()
    layout = Layout(tp=8, sp=True, zero=1, micro_batches=64)
    stopped = Patient(question=question, layout=layout, estimate=None, should_stop=lambda: True)
    assert stopped.solve((), question) is None
    going = Patient(question=question, layout=layout, estimate=None, should_stop=lambda: False)
    assert going.solve((), question) is not None
    roomy = Patient(question=question, layout=layout, estimate=None, borderline=True).solve((), question)
    plain = Patient(question=question, layout=layout, estimate=None).solve((), question)
    assert roomy is not None and plain is not None
    assert roomy[0] == plain[0] and roomy[1].memory.capacity_bytes == plain[1].memory.capacity_bytes
