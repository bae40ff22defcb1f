"""Layouts of which none is better in one goal without being worse in another, each proven by the search.

Epsilon constraint (Haimes 1971): the best in the first goal under a limit on the second, then the best in the second among
those as good, then a tighter limit, until no layout meets it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.objectives import parse_objective
from layoutopt.optimizer.cost.run_facts import RunFacts, footprint_of
from layoutopt.optimizer.solve.api import solve_layout
from layoutopt.optimizer.solve.certificate import Status
from layoutopt.optimizer.space.rows import row_of
from layoutopt.optimizer.specs.errors import input_error

if TYPE_CHECKING:
    from collections.abc import Callable

    from layoutopt.optimizer.cost.estimate import Estimate
    from layoutopt.optimizer.cost.quantities import Quantity
    from layoutopt.optimizer.solve.plan import Plan, SolveOptions
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.layout import Layout
    from layoutopt.optimizer.specs.workload import Workload

APART = 1e-6
"""Relative distance in the second goal below which two points are one."""

REACHED = 1 + 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontPoint:
    """One layout of the front with its price and its values in both goals; ``proven``: no layout dominates it."""

    layout: Layout
    estimate: Estimate
    values: tuple[float, float]
    proven: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
    """The front in two goals, the best in the first one first; ``complete``: there is no other point."""

    goals: tuple[str, str]
    units: tuple[str, str]
    points: tuple[FrontPoint, ...]
    complete: bool


def pareto_front(
    workload: Workload,
    cluster: ClusterSpec,
    options: SolveOptions,
    goals: tuple[str, str],
    *,
    most: int = 50,
    should_stop: Callable[[], bool] | None = None,
) -> Front:
    """Find at most ``most`` points of the front in two goals, quantities of a run."""
    first, second = (_quantity(name) for name in goals)
    if first.name == second.name:
        raise input_error("names one goal twice", "two goals, e.g. days,cost", key="of")
    facts = RunFacts(
        model=workload.model,
        training=workload.training,
        cluster=cluster,
        gpu_hour_cost=options.space.gpu_hour_cost,
    )

    def best(goal: str, *limits: str) -> Plan:
        space = replace(options.space, require=(*options.space.require, *limits))
        asked = replace(options, minimize=goal, then=None, within=0.0, top=1, space=space)
        return solve_layout(workload, cluster, asked, should_stop=should_stop)

    points: list[FrontPoint] = []
    limits: tuple[str, ...] = ()
    while len(points) < most:
        plan = best(goals[0], *limits)
        if plan.layout is None or plan.estimate is None:
            return _front(goals, (first, second), points, complete=plan.status is Status.INFEASIBLE)
        value = _value(first, facts, plan.layout, plan.estimate)
        among = best(goals[1], *limits, f"{first.name} <= {value * REACHED!r}")
        chosen = among if among.layout is not None else plan
        assert chosen.layout is not None and chosen.estimate is not None
        values = tuple(_value(goal, facts, chosen.layout, chosen.estimate) for goal in (first, second))
        proven = plan.status is Status.OPTIMAL and chosen.status is Status.OPTIMAL
        points.append(
            FrontPoint(
                layout=chosen.layout, estimate=chosen.estimate, values=(values[0], values[1]), proven=proven
            )
        )
        if not proven:
            break
        limits = (f"{second.name} <= {values[1] * (1 - APART)!r}",)
    return _front(goals, (first, second), points, complete=False)


def _front(
    goals: tuple[str, str], of: tuple[Quantity, Quantity], points: list[FrontPoint], *, complete: bool
) -> Front:
    return Front(goals=goals, units=(of[0].unit, of[1].unit), points=tuple(points), complete=complete)


def _quantity(name: str) -> Quantity:
    found = parse_objective(name, key="of").quantity
    if found is None:
        raise input_error(
            f"{name} is no quantity of a run", "time, days, cost, energy, gpus or memory", key="of"
        )
    return found


def _value(quantity: Quantity, facts: RunFacts, layout: Layout, estimate: Estimate) -> float:
    linear = quantity.of(facts, footprint_of(row_of(layout)))
    value = linear.constant + linear.per_second * estimate.step_time_s
    return float(np.ravel(value + linear.per_byte * estimate.memory.peak_bytes)[0])
