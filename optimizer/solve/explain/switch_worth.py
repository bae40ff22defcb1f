"""What each launch switch of an answer is worth: its price with that switch as it is without."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from layoutopt.optimizer.cost.estimate import estimate
from layoutopt.optimizer.frameworks.switches import BY_NAME, combination_fault

if TYPE_CHECKING:
    from collections.abc import Mapping

    from layoutopt.optimizer.cost.cost_model import CostModel
    from layoutopt.optimizer.cost.estimate import Estimate
    from layoutopt.optimizer.frameworks.switches import Switch
    from layoutopt.optimizer.specs.layout import Layout, Switches


def worth_of_switches(cost: CostModel, layout: Layout, price: Estimate) -> Mapping[str, float]:
    """Return how much slower the step of the same layout is without each switch, relative.

    Switches that are at their plain value, or that have nothing to act on, are left out. Whether the layout without one
    fits the memory is not asked.
    """
    worth = {}
    for switch in BY_NAME.values():
        other = _without(layout.switches, switch)
        if other is not None and switch.acts(layout, cost.model):
            step_s = estimate(cost, replace(layout, switches=other)).step_time_s
            worth[switch.name] = step_s / price.step_time_s - 1.0
    return worth


def _without(switches: Switches, switch: Switch) -> Switches | None:
    """Return switches with one at its plain value; None where it is, or where the others can't be had without it."""
    plain = switch.values[0]
    if getattr(switches, switch.name) in (None, plain):
        return None
    # A switch that needs this one can't stay on without it: both are worth what they bring together.
    resting = [
        one.name for one in BY_NAME.values() if one.needs == switch.name and getattr(switches, one.name)
    ]
    values = {switch.name: plain} | {name: BY_NAME[name].values[0] for name in resting}
    other = replace(switches, **values)  # type: ignore[arg-type]  # values of the switches' own records
    return None if combination_fault(other) else other
