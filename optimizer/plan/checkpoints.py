"""Checkpoint size and how long one stops training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from layoutopt.optimizer.specs.reference_fabric import STORAGE_BYTES_PER_S

if TYPE_CHECKING:
    from layoutopt.optimizer.specs.cluster import ClusterSpec, StorageSpec

MASTER_STATE_BYTES = 12
"""fp32 master weights and two fp32 Adam moments per parameter."""

WEIGHT_BYTES = 2
"""16-bit weights saved beside the optimizer state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointCost:
    """Bytes in all and per GPU, seconds to write to storage, and seconds training stands still in both modes."""

    total_bytes: float
    per_gpu_bytes: float
    write_s: float
    synchronous_stall_s: float
    asynchronous_stall_s: float


def checkpoint_bytes(parameters: float, *, with_weights: bool = True) -> float:
    """Bytes of one checkpoint: 12 per parameter, 14 with 16-bit weights."""
    return parameters * (MASTER_STATE_BYTES + (WEIGHT_BYTES if with_weights else 0))


def checkpoint_cost(
    parameters: float,
    gpus: int,
    cluster: ClusterSpec,
    *,
    with_weights: bool = True,
    least_stall_s: float = 0.0,
) -> CheckpointCost:
    """Time a sharded checkpoint: to storage when synchronous, to host memory over the host link when not.

    ``least_stall_s`` is what a snapshot costs beside copying: agreeing on it and collecting what to save.
    """
    total = checkpoint_bytes(parameters, with_weights=with_weights)
    share = total / gpus
    write = total / _write_bytes_per_s(cluster.storage, gpus)
    return CheckpointCost(
        total_bytes=total,
        per_gpu_bytes=share,
        write_s=write,
        synchronous_stall_s=write,
        asynchronous_stall_s=max(share / cluster.gpu.host_link_bytes_per_s, least_stall_s),
    )


def _write_bytes_per_s(storage: StorageSpec | None, gpus: int) -> float:
    """Bandwidth to storage: the slower of the store itself and all GPUs together; unstated, the reference fabric's."""
    if storage is None:
        return gpus * STORAGE_BYTES_PER_S
    return min(storage.write_bytes_per_s, gpus * storage.per_gpu_bytes_per_s)
