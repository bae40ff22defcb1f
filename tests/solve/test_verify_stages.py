"""Stages that a plan states: read against the model and the stage rule."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from checks.enumeration import solve_stages

from layoutopt.optimizer.frameworks.stage_rule import FREE, MEGATRON, NEAR_EQUAL, Split, StageRule
from layoutopt.optimizer.solve.verify.layout import Refuted, check_sizes, read_stages
from layoutopt.optimizer.space.stages import virtual_stages
from layoutopt.optimizer.specs.layout import Layout, VirtualStage
from layoutopt.optimizer.specs.model import ModelSpec
from layoutopt.optimizer.specs.vocabulary import Schedule


def two_stages(*recomputed: tuple[int, dict[str, int]], layers: tuple[int, int] = (3, 2)) -> Layout:
    """Two blocks of one kind, then three of another, on two ranks: 2 + 1 and 2."""
    kinds = ({"kind0": 2, "kind1": layers[0] - 2}, {"kind1": layers[1], "kind0": 0})
    again = recomputed or ((0, {}), (0, {}))
    stages = tuple(
        VirtualStage(
            rank=rank,
            chunk=0,
            layers=layers[rank],
            kinds=kinds[rank],
            recomputed=again[rank][0],
            recomputed_kinds=again[rank][1],
            embedding=rank == 0,
            head=rank == 1,
        )
        for rank in range(2)
    )
    return Layout(pp=2, schedule=Schedule.ONE_F_ONE_B, stages=stages)


def test_stages_of_two_kinds(kit: Any) -> None:
    """Layers are counted by kind; recomputed ones are the first unless their kinds are stated."""
    runs = kit.space(counts=(2, 3)).runs
    blocks, none = read_stages(two_stages(), runs, FREE, may_recompute=False)
    assert blocks.tolist() == [[[2, 1], [0, 2]]]
    assert not none.any()
    first = two_stages((2, {}), (1, {}))
    assert read_stages(first, runs, FREE, may_recompute=True)[1].tolist() == [[[2, 0], [0, 1]]]
    chosen = two_stages((2, {"kind0": 1, "kind1": 1}), (0, {}))
    assert read_stages(chosen, runs, FREE, may_recompute=True)[1].tolist() == [[[1, 1], [0, 0]]]
    uniform = two_stages((3, {}), (2, {}))
    with pytest.raises(Refuted, match="first 3 blocks"):
        read_stages(two_stages((3, {}), (1, {})), runs, MEGATRON, may_recompute=True)
    assert read_stages(uniform, runs, NEAR_EQUAL, may_recompute=True)[1].tolist() == [[[2, 1], [0, 2]]]


@pytest.mark.parametrize(
    ("layout", "rule", "message"),
    [
        (two_stages(layers=(3, 1)), FREE, "hold 4 blocks of 5"),
        (two_stages(layers=(3, 4)), FREE, "the model has {'kind1': 2} there"),
        (two_stages((4, {}), (0, {})), FREE, "4 recomputed layers of 3"),
        (two_stages((3, {"kind0": 3}), (0, {})), FREE, "cannot recompute 3 layers of kind0"),
        (two_stages((2, {"kind1": 2}), (0, {})), FREE, "cannot recompute 2 layers of kind1"),
        (two_stages((2, {"kind0": 1}), (0, {})), FREE, "don't add up to 2"),
        (two_stages((1, {"other": 1}), (0, {})), FREE, "don't add up to 1"),
        (two_stages((1, {}), (0, {})), MEGATRON, "first 1 blocks of every stage"),
        (two_stages((1, {"kind1": 1}), (1, {})), MEGATRON, "first 1 blocks of every stage"),
        (two_stages((1, {}), (2, {})), NEAR_EQUAL, "all blocks or none"),
    ],
)
def test_stages_that_break_the_rule(kit: Any, layout: Layout, rule: StageRule, message: str) -> None:
    """Each statement that isn't possible is named."""
    with pytest.raises(Refuted, match=message):
        read_stages(layout, kit.space(counts=(2, 3)).runs, rule, may_recompute=True)


@pytest.mark.parametrize("rule", [FREE, MEGATRON, NEAR_EQUAL])
@pytest.mark.parametrize("counts", [(7,), (2, 5), (1, 3, 3)])
def test_reads_what_the_space_writes(kit: Any, rule: StageRule, counts: tuple[int, ...]) -> None:
    """Optimal stages written as a layout's stage list are read as the same blocks and recomputed blocks."""
    space = kit.space(rule, counts, tight=1.2, seed=11)
    model = ModelSpec(name="tiny", hidden=8, heads=1, kv_heads=1, head_dim=8, vocab=8, runs=space.runs)
    batch, _ = space.expand(space.degrees)
    terms = space.terms(batch)
    written = 0
    for row in range(len(batch)):
        best = solve_stages(terms.take(np.array([row])), space.counts, rule)
        if best is None:
            continue
        pp, vp = int(batch.pp[row]), int(batch.vp[row])
        listed = virtual_stages(model, pp, vp, best.blocks, best.recomputed)
        layout = replace(two_stages(), pp=pp, vp=vp, stages=listed)
        blocks, recomputed = read_stages(layout, space.runs, rule, may_recompute=True)
        assert blocks.tolist() == best.blocks.tolist()
        assert recomputed.tolist() == best.recomputed.tolist()
        written += bool(best.recomputed.any())
    assert written > 1


def test_no_recomputation_where_the_layout_has_none(kit: Any) -> None:
    """Recomputed layers need a layout with full recomputation."""
    with pytest.raises(Refuted, match="no full recomputation"):
        read_stages(two_stages((2, {}), (2, {})), kit.space(counts=(2, 3)).runs, FREE, may_recompute=False)


@pytest.mark.parametrize(
    ("sizes", "ranks", "split", "allowed"),
    [
        ([1, 3, 3, 1], 4, Split.FREE, True),
        ([0, 3, 3, 0], 4, Split.FREE, True),
        ([1, 0, 3, 1], 4, Split.FREE, False),  # an empty middle stage
        ([0], 1, Split.FREE, False),  # a single stage holds the model
        ([1, 2, 2, 1], 2, Split.FREE, True),  # smaller chunk first, on the last rank a small one last
        ([2, 2, 1, 1], 2, Split.FREE, True),  # a first stage one larger than the other of its rank
        ([3, 2, 1, 1], 2, Split.FREE, False),  # two larger
        ([1, 1, 2, 3], 2, Split.FREE, False),
        ([1, 2, 2, 1, 1, 1], 2, Split.FREE, False),  # the inner stages of a rank fall
        ([1, 1, 2, 2, 2, 0], 2, Split.FREE, True),
        ([1, 2, 2, 1], 4, Split.NEAR_EQUAL, True),
        ([1, 2, 3, 1], 4, Split.NEAR_EQUAL, True),
        ([1, 3, 3, 1], 4, Split.NEAR_EQUAL, False),  # ends two below the middle
        ([3, 1, 1, 2], 4, Split.NEAR_EQUAL, False),
        ([0, 2], 2, Split.NEAR_EQUAL, False),
        ([1, 2], 2, Split.NEAR_EQUAL, True),
    ],
)
def test_sizes(sizes: list[int], ranks: int, split: Split, allowed: bool) -> None:
    """The stage rule for the stages that a plan states."""
    place, rule = np.arange(len(sizes)) % ranks, replace(FREE, split=split)
    if allowed:
        check_sizes(np.array(sizes), place, rule)
    else:
        with pytest.raises(Refuted):
            check_sizes(np.array(sizes), place, rule)
