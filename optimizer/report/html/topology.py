"""The layout drawn on the network: nested blocks of GPUs, and in each the axes that its links join."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from layoutopt.optimizer.cost.components import TRAFFIC
from layoutopt.optimizer.cost.placement import layout_groups
from layoutopt.optimizer.report.html.chart import Chart
from layoutopt.optimizer.report.html.markup import Markup, Table, element
from layoutopt.optimizer.report.html.palette import AXES, variable
from layoutopt.optimizer.specs.units import format_oversubscription, format_rate, format_seconds
from layoutopt.optimizer.topology.links import load_links
from layoutopt.optimizer.topology.show import NVLINK, topology_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutopt.optimizer.cost.estimate import Estimate
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.layout import Layout
    from layoutopt.optimizer.topology.show import LevelRow

NAMES = {
    "tp": "tensor parallel",
    "cp": "context parallel",
    "ep": "expert parallel",
    "etp": "expert-tensor parallel",
    "dp": "data parallel",
    "pp": "pipeline parallel",
}
"""Axes in words."""

MAX_CELLS = 16
"""GPUs drawn one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """An axis on a level: groups grow ``factor``-fold to ``members`` ranks there; ``even`` when all groups do."""

    axis: str
    factor: float
    members: int
    even: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedLevel:
    """One level of the network with the axes whose groups it joins, innermost axis first."""

    row: LevelRow
    crossings: tuple[Crossing, ...]

    @property
    def name(self) -> str:
        """The level's name for people."""
        return "NVLink" if self.row.name == NVLINK else self.row.name


def placed_levels(chosen: Layout, cluster: ClusterSpec) -> tuple[PlacedLevel, ...]:
    """Tell which axes lie on which level of a cluster, from the node outward."""
    # Only the levels are used of the table: the smallest group is the quickest to price.
    levels = topology_table(cluster, load_links(cluster.calibration, alone=True), groups=[(1, 1)]).levels
    groups = layout_groups(chosen)
    axes = shown_axes(chosen)
    fewest = {
        axis: [int(getattr(groups, axis).members_within(level.gpus)[0]) for level in levels] for axis in axes
    }
    most = {
        axis: [int(getattr(groups, axis).most_within(level.gpus)[0]) for level in levels] for axis in axes
    }
    return tuple(_placed(level, index, axes, fewest, most) for index, level in enumerate(levels))


def shown_axes(chosen: Layout) -> list[str]:
    """Return the axes that split something, innermost first."""
    order = chosen.mesh_order.split("-")
    order = order if "ep" in order else ["ep", *order]
    axes = [axis for name in order for axis in ((name, "etp") if name == "ep" else (name,))]
    return [axis for axis in axes if getattr(chosen, axis) > 1]


def _placed(
    level: LevelRow, index: int, axes: Sequence[str], fewest: dict[str, list[int]], most: dict[str, list[int]]
) -> PlacedLevel:
    crossings = []
    for axis in axes:
        inside = fewest[axis][index - 1] if index else 1
        members = fewest[axis][index]
        # An axis crosses a level where more of a group meets inside its blocks than in those of the level below.
        if members > inside:
            # Blocks that cut groups unevenly hold more of some than of others.
            even = most[axis][index] == members and (index == 0 or most[axis][index - 1] == inside)
            crossings.append(Crossing(axis=axis, factor=members / inside, members=members, even=even))
    return PlacedLevel(row=level, crossings=tuple(crossings))


def topology_chart(chosen: Layout, estimate: Estimate, cluster: ClusterSpec) -> Chart:
    """Draw the levels of the network as boxes in boxes, each with the axes on its links."""
    levels = placed_levels(chosen, cluster)
    return Chart(
        key="topology",
        title="Which axis sits on which link",
        message=topology_message(levels),
        description=f"Nested boxes: the cluster's network levels from the outermost to one node's GPUs, each with the "
        f"parallel axes whose traffic crosses it. {topology_message(levels)}",
        drawing=_boxes(levels, chosen, cluster),
        table=_table(levels, chosen, estimate),
        note="x is by how much groups of an axis grow on a level (~ where blocks cut groups unevenly); bandwidth is one "
        "GPU's nominal share, one way, when all send at once.",
    )


