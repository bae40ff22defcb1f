"""Symmetric prices against explicit flows of all sibling groups on every edge of the graph."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from checks.demands import exchange_demand, group_members, hop_demand, ring_demand, tree_demand
from checks.flows import FlowModel

from layoutopt.optimizer.specs.gpu_catalog import generations
from layoutopt.optimizer.topology.collectives import tree_lines
from layoutopt.optimizer.topology.fabric import Fabric
from layoutopt.optimizer.topology.links import load_links
from layoutopt.optimizer.topology.prices import Topology

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.topology.groups import GroupBatch

LINKS = replace(load_links().without_latency(), p2p_channel_bytes_per_s=math.inf)
NETWORK = LINKS.networks["infiniband"]
RINGS = replace(LINKS, tree=())
SIZE_BYTES = 1e9

FIELDS: dict[str, dict[str, object]] = {
    "eight NICs": {"gpus": 64},
    "four NICs": {"gpus": 32, "nics_per_node": 4},
    "one NIC": {"gpus": 32, "nics_per_node": 1},
    "two NICs per GPU": {"gpus": 32, "nics_per_node": 16, "nic_bytes_per_s": 25e9},
    "no rails": {"gpus": 32, "rail_optimized": False},
    "large NVLink domain": {"gpus": 48, "gpus_per_node": 4, "nvlink_domain": 16, "nics_per_node": 4},
    "rails and pods 1:7": {"gpus": 64, "levels": {"leaf": (16, 1.0), "pod": (32, 1.0), "spine": (64, 7.0)}},
    "pods 1:7": {"gpus": 64, "levels": {"pod": (32, 1.0), "spine": (64, 7.0)}, "rail_optimized": False},
    "oversubscribed leaves": {
        "gpus": 64,
        "levels": {"leaf": (16, 2.0), "pod": (32, 3.0), "spine": (64, 7.0)},
        "rail_optimized": False,
    },
    "last pod half full": {
        "gpus": 60,
        "gpus_per_node": 4,
        "nvlink_domain": 4,
        "nics_per_node": 4,
        "levels": {"leaf": (24, 1.0), "spine": (60, 7.0)},
    },
    "NVLink in pairs": {"gpus": 32, "nvlink_domain": 2},
    "no NVLink": {"gpus": 24, "nvlink_domain": 1},
    "nodes of six": {"gpus": 60, "gpus_per_node": 6, "nvlink_domain": 6, "nics_per_node": 6},
    "one node": {"gpus": 8},
    "six GPUs of a node": {"gpus": 6},
    "one node of pairs": {"gpus": 8, "nvlink_domain": 2},
}

MOST = 4.0
"""Where blocks or rails cut groups unevenly a price may exceed the explicit one, up to this factor."""


@dataclass(frozen=True)
class Case:
    """One group of one cluster: its rows, and whether blocks cut it evenly with members on the same rails."""

    cluster: ClusterSpec
    flows: FlowModel
    group: GroupBatch
    members: np.ndarray
    even: bool


def cases(cluster: ClusterSpec, make_group: Callable[[int, int, int], GroupBatch]) -> Iterator[Case]:
    """Every size and stride that tiles the cluster."""
    ranks, flows = cluster.gpu_count, FlowModel(cluster, LINKS)
    divisors = [number for number in range(1, ranks + 1) if ranks % number == 0]
    blocks = [cluster.gpus_per_node, cluster.nvlink_domain, *(level.gpus for level in cluster.levels)]
    for size in divisors[1:]:
        for stride in (number for number in divisors if ranks % (number * size) == 0):
            group = make_group(size, stride, ranks)
            even = all(group.same_positions(block)[0] or stride >= block for block in blocks)
            even &= bool(group.same_positions(cluster.gpus_per_node)[0]) or not cluster.rail_optimized
            yield Case(cluster, flows, group, group_members(group), even)


@pytest.fixture(params=FIELDS, ids=list(FIELDS), scope="module")
def all_cases(request: pytest.FixtureRequest, make_cluster: Callable[..., ClusterSpec]) -> list[Case]:
    """Every group of one cluster."""
    make_group = request.getfixturevalue("make_group")
    return list(cases(make_cluster(**FIELDS[request.param]), make_group))


def agree(price_s: float, explicit_s: float, case: Case) -> None:
    """Equal where even; elsewhere never cheaper, and at most ``MOST`` times as long."""
    if case.even:
        assert price_s == pytest.approx(explicit_s, rel=1e-9)
    else:
        assert explicit_s * (1 - 1e-9) <= price_s <= explicit_s * MOST


def test_rings_match_flows(all_cases: list[Case]) -> None:
    """All-gather, reduce-scatter and ring all-reduce cost what their flows cost on the busiest edge."""
    for case in all_cases:
        domain, node = case.cluster.nvlink_domain, case.cluster.gpus_per_node
        once = ring_demand(case.members, case.cluster.gpu_count, SIZE_BYTES, domain=domain, node=node)
        topology = Topology(case.cluster, RINGS)
        gather_s = case.flows.seconds(once, NETWORK.network_gather)
        agree(topology.all_gather_s(SIZE_BYTES, case.group)[0], gather_s, case)
        agree(topology.reduce_scatter_s(SIZE_BYTES, case.group)[0], gather_s, case)
        agree(topology.all_reduce_s(SIZE_BYTES, case.group)[0], case.flows.seconds(2 * once), case)


def test_most_cases_are_even(all_cases: list[Case]) -> None:
    """The exact comparison covers every cluster, and all groups where sizes are powers of two."""
    even = sum(case.even for case in all_cases)
    assert even == len(all_cases) or even >= 5


def test_exchanges_match_flows(all_cases: list[Case]) -> None:
    """All-to-all between every two members, over NVLink to the receiver's rail where there are rails."""
    for case in all_cases:
        demand = exchange_demand(case.members, case.cluster.gpu_count, SIZE_BYTES)
        explicit_s = case.flows.seconds(demand, NETWORK.network_all_to_all)
        agree(Topology(case.cluster, LINKS).all_to_all_s(SIZE_BYTES, case.group)[0], explicit_s, case)


