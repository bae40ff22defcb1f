"""What a solve says beside its numbers: words of explanations, claims and reports, and the edges at which they change."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from layoutopt.optimizer.cost.components import Component
from layoutopt.optimizer.cost.statistic import Statistic, StatisticKind, quantile_place
from layoutopt.optimizer.frameworks.preset import EpOverlap
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.solve.api import _in_seconds, _stated_bound_s, gap_target, search_options
from layoutopt.optimizer.solve.certificate import Status, proven_status, relative_gap, solver_word
from layoutopt.optimizer.solve.explain import infeasible
from layoutopt.optimizer.solve.explain.changes import _sizes, axis_value, list_changes, pinned, schedules_like
from layoutopt.optimizer.solve.explain.fullest import _per_parameter
from layoutopt.optimizer.solve.explain.gap import why_slower
from layoutopt.optimizer.solve.explain.infeasible import _conditions, _larger_batches, fewest_gpus
from layoutopt.optimizer.solve.explain.path import _without, cheapest_path, differing, what_changed
from layoutopt.optimizer.solve.explain.records import Remedy
from layoutopt.optimizer.solve.explain.remedies import _distinct
from layoutopt.optimizer.solve.explain.switch_worth import _without as without_switch
from layoutopt.optimizer.solve.pareto import FrontPoint, _between, _same, _width
from layoutopt.optimizer.solve.plan import SolveOptions
from layoutopt.optimizer.solve.run_preset import _stated, named_dispatcher
from layoutopt.optimizer.solve.search.result import SearchResult
from layoutopt.optimizer.solve.verify.plain_reader import PlainReader, short
from layoutopt.optimizer.solve.verify.report import Check, VerifyReport
from layoutopt.optimizer.solve.verify.statements import (
    close,
    compare_statements,
    differences,
    merged,
    not_checked,
    not_rebuilt,
    same_value,
    told,
)
from layoutopt.optimizer.space.context import RunOptions
from layoutopt.optimizer.space.options import SpaceOptions
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.layout import Layout, Recompute, Switches, VirtualStage
from layoutopt.optimizer.specs.loading import load_cluster
from layoutopt.optimizer.specs.vocabulary import CpComm, Dispatcher, Granularity, Precision, Saver, Schedule

if TYPE_CHECKING:
    from collections.abc import Callable

FULL = Recompute(granularity=Granularity.FULL)


@pytest.mark.parametrize(
    ("step", "bound", "rounding", "target", "status"),
    [
        (1.0, 1.0, 0.0, 0.0, Status.OPTIMAL),
        (1.0, 0.75, 0.25, 0.0, Status.OPTIMAL),
        (1.0, 0.74, 0.25, 0.0, Status.STOPPED),
        (4.0, 3.0, 0.0, 0.25, Status.WITHIN_GAP),
        (4.0, 2.99, 0.0, 0.25, Status.STOPPED),
    ],
)
def test_a_status_changes_at_its_gap(
    step: float, bound: float, rounding: float, target: float, status: Status
) -> None:
    """Rounding and the asked-for gap are both let in to the last bit."""
    assert proven_status(step, bound, rounding_s=rounding, gap_target=target) is status


def test_words_and_gaps_of_a_claim() -> None:
    """What a solver calls an outcome, and how far an answer is above its bound."""
    assert [solver_word(one, answered=True) for one in Status] == [
        "OPTIMAL",
        "FEASIBLE",
        "FEASIBLE",
        "INFEASIBLE",
    ]
    assert [solver_word(one, answered=False) for one in Status] == [
        "OPTIMAL",
        "UNKNOWN",
        "UNKNOWN",
        "INFEASIBLE",
    ]
    assert relative_gap(4.0, 3.0) == 0.25
    assert relative_gap(4.0, 5.0) == 0.0
    assert relative_gap(None, 3.0) is None
    assert relative_gap(4.0, None) is None
    assert gap_target(SolveOptions(gap=0.25)) == 0.25
    assert gap_target(SolveOptions(gap=0.25, then="memory", within=0.5)) == 0.5
    asked = search_options(
        SolveOptions(top=5, workers=3, gap=0.125, seed=7, warm_start_s=9.0, time_limit_s=60.0), 0.5
    )
    assert (asked.top, asked.near, asked.workers, asked.gap, asked.seed) == (5, 0.5, 3, 0.125, 7)
    assert (asked.upper_s, asked.time_limit_s, asked.one_model) == (9.0, 60.0, False)


def result_of(bound_s: float, rounding_s: float = 0.0) -> SearchResult:
    """A search without layouts."""
    return SearchResult(
        found=(), bound_s=bound_s, complete=True, by_memory=0, solved=0, rounding_s=rounding_s
    )


def test_a_stated_bound_is_not_above_the_step() -> None:
    """Sums in another order differ in the last bits: the bound gives way by so little, and by no more."""
    assert _stated_bound_s(result_of(inf), 1.0) is None
    assert _stated_bound_s(result_of(2.0), None) == 2.0
    assert _stated_bound_s(result_of(2.0), 3.0) == 2.0
    assert _stated_bound_s(result_of(2.0), 2.0 - 1e-13) == 2.0 - 1e-13
    assert _stated_bound_s(result_of(2.0), 1.0) == 2.0 * (1 - 1e-12)


@pytest.mark.parametrize(
    ("name", "value", "bound", "proven", "left"),
    [
        ("memory", 8.0, 6.0, False, 0.25),
        ("memory", 8.0, 6.0, True, 0.25),
        ("memory", 8.0, 8.0, True, 0.0),
        ("regret", 0.5, 0.25, True, 0.5),
        ("memory", 8.0, -8.0, False, 1.0),
    ],
)
def test_a_bound_in_another_objective_comes_back_in_seconds(
    name: str, value: float, bound: float, proven: bool, left: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As far below the step as the bound is below the value, relative; an open gap within rounding is none."""
    from layoutopt.optimizer.solve import api

    one = SimpleNamespace(step_time_s=0.0)
    monkeypatch.setattr(api, "replace", lambda thing, **fields: SimpleNamespace(**(vars(thing) | fields)))
    monkeypatch.setattr(api, "_priced", lambda source, found: (None, SimpleNamespace(step_time_s=found.own)))
    found = tuple(SimpleNamespace(own=own, **vars(one)) for own in (4.0, 9.0, 3.0, 4.0, 6.0))
    outcome: Any = SimpleNamespace(value=value, bound=bound, name=name, proven=proven)
    search: Any = SimpleNamespace(found=found, rounding_s=0.0)
    changed: Any = _in_seconds(None, search, outcome)  # type: ignore[arg-type]
    assert [layout.step_time_s for layout in changed.found] == [4.0, 4.0, 6.0, 9.0]
    assert changed.bound_s == 4.0 * (1 - left)
    assert changed.complete is proven
    search.rounding_s = 4.0
    within: Any = _in_seconds(None, search, outcome)  # type: ignore[arg-type]
    assert within.bound_s == (4.0 if proven else 4.0 * (1 - left))


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({"reserve": 1.0}, "reserve"), ({"reserve": -0.01}, "reserve"), ({"within": 1.0, "then": "memory"}, "within"),
        ({"within": 0.1}, "within"), ({"then": "expected"}, "then"), ({"then": "memory", "minimize": "gpus"}, "then"),
        ({"minimize": "cost"}, "gpu_hour_cost"), ({"then": "cost"}, "gpu_hour_cost"), ({"minimize": "expected"}, "minimize"),
        ({"minimize": "regret", "samples": ({},), "space": SpaceOptions(require=("step_s <= 3",))}, "require"),
    ],
)  # fmt: skip
def test_options_that_make_no_question(fields: dict[str, Any], key: str) -> None:
    """Each is refused under its own name."""
    with pytest.raises(InputError) as error:
        SolveOptions(**fields)
    assert [problem.key for problem in error.value.problems] == [key]


