"""What a stretch of a step is: which step-time component it belongs to, and what the device did in it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING

from layoutopt.optimizer.cost.components import Component
from layoutopt.optimizer.specs.vocabulary import Axis

if TYPE_CHECKING:
    from collections.abc import Iterator


class Activity(StrEnum):
    """What a device did, or what it waited for. Kernels come first, in the order of precedence where several run at once."""

    GEMM = "gemm"
    EXPERTS = "experts"
    ATTENTION = "attention"
    SCORES = "scores"
    SCAN = "scan"
    NORM = "norm"
    ACTIVATION = "activation"
    DROPOUT = "dropout"
    PERMUTE = "permute"
    QUANTIZE = "quantize"
    LOSS = "loss"
    EMBEDDING = "embedding"
    OPTIMIZER = "optimizer"
    ELEMENTWISE = "elementwise"
    OTHER = "other"
    TRANSFER = "transfer"
    PEER = "peer"
    HOST_COPY = "host_copy"
    GAP = "gap"
    DATA_LOADER = "data_loader"
    CHECKPOINT = "checkpoint"
    LAUNCH = "launch"

    @property
    def words(self) -> str:
        """The part's name for people."""
        return _WORDS.get(self, self.value)


_WORDS = {
    Activity.GEMM: "matrix multiplications",
    Activity.EXPERTS: "expert multiplications",
    Activity.ATTENTION: "fused attention",
    Activity.SCORES: "unfused attention scores",
    Activity.SCAN: "state-space and linear-attention scans",
    Activity.NORM: "norms",
    Activity.ACTIVATION: "activation functions",
    Activity.DROPOUT: "dropout",
    Activity.PERMUTE: "permutation and routing of tokens",
    Activity.QUANTIZE: "casts to 8 and 4 bits",
    Activity.LOSS: "loss",
    Activity.EMBEDDING: "embedding",
    Activity.OPTIMIZER: "optimizer kernels",
    Activity.ELEMENTWISE: "element-wise kernels",
    Activity.OTHER: "other kernels",
    Activity.TRANSFER: "transfer",
    Activity.PEER: "waiting for a peer",
    Activity.HOST_COPY: "copies between host and device",
    Activity.GAP: "gaps between queued kernels",
    Activity.DATA_LOADER: "waiting for data",
    Activity.CHECKPOINT: "writing a checkpoint",
    Activity.LAUNCH: "waiting for the host",
}
KERNELS = tuple(
    part for part in Activity if list(Activity).index(part) <= list(Activity).index(Activity.OTHER)
)
"""What compute kernels do."""

MEMORY_BOUND = (
    Activity.SCORES, Activity.NORM, Activity.ACTIVATION, Activity.DROPOUT, Activity.PERMUTE,
    Activity.QUANTIZE, Activity.EMBEDDING, Activity.ELEMENTWISE,
)  # fmt: skip
"""Kernels whose time is that of their bytes."""


class Phase(IntEnum):
    """When in a step a kernel was launched."""

    FORWARD = 0
    BACKWARD = 1
    RECOMPUTE = 2
    OPTIMIZER = 3


COMPUTE = {
    Phase.FORWARD: Component.FORWARD,
    Phase.BACKWARD: Component.BACKWARD,
    Phase.RECOMPUTE: Component.RECOMPUTE,
    Phase.OPTIMIZER: Component.OPTIMIZER,
}
"""The component of a kernel by its phase."""


@dataclass(frozen=True, slots=True)
class Label:
    """What a stretch of a step is: its component and its part."""

    component: Component
    part: Activity

    @property
    def words(self) -> str:
        """Both in words."""
        return f"{self.component.words}: {self.part.words}"


def traffic_component(axis: Axis, *, in_layers: bool) -> Component:
    """Return the component of an axis' traffic; of data parallelism FSDP where it runs between layers."""
    if axis is Axis.DP:
        return Component.FSDP if in_layers else Component.DP
    return next(part for part in Component if part.record.axis is axis)


def _labels() -> Iterator[Label]:
    """Yield every label in the order of precedence: kernels hide traffic, traffic hides copies, copies idle time."""
    for part in KERNELS:
        for component in COMPUTE.values():
            yield Label(component, part)
    traffic = [part for part in Component if part.record.axis is not None]
    for component in (*traffic, Component.STEP):
        yield Label(component, Activity.TRANSFER)
    for component in (Component.SYNC, Component.BUBBLE):
        yield Label(component, Activity.PEER)
    yield Label(Component.OFFLOAD, Activity.HOST_COPY)
    yield Label(Component.STEP, Activity.CHECKPOINT)
    yield Label(Component.STEP, Activity.DATA_LOADER)
    yield Label(Component.STEP, Activity.HOST_COPY)
    for component in COMPUTE.values():
        yield Label(component, Activity.GAP)
    yield Label(Component.HOST, Activity.LAUNCH)
    yield Label(Component.STEP, Activity.LAUNCH)


LABELS = tuple(_labels())
"""Every label; where several stretches cover a moment, the first one counts."""

CODE = {label: code for code, label in enumerate(LABELS)}
"""A label's place in the order of precedence."""
