"""The layout, memory and time of one priced layout, as ``solve`` and ``evaluate`` both show them."""

from __future__ import annotations

from itertools import groupby
from math import prod
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Group
from rich.text import Text

from layoutopt.optimizer.cost.batch import batch_of_one
from layoutopt.optimizer.cost.optimizers import moment_bytes
from layoutopt.optimizer.cost.schedules import SCHEDULES
from layoutopt.optimizer.cost.states import state_bytes
from layoutopt.optimizer.report.tables.console import bullets, facts, grid, section, verdict_text
from layoutopt.optimizer.report.tables.honesty import honesty_section
from layoutopt.optimizer.report.tables.layout import grouped_ranks, layout_text, stage_table
from layoutopt.optimizer.report.tables.short import answer_table, step_words
from layoutopt.optimizer.report.tables.step_time import breakdown_table, rates_table
from layoutopt.optimizer.specs.units import format_seconds

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from layoutopt.optimizer.cost.estimate import Estimate, MemoryEstimate
    from layoutopt.optimizer.evidence.honesty import Honesty
    from layoutopt.optimizer.frameworks.preset import FrameworkPreset
    from layoutopt.optimizer.solve.plan import Judgement
    from layoutopt.optimizer.solve.verify.report import VerifyReport
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.layout import Layout
    from layoutopt.optimizer.specs.workload import Workload


def layout_section(layout: Layout) -> RenderableType:
    """Show the degrees and the stages."""
    stages = stage_table(layout)
    return section("Layout", Text(layout_text(layout)), *([stages] if stages else []))


def price_sections(
    layout: Layout, estimate: Estimate, preset: FrameworkPreset, workload: Workload
) -> list[RenderableType]:
    """Show step time, rates, and memory by rank and component."""
    memory = estimate.memory
    note = f"GB per GPU, {memory.capacity_bytes / 1e9:.1f} usable by tensors"
    return [
        section("Step time", breakdown_table(estimate), Text(""), rates_table(estimate, workload.training)),
        section(
            "Memory",
            memory_table(memory),
            Text(""),
            divisor_table(layout, memory, preset, moe=workload.model.is_moe),
            note=note,
        ),
    ]


COLUMNS = {
    "weights": ("weights",),
    "grads": ("gradients",),
    "optim": ("optimizer",),
    "activ": ("activations", "recompute_transient"),
    "logits": ("logits",),
}
"""Columns of the table of ranks; what is in none of them counts as ``other``."""

FOLDED_ROWS = 4
"""Rows from which on those that differ in falling activations alone are folded to one."""

WORDS = {
    "weights": "weights",
    "gradients": "gradients",
    "optimizer": "optimizer state",
    "activations": "activations in flight",
    "recompute_transient": "one block while it is recomputed",
    "logits": "logits, loss, head's scratch",
    "transient": "working memory of one operation",
    "receive": "pipeline receive buffers",
    "outputs": "outputs that stages keep, and gradients sent",
    "delayed": "gradients that wait for weight gradients",
    "gathered": "gathered weights and gradients of ZeRO",
    "scratch_gradients": "scratch weight gradients",
    "graphs": "CUDA graphs",
    "left": "activations moving to the host, and what it has no room for",
}
"""The components of memory in words."""

_TOKENS = ("activations", "recompute_transient", "logits", "transient", "receive", "outputs", "delayed")


def memory_table(memory: MemoryEstimate) -> Table:
    """Show every rank's components in GB (1e9 bytes) and its share of usable memory.

    Equal neighbours share a line, as do many that differ in activations alone: pipelines hold fewer at every rank.
    """
    known = {name for names in COLUMNS.values() for name in names}
    rows = []
    for stage in memory.stages:
        parts = stage.components_bytes
        columns = [sum(parts.get(name, 0.0) for name in names) for names in COLUMNS.values()]
        columns.append(sum(value for name, value in parts.items() if name not in known))
        cells = [_gb(value) for value in (*columns, stage.total_bytes)]
        rows.append((*cells, f"{stage.total_bytes / memory.capacity_bytes:.1%}"))
    return grid(["rank", *COLUMNS, "other", "total", "of usable"], _folded(grouped_ranks(rows)))


