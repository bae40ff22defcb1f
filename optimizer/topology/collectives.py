"""Seconds of all-reduce, all-gather and reduce-scatter as straight lines in the bytes, one per algorithm.

Rings go through the members in rank order, hence leave every block once; each member of a block is the exit
of an equal share of the channels, so a block with q members sends (n-1)/n of the bytes over q members' links.
All sibling groups do the same at the same time, so a member has its own GPU's share of NICs and uplinks only.
Formulas and latencies: NVIDIA/nccl src/graph/tuning.cc; NVIDIA/nccl-tests doc/PERFORMANCE.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.topology.fabric import busiest_s_per_byte, line, spread

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from layoutopt.optimizer.topology.fabric import Fabric, Line, Spread
    from layoutopt.optimizer.topology.groups import GroupBatch
    from layoutopt.optimizer.topology.links import Protocol

    FloatArray = NDArray[np.float64]


TREE_UPLINKS = 3.0
"""Edges of a binary tree that leave an aligned block of 2^k nodes: to its first node's parent and one child,
and to the parent of its middle node."""


MEASURED_NODES = 2
"""Nodes up to which a protocol of flags is not held to its bandwidth over many: NVIDIA/nccl has another bound there."""


def ring_lines(fabric: Fabric, group: GroupBatch, passes: int, ratio: float) -> list[Line]:
    """Rings: one pass is a reduce-scatter or an all-gather, two are an all-reduce."""
    lay = spread(group, fabric)
    around = passes * (lay.size - 1) / lay.size
    most = lay.domain_most
    within = np.where(most < lay.size, (most - 1) / most, 1.0)  # a ring that leaves has one hop less inside
    near = around * within * (most > 1) * fabric.nvlink_s_per_byte(most - 1)
    loads = [around / lay.members_at_exit(fabric, k) for k in range(len(fabric.tiers))]
    near = np.maximum(near, busiest_s_per_byte(fabric, lay, loads, ratio, host=True))
    far = busiest_s_per_byte(fabric, lay, loads, ratio, host=False)
    lines = []
    for protocol in fabric.links.ring:
        latency_s = _ring_latency_s(fabric, lay, protocol, passes)
        share = protocol.bandwidth_share
        # A protocol of flags sends fewer bytes per word, a limit that counts once many nodes are in the ring.
        least = share * around / protocol.most_bytes_per_s * (lay.nodes(fabric) > MEASURED_NODES)
        lines.append(line(latency_s, np.maximum(near, least), np.maximum(far, least), share))
    return lines


def _ring_latency_s(fabric: Fabric, lay: Spread, protocol: Protocol, passes: int) -> FloatArray:
    """A pass has n-1 steps, of which one per touched block leaves the block; the host posts each of several nodes."""
    least_s = lay.abroad(fabric) * protocol.overhead_s
    steps_s = (lay.size - lay.blocks(0)) * np.maximum(protocol.nvlink_step_s, least_s)
    for k, tier in enumerate(fabric.tiers):
        step_s = np.maximum(fabric.step_s(tier, protocol), least_s)
        steps_s = steps_s + (lay.blocks(k) - lay.blocks(k + 1)) * step_s
    return lay.many * (protocol.base_s + passes * steps_s) + lay.abroad(fabric) * fabric.network_start_s


def tree_lines(fabric: Fabric, group: GroupBatch) -> list[Line]:
    """All-reduce by double binary trees between domains; inside, the switch reduces if it can, else a chain.

    Each of the two trees carries half of the bytes; with N > 2 domains a member is an inner node of one tree
    and a leaf of the other and sends and receives the bytes twice, with two domains once (Sanders, Speck,
    Traeff 2009, https://doi.org/10.1016/j.parco.2009.09.001).
    """
    lay, lines = spread(group, fabric), []
    loads = [_tree_load(fabric, lay, k) for k in range(len(fabric.tiers))]
    whole = busiest_s_per_byte(fabric, lay, loads, 1.0, host=False)
    host = busiest_s_per_byte(fabric, lay, loads, 1.0, host=True)
    for number, protocol in enumerate(fabric.links.tree):
        in_switch = _in_switch(fabric, lay) if number == 0 else np.zeros_like(lay.size)
        near = np.maximum(_tree_near(fabric, lay, in_switch), host)
        far = whole / np.where(in_switch > 0, 1.0, fabric.links.tree_fraction)
        latency_s = _tree_latency_s(fabric, lay, protocol, in_switch)
        lines.append(line(latency_s, near, far, protocol.bandwidth_share))
    return lines


def sharp_lines(fabric: Fabric, group: GroupBatch) -> list[Line]:
    """All-reduce added up by network switches: every byte leaves a node once and comes back once."""
    if not fabric.network_reduces or not fabric.links.tree:
        return []
    lay, bulk = spread(group, fabric), fabric.links.tree[0]
    loads = [1.0 / lay.members_at_exit(fabric, k) for k in range(len(fabric.tiers))]
    far = busiest_s_per_byte(
        fabric, lay, loads, fabric.links.sharp_fraction / fabric.network.network_fraction, host=False
    )
    in_switch = _in_switch(fabric, lay)
    # Without NVLink reduction a chain inside the node hands one sum to the network and spreads it after.
    chain_s = bulk.base_s + 2 * (lay.domain - 1) * bulk.nvlink_step_s
    inside_s = np.where(in_switch > 0, fabric.links.nvls_step_s, chain_s)
    latency_s = lay.many * (inside_s + fabric.links.sharp_step_s + fabric.network.network_hop_s)
    host = busiest_s_per_byte(fabric, lay, loads, 1.0, host=True)
    return [line(latency_s, np.maximum(_tree_near(fabric, lay, in_switch), host), far)]


def _tree_load(fabric: Fabric, lay: Spread, k: int) -> FloatArray:
    """Bytes per member and payload byte that leave a block below tier ``k`` up and down both trees."""
    first = fabric.first_network
    # With two nodes only one tree has an edge at each of them.
    alone = np.clip(lay.blocks(first) - 1, 0.0, 2.0)  # of a block that holds one node of each tree
    if fabric.tiers[k].is_host:
        joined = lay.inside[k + 1] / lay.inside[k]
        return 2 * (1 - 1 / joined) / lay.inside[k] + alone / lay.inside[k + 1]
    nodes = lay.inside[k] / lay.inside[first]
    levels = np.ceil(np.log2(lay.blocks(first)))  # at most one edge of each passes either border of a block
    aligned = (np.log2(nodes) % 1 == 0) & lay.even(first) & lay.even(k)
    uplinks = np.where(aligned, TREE_UPLINKS, np.maximum(2 * levels, TREE_UPLINKS))
    single = (k == first) | (aligned & (nodes == 1))
    return np.where(single, alone, uplinks) / lay.members_at_exit(fabric, k)


def _in_switch(fabric: Fabric, lay: Spread) -> FloatArray:
    """1 where the NVLink switch reduces, else 0."""
    if not fabric.reduces:
        return np.zeros_like(lay.size)
    return (lay.domain >= fabric.links.nvls_min_members).astype(np.float64)


def _tree_near(fabric: Fabric, lay: Spread, in_switch: FloatArray) -> FloatArray:
    """Seconds per byte inside the domain: scatter and gather by the switch, or chains in as many orders."""
    most = lay.domain_most
    gain = np.where(in_switch > 0, fabric.in_switch_gain, 1.0)
    return 2 * (most - 1) / most / gain * fabric.nvlink_s_per_byte(most - 1)


def _tree_latency_s(fabric: Fabric, lay: Spread, protocol: Protocol, in_switch: FloatArray) -> FloatArray:
    """Up and down again: the switch or a chain of members, then a tree of blocks on every tier."""
    chain_s = (lay.domain - 1) * protocol.nvlink_step_s
    way_s = np.where(in_switch > 0, fabric.links.nvls_step_s / 2, chain_s)
    for k, tier in enumerate(fabric.tiers):
        joined = lay.blocks(k) / lay.blocks(k + 1)
        step_s = fabric.step_s(tier, protocol)
        if tier.is_host:
            way_s = way_s + (joined - 1) * step_s
        else:
            # NVLS trees run the bulk protocol through the switch, whose step replaces that of the ring's
            # kernel.
            switched_s = step_s - protocol.network_step_s + fabric.links.nvls_tree_step_s
            way_s = way_s + np.log2(joined) * np.where(in_switch > 0, switched_s, step_s)
    start_s = np.where(in_switch > 0, 0.0, protocol.base_s) + lay.abroad(fabric) * fabric.network_start_s
    return np.asarray(lay.many * (start_s + 2 * way_s))


def exchange_lines(fabric: Fabric, group: GroupBatch) -> list[Line]:
    """All-to-all of one send buffer: every member sends an equal share to every member.

    On rails a message first moves over NVLink to the GPU whose NIC is on the receiver's rail (NCCL PXN).
    """
    lay = spread(group, fabric)
    most = lay.domain_most
    # With rails also what goes to other nodes moves over NVLink first, to the GPU on the receiver's rail.
    moved = (most - 1) / (most if fabric.rails else lay.size)
    loads = [_exchanged(fabric, lay, k) for k in range(len(fabric.tiers))]
    host = busiest_s_per_byte(fabric, lay, loads, 1.0, host=True)
    near = np.maximum(moved * fabric.nvlink_s_per_byte(most - 1), host)
    far = busiest_s_per_byte(fabric, lay, loads, fabric.network.network_all_to_all, host=False)
    return [line(_exchange_latency_s(fabric, lay), near, far)]


def split_lines(fabric: Fabric, group: GroupBatch) -> list[Line]:
    """All-to-all given by the bytes inside and beyond the NVLink domain: seconds per byte of each.

    One kernel writes to all peers, so none waits for another (deepseek-ai/DeepEP).
    """
    lay = spread(group, fabric)
    # The bytes are those that leave, the loads those of a whole buffer: divide by the share that leaves.
    beyond = np.maximum(lay.size - lay.domain, 1.0) / lay.size
    loads = [_exchanged(fabric, lay, k) / beyond for k in range(len(fabric.tiers))]
    host = busiest_s_per_byte(fabric, lay, loads, 1.0, host=True)
    far = busiest_s_per_byte(fabric, lay, loads, fabric.network.network_all_to_all, host=False)
    near = (lay.domain_most > 1) * fabric.nvlink_s_per_byte(lay.domain_most - 1)
    return [line(_start_s(fabric, lay), near, np.maximum(host, far))]


def _exchanged(fabric: Fabric, lay: Spread, k: int) -> FloatArray:
    """Bytes per GPU and byte of a send buffer that leave the blocks below tier ``k``.

    A GPU's own links carry what it sends beyond the smallest part of its group. Uplinks of larger blocks
    carry, per group that leaves, what the members inside send out, most where they are half of the group.
    """
    if fabric.leaves_node(k):
        share = (lay.size - lay.inside[k]) / lay.size
    else:
        # part * (size - part) is largest at half; blocks hold between the fewest and the most members.
        part = np.clip(lay.size / 2, lay.inside[k], lay.most[k])
        share = part * (lay.size - part) / lay.size / lay.per_exit[k]
    return share * lay.crowding[k]


def _exchange_latency_s(fabric: Fabric, lay: Spread) -> FloatArray:
    """Start, then one send after the other to every peer, the last one over the farthest way."""
    remote_s = (lay.size - lay.domain) * fabric.network.exchange_network_peer_s
    peers_s = (lay.domain - 1) * fabric.links.exchange_nvlink_peer_s + remote_s
    return _start_s(fabric, lay) + lay.many * peers_s


def _start_s(fabric: Fabric, lay: Spread) -> FloatArray:
    """Start, and the farthest way."""
    way_s = np.zeros_like(lay.size)
    for k, tier in enumerate(fabric.tiers):
        hop_s = 0.0 if tier.is_host else fabric.network.network_hop_s
        way_s = np.maximum(way_s, lay.leaves(k) * (tier.latency_s + hop_s))
    start_s = fabric.links.exchange_base_s + lay.abroad(fabric) * fabric.network_start_s
    return lay.many * (start_s + way_s)


def hop_lines(fabric: Fabric, group: GroupBatch) -> list[Line]:
    """One send from every member to the next one of its group; the slowest hop.

    Of a group's members in a block only the last one sends out of it, over its own NIC.
    """
    lay = spread(group, fabric)
    on_nic = _members_on_nic(fabric, group)
    loads = []
    for k, tier in enumerate(fabric.tiers):
        if fabric.leaves_node(k):
            loads.append(np.ones_like(lay.size) if tier.is_host else lay.crowding[k] / on_nic)
        else:  # the senders' rails alone lead out of a block of rails
            rails = lay.domain_most / on_nic if fabric.on_rails(k) else 1.0
            loads.append(rails * lay.crowding[k] / lay.per_exit[k])
    near = (lay.domain_most > 1) * fabric.nvlink_s_per_byte(1.0)
    near = np.maximum(near, busiest_s_per_byte(fabric, lay, loads, 1.0, host=True))
    far = busiest_s_per_byte(fabric, lay, loads, fabric.network.network_p2p, host=False)
    far = np.maximum(far, _channels_s_per_byte(fabric, lay))
    lines = []
    for protocol in fabric.links.ring:
        lines.append(line(_hop_latency_s(fabric, lay, protocol), near, far, protocol.bandwidth_share))
    return lines


def _channels_s_per_byte(fabric: Fabric, lay: Spread) -> FloatArray:
    """Seconds per byte of the channels that a peer in another node gets."""
    first = min(fabric.first_network, len(lay.inside) - 1)
    return lay.abroad(fabric) / fabric.channel_bytes_per_s(lay.size, lay.inside[first])


def _members_on_nic(fabric: Fabric, group: GroupBatch) -> FloatArray:
    """Members among the GPUs that share one NIC, 1 where NICs and GPUs do not divide."""
    gpus, nics = fabric.nics
    return group.members_within(gpus // nics if gpus % nics == 0 else 1).astype(np.float64)


def _hop_latency_s(fabric: Fabric, lay: Spread, protocol: Protocol) -> FloatArray:
    """The way of the farthest hop."""
    way_s = np.where(lay.domain_most > 1, protocol.nvlink_step_s, 0.0)
    for k, tier in enumerate(fabric.tiers):
        way_s = np.maximum(way_s, lay.leaves(k) * fabric.step_s(tier, protocol))
    return lay.many * (protocol.base_s + way_s)
