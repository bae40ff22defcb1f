"""Groups of measured runs that differ in layout alone."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING

from layoutopt.optimizer.evidence.metrics import SMALLEST_GROUP, RankedGroup

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from layoutopt.optimizer.evidence.case import Case

MIXED_RELEASES = "xrel-"
"""Prefix of groups that mix software releases; they are never ranked."""


def layout_key(case: Case) -> Hashable:
    """Return what makes two runs of a group the same layout: the layout and the switches of its launch."""
    layout = case.layout
    stages = tuple((stage.layers, stage.recomputed) for stage in layout.stages)
    degrees = (
        layout.tp,
        layout.sp,
        layout.cp,
        layout.pp,
        layout.vp,
        layout.ep,
        layout.etp,
        layout.dp,
        layout.zero,
        layout.hsdp_shard,
        layout.micro_batch,
        layout.recompute,
        layout.schedule,
        layout.precision,
        layout.mesh_order,
    )
    return degrees, stages, tuple(sorted(case.switches.items()))


def members(cases: Sequence[Case]) -> dict[str, list[int]]:
    """Return the indices of each group's timed cases, groups that mix releases left out."""
    groups: dict[str, list[int]] = {}
    for index, case in enumerate(cases):
        name = case.run.group
        if name and not name.startswith(MIXED_RELEASES) and case.measured_s is not None:
            groups.setdefault(name, []).append(index)
    return groups


def ranked_groups(cases: Sequence[Case], predicted_s: Mapping[int, float]) -> list[RankedGroup]:
    """Average repeats of a layout, and return the groups of at least three layouts.

    ``predicted_s`` maps indices of ``cases`` to predicted seconds.
    """
    groups = []
    for name, indices in members(cases).items():
        layouts: dict[Hashable, list[int]] = {}
        for index in indices:
            if index in predicted_s:
                layouts.setdefault(layout_key(cases[index]), []).append(index)
        if len(layouts) >= SMALLEST_GROUP:
            groups.append(_group(name, list(layouts.values()), cases, predicted_s))
    return groups


def _group(
    name: str, layouts: Sequence[Sequence[int]], cases: Sequence[Case], predicted_s: Mapping[int, float]
) -> RankedGroup:
    return RankedGroup(
        name=name,
        measured_s=tuple(fmean(cases[index].measured_s or 0.0 for index in same) for same in layouts),
        predicted_s=tuple(fmean(predicted_s[index] for index in same) for same in layouts),
    )
