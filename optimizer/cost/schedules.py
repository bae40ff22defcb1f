"""Pipeline schedules in closed form: activations held, parameter copies, bubble, transfers, and who can launch them.

A schedule is one entry of ``SCHEDULES``. The step of any of them has the shape the choice of stages needs,

    step = m * max_s T_s + bubble_weight * (sum_s T_s - max_s T_s) + rest,

with T_s the time of rank s for one micro-batch (forward and backward of all its chunks; for schedules that run a
forward and a backward together, the time of the pair), and ``bubble_weight`` chosen so that the formula is exact for
even stages. For 1F1B, weight 1, it is an upper bound whatever the stages. Unit times below belong to one rank and one
micro-batch: forward, backward for the inputs (dgrad) and backward for the weights (wgrad), seconds.
Activations are counted in micro-batches of a whole rank: a chunk is 1/vp of one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from layoutopt.optimizer.specs.vocabulary import Framework, Schedule

if TYPE_CHECKING:
    from numpy.typing import NDArray

    FloatArray = NDArray[np.float64]
    IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipelines:
    """``n`` pipelines: ranks, chunks per rank, micro-batches and Megatron's microbatch group size, each (n,)."""

    pp: IntArray
    vp: IntArray
    micro_batches: IntArray
    group: IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitTimes:
    """Seconds of one micro-batch on one rank, each (n,). ``pair_s`` is a forward and a whole backward run together."""

    forward_s: FloatArray
    dgrad_s: FloatArray
    wgrad_s: FloatArray
    pair_s: FloatArray


class InFlight(Protocol):
    """Micro-batches held by rank ``ranks`` (P,) at the peak, (n, P), before clipping to real ranks."""

    def __call__(self, pipelines: Pipelines, ranks: IntArray) -> FloatArray: ...


class Bubble(Protocol):
    """Idle seconds of a rank in a step of even stages, (n,)."""

    def __call__(self, pipelines: Pipelines, times: UnitTimes) -> FloatArray: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleModel:
    """What the cost model and the validity rules need to know of one schedule.

    ``parameter_copies``: stages' worth of parameters per rank. ``min_chunks`` and ``max_chunks`` bound vp (None: any).
    ``min_micro_batches`` times pp is the least m. ``even``: pp and m must be even. ``v_shape``: virtual stage j of
    2*pp is on rank min(j, 2*pp-1-j), so rank 0 holds embedding and head. ``splits_backward``: dgrad and wgrad are run
    apart. ``pairs``: a forward and a backward run together, hiding each other's communication.
    """

    schedule: Schedule
    in_flight: InFlight
    bubble_s: Bubble
    parameter_copies: int = 1
    min_chunks: int = 1
    max_chunks: int | None = 1
    min_micro_batches: int = 0
    even: bool = False
    v_shape: bool = False
    splits_backward: bool = False
    pairs: bool = False
    source: str


def in_flight(
    schedule: Schedule, pp: IntArray, vp: IntArray, micro_batches: IntArray, *, group: IntArray | None = None
) -> FloatArray:
    """Return the micro-batches whose activations each rank holds at its peak, (n, P) with P the largest pp.

    All arrays are (n,); ``group`` is Megatron-LM's ``microbatch_group_size_per_vp_stage``, by default pp. Fractions
    count chunks of 1/vp. Zero beyond a row's own pp.
    """
    pipelines = _pipelines(pp, vp, micro_batches, group)
    ranks = np.arange(int(pipelines.pp.max(initial=1)))
    return np.where(ranks < pipelines.pp[:, None], SCHEDULES[schedule].in_flight(pipelines, ranks), 0.0)


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
    """Return the weight of the other ranks' time in the step, (n,): bubble / ((pp - 1) * rank time); 0 when pp is 1.

    Times are seconds of one micro-batch on a mean rank, all its chunks together, (n,). ``pair_s`` is the time of a
    forward and a backward run together, by default their sum; it matters only to schedules with ``pairs``.
    """
    total = forward_s + dgrad_s + wgrad_s
    times = UnitTimes(
        forward_s=forward_s, dgrad_s=dgrad_s, wgrad_s=wgrad_s, pair_s=total if pair_s is None else pair_s
    )
    model = SCHEDULES[schedule]
    pipelines = _pipelines(pp, vp, micro_batches, group)
    unit = times.pair_s if model.pairs else total
    return np.where(
        pipelines.pp > 1, model.bubble_s(pipelines, times) / (np.maximum(pipelines.pp - 1, 1) * unit), 0.0
    )


