"""Exclude a tuple without a solver: enumerate what its ranks may hold, and keep what no known path makes too slow.

Chunks of a rank are balanced, so that a rank's blocks decide its chunks, and where it starts decides the kinds of its
first; every path through the schedule is a sum over ranks. Rank by rank, partial choices stay alive as long as all paths,
completed by the least that the other ranks can add, are below the wanted step time. What is left at the end is priced
exactly; its longest paths join the pool, and the enumeration is repeated until nothing is left (proven: no stages are
faster) or something really is faster.
Choices are a superset of those of every stage rule, so that exclusion is sound for all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.terms import price_stages
from layoutopt.optimizer.frameworks.stage_rule import Split
from layoutopt.optimizer.solve.search.chunk_sizes import Unlisted
from layoutopt.optimizer.solve.search.places import ways_from
from layoutopt.optimizer.solve.search.rank_options import Options, Ranks

if TYPE_CHECKING:
    from collections.abc import Callable

    from layoutopt.optimizer.cost.terms import FloatArray, IntArray, StageTerms
    from layoutopt.optimizer.frameworks.stage_rule import StageRule
    from layoutopt.optimizer.solve.model.paths import Paths
    from layoutopt.optimizer.solve.search.demands import StageDemand

    Accept = Callable[[IntArray, IntArray, float], bool]

MOST_STATES = 40_000
"""Partial choices of stages kept at once; a tuple that needs more is left to the solver."""

AT_FIRST = 1_000
"""Partial choices before stages are constructed to compare with: most tuples need no more."""

ROUNDS = 24
"""Times that new paths are learned before a tuple is left to the solver."""

PRICED = 4
"""Choices that are priced exactly in one round."""

BEAMS = 4
"""Numbers of recomputed blocks that a beam tries, from the fewest that fit: more of them take longer."""

WIDEST = 64
"""Ways out of a state on average at most; a tuple with more is given up before they are listed."""

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


def never() -> bool:
    """Stop nothing."""
    return False


def fastest_stages(
    terms: StageTerms,
    counts: IntArray,
    rule: StageRule,
    paths: Paths,
    below_s: float,
    rounding_s: float,
    *,
    reached: bool = True,
    demands: tuple[StageDemand, ...] = (),
    accept: Accept | None = None,
    most_states: int = MOST_STATES,
    beam: bool = False,
    stopped: Callable[[], bool] = never,
) -> Enumerated:
    """Look for the fastest stages of a tuple (a batch of one) below ``below_s`` seconds, to within ``rounding_s``.

    ``accept`` judges blocks and recomputed blocks of every rank (1, P, K) with their step by what the question demands.
    ``reached`` tells whether a layout with that step time is known, so that one as fast is not looked for.
    ``demands`` are those of the question that are sums over ranks.
    With more than ``most_states`` partial choices at once it is given up, or, as a ``beam``, only the likeliest are kept
    and the first that is accepted is the answer, without a proof. ``stopped`` is asked now and then whether to give up.
    """
    ranks = _ranks(terms, counts, rule, below_s)
    if ranks is None:
        return Enumerated(proven=False, step_s=below_s)
    ranks = replace(ranks, demands=demands)
    room = ((0, 0), (0, terms.in_flight.shape[1] - int(terms.pp[0])), (0, 0))

    def padded(held: IntArray, again: IntArray, step_s: float) -> bool:
        """Judge stages with empty ranks behind them, up to the P that the terms have."""
        return accept is None or accept(np.pad(held, room), np.pad(again, room), step_s)

    search = _Search(ranks, paths, rounding_s, below_s, reached, padded, most_states, stopped)
    proven = search.run_beam() if beam else search.run()
    return Enumerated(proven=proven, step_s=search.best_s, blocks=search.blocks, recomputed=search.recomputed)


def _ranks(terms: StageTerms, counts: IntArray, rule: StageRule, below_s: float) -> Ranks | None:
    """Return the ranks of a tuple whose stages can be enumerated."""
    ranks, folded = int(terms.pp[0]), bool(terms.folded[0])
    # Without a step to beat the choices are too many; limits of a user's stages are stated for unfolded
    # ranks.
    if not np.isfinite(below_s) or (folded and (ranks == 1 or rule.limits)):
        return None
    return Ranks(terms=replace(terms, in_flight=terms.in_flight[:, :ranks]), counts=counts, rule=rule)


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
        stopped: Callable[[], bool],
    ) -> None:
        self.stopped = stopped
        self.ranks, self.terms, self.paths = ranks, ranks.terms, paths
        self.rounding_s, self.best_s, self.reached = rounding_s, below_s, reached
        self.accept, self.most_states = accept, most_states
        self.blocks: IntArray | None = None
        self.recomputed: IntArray | None = None

    def run(self) -> bool:
        """Try every way of recomputing; tell whether all of them were decided."""
        others, most = self.ranks.numbers()
        try:
            # From few recomputed blocks to many: what fits with few needs no more.
            for number in others:
                if not self._decided(number):
                    return False
                if self._last(number):
                    return True
            return self._decided(most)
        except Unlisted:
            return False

    def run_beam(self) -> bool:
        """Take the first choice that is accepted, of those that look the best; nothing is proven."""
        others, most = self.ranks.numbers()
        tried = 0
        try:
            for number in (*others, most):
                if self.stopped() or tried == BEAMS:
                    break
                options = self.ranks.options(number, self._wanted_s)
                if options is None:
                    continue
                # Only a number with options was a try.
                tried += 1
                left = _Choices(self.ranks, options, self.paths, self._wanted_s)
                listed = left.survivors(self.most_states, beam=True)
                if listed is not None and len(listed):
                    self._learned(left, listed)
                if self.blocks is not None:
                    break
        except Unlisted:
            pass
        return False

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
            everything = replace(option, recomputed=option.blocks)
            left.append(option.take(self.ranks.fits(everything, rank)))
        # Not even with everything recomputed does some rank hold what it must.
        if any(not len(option) for option in left):
            return True
        # A demand on recomputed blocks may ask for more of them, so that it excludes nothing here.
        undemanding = replace(self.ranks, demands=())
        if not any(demand.recomputed.any() for demand in self.ranks.demands):
            undemanding = self.ranks
            if all(self.ranks.fits(option, rank).all() for rank, option in enumerate(left)):
                return True
        return _Choices(undemanding, left, self.paths, self._wanted_s).largest() <= number

    def _decided(self, number: int | None) -> bool:
        for _ in range(ROUNDS):
            if self.stopped():
                return False
            options = self.ranks.options(number, self._wanted_s)
            if options is None:
                return True
            left = _Choices(self.ranks, options, self.paths, self._wanted_s)
            listed = left.survivors(self.most_states, stopped=self.stopped)
            if listed is None:
                return False
            if len(listed) and left.free:
                left = left.named(self.paths, self._wanted_s)
                listed = left.survivors(self.most_states, stopped=self.stopped)
            if listed is None:
                return False
            if not len(listed):
                return True
            # Neither a better choice nor a new path: the same choices would come again.
            if not self._learned(left, listed):
                return False
        return False

    def _learned(self, left: _Choices, listed: IntArray) -> bool:
        """Price the likeliest choices exactly; tell whether a better choice or a new path came of it."""
        before, better = self.paths.number(self.terms, 0), False
        blocks, recomputed = left.stages(listed[:PRICED])
        for place, step in enumerate(self.paths.prices(self.terms, 0, blocks, recomputed).tolist()):
            # The paths known so far thought it faster; pricing it has found the path that is longer.
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

    A walk from rank to rank: a state is how many blocks the ranks so far hold and where the next one's first chunk starts,
    a step takes one option of a rank. Steps stay as long as every path alone leaves room for them.
    """

    def __init__(self, ranks: Ranks, options: list[Options], paths: Paths, below_s: float) -> None:
        self.ranks, self.options, self._met = ranks, options, paths.met
        block, again, constant = _weights(ranks.terms, paths)
        self._room = np.concatenate([below_s - constant, [demand.room for demand in ranks.demands]])
        self._paths = len(constant)
        self._costs = [
            np.concatenate(
                [_costs(option, block[:, :, rank], again[:, :, rank]), ranks.demanded(option, rank)], axis=1
            )
            for rank, option in enumerate(options)
        ]
        self._steps = self._reachable()
        # A step that goes takes others with it: repeat until nothing changes.
        left = -1
        while self._steps and left != (left := sum(len(step) for step in self._steps)):
            self._steps = self._useful()

    @property
    def free(self) -> bool:
        """Whether it is open in which chunks blocks are recomputed, so that paths take the least that any chunk adds."""
        return any(option.free and option.recomputed.any() for option in self.options)

    def named(self, paths: Paths, below_s: float) -> _Choices:
        """Return the same choices with the chunks in which they recompute. Raises ``Unlisted``."""
        _, again, _ = _weights(self.ranks.terms, paths)
        options = [
            self.ranks.named(option.take(np.unique(step.choice)), again[:, :, rank])
            for rank, (option, step) in enumerate(zip(self.options, self._steps, strict=True))
        ]
        return _Choices(self.ranks, options, paths, below_s)

    def _reachable(self) -> list[_Steps]:
        """List the steps from every state that may be reached; none where the last rank does not complete the model."""
        ranks = self.ranks
        # A state is two numbers in one: blocks used times width, plus where the next rank starts.
        width = 1 + max(int(max(option.start.max(), option.stop.max())) for option in self.options)
        totals = [option.total for option in self.options]
        # What the ranks behind hold at least and at most decides which states can complete the model.
        least = np.cumsum([0, *(int(total.min()) for total in totals[::-1])])[-2::-1]
        most = np.cumsum([0, *(int(total.max()) for total in totals[::-1])])[-2::-1]
        states, steps = np.unique(self.options[0].start), []
        for rank, (option, total) in enumerate(zip(self.options, totals, strict=True)):
            used, start = np.divmod(states, width)
            source, choice = ways_from(start, option.start)
            grown = used[source] + total[choice]
            kept = (grown <= ranks.total - least[rank]) & (grown >= ranks.total - most[rank])
            if not kept.any():
                return []
            source, choice = source[kept], choice[kept]
            reached = grown[kept] * width + option.stop[choice]
            before, (states, target) = len(states), np.unique(reached, return_inverse=True)
            steps.append(_Steps(source, target, choice, before))
        return steps

    def _useful(self) -> list[_Steps]:
        """Keep the steps that no path makes too long; none where some rank has no step left."""
        after, found = self._least_after(), []
        before = np.zeros((self._steps[0].states, len(self._room)))
        for step, cost, least in zip(self._steps, self._costs, after[1:], strict=True):
            spent = before[step.source] + cost[step.choice]
            kept = np.flatnonzero(self._met(spent + least[step.target] < self._room, self.ranks.terms))
            if not len(kept):
                return []
            found.append(step.take(kept))
            before = _least(spent[kept], step.target[kept], len(least))
        return found

    def _least_after(self) -> list[FloatArray]:
        """Return the least seconds (states, Q) that every path still takes from the states before each rank and the last."""
        after = [np.zeros((1, len(self._room)))]
        for step, cost in zip(self._steps[::-1], self._costs[::-1], strict=True):
            spent = cost[step.choice] + after[-1][step.target]
            after.append(_least(spent, step.source, step.states))
        return after[::-1]

    def largest(self) -> int:
        """Return the blocks of the largest chunk that is left, 0 where nothing is."""
        parts = zip(self.options, self._steps, strict=False)
        return max((int(option.blocks[step.choice].sum(axis=2).max()) for option, step in parts), default=0)

    def survivors(
        self, most: int, *, beam: bool = False, stopped: Callable[[], bool] = never
    ) -> IntArray | None:
        """Return the choices, (n, P) options of every rank, that all known paths and demands allow, the likeliest first.

        None if over ``most`` or stopped; as a ``beam`` the likeliest of them are kept.
        """
        if not self._steps:
            return np.zeros((0, 0), dtype=np.int64)
        after = self._least_after()
        state = np.arange(self._steps[0].states)
        spent, chosen = np.zeros((len(state), len(self._room))), np.zeros((len(state), 0), dtype=np.int64)
        for step, cost, least in zip(self._steps, self._costs, after[1:], strict=True):
            bounds = np.searchsorted(step.source, np.arange(step.states + 1))
            ways = np.diff(bounds)[state]
            # Before the arrays are made, which would not fit.
            if ways.sum() > WIDEST * most or stopped():
                return None
            row = np.repeat(np.arange(len(state)), ways)
            way = np.arange(len(row)) - np.repeat(np.cumsum(ways) - ways, ways) + bounds[state[row]]
            total = spent[row] + cost[step.choice[way]]
            alive = self._met(total + least[step.target[way]] < self._room, self.ranks.terms)
            row, way, spent = row[alive], way[alive], total[alive]
            chosen = np.concatenate([chosen[row], step.choice[way][:, None]], axis=1)
            state = step.target[way]
            # Comparing few states costs more than carrying them on.
            if len(state) > FEW_STATES:
                kept = _undominated(state, spent)
                state, spent, chosen = state[kept], spent[kept], chosen[kept]
            if len(state) > most:
                if not beam:
                    return None
                likely = np.argsort(self._late(spent + least[state]), kind="stable")[:most]
                state, spent, chosen = state[likely], spent[likely], chosen[likely]
        return chosen[np.argsort(self._late(spent), kind="stable")]

    def _late(self, spent: FloatArray) -> FloatArray:
        """Return the most seconds (n,), of all paths, beyond what is wanted."""
        late: FloatArray = (spent - self._room)[:, : self._paths].max(axis=1)
        return late

    def stages(self, listed: IntArray) -> tuple[IntArray, IntArray]:
        """Return blocks and recomputed blocks (n, V, P, K) of choices."""
        held, again = [], []
        for rank, option in enumerate(self.options):
            blocks, recomputed = option.blocks[listed[:, rank]], option.recomputed[listed[:, rank]]
            held.append(blocks)
            again.append(_spread(recomputed, blocks) if option.free else recomputed)
        return np.stack(held, axis=2), np.stack(again, axis=2)


