"""What each trainer makes a rank of its pipeline do in one step: computing, sending, receiving, in its own order.

Written from the trainers' sources, for tests: it shares nothing with the product's orders, prices or simulation.

- Megatron-LM d98e8a6, megatron/core/pipeline_parallel/schedules.py: 1F1B without and with interleaving
- PyTorch 2.13, torch/distributed/pipelining/schedules.py: GPipe, Interleaved1F1B, ZBVZeroBubble, DualPipeV
- sail-sg zbpp_light: ZB-H1; deepspeedai/Megatron-DeepSpeed deepspeed_zbh1_schedule.py, exact semantics: the same
- deepseek-ai/DualPipe: dualpipe.py and dualpipev.py

A program is a list of instructions of one rank. Places are (rank, chunk). A transfer lasts ``Job.hop_s`` from its
sending; whoever takes part in an ``Exchange`` does nothing else meanwhile.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Place = tuple[int, int]


class Message(NamedTuple):
    """A tensor for a place of another rank: an activation, or a gradient."""

    gradient: bool
    rank: int
    chunk: int
    micro_batch: int


class Op(NamedTuple):
    """F, B (both gradients), D (inputs), W (weights) of a chunk; "FB" runs with ``partner``, a B, beside it."""

    kind: str
    chunk: int
    micro_batch: int
    partner: tuple[int, int] | None = None


class Run(NamedTuple):
    """Compute an operation for some seconds, then ship messages without waiting for their arrival."""

    op: Op
    seconds: float
    ships: tuple[Message, ...] = ()


class Await(NamedTuple):
    """Wait until a message has arrived."""

    message: Message


class Exchange(NamedTuple):
    """Send and receive in one batch, and wait for all of it."""

    sends: tuple[Message, ...]
    receives: tuple[Message, ...]


Instruction = Run | Await | Exchange


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkWork:
    """Seconds of one micro-batch at one place; ``hidden_*`` come on top where no other micro-batch runs beside."""

    forward_s: float
    dgrad_s: float
    wgrad_s: float
    hidden_forward_s: float = 0.0
    hidden_backward_s: float = 0.0

    @property
    def backward_s(self) -> float:
        """A whole backward beside another micro-batch."""
        return self.dgrad_s + self.wgrad_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One step: the work of every place, the places that a micro-batch passes, in order, and what a transfer takes.

    ``micro_batches`` pass each path; DualPipe has two paths with half of a step's micro-batches each. ``overlap``:
    the trainer is told to run transfers beside compute; ``merges``: to run a forward and a backward as one.
    """

    pp: int
    micro_batches: int
    work: Mapping[Place, ChunkWork]
    paths: tuple[tuple[Place, ...], ...]
    hop_s: float = 0.0
    overlap: bool = True
    merges: bool = False
    after: dict[Place, Place] = field(default_factory=dict)
    before: dict[Place, Place] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for path in self.paths:
            self.after.update(pairwise(path))
            self.before.update((there, here) for here, there in pairwise(path))

    @property
    def chunks(self) -> int:
        """Places on one rank."""
        return len(self.work) // self.pp

    def message(self, source: Place, *, gradient: bool, micro_batch: int) -> tuple[Message, ...]:
        """Return what a place hands on to another rank, if it does."""
        target = (self.before if gradient else self.after).get(source)
        return (Message(gradient, *target, micro_batch),) if target and target[0] != source[0] else ()

    def needed(self, target: Place, *, gradient: bool, micro_batch: int) -> tuple[Message, ...]:
        """Return what a place needs from another rank, if it does."""
        source = (self.after if gradient else self.before).get(target)
        return (Message(gradient, *target, micro_batch),) if source and source[0] != target[0] else ()


