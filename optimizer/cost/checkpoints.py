"""Checkpoints: their size, how long one stops training, how often to save, and what that costs a run."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from layoutopt.optimizer.cost.faults import (
    Waste,
    daly_interval_s,
    expected_wall_time_s,
    waste,
    young_interval_s,
)
from layoutopt.optimizer.specs.reference_fabric import STORAGE_BYTES_PER_S

if TYPE_CHECKING:
    from layoutopt.optimizer.specs.cluster import ClusterSpec, StorageSpec

MASTER_STATE_BYTES = 12
"""fp32 master weights and two fp32 Adam moments per parameter."""

WEIGHT_BYTES = 2
"""16-bit weights saved beside the optimizer state."""

LEAST_STALL_S = 1.0
"""Least time that a snapshot to host memory stops training: about a second of agreeing and collecting in published
asynchronous checkpointing (assumption; Jiang et al. 2024, arXiv:2402.15627, section 4 speaks of seconds)."""


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


class CheckpointMode(StrEnum):
    """Whether training stands still until a checkpoint is on storage, or only until it is in host memory."""

    SYNCHRONOUS = "synchronous"
    ASYNCHRONOUS = "asynchronous"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSchedule:
    """Saving in one mode.

    Training stands still for ``stall_s`` at every checkpoint. ``interval_s`` is Daly's, or the time a background
    write takes where that is longer. ``restart_s`` includes, for background writes, the work since the snapshot
    that had not reached storage. ``waste`` is first order, ``goodput`` and ``wall_s`` exact for exponential
    failures; ``failures`` are expected over the wall-clock time.
    """

    mode: CheckpointMode
    stall_s: float
    restart_s: float
    young_s: float
    daly_s: float
    interval_s: float
    waste: Waste
    goodput: float
    wall_s: float
    failures: float


def checkpoint_schedules(
    work_s: float, cost: CheckpointCost, restart_s: float, mtbf_s: float
) -> tuple[CheckpointSchedule, ...]:
    """Return both modes, the one with the shorter expected run first."""
    both = (
        _schedule(
            CheckpointMode.ASYNCHRONOUS, work_s, cost.asynchronous_stall_s, restart_s, mtbf_s, cost.write_s
        ),
        _schedule(CheckpointMode.SYNCHRONOUS, work_s, cost.synchronous_stall_s, restart_s, mtbf_s, 0.0),
    )
    # Asynchronous is not always better: with slow storage each failure loses the whole write.
    return tuple(sorted(both, key=lambda schedule: schedule.wall_s))


def _schedule(
    mode: CheckpointMode, work_s: float, stall_s: float, restart_s: float, mtbf_s: float, write_s: float
) -> CheckpointSchedule:
    """Plan one mode; ``write_s`` is the background write that a snapshot takes to become usable."""
    daly_s = daly_interval_s(stall_s, mtbf_s)
    # The next snapshot waits until the last one is on storage: host memory holds one.
    interval_s = max(daly_s, write_s)
    # A failure during the write falls back to the snapshot before: the write is lost with it.
    lost_s = restart_s + write_s
    wall_s = expected_wall_time_s(work_s, interval_s, stall_s, lost_s, mtbf_s)
    return CheckpointSchedule(
        mode=mode,
        stall_s=stall_s,
        restart_s=lost_s,
        young_s=young_interval_s(stall_s, mtbf_s),
        daly_s=daly_s,
        interval_s=interval_s,
        waste=waste(interval_s, stall_s, lost_s, mtbf_s),
        goodput=work_s / wall_s,
        wall_s=wall_s,
        failures=wall_s / mtbf_s,
    )