def test_hops_match_flows(all_cases: list[Case]) -> None:
    """Sends from every member to the next one, the last to the first, all at once."""
    for case in all_cases:
        demand = hop_demand(case.members, case.cluster.gpu_count, SIZE_BYTES)
        explicit_s = case.flows.seconds(demand, NETWORK.network_p2p)
        agree(Topology(case.cluster, LINKS).p2p_s(SIZE_BYTES, case.group)[0], explicit_s, case)


def test_trees_never_cheaper_than_flows(all_cases: list[Case]) -> None:
    """Double binary trees: the price takes the fullest place in a tree, which some node counts never fill."""
    for case in all_cases:
        topology = Topology(case.cluster, LINKS)
        fabric = Fabric(topology.graph, LINKS)
        price_s = tree_lines(fabric, case.group)[0].s_per_byte[0] * SIZE_BYTES
        domain, node = case.cluster.nvlink_domain, case.cluster.gpus_per_node
        demand = tree_demand(case.members, case.cluster.gpu_count, SIZE_BYTES, domain=domain, node=node)
        explicit_s = case.flows.seconds(demand, LINKS.tree_fraction)
        assert (
            explicit_s * (1 - 1e-9) <= price_s <= explicit_s * (1.5 if case.even else 2 * MOST) * (1 + 1e-9)
        )


@pytest.mark.parametrize("stride", [1, 2, 8])
def test_two_nodes_halve_a_tree(
    stride: int, make_cluster: Callable[..., ClusterSpec], make_group: Callable[[int, int, int], GroupBatch]
) -> None:
    """Between two nodes each tree moves half of the bytes once each way, exactly."""
    (case,) = [
        case
        for case in cases(make_cluster(16, in_switch_reduction=True), make_group)
        if case.group.size[0] == 16 // stride and case.group.digits[0].stride[0] == stride
    ]
    fabric = Fabric(Topology(case.cluster, LINKS).graph, LINKS)
    gain = fabric.in_switch_gain if stride == 1 else 1.0
    demand = tree_demand(case.members, 16, SIZE_BYTES, domain=8, node=8, gain=gain)
    price_s = tree_lines(fabric, case.group)[0].s_per_byte[0] * SIZE_BYTES
    share = 1.0 if stride == 1 else LINKS.tree_fraction
    assert price_s == pytest.approx(case.flows.seconds(demand, share), rel=1e-9)


def test_nics_that_gpus_do_not_divide(
    make_cluster: Callable[..., ClusterSpec], make_group: Callable[[int, int, int], GroupBatch]
) -> None:
    """Three NICs for eight GPUs: fair shares for collectives, no cheaper than flows for sends."""
    for case in cases(make_cluster(32, nics_per_node=3), make_group):
        topology = Topology(case.cluster, RINGS)
        ring = ring_demand(case.members, 32, SIZE_BYTES, domain=8, node=8)
        explicit_s = case.flows.seconds(ring, NETWORK.network_gather)
        assert topology.all_gather_s(SIZE_BYTES, case.group)[0] == pytest.approx(explicit_s, rel=1e-9)
        hop_s = case.flows.seconds(hop_demand(case.members, 32, SIZE_BYTES), NETWORK.network_p2p)
        assert hop_s * (1 - 1e-9) <= topology.p2p_s(SIZE_BYTES, case.group)[0] <= hop_s * MOST


def test_mesh_of_links(
    make_cluster: Callable[..., ClusterSpec], make_group: Callable[[int, int, int], GroupBatch]
) -> None:
    """GPUs joined by single links: exchanges and sends cost what they cost on every link."""
    base = make_cluster(32)
    for case in cases(replace(base, gpu=replace(base.gpu, generation=generations()["cdna3"])), make_group):
        topology = Topology(case.cluster, LINKS)
        exchange_s = case.flows.seconds(
            exchange_demand(case.members, 32, SIZE_BYTES), NETWORK.network_all_to_all
        )
        agree(topology.all_to_all_s(SIZE_BYTES, case.group)[0], exchange_s, case)
        hop_s = case.flows.seconds(hop_demand(case.members, 32, SIZE_BYTES), NETWORK.network_p2p)
        agree(topology.p2p_s(SIZE_BYTES, case.group)[0], hop_s, case)


def test_flows_leave_and_arrive(make_cluster: Callable[..., ClusterSpec]) -> None:
    """Every route is whole: what leaves the sender arrives at the receiver and stays nowhere."""
    for fields in (
        "four NICs",
        "large NVLink domain",
        "rails and pods 1:7",
        "NVLink in pairs",
        "nodes of six",
    ):
        flows = FlowModel(make_cluster(**FIELDS[fields]), LINKS)
        nodes = {name: number for number, name in enumerate(flows.graph.nodes)}
        incidence = np.zeros((len(flows.edges), len(nodes)))
        for (tail, head), number in flows.edges.items():
            incidence[number, nodes[tail]] -= 1
            incidence[number, nodes[head]] += 1
        count = flows.cluster.gpu_count
        expected = np.zeros((count * count, len(nodes)))
        for pair in range(count * count):
            expected[pair, nodes[f"gpu:{pair // count}"]] -= 1
            expected[pair, nodes[f"gpu:{pair % count}"]] += 1
        assert np.allclose(flows.routes @ incidence, expected)
