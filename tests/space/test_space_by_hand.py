"""Ranges, counts, stage numbers, repairs and advice of the declared space, each written out for small cases."""

from __future__ import annotations

from dataclasses import replace
from math import comb, log10
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.frameworks.stage_rule import FREE, NEAR_EQUAL, Recomputation, Split, StageRule
from layoutopt.optimizer.space.axes import ZeroChoice, declare_axes, shard_levels
from layoutopt.optimizer.space.builder import _look_up, _ranges
from layoutopt.optimizer.space.check import advise_layout
from layoutopt.optimizer.space.context import make_context
from layoutopt.optimizer.space.counting import Tally, _step, _weighted
from layoutopt.optimizer.space.divisors import divisors, factorisation_text, prime_powers
from layoutopt.optimizer.space.enumeration import _row, build_space, log10_assignments
from layoutopt.optimizer.space.options import SpaceOptions
from layoutopt.optimizer.space.recompute_sets import recompute_text
from layoutopt.optimizer.space.repairs import (
    first_of,
    known_modules,
    known_precision,
    lowered,
    regrouped,
    setting,
    without_modules,
)
from layoutopt.optimizer.space.rows import schedule_of
from layoutopt.optimizer.space.rules import RULES
from layoutopt.optimizer.space.stage_splits import (
    allowed_sizes,
    boxes,
    counts_by_cost,
    nanotron_costs,
    own_split,
)
from layoutopt.optimizer.specs.layout import Layout, Recompute
from layoutopt.optimizer.specs.loading import load_cluster, load_workload
from layoutopt.optimizer.specs.partial_layout import PartialLayout
from layoutopt.optimizer.specs.stage_split import build_stages, running_schedule
from layoutopt.optimizer.specs.vocabulary import Granularity, Precision, Schedule

if TYPE_CHECKING:
    from checks.rule_cases import Workbench

    from layoutopt.optimizer.space.context import Context


def asked(bench: Workbench, framework: Framework = Framework.ANY, *, gpus: int = 16, **model: Any) -> Context:
    """Eight layers on nodes of eight GPUs, 64 sequences of 4096."""
    return make_context(
        bench.model(8, **model), bench.training(64, 4096), bench.cluster(gpus), framework, None, None
    )


@pytest.mark.parametrize(("number", "limit", "listed", "primes", "text"), [
    (1, None, (1,), (), "1"), (12, None, (1, 2, 3, 4, 6, 12), ((2, 2), (3, 1)), "4 x 3"),
    (36, 6, (1, 2, 3, 4, 6), ((2, 2), (3, 2)), "4 x 9"), (10_256, 8, (1, 2, 4, 8), ((2, 4), (641, 1)), "16 x 641"),
    (49, 48, (1, 7), ((7, 2),), "49"), (2048, 1, (1,), ((2, 11),), "2,048"),
])  # fmt: skip
def test_divisors_and_primes(
    number: int, limit: int | None, listed: tuple[int, ...], primes: tuple[tuple[int, int], ...], text: str
) -> None:
    """In their order, square roots once, up to a limit itself."""
    assert divisors(number, limit) == listed
    assert prime_powers(number) == primes
    assert factorisation_text(number) == text


def test_rows_are_repeated_by_tables() -> None:
    """Of ranges laid end to end each element's range and place; of small numbers what a table says, else nothing."""
    row, place = _ranges(np.array([2, 0, 3]))
    assert (row.tolist(), place.tolist()) == ([0, 0, 2, 2, 2], [0, 1, 0, 1, 2])
    assert _look_up(np.array([4, 1, 0, 4]), {1: 7, 4: 9}).tolist() == [9, 7, 0, 9]


