"""What a training plan may assume beside the workload and the cluster."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import NormalDist
from typing import TYPE_CHECKING

from layoutopt.optimizer.cost.checkpoints import LEAST_STALL_S
from layoutopt.optimizer.solve.plan import SolveOptions
from layoutopt.optimizer.specs.errors import InputError, Problem
from layoutopt.optimizer.specs.units import DAY_S

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """Assumptions of a training plan.

    ``step_ratios`` are true over predicted step times by percent of runs that lie between, as an error band of measured
    runs gives them; without any the error is taken for normal with ``relative_error``, its standard deviation as a share.
    ``gpu_hour_cost`` in any currency.
    ``least_stall_s`` is the least time that a snapshot to host memory stops training. ``repair_s`` is how long a failed
    node is away, ``spare_confidence`` the chance that spare nodes suffice.
    ``checkpoint_weights`` saves the 16-bit weights beside the optimizer state. ``simulated_runs`` and ``seed``
    belong to the Monte-Carlo simulation; ``solve`` to phases that are solved on the way.
    """

    relative_error: float = 0.10
    step_ratios: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    gpu_hour_cost: float | None = None
    repair_s: float = DAY_S
    spare_confidence: float = 0.99
    checkpoint_weights: bool = True
    least_stall_s: float = LEAST_STALL_S
    simulated_runs: int = 1000
    seed: int = 0
    solve: SolveOptions = field(default_factory=SolveOptions)

    def __post_init__(self) -> None:
        limits = (
            ("relative_error", 0 <= self.relative_error < 1, "0 up to below 1"),
            (
                "step_ratios",
                all(0 < low <= high for low, high in self.step_ratios.values()),
                "pairs above 0, the lower one first",
            ),
            ("gpu_hour_cost", self.gpu_hour_cost is None or self.gpu_hour_cost >= 0, "0 or more"),
            ("least_stall_s", self.least_stall_s >= 0, "0 or more"),
            ("repair_s", self.repair_s >= 0, "0 or more"),
            ("spare_confidence", 0 < self.spare_confidence < 1, "above 0 and below 1"),
            ("simulated_runs", self.simulated_runs >= 1, "1 or more"),
            ("seed", self.seed >= 0, "0 or more"),
        )
        problems = [
            Problem(what=f"{getattr(self, name)} is out of range", allowed=allowed, key=name)
            for name, good, allowed in limits
            if not good
        ]
        if problems:
            raise InputError(*problems)

    @property
    def step_ratio(self) -> tuple[float, float]:
        """The range of days: four fifths of measured runs, or one stated error to either side."""
        # Who states an error means that much to either side, and no share of runs.
        return self.step_ratios.get("80", (1 - self.relative_error, 1 + self.relative_error))

    @property
    def ratio_quantiles(self) -> tuple[tuple[float, float], ...]:
        """Quantiles of true over predicted step times, rising: (standard normal deviate, ratio)."""
        if not self.step_ratios:
            return tuple((z, 1 + z * self.relative_error) for z in (-1.0, 1.0))
        ends = []
        for percent, (low, high) in self.step_ratios.items():
            deviate = NormalDist().inv_cdf(0.5 + float(percent) / 200)
            ends += [(-deviate, low), (deviate, high)]
        return tuple(sorted(ends))
