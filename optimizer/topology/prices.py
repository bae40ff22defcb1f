"""Seconds of a collective on the process groups of a batch of layouts."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from layoutopt.optimizer.topology.closest import (
    exchange_bounds,
    hop_bounds,
    ring_bounds,
    sharp_bounds,
    split_bounds,
    tree_bounds,
)
from layoutopt.optimizer.topology.collectives import (
    exchange_lines,
    hop_lines,
    ring_lines,
    sharp_lines,
    split_lines,
    tree_lines,
)
from layoutopt.optimizer.topology.explicit import resolve_graph
from layoutopt.optimizer.topology.fabric import Fabric, useful_lines
from layoutopt.optimizer.topology.graph import cluster_graph

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import networkx as nx
    from numpy.typing import ArrayLike, NDArray

    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.topology.fabric import Line
    from layoutopt.optimizer.topology.graph import Tier
    from layoutopt.optimizer.topology.groups import GroupBatch
    from layoutopt.optimizer.topology.links import LinkConstants

    FloatArray = NDArray[np.float64]
    IntArray = NDArray[np.int64]
    Sharing = ArrayLike | None


class Topology:
    """Prices of collectives on one cluster.

    Every price takes bytes and a group of ``n`` layouts, broadcasts to (n,), is in seconds, and holds for all
    sibling groups working at the same time. ``sharing`` (>= 1) counts the equal flows of other axes on the
    same NICs. A group of one costs 0. Prices grow with the bytes and have no jumps: each is the fastest of a
    few algorithms, latency plus bytes over bandwidth.
    """

    def __init__(self, cluster: ClusterSpec, links: LinkConstants, graph: nx.Graph | None = None) -> None:
        """Price on ``graph``, or on the one that the cluster's levels, or its explicit graph, give."""
        self.cluster = resolve_graph(cluster)
        self.links = links
        mesh = links.is_mesh(cluster.gpu.generation.name)
        self.graph = graph if graph is not None else cluster_graph(self.cluster, mesh=mesh)
        self.fabric = Fabric(self.graph, links)
        self._known: dict[tuple[_Pricing, bool, bytes], list[Line]] = {}

    @property
    def nvlink_domain(self) -> int:
        """GPUs that reach each other over NVLink."""
        return self.fabric.nvlink.domain

    @property
    def tiers(self) -> tuple[Tier, ...]:
        """Blocks above the NVLink domain, from the node outward."""
        return self.fabric.tiers

    def all_reduce_s(self, size_bytes: ArrayLike, group: GroupBatch, sharing: Sharing = None) -> FloatArray:
        """All-reduce of ``size_bytes`` (n,) on every member: rings, trees, or switches that add up."""
        return self._price(size_bytes, group, _ALL_REDUCE, sharing)

    def all_gather_s(self, size_bytes: ArrayLike, group: GroupBatch, sharing: Sharing = None) -> FloatArray:
        """All-gather into ``size_bytes`` (n,) on every member, by rings."""
        return self._price(size_bytes, group, _GATHER, sharing)

    def reduce_scatter_s(
        self, size_bytes: ArrayLike, group: GroupBatch, sharing: Sharing = None
    ) -> FloatArray:
        """Reduce-scatter of ``size_bytes`` (n,) on every member, by rings."""
        return self._price(size_bytes, group, _GATHER, sharing)

    def broadcast_s(self, size_bytes: ArrayLike, group: GroupBatch, sharing: Sharing = None) -> FloatArray:
        """Broadcast of ``size_bytes`` (n,) from one member: whole through every other, by rings of the bulk protocol."""
        return self._price(size_bytes, group, _BROADCAST, sharing)

    def all_to_all_s(self, size_bytes: ArrayLike, group: GroupBatch, sharing: Sharing = None) -> FloatArray:
        """All-to-all; ``size_bytes`` (n,) is one member's whole send buffer, of which it keeps one part in n."""
        return self._price(size_bytes, group, _EXCHANGE, sharing)

    def p2p_s(self, size_bytes: ArrayLike, group: GroupBatch, sharing: Sharing = None) -> FloatArray:
        """One send of ``size_bytes`` (n,) from every member to the next one of its group: the slowest hop."""
        return self._price(size_bytes, group, _HOP, sharing)

    def all_to_all_split_s(
        self, intra_bytes: ArrayLike, inter_bytes: ArrayLike, group: GroupBatch, sharing: Sharing = None
    ) -> FloatArray:
        """All-to-all given by the bytes (n,) that leave a member inside its NVLink domain, and across the network.

        For dispatch that sends a token once per domain. The two run at the same time.
        """
        (only,), index = self._lines(group, _SPLIT)
        near, far = _rows(only.near_s_per_byte, index), _rows(only.far_s_per_byte, index)
        if sharing is not None:
            far = far * np.asarray(sharing)
        seconds = np.maximum(np.asarray(intra_bytes) * near, np.asarray(inter_bytes) * far)
        return np.asarray(seconds + _rows(only.latency_s, index))

    def _lines(self, group: GroupBatch, pricing: _Pricing) -> tuple[list[Line], IntArray | None]:
        """Lines of the distinct rows of a group, which remembers them, and every row's index among them."""
        few, index = group.distinct()
        key = (self, pricing)
        if key not in few.memo:
            few.memo[key] = self._lines_of_distinct(few, pricing)
        return few.memo[key], index

    def _lines_of_distinct(self, few: GroupBatch, pricing: _Pricing) -> list[Line]:
        """Return lines as of equal groups before: a search prices the same groups for many modifiers."""
        columns = [column for digit in few.digits for column in digit]
        content = (pricing, few.closest, np.array([*columns, few.ranks], dtype=np.int64).tobytes())
        if content in self._known:
            return self._known[content]
        build = pricing.bounds if few.closest else pricing.lines
        lines = useful_lines(build(self.fabric, few))
        if len(few) <= _KNOWN_ROWS:
            if len(self._known) >= _KNOWN_GROUPS:
                self._known.clear()
            self._known[content] = lines
        return lines

    def _price(
        self, size_bytes: ArrayLike, group: GroupBatch, pricing: _Pricing, sharing: Sharing
    ) -> FloatArray:
        """Take the fastest line in every row."""
        lines, index = self._lines(group, pricing)
        size = np.asarray(size_bytes, dtype=np.float64)
        if index is None or size.shape != index.shape or sharing is not None:
            return fastest_s(size, lines, index, sharing)
        best = np.empty(len(index))
        for start in range(0, len(index), _CHUNK):
            part = slice(start, start + _CHUNK)
            best[part] = fastest_s(size[part], lines, index[part], None)
        return best


