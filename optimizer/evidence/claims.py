"""What carries a claim that one layout is faster than another, and how many measured runs speak of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from layoutopt.optimizer.evidence.band import bands

if TYPE_CHECKING:
    from collections.abc import Mapping

    from layoutopt.optimizer.cost.components import Component
    from layoutopt.optimizer.evidence.band import Band

MOST_CARRIERS = 3
LEAST_SHARE = 0.1
"""Of the gain: smaller parts are left out."""

FEW_ROWS = 30
"""Measured runs below which a component's price rests on little evidence."""


class ClaimSize(StrEnum):
    """What the error of predictions says of a gain."""

    INDISTINCT = "indistinct"
    PLAUSIBLE = "plausible"
    DOUBTFUL = "doubtful"


def claim_size(gain: float, band: Band) -> ClaimSize:
    """Return whether the cost model can tell a gain (relative), and whether measured runs bear it out so far."""
    if gain < band.indistinct:
        return ClaimSize.INDISTINCT
    # Beyond what nine of ten predictions are off by, a gain is rather an error of the model than a discovery.
    return ClaimSize.DOUBTFUL if gain > band.unseen_p90_ape else ClaimSize.PLAUSIBLE


@dataclass(frozen=True, slots=True, kw_only=True)
class Carrier:
    """A component of the step that is shorter in the faster layout.

    ``share`` of the whole difference in step time (above 1 where other components are longer), ``rows``: measured
    runs of whose step the component is at least 1%.
    """

    component: Component
    gain_s: float
    share: float
    rows: int


def carriers(faster: Mapping[Component, float], slower: Mapping[Component, float]) -> tuple[Carrier, ...]:
    """Return the components that carry the difference of two breakdowns, largest first; none where there is none."""
    whole = sum(slower.values()) - sum(faster.values())
    # Of equal or slower layouts nothing is claimed, and shares of a difference of 0 mean nothing.
    if whole <= 0:
        return ()
    tested: Mapping[str, int] = bands()["tested"]
    gains = {name: slower.get(name, 0.0) - faster.get(name, 0.0) for name in {**slower, **faster}}
    found = [
        Carrier(component=name, gain_s=gain, share=gain / whole, rows=tested.get(name.value, 0))
        for name, gain in gains.items()
        if gain >= LEAST_SHARE * whole
    ]
    return tuple(sorted(found, key=lambda one: -one.gain_s)[:MOST_CARRIERS])
