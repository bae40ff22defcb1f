"""The terms of a measured step: every nanosecond of every rank under exactly one label, by interval arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.components import Component
from layoutopt.optimizer.diagnose.intervals import contains, gaps, length, merged, overlap, shares
from layoutopt.optimizer.diagnose.parts import (
    CODE,
    COMPUTE,
    KERNELS,
    LABELS,
    Activity,
    Label,
    Phase,
    traffic_component,
)
from layoutopt.optimizer.diagnose.peers import POINT_TO_POINT
from layoutopt.optimizer.specs.vocabulary import Axis

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from layoutopt.optimizer.diagnose.intervals import Intervals
    from layoutopt.optimizer.diagnose.peers import Matched
    from layoutopt.optimizer.diagnose.profile import Product, RankProfile

    IntArray = NDArray[np.int64]
    Stretches = tuple[IntArray, IntArray, IntArray]

PARTS = tuple(Activity)
COLLECTIVE = len(PARTS)
"""The part of an event that is a collective: none of the kernels'."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisTraffic:
    """The collectives of one rank over one axis and of one kind, all steps together.

    ``bytes`` is the sum over calls of the whole tensor, -1 where a call's is unknown. ``busy_ns`` is the time in which any
    of them runs, ``exposed_ns`` what of it no kernel runs beside; ``waiting_ns`` and ``transfer_ns`` sum over calls the time
    until the last peer came, and from then on. ``whole``: every member's profile is given; where not, waiting for those that
    are not given is in ``transfer_ns`` too, of the pipeline's sends all is ``waiting_ns``; neither tells a link's speed.
    """

    axis: Axis | None
    kind: str
    ranks: int
    calls: int
    bytes: int
    busy_ns: int
    exposed_ns: int
    waiting_ns: int
    transfer_ns: int
    whole: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelUse:
    """One kernel's name, and shape where it is known, in one phase: how often it ran and how long, all steps together."""

    name: str
    part: Activity
    phase: Phase
    calls: int
    busy_ns: int
    product: Product | None = None

    @property
    def flops_per_s(self) -> float | None:
        """The rate of a multiplication whose shape is known."""
        return self.product.flop * self.calls / self.busy_ns * 1e9 if self.product and self.busy_ns else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTerms:
    """The terms of one rank. ``labels_ns`` sums to ``steps_ns`` exactly: all of its ``steps`` steps."""

    rank: int
    steps: int
    steps_ns: int
    labels_ns: dict[Label, int]
    traffic: tuple[AxisTraffic, ...]
    kernels: tuple[KernelUse, ...]
    launches: int
    graphs: int
    late: float
    """Share of the matched collectives to which this rank came last."""

    @property
    def step_s(self) -> float:
        """Seconds of one step."""
        return self.steps_ns / self.steps * 1e-9

    @property
    def components_s(self) -> dict[Component, float]:
        """Seconds of one step by component, in order."""
        found = dict.fromkeys(Component, 0)
        for label, ns in self.labels_ns.items():
            found[label.component] += ns
        return {component: ns / self.steps * 1e-9 for component, ns in found.items()}

    @property
    def computing_s(self) -> float:
        """Seconds of one step under compute kernels."""
        return sum(self.seconds(part=part) for part in KERNELS)

    def seconds(self, component: Component | None = None, part: Activity | None = None) -> float:
        """Return the seconds of one step under a component, a part, or both."""
        total = sum(
            ns
            for label, ns in self.labels_ns.items()
            if component in (None, label.component) and part in (None, label.part)
        )
        return total / self.steps * 1e-9

    def kernel_s(self, *parts: Activity, phase: Phase | None = None) -> float:
        """Return the seconds of one step in kernels of some parts, whatever runs beside."""
        total = sum(use.busy_ns for use in self.kernels if use.part in parts and phase in (None, use.phase))
        return total / self.steps * 1e-9


def rank_terms(profile: RankProfile, matched: Matched, *, sharded: bool, staged: bool) -> RankTerms:
    """Attribute the time of a rank's steps.

    ``sharded``: weights are gathered and gradients reduced layer by layer (ZeRO-3, FSDP), so that what of it lies between a
    step's first kernel and its last backward one belongs to the layers. ``staged``: there are several pipeline stages, so
    that waiting in groups of no axis is the pipeline's.
    """
    low, high = int(profile.steps[0, 0]), int(profile.steps[-1, 1])
    start, end, code = stretches(profile, matched, sharded=sharded, staged=staged, low=low, high=high)
    found = shares(start, end, code, low, high, len(LABELS))
    labels = {label: int(ns) for label, ns in zip(LABELS, found, strict=False) if ns}
    rest = int(found[-1])
    if rest:  # nothing runs and nothing is known of why
        idle = Label(Component.HOST, Activity.LAUNCH)
        labels[idle] = labels.get(idle, 0) + rest
    return RankTerms(
        rank=profile.rank,
        steps=len(profile.steps),
        steps_ns=high - low,
        labels_ns=labels,
        traffic=_traffic(profile, matched, low, high, staged=staged),
        kernels=_kernels(profile, low, high),
        launches=profile.launches,
        graphs=profile.graphs,
        late=float(matched.late.mean()) if len(matched.late) else 0.0,
    )


