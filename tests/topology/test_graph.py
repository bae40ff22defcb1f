"""The folded graph: every price is read from it, and a cluster of any size is a handful of nodes."""

from __future__ import annotations

from dataclasses import replace
from time import process_time
from typing import TYPE_CHECKING

import networkx as nx
import numpy as np
import pytest
from checks.full_graph import full_graph
from click.testing import CliRunner

from layoutopt.cli import main
from layoutopt.optimizer.specs.gpu_catalog import catalog
from layoutopt.optimizer.specs.loading import cluster_names, load_cluster
from layoutopt.optimizer.topology.graph import cluster_graph, read_nvlink, read_tiers, route_between
from layoutopt.optimizer.topology.groups import Digit, GroupBatch
from layoutopt.optimizer.topology.links import load_links
from layoutopt.optimizer.topology.prices import Topology

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from layoutopt.optimizer.specs.cluster import ClusterSpec

    MakeCluster = Callable[..., ClusterSpec]
    MakeGroup = Callable[[int, int, int], GroupBatch]

LINKS = load_links().without_latency()
IDEAL = load_links().ideal()
COLLECTIVES = ("all_reduce_s", "all_gather_s", "reduce_scatter_s", "all_to_all_s", "p2p_s")
PODS = {"leaf": (256, 1.0), "pod": (3072, 1.0), "spine": (16384, 7.0)}


def widened(topology: Topology, edge: tuple[str, str], factor: float) -> Topology:
    """The same topology with one kind of link ``factor`` times as wide."""
    graph = topology.graph.copy()
    graph.edges[edge]["bandwidth_bytes_per_s"] *= factor
    return Topology(topology.cluster, topology.links, graph)


def pair_s(topology: Topology, stride: int) -> float:
    """All-to-all of two ranks ``stride`` apart with all siblings: it fills the links between their blocks."""
    ranks = topology.cluster.gpu_count // (2 * stride) * 2 * stride
    group = GroupBatch(digits=(Digit(np.array([2]), np.array([stride])),), ranks=np.array([ranks]))
    return float(topology.all_to_all_s(1e9, group)[0])


@pytest.mark.parametrize("name", [*cluster_names(), *(f"{gpu}x4096" for gpu in catalog())])
def test_prices_follow_every_link_of_the_graph(name: str) -> None:
    """Half of a link's capacity doubles the price of a group that crosses it, and leaves what stays below alone."""
    cluster = load_cluster(name)
    graph = Topology(cluster, LINKS).graph
    nx.set_edge_attributes(graph, 0.0, "latency_s")
    topology = Topology(cluster, LINKS, graph)
    nvlink, tiers = read_nvlink(topology.graph), topology.tiers
    edges = [("gpu", "gpu" if nvlink.links > 1 else "nvswitch", 1)] if nvlink.domain > 1 else []
    edges += [(tier.route[-2], tier.route[-1], tier.inside) for tier in tiers]
    assert edges
    for one, other, stride in edges:
        if 2 * stride > cluster.gpu_count:
            continue
        slow = widened(topology, (one, other), 0.5)
        assert pair_s(slow, stride) == pytest.approx(2 * pair_s(topology, stride))
        for _, _, inner in edges:
            if inner < stride:
                assert pair_s(slow, inner) == pair_s(topology, inner)


def test_narrow_port_limits_its_nic(make_cluster: MakeCluster) -> None:
    """A NIC behind a slower port gives what the port gives."""
    topology = Topology(make_cluster(64), IDEAL)
    narrow = topology.graph.copy()
    narrow.edges["gpu", "nic"]["bandwidth_bytes_per_s"] = 10e9
    assert topology.tiers[0].bytes_per_s == pytest.approx(50e9)
    slow = Topology(topology.cluster, IDEAL, narrow)
    assert slow.tiers[0].bytes_per_s == pytest.approx(10e9)
    assert slow.tiers[0].oversubscription == pytest.approx(5.0)
    assert pair_s(slow, 8) == pytest.approx(5 * pair_s(topology, 8))


def test_any_size_is_a_handful_of_nodes(make_cluster: MakeCluster) -> None:
    """16,384 GPUs: GPU, NVLink switch, NIC and one switch per level, built in a blink; a mesh needs no switch."""
    cluster = make_cluster(16384, levels=PODS)
    graph = cluster_graph(cluster)
    assert set(graph) == {"gpu", "nvswitch", "nic", "leaf", "pod", "spine"}
    copies = dict(graph.nodes(data="copies"))
    assert copies == {"gpu": 16384, "nvswitch": 2048, "nic": 16384, "leaf": 64 * 8, "pod": 6, "spine": 1}
    start = process_time()
    for _ in range(100):
        cluster_graph(cluster)
    small = make_cluster(8)
    middle = process_time()
    for _ in range(100):
        cluster_graph(small)
    assert middle - start < 20 * (process_time() - middle)
    mesh = cluster_graph(small, mesh=True)
    assert set(mesh) == {"gpu"}
    assert read_nvlink(mesh).links == 7


