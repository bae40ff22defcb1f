"""Constants from a profile on the terminal, and what they change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group

from layoutopt.optimizer.report.tables.console import bullets, grid, section
from layoutopt.optimizer.report.tables.layout import layout_text
from layoutopt.optimizer.specs.units import format_seconds

if TYPE_CHECKING:
    from rich.console import RenderableType

    from layoutopt.optimizer.diagnose.constants import TermCalibration
    from layoutopt.optimizer.diagnose.outlook import Outlook


def term_calibration_tables(found: TermCalibration, ahead: Outlook) -> RenderableType:
    """Show every constant with its term, and the optimum that follows."""
    return Group(constants_tables(found), section("Then", bullets(outlook_lines(ahead))))


def constants_tables(found: TermCalibration) -> RenderableType:
    """Show every constant with its term."""
    rows = [
        (
            fit.name, f"{fit.present:.4g}", f"{fit.value:.4g}" if fit.taken else "stays", f"{fit.sigma:.0%}",
            format_seconds(fit.measured_s), format_seconds(fit.after_s), fit.term,
        )
        for fit in found.fits
    ]  # fmt: skip
    columns = ["constant", "was", "is", "+-", "measured", "predicted", "from"]
    step = f"step {format_seconds(found.before_s)} before, {format_seconds(found.after_s)} after"
    parts: list[RenderableType] = [section("Calibration", grid(columns, rows, left=(0, 6)), note=step)]
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
