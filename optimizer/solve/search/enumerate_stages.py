"""Exclude a tuple without a solver: enumerate what its ranks may hold, and keep what no known path makes too slow.

Chunks of a rank are balanced, so that a rank's blocks decide its chunks; every path through the schedule is a sum over
ranks. Rank by rank, partial choices stay alive as long as all paths, completed by the least that the other ranks can add,
are below the wanted step time. What is left at the end is priced exactly; its longest paths join the pool, and the
enumeration is repeated until nothing is left (proven: no stages are faster) or something really is faster.
Choices are a superset of those of every stage rule, so that exclusion is sound for all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.terms import price_stages
from layoutopt.optimizer.frameworks.stage_rule import Recomputation, Split

if TYPE_CHECKING:
    from collections.abc import Callable

    from layoutopt.optimizer.cost.terms import FloatArray, IntArray, StageTerms
    from layoutopt.optimizer.frameworks.stage_rule import StageRule
    from layoutopt.optimizer.solve.model.paths import Paths

    Accept = Callable[[IntArray, IntArray, float], bool]

MOST_STATES = 40_000
"""Partial choices of stages kept at once; a tuple that needs more is left to the solver."""

ROUNDS = 24
"""Times that new paths are learned before a tuple is left to the solver."""

PRICED = 4
"""Choices that are priced exactly in one round."""


@dataclass(frozen=True, slots=True)
class _Options:
    """What one rank may hold: blocks and recomputed blocks of its chunks, (o, V) each."""

    sizes: IntArray
    recomputed: IntArray

    @property
    def blocks(self) -> IntArray:
        """Blocks of the rank, (o,)."""
        total: IntArray = self.sizes.sum(axis=1)
        return total


@dataclass(frozen=True, slots=True, kw_only=True)
class Enumerated:
    """What enumerating a tuple's stages showed.

    ``proven``: no stages are faster than ``blocks`` and ``recomputed`` (V, P, K) with their exact ``step_s`` or, without
    any, than what was asked for. Not proven: the enumeration grew too large, or a faster choice is none of the rule's.
    """

    proven: bool
    step_s: float
    blocks: IntArray | None = None
    recomputed: IntArray | None = None


def fastest_stages(
    terms: StageTerms,
    counts: IntArray,
    rule: StageRule,
    paths: Paths,
    below_s: float,
    rounding_s: float,
    *,
    reached: bool = True,
    accept: Accept | None = None,
) -> Enumerated:
    """Look for the fastest stages of a tuple (a batch of one) below ``below_s`` seconds, to within ``rounding_s``.

    ``accept`` judges blocks and recomputed blocks of every rank (1, P, K) with their step by what the question demands.
    ``reached`` tells whether a layout with that step time is known, so that one as fast is not looked for.
    Only models of one kind of block and pipelines that are not folded are decided.
    """
    kinds = np.flatnonzero(counts)
    if len(kinds) != 1 or terms.folded[0] or not np.isfinite(below_s) or int(terms.pp[0]) < 2:
        return Enumerated(proven=False, step_s=below_s)
    search = _Search(
        terms, int(kinds[0]), int(counts[kinds[0]]), rule, paths, rounding_s, below_s, reached, accept
    )
    proven = search.run()
    return Enumerated(proven=proven, step_s=search.best_s, blocks=search.blocks, recomputed=search.recomputed)


class _Search:
    """The enumeration of one tuple; ``best_s`` is the wanted step time, then that of the best choice found."""

    def __init__(
        self,
        terms: StageTerms,
        kind: int,
        total: int,
        rule: StageRule,
        paths: Paths,
        rounding_s: float,
        below_s: float,
        reached: bool,
        accept: Accept | None,
    ) -> None:
        self.terms, self.kind, self.total, self.rule, self.paths = terms, kind, total, rule, paths
        self.rounding_s, self.best_s, self.reached = rounding_s, below_s, reached
        self.accept = accept
        self.blocks: IntArray | None = None
        self.recomputed: IntArray | None = None

    def run(self) -> bool:
        """Try every way of recomputing; tell whether all of them were decided."""
        for count in self._counts():
            if not self._decided(count):
                return False
            if count is not None and self._last(count):
                return True
        return True

    def _counts(self) -> list[int | None]:
        """Return the numbers of recomputed blocks per stage to try; None: each rank as many as its memory asks for."""
        if not self.terms.may_recompute[0]:
            return [0]
        if self.rule.recomputation is Recomputation.PER_RANK:
            return [None]
        if self.rule.recomputation is Recomputation.ALL_OR_NONE:
            return [0, self.total]
        return list(range(self.total + 1))

    def _options(self, count: int | None, *, memory: bool) -> list[_Options]:
        ranks = range(int(self.terms.pp[0]))
        options = [
            _rank_options(self.terms, self.kind, self.total, count, rank, memory=memory) for rank in ranks
        ]
        for limit in self.rule.limits:
            rank = limit.rank if limit.rank >= 0 else len(options) + limit.rank
            if 0 <= rank < len(options):
                held = options[rank].blocks
                within = (limit.fewest <= held) & (held <= limit.most)
                options[rank] = _Options(options[rank].sizes[within], options[rank].recomputed[within])
        return options

    def _left(self, options: list[_Options]) -> IntArray | None:
        if any(not len(option.sizes) for option in options):
            return np.zeros((0, len(options)), dtype=np.int64)
        return _survivors(self.terms, self.kind, self.total, options, self.paths, self._wanted_s)

    @property
    def _wanted_s(self) -> float:
        """Step time below which choices are kept: better than a known layout by more than rounding, or just as asked."""
        return self.best_s - (self.rounding_s if self.reached or self.blocks is not None else 0.0)

    def _last(self, count: int) -> bool:
        """Whether larger numbers of recomputed blocks bring nothing new.

        They take no less time than this one and no less memory than recomputing everything: what some path rules out even
        so is out, and where no stage that is left holds more than ``count`` blocks they are all the same.
        """
        slowest = self._options(count, memory=False)
        roomiest = self._options(self.total, memory=True)
        if any(not len(option.sizes) for option in roomiest):
            return True
        useful = _useful_options(self.terms, self.kind, self.total, slowest, self.paths, self._wanted_s)
        left = [
            option.sizes[index][np.isin(option.blocks[index], roomy.blocks)]
            for option, index, roomy in zip(slowest, useful, roomiest, strict=True)
        ]
        return any(not len(sizes) for sizes in left) or max(int(sizes.max()) for sizes in left) <= count

    def _decided(self, count: int | None) -> bool:
        options = self._options(count, memory=True)
        for _ in range(ROUNDS):
            left = self._left(options)
            if left is None:
                return False
            if not len(left):
                return True
            if not self._learned(options, left):
                return False
        return False

    def _learned(self, options: list[_Options], left: IntArray) -> bool:
        """Price the likeliest choices exactly; tell whether a better choice or a new path came of it."""
        before, better = len(self.paths.of(self.terms, 0)), False
        for choice in left[:PRICED]:
            blocks, recomputed = self._stages(options, choice)
            step, _ = self.paths.price(self.terms, 0, blocks, recomputed)
            if step >= self.best_s:
                continue
            if not self._allowed(blocks, recomputed, step):
                return False
            self.best_s, self.blocks, self.recomputed, better = step, blocks, recomputed, True
        return better or len(self.paths.of(self.terms, 0)) > before

    def _stages(self, options: list[_Options], choice: IntArray) -> tuple[IntArray, IntArray]:
        chunks, ranks, kinds = int(self.terms.vp[0]), len(options), self.terms.layer_s.shape[1]
        blocks, recomputed = (np.zeros((chunks, ranks, kinds), dtype=np.int64) for _ in range(2))
        for rank, place in enumerate(choice.tolist()):
            blocks[:, rank, self.kind] = options[rank].sizes[place]
            recomputed[:, rank, self.kind] = _spread(
                options[rank].recomputed[place], options[rank].sizes[place]
            )
        return blocks, recomputed

    def _allowed(self, blocks: IntArray, recomputed: IntArray, step_s: float) -> bool:
        """Whether a choice is one of the rule's and really fits; what is not is left to the solver."""
        if self.rule.split is not Split.FREE:
            return False
        held, again = self._padded(blocks), self._padded(recomputed)
        if not price_stages(self.terms, held, again).fits[0]:
            return False
        return self.accept is None or self.accept(held, again, step_s)

    def _padded(self, held: IntArray) -> IntArray:
        room = self.terms.in_flight.shape[1] - held.shape[1]
        return np.pad(held.sum(axis=0), ((0, room), (0, 0)))[None]