def _folded(rows: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Join runs of rows that differ in activations, and so in totals, alone: from the first to the last value."""
    names = ["rank", *COLUMNS, "other", "total", "of usable"]
    fixed = [index for index, name in enumerate(names) if name not in ("rank", "activ", "total", "of usable")]
    folded: list[tuple[str, ...]] = []
    for _, members in groupby(rows, key=lambda row: [row[index] for index in fixed]):
        run = list(members)
        totals = [float(row[names.index("total")]) for row in run]
        # Only what falls from rank to rank is said by its first and last value.
        if len(run) < FOLDED_ROWS or totals != sorted(totals, reverse=True):
            folded.extend(run)
            continue
        ranks = f"{run[0][0].partition('-')[0]}-{run[-1][0].rpartition('-')[2]}"
        cells = zip(run[0][1:], run[-1][1:], strict=True)
        folded.append((ranks, *(first if first == last else _span(first, last) for first, last in cells)))
    return folded


def _span(first: str, last: str) -> str:
    """Write two numbers of one unit with fewer digits: ``37.6-30.7``, ``75-66%``."""
    unit, digits = ("%", 0) if first.endswith("%") else ("", 1)
    low, high = (f"{float(text.rstrip('%')):.{digits}f}" for text in (first, last))
    return f"{low}-{high}{unit}"


def divisor_table(layout: Layout, memory: MemoryEstimate, preset: FrameworkPreset, *, moe: bool) -> Table:
    """Show each component of the fullest rank in GB, bytes per parameter of the states, and what divides it.

    A rank holds its stage's parameters: pp and the split of layers divide the model before.
    """
    fullest = max(memory.stages, key=lambda stage: stage.total_bytes)
    states = divisors(layout, preset, moe=moe, weight_bytes=memory.weight_bytes)
    tokens = _token_divisor(layout)
    rows = []
    for name, value in sorted(fullest.components_bytes.items(), key=lambda item: -item[1]):
        if value > 0:
            size, by = states.get(name, ("", tokens if name in _TOKENS else ""))
            rows.append((WORDS.get(name, name), _gb(value), size, by))
    return grid([f"fullest rank ({fullest.rank})", "GB", "B/param", "divided by"], rows, left=(0, 3))


def divisors(
    layout: Layout, preset: FrameworkPreset, *, moe: bool, weight_bytes: float | None = None
) -> dict[str, tuple[str, str]]:
    """Return for weights, gradients and optimizer state the bytes per parameter and what divides them.

    Where a part is whole and a part sharded (gathered ZeRO weights), both are named. ``weight_bytes`` as in
    ``state_bytes``.
    """
    copies = SCHEDULES[layout.schedule].parameter_copies
    # As it was priced: savers and switches change what a parameter takes.
    preset = preset.saving(layout.savers).switched(layout.switches)
    moments = moment_bytes(preset)
    state = state_bytes(preset, batch_of_one(layout), moments, copies=copies, weight_bytes=weight_bytes)
    dense, expert = _shard_words(layout)
    words = {}
    for name in state.whole:
        whole, sharded = float(np.ravel(state.whole[name])[0]), float(np.ravel(state.sharded[name])[0])
        parts = [(whole, "tp", "ep*etp")] * (whole > 0) + [(sharded, f"tp*{dense}", f"ep*etp*{expert}")] * (
            sharded > 0
        )
        sizes = " + ".join(f"{size:g}" for size, _, _ in parts)
        words[name] = sizes, "; ".join(_axes_words(layout, axes, own, moe=moe) for _, axes, own in parts)
    return words


def _axes_words(layout: Layout, axes: str, expert_axes: str, *, moe: bool) -> str:
    text = f"{axes} = {_product(layout, axes):,}"
    return f"{text}, experts {expert_axes} = {_product(layout, expert_axes):,}" if moe else text


def _shard_words(layout: Layout) -> tuple[str, str]:
    """Name the ranks that share one copy of a dense and of an expert parameter."""
    if layout.hsdp_shard:
        return "hsdp", "ehsdp"
    copies = SCHEDULES[layout.schedule].parameter_copies
    # DualPipe keeps each stage on two ranks, which share its state like data-parallel ones.
    shared = f"{copies}*" if copies > 1 and layout.dp * layout.cp > 1 else ""
    return f"{shared}dp*cp", f"{shared}edp"


def _product(layout: Layout, axes: str) -> int:
    """Multiply the degrees of a product of axes; e... is the share that is left to experts."""
    outside = layout.ep * layout.etp
    hsdp = layout.hsdp_shard or 1
    values = {
        "hsdp": hsdp,
        "ehsdp": max(hsdp * layout.tp // outside, 1),
        "edp": max(layout.dp * layout.cp * layout.tp // outside, 1),
    }
    return prod(
        int(axis) if axis.isdecimal() else values[axis] if axis in values else int(getattr(layout, axis))
        for axis in axes.split("*")
    )


def _token_divisor(layout: Layout) -> str:
    """Say what divides a micro-batch's tokens."""
    axes = [name for name in ("tp", "cp") if getattr(layout, name) > 1]
    if not axes:
        return ""
    product = layout.tp * layout.cp
    text = f"{'*'.join(axes)} = {product}"
    return text if layout.sp or layout.tp == 1 else f"{text}, norms and residuals /{layout.cp} (no sp)"


def _gb(value_bytes: float) -> str:
    """Write GB with two decimals below 100."""
    size = value_bytes / 1e9
    # From 99.95 on two decimals would write 100.00, wider than the column's other figures.
    return "-" if value_bytes == 0 else f"{size:.1f}" if size >= 99.95 else f"{size:.2f}"


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