def test_options_at_their_edges() -> None:
    """Nothing reserved, and all but all of it; a price makes cost a goal."""
    assert SolveOptions(reserve=0.0).reserve == 0.0
    assert SolveOptions(reserve=0.999).reserve == 0.999
    assert SolveOptions(within=0.999, then="memory").within == 0.999
    assert SolveOptions(minimize="cost", space=SpaceOptions(gpu_hour_cost=2.0)).minimize == "cost"
    usual = SolveOptions()
    assert (usual.top, usual.near, usual.workers, usual.gap, usual.seed) == (3, 0.02, 1, 0.0, 0)


def stages(*layers: int, recomputed: int = 0) -> tuple[VirtualStage, ...]:
    """One chunk per rank."""
    return tuple(VirtualStage(rank=i, chunk=0, layers=n, recomputed=recomputed) for i, n in enumerate(layers))


def test_values_and_sizes_are_written_short() -> None:
    """Equal neighbours once, sizes that stand alone without a number; words where there is no number."""
    assert _sizes(Layout(pp=5, stages=stages(6, 6, 6, 5, 6))) == "6x3,5,6"
    assert _sizes(Layout()) == "none"
    layout = Layout(
        tp=2, sp=True, recompute=FULL, savers=(Saver.OFFLOAD_OPTIMIZER,), switches=Switches(tp_overlap=True)
    )
    assert [axis_value(layout, axis) for axis in ("tp", "sp", "hsdp_shard", "recompute")] == [
        "2",
        "on",
        "whole",
        "full",
    ]
    assert axis_value(layout, "savers") == "offload-optimizer"
    assert axis_value(layout, "switches") == "tp_overlap=1"
    assert axis_value(Layout(), "switches") == "preset's"
    assert axis_value(Layout(), "sp") == "off"