_KNOWN_ROWS, _KNOWN_GROUPS = 1024, 256
"""Rows of a group whose lines are kept, and how many such groups: tens of MB."""

_CHUNK = 1 << 14
"""Rows priced at a time, few enough for the arrays of all lines to stay in a core's cache."""


def fastest_s(
    size: FloatArray, lines: Sequence[Line], index: IntArray | None = None, sharing: Sharing = None
) -> FloatArray:
    """Return seconds (n,) of ``size`` bytes by each row's fastest line; rows that repeat have an ``index`` (n,)."""
    best = _line_s(size, lines[0], index, sharing)
    for one in lines[1:]:
        np.minimum(best, _line_s(size, one, index, sharing), out=best)
    return best


def _line_s(size: FloatArray, one: Line, index: IntArray | None, sharing: Sharing) -> FloatArray:
    if sharing is None:
        rate = _rows(one.s_per_byte, index)
    else:
        near, far = _rows(one.near_s_per_byte, index), _rows(one.far_s_per_byte, index)
        rate = np.maximum(near, far * np.asarray(sharing))
    seconds = size * rate
    seconds += _rows(one.latency_s, index)
    return seconds


def _rows(values: FloatArray, index: IntArray | None) -> FloatArray:
    return values if index is None else values[index]


class _Pricing(NamedTuple):
    """Lines of a collective on a placed group, and their lower bounds over all placements."""

    lines: Callable[[Fabric, GroupBatch], list[Line]]
    bounds: Callable[[Fabric, GroupBatch], list[Line]]


_ALL_REDUCE = _Pricing(
    lambda fabric, group: (
        ring_lines(fabric, group, 2, 1.0) + tree_lines(fabric, group) + sharp_lines(fabric, group)
    ),
    lambda fabric, group: (
        ring_bounds(fabric, group, 2, 1.0) + tree_bounds(fabric, group) + sharp_bounds(fabric, group)
    ),
)
_GATHER = _Pricing(
    lambda fabric, group: ring_lines(fabric, group, 1, fabric.network.network_gather),
    lambda fabric, group: ring_bounds(fabric, group, 1, fabric.network.network_gather),
)
_BROADCAST = _Pricing(
    lambda fabric, group: ring_lines(fabric, group, 1, fabric.network.network_gather)[:1],
    lambda fabric, group: ring_bounds(fabric, group, 1, fabric.network.network_gather)[:1],
)
_EXCHANGE = _Pricing(exchange_lines, exchange_bounds)
_SPLIT = _Pricing(split_lines, split_bounds)
_HOP = _Pricing(hop_lines, hop_bounds)
