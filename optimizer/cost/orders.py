"""The order in which each rank of a pipeline runs its forwards and backwards, for every schedule.

Positions: rank r holds chunks 0..C-1. Interleaved schedules put virtual stage ``chunk * pp + rank`` there;
V-shaped ones put virtual stage r in chunk 0 and 2*pp-1-r in chunk 1. In DualPipe chunk 0 is stage r fed from
rank 0 and chunk 1 is stage pp-1-r fed from rank pp-1; each direction has half of the micro-batches, numbered
from 0.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, assert_never

import numpy as np

from layoutopt.optimizer.cost.schedules import SCHEDULES, default_group
from layoutopt.optimizer.specs.errors import InputError, Problem
from layoutopt.optimizer.specs.vocabulary import Schedule

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    IntArray = NDArray[np.int64]

Position = tuple[int, int]
"""Rank and chunk."""


class Kind(IntEnum):
    """What an operation does. PAIR is a forward and a whole backward that hide each other's communication."""

    FORWARD = 0
    BACKWARD = 1
    DGRAD = 2
    WGRAD = 3
    PAIR = 4


class HopOverlap(IntEnum):
    """When transfers between ranks run beside compute; else a rank waits for them between two operations.

    STEADY: but for an interleaved pipeline's warm-up and cool-down, as Megatron-LM without
    ``--overlap-p2p-communication-warmup-flush``. MERGED: the same, of a pipeline that merges passes.
    """

    NONE = 0
    STEADY = 1
    ALL = 2
    MERGED = 3


class Op(NamedTuple):
    """One operation of a rank: a chunk and a micro-batch; for a PAIR also those of its backward."""

    kind: Kind
    chunk: int
    micro_batch: int
    backward_chunk: int = -1
    backward_micro_batch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """A schedule with its sizes: ranks, chunks per rank, micro-batches.

    ``group`` is Megatron-LM's ``microbatch_group_size_per_vp_stage``, interleaved only; 0 means
    ``default_group``. ``merges``: of an interleaved pipeline each forward between warm-up and cool-down runs as one with
    the backward behind it, so that either hides the other's exchange of experts (Megatron-LM combined_1f1b.py): both
    inputs are there before they begin, both outputs leave when they end, and one more forward goes ahead.
    """

    schedule: Schedule
    pp: int
    vp: int = 1
    micro_batches: int
    group: int = 0
    merges: bool = False

    def __post_init__(self) -> None:
        problems = tuple(_problems(self))
        if problems:
            raise InputError(*problems)

    @property
    def chunks(self) -> int:
        """Positions per rank: vp, or 2 for DualPipe's two directions."""
        return 2 if self.schedule is Schedule.DUALPIPE else self.vp

    @property
    def micro_batches_per_chunk(self) -> int:
        """Micro-batches that pass through one position."""
        return self.micro_batches // 2 if self.schedule is Schedule.DUALPIPE else self.micro_batches

    @property
    def group_size(self) -> int:
        """Micro-batches that a rank runs through one chunk before it turns to the next."""
        return self.group or int(default_group(np.array(self.pp), np.array(self.micro_batches)))


def _problems(pipeline: Pipeline) -> list[Problem]:
    """Return what the frameworks that run the schedule would refuse."""
    model, pp, vp, m = SCHEDULES[pipeline.schedule], pipeline.pp, pipeline.vp, pipeline.micro_batches
    if min(pp, vp, m) < 1:
        return [
            Problem(what=f"pp {pp}, vp {vp}, micro_batches {m}", allowed="each at least 1", key="schedule")
        ]
    name, fewest = f"schedule {pipeline.schedule}", model.min_micro_batches * pp
    most, groups = model.max_chunks or vp, f"{name} with {m} micro-batches in groups of {pipeline.group_size}"
    rules = [
        (model.min_chunks <= vp <= most, f"{name} with vp {vp}", f"vp {model.min_chunks} to {most}"),
        (m >= fewest, f"{name} with {m} micro-batches", f"at least {fewest}"),
        (not model.even or pp % 2 == m % 2 == 0, f"{name} with pp {pp}, m {m}", "both even"),
        (pipeline.schedule is not Schedule.NONE or pp == 1, f"{name} with pp {pp}", "pp 1"),
        (
            not pipeline.merges or pipeline.schedule is Schedule.INTERLEAVED,
            f"merged passes, {name}",
            "interleaved",
        ),
        (_groups_fit(pipeline), groups, f"{min(pp, m)} to {m}, leaving none or at least pp {pp} over"),
    ]
    return [Problem(what=what, allowed=allowed, key="schedule") for good, what, allowed in rules if not good]


