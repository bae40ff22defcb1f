"""All-to-all and point-to-point traffic as straight lines in the bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.topology.coefficients import far_s_per_byte, line, spread

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from layoutopt.optimizer.topology.coefficients import Fabric, Line, Spread
    from layoutopt.optimizer.topology.groups import GroupBatch

    FloatArray = NDArray[np.float64]


def exchange_lines(fabric: Fabric, group: GroupBatch) -> list[Line]:
    """All-to-all of one send buffer: every member sends an equal share to every member.

    On rails a message first moves over NVLink to the GPU whose NIC is on the receiver's rail (NCCL PXN).
    """
    lay, links = spread(group, fabric), fabric.links
    most = lay.domain_most
    moved = (most - 1) / (most if fabric.cluster.rail_optimized else lay.size)
    loads = [(lay.size - inside) / lay.size for inside in lay.inside]
    host = far_s_per_byte(fabric, lay, loads, 1.0, host=True)
    near = np.maximum(moved / fabric.nvlink_bytes_per_s, host)
    far = far_s_per_byte(fabric, lay, loads, links.network_all_to_all, host=False)
    return [line(exchange_latency_s(fabric, lay), near, far)]


def split_lines(fabric: Fabric, group: GroupBatch) -> list[Line]:
    """All-to-all whose bytes inside and beyond the NVLink domain are given apart: seconds per byte of either kind."""
    lay = spread(group, fabric)
    beyond = np.maximum(lay.size - lay.domain, 1.0)
    loads = [(lay.size - inside) / beyond for inside in lay.inside]
    host = far_s_per_byte(fabric, lay, loads, 1.0, host=True)
    far = far_s_per_byte(fabric, lay, loads, fabric.links.network_all_to_all, host=False)
    near = (lay.domain_most > 1) / fabric.nvlink_bytes_per_s
    return [line(exchange_latency_s(fabric, lay), near, np.maximum(host, far))]


def exchange_latency_s(fabric: Fabric, lay: Spread) -> FloatArray:
    """Start, then one send after the other to every peer, the last one over the farthest way."""
    links = fabric.links
    peers_s = (lay.domain - 1) * links.exchange_nvlink_peer_s + (lay.size - lay.domain) * links.exchange_network_peer_s
    way_s = np.zeros_like(lay.size)
    for k, tier in enumerate(fabric.tiers):
        way_s = np.maximum(way_s, lay.leaves(k) * tier.latency_s)
    return lay.many * (links.exchange_base_s + peers_s + way_s)


def hop_lines(fabric: Fabric, group: GroupBatch) -> list[Line]:
    """One send from every member to the next one of its group; the slowest hop.

    Of a group's members in a block only the last one sends out of it, over its own NIC.
    """
    lay, cluster = spread(group, fabric), fabric.cluster
    on_nic = group.members_within(max(cluster.gpus_per_node // cluster.nics_per_node, 1)).astype(np.float64)
    if cluster.nics_per_node < cluster.gpus_per_node and cluster.gpus_per_node % cluster.nics_per_node:
        on_nic = np.ones_like(lay.size)
    idle_rails = lay.domain_most / on_nic if cluster.rail_optimized else np.ones_like(lay.size)
    loads = []
    for k in range(len(fabric.tiers)):
        loads.append(1.0 / on_nic if fabric.leaves_node(k) else idle_rails / lay.inside[k])
    hosts = [np.ones_like(lay.size) for _ in lay.inside]
    near = (lay.domain_most > 1) / fabric.nvlink_bytes_per_s
    near = np.maximum(near, far_s_per_byte(fabric, lay, hosts, 1.0, host=True))
    far = far_s_per_byte(fabric, lay, loads, fabric.links.network_p2p, host=False)
    lines = []
    for protocol in fabric.links.ring:
        latency_s = np.where(lay.domain_most > 1, protocol.nvlink_step_s, 0.0)
        for k, tier in enumerate(fabric.tiers):
            step_s = protocol.host_step_s if tier.is_host else protocol.network_step_s + tier.latency_s
            latency_s = np.maximum(latency_s, lay.leaves(k) * step_s)
        lines.append(line(lay.many * (protocol.base_s + latency_s), near, far, protocol.bandwidth_share))
    return lines
