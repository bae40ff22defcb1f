"""What links sustain of their nominal bandwidth, and latencies of collectives, with their sources."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.specs.document import plain_yaml
from layoutopt.optimizer.specs.errors import input_error
from layoutopt.optimizer.specs.ranges import possible_range
from layoutopt.optimizer.specs.vocabulary import NetworkFabric

if TYPE_CHECKING:
    from collections.abc import Mapping

PROTOCOLS = ("simple", "ll128", "ll")
"""Wire protocols of NCCL: bulk, and two that trade bandwidth for latency."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkConstant:
    """A documented constant; ``bounds`` are the range of its source, ``limits`` what a cluster's own measurement may say.

    ``exact``: a figure of source code or a definition, not of a measurement. ``value`` holds in a training step, where
    collectives share the GPU and wait for the last rank; ``alone`` is what nccl-tests measures on an idle machine, where
    that differs.
    """

    value: float
    unit: str
    bounds: tuple[float, float]
    meaning: str
    source: str
    limits: tuple[float, float]
    alone: float | None = None
    exact: bool = False

    @property
    def possible(self) -> tuple[float, float]:
        """The least and the most that a cluster file may state."""
        return self.limits if self.limits != self.bounds else possible_range(self.unit, self.bounds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """Latencies of one algorithm with one wire protocol, and the share of the bandwidth it keeps.

    ``overhead_s`` is the least time of a step, wherever it is, of a collective over several nodes. ``most_bytes_per_s``
    bounds the bus bandwidth of a ring over more than two nodes, whatever its links carry.
    """

    base_s: float
    nvlink_step_s: float
    host_step_s: float
    network_step_s: float
    bandwidth_share: float
    overhead_s: float = 0.0
    most_bytes_per_s: float = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkLink:
    """One network fabric: shares of NIC bandwidth and latencies; ``link_table()`` has the meaning of each."""

    network_fraction: float
    network_gather: float
    network_all_to_all: float
    network_p2p: float
    network_hop_s: float
    exchange_network_peer_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkConstants:
    """Fractions of nominal bandwidth and latencies; ``link_table()`` has the meaning of each.

    ``nvlink_fraction``, ``nvlink_mesh``, ``nvls_gain`` and ``network_start_s`` hold one value per GPU family,
    ``networks`` one entry per network fabric. The first protocol is the bulk one. An empty
    ``tree`` leaves all-reduce to rings.
    """

    nvlink_fraction: Mapping[str, float]
    nvlink_mesh: Mapping[str, float]
    nvls_gain: Mapping[str, float]
    network_start_s: Mapping[str, float]
    networks: Mapping[str, NetworkLink]
    nvls_min_members: float
    host_fraction: float
    tree_fraction: float
    nvls_step_s: float
    nvls_tree_step_s: float
    sharp_fraction: float
    sharp_step_s: float
    p2p_channel_bytes_per_s: float
    p2p_channels: float
    exchange_base_s: float
    exchange_nvlink_peer_s: float
    ring: tuple[Protocol, ...]
    tree: tuple[Protocol, ...]

    def nvlink_share(self, generation: str) -> float:
        """Return the NVLink fraction of a GPU generation; one without it is an error."""
        return _of_generation("nvlink_fraction", self.nvlink_fraction, generation)

    def is_mesh(self, generation: str) -> bool:
        """Tell whether GPUs of a generation have a link to each other one instead of a switch."""
        return self.nvlink_mesh.get(generation, 0.0) > 0

    def in_switch_gain(self, generation: str) -> float:
        """Return the gain of in-switch reduction of a GPU generation; one without it is an error."""
        return _of_generation("nvls_gain", self.nvls_gain, generation)

    def library_start_s(self, generation: str) -> float:
        """Return what the library of a GPU's vendor adds to the start of a collective over several nodes."""
        return self.network_start_s.get(generation, 0.0)

    def ideal(self) -> LinkConstants:
        """Return links at their nominal bandwidth without latency: rings only, no reduction in switches."""
        bare = self.without_latency()
        whole = dict.fromkeys(
            ("network_fraction", "network_gather", "network_all_to_all", "network_p2p"), 1.0
        )
        return replace(
            bare,
            tree=(),
            nvlink_fraction=dict.fromkeys(self.nvlink_fraction, 1.0),
            networks={name: replace(network, **whole) for name, network in bare.networks.items()},
            p2p_channel_bytes_per_s=math.inf,
            host_fraction=1.0,
        )

    def without_latency(self) -> LinkConstants:
        """Return the same bandwidths with every latency 0, hence the bulk protocol only."""
        bulk = Protocol(
            base_s=0.0, nvlink_step_s=0.0, host_step_s=0.0, network_step_s=0.0, bandwidth_share=1.0
        )
        still = {"network_hop_s": 0.0, "exchange_network_peer_s": 0.0}
        return replace(
            self,
            ring=(bulk,),
            tree=(bulk,) if self.tree else (),
            networks={name: replace(network, **still) for name, network in self.networks.items()},
            network_start_s={},
            nvls_step_s=0.0,
            nvls_tree_step_s=0.0,
            sharp_step_s=0.0,
            exchange_base_s=0.0,
            exchange_nvlink_peer_s=0.0,
        )


def _of_generation(name: str, values: Mapping[str, float], generation: str) -> float:
    if generation not in values:
        known = ", ".join(f"{name}.{family}" for family in sorted(values))
        raise input_error(
            f"no constant {name}.{generation}",
            f"state it under calibration of the cluster; known: {known}",
            key="gpu",
        )
    return values[generation]


@cache
def link_table() -> Mapping[str, LinkConstant]:
    """Read every documented link constant of the package by name; those of a fabric are called ``name.fabric``."""
    table = {name: _constant(entry) for name, entry in _read("links.yaml").items()}
    for name, shared in _read("fabrics.yaml").items():
        for fabric, entry in shared["fabrics"].items():
            table[f"{name}.{fabric}"] = _constant({**shared, **entry})
    return MappingProxyType(table)


def _read(file: str) -> dict[str, Any]:
    text = resources.files("layoutopt.optimizer.topology").joinpath(file).read_text(encoding="utf-8")
    table: dict[str, Any] = plain_yaml(text)
    return table


def _constant(entry: Mapping[str, Any]) -> LinkConstant:
    low, high = entry["bounds"]
    least, most = entry.get("limits", entry["bounds"])
    return LinkConstant(
        value=float(entry["value"]),
        unit=entry["unit"],
        bounds=(float(low), float(high)),
        meaning=entry["meaning"],
        source=entry["source"],
        limits=(float(least), float(most)),
        alone=None if "alone" not in entry else float(entry["alone"]),
        exact=entry.get("exact", False),
    )


def load_links(calibration: Mapping[str, float] | None = None, *, alone: bool = False) -> LinkConstants:
    """Return the package's link constants with calibrated values on top.

    ``alone`` gives collectives on an idle machine, as nccl-tests runs them, instead of those of a training step.
    A name before a dot alone (``nvlink_fraction``) sets every value under it. Names that no link constant has
    belong to other rooms and are ignored here.
    """
    values = {
        name: entry.alone if alone and entry.alone is not None else entry.value
        for name, entry in link_table().items()
    }
    families = {name.partition(".")[0] for name in values if "." in name}
    for name, value in (calibration or {}).items():
        values |= {known: float(value) for known in values if known == name or known.startswith(f"{name}.")}
        if name.partition(".")[0] in families and "." in name:
            values[name] = float(value)
    start_s = values.pop("collective_start_s")
    values |= {name: value + start_s for name, value in values.items() if name.partition(".")[0] in _BASES}
    scalars = {name: value for name, value in values.items() if "." not in name}
    return LinkConstants(
        ring=_protocols("ring", values),
        tree=_protocols("tree", values),
        nvlink_fraction=_below("nvlink_fraction", values),
        nvlink_mesh=_below("nvlink_mesh", values),
        nvls_gain=_below("nvls_gain", values),
        network_start_s=_below("network_start_s", values),
        networks=_networks(values),
        **scalars,
    )


_BASES = ("ring_base_s", "tree_base_s", "nvls_step_s", "exchange_base_s")
"""Latencies of a whole collective, to which its start is added; NCCL has no base beside the switch's own latency."""


def _below(name: str, values: Mapping[str, float]) -> Mapping[str, float]:
    """Values of one name by what stands after its dot."""
    return {key.partition(".")[2]: value for key, value in values.items() if key.startswith(f"{name}.")}


def _networks(values: Mapping[str, float]) -> Mapping[str, NetworkLink]:
    names = [field.name for field in fields(NetworkLink)]
    lacking = [
        (name, fabric) for fabric in NetworkFabric for name in names if f"{name}.{fabric}" not in values
    ]
    if lacking:
        name, fabric = lacking[0]
        what = f"{name} has no {fabric}"
        raise input_error(
            what, "value, bounds and source of every network fabric", file="topology/fabrics.yaml"
        )
    return {
        fabric.value: NetworkLink(**{name: values[f"{name}.{fabric.value}"] for name in names})
        for fabric in NetworkFabric
    }


def _protocols(algorithm: str, values: Mapping[str, float]) -> tuple[Protocol, ...]:
    steps = ("base_s", "nvlink_step_s", "host_step_s", "network_step_s")
    share = "bandwidth_share" if algorithm == "ring" else f"{algorithm}_bandwidth_share"
    return tuple(
        Protocol(
            bandwidth_share=values[f"{share}.{name}"],
            overhead_s=values.get(f"{algorithm}_overhead_s.{name}", 0.0),
            most_bytes_per_s=values.get(f"{algorithm}_most_bytes_per_s.{name}", math.inf),
            **{step: values[f"{algorithm}_{step}.{name}"] for step in steps},
        )
        for name in PROTOCOLS
    )
