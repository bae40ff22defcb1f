"""Seconds of a collective as straight lines in the bytes: latency plus bytes over bandwidth, one line per algorithm.

Rings go through the members in rank order, hence leave every block once; each member of a block is the exit of an
equal share of the channels, so a block with q members sends (n-1)/n of the bytes over q members' links. All sibling
groups do the same at the same time, so a member has its own GPU's share of NICs and uplinks and no more.
Formulas and latencies: NVIDIA/nccl src/graph/tuning.cc; NVIDIA/nccl-tests doc/PERFORMANCE.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.topology.groups import GroupBatch
    from layoutopt.optimizer.topology.links import LinkConstants, Protocol
    from layoutopt.optimizer.topology.tiers import Tier

    FloatArray = NDArray[np.float64]


class Line(NamedTuple):
    """One algorithm: latency, and seconds per byte inside the node or NVLink domain and on the network, (n,)."""

    latency_s: FloatArray
    near_s_per_byte: FloatArray
    far_s_per_byte: FloatArray
    s_per_byte: FloatArray


def line(latency_s: FloatArray, near: FloatArray, far: FloatArray, share: float = 1.0) -> Line:
    """Build a line whose links run at ``share`` of their bandwidth."""
    near, far = near / share, far / share
    return Line(latency_s, near, far, np.maximum(near, far))


@dataclass(frozen=True, slots=True, eq=False)
class Fabric:
    """What prices need of a cluster: constants, tiers, nominal bandwidths in bytes/s."""

    cluster: ClusterSpec
    links: LinkConstants
    tiers: tuple[Tier, ...]

    @property
    def nvlink_bytes_per_s(self) -> float:
        """Sustained NVLink bandwidth of one GPU, one way."""
        return self.cluster.gpu.nvlink_bytes_per_s * self.links.nvlink_fraction

    def leaves_node(self, k: int) -> bool:
        """Tell whether tier ``k`` is the first one beyond a node or NVLink domain, or lies inside a node."""
        return k == 0 or self.tiers[k - 1].is_host

    def sustained(self, tier: Tier, ratio: float) -> float:
        """Sustained bytes/s of one GPU's way out of the tier's blocks, for a collective at ``ratio`` of all-reduce's."""
        if tier.is_host:
            return tier.bytes_per_s * self.links.host_fraction
        return tier.bytes_per_s * self.links.network_fraction * ratio


@dataclass(frozen=True, slots=True, eq=False)
class Spread:
    """How a group lies on the fabric: members in the NVLink domain and in every tier's block, as floats (n,).

    ``inside[k]`` is the fewest members in a block below tier k, one more entry is the whole group;
    ``domain_most`` bounds the members in one domain.
    """

    size: FloatArray
    inside: tuple[FloatArray, ...]
    domain_most: FloatArray
    many: FloatArray

    @property
    def domain(self) -> FloatArray:
        """Members in one NVLink domain."""
        return self.inside[0]

    def leaves(self, k: int) -> FloatArray:
        """1 where the group leaves the blocks below tier ``k``, else 0."""
        return (self.inside[k] < self.size).astype(np.float64)

    def blocks(self, k: int) -> FloatArray:
        """Blocks below tier ``k`` that the group touches."""
        return self.size / self.inside[k]


def spread(group: GroupBatch, fabric: Fabric) -> Spread:
    """Count the members of a group in every block of the fabric."""
    size = group.size.astype(np.float64)
    domain = group.members_within(fabric.cluster.nvlink_domain).astype(np.float64)
    inside = [domain] + [group.members_within(tier.outside).astype(np.float64) for tier in fabric.tiers[:-1]]
    inside.append(size)
    most = np.minimum(group.most_within(fabric.cluster.nvlink_domain), size)
    return Spread(size, tuple(inside), np.where(domain == size, size, most), (size > 1).astype(np.float64))


def far_s_per_byte(fabric: Fabric, lay: Spread, loads: list[FloatArray], ratio: float, *, host: bool) -> FloatArray:
    """Seconds per byte on the busiest tier; ``loads`` are bytes per GPU and payload byte that leave each tier's blocks."""
    worst = np.zeros_like(lay.size)
    for k, tier in enumerate(fabric.tiers):
        if tier.is_host is host:
            worst = np.maximum(worst, lay.leaves(k) * loads[k] / fabric.sustained(tier, ratio))
    return worst


