"""What a simulation returns: the timeline of a step, and memory and idle time per rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from layoutopt.optimizer.cost.orders import Pipeline

    FloatArray = NDArray[np.float64]
    IntArray = NDArray[np.int64]

POINTS = 200
"""Moments at which memory over time is given for each rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operations:
    """Every operation as columns (ops,), rank by rank in the order run; seconds from the step's start.

    ``kind`` holds ``Kind`` values; ``backward_chunk`` and ``backward_micro_batch`` are -1 except for pairs.
    """

    rank: IntArray
    kind: IntArray
    chunk: IntArray
    micro_batch: IntArray
    backward_chunk: IntArray
    backward_micro_batch: IntArray
    start_s: FloatArray
    end_s: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfers:
    """Every transfer between ranks as columns (transfers,): ``gradient`` is 1 for backward, chunk is the
    receiver's.
    """

    source: IntArray
    target: IntArray
    chunk: IntArray
    micro_batch: IntArray
    gradient: IntArray
    start_s: FloatArray
    end_s: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryOverTime:
    """Memory of one rank over time: from ``time_s[k]`` on it holds ``held_bytes[k]`` and ``in_flight[k]``
    micro-batches.
    """

    time_s: FloatArray
    held_bytes: FloatArray
    in_flight: FloatArray

    def sampled(self, until_s: float, points: int = POINTS) -> tuple[FloatArray, FloatArray]:
        """Return (seconds, bytes): the most that is held in each of ``points`` equal stretches of the step."""
        edges = np.linspace(0.0, until_s, points + 1)
        before = np.searchsorted(self.time_s, edges[:-1], side="right") - 1
        # What is held when a stretch begins counts in it, also where nothing changes within.
        most = np.where(before >= 0, self.held_bytes[np.maximum(before, 0)], self.held_bytes.min())
        stretch = np.clip(np.searchsorted(edges, self.time_s, side="right") - 1, 0, points - 1)
        np.maximum.at(most, stretch, self.held_bytes)
        return edges[:-1], most


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationResult:
    """One simulated step.

    ``makespan_s``: from the first operation's start to the last one's end. ``busy_s`` (pp,): time in
    operations; ``bubble_s`` (pp,): the rest, waits for transfers included. ``memory`` has one entry per rank;
    ``peak_bytes`` and ``peak_in_flight`` are its maxima (pp,), micro-batches of a whole rank.
    """

    pipeline: Pipeline
    makespan_s: float
    busy_s: FloatArray
    bubble_s: FloatArray
    memory: tuple[MemoryOverTime, ...]
    peak_bytes: FloatArray
    peak_in_flight: FloatArray
    operations: Operations
    transfers: Transfers

    @property
    def bubble_share(self) -> float:
        """Idle share of all ranks' time in the step."""
        return float(self.bubble_s.sum() / (self.makespan_s * len(self.bubble_s))) if self.makespan_s else 0.0
