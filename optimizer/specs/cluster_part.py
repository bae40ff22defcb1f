"""A cluster in other sizes: its first GPUs with the network between them, or the same fabric for more or fewer."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from layoutopt.optimizer.specs.cluster import NetworkLevel
from layoutopt.optimizer.specs.errors import input_error
from layoutopt.optimizer.specs.reference_fabric import LEAF_LATENCY_S

if TYPE_CHECKING:
    from layoutopt.optimizer.specs.cluster import ClusterSpec


def first_gpus(cluster: ClusterSpec, count: int, *, key: str = "gpus") -> ClusterSpec:
    """Return the cluster's first ``count`` GPUs; the last node may be partly filled.

    Levels outside the first that covers them are left out. Raises ``InputError`` for more GPUs than the cluster has,
    and for fewer than all of a cluster with an explicit graph; ``key`` names the input in it.
    """
    if count == cluster.gpu_count:
        return cluster
    if not 1 <= count < cluster.gpu_count:
        what = f"{cluster.name} has {cluster.gpu_count:,} GPUs, not {count:,}"
        reference = f"{cluster.gpu.name}x{count} is a reference fabric of that size"
        raise input_error(what, f"1 to {cluster.gpu_count}; {reference}", key=key)
    if cluster.graph is not None:
        raise input_error(
            f"the graph of {cluster.name} has {cluster.gpu_count:,} GPUs", "all of them", key=key
        )
    return replace(
        cluster,
        name=f"{count} of {cluster.name}",
        gpu_count=count,
        levels=_inner_levels(cluster, count),
    )


def _inner_levels(cluster: ClusterSpec, count: int) -> tuple[NetworkLevel, ...]:
    """Keep the levels up to the first that covers the GPUs, none within a node or NVLink domain."""
    if count <= max(cluster.gpus_per_node, cluster.nvlink_domain):
        return ()
    covering = next((i for i, level in enumerate(cluster.levels) if level.gpus >= count), len(cluster.levels))
    return cluster.levels[: covering + 1]


def resized(cluster: ClusterSpec, gpus: int) -> ClusterSpec:
    """Return the same fabric with another number of GPUs: inner levels keep their size, the outermost spans all."""
    if not cluster.levels:
        network = NetworkLevel(name="network", gpus=gpus, latency_s=LEAF_LATENCY_S)
        return replace(
            cluster, gpu_count=gpus, levels=(network,) if gpus > cluster.gpus_per_node else (), graph=None
        )
    levels = [level for level in cluster.levels[:-1] if level.gpus < gpus]
    outer = cluster.levels[len(levels)] if len(levels) < len(cluster.levels) else cluster.levels[-1]
    levels.append(
        NetworkLevel(
            name=outer.name, gpus=gpus, oversubscription=outer.oversubscription, latency_s=outer.latency_s
        )
    )
    return replace(cluster, gpu_count=gpus, levels=tuple(levels), graph=None)