def ring_lines(fabric: Fabric, group: GroupBatch, passes: int, ratio: float) -> list[Line]:
    """Rings: one pass is a reduce-scatter or an all-gather, two are an all-reduce."""
    lay = spread(group, fabric)
    around = passes * (lay.size - 1) / lay.size
    most = lay.domain_most
    within = np.where(most < lay.size, (most - 1) / most, 1.0)  # a ring that leaves has one hop less inside
    near = around * within * (most > 1) / fabric.nvlink_bytes_per_s
    loads = [around / inside for inside in lay.inside]
    near = np.maximum(near, far_s_per_byte(fabric, lay, loads, ratio, host=True))
    far = far_s_per_byte(fabric, lay, loads, ratio, host=False)
    return [line(_ring_latency_s(fabric, lay, p, passes), near, far, p.bandwidth_share) for p in fabric.links.ring]


def _ring_latency_s(fabric: Fabric, lay: Spread, protocol: Protocol, passes: int) -> FloatArray:
    """A pass has n-1 steps, of which one per touched block leaves the block."""
    steps_s = (lay.size - lay.blocks(0)) * protocol.nvlink_step_s
    for k, tier in enumerate(fabric.tiers):
        step_s = protocol.host_step_s if tier.is_host else protocol.network_step_s + tier.latency_s
        steps_s = steps_s + (lay.blocks(k) - lay.blocks(k + 1)) * step_s
    return lay.many * (protocol.base_s + passes * steps_s)


TREE_UPLINKS = 3.0
"""Edges of one binary tree over consecutive blocks that leave an aligned block, at most: a parent and two children."""


def tree_lines(fabric: Fabric, group: GroupBatch) -> list[Line]:
    """All-reduce by double binary trees between domains; inside a domain in the switch where it reduces, else a chain.

    Each of the two trees carries half of the bytes; with N > 2 domains a member is an inner node of one tree and a
    leaf of the other and sends and receives the bytes twice, with two domains once (Sanders, Speck, Traeff 2009,
    https://doi.org/10.1016/j.parco.2009.09.001).
    """
    lay, lines = spread(group, fabric), []
    loads = []
    for k in range(len(fabric.tiers)):
        edges = 2.0 if fabric.leaves_node(k) else TREE_UPLINKS
        loads.append(np.clip(lay.blocks(k) - 1, 0.0, edges) / lay.inside[k])
    far = far_s_per_byte(fabric, lay, loads, fabric.links.tree_fraction, host=False)
    host = far_s_per_byte(fabric, lay, loads, 1.0, host=True)
    for number, protocol in enumerate(fabric.links.tree):
        in_switch = _in_switch(fabric, lay) if number == 0 else np.zeros_like(lay.size)
        near = np.maximum(_tree_near(fabric, lay, in_switch), host)
        latency_s = _tree_latency_s(fabric, lay, protocol, in_switch)
        lines.append(line(latency_s, near, far, protocol.bandwidth_share))
    return lines


def _in_switch(fabric: Fabric, lay: Spread) -> FloatArray:
    """1 where the NVLink switch reduces, else 0."""
    if not fabric.cluster.in_switch_reduction:
        return np.zeros_like(lay.size)
    return (lay.domain >= fabric.links.nvls_min_members).astype(np.float64)


def _tree_near(fabric: Fabric, lay: Spread, in_switch: FloatArray) -> FloatArray:
    """Seconds per byte inside the domain: scatter and gather with the switch's gain, or up and down a chain."""
    most = lay.domain_most
    reduced = 2 * (most - 1) / most / fabric.links.nvls_gain
    chained = 2.0 * (most > 1)
    return np.where(in_switch > 0, reduced, chained) / fabric.nvlink_bytes_per_s


def _tree_latency_s(fabric: Fabric, lay: Spread, protocol: Protocol, in_switch: FloatArray) -> FloatArray:
    chain_s = np.where(in_switch > 0, fabric.links.nvls_step_s / 2, (lay.domain - 1) * protocol.nvlink_step_s)
    for k, tier in enumerate(fabric.tiers):
        joined = lay.blocks(k) / lay.blocks(k + 1)
        if tier.is_host:
            chain_s = chain_s + (joined - 1) * protocol.host_step_s
        else:
            chain_s = chain_s + np.log2(joined) * (protocol.network_step_s + tier.latency_s)
    return lay.many * (protocol.base_s + 2 * chain_s)
