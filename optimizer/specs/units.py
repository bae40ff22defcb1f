"""Quantities with units: read what users write ("400 Gbit/s", "1.4T tokens"), write SI for people."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from layoutopt.optimizer.specs.errors import InputError, input_error

if TYPE_CHECKING:
    from collections.abc import Mapping

_DECIMAL = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}
_SPOKEN = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12} | {
    prefix: _BINARY[prefix] for prefix in ("Ki", "Mi", "Gi", "Ti")
}
_NUMBER = r"[-+]?(?:\d[\d_]*(?:\.[\d_]*)?|\.\d[\d_]*)(?:[eE][-+]?\d+)?"
_QUANTITY = re.compile(rf"\s*({_NUMBER})\s*(.*?)\s*")
_THOUSANDS = re.compile(r"\s*\d{1,3}(,\d{3})+\b.*")
MAX_SHOWN = 60


HOUR_S = 3_600.0
DAY_S = 24 * HOUR_S
YEAR_S = 365.25 * DAY_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimension:
    """A kind of quantity: its name, its units as factors to SI, and what an error message shows as valid.

    What lies between 0 and ``least`` is a number whose unit was forgotten.
    """

    name: str
    units: Mapping[str, float]
    examples: str
    least: float = 0.0


def _scaled(prefixes: Mapping[str, float], *endings: str, factor: float = 1.0) -> dict[str, float]:
    return {prefix + ending: scale * factor for ending in endings for prefix, scale in prefixes.items()}


BYTES = Dimension(
    name="bytes",
    units=_scaled(_DECIMAL | _BINARY, "B"),
    examples='bytes, or a unit: "80 GB", "80 GiB"',
)
BANDWIDTH = Dimension(
    name="bandwidth",
    units=_scaled(_DECIMAL | _BINARY, "B/s", "Bps")
    | _scaled(_DECIMAL, "bit/s", "Bit/s", "b/s", "bps", factor=1 / 8)
    # gbps is how many write it; a small g before bytes would be as clear, and a small m before B is not
    | _scaled({"m": 1e6, "g": 1e9, "t": 1e12}, "bit/s", "bps", factor=1 / 8),
    examples='bytes/s, or a unit: "400 Gbit/s", "450 GB/s"',
    least=1e6,
)
TIME = Dimension(
    name="time",
    # keyboards have the micro sign or the Greek letter, which look alike
    units={"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "min": 60.0}
    | dict.fromkeys(("h", "hour", "hours"), HOUR_S)
    | dict.fromkeys(("d", "day", "days"), DAY_S),
    examples='seconds, or a unit: "10 us", "5 min", "2 h"',
)
FLOP_RATE = Dimension(
    name="FLOP/s",
    units=_scaled(_DECIMAL, "FLOP/s", "FLOPS", "FLOPs", "FLOPs/s"),
    examples='FLOP/s, or a unit: "989.4 TFLOP/s"',
)
TOKENS = Dimension(
    name="tokens",
    units=_SPOKEN | _scaled(_SPOKEN, " tokens", "tokens"),
    examples='tokens: 15.6e12, "15.6T", "16Mi tokens"',
)
COUNT = Dimension(
    name="count",
    units=_SPOKEN,
    examples='a number: 405e9, "405B"',
)
POWER = Dimension(name="power", units=_scaled(_DECIMAL, "W"), examples='watts, or a unit: "700 W"')
HOURS = Dimension(
    name="hours",
    units={unit: factor / 3600.0 for unit, factor in TIME.units.items()},
    examples='hours, or a unit: "50000 h", "2000 days"',
)
NUMBER = Dimension(name="number", units={}, examples="a number")
RATIO = Dimension(name="ratio", units={":1": 1.0}, examples='3, or "3:1"')


def parse_quantity(value: object, dimension: Dimension, *, key: str = "") -> float:
    """Read a quantity as an SI number.

    Parameters
    ----------
    value
        A number, taken as SI (hours for ``HOURS``), or a text of a number and a unit of the dimension.
    dimension
        What is expected, e.g. ``BYTES``.

    Raises
    ------
    InputError
        If the value is not a finite number with a unit of the dimension; lists what is allowed.
    """
    # To Python True is 1: ``memory: yes`` would be a byte.
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise input_error(f"{shown(value)} is not a quantity", dimension.examples, key=key)
    number = _read(value, dimension, key) if isinstance(value, str) else _as_float(value)
    if not math.isfinite(number):
        raise input_error(f"{shown(value)} is not a finite number", dimension.examples, key=key)
    # 400 of a NIC is Gbit/s and not bytes/s, and an answer from it would be wrong by eight digits without a word.
    if 0.0 < number < dimension.least:
        what = f"{shown(value)} is a {dimension.name} of {number:g} in SI"
        raise input_error(what, dimension.examples, key=key)
    return number


def whole_number(value: object, dimension: Dimension = COUNT) -> int | None:
    """Read a count as files and options write it: ``8192``, ``8,192``, ``8Ki``, ``100k``; None for what is none.

    Parameters
    ----------
    value
        A number, or a text of a number with thousands separated by commas or _ and an optional unit.
    dimension
        Whose units may follow: ``COUNT``, or ``TOKENS`` for what counts tokens.
    """
    if type(value) is int:
        return value
    text = without_commas(value) if isinstance(value, str) else value
    if isinstance(text, str) and len(text) <= MAX_SHOWN and text.strip().isdecimal():
        return int(text)  # digits beyond those of a float would be lost
    try:
        number = parse_quantity(text, dimension)
    except InputError:
        return None
    # 1.001k is a whole number, though not its float times a thousand.
    return round(number) if abs(number - round(number)) <= 1e-12 * abs(number) else None


def without_commas(text: str) -> str:
    """Return a text without the commas that separate thousands; others stay."""
    return text.replace(",", "") if _THOUSANDS.fullmatch(text) else text


def _read(text: str, dimension: Dimension, key: str) -> float:
    match = _QUANTITY.fullmatch(text[:MAX_SHOWN]) if len(text) <= MAX_SHOWN else None
    if match is None:
        raise input_error(f"{shown(text)} is not a quantity", dimension.examples, key=key)
    number, unit = match.groups()
    factor = 1.0 if not unit else dimension.units.get(unit)
    if factor is None and dimension is BANDWIDTH and unit in _DECIMAL:
        what = f"{shown(text)}: bits or bytes per second?"
        raise input_error(what, f'"{number} {unit}bit/s" or "{number} {unit}B/s"', key=key)
    if factor is None and dimension is BYTES and unit.upper() in _DECIMAL:
        # nccl-tests' -b 1M is 1048576 bytes, as is dd's; catalogs of disks and files mean 1000000.
        what, prefix = f"{shown(text)}: thousands or multiples of 1024?", unit.upper()
        allowed = f'"{number} {prefix}iB", which nccl-tests calls {unit}, or "{number} {prefix}B"'
        raise input_error(what, allowed, key=key)
    if factor is None:
        raise input_error(f"{shown(text)}: unit {shown(unit)} is unknown", _known(dimension), key=key)
    try:
        return float(number) * factor
    except ValueError:  # an underscore that stands between no digits
        raise input_error(f"{shown(text)} is not a quantity", dimension.examples, key=key) from None


def _as_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _known(dimension: Dimension) -> str:
    return f"expected {dimension.examples}" if dimension.units else "a number without a unit"


def shown(value: object) -> str:
    """Write a value from a file on one line of at most ``MAX_SHOWN`` characters, texts in quotes."""
    text = repr(value) if isinstance(value, str) else _plain(value)
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "..."


def _plain(value: object) -> str:
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    if value is None:
        return "nothing"
    if isinstance(value, int) and abs(value) >= 10**MAX_SHOWN:
        return "a huge number"  # str() refuses integers of thousands of digits
    if isinstance(value, float):
        return f"{value:.12g}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _prefixed(value: float, unit: str) -> str:
    scale, prefix = 1.0, ""
    for name in ("k", "M", "G", "T", "P", "E"):
        # 999.95 rounds to 1000.0: the next prefix reads better
        if abs(value) / scale < 999.95:
            break
        scale, prefix = _DECIMAL[name], name
    number = value / scale
    digits = 0 if abs(number) >= 99.95 or number == int(number) else 1 if abs(number) >= 9.995 else 2
    return f"{number:.{digits}f} {prefix}{unit}"


def counted(number: int, word: str) -> str:
    """Return a number with its word, in the plural where it is not one."""
    return f"{number:,} {word}{'s' * (number != 1)}"


def format_bytes(value_bytes: float) -> str:
    """Write bytes with a decimal prefix and about three digits: ``85.0e9`` as ``85 GB``."""
    return _prefixed(value_bytes, "B")


def format_rate(value_per_s: float, unit: str = "B/s") -> str:
    """Write a rate with a decimal prefix and about three digits: ``989.4e12`` FLOP/s as ``989 TFLOP/s``."""
    return _prefixed(value_per_s, unit)


def format_oversubscription(ratio: float) -> str:
    """Write downlink over uplink capacity as networks are sold: ``7:1``, full bisection where nothing is saved."""
    return f"{ratio:g}:1" if ratio > 1 else "full bisection"


def format_count(value: float) -> str:
    """Write a large count as model builders do, with M, B and T: ``15e12`` tokens as ``15T``."""
    for scale, ending in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if value >= 0.99995 * scale:  # four digits: more rounds to the next ending
            return f"{value / scale:,.4g}{ending}" if value < 1e16 else f"{value:.4g}"
    return f"{value:,.0f}"


def format_seconds(value_s: float) -> str:
    """Write a time in the unit that reads best, from ``2.70 us`` over ``4.51 s`` and ``19.7 days`` to ``2.74 years``."""
    size = abs(value_s)
    # Up to two of the next unit the smaller one has more digits that mean something.
    steps = (
        *((1e-3, 1e-6, "us"), (1.0, 1e-3, "ms"), (120.0, 1.0, "s"), (7200.0, 60.0, "min")),
        *((2 * DAY_S, HOUR_S, "h"), (1000 * DAY_S, DAY_S, "days"), (math.inf, YEAR_S, "years")),
    )
    unit_s, name = next((unit_s, name) for limit, unit_s, name in steps if size < limit or limit == math.inf)
    return f"{_three_digits(value_s / unit_s)} {name}"


def format_span(low_s: float, high_s: float) -> str:
    """Write two times in the unit of the larger: ``23.1 to 27.8 s``."""
    number, _, unit = format_seconds(high_s).partition(" ")
    scale = float(number.replace(",", "")) / high_s if high_s else 1.0
    return f"{_three_digits(low_s * scale)} to {number} {unit}"


def rough(number: float) -> float:
    """Round to three digits: predictions are no surer, and nobody tells two models apart by the fourth."""
    return float(f"{number:.3g}")


def _three_digits(number: float) -> str:
    size = abs(number)
    return f"{number:,.{0 if size >= 99.95 or size == 0 else 1 if size >= 9.995 else 2}f}"