def needs(job: Job, rank: int, op: Op) -> tuple[Message, ...]:
    """Return the messages that an operation waits for."""
    found: tuple[Message, ...] = ()
    if op.kind.startswith("F"):
        found += job.needed((rank, op.chunk), gradient=False, micro_batch=op.micro_batch)
    if op.kind in "BD":
        found += job.needed((rank, op.chunk), gradient=True, micro_batch=op.micro_batch)
    if op.partner:
        found += job.needed((rank, op.partner[0]), gradient=True, micro_batch=op.partner[1])
    return found


def makes(job: Job, rank: int, op: Op) -> tuple[Message, ...]:
    """Return the messages that an operation makes."""
    made: tuple[Message, ...] = ()
    if op.kind.startswith("F"):
        made += job.message((rank, op.chunk), gradient=False, micro_batch=op.micro_batch)
    if op.kind in "BD":
        made += job.message((rank, op.chunk), gradient=True, micro_batch=op.micro_batch)
    if op.partner:
        made += job.message((rank, op.partner[0]), gradient=True, micro_batch=op.partner[1])
    return made


def seconds(job: Job, rank: int, op: Op) -> float:
    """Return what an operation takes."""
    work = job.work[rank, op.chunk]
    if op.partner:
        return work.forward_s + job.work[rank, op.partner[0]].backward_s
    return {
        "F": work.forward_s + work.hidden_forward_s,
        "B": work.backward_s + work.hidden_backward_s,
        "D": work.dgrad_s + work.hidden_backward_s,
        "W": work.wgrad_s,
    }[op.kind]


def beside_compute(job: Job, rank: int, ops: Iterable[Op]) -> list[Instruction]:
    """Run operations with transfers beside them: only what is needed is waited for."""
    program: list[Instruction] = []
    for op in ops:
        program += [Await(message) for message in needs(job, rank, op)]
        program.append(Run(op, seconds(job, rank, op), makes(job, rank, op)))
    return program


def between_operations(job: Job, rank: int, ops: Iterable[Op]) -> list[Instruction]:
    """Run operations with one batch of transfers between each two: the last one's outputs, the next one's inputs."""
    program, waiting = list[Instruction](), tuple[Message, ...]()
    for op in ops:
        wanted = needs(job, rank, op)
        if waiting or wanted:
            program.append(Exchange(waiting, wanted))
        program.append(Run(op, seconds(job, rank, op)))
        waiting = makes(job, rank, op)
    return [*program, Exchange(waiting, ())] if waiting else program


def _either(job: Job, rank: int, ops: Iterable[Op]) -> list[Instruction]:
    return (beside_compute if job.overlap else between_operations)(job, rank, ops)


def accumulate(job: Job, rank: int) -> list[Instruction]:
    """One rank: micro-batch after micro-batch; merged, each forward with the backward before it (combined_1f1b.py)."""
    if job.merges:
        between = [Op("FB", 0, i, (0, i - 1)) for i in range(1, job.micro_batches)]
        ops = [Op("F", 0, 0), *between, Op("B", 0, job.micro_batches - 1)]
        return beside_compute(job, rank, ops)
    return beside_compute(job, rank, [Op(kind, 0, i) for i in range(job.micro_batches) for kind in "FB"])


def gpipe(job: Job, rank: int) -> list[Instruction]:
    """All forwards, all backwards (PyTorch ``ScheduleGPipe``, nanotron's all-forward-all-backward)."""
    return _either(job, rank, [Op(kind, 0, i) for kind in "FB" for i in range(job.micro_batches)])