def test_changes_of_stages_are_told_where_nothing_else_changed() -> None:
    """Recomputed layers always; layers per stage alone; what follows from others last."""
    before = Layout(pp=2, dp=4, stages=stages(4, 4), recompute=FULL)
    assert list_changes(before, replace(before, stages=stages(5, 3))) == ("layers per stage 4x2 -> 5,3",)
    again = replace(before, stages=stages(5, 3, recomputed=2))
    assert list_changes(before, again) == ("recomputed layers 0 -> 4",)
    assert list_changes(replace(before, stages=()), again) == ("layers per stage none -> 5,3",)
    assert list_changes(before, replace(before, dp=2, zero=3)) == ("zero 0 -> 3", "dp 4 -> 2")
    assert list_changes(before, before) == ()


def test_everything_but_the_free_axes_is_held() -> None:
    """What follows from a free axis is free too; an expert degree of its own is held, one that is tp's is not."""
    layout = Layout(
        tp=4, sp=True, dp=2, ep=2, etp=1, zero=1, micro_batch=2, schedule=Schedule.NONE, recompute=FULL
    )
    held = pinned(layout, SpaceOptions(fix={"dp": (2,)}))
    expected: dict[str, tuple[int | str, ...]] = {
        "dp": (2,), "savers": ("none",), "tp": (4,), "sp": (1,), "cp": (1,), "pp": (1,), "vp": (1,), "ep": (2,),
        "etp": (1,), "micro_batch": (2,), "zero": (1,), "hsdp_shard": (0,), "mesh_order": (layout.mesh_order,),
    }  # fmt: skip
    assert held.fix == expected
    assert (held.recomputes, held.precisions) == ((FULL,), (Precision.BF16,))
    freed = pinned(layout, SpaceOptions(), ("tp", "recompute"))
    assert freed.fix == {key: value for key, value in expected.items() if key not in ("dp", "tp", "sp")}
    assert freed.recomputes is None
    assert "etp" not in pinned(replace(layout, etp=4), SpaceOptions(), ("tp",)).fix
    assert "etp" not in pinned(layout, SpaceOptions(), ("etp",)).fix
    assert {"zero", "hsdp_shard"}.isdisjoint(pinned(layout, SpaceOptions(), ("zero",)).fix)
    assert "mesh_order" not in pinned(layout, SpaceOptions(), ("mesh_order",)).fix
    assert schedules_like(replace(layout, pp=2, schedule=Schedule.ZB_H1)) == (Schedule.NONE, Schedule.ZB_H1)
    assert len(schedules_like(layout)) == 3


