"""A training job as it is put into traces: its mesh, what each stage does with a micro-batch, and what goes wrong."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from layoutopt.optimizer.cost.components import Component

if TYPE_CHECKING:
    from layoutopt.optimizer.cost.orders import Pipeline
    from layoutopt.optimizer.diagnose.parts import Activity


class Kernel(NamedTuple):
    """A kernel: its part, microseconds, the gap before it, and how long the host lets the device wait for it."""

    part: Activity
    us: int
    gap_us: int = 0
    late_us: int = 0


class Traffic(NamedTuple):
    """A collective that the layers wait for, over an axis: microseconds of transfer and bytes of the whole tensor.

    ``hidden_us`` of it run before, beside kernels that ran already: a gather that was prefetched, a sum of the layer behind.
    It then begins ``ahead_us`` earlier still, for a group's calls follow one another and the next one needs its time too.
    """

    axis: str
    kind: str
    us: int
    bytes: int
    hidden_us: int = 0
    ahead_us: int = 0


Item = Kernel | Traffic


@dataclass(frozen=True, kw_only=True)
class Stage:
    """What one virtual stage does with a micro-batch: layer after layer, forward, backward, weight gradients and again.

    ``wgrad`` is the part of backward that a schedule may run apart; elsewhere it follows ``backward`` at once.
    """

    forward: tuple[Item, ...]
    backward: tuple[Item, ...]
    wgrad: tuple[Item, ...] = ()
    again: tuple[Item, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Job:
    """A training job: mesh tp-cp-dp-pp from the inside out, experts over neighbouring dp ranks; times in microseconds."""

    pipeline: Pipeline
    stages: tuple[Stage, ...]
    tp: int = 1
    cp: int = 1
    dp: int = 1
    ep: int = 1
    steps: int = 3
    reduce_us: int = 0
    reduce_exposed_us: int = 0
    reduce_bytes: int = 0
    gather_us: int = 0
    gather_bytes: int = 1 << 20
    hop_us: int = 5
    hop_bytes: int = 1 << 20
    optimizer_us: int = 1000
    host_us: int = 0
    norm_us: int = 20
    overlaps: bool = True
    graphs: bool = False
    gpus_per_node: int = 8
    skew_us: tuple[int, ...] = (0,)
    noise: float = 0.0
    seed: int = 0
    rank_factor: dict[int, float] = field(default_factory=dict)
    expert_factor: tuple[float, ...] = (1.0,)
    axis_factor: dict[str, float] = field(default_factory=dict)
    data_stall_us: int = 0
    checkpoint_us: int = 0

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self.tp * self.cp * self.dp * self.pipeline.pp

    def place(self, rank: int) -> dict[str, int]:
        """Return a rank's coordinate on every axis."""
        found = {}
        for axis, size in (("tp", self.tp), ("cp", self.cp), ("dp", self.dp), ("pp", self.pipeline.pp)):
            rank, found[axis] = divmod(rank, size)
        return found

    def rank_at(self, place: dict[str, int]) -> int:
        """Return the rank of coordinates."""
        return place["tp"] + self.tp * (place["cp"] + self.cp * (place["dp"] + self.dp * place["pp"]))

    def group(self, rank: int, axis: str) -> tuple[int, ...]:
        """Return the ranks that a rank communicates with over an axis."""
        place = self.place(rank)
        if axis == "all":
            return tuple(range(self.ranks))
        if axis == "ep":
            first = place["dp"] // self.ep * self.ep
            return tuple(self.rank_at({**place, "dp": first + n}) for n in range(self.ep))
        sizes = {"tp": self.tp, "cp": self.cp, "dp": self.dp, "pp": self.pipeline.pp}
        return tuple(self.rank_at({**place, axis: n}) for n in range(sizes[axis]))


DESCRIPTIONS = {
    "tp": "TENSOR_MODEL_PARALLEL_GROUP", "cp": "CONTEXT_PARALLEL_GROUP", "dp": "DATA_PARALLEL_GROUP_WITH_CP",
    "pp": "PIPELINE_MODEL_PARALLEL_GROUP", "ep": "EXPERT_MODEL_PARALLEL_GROUP", "all": "MODEL_PARALLEL_GROUP",
}  # fmt: skip
COMPONENT = {
    "tp": Component.TP, "cp": Component.CP, "dp": Component.DP, "pp": Component.PP, "ep": Component.EP,
    "all": Component.STEP, "fsdp": Component.FSDP,
}  # fmt: skip
