"""Every quantity of a run by hand: a second of step time, a byte, a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pytest

from layoutopt.optimizer.cost.quantities import BY_NAME, GOALS, QUANTITIES
from layoutopt.optimizer.cost.run_facts import Footprint

if TYPE_CHECKING:
    from layoutopt.optimizer.cost.terms import FloatArray

USE = Footprint(gpus=np.array([64.0, 48.0]), replicas=np.array([8.0, 6.0]))


@dataclass(frozen=True, slots=True)
class Run:
    """36,000 steps, 2.50 a GPU hour, 700 W; fewer GPUs fail less often."""

    steps: float = 36_000.0
    price: float = 2.5
    power_w: float = 700.0

    def slowdowns(self, use: Footprint) -> FloatArray:
        """A tenth, and a twentieth, more for failures."""
        return np.where(use.gpus > 50, 1.1, 1.05)


@pytest.mark.parametrize(
    ("name", "constant", "per_second", "per_byte"),
    [
        ("days", (0, 0), (11.0 / 24, 10.5 / 24), 0),
        ("cost", (0, 0), (11.0 * 64 * 2.5, 10.5 * 48 * 2.5), 0),
        ("energy_kwh", (0, 0), (11.0 * 64 * 0.7, 10.5 * 48 * 0.7), 0),
        ("gpus", (64, 48), (0, 0), 0),
        ("peak_gb", (0, 0), (0, 0), 1e-9),
        ("power_mw", (64 * 7e-4, 48 * 7e-4), (0, 0), 0),
        ("step_s", (0, 0), (1, 1), 0),
    ],
)
def test_a_quantity_is_what_its_unit_says(
    name: str, constant: tuple[float, ...], per_second: tuple[float, ...], per_byte: float
) -> None:
    """Ten hours for every second of a step, failures on top."""
    found = BY_NAME[name].of(Run(), USE)
    assert np.broadcast_to(found.constant, (2,)).tolist() == pytest.approx(constant)
    assert np.broadcast_to(found.per_second, (2,)).tolist() == pytest.approx(per_second)
    assert found.per_byte == pytest.approx(per_byte)


def test_names_and_goals_are_told_apart() -> None:
    """One record each; what no objective is made of has no goal."""
    assert len(BY_NAME) == len(QUANTITIES)
    assert set(GOALS) == {quantity.goal for quantity in QUANTITIES} - {""}
    assert BY_NAME["power_mw"].goal == ""
