"""Where the step time goes, and the rates that follow from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutopt.optimizer.report.tables.console import facts, grid
from layoutopt.optimizer.specs.units import format_seconds

if TYPE_CHECKING:
    from rich.table import Table

    from layoutopt.optimizer.cost.estimate import Estimate
    from layoutopt.optimizer.specs.model import TrainingSpec

_BAR = 24


def breakdown_table(estimate: Estimate) -> Table:
    """Show the components that sum to the step time, each with its share."""
    step = estimate.step_time_s
    parts = [(name, value) for name, value in estimate.breakdown_s.items() if value > 0]
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
    if training.total_tokens:
        run_s = training.total_tokens / training.tokens_per_step * estimate.step_time_s
        pairs.append(
            (
                "whole run",
                f"{format_seconds(run_s)} for {training.total_tokens / 1e12:.3g}T tokens without interruption",
            )
        )
    return pairs
