"""What a stated constant may be: by its unit where physics says so, else near the range of its source."""

from __future__ import annotations

_PARTS = {"fraction": 1.0, "exponent": 1.0, "flag": 1.0}
"""Units of which nothing exceeds the whole, with it."""

_FAR = 10.0
"""Times the ends of a source's range beyond which a figure is of another unit."""


def possible_range(unit: str, bounds: tuple[float, float]) -> tuple[float, float]:
    """Return the least and the most that a constant of a unit may be stated as; ``bounds`` are its source's range.

    Shares of a peak lie between 0 and 1, or the most that is known over a nominal peak that parts exceed at boost clocks.
    What is 1 at least by definition (``bounds`` that begin there) stays so.
    """
    low, high = bounds
    if unit in _PARTS:
        return 0.0, max(_PARTS[unit], high)
    return (1.0 if low == 1.0 else low / _FAR), high * _FAR