def test_a_row_is_lost_once() -> None:
    """With the first modifier that has no choice left, where all others have one; tuples by the others' choices."""
    tally = Tally()
    steps = [
        ("first", np.array([2, 0, 0, 3])),
        ("same", np.array([2, 0, 0, 3])),
        ("last", np.array([0, 0, 0, 3])),
    ]
    left = _step(tally, steps, np.array([3, 3, 3, 3]), np.array([10, 10, 0, 5]), np.array([1, 4, 9, 1]))
    assert left.tolist() == [0, 0, 0, 3]
    assert tally.removed == {"first": (4, 10 + 30), "last": (1, 20)}
    single = Tally()
    _step(single, steps, np.array([3, 3, 3, 3]), np.array([10, 10, 10, 5]))
    assert single.removed == {"first": (2, 10 + 30 + 30), "last": (1, 20)}
    single.remove("first", 1, 2)
    counts = single.counts(5, 6)
    assert [(one.rule, one.degrees, one.tuples) for one in counts.removed] == [
        ("first", 3, 72),
        ("last", 1, 20),
    ]
    assert (counts.last_rule, counts.remaining_degrees, counts.remaining_tuples) == ("last", 5, 6)
    mask = np.array([[True, True, False], [True, False, True]])
    assert _weighted(mask, np.array([2, 5, 2])).tolist() == [7, 4]


@pytest.mark.parametrize(("rule", "blocks", "pp", "vp", "whole", "expected"), [
    (FREE, 8, 1, 1, False, 1), (FREE, 8, 1, 1, True, 9), (FREE, 8, 4, 1, False, comb(6 + 3, 3)),
    (FREE, 8, 4, 2, False, comb(2 + 3, 3)), (FREE, 8, 5, 2, False, 1), (FREE, 8, 4, 1, True, comb(9, 3) * 3**4),
    (NEAR_EQUAL, 8, 4, 1, False, comb(4, 2)), (NEAR_EQUAL, 9, 4, 1, True, comb(4, 3) * 2),
    (replace(NEAR_EQUAL, recomputation=Recomputation.UNIFORM_COUNT), 8, 2, 2, True, comb(2, 0) * 3),
    (StageRule(split=Split.EQUAL, recomputation=Recomputation.ALL_OR_NONE), 8, 4, 2, False, 1),
    (StageRule(split=Split.EQUAL_MIDDLE, recomputation=Recomputation.ALL_OR_NONE), 8, 3, 1, True, 21 * 2),
])  # fmt: skip
def test_how_many_layouts_with_stages(
    rule: StageRule, blocks: int, pp: int, vp: int, whole: bool, expected: float
) -> None:
    """Ways to give ranks their blocks, times the numbers of recomputed ones; ten tuples are ten times as many."""
    found = log10_assignments({(pp, vp, whole): 10}, blocks, rule)
    assert found == pytest.approx(log10(10 * expected))
    twice = log10_assignments({(pp, vp, whole): 10, (1, 7, False): 7}, blocks, rule)
    assert twice == pytest.approx(log10(10 * expected + 7))
    assert log10_assignments({}, blocks, rule) == float("-inf")


def test_long_lists_are_shortened() -> None:
    """From seventeen values on the first three and the last; notes behind them, if there are any."""
    assert _row("a", range(16), "") == _row("a", list(range(16)), "")
    assert _row("a", range(16), "b").range_text == ", ".join(map(str, range(16))) + " (b)"
    assert _row("a", range(17), "").range_text == "0, 1, 2, ..., 16"
    assert (_row("a", range(17), "").values, _row("a", [8], "").range_text) == (17, "8")


