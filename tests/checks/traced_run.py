"""A job of many ranks run as events: kernels, collectives that wait for their peers, hosts that launch.

The order of each rank's operations is the schedule's (``cost.orders``); everything else is its own: an engine of streams
and queues on a grid of microseconds, and truth by painting every event's label onto that grid.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np

from checks.traced_job import COMPONENT, DESCRIPTIONS, Kernel
from layoutopt.optimizer.cost.components import Component
from layoutopt.optimizer.cost.orders import Kind, Op, rank_orders, successors
from layoutopt.optimizer.diagnose.parts import CODE, COMPUTE, LABELS, Activity, Label, Phase

if TYPE_CHECKING:
    from collections.abc import Iterator

    from checks.traced_job import Item, Job, Traffic

LEAD_US = 60
"""How far hosts run ahead of their devices."""

COMPUTE_STREAM = 7


@dataclass(slots=True)
class Event:
    """Something on a device: microseconds, what it is, and the host's launch of it."""

    start_us: int
    end_us: int
    stream: int
    part: Activity
    phase: Phase
    launch_us: float
    axis: str = ""
    kind: str = ""
    bytes: int = 0
    members: tuple[int, ...] = ()
    peer: int = -1
    number: int = 0


@dataclass(slots=True)
class _Call:
    """A collective in the making."""

    members: tuple[int, ...]
    us: int
    axis: str
    kind: str
    bytes: int
    component: Component
    posted: dict[int, tuple[int, Phase, float]] = field(default_factory=dict)
    ready_us: int = -1
    end_us: int = -1


@dataclass(slots=True)
class Rank:
    """A rank while the job runs, and what it leaves."""

    number: int
    rng: np.random.Generator
    time_us: int = 0
    launched_us: float = 0.0
    events: list[Event] = field(default_factory=list)
    painted: list[tuple[int, int, Label]] = field(default_factory=list)
    queues: dict[str, deque[tuple[object, ...]]] = field(default_factory=dict)
    free_us: dict[str, int] = field(default_factory=dict)
    begun_us: list[float] = field(default_factory=list)
    ranges: list[tuple[str, float, float]] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
    counted: Counter[object] = field(default_factory=Counter)
    """Calls by their group, whether the host was late, when the step's first kernel started."""


