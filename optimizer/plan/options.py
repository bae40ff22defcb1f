"""What a training plan may assume beside the workload and the cluster."""

from __future__ import annotations

from dataclasses import dataclass, field

from layoutopt.optimizer.cost.checkpoints import LEAST_STALL_S
from layoutopt.optimizer.solve.plan import SolveOptions
from layoutopt.optimizer.specs.errors import InputError, Problem
from layoutopt.optimizer.specs.units import DAY_S


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """Assumptions of a training plan.

    ``relative_error`` is the standard deviation of the predicted step time's error, as a share: the default is an
    assumption for whoever has no error band of measured runs. ``gpu_hour_cost`` in any currency.
    ``least_stall_s`` is the least time that a snapshot to host memory stops training. ``repair_s`` is how long a failed
    node is away, ``spare_confidence`` the chance that spare nodes suffice.
    ``checkpoint_weights`` saves the 16-bit weights beside the optimizer state. ``simulated_runs`` and ``seed``
    belong to the Monte-Carlo simulation; ``solve`` to phases that are solved on the way.
    """

    relative_error: float = 0.10
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