def _rank_options(
    terms: StageTerms, kind: int, blocks: int, count: int | None, rank: int, *, memory: bool
) -> _Options:
    """List what a rank may hold: balanced chunks, smaller ones first; the ends any fewer and at most one more."""
    chunks, ranks = int(terms.vp[0]), int(terms.pp[0])
    sizes = _inner_sizes(chunks - (rank in (0, ranks - 1)), blocks)
    if rank in (0, ranks - 1):
        sizes = _with_end(sizes, chunks, blocks, first=rank == 0)
    sizes = sizes[sizes.sum(axis=1) <= blocks]
    if count is None:
        return _least_recomputed(terms, kind, sizes, rank)
    recomputed = np.minimum(sizes, count)
    if memory:
        fits = _bytes(terms, kind, sizes.sum(axis=1), recomputed.sum(axis=1), rank) <= _capacity(terms)
        sizes, recomputed = sizes[fits], recomputed[fits]
    return _Options(sizes, recomputed)


def _inner_sizes(chunks: int, blocks: int) -> IntArray:
    """Return balanced chunks (o, chunks) of every total, at least one block each."""
    totals = np.arange(chunks, blocks + 1) if chunks else np.zeros(1, dtype=np.int64)
    least, larger = np.divmod(totals, max(chunks, 1))
    sizes: IntArray = least[:, None] + (np.arange(chunks) >= chunks - larger[:, None])
    return sizes


