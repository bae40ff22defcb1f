"""Agreement of predictions with measured runs, for people."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from layoutopt.optimizer.report.tables.console import bullets, facts, grid, percent, section

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import RenderableType

    from layoutopt.optimizer.evidence.case import Skip
    from layoutopt.optimizer.evidence.memory import MemoryReport
    from layoutopt.optimizer.evidence.metrics import ErrorSummary, RankingSummary
    from layoutopt.optimizer.evidence.validate import RowResult, ValidationReport

SMALLEST_SHARE = 0.03
"""Parts of a step shown in a breakdown."""

MOST_REASONS = 12


def validation_tables(report: ValidationReport, *, worst: int = 0, verbose: bool = False) -> Group:
    """Show errors by family and by column, order inside groups, memory, and what was not priced."""
    parts: list[RenderableType] = [
        Text(f"{report.rows:,} rows, {len(report.results):,} priced, {len(report.skipped):,} not priced"),
        _errors("Step time", _headlines(report), "% of the measured time; + is predicted too slow"),
    ]
    if report.families:
        parts.append(_errors("Families", report.families, "rows whose deciding cells are all stated"))
    if report.assumed_families:
        note = "rows priced with assumptions or as the nearest preset"
        parts.append(_errors("With assumptions", {**report.assumed_families, **_trainers(report)}, note))
    if report.ranking.groups:
        parts.append(_ranking(report))
    if report.memory.rows or report.memory.died:
        parts.append(_memory(report.memory))
    if verbose:
        parts += [_errors(f"By {name}", table, "") for name, table in report.by.items()]
    if report.skipped:
        parts.append(_skipped(report.skipped, verbose=verbose))
    if worst:
        parts.append(section("Largest errors", *(_worst(row) for row in report.worst(worst))))
    return Group(*parts)


def _headlines(report: ValidationReport) -> dict[str, ErrorSummary]:
    """All rows, and the ones to be looked at apart."""
    rows = {
        "all": report.step_time,
        "of these incomplete": report.partial,
        "with assumptions, apart": report.assumed,
    }
    return {name: summary for name, summary in rows.items() if summary.rows or name == "all"}


def _trainers(report: ValidationReport) -> dict[str, ErrorSummary]:
    return {f"of these {name}": summary for name, summary in report.assumed_frameworks.items()}


def _errors(title: str, table: Mapping[str, ErrorSummary], note: str) -> RenderableType:
    rows = [
        (
            name,
            f"{one.rows:,}",
            percent(one.mape),
            percent(one.median_ape),
            percent(one.p90_ape),
            percent(one.bias, "+.1f"),
        )
        for name, one in table.items()
    ]
    return section(title, grid(("", "rows", "MAPE", "median", "P90", "bias"), rows), note=note)


def _ranking(report: ValidationReport) -> RenderableType:
    kinds: dict[str, RankingSummary] = {"all": report.ranking, **report.ranking_by_kind}
    rows = [
        (
            name,
            f"{one.groups:,}",
            "-" if one.kendall_tau is None else f"{one.kendall_tau:.2f}",
            "-" if one.pairs_over_10pct is None else f"{one.pairs_over_10pct:.2f} of {one.clear_pairs:,}",
            percent(one.top1_regret_mean),
            percent(one.top1_regret_median),
            percent(one.top3_regret_mean),
        )
        for name, one in kinds.items()
        if one.groups
    ]
    columns = ("", "groups", "tau", "pairs right", "regret, mean", "median", "best of 3")
    note = "pairs more than 10% apart; regret of the layout predicted fastest, %"
    return section("Order inside groups", grid(columns, rows), note=note)


def _memory(memory: MemoryReport) -> RenderableType:
    rows = [
        (name, f"{one.rows:,}", percent(one.mape), percent(one.median_ape), percent(one.bias, "+.1f"))
        for name, one in {"stated kind": memory.summary, **memory.by_kind}.items()
        if one.rows
    ]
    table = grid(("", "rows", "MAPE", "median", "bias"), rows)
    verdicts = facts(
        (
            ("ran, judged does not fit", _ids(memory.ran_but_does_not_fit, memory.ran)),
            ("out of memory, judged fits", _ids(memory.died_but_fits, memory.died)),
        )
    )
    return section("Memory", table, Text(""), verdicts, note="% of the measured peak")


def _ids(ids: Sequence[str], of: int) -> str:
    return f"{len(ids)} of {of:,}" + (f": {', '.join(ids[:6])}" if ids else "")


def _skipped(skips: Sequence[Skip], *, verbose: bool) -> RenderableType:
    if verbose:
        return section("Not priced", bullets(f"{skip.run.id}: {skip.reason}" for skip in skips))
    # Many rows share a reason: a list of rows would hide it.
    reasons = Counter(skip.reason for skip in skips).most_common()
    lines = [f"{count:,} x {reason}" for reason, count in reasons[:MOST_REASONS]]
    if len(reasons) > MOST_REASONS:
        lines.append(f"{len(reasons) - MOST_REASONS} more reasons; -v lists every row")
    return section("Not priced", bullets(lines))


def _worst(row: RowResult) -> RenderableType:
    case, step = row.case, row.prediction.step_time_s
    parts = {
        name: value for name, value in row.prediction.breakdown_s.items() if value > SMALLEST_SHARE * step
    }
    shares = ", ".join(
        f"{name} {value / step:.0%}" for name, value in sorted(parts.items(), key=lambda p: -p[1])
    )
    error = percent(row.error, "+.1f")
    return Text(
        f"{error:>7}%  {case.run.id}: {step:.4g} s predicted, {case.measured_s:.4g} s measured; {shares}"
    )
