"""Which tuples can be excluded at sight: in a given step time, the ranks have no room for the whole model.

In a step of T seconds every rank s has T less what comes before and after the pipeline, for all its micro-batches:

    m (F_s + B_s)  <=  T - outside - first chunks of the ranks before s - transfers on the way

and under 1F1B and GPipe, where the path to the last rank and back passes every other rank,

    (m - 1 - q_s) F_s + (m - 1) B_s  <=  T - outside - work of all ranks - transfers on the way

with q_s = min(p - 1 - s, m - 1) forwards missed under 1F1B, none under GPipe. A rank that takes n_k blocks of kind k
within its seconds and its bytes satisfies every non-negative combination of both limits. Three are used: time alone,
memory alone with all recomputed, and time plus memory at the price per byte at which recomputing a kind costs what it
frees. Each limits the blocks of one rank; their sum over ranks limits the model. Whole blocks of the cheapest
kind are counted, and with several kinds also weighted blocks, for several weights of which each gives a valid
limit. What the other ranks have no room for a rank must hold, which makes first chunks longer. All of it holds for every
stage rule: rules only forbid.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.terms import own_bytes
from layoutopt.optimizer.specs.vocabulary import Schedule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from layoutopt.optimizer.cost.terms import FloatArray, IntArray, StageTerms

    Mask = NDArray[np.bool_]

_HUGE_BYTES = 1e30  # stands for "no limit", so that it can be multiplied by a price of 0
_ROUNDS = 3  # of lengthening first chunks
# A limit counts only when it is missed by more than rounding explains: of one sum, and of all.
_ROUNDING, _MARGIN = 1e-12, 1e-9


def may_be_below(terms: StageTerms, counts: IntArray, below_s: FloatArray | float) -> Mask:
    """Tell for each tuple (n,) whether some stages might take less than ``below_s`` seconds; False is proof.

    ``below_s``, one for all or (n,), may be inf: then False proves that nothing fits in memory.
    """
    below = np.broadcast_to(below_s, terms.pp.shape)
    possible = _has_time(terms, counts, below)
    left = np.flatnonzero(possible)
    if len(left):
        possible[left] = _has_room(terms.take(left), counts, below[left])
    return possible


def _has_time(terms: StageTerms, counts: IntArray, below: FloatArray) -> Mask:
    """Compare with the mean rank and with the fullest rank of cheapest blocks."""
    most_blocks = -(-int(counts.sum()) // terms.pp)
    cheapest = terms.layer_s[:, counts > 0].min(axis=1)
    work = terms.layer_s @ counts + terms.first_s + terms.last_s
    least = terms.micro_batches * np.maximum(work / terms.pp, most_blocks * cheapest)
    enough: Mask = least * (1 - _MARGIN) <= below - terms.outside_s
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


def _room(
    terms: StageTerms, kinds: IntArray, counts: IntArray, below: FloatArray, first: FloatArray
) -> _Room:
    """``first`` (n, P): blocks that the first chunk of every rank holds at least."""
    rank = np.arange(int(terms.pp.max()))
    flight = terms.in_flight[:, : len(rank), None]
    at_first, at_last = rank == 0, rank == terms.pp[:, None] - 1
    capacity = np.minimum(terms.capacity_bytes, _HUGE_BYTES) * (1 + _ROUNDING)
    activation = terms.layer_activation_bytes[:, None, kinds]
    saved = np.maximum(activation - terms.recomputed_activation_bytes[:, None, kinds], 0.0)
    passes, forwards, backwards = _passes(terms, rank)
    ends = at_first[None, :, None] * terms.embedding_s[:, None] + at_last[..., None] * terms.head_s[:, None]
    whole = at_first * terms.first_s[:, None] + at_last * terms.last_s[:, None]
    end_s = np.where(passes, forwards * ends[..., 0] + backwards * ends[..., 1], backwards * whole)
    budget = (below - terms.outside_s) * (1 + _ROUNDING)
    room_s = budget[:, None] - _before_s(terms, rank, passes, counts, first) - end_s
    layer = forwards[..., None] * terms.forward_s[:, None] + backwards[..., None] * terms.backward_s[:, None]
    at_once = backwards[..., None] * terms.layer_s[:, None]
    return _Room(
        real=rank < terms.pp[:, None],
        room_s=room_s,
        room_bytes=capacity[:, None] - own_bytes(terms)[:, : len(rank)],
        layer_s=np.where(passes[..., None], layer, at_once)[:, :, kinds],
        recompute_s=(backwards[..., None] * terms.recompute_s[:, None])[:, :, kinds],
        block_bytes=terms.layer_state_bytes[:, None, kinds] + flight * activation,
        saved_bytes=flight * saved * terms.may_recompute[:, None, None],
    )


def _passes(terms: StageTerms, rank: IntArray) -> tuple[Mask, FloatArray, FloatArray]:
    """Tell whether the path passes all ranks (n, 1), and how many forwards and backwards of a rank are on it beside that."""
    m = terms.micro_batches[:, None].astype(np.float64)
    names = [list(Schedule)[code] for code in terms.schedule.tolist()]
    passes = np.array([[name in (Schedule.NONE, Schedule.GPIPE, Schedule.ONE_F_ONE_B)] for name in names])
    late = np.array([[name is Schedule.ONE_F_ONE_B] for name in names])
    missed = np.where(late, np.clip(terms.pp[:, None] - 1 - rank, 0, m - 1), 0.0)
    beside = np.where(passes, m - 1, m) + 0.0 * rank
    return passes, beside - missed, beside


def _before_s(
    terms: StageTerms, rank: IntArray, passes: Mask, counts: IntArray, first: FloatArray
) -> FloatArray:
    """Return the seconds (n, P) on the path of a rank that are not its own: other ranks, and the way there and back."""
    both = terms.forward_s + terms.backward_s
    ends = (terms.embedding_s + terms.head_s)[:, :2].sum(axis=1)
    chunked = np.array([[list(Schedule)[code] is Schedule.INTERLEAVED] for code in terms.schedule.tolist()])
    held = np.where(rank > 0, np.maximum(first, 1.0), 0.0)
    chunks_s = (np.cumsum(held, axis=1) - held) * both.min(axis=1)[:, None]
    chunks_s = chunks_s + (rank > 0) * terms.embedding_s[:, :2].sum(axis=1)[:, None]
    hops = np.where(
        passes, 2 * (terms.pp[:, None] - 1), np.where(chunked, 2 * np.minimum(rank, terms.pp[:, None] - 1), 0)
    )
    others = np.where(passes, (both @ counts + ends)[:, None], np.where(chunked, chunks_s, 0.0))
    return others + hops * (terms.hop_s * (terms.pp > 1))[:, None]


def most_blocks(terms: StageTerms, counts: IntArray, below_s: FloatArray | float) -> IntArray:
    """Return the most blocks of any kinds that each rank, (n, P), has room for in a step time."""
    below = np.broadcast_to(below_s, terms.pp.shape)
    *_, (_, _, most) = _rounds(terms, counts, np.flatnonzero(counts), below)
    result: IntArray = np.clip(most, -1, counts.sum()).astype(np.int64)
    return result


def _rounds(
    terms: StageTerms, counts: IntArray, kinds: IntArray, below: FloatArray
) -> Iterator[tuple[_Room, Mask, FloatArray]]:
    """Yield ranks' room, whether the model has place in it, and whole blocks per rank (n, P), round by round."""
    first = np.ones((len(terms), int(terms.pp.max())))
    for _ in range(_ROUNDS):
        room = _room(terms, kinds, counts, below, first)
        fits, most = _has_place(terms, room, int(counts.sum()))
        yield room, fits, most
        if not (terms.vp > 1).any():
            break
        held = np.where(room.real, np.minimum(np.maximum(most, 0.0), counts.sum()), 0.0)
        least = counts.sum() - (held.sum(axis=1, keepdims=True) - held)
        first = np.floor(np.maximum(least, 0.0) / terms.vp[:, None])


def _has_room(terms: StageTerms, counts: IntArray, below: FloatArray) -> Mask:
    kinds = np.flatnonzero(counts)
    possible = np.ones(len(terms), dtype=bool)
    *_, (room, _, _) = rounds = list(_rounds(terms, counts, kinds, below))
    for _, fits, _ in rounds:
        possible &= fits
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


def _has_place(terms: StageTerms, room: _Room, blocks: int) -> tuple[Mask, FloatArray]:
    """Count whole blocks of the cheapest kind by each limit, also per rank; every chunk but the two ends needs one."""
    most = np.full(room.real.shape, np.inf)
    for cost, budget in _limits(room):
        most = np.minimum(most, _bought(budget, cost.min(axis=2)))
    most = np.floor(most * (1 + _MARGIN) + _MARGIN)
    rank = np.arange(room.real.shape[1])
    apart = (terms.pp[:, None] > 1) & ((rank == 0) | (rank == terms.pp[:, None] - 1))
    ends = np.where(terms.folded[:, None], 2 * (rank == 0), apart)
    placed = ((most >= terms.vp[:, None] - ends) | ~room.real).all(axis=1)
    enough: Mask = placed & (np.where(room.real, most, 0.0).sum(axis=1) >= blocks)
    return enough, most


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
