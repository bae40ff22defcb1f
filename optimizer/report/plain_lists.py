"""The machine-readable form of topologies and of the catalog."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from layoutopt.optimizer.report.catalog import Catalog
    from layoutopt.optimizer.report.plain import Plain
    from layoutopt.optimizer.topology.show import TopologyTable


def topology_to_plain(table: TopologyTable) -> Plain:
    """Write levels and collectives; quantities in SI."""
    return asdict(table)


def catalog_to_plain(catalog: Catalog) -> Plain:
    """Write the kinds that were asked for, each a list."""
    return {kind: [asdict(row) for row in rows] for kind, rows in catalog.listed.items()}
