"""Explicit pricing of small clusters: the flows of all sibling groups at once on every edge of the graph.

It shares no formula with the prices of ``Topology`` and checks them. Traffic takes shortest paths; on a
rail-optimised fabric it enters the network on the receiver's rail, over NVLink to the GPU there (NCCL PXN).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from checks.full_graph import full_graph, nic_shares
from layoutopt.optimizer.topology.graph import NIC, cluster_graph

if TYPE_CHECKING:
    import networkx as nx
    from numpy.typing import NDArray

    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.topology.links import LinkConstants

    FloatArray = NDArray[np.float64]

Edge = tuple[str, str]
Flows = dict[Edge, float]


@dataclass(frozen=True, eq=False)
class FlowModel:
    """Routes of one cluster and what its edges sustain."""

    cluster: ClusterSpec
    links: LinkConstants

    @cached_property
    def graph(self) -> nx.Graph:
        """The cluster's graph, every part on its own."""
        return full_graph(self.folded)

    @cached_property
    def folded(self) -> nx.Graph:
        """The graph that prices are read from."""
        return cluster_graph(self.cluster, mesh=self._mesh)

    @property
    def _mesh(self) -> bool:
        return self.links.is_mesh(self.cluster.gpu.generation.name)

    @cached_property
    def edges(self) -> dict[Edge, int]:
        """Number of each directed edge."""
        both = [*self.graph.edges, *((v, u) for u, v in self.graph.edges)]
        return {edge: number for number, edge in enumerate(both)}

    @cached_property
    def routes(self) -> FloatArray:
        """Share of the traffic from one GPU to another on every edge, an array (GPUs * GPUs, edges)."""
        gpus = range(self.cluster.gpu_count)
        table = np.zeros((len(gpus) ** 2, len(self.edges)))
        for source in gpus:
            for target in gpus:
                for edge, share in self._route(source, target).items():
                    table[source * len(gpus) + target, self.edges[edge]] += share
        return table

    def capacities(self, ratio: float) -> FloatArray:
        """Sustained bytes/s of every directed edge, the network at ``ratio`` of all-reduce's."""
        share = {"nvlink": 1.0, "host": self.links.host_fraction, "port": 1.0}
        share["network"] = self.links.networks[self.cluster.fabric].network_fraction * ratio
        if self.cluster.nvlink_domain > 1:
            share["nvlink"] = self.links.nvlink_share(self.cluster.gpu.generation.name)
        rates = np.empty(len(self.edges))
        for edge, number in self.edges.items():
            data = self.graph.edges[edge]
            rates[number] = data["bandwidth_bytes_per_s"] * data["count"] * share[data["kind"]]
        return rates

    def seconds(self, demand_bytes: FloatArray, ratio: float = 1.0) -> float:
        """Bandwidth time of a demand (GPUs, GPUs) in bytes: the busiest edge."""
        demand = demand_bytes.ravel()
        pairs = np.flatnonzero(demand)
        loads = demand[pairs] @ self.routes[pairs]
        return float((loads / self.capacities(ratio)).max(initial=0.0))

    def _route(self, source: int, target: int) -> Flows:
        """Share of one flow on every directed edge."""
        cluster = self.cluster
        if source == target:
            return {}
        if source // cluster.nvlink_domain == target // cluster.nvlink_domain:
            return _path(*self._over_nvlink(source), f"gpu:{target}")
        if source // cluster.gpus_per_node == target // cluster.gpus_per_node:
            return _path(f"gpu:{source}", f"host:{source // cluster.gpus_per_node}", f"gpu:{target}")
        flows: Flows = {}
        for nic, share in self._shares[target].items():
            for sent_on, part in self._sender_nics(source, nic).items():
                _add(flows, self._to_nic(source, sent_on, out=True), share * part)
                _add(flows, self._between(source, sent_on, target, nic), share * part)
                _add(flows, self._to_nic(target, nic, out=False), share * part)
        return flows

    @cached_property
    def _shares(self) -> list[dict[int, float]]:
        """Share of each GPU's network traffic on each NIC of its node."""
        if NIC not in self.folded:
            return []
        return [nic_shares(self.folded, gpu) for gpu in range(self.cluster.gpu_count)]

    def _sender_nics(self, source: int, target_nic: int) -> dict[int, float]:
        """NICs of the sender's node for traffic to a given NIC: the same rail, or the sender's own."""
        if self.cluster.rail_optimized and self._owners(source, target_nic):
            return {target_nic: 1.0}
        return self._shares[source]

    def _owners(self, gpu: int, nic: int) -> dict[int, float]:
        """GPUs of the same node and NVLink domain that use a NIC, or the GPU itself behind a host."""
        cluster = self.cluster
        if cluster.nvlink_domain < cluster.gpus_per_node:
            return {gpu: 1.0}
        first = gpu // cluster.gpus_per_node * cluster.gpus_per_node
        last = min(first + cluster.gpus_per_node, cluster.gpu_count)
        found = {peer: self._shares[peer].get(nic, 0.0) for peer in range(first, last)}
        if found.get(gpu):
            return {gpu: 1.0}
        total = sum(found.values())
        return {peer: share / total for peer, share in found.items() if share}

    def _to_nic(self, gpu: int, nic: int, *, out: bool) -> Flows:
        """Way from a GPU to a NIC of its node (or back), over NVLink to the GPU that owns the NIC."""
        cluster, node = self.cluster, gpu // self.cluster.gpus_per_node
        if cluster.nvlink_domain < cluster.gpus_per_node:
            hops = [f"gpu:{gpu}", f"host:{node}", f"nic:{node}:{nic}"]
            return _path(*(hops if out else hops[::-1]))
        flows: Flows = {}
        for owner, share in self._owners(gpu, nic).items():
            over = [] if owner == gpu else self._over_nvlink(gpu)
            hops = [*over, f"gpu:{owner}", f"nic:{node}:{nic}"]
            _add(flows, _path(*(hops if out else hops[::-1])), share)
        return flows

    def _over_nvlink(self, gpu: int) -> list[str]:
        """Where traffic to another GPU of the domain starts."""
        switch = [] if self._mesh else [f"nvswitch:{gpu // self.cluster.nvlink_domain}"]
        return [f"gpu:{gpu}", *switch]

    def _between(self, source: int, sent_on: int, target: int, nic: int) -> Flows:
        """Shortest path between two NICs through the switches."""
        node = self.cluster.gpus_per_node
        ends = f"nic:{source // node}:{sent_on}", f"nic:{target // node}:{nic}"
        return _path(*self._ways[ends[0]][ends[1]])

    @cached_property
    def _ways(self) -> dict[str, dict[str, list[str]]]:
        """Shortest paths between NICs through switches alone."""
        import networkx as nx

        kinds = self.graph.nodes(data="kind")
        network = self.graph.subgraph([name for name, kind in kinds if kind in ("nic", "switch")])
        return dict(nx.all_pairs_shortest_path(network))


def _path(*hops: str) -> Flows:
    return dict.fromkeys(pairwise(hops), 1.0)


def _add(flows: Flows, more: Flows, share: float) -> None:
    for edge, part in more.items():
        flows[edge] = flows.get(edge, 0.0) + share * part
