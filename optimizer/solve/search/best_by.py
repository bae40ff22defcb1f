"""The best layout in another objective than step time, by the same search over the whole declared space.

What is proportional to the step, and means over sets of constants, are terms like seconds (``ObjectiveCost``). The worst
regret is at least any weighted mean of the regrets; the search bounds with those weights that make the mean largest over
known layouts. A quantile is the least, over a few of the slowest sets of constants, of the larger of itself and the step
under that set: one search for each. Fewest GPUs and least memory are searched in the order of what tuples reach at best.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from layoutopt.optimizer.cost.cost_model import CostModel
from layoutopt.optimizer.cost.interruptions import failure_words
from layoutopt.optimizer.cost.objective_cost import ObjectiveCost
from layoutopt.optimizer.cost.objectives import EXPECTED, QUANTILE
from layoutopt.optimizer.cost.run_facts import Footprint, footprint_of
from layoutopt.optimizer.cost.statistic import Statistic, StatisticKind, quantile_place
from layoutopt.optimizer.solve.model.sampled_paths import SampledPaths
from layoutopt.optimizer.solve.search.best_first import BestFirst
from layoutopt.optimizer.solve.search.second import SecondSearch
from layoutopt.optimizer.space.requirement import parse_requirement

if TYPE_CHECKING:
    from collections.abc import Callable

    from layoutopt.optimizer.cost.batch import LayoutBatch
    from layoutopt.optimizer.cost.objectives import Criterion
    from layoutopt.optimizer.cost.quantities import Linear, Quantity
    from layoutopt.optimizer.cost.terms import FloatArray
    from layoutopt.optimizer.solve.model.cp_model import SolverLimits
    from layoutopt.optimizer.solve.search.costed_space import CostedSpace
    from layoutopt.optimizer.solve.search.result import Found, SearchOptions, SearchResult

    Stop = Callable[[], bool] | None

REACHED = 1 + 1e-9
"""What a known layout reaches, with room for sums of floats in another order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveAnswer:
    """The answer in an objective: its ``value`` in ``unit`` and what is proven of every layout, ``bound``.

    ``first_value`` is that of the fastest layout; ``samples`` counts the sets of constants (0: the base alone), over which
    ``mean_regret`` and ``worst_regret`` say how much slower it is than each set's own best, where that was asked for.
    ``why`` says what makes a layout with slower steps the better one; None where failures do not.
    """

    name: str
    unit: str
    meaning: str
    value: float
    bound: float
    first_value: float
    proven: bool
    samples: int = 0
    mean_regret: float | None = None
    worst_regret: float | None = None
    why: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A search in an objective: where to look, how, what limits each solve, and cost models under other constants."""

    source: CostedSpace
    options: SearchOptions
    limits: Callable[[], SolverLimits]
    samples: tuple[CostModel, ...] = ()
    should_stop: Stop = None

    def left(self) -> SearchOptions:
        """Return the options with the time that is left."""
        return replace(self.options, time_limit_s=self.limits().time_limit_s)


def best_by(objective: Criterion, asked: Asked, first: SearchResult) -> tuple[SearchResult, ObjectiveAnswer]:
    """Return the answers in an objective, the best first, and what was proven.

    ``first`` are the fastest layouts, at least one. Times of the result are in the unit of the objective.
    """
    if objective.quantity is None:
        return _by_statistic(objective, asked, first)
    if is_rate(asked.source, objective.quantity):
        return _by_rate(objective, objective.quantity, asked, first)
    return _by_order(objective, objective.quantity, asked, first)


def _linear(source: CostedSpace, quantity: Quantity, batch: LayoutBatch) -> Linear:
    assert source.demands.facts is not None
    return quantity.of(source.demands.facts, footprint_of(batch))


def costed_by(source: CostedSpace, **changes: Any) -> CostedSpace:
    """Return a space whose terms are in the unit of an objective."""
    base: dict[str, Any] = {field.name: getattr(source.cost, field.name) for field in fields(CostModel)}
    return replace(source, cost=ObjectiveCost(**base, **changes))


def _on_all(source: CostedSpace, quantity: Quantity) -> Linear:
    """Return a quantity of a layout on the whole cluster."""
    facts = source.demands.facts
    assert facts is not None
    return quantity.of(facts, Footprint(gpus=np.array([float(facts.cluster.gpu_count)]), replicas=np.ones(1)))


def is_rate(source: CostedSpace, quantity: Quantity) -> bool:
    """Tell whether a quantity is proportional to the step of a layout."""
    linear = _on_all(source, quantity)
    return bool(np.any(linear.per_second) and not (np.any(linear.constant) or np.any(linear.per_byte)))


def reference_rate(source: CostedSpace, quantity: Quantity) -> float:
    """Return a quantity's value per second of a step on the whole cluster: what terms are relative to."""
    return float(np.ravel(_on_all(source, quantity).per_second)[0])


