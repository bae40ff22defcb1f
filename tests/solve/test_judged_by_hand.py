"""What a verifier and a search ask of stated stages, demands and claims, each case written out."""

from __future__ import annotations

from dataclasses import fields, replace
from math import inf
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from layoutopt.optimizer.cost.batch import batch_of
from layoutopt.optimizer.cost.factory import build_cost_model
from layoutopt.optimizer.cost.relaxed import elementwise_best, undominated
from layoutopt.optimizer.cost.run_facts import RunFacts
from layoutopt.optimizer.frameworks.stage_rule import (
    FREE,
    MEGATRON,
    NEAR_EQUAL,
    Recomputation,
    Split,
    StageLimit,
    StageRule,
)
from layoutopt.optimizer.solve.certificate import Status
from layoutopt.optimizer.solve.judge import judge_layout
from layoutopt.optimizer.solve.search.demands import MOST_LAYERS, Demands, Finished, rank_of
from layoutopt.optimizer.solve.search.source import Refinement
from layoutopt.optimizer.solve.verify.claim import (
    _claim,
    _describe,
    _listed,
    _times_s,
    _wrong_order,
    _wrong_status,
    _wrong_sum,
    _wrong_without_layout,
)
from layoutopt.optimizer.solve.verify.layout import Refuted, check_recomputed, check_sizes, read_stages
from layoutopt.optimizer.space.requirement import parse_requirement
from layoutopt.optimizer.specs.layout import Layout, Recompute, VirtualStage
from layoutopt.optimizer.specs.loading import load_cluster, load_workload, override_training
from layoutopt.optimizer.specs.model import LayerShape, Run
from layoutopt.optimizer.specs.partial_layout import PartialLayout
from layoutopt.optimizer.specs.vocabulary import Granularity, Schedule, Verdict

WORKLOAD = override_training(load_workload("llama3-8b"), global_batch=64, sequence_length=4096)
CLUSTER = load_cluster("h100x8")
RUNS = (
    Run(name="a", block=(LayerShape(ffn=8),), count=3),
    Run(name="b", block=(LayerShape(ffn=16),), count=5),
)


def refusal(call: Any, *args: Any, **kwargs: Any) -> str:
    """What a check refuses, empty where it passes."""
    try:
        call(*args, **kwargs)
    except Refuted as refuted:
        return str(refuted)
    return ""


@pytest.mark.parametrize(("sizes", "place", "rule", "folded", "expected"), [
    ([0, 4, 4, 0], [0, 1, 2, 3], FREE, False, ""), ([4, 0, 4, 0], [0, 1, 2, 3], FREE, False, "stage 1 is empty"),
    ([0], [0], FREE, False, "stage 0 is empty"), ([0, 3], [0, 0], FREE, True, ""),
    ([0, 3], [0, 0], FREE, False, "stage 0 is empty"),
    ([2, 2, 3, 4], [0, 1, 0, 1], FREE, False,
     "the chunks of a rank, [[2, 3], [2, 4]], are not equal to within one block, in order"),
    ([2, 2, 3, 3], [0, 1, 0, 1], FREE, False, ""),
    ([2, 3, 3, 2], [0, 1, 0, 1], FREE, False, ""),
    ([2, 3, 2, 4], [0, 1, 2, 3], NEAR_EQUAL, False, "stages of 2 to 4 blocks are outside of the space: near equal"),
    ([2, 3, 2, 3], [0, 1, 2, 3], NEAR_EQUAL, False, ""),
])  # fmt: skip
def test_sizes_that_are_searched(
    sizes: list[int], place: list[int], rule: StageRule, folded: bool, expected: str
) -> None:
    """Ends alone may be empty, chunks of a rank differ by one, numbers are the split's."""
    assert refusal(check_sizes, np.array(sizes), np.array(place), rule, folded=folded) == expected


