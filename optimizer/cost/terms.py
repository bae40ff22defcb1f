"""Everything the choice of stages needs to know about a layout: linear terms per block, per end and per tuple.

The step time and the memory of a layout are linear in the blocks each pipeline rank holds and recomputes,
but for one maximum over ranks:

    T_s    = sum_k n_sk * layer_s[k] + sum_k r_sk * recompute_s[k] + first_s [s = 0] + last_s [s = p - 1]
    step   = m * max_s T_s + bubble_weight * (sum_s T_s - max_s T_s) + fixed_s
    mem_s  = sum_k n_sk * layer_state_bytes[k]
             + in_flight[s] * sum_k (n_sk * layer_activation_bytes[k]
                                     - r_sk * (layer_activation_bytes[k] - recomputed_activation_bytes[k]))
             + in_flight[s] * flight_bytes + first_bytes [s = 0] + last_bytes [s = p - 1] + common_bytes
             + recompute_transient_bytes [sum_k r_sk > 0]
    fits   : mem_s <= capacity_bytes

with n_sk blocks of kind k on rank s, r_sk <= n_sk of them fully recomputed, p ranks and m micro-batches.
Ranks are distinct ones: those that hold the same stages, as DualPipe's s and pp - 1 - s, count once.
The bound, the CP-SAT model, the verification and ``evaluate`` all read these terms; none has a formula of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    FloatArray = NDArray[np.float64]
    IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTerms:
    """Terms of ``n`` layouts with ``K`` block kinds (the model's runs, in order).

    ``pp`` counts distinct ranks and ``vp`` the virtual stages on each. Virtual stage j is on rank j mod pp; where
    ``folded``, vp is 2 and the second ones run back: stages s and 2*pp - 1 - s are on rank s.
    Shapes: (n,) or (n, K); ``in_flight`` is (n, P) with P the largest pp, in micro-batches held at once
    by rank s (a fraction counts chunks), 0 beyond a row's own pp. Seconds and bytes. ``first`` and ``last`` are the ends on
    the first and the last rank; they add up when pp is 1, and ``first`` is both where the stages are folded.
    ``flight_bytes`` are held for every micro-batch in flight beside what blocks keep; an end may need fewer bytes than other
    ranks, of what these send and receive.
    ``may_recompute`` tells whether whole-layer recomputation is allowed in the row (else r = 0). ``group`` blocks have one
    saved input: every virtual stage holds a multiple of them (1: any number).
    ``bubble_weight`` is at least 0 and below ``micro_batches`` (1 for 1F1B; above 1 where
    paired micro-batches hide much traffic that fill and drain expose).

    What the schedule's own operations take decides the exact step (``step``): ``schedule`` is the place in ``Schedule``,
    ``forward_s``, ``backward_s`` and, of the latter, ``wgrad_s`` (n, K) one micro-batch through one block, ``hidden_*``
    (n, K) traffic that only a paired operation hides, ``embedding_s`` and ``head_s`` (n, 3) forward, backward and wgrad
    of the two ends, ``hop_s`` one transfer, ``hops_overlap`` when it runs beside compute (a ``HopOverlap``),
    ``outside_s`` what comes before and after the pipeline. Recomputation belongs to the backward.
    """

    pp: IntArray
    vp: IntArray
    folded: NDArray[np.bool_]
    micro_batches: IntArray
    layer_s: FloatArray
    recompute_s: FloatArray
    first_s: FloatArray
    last_s: FloatArray
    bubble_weight: FloatArray
    fixed_s: FloatArray
    layer_state_bytes: FloatArray
    layer_activation_bytes: FloatArray
    recomputed_activation_bytes: FloatArray
    first_bytes: FloatArray
    last_bytes: FloatArray
    common_bytes: FloatArray
    flight_bytes: FloatArray
    recompute_transient_bytes: FloatArray
    capacity_bytes: FloatArray
    in_flight: FloatArray
    may_recompute: NDArray[np.bool_]
    group: IntArray
    schedule: IntArray
    forward_s: FloatArray
    backward_s: FloatArray
    wgrad_s: FloatArray
    hidden_forward_s: FloatArray
    hidden_backward_s: FloatArray
    embedding_s: FloatArray
    head_s: FloatArray
    hop_s: FloatArray
    hops_overlap: IntArray
    outside_s: FloatArray

    def __len__(self) -> int:
        return len(self.pp)

    def take(self, index: NDArray[Any]) -> StageTerms:
        """Return the rows selected by an index or mask array by an index (k,) or mask (n,)."""
        return replace(self, **{f.name: getattr(self, f.name)[index] for f in fields(self)})


def _weighted(blocks: IntArray, values: FloatArray) -> FloatArray:
    """Sum values (n, K) over the blocks (n, P, K) of each rank."""
    total = blocks[:, :, 0] * values[:, None, 0]
    for kind in range(1, values.shape[1]):
        total += blocks[:, :, kind] * values[:, None, kind]
    return total


def own_bytes(terms: StageTerms) -> FloatArray:
    """Return the bytes (n, P) of ranks without blocks."""
    ranks = np.arange(terms.in_flight.shape[1])
    own: FloatArray = terms.common_bytes[:, None] + terms.in_flight * terms.flight_bytes[:, None]
    own += (ranks == 0) * terms.first_bytes[:, None]
    own += (ranks == terms.pp[:, None] - 1) * terms.last_bytes[:, None]
    return own


def whole_groups(terms: StageTerms, sizes: IntArray) -> NDArray[np.bool_]:
    """Tell which layouts' virtual stages, of ``sizes`` (n, C, P) blocks, are whole groups that share a saved input, (n,)."""
    whole: NDArray[np.bool_] = (sizes % terms.group[:, None, None] == 0).all(axis=(1, 2))
    return whole


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCosts:
    """Result of ``price_stages``: per rank (n, P) and per layout (n,)."""

    rank_time_s: FloatArray
    rank_bytes: FloatArray
    step_time_s: FloatArray
    peak_bytes: FloatArray
    fits: NDArray[np.bool_]


def price_stages(terms: StageTerms, blocks: IntArray, recomputed: IntArray) -> StageCosts:
    """Price given stages.

    ``blocks`` and ``recomputed`` have shape (n, P, K): blocks of each kind on each rank (all its chunks),
    and how many of them are fully recomputed; zeros beyond a row's pp.
    """
    ranks = np.arange(terms.in_flight.shape[1])
    real = ranks < terms.pp[:, None]
    rank_time = _weighted(blocks, terms.layer_s) + _weighted(recomputed, terms.recompute_s)
    saved = terms.layer_activation_bytes - terms.recomputed_activation_bytes
    held = _weighted(blocks, terms.layer_activation_bytes) - _weighted(recomputed, saved)
    rank_bytes = _weighted(blocks, terms.layer_state_bytes) + terms.in_flight * held + own_bytes(terms)
    rank_bytes += (recomputed.sum(axis=2) > 0) * terms.recompute_transient_bytes[:, None]
    rows, last = np.arange(len(terms)), terms.pp - 1
    rank_time[:, 0] += terms.first_s
    rank_time[rows, last] += terms.last_s
    rank_time, rank_bytes = rank_time * real, rank_bytes * real
    slowest, peak = rank_time.max(axis=1), rank_bytes.max(axis=1)
    waiting = terms.bubble_weight * (rank_time.sum(axis=1) - slowest)
    step = terms.micro_batches * slowest + waiting + terms.fixed_s
    return StageCosts(
        rank_time_s=rank_time,
        rank_bytes=rank_bytes,
        step_time_s=step,
        peak_bytes=peak,
        fits=peak <= terms.capacity_bytes,
    )
