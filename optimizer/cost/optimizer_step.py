"""Seconds of the optimizer step: memory traffic on the GPU, the step on its host, and work on whole matrices.

One quintic Newton-Schulz step on X of m rows and n columns, m the shorter side: A = X X^T, B = bA + cA^2, X = aX + BX
(Jordan et al. 2024, KellerJordan/Muon). Duplicated and distributed: NVIDIA/Megatron-LM ``--muon-tp-mode``; owners: its
layer-wise distributed optimizer, whose gradients and weights travel as those of ZeRO-1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.formats import weight_cast_bytes
from layoutopt.optimizer.cost.hardware import gemm_s
from layoutopt.optimizer.cost.matrices import Held, block_matrices, mtp_matrices
from layoutopt.optimizer.cost.optimizers import OPTIMIZERS, moment_bytes
from layoutopt.optimizer.cost.pipeline import schedule_of
from layoutopt.optimizer.cost.states import owned_parameters, shard_sizes
from layoutopt.optimizer.specs.vocabulary import MuonSharing

if TYPE_CHECKING:
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
    from collections.abc import Iterator

    from layoutopt.optimizer.cost.matrices import Matrix
    from layoutopt.optimizer.specs.model import OptimizerSpec
    from layoutopt.optimizer.topology.groups import GroupBatch


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
        # DualPipe holds two copies of each stage, whose optimizer states are shared among both.
        copies, moments = schedule_of(batch).parameter_copies, moment_bytes(self.preset, self.model)
        owned = owned_parameters(batch, fullest, copies)
        local = fullest.dense + fullest.expert
        # The GPU then zeroes gradients and receives weights; moments and update are the host's.
        if self.preset.offload_optimizer:
            return optimizer_bytes(local, 0.0 * owned, 0.0) / self.rates.optimizer_bytes_per_s + (
                self.host.optimizer_s(owned)
            )
        moved = optimizer_bytes(local, owned, moments.matrix)
        # Muon keeps one moment of matrices and two of the rest, Adafactor row and column sums of matrices.
        if moments.other != moments.matrix:
            # Optimizers of matrices keep other moments of what is in none.
            moved = moved + 2 * (moments.other - moments.matrix) * owned_parameters(batch, other, copies)
        seconds = moved / self.rates.optimizer_bytes_per_s + self._casts_s(fullest, other)
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

    def _casts_s(self, fullest: RankParameters, other: RankParameters) -> FloatArray:
        """Seconds of a step's casts of weights; those in no matrix stay wide."""
        if self.rates.ideal:
            return 0.0 * fullest.dense
        each = weight_cast_bytes(
            self.preset, self.rates.precision, any_arrangement=self.rates.any_arrangement
        )
        narrow = fullest.dense - other.dense + fullest.expert - other.expert
        return each * narrow / self.rates.memory_bytes_per_s


def optimizer_bytes(local: FloatArray, owned: FloatArray, moment_bytes: float) -> FloatArray:
    """Memory traffic (n,) of one step: 4 bytes per local parameter, 38 per owned one with two 32-bit moments.

    Zeroing gradients, norm, reads and writes of the weights and of ``moment_bytes`` of moments, and the copy to 16 bits
    (MooreThreads/SimuMax perf_llm, with Adam).
    """
    return 4.0 * local + (22.0 + 2 * moment_bytes) * owned


