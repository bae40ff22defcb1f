"""Lower bounds of prices over all placements: what a group costs if its members lie as close as they can.

No mesh order puts members closer, so these lines never exceed those of any group of the same size. A group
that fits into an NVLink domain may do better beyond it, since it then uses NICs as well: both ways are lines.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.topology.fabric import Line, line

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from layoutopt.optimizer.topology.fabric import Fabric
    from layoutopt.optimizer.topology.groups import GroupBatch
    from layoutopt.optimizer.topology.links import Protocol

    FloatArray = NDArray[np.float64]
    BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Reach:
    """How close members can lie, (n,).

    ``fits``: into one NVLink domain. Beyond it, also of those that fit: ``blocks`` below every tier that the
    group touches at least (one more entry is 1).
    """

    size: FloatArray
    many: FloatArray
    fits: BoolArray
    blocks: tuple[FloatArray, ...]

    @property
    def part(self) -> FloatArray:
        """Most members that the smallest part of a group in a domain can have, (n,)."""
        return self.size / self.blocks[0]


def _reach(fabric: Fabric, group: GroupBatch) -> Reach:
    size = group.size.astype(np.float64)
    fits = size <= fabric.nvlink.domain if fabric.tiers else np.ones(len(size), dtype=np.bool_)
    # A group that fits into a domain is also priced as if it lay in two: that is its way beyond.
    domains = np.where(fits, 2.0, np.ceil(size / fabric.nvlink.domain))
    above = [np.maximum(np.ceil(size / tier.inside), 1.0) for tier in fabric.tiers[1:]]
    return Reach(size, (size > 1).astype(np.float64), fits, (domains, *above, np.ones_like(size)))


def _either(fabric: Fabric, reach: Reach, inside: Line, beyond: Line | None) -> list[Line]:
    """Both ways where the group fits into a domain, the way beyond where it does not."""
    if beyond is None or not fabric.tiers:
        return [inside]
    # The second line is beyond for all rows: one that fits may be faster over NVLink and NICs together.
    chosen = (np.where(reach.fits, near, far) for near, far in zip(inside, beyond, strict=True))
    return [Line(*chosen), beyond]


def _rising_steps_s(fabric: Fabric, protocol: Protocol) -> list[float]:
    """Seconds of a step inside a domain and on every tier, none above that of a tier further out."""
    steps = [protocol.nvlink_step_s]
    for tier in fabric.tiers:
        steps.append(fabric.step_s(tier, protocol))
    # A step of an inner tier that is slower than one further out would not bound an order that goes there.
    return [min(steps[k:]) for k in range(len(steps))]


def ring_bounds(fabric: Fabric, group: GroupBatch, passes: int, ratio: float) -> list[Line]:
    """Bound ``ring_lines``: a member sends over NVLink and NIC at most, a block over its members' links."""
    reach, lines = _reach(fabric, group), []
    # A ring passes on all parts but a member's own, once for every pass.
    around = passes * (reach.size - 1) / reach.size
    near = around * fabric.nvlink_s_per_byte(reach.size - 1)
    far = around * _ring_beyond_s_per_byte(fabric, reach, ratio)
    for protocol in fabric.links.ring:
        steps = _rising_steps_s(fabric, protocol)
        within_s = reach.many * (protocol.base_s + passes * (reach.size - 1) * protocol.nvlink_step_s)
        if fabric.first_network == 0:  # whatever leaves a domain leaves its node
            steps = [max(step_s, protocol.overhead_s) for step_s in steps]
        # Of all hops only as many leave a block as there are blocks; the rest are taken inside.
        hops_s = (reach.size - reach.blocks[0]) * steps[0]
        for k, step_s in enumerate(steps[1:]):
            hops_s = hops_s + (reach.blocks[k] - reach.blocks[k + 1]) * step_s
        beyond_s = reach.many * (protocol.base_s + _library_start_s(fabric) + passes * hops_s)
        inside = line(within_s, near, np.zeros_like(near), protocol.bandwidth_share)
        beyond = line(beyond_s, far, np.zeros_like(far), protocol.bandwidth_share)
        lines += _either(fabric, reach, inside, beyond)
    return lines


def _ring_beyond_s_per_byte(fabric: Fabric, reach: Reach, ratio: float) -> FloatArray:
    """Seconds per byte around a ring that leaves the domain."""
    if not fabric.tiers:
        return np.zeros_like(reach.size)
    first = fabric.sustained(fabric.tiers[0], ratio)
    # (q-1)/q of the traffic on NVLink and 1/q of it on q members' first links take longest by
    # 1 / (sum of both bandwidths) at best, whatever q is.
    worst = np.maximum(1.0 / (fabric.nvlink_limit + first), 1.0 / (reach.part * first))
    for k, tier in enumerate(fabric.tiers[1:], start=1):
        # Uplinks above a node serve all groups of the block, so that any of its GPUs counts as a member
        # there.
        members = reach.size / reach.blocks[k] if fabric.leaves_node(k) else tier.inside
        leaves = reach.size > tier.inside
        worst = np.maximum(worst, np.where(leaves, 1.0 / members, 0.0) / fabric.sustained(tier, ratio))
    return worst


