"""A cluster's levels and the price of collectives on the terminal."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from layoutopt.optimizer.report.tables.console import grid, section
from layoutopt.optimizer.specs.units import format_bytes, format_oversubscription, format_rate, format_seconds

if TYPE_CHECKING:
    from rich.console import RenderableType

    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.topology.one import CollectivePrice
    from layoutopt.optimizer.topology.show import CollectiveRow, TopologyTable


def topology_tables(table: TopologyTable, cluster: ClusterSpec) -> RenderableType:
    """Show the levels from the node outward, then each group's collectives."""
    nic = f"{cluster.nics_per_node} x {format_rate(8 * cluster.nic_bytes_per_s, 'bit/s')}"
    head = Text(
        f"{table.cluster}: {table.gpus:,} {cluster.gpu.name} in {table.nodes:,} nodes of {cluster.gpus_per_node}, "
        f"{nic} {table.fabric} per node{', rails' if cluster.rail_optimized else ''}"
    )
    levels = grid(
        ["level", "joins", "into", "blocks", "per GPU", "oversubscribed", "hop"],
        [
            (
                level.name,
                f"{level.part_gpus:,}",
                f"{level.gpus:,}",
                f"{level.blocks:,}",
                format_rate(level.bytes_per_s),
                format_oversubscription(level.oversubscription) if level.oversubscription > 1 else "no",
                format_seconds(level.latency_s) if level.latency_s else "-",
            )
            for level in table.levels
        ],
    )
    parts: list[RenderableType] = [head, section("Levels", levels, note="GPUs joined into blocks; one way")]
    for (size, stride), rows in groupby(table.collectives, key=lambda row: (row.group, row.stride)):
        parts.append(_group(size, stride, list(rows), [level.name for level in table.levels]))
    return Group(*parts)


def price_table(price: CollectivePrice) -> RenderableType:
    """Show the price of one collective, what every algorithm would take, and its way."""
    by = f" by {price.algorithm}" if price.algorithm else ""
    head = Text(
        f"{price.cluster}: {price.collective}{by} of {format_bytes(price.size_bytes)}, {price.ranks:,} ranks, "
        f"{price.per_node} on each of {price.nodes:,} nodes, {price.fabric}"
    )
    rows = [
        ("time", format_seconds(price.seconds)),
        ("of an empty message", format_seconds(price.latency_s)),
        ("bus bandwidth", format_rate(price.bus_bytes_per_s)),
        *((f"by {name}", format_seconds(seconds)) for name, seconds in price.algorithms.items()),
        ("way", " - ".join(price.route)),
    ]
    return Group(head, section("Price", grid(["figure", "value"], rows)))


def _group(size: int, stride: int, rows: list[CollectiveRow], names: list[str]) -> RenderableType:
    """Show one group's collectives and how many of its ranks share a block of each level, up to all of them."""
    members = rows[0].members
    needed = next((index for index, count in enumerate(members) if count >= size), len(members) - 1)
    together = ", ".join(
        f"{name} {count:,}" for name, count in zip(names[: needed + 1], members, strict=False)
    )
    body = [
        (row.collective.replace("_", "-"), format_seconds(row.seconds), format_rate(row.bus_bytes_per_s))
        for row in rows
    ]
    payload = format_bytes(rows[0].size_bytes)
    note = f"{payload}; ranks in a block: {together}" if together else payload
    return section(
        f"{size:,} ranks, stride {stride:,}", grid(["collective", "time", "bus bandwidth"], body), note=note
    )
