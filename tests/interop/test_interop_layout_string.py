"""Pipeline layout strings: what is written reads back, what is wrong is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layoutopt.optimizer.interop.stages import stage_items
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.layout_string import StageItems, parse_layout_string, write_layout_string
from layoutopt.optimizer.specs.vocabulary import Schedule


@st.composite
def stage_lists(draw: st.DrawFn) -> tuple[StageItems, ...]:
    """Legal stages: the embedding first, the loss last, MTP layers in one stage behind all decoder layers."""
    counts = draw(st.lists(st.sampled_from([0, 1, 2, 2, 2, 3, 20]), min_size=1, max_size=24))
    last_layer = max((index for index, count in enumerate(counts) if count), default=0)
    mtp_at = draw(st.integers(last_layer, len(counts) - 1))
    mtp = draw(st.integers(0, 2))
    return tuple(
        StageItems(
            layers=count,
            mtp=mtp if index == mtp_at else 0,
            embedding=index == 0,
            loss=index == len(counts) - 1,
        )
        for index, count in enumerate(counts)
    )


@given(stage_lists())
def test_written_strings_read_back(stages: tuple[StageItems, ...]) -> None:
    """Writer and parser are inverse."""
    assert parse_layout_string(write_layout_string(stages)) == stages


@given(stage_lists(), st.data())
def test_commas_are_ignored(stages: tuple[StageItems, ...], data: st.DataObject) -> None:
    """A comma between any two items changes nothing."""
    text = write_layout_string(stages)
    places = [
        index for index in range(1, len(text)) if text[index - 1] in "EtmL|" and text[index] in "EtmL|("
    ]
    if places:
        at = data.draw(st.sampled_from(places))
        text = text[:at] + "," + text[at:]
    assert parse_layout_string(text) == stages


@pytest.mark.parametrize(
    ("text", "stages", "layers", "mtp"),
    [
        ("Et*3|(tt|)*29,m|L", 32, 61, 1),
        ("Et*4|(tttt|)*14tmL", 16, 61, 1),
        ("E||t|L", 4, 1, 0),
        ("EtL", 1, 1, 0),
    ],
)
def test_published_examples(text: str, stages: int, layers: int, mtp: int) -> None:
    """The forms in Megatron-LM's documentation."""
    got = parse_layout_string(text)
    assert (len(got), sum(s.layers for s in got), sum(s.mtp for s in got)) == (stages, layers, mtp)


@pytest.mark.parametrize(
    "text",
    [
        "",  # nothing
        "tt|tL",  # no embedding
        "Ett|tt",  # no loss
        "tE|L",  # embedding not first
        "EtL|t",  # loss not last
        "E t|L",  # a blank
        "E((t|)*2)*2L",  # nested groups
        "Et|(tt|L",  # unbalanced
        "Em|tL",  # MTP before a decoder layer
        "Etm|mL",  # MTP in two stages
        "Et*|L",  # repetition without a number
        "Ex|L",  # unknown letter
        "Et*999999|L",  # more layers than anything has
    ],
)
def test_illegal_strings_are_refused(text: str) -> None:
    """Each breaks one rule of the grammar."""
    with pytest.raises(InputError):
        parse_layout_string(text)


def test_v_shaped_schedules_come_back_to_rank_0() -> None:
    """The second chunk runs backwards: embedding and head share rank 0, counts in model order land there."""
    items = stage_items([1, 2, 3, 4, 5, 6], 3, Schedule.ZB_V)
    assert items is not None
    assert [(item.layers, item.embedding, item.loss) for item in items] == [
        (1, True, False),
        (2, False, False),
        (3, False, False),
        (6, False, True),
        (5, False, False),
        (4, False, False),
    ]
