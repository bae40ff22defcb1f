"""The catalog, a model, a cluster with its levels and prices, and the rules of a trainer on the terminal."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, cast

from rich.console import Group
from rich.text import Text

from layoutopt.optimizer.report.tables.console import bullets, facts, grid, section
from layoutopt.optimizer.specs.units import (
    format_bytes,
    format_count,
    format_oversubscription,
    format_rate,
    format_seconds,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType
    from rich.table import Table

    from layoutopt.optimizer.ask.describe import ClusterFacts, ModelFacts
    from layoutopt.optimizer.report.catalog import Catalog, ClusterRow, GpuRow, ModelRow
    from layoutopt.optimizer.space.rule import Rule
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.topology.one import CollectivePrice
    from layoutopt.optimizer.topology.show import CollectiveRow, TopologyTable


def model_table(model: ModelFacts) -> RenderableType:
    """Show parameters, layers by kind, and the run."""
    counts = model.parameters
    experts = (
        [("experts", f"{model.experts:,}, {model.experts_per_token} per token")] if model.experts else []
    )
    tokens = [("tokens", format_count(model.total_tokens))] if model.total_tokens else []
    pairs = [
        ("parameters", f"{format_count(counts.total)} in all"),
        ("", f"{format_count(counts.active)} active: passed by one token"),
        (
            "",
            f"{format_count(counts.matrices)} in matrices: multiplied with one token, the N of 6N FLOP per token",
        ),
        (
            "hidden",
            f"{model.hidden:,}, {model.heads} heads, {model.kv_heads} KV heads, vocabulary {model.vocab:,}",
        ),
        *experts,
        *([("left out", ", ".join(model.left_out))] if model.left_out else []),
        ("batch", f"{model.global_batch:,} x {model.sequence_length:,} tokens, {model.precision}"),
        *tokens,
    ]
    rows = [[kind, str(count)] for kind, count in model.layers_by_kind.items()]
    rows += [["multi-token prediction", str(model.mtp_layers)]] if model.mtp_layers else []
    return Group(
        Text(model.name, style="bold"), facts(pairs), section("Layers", grid(["kind", "layers"], rows))
    )


def cluster_table(cluster: ClusterFacts, asked: str) -> RenderableType:
    """Show GPUs, nodes and network; ``asked`` is what other commands find the cluster by."""
    rate = format_rate(8 * cluster.nic_bytes_per_s, "bit/s")
    over = format_oversubscription(cluster.oversubscription)
    pairs = [
        ("GPUs", f"{cluster.gpus:,} {cluster.gpu} with {format_bytes(cluster.memory_bytes)}"),
        ("nodes", f"{cluster.nodes:,} of {cluster.gpus_per_node}"),
        ("NVLink", f"joins {cluster.nvlink_domain} GPUs" if cluster.nvlink_domain > 1 else "none"),
        ("network", f"{cluster.nics_per_node} x {rate} {cluster.fabric} per node"),
        ("levels", ", ".join(cluster.levels) or "none: one node or NVLink domain"),
        ("oversubscribed", f"{over} at the {cluster.oversubscribed}" if cluster.oversubscribed else "no"),
    ]
    more = f"layoutopt topology show {asked}: bandwidths and what collectives cost"
    return Group(Text(cluster.name, style="bold"), facts(pairs), section("Next", bullets([more])))


def rules_table(rules: Sequence[Rule], framework: str) -> RenderableType:
    """Show every rule with its formula, why it holds, and the source."""
    parts: list[RenderableType] = [
        Text(
            f"{len(rules)} rules of {framework}: what it can launch; evaluate and explain name those that are broken"
        )
    ]
    for rule in rules:
        pairs = [("formula", rule.formula), ("because", rule.reason), ("source", rule.source)]
        parts.append(section(rule.name, facts(pairs)))
    return Group(*parts)


def catalog_tables(catalog: Catalog) -> RenderableType:
    """Show a table for each kind that has rows."""
    parts: list[RenderableType] = []
    for kind, rows in catalog.listed.items():
        if rows and kind == "models":
            parts.append(section("Models", _models(cast("tuple[ModelRow, ...]", rows))))
        elif rows and kind == "clusters":
            parts.append(section("Clusters", _clusters(cast("tuple[ClusterRow, ...]", rows))))
        elif rows:
            note = "16-bit, no sparsity; NVLink and NIC one way; NAMExN is a cluster"
            parts.append(section("GPUs", _gpus(cast("tuple[GpuRow, ...]", rows)), note=note))
    return Group(*parts)


def _models(rows: tuple[ModelRow, ...]) -> Table:
    body = [
        (
            row.name,
            f"{row.parameters / 1e9:,.1f}B",
            # Within a percent a model is dense: a second column would say the first one again.
            f"{row.active_parameters / 1e9:,.1f}B" if row.active_parameters < 0.99 * row.parameters else "",
            str(row.layers),
            f"{row.hidden:,}",
            f"{row.sequence_length:,}",
            f"{row.global_batch:,}",
            row.precision,
        )
        for row in rows
    ]
    return grid(["name", "params", "active", "layers", "hidden", "sequence", "batch", "precision"], body)


def _clusters(rows: tuple[ClusterRow, ...]) -> Table:
    body = [
        (
            row.name,
            f"{row.gpus:,}",
            row.gpu,
            str(row.gpus_per_node),
            str(row.nvlink_domain),
            f"{row.nics_per_node} x {format_rate(8 * row.nic_bytes_per_s, 'bit/s')}",
            _levels(row),
        )
        for row in rows
    ]
    return grid(["name", "GPUs", "GPU", "node", "NVLink", "NICs per node", "levels"], body, left=(0, 2, 6))


def _levels(row: ClusterRow) -> str:
    saved = f" {format_oversubscription(row.oversubscription)}" if row.oversubscription > 1 else ""
    return ", ".join(row.levels) + saved


def _gpus(rows: tuple[GpuRow, ...]) -> Table:
    body = [
        (
            row.name,
            format_bytes(row.memory_bytes),
            f"{_peak(row.dense_flops) / 1e12:,.0f}",
            f"{row.hbm_bytes_per_s / 1e12:.2f}",
            f"{row.nvlink_bytes_per_s / 1e9:,.0f}" if row.nvlink_bytes_per_s else "-",
            str(row.nvlink_domain),
            str(row.gpus_per_node),
            f"{8 * row.nic_bytes_per_s / 1e9:,.0f}",
        )
        for row in rows
    ]
    return grid(["name", "memory", "TFLOP/s", "HBM TB/s", "NVL GB/s", "domain", "node", "NIC Gbit/s"], body)


def _peak(dense_flops: dict[str, float]) -> float:
    """Return the 16-bit peak."""
    # Older GPUs have no bf16.
    return dense_flops.get("bf16") or dense_flops.get("fp16") or max(dense_flops.values())


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
    # Levels beyond the one that holds a whole group would say its size again.
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
