"""The catalog on the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from rich.console import Group

from layoutopt.optimizer.report.tables.console import grid, section
from layoutopt.optimizer.specs.units import format_bytes, format_oversubscription, format_rate

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from layoutopt.optimizer.report.catalog import Catalog, ClusterRow, GpuRow, ModelRow


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
            ", ".join(row.levels)
            + (f" {format_oversubscription(row.oversubscription)}" if row.oversubscription > 1 else ""),
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
    return dense_flops.get("bf16") or dense_flops.get("fp16") or max(dense_flops.values())
