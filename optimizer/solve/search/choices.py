"""The choices that the ranks of a tuple have together, and which of them all known paths allow.

Rank by rank, partial choices stay alive as long as all paths, completed by the least that the other ranks can add, are
below the wanted step time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.solve.search.places import ways_from

if TYPE_CHECKING:
    from collections.abc import Callable

    from layoutopt.optimizer.cost.step import PathForm
    from layoutopt.optimizer.cost.terms import FloatArray, IntArray, StageTerms
    from layoutopt.optimizer.solve.model.paths import Paths
    from layoutopt.optimizer.solve.search.rank_options import Options, Ranks

WIDEST = 64
"""Ways out of a state on average at most; a tuple with more is given up before they are listed."""

FEW_STATES = 256
"""Partial choices that are not compared with each other: less work than it takes to thin them out."""

WORTH_REPEATING = 0.7
"""Share of the steps that another look at all of them leaves at most for one more to be worth it."""

LEADERS = 64
"""Choices with equally many blocks that the others are compared with: enough to thin them out."""


def never() -> bool:
    """Stop nothing."""
    return False


class PathWeights:
    """What a block takes on every known path of a tuple, each path asked once.

    The first path is none: it takes no time and is always short enough, so that its least time says what can be completed.
    """

    def __init__(self, terms: StageTerms, paths: Paths) -> None:
        self.paths, self._terms = paths, terms
        self._known: dict[int, tuple[PathForm, FloatArray, FloatArray, FloatArray]] = {}
        self._nothing = np.zeros((1, int(terms.vp[0]), int(terms.pp[0]), terms.layer_s.shape[1]))

    def now(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return of every path the seconds of a block and of recomputing one, (Q, V, P, K), and the constant (Q,)."""
        # A path stays what it is: only new ones are weighed.
        forms, terms = self.paths.of(self._terms, 0), self._terms
        for form in forms:
            if id(form) not in self._known:
                self._known[id(form)] = (
                    form, form.block_s(terms), form.again_s(terms), form.constant_s(terms)[:1]
                )  # fmt: skip
        parts = [self._known[id(form)][1:] for form in forms]
        nothing = self._nothing, self._nothing, np.array([-np.inf])
        block, again, constant = (np.concatenate(each) for each in zip(nothing, *parts, strict=True))
        return block, again, constant


class Choices:
    """The choices that every rank has at one number of recomputed blocks, and the paths that limit them.

    A walk from rank to rank: a state is how many blocks the ranks so far hold and where the next one's first chunk starts,
    a step takes one option of a rank. Steps stay as long as every path alone leaves room for them.
    """

    def __init__(
        self,
        ranks: Ranks,
        options: list[Options],
        weights: PathWeights,
        below_s: float,
        steps: list[_Steps] | None = None,
    ) -> None:
        self.ranks, self.options, self._met = ranks, options, weights.paths.met
        block, again, constant = weights.now()
        self._room = np.concatenate([below_s - constant, [demand.room for demand in ranks.demands]])
        self._paths = len(constant)
        self._costs = [
            np.concatenate(
                [_costs(option, block[:, :, rank], again[:, :, rank]), ranks.demanded(option, rank)], axis=1
            )
            for rank, option in enumerate(options)
        ]
        self.steps = self._reachable() if steps is None else steps
        # A step that goes takes others with it: repeat until little changes.
        left, before = sum(len(step) for step in self.steps), np.inf
        while self.steps and left < WORTH_REPEATING * before:
            self.steps = self._useful()
            left, before = sum(len(step) for step in self.steps), left

    @property
    def free(self) -> bool:
        """Whether it is open in which chunks blocks are recomputed, so that paths take the least that any chunk adds."""
        return any(option.free and option.recomputed.any() for option in self.options)

    def named(self, weights: PathWeights, below_s: float) -> Choices:
        """Return the same choices with the chunks in which they recompute. Raises ``Unlisted``."""
        _, again, _ = weights.now()
        options = [
            self.ranks.named(option.take(np.unique(step.choice)), again[:, :, rank])
            for rank, (option, step) in enumerate(zip(self.options, self.steps, strict=True))
        ]
        return Choices(self.ranks, options, weights, below_s)

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
            # States from which the ranks behind can't hold exactly the rest lead nowhere.
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
        before = np.zeros((self.steps[0].states, len(self._room)))
        for step, cost, least in zip(self.steps, self._costs, after[1:], strict=True):
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
        for step, cost in zip(self.steps[::-1], self._costs[::-1], strict=True):
            spent = cost[step.choice] + after[-1][step.target]
            after.append(_least_of_sorted(spent, step.source, step.states))
        return after[::-1]

    def largest(self) -> int:
        """Return the blocks of the largest chunk that is left, 0 where nothing is."""
        parts = zip(self.options, self.steps, strict=False)
        return max((int(option.blocks[step.choice].sum(axis=2).max()) for option, step in parts), default=0)

    def survivors(
        self, most: int, *, beam: bool = False, stopped: Callable[[], bool] = never
    ) -> IntArray | None:
        """Return the choices, (n, P) options of every rank, that all known paths and demands allow, the likeliest first.

        None if over ``most`` or stopped; as a ``beam`` the likeliest of them are kept.
        """
        self.thinned = False
        if not self.steps:
            return np.zeros((0, 0), dtype=np.int64)
        after = self._least_after()
        state = np.arange(self.steps[0].states)
        spent, chosen = np.zeros((len(state), len(self._room))), np.zeros((len(state), 0), dtype=np.int64)
        for step, cost, least in zip(self.steps, self._costs, after[1:], strict=True):
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
            # Comparing few states, or many of which few are kept, costs more than carrying them on.
            if len(state) > FEW_STATES and most > FEW_STATES:
                kept = _undominated(state, spent)
                state, spent, chosen = state[kept], spent[kept], chosen[kept]
            if len(state) > most:
                if not beam:
                    return None
                self.thinned = True
                # What lacks least of the wanted time, completed at its cheapest, is the likeliest to end
                # below it.
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
    order = np.argsort(state, kind="stable")
    return _least_of_sorted(spent[order], state[order], states)


def _least_of_sorted(spent: FloatArray, state: IntArray, states: int) -> FloatArray:
    """Return ``_least`` of what is sorted by its state."""
    least = np.full((states, spent.shape[1]), np.inf)
    # reduceat takes runs: one starts where the state changes.
    new = np.ones(len(state), dtype=bool)
    np.not_equal(state[1:], state[:-1], out=new[1:])
    first = new.nonzero()[0]
    least[state[first]] = np.minimum.reduceat(spent, first, axis=0)
    return least


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
    used, columns = used[order], np.ascontiguousarray(spent[order].T)
    kept = np.ones(len(used), dtype=bool)
    starts = np.flatnonzero(np.concatenate([[True], used[1:] != used[:-1]]))
    for start, stop in zip(starts.tolist(), [*starts[1:].tolist(), len(used)], strict=True):
        for leader in range(start, min(stop, start + LEADERS)):
            if kept[leader]:
                later = slice(leader + 1, stop)
                kept[later] &= ~(columns[:, leader, None] <= columns[:, later]).all(axis=0)
    result: IntArray = order[kept]
    return result


def _spread(recomputed: IntArray, blocks: IntArray) -> IntArray:
    """Put recomputed blocks that chunk 0 counts for all chunks, (n, V, K), into chunks that have room."""
    before = np.cumsum(blocks, axis=1) - blocks
    result: IntArray = np.clip(recomputed.sum(axis=1, keepdims=True) - before, 0, blocks)
    return result
