"""Simulated against analytic: a layout's step by the closed forms of the cost model and by simulation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.orders import HopOverlap
from layoutopt.optimizer.cost.schedules import (
    SCHEDULES,
    bubble_weight,
    exposed_hops,
    in_flight,
    lone_bubble_s,
)
from layoutopt.optimizer.simulate.engine import by_position, by_rank, simulate, stage_times
from layoutopt.optimizer.specs.vocabulary import Schedule

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from layoutopt.optimizer.cost.orders import Pipeline
    from layoutopt.optimizer.simulate.engine import StageWork
    from layoutopt.optimizer.simulate.result import SimulationResult

    FloatArray = NDArray[np.float64]
    IntArray = NDArray[np.int64]

EVEN_TOLERANCE = 0.02
UNEVEN_TOLERANCE = 0.06
"""Relative errors that tests hold the closed forms to; see ``tolerance``."""
NEAR_SPREAD = 0.1
"""Stages within this share of each other count as nearly even."""
MANY_PER_RANK = 8
"""Micro-batches per rank from which on the steady state outweighs filling and draining."""
_EVEN_SPREAD = 1e-6
_RECOMPUTE_SPREAD = 0.34
"""Spread of the forward's share between recomputing nothing (1/3) and everything (1/4), rounded up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutSimulation:
    """A layout's step, simulated and analytic; seconds and bytes, per rank (pp,).

    ``deviation`` is analytic / simulated - 1: positive where the formula is too slow. ``tolerance`` is what
    the formula is tested to keep (None: no promise for stages this uneven), ``upper_bound`` whether it can
    only be too slow. ``exposed_hops_s``: by how much transfers lengthen the step. ``result.memory`` holds
    memory over time.
    """

    result: SimulationResult
    simulated_step_s: float
    analytic_step_s: float
    deviation: float
    tolerance: float | None
    upper_bound: bool
    rank_time_s: FloatArray
    simulated_exposed_hops_s: float
    analytic_exposed_hops_s: float
    simulated_peak_bytes: FloatArray
    analytic_peak_bytes: FloatArray


def simulate_layout(
    pipeline: Pipeline, work: StageWork, *, fixed_s: float = 0.0, analytic_step_s: float | None = None
) -> LayoutSimulation:
    """Simulate one step of a layout beside the closed form.

    ``work`` holds each rank's and chunk's times and memory (see ``StageWork``); ``fixed_s`` is what the step
    spends outside the pipeline (optimizer, exposed data-parallel communication). ``analytic_step_s`` is the
    cost model's own figure for the same layout; by default it is m * max T + bubble_weight * (sum T - max T)
    + exposed hops + fixed_s.
    """
    result = simulate(pipeline, work)
    # What transfers add is a difference of two runs: on the critical path a hop hides behind whatever else waits.
    without_hops = (
        result.makespan_s if work.hop_s is None else simulate(pipeline, replace(work, hop_s=None)).makespan_s
    )
    rank_time_s, hops_s = rank_times(pipeline, work), _analytic_hops(pipeline, work)
    analytic = _analytic_makespan(pipeline, work) + hops_s + fixed_s
    analytic = analytic if analytic_step_s is None else analytic_step_s
    simulated = result.makespan_s + fixed_s
    return LayoutSimulation(
        result=result,
        simulated_step_s=simulated,
        analytic_step_s=analytic,
        deviation=analytic / simulated - 1.0 if simulated else 0.0,
        tolerance=tolerance(pipeline, work),
        upper_bound=_is_upper_bound(pipeline, work),
        rank_time_s=rank_time_s,
        simulated_exposed_hops_s=result.makespan_s - without_hops,
        analytic_exposed_hops_s=hops_s,
        simulated_peak_bytes=result.peak_bytes,
        analytic_peak_bytes=_analytic_peak(pipeline, work),
    )


def rank_times(pipeline: Pipeline, work: StageWork) -> FloatArray:
    """Return each rank's time for one micro-batch, (pp,): all chunks, as pairs where the schedule pairs."""
    forward, dgrad, wgrad, pair = _unit_times(pipeline, work)
    return pair if SCHEDULES[pipeline.schedule].pairs else forward + dgrad + wgrad


def tolerance(pipeline: Pipeline, work: StageWork) -> float | None:
    """Return the relative error that the closed form keeps, transfers aside; None where nothing is promised.

    2% for even stages. 6% where the slowest rank sets the pace and virtual stages are within 10% of each
    other (with backwards of two to three forwards) or there are 8 * pp micro-batches or more.
    """
    forward, backward, dgrad, wgrad, _ = stage_times(pipeline, work)
    # Even stages are what the closed forms were derived for; of others a promise needs a reason.
    if all(_spread(times) <= _EVEN_SPREAD for times in (forward, dgrad, wgrad)):
        return EVEN_TOLERANCE
    share = _forward_share(forward, backward)
    near = _spread(forward + backward) <= NEAR_SPREAD and _spread(share) <= _RECOMPUTE_SPREAD
    many = pipeline.micro_batches >= MANY_PER_RANK * pipeline.pp
    return UNEVEN_TOLERANCE if (near or many) and _slowest_rank_decides(pipeline, forward, backward) else None


