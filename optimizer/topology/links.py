"""What links sustain of their nominal bandwidth, and latencies of collectives, with their sources."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

PROTOCOLS = ("simple", "ll128", "ll")
"""Wire protocols of NCCL: bulk, and two that trade bandwidth for latency."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkConstant:
    """A documented constant."""

    value: float
    unit: str
    meaning: str
    source: str


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
    """Fractions of nominal bandwidth and latencies; the meaning of each is in ``link_table()``.

    An empty ``tree`` leaves all-reduce to rings.
    """

    nvlink_fraction: float
    nvls_gain: float
    nvls_min_members: float
    network_fraction: float
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

    def ideal(self) -> LinkConstants:
        """Return links at their nominal bandwidth without latency: rings only, no reduction in switches."""
        perfect = Protocol(base_s=0.0, nvlink_step_s=0.0, host_step_s=0.0, network_step_s=0.0, bandwidth_share=1.0)
        fractions = {name: 1.0 for name in _FRACTIONS}
        return replace(self.without_latency(), ring=(perfect,), tree=(), **fractions)

    def without_latency(self) -> LinkConstants:
        """Return the same bandwidths with every latency 0, hence the bulk protocol only."""
        none = {"base_s": 0.0, "nvlink_step_s": 0.0, "host_step_s": 0.0, "network_step_s": 0.0}
        best = max(protocol.bandwidth_share for protocol in self.ring)
        bulk = Protocol(bandwidth_share=best, **none)
        zeros = {name: 0.0 for name in _LATENCIES}
        return replace(self, ring=(bulk,), tree=(bulk,) if self.tree else (), **zeros)


_FRACTIONS = (
    "nvlink_fraction",
    "nvls_gain",
    "network_fraction",
    "network_gather",
    "network_all_to_all",
    "network_p2p",
    "host_fraction",
    "tree_fraction",
)
_LATENCIES = ("nvls_step_s", "exchange_base_s", "exchange_nvlink_peer_s", "exchange_network_peer_s")
_STEPS = ("base_s", "nvlink_step_s", "host_step_s", "network_step_s")


@cache
def link_table() -> Mapping[str, LinkConstant]:
    """Read every documented link constant of the package by name."""
    import yaml

    text = resources.files("layoutopt.optimizer.topology").joinpath("links.yaml").read_text(encoding="utf-8")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    table = yaml.load(text, Loader=loader)  # noqa: S506 (a safe loader, in C where it is built)
    entries = {
        name: LinkConstant(
            value=float(entry["value"]), unit=entry["unit"], meaning=entry["meaning"], source=entry["source"]
        )
        for name, entry in table.items()
    }
    return MappingProxyType(entries)


def load_links(calibration: Mapping[str, float] | None = None) -> LinkConstants:
    """Return the package's link constants with calibrated values on top.

    Names that no link constant has (constants of other rooms) are ignored here.
    """
    values = {name: entry.value for name, entry in link_table().items()}
    values |= {name: float(value) for name, value in (calibration or {}).items() if name in values}
    scalars = {name: value for name, value in values.items() if "." not in name}
    return LinkConstants(ring=_protocols("ring", values), tree=_protocols("tree", values), **scalars)


def _protocols(algorithm: str, values: Mapping[str, float]) -> tuple[Protocol, ...]:
    return tuple(
        Protocol(
            bandwidth_share=values[f"bandwidth_share.{name}"],
            **{step: values[f"{algorithm}_{step}.{name}"] for step in _STEPS},
        )
        for name in PROTOCOLS
    )
