"""What a question demands of stages, memory and time: limits for the bounds, and a judge of finished layouts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil, floor
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from layoutopt.optimizer.frameworks.stage_rule import StageLimit
from layoutopt.optimizer.space.expression import TOLERANCE, Comparison, Expression, Part, Relation
from layoutopt.optimizer.space.requirement import NotKnownYet, RequirementView

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from layoutopt.optimizer.cost.batch import LayoutBatch
    from layoutopt.optimizer.cost.objective_cost import Factors
    from layoutopt.optimizer.cost.run_facts import RunFacts
    from layoutopt.optimizer.cost.terms import FloatArray, IntArray
    from layoutopt.optimizer.space.expression import Atom
    from layoutopt.optimizer.space.requirement import Requirement

Constrain = Callable[[Any, Any], object]
"""A user's function of (model, view); what it returns is ignored."""

MOST_LAYERS = 1 << 40
"""More layers than any model has, where a side of a limit is open."""

SUM_SLACK = 1e-9
"""Relative error of a sum over ranks, below any difference that whole layers make."""


class NeedsSolver(LookupError):
    """A user's function asks for variables of the solver: what it demands is only known inside a model."""


class Unwritten:
    """Stands for a user's function in a question that was read from a plan, which holds its name alone."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, model: object, view: object) -> NoReturn:
        raise NeedsSolver(self.__name__)


class Recorder:
    """Stands for the model while a user's function is asked what it compares."""

    def __init__(self) -> None:
        self.found: list[Comparison] = []

    def add(self, comparison: Comparison | bool) -> None:
        """Note a comparison. Raises ``NeedsSolver`` for one over solver variables."""
        # A user's function may add anything that the solver takes: only comparisons can be judged without it.
        if not isinstance(comparison, Comparison):
            raise NeedsSolver("a constraint over solver variables")
        self.found.append(comparison)

    def __getattr__(self, name: str) -> NoReturn:
        raise NeedsSolver(name)


class RecordedView(RequirementView):
    """The view that a user's function gets outside of a model."""

    @property
    def variables(self) -> NoReturn:
        """Raises ``NeedsSolver``: variables exist inside of models alone."""
        raise NeedsSolver("variables")


