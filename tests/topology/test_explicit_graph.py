"""Explicit cluster graphs: the same prices as the levels they were built from, and exact refusals."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import networkx as nx
import pytest
from checks.full_graph import full_graph
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.topology.explicit import resolve_graph
from layoutopt.optimizer.topology.graph import cluster_graph
from layoutopt.optimizer.topology.links import load_links
from layoutopt.optimizer.topology.prices import Topology

if TYPE_CHECKING:
    from collections.abc import Callable

    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.topology.groups import GroupBatch

    MakeCluster = Callable[..., ClusterSpec]
    MakeGroup = Callable[[int, int, int], GroupBatch]
    Data = dict[str, Any]

LINKS = load_links()
FIELDS: dict[str, dict[str, Any]] = {
    "one level": {"gpus": 64},
    "four NICs": {"gpus": 32, "nics_per_node": 4},
    "two NICs per GPU": {"gpus": 32, "nics_per_node": 16, "nic_bytes_per_s": 25e9},
    "rails and pods 1:7": {"gpus": 64, "levels": {"leaf": (16, 1.0), "pod": (32, 1.0), "spine": (64, 7.0)}},
    "no rails": {
        "gpus": 64,
        "levels": {"leaf": (16, 1.0), "pod": (32, 3.0), "spine": (64, 7.0)},
        "rail_optimized": False,
    },
    "oversubscribed leaves": {
        "gpus": 64,
        "levels": {"leaf": (16, 2.0), "spine": (64, 4.0)},
        "rail_optimized": False,
    },
    "large NVLink domain": {
        "gpus": 96,
        "gpus_per_node": 4,
        "nvlink_domain": 16,
        "nics_per_node": 4,
        "levels": {"leaf": (32, 1.0), "spine": (96, 2.0)},
    },
    "NVLink in pairs": {"gpus": 32, "nvlink_domain": 2},
    "no NVLink": {"gpus": 24, "nvlink_domain": 1},
    "last pod half full": {"gpus": 40, "levels": {"leaf": (16, 1.0), "spine": (40, 7.0)}},
    "one node": {"gpus": 8},
}


def data_of(cluster: ClusterSpec) -> Data:
    """The built graph as a node-link mapping."""
    graph = full_graph(cluster_graph(cluster))
    nodes = [{"id": name, **data} for name, data in graph.nodes(data=True)]
    edges = [{"source": one, "target": other, **data} for one, other, data in graph.edges(data=True)]
    return {"nodes": nodes, "edges": edges}


@pytest.mark.parametrize("name", FIELDS)
def test_graph_prices_equal_level_prices(name: str, make_cluster: MakeCluster, make_group: MakeGroup) -> None:
    """A cluster read back from its own graph costs the same for every collective and group."""
    cluster = make_cluster(**FIELDS[name])
    explicit = Topology(replace(cluster, graph=data_of(cluster)), LINKS)
    levels, ranks = Topology(cluster, LINKS), cluster.gpu_count
    assert [tier.outside for tier in explicit.tiers] == [tier.outside for tier in levels.tiers]
    for size, stride in [(2, 1), (8, 1), (4, 2), (ranks // 8, 8), (2, ranks // 2), (ranks, 1)]:
        for collective in ("all_reduce_s", "all_gather_s", "all_to_all_s", "p2p_s"):
            group = make_group(size, stride, ranks)
            price_s = getattr(explicit, collective)(1e8, group)[0]
            assert price_s == pytest.approx(getattr(levels, collective)(1e8, group)[0], rel=1e-6)


def test_graph_latencies_come_back(make_cluster: MakeCluster) -> None:
    """Switch latencies survive the way through the graph."""
    cluster = make_cluster(64, levels={"leaf": (16, 1.0), "pod": (32, 1.0), "spine": (64, 1.0)})
    delays = (1e-6, 2e-6, 3e-6)
    named = tuple(replace(level, latency_s=s) for level, s in zip(cluster.levels, delays, strict=True))
    cluster = replace(cluster, levels=named)
    resolved = resolve_graph(replace(cluster, graph=data_of(cluster)))
    assert [level.latency_s for level in resolved.levels] == pytest.approx(delays)
    assert [level.name for level in resolved.levels] == ["leaf", "pod", "spine"]


def test_graph_with_units_and_links(make_cluster: MakeCluster) -> None:
    """Two GPUs and a switch by hand: quantities with units, ``links``, parallel links, both directions."""
    cluster = make_cluster(2, gpus_per_node=1, nvlink_domain=1, nics_per_node=1)
    nodes = [{"id": "a", "kind": "gpu"}, {"id": "b", "kind": "gpu"}, {"id": "s", "kind": "switch"}]
    links: list[Data] = [
        {"source": one, "target": other, "bandwidth": "200 Gbit/s", "latency": "1 us", "count": 2}
        for one, other in [("a", "s"), ("s", "a"), ("b", "s"), ("s", "b")]
    ]
    resolved = resolve_graph(replace(cluster, graph={"nodes": nodes, "links": links, "directed": True}))
    assert resolved.nic_bytes_per_s == pytest.approx(50e9)
    assert resolved.levels[0].latency_s == pytest.approx(2e-6)
    assert resolved.graph is None


def test_cluster_without_graph_is_itself(make_cluster: MakeCluster) -> None:
    """Nothing to resolve."""
    cluster = make_cluster(16)
    assert resolve_graph(cluster) is cluster


def drop_edges(data: Data, *starts: str) -> Data:
    """Leave out edges of nodes whose names start so."""
    kept = [
        e for e in data["edges"] if not any(str(e[end]).startswith(starts) for end in ("source", "target"))
    ]
    return {**data, "edges": kept}


def edit(data: Data, where: str, index: int, **values: Any) -> Data:
    """Change one node or edge."""
    changed = deepcopy(data)
    changed[where][index] |= values
    return changed


PODS = {"gpus": 32, "levels": {"leaf": (16, 1.0), "spine": (32, 2.0)}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: edit(d, "nodes", 0, kind="cpu"), "node 'gpu:0' has kind 'cpu'"),
        (lambda d: edit(d, "nodes", 0, id=["gpu"]), "node id"),
        (lambda d: edit(d, "nodes", 1, id="gpu:0"), "used twice"),
        (lambda d: {**d, "nodes": None}, "no list of nodes"),
        (lambda d: {**d, "edges": [1, 2]}, "no list of edges"),
        (lambda d: edit(d, "edges", 0, source=["gpu"]), "does not join two nodes"),
        (
            lambda d: edit(d, "edges", 0, bandwidth_bytes_per_s=None),
            "'gpu:0' - 'nvswitch:0' has no bandwidth",
        ),
        (lambda d: edit(d, "edges", 0, bandwidth_bytes_per_s=-1.0), "bandwidth -1.0"),
        (lambda d: edit(d, "edges", 0, bandwidth_bytes_per_s="fast"), "fast"),
        (lambda d: edit(d, "edges", 0, count=0), "count 0"),
        (lambda d: edit(d, "edges", 0, target="nowhere"), "does not join two nodes"),
        (lambda d: edit(d, "edges", 0, target="gpu:0"), "does not join two nodes"),
        (lambda d: {**d, "directed": True}, "has no way back"),
        (lambda d: drop_edges(d, "leaf:1"), "parts without a link between them"),
        (lambda d: {"nodes": [{"id": 1, "kind": "switch"}], "edges": []}, "graph has no GPUs"),
        (lambda d: {"nodes": [{"id": 1, "kind": "gpu"}], "edges": []}, "graph has 1 GPUs, the cluster 32"),
        (lambda d: edit(d, "edges", 0, bandwidth_bytes_per_s=1e9), "NVLink bandwidth of GPUs differ"),
        (lambda d: {**d, "nodes": [d["nodes"][8], *d["nodes"][:8], *d["nodes"][9:]]}, "one after the other"),
    ],
)
def test_bad_graphs_are_refused(
    change: Callable[[Data], Data], message: str, make_cluster: MakeCluster
) -> None:
    """Each malformed graph has its own message."""
    cluster = make_cluster(**PODS)
    with pytest.raises(InputError, match=message):
        resolve_graph(replace(cluster, graph=change(data_of(cluster))))


def test_counts_must_agree(make_cluster: MakeCluster) -> None:
    """The graph's NVLink domains and nodes are those that the cluster states."""
    cluster = make_cluster(**PODS)
    graph = data_of(cluster)
    with pytest.raises(InputError, match="joins 8 GPUs by NVLink, nvlink_domain is 16"):
        resolve_graph(replace(cluster, graph=graph, nvlink_domain=16))
    paired = make_cluster(32, nvlink_domain=2)
    with pytest.raises(InputError, match="graph has 8 GPUs between network switches"):
        resolve_graph(replace(paired, graph=data_of(paired), gpus_per_node=4))


