"""Lists and ranges of a sweep's axes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.sweep.ranges import parse_counts, parse_rates


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("256", (256,)),
        ("512, 256,512", (256, 512)),
        ("256:16384:x2", (256, 512, 1024, 2048, 4096, 8192, 16384)),
        ("8:40:+8", (8, 16, 24, 32, 40)),
        ("8:41:+8,1k", (8, 16, 24, 32, 40, 1000)),
        ("4:20:x1.5", (4, 6, 9, 14, 20)),
    ],
)
def test_counts(text: str, values: tuple[int, ...]) -> None:
    """Lists, factors and steps give sorted distinct numbers."""
    assert parse_counts(text, key="gpus") == values


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "gpus: '' is not a number"),  # nothing typed
        ("12.5", "gpus: '12.5' is not whole"),  # no half GPUs
        ("0", "gpus: '0' is out of range"),  # no empty cluster
        ("-8", "gpus: '-8' is out of range"),
        ("8:64", "gpus: '8:64' is no range"),  # the step is missing
        ("8:64:2", "gpus: '8:64:2' is no range"),  # factor or step?
        ("64:8:x2", "gpus: '64:8:x2' ends below its start"),
        ("8:64:x1", "gpus: '8:64:x1' multiplies by 1"),  # never ends
        ("1:1000000:+1", "gpus: '1:1000000:+1' has more than 100000 values"),
        ("eight", "gpus: 'eight' is not a number"),
    ],
)
def test_bad_counts(text: str, message: str) -> None:
    """Every malformed list says what is wrong with it."""
    with pytest.raises(InputError) as error:
        parse_counts(text, key="gpus")
    assert str(error.value).startswith(message)


def test_rates_may_be_fractions() -> None:
    """Network rates are sorted numbers."""
    assert parse_rates("400,200,12.5", key="network") == (12.5, 200.0, 400.0)
    for absurd in ("1e-300", "400,1e9"):
        with pytest.raises(InputError, match="out of range"):
            parse_rates(absurd, key="network")


@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=20))
def test_lists_round_trip(values: list[int]) -> None:
    """A written list reads back as its sorted distinct values."""
    assert parse_counts(",".join(map(str, values)), key="gpus") == tuple(sorted(set(values)))