ELEMENT_BYTES = 2
"""The iteration runs in bf16, and so do its momentum on the way and its Gram matrices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Orthogonalizer:
    """Prices the iteration over the matrices that a rank's stage holds."""

    model: ModelSpec
    optimizer: OptimizerSpec
    rates: Rates
    topology: Topology
    batch: LayoutBatch
    groups: MeshGroups

    def seconds(self) -> FloatArray:
        """Seconds (n,) per step of an equal share of the blocks, with the prediction layers of the last stage."""
        batch, one = self.batch, np.ones(len(self.batch))
        # Without sharding every rank has all momentum, and repeats the iteration on all of it.
        sharded = batch.zero >= 1
        owned = sharded if self.optimizer.distribution in (None, MuonSharing.OWNER) else sharded & False
        total, largest = 0.0 * one, 0.0 * one
        for matrix, count in self._matrices():
            owners = np.where(owned, self._owners(matrix), 1.0)
            each = self._one_s(matrix)
            total = total + count / owners * each
            largest = np.maximum(largest, each)
        # No owner does less than one matrix.
        return np.maximum(total, largest) + np.where(sharded & ~owned, self._gathered_s(), 0.0)

    def _matrices(self) -> Iterator[tuple[Matrix, FloatArray]]:
        """Yield the matrices of a stage, and how many of each a rank holds whole or in part."""
        share = schedule_of(self.batch).parameter_copies / self.batch.pp
        parts = [
            (matrix, run.count * share)
            for run in self.model.runs
            for matrix in block_matrices(self.model, run)
        ]
        if self.model.mtp_layers:
            mtp = np.full(len(self.batch), float(self.model.mtp_layers))
            parts += [(matrix, mtp) for matrix in mtp_matrices(self.model)]
        counts: dict[Matrix, FloatArray] = {}
        for matrix, times in parts:
            # Equal matrices of several layers are priced once.
            one = replace(matrix, count=1.0)
            among = self.batch.ep if matrix.held is Held.EXPERT else 1
            counts[one] = counts.get(one, np.zeros(len(self.batch))) + matrix.count * times / among
        yield from counts.items()

    def _owners(self, matrix: Matrix) -> FloatArray:
        """Ranks among which a matrix's owner is chosen: those that share its optimizer state."""
        dense, expert = shard_sizes(self.batch, schedule_of(self.batch).parameter_copies)
        return expert if matrix.held is Held.EXPERT else dense

    def _parts(self, matrix: Matrix) -> tuple[FloatArray, GroupBatch]:
        """Ranks that hold a part of a matrix each, and their group."""
        if matrix.held is Held.EXPERT:
            return self.batch.etp.astype(np.float64), self.groups.etp
        parts = np.where(matrix.held is Held.REPLICATED, 1, self.batch.tp)
        return parts.astype(np.float64), self.groups.tp

    def _one_s(self, matrix: Matrix) -> FloatArray:
        """Seconds of one matrix: its multiplications, and its traffic among the ranks that hold its parts."""
        parts, group = self._parts(matrix)
        steps, split = self.optimizer.steps, parts > 1
        # The Gram matrix is as large as the shorter side: the longer one is summed over.
        m = np.full(len(self.batch), float(matrix.short))
        if self.optimizer.distribution is MuonSharing.DISTRIBUTED:
            # Each rank multiplies its slice of the long side, and the small Gram matrices are added up.
            inner = matrix.long / parts
            reduce_s = self.topology.all_reduce_s(ELEMENT_BYTES * m * m, group)
            return steps * (self._step_s(m, inner) + np.where(split, reduce_s, 0.0))
        gather_s = self.topology.all_gather_s(ELEMENT_BYTES * float(matrix.elements) + 0.0 * m, group)
        return steps * self._step_s(m, m * matrix.long / matrix.short) + np.where(split, gather_s, 0.0)

    def _step_s(self, m: FloatArray, n: FloatArray) -> FloatArray:
        """Seconds of the three multiplications of a step."""
        shapes = (m, m, n), (m, m, m), (m, n, m)
        return np.asarray(sum(gemm_s(self.rates, *shape, wide=True) for shape in shapes))

    def _gathered_s(self) -> FloatArray:
        """Seconds of gathering sharded momentum on every rank, where state is sharded but matrices have no owner."""
        dense, expert = 0.0 * self.batch.dp, 0.0 * self.batch.dp
        for matrix, count in self._matrices():
            held = ELEMENT_BYTES * matrix.elements * count / self._parts(matrix)[0]
            dense, expert = (dense, expert + held) if matrix.held is Held.EXPERT else (dense + held, expert)
        seconds = self.topology.all_gather_s(dense, self.groups.hsdp_inner(self.batch.hsdp_shard))
        return seconds + (self.topology.all_gather_s(expert, self.groups.edp) if expert.any() else 0.0)
