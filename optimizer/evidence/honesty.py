"""How sure an answer is: the error band of its family, what the band cannot tell apart, and the robust choice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from layoutopt.optimizer.cost.factory import CostKind
from layoutopt.optimizer.evidence.band import Band, error_band
from layoutopt.optimizer.evidence.robust_choice import RobustChoice, choose_robust
from layoutopt.optimizer.evidence.ties import Tie, find_ties

if TYPE_CHECKING:
    from layoutopt.optimizer.solve.plan import Plan, SolveOptions
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Honesty:
    """What to know of an answer beside its proof. ``ties`` are in the order of the plan's alternatives."""

    band: Band
    ties: tuple[Tie, ...]
    robust: RobustChoice | None = None


def assess(
    plan: Plan, workload: Workload, cluster: ClusterSpec, options: SolveOptions, *, robust: bool = False
) -> Honesty | None:
    """Judge an answer; None without a layout, and for the simple cost model, whose error is not recorded."""
    if plan.layout is None or options.cost is not CostKind.FULL:
        return None
    band = error_band(workload.model, cluster, plan.layout.precision, framework=options.framework)
    choice = choose_robust(plan, workload, cluster, options, band) if robust else None
    return Honesty(band=band, ties=find_ties(plan, band), robust=choice)
