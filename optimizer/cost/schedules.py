"""Pipeline schedules in closed form: activations held, bubble, transfers, parameter copies, launchers.

A schedule is one record, a case of ``_model``. The step of any of them has the shape the choice of stages needs,

    step = m * max_s T_s + bubble_weight * (sum_s T_s - max_s T_s) + rest,

with T_s the time of rank s for one micro-batch: forward and backward of all its chunks or, in schedules that
run a forward and a backward together, of such a pair. Ranks that hold the same stages (DualPipe's s and
p-1-s) count once. ``bubble_weight`` makes the formula exact for even stages.
For 1F1B, weight 1, it is an upper bound however uneven the stages, as long as one rank has both the
slowest forward and the slowest backward. Unit times below belong to one rank and one micro-batch: forward,
backward for the inputs (dgrad) and backward for the weights (wgrad), in seconds.
Activations are counted in micro-batches of a whole rank, of which a chunk is 1/vp. With p ranks and m
micro-batches:

    schedule      held by rank s                     bubble (F, D, W: forward, dgrad, wgrad)
    none          1                                  0
    gpipe         m                                  (p-1)(F+D+W)
    1f1b          min(m, p-s)                        (p-1)(F+D+W)
    interleaved   min(m*v, 2(p-s-1)+(v-1)G+1) / v    (p-1)(F+D+W)/v
    zb-h1         min(m, p)                          (p-1) max(F, D, F+D-W)
    zb-v          min(2m, m+s+1, 2p) / 2             longest of 12 chains; (p-1)F/2 if F = D = W
    dualpipe      p+1, twice the parameters          longest of 10 chains; (p/2-1)2F if F = D = W
    dualpipe-v    p+1/2                              as dualpipe, with chunks for stages and p for p/2
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, assert_never

import numpy as np

from layoutopt.optimizer.cost import bubbles, flows
from layoutopt.optimizer.cost.bubbles import Chain, Pipelines, UnitTimes, least_share, longest_s
from layoutopt.optimizer.specs.vocabulary import Schedule

if TYPE_CHECKING:
    from numpy.typing import NDArray

    FloatArray = NDArray[np.float64]
    IntArray = NDArray[np.int64]


class InFlight(Protocol):
    """Micro-batches held at the peak by each of ``ranks`` (P,), (n, P), whether or not the rank exists."""

    def __call__(self, pipelines: Pipelines, ranks: IntArray) -> FloatArray: ...


class Bubble(Protocol):
    """The chains of which the longest is the step beyond m times the time of a rank, even stages."""

    def __call__(self, pipelines: Pipelines) -> list[Chain]: ...


class Hops(Protocol):
    """Transfers between neighbouring ranks that lengthen the step, (n,)."""

    def __call__(self, pipelines: Pipelines) -> FloatArray: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleModel:
    """What cost and validity need to know of one schedule.

    ``parameter_copies``: stages' worth of parameters on a rank. ``min_chunks``, ``max_chunks`` bound vp
    (None: no bound). ``min_micro_batches``: least m per pp. ``even``: pp and m must be even.
    ``splits_backward``: dgrad and wgrad run apart. ``pairs``: a forward and a backward run together and hide
    each other's communication. ``hops_overlap``: transfers run beside compute in the code that launches the
    schedule; ``hops`` and ``waiting_hops`` count the exposed ones with and without that overlap.
    """

    schedule: Schedule
    in_flight: InFlight
    bubble: Bubble
    hops: Hops
    waiting_hops: Hops
    hops_overlap: bool = True
    parameter_copies: int = 1
    min_chunks: int = 1
    max_chunks: int | None = 1
    min_micro_batches: int = 0
    even: bool = False
    splits_backward: bool = False
    pairs: bool = False
    source: str

    @property
    def folded(self) -> bool:
        """Whether stages run to the last distinct rank and back, so that the first one holds both ends."""
        return self.schedule.v_shape or self.parameter_copies > 1

    def distinct(self, pp: IntArray | int, vp: IntArray | int) -> tuple[IntArray | int, IntArray | int]:
        """Return how many ranks hold different stages, and the virtual stages of each, in the shape of ``pp`` and ``vp``."""
        return pp // self.parameter_copies, vp * self.parameter_copies

    def seats_all(self, pp: int) -> bool:
        """Whether every one of ``pp`` ranks has its partners: without, its stages are held by nobody."""
        return pp % self.parameter_copies == 0


def in_flight(
    schedule: Schedule,
    pp: IntArray,
    vp: IntArray,
    micro_batches: IntArray,
    *,
    group: IntArray | None = None,
    ranks: int | None = None,
    extra_chunks: IntArray | int = 0,
) -> FloatArray:
    """Return the micro-batches whose activations each rank holds at its peak, (n, P).

    Arrays are (n,). ``group`` is Megatron-LM's ``microbatch_group_size_per_vp_stage``, if not given that of
    ``default_group``; P is ``ranks`` or the largest pp. Fractions count chunks of 1/vp. ``extra_chunks`` are
    run ahead: Megatron-LM's ``overlap_moe_expert_parallel_comm`` adds one. Zero beyond a row's own pp.
    """
    pipelines = _pipelines(pp, vp, micro_batches, group)
    columns = np.arange(int(pp.max(initial=1)) if ranks is None else ranks)
    held = SCHEDULES[schedule].in_flight(pipelines, columns)
    if np.any(extra_chunks):
        more = held + (extra_chunks / vp)[:, None]
        # There is no more to hold than all of the step's micro-batches.
        held = np.minimum(more, np.maximum(held, micro_batches[:, None]))
    return np.where(columns < pp[:, None], held, 0.0)


def bubble_weight(
    schedule: Schedule,
    forward_s: FloatArray,
    dgrad_s: FloatArray,
    wgrad_s: FloatArray,
    pp: IntArray,
    vp: IntArray,
    micro_batches: IntArray,
    *,
    pair_s: FloatArray | None = None,
    group: IntArray | None = None,
) -> FloatArray:
    """Return how much of the other distinct ranks' time is in the step, (n,); 0 where there are none.

    Bubble / ((distinct ranks - 1) * time of a rank).
    Times are seconds of one micro-batch on the mean rank, all its chunks together, (n,). ``pair_s`` is the
    time of a forward and a whole backward run together (default: their sum); only schedules with ``pairs``
    use it. The weight is below m, and at most 1 unless pairs hide much (from about 30% of their time on).
    """
    model, times = SCHEDULES[schedule], _unit_times(schedule, forward_s, dgrad_s, wgrad_s, pair_s)
    bubble = longest_s(model.bubble(_pipelines(pp, vp, micro_batches, group)), times)
    ranks = pp // model.parameter_copies
    others = np.maximum(ranks - 1, 1) * (times.apart_s - times.hidden_s)
    return np.where(ranks > 1, np.divide(bubble, others, out=np.zeros_like(bubble), where=others > 0), 0.0)


def least_bubble_weight(
    schedule: Schedule,
    forward_s: FloatArray,
    dgrad_s: FloatArray,
    wgrad_s: FloatArray,
    pp: IntArray,
    vp: IntArray,
    micro_batches: IntArray,
    *,
    hidden_s: FloatArray | float = 0.0,
) -> FloatArray:
    """Return a floor under ``bubble_weight`` wherever forward, dgrad or hidden time are longer than given, (n,).

    ``hidden_s`` is what a pair saves; forward and dgrad don't contain it.
    """
    model = SCHEDULES[schedule]
    hidden = np.zeros_like(forward_s) + hidden_s
    times = UnitTimes(forward_s=forward_s, dgrad_s=dgrad_s, wgrad_s=wgrad_s, hidden_s=hidden)
    share = least_share(model.bubble(_pipelines(pp, vp, micro_batches, None)), times)
    ranks = pp // model.parameter_copies
    return np.where(ranks > 1, share / np.maximum(ranks - 1, 1), 0.0)


def lone_bubble_s(
    schedule: Schedule,
    forward_s: FloatArray,
    dgrad_s: FloatArray,
    wgrad_s: FloatArray,
    pp: IntArray,
    vp: IntArray,
    micro_batches: IntArray,
    *,
    pair_s: FloatArray | None = None,
) -> FloatArray:
    """Return the bubble in seconds, (n,), where all ranks hold the same stages (DualPipe with pp 2), else 0."""
    model = SCHEDULES[schedule]
    alone = (pp > 1) & (pp == model.parameter_copies)
    if not alone.any():
        return np.zeros(len(pp))
    times = _unit_times(schedule, forward_s, dgrad_s, wgrad_s, pair_s)
    return np.where(alone, longest_s(model.bubble(_pipelines(pp, vp, micro_batches, None)), times), 0.0)


def _unit_times(
    schedule: Schedule,
    forward_s: FloatArray,
    dgrad_s: FloatArray,
    wgrad_s: FloatArray,
    pair_s: FloatArray | None,
) -> UnitTimes:
    apart, hides = forward_s + dgrad_s + wgrad_s, SCHEDULES[schedule].pairs and pair_s is not None
    hidden = apart - pair_s if hides and pair_s is not None else np.zeros_like(apart)
    return UnitTimes(forward_s=forward_s, dgrad_s=dgrad_s, wgrad_s=wgrad_s, hidden_s=hidden)


def exposed_hops(
    schedule: Schedule, pp: IntArray, vp: IntArray, micro_batches: IntArray, *, overlap: bool | None = None
) -> FloatArray:
    """Return how many transfers lengthen the step, (n,): times the seconds of one hop they are the exposed
    p2p time.

    One hop moves one chunk's output (or its gradient) of one micro-batch to a neighbouring rank. ``overlap``
    None: as the code that launches the schedule does. An upper bound for hops much shorter than a chunk's
    forward; without overlap a rank sends and receives at the same time, and waits for both.
    """
    model = SCHEDULES[schedule]
    count = model.hops if (model.hops_overlap if overlap is None else overlap) else model.waiting_hops
    return np.where(pp > 1, np.maximum(count(_pipelines(pp, vp, micro_batches, None)), 0.0), 0.0)


def seats(schedule: Schedule, pp: int, vp: int) -> IntArray:
    """Return the entries ``chunk*pp + rank`` of a layout's stage list by chunk and distinct rank, (V, P).

    Ranks that hold the same stages, as DualPipe's s and pp - 1 - s, are one rank of two chunks.
    """
    if SCHEDULES[schedule].parameter_copies > 1:
        first = np.arange(pp // 2)
        return np.stack([first, pp - 1 - first])
    return np.arange(pp * vp).reshape(vp, pp)


def distinct_rank_of_entry(schedule: Schedule, pp: int, vp: int) -> IntArray:
    """Return the distinct rank, (pp*vp,), of every entry ``chunk*pp + rank`` of a layout's stage list."""
    # Every entry has a seat, so that nothing of the empty array is left.
    ranks, seat = np.empty(pp * vp, dtype=np.int64), seats(schedule, pp, vp)
    ranks[seat] = np.arange(seat.shape[1])
    return ranks


