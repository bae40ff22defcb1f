"""An explicit cluster graph, checked and expressed as nested equal blocks, which is what prices need.

A graph is a node-link mapping: ``nodes`` with ``id`` and ``kind`` (gpu, nvswitch, host, nic, switch),
``edges`` (or ``links``) with ``source``, ``target``, ``bandwidth`` of one link one way, optional ``latency``
and ``count``. GPUs are ranked in the order of the file.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.specs.errors import InputError, Problem, input_error
from layoutopt.optimizer.specs.units import BANDWIDTH, TIME, parse_quantity
from layoutopt.optimizer.topology.blocks import Blocks, nested_levels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import networkx as nx

    from layoutopt.optimizer.specs.cluster import ClusterSpec

KINDS = ("gpu", "nvswitch", "host", "nic", "switch")
_MAX_PROBLEMS = 20


def resolve_graph(cluster: ClusterSpec) -> ClusterSpec:
    """Return the cluster with its explicit graph turned into levels and bandwidths; itself without a graph.

    Raises ``InputError`` for a graph that is malformed, not connected, at odds with the cluster's counts, or
    not made of nested equal blocks.
    """
    if cluster.graph is None:
        return cluster
    graph = read_graph(cluster.graph)
    gpus = [name for name, kind in graph.nodes(data="kind") if kind == "gpu"]
    if len(gpus) != cluster.gpu_count:
        raise _graph_error(f"graph has {len(gpus)} GPUs, the cluster {cluster.gpu_count}", "the same number")
    rank = {name: number for number, name in enumerate(gpus)}
    nvlink = _blocks(graph, rank, ("gpu", "nvswitch"), "an NVLink domain")
    machines = _blocks(graph, rank, ("gpu", "nvswitch", "host", "nic"), "a node or NVLink domain")
    _check_counts(cluster, nvlink, machines)
    return _described(cluster, _Parts(graph, nvlink, machines))


@dataclass(frozen=True, slots=True)
class _Parts:
    """A checked graph with its NVLink domains and what lies between network switches."""

    graph: nx.Graph
    nvlink: Blocks
    machines: Blocks


def read_graph(data: Mapping[str, Any]) -> nx.Graph:
    """Read a node-link mapping: nodes with kinds, edges with ``capacity`` bytes/s one way and ``latency_s``.

    Raises ``InputError`` with one problem per bad node or edge.
    """
    import networkx as nx

    graph = nx.Graph()
    problems: list[Problem] = []
    arcs: dict[tuple[Any, Any], float] = {}
    for node in _listed(data, "nodes"):
        problems += _tried(_read_node, graph, node)
    for edge in _listed(data, "edges" if "edges" in data else "links"):
        problems += _tried(_read_edge, graph, edge, arcs)
    problems += _one_way(arcs) if data.get("directed") else []
    if problems:
        raise InputError(*problems[:_MAX_PROBLEMS])
    _check_whole(graph)
    return graph


def _listed(data: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    """A list of mappings under a key."""
    items = data.get(key)
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise input_error(f"graph has no list of {key}", "a list of mappings", key=f"graph.{key}")
    return items


def _tried(read: Callable[..., None], *given: Any) -> tuple[Problem, ...]:
    """Problems of one item, so that all of them are told at once."""
    try:
        read(*given)
    except InputError as error:
        return error.problems
    return ()


def _read_node(graph: nx.Graph, node: Mapping[str, Any]) -> None:
    name, kind = node.get("id"), node.get("kind")
    if isinstance(name, bool) or not isinstance(name, str | int) or name in graph:
        raise _graph_error(
            f"node id {name!r} is missing, not plain or used twice", "a text or number per node"
        )
    graph.add_node(name, kind=kind, level=node.get("level"))
    if kind not in KINDS:
        raise _graph_error(f"node {name!r} has kind {kind!r}", ", ".join(KINDS))


def _read_edge(graph: nx.Graph, edge: Mapping[str, Any], arcs: dict[tuple[Any, Any], float]) -> None:
    """Add a link; parallel links between two nodes add up."""
    one, other = edge.get("source"), edge.get("target")
    where = f"graph edge {one!r} - {other!r}"
    ends = all(isinstance(end, str | int) and end in graph for end in (one, other))
    if not ends or one == other:
        raise _graph_error(f"{where} does not join two nodes", "ids of two nodes")
    given = edge.get("bandwidth", edge.get("bandwidth_bytes_per_s"))
    if given is None:
        raise _graph_error(f"{where} has no bandwidth", "a bandwidth such as 400 Gbit/s")
    rate = parse_quantity(given, BANDWIDTH, key=where)
    latency_s = parse_quantity(edge.get("latency", edge.get("latency_s", 0.0)), TIME, key=where)
    count = edge.get("count", 1)
    if isinstance(count, bool) or not isinstance(count, int) or count < 1 or not rate > 0 or latency_s < 0:
        raise _graph_error(f"{where} has bandwidth {given!r}, count {count!r}", "both positive, count whole")
    arcs[one, other] = arcs.get((one, other), 0.0) + rate * count
    total = arcs[one, other] if (other, one) not in arcs else max(arcs[one, other], arcs[other, one])
    graph.add_edge(one, other, capacity=total, latency_s=latency_s)


def _one_way(arcs: Mapping[tuple[Any, Any], float]) -> list[Problem]:
    """Links of a directed graph that do not lead back at the same bandwidth."""
    return [
        Problem(
            what=f"edge {one!r} -> {other!r} has no way back of the same bandwidth",
            allowed="full-duplex links",
            key="graph.edges",
        )
        for (one, other), rate in arcs.items()
        if abs(arcs.get((other, one), 0.0) - rate) > 1e-6 * rate
    ]


def _check_whole(graph: nx.Graph) -> None:
    import networkx as nx

    if not any(kind == "gpu" for _, kind in graph.nodes(data="kind")):
        raise _graph_error("graph has no GPUs", "nodes of kind gpu")
    parts = list(nx.connected_components(graph))
    if len(parts) > 1:
        alone = min(parts, key=len)
        raise _graph_error(
            f"graph has {len(parts)} parts without a link between them, one holds {min(map(str, alone))!r}",
            "a connected graph",
        )


def _graph_error(what: str, allowed: str) -> InputError:
    return input_error(what, allowed, key="graph")


def _blocks(graph: nx.Graph, rank: Mapping[Any, int], kinds: Iterable[str], what: str) -> Blocks:
    """Parts that hold together by nodes of some kinds alone, each with its GPUs."""
    import networkx as nx

    inner = graph.subgraph([name for name, kind in graph.nodes(data="kind") if kind in tuple(kinds)])
    parts = [part for part in nx.connected_components(inner) if any(name in rank for name in part)]
    return Blocks.ordered(parts, rank, what)


def _check_counts(cluster: ClusterSpec, nvlink: Blocks, machines: Blocks) -> None:
    if nvlink.gpus != min(cluster.nvlink_domain, cluster.gpu_count):
        raise _graph_error(
            f"graph joins {nvlink.gpus} GPUs by NVLink, nvlink_domain is {cluster.nvlink_domain}",
            "the same number",
        )
    whole = min(max(cluster.gpus_per_node, nvlink.gpus), cluster.gpu_count)
    if machines.gpus != whole:
        raise _graph_error(
            f"graph has {machines.gpus} GPUs between network switches, a node or NVLink domain {whole}",
            "hosts, NVLink switches and NICs that join a node or NVLink domain and nothing beyond",
        )


def _described(cluster: ClusterSpec, parts: _Parts) -> ClusterSpec:
    """Write what the graph says into the cluster's fields."""
    graph, machines = parts.graph, parts.machines
    gpu = cluster.gpu
    if parts.nvlink.gpus > 1:
        rate = _equal(parts.nvlink.per_gpu(graph, ("nvswitch", "gpu")), "NVLink bandwidth of GPUs")
        gpu = replace(gpu, nvlink_bytes_per_s=rate)
    if parts.nvlink.gpus < machines.gpus:
        gpu = replace(
            gpu, host_link_bytes_per_s=_equal(machines.per_gpu(graph, ("host", "nic")), "host links of GPUs")
        )
    if len(machines.parts) == 1:
        return replace(cluster, gpu=gpu, graph=None)
    nics = sum(graph.nodes[name]["kind"] == "nic" for name in machines.parts[0])
    per_node = max(round(nics * cluster.gpus_per_node / machines.gpus), 1) if nics else cluster.gpus_per_node
    share = _equal(
        [machines.outward(graph, part) / machines.gpus for part in machines.full], "network of nodes"
    )
    return replace(
        cluster,
        gpu=gpu,
        nics_per_node=per_node,
        nic_bytes_per_s=share * cluster.gpus_per_node / per_node,
        levels=nested_levels(graph, machines, share),
        rail_optimized=len(machines.neighbours(graph, machines.parts[0])) > 1,
        graph=None,
    )


def _equal(values: Iterable[float], what: str) -> float:
    """Return the common value; differing ones are an error."""
    found = list(values)
    if max(found) - min(found) > 1e-6 * max(found):
        raise _graph_error(
            f"{what} differ: {min(found) / 1e9:g} to {max(found) / 1e9:g} GB/s", "equal nodes throughout"
        )
    return found[0]
