"""The verdict on a given layout, and the checks of a verification."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from layoutopt.optimizer.report.tables.answer import layout_section, price_sections
from layoutopt.optimizer.report.tables.console import bullets, facts, grid, section, verdict_text
from layoutopt.optimizer.report.tables.honesty import honesty_section
from layoutopt.optimizer.report.tables.short import answer_table, step_words
from layoutopt.optimizer.specs.units import format_seconds

if TYPE_CHECKING:
    from rich.console import RenderableType

    from layoutopt.optimizer.evidence.honesty import Honesty
    from layoutopt.optimizer.frameworks.preset import FrameworkPreset
    from layoutopt.optimizer.solve.plan import Judgement
    from layoutopt.optimizer.solve.verify.report import VerifyReport
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.workload import Workload

REASONS = {
    "invalid": "Why it cannot run",
    "does_not_fit": "Why it does not fit",
    "borderline": "Why it is borderline",
    "fits": "Reasons",
}

NEXT = dict.fromkeys(
    ("invalid", "does_not_fit"),
    "layoutopt explain with the same words: the cheapest change that helps; layoutopt solve: the fastest layout that runs",
) | dict.fromkeys(
    ("borderline", "fits"),
    "layoutopt explain with the same words: what it loses to the optimum, and to what; -v: memory and time in parts",
)
"""What to ask after each verdict."""


def judgement_tables(
    judgement: Judgement,
    workload: Workload,
    cluster: ClusterSpec,
    preset: FrameworkPreset,
    *,
    framework: str,
    honesty: Honesty | None = None,
    verbose: bool = False,
) -> RenderableType:
    """Show the verdict, every reason with the nearest valid values, and the price; ``verbose`` adds where it goes."""
    parts: list[RenderableType] = [
        headline(judgement, honesty),
        answer_table(judgement.layout, judgement.estimate, workload, cluster, framework),
    ]
    if judgement.reasons:
        parts.append(section(REASONS[judgement.verdict.value], bullets(judgement.reasons)))
    if judgement.warnings:
        parts.append(section("Notes", bullets(judgement.warnings)))
    if honesty is not None and judgement.estimate is not None:
        parts.append(honesty_section(honesty, brief=True))
    parts.append(section("Next", bullets([NEXT[judgement.verdict.value]])))
    if verbose:
        parts.append(layout_section(judgement.layout))
        if judgement.estimate is not None:
            parts.extend(price_sections(judgement.layout, judgement.estimate, preset, workload))
    return Group(*parts)


def headline(judgement: Judgement, honesty: Honesty | None = None) -> Text:
    """Verdict, and the step time with its interval; of what cannot run only what it would be."""
    line = Text.assemble(verdict_text(judgement.verdict.value))
    if judgement.estimate is None:
        return line
    line = step_words(line, judgement.estimate, honesty)
    return line.append(" if it ran" if judgement.verdict.value in ("invalid", "does_not_fit") else "")


def verify_tables(report: VerifyReport, file: str) -> RenderableType:
    """Show every check with its outcome and reason."""
    outcome = Text.assemble((f"{file}: ", ""), verdict_text("accepted" if report.accepted else "rejected"))
    checks = grid(
        ["check", "", "reason"],
        [(check.name, "ok" if check.passed else "FAIL", check.reason) for check in report.checks],
        left=(0, 1, 2),
    )
    done = [
        ("tuples priced", f"{report.tuples:,} on {report.degree_rows:,} degree tuples"),
        ("even layouts", f"{report.even_layouts:,} priced"),
        ("stages solved", f"{report.solved_exactly:,} exactly"),
        ("time", format_seconds(report.seconds)),
    ]
    parts: list[RenderableType] = [outcome, section("Checks", checks)]
    if report.restrictions:
        parts.append(section("The claim is restricted to", bullets(report.restrictions)))
    if report.not_checked:
        parts.append(section("Not checked", bullets([f"not checked: {text}" for text in report.not_checked])))
    return Group(*parts, section("Work done", facts(done)))
