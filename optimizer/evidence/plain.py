"""Plain form of a validation report: the JSON keys that ``validate --json`` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from layoutopt.optimizer.evidence.memory import MemoryReport
    from layoutopt.optimizer.evidence.metrics import ErrorSummary, RankingSummary
    from layoutopt.optimizer.evidence.validate import RowResult, ValidationReport


def plain_report(report: ValidationReport, *, worst: int = 0) -> dict[str, Any]:
    """Return the report as plain values; errors are fractions. ``worst`` rows get their breakdowns."""
    plain: dict[str, Any] = {
        "rows": report.rows,
        "priced": len(report.results),
        "skipped": [{"id": skip.run.id, "reason": skip.reason} for skip in report.skipped],
        "step_time": _errors(report.step_time),
        "partial": _errors(report.partial),
        "assumed": _errors(report.assumed)
        | {"ids": [row.case.run.id for row in report.results if row.case.assumed]},
        "families": _table(report.families),
        "memory": _memory(report.memory),
        "ranking": _ranking(report.ranking)
        | {"by_kind": {kind: _ranking(entry) for kind, entry in report.ranking_by_kind.items()}},
        "by": {name: _table(table) for name, table in report.by.items()},
        "per_row": [_row(row) for row in report.results],
    }
    if worst:
        plain["worst"] = [_worst(row) for row in report.worst(worst)]
    return plain


def _errors(summary: ErrorSummary) -> dict[str, Any]:
    return {
        "rows": summary.rows,
        "mape": summary.mape,
        "median_ape": summary.median_ape,
        "p90_ape": summary.p90_ape,
        "bias": summary.bias,
    }


def _table(summaries: Mapping[str, ErrorSummary]) -> dict[str, Any]:
    return {name: _errors(summary) for name, summary in summaries.items()}


def _memory(memory: MemoryReport) -> dict[str, Any]:
    return {
        "mape": memory.summary.mape,
        "bias": memory.summary.bias,
        "rows": memory.summary.rows,
        "by_kind": _table(memory.by_kind),
        "by_framework": _table(memory.by_framework),
        "died": memory.died,
        "died_but_fits": list(memory.died_but_fits),
        "ran": memory.ran,
        "ran_but_does_not_fit": list(memory.ran_but_does_not_fit),
        "per_row": [
            {
                "id": row.id,
                "framework": row.framework,
                "kind": row.kind,
                "measured_bytes": row.measured_bytes,
                "predicted_bytes": row.predicted_bytes,
            }
            for row in memory.rows
        ],
    }


def _ranking(ranking: RankingSummary) -> dict[str, Any]:
    return {
        "groups": ranking.groups,
        "kendall_tau": ranking.kendall_tau,
        "pairs_over_10pct": ranking.pairs_over_10pct,
        "clear_pairs": ranking.clear_pairs,
        "top1_regret_mean": ranking.top1_regret_mean,
        "top1_regret_median": ranking.top1_regret_median,
        "top3_regret_mean": ranking.top3_regret_mean,
    }


def _row(row: RowResult) -> dict[str, Any]:
    case = row.case
    return {
        "id": case.run.id,
        "measured_s": case.measured_s,
        "predicted_s": row.prediction.step_time_s,
        "ape": None if row.error is None else abs(row.error),
        "error": row.error,
        "family": case.family.value,
        "complete": case.complete,
        "unstated": list(case.unstated),
        "assumed": list(case.assumed),
    }


def _worst(row: RowResult) -> dict[str, Any]:
    return {**_row(row), "breakdown_s": dict(row.prediction.breakdown_s), "source": row.case.run.source}
