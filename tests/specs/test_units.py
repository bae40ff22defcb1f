"""Quantities with units are read as SI numbers and written for people."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.units import (
    BANDWIDTH,
    BYTES,
    COUNT,
    FLOP_RATE,
    HOURS,
    NUMBER,
    POWER,
    TIME,
    TOKENS,
    Dimension,
    format_bytes,
    format_count,
    format_rate,
    format_seconds,
    parse_quantity,
    shown,
    whole_number,
)

DIMENSIONS = (BANDWIDTH, BYTES, COUNT, FLOP_RATE, HOURS, NUMBER, POWER, TIME, TOKENS)


@pytest.mark.parametrize(
    ("text", "dimension", "value"),
    [
        ("400 Gbit/s", BANDWIDTH, 50e9),
        ("400Gbps", BANDWIDTH, 50e9),
        ("400 gbit/s", BANDWIDTH, 50e9),
        ("400 GBit/s", BANDWIDTH, 50e9),
        ("400gbps", BANDWIDTH, 50e9),
        ("200 Gb/s", BANDWIDTH, 25e9),
        ("450 GB/s", BANDWIDTH, 450e9),
        ("1 GiB/s", BANDWIDTH, 2.0**30),
        (450e9, BANDWIDTH, 450e9),
        ("80 GB", BYTES, 80e9),
        ("80 GiB", BYTES, 80 * 2.0**30),
        ("85_899_345_920", BYTES, 80 * 2.0**30),
        ("10 us", TIME, 1e-5),
        ("5 min", TIME, 300.0),
        ("1.5 h", TIME, 5400.0),
        ("2 days", TIME, 172_800.0),
        ("15.6e12", TOKENS, 15.6e12),
        ("1.4T tokens", TOKENS, 1.4e12),
        ("16M tokens", TOKENS, 16e6),
        ("15.6 T", TOKENS, 15.6e12),
        ("405B", COUNT, 405e9),
        ("989.4 TFLOP/s", FLOP_RATE, 989.4e12),
        ("2 PFLOPS", FLOP_RATE, 2e15),
        ("1.2 kW", POWER, 1200.0),
        ("2000 days", HOURS, 48_000.0),
        (50_700, HOURS, 50_700.0),
        ("1e-4", NUMBER, 1e-4),
        (".5", NUMBER, 0.5),
        ("-3", NUMBER, -3.0),
    ],
)
def test_reads_units(text: object, dimension: Dimension, value: float) -> None:
    """Each unit means what datasheets mean by it; a plain number is SI."""
    assert parse_quantity(text, dimension) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(
    ("value", "dimension", "message"),
    [
        # a bit is no byte
        ("80 Gb", BYTES, "'80 Gb': unit 'Gb' is unknown (expected bytes, or a unit: \"80 GB\", \"80 GiB\")"),
        # another dimension
        ("5 min", BANDWIDTH, "unit 'min' is unknown"),
        # case decides between milli and mega
        ("5 MS", TIME, "unit 'MS' is unknown"),
        ("many", BYTES, "'many' is not a quantity"),
        ("", BYTES, "'' is not a quantity"),
        ("1e999", NUMBER, "is not a finite number (a number)"),
        (float("nan"), TIME, "nan is not a finite number"),
        (True, NUMBER, "true is not a quantity"),
        (None, NUMBER, "nothing is not a quantity"),
        ([1], NUMBER, "a list is not a quantity"),
        (10**400, NUMBER, "a huge number is not a finite number"),
        ("3 s", NUMBER, "unit 's' is unknown (a number without a unit)"),
        ("1" * 100, NUMBER, "is not a quantity"),
    ],
)
def test_refuses_nonsense(value: object, dimension: Dimension, message: str) -> None:
    """What is no quantity of the dimension is one line that says what is allowed."""
    with pytest.raises(InputError) as caught:
        parse_quantity(value, dimension, key="x")
    assert message in str(caught.value)
    assert str(caught.value).startswith("x: ")


@given(value=st.text() | st.integers() | st.floats() | st.booleans() | st.none(), number=st.integers(0, 8))
def test_any_value_is_a_finite_number_or_an_input_error(value: object, number: int) -> None:
    """No input escapes as another exception, NaN or infinity."""
    try:
        result = parse_quantity(value, DIMENSIONS[number])
    except InputError as error:
        assert len(error.problems) == 1
        assert "\n" not in str(error)
    else:
        assert abs(result) < float("inf")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (85.0e9, "85 GB"),
        (1.13e12, "1.13 TB"),
        (512, "512 B"),
        (999_960, "1.00 MB"),
        (22.817e9, "22.8 GB"),
        (0, "0 B"),
    ],
)
def test_formats_bytes(value: float, text: str) -> None:
    """Bytes have a decimal prefix and about three digits."""
    assert format_bytes(value) == text


def test_formats_rates() -> None:
    """Rates carry their unit."""
    assert format_rate(50e9) == "50 GB/s"
    assert format_rate(989.4e12, "FLOP/s") == "989 TFLOP/s"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (2.7e-6, "2.70 us"),
        (0.0123, "12.3 ms"),
        (4.51, "4.51 s"),
        (119.0, "119 s"),
        (1860.0, "31.0 min"),
        (11_000.0, "3.06 h"),
        (1.70106e6, "19.7 days"),
        (7.02e9, "222 years"),
        (0.0, "0 us"),
    ],
)
def test_formats_seconds(value: float, text: str) -> None:
    """Times take the unit that reads best."""
    assert format_seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (15e12, "15T"),
        (15.6e12, "15.6T"),
        (999.9e9, "999.9B"),
        (1e12, "1T"),
        (350e6, "350M"),
        (12_345, "12,345"),
        (1e20, "1e+20"),
    ],
)
def test_formats_counts(value: float, text: str) -> None:
    """Tokens are written as their users write them."""
    assert format_count(value) == text


@given(value=st.floats(0, 1e20))
def test_formatted_bytes_read_back(value: float) -> None:
    """What is written can be read again, to the digits shown."""
    assert parse_quantity(format_bytes(value), BYTES) == pytest.approx(value, rel=6e-3, abs=0.5)


@given(value=st.text() | st.integers() | st.lists(st.integers()) | st.dictionaries(st.text(), st.integers()))
def test_shown_is_short_and_on_one_line(value: object) -> None:
    """A value in a message never breaks the line."""
    assert len(shown(value)) <= 60
    assert "\n" not in shown(value)


def test_a_bandwidth_without_bits_or_bytes_is_asked_about() -> None:
    """A network's 400G are bits, a memory's bytes: nobody guesses."""
    with pytest.raises(InputError, match=r'bits or bytes per second.*"400 Gbit/s" or "400 GB/s"'):
        parse_quantity("400G", BANDWIDTH)


@pytest.mark.parametrize("text", ["0_", "1__0", "1_e5", "1._5", "1.5_"])
def test_an_underscore_stands_between_digits(text: str) -> None:
    """What is no number is bad input, not a fault of the reader."""
    assert whole_number("1_000") == 1000
    assert whole_number(text) is None
    with pytest.raises(InputError, match="is not a quantity"):
        parse_quantity(text, COUNT)