def test_ranges_of_the_axes(bench: Workbench) -> None:
    """Two stages more than blocks, half of the sequence, the node; one block for a chunk, the ends aside."""
    axes = declare_axes(asked(bench, gpus=640), SpaceOptions())
    assert (axes.tp, axes.pp, axes.dp) == ((1, 2, 4, 5, 8), (1, 2, 4, 5, 8, 10), None)
    assert axes.gpus == (640, 640) and axes.ep == (1,)
    assert axes.cp == (1, 2, 4, 5, 8, 10, 16, 20, 32, 40, 64, 80, 128, 160, 320, 640)
    assert [axes.vp_of(pp) for pp in (1, 2, 4, 5, 10)] == [(1,), (1, 2, 3, 4, 5), (1, 2), (1, 2), (1,)]
    assert axes.schedules_of(1, 1) == (Schedule.NONE,)
    assert axes.schedules_of(4, 1) == (Schedule.ONE_F_ONE_B,) and axes.schedules_of(4, 2) == (
        Schedule.INTERLEAVED,
    )
    idle = declare_axes(asked(bench, gpus=100), SpaceOptions(allow_idle=0.29))
    assert idle.gpus == (71, 100) and idle.tp == tuple(range(1, 9)) and idle.pp == tuple(range(1, 11))
    assert idle.dp == (1, 2, 4, 8, 16, 32, 64)
    assert declare_axes(asked(bench, gpus=2), SpaceOptions(allow_idle=0.9)).gpus == (1, 2)
    assert (idle.sp_of(1), idle.sp_of(2)) == ((0,), (1,))
    fixed = declare_axes(asked(bench), SpaceOptions(fix={"sp": (0, 1)}))
    assert fixed.sp_of(1) == (0,) and set(fixed.sp_of(2)) == {0, 1}
    assert declare_axes(asked(bench), SpaceOptions(forbid={"sp": (1,)})).sp_of(2) == (0,)


@pytest.mark.parametrize(("batch", "listed", "expected"), [
    (64, None, (1, 2, 4, 8, 16)), (30, None, (1, 2, 3, 5, 6, 10, 15)), (48, None, (1, 2, 4, 8, 16)),
    (24, None, (1, 2, 3, 4, 6, 8, 12)), (30, (2, 4, 5), (2, 5)),
])  # fmt: skip
def test_sizes_of_micro_batches(
    bench: Workbench, batch: int, listed: tuple[int, ...] | None, expected: tuple[int, ...]
) -> None:
    """Powers of two where all divide the batch, else every divisor up to 16; of listed ones those that divide."""
    ctx = make_context(
        bench.model(8), bench.training(batch, 4096), bench.cluster(1), Framework.ANY, None, None
    )
    assert declare_axes(ctx, SpaceOptions(micro_batches=listed)).micro_batch == expected


def test_levels_of_shard_groups(bench: Workbench) -> None:
    """Node, a domain of another size, the largest pod below the cluster; none as large as the cluster, and no GPU alone."""

    def levels(gpus: int, **network: int) -> dict[str, int]:
        cluster = bench.cluster(gpus, **network)
        return shard_levels(
            make_context(bench.model(8), bench.training(), cluster, Framework.ANY, None, None)
        )

    assert levels(64) == {"node": 8}
    assert levels(64, pod=32) == {"node": 8, "pod": 32}
    assert levels(64, domain=32, node=4) == {"node": 4, "NVLink domain": 32}
    assert levels(8) == {} and levels(64, pod=64) == {"node": 8}
    assert levels(64, domain=1, node=1, pod=2) == {"pod": 2}
    texts = (
        ZeroChoice(stage=2),
        ZeroChoice(stage=3, shard=4),
        ZeroChoice(stage=1, level="node", level_gpus=8),
    )
    assert [str(choice) for choice in texts] == ["2", "3 in groups of 4", "1 in the node"]


def listed(split: Split, ranks: int, chunks: int, blocks: int, **how: Any) -> set[tuple[int, ...]]:
    """Totals per rank of all boxes, where a box that leaves room is opened."""
    found = set()
    rule = StageRule(split=split, recomputation=Recomputation.ALL_OR_NONE)
    for low, high in boxes(rule, ranks, chunks, blocks, **how):
        grid = np.stack(
            np.meshgrid(*(range(a, b + 1) for a, b in zip(low, high, strict=True)), indexing="ij")
        )
        table = grid.reshape(ranks, -1).T
        found |= {tuple(row) for row in table[table.sum(axis=1) == blocks].tolist()}
    return found


