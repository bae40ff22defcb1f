"""A cluster from files that describe its nodes or network, and the name of its GPU, which they do not hold."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.interop.records import GpuTopology, NodeSet
from layoutopt.optimizer.specs.cluster import NetworkLevel
from layoutopt.optimizer.specs.errors import input_error
from layoutopt.optimizer.specs.loading import load_gpu, reference_cluster
from layoutopt.optimizer.specs.printable import as_name
from layoutopt.optimizer.specs.reference_fabric import LEAF_LATENCY_S, MODULAR_LATENCY_S

if TYPE_CHECKING:
    from layoutopt.optimizer.specs.cluster import ClusterSpec, GpuSpec

ACCEPTED = "a Slurm or PBS node list, Slurm's topology, nvidia-smi topo -m, GraphML or a node-link graph"


def cluster_from(gpu: str, found: Any, name: str) -> ClusterSpec:
    """Build the cluster that an imported file describes, of GPUs of the catalog.

    Node lists give the number of GPUs on the reference network; equal switches or blocks become its leaves. A graph is
    the network itself. Raises ``InputError`` for anything else.
    """
    spec = load_gpu(gpu)
    if isinstance(found, NodeSet):
        return replace(_of_nodes(spec, found), name=as_name(name))
    if isinstance(found, GpuTopology):
        return replace(_of_node(spec, found), name=as_name(name))
    if isinstance(found, dict) and "nodes" in found:
        return replace(_of_graph(spec, found), name=as_name(name))
    raise input_error("does not describe a cluster", ACCEPTED, file=name)


def gpu_count(nodes: NodeSet, gpus_per_node: int) -> int:
    """Return the GPUs of a node list."""
    return len(nodes.nodes) * (nodes.gpus_per_node or gpus_per_node)


def _of_nodes(gpu: GpuSpec, found: NodeSet) -> ClusterSpec:
    per_node = found.gpus_per_node or gpu.gpus_per_node
    count = gpu_count(found, gpu.gpus_per_node)
    domain = _domain(gpu, per_node)
    cluster = replace(
        reference_cluster(gpu.name, count),
        gpus_per_node=per_node,
        nics_per_node=per_node,
        nvlink_domain=domain,
    )
    sizes = Counter(len(block.nodes) for block in found.blocks if block.nodes)
    leaf = max(sizes, default=0)
    equal = len(sizes) == 1 and sum(sizes.values()) * leaf == len(found.nodes)
    if not equal or not per_node < leaf * per_node < count:
        return cluster  # no blocks, blocks of several sizes, or one that holds all: nothing to tell apart
    levels = (
        NetworkLevel(name="leaf", gpus=leaf * per_node, latency_s=LEAF_LATENCY_S),
        NetworkLevel(name="spine", gpus=count, latency_s=MODULAR_LATENCY_S),
    )
    return replace(cluster, levels=levels)


def _domain(gpu: GpuSpec, per_node: int) -> int:
    """Return the NVLink domain: an NVL72's spans nodes, whatever a scheduler calls one; others end at the node."""
    return gpu.nvlink_domain if gpu.nvlink_domain > gpu.gpus_per_node else min(gpu.nvlink_domain, per_node)


def _of_node(gpu: GpuSpec, found: GpuTopology) -> ClusterSpec:
    # A matrix is of one node, whose NVLink and NICs it states; no network is above it.
    cluster = reference_cluster(gpu.name, found.gpus)
    return replace(
        cluster,
        gpus_per_node=found.gpus,
        nvlink_domain=found.nvlink_domain,
        nics_per_node=found.nics or found.gpus,
        levels=(),
    )


def _of_graph(gpu: GpuSpec, graph: dict[str, Any]) -> ClusterSpec:
    kinds = Counter(str(node.get("kind")) for node in graph["nodes"])
    if not kinds["gpu"]:
        allowed = "nodes with kind: gpu, nvswitch, host, nic, switch"
        raise input_error("the graph has no node of kind gpu", allowed)
    cluster = reference_cluster(gpu.name, kinds["gpu"])
    hosts = kinds["host"]
    per_node = kinds["gpu"] // hosts if hosts and kinds["gpu"] % hosts == 0 else gpu.gpus_per_node
    domain = _domain(gpu, per_node)
    return replace(cluster, gpus_per_node=per_node, nvlink_domain=domain, nics_per_node=per_node, graph=graph)
