"""Where the step time goes, the rates that follow from it, and a simulated step against the formula."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from layoutopt.optimizer.report.tables.console import facts, grid, section
from layoutopt.optimizer.specs.units import format_count, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType
    from rich.table import Table

    from layoutopt.optimizer.cost.estimate import Estimate
    from layoutopt.optimizer.simulate.compare import LayoutSimulation
    from layoutopt.optimizer.specs.model import TrainingSpec


_BAR = 24


def breakdown_table(estimate: Estimate) -> Table:
    """Show the components that sum to the step time, each with its share."""
    step = estimate.step_time_s
    parts = [(name, value) for name, value in estimate.breakdown_s.items() if value > 0]
    # Bars are measured by the largest part: by the step the smaller ones would have none.
    largest = max((value for _, value in parts), default=1.0)
    rows = [
        (
            name.words,
            format_seconds(value),
            f"{value / step:.1%}",
            "#" * round(_BAR * value / largest),
        )
        for name, value in parts
    ]
    rows.append(("step", format_seconds(step), "100.0%", ""))
    return grid(["component", "time", "share", ""], rows, left=(0, 3))


def rates_table(estimate: Estimate, training: TrainingSpec) -> Table:
    """Show throughput and utilisation, both counts of FLOPs labelled, and the whole run's time where it is known."""
    return facts(rates_pairs(estimate, training))


def rates_pairs(estimate: Estimate, training: TrainingSpec) -> list[tuple[str, str]]:
    """Return names and values of the table of rates."""
    pairs = [
        (
            "throughput",
            f"{estimate.tokens_per_s_per_gpu:,.0f} tokens/s/GPU, {estimate.tflops_per_gpu:,.0f} TFLOP/s/GPU",
        ),
        ("MFU", f"{estimate.mfu_causal:.1%} counting causal attention (Megatron-LM's count)"),
        ("", f"{estimate.mfu_full:.1%} counting full attention (PaLM's count)"),
        ("HFU", f"{estimate.hfu:.1%} with recomputation (causal)"),
    ]
    pairs += [("whole run", words) for words in run_length_words(estimate, training)]
    return pairs


def run_length_words(estimate: Estimate, training: TrainingSpec) -> Iterator[str]:
    """Say how long the stated tokens take; nothing where the count is only a built-in model's."""
    # A built-in model's own count made a fine-tune take years.
    if training.stated_tokens:
        run_s = training.stated_tokens / training.tokens_per_step * estimate.step_time_s
        tokens = format_count(training.stated_tokens)
        yield f"{format_seconds(run_s)} for {tokens} tokens without interruption"


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
    # By the rank's own peak: how full ranks are stands beside it in numbers.
    peak = float(held.max())
    top = len(BARS) - 1
    return "".join(BARS[round(top * value / peak)] for value in held.tolist()) if peak else ""
