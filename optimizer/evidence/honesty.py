"""How sure an answer is: the error band of its family, what the band cannot tell apart, and the robust choice."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from layoutopt.optimizer.cost.factory import CostKind
from layoutopt.optimizer.evidence.band import Band, calibrated_by_runs, error_band, memory_ratios, scaled
from layoutopt.optimizer.evidence.choice import ChoiceRisk, RobustChoice, choice_risk, choose_robust
from layoutopt.optimizer.evidence.ties import Tie, find_ties

if TYPE_CHECKING:
    from collections.abc import Mapping

    from layoutopt.optimizer.evidence.band import Span
    from layoutopt.optimizer.frameworks.registry import Framework
    from layoutopt.optimizer.solve.plan import Plan, SolveOptions
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.layout import Layout
    from layoutopt.optimizer.specs.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Honesty:
    """What to know of an answer beside its proof.

    ``ties`` are in the order of the plan's alternatives; ``calibrated`` where own runs of the cluster were fitted;
    ``choice`` is what the constants' uncertainty says of the answer among its near-ties.
    ``memory`` are the trainer's measured over predicted peaks.
    """

    band: Band
    ties: tuple[Tie, ...]
    calibrated: bool = False
    memory: Mapping[str, Span] = field(default_factory=dict)
    robust: RobustChoice | None = None
    choice: ChoiceRisk | None = None

    def intervals_s(self, step_time_s: float) -> dict[str, tuple[float, float]]:
        """Return the step times (seconds) between which 50, 80 and 95% of runs predicted so are expected."""
        return self.band.intervals_s(step_time_s, calibrated=self.calibrated)

    def intervals_bytes(self, peak_bytes: float) -> dict[str, Span]:
        """Return the peaks (bytes) between which 50, 80 and 95% of runs predicted so are expected."""
        return scaled(peak_bytes, self.memory)


def assess_layout(
    layout: Layout,
    workload: Workload,
    cluster: ClusterSpec,
    *,
    framework: Framework,
    cost: CostKind = CostKind.FULL,
) -> Honesty | None:
    """Return the error band of one layout's price; None for the simple cost model, whose error is not recorded."""
    if cost is not CostKind.FULL:
        return None
    band = error_band(workload, cluster, layout.precision, framework=framework)
    return Honesty(
        band=band, ties=(), calibrated=calibrated_by_runs(cluster), memory=memory_ratios(framework)
    )


def assess(
    plan: Plan, workload: Workload, cluster: ClusterSpec, options: SolveOptions, *, robust: bool = False
) -> Honesty | None:
    """Judge an answer; None without a layout, and for the simple cost model, whose error is not recorded."""
    if plan.layout is None:
        return None
    alone = assess_layout(plan.layout, workload, cluster, framework=options.framework, cost=options.cost)
    if alone is None:
        return None
    # Only where it is asked for: it prices every near-tie under four times as many sets of constants.
    choice = choose_robust(plan, workload, cluster, options, alone.band) if robust else None
    risk = choice_risk(plan, workload, cluster, options)
    return replace(alone, ties=find_ties(plan, alone.band), robust=choice, choice=risk)
