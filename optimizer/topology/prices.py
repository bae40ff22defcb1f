"""Seconds of a collective on the process groups of a batch of layouts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.topology.coefficients import Fabric, ring_lines, tree_lines
from layoutopt.optimizer.topology.exchange import exchange_lines, hop_lines, split_lines
from layoutopt.optimizer.topology.tiers import cluster_tiers

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike, NDArray

    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.topology.coefficients import Line
    from layoutopt.optimizer.topology.groups import GroupBatch
    from layoutopt.optimizer.topology.links import LinkConstants
    from layoutopt.optimizer.topology.tiers import Tier

    FloatArray = NDArray[np.float64]


class Topology:
    """Prices of collectives on one cluster.

    Every price takes bytes and a group of ``n`` layouts, broadcasts to (n,), and holds for all sibling groups working
    at the same time. ``sharing`` (>= 1) counts the equal flows of other axes on the same NICs. A group of one costs 0.
    Prices grow with the bytes and have no jumps: each is the fastest of a few algorithms, latency plus bytes
    over bandwidth.
    """

    def __init__(self, cluster: ClusterSpec, links: LinkConstants) -> None:
        self.cluster = cluster
        self.links = links
        self._fabric = Fabric(cluster, links, cluster_tiers(cluster))

    @property
    def nvlink_domain(self) -> int:
        """GPUs that reach each other over NVLink."""
        return self.cluster.nvlink_domain

    @property
    def tiers(self) -> tuple[Tier, ...]:
        """Blocks above the NVLink domain, from the node outward."""
        return self._fabric.tiers

    def all_reduce_s(self, size_bytes: ArrayLike, group: GroupBatch, sharing: ArrayLike | None = None) -> FloatArray:
        """All-reduce of ``size_bytes`` on every member: rings, or trees with reduction in the NVLink switch."""
        return self._price(size_bytes, self._lines(group, _all_reduce_lines), sharing)

    def all_gather_s(self, size_bytes: ArrayLike, group: GroupBatch, sharing: ArrayLike | None = None) -> FloatArray:
        """All-gather into ``size_bytes`` on every member, by rings."""
        return self._price(size_bytes, self._lines(group, _gather_lines), sharing)

    def reduce_scatter_s(self, size_bytes: ArrayLike, group: GroupBatch, sharing: ArrayLike | None = None) -> FloatArray:
        """Reduce-scatter of ``size_bytes`` on every member, by rings."""
        return self._price(size_bytes, self._lines(group, _gather_lines), sharing)

    def all_to_all_s(self, size_bytes: ArrayLike, group: GroupBatch, sharing: ArrayLike | None = None) -> FloatArray:
        """All-to-all; ``size_bytes`` is one member's whole send buffer, of which it keeps one part in n."""
        return self._price(size_bytes, self._lines(group, exchange_lines), sharing)

    def all_to_all_split_s(
        self, intra_bytes: ArrayLike, inter_bytes: ArrayLike, group: GroupBatch, sharing: ArrayLike | None = None
    ) -> FloatArray:
        """All-to-all given by the bytes that leave a member inside its NVLink domain, and across the network.

        For dispatch that sends a token once per domain. The two run at the same time.
        """
        (only,) = self._lines(group, split_lines)
        far = only.far_s_per_byte if sharing is None else only.far_s_per_byte * np.asarray(sharing)
        near_s = np.asarray(intra_bytes) * only.near_s_per_byte
        return np.asarray(only.latency_s + np.maximum(near_s, np.asarray(inter_bytes) * far))

    def p2p_s(self, size_bytes: ArrayLike, group: GroupBatch, sharing: ArrayLike | None = None) -> FloatArray:
        """One send of ``size_bytes`` from every member to the next one of its group: the slowest hop."""
        return self._price(size_bytes, self._lines(group, hop_lines), sharing)

    def _lines(self, group: GroupBatch, build: Callable[[Fabric, GroupBatch], list[Line]]) -> list[Line]:
        """Build the lines of a group once; the group remembers them."""
        key = (self, build)
        if key not in group.memo:
            group.memo[key] = build(self._fabric, group)
        return group.memo[key]  # type: ignore[no-any-return]

    @staticmethod
    def _price(size_bytes: ArrayLike, lines: list[Line], sharing: ArrayLike | None) -> FloatArray:
        size, price = np.asarray(size_bytes), None
        for one in lines:
            rate = one.s_per_byte
            if sharing is not None:
                rate = np.maximum(one.near_s_per_byte, one.far_s_per_byte * np.asarray(sharing))
            seconds = size * rate
            seconds += one.latency_s
            price = seconds if price is None else np.minimum(price, seconds, out=price)
        assert price is not None
        return price


def _gather_lines(fabric: Fabric, group: GroupBatch) -> list[Line]:
    return ring_lines(fabric, group, 1, fabric.links.network_gather)


def _all_reduce_lines(fabric: Fabric, group: GroupBatch) -> list[Line]:
    return ring_lines(fabric, group, 2, 1.0) + tree_lines(fabric, group)