@dataclass(frozen=True, slots=True, kw_only=True)
class StageDemand:
    """A requirement on one tuple's stages: a sum over ranks of ``blocks`` and ``recomputed`` (P, K) for each such block.

    The sum is to be below ``room``.
    """

    blocks: FloatArray
    recomputed: FloatArray
    room: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """``n`` layouts of one pp with stages and price: ``ranks`` distinct ranks, blocks and recomputed ones (n, P, K)."""

    batch: LayoutBatch
    ranks: int
    blocks: IntArray
    recomputed: IntArray
    step_s: FloatArray
    peak_bytes: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Demands:
    """Requirements that stages decide, and a user's function of (model, view), over one workload and cluster.

    ``layers`` (K,) are the layers of a block of each kind, ``total`` those of the model. ``rates`` tells what a second of a
    step counts in the unit of the objective (None: seconds): steps are then compared in that unit.
    """

    facts: RunFacts | None = None
    layers: IntArray = field(default_factory=lambda: np.ones(1, dtype=np.int64))
    total: int = MOST_LAYERS
    requirements: tuple[Requirement, ...] = ()
    constrain: Constrain | None = None
    rates: Factors | None = None

    @property
    def any(self) -> bool:
        """Whether anything is demanded."""
        return bool(self.requirements) or self.constrain is not None

    @property
    def judged_outside(self) -> bool:
        """Whether finished layouts can be judged without the solver."""
        return self.constrain is None or self._recorded(_one_row(), exact=True) is not None

    @property
    def needs_peak(self) -> bool:
        """Whether the memory of the fullest rank stands beside something else in a comparison."""
        return self.any and any(
            atom.part is Part.PEAK_BYTES and comparison.most_of(Part.PEAK_BYTES) is None
            for comparison in self.comparisons(_one_row())
            for atom in comparison.difference.terms
        )

    @property
    def loose(self) -> bool:
        """Whether bounds do not know everything that is demanded, so that many tuples may have to be solved."""
        if not self.judged_outside:
            return True
        comparisons = self.comparisons(_one_row())
        return any(
            comparison.difference.terms and not (_is_limit(comparison) or _layers_alone(comparison))
            for comparison in comparisons
        )

    def comparisons(self, batch: LayoutBatch, *, exact: bool = True) -> list[Comparison]:
        """Compare for every tuple of a batch; what the rows or the function don't tell is left out."""
        assert self.facts is not None
        found: list[Comparison] = []
        view = RequirementView(batch, self.facts, exact=exact)
        for requirement in self.requirements:
            try:
                found += requirement.comparisons(view)
            except NotKnownYet:
                continue
        found += self._recorded(batch, exact=exact) or []
        # Steps are in seconds already where nothing else is minimised.
        if self.rates is None or not found:
            return found
        rates = self.rates(batch, exact)
        return [_in_unit(comparison, rates) for comparison in found]

    def _recorded(self, batch: LayoutBatch, *, exact: bool) -> list[Comparison] | None:
        """Ask the user's function; None where only a model can tell."""
        if self.constrain is None:
            return []
        assert self.facts is not None
        recorder = Recorder()
        try:
            self.constrain(recorder, RecordedView(batch, self.facts, exact=exact))
        except (NeedsSolver, NotKnownYet):
            return None
        return recorder.found

    def limit_s(self, batch: LayoutBatch, *, exact: bool = True) -> FloatArray:
        """Return the most seconds (n,) that a step may take; minus infinity where axes alone break a demand."""
        most = np.full(len(batch), np.inf)
        for comparison in self.comparisons(batch, exact=exact) if self.any else ():
            limit = comparison.most_of(Part.STEP_S)
            if limit is not None:
                most = np.minimum(most, limit)
            elif not comparison.difference.terms:
                most = np.where(comparison.holds(_nothing_open), most, -np.inf)
        return most

    def capacity_bytes(self, batch: LayoutBatch, *, exact: bool = True) -> FloatArray:
        """Return the most bytes (n,) that a rank may hold."""
        most = np.full(len(batch), np.inf)
        for comparison in self.comparisons(batch, exact=exact) if self.any else ():
            limit = comparison.most_of(Part.PEAK_BYTES)
            most = most if limit is None else np.minimum(most, limit)
        # A limit below zero leaves no room, and negative capacities would upset the closed forms.
        least: FloatArray = np.maximum(most, 0.0)
        return least

    def kept(self, bound_s: FloatArray, batch: LayoutBatch, *, exact: bool = True) -> FloatArray:
        """Return bounds (n,), infinite where a row's bound is above what it may take."""
        if not self.any:
            return bound_s
        limit = self.limit_s(batch, exact=exact)
        possible = (bound_s <= limit * (1 + TOLERANCE)) & self._possible_alone(batch, exact=exact)
        kept: FloatArray = np.where(possible, bound_s, np.inf)
        return kept

    def _possible_alone(self, batch: LayoutBatch, *, exact: bool) -> NDArray[np.bool_]:
        """Tell where a single rank, which holds every layer, can recompute as many as is demanded."""
        least, most = np.zeros(len(batch)), np.full(len(batch), float(self.total))
        for comparison in self.comparisons(batch, exact=exact):
            terms = comparison.difference.terms
            # Time and memory are limited elsewhere.
            if not all(atom.part in (Part.LAYERS, Part.RECOMPUTED) for atom in terms):
                continue
            # One excluded number leaves all others.
            if comparison.relation is Relation.DIFFERENT:
                continue
            sums = {part: np.zeros(len(batch)) for part in (Part.LAYERS, Part.RECOMPUTED)}
            for atom, factor in terms.items():
                if atom.rank in (0, -1):
                    sums[atom.part] = sums[atom.part] + factor
            each = sums[Part.RECOMPUTED]
            rest = comparison.difference.constant + self.total * sums[Part.LAYERS]
            edge = -rest / np.where(each == 0, 1.0, each)
            equal = comparison.relation is Relation.EQUAL
            never = (each == 0) & ((np.abs(rest) if equal else rest) > TOLERANCE * self.total)
            upper, lower = (each > 0) | ((each != 0) & equal), (each < 0) | ((each != 0) & equal)
            most = np.where(never, -np.inf, np.where(upper, np.minimum(most, edge), most))
            least = np.where(lower, np.maximum(least, edge), least)
        return (batch.pp > 1) | (least <= most + TOLERANCE * self.total)

    def stage_limits(self) -> tuple[StageLimit, ...]:
        """Return the limits on the layers of single ranks that hold for every tuple alike."""
        if not self.any:
            return ()
        found = []
        for comparison in self.comparisons(_one_row()):
            if _layers_alone(comparison):
                found.append(_stage_limit(comparison, self.layers))
        return tuple(found)

    def of_stages(self, batch: LayoutBatch, ranks: int) -> tuple[StageDemand, ...]:
        """Return what a tuple (a batch of one) demands of its distinct ranks' blocks alone."""
        found: list[StageDemand] = []
        for comparison in self.comparisons(batch) if self.any else ():
            terms = comparison.difference.terms
            if terms and all(atom.part in (Part.LAYERS, Part.RECOMPUTED) for atom in terms):
                found += self._of_stages(comparison, int(batch.pp[0]), ranks)
        return tuple(found)

    def _of_stages(self, comparison: Comparison, pp: int, ranks: int) -> Iterator[StageDemand]:
        """Yield a comparison of layers as sums to be below something: two for an equality, none for what must differ."""
        parts = {part: np.zeros((ranks, len(self.layers))) for part in (Part.LAYERS, Part.RECOMPUTED)}
        for atom, factor in comparison.difference.terms.items():
            rank = rank_of(atom.rank, pp, ranks)
            if rank is not None:
                parts[atom.part][rank] += self.layers * float(np.ravel(factor)[0])
        constant = float(np.ravel(comparison.difference.constant)[0])
        # a layer at least: what cancels out, as a rank compared with itself, still has the error of its sums
        size = max(1.0, abs(constant), *(np.abs(part).max() for part in parts.values()))
        slack = SUM_SLACK * size * (-1.0 if comparison.relation is Relation.BELOW else 1.0)
        signs = {Relation.DIFFERENT: (), Relation.EQUAL: (1.0, -1.0)}.get(comparison.relation, (1.0,))
        for sign in signs:
            yield StageDemand(
                blocks=sign * parts[Part.LAYERS],
                recomputed=sign * parts[Part.RECOMPUTED],
                room=slack - sign * constant,
            )

    def met(self, finished: Finished) -> NDArray[np.bool_]:
        """Tell which finished layouts (n,) meet everything that can be judged outside a model."""
        result = np.ones(len(finished.batch), dtype=bool)
        values = self._values(finished)
        for comparison in self.comparisons(finished.batch) if self.any else ():
            result &= comparison.holds(values)
        return result

    def explained(self, finished: Finished) -> Iterator[str]:
        """Yield for each requirement that the first finished layout misses what its sides are."""
        assert self.facts is not None
        view, values = RequirementView(finished.batch, self.facts), self._values(finished)
        for requirement in self.requirements:
            if not requirement.holds(view, values).all():
                yield requirement.explain(view, values)

    def _values(self, finished: Finished) -> Callable[[Atom], FloatArray]:
        def of(atom: Atom) -> FloatArray:
            """Give what finished stages, (n,), have of an open part of a requirement."""
            if atom.part is Part.STEP_S:
                return finished.step_s
            if atom.part is Part.PEAK_BYTES:
                return finished.peak_bytes
            counted = finished.blocks if atom.part is Part.LAYERS else finished.recomputed
            rank = rank_of(atom.rank, int(finished.batch.pp[0]), finished.ranks)
            if rank is None:
                return np.zeros(len(finished.batch))
            held: FloatArray = (counted[:, rank] @ self.layers).astype(np.float64)
            return held

        return of


