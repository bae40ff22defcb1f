"""The best stages of one tuple: enumerated, constructed, or found by CP-SAT where enumeration leaves it open."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.batch import LayoutBatch
from layoutopt.optimizer.cost.terms import price_stages
from layoutopt.optimizer.solve.model.coefficients import rounding_s
from layoutopt.optimizer.solve.model.cp_model import CpModel, SliceResult, SliceStatus
from layoutopt.optimizer.solve.model.paths import Paths
from layoutopt.optimizer.solve.model.slices import stack_terms, tuple_slice
from layoutopt.optimizer.solve.search.construct import Stages, by_chunk, good_stages
from layoutopt.optimizer.solve.search.demands import Finished
from layoutopt.optimizer.solve.search.enumerate_stages import AT_FIRST, MOST_STATES, fastest_stages

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from layoutopt.optimizer.cost.batch import IntArray
    from layoutopt.optimizer.cost.terms import StageCosts, StageTerms
    from layoutopt.optimizer.solve.model.cp_model import SolverLimits
    from layoutopt.optimizer.solve.search.demands import StageDemand
    from layoutopt.optimizer.solve.search.source import TermsSource

RAISED = (0.98, 0.9, 0.75, 0.5, 0.25)
"""Shares of the way from a tuple's bound to what is wanted that are tried as its bound."""

BEAM = 500
"""Partial choices looked at where only some good stages are wanted."""

FAMILY = ("tp", "cp", "pp", "dp", "ep", "etp", "micro_batch")
"""Degrees that make two near-ties worth telling apart; of layouts that differ in others only the best is kept."""


@dataclass(order=True, slots=True)
class Waiting:
    """A tuple whose stages are wanted: ordered by its bound, then by the order of arrival."""

    bound_s: float
    serial: int
    family: tuple[int, ...] = field(compare=False)
    layout: LayoutBatch = field(compare=False)
    terms: StageTerms = field(compare=False)
    raised: bool = field(default=False, compare=False)
    """Whether enumeration could not decide it, and raised its bound as far as it could."""
    floor_s: float = field(default=0.0, compare=False)
    """Step time below which it is known to have nothing."""

    @property
    def key(self) -> bytes:
        """What tells it from other tuples."""
        return self.layout.table().tobytes()

    @classmethod
    def of(
        cls, batch: LayoutBatch, terms: StageTerms, index: int, *, bound_s: float = 0.0, serial: int = 0
    ) -> Waiting:
        """Wrap one tuple of a batch."""
        family = tuple(int(getattr(batch, name)[index]) for name in FAMILY)
        one = np.array([index])
        return cls(bound_s, serial, family, batch.take(one), terms.take(one))


