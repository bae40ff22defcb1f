"""A simulated step for people: against the formula, and rank by rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from layoutopt.optimizer.report.tables.console import facts, grid, section
from layoutopt.optimizer.specs.units import format_seconds

if TYPE_CHECKING:
    from rich.console import RenderableType

    from layoutopt.optimizer.simulate.compare import LayoutSimulation

BARS = " ▁▂▃▄▅▆▇█"
WIDTH = 32


def simulation_tables(found: LayoutSimulation) -> RenderableType:
    """Show both step times, what the difference means, and every rank's work, idle time and memory over time."""
    pipeline = found.result.pipeline
    chunks = f", vp {pipeline.vp}" if pipeline.vp > 1 else ""
    title = f"{pipeline.schedule.value}: pp {pipeline.pp}{chunks}, {pipeline.micro_batches} micro-batches"
    return Group(
        Text(title, style="bold"),
        section("Step time", facts(_times(found))),
        section(
            "Ranks",
            _ranks(found),
            note="memory over time, each bar the most of its stretch, full height at the peak",
        ),
    )


def _times(found: LayoutSimulation) -> list[tuple[str, str]]:
    hops = (found.simulated_exposed_hops_s, found.analytic_exposed_hops_s)
    return [
        ("simulated", format_seconds(found.simulated_step_s)),
        ("estimated", f"{format_seconds(found.analytic_step_s)} ({found.deviation:+.2%}: {_meaning(found)})"),
        ("idle in the pipeline", f"{found.result.bubble_share:.1%} of all ranks' time"),
        ("exposed transfers", f"{format_seconds(hops[0])} simulated, {format_seconds(hops[1])} estimated"),
    ]


def _meaning(found: LayoutSimulation) -> str:
    """Say what the formula promises for stages like these."""
    sign = "the estimate is slower" if found.deviation >= 0 else "the estimate is faster"
    bound = "; it can only be slower" if found.upper_bound else ""
    if found.tolerance is None:
        return f"{sign}{bound}; no promise for stages this unequal with so few micro-batches"
    return f"{sign}{bound}; tested to be within {found.tolerance:.0%}"


def _ranks(found: LayoutSimulation) -> RenderableType:
    result = found.result
    rows = [
        (
            str(rank),
            f"{found.rank_time_s[rank] * 1e3:.1f}",
            f"{result.busy_s[rank]:.3f}",
            f"{result.bubble_s[rank]:.3f}",
            f"{found.simulated_peak_bytes[rank] / 1e9:.1f}",
            f"{found.analytic_peak_bytes[rank] / 1e9:.1f}",
            _bars(found, rank),
        )
        for rank in range(result.pipeline.pp)
    ]
    columns = ["rank", "ms/micro-batch", "busy s", "idle s", "peak GB", "estimated", "memory over time"]
    return grid(columns, rows, left=(0, 6))


def _bars(found: LayoutSimulation, rank: int) -> str:
    _, held = found.result.memory[rank].sampled(found.result.makespan_s, WIDTH)
    peak = float(held.max())
    top = len(BARS) - 1
    return "".join(BARS[round(top * value / peak)] for value in held.tolist()) if peak else ""
