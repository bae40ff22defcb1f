"""What goals and requirements speak of: one record per quantity, linear in a layout's step time and peak memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from layoutopt.optimizer.specs.units import DAY_S, HOUR_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from layoutopt.optimizer.cost.run_facts import Footprint
    from layoutopt.optimizer.cost.terms import FloatArray

GB = 1e9


class Facts(Protocol):
    """What quantities ask of a run: its optimizer steps, the price of a GPU hour, watts of a GPU at the grid."""

    @property
    def steps(self) -> float:
        """Optimizer steps of the whole run."""

    @property
    def price(self) -> float:
        """Cost of a GPU for an hour."""

    @property
    def power_w(self) -> float:
        """Watts of a GPU at the grid."""

    def slowdowns(self, use: Footprint) -> FloatArray:
        """Expected wall-clock time with failures and checkpoints over useful time, (n,)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """``constant + per_second * step time + per_byte * peak memory`` of ``n`` layouts, each (n,) or one number."""

    constant: FloatArray | float = 0.0
    per_second: FloatArray | float = 0.0
    per_byte: FloatArray | float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """One quantity.

    ``name`` is what requirements call it (unit included), ``goal`` what objectives do (empty: none is made of it);
    of all goals less is better. ``of`` takes the facts of the run and what layouts take of the cluster.
    """

    name: str
    goal: str
    unit: str
    meaning: str
    of: Callable[[Facts, Footprint], Linear]


def _hours(facts: Facts, use: Footprint) -> FloatArray:
    """Wall-clock hours of the run, failures included, per second of a step."""
    return facts.slowdowns(use) * (facts.steps / HOUR_S)


QUANTITIES = (
    Quantity(
        name="step_s", goal="time", unit="s", meaning="seconds per step",
        of=lambda facts, use: Linear(per_second=1.0),
    ),
    Quantity(
        name="days", goal="days", unit="days",
        meaning="expected days of the whole run with failures, restarts and checkpoints",
        of=lambda facts, use: Linear(per_second=_hours(facts, use) * (HOUR_S / DAY_S)),
    ),
    Quantity(
        name="cost", goal="cost", unit="", meaning="GPU hours of the whole run, failures included, times their price",
        of=lambda facts, use: Linear(per_second=_hours(facts, use) * use.gpus * facts.price),
    ),
    Quantity(
        name="energy_kwh", goal="energy", unit="kWh", meaning="energy of the whole run at the grid, failures included",
        of=lambda facts, use: Linear(per_second=_hours(facts, use) * use.gpus * facts.power_w / 1e3),
    ),
    Quantity(
        name="gpus", goal="gpus", unit="GPUs", meaning="GPUs that the layout uses",
        of=lambda facts, use: Linear(constant=use.gpus),
    ),
    Quantity(
        name="peak_gb", goal="memory", unit="GB", meaning="memory of the fullest rank",
        of=lambda facts, use: Linear(per_byte=1 / GB),
    ),
    Quantity(
        name="power_mw", goal="", unit="MW", meaning="power of the used GPUs with their nodes and switches, times PUE",
        of=lambda facts, use: Linear(constant=use.gpus * facts.power_w / 1e6),
    ),
)  # fmt: skip
"""Every quantity: an objective more is a record more in this list."""

BY_NAME = {quantity.name: quantity for quantity in QUANTITIES}
GOALS = {quantity.goal: quantity for quantity in QUANTITIES if quantity.goal}
