"""How many blocks a pipeline rank can hold within a time and the memory.

One kind of block, the most frequent, is *counted*: for every small number of blocks of the other kinds (a *mix*) the
largest integer number of counted blocks has a closed form, because a rank's time and memory grow with it.
Arrays are (Q, c, P): mixes, cases, ranks, or broadcast to it. With one kind Q is 1.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.terms import own_bytes
from layoutopt.optimizer.solve.search.floors import FloorForms
from layoutopt.optimizer.solve.splits import end_stages
from layoutopt.optimizer.space.stage_splits import stage_numbers
from layoutopt.optimizer.space.stages import kinds_before

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from layoutopt.optimizer.cost.batch import IntArray
    from layoutopt.optimizer.cost.terms import FloatArray, StageTerms
    from layoutopt.optimizer.solve.search.cases import Cases
    from layoutopt.optimizer.solve.search.floors import HeldBlocks

MIXES = 48  # mixes of the other kinds; more are covered by coarser steps
SLACK = 1e-9  # relative: floats must never count one block too few
TINY = 1e-30
NOT_HELD = -1e30  # stands for minus infinity without making NaN out of sums


def at_most(amount: FloatArray) -> FloatArray:
    """Round down to whole blocks, in any shape, forgiving float errors upwards."""
    return np.floor(amount * (1 + SLACK) + SLACK)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixes:
    """Blocks of the kinds that are not counted: from ``low`` to ``high``, (Q, K), 0 for the counted kind."""

    counted: int
    low: FloatArray
    high: FloatArray


def mixes(counts: IntArray) -> Mixes:
    """List all numbers of the less frequent of kinds (K,); in steps when there are more than ``MIXES``."""
    # The most frequent kind has the closed form, so that the fewest numbers are left to list.
    counted = int(np.argmax(counts))
    step = np.ones(len(counts), dtype=np.int64)
    steps = np.where(np.arange(len(counts)) == counted, 1, counts + 1)
    # Double the step of the kind with most numbers: coarser mixes weaken the bound, and stay true.
    while np.prod(-(-steps // step)) > MIXES:
        step[np.argmax(-(-steps // step))] *= 2
    axes = [np.arange(0, total, stride) for total, stride in zip(steps, step, strict=True)]
    several = [
        kind for kind, axis in enumerate(axes) if len(axis) > 1
    ]  # numpy has no more than 32 dimensions
    grid = np.meshgrid(*(axes[kind] for kind in several), indexing="ij")
    low = np.zeros((grid[0].size if several else 1, len(counts)), dtype=np.int64)
    for kind, axis in zip(several, grid, strict=True):
        low[:, kind] = axis.ravel()
    # A mix stands for every number up to the next one: what costs counts its low end, what is held its high
    # end.
    high = np.minimum(low + step - 1, np.where(np.arange(len(counts)) == counted, 0, counts))
    return Mixes(counted=counted, low=low.astype(np.float64), high=high.astype(np.float64))


def reachable_kinds(terms: StageTerms, counts: IntArray, order: tuple[int, ...] = ()) -> NDArray[np.bool_]:
    """Tell which kinds a rank can meet, (K, n, P), whatever the split.

    Stages are contiguous and only the first and the last may be empty, so stage j starts at block j-1 or later
    and leaves at most one block fewer than the number of stages after it. ``order``: kinds of the blocks that alternate.
    """
    ranks = np.arange(terms.in_flight.shape[1])
    if order:
        return _met_in_order(terms, counts, order) & (ranks < terms.pp[:, None])
    pp, stages = terms.pp[:, None], (terms.pp * terms.vp)[:, None]
    ends = np.cumsum(counts)[:, None, None]
    first = np.maximum(ends - counts[:, None, None] - counts.sum() - 1 + stages, 0)
    last = np.minimum(ends, stages - 1)
    # The first chunk of the rank at or behind the kind's first stage; it meets the kind if not behind its
    # last.
    chunk = np.maximum(-(-(first - ranks) // pp), 0)
    meets = chunk * pp + ranks <= last
    if terms.folded.any():
        back = 2 * pp - 1 - ranks
        # A folded rank has a stage on the way there and one on the way back.
        either = ((first <= ranks) & (ranks <= last)) | ((first <= back) & (back <= last))
        meets = np.where(terms.folded[:, None], either, meets)
    reached: NDArray[np.bool_] = meets & (ranks < pp)
    return reached


def _met_in_order(terms: StageTerms, counts: IntArray, order: tuple[int, ...]) -> NDArray[np.bool_]:
    before, total = kinds_before(order, len(counts)), len(order)
    depth, ranks = int(terms.vp.max(initial=1)), terms.in_flight.shape[1]
    stage = stage_numbers(terms.pp, terms.folded, depth, ranks)
    behind = (terms.pp * terms.vp)[:, None, None] - 1 - stage
    start = np.clip(stage - 1, 0, total)
    stop = np.clip(total - behind + 1, start, total)
    held = (before[stop] - before[start]) * (np.arange(depth)[:, None] < terms.vp[:, None, None])[..., None]
    met: NDArray[np.bool_] = (held > 0).any(axis=1).transpose(2, 0, 1)
    return met


class RankCapacity:
    """Closed forms for a set of cases.

    ``held(T)`` is the largest number of counted blocks per (mix, case, rank) whose stage takes at most T seconds and
    fits; ``NOT_HELD`` where the mix, or the rank's fewest blocks, do not. ``time_s(n)`` is the least time of n blocks.
    """

    def __init__(self, terms: StageTerms, counts: IntArray, cases: Cases) -> None:
        self.cases = cases
        self.terms = terms = terms.take(cases.row)
        self.mixes = mix = mixes(counts)
        self._kind = mix.counted
        self._column = slice(mix.counted, mix.counted + 1)
        flight, activation = terms.in_flight, terms.layer_activation_bytes.T[:, :, None]
        self.held_bytes = terms.layer_state_bytes.T[:, :, None] + flight * activation
        self.saved_bytes = flight * (activation - terms.recomputed_activation_bytes.T[:, :, None])
        ranks = np.arange(flight.shape[1])
        self.real = ranks < terms.pp[:, None]
        self.forms = FloorForms(terms, counts)
        self.floors = self.forms.at()
        self.room_bytes = (terms.capacity_bytes[:, None] - own_bytes(terms)) * self.real
        self._every = (np.isinf(cases.high) | cases.free)[:, None]
        self._free = cases.free[:, None]
        self._any_free = bool(cases.free.any())
        self._all_free = self._any_free and bool(cases.free.all())
        self._limits(counts)
        self._recomputation()
        self.pace()
        self._memory()

    @property
    def fixed(self) -> bool:
        """Whether the blocks that ranks hold lengthen no path."""
        return self.forms.fixed

    def sharpened(self, held: HeldBlocks) -> RankCapacity:
        """Return the same cases with ranks that are known to hold some blocks, which lengthens paths past them."""
        new = copy(self)
        new.floors = self.forms.at(held)
        new.pace()
        return new

    def take(self, index: NDArray[np.int64]) -> RankCapacity:
        """Return the cases at some positions (k,)."""
        new = copy(self)
        new.cases, new.terms = self.cases.take(index), self.terms.take(index)
        new.forms, new.floors = self.forms.take(index), self.floors.take(index)
        arrays = [(name, 1) for name in _BY_MIX] + [(name, 0) for name in _BY_CASE]
        arrays += [(name, 1) for name in _BY_MIX_FREE] if self._any_free else []
        for name, axis in arrays:
            value = getattr(self, name)
            # What is the same for all cases is stored once.
            if value.shape[axis] == len(self.cases):
                setattr(new, name, value.take(index, axis=axis))
        return new

    def beside(self, mix: IntArray) -> RankCapacity:
        """Return the same cases with one mix for every rank, (c, P)."""
        new, (cases, ranks) = copy(self), np.ogrid[: mix.shape[0], : mix.shape[1]]
        for name in (*_OF_MIX, *(_BY_MIX_FREE if self._any_free else ())):
            value = getattr(self, name)
            whole = np.broadcast_to(value, (len(value), *mix.shape))
            setattr(new, name, whole[mix, cases, ranks][None])
        return new

    def _limits(self, counts: IntArray) -> None:
        """Blocks allowed by the split, by the model and by contiguity."""
        self.mixed = self.mixes.low.sum(axis=1)[:, None, None]
        # The other kinds may fill the fewest a rank must hold.
        self.fewest = np.maximum(self.cases.fewest - self.mixes.high.sum(axis=1)[:, None, None], 0.0)
        self.most = np.minimum(self.cases.most - self.mixed, float(counts[self._kind]))
        if len(counts) > 1:
            meets = reachable_kinds(self.terms, counts, self.cases.order)
            self.most = np.where(meets[self._kind], self.most, np.minimum(self.most, 0.0))
            for position, low in enumerate(self.mixes.low):
                # A mix with blocks that the rank never meets is none for it.
                strange = ~meets[low > 0].all(axis=0)
                self.most[position][strange] = NOT_HELD

    def _recomputation(self) -> None:
        """Seconds per recomputed block, and the fewest that a rank recomputes."""
        again_s = self.floors.again_s.transpose(1, 0, 2)
        # Where every block is recomputed, recomputation is part of a block's time.
        every = np.isinf(self.cases.low)[:, None]
        self._with_block_s = np.where(every, again_s, 0.0)
        self.again_s = self._over_mix(again_s, np.minimum)
        # Stages at the ends of the model may hold fewer blocks than are recomputed: the others recompute at least so many.
        vp = self.terms.vp[:, None]
        share = np.maximum(vp - end_stages(self.terms, self.real.shape[1]), 1) / vp
        self.low = np.where(every | self._free, 0.0, np.where(every, 0.0, self.cases.low[:, None]) * share)
        self._counted = bool((self.low > 0).any())

    def pace(self) -> None:
        """Seconds per counted block, and the seconds a rank starts with."""
        layer_s = self.floors.layer_s.transpose(1, 0, 2) + self._with_block_s
        self.layer_s = np.maximum(layer_s[self._kind], TINY)
        self.base_s = self.floors.base_s + self._of_mix(layer_s)
        self.least_s = layer_s.min(axis=2)

    def _memory(self) -> None:
        """The largest number of counted blocks that fits, whatever time it takes."""
        self._plain = plain = np.maximum(self.held_bytes[self._kind], TINY)
        room = self.room_bytes - self._of_mix(self.held_bytes)
        # Recomputation holds one block's activations beside what is kept.
        buffer = (self.cases.free | (self.cases.high > 0)) * self.terms.recompute_transient_bytes
        with_buffer = room - buffer[:, None]
        best = self._over_mix(self.saved_bytes, np.maximum)
        self.unaided = np.minimum(at_most(room / plain), self.most)
        least = np.maximum(plain - self.saved_bytes[self._kind], TINY)
        fits = at_most((with_buffer + self._of_mix(self.saved_bytes)) / least)
        if not self._every.all():
            fits = np.where(self._every, fits, self._partly(plain, best, with_buffer))
        # A rank without blocks recomputes none and needs no buffer for it.
        fits = np.where((self.mixed == 0) & (room >= 0), np.maximum(fits, 0.0), fits)
        if self._any_free:
            fits = np.where(self._free, np.maximum(fits, self.unaided), fits)
            self._free_recompute(plain, with_buffer, best)
        self.ceiling = np.minimum(fits, self.most)
        self.ceiling = np.where(self.ceiling < self.fewest, NOT_HELD, self.ceiling)

    def _partly(self, plain: FloatArray, best: FloatArray, room: FloatArray) -> FloatArray:
        """Blocks that fit when at most ``high`` of them are recomputed."""
        high = np.where(self._every, 0.0, self.cases.high[:, None])
        # More blocks than are recomputed: the saving is that of ``high`` blocks.
        beyond = (room + high * best) / plain
        if not (high > 0).any():
            return at_most(beyond)
        # Fewer: every block is recomputed, and none keeps its activations.
        below = (room + self.mixed * best) / np.maximum(plain - best, TINY)
        return at_most(np.where((below + self.mixed < high) & (plain > best), below, beyond))

    def _free_recompute(self, plain: FloatArray, room: FloatArray, best: FloatArray) -> None:
        """Seconds of recomputation per byte that is missing, for the free cases."""
        again_s = self.floors.again_s.transpose(1, 0, 2)
        saves = self.saved_bytes > 0
        ratio = np.where(saves, again_s / np.where(saves, self.saved_bytes, 1.0), np.inf)
        ratio = self._over_mix(ratio, np.minimum)
        self._useful = np.isfinite(ratio)
        self._per_byte_s = np.where(self._useful, ratio, 0.0)
        self._room = room
        # With one kind alone on a rank, whole blocks are recomputed: round up.
        self._whole = (self.mixes.high.sum(axis=1)[:, None, None] == 0) & self._useful
        self._block_bytes = np.maximum(best, TINY)

    def _of_mix(self, value: FloatArray) -> FloatArray:
        """Add up a value per kind, (K, c, ...), over the blocks of each mix."""
        if len(value) == 1:
            return np.zeros((1, 1, 1))
        return np.tensordot(self.mixes.low, value, axes=(1, 0))

    def _over_mix(self, value: FloatArray, pick: np.ufunc) -> FloatArray:
        """Reduce a value per kind, (K, c, ...), over the kinds that are present beside each mix."""
        if len(value) == 1:
            return value
        return np.stack(
            [
                pick.reduce(value[(high > 0) | (np.arange(len(high)) == self._kind)], axis=0)
                for high in self.mixes.high
            ]
        )

    def held(self, slowest_s: FloatArray) -> FloatArray:
        """Return the largest number of counted blocks per (mix, case, rank) within ``slowest_s`` (c,)."""
        left = slowest_s[:, None] * (1 + SLACK) - self.base_s
        if self._all_free:
            count = self._held_free(left)
        else:
            count = self._held_counted(left)
            if self._any_free:
                count = np.where(self._free, self._held_free(left), count)
        np.minimum(count, self.ceiling, out=count)
        count[count < self.fewest] = NOT_HELD
        return count

    def _held_counted(self, left: FloatArray) -> FloatArray:
        if not self._counted:
            return at_most(left / self.layer_s)
        beyond = (left - self.low * self.again_s) / self.layer_s
        below = (left - self.mixed * self.again_s) / (self.layer_s + self.again_s)
        return at_most(np.where(below + self.mixed < self.low, below, beyond))

    def _held_free(self, left: FloatArray) -> FloatArray:
        unaided = np.minimum(at_most(left / self.layer_s), self.unaided)
        slope = self.layer_s + self._plain * self._per_byte_s
        room_s = np.where(self._per_byte_s > 0, self._room, 0.0) * self._per_byte_s
        aided = at_most((left + room_s) / slope)
        aided = np.minimum(aided, self.ceiling)
        # Rounding up to whole blocks may take one block more time than there is.
        late = aided * self.layer_s + self._recompute_s(aided) > left * (1 + SLACK)
        useful = self._useful & (aided > self.unaided)
        count: FloatArray = np.where(useful, np.maximum(unaided, aided - late), unaided)
        return count

    def _recompute_s(self, count: FloatArray) -> FloatArray:
        """Least recomputation of ``count`` blocks where it is free; whole blocks where only one kind is there."""
        missing = np.maximum(count * self._plain - self._room, 0.0)
        whole = np.ceil(missing / self._block_bytes * (1 - SLACK) - SLACK) * self.again_s
        again_s: FloatArray = np.where(self._whole, whole, missing * self._per_byte_s)
        return again_s

    def time_s(self, count: FloatArray) -> FloatArray:
        """Return the least seconds of ``count`` counted blocks beside each mix, (mix, case, rank)."""
        recompute = np.minimum(self.low, count + self.mixed) * self.again_s
        if self._any_free:
            free = np.where(count > self.unaided, self._recompute_s(count), 0.0)
            recompute = np.where(self._free, free, recompute)
        time_s: FloatArray = self.base_s + count * self.layer_s + recompute
        return time_s

    def next_time_s(self, held: FloatArray) -> FloatArray:
        """Return the least time (c,) at which some rank can hold more than ``held``; inf when none ever can."""
        # A rank that holds nothing yet begins with the fewest it must hold.
        more = np.where(held < 0, self.fewest, held + 1)
        time_s: FloatArray = np.where(more <= self.ceiling, self.time_s(more), np.inf).min(axis=(0, 2))
        return time_s


_BY_CASE = ("real", "room_bytes", "_every", "_free", "layer_s", "low", "_plain")
_BY_MIX = (
    "held_bytes", "saved_bytes", "fewest", "most", "base_s", "least_s", "again_s", "_with_block_s", "unaided", "ceiling",
)  # fmt: skip
_BY_MIX_FREE = ("_useful", "_per_byte_s", "_room", "_whole", "_block_bytes")
"""Arrays with the cases on their first axis, on their second one, and of these what only free cases have."""
_OF_MIX = ("mixed", "fewest", "most", "base_s", "again_s", "unaided", "ceiling")
"""Arrays with the mixes on their first axis, not the kinds, beside those of free cases."""
