"""Exclude a tuple without a solver: enumerate what its ranks may hold, and keep what no known path makes too slow.

Chunks of a rank are balanced, so that a rank's blocks decide its chunks; every path through the schedule is a sum over
ranks. Rank by rank, partial choices stay alive as long as all paths, completed by the least that the other ranks can add,
are below the wanted step time. What is left at the end is priced exactly; its longest paths join the pool, and the
enumeration is repeated until nothing is left (proven: no stages are faster) or something really is faster.
Choices are a superset of those of every stage rule, so that exclusion is sound for all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.terms import price_stages
from layoutopt.optimizer.frameworks.stage_rule import Split
from layoutopt.optimizer.solve.search.rank_options import Options, Ranks

if TYPE_CHECKING:
    from collections.abc import Callable

    from layoutopt.optimizer.cost.terms import FloatArray, IntArray, StageTerms
    from layoutopt.optimizer.frameworks.stage_rule import StageRule
    from layoutopt.optimizer.solve.model.paths import Paths

    Accept = Callable[[IntArray, IntArray, float], bool]

MOST_STATES = 40_000
"""Partial choices of stages kept at once; a tuple that needs more is left to the solver."""

AT_FIRST = 1_000
"""Partial choices before stages are constructed to compare with: most tuples need no more."""

ROUNDS = 24
"""Times that new paths are learned before a tuple is left to the solver."""

PRICED = 4
"""Choices that are priced exactly in one round."""

FEW_STATES = 256
"""Partial choices that are not compared with each other: less work than it takes to thin them out."""

LEADERS = 64
"""Choices with equally many blocks that the others are compared with: enough to thin them out."""


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
    most_states: int = MOST_STATES,
) -> Enumerated:
    """Look for the fastest stages of a tuple (a batch of one) below ``below_s`` seconds, to within ``rounding_s``.

    ``accept`` judges blocks and recomputed blocks of every rank (1, P, K) with their step by what the question demands.
    ``reached`` tells whether a layout with that step time is known, so that one as fast is not looked for.
    With more than ``most_states`` partial choices at once it is given up.
    Only models of one kind of block and pipelines that are not folded are decided.
    """
    ranks = _ranks(terms, counts, rule, below_s)
    if ranks is None:
        return Enumerated(proven=False, step_s=below_s)
    room = ((0, 0), (0, terms.in_flight.shape[1] - int(terms.pp[0])), (0, 0))

    def padded(held: IntArray, again: IntArray, step_s: float) -> bool:
        return accept is None or accept(np.pad(held, room), np.pad(again, room), step_s)

    search = _Search(ranks, paths, rounding_s, below_s, reached, padded, most_states)
    proven = search.run()
    return Enumerated(proven=proven, step_s=search.best_s, blocks=search.blocks, recomputed=search.recomputed)


def _ranks(terms: StageTerms, counts: IntArray, rule: StageRule, below_s: float) -> Ranks | None:
    """Return the ranks of a tuple whose stages can be enumerated."""
    kinds, ranks = np.flatnonzero(counts), int(terms.pp[0])
    if len(kinds) != 1 or terms.folded[0] or not np.isfinite(below_s) or ranks < 2:
        return None
    terms = replace(terms, in_flight=terms.in_flight[:, :ranks])
    return Ranks(terms=terms, counts=counts, kind=int(kinds[0]), rule=rule)


class _Search:
    """The enumeration of one tuple; ``best_s`` is the wanted step time, then that of the best choice found."""

    def __init__(
        self,
        ranks: Ranks,
        paths: Paths,
        rounding_s: float,
        below_s: float,
        reached: bool,
        accept: Accept,
        most_states: int,
    ) -> None:
        self.ranks, self.terms, self.paths = ranks, ranks.terms, paths
        self.rounding_s, self.best_s, self.reached = rounding_s, below_s, reached
        self.accept, self.most_states = accept, most_states
        self.blocks: IntArray | None = None
        self.recomputed: IntArray | None = None

    def run(self) -> bool:
        """Try every way of recomputing; tell whether all of them were decided."""
        others, most = self.ranks.numbers()
        for number in others:
            if not self._decided(number):
                return False
            if self._last(number):
                return True
        return self._decided(most)

    @property
    def _wanted_s(self) -> float:
        """Step time below which choices are kept: better than a known layout by more than rounding, or just as asked."""
        return self.best_s - (self.rounding_s if self.reached or self.blocks is not None else 0.0)

    def _last(self, number: int) -> bool:
        """Whether larger numbers of recomputed blocks bring nothing new.

        They take no less time than this one and no less memory than recomputing everything: what some path rules out even
        so is out. Where no stage that is left holds more than ``number`` blocks they are all the same, and where
        all that is left fits with this number they only take longer.
        """
        slowest = self.ranks.options(number, self._wanted_s, memory=False)
        if slowest is None:
            return True
        left = []
        for rank, option in enumerate(slowest):
            everything = Options(option.sizes, option.sizes)
            left.append(option.take(self.ranks.fits(everything, rank)))
        if any(not len(option.sizes) for option in left):
            return True
        if all(self.ranks.fits(option, rank).all() for rank, option in enumerate(left)):
            return True
        useful = _Choices(self.ranks, left, self.paths, self._wanted_s).useful
        return useful is None or max(int(option.sizes.max()) for option in useful) <= number

    def _decided(self, number: int | None) -> bool:
        for _ in range(ROUNDS):
            options = self.ranks.options(number, self._wanted_s)
            if options is None:
                return True
            left = _Choices(self.ranks, options, self.paths, self._wanted_s)
            listed = left.survivors(self.most_states)
            if listed is None:
                return False
            if not len(listed):
                return True
            if not self._learned(left, listed):
                return False
        return False

    def _learned(self, left: _Choices, listed: IntArray) -> bool:
        """Price the likeliest choices exactly; tell whether a better choice or a new path came of it."""
        before, better = self.paths.number(self.terms, 0), False
        blocks, recomputed = left.stages(listed[:PRICED])
        for place, step in enumerate(self.paths.prices(self.terms, 0, blocks, recomputed).tolist()):
            if step >= self.best_s:
                continue
            if not self._allowed(blocks[place], recomputed[place], step):
                return False
            self.best_s, self.blocks, self.recomputed = step, blocks[place], recomputed[place]
            better = True
        return better or self.paths.number(self.terms, 0) > before

    def _allowed(self, blocks: IntArray, recomputed: IntArray, step_s: float) -> bool:
        """Whether a choice is one of the rule's and really fits; what is not is left to the solver."""
        if self.ranks.rule.split is not Split.FREE:
            return False
        held, again = blocks.sum(axis=0)[None], recomputed.sum(axis=0)[None]
        if not price_stages(self.terms, held, again).fits[0]:
            return False
        return self.accept(held, again, step_s)