def rated_space(source: CostedSpace, quantity: Quantity) -> CostedSpace:
    """Return a space whose terms are a quantity that is proportional to the step, in units of ``reference_rate``."""
    facts, reference = source.demands.facts, reference_rate(source, quantity)
    assert facts is not None

    def rates(batch: LayoutBatch, exact: bool) -> FloatArray:
        """Return the quantity per second of a step, (n,), over the reference."""
        rate = np.asarray(quantity.of(facts, footprint_of(batch, exact=exact)).per_second, float)
        return np.broadcast_to(rate, (len(batch),)) / reference

    return replace(costed_by(source, factors=rates), demands=replace(source.demands, rates=rates))


def _by_rate(
    objective: Criterion, quantity: Quantity, asked: Asked, first: SearchResult
) -> tuple[SearchResult, ObjectiveAnswer]:
    source, reference = rated_space(asked.source, quantity), reference_rate(asked.source, quantity)

    def value(found: Found) -> float:
        """Return what an answer comes to in the quantity."""
        rate = _linear(asked.source, quantity, found.layout).per_second
        return float(np.ravel(rate)[0]) * found.step_time_s

    # The fastest layouts are known: the best of them by the rate starts the search.
    values = [value(found) for found in first.found]
    known = first.found[int(np.argmin(values))]
    options = replace(asked.left(), upper_s=min(values) / reference * REACHED)
    result = BestFirst(source, options, should_stop=asked.should_stop).run()
    result = result if result.found else replace(result, found=(known,))
    best_s = value(known) / reference if result.found[0] is known else result.found[0].step_time_s
    bound_s = min(result.bound_s, best_s)
    return result, ObjectiveAnswer(
        name=objective.name, unit=objective.unit, meaning=objective.words, value=best_s * reference,
        bound=bound_s * reference, first_value=values[0], proven=proves(best_s, bound_s, result, options),
        why=_why(asked.source, result.found[0], first.found[0]),
    )  # fmt: skip


def _why(source: CostedSpace, best: Found, fastest: Found) -> str | None:
    """Say what failures have to do with it that the fastest layout is not the best."""
    facts = source.demands.facts
    assert facts is not None
    uses = [footprint_of(one.layout) for one in (best, fastest)]
    ours, other = (float(facts.slowdowns(use)[0]) for use in uses)
    # Where failures do not favour it, the rate differs for another reason.
    if not ours < other * (1 - 1e-9):
        return None
    words = failure_words(facts.cluster, *((float(use.gpus[0]), float(use.replicas[0])) for use in uses))
    return f"failures lengthen its run by {ours - 1:.2%}, the fastest layout's by {other - 1:.2%}: {words}"


def proves(best: float, bound: float, result: SearchResult, options: SearchOptions) -> bool:
    """Tell whether a bound shows that nothing is better than the best, but for the solver's rounding."""
    if np.isinf(best):
        return bool(np.isinf(bound))
    return bool(bound >= best * (1 - options.gap) - result.rounding_s - 1e-10 * best)