def _groups_fit(pipeline: Pipeline) -> bool:
    """Megatron-LM's rule for interleaving: a shorter last group must still fill the pipeline."""
    if pipeline.schedule is not Schedule.INTERLEAVED:
        return pipeline.group == 0
    pp, m, group = pipeline.pp, pipeline.micro_batches, pipeline.group_size
    return min(pp, m) <= group <= m and (m % group == 0 or m % group >= pp)


def successors(pipeline: Pipeline) -> dict[Position, Position]:
    """Map each position (rank, chunk) to the one that its output goes to; the ends of the model are absent."""
    ranks = range(pipeline.pp)
    if pipeline.schedule is Schedule.DUALPIPE:
        # Two directions through the same stages: each rank holds two of them, one for either direction.
        paths = [[(r, 0) for r in ranks], [(r, 1) for r in reversed(ranks)]]
    elif pipeline.schedule.v_shape:
        paths = [[(r, 0) for r in ranks] + [(r, 1) for r in reversed(ranks)]]
    else:
        paths = [[(r, c) for c in range(pipeline.chunks) for r in ranks]]
    return {here: there for path in paths for here, there in pairwise(path)}


def rank_orders(pipeline: Pipeline) -> tuple[tuple[Op, ...], ...]:
    """Return the operations of every rank in the order that the schedule prescribes."""
    kinds = tuple(Kind)
    return tuple(
        tuple(Op(kinds[kind], *others) for kind, *others in table.tolist()) for table in rank_tables(pipeline)
    )


def rank_tables(pipeline: Pipeline) -> list[IntArray]:
    """Return the operations of every rank as rows of numbers, (n, 5) in the order of an ``Op``'s fields."""
    order = order_of(pipeline.schedule)
    return [order(pipeline, rank) for rank in range(pipeline.pp)]


def _table(kind: Kind, chunk: IntArray | int, micro_batch: IntArray) -> IntArray:
    """Return operations of one kind that are no pairs."""
    table = np.full((len(micro_batch), len(Op._fields)), -1)
    table[:, 0], table[:, 1], table[:, 2] = kind, chunk, micro_batch
    return table


def _gpipe(pipeline: Pipeline, rank: int) -> IntArray:
    """All forwards, then all backwards in the same order (PyTorch ``ScheduleGPipe``, nanotron's
    all-forward-all-backward).
    """
    every = np.arange(pipeline.micro_batches)
    return np.concatenate([_table(kind, 0, every) for kind in (Kind.FORWARD, Kind.BACKWARD)])


def _sequential(pipeline: Pipeline, rank: int) -> IntArray:
    """Gradient accumulation: forward and backward of each micro-batch in turn."""
    every = np.arange(pipeline.micro_batches)
    return _alternate(_table(Kind.FORWARD, 0, every), _table(Kind.BACKWARD, 0, every), 0)


def _one_f_one_b(pipeline: Pipeline, rank: int) -> IntArray:
    """Warm up with pp-rank-1 forwards, then alternate (Megatron-LM
    ``forward_backward_pipelining_without_interleaving``).
    """
    every, warm_up = np.arange(pipeline.micro_batches), min(pipeline.pp - rank - 1, pipeline.micro_batches)
    return _alternate(_table(Kind.FORWARD, 0, every), _table(Kind.BACKWARD, 0, every), warm_up)


