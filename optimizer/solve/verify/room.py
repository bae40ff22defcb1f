"""Which tuples can be excluded at sight: in a given step time, the ranks have no room for the whole model.

For a step time T every rank is limited to ``(T - fixed - w * W) / (m - w)`` seconds per micro-batch, with
W the work of all ranks without recomputation. A rank that takes n_k blocks of kind k within its seconds and
its bytes satisfies every non-negative combination of both limits. Three are used: time alone, memory alone
with all recomputed, and time plus memory at the price per byte at which recomputing a kind costs what it
frees. Each limits the blocks of one rank; their sum over ranks limits the model. Whole blocks of the cheapest
kind are counted, and with several kinds also weighted blocks, for several weights of which each gives a valid
limit. All of it holds for every stage rule: rules only forbid.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from layoutopt.optimizer.cost.terms import FloatArray, IntArray, StageTerms

    Mask = NDArray[np.bool_]

_HUGE_BYTES = 1e30  # stands for "no limit", so that it can be multiplied by a price of 0
# A limit counts only when it is missed by more than rounding explains: of one sum, and of all.
_ROUNDING, _MARGIN = 1e-12, 1e-9


def may_be_below(terms: StageTerms, counts: IntArray, below_s: FloatArray | float) -> Mask:
    """Tell for each tuple (n,) whether some stages might take less than ``below_s`` seconds; False is proof.

    ``below_s``, one for all or (n,), may be inf: then False proves that nothing fits in memory.
    """
    weight = terms.bubble_weight
    work = terms.layer_s @ counts + terms.first_s + terms.last_s
    limit = (below_s - terms.fixed_s - weight * work) / (terms.micro_batches - weight)
    possible = _has_time(terms, counts, work, limit)
    left = np.flatnonzero(possible)
    if len(left):
        possible[left] = _has_room(terms.take(left), counts, limit[left])
    return possible


def _has_time(terms: StageTerms, counts: IntArray, work: FloatArray, limit: FloatArray) -> Mask:
    """Compare the limit with the mean rank and with the fullest rank of cheapest blocks."""
    most_blocks = -(-int(counts.sum()) // terms.pp)
    cheapest = terms.layer_s[:, counts > 0].min(axis=1)
    least = np.maximum(work / terms.pp, most_blocks * cheapest)
    enough: Mask = least * (1 - _MARGIN) <= limit
    return enough


@dataclass(frozen=True, slots=True, kw_only=True)
class _Room:
    """What ranks have left for blocks (n, P), and what a block takes on each, (n, P, K) or (n, 1, K)."""

    real: Mask
    room_s: FloatArray
    room_bytes: FloatArray
    layer_s: FloatArray
    recompute_s: FloatArray
    block_bytes: FloatArray
    saved_bytes: FloatArray


def _room(terms: StageTerms, kinds: IntArray, limit: FloatArray) -> _Room:
    rank = np.arange(int(terms.pp.max()))
    flight = terms.in_flight[:, : len(rank), None]
    first, last = rank == 0, rank == terms.pp[:, None] - 1
    end_s = first * terms.first_s[:, None] + last * terms.last_s[:, None]
    end_bytes = first * terms.first_bytes[:, None] + last * terms.last_bytes[:, None]
    capacity = np.minimum(terms.capacity_bytes, _HUGE_BYTES) * (1 + _ROUNDING)
    activation = terms.layer_activation_bytes[:, None, kinds]
    saved = np.maximum(activation - terms.recomputed_activation_bytes[:, None, kinds], 0.0)
    return _Room(
        real=rank < terms.pp[:, None],
        room_s=(limit * (1 + _ROUNDING))[:, None] - end_s,
        room_bytes=(capacity - terms.common_bytes)[:, None] - end_bytes,
        layer_s=terms.layer_s[:, None, kinds],
        recompute_s=terms.recompute_s[:, None, kinds],
        block_bytes=terms.layer_state_bytes[:, None, kinds] + flight * activation,
        saved_bytes=flight * saved * terms.may_recompute[:, None, None],
    )


def _has_room(terms: StageTerms, counts: IntArray, limit: FloatArray) -> Mask:
    kinds = np.flatnonzero(counts)
    room = _room(terms, kinds, limit)
    possible = _has_place(terms, room, int(counts.sum()))
    for weight in _weights(room) if len(kinds) > 1 else ():
        most = np.full(room.real.shape, np.inf)
        for cost, budget in _limits(room):
            free = np.where(np.broadcast_to(weight, cost.shape) > 0, np.inf, 0.0)
            share = np.divide(weight, cost, out=free, where=cost > 0).max(axis=2)
            inverse = np.divide(1.0, share, out=np.full(share.shape, np.inf), where=share > 0)
            most = np.minimum(most, _bought(budget, inverse))
        total = np.where(room.real, most, 0.0).sum(axis=1)
        # Where nothing has weight, an infinite budget gives nan: that is no proof.
        possible &= ~(total < (weight[:, 0] @ counts[kinds]) * (1 - _MARGIN))
    return possible


def _has_place(terms: StageTerms, room: _Room, blocks: int) -> Mask:
    """Count whole blocks of the cheapest kind by each limit; every chunk but the two ends needs one."""
    most = np.full(room.real.shape, np.inf)
    for cost, budget in _limits(room):
        most = np.minimum(most, _bought(budget, cost.min(axis=2)))
    most = np.floor(most * (1 + _MARGIN) + _MARGIN)
    rank = np.arange(room.real.shape[1])
    apart = (terms.pp[:, None] > 1) & ((rank == 0) | (rank == terms.pp[:, None] - 1))
    ends = np.where(terms.folded[:, None], 2 * (rank == 0), apart)
    placed = ((most >= terms.vp[:, None] - ends) | ~room.real).all(axis=1)
    enough: Mask = placed & (np.where(room.real, most, 0.0).sum(axis=1) >= blocks)
    return enough


def _bought(budget: FloatArray, cost: FloatArray) -> FloatArray:
    """Return how much a budget buys: any amount where it is free, -1 where the budget is overspent."""
    bought = np.divide(budget, cost, out=np.full(budget.shape, np.inf), where=cost > 0)
    return np.where(budget < 0, -1.0, bought)


def _limits(room: _Room) -> Iterator[tuple[FloatArray, FloatArray]]:
    """Yield limits: the cost of a block of each kind, (n, P, K) or (n, 1, K), and a rank's budget (n, P)."""
    yield room.layer_s, room.room_s
    yield room.block_bytes - room.saved_bytes, room.room_bytes
    for kind in range(room.layer_s.shape[2]):
        saved = room.saved_bytes[:, :, kind]
        seconds = np.broadcast_to(room.recompute_s[:, :, kind], saved.shape)
        price = np.divide(seconds, saved, out=np.zeros_like(saved), where=saved > 0)
        freed = np.minimum(0.0, room.recompute_s - price[:, :, None] * room.saved_bytes)
        cost = room.layer_s + price[:, :, None] * room.block_bytes + freed
        yield cost, room.room_s + price * room.room_bytes


def _weights(room: _Room) -> Iterator[FloatArray]:
    """Yield weights (n, 1, K): the costs of each limit on an average rank."""
    ranks = room.real.sum(axis=1)[:, None]
    for cost, _ in _limits(room):
        whole = np.broadcast_to(cost, (*room.real.shape, cost.shape[2]))
        mean = np.where(room.real[:, :, None], whole, 0.0).sum(axis=1) / ranks
        yield mean[:, None]