def is_sharded(profile: RankProfile) -> bool:
    """Guess whether weights are gathered layer by layer: gathers over the data-parallel axis in backward."""
    events = profile.events
    mine = (events.call >= 0) & (events.phase == Phase.BACKWARD)
    return any(
        profile.kinds[profile.calls.kind[call]] == "all_gather" and axis_of(profile, int(call)) is Axis.DP
        for call in np.unique(events.call[mine])
    )


def axis_of(profile: RankProfile, call: int) -> Axis | None:
    """Return whose traffic a call is."""
    group = int(profile.calls.group[call])
    return profile.groups[group].axis if group >= 0 else None


def stretches(
    profile: RankProfile, matched: Matched, *, sharded: bool, staged: bool, low: int, high: int
) -> Stretches:
    """Return everything that a moment can be attributed to: starts, ends and codes of labels."""
    pieces = [
        _kernel_stretches(profile),
        *_call_stretches(profile, matched, sharded=sharded, staged=staged),
        *_stalls(profile),
        *_idle(profile, low, high),
    ]
    start, end, code = (np.concatenate(column) for column in zip(*pieces, strict=True))
    return start, end, code


def _kernel_stretches(profile: RankProfile) -> Stretches:
    """Label kernels and copies by phase and part."""
    events = profile.events
    table = np.full((len(Phase), len(PARTS)), -1)
    for phase, component in COMPUTE.items():
        for place, part in enumerate(PARTS):
            table[phase, place] = CODE.get(Label(component, part), -1)
    copies = PARTS.index(Activity.HOST_COPY)
    table[:, copies] = CODE[Label(Component.OFFLOAD, Activity.HOST_COPY)]
    # After the passes copies to the host count as a checkpoint's, within them as offloading's.
    table[Phase.OPTIMIZER, copies] = CODE[Label(Component.STEP, Activity.HOST_COPY)]
    kernels = events.part < COLLECTIVE
    code = table[events.phase[kernels], events.part[kernels]]
    return events.start_ns[kernels], events.end_ns[kernels], code


def _call_stretches(
    profile: RankProfile, matched: Matched, *, sharded: bool, staged: bool
) -> tuple[Stretches, Stretches]:
    """Label collectives: waiting until the last peer has come, transfer from then on (``_ready_ns``)."""
    events, event = profile.events, matched.event
    wait = np.zeros(len(profile.calls.kind), dtype=np.int64)
    move = wait.copy()
    for number in range(len(wait)):
        axis = axis_of(profile, number)
        piped = _is_piped(profile, number, staged=staged)
        wait[number] = CODE[Label(Component.BUBBLE if piped else Component.SYNC, Activity.PEER)]
        component = Component.STEP if axis is None else traffic_component(axis, in_layers=False)
        move[number] = CODE[Label(component, Activity.TRANSFER)]
    start, end, call = events.start_ns[event], events.end_ns[event], events.call[event]
    ready, code = _ready_ns(profile, matched, staged=staged), move[call]
    if sharded:
        once, in_layers = (
            CODE[Label(traffic_component(Axis.DP, in_layers=way), Activity.TRANSFER)] for way in (False, True)
        )
        code = np.where((code == once) & contains(_layers(profile), start), in_layers, code)
    return (start, ready, wait[call]), (ready, end, code)


def _is_piped(profile: RankProfile, call: int, *, staged: bool) -> bool:
    """Tell whether waiting in a call is the pipeline's."""
    axis = axis_of(profile, call)
    return axis is Axis.PP or (axis is None and staged)


def _ready_ns(profile: RankProfile, matched: Matched, *, staged: bool) -> IntArray:
    """Return when each call's last peer had come.

    A send or recv between stages whose peer's profile is not given waits until its end: it lasts as long as the other stage
    computes, and its transfer is short beside that.
    """
    events, event = profile.events, matched.event
    start, end, call = events.start_ns[event], events.end_ns[event], events.call[event]
    sent = np.array(
        [
            profile.kinds[kind] in POINT_TO_POINT and _is_piped(profile, number, staged=staged)
            for number, kind in enumerate(profile.calls.kind.tolist())
        ],
        dtype=bool,
    )
    ready: IntArray = np.where(sent[call] & ~matched.whole, end, np.clip(matched.ready_ns, start, end))
    return ready


