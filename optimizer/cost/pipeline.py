"""What the pipeline adds to a step: waiting in the bubble and exposed transfers, for rows of one schedule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.orders import HopOverlap
from layoutopt.optimizer.cost.schedules import (
    SCHEDULES,
    bubble_weight,
    exposed_hops,
    least_bubble_weight,
    lone_bubble_s,
)
from layoutopt.optimizer.specs.vocabulary import Schedule

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from layoutopt.optimizer.cost.batch import LayoutBatch
    from layoutopt.optimizer.cost.schedules import ScheduleModel
    from layoutopt.optimizer.frameworks.preset import FrameworkPreset
    from layoutopt.optimizer.specs.layout import Switches
    from layoutopt.optimizer.specs.vocabulary import Precision, Saver

    FloatArray = NDArray[np.float64]
    IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanStage:
    """Seconds of one micro-batch on an equal share of all blocks, (n,) each.

    ``backward_s`` contains ``wgrad_s``; ``hidden_*`` is traffic that only the compute of a paired micro-batch hides,
    ``cover_*`` compute that data-parallel traffic can run beside.
    """

    forward_s: FloatArray
    backward_s: FloatArray
    wgrad_s: FloatArray
    hidden_forward_s: FloatArray
    hidden_backward_s: FloatArray
    cover_forward_s: FloatArray
    cover_backward_s: FloatArray


def schedule_of(batch: LayoutBatch) -> ScheduleModel:
    """Return the schedule of a batch whose rows share one."""
    return SCHEDULES[batch.codebook.schedules[int(batch.schedule[0])]]


def precision_of(batch: LayoutBatch) -> Precision:
    """Return the precision of a batch whose rows share one."""
    return batch.codebook.precisions[int(batch.precision[0])]


def savers_of(batch: LayoutBatch) -> tuple[Saver, ...]:
    """Return the memory savers of a batch whose rows share them."""
    return batch.codebook.savers_of(int(batch.precision[0]))


def switches_of(batch: LayoutBatch) -> Switches:
    """Return the launch switches of a batch's first row."""
    return batch.codebook.switches_of(int(batch.precision[0]))


def paired_rows(batch: LayoutBatch) -> IntArray:
    """Tell in which rows the schedule runs a forward and a backward together, 1 or 0, (n,)."""
    paired = [int(SCHEDULES[schedule].pairs) for schedule in batch.codebook.schedules]
    return np.array(paired, dtype=np.int64)[batch.schedule]


def lone_share(batch: LayoutBatch) -> FloatArray:
    """Share (n,) of the passes through a rank's layers beside which no other micro-batch's run, on the mean rank.

    Forward passes that fill the pipeline, and as many backward passes that drain it: of rank s 2 (pp - 1 - s) +
    (vp - 1) pp + 1 chunks of m vp (NVIDIA/Megatron-LM pipeline_parallel/schedules.py); without a pipeline the first and
    the last micro-batch.
    """
    fill = np.where(batch.pp > 1, (batch.pp - 1) + (batch.vp - 1) * batch.pp + (batch.vp > 1), 1)
    share: FloatArray = np.minimum(fill / (batch.micro_batches * batch.vp), 1.0)
    return share


def bubble(batch: LayoutBatch, stage: MeanStage, *, least: bool) -> tuple[FloatArray, FloatArray]:
    """Return the weight of the other ranks' time, and the bubble's seconds where there are none, (n,) each.

    Traffic hidden under a paired micro-batch counts whole where a rank works on one micro-batch alone.
    ``least`` asks for floors that hold if communication and recomputation take longer than in ``stage``.
    """
    model = schedule_of(batch)
    sizes = (batch.pp, batch.vp, batch.micro_batches)
    forward, dgrad, pair = stage.forward_s, stage.backward_s - stage.wgrad_s, None
    hidden = (stage.hidden_forward_s, stage.hidden_backward_s) if model.pairs else (0.0, 0.0)
    if model.pairs:
        pair = stage.forward_s + stage.backward_s
    times = (model.schedule, forward + hidden[0], dgrad + hidden[1], stage.wgrad_s, *sizes)
    lone = lone_bubble_s(*times, pair_s=pair)
    if not least:
        return bubble_weight(*times, pair_s=pair), lone
    floor = least_bubble_weight(
        model.schedule, forward, dgrad, stage.wgrad_s, *sizes, hidden_s=hidden[0] + hidden[1]
    )
    return floor, lone


def hop_overlap(schedule: Schedule, preset: FrameworkPreset) -> HopOverlap:
    """Return when a schedule's transfers run beside compute as a framework launches it."""
    if not (SCHEDULES[schedule].hops_overlap and preset.pp_overlap):
        return HopOverlap.NONE
    return HopOverlap.ALL if preset.pp_fill_overlap else HopOverlap.STEADY


def hops_overlap(batch: LayoutBatch, preset: FrameworkPreset, merges: NDArray[np.bool_]) -> IntArray:
    """Return a ``HopOverlap`` of every row (n,); ``merges`` (n,) or (): whether rows are told to merge passes.

    Experts on one rank exchange nothing, and without overlap of transfers passes are not merged.
    """
    schedule = schedule_of(batch).schedule
    own = hop_overlap(schedule, preset)
    can = schedule is Schedule.INTERLEAVED and own is not HopOverlap.NONE
    result: IntArray = np.where(can & merges & (batch.ep > 1), int(HopOverlap.MERGED), int(own))
    return result


def transfers_s(batch: LayoutBatch, hop_s: FloatArray, *, overlap: bool) -> FloatArray:
    """Exposed sends (n,) between stages: in every micro-batch, or in fill and drain where overlap hides the rest."""
    model = schedule_of(batch)
    hops = exposed_hops(
        model.schedule, batch.pp, batch.vp, batch.micro_batches, overlap=overlap and model.hops_overlap
    )
    return np.where(batch.pp > 1, hop_s * hops, 0.0)
