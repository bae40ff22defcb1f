"""The price of one collective of one group: its algorithms, latency, bus bandwidth and route."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.specs.errors import InputError, Problem, input_error
from layoutopt.optimizer.topology.collectives import ring_lines, sharp_lines, tree_lines
from layoutopt.optimizer.topology.graph import route_between
from layoutopt.optimizer.topology.groups import Digit, GroupBatch
from layoutopt.optimizer.topology.prices import Topology, fastest_s

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.topology.fabric import Fabric, Line
    from layoutopt.optimizer.topology.links import LinkConstants


class Collective(StrEnum):
    """A collective, called as nccl-tests and people call it."""

    ALL_REDUCE = "all-reduce"
    ALL_GATHER = "all-gather"
    REDUCE_SCATTER = "reduce-scatter"
    ALL_TO_ALL = "all-to-all"
    SEND_RECV = "send-recv"


class Algorithm(StrEnum):
    """How an all-reduce is done: NCCL's ring and double tree, NVLink switches that add up, network switches that do."""

    RING = "ring"
    TREE = "tree"
    NVLS = "nvls"
    SHARP = "sharp"


_PRICE = {
    Collective.ALL_GATHER: "all_gather_s",
    Collective.REDUCE_SCATTER: "reduce_scatter_s",
    Collective.ALL_TO_ALL: "all_to_all_s",
    Collective.SEND_RECV: "p2p_s",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectivePrice:
    """One collective of ``ranks`` ranks, ``per_node`` in each of ``nodes``, alone on its machines.

    ``size_bytes`` is the whole tensor, for an all-to-all one rank's send buffer. ``latency_s`` is an empty message's
    time. ``bus_bytes_per_s`` is nccl-tests' bus bandwidth. ``algorithms`` has every algorithm's seconds of an all-reduce,
    ``route`` the parts between the two ranks farthest apart.
    """

    cluster: str
    fabric: str
    collective: Collective
    algorithm: Algorithm | None
    ranks: int
    per_node: int
    nodes: int
    size_bytes: float
    seconds: float
    latency_s: float
    bus_bytes_per_s: float
    algorithms: Mapping[str, float]
    route: tuple[str, ...]


def price_one(
    cluster: ClusterSpec,
    links: LinkConstants,
    collective: Collective,
    *,
    size_bytes: float,
    ranks: int,
    per_node: int,
    algorithm: Algorithm | None = None,
) -> CollectivePrice:
    """Price one collective by the fastest algorithm, as NCCL chooses, or by a stated one.

    Raises ``InputError`` for ranks that the cluster doesn't hold and for algorithms of other collectives than all-reduce.
    """
    _check(cluster, collective, ranks, per_node, size_bytes, algorithm)
    topology = Topology(_with_switches(cluster, algorithm), links)
    group, sharing = _group(cluster, ranks, per_node), _sharing(cluster, per_node)
    sizes = np.array([0.0, size_bytes])
    algorithms: dict[str, float] = {}
    if collective is Collective.ALL_REDUCE:
        seconds = {
            name: fastest_s(sizes, lines, None, sharing)
            for name, lines in _algorithms(topology.fabric, group).items()
            if algorithm in (None, Algorithm.NVLS, name)
        }
        algorithms = {name.value: float(both[1]) for name, both in seconds.items()}
        latency_s, whole_s = np.min(list(seconds.values()), axis=0)
        algorithm = min(seconds, key=lambda name: float(seconds[name][1]))
    else:
        price = getattr(topology, _PRICE[collective])
        latency_s, whole_s = (float(price(size, group, sharing)[0]) for size in sizes)
    moved = size_bytes * bus_factor(collective, ranks)
    nodes = ranks // per_node
    last = (nodes - 1) * cluster.gpus_per_node + per_node - 1
    return CollectivePrice(
        cluster=cluster.name,
        fabric=cluster.fabric.value,
        collective=collective,
        algorithm=algorithm,
        ranks=ranks,
        per_node=per_node,
        nodes=nodes,
        size_bytes=size_bytes,
        seconds=float(whole_s),
        latency_s=float(latency_s),
        bus_bytes_per_s=moved / float(whole_s) if whole_s > 0 else 0.0,
        algorithms=algorithms,
        route=route_between(topology.graph, 0, last),
    )


def bus_factor(collective: str, members: int) -> float:
    """Return bus bandwidth over algorithm bandwidth (NVIDIA/nccl-tests doc/PERFORMANCE.md)."""
    if collective in (Collective.SEND_RECV, "p2p"):
        return 1.0
    return (2 if collective in (Collective.ALL_REDUCE, "all_reduce") else 1) * (members - 1) / members


def _algorithms(fabric: Fabric, group: GroupBatch) -> dict[Algorithm, list[Line]]:
    """Lines of every algorithm that an all-reduce can take; the bulk tree is the switches' where they add up."""
    trees, summed = tree_lines(fabric, group), sharp_lines(fabric, group)
    lines = {Algorithm.RING: ring_lines(fabric, group, 2, 1.0)}
    here = group.members_within(fabric.nvlink.domain)[0]
    if fabric.reduces and here >= fabric.links.nvls_min_members:
        lines |= {Algorithm.NVLS: trees[:1], Algorithm.TREE: trees[1:]}
    elif trees:
        lines[Algorithm.TREE] = trees
    return lines | ({Algorithm.SHARP: summed} if summed else {})


def _with_switches(cluster: ClusterSpec, algorithm: Algorithm | None) -> ClusterSpec:
    """The cluster with the switches that a stated algorithm needs, and without those that it does not."""
    if algorithm is None:
        return cluster
    nvls = algorithm is Algorithm.NVLS or (algorithm is Algorithm.SHARP and cluster.in_switch_reduction)
    return replace(cluster, in_switch_reduction=nvls, network_reduction=algorithm is Algorithm.SHARP)


def _group(cluster: ClusterSpec, ranks: int, per_node: int) -> GroupBatch:
    """The first GPUs of as many nodes."""
    nodes = ranks // per_node
    sizes = [(per_node, 1)] + [(nodes, cluster.gpus_per_node)] * (nodes > 1)
    digits = tuple(Digit(np.array([size]), np.array([stride])) for size, stride in sizes)
    held = cluster.gpus_per_node * nodes if nodes > 1 else ranks
    return GroupBatch(digits=digits, ranks=np.array([held]))


def _sharing(cluster: ClusterSpec, per_node: int) -> float:
    """Share of a NIC's users that work: one rank alone has the whole NIC that several GPUs share."""
    users = max(cluster.gpus_per_node / cluster.nics_per_node, 1.0)
    return min(per_node, users) / users


def _check(
    cluster: ClusterSpec,
    collective: Collective,
    ranks: int,
    per_node: int,
    size_bytes: float,
    algorithm: Algorithm | None,
) -> None:
    problems = list(_faults(cluster, ranks, per_node, size_bytes))
    if problems:
        raise InputError(*problems)
    if algorithm and collective is not Collective.ALL_REDUCE:
        raise input_error(f"{algorithm} is no algorithm of {collective}", "all-reduce", key="algorithm")


def _faults(cluster: ClusterSpec, ranks: int, per_node: int, size_bytes: float) -> Iterator[Problem]:
    held = cluster.gpus_per_node
    if not 1 <= per_node <= held or (ranks > per_node and held % per_node):
        allowed = f"a divisor of {held}; on one node 1 to {held}"
        yield Problem(what=f"{per_node} ranks per node", allowed=allowed, key="per_node")
    elif ranks < 1 or ranks % per_node or ranks // per_node * held > -(-cluster.gpu_count // held) * held:
        nodes = -(-cluster.gpu_count // held)
        allowed = f"a multiple of {per_node} up to {nodes * per_node}: {cluster.name} has {nodes} nodes"
        yield Problem(what=f"{ranks} ranks, {per_node} per node", allowed=allowed, key="ranks")
    if not size_bytes >= 0:
        yield Problem(what=f"size of {size_bytes} bytes", allowed="0 or more", key="bytes")
