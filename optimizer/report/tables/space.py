"""The declared space on the terminal: axes, what the rules remove, how much is left."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from layoutopt.optimizer.report.tables.console import facts, grid, section
from layoutopt.optimizer.report.tables.header import header_table
from layoutopt.optimizer.space.openable import openable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from layoutopt.optimizer.space.enumeration import Space
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.workload import Workload


def space_tables(space: Space, workload: Workload, cluster: ClusterSpec, *, framework: str) -> RenderableType:
    """Show each axis with its range, the tuples that each rule removes, and the size of what is searched."""
    counts = space.counts
    axes = grid(
        ["axis", "values", "range"],
        [(row.axis, str(row.values), row.range_text) for row in space.axes_table()],
        left=(0, 2),
    )
    rows = [
        ("declared", f"{counts.declared_degrees:,}", f"{counts.declared_tuples:,}"),
        *((f"removed by {rule.rule}", f"{rule.degrees:,}", f"{rule.tuples:,}") for rule in counts.removed),
        ("left to search", f"{counts.remaining_degrees:,}", f"{counts.remaining_tuples:,}"),
    ]
    parts: list[RenderableType] = [
        header_table(workload, cluster, framework),
        section("Axes", axes),
        *_openable_sections(space),
        section("Tuples", grid(["", "of degrees", "with modifiers"], rows)),
    ]
    joint = space.joint_assignments_log10
    if isfinite(joint):
        layouts = f"about 10^{joint:.1f} layouts with their layer splits and recompute counts"
        parts.append(section("Size", facts([("joint", layouts), ("stages", _stage_words(space))])))
    if space.empty is not None:
        parts.append(section("Empty", Text(space.empty.message)))
    return Group(*parts)


def _openable_sections(space: Space) -> Iterator[RenderableType]:
    """List what is not searched unless it is opened, apart where results differ with it."""
    found = openable(space.axes)
    for title, changes in (
        ("Not searched, results are the same", False),
        ("Not searched, results differ", True),
    ):
        rows = [
            (one.name, ", ".join(one.values), f"{one.meaning}; {one.opened_by}")
            for one in found
            if one.changes_numbers is changes
        ]
        if rows:
            yield section(title, grid(["axis", "values", "meaning; what opens it"], rows, left=(0, 1, 2)))


def _stage_words(space: Space) -> str:
    rule, launched = space.stage_rule, space.ctx.launch_rule
    words = f"split of layers {_words(rule.split)}, recomputed layers {_words(rule.recomputation)}"
    if launched.launchable is not rule.split or launched.recomputation is not rule.recomputation:
        words += f"; searched so, the framework launches {_words(launched.launchable)} splits and recomputes "
        words += _words(launched.recomputation)
    return words


def _words(value: str) -> str:
    return str(value).replace("_", " ")