def test_bytes_per_parameter_and_what_divides_them() -> None:
    """Whole ones and shared ones, each only where there are some."""
    assert _per_parameter(6.0, "tp 8", 12.0, "dp 4") == "6 B / (tp 8); 12 B / (dp 4)"
    assert _per_parameter(0.0, "tp 8", 1.5, "dp 4") == "1.5 B / (dp 4)"
    assert _per_parameter(18.0, "tp 8", 0.0, "dp 4") == "18 B / (tp 8)"


def priced(step_s: float, **parts: float) -> Any:
    """A price of which only the step and some components are told."""
    breakdown = {part: parts.get(part.key, 0.0) for part in Component}
    return SimpleNamespace(step_time_s=step_s, breakdown_s=breakdown)


def test_why_a_runner_up_loses() -> None:
    """The two largest losses relative to the best, none below a ten-thousandth; the axes that differ."""
    best, other = Layout(tp=8), Layout(tp=4, zero=1, recompute=FULL)
    losses = priced(10.0, forward=6.0, tp=1.5, dp=0.5, cp=0.01)
    why = why_slower(other, losses, best, priced(8.0, forward=5.0, tp=1.0, dp=0.4))
    assert (
        why == "tp 4, zero 1, recompute full: forward compute +12.5%, exposed tensor-parallel traffic +6.2%"
    )
    same = why_slower(best, priced(8.0, forward=5.0 + 7.9e-4), best, priced(8.0, forward=5.0))
    assert same == "other stages: the same within rounding"
    modules = replace(best, recompute=Recompute(granularity=Granularity.SELECTIVE, modules=("mlp", "moe")))
    assert why_slower(modules, losses, best, losses).startswith("recompute mlp+moe: ")


def test_what_changed_most_is_named() -> None:
    """Two components at most, the larger change first, whichever its sign."""
    before, after = priced(2.0, tp=0.5, dp=0.25, cp=0.1), priced(1.0, tp=0.1, dp=0.75, cp=0.0)
    words = "exposed data-parallel traffic +0.5 s, exposed tensor-parallel traffic -0.4 s"
    assert what_changed(before, after) == words
    assert what_changed(priced(2.0, tp=0.002), priced(2.0)) == "nothing that shows"
    assert what_changed(priced(2.0, tp=0.0021), priced(2.0)) == "exposed tensor-parallel traffic -0.0021 s"


def test_the_cheapest_way_of_single_changes() -> None:
    """By its sum; where a single change has no layout two are taken at once."""
    assert list(_without(0b111, 3, 1)) == [0b011, 0b101, 0b110]
    assert list(_without(0b111, 3, 2)) == [0b011, 0b101, 0b110, 0b001, 0b010, 0b100]
    cost = np.array([9.0, 5.0, 4.0, 7.0, 8.0, 1.0, 6.0, 2.0])
    assert cheapest_path(cost, 3) == (0, 0b001, 0b101, 0b111)
    cost[[1, 2, 4]] = inf
    assert cheapest_path(cost, 3) == (0, 0b101, 0b111)
    cost[:-1] = inf
    assert cheapest_path(cost, 3) == (0, 0b111)
    assert cheapest_path(np.ones(1), 0) == (0,)


def test_choices_in_which_layouts_differ() -> None:
    """Sequence parallelism is none without tensor ranks on both sides, a usual schedule none; a shard group is ZeRO's."""
    one, other = Layout(tp=1, pp=2, schedule=Schedule.ONE_F_ONE_B), Layout(tp=2, sp=True, pp=1)
    assert differing(one, other) == ("tp", "pp")
    assert differing(replace(other, tp=4), replace(other, sp=False)) == ("tp", "sp")
    assert differing(one, replace(one, hsdp_shard=2)) == ("zero",)
    assert differing(one, replace(one, hsdp_shard=2, zero=1)) == ("zero",)
    assert differing(one, replace(one, schedule=Schedule.ZB_H1)) == ("schedule",)