def _by_order(
    objective: Criterion, quantity: Quantity, asked: Asked, first: SearchResult
) -> tuple[SearchResult, ObjectiveAnswer]:
    """Search tuples in the order of what they reach at best; of equally good ones take the fastest."""
    search = SecondSearch(asked.source, quantity, np.inf, asked.limits)
    fastest = first.found[0]
    best, proven = search.run(fastest)
    value = search.value(best)
    result = replace(first, found=(best,), complete=proven)
    if proven and not np.any(_linear(asked.source, quantity, best.layout).per_byte):
        demands = asked.source.demands
        # Many layouts may share the least value: among them the step decides.
        limit = parse_requirement(f"{quantity.name} <= {value * (1 + 1e-9)!r}")
        near = replace(asked.source, demands=replace(demands, requirements=(*demands.requirements, limit)))
        result = BestFirst(near, asked.left(), should_stop=asked.should_stop).run()
        proven = result.complete
    return result, ObjectiveAnswer(
        name=objective.name, unit=objective.unit, meaning=objective.words, value=value,
        bound=value if proven else 0.0, first_value=search.value(fastest), proven=proven,
    )  # fmt: skip


def _by_statistic(
    objective: Criterion, asked: Asked, first: SearchResult
) -> tuple[SearchResult, ObjectiveAnswer]:
    search = _Sampled(asked, first)
    if objective.statistic == EXPECTED:
        result, value, bound, first_value = search.expected()
    elif objective.statistic == QUANTILE:
        result, value, bound, first_value = search.quantile(objective.share)
    else:
        result, value, bound, first_value = search.regret(mean=objective.mean)
    regrets = search.regrets_of(result.found[0]) if search.own_best_s is not None else None
    slack = result.rounding_s / (search.own_best_s.mean() if search.own_best_s is not None else 1.0)
    return result, ObjectiveAnswer(
        name=objective.name, unit=objective.unit, meaning=objective.words, value=value, bound=min(bound, value),
        first_value=first_value, samples=len(asked.samples),
        proven=bool(bound >= value - asked.options.gap * abs(value) - slack - 1e-10 * abs(value)),
        mean_regret=None if regrets is None else float(regrets.mean()),
        worst_regret=None if regrets is None else float(regrets.max()),
    )  # fmt: skip