def head_in_flight(schedule: Schedule, pp: IntArray, micro_batches: IntArray) -> FloatArray:
    """Return the micro-batches that the model's last virtual stage holds at once, (n,).

    Its backward follows its forward at once, except in GPipe, which runs all forwards first, and in ZB-H1,
    which delays the weight gradients of every rank until as many as ranks wait.
    """
    if schedule is Schedule.GPIPE:
        return micro_batches.astype(np.float64)
    if schedule is Schedule.ZB_H1:
        return np.minimum(micro_batches, pp).astype(np.float64)
    return np.ones(len(pp))


def default_group(pp: IntArray, micro_batches: IntArray) -> IntArray:
    """Return the interleaved schedules' group size where none is given, (n,).

    pp where it divides m (Megatron-LM's default); else m over the whole number of rounds, rounded up
    (PyTorch's ``microbatches_per_round``, which asks for a whole quotient).
    """
    rounds = np.maximum(micro_batches // pp, 1)
    size: IntArray = -(-micro_batches // rounds)
    return size


def _pipelines(pp: IntArray, vp: IntArray, micro_batches: IntArray, group: IntArray | None) -> Pipelines:
    size = default_group(pp, micro_batches) if group is None else group
    columns = (column.astype(np.float64) for column in (pp, vp, micro_batches, size))
    return Pipelines(**dict(zip(("pp", "vp", "micro_batches", "group"), columns, strict=True)))


_NONE = ScheduleModel(
    schedule=Schedule.NONE,
    in_flight=flows.hold_one,
    bubble=bubbles.no_bubble,
    hops=flows.no_hops,
    waiting_hops=flows.no_hops,
    source="gradient accumulation on one rank",
)
_GPIPE = ScheduleModel(
    schedule=Schedule.GPIPE,
    in_flight=flows.hold_all,
    bubble=bubbles.one_f_one_b,
    hops=flows.fill_and_drain,
    waiting_hops=flows.gpipe_waiting,
    source="Huang et al. 2019, arXiv:1811.06965, section 2.3; torch/distributed/pipelining/schedules.py",
)
_ONE_F_ONE_B = ScheduleModel(
    schedule=Schedule.ONE_F_ONE_B,
    in_flight=flows.hold_one_f_one_b,
    bubble=bubbles.one_f_one_b,
    hops=flows.one_f_one_b_hops,
    waiting_hops=flows.one_f_one_b_waiting,
    hops_overlap=False,
    source="Narayanan et al. 2021, arXiv:2104.04473, section 2.2.1; Megatron-LM core/pipeline_parallel",
)
_INTERLEAVED = ScheduleModel(
    schedule=Schedule.INTERLEAVED,
    in_flight=flows.hold_interleaved,
    bubble=bubbles.interleaved,
    hops=flows.interleaved_hops,
    waiting_hops=flows.interleaved_waiting,
    min_chunks=2,
    max_chunks=None,
    source="same paper, section 2.2.2; Megatron-LM core/pipeline_parallel/schedules.py",
)
_ZB_H1 = ScheduleModel(
    schedule=Schedule.ZB_H1,
    in_flight=flows.hold_zb_h1,
    bubble=bubbles.zb_h1,
    hops=flows.zb_h1_hops,
    waiting_hops=flows.zb_h1_waiting,
    splits_backward=True,
    source="Qi et al. 2024, arXiv:2401.10241, section 2.1 and table 1; sail-sg zbpp_light",
)
_ZB_V = ScheduleModel(
    schedule=Schedule.ZB_V,
    in_flight=flows.hold_zb_v,
    bubble=bubbles.zb_v,
    hops=flows.zb_v_hops,
    waiting_hops=flows.zb_v_waiting,
    min_chunks=2,
    max_chunks=2,
    splits_backward=True,
    source="Qi et al. 2024, arXiv:2401.10241, section 6; torch/distributed/pipelining/schedules.py",
)
_DUALPIPE = ScheduleModel(
    schedule=Schedule.DUALPIPE,
    in_flight=flows.hold_dualpipe,
    bubble=bubbles.dualpipe,
    hops=flows.dualpipe_hops,
    waiting_hops=flows.dualpipe_waiting,
    # deepseek-ai/DualPipe waits in _commit_and_wait_comm before every chunk.
    hops_overlap=False,
    parameter_copies=2,
    min_micro_batches=2,
    even=True,
    splits_backward=True,
    pairs=True,
    source="DeepSeek-V3, arXiv:2412.19437, section 3.2.1; deepseek-ai/DualPipe dualpipe.py",
)
_DUALPIPE_V = ScheduleModel(
    schedule=Schedule.DUALPIPE_V,
    in_flight=flows.hold_dualpipe_v,
    bubble=bubbles.dualpipe_v,
    hops=flows.dualpipe_v_hops,
    waiting_hops=flows.dualpipe_v_waiting,
    min_chunks=2,
    max_chunks=2,
    min_micro_batches=2,
    splits_backward=True,
    pairs=True,
    source="deepseek-ai/DualPipe dualpipev.py; torch/distributed/pipelining/schedules.py",
)


def _model(schedule: Schedule) -> ScheduleModel:
    """Return the record of a schedule; one case for each, one that is forgotten is a type error."""
    match schedule:
        case Schedule.NONE:
            return _NONE
        case Schedule.GPIPE:
            return _GPIPE
        case Schedule.ONE_F_ONE_B:
            return _ONE_F_ONE_B
        case Schedule.INTERLEAVED:
            return _INTERLEAVED
        case Schedule.ZB_H1:
            return _ZB_H1
        case Schedule.ZB_V:
            return _ZB_V
        case Schedule.DUALPIPE:
            return _DUALPIPE
        case Schedule.DUALPIPE_V:
            return _DUALPIPE_V
        case _:
            assert_never(schedule)


SCHEDULES: dict[Schedule, ScheduleModel] = {schedule: _model(schedule) for schedule in Schedule}
"""Every schedule of the vocabulary."""
