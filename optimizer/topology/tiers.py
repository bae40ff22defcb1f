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
    NIC's share over the oversubscription, or the host link. ``latency_s`` is the way through the switches.
    """

    name: str
    inside: int
    outside: int
    bytes_per_s: float
    latency_s: float

    @property
    def is_host(self) -> bool:
        """Tell whether this traffic stays inside a node and takes the host link."""
        return self.name == HOST


def network_bytes_per_s(cluster: ClusterSpec) -> float:
    """Return one GPU's share of its node's NICs, bytes/s one way (all GPUs of a node send at once)."""
    return cluster.nic_bytes_per_s * cluster.nics_per_node / cluster.gpus_per_node


def cluster_tiers(cluster: ClusterSpec) -> tuple[Tier, ...]:
    """Return the tiers above the NVLink domain, from the node outward.

    Levels that lie inside an NVLink domain carry no traffic and drop out. Raises ``InputError`` when blocks
    do not nest.
    """
    tiers, inside = [], cluster.nvlink_domain
    if cluster.nvlink_domain < cluster.gpus_per_node:
        rate = cluster.gpu.host_link_bytes_per_s
        tiers.append(
            Tier(name=HOST, inside=inside, outside=cluster.gpus_per_node, bytes_per_s=rate, latency_s=0.0)
        )
        inside = cluster.gpus_per_node
    share, below_s = network_bytes_per_s(cluster), 0.0
    for level, outside in _levels(cluster, inside):
        rate = share / level.oversubscription
        way_s = 2 * below_s + level.latency_s
        tiers.append(Tier(name=level.name, inside=inside, outside=outside, bytes_per_s=rate, latency_s=way_s))
        inside, below_s = outside, below_s + level.latency_s
    return tuple(tiers)


def _levels(cluster: ClusterSpec, inside: int) -> list[tuple[NetworkLevel, int]]:
    """Network levels with the GPUs they join: those above ``inside``, the last one joining all."""
    levels = [level for level in cluster.levels if level.gpus > inside]
    if cluster.gpu_count <= inside:
        return []
    if not levels:
        levels = [
            cluster.levels[-1] if cluster.levels else NetworkLevel(name="network", gpus=cluster.gpu_count)
        ]
    sizes = [level.gpus for level in levels[:-1]]
    kept = [(level, size) for level, size in zip(levels, sizes, strict=False) if size < cluster.gpu_count]
    _check_nesting(inside, kept)
    top = levels[len(kept)]
    return [*kept, (top, max(top.gpus, cluster.gpu_count))]


def _check_nesting(inside: int, levels: list[tuple[NetworkLevel, int]]) -> None:
    for level, size in levels:
        if size % inside:
            raise input_error(
                f"level {level.name!r} joins {size} GPUs, no multiple of the {inside} of a block below it",
                f"a multiple of {inside}",
                key="levels",
            )
        inside = size
