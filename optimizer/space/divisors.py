"""Small number theory for axis ranges."""

from __future__ import annotations

from math import isqrt


def divisors(number: int, limit: int | None = None) -> tuple[int, ...]:
    """Return the divisors of a positive integer in ascending order, up to ``limit``."""
    small = [d for d in range(1, isqrt(number) + 1) if number % d == 0]
    # A square root is its own partner and must not be listed twice.
    large = [number // d for d in reversed(small) if d * d != number]
    return tuple(d for d in small + large if limit is None or d <= limit)


def prime_powers(number: int) -> tuple[tuple[int, int], ...]:
    """Factorise a positive integer into (prime, exponent) pairs, ascending."""
    found = []
    factor = 2
    while factor * factor <= number:
        exponent = 0
        while number % factor == 0:
            number //= factor
            exponent += 1
        if exponent:
            found.append((factor, exponent))
        factor += 1
    # What is left above the square root is a prime.
    if number > 1:
        found.append((number, 1))
    return tuple(found)


def factorisation_text(number: int) -> str:
    """Write a factorisation with prime powers multiplied out, e.g. ``8 x 641``."""
    return " x ".join(f"{prime**exponent:,}" for prime, exponent in prime_powers(number)) or "1"