class _Sampled:
    """Searches over the steps under several sets of constants. ``known`` are the fastest layouts of the base constants."""

    def __init__(self, asked: Asked, first: SearchResult) -> None:
        self._asked, self._first = asked, first
        self.count = len(asked.samples)
        self._known_s = np.stack([self.steps_s(found) for found in first.found])
        self.own_best_s: FloatArray | None = None

    def _space(self, weights: FloatArray) -> CostedSpace:
        return costed_by(self._asked.source, samples=self._asked.samples, weights=weights)

    def steps_s(self, found: Found) -> FloatArray:
        """Return a layout's steps under every set of constants, (S,) seconds."""
        # Any weights will do: only the steps of the single sets are read.
        even = np.full(self.count, 1 / self.count)
        terms = self._space(even).terms(found.layout)
        paths = SampledPaths(statistic=Statistic(kind=StatisticKind.MEAN, weights=even))
        return paths.steps_s(terms, 0, found.blocks, found.recomputed)

    def _search(self, statistic: Statistic, weights: FloatArray, upper: float) -> SearchResult:
        options = replace(self._asked.left(), upper_s=upper * REACHED)
        paths = SampledPaths(statistic=statistic)
        stop = self._asked.should_stop
        result = BestFirst(self._space(weights), options, paths=paths, should_stop=stop).run()
        return result if result.found else replace(result, found=self._first.found[:1])

    def expected(self) -> tuple[SearchResult, float, float, float]:
        """Minimise the mean step."""
        weights = np.full(self.count, 1 / self.count)
        statistic = Statistic(kind=StatisticKind.MEAN, weights=weights)
        known = statistic.of(self._known_s)
        result = self._search(statistic, weights, float(known.min()))
        value = float(statistic.of(self.steps_s(result.found[0])[None])[0])
        return result, value, result.bound_s, float(known[0])

    def quantile(self, share: float) -> tuple[SearchResult, float, float, float]:
        """Minimise a quantile: for each of the slowest sets the larger of the quantile and the step under it."""
        place = quantile_place(share, self.count)
        plain = Statistic(kind=StatisticKind.QUANTILE, weights=np.ones(self.count), place=place)
        known = plain.of(self._known_s)
        best, value = self._first.found[int(known.argmin())], float(known.min())
        results, bound = [], np.inf
        for must in np.argsort(-self._known_s.min(axis=0), kind="stable")[: self.count - place + 1].tolist():
            unit = np.eye(self.count)[must]
            result = self._search(replace(plain, must=must), unit, value)
            results.append(result)
            own = float(plain.of(self.steps_s(result.found[0])[None])[0])
            if own < value:
                best, value = result.found[0], own
            bound = min(bound, result.bound_s)
        last = results[-1]
        total = sum(result.solved for result in results)
        return (
            replace(last, found=(best,), bound_s=min(bound, value), solved=total),
            value,
            bound,
            float(known[0]),
        )

    def regret(self, *, mean: bool) -> tuple[SearchResult, float, float, float]:
        """Minimise the mean, or the worst, of how much slower the step is than each set's own best one."""
        self.own_best_s = np.array([self._own_best_s(index) for index in range(self.count)])
        unit = float(self.own_best_s.mean())
        each = unit / self.own_best_s
        if mean:
            weights = each / self.count
            statistic = Statistic(kind=StatisticKind.MEAN, weights=weights)
        else:
            # The worst regret is at least any mean of regrets: the mixture that makes known layouts worst
            # bounds best.
            weights = each * worst_mixture(self._known_s * each)
            statistic = Statistic(kind=StatisticKind.LARGEST, weights=each)
        known = statistic.of(self._known_s)
        result = self._search(statistic, weights, float(known.min()))
        value = float(statistic.of(self.steps_s(result.found[0])[None])[0])
        return result, value / unit - 1, result.bound_s / unit - 1, float(known[0]) / unit - 1

    def _own_best_s(self, index: int) -> float:
        """Return the best step under one set of constants; where the search was stopped a floor under it."""
        known = float(self._known_s[:, index].min())
        source = replace(self._asked.source, cost=self._asked.samples[index])
        options = replace(self._asked.left(), top=1, gap=0.0, upper_s=known * REACHED)
        return min(BestFirst(source, options, should_stop=self._asked.should_stop).run().bound_s, known)

    def regrets_of(self, found: Found) -> FloatArray:
        """Return a layout's regret under every set of constants, (S,)."""
        assert self.own_best_s is not None
        regrets: FloatArray = self.steps_s(found) / self.own_best_s - 1
        return regrets


def worst_mixture(values: FloatArray) -> FloatArray:
    """Return the weights (S,), of sum 1, under which the least of weighted means of layouts' values (n, S) is largest.

    The optimum of a matrix game (von Neumann 1928), a linear program.
    """
    from scipy.optimize import linprog

    layouts, samples = values.shape
    game = linprog(
        c=np.append(np.zeros(samples), -1.0),
        A_ub=np.hstack([-values, np.ones((layouts, 1))]),
        b_ub=np.zeros(layouts),
        A_eq=np.append(np.ones(samples), 0.0)[None],
        b_eq=np.ones(1),
        bounds=[*[(0.0, None)] * samples, (None, None)],
        method="highs",
    )
    # Any mixture bounds, so that a failed linear program costs sharpness, not truth.
    if game.x is None:
        return np.full(samples, 1 / samples)
    weights = np.maximum(game.x[:-1], 0.0)
    result: FloatArray = weights / weights.sum()
    return result
