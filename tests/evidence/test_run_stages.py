"""Stage splits of measured runs: stated, even, ends as layers, a recipe's, a framework's own, unknown."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layoutopt.optimizer.evidence.case import SkipRow
from layoutopt.optimizer.evidence.case_layout import ENDS_AS_LAYERS, split_of
from layoutopt.optimizer.evidence.run import MeasuredRun
from layoutopt.optimizer.frameworks.registry import Framework

if TYPE_CHECKING:
    from layoutopt.optimizer.specs.layout_string import StageItems


def split(
    layers: int,
    stages: int,
    *,
    stated: str | None = None,
    framework: Framework = Framework.MEGATRON,
    mtp: int = 0,
) -> tuple[StageItems, ...]:
    """Split a made-up model."""
    run = MeasuredRun(id="made-up", stage_split=stated)
    return split_of(run, framework, layers=layers, mtp=mtp, stages=stages)


def counts(items: tuple[StageItems, ...]) -> list[int]:
    """Return the decoder layers of each stage."""
    return [item.layers for item in items]


@pytest.mark.parametrize(
    ("layers", "stages", "expected"),
    [
        (32, 4, [8, 8, 8, 8]),  # divides
        (126, 128, [0, *[1] * 126, 0]),  # Llama 3: empty ends beside embedding and loss
        (30, 8, [3, 4, 4, 4, 4, 4, 4, 3]),  # 30 + 2 divides
        (61, 16, [4] * 15 + [1]),  # DeepSeek-V3's recipe
        (61, 32, [1, *[2] * 30, 0]),
    ],
)
def test_splits_that_are_not_stated(layers: int, stages: int, expected: list[int]) -> None:
    """Even first, then embedding and loss as one layer each, then the recipe for that depth."""
    items = split(layers, stages)
    assert counts(items) == expected
    assert (items[0].embedding, items[-1].loss) == (True, True)


def test_deepspeed_fills_from_the_front() -> None:
    """DeepSpeed gives every stage the ceiling until the layers run out."""
    assert counts(split(78, 12, framework=Framework.MEGATRON_DEEPSPEED)) == [7] * 11 + [1]


def test_an_unknown_split_is_no_guess() -> None:
    """Where nothing says how 33 layers lie on two stages, the row is skipped."""
    with pytest.raises(SkipRow, match="split of 33 layers over 2 virtual stages not stated"):
        split(33, 2)


def test_a_stated_split_counts() -> None:
    """A layout string wins over an even split, and its MTP layers stay where it puts them."""
    assert counts(split(6, 3, stated="Et|ttt|ttL")) == [1, 3, 2]
    with_mtp = split(6, 4, stated="Ett|ttt|tm|L", mtp=1)
    assert [item.mtp for item in with_mtp] == [0, 0, 1, 0]


def test_stated_words() -> None:
    """Ends as layers where that divides although the layers divide too; one stage has no ends to spare."""
    assert counts(split(6, 2, stated=ENDS_AS_LAYERS)) == [3, 3]
    assert counts(split(8, 1, stated=ENDS_AS_LAYERS)) == [8]
    assert counts(split(14, 4, stated=ENDS_AS_LAYERS)) == [3, 4, 4, 3]


@pytest.mark.parametrize(
    ("stated", "mtp", "reason"),
    [
        ("as usual", 0, "stage split 'as usual' is not understood"),
        ("Ett|tt|ttL", 0, "stage split has 3 stages, pp\\*vp is 2"),
        ("Ett|ttL", 0, "stage split has 4 layers, the model 6"),
        ("Ettt|tttmL", 0, "stage split has 1 MTP layers, the model 0"),
        ("Ettt|tttL|", 0, "loss"),
    ],
)
def test_a_stated_split_that_does_not_fit(stated: str, mtp: int, reason: str) -> None:
    """A split that contradicts the row is a reason to skip it, not to ignore the split."""
    with pytest.raises(SkipRow, match=reason):
        split(6, 2, stated=stated, mtp=mtp)


@given(
    st.integers(1, 200),
    st.integers(1, 64),
    st.sampled_from([Framework.MEGATRON, Framework.DEEPSPEED]),
    st.integers(0, 2),
)
def test_every_split_holds_the_model(layers: int, stages: int, framework: Framework, mtp: int) -> None:
    """Whatever the depth, a split has all layers, one embedding, one loss and the MTP layers."""
    try:
        items = split(layers, stages, framework=framework, mtp=mtp)
    except SkipRow:
        return
    assert len(items) == stages
    assert sum(item.layers for item in items) == layers
    assert min(item.layers for item in items) >= 0
    assert sum(item.mtp for item in items) == mtp
    assert [item.embedding for item in items].count(True) == 1 and items[0].embedding
    assert [item.loss for item in items].count(True) == 1 and items[-1].loss
