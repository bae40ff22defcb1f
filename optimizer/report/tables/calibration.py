"""What a calibration found, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from layoutopt.optimizer.report.tables.console import bullets, grid, section

if TYPE_CHECKING:
    from rich.console import RenderableType

    from layoutopt.optimizer.evidence.calibration import Calibration


def calibration_tables(found: Calibration) -> Group:
    """Show errors before and after, every run, the constants with their sources, and what was tried."""
    parts: list[RenderableType] = [_headline(found), _runs(found), _constants(found)]
    if found.trials:
        rows = [
            (trial.name, f"{trial.value:.4g}", _percent(trial.left_out_without), _percent(trial.left_out_with),
             "taken" if trial.accepted else "not taken")
            for trial in found.trials
        ]  # fmt: skip
        note = "% off of each run predicted from the others"
        parts.append(section("Tried", grid(("constant", "value", "without", "with", ""), rows), note=note))
    if found.warnings:
        parts.append(section("Warnings", bullets(found.warnings)))
    return Group(*parts)


def _headline(found: Calibration) -> Text:
    text = (
        f"{len(found.runs)} run{'s' * (len(found.runs) > 1)}: predictions were {_percent(found.before.mape)}% off in the "
        f"mean, now {_percent(found.after.mape)}%"
    )
    if found.left_out is not None:
        text += f"; each run predicted from the others: {_percent(found.left_out)}%"
    return Text(text)


def _runs(found: Calibration) -> RenderableType:
    rows = [
        (f"{run.measured_s:.4g}", f"{run.before_s:.4g}", f"{run.after_s:.4g}",
         f"{100 * (run.after_s / run.measured_s - 1):+.1f}", f"{run.weight:.2f}" + (" outlier" if run.outlier else ""),
         run.case.run.id)
        for run in found.runs
    ]  # fmt: skip
    columns = ("measured, s", "before, s", "after, s", "error, %", "weight", "run")
    return section(
        "Runs", grid(columns, rows, left=(5,))
    )  # names of runs are long, and may wrap in the last column


def _constants(found: Calibration) -> RenderableType:
    rows = [(name, f"{entry.value:.4g}", entry.source) for name, entry in sorted(found.values.items())]
    return section("Constants", grid(("constant", "value", "from"), rows, left=(0, 2)))


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}"
