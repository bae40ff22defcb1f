"""Who sends how much to whom: bytes between every two GPUs when all sibling groups run one collective."""

from __future__ import annotations

from math import lcm
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.topology.counting import ranks_of_groups

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from layoutopt.optimizer.topology.groups import GroupBatch

    FloatArray = NDArray[np.float64]
    IntArray = NDArray[np.int64]


def group_members(group: GroupBatch, row: int = 0) -> IntArray:
    """Ranks of every sibling group of one layout, ascending: an array (groups, members)."""
    digits = tuple((int(digit.size[row]), int(digit.stride[row])) for digit in group.digits)
    return ranks_of_groups(digits, int(group.ranks[row]))


def hop_demand(groups: IntArray, gpus: int, size_bytes: float) -> FloatArray:
    """Every member sends ``size_bytes`` to the next, the last to the first; ``groups`` (groups, members)."""
    demand = np.zeros((gpus, gpus))
    if groups.shape[1] > 1:
        demand[groups, np.roll(groups, -1, axis=1)] += size_bytes
    return demand


def exchange_demand(groups: IntArray, gpus: int, size_bytes: float) -> FloatArray:
    """Every member sends an equal part of ``size_bytes`` to every member."""
    demand, members = np.zeros((gpus, gpus)), groups.shape[1]
    for group in groups:
        demand[np.ix_(group, group)] += size_bytes / members
    np.fill_diagonal(demand, 0.0)
    return demand


def ring_demand(groups: IntArray, gpus: int, size_bytes: float, *, domain: int, node: int) -> FloatArray:
    """Rings through all members: together they carry (n-1)/n of ``size_bytes`` past every member.

    A ring goes through all members of an NVLink domain, and of a node, before it leaves. ``domain`` and
    ``node`` are in GPUs.
    """
    demand = np.zeros((gpus, gpus))
    for group in groups:
        rings = _rings(group, domain, node)
        carried = size_bytes * (len(group) - 1) / len(group) / len(rings)
        for ring in rings:
            demand[ring, np.roll(ring, -1)] += carried
    np.fill_diagonal(demand, 0.0)
    return demand


def _rings(group: IntArray, domain: int, node: int) -> list[IntArray]:
    """Orders of the members, as many as it takes to leave a block equally often from each member there."""
    if domain >= node:
        parts = _parts(group, domain)
        channels = lcm(*(len(part) for part in parts)) if len(parts) > 1 else 1
        return [_channel(parts, channel) for channel in range(channels)]
    nodes = [_parts(part, domain) for part in _parts(group, node)]
    channels = lcm(*(len(parts) * lcm(*map(len, parts)) for parts in nodes))
    return [np.concatenate([_turned(parts, channel) for parts in nodes]) for channel in range(channels)]


def _turned(parts: list[IntArray], channel: int) -> IntArray:
    """The members of one node, domain by domain: channels start at every domain and every member in it."""
    turn, inner = channel % len(parts), channel // len(parts)
    domains = parts[turn:] + parts[:turn]
    return np.concatenate([np.roll(part, -(inner % len(part))) for part in domains])


def _parts(group: IntArray, block: int) -> list[IntArray]:
    """Members by block, in rank order."""
    borders = np.flatnonzero(np.diff(group // block)) + 1
    return np.split(group, borders)


def _channel(parts: list[IntArray], channel: int) -> IntArray:
    """One ring: it enters every block at the position where it left the one before, on the same rail."""
    count = len(parts)
    turns = [number % 2 for number in range(count)]
    if count % 2 and count > 1:
        turns[-1] = 2  # an odd ring of blocks needs a third position to close on its own rail
    order: list[int] = []
    for number, part in enumerate(parts):
        entry = (channel + turns[number]) % len(part)
        leave = (channel + turns[(number + 1) % count]) % len(part)
        if leave == entry:
            leave = (entry + 1) % len(part)
        rest = [position for position in range(len(part)) if position not in (entry, leave)]
        visited = [entry, *rest, *([leave] if leave != entry else [])]
        order.extend(int(part[position]) for position in visited)
    return np.array(order)


def tree_demand(
    groups: IntArray, gpus: int, size_bytes: float, *, domain: int, node: int, gain: float = 1.0
) -> FloatArray:
    """Double binary trees between NVLink domains or nodes, up and down, from a chain in each.

    A switch that reduces saves the chains ``gain`` of their bytes.
    """
    demand = np.zeros((gpus, gpus))
    for group in groups:
        blocks = [_parts(part, domain) for part in _parts(group, max(domain, node))]
        channels = lcm(*(len(parts) * lcm(*map(len, parts)) for parts in blocks))
        carried = size_bytes / channels
        for channel in range(channels):
            chains = [_turned(parts, channel) for parts in blocks]
            for chain in chains:
                _both_ways(demand, chain[1:], chain[:-1], carried / gain)
            for child, parent in [*_tree(len(chains)), *_mirrored(len(chains))]:
                _both_ways(demand, chains[child][:1], chains[parent][:1], carried / 2)
    return demand


def _both_ways(demand: FloatArray, some: IntArray, others: IntArray, size_bytes: float) -> None:
    demand[some, others] += size_bytes
    demand[others, some] += size_bytes


def _tree(count: int) -> list[tuple[int, int]]:
    """Edges (child, parent) of the tree of NVIDIA/nccl src/graph/trees.cc: low bits give the parent."""
    edges = []
    for rank in range(1, count):
        bit = rank & -rank
        parent = (rank ^ bit) | (bit << 1)
        edges.append((rank, parent if parent < count else rank ^ bit))
    return edges


def _mirrored(count: int) -> list[tuple[int, int]]:
    """The second tree, in which inner ranks are leaves: mirrored, or shifted by one for an odd count."""
    if count % 2:
        return [((child + 1) % count, (parent + 1) % count) for child, parent in _tree(count)]
    return [(count - 1 - child, count - 1 - parent) for child, parent in _tree(count)]
