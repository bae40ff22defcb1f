"""What lives in host memory: the seconds of moving and updating it there, and what does not fit.

The optimizer steps on the host's processors with its state in place, gradients go down and weights come up (Ren et al.
2021, ZeRO-Offload, section 4); activations go down beside the forward pass and come up beside the backward pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.pipeline import schedule_of
from layoutopt.optimizer.cost.schedules import in_flight

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from layoutopt.optimizer.cost.batch import IntArray, LayoutBatch
    from layoutopt.optimizer.cost.constants import Constants
    from layoutopt.optimizer.frameworks.preset import FrameworkPreset
    from layoutopt.optimizer.specs.cluster import ClusterSpec

    FloatArray = NDArray[np.float64]

BUFFERED_BLOCKS = 2
"""Blocks whose activations are on the GPU: the one at work, and the one on its way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One GPU's share of its host; ``moment_bytes`` are the optimizer's per parameter beside master weights."""

    cluster: ClusterSpec
    constants: Constants
    preset: FrameworkPreset
    moment_bytes: float

    @property
    def link_bytes_per_s(self) -> float:
        """What a GPU sustains each way between its memory and pinned memory of the host."""
        return self.cluster.gpu.host_link_bytes_per_s * self.constants["host_link_fraction"]

    @property
    def memory_bytes(self) -> float:
        """Memory for one GPU's tensors; unlimited where the cluster does not say."""
        node = self.cluster.host_memory_bytes
        if node is None:
            return float("inf")
        return node * self.constants["host_memory_fraction"] / self.cluster.gpus_per_node

    def optimizer_s(self, owned: FloatArray) -> FloatArray:
        """Seconds (n,) of one step of the optimizer over the ``owned`` (n,) parameters of a rank, transfers included."""
        preset = self.preset
        moved = (preset.grad_bytes + preset.weight_bytes) * owned / self.link_bytes_per_s
        # It reads the gradient, reads and writes the master weight and its moments, and writes the 16-bit weight.
        traffic = preset.grad_bytes + preset.weight_bytes + 2 * (4.0 + self.moment_bytes)
        # All GPUs of a node share its processors.
        speed = self.constants["host_adam_bytes_per_s"] / self.cluster.gpus_per_node
        return moved + traffic * owned / speed

    def block_s(
        self, kept_bytes: FloatArray, forward_s: FloatArray, backward_s: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Seconds (n,) per micro-batch by which moving a block's activations exceeds its compute, each pass."""
        moved = kept_bytes / self.link_bytes_per_s
        return np.maximum(moved - forward_s, 0.0), np.maximum(moved - backward_s, 0.0)

    def left_bytes(
        self, batch: LayoutBatch, owned: FloatArray, kept_bytes: FloatArray, counts: IntArray
    ) -> FloatArray:
        """Bytes that stay on the GPU: blocks' activations on their way, and what the host has no room for.

        ``owned`` are the parameters whose optimizer state a rank has, ``kept_bytes`` (n, K) one block's activations. An
        equal share of the blocks, ``counts`` of each kind, counts as a rank's.
        """
        preset, schedule = self.preset, schedule_of(batch).schedule
        # The fullest rank decides: its host has no more memory than the others.
        flight = in_flight(schedule, batch.pp, batch.vp, batch.micro_batches).max(axis=1)
        # On the host the step needs a 32-bit master weight, whatever the GPU kept.
        state = preset.grad_bytes + max(preset.master_bytes, 4.0) + self.moment_bytes
        needed = state * owned * preset.offload_optimizer + kept_bytes @ counts / batch.pp * flight
        on_way = BUFFERED_BLOCKS * kept_bytes.max(axis=1)
        return np.asarray(on_way + np.maximum(needed - self.memory_bytes, 0.0))
