"""Stages as they are stated, seated and priced, each number worked out on paper."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from checks.plain_terms import terms_of

from layoutopt.optimizer.cost.batch import batch_of
from layoutopt.optimizer.cost.objectives import NAMES, WORDS, parse_objective
from layoutopt.optimizer.cost.parameter_counts import count_parameters
from layoutopt.optimizer.cost.pipeline import lone_share
from layoutopt.optimizer.cost.quantities import GOALS
from layoutopt.optimizer.cost.stage_counts import layer_kinds, rank_blocks, stage_blocks
from layoutopt.optimizer.cost.terms import price_stages
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.layout import Layout, VirtualStage
from layoutopt.optimizer.specs.model import LayerShape, ModelSpec, Run
from layoutopt.optimizer.specs.vocabulary import Schedule

MODEL = ModelSpec(
    name="two kinds", hidden=8, heads=2, kv_heads=1, head_dim=4, vocab=10, gated=False,
    runs=(Run(name="a", block=(LayerShape(ffn=16),), count=3), Run(name="b", block=(LayerShape(ffn=32),), count=2)),
)  # fmt: skip


def staged(*stages: dict[str, Any], vp: int = 1, schedule: Schedule = Schedule.ONE_F_ONE_B) -> Layout:
    """Two ranks with these stages."""
    listed = tuple(VirtualStage(rank=i % 2, chunk=i // 2, **stage) for i, stage in enumerate(stages))
    return Layout(pp=2, vp=vp, schedule=schedule, stages=listed)


def test_stages_hold_the_layers_one_after_another() -> None:
    """Three of one kind and two of another; recomputed ones are the first unless their kinds are stated."""
    assert layer_kinds(MODEL).tolist() == [0, 0, 0, 1, 1]
    assert layer_kinds(replace(MODEL, order=(1, 0, 0, 1, 0))).tolist() == [1, 0, 0, 1, 0]
    first = {"layers": 4, "recomputed": 2}
    blocks, again = stage_blocks(staged(first, {"layers": 1}), MODEL)
    assert (blocks.tolist(), again.tolist()) == ([[3, 1], [0, 1]], [[2, 0], [0, 0]])
    stated = first | {"recomputed_kinds": {"b": 1, "a": 1}}
    assert stage_blocks(staged(stated, {"layers": 1}), MODEL)[1].tolist() == [[1, 1], [0, 0]]
    most = first | {"recomputed": 4, "recomputed_kinds": {"a": 3, "b": 1}}
    assert stage_blocks(staged(most, {"layers": 1}), MODEL)[1].tolist() == [[3, 1], [0, 0]]
    chunked = staged(
        {"layers": 1}, {"layers": 1}, {"layers": 1}, {"layers": 2}, vp=2, schedule=Schedule.INTERLEAVED
    )
    assert rank_blocks(chunked, MODEL)[0].tolist() == [[2, 0], [1, 2]]


@pytest.mark.parametrize(("kinds", "words"), [
    ({"a": 4}, "stages[0]: can't recompute 4 layers of kind 'a' (layers of a, b that the stage holds)"),
    ({"b": 2, "a": 4}, "stages[0]: can't recompute 4 layers of kind 'a' (layers of a, b that the stage holds)"),
    ({"c": 1}, "stages[0]: can't recompute 1 layers of kind 'c' (layers of a, b that the stage holds)"),
])  # fmt: skip
def test_kinds_that_a_stage_does_not_hold(kinds: dict[str, int], words: str) -> None:
    """The first that is too many, or one that the model lacks; none of it is nothing."""
    with pytest.raises(InputError) as error:
        stage_blocks(staged({"layers": 4, "recomputed_kinds": kinds}, {"layers": 1}), MODEL)
    assert str(error.value) == words
    none = staged({"layers": 4, "recomputed_kinds": {"c": 0, "a": 1}}, {"layers": 1})
    assert stage_blocks(none, MODEL)[1].tolist() == [[1, 0], [0, 0]]
    with pytest.raises(InputError, match="stages hold 4 layers, the model has 5"):
        stage_blocks(staged({"layers": 4}, {"layers": 0}), MODEL)


def test_a_rank_pays_for_the_buffer_of_one_recomputed_block() -> None:
    """Two ranks of two blocks: 1 + 4 bytes each, 1 + 1 recomputed, a buffer of 7 where some block is."""
    terms = terms_of(
        [2], [1], recompute_transient_bytes=np.array([7.0]), first_s=np.array([0.5]), last_s=np.array([0.25]),
        fixed_s=np.array([3.0]), first_bytes=np.array([2.0]), capacity_bytes=np.array([16.0]),
    )  # fmt: skip
    blocks = np.array([[[2], [2]]])
    for again, bytes_, times, fits in (
        ([[0], [0]], [12, 10], [2.5, 2.25], True), ([[1], [0]], [12 - 3 + 7, 10], [2.75, 2.25], True),
        ([[0], [2]], [12, 10 - 6 + 7], [2.5, 2.75], True), ([[1], [1]], [16, 14], [2.75, 2.5], True),
    ):  # fmt: skip
        costs = price_stages(terms, blocks, np.array([again]))
        assert costs.rank_bytes[0].tolist() == bytes_
        assert costs.rank_time_s[0].tolist() == times
        assert costs.peak_bytes[0] == max(bytes_) and bool(costs.fits[0]) is fits
        assert costs.step_time_s[0] == 8 * max(times) + min(times) + 3.0
    full = replace(terms, capacity_bytes=np.array([15.9]))
    assert not price_stages(full, blocks, np.array([[[1], [0]]])).fits[0]


@pytest.mark.parametrize(("pp", "vp", "batches", "share"), [
    (1, 1, 8, 1 / 8), (4, 1, 8, 3 / 8), (4, 2, 8, (3 + 4 + 1) / 16), (2, 3, 4, (1 + 4 + 1) / 12),
    (8, 1, 4, 1.0), (1, 1, 1, 1.0),
])  # fmt: skip
def test_passes_beside_which_no_other_run(pp: int, vp: int, batches: int, share: float) -> None:
    """Those that fill a pipeline, and a chunk more where there are several."""
    rows = batch_of([Layout(pp=pp, vp=vp, micro_batches=batches)])
    assert lone_share(rows).tolist() == [share]


def test_parameters_in_matrices() -> None:
    """Queries, keys, values and output of 8 x (8 + 4 + 4 + 8), two matrices of 8 x ffn, and the output's 8 x 10."""
    counted = count_parameters(MODEL)
    attention, mlp = 8 * (8 + 4 + 4 + 8), 2 * 8
    assert counted.matrices == 5 * attention + 3 * mlp * 16 + 2 * mlp * 32 + 80
    assert counted.total > counted.matrices + 80 and counted.active == counted.total
    tied = count_parameters(replace(MODEL, tied_embeddings=True))
    assert tied.matrices == counted.matrices and tied.total == counted.total - 80


def test_objectives_in_words_and_units() -> None:
    """Goals by what they mean, statistics by theirs; regrets are shares."""
    for name in NAMES:
        found = parse_objective(name)
        assert found.is_time is (name == "time")
        if name in GOALS:
            assert (found.words, found.unit) == (GOALS[name].meaning, GOALS[name].unit)
        else:
            assert found.words == WORDS[name.partition(":")[0]]
            assert found.unit == ("" if name.startswith("regret") else "s")
    assert parse_objective("quantile:0.9").share == 0.9
    assert parse_objective("regret:mean").mean and not parse_objective("regret").mean
    wrong = {"quantile:1": "no share", "quantile:0": "no share", "quantile": "no objective", "tim": "time?"}
    for text, hint in wrong.items():
        with pytest.raises(InputError, match=hint):
            parse_objective(text)