def test_batches_that_some_replicas_divide() -> None:
    """Above the given one, up to twice as large, the nearest first, eight at most."""
    assert _larger_batches(12, 8) == [14, 16]
    assert _larger_batches(4, 8) == [6, 8]
    assert _larger_batches(3, 4) == [4]
    assert _larger_batches(7, 1) == []
    many = _larger_batches(100, 2**4 * 3**3 * 5)
    assert len(many) == 8
    assert many == sorted(many)
    assert many[0] == 102


def test_conditions_of_a_question_by_name() -> None:
    """Memory and every GPU first, then what was asked for."""
    space = SpaceOptions(
        fix={"tp": (4,), "cp": (1, 2)},
        max={"pp": 8},
        min={"dp": 2},
        forbid={"ep": (4, 8)},
        require=("tp*cp <= 8",),
    )
    names = [
        "every GPU used",
        "memory",
        "tp = 4",
        "cp in 1, 2",
        "ep not 4, 8",
        "pp <= 8",
        "dp >= 2",
        "tp*cp <= 8",
    ]
    assert [condition.name for condition in _conditions(space)] == names
    assert [condition.name for condition in _conditions(SpaceOptions(allow_idle=0.1))] == ["memory"]


@pytest.mark.parametrize(
    ("fits_from", "found"), [(17, 24), (33, 40), (40, 40), (1000, 1024), (1 << 18, None)]
)
def test_the_fewest_gpus_that_fit(fits_from: int, found: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Doubled until it fits, then halved four times, in whole nodes of 8, from 16 GPUs on."""
    asked: list[int] = []

    def fits(question: object, gpus: int, stopped: Callable[[], bool] | None) -> bool:
        asked.append(gpus)
        return gpus >= fits_from

    monkeypatch.setattr(infeasible, "_fits", fits)
    question: Any = SimpleNamespace(cluster=load_cluster("h100x16"))
    assert fewest_gpus(question) == found
    assert all(gpus % 8 == 0 for gpus in asked)
    assert asked[0] == 32
    if found is None:
        assert max(asked) == 1 << 17
    assert fewest_gpus(question, lambda: True) is None


def test_remedies_that_came_out_alike_are_one() -> None:
    """The first of them; what changes nothing is none."""

    def remedy(*changes: str, gpus: int = 8) -> Remedy:
        return Remedy(axes=(), changes=changes, layout=Layout(), estimate=priced(1.0), slower=None, gpus=gpus)

    kept = _distinct([remedy("a"), remedy(), remedy("b"), remedy("a", gpus=9)])
    assert [(one.changes, one.gpus) for one in kept] == [(("a",), 8), (("b",), 8)]


def test_switches_at_rest() -> None:
    """One that is plain has no worth; one that others need takes these with it."""
    from layoutopt.optimizer.frameworks.switches import BY_NAME

    overlap = BY_NAME["ep_overlap"]
    assert without_switch(Switches(), overlap) is None
    assert without_switch(Switches(ep_overlap=False), overlap) is None
    assert without_switch(Switches(ep_overlap=True, delay_wgrad=True), overlap) == Switches(
        ep_overlap=False, delay_wgrad=False
    )
    assert without_switch(Switches(ep_overlap=True), overlap) == Switches(ep_overlap=False)


def point(*values: float) -> FrontPoint:
    """A point of a front with these values."""
    return FrontPoint(layout=Layout(), estimate=priced(1.0), values=(values[0], values[1]), proven=True)


def test_distances_on_a_front() -> None:
    """Doublings in both goals; the geometric mean halves them; a millionth apart is one point."""
    assert _width(point(1.0, 8.0), point(4.0, 2.0)) == pytest.approx(np.log(4.0) + np.log(4.0))
    assert _between(2.0, 8.0) == 4.0
    assert _between(0.0, 8.0) == 4.0
    assert _same(point(1.0, 2.0), point(1.0 + 9e-7, 2.0))
    assert not _same(point(1.0, 2.0), point(1.0 + 2e-6, 2.0))
    assert not _same(point(1.0, 2.0), point(1.0, 2.0 + 5e-6))


def test_flags_of_a_run_in_its_preset() -> None:
    """Merged passes go before a shared expert's overlap; a flag that is off says so; words of trainers for dispatchers."""
    assert _stated(RunOptions()) == {}
    ways = [(True, True), (False, True), (False, None), (None, False), (None, True)]
    told_ = [
        _stated(RunOptions(overlap_moe_expert_parallel_comm=merged_, shared_expert_overlap=beside))[
            "ep_overlap"
        ]
        for merged_, beside in ways
    ]
    none, shared = EpOverlap.NONE, EpOverlap.SHARED
    assert told_ == [EpOverlap.BATCH, shared, none, none, shared]
    both = RunOptions(cp_comm=CpComm.A2A, tp_comm_overlap=False, dispatcher="flex")
    assert _stated(both) == {"cp_comm": CpComm.A2A, "tp_overlap": False, "dispatcher": Dispatcher.DEEPEP}
    words = ("flex", "ncclep", "hybridep", "allgather", "nonsense")
    names = [
        Dispatcher.DEEPEP,
        Dispatcher.DEEPEP,
        Dispatcher.HYBRIDEP,
        Dispatcher.ALLGATHER,
        Dispatcher.ALLTOALL,
    ]
    assert [named_dispatcher(word) for word in words] == names


def test_plain_values_are_read_or_named() -> None:
    """Every wrong value is one problem with its path, and a neutral value stands for it."""
    data = {"a": {"n": 2.5, "i": 3, "t": "x", "f": True, "l": ["p", "q"], "m": {"k": 1}}, "none": None}
    reader = PlainReader(data, prefix="plan")
    assert (reader.number("a.n"), reader.number("a.i"), reader.integer("a.i")) == (2.5, 3.0, 3)
    assert (reader.text("a.t"), reader.flag("a.f"), reader.texts("a.l")) == ("x", True, ("p", "q"))
    assert (reader.numbers("a.m"), reader.integers("a.m"), reader.choice("a.t", ["w", "x"])) == (
        {"k": 1.0},
        {"k": 1},
        "x",
    )
    assert (reader.has("a.n"), reader.has("none"), reader.has("a.z")) == (True, False, False)
    assert (reader.optional_number("none"), reader.optional_number("a.n")) == (None, 2.5)
    reader.finish()
    assert (reader.number("a.t"), reader.integer("a.n"), reader.integer("a.f"), reader.text("a.i")) == (
        0.0,
        0,
        0,
        "",
    )
    assert (reader.choice("a.l", ["w", "x"]), reader.flag("a.i"), reader.number("gone")) == ("w", False, 0.0)
    assert PlainReader({"a": {"i": -1}}).integer("a.i") == 0
    assert PlainReader({"x": 10**400}).number("x") == 0.0
    with pytest.raises(InputError) as error:
        reader.finish()
    told_ = [(problem.key, problem.what) for problem in error.value.problems]
    assert told_ == [
        ("plan.a.t", "'x' is not valid"), ("plan.a.n", "2.5 is not valid"), ("plan.a.f", "True is not valid"),
        ("plan.a.i", "3 is not valid"), ("plan.a.l", "['p', 'q'] is not valid"), ("plan.a.i", "3 is not valid"),
        ("plan.gone", "missing"),
    ]  # fmt: skip
    assert short("x" * 38) == repr("x" * 38)
    assert short("x" * 39) == "'" + "x" * 36 + "..."
    assert short(10**5000) == "a huge number"


def test_statements_are_compared_value_by_value() -> None:
    """Whole numbers exactly, fractions within a billionth, what is left of differences as nothing."""
    assert close(1.0, 1.0 + 9e-10)
    assert not close(1.0, 1.0 + 2e-9)
    assert close(0.0, 1e-12)
    assert not close(0.0, 2e-12)
    assert not close(inf, inf)
    assert not close(10**400, 1.0)
    assert same_value(3, 3.0)
    assert not same_value(10**17, 10**17 + 1)
    assert not same_value(True, 1)
    assert not same_value("1", 1)
    stated = {"a": {"b": 1, "c": 2.0, "old": 7}, "l": [1, 2], "s": "x"}
    rebuilt = {"a": {"b": 2, "c": 2.0, "new": 3}, "l": [1, 4, 5], "s": "x"}
    assert [str(one) for one in differences(stated, rebuilt)] == [
        "a.b states 1, rebuilt 2", "a.new is missing: 3", "l states 2 entries, rebuilt 3", "l[1] states 2, rebuilt 4",
    ]  # fmt: skip
    assert list(not_rebuilt(stated, rebuilt)) == [("a.old", 7)]
    assert merged({"a": {"b": 1}, "c": 2}, {"a": {"d": 3}, "c": {"e": 4}}) == {
        "a": {"b": 1, "d": 3},
        "c": {"e": 4},
    }
    assert told([]) == ""
    assert told("abc") == "a; b; c"
    assert told("abcde") == "a; b; c; and 2 more"
    assert not_checked({"solve_time_s": 1.23456, "x": 7}, {}) == (
        "solve_time_s 1.23: the time of another run", "x 7: no statement of a plan",
    )  # fmt: skip


def test_checks_of_statements_and_their_report() -> None:
    """One check for each group of keys, with what else is wrong of it; a report is accepted or rejected in its last line."""
    checks = compare_statements(
        {"objective": {"step_time_s": 1.0}, "layout": {"tp": 2}}, {"objective": {"step_time_s": 2.0}, "layout": {"tp": 2}},
        {"counts": "they do not add up", "claim": ""}, {"layout": "as found"},
    )  # fmt: skip
    assert [(check.name, check.passed, check.reason) for check in checks] == [
        ("counts", False, "they do not add up"), ("step time", False, "objective.step_time_s states 1.0, rebuilt 2.0"),
        ("layout", True, "as found"),
    ]  # fmt: skip
    (plain,) = compare_statements({"verdict": "fits"}, {"verdict": "fits"}, {}, {})
    assert plain == Check(name="memory", passed=True, reason="1 statements as rebuilt")
    report = VerifyReport(
        accepted=False, checks=tuple(checks), not_checked=("x",), restrictions=("tp = 2",), degree_rows=1, tuples=2,
        even_layouts=3, solved_exactly=4, rows_by_optimistic_terms=5, seconds=0.5,
    )  # fmt: skip
    assert str(report).splitlines() == [
        "FAIL counts: they do not add up", "FAIL step time: objective.step_time_s states 1.0, rebuilt 2.0",
        "ok   layout: as found", "restricted to tp = 2", "not checked: x", "rejected",
    ]  # fmt: skip
    assert [check.name for check in report.failures] == ["counts", "step time"]
    assert str(replace(report, accepted=True)).endswith("\naccepted")


def test_statistics_of_steps_under_several_constants() -> None:
    """A mean, the largest, and the place of a quantile, with a set that counts in any case."""
    steps, weights = np.array([[4.0, 1.0, 3.0], [2.0, 9.0, 5.0]]), np.array([1.0, 2.0, 0.5])
    assert Statistic(kind=StatisticKind.MEAN, weights=weights).of(steps).tolist() == [7.5, 22.5]
    largest = Statistic(kind=StatisticKind.LARGEST, weights=weights)
    assert largest.of(steps).tolist() == [4.0, 18.0]
    assert largest.telling(steps[1]) == [1]
    plain = Statistic(kind=StatisticKind.QUANTILE, weights=np.ones(3), place=2)
    assert plain.of(steps).tolist() == [3.0, 5.0]
    assert replace(plain, must=0).of(steps).tolist() == [4.0, 5.0]
    below = np.array([[True, True, False], [True, False, False], [False, True, True]])
    assert plain.possible(below).tolist() == [True, False, True]
    assert replace(plain, must=0).possible(below).tolist() == [True, False, False]
    assert [(one.averages, one.linear) for one in (largest, plain)] == [(False, True), (False, False)]
    assert [quantile_place(share, 10) for share in (0.01, 0.1, 0.11, 0.9, 0.95, 0.999)] == [
        1,
        1,
        2,
        9,
        10,
        10,
    ]
    assert quantile_place(0.55, 100) == 55


def test_framework_any_is_the_default_of_nothing() -> None:
    """A question names Megatron-LM where it names no trainer."""
    assert SolveOptions().framework is Framework.MEGATRON
