"""Errors of a validation against a committed baseline: what has grown, and which memory verdicts contradict a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from layoutopt.optimizer.evidence.metrics import ErrorSummary
    from layoutopt.optimizer.evidence.validate import ValidationReport

    Figures = dict[str, dict[str, float]]

TOLERANCE_POINTS = 0.5
"""Growth of an error, in percentage points, that counts."""

COMPARED = ("mape", "median")


def figures(report: ValidationReport) -> Figures:
    """Return the errors of complete rows by family in percent."""
    return {name: percent(summary) for name, summary in sorted(report.families.items())}


def percent(summary: ErrorSummary) -> dict[str, float]:
    """Return a summary's errors in percent, to two decimals."""
    shares = {
        "mape": summary.mape,
        "median": summary.median_ape,
        "p90": summary.p90_ape,
        "bias": summary.bias,
    }
    return {"rows": summary.rows} | {name: round(100 * (share or 0.0), 2) for name, share in shares.items()}


def grown(now: Mapping[str, Mapping[str, float]], before: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Name the figures that are worse than the baseline by more than the tolerance; one that only one of both has counts."""
    worse = [f"{family}: not in the baseline" for family in now if family not in before]
    for family, old in before.items():
        for figure in COMPARED:
            value = now.get(family, {}).get(figure, float("inf"))
            if value > old[figure] + TOLERANCE_POINTS:
                worse.append(f"{family}: {figure} {value:.2f}%, baseline {old[figure]:.2f}%")
    return worse


def contradictions(report: ValidationReport) -> list[str]:
    """Name the runs whose memory verdict contradicts what happened."""
    memory = report.memory
    ran = [f"{name} ran and is judged does_not_fit" for name in memory.ran_but_does_not_fit]
    return ran + [f"{name} ran out of memory and is judged fits" for name in memory.died_but_fits]
