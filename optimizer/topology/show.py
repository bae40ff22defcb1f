"""A cluster's levels and what collectives cost on chosen groups, as data for a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.specs.errors import InputError, Problem
from layoutopt.optimizer.topology.graph import read_nvlink
from layoutopt.optimizer.topology.groups import Digit, GroupBatch
from layoutopt.optimizer.topology.links import load_links
from layoutopt.optimizer.topology.one import bus_factor
from layoutopt.optimizer.topology.prices import Topology

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.topology.links import LinkConstants

NVLINK = "nvlink"
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p")


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelRow:
    """One level: blocks of ``gpus`` GPUs (the last may be partly filled) and what joins their parts.

    ``bytes_per_s`` is one GPU's nominal share, one way, of what leads from a part of the block to its other
    parts; ``part_gpus`` the GPUs of a part. ``oversubscription`` is relative to the NICs.
    """

    name: str
    gpus: int
    part_gpus: int
    blocks: int
    bytes_per_s: float
    oversubscription: float
    latency_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveRow:
    """One collective on a group of ``group`` ranks ``stride`` apart, all sibling groups at once.

    ``size_bytes`` is the full tensor, for an all-to-all one rank's send buffer. ``bus_bytes_per_s`` is the
    bus bandwidth of nccl-tests (doc/PERFORMANCE.md). ``members`` has the ranks in one block of every level.
    """

    collective: str
    group: int
    stride: int
    size_bytes: float
    seconds: float
    bus_bytes_per_s: float
    members: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyTable:
    """What ``topology show`` prints."""

    cluster: str
    fabric: str
    gpus: int
    nodes: int
    levels: tuple[LevelRow, ...]
    collectives: tuple[CollectiveRow, ...]


def topology_table(
    cluster: ClusterSpec,
    links: LinkConstants,
    *,
    size_bytes: float = 256e6,
    groups: Sequence[tuple[int, int]] = (),
) -> TopologyTable:
    """Describe a cluster and price every collective of ``size_bytes`` on groups of (ranks, stride).

    Without groups: all ranks of a block of every level, and one rank of every node. Raises ``InputError`` for
    groups that the cluster cannot hold.
    """
    topology = Topology(cluster, links)
    levels = _levels(topology)
    chosen = list(groups) or _default_groups(topology.cluster, levels)
    _check(topology.cluster, chosen, size_bytes)
    rows = [_priced(topology, levels, size_bytes, size, stride) for size, stride in chosen]
    return TopologyTable(
        cluster=cluster.name,
        fabric=cluster.fabric.value,
        gpus=cluster.gpu_count,
        nodes=-(-cluster.gpu_count // cluster.gpus_per_node),
        levels=levels,
        collectives=tuple(row for priced in rows for row in priced),
    )


def graphml(cluster: ClusterSpec) -> bytes:
    """Return the graph that prices are read from as GraphML; raises ``InputError`` as ``Topology`` does."""
    import networkx as nx

    graph = Topology(cluster, load_links(cluster.calibration)).graph
    return ("\n".join(nx.generate_graphml(graph)) + "\n").encode()


def _levels(topology: Topology) -> tuple[LevelRow, ...]:
    cluster, rows, nvlink = topology.cluster, [], read_nvlink(topology.graph)
    if nvlink.domain > 1:
        rows.append((NVLINK, nvlink.domain, 1, nvlink.bytes_per_s, 1.0, 0.0))
    for tier in topology.tiers:
        figures = tier.bytes_per_s, tier.oversubscription, tier.latency_s
        rows.append((tier.name, tier.outside, tier.inside, *figures))
    return tuple(
        LevelRow(
            name=name,
            gpus=min(gpus, cluster.gpu_count),
            part_gpus=part,
            blocks=-(-cluster.gpu_count // gpus),
            bytes_per_s=rate,
            oversubscription=factor,
            latency_s=latency_s,
        )
        for name, gpus, part, rate, factor, latency_s in rows
    )


def _default_groups(cluster: ClusterSpec, levels: Sequence[LevelRow]) -> list[tuple[int, int]]:
    whole = [(level.gpus, 1) for level in levels] or [(cluster.gpu_count, 1)]
    nodes = cluster.gpu_count // cluster.gpus_per_node
    spread = [(nodes, cluster.gpus_per_node)] if nodes > 1 and cluster.gpus_per_node > 1 else []
    return list(dict.fromkeys(whole + spread))


def _check(cluster: ClusterSpec, groups: Sequence[tuple[int, int]], size_bytes: float) -> None:
    problems = [
        Problem(
            what=f"a group of {size} ranks {stride} apart does not fit {cluster.gpu_count} GPUs",
            allowed=f"group and stride of at least 1 with group * stride at most {cluster.gpu_count}",
            key="group",
        )
        for size, stride in groups
        if size < 1 or stride < 1 or size * stride > cluster.gpu_count
    ]
    if not size_bytes >= 0:
        problems.append(Problem(what=f"size of {size_bytes} bytes", allowed="0 or more", key="size"))
    if problems:
        raise InputError(*problems)


def _priced(
    topology: Topology, levels: Sequence[LevelRow], size_bytes: float, size: int, stride: int
) -> list[CollectiveRow]:
    """One row per collective; the layout is as many sibling groups as the cluster holds."""
    ranks = topology.cluster.gpu_count // (size * stride) * size * stride
    group = GroupBatch(digits=(Digit(np.array([size]), np.array([stride])),), ranks=np.array([ranks]))
    members = tuple(int(group.members_within(level.gpus)[0]) for level in levels)
    rows = []
    for collective in COLLECTIVES:
        seconds = float(getattr(topology, f"{collective}_s")(size_bytes, group)[0])
        moved = size_bytes * bus_factor(collective, size)
        rows.append(
            CollectiveRow(
                collective=collective,
                group=size,
                stride=stride,
                size_bytes=size_bytes,
                seconds=seconds,
                bus_bytes_per_s=moved / seconds if seconds > 0 else 0.0,
                members=members,
            )
        )
    return rows