def _with_end(inner: IntArray, chunks: int, blocks: int, *, first: bool) -> IntArray:
    """Add the first or the last stage of the model, which may hold any fewer and at most one more than the least other."""
    if chunks == 1:
        return np.arange(blocks + 1)[:, None]
    most = inner.min(axis=1) + 1
    rows = np.repeat(np.arange(len(inner)), most + 1)
    end = np.concatenate([np.arange(limit + 1) for limit in most])
    parts = (end[:, None], inner[rows]) if first else (inner[rows], end[:, None])
    return np.concatenate(parts, axis=1)


def _least_recomputed(terms: StageTerms, kind: int, sizes: IntArray, rank: int) -> _Options:
    """Recompute as many blocks as the memory asks for; which chunks they are in is left open (total in column 0)."""
    total = sizes.sum(axis=1)
    again = np.zeros_like(total)
    over = _bytes(terms, kind, total, again, rank) - _capacity(terms)
    saved = terms.in_flight[0, rank] * (
        terms.layer_activation_bytes[0, kind] - terms.recomputed_activation_bytes[0, kind]
    )
    short = np.flatnonzero(over > 0)
    if len(short) and saved > 0:
        # One fewer than the quotient says is still an option: rounding must not cost a choice that fits.
        need = np.ceil((over[short] + terms.recompute_transient_bytes[0]) / saved - 1e-9)
        again[short] = np.maximum(np.minimum(need, total[short] + 1), 1).astype(np.int64)
    fits = (over <= 0) | ((again > 0) & (again <= total))
    recomputed = np.zeros_like(sizes)
    recomputed[:, 0] = again
    return _Options(sizes[fits], recomputed[fits])


def _bytes(terms: StageTerms, kind: int, blocks: IntArray, recomputed: IntArray, rank: int) -> FloatArray:
    """Return the bytes of a rank, as ``price_stages`` adds them up."""
    saved = terms.layer_activation_bytes[0, kind] - terms.recomputed_activation_bytes[0, kind]
    held = blocks * terms.layer_activation_bytes[0, kind] - recomputed * saved
    used = blocks * terms.layer_state_bytes[0, kind] + terms.in_flight[0, rank] * held + terms.common_bytes[0]
    used = used + (recomputed > 0) * terms.recompute_transient_bytes[0]
    ends = (terms.first_bytes[0] if rank == 0 else 0.0) + (
        terms.last_bytes[0] if rank == int(terms.pp[0]) - 1 else 0.0
    )
    result: FloatArray = used + ends
    return result


def _capacity(terms: StageTerms) -> float:
    return float(terms.capacity_bytes[0]) * (1 + 1e-12)


