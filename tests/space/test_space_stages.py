"""Blocks on stages: even splits, chunks, kinds, and the way to a stage list and back."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutopt.optimizer.cost.stage_counts import rank_blocks
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.space.context import make_context
from layoutopt.optimizer.space.stages import (
    chunk_layers,
    kinds_of,
    model_order,
    virtual_stages,
)
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.layer_runs import by_layer
from layoutopt.optimizer.specs.layout import Layout, Recompute, VirtualStage
from layoutopt.optimizer.specs.loading import load_cluster, load_workload
from layoutopt.optimizer.specs.model import LayerShape, Mlp, ModelSpec, Run
from layoutopt.optimizer.specs.stage_split import even_layers
from layoutopt.optimizer.specs.vocabulary import Granularity, Schedule

if TYPE_CHECKING:
    from collections.abc import Callable

FULL = Recompute(granularity=Granularity.FULL)
DENSE, MOE = LayerShape(ffn=64), LayerShape(mlp=Mlp.MOE)


def stack(*runs: tuple[str, int], order: tuple[int, ...] = ()) -> ModelSpec:
    """Build a model from (name, layers); ``order``: the kind of every layer where they alternate."""
    return ModelSpec(
        name="stack",
        hidden=64,
        heads=4,
        kv_heads=4,
        head_dim=16,
        vocab=128,
        runs=tuple(
            Run(name=name, block=(LayerShape(ffn=64 + kind),), count=count)
            for kind, (name, count) in enumerate(runs)
        ),
        order=order,
    )


@st.composite
def splits(draw: st.DrawFn) -> tuple[ModelSpec, int, int, list[int]]:
    """A stack of up to three runs and random rank totals that obey the stage rule."""
    pp, vp = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    vp = 1 if pp == 1 else vp
    least = [vp - (pp > 1 and rank in (0, pp - 1)) for rank in range(pp)]
    totals = [low + draw(st.integers(0, 5)) for low in least]
    totals[-1] += max(1 - sum(totals), 0)
    blocks = sum(totals)
    cuts = sorted({0, blocks, *draw(st.lists(st.integers(0, blocks), max_size=2))})
    sizes = [b - a for a, b in pairwise(cuts)]
    runs = [(f"k{i}", size) for i, size in enumerate(sizes)]
    kinds = [kind for kind, size in enumerate(sizes) for _ in range(size)]
    order = draw(st.one_of(st.just(()), st.permutations(kinds).map(tuple)))
    return stack(*runs, order=order), pp, vp, totals


@settings(max_examples=200)
@given(case=splits(), data=st.data())
def test_stage_list_round_trip(case: tuple[ModelSpec, int, int, list[int]], data: st.DataObject) -> None:
    """Rank totals written as a stage list are read back unchanged, recomputed blocks of every kind too."""
    model, pp, vp, totals = case
    counts = chunk_layers(np.array(totals), pp, vp)
    kinds = kinds_of(model, counts, model_order(pp, vp)).reshape(vp, pp, -1).sum(axis=0)
    repeated = np.array([[data.draw(st.integers(0, int(n))) for n in rank] for rank in kinds])
    stages = virtual_stages(model, pp, vp, kinds, repeated)
    layout = Layout(pp=pp, vp=vp, stages=stages, recompute=FULL)
    blocks, again = rank_blocks(layout, model)
    assert (blocks == kinds).all()
    assert (again == repeated).all()
    assert sum(stage.layers for stage in stages) == model.layers
    assert [stage.embedding for stage in stages] == [True] + [False] * (pp * vp - 1)
    assert [stage.head for stage in stages] == [False] * (pp * vp - 1) + [True]


@settings(max_examples=200)
@given(case=splits())
def test_chunks_differ_by_at_most_one(case: tuple[ModelSpec, int, int, list[int]]) -> None:
    """Smaller chunks come first, on the last rank one of them last, and add up to the rank's total."""
    _, pp, vp, totals = case
    chunks = chunk_layers(np.array(totals), pp, vp).reshape(vp, pp)
    assert chunks.sum(axis=0).tolist() == totals
    for rank in range(pp):
        column = chunks[:, rank].tolist()
        rising = [column[-1], *column[:-1]] if pp > 1 and rank == pp - 1 else column
        assert rising == sorted(column)
        assert max(column) - min(column) <= 1


def test_published_split() -> None:
    """126 layers on 16 x 8 chunks: one each, none on the first and the last (Llama 3, section 3.3.2)."""
    model = stack(("dense", 126))
    assert even_layers(model, 16, 8, Schedule.INTERLEAVED) == (0, *[1] * 126, 0)


