"""Floors under the exact step: for every rank one path through the schedule, linear in what the rank holds.

A path that stays on rank s passes all its operations, waits before them for the ranks that feed it, and leaves by those
that it feeds. For 1F1B and GPipe it also goes down to the last rank and back before the first backward, so that it counts
every other rank once, but skips the forwards that s runs meanwhile:

    none, gpipe    m T_s                               + sum of all others' T
    1f1b           m T_s - min(p - 1 - s, m - 1) F_s   + sum of all others' T
    interleaved    m T_s                               + first chunks of the ranks before s
    others         m T_s

with F and T a rank's forward and whole time for one micro-batch. Transfers on the way count where they are certain.
An interleaved path may also leave rank s after the first micro-batch's forward of its last chunk, down to the last rank and
back, so that it counts the last chunks of the ranks behind s, but skips the forwards that s runs meanwhile. Each rank
takes what is likely to be the longer of its two paths. Before either, a path to
rank s may run all chunks but the last of the first micro-batches on a rank before s that holds as many blocks, and pass on
from there through last chunks. How much the chunks of other ranks hold at least follows from the fewest blocks of each,
and from all of them together: they hold what the remaining ranks have no room for.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.orders import HopOverlap
from layoutopt.optimizer.cost.schedules import default_group
from layoutopt.optimizer.cost.step import NAMES
from layoutopt.optimizer.specs.vocabulary import Schedule

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from layoutopt.optimizer.cost.batch import IntArray
    from layoutopt.optimizer.cost.terms import FloatArray, StageTerms

    Mask = NDArray[np.bool_]

PLAIN = (Schedule.NONE, Schedule.GPIPE, Schedule.ONE_F_ONE_B)
"""Schedules whose paths pass every rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFloors:
    """The step is at least ``micro_batches`` times any rank's time, plus ``all_again`` times all recomputation.

    A rank's time is linear: ``layer_s`` and ``again_s`` (n, K, P) per block and recomputed block, ``base_s`` (n, P)
    without any, in which all that does not depend on the stages is spread over the micro-batches. ``all_again`` (n,).
    """

    layer_s: FloatArray
    again_s: FloatArray
    base_s: FloatArray
    all_again: FloatArray

    def take(self, index: IntArray) -> RankFloors:
        """Return the floors of some layouts, by their positions (k,)."""
        return RankFloors(
            layer_s=self.layer_s[index],
            again_s=self.again_s[index],
            base_s=self.base_s[index],
            all_again=self.all_again[index],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBlocks:
    """The fewest and the most blocks (n, P) of every rank.

    ``every`` (n,) tells whether chunks between the ends recompute every block, ``alike`` (n,) whether of two such chunks
    the one with fewer blocks takes no longer, on whichever ranks they are.
    """

    fewest: FloatArray
    most: FloatArray
    every: Mask
    alike: Mask

    def same(self, other: HeldBlocks | None) -> bool:
        """Whether another says as much."""
        if other is None:
            return False
        return bool((self.fewest == other.fewest).all() and (self.most == other.most).all())

    def take(self, index: IntArray | Mask) -> HeldBlocks:
        """Return those of some layouts, by their positions (k,) or a mask (n,)."""
        return HeldBlocks(
            fewest=self.fewest[index],
            most=self.most[index],
            every=self.every[index],
            alike=self.alike[index],
        )


def rank_floors(terms: StageTerms, counts: IntArray, held: HeldBlocks | None = None) -> RankFloors:
    """Return the floors, (n,) each, of every layout whose ranks are known to hold some blocks."""
    return FloorForms(terms, counts).at(held)


class FloorForms:
    """The floors of every layout of some terms as functions of the blocks that its ranks are known to hold.

    ``fixed`` tells that these change nothing: no layout is interleaved.
    """

    def __init__(self, terms: StageTerms, counts: IntArray) -> None:
        rank = np.arange(terms.in_flight.shape[1])
        self.terms, self._rank, self._mean = terms, rank, counts.sum() / terms.pp
        self._total = int(counts.sum())
        self._m = m = terms.micro_batches[:, None]
        plain, both = runs(terms, PLAIN)[:, None], terms.forward_s + terms.backward_s
        missed = missed_forwards(terms, rank)
        # Once with all others, so once less here; what runs together may be shorter than its parts.
        share = np.where(plain, (m - 1) / m, 1.0)
        whole = np.where(plain, both, terms.layer_s)
        self._layer = (
            whole[:, :, None] * share[:, None, :] - terms.forward_s[:, :, None] * (missed / m)[:, None, :]
        )
        self._again = terms.recompute_s[:, :, None] * share[:, None, :] * np.ones(len(rank))
        first, last = rank == 0, rank == terms.pp[:, None] - 1
        ends = first * terms.first_s[:, None] + last * terms.last_s[:, None]
        forward = first * terms.embedding_s[:, :1] + last * terms.head_s[:, :1]
        at_ends = (terms.embedding_s + terms.head_s)[:, :2].sum(axis=1)
        sure = (
            first * terms.embedding_s[:, :2].sum(axis=1)[:, None]
            + last * terms.head_s[:, :2].sum(axis=1)[:, None]
        )
        self._base = np.where(plain, sure * share - forward * missed / m, ends)
        self._passing = np.where(plain, (at_ends + both @ counts.astype(np.float64))[:, None], 0.0)
        self._hop_s = np.where(terms.pp > 1, terms.hop_s, 0.0)[:, None]
        self._hops = certain_hops(terms, rank) * self._hop_s
        self._interleaved = runs(terms, (Schedule.INTERLEAVED,))[:, None]
        self.fixed = not self._interleaved.any()
        self._several = not self.fixed and int(terms.vp.max(initial=1)) > 1
        self._each = both.min(axis=1)[:, None]
        self._all_again = plain[:, 0].astype(np.float64)
        self._inner = rank < terms.pp[:, None] - 1
        # Ranks that a layout doesn't have take no time.
        self._real = rank < terms.pp[:, None]
        if self._several:
            self._prepare_detours()

    def take(self, index: IntArray) -> FloorForms:
        """Return the functions of some layouts, by their positions (k,)."""
        new = copy(self)
        new.terms = self.terms.take(index)
        for name in _ROWS + (_DETOUR_ROWS if self._several else ()):
            setattr(new, name, getattr(self, name)[index])
        return new

    def at(self, held: HeldBlocks | None = None) -> RankFloors:
        """Return the floors where ranks are known to hold some blocks; None: at least one each."""
        terms, m, layer, others = self.terms, self._m, self._layer, self._passing
        if not self.fixed:
            each = self._each
            if held is not None:
                each = each + np.where(held.every, self.terms.recompute_s.min(axis=1), 0.0)[:, None]
            others = others + self._first_chunks_s(held, each)
        others = others + self._hops
        if self._several:
            gained = self._gained_s(held, each)
            longer = gained > self._per_block_s * self._mean[:, None]
            others = others + np.where(longer, gained, 0.0)
            layer = layer - (np.where(longer, self._per_block_s, 0.0) / m)[:, None, :]
        return RankFloors(
            layer_s=np.maximum(layer, 0.0),
            again_s=self._again,
            base_s=np.where(self._real, self._base + (others + terms.outside_s[:, None]) / m, 0.0),
            all_again=self._all_again,
        )

    def _first_chunks_s(self, held: HeldBlocks | None, each_s: FloatArray) -> FloatArray:
        """Forward and backward of the first chunks before a rank; the first of all may hold the embedding alone."""
        terms, rank = self.terms, self._rank
        chunk = np.where(rank > 0, 1.0, 0.0) * np.ones((len(terms), 1))
        if held is not None:
            chunk = np.where(rank > 0, np.maximum(held.fewest // terms.vp[:, None], 1.0), 0.0)
        before = np.cumsum(chunk, axis=1) - chunk
        if held is not None:
            most, fewer = self._together(held, largest=False)
            before = np.maximum(before, np.cumsum(most, axis=1) - most - fewer)
            if held.alike.any():
                last, fewer_last = self._together(held, largest=True)
                most = np.where(self._behind_full(held), last, most)
                either = np.cumsum(most, axis=1) - most - fewer - fewer_last
                # the last rank's last chunk may be small, and its others larger than those of a rank with as many blocks
                alike = held.alike[:, None] & self._inner
                before = np.where(alike, np.maximum(before, either), before)
        embedding = np.where(rank > 0, terms.embedding_s[:, :2].sum(axis=1)[:, None], 0.0)
        return np.where(self._interleaved, embedding + before * each_s, 0.0)

    def _gained_s(self, held: HeldBlocks | None, each_s: FloatArray) -> FloatArray:
        """Return what interleaved paths gain on the way to the last rank and back, (n, P) seconds."""
        chunk = np.where(self._inner, 1.0, 0.0)
        if held is not None:
            chunk = np.where(self._inner, np.maximum(-(-held.fewest // self.terms.vp[:, None]), 1.0), 0.0)
        behind = chunk[:, ::-1].cumsum(axis=1)[:, ::-1] - chunk
        if held is not None:
            most, fewer = self._together(held, largest=True)
            behind = np.maximum(behind, most[:, ::-1].cumsum(axis=1)[:, ::-1] - most - fewer)
        way_s = behind * each_s + self.terms.head_s[:, :2].sum(axis=1)[:, None]
        return np.where(self._detour, way_s + self._detour_hops * self._hop_s - self._lost_s, 0.0)

    def _behind_full(self, held: HeldBlocks) -> Mask:
        """Tell which ranks (n, P) surely have a rank before or at them that holds as many blocks as any rank may hold.

        A path to a rank behind that one may run all chunks but the last there, in place of its own, and then pass on through
        last chunks, which are the largest.
        """
        inner = self._inner & (self._rank > 0)
        most = np.where(inner, held.most, 0.0)
        full = most.max(axis=1, keepdims=True)
        spare = held.most.sum(axis=1, keepdims=True) - self._total
        # no rank so far holds that many: so many blocks are missing in them
        missing = np.where(inner, np.maximum(most - full + 1.0, 0.0), 0.0).cumsum(axis=1)
        behind: Mask = missing > spare
        return behind

    def _together(self, held: HeldBlocks, *, largest: bool) -> tuple[FloatArray, FloatArray]:
        """Return the chunks (n, P) of inner ranks that hold their most, and how many blocks fewer (n, 1) they hold together.

        A rank's smallest chunk, or its ``largest``, is one block smaller if the rank holds as many fewer as lead below
        the next multiple of its chunks, and again for every further multiple. All ranks together can hold so many
        fewer than their most as these exceed the model.
        """
        vp = self.terms.vp[:, None].astype(np.float64)
        inner = self._inner & (self._rank > 0)
        chunk, over = np.divmod(np.where(inner, held.most - float(largest), 0.0), vp)
        spare = np.maximum(held.most.sum(axis=1, keepdims=True) - self._total, 0.0)
        spent = np.sort(np.where(inner, over + 1.0, np.inf), axis=1).cumsum(axis=1)
        fewer = (spent <= spare).sum(axis=1, keepdims=True)
        number = inner.sum(axis=1, keepdims=True)
        every = np.where(inner, over + 1.0, 0.0).sum(axis=1, keepdims=True)
        fewer = np.where(fewer == number, number + np.maximum(spare - every, 0.0) // vp, fewer)
        return np.where(inner, chunk + float(largest), 0.0), fewer

    def _prepare_detours(self) -> None:
        """Find what interleaved paths lose by a way to the last rank and back, and lose per own block, (n, P) seconds.

        The first micro-batch is followed through the last chunks; the forwards that are skipped are of the same group's
        other micro-batches there, then of the next group's first chunk. Chunks are balanced, larger ones last; the first
        chunk of the first rank may hold less, the others then more.
        """
        terms, rank = self.terms, self._rank
        m, pp, vp = (column[:, None] for column in (terms.micro_batches, terms.pp, terms.vp))
        group = default_group(terms.pp, terms.micro_batches)[:, None]
        skipped = np.clip(2 * (pp - 1 - rank), 0, m * vp - (vp - 1) * group - 1)
        at_last = np.minimum(skipped, group - 1)
        at_first = skipped - at_last
        overlap = terms.hops_overlap[:, None]
        self._detour_hops = 2 * (pp - 1 - rank) - np.where(overlap == HopOverlap.ALL, 0, skipped + 1)
        forward = (terms.forward_s + terms.hidden_forward_s).max(axis=1)[:, None]
        # of n blocks the last chunk holds at most (n + vp - 1) / vp, of the first rank (n + vp - 2) / (vp - 1)
        parts = np.maximum(vp - (rank == 0), 1)
        lost_s = forward * (
            at_last * (parts - 1) / parts + np.where(rank == 0, at_first * (vp - 1) / vp, 0.0)
        )
        self._lost_s = lost_s + np.where(rank == 0, at_first * terms.embedding_s[:, :1], 0.0)
        self._detour = self._interleaved & (vp > 1) & self._inner
        self._per_block_s = np.where(self._detour, forward * (at_last / parts + at_first / vp), 0.0)


_ROWS = (
    "_mean", "_m", "_layer", "_again", "_base", "_passing", "_hop_s", "_hops", "_interleaved", "_each", "_all_again",
    "_real", "_inner",
)  # fmt: skip
_DETOUR_ROWS = ("_detour_hops", "_lost_s", "_detour", "_per_block_s")
"""Arrays with the layouts on their first axis, and those of detours."""


def runs(terms: StageTerms, schedules: tuple[Schedule, ...]) -> Mask:
    """Tell which rows run one of some schedules."""
    wanted = np.array([name in schedules for name in NAMES])
    chosen: Mask = wanted[terms.schedule]
    return chosen


def missed_forwards(terms: StageTerms, rank: IntArray) -> FloatArray:
    """Return how many forwards of a rank the path misses while it goes down to the last rank and back, (n, P)."""
    behind = np.clip(terms.pp[:, None] - 1 - rank, 0, terms.micro_batches[:, None] - 1)
    return np.where(runs(terms, (Schedule.ONE_F_ONE_B,))[:, None], behind, 0).astype(np.float64)


def certain_hops(terms: StageTerms, rank: IntArray) -> FloatArray:
    """Return the transfers on the path of every rank, (n, P).

    To the rank and away from it; in 1F1B and GPipe to the last rank and back besides. Where ranks wait, also those
    between operations of the rank itself: all of them but, at the ends of the model, one per micro-batch; where only an
    interleaved warm-up and cool-down wait, those behind the operations of these.
    """
    m, pp, vp = (column[:, None] for column in (terms.micro_batches, terms.pp, terms.vp))
    plain, interleaved = runs(terms, PLAIN)[:, None], runs(terms, (Schedule.INTERLEAVED,))[:, None]
    way = np.where(plain, 2 * (pp - 1), np.where(interleaved, 2 * np.minimum(rank, pp - 1), 0))
    at_end = (rank == 0) | (rank == pp - 1)
    one = runs(terms, (Schedule.ONE_F_ONE_B,))[:, None]
    missed = missed_forwards(terms, rank)
    own = np.where(one, np.where(at_end, m - 1, 2 * (m - 1)) - missed, 0)
    own = np.where(interleaved, 2 * m * vp - 1 - np.where(at_end, m, 0), own)
    group = default_group(terms.pp, terms.micro_batches)[:, None]
    warm_up = np.clip(2 * (pp - 1 - rank) + (vp - 1) * group, 0, m * vp)
    # the last rank turns from its last forward to its first backward without a transfer
    ends = np.where(interleaved, 2 * warm_up - 1 - (rank == pp - 1), 0)
    overlap = terms.hops_overlap[:, None]
    own = np.where(overlap == HopOverlap.NONE, own, np.where(overlap == HopOverlap.ALL, 0, ends))
    return way + np.maximum(own, 0)
