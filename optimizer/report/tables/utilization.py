"""What a throughput means, on the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from layoutopt.optimizer.diagnose.utilization import COUNT_WORDS
from layoutopt.optimizer.report.tables.console import facts, grid, section
from layoutopt.optimizer.specs.units import format_count, format_seconds

if TYPE_CHECKING:
    from rich.console import RenderableType

    from layoutopt.optimizer.diagnose.utilization import Utilization


def utilization_table(found: Utilization, model: str) -> RenderableType:
    """Show throughput, parameters, and utilisation in every count of FLOPs."""
    counts, peak = found.parameters, found.peak_flops_per_gpu / 1e12
    pairs = [
        ("throughput", f"{found.tokens_per_s:,.6g} tokens/s, {found.tokens_per_s_per_gpu:,.5g} per GPU"),
        (
            "step",
            f"{format_seconds(found.step_time_s)} of {found.global_batch:,} x {found.sequence_length:,} tokens",
        ),
        (
            "parameters",
            f"{format_count(counts.matrices)} take part: matrices, with the output's and without the input embedding",
        ),
        ("", f"of {format_count(counts.total)} in all, {format_count(counts.active)} passed by one token"),
        ("peak", f"{peak:,.5g} TFLOP/s per GPU, {found.gpus:,} GPUs"),
    ]
    rows = [
        (
            COUNT_WORDS[count],
            f"{use.flops_per_token / 1e9:,.5g}",
            f"{use.tflops_per_gpu:,.1f}",
            f"{use.mfu:.1%}",
            f"{use.hfu:.1%}",
        )
        for count, use in found.by_count.items()
    ]
    table = grid(["counting", "GFLOP per token", "TFLOP/s per GPU", "MFU", "HFU"], rows)
    repeated = f"HFU: backward repeats {found.repeated:.0%} of the forward pass"
    note = repeated if found.repeated else "HFU is MFU: nothing is recomputed (--repeated says what is)"
    return Group(
        Text(f"{model} on {found.gpus:,} GPUs", style="bold"),
        facts(pairs),
        section("Utilisation", table, note=note),
    )
