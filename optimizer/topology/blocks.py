"""Nested blocks of an explicit cluster graph: who is near whom, and what leads out."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.specs.cluster import NetworkLevel
from layoutopt.optimizer.specs.errors import InputError, input_error

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    import networkx as nx

_TOLERANCE = 1e-3
"""Relative difference up to which capacities out of blocks count as equal."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """Disjoint node sets with ``gpus`` consecutive GPUs each, in rank order; the last one may hold fewer."""

    parts: tuple[frozenset[Any], ...]
    gpus: int
    rank: Mapping[Any, int]

    @classmethod
    def ordered(cls, parts: Iterable[Collection[Any]], rank: Mapping[Any, int], what: str) -> Blocks:
        """Sort parts by rank. Raises ``InputError`` unless they are equal and hold consecutive GPUs."""
        ranks = {frozenset(part): sorted(rank[name] for name in part if name in rank) for part in parts}
        ordered = sorted(ranks, key=lambda part: ranks[part][0])
        for part in ordered:
            if ranks[part][-1] - ranks[part][0] + 1 != len(ranks[part]):
                names = sorted((name for name in part if name in rank), key=str)
                raise _error(
                    f"GPUs of {what} are not listed one after the other ({names[0]!r})", "block by block"
                )
        # Prices count blocks by division, which the last one alone may leave incomplete.
        sizes = [len(ranks[part]) for part in ordered]
        if len(set(sizes[:-1])) > 1 or sizes[-1] > sizes[0]:
            shown = ", ".join(map(str, sorted(set(sizes))))
            raise _error(f"blocks of {shown} GPUs where each is {what}", "blocks of one size")
        return cls(tuple(ordered), sizes[0], rank)

    @property
    def full(self) -> tuple[frozenset[Any], ...]:
        """The blocks of full size."""
        return tuple(part for part in self.parts if sum(name in self.rank for name in part) == self.gpus)

    def per_gpu(self, graph: nx.Graph, kinds: Collection[str]) -> list[float]:
        """Capacity of each GPU's links to nodes of some kinds, bytes/s."""
        capacities = []
        for gpu in self.rank:
            near = [other for other in graph[gpu] if graph.nodes[other]["kind"] in kinds]
            capacities.append(sum(graph.edges[gpu, other]["capacity"] for other in near))
        return capacities

    def neighbours(self, graph: nx.Graph, part: frozenset[Any]) -> dict[Any, float]:
        """Switches that a block is linked to, with the capacity there: a NIC passes on what it gets."""
        found: dict[Any, float] = {}
        for name in part:
            inward = sum(graph.edges[name, other]["capacity"] for other in graph[name] if other in part)
            outward = {
                other: graph.edges[name, other]["capacity"] for other in graph[name] if other not in part
            }
            # A NIC behind a slow host link sends no more than it gets.
            limit = min(1.0, inward / sum(outward.values())) if outward and inward else 1.0
            for other, capacity in outward.items():
                found[other] = found.get(other, 0.0) + capacity * limit
        return found

    def outward(self, graph: nx.Graph, part: frozenset[Any]) -> float:
        """Capacity out of a block, bytes/s."""
        return sum(self.neighbours(graph, part).values())


def nested_levels(graph: nx.Graph, machines: Blocks, share_bytes_per_s: float) -> tuple[NetworkLevel, ...]:
    """Return network levels of a graph: machines at equal hop distance form the blocks of one level.

    ``share_bytes_per_s`` is one GPU's network bandwidth. Oversubscription is the bandwidth of a block's GPUs
    over the largest flow from the block to the rest. Raises ``InputError`` unless blocks nest and are equal.
    """
    network = _contracted(graph, machines)
    levels: list[NetworkLevel] = []
    blocks, below_s, count = [[number] for number in range(len(machines.parts))], 0.0, len(machines.rank)
    for distance, members in _by_distance(network, machines):
        merged = Blocks.ordered(
            [_gpus_of(machines, block) for block in members], machines.rank, "a network block"
        )
        factor = max(
            share_bytes_per_s * _size(machines, blocks[0]) / _least_flow(network, machines, blocks), 1.0
        )
        name, way_s = _name_and_way(network, members[0], distance, len(levels))
        # A way up and down crosses every level below twice; what is left belongs to this one.
        own_s = max(way_s - 2 * below_s, 0.0)
        gpus = merged.gpus if len(members) > 1 else count
        levels.append(NetworkLevel(name=name, gpus=gpus, oversubscription=factor, latency_s=own_s))
        blocks, below_s = members, below_s + own_s
    return tuple(levels)