def test_totals_of_every_split() -> None:
    """Ends may be empty where the split is free; else by the trainer's own rule, and one for both ends where folded."""
    assert listed(Split.FREE, 2, 1, 2) == {(0, 2), (1, 1), (2, 0)}
    assert listed(Split.FREE, 3, 1, 2) == {(0, 1, 1), (0, 2, 0), (1, 1, 0)}
    assert listed(Split.FREE, 2, 2, 4, folded=True) == {(0, 4), (1, 3), (2, 2)}
    assert listed(Split.FREE, 2, 2, 1, folded=True) == set()
    assert listed(Split.FREE, 1, 2, 1) == set() and listed(Split.FREE, 1, 2, 2) == {(2,)}
    assert listed(Split.FREE, 1, 2, 0, folded=True) == {(0,)}
    assert listed(Split.EQUAL, 4, 2, 8) == {(2, 2, 2, 2)} and listed(Split.EQUAL, 4, 2, 12) == set()
    assert listed(Split.LARGER_FIRST, 3, 1, 8) == {(3, 3, 2)} and listed(Split.LARGER_FIRST, 3, 1, 2) == set()
    assert listed(Split.EQUAL_MIDDLE, 3, 1, 5) == {
        (1, 1, 3),
        (2, 1, 2),
        (3, 1, 1),
        (1, 2, 2),
        (2, 2, 1),
        (1, 3, 1),
    }
    assert listed(Split.EQUAL_MIDDLE, 2, 1, 3) == {(1, 2), (2, 1)}
    assert listed(Split.EQUAL_MIDDLE_UNCHUNKED, 2, 2, 8) == {(4, 4)}
    assert listed(Split.EQUAL_MIDDLE, 2, 2, 8) == {(2, 6), (4, 4), (6, 2)}
    assert listed(Split.EQUAL_MIDDLE, 2, 2, 7) == {(3, 4), (4, 3)}
    assert listed(Split.EQUAL_MIDDLE, 2, 2, 6) == {(2, 4), (4, 2), (3, 3)}
    assert listed(Split.NEAR_EQUAL, 2, 1, 7) == {(3, 4), (4, 3)} and listed(Split.NEAR_EQUAL, 2, 1, 8) == {
        (4, 4)
    }
    assert listed(Split.NEAR_EQUAL, 3, 1, 5) == {(2, 1, 2), (2, 2, 1), (1, 2, 2)}


@pytest.mark.parametrize(("blocks", "ranks", "head", "expected"), [
    (8, 1, 0, [8]), (8, 2, 0, [5, 3]), (8, 2, 8, [6, 2]), (9, 3, 0, [4, 3, 2]), (8, 3, 30, [7, 1, 0]), (2, 2, 9, [2, 0]),
])  # fmt: skip
def test_blocks_by_cost(blocks: int, ranks: int, head: int, expected: list[int]) -> None:
    """The next rank begins behind the block at which the sum exceeds a rank's share; a block costs 3."""
    assert counts_by_cost(blocks, ranks, 3, head).tolist() == expected


def test_costs_and_own_splits(bench: Workbench) -> None:
    """4 heads by width by hidden and 3 of the MLP a block, vocabulary by hidden the head; none where a rank is empty."""
    assert nanotron_costs(bench.model(8)) == (4 * 8 * 32 * 256 + 3 * 1024 * 256, 1024 * 256)
    by_cost = StageRule(split=Split.BY_COST, recomputation=Recomputation.ALL_OR_NONE, costs=(3, 4))
    assert (own := own_split(by_cost, 2, 1, 8)) is not None and own.tolist() == [5, 3]
    heavy = replace(by_cost, costs=(3, 60))
    assert (own := own_split(heavy, 2, 1, 8)) is not None and own.tolist() == [8, 0]
    assert own_split(heavy, 3, 1, 8) is None
    sizes = np.array([[[4, 4]], [[5, 3]], [[8, 0]]])
    pp, vp, folded = np.array([2, 2, 1]), np.ones(3, dtype=np.int64), np.zeros(3, dtype=bool)
    assert allowed_sizes(by_cost, Split.BY_COST, sizes, pp, vp, folded).tolist() == [False, True, True]