def _weights(terms: StageTerms, kind: int, paths: Paths) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return of every known path the seconds of a block and of recomputing one, (Q, V, P), and the constant (Q,).

    The first path is none: it takes no time and is always short enough, so that its least time says what can be completed.
    """
    forms = paths.of(terms, 0)
    nothing = np.zeros((1, int(terms.vp[0]), int(terms.pp[0])))
    block = [nothing, *(form.block_s(terms)[:, :, :, kind] for form in forms)]
    again = [nothing, *(form.again_s(terms)[:, :, :, kind] for form in forms)]
    constant = [-np.inf, *(form.constant_s(terms)[0] for form in forms)]
    return np.concatenate(block), np.concatenate(again), np.array(constant)


def _survivors(
    terms: StageTerms,
    kind: int,
    blocks: int,
    options: list[_Options],
    paths: Paths,
    below_s: float,
) -> IntArray | None:
    """Return the choices, (n, P) options of every rank, that all known paths allow; None where there are too many."""
    block, again, constant = _weights(terms, kind, paths)
    free = terms.may_recompute[0] and any((option.recomputed[:, 1:] == 0).all() for option in options)
    costs = [
        _costs(option, block[:, :, rank], again[:, :, rank], free=bool(free))
        for rank, option in enumerate(options)
    ]
    room = below_s - constant
    useful = _useful(options, costs, blocks, room)
    if any(not len(index) for index in useful):
        return np.zeros((0, len(options)), dtype=np.int64)
    held = [option.blocks[index] for option, index in zip(options, useful, strict=True)]
    costs = [cost[index] for cost, index in zip(costs, useful, strict=True)]
    after = _least_sums(held[::-1], costs[::-1], blocks)[::-1]
    used, spent = np.zeros(1, dtype=np.int64), np.zeros((1, len(constant)))
    chosen = np.zeros((1, 0), dtype=np.int64)
    for rank, (numbers, cost) in enumerate(zip(held, costs, strict=True)):
        grown = used[:, None] + numbers
        least = after[rank + 1][np.clip(blocks - grown, 0, blocks)]
        total = spent[:, None] + cost[None]
        alive = (grown <= blocks) & (total + least < room).all(axis=2)
        state, choice = np.nonzero(alive)
        if not len(state):
            return np.zeros((0, len(options)), dtype=np.int64)
        used, spent = grown[state, choice], total[state, choice]
        chosen = np.concatenate([chosen[state], useful[rank][choice][:, None]], axis=1)
        kept = _undominated(used, spent)
        used, spent, chosen = used[kept], spent[kept], chosen[kept]
        if len(used) > MOST_STATES:
            return None
    return chosen[np.argsort((spent - room).max(axis=1), kind="stable")]


def _useful_options(
    terms: StageTerms, kind: int, blocks: int, options: list[_Options], paths: Paths, below_s: float
) -> list[IntArray]:
    """Return the options of every rank that each known path alone leaves room for."""
    block, again, constant = _weights(terms, kind, paths)
    costs = [
        _costs(option, block[:, :, rank], again[:, :, rank], free=False)
        for rank, option in enumerate(options)
    ]
    return _useful(options, costs, blocks, below_s - constant)


def _useful(
    options: list[_Options], costs: list[FloatArray], blocks: int, room: FloatArray
) -> list[IntArray]:
    """Return the options of every rank that each path alone leaves room for, with some number of blocks before it."""
    held = [option.blocks for option in options]
    before = _least_sums(held, costs, blocks)
    after = _least_sums(held[::-1], costs[::-1], blocks)[::-1]
    found = []
    for rank, (numbers, cost) in enumerate(zip(held, costs, strict=True)):
        reach = np.flatnonzero(np.isfinite(before[rank][:, 0]))
        rest = blocks - reach[None] - numbers[:, None]
        least = before[rank][reach][None] + after[rank + 1][np.clip(rest, 0, blocks)] + cost[:, None]
        found.append(np.flatnonzero(((rest >= 0) & (least < room).all(axis=2)).any(axis=1)))
    return found


def _costs(option: _Options, block: FloatArray, again: FloatArray, *, free: bool) -> FloatArray:
    """Return the seconds that a rank's options add to every path, (o, Q); free recomputation takes the cheapest chunk."""
    spent = option.sizes @ block.T
    if free:
        spent = spent + option.recomputed.sum(axis=1)[:, None] * again.min(axis=1)
    else:
        spent = spent + option.recomputed @ again.T
    result: FloatArray = spent
    return result


def _least_sums(held: list[IntArray], costs: list[FloatArray], blocks: int) -> list[FloatArray]:
    """Return the least seconds (blocks + 1, Q) of every path over the first r ranks that hold exactly so many blocks."""
    paths = costs[0].shape[1]
    least = np.full((blocks + 1, paths), np.inf)
    least[0] = 0.0
    found = [least]
    for numbers, cost in zip(held, costs, strict=True):
        cheapest = np.full((blocks + 1, paths), np.inf)
        np.minimum.at(cheapest, numbers, cost)
        best = np.full((blocks + 1, paths), np.inf)
        for number in np.unique(numbers).tolist():
            best[number:] = np.minimum(best[number:], cheapest[number] + found[-1][: blocks + 1 - number])
        found.append(best)
    return found


def _undominated(used: IntArray, spent: FloatArray) -> IntArray:
    """Return choices, but for some of which another holds as many blocks with no path longer."""
    order = np.lexsort((spent.max(axis=1), used))
    used, spent = used[order], spent[order]
    kept = np.ones(len(used), dtype=bool)
    starts = np.flatnonzero(np.concatenate([[True], used[1:] != used[:-1]]))
    for start, stop in zip(starts.tolist(), [*starts[1:].tolist(), len(used)], strict=True):
        for leader in range(start, min(stop, start + LEADERS)):
            if kept[leader]:
                later = slice(leader + 1, stop)
                kept[later] &= ~(spent[leader] <= spent[later]).all(axis=1)
    result: IntArray = order[kept]
    return result


LEADERS = 64
"""Choices with equally many blocks that the others are compared with: enough to thin them out."""


def _spread(recomputed: IntArray, sizes: IntArray) -> IntArray:
    """Put recomputed blocks that column 0 counts for all chunks into chunks that have room."""
    if (recomputed <= sizes).all():
        return recomputed
    before = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    result: IntArray = np.clip(recomputed.sum() - before, 0, sizes)
    return result
