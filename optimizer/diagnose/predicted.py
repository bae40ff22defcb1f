"""What a plan says of every pipeline stage's step: seconds by component and part, counts, and prices of collectives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.components import Component
from layoutopt.optimizer.cost.estimate import rank_breakdowns
from layoutopt.optimizer.cost.kernel_times import stage_times
from layoutopt.optimizer.cost.placement import layout_groups
from layoutopt.optimizer.diagnose.parts import Activity, Label
from layoutopt.optimizer.specs.vocabulary import Axis

if TYPE_CHECKING:
    from layoutopt.optimizer.cost.cost_model import CostModel
    from layoutopt.optimizer.cost.kernel_times import PassTimes
    from layoutopt.optimizer.specs.layout import Layout
    from layoutopt.optimizer.topology.groups import GroupBatch

MAIN_PART = {
    Component.OFFLOAD: Activity.HOST_COPY,
    Component.HOST: Activity.LAUNCH,
    Component.STEP: Activity.LAUNCH,
    Component.BUBBLE: Activity.PEER,
    Component.SYNC: Activity.PEER,
    Component.OPTIMIZER: Activity.OPTIMIZER,
}
"""The part that a component outside the layers' kernels consists of; traffic is transfer."""

_PRICES = {"all_reduce": "all_reduce_s", "all_gather": "all_gather_s", "reduce_scatter": "reduce_scatter_s",
           "all_to_all": "all_to_all_s", "send": "p2p_s", "recv": "p2p_s"}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedStage:
    """The step as the ranks of one pipeline stage see it; ``labels_s`` sums to the step and by component to the price."""

    stage: int
    layers: int
    labels_s: dict[Label, float]

    @property
    def step_s(self) -> float:
        """Seconds of the step."""
        return sum(self.labels_s.values())

    def seconds(self, component: Component | None = None, part: Activity | None = None) -> float:
        """Return the seconds under a component, a part, or both."""
        return sum(
            seconds
            for label, seconds in self.labels_s.items()
            if component in (None, label.component) and part in (None, label.part)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """A plan as a profile is held against it."""

    cost: CostModel
    layout: Layout
    stages: tuple[PredictedStage, ...]

    @property
    def step_s(self) -> float:
        """The predicted step."""
        # The labels of every stage sum to the same step.
        return self.stages[0].step_s

    def stage_of(self, rank: int) -> int:
        """Return the pipeline stage of a rank under the layout's mesh order."""
        degrees = {
            "tp": self.layout.tp,
            "cp": self.layout.cp,
            "pp": self.layout.pp,
            "dp": self.layout.dp,
            "ep": 1,
        }
        # Innermost axis first: dividing by its degree leaves the coordinate of the next; experts lie inside dp, so as 1.
        for axis in self.layout.mesh_order.split("-"):
            if axis == "pp":
                return rank % degrees["pp"]
            rank //= degrees[axis]
        return 0

    def of(self, rank: int) -> PredictedStage:
        """Return what is predicted of a rank's stage."""
        return self.stages[self.stage_of(rank)]

    def transfer_s(self, axis: Axis, kind: str, size_bytes: float) -> float | None:
        """Return what one collective of a group of the layout takes; None of a kind without a price."""
        if kind not in _PRICES:
            return None
        price = getattr(self.cost.topology, _PRICES[kind])
        return float(np.ravel(price(size_bytes, self.group(axis)))[0])

    def group(self, axis: Axis) -> GroupBatch:
        """Return the ranks that communicate over an axis; over dp those that share dense state."""
        groups = layout_groups(self.layout)
        by_axis = {
            Axis.TP: groups.tp, Axis.CP: groups.cp, Axis.EP: groups.ep, Axis.DP: groups.dp_cp, Axis.PP: groups.pp
        }  # fmt: skip
        return by_axis[axis]


def moved_in_domain(expected: Expectation, axis: Axis) -> bool:
    """Tell whether an axis' traffic stays in an NVLink domain."""
    group = expected.group(axis)
    size = int(np.prod([np.ravel(digit.size)[0] for digit in group.digits]))
    return int(np.ravel(group.members_within(expected.cost.topology.nvlink_domain))[0]) >= size


def expectation(cost: CostModel, layout: Layout) -> Expectation:
    """Return what a layout with explicit stages is predicted to do."""
    breakdowns, times = rank_breakdowns(cost, layout), stage_times(cost, layout)
    stages = []
    for stage, breakdown in enumerate(breakdowns):
        mine = [entry for entry in range(len(times)) if entry % layout.pp == stage]
        forward, backward, again = (
            _sum([getattr(times[entry], name) for entry in mine]) for name in ("forward", "backward", "again")
        )
        labels: dict[Label, float] = {}
        for component, seconds in breakdown.items():
            kernels = {
                Component.FORWARD: forward,
                Component.BACKWARD: backward,
                # Where the kernels' list has none, what is repeated is the forward pass.
                Component.RECOMPUTE: again or forward,
            }.get(component)
            labels |= _split(component, seconds, kernels)
        layers = sum(layout.stages[entry].layers for entry in mine)
        stages.append(PredictedStage(stage=stage, layers=layers, labels_s=labels))
    return Expectation(cost=cost, layout=layout, stages=tuple(stages))


def _sum(passes: list[PassTimes]) -> dict[str, float]:
    found: dict[str, float] = {}
    for passed in passes:
        for name, seconds in passed.kernels_s.items():
            found[name] = found.get(name, 0.0) + seconds
    return found


def _split(component: Component, seconds: float, kernels: dict[str, float] | None) -> dict[Label, float]:
    """Divide a component among its parts, kernels in their proportions."""
    if seconds == 0.0:
        return {}
    if kernels is None:
        return {Label(component, MAIN_PART.get(component, Activity.TRANSFER)): seconds}
    total = sum(kernels.values())
    # Without kernels in the list the component keeps its seconds, of no known kind.
    if not total:
        return {Label(component, Activity.OTHER): seconds}
    return {Label(component, Activity(name)): seconds * own / total for name, own in kernels.items() if own}