def tree_bounds(fabric: Fabric, group: GroupBatch) -> list[Line]:
    """Bound ``tree_lines``: one edge of each tree leaves a domain at least, two with three domains."""
    reach, lines = _reach(fabric, group), []
    for number, protocol in enumerate(fabric.links.tree):
        gain = fabric.in_switch_gain if number == 0 else 1.0
        share = np.where(reach.size >= fabric.links.nvls_min_members, gain, 1.0)
        near = 2 * (reach.size - 1) / reach.size / share * fabric.nvlink_s_per_byte(reach.size - 1)
        far = reach.many * _tree_beyond_s_per_byte(fabric, reach, gain)
        within_s, beyond_s = _tree_latencies_s(fabric, reach, protocol, switched=gain > 1)
        inside = line(within_s, near, np.zeros_like(near), protocol.bandwidth_share)
        beyond = line(beyond_s, far, np.zeros_like(far), protocol.bandwidth_share)
        lines += _either(fabric, reach, inside, beyond)
    return lines


def _tree_beyond_s_per_byte(fabric: Fabric, reach: Reach, gain: float) -> FloatArray:
    """As of a ring, with twice the traffic inside and ``edges`` of the bytes out of a part."""
    if not fabric.tiers:
        return np.zeros_like(reach.size)
    # Where switches reduce, the tree between domains runs at the rate of a ring.
    fraction = 1.0 if gain > 1 else fabric.links.tree_fraction
    first = fabric.sustained(fabric.tiers[0], 1.0 if fabric.tiers[0].is_host else fraction)
    # Two trees have two edges out of a part from three domains on; a host bridge takes one.
    edges = 1.0 if fabric.tiers[0].is_host else np.clip(reach.blocks[0] - 1, 0.0, 2.0)
    return np.maximum(1.0 / (first + gain * fabric.nvlink_limit / 2), edges / reach.part / first)


def _tree_latencies_s(
    fabric: Fabric, reach: Reach, protocol: Protocol, *, switched: bool
) -> tuple[FloatArray, FloatArray]:
    """Latency within a domain, and beyond: a chain has no fewer steps than a tree has levels."""
    within_s = (reach.size - 1) * protocol.nvlink_step_s
    # ln(x) is at most x - 1 and log2(x), also for the uneven counts of a chain of domains.
    rising = _rising_steps_s(fabric, protocol)[1:]
    if switched and fabric.first_network == 0:
        rising = [
            min(step, step - protocol.network_step_s + fabric.links.nvls_tree_step_s) for step in rising
        ]
    # The cheapest step per level, since a bound may not know which tier a level crosses.
    outward_s = min(rising, default=0.0) * np.log(2)
    inward_s = np.log2(reach.part) * min(protocol.nvlink_step_s, outward_s)
    beyond_s = (
        protocol.base_s + _library_start_s(fabric) + 2 * (inward_s + np.log2(reach.blocks[0]) * outward_s)
    )
    within_s = protocol.base_s + 2 * within_s
    if switched:
        nvls_s = fabric.links.nvls_step_s
        enough = reach.size >= fabric.links.nvls_min_members
        within_s = np.where(enough, np.minimum(within_s, nvls_s), within_s)
        beyond_s = np.minimum(beyond_s, nvls_s + 2 * np.log2(reach.blocks[0]) * outward_s)
    return reach.many * within_s, reach.many * beyond_s


def exchange_bounds(fabric: Fabric, group: GroupBatch) -> list[Line]:
    """Bound ``exchange_lines``: a member of the smallest part sends to all others beyond its domain."""
    reach = _reach(fabric, group)
    near = (reach.size - 1) / reach.size * fabric.nvlink_s_per_byte(reach.size - 1)
    within_s, beyond_s = _exchange_latencies_s(fabric, reach)
    inside = line(within_s, near, np.zeros_like(near))
    if not fabric.tiers:
        return [inside]
    far = np.zeros_like(near)
    # Tiers above the first network carry the exchange of many groups, which a bound on one group cannot
    # count.
    for k, tier in enumerate(fabric.tiers[: fabric.first_network + 1]):
        leaves = (reach.blocks[k] > 1) * reach.many
        # What goes to other blocks leaves; the fewest blocks keep the most inside.
        share = leaves * (1 - 1 / reach.blocks[k])
        far = np.maximum(far, share / fabric.sustained(tier, fabric.network.network_all_to_all))
    return _either(fabric, reach, inside, line(beyond_s, far, np.zeros_like(far)))


