"""Lists and ranges as they are typed: ``256,512``, ``256:16384:x2``, ``8:64:+8``."""

from __future__ import annotations

from layoutopt.optimizer.specs.errors import InputError, input_error
from layoutopt.optimizer.specs.units import COUNT, parse_quantity, whole_number

MAX_VALUES = 100_000
"""A list longer than this is a typing error."""

EXAMPLES = '"256,512", "256:16384:x2", "8:64:+8"'
RATES = (1e-3, 1e6)
"""Least and largest network rate of a GPU, Gbit/s: below it no step ends, and no network is near the other end."""


def parse_counts(text: str, *, key: str) -> tuple[int, ...]:
    """Read whole numbers above 0, ascending and each once.

    Parts are separated by commas. A part is a number (``1k`` works) or ``first:last:xFACTOR`` or
    ``first:last:+STEP``; ``last`` belongs to the range when the steps meet it. Raises ``InputError``.
    """
    values: set[int] = set()
    for part in text.split(","):
        values.update(_part(part.strip(), key))
        if len(values) > MAX_VALUES:
            raise input_error(f"{text!r} has more than {MAX_VALUES} values", "a larger step", key=key)
    return tuple(sorted(values))


def parse_rates(text: str, *, key: str) -> tuple[float, ...]:
    """Read rates in Gbit/s separated by commas, ascending and each once; raises ``InputError``."""
    rates = sorted({_number(part.strip(), key) for part in text.split(",")})
    low, high = RATES
    if not low <= rates[0] <= rates[-1] <= high:
        raise input_error(f"{text[:60]!r} is out of range", f"{low:g} to {high:,.0f} Gbit/s", key=key)
    return tuple(rates)


def _part(part: str, key: str) -> list[int]:
    if ":" not in part:
        return [_whole(part, key)]
    pieces = part.split(":")
    if len(pieces) != 3 or pieces[2][:1] not in ("x", "+"):
        forms = f"first:last:xFACTOR or first:last:+STEP, e.g. {EXAMPLES}"
        raise input_error(f"{part!r} is no range", forms, key=key)
    first, last, step = _whole(pieces[0], key), _whole(pieces[1], key), pieces[2][1:]
    if last < first:
        raise input_error(f"{part!r} ends below its start", "first <= last", key=key)
    if pieces[2].startswith("+"):
        # Cut before it becomes a list: "1:1e12:+1" would not fit in memory. One more shows the caller that it is too long.
        return list(range(first, last + 1, _whole(step, key))[: MAX_VALUES + 1])
    factor = _number(step, key)
    if factor <= 1:
        raise input_error(f"{part!r} multiplies by {factor:g}", "a factor above 1", key=key)
    values: list[int] = []
    value = float(first)
    # Rounded products: 1.5 * 1.5 * ... of a whole number need not be whole.
    while round(value) <= last and len(values) <= MAX_VALUES:
        values.append(round(value))
        value *= factor
    return values


def _whole(text: str, key: str) -> int:
    _number(text, key)  # says what is wrong with a text that is no number at all
    value = whole_number(text)
    if value is None:
        raise input_error(f"{text!r} is not whole", "whole numbers from 1", key=key)
    return value


def _number(text: str, key: str) -> float:
    try:
        value = parse_quantity(text, COUNT, key=key)
    except InputError:
        raise input_error(f"{text!r} is not a number", EXAMPLES, key=key) from None
    if not 0 < value < 1e12:
        raise input_error(f"{text!r} is out of range", "above 0", key=key)
    return value