def test_repairs_set_what_they_say(bench: Workbench) -> None:
    """Values, degrees with data parallelism making room, the largest smaller divisor, the first repair that works."""
    ctx = asked(bench)
    layout = Layout(tp=4, pp=2, dp=2, micro_batch=2, micro_batches=16)
    even = next(rule for rule in RULES if rule.name == "heads_mod_tp" and rule.applies(ctx))
    assert setting(zero=2)(even, layout, ctx).zero == 2  # type: ignore[union-attr]
    moved = regrouped(tp=2)(even, layout, ctx)
    assert moved is not None and (moved.tp, moved.dp, moved.micro_batches) == (2, 4, 8)
    odd = asked(bench, heads=6, kv_heads=6)
    wide = Layout(tp=4, dp=4, micro_batches=16)
    smaller = lowered("tp")(even, wide, odd)
    assert smaller is not None and (smaller.tp, smaller.dp) == (2, 8)
    assert lowered("ep")(even, replace(wide, ep=4), odd) is None
    either = first_of(setting(zero=1), lowered("ep"), lowered("tp"))(even, wide, odd)
    assert either is not None and (either.tp, either.zero) == (2, 0)
    assert first_of(setting(zero=1))(even, wide, odd) is None


def test_repairs_find_what_the_trainer_has(bench: Workbench) -> None:
    """bf16 before other formats, where trainer and GPU have it; modules it knows, or its first; none is no recomputation."""
    ctx = asked(bench, Framework.MEGATRON)
    narrow = Layout(dp=16, precision=Precision.NVFP4)
    found = known_precision(RULES[0], narrow, ctx)
    assert found is not None and found.precision is Precision.BF16
    gpu = replace(ctx.cluster.gpu, dense_flops={Precision.FP8: 1e15})
    other = known_precision(RULES[0], narrow, replace(ctx, cluster=replace(ctx.cluster, gpu=gpu)))
    assert other is not None and other.precision is Precision.FP8
    none = replace(ctx, cluster=replace(ctx.cluster, gpu=replace(gpu, dense_flops={Precision.MXFP8: 1e15})))
    lost = known_precision(RULES[0], narrow, none)
    assert lost is None or lost.precision is Precision.MXFP8
    both = Recompute(granularity=Granularity.SELECTIVE, modules=("core_attn", "mlp"))
    kept = without_modules("mlp")(RULES[0], Layout(recompute=both), ctx)
    assert kept is not None and kept.recompute.modules == ("core_attn",)
    bare = without_modules("mlp", "core_attn")(RULES[0], Layout(recompute=both), ctx)
    assert bare is not None and bare.recompute == Recompute()
    unknown = Recompute(granularity=Granularity.SELECTIVE, modules=("op",))
    first = known_modules(RULES[0], Layout(recompute=unknown), ctx)
    assert first is not None and first.recompute.modules == ("core_attn",)
    assert known_modules(RULES[0], Layout(recompute=both), ctx).recompute.modules == ("core_attn", "mlp")


@pytest.mark.parametrize(("pp", "vp", "schedule"), [
    (1, 1, Schedule.NONE), (2, 1, Schedule.ONE_F_ONE_B), (2, 2, Schedule.INTERLEAVED), (1, 2, Schedule.NONE),
])  # fmt: skip
def test_the_schedule_that_nobody_names(pp: int, vp: int, schedule: Schedule) -> None:
    """None without a pipeline, interleaving with chunks."""
    assert running_schedule(Schedule.NONE, pp, vp) is schedule


