"""Lower bounds over placements: never above the price of any placed group, and tight where it matters."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutopt.optimizer.frameworks.abilities import ALL_ORDERS
from layoutopt.optimizer.topology.links import load_links
from layoutopt.optimizer.topology.mesh import closest_groups, mesh_groups, mesh_valid
from layoutopt.optimizer.topology.prices import Topology

if TYPE_CHECKING:
    from collections.abc import Callable

    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.topology.groups import GroupBatch
    from layoutopt.optimizer.topology.mesh import MeshGroups

    MakeCluster = Callable[..., ClusterSpec]
    MakeGroup = Callable[[int, int, int], GroupBatch]

LINKS = load_links()
COLLECTIVES = ("all_reduce_s", "all_gather_s", "all_to_all_s", "p2p_s")
GROUPS = ("tp", "cp", "dp", "dp_cp", "pp", "ep", "etp", "edp")
NODES: list[dict[str, Any]] = [
    {},
    {"nics_per_node": 4},
    {"nics_per_node": 1},
    {"nics_per_node": 3},
    {"gpus_per_node": 6, "nvlink_domain": 6, "nics_per_node": 6},
    {"gpus_per_node": 4, "nvlink_domain": 72, "nics_per_node": 4},
    {"gpus_per_node": 4, "nvlink_domain": 16, "nics_per_node": 4},
    {"nvlink_domain": 2},
    {"nvlink_domain": 1},
]
degree = st.sampled_from([1, 2, 3, 4, 5, 6, 7, 8, 12, 16])


def pods_of(node: dict[str, Any], ranks: int, switch_s: float) -> dict[str, Any]:
    """Leaves of three nodes or domains and pods of twice that under a 1:7 spine."""
    block = max(node.get("nvlink_domain", 8), node.get("gpus_per_node", 8))
    levels = {"leaf": (3 * block, 1.0), "pod": (6 * block, 2.0), "spine": (max(ranks, 6 * block), 7.0)}
    return {"levels": levels, "switch_s": switch_s}


def make(make_cluster: MakeCluster, ranks: int, node: dict[str, Any], shape: dict[str, Any]) -> ClusterSpec:
    """A cluster with latencies in its switches."""
    switch_s = shape.pop("switch_s", 0.0)
    cluster = make_cluster(ranks, **node, **shape)
    return replace(cluster, levels=tuple(replace(level, latency_s=switch_s) for level in cluster.levels))


@settings(max_examples=300)
def splits_evenly(groups: MeshGroups, shard: int) -> bool:
    """Whether shard groups of so many ranks split the digits of the data-parallel group evenly."""
    left = shard
    for digit in groups.dp_cp.digits:
        size = int(digit.size[0])
        taken = min(size, left)
        if size % taken or left % taken:
            return False
        left = max(left // taken, 1)
    return left == 1


@given(
    tp=degree, cp=degree, dp=degree, pp=degree, order=st.sampled_from(ALL_ORDERS),
    node=st.sampled_from(NODES), rails=st.booleans(), pods=st.booleans(), data=st.data(),
    size_bytes=st.sampled_from([0.0, 1e3, 1e5, 1e6, 1e7, 1e8, 1e9, 1e11]),
)  # fmt: skip
def test_no_order_is_below_the_bound(
    tp: int, cp: int, dp: int, pp: int, order: str, node: dict[str, Any], rails: bool, pods: bool,
    data: st.DataObject, size_bytes: float, make_cluster: MakeCluster,
) -> None:  # fmt: skip
    """Every group of every order, on nodes and blocks that divide the degrees and on others."""
    ranks, width = tp * cp * dp * pp, tp * cp * dp
    shape = pods_of(node, ranks, 1e-6) if pods else {}
    fields = {"rail_optimized": rails, "in_switch_reduction": rails} | shape
    topology = Topology(make(make_cluster, ranks, node, fields), LINKS)
    ep = data.draw(st.sampled_from([d for d in range(1, width + 1) if width % d == 0]))
    degrees = {"tp": tp, "cp": cp, "pp": pp, "dp": dp, "ep": ep, "etp": 1}
    if not mesh_valid(order, **degrees)[0]:
        return
    placed, closest = mesh_groups(order, **degrees), closest_groups(**degrees)
    for name in GROUPS:
        for collective in COLLECTIVES:
            price = getattr(topology, collective)
            bound_s = price(size_bytes, getattr(closest, name))[0]
            assert bound_s <= price(size_bytes, getattr(placed, name))[0] * (1 + 1e-12), (name, collective)


def dispatch_s(topology: Topology, group: GroupBatch, row_bytes: float, experts_per_token: int) -> float:
    """A dispatch that sends a token once to every domain where it has an expert."""
    near = group.members_within(topology.nvlink_domain)[0]
    domains = max(group.size[0] / near, 1.0)
    reached = domains * (1 - (1 - 1 / domains) ** experts_per_token)
    inside, across = row_bytes * experts_per_token * (1 - 1 / near), row_bytes * reached * (1 - 1 / domains)
    return float(topology.all_to_all_split_s(inside, across, group)[0])


@pytest.mark.parametrize("nvlink_bytes_per_s", [200e9, 450e9, 900e9])
@pytest.mark.parametrize("domain", [8, 72])
@pytest.mark.parametrize("experts_per_token", [1, 2, 6, 8])
def test_no_dispatch_is_below_the_bound(
    nvlink_bytes_per_s: float, domain: int, experts_per_token: int, make_cluster: MakeCluster,
    make_group: MakeGroup,
) -> None:  # fmt: skip
    """Deduplicated dispatch, whose bytes depend on the placement as well."""
    node = {"gpus_per_node": 4, "nics_per_node": 4} if domain == 72 else {}
    cluster = make_cluster(576, nvlink_domain=domain, **node)
    gpu = replace(cluster.gpu, nvlink_bytes_per_s=nvlink_bytes_per_s)
    topology = Topology(replace(cluster, gpu=gpu), LINKS)
    for size in (2, 3, 4, 8, 16, 24, 64, 72):
        bound_s = dispatch_s(
            topology, closest_groups(tp=1, cp=1, pp=1, dp=576, ep=size, etp=1).ep, 1e8, experts_per_token
        )
        for stride in (s for s in range(1, 577) if 576 % (s * size) == 0):
            price_s = dispatch_s(topology, make_group(size, stride, 576), 1e8, experts_per_token)
            assert bound_s <= price_s * (1 + 1e-12)


def test_bound_is_tight_for_neighbours(make_cluster: MakeCluster, make_group: MakeGroup) -> None:
    """Powers of two on 8-GPU nodes: within 3% of neighbouring ranks, exact inside a node."""
    topology = Topology(make_cluster(1024, in_switch_reduction=True), LINKS)
    for size in (2, 4, 8, 16, 64, 256):
        closest = closest_groups(tp=1, cp=1, pp=1, dp=1024, ep=size, etp=1).ep
        for collective in ("all_reduce_s", "all_gather_s", "all_to_all_s"):
            price = getattr(topology, collective)
            bound_s, placed_s = price(1e9, closest)[0], price(1e9, make_group(size, 1, 1024))[0]
            assert bound_s == pytest.approx(placed_s, rel=1e-12 if size <= 8 else 0.08)


def test_bound_of_shards(make_cluster: MakeCluster) -> None:
    """Shard groups and replicas of the closest groups are bounds themselves."""
    degrees = {"tp": 2, "cp": 2, "pp": 2, "dp": 8, "ep": 1, "etp": 1}
    topology = Topology(make_cluster(64), LINKS)
    shard = np.array([8])
    closest = closest_groups(**degrees)
    assert closest.hsdp_inner(shard).closest
    assert closest.hsdp_outer(shard).size[0] == 2
    for order in ALL_ORDERS:
        placed = mesh_groups(order, **degrees)
        if splits_evenly(placed, 8):
            for part in ("hsdp_inner", "hsdp_outer"):
                bound, group = getattr(closest, part)(shard), getattr(placed, part)(shard)
                assert topology.all_gather_s(1e8, bound)[0] <= topology.all_gather_s(1e8, group)[0]


def test_long_batches_keep_the_bound(make_cluster: MakeCluster) -> None:
    """Distinct rows of a closest group stay closest."""
    dp = 2 ** np.random.default_rng(7).integers(0, 8, 5000)
    closest = closest_groups(tp=1, cp=1, pp=1, dp=dp, ep=1, etp=1).dp
    topology = Topology(make_cluster(256), LINKS)
    alone = [
        topology.all_gather_s(1e8, closest_groups(tp=1, cp=1, pp=1, dp=d, ep=1, etp=1).dp)[0] for d in dp[:20]
    ]
    assert topology.all_gather_s(1e8, closest)[:20] == pytest.approx(alone)
