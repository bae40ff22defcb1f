"""The declared space, and what was proven over it: axes, rules, and how each part was excluded."""

from __future__ import annotations

from math import isfinite, log10
from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from layoutopt.optimizer.report.tables.console import facts, grid, section
from layoutopt.optimizer.report.tables.header import header_table
from layoutopt.optimizer.space.openable import openable
from layoutopt.optimizer.specs.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rich.console import RenderableType
    from rich.table import Table

    from layoutopt.optimizer.solve.certificate import Certificate
    from layoutopt.optimizer.solve.plan import Plan
    from layoutopt.optimizer.space.enumeration import Space
    from layoutopt.optimizer.space.openable import Openable
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.workload import Workload


SHOWN_RULES = 4


def gap_words(gap: float | None) -> str:
    """Write a gap; what rounds to nothing is none."""
    if gap is None:
        return "unknown"
    # Smaller gaps are the rounding of the solver's integers.
    return "none" if gap < 5e-7 else f"{gap:.2%}" if gap >= 5e-5 else f"{gap:.1e}"


def rough_count(count: int) -> str:
    """Write small counts whole and large ones as a power of ten."""
    return f"{count:,}" if count < 10**9 else f"about 10^{log10(count):.0f}"


def proof_table(plan: Plan) -> Table:
    """Show the size of the space, what excluded its tuples, the bound, and the hashes that ``verify`` compares."""
    return facts(proof_pairs(plan))


def proof_pairs(plan: Plan) -> list[tuple[str, str]]:
    """Return names and values of the table of the proof."""
    record = plan.certificate
    versions = record.versions
    return [
        ("declared", f"{record.declared_tuples:,} tuples of degrees and modifiers"),
        ("by rules", _rules(record.removed_by_rule)),
        *([("equivalent", f"{record.removed_by_equivalence:,}")] if record.removed_by_equivalence else []),
        ("left", f"{record.tuples:,} on {record.degree_tuples:,} degree tuples; {_joint(record)}"),
        ("by memory", f"{record.removed_by_memory:,} fit with no split of the layers"),
        _rest(plan),
        ("solved", f"{record.solved:,} by their stages ({record.solver_status.lower()})"),
        ("bound", _bound(record)),
        ("hashes", f"table {record.table_sha256[:12]}, inputs {record.inputs_sha256[:12]}"),
        ("made with", f"layoutopt {versions.layoutopt}, cost model {versions.cost_model[:12]}, "
                      f"OR-Tools {versions.ortools}"),
        ("time", format_seconds(plan.solve_time_s)),
    ]  # fmt: skip


def _rest(plan: Plan) -> tuple[str, str]:
    """Name the tuples that were neither solved nor found too large for the memory."""
    count = plan.certificate.removed_by_bound
    # A search that was stopped has looked at some of the rest alone, and can't claim that none is faster.
    if plan.status.value == "stopped":
        return "the rest", f"{count:,} cannot be faster, or were not examined"
    return "by bound", f"{count:,} cannot be faster"


def _joint(record: Certificate) -> str:
    return f"with their stages {rough_count(record.joint_assignments)} layouts"


def _rules(removed: Mapping[str, int]) -> str:
    """Name the rules that removed most."""
    ranked = sorted(removed.items(), key=lambda item: -item[1])
    named = [f"{name} {count:,}" for name, count in ranked[:SHOWN_RULES] if count]
    others = sum(count for _, count in ranked[SHOWN_RULES:])
    if others:
        named.append(f"{len(ranked) - SHOWN_RULES} others {others:,}")
    return f"{sum(removed.values()):,} cannot be launched: {', '.join(named)}" if named else "0"


def _bound(record: Certificate) -> str:
    if record.bound_s is None:
        return "none: nothing fits" if record.solver_status == "INFEASIBLE" else "unknown"
    rounding = f", rounded by at most {format_seconds(record.rounding_s)}" if record.rounding_s else ""
    return f"no layout takes less than {record.bound_s:.6g} s{rounding}; gap {gap_words(record.gap)}"


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
    """List what is not searched unless it is opened, apart what can't be better, and where results differ with it."""
    found = openable(space.axes)
    for title, of in (
        ("Not searched, covered by the proof", [one for one in found if one.covered_by]),
        (
            "Not searched, results are the same",
            [one for one in found if not (one.covered_by or one.changes_numbers)],
        ),
        ("Not searched, results differ", [one for one in found if one.changes_numbers]),
    ):
        rows = [(one.name, ", ".join(one.values), _closed_words(one)) for one in of]
        if rows:
            yield section(
                title, grid(["axis", "values", "meaning; why not; what opens it"], rows, left=(0, 1, 2))
            )


def _closed_words(one: Openable) -> str:
    rule = f" ({one.covered_by})" if one.covered_by else ""
    return "; ".join(part for part in (one.meaning, one.closed_since + rule, one.opened_by) if part)


def _stage_words(space: Space) -> str:
    rule, launched = space.stage_rule, space.ctx.launch_rule
    words = f"split of layers {_words(rule.split)}, recomputed layers {_words(rule.recomputation)}"
    # A search may be narrower than the trainer: a proof that hides it would claim more than it shows.
    if launched.launchable is not rule.split or launched.recomputation is not rule.recomputation:
        words += f"; searched so, the framework launches {_words(launched.launchable)} splits and recomputes "
        words += _words(launched.recomputation)
    return words


def _words(value: str) -> str:
    return str(value).replace("_", " ")
