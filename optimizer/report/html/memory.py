"""Memory of every pipeline rank, stacked by component, against what a GPU offers tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutopt.optimizer.report.html.chart import Chart, Figure, axis, label, layout
from layoutopt.optimizer.report.html.markup import Table
from layoutopt.optimizer.report.html.palette import MEMORY, variable

if TYPE_CHECKING:
    from layoutopt.optimizer.cost.estimate import MemoryEstimate, RankMemory

GROUPS = {
    "weights": ("weights",),
    "gradients": ("gradients",),
    "optimizer state": ("optimizer",),
    "activations": ("activations", "recompute_transient"),
    "logits": ("logits",),
}
"""Components of each group; all others are buffers."""

BUFFERS = "buffers"
GB = 1e9
WIDE_BAR = 0.45
"""Width of a bar beside few others, which would be walls otherwise."""


def grouped_bytes(stage: RankMemory) -> dict[str, float]:
    """Return a rank's bytes by group; they sum to its total."""
    parts = stage.components_bytes
    groups = {group: sum(parts.get(name, 0.0) for name in names) for group, names in GROUPS.items()}
    known = {name for names in GROUPS.values() for name in names}
    return groups | {BUFFERS: sum(value for name, value in parts.items() if name not in known)}


def memory_chart(memory: MemoryEstimate) -> Chart:
    """Draw every rank's memory in GB against the capacity."""
    ranks = [grouped_bytes(stage) for stage in memory.stages]
    used = [group for group in MEMORY if any(rank[group] > 0 for rank in ranks)]
    return Chart(
        key="memory",
        title="Memory of each pipeline rank",
        message=memory_message(memory),
        description=f"Stacked bars, one per pipeline rank, GB per GPU by component, against the usable "
        f"{memory.capacity_bytes / GB:.1f} GB. {memory_message(memory)}",
        drawing=_figure(memory, ranks, used),
        legend=[(group, MEMORY[group]) for group in used],
        table=_table(memory, ranks, used),
        note="GB of 1e9 bytes per GPU, at the peak of the step. Usable is what the GPU leaves to tensors after context, "
        "communication buffers, fragmentation and reserve.",
    )


def memory_message(memory: MemoryEstimate) -> str:
    """Say how full the fullest rank is, and the emptiest."""
    fullest = max(memory.stages, key=lambda stage: stage.total_bytes)
    emptiest = min(memory.stages, key=lambda stage: stage.total_bytes)
    share = fullest.total_bytes / memory.capacity_bytes
    words = f"{fullest.total_bytes / GB:.1f} of {memory.capacity_bytes / GB:.1f} GB usable ({share:.0%})"
    # Ranks within half a percent are no difference to name.
    if emptiest.total_bytes > 0.995 * fullest.total_bytes:
        return f"Every rank takes {words}." if len(memory.stages) > 1 else f"Tensors take {words}."
    least = f"{emptiest.total_bytes / GB:.1f} GB"
    return f"Rank {fullest.rank} is the fullest: {words}; rank {emptiest.rank} the emptiest: {least}."


def _figure(memory: MemoryEstimate, ranks: list[dict[str, float]], used: list[str]) -> Figure:
    places = [stage.rank for stage in memory.stages]
    bars = [
        {
            "type": "bar",
            "name": group,
            "x": places,
            "y": [round(rank[group] / GB, 3) for rank in ranks],
            "width": WIDE_BAR if len(ranks) < 4 else None,
            "marker": {"color": variable(MEMORY[group]), "line": {"width": 0.5, "color": variable("paper")}},
            "hovertemplate": "%{y:.2f} GB",
        }
        for group in used
    ]
    capacity = memory.capacity_bytes / GB
    top = max(capacity, *(sum(rank.values()) / GB for rank in ranks))
    # Between few ranks plotly would set ticks at halves.
    ticks = {"dtick": 1} if len(ranks) <= 12 else {}
    return {
        "data": bars,
        "layout": layout(
            340,
            x=axis("pipeline rank", showgrid=False, range=[-0.6, len(ranks) - 0.4], **ticks),
            # The capacity's label stands on its line, which may be the top.
            y=axis("GB per GPU", range=[0, top * 1.1]),
            barmode="stack",
            bargap=0.12,
            hovermode="x unified",
            shapes=[_capacity_line(capacity)],
            annotations=[
                label(
                    f"usable {capacity:.1f} GB",
                    x=0,
                    xref="paper",
                    xanchor="left",
                    y=capacity,
                    yanchor="bottom",
                )
            ],
        ),
    }


def _capacity_line(capacity: float) -> Figure:
    line = {"color": variable("ink"), "width": 1.5, "dash": "dash"}
    return {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": capacity, "y1": capacity, "line": line}


def _table(memory: MemoryEstimate, ranks: list[dict[str, float]], used: list[str]) -> Table:
    rows = []
    for stage, rank in zip(memory.stages, ranks, strict=True):
        cells = [f"{rank[group] / GB:.2f}" for group in used]
        share = stage.total_bytes / memory.capacity_bytes
        rows.append([str(stage.rank), *cells, f"{stage.total_bytes / GB:.2f}", f"{share:.1%}"])
    return Table(columns=["rank", *used, "total GB", "of usable"], rows=rows)
