"""The page of a sweep."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutopt.optimizer.report.html.chart import Section, render
from layoutopt.optimizer.report.html.markup import Markup, Table, bullets, element, table
from layoutopt.optimizer.report.html.page import page, tiles
from layoutopt.optimizer.report.html.scaling import cost_chart, mfu_chart, step_time_chart
from layoutopt.optimizer.report.html.series import ALONG, lines_by_model, range_words
from layoutopt.optimizer.report.tables.short import interval_note
from layoutopt.optimizer.report.tables.sweep import interval_words, layout_words, memory_words
from layoutopt.optimizer.sweep.nested import best_within
from layoutopt.optimizer.sweep.rows import ERROR

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from layoutopt.optimizer.report.html.series import DrawnLines
    from layoutopt.optimizer.sweep.rows import Row

IDLE_GAIN = 1e-3
"""From this gain on, it is worth saying that fewer GPUs of a cluster are faster than all."""

SHOWN_REMARKS = 12


def sweep_page(rows: Sequence[Row], *, gpu_hour_cost: float | None = None, sure: Sequence[str] = ()) -> str:
    """Write the page of a sweep from the rows of its store; ``sure`` says how far off such predictions were.

    Raises ``InputError`` when the plotting library is not installed.
    """
    models = list(dict.fromkeys(row["model"] for row in rows))
    families = list(dict.fromkeys(row["family"] for row in rows))
    title = f"{', '.join(models)} on {', '.join(families)}" if rows else "Empty sweep"
    return page(title, sweep_question(rows), [_counts(rows)], sweep_sections(rows, gpu_hour_cost, sure))


def sweep_question(rows: Sequence[Row]) -> str:
    """Say what was asked, from where to where."""
    if not rows:
        return "no point has been answered"
    gpus, batch, length, network = (range_words(rows, name) for name in ALONG)
    frameworks = ", ".join(dict.fromkeys(row["framework"] for row in rows))
    return f"{gpus}, batches of {batch} of {length}, network {network} per GPU, {frameworks}"


def _counts(rows: Sequence[Row]) -> Markup:
    status = [row["status"] for row in rows]
    failed = status.count(ERROR)
    return tiles(
        [
            ("points", f"{len(rows):,}"),
            ("proven optimal", f"{status.count('optimal'):,}"),
            ("infeasible", f"{status.count('infeasible'):,}" if "infeasible" in status else ""),
            ("not proven", f"{status.count('stopped'):,}" if "stopped" in status else ""),
            ("failed", f"{failed:,}" if failed else ""),
        ]
    )


def sweep_sections(
    rows: Sequence[Row], gpu_hour_cost: float | None, sure: Sequence[str] = ()
) -> Iterator[Section]:
    """Yield the curves of every model, then all answers, then how sure they are."""
    found = lines_by_model(rows)
    for index, lines in enumerate(found):
        name = f"{lines.model}: " if len(found) > 1 else ""
        if lines.lines:
            charts = [
                step_time_chart(lines, f"model{index}"),
                mfu_chart(lines, f"model{index}"),
                cost_chart(lines, f"model{index}", gpu_hour_cost),
            ]
            yield Section(title=f"{name}scaling".capitalize(), blocks=[render(chart) for chart in charts])
        remarks = _idle_remarks(lines) + _missing_remarks(lines)
        if remarks:
            yield Section(title=f"{name}remarks".capitalize(), blocks=[bullets(_cut(remarks))])
    if rows:
        # Open: the layouts are what was asked for.
        answers = element(
            "details", element("summary", f"{len(rows):,} answers"), table(_answers(rows)), open=True
        )
        unmeasured = interval_note(row["measured_runs"] for row in rows)
        yield Section(title="Layouts", blocks=[answers, *([element("p", unmeasured)] if unmeasured else [])])
    if rows and sure:
        yield Section(title="How sure", blocks=[bullets(sure)])


def _cut(lines: list[str]) -> list[str]:
    more = len(lines) - SHOWN_REMARKS
    return lines if more <= 0 else [*lines[:SHOWN_REMARKS], f"and {more} more; see the table of layouts"]


def _idle_remarks(lines: DrawnLines) -> list[str]:
    """Name the clusters on which fewer than all GPUs are faster."""
    remarks = []
    for line in lines.lines:
        # Sizes with awkward divisors: the curve shows that they are slower, not that a part of them is faster.
        for row in best_within(line.rows):
            best, own = row["nested_step_time_s"], row["step_time_s"]
            if best is not None and best < own * (1 - IDLE_GAIN):
                name = f"{line.name}: " if len(lines.lines) > 1 else ""
                remarks.append(
                    f"{name}{row['used_gpus']:,} of {row['gpus']:,} GPUs are {own / best - 1:.1%} faster than all of them"
                )
    return remarks


def _missing_remarks(lines: DrawnLines) -> list[str]:
    """Name the points without an answer and why."""
    return [
        f"{row['gpus']:,} GPUs, batch {row['global_batch']:,}, {row['sequence_length']:,} tokens, "
        f"{row['network_gbit_per_s']:,.10g} Gbit/s: {row['message'] or row['status']}"
        for row in lines.unanswered
    ]


def _answers(rows: Sequence[Row]) -> Table:
    columns = [
        "model",
        "cluster",
        "GPUs",
        "batch",
        "tokens",
        "Gbit/s",
        "step s",
        "80%",
        "MFU",
        "peak GB",
        "memory",
        "layout",
    ]
    return Table(columns=columns, rows=[_answer(row) for row in rows], left=(0, 1, 10, 11))


def _answer(row: Row) -> list[str]:
    asked = [
        row["model"],
        row["family"],
        f"{row['gpus']:,}",
        f"{row['global_batch']:,}",
        f"{row['sequence_length']:,}",
        f"{row['network_gbit_per_s']:,.10g}",
    ]
    if row["step_time_s"] is None:
        return [*asked, *["-"] * 5, row["status"]]
    proven = " (not proven)" if row["status"] == "stopped" else ""
    return [
        *asked,
        f"{row['step_time_s']:.5g}",
        interval_words(row),
        f"{row['mfu_causal']:.1%}",
        f"{row['peak_bytes'] / 1e9:.0f}",
        memory_words(row),
        f"{layout_words(row)}{proven}",
    ]