def topology_message(levels: Sequence[PlacedLevel]) -> str:
    """Say which axes each level carries."""
    words = []
    for level in levels:
        axes = ", ".join(crossing.axis.upper() for crossing in level.crossings)
        words.append(f"{level.name} carries {axes or 'nothing'}")
    return f"{'; '.join(words) or 'One GPU, no links'}."


def factor_words(crossing: Crossing) -> str:
    """Write by how much groups grow on a level; ``~`` where blocks cut groups unevenly."""
    return f"{'' if crossing.even else '~'}x {crossing.factor:.3g}"


def _boxes(levels: Sequence[PlacedLevel], chosen: Layout, cluster: ClusterSpec) -> Markup:
    """Nest the boxes, the outermost level outside."""
    inner = _gpus(chosen, cluster)
    for level in levels:
        head = [
            element("b", level.name),
            element("span", f"{level.row.gpus:,} GPUs{_count(level.row)}"),
            element("span", _speed(level.row)),
        ]
        many = " many" if level.row.blocks > 1 else ""
        inner = element(
            "div", element("div", *head, class_="head"), _chips(level), inner, class_=f"box{many}"
        )
    return inner


def _count(level: LevelRow) -> str:
    return f", {level.blocks:,} of these" if level.blocks > 1 else ""


def _speed(level: LevelRow) -> str:
    over = (
        f", {format_oversubscription(level.oversubscription)} oversubscribed"
        if level.oversubscription > 1
        else ""
    )
    return f"{format_rate(level.bytes_per_s)} per GPU{over}"


def _chips(level: PlacedLevel) -> Markup:
    if not level.crossings:
        return element("div", element("span", "no axis crosses this level", class_="note"), class_="chips")
    chips = [
        element(
            "span",
            element("b", crossing.axis.upper()),
            f" {factor_words(crossing)}",
            class_="chip",
            title=f"{NAMES[crossing.axis]}: groups of {crossing.members} here",
            style=f"border-color:{variable(AXES[crossing.axis])}",
        )
        for crossing in level.crossings
    ]
    return element("div", *chips, class_="chips")


def _gpus(chosen: Layout, cluster: ClusterSpec) -> Markup:
    """Draw the GPUs of the first node or NVLink domain with their coordinates on the axes inside it."""
    count = min(max(cluster.nvlink_domain, 1), cluster.gpu_count, MAX_CELLS, chosen.gpus)
    cells = [element("span", _coordinates(chosen, rank, count), class_="gpu") for rank in range(count)]
    hidden = min(cluster.nvlink_domain, cluster.gpu_count) - count
    if hidden > 0:
        cells.append(element("span", f"and {hidden} more", class_="gpu"))
    return element("div", *cells, class_="gpus", title="coordinates of the first GPUs")


def _coordinates(chosen: Layout, rank: int, count: int) -> str:
    """Write a rank's place on the dense axes that differ among the first ``count`` ranks, innermost first."""
    words, stride = [], 1
    for axis in chosen.mesh_order.split("-"):
        # Experts lie inside the dense axes, and add no coordinate.
        degree = 1 if axis == "ep" else int(getattr(chosen, axis))
        if degree > 1 and stride < count:
            words.append(f"{axis}{rank // stride % degree}")
        stride *= degree
    return " ".join(words) or f"gpu{rank}"


def _table(levels: Sequence[PlacedLevel], chosen: Layout, estimate: Estimate) -> Table:
    rows = []
    for axis in shown_axes(chosen):
        where = [
            f"{level.name} {factor_words(crossing)}"
            for level in levels
            for crossing in level.crossings
            if crossing.axis == axis
        ]
        exposed = sum(estimate.breakdown_s[part] for part in TRAFFIC if part.record.axis == axis)
        rows.append([NAMES[axis], str(getattr(chosen, axis)), ", ".join(where), format_seconds(exposed)])
    return Table(columns=["axis", "degree", "on", "exposed per step"], rows=rows, left=(0, 2))
