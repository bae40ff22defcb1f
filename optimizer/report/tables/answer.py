"""The layout, memory and time of one priced layout, as ``solve`` and ``evaluate`` both show them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from layoutopt.optimizer.report.tables.console import section
from layoutopt.optimizer.report.tables.layout import layout_text, stage_table
from layoutopt.optimizer.report.tables.memory import divisor_table, memory_table
from layoutopt.optimizer.report.tables.step_time import breakdown_table, rates_table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from layoutopt.optimizer.cost.estimate import Estimate
    from layoutopt.optimizer.frameworks.preset import FrameworkPreset
    from layoutopt.optimizer.specs.layout import Layout
    from layoutopt.optimizer.specs.workload import Workload


def layout_section(layout: Layout) -> RenderableType:
    """Show the degrees and the stages."""
    stages = stage_table(layout)
    return section("Layout", Text(layout_text(layout)), *([stages] if stages else []))


def price_sections(
    layout: Layout, estimate: Estimate, preset: FrameworkPreset, workload: Workload
) -> list[RenderableType]:
    """Show step time, rates, and memory by rank and component."""
    memory = estimate.memory
    note = f"GB per GPU, {memory.capacity_bytes / 1e9:.1f} usable by tensors"
    return [
        section("Step time", breakdown_table(estimate), Text(""), rates_table(estimate, workload.training)),
        section(
            "Memory",
            memory_table(memory),
            Text(""),
            divisor_table(layout, memory, preset, moe=workload.model.is_moe),
            note=note,
        ),
    ]
