"""What goals and requirements speak of: one record per quantity, linear in a layout's step time and peak memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from layoutopt.optimizer.cost.budget import gpu_power_w, steps_of_run
from layoutopt.optimizer.specs.errors import input_error
from layoutopt.optimizer.specs.units import DAY_S, HOUR_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from layoutopt.optimizer.cost.terms import FloatArray
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.model import TrainingSpec

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


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What quantities rest on beside the layout; ``gpu_hour_cost`` in any currency, None where nobody gave it."""

    training: TrainingSpec
    cluster: ClusterSpec
    gpu_hour_cost: float | None = None

    @property
    def steps(self) -> float:
        """Optimizer steps of the whole run; raises InputError without a number of tokens."""
        return steps_of_run(self.training)

    @property
    def price(self) -> float:
        """Cost of a GPU for an hour; raises InputError where nobody gave it."""
        if self.gpu_hour_cost is None:
            raise input_error("is not given, and cost rests on it", "e.g. 2.5", key="gpu_hour_cost")
        return self.gpu_hour_cost

    @property
    def power_w(self) -> float:
        """Watts of a GPU at its power limit with its share of node, switches and the facility's overhead."""
        return gpu_power_w(self.cluster)


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
    of all goals less is better. ``of`` takes the facts of the run and the GPUs that layouts use, (n,).
    """

    name: str
    goal: str
    unit: str
    meaning: str
    of: Callable[[Facts, FloatArray], Linear]


def _gpu_hours(facts: Facts, gpus: FloatArray) -> FloatArray:
    """GPU hours of the run per second of a step."""
    return facts.steps / HOUR_S * gpus


QUANTITIES = (
    Quantity(
        name="step_s", goal="time", unit="s", meaning="seconds per step",
        of=lambda facts, gpus: Linear(per_second=1.0),
    ),
    Quantity(
        name="days", goal="days", unit="days", meaning="days of the whole run, without failures",
        of=lambda facts, gpus: Linear(per_second=facts.steps / DAY_S),
    ),
    Quantity(
        name="cost", goal="cost", unit="", meaning="GPU hours of the whole run times their price",
        of=lambda facts, gpus: Linear(per_second=_gpu_hours(facts, gpus) * facts.price),
    ),
    Quantity(
        name="energy_kwh", goal="energy", unit="kWh", meaning="energy of the whole run at the grid",
        of=lambda facts, gpus: Linear(per_second=_gpu_hours(facts, gpus) * facts.power_w / 1e3),
    ),
    Quantity(
        name="gpus", goal="gpus", unit="GPUs", meaning="GPUs that the layout uses",
        of=lambda facts, gpus: Linear(constant=gpus),
    ),
    Quantity(
        name="peak_gb", goal="memory", unit="GB", meaning="memory of the fullest rank",
        of=lambda facts, gpus: Linear(per_byte=1 / GB),
    ),
    Quantity(
        name="power_mw", goal="", unit="MW", meaning="power of the used GPUs with their nodes and switches, times PUE",
        of=lambda facts, gpus: Linear(constant=gpus * facts.power_w / 1e6),
    ),
)  # fmt: skip
"""Every quantity: an objective more is a record more in this list."""

BY_NAME = {quantity.name: quantity for quantity in QUANTITIES}
GOALS = {quantity.goal: quantity for quantity in QUANTITIES if quantity.goal}
