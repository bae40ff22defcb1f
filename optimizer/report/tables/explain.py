"""Explanations on the terminal: reasons, shares of memory, remedies, the way to the optimum, wishes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from layoutopt.optimizer.report.tables.answer import REASONS, headline, layout_section
from layoutopt.optimizer.report.tables.console import bullets, facts, grid, section
from layoutopt.optimizer.report.tables.header import header_table
from layoutopt.optimizer.report.tables.honesty import claim_size_words, claim_words, honesty_section
from layoutopt.optimizer.report.tables.layout import layout_text
from layoutopt.optimizer.report.tables.plan import suggestion_words
from layoutopt.optimizer.solve.explain.changes import DERIVED
from layoutopt.optimizer.specs.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType

    from layoutopt.optimizer.cost.estimate import Estimate
    from layoutopt.optimizer.evidence.honesty import Honesty
    from layoutopt.optimizer.interop.records import OutOfMemory
    from layoutopt.optimizer.solve.explain.records import Explanation, FullestRank, Gap, Remedy, WhyNot
    from layoutopt.optimizer.solve.plan import Plan
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.workload import Workload

MOST_REMEDIES = 8
GIB = 2.0**30


def explanation_tables(
    found: Explanation,
    workload: Workload,
    cluster: ClusterSpec,
    *,
    framework: str,
    wishes: Sequence[WhyNot] = (),
    died: Sequence[OutOfMemory] = (),
    honesty: Honesty | None = None,
) -> RenderableType:
    """Show why a layout gets its verdict, how sure its step is, and what the cheapest changes are."""
    judged = found.judgement
    parts: list[RenderableType] = [headline(judged, honesty), header_table(workload, cluster, framework)]
    if judged.reasons:
        parts.append(section(REASONS[judged.verdict.value], bullets(judged.reasons)))
    # The whole layout: a user's text may have left most of it open.
    parts.append(layout_section(judged.layout))
    if found.fullest is not None and judged.verdict.value != "fits":
        parts.append(_fullest_section(found.fullest))
    if died:
        parts.append(_died_section(died, found.fullest))
    if found.remedies:
        parts.append(_remedy_section(found.remedies))
    elif judged.verdict.value in ("invalid", "does_not_fit"):
        text = "no single change and no pair of changes makes it run; layoutopt solve says what does, or what would"
        parts.append(section("Remedies", Text(text)))
    parts.extend(_comparison(found, honesty))
    parts.extend(_wish_section(wish, honesty) for wish in wishes)
    if found.advice:
        parts.append(section("Runs, but costs", bullets(str(rule) for rule in found.advice)))
    if honesty is not None and judged.estimate is not None:
        parts.append(honesty_section(honesty, brief=True))
    return Group(*parts)


def _fullest_section(found: FullestRank) -> RenderableType:
    rows = [(part.name, f"{part.size_bytes / 1e9:.2f}", part.divided_by) for part in found.parts]
    rows.append(("all of it", f"{found.needed_bytes / 1e9:.2f}", ""))
    note = f"rank {found.rank}, {found.usable_bytes / 1e9:.2f} GB usable by tensors"
    return section("Fullest rank", grid(["component", "GB", "one share of"], rows, left=(0, 2)), note=note)


def _died_section(died: Sequence[OutOfMemory], fullest: FullestRank | None) -> RenderableType:
    """Put torch's own figures beside the predicted ones."""
    rows = []
    for message in died:
        place = "?" if message.gpu is None else str(message.gpu)
        # In GiB as torch prints them, so that the message can be laid beside the table.
        figures = (
            message.allocated_bytes,
            message.reserved_bytes,
            message.tried_bytes,
            message.capacity_bytes,
        )
        rows.append((place, *("-" if value is None else f"{value / GIB:.2f}" for value in figures)))
    parts: list[RenderableType] = [grid(["GPU", "allocated", "reserved", "tried", "capacity"], rows)]
    if fullest is not None:
        text = f"predicted on the fullest rank: {fullest.needed_bytes / GIB:.2f} of {fullest.usable_bytes / GIB:.2f} GiB"
        parts.append(Text(text))
    return section("Out-of-memory messages", *parts, note="GiB")