class Run:
    """The job, run. ``ranks`` hold their events; ``truth`` says what each rank's steps consist of."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.ranks = [Rank(number, np.random.default_rng([job.seed, number])) for number in range(job.ranks)]
        self.calls: dict[tuple[object, ...], _Call] = {}
        self.to = successors(job.pipeline)
        self.back = {there: here for here, there in self.to.items()}
        self.orders = rank_orders(job.pipeline)
        self._go()

    def _go(self) -> None:
        programs = {rank.number: self._program(rank) for rank in self.ranks}
        waiting = dict.fromkeys(programs, None)
        waits: dict[int, tuple[object, ...] | None] = dict(waiting)
        while programs:
            moved = False
            for number, program in list(programs.items()):
                while (key := waits[number]) is None or self.calls[key].end_us >= 0:
                    moved = True
                    if key is not None:
                        self._join(self.ranks[number], self.calls[key])
                    try:
                        waits[number] = next(program)
                    except StopIteration:
                        del programs[number]
                        break
            if not moved:
                raise AssertionError("the job deadlocks")

    def _program(self, rank: Rank) -> Iterator[tuple[object, ...] | None]:
        """Yield what the rank waits for; None goes on."""
        job = self.job
        for step in range(job.steps):
            self._begin(rank, first=step == 0)
            stage = job.place(rank.number)["pp"]
            last = max(n for n, op in enumerate(self.orders[stage]) if op.kind is not Kind.FORWARD)
            for n, op in enumerate(self.orders[stage]):
                yield from self._operation(rank, stage, op)
                if n == last and job.dp > 1 and job.reduce_us:
                    yield from self._reduce(rank)
            yield self._post(rank, "all", "all_reduce", job.norm_us, 4, Phase.OPTIMIZER)
            self._kernel(
                rank, Kernel(Activity.OPTIMIZER, self._noisy(rank, job.optimizer_us)), Phase.OPTIMIZER
            )
            if job.dp > 1 and job.gather_us:
                yield self._post(rank, "dp", "all_gather", job.gather_us, job.gather_bytes, Phase.OPTIMIZER)
            if job.checkpoint_us and step == job.steps - 2:
                self._checkpoint(rank)
        rank.begun_us.append(max(rank.launched_us + 1, rank.begun_us[-1] + 1, self._checkpointed(rank)))

    def _checkpointed(self, rank: Rank) -> float:
        return max((end for name, _, end in rank.ranges if name == "save_checkpoint"), default=0.0)

    def _begin(self, rank: Rank, *, first: bool) -> None:
        """Start a step: the host may wait for data, then takes its fixed time before the first launch."""
        job = self.job
        begun = 0.0 if first else max(rank.launched_us + 1, self._checkpointed(rank))
        rank.begun_us.append(begun)
        rank.counted["first"] = 0
        rank.launched_us = max(rank.launched_us, begun)
        start = max(rank.time_us, int(np.ceil(begun)))
        rank.painted.append((rank.time_us, start, Label(Component.STEP, Activity.LAUNCH)))
        rank.time_us = start
        stall = job.data_stall_us
        if stall:
            name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
            rank.ranges.append((name, start, start + stall))
            rank.painted.append((start, start + stall, Label(Component.STEP, Activity.DATA_LOADER)))
        self._idle_until(rank, start + stall + job.host_us, Component.STEP)

    def _idle_until(self, rank: Rank, until: int, component: Component) -> None:
        """Let the device wait for the host, whose next launch ends one microsecond before ``until``."""
        if until - 1 > rank.time_us:
            rank.painted.append((rank.time_us, until - 1, Label(component, Activity.LAUNCH)))
            rank.launched_us = max(rank.launched_us, float(until - 1) - 0.1)
            rank.time_us = until - 1
        rank.counted["late"] = 1

    def _operation(self, rank: Rank, stage: int, op: Op) -> Iterator[tuple[object, ...] | None]:
        """Receive, run the layers, send; weight gradients that run apart neither receive nor send."""
        work = self.job.stages[op.chunk * self.job.pipeline.pp + stage]
        if op.kind is Kind.WGRAD:
            yield from self._layers(rank, work.wgrad, Phase.BACKWARD)
            return
        place, forward = self.job.place(rank.number), op.kind is Kind.FORWARD
        sources, targets = (self.back, self.to) if forward else (self.to, self.back)
        source, target = sources.get((stage, op.chunk)), targets.get((stage, op.chunk))
        phase = Phase.FORWARD if forward else Phase.BACKWARD
        if source is not None and source[0] != stage:
            peer = self.job.rank_at({**place, "pp": source[0]})
            yield self._point(rank, peer, rank.number, phase)
        if forward:
            yield from self._layers(rank, work.forward, phase)
        else:
            yield from self._layers(rank, work.again, Phase.RECOMPUTE)
            yield from self._layers(rank, work.backward, phase)
            yield from self._layers(rank, work.wgrad if op.kind is Kind.BACKWARD else (), phase)
        if target is not None and target[0] != stage:
            self._point(rank, rank.number, self.job.rank_at({**place, "pp": target[0]}), phase)

    def _layers(
        self, rank: Rank, items: tuple[Item, ...], phase: Phase
    ) -> Iterator[tuple[object, ...] | None]:
        for item in items:
            if isinstance(item, Kernel):
                factor = self.job.rank_factor.get(rank.number, 1.0)
                if item.part is Activity.EXPERTS:
                    factor *= self.job.expert_factor[rank.number % len(self.job.expert_factor)]
                late = 0 if self.job.graphs else item.late_us
                self._kernel(rank, item._replace(us=self._noisy(rank, item.us * factor), late_us=late), phase)
            else:
                yield self._blocking(rank, item, phase)

    def _blocking(self, rank: Rank, item: Traffic, phase: Phase) -> tuple[object, ...]:
        """Post a collective that layers wait for; what of it is hidden began after the step's first kernel."""
        first, us = rank.counted["first"], item.us + item.hidden_us
        before = min(item.hidden_us + item.ahead_us, max(rank.time_us - first, 0)) if first else 0
        at = rank.time_us - before if before else None
        return self._post(rank, item.axis, item.kind, us, item.bytes, phase, at=at)

    def _noisy(self, rank: Rank, us: float) -> int:
        return max(1, round(us * (1 + self.job.noise * float(rank.rng.standard_normal()))))

    def _kernel(self, rank: Rank, kernel: Kernel, phase: Phase) -> None:
        """Run a kernel on the compute stream."""
        if kernel.late_us:
            self._idle_until(rank, rank.time_us + kernel.late_us + 1, Component.HOST)
        gap = max(kernel.gap_us, rank.counted.pop("late", 0))
        start = rank.time_us + gap
        if gap:
            rank.painted.append((rank.time_us, start, Label(COMPUTE[phase], Activity.GAP)))
        launch = self._launch(rank, rank.time_us)
        end = start + kernel.us
        rank.counted["first"] = rank.counted["first"] or start
        rank.events.append(Event(start, end, COMPUTE_STREAM, kernel.part, phase, launch))
        rank.painted.append((start, end, Label(COMPUTE[phase], kernel.part)))
        rank.time_us = end

    def _launch(self, rank: Rank, by_us: float) -> float:
        rank.launched_us = max(rank.launched_us + 0.1, by_us - LEAD_US)
        return rank.launched_us

    def _post(
        self, rank: Rank, axis: str, kind: str, us: int, size: int, phase: Phase, *, at: int | None = None
    ) -> tuple[object, ...]:
        """Enqueue a collective; what is returned is waited for by whoever yields it."""
        over = "dp" if axis == "fsdp" else axis
        members = self.job.group(rank.number, over)
        rank.counted[axis] += 1
        key = (axis, members, rank.counted[axis])
        factor = self.job.axis_factor.get(over, 1.0)
        call = self.calls.get(key)
        if call is None:
            streamed = axis == "fsdp" and rank.counted["first"] > 0
            component = COMPONENT[axis] if streamed or axis != "fsdp" else COMPONENT[over]
            call = _Call(members, self._shared(key, us * factor), over, kind, size, component)
            self.calls[key] = call
        self._enqueue(rank, key, call, over, phase, at)
        return key

    def _point(self, rank: Rank, source: int, target: int, phase: Phase) -> tuple[object, ...]:
        """Enqueue one end of a transfer between stages."""
        name = ("p2p", source, target)
        rank.counted[name] += 1
        key = (*name, rank.counted[name])
        call = self.calls.get(key)
        if call is None:
            us = self._shared(key, self.job.hop_us * self.job.axis_factor.get("pp", 1.0))
            call = _Call((source, target), us, "pp", "p2p", self.job.hop_bytes, Component.PP)
            self.calls[key] = call
        self._enqueue(rank, key, call, f"p2p {source} {target}", phase, None)
        return key

    def _shared(self, key: tuple[object, ...], us: float) -> int:
        rng = np.random.default_rng([self.job.seed, crc32(repr(key).encode())])
        return max(1, round(us * (1 + self.job.noise * float(rng.standard_normal()))))

    def _enqueue(
        self, rank: Rank, key: tuple[object, ...], call: _Call, queue: str, phase: Phase, at: int | None
    ) -> None:
        if at is None:
            rank.counted.pop("late", 0)
            call.posted[rank.number] = (rank.time_us, phase, self._launch(rank, rank.time_us))
        else:
            call.posted[rank.number] = (at, phase, at - LEAD_US)
        rank.queues.setdefault(queue, deque()).append(key)
        self._resolve(rank, queue)

    def _resolve(self, rank: Rank, queue: str) -> None:
        """Finish every collective of a queue whose members all wait for it in front, and those behind it."""
        waiting = rank.queues[queue]
        while waiting and self._ready(waiting[0], queue):
            call = self.calls[waiting[0]]
            self._finish(call, queue)
            for member in call.members:
                self._resolve(self.ranks[member], queue)

    def _ready(self, key: tuple[object, ...], queue: str) -> bool:
        call = self.calls[key]
        fronts = (self.ranks[member].queues.get(queue) for member in call.members)
        return all(front and front[0] == key for front in fronts)

    def _finish(self, call: _Call, queue: str) -> None:
        starts = {
            member: max(call.posted[member][0], self.ranks[member].free_us.get(queue, 0))
            for member in call.members
        }
        call.ready_us = max(starts.values())
        call.end_us = call.ready_us + call.us
        staged = self.job.pipeline.pp > 1
        piped = call.axis == "pp" or (call.axis == "all" and staged)
        for member, start in starts.items():
            rank = self.ranks[member]
            rank.queues[queue].popleft()
            rank.free_us[queue] = call.end_us
            _, phase, launch = call.posted[member]
            kind, peer = call.kind, -1
            if kind == "p2p":
                kind = "send" if member == call.members[0] else "recv"
                peer = call.members[1] if kind == "send" else call.members[0]
            members = self.job.group(member, "pp") if call.axis == "pp" else call.members
            stream = 20 + sorted(DESCRIPTIONS).index(call.axis) + (10 if kind == "recv" else 0)
            rank.events.append(
                Event(
                    start,
                    call.end_us,
                    stream,
                    Activity.TRANSFER,
                    phase,
                    launch,
                    call.axis,
                    kind,
                    call.bytes,
                    members,
                    peer,
                )
            )
            wait = Label(Component.BUBBLE if piped else Component.SYNC, Activity.PEER)
            rank.painted.append((start, call.ready_us, wait))
            rank.painted.append((call.ready_us, call.end_us, Label(call.component, Activity.TRANSFER)))

    def _join(self, rank: Rank, call: _Call) -> None:
        rank.time_us = max(rank.time_us, call.end_us)

    def _reduce(self, rank: Rank) -> Iterator[tuple[object, ...] | None]:
        """Sum gradients: in buckets while the last backward still ran where traffic overlaps, else all of it now.

        Buckets are posted behind the backward but begin when the network is free: what is hidden is posted earlier.
        """
        job = self.job
        hidden = job.reduce_us - job.reduce_exposed_us if job.overlaps else 0
        exposed = job.reduce_us - hidden
        if hidden:
            self._earlier(rank, hidden)
        share = exposed / job.reduce_us
        yield self._post(
            rank, "dp", "reduce_scatter", max(exposed, 1), round(job.reduce_bytes * share), Phase.BACKWARD
        )

    def _earlier(self, rank: Rank, hidden: int) -> None:
        """Put the hidden buckets beside kernels that ran already, the same on all ranks of the group."""
        job, pieces = self.job, 4
        us = max(hidden // pieces, 1)
        for piece in range(pieces):
            size = round(job.reduce_bytes * us / job.reduce_us)
            at = rank.time_us - (pieces - piece) * us - 2
            self._post(rank, "dp", "reduce_scatter", us, size, Phase.BACKWARD, at=at)

    def _checkpoint(self, rank: Rank) -> None:
        """Write a checkpoint: the host copies the state down and waits for the file system."""
        start, end = rank.time_us, rank.time_us + self.job.checkpoint_us
        rank.ranges.append(("save_checkpoint", start, end))
        rank.painted.append((start, end, Label(Component.STEP, Activity.CHECKPOINT)))
        rank.copies.append((start + 10, start + 10 + self.job.checkpoint_us // 4))
        rank.time_us = end
        rank.launched_us = float(end)

    def truth(self, rank: int) -> dict[Label, float]:
        """Return microseconds of all steps of a rank by label: every label painted onto the grid, the first ones last."""
        mine = self.ranks[rank]
        low = round(mine.begun_us[0])
        high = max(int(np.ceil(mine.begun_us[-1])), max(event.end_us for event in mine.events))
        grid = np.full(high - low, -1)
        for start, end, label in sorted(mine.painted, key=lambda one: -CODE[one[2]]):
            grid[max(start - low, 0) : max(end - low, 0)] = CODE[label]
        assert (grid >= 0).all(), "a stretch that nothing explains"
        return {LABELS[code]: float(us) for code, us in Counter(grid.tolist()).items()}
