"""Link constants: what share of nominal bandwidth collectives reach, and how long they take to start."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkConstants:
    """Shares of nominal bandwidth (fractions) and latencies (seconds); meanings and sources in ``links.yaml``."""

    nvlink_fraction: float
    nvls_gain: float
    nic_fraction: float
    gather_fraction: float
    all_to_all_fraction: float
    p2p_fraction: float
    base_nvlink_s: float
    base_network_s: float
    step_nvlink_s: float
    step_network_s: float
    tree_network_s: float

    def ideal(self) -> LinkConstants:
        """Return nominal bandwidth without latency, for the simple model."""
        return replace(self, **{field.name: 0.0 if field.name.endswith("_s") else 1.0 for field in fields(self)})


@cache
def link_table() -> Mapping[str, Mapping[str, Any]]:
    """Read the documented link constants of the package."""
    import yaml

    text = resources.files("layoutopt.optimizer.topology").joinpath("links.yaml").read_text(encoding="utf-8")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    table: Mapping[str, Mapping[str, Any]] = yaml.load(text, Loader=loader)  # noqa: S506 (a safe loader, in C)
    return table


def load_links(calibration: Mapping[str, float] | None = None) -> LinkConstants:
    """Return the package's link constants with a cluster's own calibrated values on top; other names are ignored."""
    values = {name: float(entry["value"]) for name, entry in link_table().items()}
    own = {name: value for name, value in (calibration or {}).items() if name in values}
    return LinkConstants(**(values | own))