def sharp_bounds(fabric: Fabric, group: GroupBatch) -> list[Line]:
    """Bound ``sharp_lines``: every byte leaves a part once, over the links of all its members."""
    if not fabric.network_reduces or not fabric.links.tree or not fabric.tiers:
        return []
    reach, bulk, links = _reach(fabric, group), fabric.links.tree[0], fabric.links
    start_s = links.sharp_step_s + fabric.network.network_hop_s
    inside_s = np.minimum(bulk.base_s + 2 * (reach.part - 1) * bulk.nvlink_step_s, links.nvls_step_s)
    first = fabric.tiers[0]
    rate = fabric.sustained(
        first, 1.0 if first.is_host else links.sharp_fraction / fabric.network.network_fraction
    )
    near = reach.many / (rate * np.maximum(reach.part, 1.0) + fabric.in_switch_gain * fabric.nvlink_limit / 2)
    return [line(reach.many * (start_s + inside_s), near, np.zeros_like(near))]


def _exchange_latencies_s(fabric: Fabric, reach: Reach) -> tuple[FloatArray, FloatArray]:
    links = fabric.links
    near_s, far_s = links.exchange_nvlink_peer_s, fabric.network.exchange_network_peer_s
    within_s = links.exchange_base_s + (reach.size - 1) * near_s
    way_s = _first_way_s(fabric)
    peers_s = (reach.part - 1) * min(near_s, far_s) + (reach.size - reach.part) * far_s
    return reach.many * within_s, reach.many * (links.exchange_base_s + peers_s + way_s)


def _library_start_s(fabric: Fabric) -> float:
    """What a group pays for leaving a domain where that is leaving the node."""
    return 0.0 if fabric.first_network else fabric.network_start_s


def _first_way_s(fabric: Fabric) -> float:
    """The way out of an NVLink domain, with what leaving a node costs."""
    if not fabric.tiers:
        return 0.0
    hop_s = 0.0 if fabric.tiers[0].is_host else fabric.network.network_hop_s
    return fabric.tiers[0].latency_s + hop_s + _library_start_s(fabric)


def split_bounds(fabric: Fabric, group: GroupBatch) -> list[Line]:
    """Bound ``split_lines`` for bytes that the caller counted at ``members_within`` of the closest placement.

    Beyond one domain only what crosses the network counts. Inside, the best other placement, halves of the
    group in two domains, leaves (n-2)/(n-1) of the bytes inside a domain (one half for two ranks, which the
    network takes no faster for up to 15 experts per token at the catalog's ratios of NVLink to NIC).
    """
    reach = _reach(fabric, group)
    within_s = reach.many * fabric.links.exchange_base_s
    near = reach.many * fabric.nvlink_s_per_byte(reach.size - 1)
    if not fabric.tiers:
        return [line(within_s, near, np.zeros_like(near))]
    beyond_s = reach.many * (fabric.links.exchange_base_s + _first_way_s(fabric))
    kept = np.where(reach.size > 2, (reach.size - 2) / np.maximum(reach.size - 1, 1.0), 0.5)
    far = reach.many / fabric.sustained(fabric.tiers[0], fabric.network.network_all_to_all)
    latency_s = np.where(reach.fits, within_s, beyond_s)
    return [line(latency_s, np.where(reach.fits, kept * near, 0.0), np.where(reach.fits, 0.0, far))]


def hop_bounds(fabric: Fabric, group: GroupBatch) -> list[Line]:
    """Bound ``hop_lines``: the slowest hop stays in the domain, or leaves it over whole links."""
    reach, lines = _reach(fabric, group), []
    (gpus, nics), near = fabric.nics, reach.many * fabric.nvlink_s_per_byte(1.0)
    far = np.zeros_like(near)
    if fabric.tiers:
        # Several GPUs behind one NIC send at the same time, each over its part of it.
        sharers = 1.0 if fabric.tiers[0].is_host else max(gpus / nics, 1.0)
        far = reach.many / sharers / fabric.sustained(fabric.tiers[0], fabric.network.network_p2p)
    if fabric.tiers and fabric.first_network == 0:
        widest = fabric.channel_bytes_per_s(reach.size, np.full_like(reach.size, gpus))
        far = np.maximum(far, reach.many / widest)
    for protocol in fabric.links.ring:
        steps = _rising_steps_s(fabric, protocol)
        within_s = reach.many * (protocol.base_s + protocol.nvlink_step_s)
        beyond_s = reach.many * (protocol.base_s + min(steps[1:], default=0.0))
        inside = line(within_s, near, np.zeros_like(near), protocol.bandwidth_share)
        beyond = line(beyond_s, far, np.zeros_like(far), protocol.bandwidth_share)
        lines += _either(fabric, reach, inside, beyond)
    return lines