def test_a_named_schedule_runs_where_there_is_a_pipeline() -> None:
    """In files and in Python alike: a name says nothing about a single stage, not even that it has two chunks."""
    workload, cluster = load_workload("llama3-8b"), load_cluster("h100x8")
    for schedule in Schedule:
        whole = PartialLayout(tp=8, schedule=schedule).complete(workload, cluster)
        assert (whole.schedule, whole.vp) == (Schedule.NONE, 1)
        assert schedule_of(Layout(schedule=schedule)) is Schedule.NONE
        named = schedule is not Schedule.NONE
        piped = PartialLayout(tp=4, pp=2, schedule=schedule).complete(workload, cluster)
        assert piped.schedule is (schedule if named else Schedule.ONE_F_ONE_B)
        assert piped.vp == (2 if schedule.v_shape else 1)
        assert schedule_of(Layout(pp=2, vp=2, schedule=schedule)) is (
            schedule if named else Schedule.INTERLEAVED
        )


@pytest.mark.parametrize(("restrictions", "sizes"), [
    ({}, {0, 4, 8}), ({"max": {"hsdp_shard": 4}}, {0, 4}), ({"min": {"hsdp_shard": 5}}, {8}),
    ({"forbid": {"hsdp_shard": (8,)}}, {0, 4}), ({"forbid": {"hsdp_shard": (0, 4)}}, {8}),
])  # fmt: skip
def test_limits_reach_shard_groups_that_fill_a_node(
    bench: Workbench, restrictions: dict[str, Any], sizes: set[int]
) -> None:
    """Groups of 8 / tp ranks, at tp 1 and 2, and the whole group of 16 or 32 as 0."""
    options = SpaceOptions(fix={"tp": (1, 2), "cp": (1,), "pp": (1,), "zero": (1,)}, **restrictions)
    space = build_space(
        bench.model(8), bench.training(64, 4096), bench.cluster(32), Framework.MEGATRON, options
    )
    assert set(space.expand(space.degrees)[0].hsdp_shard.tolist()) == sizes


ADVICE = [
    (Layout(pp=3, dp=2, micro_batches=3), {},
     [("layers_mod_pp", "8 layers on pp 3: the fullest rank has 3, mean 2.67 (up to +12% time)",
       {"layers": 8, "pp": 3, "fullest": 3})]),
    (Layout(pp=4, dp=2, micro_batches=3), {},
     [("full_pipeline", "3 micro-batches on pp 4: ranks idle 50% of the time", {"micro_batches": 3, "pp": 4})]),
    (Layout(pp=4, vp=2, dp=2, micro_batches=3, schedule=Schedule.INTERLEAVED), {},
     [("full_pipeline", "3 micro-batches on pp 4: ranks idle 33% of the time", {"micro_batches": 3, "pp": 4})]),
    (Layout(pp=4, dp=2, micro_batches=4), {}, []),
    (Layout(tp=4, dp=4, micro_batches=4), {"vocab": 1001},
     [("vocab_mod_tp", "vocabulary 1,001 % tp 4 = 1: padded to 1,024 rows", {"vocab": 1001, "tp": 4, "padded": 1024})]),
    (Layout(tp=8, dp=2, micro_batches=4), {"kv_heads": 3},
     [("kv_heads_mod_tp", "key-value heads 3 < tp 8: each is repeated on 2.66667 ranks", {"kv_heads": 3, "tp": 8})]),
    (Layout(tp=8, dp=2, micro_batches=4), {"kv_heads": 8}, []),
]  # fmt: skip


@pytest.mark.parametrize(("layout", "model", "expected"), ADVICE)
def test_advice_with_its_numbers(
    bench: Workbench, layout: Layout, model: dict[str, Any], expected: list[tuple[str, str, dict[str, int]]]
) -> None:
    """The fullest rank, idle ranks, padding and repeated heads."""
    found = advise_layout(
        layout, bench.model(8, **model), bench.training(64, 4096), bench.cluster(16), Framework.ANY
    )
    assert [(one.rule, one.message, one.factors) for one in found] == expected