class _Choices:
    """The choices that every rank has at one number of recomputed blocks, and the paths that limit them.

    Blocks are counted from the fewest that a rank may hold: ``spare`` is what is left to hand out. ``useful`` are
    the options that each path alone leaves room for; None where some rank has none.
    """

    def __init__(self, ranks: Ranks, options: list[Options], paths: Paths, below_s: float) -> None:
        self.ranks = ranks
        self._weights = _weights(ranks.terms, ranks.kind, paths)
        self._room = below_s - self._weights[2]
        self.useful: list[Options] | None = options
        while self.useful is not None:  # fewer options leave the others less room
            before = sum(len(option.sizes) for option in self.useful)
            self.useful = self._useful(self.useful) if self._count(self.useful) else None
            if self.useful is None or sum(len(option.sizes) for option in self.useful) == before:
                break

    def _count(self, options: list[Options]) -> bool:
        """Work out what the options hold and add to every path; tell whether they hold no more than there is."""
        block, again, _ = self._weights
        held = [option.blocks for option in options]
        self.spare = self.ranks.total - int(sum(blocks.min() for blocks in held))
        if self.spare < 0:
            return False
        self._held = [blocks - blocks.min() for blocks in held]
        self._costs = [
            _costs(option, block[:, :, rank], again[:, :, rank]) for rank, option in enumerate(options)
        ]
        self._after = _least_sums(self._held[::-1], self._costs[::-1], self.spare)[::-1]
        return True

    def _useful(self, options: list[Options]) -> list[Options] | None:
        """Return the options that each path alone leaves room for, with some number of blocks before them."""
        before, found = _least_sums(self._held, self._costs, self.spare), []
        for rank, (numbers, cost) in enumerate(zip(self._held, self._costs, strict=True)):
            reach = np.flatnonzero(np.isfinite(before[rank][:, 0]))
            rest = self.spare - reach[None] - numbers[:, None]
            least = before[rank][reach][None] + self._after[rank + 1][np.maximum(rest, 0)] + cost[:, None]
            open_ = ((rest >= 0) & (least < self._room).all(axis=2)).any(axis=1)
            if not open_.any():
                return None
            found.append(options[rank].take(open_))
        return found

    def survivors(self, most: int) -> IntArray | None:
        """Return the choices, (n, P) options of every rank, that all known paths allow; None if over ``most``."""
        if self.useful is None:
            return np.zeros((0, 0), dtype=np.int64)
        used, spent = np.zeros(1, dtype=np.int64), np.zeros((1, len(self._room)))
        chosen = np.zeros((1, 0), dtype=np.int64)
        for rank, (numbers, cost) in enumerate(zip(self._held, self._costs, strict=True)):
            grown = used[:, None] + numbers
            state, choice = np.nonzero(grown <= self.spare)
            used = grown[state, choice]
            total = spent[state] + cost[choice]
            alive = (total + self._after[rank + 1][self.spare - used] < self._room).all(axis=1)
            used, spent = used[alive], total[alive]
            chosen = np.concatenate([chosen[state[alive]], choice[alive][:, None]], axis=1)
            if len(used) > FEW_STATES:
                kept = _undominated(used, spent)
                used, spent, chosen = used[kept], spent[kept], chosen[kept]
            if len(used) > most:
                return None
        return chosen[np.argsort((spent - self._room).max(axis=1), kind="stable")]

    def stages(self, listed: IntArray) -> tuple[IntArray, IntArray]:
        """Return blocks and recomputed blocks (n, V, P, K) of choices."""
        assert self.useful is not None
        terms = self.ranks.terms
        shape = (len(listed), int(terms.vp[0]), len(self.useful), terms.layer_s.shape[1])
        blocks, recomputed = (np.zeros(shape, dtype=np.int64) for _ in range(2))
        for rank, option in enumerate(self.useful):
            sizes, again = option.sizes[listed[:, rank]], option.recomputed[listed[:, rank]]
            blocks[:, :, rank, self.ranks.kind] = sizes
            recomputed[:, :, rank, self.ranks.kind] = _spread(again, sizes) if option.free else again
        return blocks, recomputed


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


