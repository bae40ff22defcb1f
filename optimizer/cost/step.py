"""The exact step of given stages: the time of the order of operations that really runs, chunk by chunk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.makespan import Durations, Path, StepGraph, step_graph
from layoutopt.optimizer.cost.orders import HopOverlap, Kind, Pipeline
from layoutopt.optimizer.cost.schedules import SCHEDULES
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.vocabulary import Schedule

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from layoutopt.optimizer.cost.terms import StageTerms

    FloatArray = NDArray[np.float64]
    IntArray = NDArray[np.int64]

NAMES = tuple(Schedule)


def graph_of(terms: StageTerms, row: int) -> StepGraph | None:
    """Return the operations of a row's step; None where no order runs it (too few or too odd micro-batches)."""
    schedule = NAMES[int(terms.schedule[row])]
    copies = SCHEDULES[schedule].parameter_copies
    ranks, chunks = int(terms.pp[row]) * copies, int(terms.vp[row]) // copies
    overlap = HopOverlap(int(terms.hops_overlap[row]))
    try:
        pipeline = Pipeline(
            schedule=schedule if ranks > 1 else Schedule.NONE,
            merges=ranks > 1 and schedule is Schedule.INTERLEAVED and overlap is HopOverlap.MERGED,
            pp=ranks,
            vp=chunks,
            micro_batches=int(terms.micro_batches[row]),
        )
    except InputError:
        # Such a row has no step at all: its price is infinite.
        return None
    return step_graph(pipeline, overlap=overlap)


def durations(terms: StageTerms, row: int, blocks: IntArray, recomputed: IntArray) -> Durations:
    """Return what the operations of one layout take for ``n`` choices of stages.

    ``blocks`` and ``recomputed`` (n, V, P, K): blocks of each kind in every chunk of every distinct rank, and
    how many of them are fully recomputed.
    """
    model = SCHEDULES[NAMES[int(terms.schedule[row])]]
    # The last chunk is on the last rank, in a folded pipeline back on the first.
    head = (-1, 0) if terms.folded[row] else (-1, -1)
    again = recomputed @ terms.recompute_s[row] * model.parameter_copies
    forward, backward, wgrad, hidden_forward, hidden_backward = (
        blocks @ getattr(terms, name)[row]
        for name in ("forward_s", "backward_s", "wgrad_s", "hidden_forward_s", "hidden_backward_s")
    )
    backward = backward + again
    # Embedding and head lengthen the operations of one chunk each, not those of a rank.
    for place, ends in (((0, 0), terms.embedding_s[row]), (head, terms.head_s[row])):
        for time, value in zip((forward, backward, wgrad), ends, strict=True):
            time[:, *place] += value
    apart = [forward, backward, wgrad, hidden_forward, hidden_backward]
    if model.parameter_copies > 1:  # each direction passes all stages
        apart = [_both_ways(time) for time in apart]
    forward, backward, wgrad, hidden_forward, hidden_backward = apart
    dgrad = backward - wgrad
    # In a pair each direction's traffic hides under the other's compute; elsewhere it shows.
    times = {
        Kind.FORWARD: forward + hidden_forward,
        Kind.BACKWARD: backward + hidden_backward,
        Kind.DGRAD: dgrad + hidden_backward,
        Kind.WGRAD: wgrad,
        Kind.PAIR: forward + backward[:, ::-1],
    }
    return Durations(
        by_kind=np.stack([times[kind].transpose(2, 1, 0) for kind in Kind]),
        # A rank alone sends nothing.
        hop_s=np.full(len(blocks), terms.hop_s[row] if forward.shape[2] > 1 else 0.0),
    )


def _both_ways(time: FloatArray) -> FloatArray:
    """Turn times of (n, 2, P) distinct ranks into those of both directions through all 2P ranks."""
    through = np.concatenate([time[:, 0], time[:, 1, ::-1]], axis=1)
    return np.stack([through, through[:, ::-1]], axis=1)


def step_s(terms: StageTerms, row: int, blocks: IntArray, recomputed: IntArray) -> FloatArray:
    """Return the exact step of one layout, (n,) seconds, for ``n`` choices of stages; inf where no order runs it."""
    graph = graph_of(terms, row)
    if graph is None:
        return np.full(len(blocks), np.inf)
    result: FloatArray = graph.makespan_s(durations(terms, row, blocks, recomputed)) + terms.outside_s[row]
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class PathForm:
    """A path as a linear form in the stages of any layout of its shape: a floor under the exact step of all of them.

    ``weights`` (5, V, P): how often a block's forward, backward, weight gradient (what the backward does not count), and
    traffic hidden in forward and backward occur in every chunk of every distinct rank; ``hops`` transfers.
    """

    weights: IntArray
    hops: int

    def block_s(self, terms: StageTerms) -> FloatArray:
        """Return the seconds of one block of each kind in every chunk, (n, V, P, K)."""
        times = np.stack([getattr(terms, name) for name in OPERATIONS])
        each: FloatArray = np.einsum("ovp,onk->nvpk", self.weights, times)
        return each

    def again_s(self, terms: StageTerms) -> FloatArray:
        """Return the seconds of recomputing one block of each kind, (n, V, P, K)."""
        copies = np.array([SCHEDULES[name].parameter_copies for name in NAMES])[terms.schedule]
        each = terms.recompute_s * copies[:, None]
        result: FloatArray = self.weights[1, None, :, :, None] * each[:, None, None, :]
        return result

    def constant_s(self, terms: StageTerms) -> FloatArray:
        """Return the seconds without blocks: ends, transfers and what is outside the pipeline, (n,)."""
        head = (-1, 0) if terms.folded[0] else (-1, -1)
        ends = terms.embedding_s @ self.weights[:3, 0, 0] + terms.head_s @ self.weights[:3, *head]
        constant: FloatArray = ends + self.hops * terms.hop_s + terms.outside_s
        return constant


OPERATIONS = ("forward_s", "backward_s", "wgrad_s", "hidden_forward_s", "hidden_backward_s")
"""Columns of the terms that a path weighs."""


def form_of(path: Path, terms: StageTerms, row: int) -> PathForm:
    """Write a path as weights of distinct ranks' chunks."""
    forward, backward, dgrad, wgrad, pair = (path.counts[kind] for kind in Kind)
    paired = pair[:, ::-1]
    ranks, chunks = int(terms.pp[row]), int(terms.vp[row])
    # A pair hides its traffic, and a DGRAD is a backward without its weight gradient: hence wgrad - dgrad.
    weights = np.stack([forward + pair, backward + dgrad + paired, wgrad - dgrad, forward, backward + dgrad])
    if SCHEDULES[NAMES[int(terms.schedule[row])]].parameter_copies > 1:
        through = weights[..., 0] + weights[..., 1][:, ::-1]
        return PathForm(
            weights=np.stack([through[:, :ranks], through[:, ranks:][:, ::-1]], axis=1), hops=path.hops
        )
    return PathForm(weights=weights.transpose(0, 2, 1)[:, :chunks], hops=path.hops)
