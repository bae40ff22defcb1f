"""The cluster as nested blocks of consecutive GPUs, and what leaving a block costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from layoutopt.optimizer.specs.cluster import NetworkLevel
from layoutopt.optimizer.specs.errors import input_error

if TYPE_CHECKING:
    from layoutopt.optimizer.specs.cluster import ClusterSpec

HOST = "host"
"""Name of the tier inside a node when NVLink does not connect all of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """Traffic that leaves a block of ``inside`` GPUs but stays in one of ``outside`` GPUs.

    ``bytes_per_s`` is each GPU's nominal share of what leads out of a block, one way, when all GPUs send: a
    NIC's share over the oversubscription, or the host link. ``latency_s`` is the whole way through switches,
    ``switch_s`` one switch of this tier.
    """

    name: str
    inside: int
    outside: int
    bytes_per_s: float
    oversubscription: float = 1.0
    latency_s: float = 0.0
    switch_s: float = 0.0
    is_host: bool = False


def network_bytes_per_s(cluster: ClusterSpec) -> float:
    """Return one GPU's share of its node's NICs, bytes/s one way (all GPUs of a node send at once)."""
    return cluster.nic_bytes_per_s * cluster.nics_per_node / cluster.gpus_per_node


def cluster_tiers(cluster: ClusterSpec) -> tuple[Tier, ...]:
    """Return the tiers above the NVLink domain, from the node outward.

    Levels that lie inside an NVLink domain carry no traffic and drop out. Raises ``InputError`` when blocks
    do not nest.
    """
    tiers, inside = [], cluster.nvlink_domain
    if inside < min(cluster.gpus_per_node, cluster.gpu_count):
        rate = cluster.gpu.host_link_bytes_per_s
        tiers.append(
            Tier(name=HOST, inside=inside, outside=cluster.gpus_per_node, bytes_per_s=rate, is_host=True)
        )
        inside = cluster.gpus_per_node
    if cluster.gpu_count > inside:
        _check_nesting("NVLink domain", cluster.nvlink_domain, cluster.gpus_per_node)
    share, below_s = network_bytes_per_s(cluster), 0.0
    for level, outside in _levels(cluster, inside):
        tiers.append(
            Tier(
                name=level.name,
                inside=inside,
                outside=outside,
                bytes_per_s=share / level.oversubscription,
                oversubscription=level.oversubscription,
                latency_s=2 * below_s + level.latency_s,
                switch_s=level.latency_s,
            )
        )
        inside, below_s = outside, below_s + level.latency_s
    return tuple(tiers)


def _levels(cluster: ClusterSpec, inside: int) -> list[tuple[NetworkLevel, int]]:
    """Network levels with the GPUs they join: those above ``inside``, the last one joining all."""
    if cluster.gpu_count <= inside:
        return []
    levels = [level for level in cluster.levels if level.gpus > inside]
    if not levels:
        levels = [*cluster.levels[-1:]] or [NetworkLevel(name="network", gpus=cluster.gpu_count)]
    kept: list[tuple[NetworkLevel, int]] = []
    for level in levels[:-1]:
        if level.gpus >= cluster.gpu_count:
            break
        _check_nesting(f"level {level.name!r}", level.gpus, inside)
        kept.append((level, level.gpus))
        inside = level.gpus
    top = levels[len(kept)]
    return [*kept, (top, max(top.gpus, cluster.gpu_count))]


def _check_nesting(what: str, gpus: int, other: int) -> None:
    """Blocks of the larger size consist of whole blocks of the smaller size."""
    if max(gpus, other) % min(gpus, other):
        raise input_error(
            f"{what} joins {gpus} GPUs, which does not nest with blocks of {other}",
            f"a multiple or a divisor of {other}",
            key="levels",
        )
