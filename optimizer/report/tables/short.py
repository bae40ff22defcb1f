"""The answer of ``solve`` and ``evaluate`` on one screen: what to run, on what, how fast, how sure, and what next.

Everything else is detail, behind ``-v``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutopt.optimizer.cost.components import Group, in_group
from layoutopt.optimizer.evidence.ties import INDISTINCT
from layoutopt.optimizer.report.tables.console import facts, grid, section
from layoutopt.optimizer.report.tables.header import header_pairs
from layoutopt.optimizer.report.tables.layout import layout_text, stage_rows
from layoutopt.optimizer.report.tables.step_time import run_length_words
from layoutopt.optimizer.specs.units import format_count, format_seconds, format_span, rough

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rich.console import RenderableType
    from rich.text import Text

    from layoutopt.optimizer.cost.estimate import Estimate, MemoryEstimate
    from layoutopt.optimizer.evidence.honesty import Honesty
    from layoutopt.optimizer.solve.plan import Alternative, Plan
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.layout import Layout
    from layoutopt.optimizer.specs.model import TrainingSpec
    from layoutopt.optimizer.specs.workload import Workload

SHOWN_STAGES = 5
"""Groups of equal pipeline ranks on the first screen; more are counted."""

SHOWN_SHARE = 0.005
"""Parts of the step below this share are left to ``-v``."""

LEAST_WORTH = 0.001
"""Share of the step from which what a switch is worth is written as a number."""

SHOWN_PARTS = 3
"""Parts of the step named beside compute."""

UNMEASURED = "?"
"""Marks an interval of a kind that nobody measured."""

COMFORTABLE = "comfortable"
"""Marks a near-tie whose memory fits with room where the answer's is borderline."""


def answer_table(
    layout: Layout | None,
    estimate: Estimate | None,
    workload: Workload,
    cluster: ClusterSpec,
    framework: str,
    worth: Mapping[str, float] | None = None,
) -> RenderableType:
    """Show what was asked, the layout with its stages, the speed, and the memory with what is left of it.

    ``worth`` is how much slower the step is without each launch switch.
    """
    pairs = header_pairs(workload, cluster, framework)
    if layout is not None:
        pairs.append(("layout", layout_text(layout)))
        # A single stage without recomputation holds the whole model: there is nothing to say of it.
        if layout.pp > 1 or any(stage.recomputed for stage in layout.stages):
            pairs.append(("stages", stage_words(layout)))
    if worth:
        pairs.append(("switches", worth_words(worth)))
    if estimate is not None:
        pairs.append(("speed", speed_words(estimate)))
        pairs.append(("memory", memory_words(estimate.memory)))
        pairs.extend(run_pair(estimate, workload.training))
    return facts(pairs)


def worth_words(worth: Mapping[str, float]) -> str:
    """Say what the step takes more without each switch, those that matter most first."""
    ranked = sorted(worth.items(), key=lambda item: -abs(item[1]))
    told = [(name, more) for name, more in ranked if abs(more) >= LEAST_WORTH]
    words = [f"without {name} {more:+.1%}" for name, more in told]
    # Switches worth nothing are named all the same: they stand in the layout, and a reader would ask.
    few = [name for name, more in ranked if abs(more) < LEAST_WORTH]
    return ", ".join([*words, *([f"{', '.join(few)}: under {LEAST_WORTH:.1%}"] if few else [])])


def stage_words(layout: Layout) -> str:
    """Write the pipeline ranks with their layers: ``rank 0: 7 layers, embedding; 1-14: 8; 15: 7, head``."""
    names, rows, _ = stage_rows(layout)
    words = []
    for number, row in enumerate(rows[:SHOWN_STAGES]):
        cells = dict(zip(names, row, strict=True))
        first = not number
        text = f"{'rank ' if first else ''}{cells['ranks']}: {cells['layers']}{' layers' if first else ''}"
        text += f", {cells['recomputed']} recomputed" if cells["recomputed"] != "0" else ""
        text += f" ({cells['chunks']})" if cells.get("chunks") else ""
        words.append(text + (f", {cells['holds']}" if cells.get("holds") else ""))
    if len(rows) > SHOWN_STAGES:
        words.append(f"{len(rows) - SHOWN_STAGES} more groups of ranks (-v)")
    return "; ".join(words)


def speed_words(estimate: Estimate) -> str:
    """Write the rate, both counts of MFU, and what takes the step."""
    rate = f"{rough(estimate.tokens_per_s_per_gpu):,.0f} tokens/s/GPU, "
    mfu = f"MFU {estimate.mfu_causal:.1%} (causal; {estimate.mfu_full:.1%} counting full attention); "
    return rate + mfu + parts_words(estimate)


