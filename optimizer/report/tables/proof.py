"""What was proven, over which space, and how each part of it was excluded."""

from __future__ import annotations

from math import log10
from typing import TYPE_CHECKING

from layoutopt.optimizer.report.tables.console import facts
from layoutopt.optimizer.specs.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.table import Table

    from layoutopt.optimizer.solve.certificate import Certificate
    from layoutopt.optimizer.solve.plan import Plan

SHOWN_RULES = 4


def gap_words(gap: float | None) -> str:
    """Write a gap; what rounds to nothing is none."""
    if gap is None:
        return "unknown"
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