def _remedy_section(remedies: Sequence[Remedy]) -> RenderableType:
    rows = [
        (
            "-" if remedy.slower is None else f"{remedy.slower:+.1%}",
            format_seconds(remedy.estimate.step_time_s),
            f"{remedy.estimate.memory.peak_bytes / 1e9:.1f}",
            "; ".join([*_chosen(remedy.changes), *([remedy.note] if remedy.note else [])]),
        )
        for remedy in remedies[:MOST_REMEDIES]
    ]
    left = len(remedies) - len(rows)
    note = "everything else held, the least slow first" + (f"; {left} more with --json" if left > 0 else "")
    return section("Remedies", grid(["slower", "step", "GB", "change"], rows, left=(3,)), note=note)


def _chosen(changes: Sequence[str]) -> list[str]:
    """Leave out what only follows from other changes."""
    return [words for words in changes if words.split()[0] not in DERIVED] or list(changes)


def _comparison(found: Explanation, honesty: Honesty | None) -> Iterator[RenderableType]:
    """Show the way to the optimum of a layout that runs, and the optimum itself otherwise."""
    if found.gap is not None:
        best, given = found.optimum, found.judgement.estimate
        yield _gap_section(found.gap, _evidence(best, given, found.gap.slower, honesty))
    best = found.optimum
    if best is None:
        return
    if best.layout is None or best.estimate is None:
        message = (
            best.infeasibility.message
            if best.infeasibility
            else "none was found before the search was stopped"
        )
        yield section("Optimum", Text(message))
        if best.infeasibility and best.infeasibility.suggestions:
            yield section("What helps", bullets(map(suggestion_words, best.infeasibility.suggestions)))
        return
    text = layout_text(best.layout)
    yield section("Optimum", facts([("step", format_seconds(best.estimate.step_time_s)), ("layout", text)]))


def _evidence(best: Plan | None, slower: Estimate | None, gain: float, honesty: Honesty | None) -> list[str]:
    """Say what carries the gain of the best layout, the measured runs of each, and whether so large a gain is credible."""
    # Runs are counted, and errors recorded, of the full cost model alone; an optimum claims nothing over itself.
    if best is None or best.estimate is None or slower is None or honesty is None or gain <= 0:
        return []
    carried = claim_words(best.estimate, slower)
    return [*([carried] if carried else []), claim_size_words(gain, honesty.band)]


def _gap_section(gap: Gap, evidence: Sequence[str]) -> RenderableType:
    times = f"{format_seconds(gap.step_time_s)}, the optimum takes {format_seconds(gap.best_s)}"
    note = f"{times}: {gap.slower:+.1%}"
    if not gap.steps:
        return section("Gap to the optimum", Text("none: this is the optimum"), note=note)
    rows = [
        (f"{step.saved_s:+.3g}", format_seconds(step.step_time_s), "; ".join(_chosen(step.changes)), step.why)
        for step in gap.steps
    ]
    table = grid(["saves s", "step", "change", "because of"], rows, left=(2, 3))
    return section("Gap to the optimum, one change after the other", table, bullets(evidence), note=note)


def _wish_section(wish: WhyNot, honesty: Honesty | None) -> RenderableType:
    named = ", ".join(f"{axis}={','.join(map(str, values))}" for axis, values in wish.fixed.items())
    pairs = [("costs", _cost_words(wish)), ("because", wish.why)]
    if evidence := _evidence(wish.best, wish.plan.estimate, wish.slower or 0.0, honesty):
        pairs.append(("evidence", "; ".join(evidence)))
    if wish.plan.layout is not None:
        pairs.append(("layout", layout_text(wish.plan.layout)))
    failed = wish.plan.infeasibility
    if failed is not None and failed.conflict:
        pairs.append(("together", f"{', '.join(failed.conflict)} exclude each other"))
    return section(f"Why not {named}", facts(pairs))


def _cost_words(wish: WhyNot) -> str:
    if wish.slower is None or wish.plan.estimate is None:
        return "no layout runs with it"
    return f"{wish.slower:+.2%}: {format_seconds(wish.plan.estimate.step_time_s)} per step at best"
