"""Which calls of several ranks are one collective: clocks aligned by their ends, and how long each rank waited."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from layoutopt.optimizer.diagnose.profile import RankProfile

    IntArray = NDArray[np.int64]

POINT_TO_POINT = ("send", "recv")


@dataclass(frozen=True, slots=True, kw_only=True)
class Matched:
    """The calls of one rank: ``ready_ns`` (calls' events,) when the last peer had come, on the rank's own clock.

    ``event`` are the places of the calls among the rank's events, ``key`` what equal calls of all ranks share. ``ready_ns``
    is the own start where no peer's profile is given; ``late`` tells whether the rank itself came last, of two or more.
    ``whole`` tells of which calls every member's profile is given: of others waiting for a peer that is not given cannot be
    told from transfer. ``missing`` are the ranks whose profiles would have to be given for that.
    """

    event: IntArray
    key: IntArray
    ready_ns: IntArray
    late: NDArray[np.bool_]
    whole: NDArray[np.bool_]
    missing: tuple[int, ...]
    offset_ns: int


def match(profiles: Sequence[RankProfile]) -> tuple[Matched, ...]:
    """Match the calls of several ranks by group, step and order, and align their clocks."""
    table: dict[tuple[object, ...], int] = {}
    listed = [_keys(profile, table) for profile in profiles]
    offsets = _offsets(profiles, listed)
    sizes = [len(event) for event, _ in listed]
    key = np.concatenate([key for _, key in listed]) if listed else np.zeros(0, dtype=np.int64)
    # A collective can't begin before its last member: on one clock, the latest start is when it really began.
    start = np.concatenate(
        [
            profile.events.start_ns[event] - offset
            for profile, (event, _), offset in zip(profiles, listed, offsets, strict=True)
        ]
    )
    _, place = np.unique(key, return_inverse=True)
    last = np.full(place.max(initial=-1) + 1, np.iinfo(np.int64).min)
    np.maximum.at(last, place, start)
    members = np.bincount(place, minlength=len(last))
    ready, alone = last[place], members[place] < 2
    late = (start == ready) & ~alone
    cuts = np.cumsum(sizes)[:-1]
    given = {profile.rank for profile in profiles}
    return tuple(
        Matched(
            event=event,
            key=own,
            ready_ns=when + offset,
            late=was_late,
            whole=here >= _needed(profile)[profile.events.call[event]],
            missing=_missing(profile, given),
            offset_ns=offset,
        )
        for profile, (event, own), when, was_late, here, offset in zip(
            profiles,
            listed,
            np.split(ready, cuts),
            np.split(late, cuts),
            np.split(members[place], cuts),
            offsets,
            strict=True,
        )
    )


def _needed(profile: RankProfile) -> IntArray:
    """Return of each call how many ranks take part; more than there are where the profile does not say."""
    # A call of unknown size is never whole, so that no wait is claimed of it.
    unknown, sizes = np.iinfo(np.int64).max, [group.members for group in profile.groups]
    needed = [
        sizes[group] if profile.kinds[kind] not in POINT_TO_POINT and group >= 0 else 2 * (peer >= 0)
        for kind, group, peer in zip(profile.calls.kind, profile.calls.group, profile.calls.peer, strict=True)
    ]
    return np.array([count or unknown for count in needed], dtype=np.int64)


def _missing(profile: RankProfile, given: set[int]) -> tuple[int, ...]:
    """Return the ranks that take part in a rank's calls and whose profiles are not given."""
    used = np.unique(profile.events.call[profile.events.call >= 0]).tolist()
    return tuple(sorted({rank for call in used for rank in _members(profile, call)} - given))


def _members(profile: RankProfile, call: int) -> tuple[int, ...]:
    """Return the ranks of a call, of a send or recv its two; empty where the profile does not say."""
    peer, group = int(profile.calls.peer[call]), int(profile.calls.group[call])
    if profile.kinds[profile.calls.kind[call]] in POINT_TO_POINT:
        return (profile.rank, peer) if peer >= 0 else ()
    return profile.groups[group].ranks if group >= 0 else ()


def _keys(profile: RankProfile, table: dict[tuple[object, ...], int]) -> tuple[IntArray, IntArray]:
    """Return the events that are calls, and for each a number that equal calls of other ranks have too.

    Calls are equal that are the n-th of their kind and group in a step. A number holds the place of both in ``table``, which
    all ranks share, and the step and the order in it.
    """
    events, calls = profile.events, profile.calls
    event = np.flatnonzero(events.call >= 0)
    call = events.call[event]
    group = np.array([_identity(profile, int(one), table) for one in range(len(calls.kind))], dtype=np.int64)[
        call
    ]
    # The host's launch tells the step: with work queued ahead a kernel may run when the host is in the next
    # one.
    launched = np.where(events.launch_ns[event] >= 0, events.launch_ns[event], events.start_ns[event])
    step = np.searchsorted(profile.begun_ns, launched, side="right")
    both = group * (len(profile.steps) + 2) + step
    # Calls of one group run in the order of its communicator, so that the n-th here is the n-th there.
    order = np.lexsort((events.start_ns[event], both))
    same = np.concatenate([[True], np.diff(both[order]) != 0]) if len(both) else np.zeros(0, dtype=bool)
    first = np.maximum.accumulate(np.where(same, np.arange(len(order)), 0))
    nth = np.empty(len(order), dtype=np.int64)
    nth[order] = np.arange(len(order)) - first
    # One number, so that ranks compare arrays and not tuples; 30 bits hold any profile's calls of a step.
    return event, (group << 40) | (step << 30) | nth


def _identity(profile: RankProfile, call: int, table: dict[tuple[object, ...], int]) -> int:
    """Return the number of a call's group; of a send or recv that of its two ranks, in the direction sent."""
    calls = profile.calls
    kind, peer, group = profile.kinds[calls.kind[call]], int(calls.peer[call]), int(calls.group[call])
    if kind in POINT_TO_POINT and peer >= 0:
        ends = (profile.rank, peer) if kind == "send" else (peer, profile.rank)
        name: tuple[object, ...] = ("p2p", *ends)
    elif group >= 0 and profile.groups[group].members:
        # ranks that are not listed are those of the group of this name on every rank
        one = profile.groups[group]
        name = (one.description, one.ranks or (one.name, one.size), kind)
    else:
        name = ("alone", profile.rank, group, kind)
    return table.setdefault(name, len(table))


def _offsets(profiles: Sequence[RankProfile], listed: list[tuple[IntArray, IntArray]]) -> list[int]:
    """Return each rank's clock less the first one's: what the ends of its calls are later by, in the median.

    Ranks of one host share its clock. Hosts that share no call with others stay as they are.
    """
    ends = [
        dict(zip(key.tolist(), profile.events.end_ns[event].tolist(), strict=True))
        for profile, (event, key) in zip(profiles, listed, strict=True)
    ]
    # A profile that names no host is taken for one of its own: a clock that is wrongly shared could not be aligned.
    hosts = [profile.host or f"rank {profile.rank}" for profile in profiles]
    known: dict[str, int] = {hosts[0]: 0} if hosts else {}
    reference = {
        key: end for host, own in zip(hosts, ends, strict=True) if host in known for key, end in own.items()
    }
    while True:
        open_hosts = [host for host in dict.fromkeys(hosts) if host not in known]
        found = {host: _apart(host, hosts, ends, reference) for host in open_hosts}
        # Align first whom most calls tie to those already aligned: the median is the surest there.
        best = max(found, key=lambda host: len(found[host]), default=None)
        if best is None or not found[best]:
            break
        # All members of a collective end together but for noise and a few stragglers, which a median ignores.
        known[best] = int(np.median(found[best]))
        for host, own in zip(hosts, ends, strict=True):
            if host == best:
                reference |= {key: end - known[best] for key, end in own.items() if key not in reference}
    return [known.get(host, 0) for host in hosts]


def _apart(host: str, hosts: list[str], ends: list[dict[int, int]], reference: dict[int, int]) -> list[int]:
    """Return by how much the ends of a host's calls are later than those already aligned."""
    return [
        end - reference[key]
        for other, own in zip(hosts, ends, strict=True)
        if other == host
        for key, end in own.items()
        if key in reference
    ]
