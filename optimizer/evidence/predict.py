"""Price a measured run with the cost model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from layoutopt.optimizer.cost.estimate import estimate
from layoutopt.optimizer.cost.factory import build_cost_model
from layoutopt.optimizer.frameworks.preset import calibrated, load_preset

if TYPE_CHECKING:
    from collections.abc import Mapping

    from layoutopt.optimizer.cost.components import Component
    from layoutopt.optimizer.cost.estimate import Estimate
    from layoutopt.optimizer.evidence.case import Case
    from layoutopt.optimizer.frameworks.preset import FrameworkPreset

TIME_SCALE = "time_scale"
"""Constant that multiplies every step time: what a calibration of few runs can tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What the cost model says about one case. ``breakdown_s`` sums to ``step_time_s``."""

    step_time_s: float
    breakdown_s: Mapping[Component, float]
    allocated_bytes: float
    reserved_bytes: float
    device_bytes: float
    capacity_bytes: float
    borderline_bytes: float

    @property
    def fits(self) -> bool:
        """Whether tensors fit into what the GPU leaves them."""
        return self.allocated_bytes <= self.capacity_bytes


def predict(case: Case, values: Mapping[str, float] | None = None) -> Prediction:
    """Price a case.

    ``values`` replaces constants by name, beside those of the case's cluster: names of the cost and the
    topology room, and ``field.framework`` for the measured fields of a preset.
    """
    return _prediction(price(case, values))


def price(case: Case, values: Mapping[str, float] | None = None) -> Estimate:
    """Return the cost model's whole estimate of a case."""
    cluster = case.cluster
    if values:
        cluster = replace(cluster, calibration={**cluster.calibration, **values})
    cost = build_cost_model(
        case.model, case.training, cluster, framework=case.framework, preset=preset_of(case, values)
    )
    return estimate(cost, case.layout)


def preset_of(case: Case, values: Mapping[str, float] | None = None) -> FrameworkPreset:
    """Return the preset of the case's framework and release with the row's own switches on top."""
    preset = load_preset(case.framework, case.software)
    # The row's own switches come last: what it states beats what its trainer does on the whole.
    measured = calibrated(preset, case.framework, {**case.cluster.calibration, **(values or {})})
    return replace(measured, **case.switches)


def _prediction(result: Estimate) -> Prediction:
    memory = result.memory
    return Prediction(
        step_time_s=result.step_time_s,
        breakdown_s=result.breakdown_s,
        allocated_bytes=memory.peak_bytes,
        reserved_bytes=memory.reserved_bytes,
        device_bytes=memory.device_bytes,
        capacity_bytes=memory.capacity_bytes,
        borderline_bytes=memory.borderline_bytes,
    )
