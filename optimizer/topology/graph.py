"""The cluster as a graph of links, equal parts folded into one node, and what prices read from it.

Nodes carry ``kind`` (gpu, nvswitch, host, nic, switch), ``gpus`` in a full block of them, ``count`` of equal ones in
that block and ``copies`` in the cluster. Edges carry ``kind`` (nvlink, host, port, network), ``bandwidth_bytes_per_s``
of one link one way, ``latency_s``, and ``count`` of parallel links of one lower end. So 16,384 GPUs are six nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.specs.cluster import NetworkLevel
from layoutopt.optimizer.specs.errors import input_error

if TYPE_CHECKING:
    import networkx as nx

    from layoutopt.optimizer.specs.cluster import ClusterSpec

GPU, NVSWITCH, HOST, NIC = _NAMES = "gpu", "nvswitch", "host", "nic"
"""Names of the nodes below the network's levels, which keep their own names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """Traffic that leaves a block of ``inside`` GPUs but stays in one of ``outside`` GPUs.

    ``bytes_per_s`` is each GPU's nominal share of what leads out of a block, one way, when all GPUs send: the
    narrowest links of ``route``, the way up from the block. ``oversubscription`` is the NICs' rate over it,
    ``latency_s`` the whole way from GPU to GPU through switches.
    """

    name: str
    inside: int
    outside: int
    bytes_per_s: float
    route: tuple[str, ...]
    oversubscription: float = 1.0
    latency_s: float = 0.0
    is_host: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NvLink:
    """NVLink between ``domain`` GPUs: nominal bytes/s of one GPU, one way, over ``links`` links (a mesh has several)."""

    domain: int
    bytes_per_s: float
    links: int


def cluster_graph(cluster: ClusterSpec, *, mesh: bool = False) -> nx.Graph:
    """Build the folded graph of a cluster; ``mesh`` joins GPUs of an NVLink domain by links without a switch.

    Levels that lie inside an NVLink domain carry no traffic and drop out. Every block has a full block's uplinks,
    however many GPUs it holds. Raises ``InputError`` when blocks do not nest.
    """
    import networkx as nx

    graph = nx.Graph(
        name=cluster.name,
        rail_optimized=cluster.rail_optimized,
        in_switch_reduction=cluster.in_switch_reduction,
        network_reduction=cluster.network_reduction,
        fabric=cluster.fabric.value,
    )
    _node(graph, cluster, GPU, GPU, gpus=1, generation=cluster.gpu.generation.name)
    inside = cluster.nvlink_domain
    if inside > 1:
        _add_nvlink(graph, cluster, mesh=mesh)
    if inside < min(cluster.gpus_per_node, cluster.gpu_count):
        _node(graph, cluster, HOST, HOST, gpus=cluster.gpus_per_node)
        _link(graph, GPU, HOST, HOST, cluster.gpu.host_link_bytes_per_s)
        inside = cluster.gpus_per_node
    if cluster.gpu_count > inside:
        _check_nesting("NVLink domain", cluster.nvlink_domain, cluster.gpus_per_node)
        _add_network(graph, cluster, _levels(cluster, inside))
    return graph


def read_nvlink(graph: nx.Graph) -> NvLink:
    """Return what joins the GPUs of an NVLink domain; a domain of 1 has no bandwidth."""
    if graph.has_edge(GPU, GPU):
        edge = graph.edges[GPU, GPU]
        rate = edge["bandwidth_bytes_per_s"] * edge["count"]
        return NvLink(domain=edge["count"] + 1, bytes_per_s=rate, links=edge["count"])
    if NVSWITCH not in graph:
        return NvLink(domain=1, bytes_per_s=0.0, links=1)
    rate = _bytes_per_s(graph, GPU, NVSWITCH)
    return NvLink(domain=graph.nodes[NVSWITCH]["gpus"], bytes_per_s=rate, links=1)


def read_tiers(graph: nx.Graph) -> tuple[Tier, ...]:
    """Return the tiers above the NVLink domain, from the node outward."""
    inside, below, tiers = read_nvlink(graph).domain, GPU, []
    joins = [name for name, kind in graph.nodes(data="kind") if kind in (HOST, "switch")]
    nic_share = _nic_share(graph)
    for name in sorted(joins, key=lambda join: int(graph.nodes[join]["gpus"])):
        way = _way_up(graph, GPU, name)
        part = way[way.index(below) :] if below in way else way
        # The narrowest link decides, be it the port of the NIC or the way up to the level.
        rate = min(_bytes_per_s(graph, one, other) for one, other in pairwise(part))
        is_host, outside = graph.nodes[name]["kind"] == HOST, int(graph.nodes[name]["gpus"])
        # Up and down again.
        latency_s = 2 * sum(graph.edges[edge]["latency_s"] for edge in pairwise(way))
        tiers.append(
            Tier(
                name=name,
                inside=inside,
                outside=outside,
                bytes_per_s=rate,
                route=tuple(part),
                oversubscription=1.0 if is_host else nic_share / rate,
                latency_s=latency_s,
                is_host=is_host,
            )
        )
        inside, below = outside, name
    return tuple(tiers)


def cluster_tiers(cluster: ClusterSpec) -> tuple[Tier, ...]:
    """Return the tiers of a cluster's graph; raises ``InputError`` when blocks do not nest."""
    return read_tiers(cluster_graph(cluster))