NO_DEMANDS = Demands()


def _in_unit(comparison: Comparison, rates: FloatArray) -> Comparison:
    """Return a comparison in which a step is not in seconds but in seconds times ``rates`` (n,)."""
    terms = {
        atom: factor / rates if atom.part is Part.STEP_S else factor
        for atom, factor in comparison.difference.terms.items()
    }
    return Comparison(Expression(comparison.difference.constant, terms), comparison.relation)


def rank_of(rank: int, pp: int, distinct: int) -> int | None:
    """Return which distinct rank a rank of a pipeline is: where stages lie twice, the second half mirrors the first."""
    place = rank if rank >= 0 else pp + rank
    # A rank beyond the pipeline holds nothing, which is how ``layers[3]`` of two ranks is read.
    if not 0 <= place < pp:
        return None
    return place if place < distinct else pp - 1 - place


def _is_limit(comparison: Comparison) -> bool:
    return any(comparison.most_of(part) is not None for part in (Part.STEP_S, Part.PEAK_BYTES))


def _layers_alone(comparison: Comparison) -> bool:
    """Whether a comparison limits the layers of one rank alike in every tuple: literals have no dimension."""
    terms = comparison.difference.terms
    values = [comparison.difference.constant, *terms.values()]
    return (
        [atom.part for atom in terms] == [Part.LAYERS]
        and comparison.relation is not Relation.DIFFERENT
        and all(np.ndim(value) == 0 for value in values)
        and bool(terms[next(iter(terms))])
    )


def _stage_limit(comparison: Comparison, layers: IntArray) -> StageLimit:
    ((atom, factor),) = comparison.difference.terms.items()
    edge = -float(comparison.difference.constant) / float(factor)
    strict = comparison.relation is Relation.BELOW
    upper = comparison.relation is Relation.EQUAL or factor > 0
    lower = comparison.relation is Relation.EQUAL or factor < 0
    # 2.9999999999 layers are three: requirements are sums of floats.
    slack = TOLERANCE * max(abs(edge), 1.0)
    most = (ceil(edge - slack) - 1 if strict else floor(edge + slack)) if upper else MOST_LAYERS
    least = (floor(edge + slack) + 1 if strict else ceil(edge - slack)) if lower else 0
    # Layers become blocks of any kind: the fewest if all were large, the most if all were small.
    return StageLimit(
        rank=atom.rank, fewest=max(-(-least // int(layers.max())), 0), most=most // int(layers.min())
    )


def _nothing_open(atom: Atom) -> FloatArray:
    raise AssertionError(f"{atom} is decided by stages")


def _one_row() -> LayoutBatch:
    """A tuple of ones: what is asked of it is the form of comparisons, not their numbers."""
    from layoutopt.optimizer.space.rows import row_of
    from layoutopt.optimizer.specs.layout import Layout

    return row_of(Layout())
