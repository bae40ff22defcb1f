"""What a stretch of a step is: which step-time component it belongs to, and what the device did in it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING

from layoutopt.optimizer.cost.components import Component
from layoutopt.optimizer.specs.vocabulary import Axis

if TYPE_CHECKING:
    from collections.abc import Iterator


class Part(StrEnum):
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

    @property
    def is_kernel(self) -> bool:
        """Whether it is a compute kernel."""
        return self in KERNELS


_WORDS = {
    Part.GEMM: "matrix multiplications",
    Part.EXPERTS: "expert multiplications",
    Part.ATTENTION: "fused attention",
    Part.SCORES: "unfused attention scores",
    Part.SCAN: "state-space and linear-attention scans",
    Part.NORM: "norms",
    Part.ACTIVATION: "activation functions",
    Part.DROPOUT: "dropout",
    Part.PERMUTE: "permutation and routing of tokens",
    Part.QUANTIZE: "casts to 8 and 4 bits",
    Part.LOSS: "loss",
    Part.EMBEDDING: "embedding",
    Part.OPTIMIZER: "optimizer kernels",
    Part.ELEMENTWISE: "element-wise kernels",
    Part.OTHER: "other kernels",
    Part.TRANSFER: "transfer",
    Part.PEER: "waiting for a peer",
    Part.HOST_COPY: "copies between host and device",
    Part.GAP: "gaps between queued kernels",
    Part.DATA_LOADER: "waiting for data",
    Part.CHECKPOINT: "writing a checkpoint",
    Part.LAUNCH: "waiting for the host",
}
KERNELS = tuple(part for part in Part if list(Part).index(part) <= list(Part).index(Part.OTHER))
"""What compute kernels do."""

MEMORY_BOUND = (
    Part.SCORES, Part.NORM, Part.ACTIVATION, Part.DROPOUT, Part.PERMUTE, Part.QUANTIZE, Part.EMBEDDING, Part.ELEMENTWISE,
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
    part: Part

    @property
    def words(self) -> str:
        """Both in words."""
        return f"{self.component.words}: {self.part.words}"


def traffic_component(axis: Axis, *, in_layers: bool) -> Component:
    """Return the component of an axis' traffic; of data parallelism FSDP where the layers wait for it, as gathers do."""
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
        yield Label(component, Part.TRANSFER)
    for component in (Component.SYNC, Component.BUBBLE):
        yield Label(component, Part.PEER)
    yield Label(Component.OFFLOAD, Part.HOST_COPY)
    yield Label(Component.STEP, Part.CHECKPOINT)
    yield Label(Component.STEP, Part.DATA_LOADER)
    yield Label(Component.STEP, Part.HOST_COPY)
    for component in COMPUTE.values():
        yield Label(component, Part.GAP)
    yield Label(Component.HOST, Part.LAUNCH)
    yield Label(Component.STEP, Part.LAUNCH)


LABELS = tuple(_labels())
"""Every label; where several stretches cover a moment, the first one counts."""

CODE = {label: code for code, label in enumerate(LABELS)}
"""A label's place in the order of precedence."""
