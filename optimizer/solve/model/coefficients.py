"""Integer coefficients of the CP-SAT model, rounded so that no layout that fits or is faster gets lost.

Times are in nanoseconds and rounded down after they are multiplied by the weight they have in the step, memory is in KiB
and rounded in favour of fitting. An integer step time is therefore never above the exact one, and below it by less than
``rounding_s``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.solve.search.bound import work_s

if TYPE_CHECKING:
    from layoutopt.optimizer.cost.batch import IntArray
    from layoutopt.optimizer.cost.terms import FloatArray, StageTerms

PER_SECOND = 1e9
KIB = 1024.0
SUM_ERROR_KIB = 1e-3  # bytes summed in another order


@dataclass(frozen=True, slots=True, kw_only=True)
class Coefficients:
    """Coefficients of ``n`` tuples, int64. Names in ``_ns`` are contributions to the step time.

    ``slow_*`` weigh the slowest rank: per block and per recomputed block (n, K), at the ends (n, P). ``again_ns``
    (n, K) is per recomputed block on any rank, ``constant_ns`` (n,). ``held_kib`` and ``saved_kib`` (n, P, K) are per
    block and per recomputed block, ``room_kib`` (n, P) is the capacity less what a rank holds without blocks,
    ``buffer_kib`` (n,) is needed by ranks that recompute.
    """

    slow_layer_ns: IntArray
    slow_again_ns: IntArray
    slow_end_ns: IntArray
    again_ns: IntArray
    constant_ns: IntArray
    held_kib: IntArray
    saved_kib: IntArray
    room_kib: IntArray
    buffer_kib: IntArray


def rounding_s(counts: IntArray) -> float:
    """Return the largest difference between an exact step time and its integer form, in seconds.

    One unit for each block and recomputed block of the slowest rank, for its two ends, for each recomputed
    block's part in the sum over ranks, and for the constant.
    """
    blocks = int(counts.sum())
    return (3 * blocks + 3) / PER_SECOND


def coefficients(terms: StageTerms, counts: IntArray) -> Coefficients:
    """Scale and round the terms of a slice."""
    slow = (terms.micro_batches - terms.bubble_weight) * PER_SECOND
    wait = terms.bubble_weight * PER_SECOND
    flight = terms.in_flight[..., None]
    activation = terms.layer_activation_bytes
    saved = activation - terms.recomputed_activation_bytes
    slow_ends = _ends(terms, np.floor(slow * terms.first_s), np.floor(slow * terms.last_s))
    room = (terms.capacity_bytes - terms.common_bytes)[:, None] - _ends(
        terms, terms.first_bytes, terms.last_bytes
    )
    return Coefficients(
        slow_layer_ns=_down(slow[:, None] * terms.layer_s),
        slow_again_ns=_down(slow[:, None] * terms.recompute_s),
        slow_end_ns=slow_ends.astype(np.int64),
        again_ns=_down(wait[:, None] * terms.recompute_s),
        constant_ns=_down(wait * work_s(terms, counts) + terms.fixed_s * PER_SECOND),
        held_kib=_down((terms.layer_state_bytes[:, None] + flight * activation[:, None]) / KIB),
        saved_kib=-_down(flight * -saved[:, None] / KIB),
        room_kib=_down(room / KIB + SUM_ERROR_KIB),
        buffer_kib=_down(terms.recompute_transient_bytes / KIB),
    )


def _down(value: FloatArray) -> IntArray:
    return np.floor(value).astype(np.int64)


def _ends(terms: StageTerms, first: FloatArray, last: FloatArray) -> FloatArray:
    ranks = np.arange(terms.in_flight.shape[1])
    ends: FloatArray = (ranks == 0) * first[:, None] + (ranks == terms.pp[:, None] - 1) * last[:, None]
    return ends