@pytest.mark.parametrize(("again", "how", "may", "expected"), [
    ([[0, 0], [0, 0]], Recomputation.ALL_OR_NONE, False, ""),
    ([[1, 0], [0, 0]], Recomputation.PER_RANK, False, "blocks are recomputed, but the layout has no full recomputation"),
    ([[1, 0], [0, 0]], Recomputation.PER_RANK, True, ""), ([[3, 1], [0, 4]], Recomputation.ALL_OR_NONE, True, ""),
    ([[3, 1], [0, 3]], Recomputation.ALL_OR_NONE, True, "the framework recomputes all blocks or none"),
    ([[2, 0], [0, 2]], Recomputation.UNIFORM_COUNT, True, ""), ([[3, 1], [0, 4]], Recomputation.UNIFORM_COUNT, True, ""),
    ([[1, 1], [0, 2]], Recomputation.UNIFORM_COUNT, True, "the framework recomputes the first 2 blocks of every stage"),
    ([[2, 0], [0, 3]], Recomputation.UNIFORM_COUNT, True, "the framework recomputes the first 3 blocks of every stage"),
])  # fmt: skip
def test_recomputation_that_a_trainer_has(
    again: list[list[int]], how: Recomputation, may: bool, expected: str
) -> None:
    """Any, all or none, or the first so many of every stage; none without whole layers."""
    rule = StageRule(split=Split.FREE, recomputation=how)
    blocks = np.array([[3, 1], [0, 4]])
    assert refusal(check_recomputed, blocks, np.array(again), [0, 1], rule, may) == expected
    if how is Recomputation.UNIFORM_COUNT and not expected:
        mixed = replace(rule, order=(1, 0, 0, 0, 1, 1, 1, 1))
        wrong = refusal(check_recomputed, blocks, np.array([[2, 0], [0, 2]]), [0, 1], mixed, may)
        assert wrong == "the framework recomputes the first 2 blocks of every stage"
        assert refusal(check_recomputed, blocks, np.array([[1, 1], [0, 2]]), [0, 1], mixed, may) == ""


def stages_of(**second: Any) -> tuple[VirtualStage, ...]:
    """Three layers of one kind and one of another on the first of two ranks, four on the second."""
    first = VirtualStage(rank=0, chunk=0, layers=4, kinds={"a": 3, "b": 1}, embedding=True)
    fields: dict[str, Any] = {"rank": 1, "chunk": 0, "layers": 4, "kinds": {"b": 4, "a": 0}, "head": True}
    return first, VirtualStage(**fields | second)


FULL = Recompute(granularity=Granularity.FULL)


@pytest.mark.parametrize(("second", "expected"), [
    ({}, ""), ({"rank": 0}, "stage 1 is on rank 1, chunk 0, not 0, 0"),
    ({"chunk": 1}, "stage 1 is on rank 1, chunk 0, not 1, 1"),
    ({"head": False}, "stage 1: the embedding is on the first stage and the head on the last"),
    ({"embedding": True}, "stage 1: the embedding is on the first stage and the head on the last"),
    ({"kinds": {"b": 3, "a": 1}}, "stage 1 states kinds {'b': 3, 'a': 1}, the model has {'b': 4} there"),
    ({"layers": 3, "kinds": {"b": 3}}, "stages hold 7 blocks of 8"),
    ({"recomputed": 5}, "stage 1: 5 recomputed layers of 4"), ({"recomputed": 4}, ""),
    ({"recomputed": 1, "recomputed_kinds": {"a": 1}}, "stage 1: cannot recompute 1 layers of a"),
    ({"recomputed": 3, "recomputed_kinds": {"b": 2}}, "stage 1: recomputed layers by kind don't add up to 3"),
    ({"recomputed": 2, "recomputed_kinds": {"b": 2, "c": 1}}, "stage 1: recomputed layers by kind don't add up to 2"),
    ({"recomputed": 2, "recomputed_kinds": {"b": 2, "a": 0}}, ""),
])  # fmt: skip
def test_stages_as_they_are_stated(second: dict[str, Any], expected: str) -> None:
    """Place, ends, kinds in the model's order, recomputed layers that are there."""
    layout = Layout(
        pp=2,
        dp=4,
        micro_batches=16,
        schedule=Schedule.ONE_F_ONE_B,
        recompute=FULL,
        stages=stages_of(**second),
    )
    assert refusal(read_stages, layout, RUNS, FREE, may_recompute=True) == expected
    if not expected:
        blocks, again = read_stages(layout, RUNS, FREE, may_recompute=True)
        assert blocks.tolist() == [[[3, 1], [0, 4]]]
        assert again.tolist() == [[[0, 0], [0, second.get("recomputed", 0)]]]