def test_unequal_uplinks_are_refused(make_cluster: MakeCluster) -> None:
    """One leaf with half of the uplinks of the others."""
    cluster = make_cluster(64, levels={"leaf": (16, 1.0), "spine": (64, 2.0)}, rail_optimized=False)
    graph = data_of(cluster)
    uplink = next(
        edge for edge in graph["edges"] if edge["source"] == "leaf:0" and edge["target"] == "spine:0"
    )
    uplink["count"] //= 2
    with pytest.raises(InputError, match="uplinks from"):
        resolve_graph(replace(cluster, graph=graph))


def test_rings_of_switches_are_refused(make_cluster: MakeCluster) -> None:
    """A ring of five leaves has no nested blocks: nearness is not mutual."""
    cluster = make_cluster(40, levels={"leaf": (8, 1.0), "spine": (40, 1.0)}, rail_optimized=False)
    graph = data_of(cluster)
    nodes = [node for node in graph["nodes"] if node["id"] != "spine:0"]
    edges = [edge for edge in graph["edges"] if "spine:0" not in (edge["source"], edge["target"])]
    nodes += [{"id": f"hop:{n}", "kind": "switch"} for n in range(5)]
    for node in nodes:
        if node["kind"] == "nic":
            number = int(node["id"].split(":")[1])
            edges.append({"source": node["id"], "target": f"hop:{number}", "bandwidth_bytes_per_s": 50e9})
    edges += [
        {"source": f"hop:{n}", "target": f"hop:{(n + 1) % 5}", "bandwidth_bytes_per_s": 4e11}
        for n in range(5)
    ]
    kept = [edge for edge in edges if "leaf" not in edge["source"] + edge["target"]]
    nodes = [node for node in nodes if "leaf" not in node["id"]]
    with pytest.raises(InputError, match="no blocks"):
        resolve_graph(replace(cluster, graph={"nodes": nodes, "edges": kept}))