def one_f_one_b(job: Job, rank: int) -> list[Instruction]:
    """Megatron-LM's ``forward_backward_pipelining_without_interleaving``; PyTorch's ``Schedule1F1B`` waits likewise."""
    m, warm, place = job.micro_batches, min(job.pp - rank - 1, job.micro_batches), (rank, 0)
    program = list[Instruction]()

    def exchange(*, sends: tuple[Message, ...] = (), receives: tuple[Message, ...] = ()) -> None:
        if sends or receives:
            program.append(Exchange(sends, receives))

    def run(kind: str, i: int) -> None:
        op = Op(kind, 0, i)
        program.append(Run(op, seconds(job, rank, op)))

    for i in range(warm):
        exchange(receives=job.needed(place, gradient=False, micro_batch=i))
        run("F", i)
        exchange(sends=job.message(place, gradient=False, micro_batch=i))
    if warm < m:
        exchange(receives=job.needed(place, gradient=False, micro_batch=warm))
    for i in range(m - warm):
        run("F", warm + i)
        sent = job.message(place, gradient=False, micro_batch=warm + i)
        exchange(sends=sent, receives=job.needed(place, gradient=True, micro_batch=i))
        run("B", i)
        last = i == m - warm - 1
        following = () if last else job.needed(place, gradient=False, micro_batch=warm + i + 1)
        exchange(sends=job.message(place, gradient=True, micro_batch=i), receives=following)
    for i in range(m - warm, m):
        exchange(receives=job.needed(place, gradient=True, micro_batch=i))
        run("B", i)
        exchange(sends=job.message(place, gradient=True, micro_batch=i))
    return program


def zb_h1(job: Job, rank: int) -> list[Instruction]:
    """Sail's ``auto_schedule``: 1F1B, gradients for weights as many micro-batches late as the rank's number."""
    m, warm = job.micro_batches, min(job.pp - rank - 1, job.micro_batches)
    ops = [Op("F", 0, i) for i in range(warm)]
    for i in range(m):
        ops += [Op("F", 0, warm + i)] if warm + i < m else []
        ops.append(Op("D", 0, i))
        ops += [Op("W", 0, i - rank)] if i >= rank else []
    return _either(job, rank, [*ops, *(Op("W", 0, i) for i in range(max(m - rank, 0), m))])


