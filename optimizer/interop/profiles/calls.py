"""The collectives of a profile: what they are, over which group, how many bytes, whose traffic."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from layoutopt.optimizer.diagnose.kernels import collective_kind, group_axis
from layoutopt.optimizer.diagnose.peers import POINT_TO_POINT
from layoutopt.optimizer.diagnose.profile import Calls, ProcessGroup
from layoutopt.optimizer.diagnose.terms import COLLECTIVE
from layoutopt.optimizer.interop.profiles.kineto_events import DTYPE_BYTES, whole
from layoutopt.optimizer.specs.vocabulary import Axis

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from layoutopt.optimizer.interop.profiles.kineto_events import CallTexts
    from layoutopt.optimizer.interop.profiles.options import ProfileOptions

    IntArray = NDArray[np.int64]

MOST_RANKS = 2**20
"""Ranks that a job may have: far more than any has."""

WHOLE_IS_RECEIVED = ("all_gather",)
"""Collectives whose whole tensor is what a rank receives; of all others it is what it gives."""


@dataclass(slots=True)
class CallTable:
    """The collectives of a profile by number, growing by those that only a kernel's name tells of.

    ``axes`` says whose traffic a group is, by its name, its description, or the kind of call.
    """

    axes: Mapping[str, Axis]
    kinds: list[str] = field(default_factory=list)
    groups: list[ProcessGroup] = field(default_factory=list)
    rows: list[tuple[int, int, int, int]] = field(default_factory=list)

    @property
    def calls(self) -> Calls:
        """The record."""
        table = np.array(self.rows, dtype=np.int64).reshape(-1, 4)
        return Calls(kind=table[:, 0], group=table[:, 1], bytes=table[:, 2], peer=table[:, 3])

    def add(self, kind: str, group: ProcessGroup | None, size_bytes: int = -1, peer: int = -1) -> None:
        """Add a call; one whose group nobody names is of all calls of its kind."""
        group = group or ProcessGroup(name=kind, description=kind, ranks=(), axis=self.axes.get(kind))
        for known, one in ((self.kinds, kind), (self.groups, group)):
            if one not in known:
                known.append(one)  # type: ignore[arg-type]
        self.rows.append((self.kinds.index(kind), self.groups.index(group), size_bytes, peer))

    def of_kernels(
        self, call: IntArray, part: IntArray, name: IntArray, names: tuple[str, ...]
    ) -> tuple[IntArray, IntArray]:
        """Return each event's call and part, (n,) each: collectives by their name alone get a call of their kind."""
        call, part = call.copy(), np.where(call >= 0, COLLECTIVE, part)
        for one in np.unique(name[(part == COLLECTIVE) & (call < 0)]).tolist():
            call[(part == COLLECTIVE) & (call < 0) & (name == one)] = len(self.rows)
            self.add(collective_kind(names[one]) or "unknown", None)
        return call, part


def call_table(
    texts: Sequence[CallTexts], distributed: dict[str, Any], rank: int, options: ProfileOptions
) -> CallTable:
    """Resolve what the events say of collectives by what the file says of the job's groups."""
    configured = _configured(distributed, options)
    table = CallTable(axes=options.axes, groups=list(configured.values()))
    for text in texts:
        kind = collective_kind(text.kind) or text.kind
        group = _group_of(text, kind, configured, options)
        table.add(kind, group, _bytes(text, kind), _peer(text, kind, group, rank))
    return table


def _configured(distributed: dict[str, Any], options: ProfileOptions) -> dict[str, ProcessGroup]:
    """Return the groups that the file lists, by name."""
    found, world = {}, whole(distributed.get("world_size"), 0)
    for entry in listed_in(distributed, "pg_config"):
        if not isinstance(entry, dict):
            continue
        name, description = str(entry.get("pg_name", "")), str(entry.get("pg_desc", ""))
        size = max(whole(entry.get("pg_size"), 0), 0)
        everybody = tuple(range(world)) if size == world <= MOST_RANKS else ()
        found[name] = ProcessGroup(
            name=name,
            description=description,
            ranks=_ranks(entry.get("ranks")) or everybody,
            axis=_axis(name, description, options),
            size=size,
        )
    return found


def listed_in(mapping: dict[str, Any], key: str) -> list[Any]:
    """Return a list of a file's JSON; anything else in its place tells nothing."""
    found = mapping.get(key)
    return found if isinstance(found, list) else []


def _axis(name: str, description: str, options: ProfileOptions) -> Axis | None:
    told = options.axes.get(description) or options.axes.get(name)
    return told or group_axis(description)


def _group_of(
    text: CallTexts,
    kind: str,
    configured: dict[str, ProcessGroup],
    options: ProfileOptions,
) -> ProcessGroup | None:
    """Return a call's group: the one it names, or the only one of the axis that its kind goes over."""
    if text.group_name in configured:
        return configured[text.group_name]
    if text.group_name or text.group_text:
        configured[text.group_name] = ProcessGroup(
            name=text.group_name,
            description=text.group_text,
            ranks=_ranks(text.ranks),
            axis=_axis(text.group_name, text.group_text, options),
            size=max(text.members, 0),
        )
        return configured[text.group_name]
    return _only_group(kind, list(configured.values()), options)


def _only_group(kind: str, groups: list[ProcessGroup], options: ProfileOptions) -> ProcessGroup | None:
    """Return the group of a call that names none: gloo's. Point to point is the pipeline's, sums are data parallel."""
    wanted = options.axes.get(kind) or (Axis.PP if kind in POINT_TO_POINT else Axis.DP)
    mine = [group for group in groups if group.axis is wanted and len(group.ranks) > 1]
    return mine[0] if len(mine) == 1 else None


def _ranks(text: Any) -> tuple[int, ...]:
    """Read a list of ranks; a shortened one ("[0, 1, ...]") tells nothing."""
    if isinstance(text, str):
        try:
            text = ast.literal_eval(text) if text.startswith("[") and "..." not in text else ()
        except (MemoryError, RecursionError, SyntaxError, ValueError):
            return ()
    listed = text if isinstance(text, list | tuple) else ()
    return tuple(int(rank) for rank in listed if isinstance(rank, int))


def _bytes(text: CallTexts, kind: str) -> int:
    """Return the bytes of the whole tensor, -1 where they are not known."""
    size = DTYPE_BYTES.get(text.dtype.lower())
    elements = text.received if kind in (*WHOLE_IS_RECEIVED, "recv") else text.sent
    # Ranks that only give or only take have nothing on the other side.
    elements = elements if elements > 0 else max(text.sent, text.received)
    return elements * size if size and elements > 0 else -1


def _peer(text: CallTexts, kind: str, group: ProcessGroup | None, rank: int) -> int:
    """Return the other rank of a send or recv: as stated, of all ranks or within the group; of two the other one."""
    if kind not in POINT_TO_POINT:
        return -1
    members = group.ranks if group else ()
    if len(members) == 2 and rank in members:
        return next(one for one in members if one != rank)
    stated = text.target if kind == "send" else text.source
    if stated in members and stated != rank:
        return stated
    return members[stated] if 0 <= stated < len(members) else stated