def _costs(option: Options, block: FloatArray, again: FloatArray) -> FloatArray:
    """Return the seconds that a rank's options add to every path, (o, Q); free recomputation takes the cheapest chunk."""
    spent = option.sizes @ block.T
    if option.free:
        spent = spent + option.recomputed.sum(axis=1)[:, None] * again.min(axis=1)
    elif option.recomputed.any():
        spent = spent + option.recomputed @ again.T
    result: FloatArray = spent
    return result


def _least_sums(held: list[IntArray], costs: list[FloatArray], spare: int) -> list[FloatArray]:
    """Return the least seconds (spare + 1, Q) of every path over the first r ranks that hold exactly so many blocks."""
    paths = costs[0].shape[1]
    least = np.full((spare + 1, paths), np.inf)
    least[0] = 0.0
    found = [least]
    for numbers, cost in zip(held, costs, strict=True):
        best = np.full((spare + 1, paths), np.inf)
        for number, own in zip(numbers.tolist(), cost, strict=True):
            np.minimum(best[number:], found[-1][: spare + 1 - number] + own, out=best[number:])
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


def _spread(recomputed: IntArray, sizes: IntArray) -> IntArray:
    """Put recomputed blocks that column 0 counts for all chunks, (n, V), into chunks that have room."""
    before = np.cumsum(sizes, axis=1) - sizes
    result: IntArray = np.clip(recomputed.sum(axis=1, keepdims=True) - before, 0, sizes)
    return result