def _interleaved(pipeline: Pipeline, rank: int) -> IntArray:
    """Groups of ``group_size`` micro-batches pass chunk after chunk (Megatron-LM ``get_schedule_table``).

    Warm-up as ``get_pp_rank_microbatches``.
    """
    m, vp, group = pipeline.micro_batches, pipeline.vp, pipeline.group_size
    chunk, i = (axis.ravel() for axis in np.indices((vp, m)))
    # Stable: within a group chunk after chunk, in each the micro-batches in turn.
    order = np.argsort(i // group, kind="stable")
    chunk, i = chunk[order], i[order]
    table = _table(Kind.FORWARD, chunk, i), _table(Kind.BACKWARD, vp - 1 - chunk, i)
    return _alternate(*table, interleaved_warm_up(pipeline, rank))


def interleaved_warm_up(pipeline: Pipeline, rank: int) -> int:
    """Return how many forwards a rank of an interleaved pipeline runs before its first backward's pair."""
    warm_up = 2 * (pipeline.pp - rank - 1) + (pipeline.vp - 1) * pipeline.group_size + pipeline.merges
    return min(warm_up, pipeline.micro_batches * pipeline.vp)


def waiting(pipeline: Pipeline, overlap: HopOverlap) -> list[NDArray[np.bool_]]:
    """Tell of every rank's operations, (operations,) in order, behind which the rank waits for its transfers."""
    lengths = [len(table) for table in rank_tables(pipeline)]
    waits = [np.full(length, overlap is HopOverlap.NONE) for length in lengths]
    if overlap in (HopOverlap.STEADY, HopOverlap.MERGED) and pipeline.schedule is Schedule.INTERLEAVED:
        for rank, ends in enumerate(waits):
            warm_up = interleaved_warm_up(pipeline, rank)
            # Only there does nothing stand between two transfers of a rank.
            ends[:warm_up] = ends[len(ends) - warm_up :] = True
    return waits


def merged(pipeline: Pipeline) -> list[NDArray[np.bool_]]:
    """Tell of every rank's operations, (operations,) in order, which are forwards that run as one with what follows."""
    found = []
    for rank, table in enumerate(rank_tables(pipeline)):
        own = table[:, 0] == Kind.FORWARD
        own[: interleaved_warm_up(pipeline, rank)] = False
        found.append(own & pipeline.merges)
    return found


def _alternate(forward: IntArray, backward: IntArray, warm_up: int) -> IntArray:
    """Run some forwards, then a forward and a backward in turn, then the backwards that are left."""
    # As many backwards are left at the end as forwards ran ahead.
    steady = len(forward) - warm_up
    pairs = np.stack([forward[warm_up:], backward[:steady]], axis=1).reshape(-1, forward.shape[1])
    return np.concatenate([forward[:warm_up], pairs, backward[steady:]])


def _zb_h1(pipeline: Pipeline, rank: int) -> IntArray:
    """1F1B with the weight gradients ``rank`` micro-batches late (sail-sg zbpp_light ``auto_schedule``)."""
    every = np.arange(pipeline.micro_batches)
    order = _one_f_one_b(pipeline, rank)
    behind = np.flatnonzero(order[:, 0] == Kind.BACKWARD)
    order[behind, 0] = Kind.DGRAD
    # the i-th weight gradient follows the (i + rank)-th backward; the last ones end the step
    after = np.append(behind + 1, np.full(rank, len(order)))[rank:][: len(every)]
    table: IntArray = np.insert(order, after, _table(Kind.WGRAD, 0, every), axis=0)
    return table


@dataclass(slots=True)
class _Tape:
    """Ops of one rank under construction: every call takes the chunk's next micro-batch."""

    ops: list[Op] = field(default_factory=list)
    taken: dict[tuple[Kind, int], int] = field(default_factory=dict)
    late_wgrads: deque[tuple[int, int]] = field(default_factory=deque)

    def next_of(self, kind: Kind, chunk: int) -> int:
        """Count operations of a kind on a chunk: the next micro-batch."""
        i = self.taken.get((kind, chunk), 0)
        self.taken[kind, chunk] = i + 1
        return i

    def forward(self, chunk: int) -> None:
        """Append the next forward of a chunk."""
        self.ops.append(Op(Kind.FORWARD, chunk, self.next_of(Kind.FORWARD, chunk)))

    def backward(self, chunk: int, *, late_wgrad: bool = False) -> None:
        """Append the next backward of a chunk, its weight gradient apart where that comes late."""
        i = self.next_of(Kind.BACKWARD, chunk)
        self.ops.append(Op(Kind.DGRAD if late_wgrad else Kind.BACKWARD, chunk, i))
        if late_wgrad:
            self.late_wgrads.append((chunk, i))

    def wgrad(self) -> None:
        """Append the oldest weight gradient that is due."""
        self.ops.append(Op(Kind.WGRAD, *self.late_wgrads.popleft()))

    def pair(self, forward: int, backward: int) -> None:
        """Append a forward and a backward that run together."""
        i, j = self.next_of(Kind.FORWARD, forward), self.next_of(Kind.BACKWARD, backward)
        self.ops.append(Op(Kind.PAIR, forward, i, backward, j))


def _zb_v(pipeline: Pipeline, rank: int) -> IntArray:
    """PyTorch ``ScheduleZBVZeroBubble``; written for at least 2*pp-1 micro-batches, surplus ones are
    dropped.
    """
    pp, tape = pipeline.pp, _Tape()
    enough = max(2 * pp - 1, pipeline.micro_batches)
    for _ in range(2 * (pp - rank) - 1):
        tape.forward(0)
    for _ in range(rank):
        tape.forward(1)
        tape.forward(0)
    for _ in range(pp - rank):
        tape.forward(1)
        _dgrad_wgrad(tape, 1)
    for ahead in range(2 * pp - rank - 1, enough + pp - rank - 1):
        if ahead < enough:
            tape.forward(0)
        _dgrad_wgrad(tape, 0)
        tape.forward(1)
        _dgrad_wgrad(tape, 1)
    _zb_v_cool_down(tape, pp, rank)
    table = np.array(tape.ops)
    return table[table[:, 2] < pipeline.micro_batches]


def _dgrad_wgrad(tape: _Tape, chunk: int) -> None:
    tape.backward(chunk, late_wgrad=True)
    tape.wgrad()


def _zb_v_cool_down(tape: _Tape, pp: int, rank: int) -> None:
    for _ in range(rank):
        tape.backward(0, late_wgrad=True)
        tape.backward(1, late_wgrad=True)
    # Weight gradients of chunk 0 fill the gaps between its last backwards; those of chunk 1 come last.
    late = {chunk: deque(item for item in tape.late_wgrads if item[0] == chunk) for chunk in (0, 1)}
    tape.late_wgrads = late[0]
    for _ in range(pp - rank):
        tape.backward(0, late_wgrad=True)
        tape.wgrad()
    tape.late_wgrads = late[1] + late[0]
    for _ in range(len(tape.late_wgrads)):
        tape.wgrad()


def _dualpipe(pipeline: Pipeline, rank: int) -> IntArray:
    """DualPipe ``step``: both ends feed; ranks of the second half see the directions exchanged."""
    half_rank, second_half = min(rank, pipeline.pp - 1 - rank), rank >= pipeline.pp // 2
    table = _dual_steps(pipeline.pp // 2, half_rank, pipeline.micro_batches // 2)
    if second_half:
        # Columns 1 and 3: the chunk of the operation and that of a pair's backward.
        chunks = table[:, 1::2]
        table[:, 1::2] = np.where(chunks >= 0, 1 - chunks, chunks)
    return table


def _dualpipe_v(pipeline: Pipeline, rank: int) -> IntArray:
    return _dual_steps(pipeline.pp, rank, pipeline.micro_batches)


def _dual_steps(ranks: int, rank: int, micro_batches: int) -> IntArray:
    """The eight steps common to DualPipe (deepseek-ai/DualPipe ``step``) and DualPipeV (PyTorch
    ``ScheduleDualPipeV``).
    """
    tape, after = _Tape(), ranks - rank - 1
    for _ in range(2 * after):
        tape.forward(0)
    for _ in range(rank + 1):
        tape.forward(0)
        tape.forward(1)
    for _ in range(after):
        tape.backward(1, late_wgrad=True)
        tape.wgrad()
        tape.forward(1)
    for i in range(micro_batches - 2 * ranks + rank + 1):
        if i == 0 and after == 0:
            tape.forward(0)
            tape.backward(1)
        else:
            tape.pair(0, 1)
        tape.pair(1, 0)
    for _ in range(after):
        tape.backward(1)
        tape.pair(1, 0)
    _dual_cool_down(tape, rank, after)
    return np.array(tape.ops)


def _dual_cool_down(tape: _Tape, rank: int, after: int) -> None:
    """Whole backwards for the first half of the tail, delayed weight gradients from the middle on."""
    switch = 2 * ((rank + 1) // 2) + (rank + 1) % 2
    for i in range(2 * (rank + 1)):
        tape.backward(1 - i % 2, late_wgrad=i >= switch)
    for _ in range(after):
        tape.wgrad()
        tape.backward(0, late_wgrad=True)
    while tape.late_wgrads:
        tape.wgrad()


def order_of(schedule: Schedule) -> Callable[[Pipeline, int], IntArray]:
    """Return the function that orders the operations of a rank, (operations, 5); one case for each schedule."""
    match schedule:
        case Schedule.NONE:
            return _sequential
        case Schedule.GPIPE:
            return _gpipe
        case Schedule.ONE_F_ONE_B:
            return _one_f_one_b
        case Schedule.INTERLEAVED:
            return _interleaved
        case Schedule.ZB_H1:
            return _zb_h1
        case Schedule.ZB_V:
            return _zb_v
        case Schedule.DUALPIPE:
            return _dualpipe
        case Schedule.DUALPIPE_V:
            return _dualpipe_v
        case _:
            assert_never(schedule)