def _error(what: str, allowed: str) -> InputError:
    return input_error(what, allowed, key="graph")


def _contracted(graph: nx.Graph, machines: Blocks) -> nx.Graph:
    """Network switches, and each machine as one node named by its number."""
    import networkx as nx

    network = nx.Graph()
    inside = frozenset().union(*machines.parts)
    switches = graph.subgraph([name for name in graph if name not in inside])
    network.add_nodes_from((("switch", name), data) for name, data in switches.nodes(data=True))
    network.add_edges_from((("switch", a), ("switch", b), data) for a, b, data in switches.edges(data=True))
    for number, part in enumerate(machines.parts):
        for switch, capacity in machines.neighbours(graph, part).items():
            delays = [graph.edges[name, switch]["latency_s"] for name in graph[switch] if name in part]
            network.add_edge(number, ("switch", switch), capacity=capacity, latency_s=max(delays))
    return network


def _by_distance(network: nx.Graph, machines: Blocks) -> list[tuple[int, list[list[int]]]]:
    """Machines grouped by each hop distance that occurs; members must be within that distance mutually."""
    import networkx as nx

    machine_count = len(machines.parts)
    far: list[dict[int, int]] = []
    for number in range(machine_count):
        reached = nx.single_source_shortest_path_length(network, number)
        far.append({other: reached[other] for other in range(machine_count)})
    result = []
    for distance in sorted({hops for row in far for hops in row.values()} - {0}):
        near = [tuple(other for other in range(machine_count) if row[other] <= distance) for row in far]
        members = sorted(set(near))
        # Nearness that is not mutual (a torus, a ring of switches) has no blocks to count members in.
        if sum(map(len, members)) != machine_count:
            raise _error(
                f"nodes within {distance} hops of one another are no blocks: {_clash(near)}",
                "a tree of switches in which nearness is mutual",
            )
        result.append((distance, [list(block) for block in members]))
    return result


def _clash(near: Sequence[tuple[int, ...]]) -> str:
    """Two machines near each other that have different neighbours."""
    for number, reached in enumerate(near):
        for other in reached:
            if near[other] != reached:
                return f"machine {number} and machine {other} are, but reach different others"
    return "every machine differs"


def _gpus_of(machines: Blocks, block: Iterable[int]) -> list[Any]:
    return [name for number in block for name in machines.parts[number] if name in machines.rank]


def _size(machines: Blocks, block: Iterable[int]) -> int:
    return len(_gpus_of(machines, block))


def _least_flow(network: nx.Graph, machines: Blocks, blocks: Sequence[Sequence[int]]) -> float:
    """Largest flow out of a full block, bytes/s; full blocks must agree."""
    full = [block for block in blocks if _size(machines, block) == _size(machines, blocks[0])]
    if len(blocks[0]) == 1:  # single machines were compared before
        full = full[:1]
    flows = [_flow_out(network, block, len(machines.parts)) for block in full]
    if max(flows) - min(flows) > _TOLERANCE * max(flows):
        low, high = min(flows) / 1e9, max(flows) / 1e9
        raise _error(f"blocks of equal size have uplinks from {low:g} to {high:g} GB/s", "equal blocks")
    return min(flows)


def _flow_out(network: nx.Graph, block: Sequence[int], machine_count: int) -> float:
    import networkx as nx

    graph, inside = network.copy(), set(block)
    for number in range(machine_count):
        # Maximum flow from all machines of the block to all others is what its uplinks let through, whatever
        # the routes.
        graph.add_edge("inside" if number in inside else "outside", number)  # no capacity: unbounded
    return float(nx.maximum_flow_value(graph, "inside", "outside"))


def _name_and_way(network: nx.Graph, block: Sequence[int], distance: int, number: int) -> tuple[str, float]:
    """Name of the level's top switch, and latency of the way through it, from two machines of a block."""
    import networkx as nx

    ways = (nx.shortest_path(network, block[0], other) for other in reversed(block[1:]))
    # The last machines are the farthest where they are listed by rank; any at the whole distance has the top.
    path = next(way for way in ways if len(way) == distance + 1)
    latency_s = sum(network.edges[edge]["latency_s"] for edge in pairwise(path))
    top = network.nodes[path[len(path) // 2]]
    return str(top["level"] or f"level{number + 1}"), latency_s