def _pipelines(pp: IntArray, vp: IntArray, micro_batches: IntArray, group: IntArray | None) -> Pipelines:
    return Pipelines(pp=pp, vp=vp, micro_batches=micro_batches, group=pp if group is None else group)


def _in_flight_none(pipelines: Pipelines, ranks: IntArray) -> FloatArray:
    return np.ones((len(pipelines.pp), len(ranks)))


def _in_flight_gpipe(pipelines: Pipelines, ranks: IntArray) -> FloatArray:
    return np.broadcast_to(pipelines.micro_batches[:, None], (len(pipelines.pp), len(ranks))).astype(
        np.float64
    )


def _in_flight_1f1b(pipelines: Pipelines, ranks: IntArray) -> FloatArray:
    held: IntArray = np.minimum(pipelines.micro_batches[:, None], pipelines.pp[:, None] - ranks)
    return held.astype(np.float64)


def _in_flight_interleaved(pipelines: Pipelines, ranks: IntArray) -> FloatArray:
    vp, group = pipelines.vp[:, None], pipelines.group[:, None]
    chunks = 2 * (pipelines.pp[:, None] - ranks - 1) + (vp - 1) * group + 1
    return np.minimum(pipelines.micro_batches[:, None] * vp, chunks) / vp


def _in_flight_zb_h1(pipelines: Pipelines, ranks: IntArray) -> FloatArray:
    held = np.minimum(pipelines.micro_batches, pipelines.pp)
    return np.broadcast_to(held[:, None], (len(held), len(ranks))).astype(np.float64)


def _in_flight_dualpipe(pipelines: Pipelines, ranks: IntArray) -> FloatArray:
    held = np.minimum(pipelines.micro_batches, pipelines.pp + 1)
    return np.broadcast_to(held[:, None], (len(held), len(ranks))).astype(np.float64)


def _in_flight_dualpipe_v(pipelines: Pipelines, ranks: IntArray) -> FloatArray:
    held = np.minimum(pipelines.micro_batches, pipelines.pp + 0.5)
    return np.broadcast_to(held[:, None], (len(held), len(ranks))).astype(np.float64)


def _bubble_none(pipelines: Pipelines, times: UnitTimes) -> FloatArray:
    return np.zeros(len(pipelines.pp))


def _bubble_1f1b(pipelines: Pipelines, times: UnitTimes) -> FloatArray:
    return (pipelines.pp - 1) * (times.forward_s + times.dgrad_s + times.wgrad_s)


def _bubble_interleaved(pipelines: Pipelines, times: UnitTimes) -> FloatArray:
    return _bubble_1f1b(pipelines, times) / pipelines.vp


def _bubble_zb_h1(pipelines: Pipelines, times: UnitTimes) -> FloatArray:
    return (pipelines.pp - 1) * np.maximum(times.forward_s + times.dgrad_s - times.wgrad_s, 0.0)


def _bubble_dualpipe(pipelines: Pipelines, times: UnitTimes) -> FloatArray:
    backward_s = times.dgrad_s + times.wgrad_s
    return (pipelines.pp / 2 - 1) * np.maximum(times.pair_s + backward_s - 3 * times.wgrad_s, 0.0)


def _bubble_dualpipe_v(pipelines: Pipelines, times: UnitTimes) -> FloatArray:
    backward_s = times.dgrad_s + times.wgrad_s
    return (pipelines.pp - 1) * np.maximum(times.pair_s + backward_s - 3 * times.wgrad_s, 0.0) / 2


