"""A simulated step as plain data for JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from layoutopt.optimizer.simulate.compare import LayoutSimulation
    from layoutopt.optimizer.simulate.result import RankMemory

    Plain = dict[str, Any]

POINTS = 200
"""Moments at which memory over time is given for each rank."""


def simulation_to_plain(found: LayoutSimulation) -> Plain:
    """Return step times, how far the formula is off, and every rank's busy and idle time and memory."""
    result, pipeline = found.result, found.result.pipeline
    return {
        "schedule": pipeline.schedule.value,
        "pp": pipeline.pp,
        "vp": pipeline.vp,
        "micro_batches": pipeline.micro_batches,
        "simulated_step_s": found.simulated_step_s,
        "analytic_step_s": found.analytic_step_s,
        "deviation": found.deviation,
        "tolerance": found.tolerance,
        "upper_bound": found.upper_bound,
        "bubble_share": result.bubble_share,
        "exposed_hops_s": {
            "simulated": found.simulated_exposed_hops_s,
            "analytic": found.analytic_exposed_hops_s,
        },
        "ranks": [_rank_to_plain(found, rank) for rank in range(pipeline.pp)],
    }


def _rank_to_plain(found: LayoutSimulation, rank: int) -> Plain:
    result = found.result
    time_s, held = sampled_memory(result.memory[rank], result.makespan_s)
    return {
        "rank": rank,
        "micro_batch_s": float(found.rank_time_s[rank]),
        "busy_s": float(result.busy_s[rank]),
        "bubble_s": float(result.bubble_s[rank]),
        "peak_in_flight": float(result.peak_in_flight[rank]),
        "simulated_peak_bytes": float(found.simulated_peak_bytes[rank]),
        "analytic_peak_bytes": float(found.analytic_peak_bytes[rank]),
        "memory": {"time_s": time_s.tolist(), "held_bytes": held.tolist()},
    }


def sampled_memory(
    memory: RankMemory, until_s: float, points: int = POINTS
) -> tuple[np.ndarray[Any, np.dtype[np.float64]], np.ndarray[Any, np.dtype[np.float64]]]:
    """Return (seconds, bytes): the most that is held in each of ``points`` equal stretches of the step."""
    edges = np.linspace(0.0, until_s, points + 1)
    before = np.searchsorted(memory.time_s, edges[:-1], side="right") - 1
    most = np.where(before >= 0, memory.held_bytes[np.maximum(before, 0)], memory.held_bytes.min())
    stretch = np.clip(np.searchsorted(edges, memory.time_s, side="right") - 1, 0, points - 1)
    np.maximum.at(most, stretch, memory.held_bytes)
    return edges[:-1], most
