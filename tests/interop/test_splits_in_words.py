"""Splits of layers as launch files say them: equal stages, ends counted as layers, ends with numbers of their own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from layoutopt.optimizer.interop.stages import counted_ends, is_even_split, predicts_last, uneven_ends
from layoutopt.optimizer.specs.layout import Layout
from layoutopt.optimizer.specs.loading import load_workload
from layoutopt.optimizer.specs.stage_split import build_stages
from layoutopt.optimizer.specs.vocabulary import Schedule

MODEL = load_workload("llama3-8b").model
PREDICTING = load_workload("deepseek-v3").model


def _layout(*counts: int, vp: int = 1) -> Layout:
    """A pipeline with these layers on its virtual stages."""
    schedule = Schedule.INTERLEAVED if vp > 1 else Schedule.ONE_F_ONE_B
    pp, run = len(counts) // vp, replace(MODEL.runs[0], count=sum(counts))
    stages = build_stages(replace(MODEL, runs=(run,)), counts, pp, schedule, 0)
    return Layout(pp=pp, vp=vp, micro_batches=8 * pp, schedule=schedule, stages=stages)


@pytest.mark.parametrize(
    ("counts", "ends"),
    [
        ((7, 8, 8, 8), (True, False)),
        ((7, 8, 8, 7), (True, True)),
        ((8, 8, 8, 7), (False, True)),
        ((8, 8, 8, 8), (False, False)),
        ((7, 8, 7), (True, True)),
        ((6, 8, 8, 8), None),
        ((9, 8, 8, 8), None),
        ((8, 8, 8, 6), None),
        ((8, 8, 7, 8), None),
        ((7, 8), None),
    ],
)
def test_ends_that_count_as_layers(counts: tuple[int, ...], ends: tuple[bool, bool] | None) -> None:
    """The first or the last stage holds one layer fewer, all others the same number."""
    assert counted_ends(_layout(*counts)) == ends


@pytest.mark.parametrize(
    ("counts", "vp", "ends"),
    [
        ((5, 8, 8, 6), 1, (5, 6)),
        ((9, 7), 1, (9, 7)),
        ((2, 4, 4, 3) * 2, 2, (4, 6)),
        ((2, 4, 4, 3, 3, 4, 4, 3), 2, None),
        ((5, 8, 7, 6), 1, None),
        ((0, 8, 8, 6), 1, None),
        ((32,), 1, None),
    ],
)
def test_ends_with_numbers_of_their_own(
    counts: tuple[int, ...], vp: int, ends: tuple[int, int] | None
) -> None:
    """Layers of the first and the last rank over all chunks, which are the same; no stage is empty."""
    assert uneven_ends(_layout(*counts, vp=vp)) == ends


def test_even_splits_have_equal_stages_and_predict_last() -> None:
    """Equal stages need no words; prediction layers elsewhere do."""
    even = _layout(8, 8, 8, 8)
    assert is_even_split(even, MODEL)
    assert not is_even_split(_layout(7, 9, 8, 8), MODEL)
    moved = replace(even, stages=(replace(even.stages[0], mtp=1), *even.stages[1:]))
    last = replace(even, stages=(*even.stages[:-1], replace(even.stages[-1], mtp=1)))
    assert not predicts_last(moved) and not is_even_split(moved, MODEL)
    assert predicts_last(last) and is_even_split(last, MODEL)
    assert not is_even_split(_layout(20, 20, 20, 1), PREDICTING)