def test_uniform_count_is_spread_as_megatron_does() -> None:
    """Counts that come from one N per virtual stage are written as min(N, layers) on every stage."""
    model = stack(("a", 3), ("b", 8))
    counts = chunk_layers(np.array([3, 4, 4]), 3, 2)
    kinds = kinds_of(model, counts, model_order(3, 2))
    first = kinds_of(model, counts, model_order(3, 2), limit=1)
    repeated = first.reshape(2, 3, -1).sum(axis=0)
    stages = virtual_stages(model, 3, 2, kinds.reshape(2, 3, -1).sum(axis=0), repeated)
    assert [stage.recomputed for stage in stages] == [1] * 6


def test_kinds_follow_the_order_of_tokens() -> None:
    """On a V-shaped schedule the second chunks run backwards through the ranks: rank 0 holds both ends."""
    model = stack(("dense", 2), ("moe", 6))
    order = model_order(4, 2, Schedule.ZB_V)
    assert order.tolist() == [0, 1, 2, 3, 7, 6, 5, 4]
    kinds = kinds_of(model, np.full(8, 1), order)
    assert kinds[:, 0].tolist() == [1, 1, 0, 0, 0, 0, 0, 0]
    stages = virtual_stages(
        model,
        4,
        2,
        kinds.reshape(2, 4, 2).sum(axis=0),
        np.zeros((4, 2), dtype=np.int64),
        Schedule.ZB_V,
    )
    assert [stage.head for stage in stages].index(True) == 4


def test_unmarked_recomputation_repeats_the_first_layers() -> None:
    """A stage of two kinds without a split of its recomputed layers repeats its first ones."""
    model = stack(("a", 2), ("b", 2))
    stages = (VirtualStage(rank=0, chunk=0, layers=4, recomputed=3),)
    _, repeated = rank_blocks(Layout(stages=stages, recompute=FULL), model)
    assert repeated.tolist() == [[2, 1]]


def test_bad_stage_lists_are_input_errors() -> None:
    """A list that doesn't describe the model is refused in one line."""
    stages = tuple(VirtualStage(rank=i, chunk=0, layers=n) for i, n in enumerate((4, 2)))
    with pytest.raises(InputError, match="hold 6 layers"):
        rank_blocks(Layout(pp=2, stages=stages), stack(("a", 8)))


def test_stages_end_inside_a_pattern() -> None:
    """The phase goes on where a stage ends: 3 and 5 layers of pairs are 2 and 2 of one kind, 1 and 3 of the other."""
    pairs = Run(name="pattern", block=(DENSE, MOE), count=4)
    model = by_layer(replace(stack(("a", 8)), runs=(pairs,)))
    stages = tuple(VirtualStage(rank=i, chunk=0, layers=n, recomputed=2) for i, n in enumerate((3, 5)))
    blocks, again = rank_blocks(Layout(pp=2, stages=stages, recompute=FULL), model)
    assert [run.name for run in model.runs] == ["dense", "moe"]
    assert blocks.tolist() == [[2, 1], [2, 3]]
    assert again.tolist() == [[1, 1], [1, 1]]


def test_impossible_totals_are_refused() -> None:
    """Counts per kind that no contiguous split has are an error of the caller."""
    model = stack(("a", 2), ("b", 2))
    blocks = np.array([[1, 1], [1, 1]])
    with pytest.raises(ValueError, match="no contiguous split"):
        virtual_stages(model, 2, 1, blocks, np.zeros_like(blocks))


def test_prediction_layers_sit_with_the_head(make_model: Callable[..., ModelSpec]) -> None:
    """Multi-token prediction layers are listed on the last stage."""
    model = make_model(4, mtp_layers=1)
    stages = virtual_stages(model, 2, 1, np.array([[2], [2]]), np.zeros((2, 1), dtype=np.int64))
    assert [stage.mtp for stage in stages] == [0, 1]


@pytest.mark.parametrize(
    ("model", "release", "like"),
    [
        ("deepseek-v3", "core 0.12", "core 0.12"),
        ("deepseek-v3", "core 0.13", "core 0.12"),
        ("deepseek-v3", "core 0.14", "core 0.15"),
        ("llama3-8b", "core 0.13", "core 0.14"),
        ("mixtral-8x7b", "core 0.10", "core 0.10"),
        ("mixtral-8x7b", "core 0.11", "core 0.10"),
        ("mixtral-8x7b", "core 0.12", "core 0.12"),
        ("llama3-8b", "core 0.11", "core 0.12"),
    ],
)
def test_what_a_release_can_not_split_yet_ends_with_the_next_one(model: str, release: str, like: str) -> None:
    """Layout strings with prediction layers from 0.14 on, ends that count as layers beside experts from 0.12 on."""
    workload, cluster = load_workload(model), load_cluster("h100x64")
    rule = make_context(workload.model, workload.training, cluster, Framework.MEGATRON, release).launch_rule
    dense = load_workload("llama3-8b")
    other = make_context(dense.model, dense.training, cluster, Framework.MEGATRON, like).launch_rule
    assert rule == other
