"""The reference fabric of a GPU, and a cluster in other sizes: its first GPUs, or the same fabric for more or fewer."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from layoutopt.optimizer.specs.cluster import ClusterSpec, NetworkLevel, StorageSpec
from layoutopt.optimizer.specs.errors import input_error

if TYPE_CHECKING:
    from layoutopt.optimizer.specs.cluster import GpuSpec
    from layoutopt.optimizer.specs.gpu_catalog import CatalogEntry


MAX_GPUS = 10_000_000
POD_GPUS = 3072
"""GPUs with full bisection between them, and ``SPINE_OVERSUBSCRIPTION`` above (Grattafiori et al. 2024,
arXiv:2407.21783, section 3.3.1: pods of 3,072 GPUs, 1:7 between pods)."""
SPINE_OVERSUBSCRIPTION = 7.0
LEAF_NODES = 32
"""Nodes under one set of rail switches: a 64-port switch has 32 ports down and 32 up (NVIDIA DGX SuperPOD
reference architecture, scalable units of 32 DGX H100)."""
LEAF_DOMAINS = 7
"""NVLink domains larger than a node under one set of rail switches. NVIDIA's DGX SuperPOD for GB200 has 8
racks, 576 GPUs; 7, 504 GPUs, fill a pod of 3,024, the most whole racks within ``POD_GPUS``."""
LEAF_LATENCY_S = 1e-6
"""One hop through a fixed-configuration switch with its cables: 0.5-0.8 us of a 51.2 Tbit/s Ethernet chip and
5 ns per metre (vendor figures, recalled; InfiniBand switches are near 0.2 us)."""
MODULAR_LATENCY_S = 4e-6
"""One hop through a deep-buffer modular switch with its cables, as between leaves and pods (Arista 7800
series datasheet, under 4 us, recalled)."""
STORAGE_BYTES_PER_S = 2e12 / 16_384
"""Sustained write bandwidth per GPU (Grattafiori et al. 2024, section 3.3.1: 2 TB/s for 16,384 GPUs)."""
STORAGE_PEAK_BYTES_PER_S = 6.25e9
"""One GPU's share of the storage network: 400 Gbit/s per 8-GPU node (NVIDIA DGX H100 datasheet)."""


def build_reference(entry: CatalogEntry, count: int) -> ClusterSpec:
    """Return ``count`` GPUs in nodes of the entry's size, one NIC per GPU on rails.

    The network has full bisection within a pod of at most 3,072 GPUs (whole NVLink domains) and 1:7 above.
    The last node may be partly filled. Raises ``InputError`` for a count outside 1 to 10 million.
    """
    if not 1 <= count <= MAX_GPUS:
        raise input_error(f"{count} GPUs", f"1 to {MAX_GPUS}", key="gpus")
    gpu = entry.gpu
    return ClusterSpec(
        name=f"{gpu.name}x{count}",
        gpu=gpu,
        gpu_count=count,
        gpus_per_node=gpu.gpus_per_node,
        nvlink_domain=gpu.nvlink_domain,
        nics_per_node=gpu.gpus_per_node,
        nic_bytes_per_s=gpu.nic_bytes_per_s,
        levels=reference_levels(gpu, count),
        fabric=gpu.fabric,
        host_memory_bytes=entry.node_memory_bytes,
        storage=StorageSpec(
            write_bytes_per_s=STORAGE_BYTES_PER_S * count, per_gpu_bytes_per_s=STORAGE_PEAK_BYTES_PER_S
        ),
    )


def reference_levels(gpu: GpuSpec, count: int) -> tuple[NetworkLevel, ...]:
    """Return the levels that ``count`` GPUs need: leaf, pod, spine; none within one NVLink domain or node."""
    block = max(gpu.nvlink_domain, gpu.gpus_per_node)
    if count <= block:
        return ()
    leaf = gpu.gpus_per_node * LEAF_NODES if block == gpu.gpus_per_node else block * LEAF_DOMAINS
    # Whole leaves: a level that cuts one within it is refused of files too.
    pod = max(POD_GPUS // leaf, 1) * leaf
    levels = (
        NetworkLevel(name="leaf", gpus=leaf, latency_s=LEAF_LATENCY_S),
        NetworkLevel(name="pod", gpus=pod, latency_s=MODULAR_LATENCY_S),
        NetworkLevel(
            name="spine",
            gpus=max(count, pod),
            oversubscription=SPINE_OVERSUBSCRIPTION,
            latency_s=MODULAR_LATENCY_S,
        ),
    )
    needed = next(index for index, level in enumerate(levels) if count <= level.gpus)
    return levels[: needed + 1]


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
    # Which of a graph's GPUs are the first is not said in it.
    if cluster.graph is not None:
        what = f"the graph of {cluster.name} has {cluster.gpu_count:,} GPUs"
        raise input_error(what, "all of them", key=key)
    levels = _inner_levels(cluster, count)
    return replace(cluster, name=f"{count} of {cluster.name}", gpu_count=count, levels=levels)


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
        levels = [network] if gpus > cluster.gpus_per_node else []
    else:
        # The first level that reaches as far becomes the outermost; levels beyond it would join nothing.
        levels = [level for level in cluster.levels[:-1] if level.gpus < gpus]
        levels.append(replace(cluster.levels[len(levels)], gpus=gpus))
    return replace(cluster, gpu_count=gpus, levels=tuple(levels), graph=None)
