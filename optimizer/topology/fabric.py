"""What prices need of a cluster, how a group lies on it, and the line that a price is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from layoutopt.optimizer.topology.graph import GPU, NIC, read_nvlink, read_tiers

if TYPE_CHECKING:
    import networkx as nx
    from numpy.typing import NDArray

    from layoutopt.optimizer.topology.graph import NvLink, Tier
    from layoutopt.optimizer.topology.groups import GroupBatch
    from layoutopt.optimizer.topology.links import LinkConstants, NetworkLink, Protocol

    FloatArray = NDArray[np.float64]
    BoolArray = NDArray[np.bool_]


class Line(NamedTuple):
    """One algorithm: latency, and seconds per byte in the node or NVLink domain and on the network, (n,)."""

    latency_s: FloatArray
    near_s_per_byte: FloatArray
    far_s_per_byte: FloatArray
    s_per_byte: FloatArray


def line(latency_s: FloatArray, near: FloatArray, far: FloatArray, share: float = 1.0) -> Line:
    """Build a line of (n,) whose links run at ``share`` of their bandwidth."""
    near, far = near / share, far / share
    return Line(latency_s, near, far, np.maximum(near, far))


def useful_lines(lines: list[Line]) -> list[Line]:
    """Drop lines that in every row are nowhere below some other line."""
    kept: list[Line] = []
    for number, one in enumerate(lines):
        rest = kept + lines[number + 1 :]
        if not any(all((a <= b).all() for a, b in zip(other, one, strict=True)) for other in rest):
            kept.append(one)
    return kept


@dataclass(frozen=True, eq=False)
class Fabric:
    """A cluster's folded graph with the link constants, and what prices read from both."""

    graph: nx.Graph
    links: LinkConstants

    @cached_property
    def tiers(self) -> tuple[Tier, ...]:
        """Tiers above the NVLink domain, from the node outward."""
        return read_tiers(self.graph)

    @cached_property
    def nvlink(self) -> NvLink:
        """What joins the GPUs of an NVLink domain."""
        return read_nvlink(self.graph)

    @property
    def generation(self) -> str:
        """The GPUs' family and generation."""
        return str(self.graph.nodes[GPU]["generation"])

    @property
    def rails(self) -> bool:
        """Tell whether GPUs of the same index in their node share a leaf."""
        return bool(self.graph.graph["rail_optimized"])

    @property
    def reduces(self) -> bool:
        """Tell whether switches add up all-reduces."""
        return bool(self.graph.graph["in_switch_reduction"])

    @property
    def network_reduces(self) -> bool:
        """Tell whether network switches add up all-reduces."""
        return bool(self.graph.graph["network_reduction"])

    @property
    def network(self) -> NetworkLink:
        """Constants of what joins the nodes."""
        return self.links.networks[self.graph.graph["fabric"]]

    @property
    def nics(self) -> tuple[int, int]:
        """GPUs and NICs of a node; one of each where the graph has no network."""
        node = self.graph.nodes.get(NIC, {"gpus": 1, "count": 1})
        return node["gpus"], node["count"]

    @cached_property
    def nvlink_bytes_per_s(self) -> float:
        """Sustained NVLink bandwidth of one GPU, one way; infinite where no two GPUs share NVLink."""
        # No NVLink: nothing is ever sent over it, and infinity keeps it out of every maximum.
        if self.nvlink.domain == 1:
            return np.inf
        return self.nvlink.bytes_per_s * self.links.nvlink_share(self.generation)

    @property
    def nvlink_limit(self) -> float:
        """The same, 0 where no two GPUs share NVLink: what NVLink adds to other links at most."""
        return 0.0 if self.nvlink.domain == 1 else self.nvlink_bytes_per_s

    def nvlink_s_per_byte(self, peers: FloatArray | float) -> FloatArray:
        """Seconds per byte that a GPU sends over NVLink to ``peers`` others, (n,) or one: as many links of a mesh."""
        if self.nvlink.links > 1:
            # A mesh has a link per pair of GPUs, so that fewer peers leave links unused.
            return self.nvlink.links / np.maximum(peers, 1.0) / self.nvlink_bytes_per_s
        return np.asarray(1.0 / self.nvlink_bytes_per_s)

    @cached_property
    def in_switch_gain(self) -> float:
        """All-reduce bandwidth of in-switch reduction over a ring's; 1 where the switch does not reduce."""
        if not self.reduces or not self.links.tree:
            return 1.0
        return self.links.in_switch_gain(self.generation)

    @cached_property
    def first_network(self) -> int:
        """Index of the first tier beyond nodes and NVLink domains."""
        return sum(tier.is_host for tier in self.tiers)

    def leaves_node(self, k: int) -> bool:
        """Tell whether traffic leaves the blocks below tier ``k`` on links that belong to single GPUs."""
        # The first tier of the network is reached over NICs, which are a GPU's own; above it uplinks are
        # shared.
        return k <= self.first_network

    def on_rails(self, k: int) -> bool:
        """Tell whether traffic leaves the blocks below tier ``k`` on NICs or on uplinks of rail switches."""
        return self.rails and k - self.first_network in (0, 1)

    def sustained(self, tier: Tier, ratio: float) -> float:
        """Sustained bytes/s of one GPU's way out of the tier's blocks, at ``ratio`` of all-reduce's."""
        if tier.is_host:
            return tier.bytes_per_s * self.links.host_fraction
        return tier.bytes_per_s * self.network.network_fraction * ratio

    @cached_property
    def network_start_s(self) -> float:
        """Start of a collective over several nodes beside that of one inside a node."""
        return self.links.library_start_s(self.generation)

    def step_s(self, tier: Tier, protocol: Protocol) -> float:
        """Seconds of one dependent step out of the tier's blocks, beside its bytes."""
        if tier.is_host:
            return protocol.host_step_s
        return protocol.network_step_s + self.network.network_hop_s + tier.latency_s

    def channel_bytes_per_s(self, ranks: FloatArray, here: FloatArray) -> FloatArray:
        """Bytes/s (n,) of the channels of one send between nodes, for ``ranks`` of which ``here`` are in a node.

        A peer gets as many channels as its NICs need, halved until all peers find room in those of the
        communicator, eight to a channel (NVIDIA/nccl src/graph/paths.cc, ncclTopoComputeP2pChannels).
        """
        one = self.links.p2p_channel_bytes_per_s
        gpus, nics = self.nics
        rate = max((tier.bytes_per_s for tier in self.tiers if not tier.is_host), default=0.0)
        # NCCL doubles channels, so that counts are powers of two.
        wanted = _power_of_two(max(nics / gpus, rate / one))
        room = np.minimum(wanted * 2 ** np.ceil(np.log2(here)), self.links.p2p_channels)
        fitting = 2 ** np.floor(np.log2(np.maximum(room / np.ceil(ranks / _PEERS_PER_CHANNEL), 1.0)))
        return np.asarray(np.minimum(wanted, fitting) * one)