def torch_interleaved(job: Job, rank: int) -> list[Instruction]:
    """PyTorch's ``ScheduleInterleaved1F1B``: rounds of micro-batches, each through chunk after chunk."""
    m, rounds = job.micro_batches, max(1, job.micro_batches // job.pp)
    if m % rounds:
        raise ValueError(f"{m} micro-batches are no multiple of {rounds} rounds")
    size, chunks = m // rounds, job.chunks
    warm = min((chunks - 1) * size + 2 * (job.pp - 1 - rank), m * chunks)
    seen: dict[tuple[str, int], int] = {}

    def step(kind: str, count: int) -> Op:
        chunk = count // size % chunks
        chunk = chunk if kind == "F" else chunks - 1 - chunk
        i = seen.get((kind, chunk), 0)
        seen[kind, chunk] = i + 1
        return Op(kind, chunk, i)

    ops = [step("F", count) for count in range(warm)]
    for count in range(m * chunks - warm):
        ops += [step("F", warm + count), step("B", count)]
    ops += [step("B", count) for count in range(m * chunks - warm, m * chunks)]
    return _either(job, rank, ops)


def megatron_interleaved(job: Job, rank: int) -> list[Instruction]:
    """Megatron-LM's ``forward_backward_pipelining_with_interleaving``, groups of as many micro-batches as ranks.

    Warm-up and cool-down wait for their transfers; in between they run beside compute with ``overlap_p2p_comm``, else
    all four come after a forward and a backward. With ``overlap_moe_expert_parallel_comm`` the two run as one
    (combined_1f1b.py): both inputs are waited for in front, both outputs go behind.
    """
    if job.micro_batches % job.pp:
        raise ValueError(f"{job.micro_batches} micro-batches are no multiple of {job.pp} ranks")
    turns = _Turns(job=job, rank=rank)
    return turns.warm_up() + turns.steady() + turns.cool_down()


@dataclass(slots=True, kw_only=True)
class _Turns:
    """A rank's turns forward and backward, numbered as ``virtual_microbatch_id``."""

    job: Job
    rank: int

    @property
    def total(self) -> int:
        return self.job.micro_batches * self.job.chunks

    @property
    def warm(self) -> int:
        pp, chunks = self.job.pp, self.job.chunks
        # merged passes have to be independent of each other: one more forward goes ahead
        return min(2 * (pp - self.rank - 1) + (chunks - 1) * pp + self.job.merges, self.total)

    def op(self, kind: str, turn: int) -> Op:
        pp, chunks = self.job.pp, self.job.chunks
        group, place = divmod(turn, pp * chunks)
        chunk, i = divmod(place, pp)
        return Op(kind, chunk if kind == "F" else chunks - 1 - chunk, group * pp + i)

    def run(self, op: Op, *, ships: bool) -> Run:
        return Run(op, seconds(self.job, self.rank, op), makes(self.job, self.rank, op) if ships else ())

    def out(self, kind: str, turn: int) -> tuple[Message, ...]:
        return makes(self.job, self.rank, self.op(kind, turn))

    def into(self, kind: str, turn: int) -> tuple[Message, ...]:
        return needs(self.job, self.rank, self.op(kind, turn)) if turn < self.total else ()

    def arrival(self, kind: str, turn: int) -> tuple[Message, ...]:
        """Return what is received at the end of a turn: the next turn's input, or on the leading rank what the ending
        rank makes in its own turn, which is pp - 1 turns behind."""
        leads = self.rank == (0 if kind == "F" else self.job.pp - 1)
        if not leads:
            return self.into(kind, turn + 1)
        behind = turn - (self.job.pp - 1)
        ending = _Turns(job=self.job, rank=self.job.pp - 1 - self.rank)
        return ending.out(kind, behind) if behind >= 0 else ()

    def warm_up(self) -> list[Instruction]:
        program: list[Instruction] = []
        if first := self.into("F", 0):
            program.append(Exchange((), first))
        for turn in range(self.warm):
            program.append(self.run(self.op("F", turn), ships=False))
            last = turn == self.total - 1
            received = () if last else self.arrival("F", turn)
            if turn == self.warm - 1 and self.warm < self.total and not self.job.overlap:
                received += self.into("B", 0)
            program.append(Exchange(self.out("F", turn), received))
        if self.warm == self.total and (first := self.into("B", 0)):
            program.append(Exchange((), first))
        return program

    def steady(self) -> list[Instruction]:
        program: list[Instruction] = []
        for back in range(self.total - self.warm):
            turn, last = self.warm + back, back == self.total - self.warm - 1
            pair = [self.op("F", turn), self.op("B", back)]
            if self.job.merges:
                ahead, behind = pair
                pair = [ahead._replace(kind="FB", partner=(behind.chunk, behind.micro_batch))]
            if self.job.overlap:
                program += beside_compute(self.job, self.rank, pair)
                continue
            program += [self.run(op, ships=False) for op in pair]
            received = (() if last else self.arrival("F", turn)) + self.arrival("B", back)
            program.append(Exchange(self.out("F", turn) + self.out("B", back), received))
        return program

    def cool_down(self) -> list[Instruction]:
        program: list[Instruction] = []
        beside = self.job.overlap and self.warm < self.total
        for turn in range(self.total - self.warm, self.total):
            if beside and turn == self.total - self.warm:
                program += [Await(message) for message in self.into("B", turn)]
            program.append(self.run(self.op("B", turn), ships=False))
            received = () if turn == self.total - 1 else self.arrival("B", turn)
            program.append(Exchange(self.out("B", turn), received))
        return program


def zb_v(job: Job, rank: int) -> list[Instruction]:
    """PyTorch's ``ScheduleZBVZeroBubble``: planned for at least 2 * pp - 1 micro-batches, those beyond m left out."""
    pp, planned = job.pp, max(2 * job.pp - 1, job.micro_batches)
    tape = _Tape()
    tape.put("F0", 2 * (pp - rank) - 1)
    tape.put("F1 F0", rank)
    tape.put("F1 D1 W1", pp - rank)
    while tape.count["F1"] < tape.count["F0"] or tape.count["F0"] < planned:
        tape.put("F0 D0 W0 F1 D1 W1" if tape.count["F0"] < planned else "D0 W0 F1 D1 W1")
    tape.put("D0 D1", rank)
    tape.put("D0 W0", pp - rank)
    tape.put("W1", tape.count["D1"] - tape.count["W1"])
    tape.put("W0", tape.count["D0"] - tape.count["W0"])
    return _either(job, rank, [op for op in tape.ops if op.micro_batch < job.micro_batches])


class _Tape:
    """Operations in the making; each takes the next micro-batch of its kind and chunk."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.count: dict[str, int] = dict.fromkeys(("F0", "F1", "D0", "D1", "W0", "W1"), 0)

    def put(self, names: str, times: int = 1) -> None:
        """Append operations such as "F0 D1", the whole phrase so many times."""
        for name in names.split() * times:
            self.ops.append(Op(name[0], int(name[1]), self.count[name]))
            self.count[name] += 1


@dataclass(slots=True, kw_only=True)
class _Dual:
    """One rank under DeepSeek's runtime: transfers gather up and go in one batch before the next chunk of work.

    ``phase`` 0 is the chunk whose micro-batches enter first; ``swapped`` ranks see the two directions exchanged.
    """

    job: Job
    rank: int
    swapped: bool = False
    program: list[Instruction] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    sends: list[Message] = field(default_factory=list)
    receives: list[Message] = field(default_factory=list)
    count: dict[str, int] = field(default_factory=dict)
    late: deque[Op] = field(default_factory=deque)

    def next_op(self, action: str, kind: str, phase: int) -> Op:
        """Return the operation of a phase's next micro-batch for an action (run, take or give)."""
        key = f"{action}{kind}{phase}"
        i = self.count.get(key, 0)
        self.count[key] = i + 1
        return Op(kind, phase ^ int(self.swapped), i)

    def take(self, kind: str, phase: int) -> None:
        """Ask for a phase's next input."""
        self.receives += needs(self.job, self.rank, self.next_op("take", kind, phase))

    def give(self, kind: str, phase: int) -> None:
        """Hand on a phase's next output."""
        self.sends += makes(self.job, self.rank, self.next_op("give", kind, phase))

    def commit(self) -> None:
        """Wait for everything gathered."""
        if self.sends or self.receives:
            self.program.append(Exchange(tuple(self.sends), tuple(self.receives)))
        self.sends, self.receives = [], []

    def compute(self, kind: str, phase: int, *, zero_bubble: bool = False) -> None:
        """Run one chunk."""
        op = self.next_op("run", kind, phase)
        if zero_bubble:
            op = op._replace(kind="D")
            self.late.append(op._replace(kind="W"))
        self.run(op)

    def run(self, op: Op) -> None:
        """Append an operation."""
        self.ops.append(op)
        self.program.append(Run(op, seconds(self.job, self.rank, op)))

    def forward(self, phase: int, *, take: bool = True, give: bool = True) -> None:
        """Run a forward chunk."""
        if take:
            self.take("F", phase)
        self.commit()
        self.compute("F", phase)
        if give:
            self.give("F", phase)

    def backward(self, phase: int, *, zero_bubble: bool = False, give: bool = True) -> None:
        """Run a backward chunk, its weights' gradients later with ``zero_bubble``."""
        self.take("B", phase)
        self.commit()
        self.compute("B", phase, zero_bubble=zero_bubble)
        if give:
            self.give("B", phase)

    def both(self, phase: int, *, take: bool = True) -> None:
        """Run a phase's forward beside the other phase's backward."""
        if take:
            self.take("F", phase)
        self.take("B", 1 - phase)
        self.commit()
        ahead, back = self.next_op("run", "F", phase), self.next_op("run", "B", 1 - phase)
        self.run(Op("FB", ahead.chunk, ahead.micro_batch, (back.chunk, back.micro_batch)))
        self.give("F", phase)
        self.give("B", 1 - phase)

    def weights(self) -> None:
        """Run the oldest gradients for weights that are due."""
        self.commit()
        self.run(self.late.popleft())


def _dual_steps(dual: _Dual, ranks: int, rank: int, *, folded: bool) -> list[Instruction]:
    """The eight steps of ``DualPipe.step`` and ``DualPipeV.step``: ``ranks`` between an end and the turning point."""
    after, middle = ranks - rank - 1, rank == ranks - 1
    for _ in range(2 * after):
        dual.forward(0)
    dual.take("F", 0)
    for i in range(rank + 1):
        # In the two-way pipe the middle ranks hand on at once; elsewhere the first output leaves after the second.
        at_once = middle and not folded
        dual.forward(0, take=False, give=at_once)
        dual.take("F", 0)
        dual.forward(1, give=not middle or i < rank)
        if not at_once:
            dual.give("F", 0)
    for _ in range(after):
        dual.backward(1, zero_bubble=True)
        dual.take("F", 1)
        dual.weights()
        dual.forward(1, take=False)
    for i in range(dual.job.micro_batches - 2 * ranks + rank + 1):
        _first_pair(dual, middle=middle) if i == 0 else dual.both(0)
        dual.both(1)
    for _ in range(after):
        dual.backward(1)
        dual.both(1)
    _drain(dual, rank, after)
    return dual.program


def _first_pair(dual: _Dual, *, middle: bool) -> None:
    """The main phase's first forward and backward, which the middle runs one after the other."""
    if not middle:
        dual.both(0, take=False)
        return
    dual.forward(0, take=False, give=False)
    dual.give("F", 1)
    dual.backward(1, give=False)
    dual.give("F", 0)
    dual.give("B", 1)


def _drain(dual: _Dual, rank: int, after: int) -> None:
    """The last backwards, from the middle on without their gradients for weights, and these."""
    zero_bubble = False
    for i in range(rank + 1):
        half = i == (rank + 1) // 2
        zero_bubble = zero_bubble or (half and rank % 2 == 1)
        dual.backward(1, zero_bubble=zero_bubble)
        zero_bubble = zero_bubble or (half and rank % 2 == 0)
        dual.backward(0, zero_bubble=zero_bubble)
    for _ in range(after):
        dual.weights()
        dual.backward(0, zero_bubble=True)
    for _ in range(rank + 1):
        dual.weights()
    dual.commit()


def dualpipe(job: Job, rank: int) -> list[Instruction]:
    """DualPipe: micro-batches enter at both ends and pass each other."""
    if job.pp % 2 or job.micro_batches < job.pp:
        raise ValueError("an even number of ranks, and at least as many micro-batches each way")
    dual = _Dual(job=job, rank=rank, swapped=rank >= job.pp // 2)
    return _dual_steps(dual, job.pp // 2, min(rank, job.pp - 1 - rank), folded=False)


def dualpipe_v(job: Job, rank: int) -> list[Instruction]:
    """DualPipeV under DeepSeek's runtime."""
    _checked_dual_v(job)
    return _dual_steps(_Dual(job=job, rank=rank), job.pp, rank, folded=True)


def torch_dualpipe_v(job: Job, rank: int) -> list[Instruction]:
    """PyTorch's ``ScheduleDualPipeV``: the same operations with transfers beside them."""
    dual = _Dual(job=job, rank=rank)
    _checked_dual_v(job)
    _dual_steps(dual, job.pp, rank, folded=True)
    return _either(job, rank, dual.ops)


def _checked_dual_v(job: Job) -> None:
    if job.micro_batches < 2 * job.pp:
        raise ValueError("at least two micro-batches per rank")
