"""The main chart of a plan, of a sweep and of a training plan as one picture in SVG."""

from __future__ import annotations

from textwrap import wrap
from typing import TYPE_CHECKING

from layoutopt.optimizer.report.html.markup import Markup, joined
from layoutopt.optimizer.report.html.memory import GB, grouped_bytes, memory_message
from layoutopt.optimizer.report.html.palette import MEMORY
from layoutopt.optimizer.report.html.step import SHOWN_SHARE, step_message, step_parts
from layoutopt.optimizer.report.html.svg import (
    SIZE_PX,
    Scale,
    bar,
    bottom_axis,
    document,
    left_axis,
    legend,
    stroke,
    ticks,
    words,
)
from layoutopt.optimizer.report.tables.header import run_words
from layoutopt.optimizer.report.tables.layout import layout_text
from layoutopt.optimizer.solve.inputs import question_from_plain
from layoutopt.optimizer.specs.errors import input_error
from layoutopt.optimizer.specs.units import format_seconds

if TYPE_CHECKING:
    from layoutopt.optimizer.cost.estimate import Estimate, MemoryEstimate
    from layoutopt.optimizer.solve.plan import Plan

WIDTH = 960.0
MARGIN = 24.0
PANEL_TOP = 130.0
PANEL_HEIGHT = 300.0
ROW_PX = 32.0
MAX_ROW_PX = 44.0
SHARE_PX = 52.0
TEXT_PX = 13.0
MAX_LETTERS = 130


def solve_picture(plan: Plan) -> str:
    """Draw where the step time goes and what fills the memory; raises ``InputError`` without a layout."""
    if plan.layout is None or plan.estimate is None:
        raise input_error("there is no layout to draw", "a solve that finds one", key="--plot")
    question = question_from_plain(plan.inputs)
    estimate = plan.estimate
    asked = run_words(question.workload, question.options.framework.value)
    title = (
        f"{question.workload.model.name} on {question.cluster.gpu_count:,} x {question.cluster.gpu.name}: "
        f"{format_seconds(estimate.step_time_s)} per step, MFU {estimate.mfu_causal:.1%} (causal)"
    )
    # Both panels grow with the parts of the step, so that no label is cut off.
    rows = sum(value >= SHOWN_SHARE * estimate.step_time_s for _, _, value in step_parts(estimate))
    height = max(PANEL_HEIGHT, ROW_PX * rows)
    head = heading(title, asked, *wrapped(layout_text(plan.layout)))
    left = step_panel(estimate, MARGIN, 420.0, height)
    right = memory_panel(estimate.memory, 510.0, WIDTH - MARGIN, height)
    description = f"{asked}. {step_message(estimate)} {memory_message(estimate.memory)}"
    return document(WIDTH, PANEL_TOP + height + 60, title, description, head, left, right)


def heading(title: str, *lines: str) -> Markup:
    """Write a picture's title with smaller lines below."""
    parts = [words(title, MARGIN, 34, size=18, bold=True)]
    parts += [
        words(line, MARGIN, 54 + 17 * index, size=SIZE_PX, colour="muted") for index, line in enumerate(lines)
    ]
    return joined(parts)


def wrapped(line: str) -> list[str]:
    """Break a line that would leave the picture."""
    return wrap(line, MAX_LETTERS, break_long_words=False, break_on_hyphens=False)


def step_panel(estimate: Estimate, left: float, right: float, height: float) -> Markup:
    """Draw a bar for each component of the step time."""
    step = estimate.step_time_s
    shown = [part for part in step_parts(estimate) if part[2] >= SHOWN_SHARE * step]
    longest = max(value for _, _, value in shown)
    scale = Scale(low=0.0, high=longest, start=left, end=right)
    # A few parts stand together instead of being spread over the panel.
    row_px = min(height / len(shown), MAX_ROW_PX)
    parts = [words("Where the step time goes", left, PANEL_TOP - 6, size=TEXT_PX, bold=True)]
    for index, (name, component, value) in enumerate(shown):
        y = PANEL_TOP + 16 + index * row_px
        parts.append(words(component, left, y))
        parts.append(words(format_seconds(value), right - SHARE_PX, y, anchor="end", bold=True))
        parts.append(words(f"{value / step:.1%}", right, y, anchor="end"))
        parts.append(bar(left, y + 4, scale(value) - left, min(row_px * 0.4, 14.0), name.record.hue))
    return joined(parts)


def memory_panel(memory: MemoryEstimate, left: float, right: float, height: float) -> Markup:
    """Draw a stacked bar for each pipeline rank against the capacity."""
    ranks = [grouped_bytes(stage) for stage in memory.stages]
    used = [group for group in MEMORY if any(rank[group] > 0 for rank in ranks)]
    capacity = memory.capacity_bytes / GB
    top = max(capacity, *(sum(rank.values()) / GB for rank in ranks)) * 1.08
    base = PANEL_TOP + height
    y = Scale(low=0.0, high=top, start=base, end=PANEL_TOP + 62)
    x = Scale(low=-0.5, high=len(ranks) - 0.5, start=left + 34, end=right)
    shown = [(value, f"{value:g}") for value in ticks(0.0, top)]
    # More than a dozen numbers run into each other.
    every = max(1, -(-len(ranks) // 12))
    parts = [
        words("Memory of each pipeline rank", left, PANEL_TOP - 6, size=TEXT_PX, bold=True),
        legend({group: MEMORY[group] for group in used}, left, right, PANEL_TOP + 14),
        left_axis(y, left + 34, right, shown, "GB"),
        bottom_axis(x, base, [(rank, str(rank)) for rank in range(0, len(ranks), every)], "pipeline rank"),
        *(_stack(rank, index, used, x, y) for index, rank in enumerate(ranks)),
        stroke(
            [(left + 34, y(capacity)), (right, y(capacity))], "ink", stroke_width=1.5, stroke_dasharray="6 4"
        ),
        words(f"usable {capacity:.1f} GB", right, y(capacity) - 5, anchor="end"),
    ]
    return joined(parts)


def _stack(rank: dict[str, float], index: int, used: list[str], x: Scale, y: Scale) -> Markup:
    step = x(1.0) - x(0.0)
    width = min(step * 0.88, 70.0)
    parts, below = [], 0.0
    for group in used:
        above = below + rank[group] / GB
        parts.append(bar(x(index) - width / 2, y(above), width, y(below) - y(above), MEMORY[group]))
        below = above
    return joined(parts)
