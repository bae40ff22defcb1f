"""Constants at an end of their source's range: a message that a term is missing, or two kinds of machine mixed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutopt.optimizer.cost.constants import constant_table
from layoutopt.optimizer.topology.links import link_table

if TYPE_CHECKING:
    from layoutopt.optimizer.cost.constants import Constant
    from layoutopt.optimizer.topology.links import LinkConstant

AT_BOUND = 0.01
"""Share of the range within which of its ends a constant counts as lying at it."""


def at_bound(value: float, bounds: tuple[float, float]) -> bool:
    """Tell whether a value lies at or beyond an end of a range."""
    low, high = bounds
    edge = AT_BOUND * (high - low)
    return value <= low + edge or value >= high - edge


def constants_at_bounds() -> list[str]:
    """Return the names of all constants at an end of their range; exact figures have none."""
    tables: list[tuple[str, Constant | LinkConstant]] = [*constant_table().items(), *link_table().items()]
    return [name for name, one in tables if not one.exact and at_bound(one.value, one.bounds)]