_PEERS_PER_CHANNEL = 8
"""Sends that one channel works on at a time (NVIDIA/nccl NCCL_MAX_DEV_WORK_P2P_PER_BATCH)."""


def _power_of_two(least: float) -> float:
    return 1.0 if least <= 1 or math.isinf(least) else float(2 ** math.ceil(math.log2(least)))


@dataclass(frozen=True, slots=True, eq=False)
class Spread:
    """How a group lies on the fabric, floats (n,).

    ``inside[k]`` is the fewest members in a block below tier k, one more entry is the whole group;
    ``per_exit[k]`` GPUs of a block over the groups that leave it; ``crowding[k]`` bounds the flows on one
    rail below tier k where an even spread has one; ``most[k]`` bounds the members in a block below tier k;
    ``many`` is 1 for groups of more than one.
    """

    size: FloatArray
    inside: tuple[FloatArray, ...]
    per_exit: tuple[FloatArray, ...]
    crowding: tuple[FloatArray | float, ...]
    most: tuple[FloatArray, ...]
    many: FloatArray

    @property
    def domain(self) -> FloatArray:
        """Members in one NVLink domain, (n,)."""
        return self.inside[0]

    @property
    def domain_most(self) -> FloatArray:
        """Most members in one NVLink domain, (n,)."""
        return self.most[0]

    def leaves(self, k: int) -> FloatArray:
        """1 where the group leaves the blocks below tier ``k``, else 0, (n,)."""
        return (self.inside[k] < self.size).astype(np.float64)

    def abroad(self, fabric: Fabric) -> FloatArray:
        """1 where the group reaches over several nodes, else 0, (n,)."""
        first = fabric.first_network
        return self.leaves(first) if first < len(fabric.tiers) else np.zeros_like(self.size)

    def nodes(self, fabric: Fabric) -> FloatArray:
        """Nodes or NVLink domains that the group reaches over, (n,)."""
        first = fabric.first_network
        return self.blocks(first) if first < len(fabric.tiers) else np.ones_like(self.size)

    def even(self, k: int) -> BoolArray:
        """Tell where blocks below tier ``k`` cut the group into equal parts, (n,)."""
        return np.asarray(self.most[k] == self.inside[k], dtype=np.bool_)

    def blocks(self, k: int) -> FloatArray:
        """Blocks below tier ``k`` that the group touches, (n,)."""
        return self.size / self.inside[k]

    def members_at_exit(self, fabric: Fabric, k: int) -> FloatArray:
        """Members over which the traffic that leaves a block below tier ``k`` spreads, (n,).

        Out of a node or NVLink domain a member uses its own GPU's links, so the smallest part of a group is
        the slowest. Uplinks of larger blocks serve all groups that leave the block.
        """
        return (self.inside[k] if fabric.leaves_node(k) else self.per_exit[k]) / self.crowding[k]


