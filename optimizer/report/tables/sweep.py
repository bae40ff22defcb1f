"""Sweeps and inverse questions on the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.text import Text

from layoutopt.optimizer.report.tables.console import bullets, grid, section
from layoutopt.optimizer.report.tables.short import interval_cell, interval_note
from layoutopt.optimizer.specs.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from layoutopt.optimizer.sweep.inverse import FewestGpus, LargestBatch, MarginalValue, SizeAnswer
    from layoutopt.optimizer.sweep.rows import Row
    from layoutopt.optimizer.sweep.run import SweepResult

SHOWN_ROWS = 200
"""Longer tables are for an export."""

CONSTANT_COLUMNS = ("model", "family", "sequence_length", "global_batch", "network_gbit_per_s")
HEADINGS = {
    "model": "model",
    "family": "cluster",
    "sequence_length": "seq",
    "global_batch": "batch",
    "network_gbit_per_s": "Gbit/s",
}
NAMES = {
    "memory": "GPU memory",
    "network": "network",
    "nvlink": "NVLink",
    "flops": "FLOP/s",
    "hbm": "HBM bandwidth",
}


def sweep_tables(
    result: SweepResult, rows: Sequence[Row], store: str, *, nested: bool, sure: Sequence[str] = ()
) -> RenderableType:
    """Show how the sweep ended, and its rows, and how ``sure`` they are; columns with one value for all are said once."""
    # What all rows share is said once: at 100 columns the layout needs the room.
    fixed = [name for name in CONSTANT_COLUMNS if len({row[name] for row in rows}) == 1]
    varied = [name for name in CONSTANT_COLUMNS if name not in fixed]
    said = [", ".join(f"{HEADINGS[name]} {_number(rows[0][name])}" for name in fixed) if rows else ""]
    said += [interval_note(row["measured_runs"] for row in rows[:SHOWN_ROWS])]
    columns = [
        *(HEADINGS[name] for name in varied),
        "GPUs",
        "step s",
        "80%",
        "tok/s/GPU",
        "MFU",
        "memory",
        "layout",
    ]
    columns += ["used", "nested s"] if nested else []
    shown = [_row(row, varied, nested) for row in rows[:SHOWN_ROWS]]
    left = [columns.index(name) for name in ("model", "cluster", "layout") if name in columns]
    parts: list[RenderableType] = [Text(summary(result, store))]
    if shown:
        parts.append(section("Points", grid(columns, shown, left=left), note="; ".join(filter(None, said))))
    if len(rows) > SHOWN_ROWS:
        parts.append(
            Text(
                f"\n{len(rows) - SHOWN_ROWS:,} more rows: layoutopt sweep export --store {store}", style="dim"
            )
        )
    if shown and sure:
        parts.append(section("How sure", bullets(sure)))
    return Group(*parts)


def memory_words(row: Row) -> str:
    """Write the fullest rank's memory as a share of what is usable; borderline ones are marked."""
    peak, usable = row["peak_bytes"], row["capacity_bytes"]
    if not peak or not usable:
        return "-"
    return f"{peak / usable:.0%}" + (" borderline" if row["verdict"] == "borderline" else "")


def interval_words(row: Row) -> str:
    """Write between which steps four of five such runs are expected; rows of older stores may not know it."""
    return interval_cell(row["step_low_s"], row["step_high_s"], row["measured_runs"])


def summary(result: SweepResult, store: str) -> str:
    """Say in one sentence how a sweep ended."""
    words = [f"{result.solved:,} solved", f"{result.reused:,} reused"]
    words += [f"{result.infeasible:,} infeasible"] if result.infeasible else []
    words += [f"{result.unproven:,} not proven in time (*)"] if result.unproven else []
    words += [f"{result.failed:,} failed"] if result.failed else []
    words += [f"{result.lost:,} lost with their worker (the same command tries again)"] if result.lost else []
    points = "point" if result.total == 1 else "points"
    left = result.total - result.solved - result.reused - result.lost
    end = f"; interrupted with {left:,} left, the same command goes on" if result.interrupted else ""
    return f"{result.total:,} {points}: {', '.join(words)} in {format_seconds(result.seconds)}{end}; store {store}"