_ENTRIES = (
    ScheduleModel(
        schedule=Schedule.NONE,
        in_flight=_in_flight_none,
        bubble_s=_bubble_none,
        source="gradient accumulation on one rank",
    ),
    ScheduleModel(
        schedule=Schedule.GPIPE,
        in_flight=_in_flight_gpipe,
        bubble_s=_bubble_1f1b,
        source="Huang et al. 2019, arXiv:1811.06965, section 2.3",
    ),
    ScheduleModel(
        schedule=Schedule.ONE_F_ONE_B,
        in_flight=_in_flight_1f1b,
        bubble_s=_bubble_1f1b,
        source="Narayanan et al. 2021, arXiv:2104.04473, section 2.2.1; megatron/core/pipeline_parallel/schedules.py",
    ),
    ScheduleModel(
        schedule=Schedule.INTERLEAVED,
        in_flight=_in_flight_interleaved,
        bubble_s=_bubble_interleaved,
        min_chunks=2,
        max_chunks=None,
        min_micro_batches=1,
        source="Narayanan et al. 2021, section 2.2.2; get_pp_rank_microbatches in megatron/core/pipeline_parallel/schedules.py",
    ),
    ScheduleModel(
        schedule=Schedule.ZB_H1,
        in_flight=_in_flight_zb_h1,
        bubble_s=_bubble_zb_h1,
        splits_backward=True,
        source="Qi et al. 2024, arXiv:2401.10241, section 2.1 and table 1; sail-sg/zero-bubble zbpp_light",
    ),
    ScheduleModel(
        schedule=Schedule.ZB_V,
        in_flight=_in_flight_zb_h1,
        bubble_s=_bubble_none,
        min_chunks=2,
        max_chunks=2,
        v_shape=True,
        splits_backward=True,
        source="Qi et al. 2024, arXiv:2401.10241, section 6; torch/distributed/pipelining/schedules.py",
    ),
    ScheduleModel(
        schedule=Schedule.DUALPIPE,
        in_flight=_in_flight_dualpipe,
        bubble_s=_bubble_dualpipe,
        parameter_copies=2,
        min_micro_batches=2,
        even=True,
        splits_backward=True,
        pairs=True,
        source="DeepSeek-V3, arXiv:2412.19437, section 3.2.1; deepseek-ai/DualPipe dualpipe.py",
    ),
    ScheduleModel(
        schedule=Schedule.DUALPIPE_V,
        in_flight=_in_flight_dualpipe_v,
        bubble_s=_bubble_dualpipe_v,
        min_chunks=2,
        max_chunks=2,
        min_micro_batches=2,
        v_shape=True,
        splits_backward=True,
        pairs=True,
        source="deepseek-ai/DualPipe dualpipev.py; torch/distributed/pipelining/schedules.py",
    ),
)
SCHEDULES: dict[Schedule, ScheduleModel] = {entry.schedule: entry for entry in _ENTRIES}
"""Every schedule the cost model knows."""

_S = Schedule
LAUNCHABLE: dict[Framework, tuple[Schedule, ...]] = {
    Framework.MEGATRON: (_S.NONE, _S.ONE_F_ONE_B, _S.INTERLEAVED),
    Framework.MEGATRON_BRIDGE: (_S.NONE, _S.ONE_F_ONE_B, _S.INTERLEAVED),
    Framework.MEGATRON_DEEPSPEED: (_S.NONE, _S.ONE_F_ONE_B, _S.ZB_H1),
    Framework.TORCHTITAN: (_S.NONE, _S.GPIPE, _S.ONE_F_ONE_B, _S.INTERLEAVED, _S.ZB_V, _S.DUALPIPE_V),
    Framework.DEEPSPEED: (_S.NONE, _S.ONE_F_ONE_B),
    Framework.NANOTRON: (_S.NONE, _S.GPIPE, _S.ONE_F_ONE_B),
    Framework.LLM_FOUNDRY: (_S.NONE,),
    Framework.NEMO_AUTOMODEL: (_S.NONE, _S.GPIPE, _S.ONE_F_ONE_B, _S.INTERLEAVED, _S.ZB_V, _S.DUALPIPE_V),
    Framework.ACCELERATE: (_S.NONE,),
    Framework.META_INTERNAL: (_S.NONE, _S.GPIPE, _S.ONE_F_ONE_B, _S.INTERLEAVED),
    Framework.DEEPSEEK_INTERNAL: (_S.NONE, _S.ONE_F_ONE_B, _S.ZB_H1, _S.DUALPIPE, _S.DUALPIPE_V),
    Framework.ANY: tuple(Schedule),
}
"""Schedules each framework can launch.

Megatron-LM: 1F1B when vp is 1, interleaved above. Megatron-DeepSpeed: ``--enable-zbh1-pipeline``; its engine has no
interleaving. torchtitan (and NeMo AutoModel, on the same PyTorch classes): GPipe, 1F1B, Interleaved1F1B,
ZBVZeroBubble, DualPipeV; InterleavedZeroBubble, LoopedBFS and schedule files have no model here. DeepSpeed's
PipelineModule: 1F1B. nanotron ``pp_engine``: 1f1b or afab (GPipe). Llama 3 (arXiv:2407.21783, section 3.3.2):
depth-first (interleaved 1F1B) to breadth-first. DeepSeek-V3 (arXiv:2412.19437, table 2): 1F1B, ZB1P, DualPipe.
"""
