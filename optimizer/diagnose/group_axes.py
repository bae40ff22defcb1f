"""Whose traffic a group of a profile is where no name tells: that of the plan's group of the same ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from layoutopt.optimizer.cost.placement import layout_groups
from layoutopt.optimizer.diagnose.kernels import is_known_group
from layoutopt.optimizer.specs.vocabulary import Axis
from layoutopt.optimizer.topology.counting import ranks_of_groups

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from layoutopt.optimizer.diagnose.profile import ProcessGroup, RankProfile
    from layoutopt.optimizer.specs.layout import Layout
    from layoutopt.optimizer.topology.groups import GroupBatch

EVERYBODY = "default_pg"
"""What torch calls the group of all ranks: the traffic of an axis only where no group has one by its name."""

TYPICAL = {
    "all_to_all": (Axis.EP, Axis.CP), "send": (Axis.PP, Axis.CP), "recv": (Axis.PP, Axis.CP),
    "send_recv": (Axis.PP, Axis.EP, Axis.CP),
}  # fmt: skip
"""Axes that calls of a kind go over; sums and gathers go over any but experts'."""


class PlannedGroup(NamedTuple):
    """A group of a rank in the plan."""

    axis: Axis
    ranks: tuple[int, ...]


def planned_groups(layout: Layout, rank: int) -> tuple[PlannedGroup, ...]:
    """Return the groups of two or more that a rank of a layout communicates in."""
    groups = layout_groups(layout)
    # Gradients are summed over dp and cp together, and trainers have groups of dp alone beside those.
    named = [
        (Axis.TP, groups.tp), (Axis.CP, groups.cp), (Axis.PP, groups.pp), (Axis.DP, groups.dp_cp), (Axis.DP, groups.dp)
    ]  # fmt: skip
    named += [(Axis.EP, groups.ep), (Axis.DP, groups.edp)] if layout.ep > 1 else []
    found = (PlannedGroup(axis, _members(group, rank)) for axis, group in named)
    return tuple(dict.fromkeys(one for one in found if len(one.ranks) > 1))


def _members(group: GroupBatch, rank: int) -> tuple[int, ...]:
    digits = tuple((int(digit.size[0]), int(digit.stride[0])) for digit in group.digits)
    rows = ranks_of_groups(digits, int(group.ranks[0]))
    return tuple(sorted(rows[(rows == rank).any(axis=1)][0].tolist()))


def with_axes(profile: RankProfile, layout: Layout) -> RankProfile:
    """Return a profile whose groups have the axes, and the ranks, of the plan's groups where it does not say them.

    What fits several axes, or none, stays as it is.
    """
    planned = planned_groups(layout, profile.rank)
    groups, group = list(profile.groups), profile.calls.group.copy()
    named = any(one.axis is not None for one in _used(profile))
    for place, (kind, number) in enumerate(zip(profile.calls.kind.tolist(), group.tolist(), strict=True)):
        if number < 0:
            continue
        one = groups[number]
        found = one if _is_settled(one, named=named) else _fitting(one, planned, profile.kinds[kind])
        if found != one:
            groups += [] if found in groups else [found]
            group[place] = groups.index(found)
    return replace(profile, groups=tuple(groups), calls=replace(profile.calls, group=group))


def _is_settled(group: ProcessGroup, *, named: bool) -> bool:
    """Tell whether a profile says all of a group: its axis and ranks, or that it is of several axes."""
    if group.axis is not None:
        return bool(group.ranks)
    return is_known_group(group.description) and (named or group.description != EVERYBODY)


def _fitting(group: ProcessGroup, planned: Sequence[PlannedGroup], kind: str) -> ProcessGroup:
    """Return the group with the axis and the ranks of the only plan's group that it can be."""
    if group.axis is not None:
        mine = [one for one in planned if one.axis is group.axis and group.size in (0, len(one.ranks))]
    elif group.ranks:
        members = set(group.ranks)
        # torch cuts long lists of ranks short, so that a part of a group stands for it where nothing equals it.
        mine = [one for one in planned if set(one.ranks) == members] or [
            one for one in planned if set(one.ranks) > members
        ]
    else:
        mine = [one for one in planned if group.size in (0, len(one.ranks))]
    mine = _typical(mine, kind)
    # A guess between two axes would blame one of them for the other's traffic: the user is asked instead.
    if len({one.axis for one in mine}) != 1:
        return group
    same = len({one.ranks for one in mine}) == 1
    return replace(group, axis=mine[0].axis, ranks=group.ranks or (mine[0].ranks if same else ()))


def _typical(planned: Iterable[PlannedGroup], kind: str) -> list[PlannedGroup]:
    """Return those of the axes that calls of a kind go over, all of them where they are of one."""
    listed = list(planned)
    if len({one.axis for one in listed}) < 2:
        return listed
    if kind in TYPICAL:
        return [one for one in listed if one.axis in TYPICAL[kind]]
    return [one for one in listed if one.axis is not Axis.EP]


def _used(profile: RankProfile) -> list[ProcessGroup]:
    return [
        profile.groups[number] for number in np.unique(profile.calls.group[profile.calls.group >= 0]).tolist()
    ]


def open_groups(profiles: Iterable[RankProfile]) -> Iterator[str]:
    """Ask whose traffic the groups are that neither a name nor the plan tells of."""
    unknown = {
        one.description or one.name
        for profile in profiles
        for one in _used(profile)
        if one.axis is None and not is_known_group(one.description)
    }
    for name in sorted(unknown):
        yield f"whose traffic is group {name!r}? --axis {name}=tp|cp|ep|pp|dp tells"
