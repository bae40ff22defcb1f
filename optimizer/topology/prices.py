"""The price of a collective on a process group, for arrays of groups at once.

Groups are symmetric: all siblings run the same collective at the same time, so every GPU has an equal share of the
network. A collective is hierarchical: rings or direct exchanges inside the NVLink domain, and between blocks of each
network level one flow per member. A level's time is its busiest link's; levels work at once, so the slowest decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.topology.links import LinkConstants
    from layoutopt.optimizer.topology.mesh import GroupBatch

    FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """What traffic pays for leaving a block of ``block_gpus``: bytes/s per GPU of the block, after oversubscription.

    ``network`` is False for the host link between NVLink islands of one node.
    """

    name: str
    block_gpus: int
    bytes_per_s: float
    network: bool


def boundaries(cluster: ClusterSpec) -> tuple[Boundary, ...]:
    """List the boundaries from the NVLink domain outward, at nominal bandwidth."""
    nic = cluster.nic_bytes_per_s * cluster.nics_per_node / cluster.gpus_per_node
    found = []
    inner = cluster.nvlink_domain
    if inner < cluster.gpus_per_node:
        found.append(
            Boundary(name="host", block_gpus=inner, bytes_per_s=cluster.gpu.host_link_bytes_per_s, network=False)
        )
        inner = cluster.gpus_per_node
    for level in cluster.levels:
        rate = nic / level.oversubscription
        found.append(Boundary(name=level.name, block_gpus=inner, bytes_per_s=rate, network=True))
        inner = level.gpus
    return tuple(found)


class Topology:
    """Prices of collectives on one cluster. All methods take payload bytes and a ``GroupBatch`` and return seconds.

    Payloads follow nccl-tests: all-reduce the buffer of a rank; all-gather and reduce-scatter the whole tensor;
    all-to-all one rank's send buffer. ``sharing`` (>= 1) divides network bandwidth among flows of other axes.
    Groups of one rank cost nothing.
    """

    def __init__(self, cluster: ClusterSpec, links: LinkConstants) -> None:
        self.links = links
        self.nvlink_domain = cluster.nvlink_domain
        self.nvlink_bytes_per_s = cluster.gpu.nvlink_bytes_per_s * links.nvlink_fraction
        self.boundaries = boundaries(cluster)
        self._reduction_gain = links.nvls_gain if cluster.in_switch_reduction else 1.0

    def all_gather_s(self, payload_bytes: FloatArray, group: GroupBatch, sharing: FloatArray | float = 1.0) -> FloatArray:
        """Ring all-gather."""
        inside, network = self._ring(payload_bytes, group, self.links.gather_fraction, sharing)
        return self._alone(group, np.maximum(inside, network) + self._ring_latency(group))

    def reduce_scatter_s(
        self, payload_bytes: FloatArray, group: GroupBatch, sharing: FloatArray | float = 1.0
    ) -> FloatArray:
        """Ring reduce-scatter: the same traffic as an all-gather, backwards."""
        return self.all_gather_s(payload_bytes, group, sharing)

    def all_reduce_s(self, payload_bytes: FloatArray, group: GroupBatch, sharing: FloatArray | float = 1.0) -> FloatArray:
        """All-reduce: a reduce-scatter and an all-gather, in the switch inside a domain that can; ring or tree latency."""
        inside, network = self._ring(payload_bytes, group, 1.0, sharing)
        together = 2.0 * np.maximum(inside / self._reduction_gain, network)
        return self._alone(group, together + self._reduce_latency(group))

    def all_to_all_s(self, payload_bytes: FloatArray, group: GroupBatch, sharing: FloatArray | float = 1.0) -> FloatArray:
        """All-to-all of equal parts."""
        size = group.size.astype(np.float64)
        near = group.members_within(self.nvlink_domain)
        inside = (near - 1) / size * payload_bytes
        return self.all_to_all_split_s(inside, (size - near) / size * payload_bytes, group, sharing)

    def all_to_all_split_s(
        self,
        inside_bytes: FloatArray,
        outside_bytes: FloatArray,
        group: GroupBatch,
        sharing: FloatArray | float = 1.0,
    ) -> FloatArray:
        """All-to-all with given bytes per rank that stay in the NVLink domain and that leave it."""
        size = group.size.astype(np.float64)
        near = group.members_within(self.nvlink_domain)
        seconds = inside_bytes / self.nvlink_bytes_per_s
        leaving = np.maximum(size - near, 1.0)
        for edge in self.boundaries:
            share = (size - group.members_within(edge.block_gpus)) / leaving
            rate = self._rate(edge, self.links.all_to_all_fraction, sharing)
            seconds = np.maximum(seconds, share * outside_bytes / rate)
        base = np.where(size > near, self.links.base_network_s, self.links.base_nvlink_s)
        return self._alone(group, seconds + base)

    def p2p_s(self, payload_bytes: FloatArray, group: GroupBatch, sharing: FloatArray | float = 1.0) -> FloatArray:
        """Send to the next member, on the worst hop of the group."""
        seconds = payload_bytes / self.nvlink_bytes_per_s
        base = np.full(len(group.digits[0][0]), self.links.base_nvlink_s)
        for edge in self.boundaries:
            crosses = group.members_within(edge.block_gpus) < group.size
            slower = payload_bytes / self._rate(edge, self.links.p2p_fraction, sharing)
            seconds = np.where(crosses, np.maximum(seconds, slower), seconds)
            base = np.where(crosses & edge.network, self.links.base_network_s, base)
        return self._alone(group, seconds + base / 2)  # one message, not the rounds of a collective

    def _rate(self, edge: Boundary, fraction: float, sharing: FloatArray | float) -> FloatArray | float:
        """Bytes/s per GPU across a boundary."""
        if not edge.network:
            return edge.bytes_per_s * self.links.nic_fraction
        return edge.bytes_per_s * self.links.nic_fraction * fraction / sharing

    def _ring(
        self, payload_bytes: FloatArray, group: GroupBatch, fraction: float, sharing: FloatArray | float
    ) -> tuple[FloatArray, FloatArray]:
        """Seconds of one ring pass inside the domain and across the slowest boundary.

        A ring ordered by blocks crosses each boundary with one flow per member inside the block, so a block with q
        members moves (N-1)/N of the payload over q members' links, N being the number of blocks.
        """
        near = group.members_within(self.nvlink_domain)
        inside = (near - 1) / near * payload_bytes / self.nvlink_bytes_per_s
        network = np.zeros_like(inside)
        size = group.size
        for edge in self.boundaries:
            members = group.members_within(edge.block_gpus)
            moved = (1 - members / size) * payload_bytes / members
            network = np.maximum(network, moved / self._rate(edge, fraction, sharing))
        return inside, network

    def _blocks(self, group: GroupBatch) -> tuple[FloatArray, FloatArray]:
        """Members inside the NVLink domain, and domains spanned."""
        near = group.members_within(self.nvlink_domain)
        return near, group.size / near

    def _ring_latency(self, group: GroupBatch) -> FloatArray:
        """Base time and one step per hop of a ring."""
        near, domains = self._blocks(group)
        links = self.links
        base = np.where(domains > 1, links.base_network_s, links.base_nvlink_s)
        return base + (near - 1) * links.step_nvlink_s + (domains - 1) * links.step_network_s

    def _reduce_latency(self, group: GroupBatch) -> FloatArray:
        """All-reduce latency: two ring passes or a tree up and down, whichever is shorter."""
        near, domains = self._blocks(group)
        links = self.links
        base = np.where(domains > 1, links.base_network_s, links.base_nvlink_s)
        ring = 2 * (domains - 1) * links.step_network_s
        tree = 2 * np.log2(np.maximum(domains, 1.0)) * links.tree_network_s
        return base + 2 * (near - 1) * links.step_nvlink_s + np.minimum(ring, tree)

    @staticmethod
    def _alone(group: GroupBatch, seconds: FloatArray) -> FloatArray:
        """Groups of one rank communicate with nobody."""
        return np.where(group.size > 1, seconds, 0.0)