def test_stages_of_groups() -> None:
    """Of groups all layers are recomputed; the number of stages is pp times vp."""
    grouped = replace(FULL, group=2)
    first, second = stages_of(recomputed=4)
    layout = Layout(
        pp=2, dp=4, micro_batches=16, schedule=Schedule.ONE_F_ONE_B, recompute=grouped, stages=(first, second)
    )
    words = "groups of layers are recomputed from one input, but not all layers are recomputed"
    assert refusal(read_stages, layout, RUNS, FREE, may_recompute=True) == words
    whole = replace(layout, stages=(replace(first, recomputed=4), second))
    assert refusal(read_stages, whole, RUNS, MEGATRON, may_recompute=False) == ""
    short = replace(layout, stages=(first,))
    assert refusal(read_stages, short, RUNS, FREE, may_recompute=True) == "1 stages stated, pp * vp is 2"


def demands_of(*texts: str, **fields: Any) -> Demands:
    """Demands on eight layers."""
    facts = RunFacts(model=WORKLOAD.model, training=WORKLOAD.training, cluster=CLUSTER)
    return Demands(
        facts=facts, total=8, requirements=tuple(parse_requirement(text) for text in texts), **fields
    )


@pytest.mark.parametrize(("text", "expected"), [
    ("layers[0] <= 3", (0, 0, 3)), ("layers[0] < 3", (0, 0, 2)), ("layers[1] >= 3", (1, 3, MOST_LAYERS)),
    ("layers[-1] > 3", (-1, 4, MOST_LAYERS)), ("layers[0] == 3", (0, 3, 3)), ("2 * layers[0] <= 7", (0, 0, 3)),
    ("2 * layers[0] >= 7", (0, 4, MOST_LAYERS)), ("layers[0] >= -3", (0, 0, MOST_LAYERS)), ("3 >= layers[0]", (0, 0, 3)),
])  # fmt: skip
def test_limits_on_ranks(text: str, expected: tuple[int, int, int]) -> None:
    """Whole layers on the stated side; blocks of two layers hold half as many."""
    rank, fewest, most = expected
    assert demands_of(text).stage_limits() == (StageLimit(rank=rank, fewest=fewest, most=most),)
    twice = demands_of(text, layers=np.array([2])).stage_limits()
    assert twice == (StageLimit(rank=rank, fewest=-(-fewest // 2), most=most // 2),)


@pytest.mark.parametrize(
    "text", ["recomputed[0] <= 3", "layers[0] != 3", "layers[0] <= layers[1]", "tp <= 3", "layers[0] <= tp"]
)
def test_what_is_no_limit_on_a_rank(text: str) -> None:
    """Recomputed layers, what must differ, two ranks, and what differs from tuple to tuple."""
    assert demands_of(text).stage_limits() == ()


def test_limits_of_time_and_memory() -> None:
    """The least of several; axes alone that break a demand leave nothing; no room is none at all."""
    batch = batch_of([Layout(tp=2, dp=4), Layout(tp=8)])
    asked = demands_of("step_s <= 4", "step_s * tp <= 12", "peak_gb <= 60", "tp * peak_gb <= 160", "tp <= 4")
    assert asked.limit_s(batch).tolist() == [4, -inf]
    assert asked.capacity_bytes(batch).tolist() == pytest.approx([60e9, 20e9])
    assert demands_of("step_s * tp <= 12").limit_s(batch).tolist() == [6, 1.5]
    assert demands_of("peak_gb <= 4 - tp").capacity_bytes(batch).tolist() == pytest.approx([2e9, 0])
    assert Demands().limit_s(batch).tolist() == [inf, inf]
    kept = demands_of("step_s * tp <= 12").kept(np.array([6.0, 1.6]), batch)
    assert kept.tolist() == [6.0, inf]
    hours = demands_of("step_s <= 4", rates=lambda rows, exact: np.full(len(rows), 0.5))
    assert hours.limit_s(batch).tolist() == [2, 2]


@pytest.mark.parametrize(("texts", "loose", "peak"), [
    ((), False, False), (("step_s <= 4",), False, False), (("layers[0] <= 3",), False, False),
    (("recomputed[0] <= 3",), True, False), (("step_s + peak_gb <= 3",), True, True),
    (("layers[0] <= layers[1]",), True, False),
    (("tp <= 3",), False, False),
])  # fmt: skip
def test_what_bounds_know(texts: tuple[str, ...], loose: bool, peak: bool) -> None:
    """Limits of one rank's layers, of time and of memory alone."""
    asked = demands_of(*texts)
    assert (asked.any, asked.loose, asked.needs_peak) == (bool(texts), loose, peak)


@pytest.mark.parametrize(("text", "possible"), [
    ("layers[0] <= 8", True), ("layers[0] <= 7", False), ("layers[-1] == 8", True), ("recomputed[0] >= 9", False),
    ("recomputed[0] >= 8", True), ("recomputed[0] == 3", True), ("recomputed[0] == -1", False), ("layers[0] != 8", True),
    ("layers[0] - recomputed[0] <= 2", True), ("layers[0] + recomputed[0] <= 7", False), ("layers[1] >= 1", False),
    ("2 * recomputed[0] == 7", True),
])  # fmt: skip
def test_a_single_rank_holds_every_layer(text: str, possible: bool) -> None:
    """It recomputes any number of them, and there is no second rank."""
    batch = batch_of([Layout(dp=8), Layout(pp=2, dp=4, schedule=Schedule.ONE_F_ONE_B)])
    found = demands_of(text).kept(np.ones(2), batch)
    assert np.isfinite(found).tolist() == [possible, True]


def test_demands_as_sums_over_ranks() -> None:
    """One for a limit, two for an equality; the mirrored half of ranks is the first one's."""
    (one,) = (batch_of([Layout(pp=4, dp=2, schedule=Schedule.ONE_F_ONE_B)]),)
    asked = demands_of(
        "2 * layers[-1] - recomputed[0] <= 3", "layers[1] == 2", "layers[0] != 1", layers=np.array([1, 2])
    )
    found = asked.of_stages(one, 4)
    assert [demand.blocks.tolist() for demand in found] == [
        [[0, 0], [0, 0], [0, 0], [2, 4]], [[0, 0], [1, 2], [0, 0], [0, 0]], [[0, 0], [-1, -2], [0, 0], [0, 0]],
    ]  # fmt: skip
    assert found[0].recomputed.tolist() == [[-1, -2], [0, 0], [0, 0], [0, 0]]
    assert [demand.room for demand in found] == pytest.approx([3, 2, -2])
    assert [rank_of(rank, 4, distinct) for rank, distinct in ((0, 4), (-1, 4), (3, 2), (2, 2), (4, 4), (-5, 4))] == [
        0, 3, 0, 1, None, None,
    ]  # fmt: skip


def test_finished_layouts_are_judged() -> None:
    """By layers of ranks, seconds and bytes, each requirement by itself."""
    batch = batch_of([Layout(pp=2, dp=4, schedule=Schedule.ONE_F_ONE_B)] * 2)
    finished = Finished(
        batch=batch, ranks=2, blocks=np.array([[[1, 1], [2, 1]], [[2, 1], [1, 1]]]),
        recomputed=np.array([[[1, 0], [0, 0]], [[0, 0], [0, 0]]]),
        step_s=np.array([2.0, 3.0]), peak_bytes=np.array([5e9, 7e9]),
    )  # fmt: skip
    for text, met in (
        ("layers[0] <= 3", [True, False]), ("layers[-1] >= 4", [True, False]), ("recomputed[0] == 1", [True, False]),
        ("step_s <= 2", [True, False]), ("peak_gb < 7", [True, False]), ("peak_gb <= 7", [True, True]),
        ("layers[2] <= 0", [True, True]),
    ):  # fmt: skip
        asked = demands_of(text, layers=np.array([1, 2]))
        assert asked.met(finished).tolist() == met, text
    first = replace(
        finished, batch=batch.take(np.array([0])), blocks=finished.blocks[:1], recomputed=finished.recomputed[:1],
        step_s=finished.step_s[:1], peak_bytes=finished.peak_bytes[:1],
    )  # fmt: skip
    asked = demands_of("layers[0] <= 2", "step_s <= 2", "2 * step_s + layers[1] < 4", layers=np.array([1, 2]))
    assert list(asked.explained(first)) == ["3 <= 2 does not hold", "8 < 4 does not hold"]


def test_choices_share_their_rows_tuples() -> None:
    """By their weights, else equally."""
    whole, owner = np.array([12, 30]), np.array([0, 0, 1])
    batch: Any = [None] * 3
    even = Refinement(expand=lambda rows: (rows, owner), terms=lambda rows: rows)  # type: ignore[arg-type, return-value]
    assert even.weights(whole, batch, owner).tolist() == [6, 6, 30]
    weighed = replace(even, weigh=lambda _: np.array([1, 3, 2]))
    assert weighed.weights(whole, batch, owner).tolist() == [3, 9, 30]


def test_terms_are_joined_and_compared() -> None:
    """Least seconds and bytes, most memory, recomputation where any has it; what another beats in everything goes."""
    cost = build_cost_model(WORKLOAD.model, WORKLOAD.training, CLUSTER)
    layouts = [Layout(tp=2, dp=4, zero=zero, sp=sp, micro_batches=16) for zero, sp in ((0, True), (1, False))]
    one, other = (cost.terms(batch_of([layout])) for layout in layouts)
    one = replace(one, capacity_bytes=np.array([5.0]), may_recompute=np.array([False]))
    other = replace(other, capacity_bytes=np.array([7.0]), may_recompute=np.array([True]))
    both = elementwise_best([one, other])
    for field in fields(both):
        pair = getattr(one, field.name), getattr(other, field.name)
        larger = field.name in ("capacity_bytes", "may_recompute")
        assert np.array_equal(getattr(both, field.name), (np.maximum if larger else np.minimum)(*pair)), (
            field.name
        )
    terms = cost.terms(batch_of(layouts[:1] * 4))
    slower = terms.fixed_s + np.array([0.0, 1.0, 0.0, -1.0])
    roomier = terms.capacity_bytes + np.array([0.0, 1.0, 0.0, -1.0])
    terms = replace(terms, fixed_s=slower, capacity_bytes=roomier)
    # The third equals the first; the second and the last are better in one thing.
    assert undominated(terms, np.array([4, 4, 4, 4])).tolist() == [0, 1, 3]
    assert undominated(terms, np.array([0, 1, 2, 3])).tolist() == [0, 1, 2, 3]
    worse = replace(terms, capacity_bytes=terms.capacity_bytes[0] - np.array([0.0, 1.0, 0.0, 2.0]))
    assert undominated(worse, np.array([4, 4, 4, 0])).tolist() == [0, 3]


REBUILT: Any = SimpleNamespace(space=SimpleNamespace(counts=np.array([8])), gap_target=0.1, near=0.05)


@pytest.mark.parametrize(("bound", "status", "step", "expected"), [
    (None, Status.STOPPED, 2.0, ""), (None, Status.OPTIMAL, 2.0, "status optimal, but no bound is stated"),
    (2.0, Status.OPTIMAL, 2.0, ""), (-0.1, Status.OPTIMAL, 2.0, "the bound -0.1 s is not between 0 and the step time 2 s"),
    (2.1, Status.OPTIMAL, 2.0, "the bound 2.1 s is not between 0 and the step time 2 s"),
    (1.9, Status.WITHIN_GAP, 2.0, ""), (1.7, Status.STOPPED, 2.0, ""),
    (1.9, Status.OPTIMAL, 2.0,
     "status optimal, but step time 2 s and bound 1.9 s, gap target 0.1 amount to within_gap"),
])  # fmt: skip
def test_a_status_is_what_its_numbers_amount_to(
    bound: float | None, status: Status, step: float, expected: str
) -> None:
    """Optimal at the bound, within the gap of a tenth, else stopped."""
    assert _wrong_status(bound, status, REBUILT, step) == expected


def test_claims_without_layouts() -> None:
    """Only where nothing fits or nothing was found."""

    def stated(**fields: Any) -> Any:
        return SimpleNamespace(**{"alternatives": (), "freer_gain": None, "bound_s": None} | fields)

    runners = "runners-up or a gain over the layout are stated, but no layout"
    for fields_, status, words in (
        ({}, Status.INFEASIBLE, ""), ({}, Status.STOPPED, ""), ({"bound_s": 1.0}, Status.STOPPED, ""),
        ({"bound_s": 1.0}, Status.INFEASIBLE, "an infeasible plan has no bound"),
        ({"alternatives": (1,)}, Status.INFEASIBLE, runners), ({"freer_gain": 0.0}, Status.INFEASIBLE, runners),
        ({}, Status.OPTIMAL, "status optimal, but no layout is stated"),
        ({}, Status.WITHIN_GAP, "status within_gap, but no layout is stated"),
    ):  # fmt: skip
        assert _wrong_without_layout(stated(**fields_), status) == words
    assert _claim(stated(status="infeasible")) == "no layout fits"
    assert _claim(stated(status="stopped")) == "stopped, no bound"
    assert _claim(stated(status="optimal", bound_s=1.5)) == "optimal, no layout below 1.50 s"


def test_counts_and_order_of_a_claim() -> None:
    """Parts add up; runners-up are slower in turn, others, and as near as was asked for."""

    def counted(*parts: int, tuples: int) -> str:
        names = ("removed_by_memory", "removed_by_bound", "solved")
        record = SimpleNamespace(**dict(zip(names, parts, strict=True)), tuples=tuples)
        return _wrong_sum(SimpleNamespace(certificate=record))  # type: ignore[arg-type]

    assert counted(1, 2, 3, tuples=6) == ""
    assert counted(1, 2, 3, tuples=7) == "excluded and solved tuples sum to 6, not 7"

    def ordered(*times: float, keys: str = "abcdef") -> str:
        priced: Any = [
            SimpleNamespace(step_time_s=time, key=key) for time, key in zip(times, keys, strict=False)
        ]
        return _wrong_order(REBUILT, priced)

    assert ordered(2.0, 2.0, 2.1) == "" and ordered() == ""
    assert ordered(2.0, 1.9) == "one is faster than what stands before it"
    assert ordered(2.0, 2.05, 2.0) == "one is faster than what stands before it"
    assert ordered(2.0, 2.0, keys="aa") == "a layout is stated twice"
    assert ordered(2.0, 2.11) == "one is more than 5.000% slower than the answer"
    plain: Any = {
        "objective": {"step_time_s": 2.0},
        "alternatives": [{"step_time_s": 2.5}, {"step_time_s": None}],
    }
    assert _times_s(plain) == [2.0, 2.5, 0.0]
    assert (_listed([2.0, 2.5]), _listed([])) == ("2 s, 2.5 s", "none")


def test_a_faster_layout_is_described() -> None:
    """Its degrees, order, blocks of every rank over chunks and kinds, and its step."""
    layout = Layout(
        tp=2, pp=2, vp=2, dp=2, zero=1, micro_batch=2, micro_batches=8, schedule=Schedule.INTERLEAVED
    )
    blocks = np.array([[[1, 1], [2, 1]], [[1, 0], [2, 0]]])
    witness: Any = SimpleNamespace(layout=batch_of([layout]), blocks=blocks, step_time_s=1.25)
    assert _describe(witness) == (
        "tp=2,cp=1,pp=2,vp=2,dp=2,ep=1,etp=1,zero=1,micro_batch=2,micro_batches=8,order=tp-cp-ep-dp-pp "
        "with [3, 5] blocks per rank takes 1.25 s"
    )


@pytest.mark.parametrize(("pp", "vp", "recompute"), [(1, 1, Recompute()), (2, 2, Recompute()), (4, 1, FULL)])
def test_stages_that_nobody_lists_are_the_usual_ones(pp: int, vp: int, recompute: Recompute) -> None:
    """A layout in Python without stages is judged as a file without them is."""
    degrees: dict[str, Any] = {"tp": 2, "pp": pp, "vp": vp, "micro_batch": 1, "recompute": recompute}
    stated = Layout(dp=4 // pp, sp=True, micro_batches=16 * pp, **degrees)
    judged = judge_layout(WORKLOAD, CLUSTER, stated)
    left_open = judge_layout(WORKLOAD, CLUSTER, PartialLayout(**degrees))
    assert judged.layout == left_open.layout
    assert [stage.layers for stage in judged.layout.stages] == [32 // pp // vp] * (pp * vp)
    assert (judged.verdict, judged.reasons) == (left_open.verdict, left_open.reasons)
    assert judged.verdict is not Verdict.INVALID and judged.estimate is not None


def test_a_named_schedule_of_a_single_stage_changes_no_verdict() -> None:
    """In a file as in Python."""
    for schedule in Schedule:
        judged = judge_layout(WORKLOAD, CLUSTER, PartialLayout(tp=8, schedule=schedule))
        assert (judged.verdict, judged.layout.vp) == (Verdict.FITS, 1)
