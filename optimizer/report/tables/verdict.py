"""The verdict on a given layout, and the checks of a verification."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from layoutopt.optimizer.report.tables.answer import layout_section, price_sections, question_text
from layoutopt.optimizer.report.tables.console import bullets, facts, grid, section, verdict_text
from layoutopt.optimizer.specs.units import format_seconds

if TYPE_CHECKING:
    from rich.console import RenderableType

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


def judgement_tables(
    judgement: Judgement, workload: Workload, cluster: ClusterSpec, preset: FrameworkPreset, *, framework: str
) -> RenderableType:
    """Show the verdict, every reason with the nearest valid values, and the price."""
    parts: list[RenderableType] = [question_text(workload, cluster, framework), headline(judgement)]
    if judgement.reasons:
        parts.append(section(REASONS[judgement.verdict.value], bullets(judgement.reasons)))
    parts.append(layout_section(judgement.layout))
    if judgement.estimate is not None:
        parts.extend(price_sections(judgement.layout, judgement.estimate, preset, workload))
    if judgement.warnings:
        parts.append(section("Notes", bullets(judgement.warnings)))
    return Group(*parts)


def headline(judgement: Judgement) -> Text:
    """Verdict, step time and memory on one line."""
    line = Text.assemble(verdict_text(judgement.verdict.value))
    priced = judgement.estimate
    if priced is not None:
        memory = priced.memory
        used = f"{memory.peak_bytes / 1e9:.1f} of {memory.capacity_bytes / 1e9:.1f} GB"
        supposed = " if it ran" if judgement.verdict.value == "invalid" else ""
        line.append(
            f": {priced.step_time_s:.6g} s per step{supposed}, {used} on the fullest rank", style="bold"
        )
    return line


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
