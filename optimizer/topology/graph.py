"""The cluster as a graph: GPUs, NVLink switches, hosts, NICs and network switches, joined by links.

Nodes carry ``kind`` (gpu, nvswitch, host, nic, switch), edges ``kind`` (nvlink, host, port, network),
``bandwidth_bytes_per_s`` of one link one way, ``latency_s`` and ``count`` of parallel links.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from layoutopt.optimizer.topology.tiers import cluster_tiers

if TYPE_CHECKING:
    import networkx as nx

    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.topology.tiers import Tier


def build_graph(cluster: ClusterSpec, *, mesh: bool = False) -> nx.Graph:
    """Build the graph of a cluster from its levels; ``mesh`` joins GPUs of an NVLink domain without a switch.

    A GPU's ``index`` is its rank. Switches of one level and block are one node, but for the leaves of a
    rail-optimised fabric, one per rail. Every block has a full block's uplinks, however many GPUs it holds.
    """
    import networkx as nx

    graph = nx.Graph(name=cluster.name)
    for gpu in range(cluster.gpu_count):
        graph.add_node(f"gpu:{gpu}", kind="gpu", index=gpu, node=gpu // cluster.gpus_per_node)
    (_add_mesh if mesh else _add_nvlink)(graph, cluster)
    tiers = [tier for tier in cluster_tiers(cluster) if not tier.is_host]
    if cluster.nvlink_domain < cluster.gpus_per_node:
        _add_hosts(graph, cluster)
    if tiers:
        _add_nics(graph, cluster)
        _add_leaves(graph, cluster, tiers[0])
        for below, tier in pairwise(tiers):
            _add_uplinks(graph, cluster, below, tier)
    return graph


def nic_shares(cluster: ClusterSpec, gpu: int) -> dict[int, float]:
    """Return which of its node's NICs a GPU uses, and which share of its traffic goes over each.

    NICs are dealt out evenly in order: one or several whole ones per GPU, or one for several GPUs.
    """
    per_gpu = cluster.nics_per_node / cluster.gpus_per_node
    local = gpu % cluster.gpus_per_node
    start, end = local * per_gpu, (local + 1) * per_gpu
    nics = range(int(start), min(int(-(-end // 1)), cluster.nics_per_node))
    shares = {nic: (min(end, nic + 1) - max(start, nic)) / per_gpu for nic in nics}
    return {nic: share for nic, share in shares.items() if share > 1e-9}


def leaf_of(cluster: ClusterSpec, tier: Tier, gpu: int, nic: int) -> str:
    """Return the name of the leaf switch of a NIC in the node of ``gpu``."""
    rail = f":{nic}" if cluster.rail_optimized else ""
    return f"{tier.name}:{gpu // tier.outside}{rail}"


def _link(
    graph: nx.Graph, one: str, other: str, kind: str, rate: float, *, count: int = 1, s: float = 0.0
) -> None:
    graph.add_edge(one, other, kind=kind, bandwidth_bytes_per_s=rate, count=count, latency_s=s)


def _add_nvlink(graph: nx.Graph, cluster: ClusterSpec) -> None:
    if cluster.nvlink_domain == 1:
        return
    for gpu in range(cluster.gpu_count):
        switch = f"nvswitch:{gpu // cluster.nvlink_domain}"
        graph.add_node(switch, kind="nvswitch")
        _link(graph, f"gpu:{gpu}", switch, "nvlink", cluster.gpu.nvlink_bytes_per_s)


def _add_mesh(graph: nx.Graph, cluster: ClusterSpec) -> None:
    """A link between every two GPUs of a domain: each GPU's bandwidth divides over them."""
    domain = cluster.nvlink_domain
    for gpu in range(cluster.gpu_count):
        for peer in range(gpu + 1, min(gpu // domain * domain + domain, cluster.gpu_count)):
            rate = cluster.gpu.nvlink_bytes_per_s / (domain - 1)
            _link(graph, f"gpu:{gpu}", f"gpu:{peer}", "nvlink", rate)


def _add_hosts(graph: nx.Graph, cluster: ClusterSpec) -> None:
    """Hosts of nodes that NVLink does not connect as a whole."""
    for gpu in range(cluster.gpu_count):
        host = f"host:{gpu // cluster.gpus_per_node}"
        graph.add_node(host, kind="host")
        _link(graph, f"gpu:{gpu}", host, "host", cluster.gpu.host_link_bytes_per_s)


def _add_nics(graph: nx.Graph, cluster: ClusterSpec) -> None:
    """NICs behind the host, or each at the GPUs that use it, through a port no narrower than the NIC."""
    port = max(cluster.gpu.host_link_bytes_per_s, cluster.nic_bytes_per_s)
    for gpu in range(cluster.gpu_count):
        node = gpu // cluster.gpus_per_node
        host = f"host:{node}" if cluster.nvlink_domain < cluster.gpus_per_node else f"gpu:{gpu}"
        for nic in nic_shares(cluster, gpu):
            graph.add_node(f"nic:{node}:{nic}", kind="nic")
            _link(graph, host, f"nic:{node}:{nic}", "port", port)


def _add_leaves(graph: nx.Graph, cluster: ClusterSpec, tier: Tier) -> None:
    rate = cluster.nic_bytes_per_s / tier.oversubscription
    for gpu in range(cluster.gpu_count):
        for nic in nic_shares(cluster, gpu):
            leaf = leaf_of(cluster, tier, gpu, nic)
            graph.add_node(leaf, kind="switch", level=tier.name, block=gpu // tier.outside)
            nic_name = f"nic:{gpu // cluster.gpus_per_node}:{nic}"
            _link(graph, nic_name, leaf, "network", rate, s=tier.switch_s / 2)


def _add_uplinks(graph: nx.Graph, cluster: ClusterSpec, below: Tier, tier: Tier) -> None:
    """Join the switches of one level to those of the next by as many links as a full block has NICs below."""
    nics = below.outside // cluster.gpus_per_node * cluster.nics_per_node
    lower = {name: data["block"] for name, data in graph.nodes(data=True) if data.get("level") == below.name}
    switches_per_block = sum(block == 0 for block in lower.values())
    rate, latency_s = cluster.nic_bytes_per_s / tier.oversubscription, (below.switch_s + tier.switch_s) / 2
    for name, block in lower.items():
        above = block * below.outside // tier.outside
        graph.add_node(f"{tier.name}:{above}", kind="switch", level=tier.name, block=above)
        link_count = nics // switches_per_block
        _link(graph, name, f"{tier.name}:{above}", "network", rate, count=link_count, s=latency_s)
