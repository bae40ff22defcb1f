"""What failures and checkpoints make of a layout's run: expected wall-clock time over useful time."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.checkpoints import LEAST_STALL_S, checkpoint_cost, checkpoint_schedules
from layoutopt.optimizer.cost.faults import job_mean_time_between_failures_s
from layoutopt.optimizer.cost.parameters import model_parameters

if TYPE_CHECKING:
    from layoutopt.optimizer.cost.batch import LayoutBatch
    from layoutopt.optimizer.cost.checkpoints import CheckpointSchedule
    from layoutopt.optimizer.cost.terms import FloatArray
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.model import ModelSpec

NEVER = 1e9
"""Stands for a run that failures never let end."""


def state_replicas(batch: LayoutBatch, *, exact: bool = True) -> FloatArray:
    """Return how many groups of ranks each hold the whole training state and can train alone, (n,).

    A group holds every layer and every expert. ZeRO spreads the state over the data-parallel ranks, or over a shard group.
    Not ``exact``: the most that any sharding leaves.
    """
    groups = batch.tp * batch.cp * batch.dp // np.maximum(batch.tp * batch.cp, batch.ep * batch.etp)
    if not exact:
        most: FloatArray = groups.astype(np.float64)
        return most
    shards = np.where(batch.hsdp_shard > 0, batch.hsdp_shard, batch.dp)
    shards = np.where(batch.zero > 0, shards, 1)
    left: FloatArray = np.maximum(groups // shards, 1).astype(np.float64)
    return left


def slowdowns(model: ModelSpec, cluster: ClusterSpec, gpus: FloatArray, replicas: FloatArray) -> FloatArray:
    """Return expected wall-clock time over useful time, (n,), of layouts on ``gpus`` with so many state replicas.

    A failure stops the whole job, which goes back to its last checkpoint; the better checkpoint mode at its best interval.
    Where the cluster states ``failures.hot_restart`` and another replica has the state, only the replica that failed
    stands still for so long, and the others train on with their share of the batch.
    """
    whole = {count: job_slowdown(model, cluster, int(count)) for count in np.unique(gpus).tolist()}
    stopped = np.array([whole[count] for count in gpus.tolist()])
    hot_s = cluster.failures.hot_restart_s
    if hot_s is None:
        return stopped
    mtbf_s = cluster.failures.gpu_hours_per_failure * 3600.0 / gpus
    result: FloatArray = np.where(replicas > 1, hot_slowdown(hot_s, mtbf_s, replicas), stopped)
    return result


def hot_slowdown(hot_restart_s: float, mtbf_s: FloatArray, replicas: FloatArray) -> FloatArray:
    """Return wall-clock over useful time where a failed replica alone stands still, the other ones training on.

    Each replica fails after ``replicas * mtbf_s`` in the mean and is away for ``hot_restart_s``: a renewal process, so
    that it works for mtbf / (mtbf + away) of the time.
    """
    return 1.0 + hot_restart_s / (mtbf_s * replicas)


def job_slowdown(model: ModelSpec, cluster: ClusterSpec, gpus: int) -> float:
    """Return expected wall-clock time over useful time of a job that a failure stops as a whole."""
    wall_s = job_schedule(model, cluster, gpus).wall_s
    return wall_s if isfinite(wall_s) else NEVER


def job_schedule(model: ModelSpec, cluster: ClusterSpec, gpus: int) -> CheckpointSchedule:
    """Return the better checkpoint mode of a second of useful work."""
    mtbf_s = job_mean_time_between_failures_s(cluster.failures.gpu_hours_per_failure, gpus)
    parameters = model_parameters(model, with_mtp=True)
    cost = checkpoint_cost(parameters, gpus, cluster, least_stall_s=LEAST_STALL_S)
    return checkpoint_schedules(1.0, cost, cluster.failures.restart_s, mtbf_s)[0]
