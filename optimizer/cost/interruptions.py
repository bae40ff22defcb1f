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
    # Experts fold over tp, cp and dp: whoever is the wider, dense layers or experts, makes the group.
    groups = batch.tp * batch.cp * batch.dp // np.maximum(batch.tp * batch.cp, batch.ep * batch.etp)
    if not exact:
        most: FloatArray = groups.astype(np.float64)
        return most
    shards = np.where(batch.hsdp_shard > 0, batch.hsdp_shard, batch.dp)
    # Without ZeRO every data-parallel rank has all of it.
    shards = np.where(batch.zero > 0, shards, 1)
    left: FloatArray = np.maximum(groups // shards, 1).astype(np.float64)
    return left


def slowdowns(model: ModelSpec, cluster: ClusterSpec, gpus: FloatArray, replicas: FloatArray) -> FloatArray:
    """Return expected wall-clock time over useful time, (n,), of layouts on ``gpus`` with so many state replicas.

    A failure stops the whole job, which goes back to its last checkpoint; the better checkpoint mode at its best interval.
    Where the cluster states ``failures.hot_restart`` and another replica has the state, only the replica that failed
    stands still for so long, and the others train on with their share of the batch. Where it states ``failures.repair``, a
    failed node has to be replaced by a spare one, or is waited for.
    """
    failures = cluster.failures
    whole = {count: job_slowdown(model, cluster, int(count)) for count in np.unique(gpus).tolist()}
    stopped = np.array([whole[count] for count in gpus.tolist()])
    # GPUs fail independently of each other: the more of them, the more often one does.
    mtbf_s = failures.gpu_hours_per_failure * 3600.0 / gpus
    waiting_s = np.zeros(len(gpus))
    if failures.repair_s is not None:
        spares, load = ready_nodes(cluster, gpus), failures.repair_s / mtbf_s
        # A job that always waits for a node never ends: NEVER keeps the search in finite numbers.
        stopped = np.minimum(stopped / np.maximum(1 - blocking(spares, load), 1 / NEVER), NEVER)
        waiting_s = waiting_for_nodes_s(spares, load, mtbf_s)
    # The others can train on only where the trainer takes a replica out of the job.
    if failures.hot_restart_s is None:
        return stopped
    hot = hot_slowdown(failures.hot_restart_s + waiting_s, mtbf_s, replicas)
    # One replica alone has nobody to take its state from.
    result: FloatArray = np.where(replicas > 1, np.minimum(hot, stopped), stopped)
    return result


def ready_nodes(cluster: ClusterSpec, gpus: FloatArray) -> FloatArray:
    """Return the nodes that stand ready for failed ones, (n,): the cluster's spare ones and what a layout leaves idle."""
    idle: FloatArray = cluster.failures.spare_nodes + (cluster.gpu_count - gpus) // cluster.gpus_per_node
    return idle


def blocking(spares: FloatArray, load: FloatArray) -> FloatArray:
    """Return the share of time that a job stands still for lack of a node, (n,).

    Nodes fail while the job runs and are away for repair; it waits when one more than its ``spares`` is. With ``load``,
    repair time over the mean time between failures, that is Erlang's loss formula (Erlang 1917), which holds whatever the
    distribution of repair times.
    """
    share, found = np.ones(len(load)), np.ones(len(load))
    # The recursion of the formula, one node more at a time: factorials would overflow.
    for nodes in range(1, int(spares.max(initial=0.0)) + 2):
        share = load * share / (nodes + load * share)
        found = np.where(spares + 1 >= nodes, share, found)
    return found


def waiting_for_nodes_s(spares: FloatArray, load: FloatArray, mtbf_s: FloatArray) -> FloatArray:
    """Return how long a failed replica waits for a node in the mean, (n,) seconds, the others training on.

    Nodes in repair are Poisson distributed with mean ``load`` (M/G/infinity; Palm 1943); those beyond the spares are
    missing, and by Little's law each failure waits for that number times the time between failures.
    """
    from scipy.special import pdtr

    at_least = 1 - np.where(spares > 0, pdtr(spares - 1, load), 0.0)
    missing = load * at_least - spares * (1 - pdtr(spares, load))
    waiting: FloatArray = np.maximum(missing, 0.0) * mtbf_s
    return waiting


def failure_words(cluster: ClusterSpec, ours: tuple[float, float], other: tuple[float, float]) -> str:
    """Say why failures cost one layout less than another: of each its GPUs and its state replicas."""
    spares = [float(ready_nodes(cluster, np.array([gpus]))[0]) for gpus, _ in (ours, other)]
    parts = []
    if cluster.failures.hot_restart_s is not None and ours[1] > other[1]:
        held = f"{other[1]:.0f} copies" if other[1] > 1 else "one copy"
        parts.append(
            f"{ours[1]:.0f} copies of the training state instead of {held}, so that the others train on while one that "
            "failed restarts"
        )
    if cluster.failures.repair_s is not None and spares[0] > spares[1]:
        parts.append(f"{spares[0]:.0f} nodes stand ready for failed ones instead of {spares[1]:.0f}")
    elif ours[0] < other[0]:
        parts.append(f"fewer of {ours[0]:,.0f} GPUs fail than of {other[0]:,.0f}")
    return ", and ".join(parts)


def hot_slowdown(hot_restart_s: FloatArray | float, mtbf_s: FloatArray, replicas: FloatArray) -> FloatArray:
    """Return wall-clock over useful time (n,) where a failed replica alone stands still, the others training on.

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
