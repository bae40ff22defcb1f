"""Seconds of the optimizer step: memory traffic on the GPU, the step on its host, and work on whole matrices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from layoutopt.optimizer.cost.optimizers import OPTIMIZERS, moment_bytes
from layoutopt.optimizer.cost.orthogonal import Orthogonalizer
from layoutopt.optimizer.cost.pipeline import schedule_of
from layoutopt.optimizer.cost.states import owned_parameters

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from layoutopt.optimizer.cost.batch import LayoutBatch
    from layoutopt.optimizer.cost.hardware import Rates
    from layoutopt.optimizer.cost.offload import Host
    from layoutopt.optimizer.cost.states import RankParameters
    from layoutopt.optimizer.frameworks.preset import FrameworkPreset
    from layoutopt.optimizer.specs.model import ModelSpec
    from layoutopt.optimizer.topology.mesh import MeshGroups
    from layoutopt.optimizer.topology.prices import Topology

    FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerStep:
    """What the step depends on beside the layout."""

    model: ModelSpec
    preset: FrameworkPreset
    rates: Rates
    topology: Topology
    host: Host

    def seconds(
        self, batch: LayoutBatch, groups: MeshGroups, fullest: RankParameters, other: RankParameters
    ) -> FloatArray:
        """Seconds (n,) of one step on the rank that holds ``fullest`` parameters, ``other`` of them in no matrix."""
        copies, moments = schedule_of(batch).parameter_copies, moment_bytes(self.preset, self.model)
        owned = owned_parameters(batch, fullest, copies)
        local = fullest.dense + fullest.expert
        if self.preset.offload_optimizer:
            return optimizer_bytes(local, 0.0 * owned, 0.0) / self.rates.optimizer_bytes_per_s + (
                self.host.optimizer_s(owned)
            )
        moved = optimizer_bytes(local, owned, moments.matrix)
        if moments.other != moments.matrix:
            moved = moved + 2 * (moments.other - moments.matrix) * owned_parameters(batch, other, copies)
        seconds = moved / self.rates.optimizer_bytes_per_s
        if not OPTIMIZERS[self.preset.optimizer.kind].orthogonal:
            return seconds
        matrices = Orthogonalizer(
            model=self.model,
            optimizer=self.preset.optimizer,
            rates=self.rates,
            topology=self.topology,
            batch=batch,
            groups=groups,
        )
        return seconds + matrices.seconds()


def optimizer_bytes(local: FloatArray, owned: FloatArray, moment_bytes: float) -> FloatArray:
    """Memory traffic (n,) of one step: 4 bytes per local parameter, 38 per owned one with two 32-bit moments.

    Zeroing gradients, norm, reads and writes of the weights and of ``moment_bytes`` of moments, and the copy to 16 bits
    (MooreThreads/SimuMax perf_llm, with Adam).
    """
    return 4.0 * local + (22.0 + 2 * moment_bytes) * owned