def _slowest_rank_decides(pipeline: Pipeline, forward: FloatArray, backward: FloatArray) -> bool:
    """Tell whether the steady state moves at the pace of the rank with the most work.

    Not when a rank's chunks differ and interleaving runs each in turn on all ranks, nor when GPipe's forwards
    and backwards are slowest on different ranks.
    """
    if pipeline.schedule is Schedule.INTERLEAVED:
        return max(_spread(row) for row in forward + backward) <= NEAR_SPREAD
    if pipeline.schedule is Schedule.GPIPE:
        return _spread(_forward_share(forward, backward)) <= NEAR_SPREAD
    return True


def _forward_share(forward: FloatArray, backward: FloatArray) -> FloatArray:
    return forward / np.maximum(forward + backward, np.finfo(np.float64).tiny)


def _spread(times: FloatArray) -> float:
    """Return max / min - 1."""
    least, most = float(times.min()), float(times.max())
    return most / least - 1.0 if least > 0.0 else (np.inf if most > 0.0 else 0.0)


def _is_upper_bound(pipeline: Pipeline, work: StageWork) -> bool:
    """Tell whether sum T + (m-1) max T can't fall below the simulation, transfers aside.

    1F1B never exceeds it by more than (min(m, pp) - 1) * (max F + max B - max T): by nothing where one rank
    has the slowest forward and the slowest backward, as when all stages share one ratio of the two."""
    forward, backward, *_ = stage_times(pipeline, work)
    one_slowest = forward.max() + backward.max() <= (forward + backward).max() * (1.0 + _EVEN_SPREAD)
    return pipeline.schedule is Schedule.NONE or (
        pipeline.schedule is Schedule.ONE_F_ONE_B and bool(one_slowest)
    )


def _unit_times(pipeline: Pipeline, work: StageWork) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Return each rank's forward, dgrad, wgrad and pair seconds for one micro-batch, (pp,) each."""
    forward, _, dgrad, wgrad, pair = (times.sum(axis=1) for times in stage_times(pipeline, work))
    # A DualPipe rank runs half of the micro-batches through each of its two stages.
    share = pipeline.vp / pipeline.chunks
    return forward * share, dgrad * share, wgrad * share, pair * share


def _sizes(pipeline: Pipeline) -> tuple[IntArray, IntArray, IntArray]:
    pp, vp, m = (np.array([size]) for size in (pipeline.pp, pipeline.vp, pipeline.micro_batches))
    return pp, vp, m


def _analytic_makespan(pipeline: Pipeline, work: StageWork) -> float:
    forward, dgrad, wgrad, pair = (times.mean(keepdims=True) for times in _unit_times(pipeline, work))
    group = np.array([pipeline.group_size])
    times = (pipeline.schedule, forward, dgrad, wgrad, *_sizes(pipeline))
    weight, lone_s = bubble_weight(*times, pair_s=pair, group=group), lone_bubble_s(*times, pair_s=pair)
    # DualPipe's second half of ranks holds the stages of the first once more.
    time_s = rank_times(pipeline, work)[: pipeline.pp // SCHEDULES[pipeline.schedule].parameter_copies]
    waiting = weight[0] * (time_s.sum() - time_s.max())
    return float(pipeline.micro_batches * time_s.max() + waiting + lone_s[0])


def _runs_beside(overlap: HopOverlap | None) -> bool | None:
    return None if overlap is None else overlap is not HopOverlap.NONE


def _analytic_hops(pipeline: Pipeline, work: StageWork) -> float:
    hop = by_rank(pipeline, work.hop_s, "hop_s")
    # Only interleaving sends from the last rank to the first.
    used = hop if pipeline.schedule is Schedule.INTERLEAVED else hop[:-1]
    count = exposed_hops(pipeline.schedule, *_sizes(pipeline), overlap=_runs_beside(work.hops_overlap))
    return float(count[0] * used.mean()) if used.size else 0.0


def _analytic_peak(pipeline: Pipeline, work: StageWork) -> FloatArray:
    """Return the cost model's bytes per rank: micro-batches in flight times activations, and what stays."""
    activation = by_position(pipeline, work.activation_bytes, "activation_bytes").sum(axis=1)
    held = in_flight(pipeline.schedule, *_sizes(pipeline), group=np.array([pipeline.group_size]))[0]
    share = pipeline.vp / pipeline.chunks
    moving: FloatArray = held * activation * share
    return moving + by_rank(pipeline, work.static_bytes, "static_bytes")