@settings(max_examples=150)
@given(data=st.data())
def test_damaged_graphs_never_crash(data: st.DataObject, make_cluster: MakeCluster) -> None:
    """Nodes and edges dropped, retyped or rewired: a cluster or an input error, nothing else."""
    cluster = make_cluster(16, gpus_per_node=4, nvlink_domain=2, nics_per_node=2, levels=SMALL)
    graph = data_of(cluster)
    for _ in range(data.draw(st.integers(1, 4))):
        items = graph[data.draw(st.sampled_from(["nodes", "edges"]))]
        item = data.draw(st.sampled_from(items))
        if data.draw(st.booleans()):
            items.remove(item)
        else:
            key = data.draw(
                st.sampled_from(["id", "kind", "source", "target", "bandwidth_bytes_per_s", "count"])
            )
            others = [
                "gpu",
                "nic",
                "switch",
                "host",
                "gpu:1",
                "leaf:0:0",
                3,
                0,
                -1,
                2.5,
                None,
                [],
                True,
                "1 GB/s",
            ]
            item[key] = data.draw(st.sampled_from(others))
    try:
        Topology(replace(cluster, graph=graph), LINKS)
    except InputError as error:
        assert str(error)


SMALL = {"leaf": (8, 1.0), "spine": (16, 2.0)}


def test_built_graphs_are_connected_and_complete(make_cluster: MakeCluster) -> None:
    """Every kind of node is there, in the numbers of the specification."""
    cluster = make_cluster(64, levels={"leaf": (16, 1.0), "spine": (64, 7.0)})
    graph = full_graph(cluster_graph(cluster))
    kinds = list(nx.get_node_attributes(graph, "kind").values())
    assert nx.is_connected(graph)
    assert {kind: kinds.count(kind) for kind in ("gpu", "nvswitch", "nic")} == {
        "gpu": 64,
        "nvswitch": 8,
        "nic": 64,
    }
    assert kinds.count("switch") == 4 * 8 + 1  # a leaf per rail in each of four blocks, one spine
