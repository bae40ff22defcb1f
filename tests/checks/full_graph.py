"""The folded graph of a cluster with every part on its own: each GPU, NVLink switch, host, NIC and switch.

A GPU's ``index`` is its rank. Capacities and latencies are the folded graph's; who is linked to whom is decided here.
Switches of one level and block are one node, but for the leaves of a rail-optimised fabric, one per rail.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.topology.graph import GPU, HOST, NIC, NVSWITCH

if TYPE_CHECKING:
    import networkx as nx


def full_graph(folded: nx.Graph) -> nx.Graph:
    """Build every node and link that a folded graph stands for."""
    import networkx as nx

    full, gpus = nx.Graph(name=folded.name), folded.nodes[GPU]["copies"]
    for gpu in range(gpus):
        full.add_node(f"gpu:{gpu}", kind="gpu", index=gpu)
    for edge in folded.edges(data=True):
        if edge[2]["kind"] == "nvlink":
            _add_nvlink(full, folded, gpus, edge[2])
    if HOST in folded:
        for gpu in range(gpus):
            _join(full, folded, f"gpu:{gpu}", f"host:{_block(folded, HOST, gpu)}", (GPU, HOST), HOST)
    if NIC in folded:
        _add_nics(full, folded, gpus)
        _add_switches(full, folded)
    return full


def nic_shares(folded: nx.Graph, gpu: int) -> dict[int, float]:
    """Return which of its node's NICs a GPU uses, and which share of its traffic goes over each.

    NICs are dealt out evenly in order: one or several whole ones per GPU, or one for several GPUs.
    """
    node = folded.nodes[NIC]
    per_gpu, local = node["count"] / node["gpus"], gpu % node["gpus"]
    start, end = local * per_gpu, (local + 1) * per_gpu
    nics = range(int(start), min(int(-(-end // 1)), node["count"]))
    shares = {nic: (min(end, nic + 1) - max(start, nic)) / per_gpu for nic in nics}
    return {nic: share for nic, share in shares.items() if share > 1e-9}


def _block(folded: nx.Graph, name: str, gpu: int) -> int:
    return int(gpu // folded.nodes[name]["gpus"])


def _join(
    full: nx.Graph, folded: nx.Graph, one: str, other: str, edge: tuple[str, str], kind: str, **data: Any
) -> None:
    """Add a node above another and one of the folded edge's parallel links."""
    full.add_node(other, kind=kind, **data)
    full.add_edge(one, other, **{**folded.edges[edge], "count": 1})


def _add_nvlink(full: nx.Graph, folded: nx.Graph, gpus: int, link: dict[str, Any]) -> None:
    if NVSWITCH in folded:
        for gpu in range(gpus):
            switch = f"nvswitch:{_block(folded, NVSWITCH, gpu)}"
            full.add_node(switch, kind="nvswitch")
            full.add_edge(f"gpu:{gpu}", switch, **link)
        return
    domain = link["count"] + 1
    for gpu in range(gpus):
        for peer in range(gpu + 1, min(gpu // domain * domain + domain, gpus)):
            full.add_edge(f"gpu:{gpu}", f"gpu:{peer}", **{**link, "count": 1})


def _add_nics(full: nx.Graph, folded: nx.Graph, gpus: int) -> None:
    """NICs at the host, or at the GPUs that use them."""
    lower = HOST if HOST in folded else GPU
    for gpu in range(gpus):
        node = _block(folded, NIC, gpu)
        at = f"host:{node}" if lower == HOST else f"gpu:{gpu}"
        for nic in nic_shares(folded, gpu):
            _join(full, folded, at, f"nic:{node}:{nic}", (lower, NIC), "nic", gpu=gpu, rail=nic)


def _add_switches(full: nx.Graph, folded: nx.Graph) -> None:
    """Levels from the leaves outward: a NIC's leaf is its rail's where there are several."""
    levels = sorted(
        (name for name, kind in folded.nodes(data="kind") if kind == "switch"),
        key=lambda name: folded.nodes[name]["gpus"],
    )
    for below, level in pairwise([NIC, *levels]):
        rails, edge = folded.nodes[level]["count"], folded.edges[below, level]
        lower = [item for item in full.nodes(data=True) if item[1].get("level", item[1]["kind"]) == below]
        for name, data in lower:
            above = f"{level}:{_block(folded, level, data['gpu'])}" + f":{data['rail']}" * (rails > 1)
            full.add_node(above, kind="switch", level=level, gpu=data["gpu"], rail=data["rail"])
            full.add_edge(name, above, **edge)
