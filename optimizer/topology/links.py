"""What links sustain of their nominal bandwidth, and latencies of collectives, with their sources."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.specs.errors import input_error

if TYPE_CHECKING:
    from collections.abc import Mapping

PROTOCOLS = ("simple", "ll128", "ll")
"""Wire protocols of NCCL: bulk, and two that trade bandwidth for latency."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkConstant:
    """A documented constant; ``bounds`` are the limits of a fit.

    ``value`` holds in a training step, where collectives share the GPU and wait for the last rank; ``alone`` is what
    nccl-tests measures on an idle machine, where that differs.
    """

    value: float
    unit: str
    bounds: tuple[float, float]
    meaning: str
    source: str
    alone: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """Latencies of one algorithm with one wire protocol, and the share of the bandwidth it keeps."""

    base_s: float
    nvlink_step_s: float
    host_step_s: float
    network_step_s: float
    bandwidth_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkConstants:
    """Fractions of nominal bandwidth and latencies; ``link_table()`` has the meaning of each.

    ``nvlink_fraction``, ``nvlink_mesh`` and ``nvls_gain`` hold one value per GPU family. The first protocol
    is the bulk one. An empty ``tree`` leaves all-reduce to rings.
    """

    nvlink_fraction: Mapping[str, float]
    nvlink_mesh: Mapping[str, float]
    nvls_gain: Mapping[str, float]
    nvls_min_members: float
    network_fraction: float
    nic_host_share: Mapping[str, float]
    network_gather: float
    network_all_to_all: float
    network_p2p: float
    host_fraction: float
    tree_fraction: float
    nvls_step_s: float
    exchange_base_s: float
    exchange_nvlink_peer_s: float
    exchange_network_peer_s: float
    ring: tuple[Protocol, ...]
    tree: tuple[Protocol, ...]

    def nvlink_share(self, generation: str) -> float:
        """Return the NVLink fraction of a GPU generation; one without it is an error."""
        return _of_generation("nvlink_fraction", self.nvlink_fraction, generation)

    def is_mesh(self, generation: str) -> bool:
        """Tell whether GPUs of a generation have a link to each other one instead of a switch."""
        return self.nvlink_mesh.get(generation, 0.0) > 0

    def network_share(self, generation: str) -> float:
        """Return the share of nominal NIC bandwidth of a GPU generation; one without it is an error."""
        return self.network_fraction * _of_generation("nic_host_share", self.nic_host_share, generation)

    def in_switch_gain(self, generation: str) -> float:
        """Return the gain of in-switch reduction of a GPU generation; one without it is an error."""
        return _of_generation("nvls_gain", self.nvls_gain, generation)

    def ideal(self) -> LinkConstants:
        """Return links at their nominal bandwidth without latency: rings only, no reduction in switches."""
        return replace(
            self.without_latency(),
            tree=(),
            nvlink_fraction=dict.fromkeys(self.nvlink_fraction, 1.0),
            network_fraction=1.0,
            nic_host_share=dict.fromkeys(self.nic_host_share, 1.0),
            network_gather=1.0,
            network_all_to_all=1.0,
            network_p2p=1.0,
            host_fraction=1.0,
        )

    def without_latency(self) -> LinkConstants:
        """Return the same bandwidths with every latency 0, hence the bulk protocol only."""
        bulk = Protocol(
            base_s=0.0, nvlink_step_s=0.0, host_step_s=0.0, network_step_s=0.0, bandwidth_share=1.0
        )
        return replace(
            self,
            ring=(bulk,),
            tree=(bulk,) if self.tree else (),
            nvls_step_s=0.0,
            exchange_base_s=0.0,
            exchange_nvlink_peer_s=0.0,
            exchange_network_peer_s=0.0,
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
    """Read every documented link constant of the package by name."""
    import yaml

    text = resources.files("layoutopt.optimizer.topology").joinpath("links.yaml").read_text(encoding="utf-8")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    table = yaml.load(text, Loader=loader)
    return MappingProxyType({name: _constant(entry) for name, entry in table.items()})


def _constant(entry: Mapping[str, Any]) -> LinkConstant:
    low, high = entry["bounds"]
    return LinkConstant(
        value=float(entry["value"]),
        unit=entry["unit"],
        bounds=(float(low), float(high)),
        meaning=entry["meaning"],
        source=entry["source"],
        alone=None if "alone" not in entry else float(entry["alone"]),
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
        nic_host_share=_below("nic_host_share", values),
        **scalars,
    )


_BASES = ("ring_base_s", "tree_base_s", "exchange_base_s")
"""Latencies of a whole collective, to which its start in a training step is added."""


def _below(name: str, values: Mapping[str, float]) -> Mapping[str, float]:
    """Values of one name by what stands after its dot."""
    return {key.partition(".")[2]: value for key, value in values.items() if key.startswith(f"{name}.")}


def _protocols(algorithm: str, values: Mapping[str, float]) -> tuple[Protocol, ...]:
    steps = ("base_s", "nvlink_step_s", "host_step_s", "network_step_s")
    return tuple(
        Protocol(
            bandwidth_share=values[f"bandwidth_share.{name}"],
            **{step: values[f"{algorithm}_{step}.{name}"] for step in steps},
        )
        for name in PROTOCOLS
    )
