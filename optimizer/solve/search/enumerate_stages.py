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
from layoutopt.optimizer.solve.search.choices import Choices, PathWeights, never
from layoutopt.optimizer.solve.search.chunk_sizes import Unlisted
from layoutopt.optimizer.solve.search.rank_options import Ranks

if TYPE_CHECKING:
    from collections.abc import Callable

    from layoutopt.optimizer.cost.terms import IntArray, StageTerms
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

LIKELIEST = 64
"""Partial choices kept while others are likely to be left: what paths they show rules out most of the others."""

BEAMS = 4
"""Numbers of recomputed blocks that a beam tries, from the fewest that fit: more of them take longer."""


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
        self.weights = PathWeights(ranks.terms, paths)
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
                    # what takes too long takes longer with more recomputed blocks
                    if number is None or self.ranks.options(number, self._wanted_s, memory=False) is None:
                        break
                    continue
                # Only a number with options was a try.
                tried += 1
                left = Choices(self.ranks, options, self.weights, self._wanted_s)
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
        return Choices(undemanding, left, self.weights, self._wanted_s).largest() <= number

    def _decided(self, number: int | None) -> bool:
        every, wanted_s = None, np.inf
        for _ in range(ROUNDS):
            if self.stopped():
                return False
            if every is None or wanted_s != self._wanted_s:
                wanted_s = self._wanted_s
                options = self.ranks.options(number, wanted_s)
                if options is None:
                    return True
                every = Choices(self.ranks, options, self.weights, wanted_s)
            else:  # what older paths rule out stays out
                every = Choices(self.ranks, every.options, self.weights, wanted_s, every.steps)
            left, listed = every, self._listed(every)
            if listed is not None and len(listed) and left.free:
                left = left.named(self.weights, self._wanted_s)
                listed = self._listed(left)
            if listed is None:
                return False
            if not len(listed):
                return True
            # Neither a better choice nor a new path: the same choices would come again.
            if not self._learned(left, listed):
                return False
        return False

    def _listed(self, left: Choices) -> IntArray | None:
        """Return choices that all known paths allow, the likeliest if there are many; none only where there are none.

        None where they are too many to tell.
        """
        listed = left.survivors(min(LIKELIEST, self.most_states), beam=True)
        if listed is not None and (len(listed) or not left.thinned):
            return listed
        return left.survivors(self.most_states, stopped=self.stopped)

    def _learned(self, left: Choices, listed: IntArray) -> bool:
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