@pytest.mark.parametrize(
    "fields",
    [
        {"gpus": 64},
        {"gpus": 32, "nics_per_node": 4},
        {"gpus": 64, "levels": {"leaf": (16, 1.0), "pod": (32, 1.0), "spine": (64, 7.0)}},
        {"gpus": 48, "gpus_per_node": 4, "nvlink_domain": 16, "nics_per_node": 4},
        {"gpus": 32, "nvlink_domain": 2},
    ],
)
def test_copies_are_those_of_the_full_graph(fields: dict[str, object], make_cluster: MakeCluster) -> None:
    """Folding keeps the number of every part, and the capacity of every level."""
    folded = cluster_graph(make_cluster(**fields))
    full = full_graph(folded)
    names = [str(name).partition(":")[0] for name in full]
    assert {name: names.count(name) for name in set(names)} == dict(folded.nodes(data="copies"))
    for one, other, data in folded.edges(data=True):
        between = [
            edge["bandwidth_bytes_per_s"] * edge["count"]
            for low, high, edge in full.edges(data=True)
            if {low.partition(":")[0], high.partition(":")[0]} == {one, other}
        ]
        lower = folded.nodes[one]
        whole = data["bandwidth_bytes_per_s"] * data["count"] * lower["copies"]
        assert sum(between) == pytest.approx(whole)


def test_routes(make_cluster: MakeCluster) -> None:
    """A group's bytes go over what joins its ranks: NVLink, rails of one leaf, and the levels above."""
    graph = cluster_graph(make_cluster(64, levels={"leaf": (16, 1.0), "spine": (64, 7.0)}))
    assert route_between(graph, 3, 3) == ("gpu",)
    assert route_between(graph, 0, 7) == ("gpu", "nvswitch", "gpu")
    assert route_between(graph, 0, 8) == ("gpu", "nic", "leaf", "nic", "gpu")
    assert route_between(graph, 0, 63) == ("gpu", "nic", "leaf", "spine", "leaf", "nic", "gpu")
    pairs = cluster_graph(make_cluster(16, nvlink_domain=2))
    assert route_between(pairs, 0, 2) == ("gpu", "host", "gpu")
    assert route_between(pairs, 0, 8) == ("gpu", "host", "nic", "spine", "nic", "host", "gpu")
    assert route_between(cluster_graph(make_cluster(8), mesh=True), 0, 1) == ("gpu", "gpu")


def test_levels_may_share_names_with_parts(make_cluster: MakeCluster) -> None:
    """A level called nic, or twice the same, is still its own node."""
    named = make_cluster(64, levels={"nic": (16, 1.0), "spine": (64, 2.0)})
    twice = replace(named, levels=tuple(replace(level, name="nic") for level in named.levels))
    assert [(tier.inside, tier.outside) for tier in read_tiers(cluster_graph(twice))] == [(8, 16), (16, 64)]
    assert nx.is_connected(cluster_graph(twice))


@pytest.mark.parametrize("name", [*cluster_names(), "h100x24", "a100x48"])
def test_a_written_graph_reads_back_as_the_same_prices(name: str, tmp_path: Path) -> None:
    """What ``topology show --graph`` writes is all that prices need: every collective at every distance, to the last bit."""
    file = tmp_path / "graph.graphml"
    assert CliRunner().invoke(main, ["topology", "show", name, "--graph", str(file)]).exit_code == 0
    cluster = load_cluster(name)
    links = load_links(cluster.calibration)
    built = Topology(cluster, links)
    read = Topology(cluster, links, nx.read_graphml(file))
    assert built.graph.graph.items() <= read.graph.graph.items()
    sizes = [size for size in (2, 4, 8, 16, 64, 256) if size <= cluster.gpu_count]
    groups = [
        GroupBatch(digits=(Digit(np.array([size]), np.array([stride])),), ranks=np.array([cluster.gpu_count]))
        for size in sizes
        for stride in (1, 2, 8, 32)
        if cluster.gpu_count % (size * stride) == 0
    ]
    assert groups
    for group in groups:
        for collective in COLLECTIVES:
            before, after = (getattr(topology, collective)(3e8, group)[0] for topology in (built, read))
            assert after == before > 0, collective
