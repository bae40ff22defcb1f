"""What a calibration found, from runs or from a profile, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from layoutopt.optimizer.report.tables.console import bullets, grid, percent, section
from layoutopt.optimizer.report.tables.layout import layout_text
from layoutopt.optimizer.specs.units import format_seconds

if TYPE_CHECKING:
    from rich.console import RenderableType

    from layoutopt.optimizer.diagnose.constants import TermCalibration
    from layoutopt.optimizer.diagnose.outlook import Outlook
    from layoutopt.optimizer.evidence.calibration import Calibration


def term_calibration_tables(found: TermCalibration, ahead: Outlook) -> RenderableType:
    """Show every constant with its term, and the optimum that follows."""
    return Group(constants_tables(found), section("Then", bullets(outlook_lines(ahead))))


def constants_tables(found: TermCalibration) -> RenderableType:
    """Show every constant with its term."""
    rows = [
        (
            fit.name, f"{fit.present:.4g}", f"{fit.value:.4g}" if fit.taken else "stays",
            "at bound" if fit.at_bound else f"{fit.sigma:.0%}",
            format_seconds(fit.measured_s), format_seconds(fit.after_s), fit.term,
        )
        for fit in found.fits
    ]  # fmt: skip
    columns = ["constant", "was", "is", "+-", "measured", "predicted", "from"]
    step = f"step {format_seconds(found.before_s)} before, {format_seconds(found.after_s)} after"
    parts: list[RenderableType] = [section("Calibration", grid(columns, rows, left=(0, 6)), note=step)]
    # Of constants that stay the reason is the answer: nobody else says that a profile told nothing of them.
    warned = [*(f"{fit.name}: {fit.reason}" for fit in found.fits if fit.reason), *found.warnings]
    if warned:
        parts.append(section("Warnings", bullets(warned)))
    return Group(*parts)


def outlook_lines(ahead: Outlook) -> list[str]:
    """Say what the optimum becomes within what the plan fixed and without it, and whether switching is worth it."""
    within = f", within the plan's --fix {' '.join(ahead.fixed)}" if ahead.fixed else ""
    lines = [f"no layout fits under these constants{within}"]
    if ahead.layout is not None:
        lines = _switching("the optimum becomes", ahead, within)
    if ahead.free is not None:
        lines += _switching("without --fix it would be", ahead.free, "")
    return lines


def _switching(words: str, ahead: Outlook, within: str) -> list[str]:
    assert ahead.layout is not None
    verdict = "more than" if ahead.worth_it else "not more than"
    return [
        f"{words} {layout_text(ahead.layout)}: {format_seconds(ahead.best_s)} per step, "
        f"{ahead.saving:.1%} less than the layout that ran{within}",
        f"that is {verdict} the {ahead.error:.1%} by which predictions and repeats still differ",
    ]


def calibration_tables(found: Calibration) -> Group:
    """Show errors before and after, every run, the constants with their sources, and what was tried."""
    parts: list[RenderableType] = [_headline(found), _runs(found), _constants(found)]
    if found.trials:
        rows = [
            (trial.name, f"{trial.value:.4g}", percent(trial.left_out_without), percent(trial.left_out_with),
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
        f"{len(found.runs)} run{'s' * (len(found.runs) > 1)}: predictions were {percent(found.before.mape)}% off in the "
        f"mean, now {percent(found.after.mape)}%"
    )
    if found.left_out is not None:
        text += f"; each run predicted from the others: {percent(found.left_out)}%"
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