def spread(group: GroupBatch, fabric: Fabric) -> Spread:
    """Count the members of a group in every block of the fabric."""
    size = group.size.astype(np.float64)
    # Below tier k means inside what the tier k - 1 joins: the innermost block is the NVLink domain.
    blocks = [fabric.nvlink.domain, *(tier.outside for tier in fabric.tiers[:-1])]
    inside = [group.members_within(block).astype(np.float64) for block in blocks]
    most = [np.minimum(group.most_within(block), size) for block in blocks]
    return Spread(
        size=size,
        inside=(*inside, size),
        per_exit=tuple(group.members_per_exit(block) for block in blocks),
        crowding=_crowding(group, fabric),
        # A group that is whole in every block it touches has no more members there than it has.
        most=tuple(np.where(part == size, size, bound) for part, bound in zip(inside, most, strict=True)),
        many=(size > 1).astype(np.float64),
    )


RAIL_SHIFTS = 2.0
"""Most flows on one rail when members stand at other positions in every node: a member's peers ahead are one
shift away and those behind another, and each shift sends the GPUs of a node to different rails."""


def _crowding(group: GroupBatch, fabric: Fabric) -> tuple[FloatArray | float, ...]:
    """Flows on one rail over an even spread, for NICs and for the uplinks of rail switches, per tier."""
    if not fabric.rails:
        return (1.0,) * max(len(fabric.tiers), 1)
    same = group.same_positions(fabric.nics[0])
    factor = np.where(same, 1.0, RAIL_SHIFTS)
    on_rails = [fabric.on_rails(k) for k in range(len(fabric.tiers))]
    return tuple(factor if rails else 1.0 for rails in on_rails) or (1.0,)


def busiest_s_per_byte(
    fabric: Fabric, lay: Spread, loads: list[FloatArray], ratio: float, *, host: bool
) -> FloatArray:
    """Seconds per byte (n,) on the busiest tier, either inside nodes (``host``) or on the network.

    ``loads`` are bytes per GPU and payload byte that leave each tier's blocks.
    """
    worst = np.zeros_like(lay.size)
    for k, tier in enumerate(fabric.tiers):
        if tier.is_host is host:
            worst = np.maximum(worst, lay.leaves(k) * loads[k] / fabric.sustained(tier, ratio))
    return worst
