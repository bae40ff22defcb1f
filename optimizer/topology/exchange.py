"""All-to-all and point-to-point traffic as straight lines in the bytes."""

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


def exchange_lines(fabric: Fabric, group: GroupBatch) -> list[Line]:
    """All-to-all of one send buffer: every member sends an equal share to every member.

    On rails a message first moves over NVLink to the GPU whose NIC is on the receiver's rail (NCCL PXN).
    """
    lay = spread(group, fabric)
    most = lay.domain_most
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