@dataclass(frozen=True, slots=True)
class _Steps:
    """The ways through one rank: from a state to a state by an option, (n,), sorted by which of ``states`` they leave."""

    source: IntArray
    target: IntArray
    choice: IntArray
    states: int

    def __len__(self) -> int:
        return len(self.source)

    def take(self, index: IntArray) -> _Steps:
        """Return the selected steps."""
        return _Steps(self.source[index], self.target[index], self.choice[index], self.states)


def _least(spent: FloatArray, state: IntArray, states: int) -> FloatArray:
    """Return the least seconds (states, Q) among those that belong to each state; inf where none do."""
    least = np.full((states, spent.shape[1]), np.inf)
    order = np.argsort(state, kind="stable")
    state = state[order]
    # reduceat takes runs: sort by state, and start one where the state changes.
    new = np.ones(len(state), dtype=bool)
    np.not_equal(state[1:], state[:-1], out=new[1:])
    first = new.nonzero()[0]
    least[state[first]] = np.minimum.reduceat(spent[order], first, axis=0)
    return least


def _weights(terms: StageTerms, paths: Paths) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return of every known path the seconds of a block and of recomputing one, (Q, V, P, K), and the constant (Q,).

    The first path is none: it takes no time and is always short enough, so that its least time says what can be completed.
    """
    forms = paths.of(terms, 0)
    nothing = np.zeros((1, int(terms.vp[0]), int(terms.pp[0]), terms.layer_s.shape[1]))
    block = [nothing, *(form.block_s(terms) for form in forms)]
    again = [nothing, *(form.again_s(terms) for form in forms)]
    constant = [-np.inf, *(form.constant_s(terms)[0] for form in forms)]
    return np.concatenate(block), np.concatenate(again), np.array(constant)


def _costs(option: Options, block: FloatArray, again: FloatArray) -> FloatArray:
    """Return the seconds that a rank's options add to every path, (o, Q); free recomputation takes the cheapest chunk."""
    spent = option.blocks.reshape(len(option), -1) @ block.reshape(len(block), -1).T
    if option.free:
        spent = spent + option.recomputed.sum(axis=1) @ again.min(axis=1).T
    elif option.recomputed.any():
        spent = spent + option.recomputed.reshape(len(option), -1) @ again.reshape(len(again), -1).T
    result: FloatArray = spent
    return result


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


def _spread(recomputed: IntArray, blocks: IntArray) -> IntArray:
    """Put recomputed blocks that chunk 0 counts for all chunks, (n, V, K), into chunks that have room."""
    before = np.cumsum(blocks, axis=1) - blocks
    result: IntArray = np.clip(recomputed.sum(axis=1, keepdims=True) - before, 0, blocks)
    return result