def _row(row: Row, varied: Sequence[str], nested: bool) -> list[str]:
    cells = [_number(row[name]) for name in varied] + [f"{row['gpus']:,}"]
    if row["step_time_s"] is None:
        cells += ["-"] * 5 + [row["status"] if row["status"] != "error" else f"error: {row['message']}"]
    else:
        cells += [
            f"{row['step_time_s']:.4g}" + ("*" if row["status"] == "stopped" else ""),
            interval_words(row),
            f"{row['tokens_per_s_per_gpu'] or 0:,.0f}",
            f"{row['mfu_causal'] or 0:.1%}",
            memory_words(row),
            layout_words(row),
        ]
    if nested:
        step = row["nested_step_time_s"]
        cells += ["-", "-"] if step is None else [f"{row['used_gpus']:,}", f"{step:.4g}"]
    return cells


def layout_words(row: Row) -> str:
    """Write a row's layout on one line, degrees of 1 left out."""
    words = [
        f"{name}{row[name]}" for name in ("tp", "cp", "pp", "vp", "ep", "etp", "dp") if (row[name] or 1) > 1
    ]
    words += [f"zero{row['zero']}"] if row["zero"] else []
    words += [f"mb{row['micro_batch']}"]
    words += [f"recompute {row['recompute']}"] if row["recompute"] not in (None, "none") else []
    return " ".join(words)


def _number(value: Any) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,.10g}" if isinstance(value, float) else f"{value:,}"


def sizes_section(
    title: str, answers: Sequence[SizeAnswer], best: int | None, note: str = ""
) -> RenderableType:
    """Show what several sizes give, the chosen one marked."""
    rows = [
        [
            _size_words(answer) + (" <" if answer.gpus == best else "  "),
            _or_dash(answer.step_time_s, ".4g"),
            _or_dash(answer.mfu_causal, ".1%"),
            _or_dash(answer.days, ",.2f"),
            _or_dash(answer.expected_days, ",.2f"),
            _or_dash(answer.cost, ",.0f"),
        ]
        for answer in sorted(answers, key=lambda answer: answer.gpus)
    ]
    columns = ["GPUs", "step s", "MFU", "days", "with failures", "cost"]
    return section(title, grid(columns, rows, left=()), note=note)


def _size_words(answer: SizeAnswer) -> str:
    """Write a size, and how many of its GPUs had better stand idle."""
    # No size is shown slower than a smaller one, whose job runs on it with GPUs idle.
    idle = 0 if answer.used_gpus is None else answer.gpus - answer.used_gpus
    return f"{answer.gpus:,}" + (f" ({idle:,} idle)" if idle else "")


def fewest_section(title: str, found: FewestGpus, *, priced: bool) -> RenderableType:
    """Show the smallest size that will do, and what was tried."""
    answer = fewest_words(found)
    if not priced or not found.tried:
        return section(title, Text(answer))
    return Group(section(title, Text(answer)), sizes_section("Tried", found.tried, found.gpus))


def fewest_words(found: FewestGpus) -> str:
    """Write the smallest size that will do, and what was looked at below it."""
    if found.gpus is None:
        return "none of the sizes tried will do"
    return f"{found.gpus:,} GPUs; sizes {found.step_gpus:,} apart, none below {found.at_least:,} can do"


def batch_section(found: LargestBatch) -> RenderableType:
    """Show the batches tried; the largest worth using is marked."""
    rows = [
        [
            f"{answer.global_batch:,}" + (" <" if answer.global_batch == found.global_batch else "  "),
            _or_dash(answer.step_time_s, ".4g"),
            _or_dash(answer.tokens_per_s, ",.0f"),
            _or_dash(answer.gain, "+.1%"),
        ]
        for answer in found.tried
    ]
    note = f"largest whose doubling still gained {found.worth:.0%}"
    return section(
        "Global batch", grid(["sequences", "step s", "tokens/s", "gain"], rows, left=()), note=note
    )


def marginal_section(values: Sequence[MarginalValue]) -> RenderableType:
    """Show what more of each resource would save, re-solved."""
    rows = [
        [
            f"{value.more:+.0%} {NAMES[value.resource]}",
            f"{value.step_time_s:.4g}",
            f"{value.saved:.2%}",
            _or_dash(value.days_saved, ",.2f"),
            _or_dash(value.cost_saved, ",.0f"),
        ]
        for value in values
    ]
    columns = ["more", "step s", "saves", "days", "cost"]
    return section("Worth of a better machine", grid(columns, rows), note="solved again with each")


def _or_dash(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