def route_between(graph: nx.Graph, one: int, other: int) -> tuple[str, ...]:
    """Return the nodes on the way of one GPU's bytes to another's, by their ranks: up to what joins them, and down."""
    if one == other:
        return (GPU,)
    nvlink = read_nvlink(graph)
    if one // nvlink.domain == other // nvlink.domain:
        return (GPU, GPU) if graph.has_edge(GPU, GPU) else (GPU, NVSWITCH, GPU)
    # From the node outward: the first block that holds both.
    joining = next(tier for tier in read_tiers(graph) if one // tier.outside == other // tier.outside)
    up = _way_up(graph, GPU, joining.name)
    return (*up, *up[-2::-1])


def network_bytes_per_s(cluster: ClusterSpec) -> float:
    """Return one GPU's share of its node's NICs, bytes/s one way (all GPUs of a node send at once)."""
    return cluster.nic_bytes_per_s * cluster.nics_per_node / cluster.gpus_per_node


def _way_up(graph: nx.Graph, low: str, high: str) -> list[str]:
    import networkx as nx

    way: list[str] = nx.shortest_path(graph, low, high)
    return way


def _bytes_per_s(graph: nx.Graph, lower: str, upper: str) -> float:
    """One GPU's share of the links between two neighbouring nodes."""
    node, edge = graph.nodes[lower], graph.edges[lower, upper]
    return float(edge["bandwidth_bytes_per_s"] * edge["count"] * node["count"] / node["gpus"])


def _nic_share(graph: nx.Graph) -> float:
    if NIC not in graph:
        return 0.0
    node = graph.nodes[NIC]
    return float(node["bandwidth_bytes_per_s"] * node["count"] / node["gpus"])


def _node(
    graph: nx.Graph, cluster: ClusterSpec, name: str, kind: str, *, gpus: int, count: int = 1, **data: Any
) -> None:
    # The last node may be partly used, and has all of its links.
    copies = -(-cluster.gpu_count // gpus) * count
    graph.add_node(name, kind=kind, gpus=gpus, count=count, copies=copies, **data)


def _link(
    graph: nx.Graph, one: str, other: str, kind: str, rate: float, *, count: int = 1, s: float = 0.0
) -> None:
    graph.add_edge(one, other, kind=kind, bandwidth_bytes_per_s=rate, count=count, latency_s=s)


def _add_nvlink(graph: nx.Graph, cluster: ClusterSpec, *, mesh: bool) -> None:
    """A switch per domain, or a link between every two GPUs of it over which each GPU's bandwidth divides."""
    domain, rate = cluster.nvlink_domain, cluster.gpu.nvlink_bytes_per_s
    if mesh:
        # Every pair has a link of its own: a GPU's bandwidth divides among them.
        _link(graph, GPU, GPU, "nvlink", rate / (domain - 1), count=domain - 1)
        return
    _node(graph, cluster, NVSWITCH, NVSWITCH, gpus=domain)
    _link(graph, GPU, NVSWITCH, "nvlink", rate)


def _add_network(graph: nx.Graph, cluster: ClusterSpec, levels: list[tuple[NetworkLevel, int]]) -> None:
    """NICs behind the host or at their GPUs, through ports no narrower than they are, then one switch per level.

    The leaves of a rail-optimised fabric are as many as a node has NICs. As many links lead from a block to the next
    level as the block has NICs, each narrower by the oversubscription.
    """
    node_gpus, nics, nic_rate = cluster.gpus_per_node, cluster.nics_per_node, cluster.nic_bytes_per_s
    _node(graph, cluster, NIC, NIC, gpus=node_gpus, count=nics, bandwidth_bytes_per_s=nic_rate)
    ports = nics if HOST in graph else max(-(-nics // node_gpus), 1)
    port = max(cluster.gpu.host_link_bytes_per_s, nic_rate)
    _link(graph, HOST if HOST in graph else GPU, NIC, "port", port, count=ports)
    below, switches, block, below_s = NIC, nics, node_gpus, 0.0
    for number, (level, outside) in enumerate(levels):
        # NICs of one index share a leaf; above the leaves all rails meet.
        rails = nics if cluster.rail_optimized and number == 0 else 1
        name = level.name if level.name not in (*graph, *_NAMES) else f"{level.name} {number + 1}"
        _node(graph, cluster, name, "switch", gpus=outside, count=rails)
        rate, links = nic_rate / level.oversubscription, block // node_gpus * nics // switches
        # A hop passes half of either switch: the whole way then counts each switch once.
        delay_s = (below_s + level.latency_s) / 2
        _link(graph, below, name, "network", rate, count=links, s=delay_s)
        below, switches, block, below_s = name, rails, outside, level.latency_s


def _levels(cluster: ClusterSpec, inside: int) -> list[tuple[NetworkLevel, int]]:
    """Network levels with the GPUs they join: those above ``inside``, the last one joining all."""
    levels = [level for level in cluster.levels if level.gpus > inside]
    if not levels:
        levels = [*cluster.levels[-1:]] or [NetworkLevel(name="network", gpus=cluster.gpu_count)]
    kept: list[tuple[NetworkLevel, int]] = []
    for level in levels[:-1]:
        if level.gpus >= cluster.gpu_count:
            break
        _check_nesting(f"level {level.name!r}", level.gpus, inside)
        kept.append((level, level.gpus))
        inside = level.gpus
    top = levels[len(kept)]
    # The outermost level joins whatever there is, so that no GPU is out of reach.
    return [*kept, (top, max(top.gpus, cluster.gpu_count))]


def _check_nesting(what: str, gpus: int, other: int) -> None:
    """Blocks of the larger size consist of whole blocks of the smaller size."""
    if max(gpus, other) % min(gpus, other):
        raise input_error(
            f"{what} joins {gpus} GPUs, which does not nest with blocks of {other}",
            f"a multiple or a divisor of {other}",
            key="levels",
        )