def test_advice_on_listed_stages(bench: Workbench) -> None:
    """Megatron-LM refuses what is uneven unless it is listed; a listed rank's chunks add up."""
    uneven = Layout(pp=3, dp=2, micro_batches=3)
    question = bench.model(8), bench.training(64, 4096), bench.cluster(6), Framework.MEGATRON
    assert advise_layout(uneven, *question) == ()
    stages = build_stages(question[0], [1, 1, 3, 1, 1, 1], 3, Schedule.INTERLEAVED, 0)
    (found,) = advise_layout(replace(uneven, vp=2, schedule=Schedule.INTERLEAVED, stages=stages), *question)
    assert found.message == "8 layers on pp 3: the fullest rank has 4, mean 2.67 (up to +50% time)"


def test_why_a_space_is_empty(bench: Workbench) -> None:
    """A prime that nothing takes; degrees that do not multiply out; an axis without a value; the rules that removed most."""

    def message(gpus: int, options: SpaceOptions | None = None, batch: int = 64) -> str:
        space = build_space(
            bench.model(8), bench.training(batch, 4096), bench.cluster(gpus), Framework.MEGATRON, options
        )
        assert space.empty is not None
        return space.empty.message

    assert message(8 * 641) == (
        "5,128 = 8 x 641: the prime factor 641 divides neither the batch 64 (dp) nor half the sequence 4,096 (cp), and "
        "exceeds what pp (8 blocks) and tp (within 8 GPUs) can take; --allow-idle leaves GPUs out"
    )
    assert message(16, SpaceOptions(fix={"tp": (3,), "pp": (5,)})) == (
        "no tp * cp * pp * dp within the ranges gives 16 GPUs (tp in [3], pp in [5])"
    )
    assert (
        message(16, SpaceOptions(forbid={"precision": ("bf16",)}))
        == "the restrictions leave no value for precision"
    )
    assert message(16, SpaceOptions(max={"dp": 1}, fix={"tp": (1,), "pp": (1,), "cp": (1,)})) == (
        "no tp * cp * pp * dp within the ranges gives 16 GPUs (tp in [1], cp in [1], pp in [1])"
    )


@pytest.mark.parametrize(
    "framework", [Framework.MEGATRON, Framework.TORCHTITAN, Framework.DEEPSPEED, Framework.ANY]
)
def test_an_axis_without_values_is_named(bench: Workbench, framework: Framework) -> None:
    """Whichever it is: rules meet lists without an entry."""
    question = bench.model(8, experts=4), bench.training(64, 4096), bench.cluster(16), framework
    whole = build_space(*question)
    for axis, values in (
        ("tp", whole.axes.tp), ("cp", whole.axes.cp), ("pp", whole.axes.pp), ("ep", whole.axes.ep),
        ("micro_batch", whole.axes.micro_batch), ("zero", tuple({one.stage for one in whole.axes.zero})),
        ("mesh_order", whole.axes.orders), ("precision", tuple(one.value for one in whole.axes.precisions)),
        ("schedule", tuple(one.value for one in whole.axes.schedules)),
        ("recompute", ("none", *map(recompute_text, whole.axes.recomputes))),
    ):  # fmt: skip
        empty = build_space(*question, SpaceOptions(forbid={axis: values})).empty
        assert empty is not None and empty.message == f"the restrictions leave no value for {axis}"


@pytest.mark.parametrize(("layout", "offers"), [
    (Layout(dp=4, micro_batch=2, micro_batches=5), {"micro_batches": (8,)}),
    (Layout(dp=8, micro_batch=3, micro_batches=1), {"micro_batch": (1, 2, 4, 8)}),
    (Layout(dp=64, micro_batch=2, micro_batches=1), {"micro_batch": (1,)}), (Layout(dp=5), {"micro_batch": ()}),
])  # fmt: skip
def test_what_a_batch_that_does_not_divide_is_offered(
    bench: Workbench, layout: Layout, offers: dict[str, tuple[int, ...]]
) -> None:
    """Of 64 sequences the micro-batches of the layout's own size, or sizes that divide what a replica gets."""
    rule = next(one for one in RULES if one.name == "gbs_mod_mbs_dp")
    assert rule.explain(layout, asked(bench)).valid == offers