class TupleSolver:
    """Finds the best stages of tuples of one space. ``stopped`` is asked now and then whether to give up.

    ``paths`` price stages; None: by seconds of a step.
    """

    def __init__(self, source: TermsSource, stopped: Callable[[], bool], paths: Paths | None = None) -> None:
        self._source, self._stopped = source, stopped
        self._paths = Paths() if paths is None else paths
        self.rounding_s = rounding_s(source.counts)

    @property
    def linear(self) -> bool:
        """Whether the solver can decide what enumeration leaves open: it needs paths that bound one by one."""
        return self._paths.linear

    def tried(self, item: Waiting, upper_s: float, best_s: float) -> tuple[SliceResult | None, bool]:
        """Enumerate stages below ``upper_s``; return the best found, and whether nothing better is left.

        A layout that takes ``best_s`` is known.
        """
        # A quick look decides most tuples; the costly ones come only for what it leaves open.
        near, decided = self._enumerated(item, None, upper_s, best_s, AT_FIRST)
        if not (decided or self._stopped()):
            upper_s = near.step_time_s if near is not None else upper_s
            near = self.constructed(item, upper_s) or near
            upper_s = near.step_time_s if near is not None else upper_s
            near, decided = self._enumerated(item, near, upper_s, best_s, MOST_STATES)
        if not (decided or item.raised or self._stopped()):
            upper_s = near.step_time_s if near is not None else upper_s
            near, _ = self._enumerated(item, near, upper_s, best_s, BEAM, beam=True)
        return near, decided

    def nothing_below(self, terms: StageTerms, upper_s: float) -> bool:
        """Whether a quick enumeration proves that stages with such terms take ``upper_s`` seconds or longer."""
        found = fastest_stages(
            terms, self._source.counts, self._source.rule, self._paths, upper_s, self.rounding_s,
            accept=lambda *_: False, most_states=AT_FIRST, stopped=self._stopped,
        )  # fmt: skip
        return found.proven

    def raised(self, item: Waiting, upper_s: float, best_s: float) -> SliceResult | None:
        """Raise a tuple's bound by enumerating what is much better than wanted; return what comes up on the way."""
        # Once for each tuple: a second time would enumerate the same again.
        item.raised, least_s, best = True, item.bound_s, None
        for share in RAISED:
            below_s = least_s + share * (upper_s - least_s)
            near, decided = self._enumerated(item, None, below_s, best_s, AT_FIRST)
            best = near or best
            # Nothing lies below: that much of the gap is proven without the solver.
            if decided and near is None:
                item.bound_s = below_s
                break
        return best

    def solved(
        self, items: Sequence[Waiting], lower_s: float, upper_s: float, limits: SolverLimits
    ) -> SliceResult:
        """Find the best stages below ``upper_s`` of some tuples as one model."""
        data = tuple_slice(
            LayoutBatch.concat([item.layout for item in items]),
            stack_terms([item.terms for item in items]),
            self._source.counts, self._source.rule, lower_s=lower_s, upper_s=upper_s,
        )  # fmt: skip
        # What was proven in whole nanoseconds is proven but for that much.
        self.rounding_s = max(self.rounding_s, data.rounding_ns / 1e9)
        return CpModel(data, demands=self._source.demands, paths=self._paths).solve(limits)

    def constructed(self, item: Waiting, below_s: float) -> SliceResult | None:
        """Construct stages of one tuple and price them exactly; None where they are no answer below a step time."""
        # Good stages narrow what enumeration has to look at.
        near = good_stages(item.terms, self._source.counts, self._source.rule, below_s)
        if not np.isfinite(near.step_time_s[0]):
            return None
        blocks, recomputed = by_chunk(item.terms, near, self._source.counts, self._source.rule)
        step_s, _ = self._paths.price(item.terms, 0, blocks, recomputed)
        costs = replace(
            price_stages(item.terms, near.blocks, near.recomputed), step_time_s=np.array([step_s])
        )
        if not (step_s < below_s and self._meets_demands(item, near, costs)):
            return None
        return SliceResult(
            status=SliceStatus.FEASIBLE,
            blocks=blocks,
            recomputed=recomputed,
            step_time_s=step_s,
            peak_bytes=float(costs.peak_bytes[0]),
        )

    def _enumerated(
        self,
        item: Waiting,
        near: SliceResult | None,
        upper_s: float,
        best_s: float,
        most_states: int,
        *,
        beam: bool = False,
    ) -> tuple[SliceResult | None, bool]:
        """Improve stages by enumeration; tell whether nothing better is left, so that the solver need not look."""
        found = fastest_stages(
            item.terms, self._source.counts, self._source.rule, self._paths, upper_s,
            rounding_s(self._source.counts),
            reached=near is not None or best_s <= upper_s,
            demands=self._stage_demands(item),
            accept=lambda held, again, step: self._meets(item, held, again, step),
            most_states=most_states, beam=beam, stopped=self._stopped,
        )  # fmt: skip
        if found.blocks is None or found.recomputed is None:
            return near, found.proven
        room = ((0, item.terms.in_flight.shape[1] - found.blocks.shape[1]), (0, 0))
        held, again = (np.pad(part.sum(axis=0), room)[None] for part in (found.blocks, found.recomputed))
        better = SliceResult(
            status=SliceStatus.FEASIBLE,
            blocks=found.blocks,
            recomputed=found.recomputed,
            step_time_s=found.step_s,
            peak_bytes=float(price_stages(item.terms, held, again).peak_bytes[0]),
        )
        return better, found.proven

    def _stage_demands(self, item: Waiting) -> tuple[StageDemand, ...]:
        """Return what is demanded of a tuple's stages, as far as they can be enumerated."""
        if not self._source.demands.any:
            return ()
        return self._source.demands.of_stages(item.layout, int(item.terms.pp[0]))

    def _meets(self, item: Waiting, held: IntArray, again: IntArray, step: float) -> bool:
        """Whether enumerated stages are an answer to the question."""
        costs = replace(price_stages(item.terms, held, again), step_time_s=np.array([step]))
        near = Stages(blocks=held, recomputed=again, step_time_s=costs.step_time_s)
        return self._meets_demands(item, near, costs)

    def _meets_demands(self, item: Waiting, near: Stages, costs: StageCosts) -> bool:
        """Whether constructed stages are an answer to the question."""
        demands = self._source.demands
        if not demands.any:
            return True
        if not demands.judged_outside:
            return False
        finished = Finished(
            batch=item.layout,
            ranks=int(item.terms.pp[0]),
            blocks=near.blocks,
            recomputed=near.recomputed,
            step_s=costs.step_time_s,
            peak_bytes=costs.peak_bytes,
        )
        return bool(demands.met(finished)[0])
