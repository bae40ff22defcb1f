"""Integer coefficients of the CP-SAT model, rounded so that no layout that fits or is faster gets lost.

Times are in nanoseconds and rounded down after they are multiplied by the weight they have in the step, memory is in KiB
and rounded in favour of fitting. An integer step time is therefore never above the exact one, and below it by less than
``rounding_s``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.terms import own_bytes
from layoutopt.optimizer.solve.search.floors import rank_floors

if TYPE_CHECKING:
    from layoutopt.optimizer.cost.batch import IntArray
    from layoutopt.optimizer.cost.terms import FloatArray, StageTerms

PER_SECOND = 1e9
KIB = 1024.0
SUM_ERROR_KIB = 1e-3  # bytes summed in another order


@dataclass(frozen=True, slots=True, kw_only=True)
class Coefficients:
    """Coefficients of ``n`` tuples, int64. Names in ``_ns`` are contributions to the step time.

    ``floor_*`` are those of the path that stays on a rank (``floors``): per block and per recomputed block (n, K, P),
    and without any (n, P); ``again_ns`` (n, K) is per recomputed block on any rank beside them. ``held_kib`` and
    ``saved_kib`` (n, P, K) are per block and per recomputed block, ``room_kib`` (n, P) is the capacity less what a rank
    holds without blocks, ``buffer_kib`` (n,) is needed by ranks that recompute. ``horizon_ns`` (n,) exceeds every step.
    """

    floor_layer_ns: IntArray
    floor_again_ns: IntArray
    floor_base_ns: IntArray
    again_ns: IntArray
    horizon_ns: IntArray
    held_kib: IntArray
    saved_kib: IntArray
    room_kib: IntArray
    buffer_kib: IntArray


def rounding_s(counts: IntArray) -> float:
    """Return the largest difference in seconds between an exact step and its integer form, for blocks by kind (K,).

    One unit for each block and recomputed block of the slowest rank, for its two ends, for each recomputed
    block's part in the sum over ranks, and for the constant.
    """
    blocks = int(counts.sum())
    return (3 * blocks + 3) / PER_SECOND


def coefficients(terms: StageTerms, counts: IntArray) -> Coefficients:
    """Scale and round the terms of a slice; ``counts`` (K,) are the model's blocks of each kind."""
    floors, m = rank_floors(terms, counts), terms.micro_batches * PER_SECOND
    flight = terms.in_flight[..., None]
    activation = terms.layer_activation_bytes
    saved = activation - terms.recomputed_activation_bytes
    room = terms.capacity_bytes[:, None] - own_bytes(terms)
    return Coefficients(
        floor_layer_ns=_down(m[:, None, None] * floors.layer_s),
        floor_again_ns=_down(m[:, None, None] * floors.again_s),
        floor_base_ns=_down(m[:, None] * floors.base_s),
        again_ns=_down((floors.all_again * PER_SECOND)[:, None] * terms.recompute_s),
        horizon_ns=_horizon_ns(terms, counts),
        held_kib=_down((terms.layer_state_bytes[:, None] + flight * activation[:, None]) / KIB),
        # Rounded up: what recomputation frees must not be less than it is.
        saved_kib=-_down(flight * -saved[:, None] / KIB),
        room_kib=_down(room / KIB + SUM_ERROR_KIB),
        buffer_kib=_down(terms.recompute_transient_bytes / KIB),
    )


def _horizon_ns(terms: StageTerms, counts: IntArray) -> IntArray:
    """One rank after the other, everything recomputed and every transfer waited for."""
    each = terms.forward_s + terms.backward_s + terms.hidden_forward_s + terms.hidden_backward_s
    work = (
        (each + 2 * terms.recompute_s) @ counts
        + terms.embedding_s[:, :2].sum(axis=1)
        + terms.head_s[:, :2].sum(axis=1)
    )
    # More transfers than any schedule waits for: a horizon has to be above every step, and no more.
    hops = 8.0 * terms.pp * terms.vp * terms.hop_s
    step = terms.micro_batches * (2 * work + hops) + terms.outside_s
    return _down(step * PER_SECOND) + 1


def _down(value: FloatArray) -> IntArray:
    return np.floor(value).astype(np.int64)