def parts_words(estimate: Estimate) -> str:
    """Name what takes the step: compute, and what else is worth naming."""
    step = estimate.step_time_s
    compute = in_group(Group.COMPUTE)
    words = [f"{sum(estimate.breakdown_s[part] for part in compute) / step:.0%} compute"]
    others = {part: time for part, time in estimate.breakdown_s.items() if part not in compute}
    ranked = sorted(others.items(), key=lambda item: -item[1])[:SHOWN_PARTS]
    words += [f"{time / step:.1%} {part.words}" for part, time in ranked if time > SHOWN_SHARE * step]
    return ", ".join(words)


def memory_words(memory: MemoryEstimate) -> str:
    """Write the fullest rank's memory, its share, and the room that is left, or what is missing."""
    fullest = max(memory.stages, key=lambda stage: stage.total_bytes)
    left = (memory.capacity_bytes - memory.peak_bytes) / 1e9
    room = f"{left:.1f} GB left" if left >= 0 else f"{-left:.1f} GB too much"
    share = memory.peak_bytes / memory.capacity_bytes
    return (
        f"{memory.peak_bytes / 1e9:.1f} of {memory.capacity_bytes / 1e9:.1f} GB usable ({share:.0%}), {room}; "
        f"rank {fullest.rank} is the fullest"
    )


def run_pair(estimate: Estimate, training: TrainingSpec) -> list[tuple[str, str]]:
    """Say how long the whole run takes, for the tokens that were stated."""
    return [("run", words) for words in run_length_words(estimate, training)]


def ties_section(plan: Plan, honesty: Honesty | None) -> RenderableType:
    """Show the near-ties with time, memory and what sets them apart."""
    limit = honesty.band.indistinct if honesty is not None else 0.0
    rows = [
        (
            f"+{other.slower:.2%}",
            format_seconds(other.estimate.step_time_s),
            _memory(plan, other),
            main_cause(other.why),
        )
        for other in plan.alternatives
    ]
    note = f"less than {limit:.0%} apart is {INDISTINCT}" if limit else ""
    # A proof may end before all near-ties are told: how many may be as near belongs beside those that are.
    if plan.open_ties:
        note = "; ".join(filter(None, (f"{format_count(plan.open_ties)} tuples may be as near", note)))
    return section("Near-ties", grid(["slower", "step", "memory", "differs in"], rows, left=(3,)), note=note)


def main_cause(why: str) -> str:
    """Return what sets a near-tie apart with its largest cause alone; the others are detail."""
    axes, colon, causes = why.rpartition(": ")
    return f"{axes}{colon}{causes.split(', ')[0]}"


def _memory(plan: Plan, other: Alternative) -> str:
    memory = other.estimate.memory
    share = f"{memory.peak_bytes / memory.capacity_bytes:.0%}"
    return f"{share} {COMFORTABLE}" if is_comfortable(plan, other) else share


def is_comfortable(plan: Plan, other: Alternative) -> bool:
    """Tell whether a near-tie has room in memory where the answer has none to speak of."""
    memory = other.estimate.memory
    return (
        plan.verdict is not None
        and plan.verdict.value == "borderline"
        and memory.peak_bytes < memory.borderline_bytes
    )


def step_words(line: Text, estimate: Estimate, honesty: Honesty | None) -> Text:
    """Add a step time to a status or verdict, with the interval in which four of five such runs are expected."""
    line.append(f": {format_seconds(estimate.step_time_s)} per step", style="bold")
    if honesty is not None:
        line.append(f" (80% interval {interval_words(estimate, honesty)})")
    return line


def interval_words(estimate: Estimate, honesty: Honesty) -> str:
    """Write the step times between which four of five runs predicted so are expected."""
    return format_span(*honesty.intervals_s(estimate.step_time_s)["80"])


def interval_cell(low_s: float | None, high_s: float | None, measured_runs: int | None) -> str:
    """Write an 80% interval of a table's step, marked where no measured run of its kind stands behind it."""
    if low_s is None or high_s is None:
        return "-"
    return f"{low_s:.3g} to {high_s:.3g}{'' if measured_runs else f' {UNMEASURED}'}"


def interval_note(measured_runs: Iterable[int | None]) -> str:
    """Explain the mark of ``interval_cell`` where a row of a table bears it; None: a row without an interval."""
    marked = any(runs == 0 for runs in measured_runs)
    return (
        f"{UNMEASURED}: no measured run of this kind, hence the wider interval of its family and all kinds"
        if marked
        else ""
    )
