"""A layout's pipeline step, simulated from its estimate for a drawing."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.schedules import SCHEDULES
from layoutopt.optimizer.simulate.engine import StageWork, simulate
from layoutopt.optimizer.simulate.orders import Pipeline
from layoutopt.optimizer.specs.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from layoutopt.optimizer.cost.estimate import Estimate
    from layoutopt.optimizer.simulate.result import SimulationResult
    from layoutopt.optimizer.specs.layout import Layout, VirtualStage

    FloatArray = NDArray[np.float64]

MAX_OPERATIONS = 40_000
"""A simulation of so many operations takes about a second."""

FILLING = 3
"""Micro-batches per rank that a shortened step keeps: it still fills, runs steadily, and drains."""

WEIGHT_GRADIENT_SHARE = 0.5
"""A linear layer's weight gradient takes as many FLOPs as its input gradient (Qi et al. 2024, section 2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnStep:
    """A simulated step; ``micro_batches`` of the layout's ``all_micro_batches`` are in it."""

    result: SimulationResult
    micro_batches: int
    all_micro_batches: int

    @property
    def shortened(self) -> bool:
        """Whether the steady middle of the step was cut."""
        return self.micro_batches < self.all_micro_batches


def draw_step(layout: Layout, estimate: Estimate) -> DrawnStep | None:
    """Simulate the pipeline of a layout with its estimated time per rank; None without a pipeline.

    A rank's time divides over its chunks by their layers, what the ends take beyond it goes to them; forward and
    backward divide as in the whole step. Transfers take no time. Long steps are shortened in their steady part.
    """
    if layout.pp == 1:
        return None
    pipeline = _pipeline(layout)
    if pipeline is None:
        return None
    result = simulate(pipeline, stage_work(layout, estimate, pipeline))
    return DrawnStep(
        result=result, micro_batches=pipeline.micro_batches, all_micro_batches=layout.micro_batches
    )


def _pipeline(layout: Layout) -> Pipeline | None:
    """Return the pipeline with as many micro-batches as can be drawn; None where the schedule refuses them."""
    per_micro_batch = 2 * layout.pp * layout.vp
    most = max(MAX_OPERATIONS // per_micro_batch // layout.pp, FILLING) * layout.pp
    for count in dict.fromkeys((layout.micro_batches, min(most, layout.micro_batches), FILLING * layout.pp)):
        if count * per_micro_batch > max(MAX_OPERATIONS, FILLING * layout.pp * per_micro_batch):
            continue
        try:
            return Pipeline(schedule=layout.schedule, pp=layout.pp, vp=layout.vp, micro_batches=count)
        except InputError:
            continue
    return None


def stage_work(layout: Layout, estimate: Estimate, pipeline: Pipeline) -> StageWork:
    """Return the times of every rank and chunk, (pp, chunks), or (pp, 1) by stage where two directions share ranks."""
    rank_s = np.array(estimate.rank_time_s)
    columns = 1 if SCHEDULES[pipeline.schedule].parameter_copies > 1 else pipeline.chunks
    chunk_s = rank_s[:, None] * _chunk_shares(layout, rank_s, columns)
    parts = estimate.breakdown_s
    forward = parts["forward"] / (parts["forward"] + parts["backward"] + parts["recompute"])
    weight = (
        (1 - forward) * WEIGHT_GRADIENT_SHARE * parts["backward"] / (parts["backward"] + parts["recompute"])
    )
    return StageWork(
        forward_s=chunk_s * forward, dgrad_s=chunk_s * (1 - forward - weight), wgrad_s=chunk_s * weight
    )


def _chunk_shares(layout: Layout, rank_s: FloatArray, columns: int) -> FloatArray:
    """Return how each rank's time divides over its chunks, (pp, columns)."""
    if columns == 1 or not layout.stages:
        return np.full((layout.pp, columns), 1.0 / columns)
    by_place = {(stage.rank, stage.chunk): stage for stage in layout.stages}
    rows = [[by_place[rank, chunk] for chunk in range(columns)] for rank in range(layout.pp)]
    layer_s = _layer_s(rows, rank_s)
    weights = np.array([[stage.layers * layer_s for stage in row] for row in rows])
    for rank, row in enumerate(rows):
        ends = [chunk for chunk, stage in enumerate(row) if _is_end(stage)]
        if ends:
            weights[rank, ends] += max(rank_s[rank] - weights[rank].sum(), 0.0) / len(ends)
        if weights[rank].sum() <= 0.0:
            weights[rank] = 1.0
    shares: FloatArray = weights / weights.sum(axis=1, keepdims=True)
    return shares


def _layer_s(rows: Sequence[Sequence[VirtualStage]], rank_s: FloatArray) -> float:
    """Return the usual time of one layer: the median over ranks, those without ends where there are any."""
    layers = [sum(stage.layers for stage in row) for row in rows]
    inner = [rank for rank, row in enumerate(rows) if layers[rank] and not any(map(_is_end, row))]
    ranks = inner or [rank for rank in range(len(rows)) if layers[rank]]
    return float(median(rank_s[rank] / layers[rank] for rank in ranks)) if ranks else 0.0


def _is_end(stage: VirtualStage) -> bool:
    return stage.embedding or stage.head or stage.mtp > 0