def _layers(profile: RankProfile) -> Intervals:
    """Return of each step the time from its first kernel to the end of its last backward one."""
    events = profile.events
    kernels = (events.part < COLLECTIVE) & (events.phase != Phase.OPTIMIZER)
    found = []
    for low, high in profile.steps.tolist():
        mine = kernels & (events.start_ns >= low) & (events.start_ns < high)
        if mine.any():
            found.append((int(events.start_ns[mine].min()), int(events.end_ns[mine].max())))
    table = np.array(found, dtype=np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def _stalls(profile: RankProfile) -> list[Stretches]:
    """Label what the host did where the device is idle."""
    parts = {"data_loader": Activity.DATA_LOADER, "checkpoint": Activity.CHECKPOINT}
    found = []
    for name, ranges in profile.stalls.items():
        times = np.array([(one.start_ns, one.end_ns) for one in ranges], dtype=np.int64).reshape(-1, 2)
        code = np.full(len(times), CODE[Label(Component.STEP, parts[name])])
        found.append((times[:, 0], times[:, 1], code))
    return found


def _idle(profile: RankProfile, low: int, high: int) -> tuple[Stretches, Stretches]:
    """Label idle time by the kernel that ends it: until the host launched it, and from then until it started.

    A kernel that was queued before the device fell idle follows after a gap, which belongs to the kernel's phase. Before a
    step's first kernel, and where nothing follows, the host takes its fixed time of a step.
    """
    events = profile.events
    start, end = gaps(merged(events.start_ns, events.end_ns), low, high)
    following = np.searchsorted(events.start_ns, end, side="left")
    place = np.minimum(following, max(len(events.start_ns) - 1, 0))
    known = following < len(events.start_ns)
    known &= (
        events.start_ns[place] < high if len(events.start_ns) else False
    )  # another step's is not waited for here
    launched = np.where(known, events.launch_ns[place] if len(events.start_ns) else high, high)
    # of a kernel without a known launch the whole gap counts as queued, of none at all as the host's
    launched = np.clip(np.where(launched < 0, start, launched), start, end)
    phases = np.array([CODE[Label(component, Activity.GAP)] for component in COMPUTE.values()])
    phase = events.phase[place] if len(events.start_ns) else np.zeros(len(start), dtype=np.int64)
    opening = ~known | np.isin(following, np.searchsorted(events.start_ns, profile.steps[:, 0], side="left"))
    host = np.where(
        opening, CODE[Label(Component.STEP, Activity.LAUNCH)], CODE[Label(Component.HOST, Activity.LAUNCH)]
    )
    return (start, launched, host), (launched, end, phases[phase])


def _traffic(
    profile: RankProfile, matched: Matched, low: int, high: int, *, staged: bool
) -> tuple[AxisTraffic, ...]:
    """Sum up collectives by axis and kind."""
    events = profile.events
    kernels = events.part < COLLECTIVE
    busy = merged(events.start_ns[kernels], events.end_ns[kernels])
    inside = (events.start_ns[matched.event] >= low) & (events.start_ns[matched.event] < high)
    event, ready = matched.event[inside], _ready_ns(profile, matched, staged=staged)[inside]
    whole = matched.whole[inside]
    by_key: dict[tuple[Axis | None, int, int], list[int]] = {}
    for call in np.unique(events.call[event]).tolist():
        group = int(profile.calls.group[call])
        size = profile.groups[group].members if group >= 0 else 0
        by_key.setdefault((axis_of(profile, call), int(profile.calls.kind[call]), size), []).append(call)
    found = []
    # Calls whose members are all given apart from the others, whose transfer may be waiting.
    for ((axis, kind, size), calls), told in product(by_key.items(), (True, False)):
        mine = np.isin(events.call[event], calls) & (whole == told)
        if not mine.any():
            continue
        start, end = events.start_ns[event[mine]], events.end_ns[event[mine]]
        moved = profile.calls.bytes[events.call[event[mine]]]
        union, when = merged(start, end), ready[mine]
        found.append(
            AxisTraffic(
                axis=axis,
                kind=profile.kinds[kind],
                ranks=size,
                calls=int(mine.sum()),
                bytes=int(moved.sum()) if (moved >= 0).all() else -1,
                busy_ns=length(union),
                exposed_ns=length(union) - overlap(union, busy),
                waiting_ns=int((when - start).sum()),
                transfer_ns=int((end - when).sum()),
                whole=told,
            )
        )
    return tuple(sorted(found, key=lambda one: -one.busy_ns))


def _kernels(profile: RankProfile, low: int, high: int) -> tuple[KernelUse, ...]:
    """Sum up kernels by name and phase, the longest first."""
    events = profile.events
    mine = (events.part < COLLECTIVE) & (events.start_ns >= low) & (events.start_ns < high)
    key = (events.name[mine] * len(PARTS) + events.part[mine]) * len(Phase) + events.phase[mine]
    kinds, place, calls = np.unique(key, return_inverse=True, return_counts=True)
    busy = np.zeros(len(kinds), dtype=np.int64)
    np.add.at(busy, place, events.end_ns[mine] - events.start_ns[mine])
    found = [
        KernelUse(
            name=profile.names[one // (len(Phase) * len(PARTS))],
            part=PARTS[one // len(Phase) % len(PARTS)],
            phase=Phase(one % len(Phase)),
            calls=count,
            busy_ns=ns,
            product=profile.products.get(one // (len(Phase) * len(PARTS))),
        )
        for one, count, ns in zip(kinds.tolist(), calls.tolist(), busy.tolist(), strict=True)
    ]
    return tuple(sorted(found, key=lambda use: -use.busy_ns))
