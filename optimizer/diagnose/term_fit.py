"""One constant read from the term that it decides: its value, and how well the term tells it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean, median, pstdev
from typing import TYPE_CHECKING, Generic, TypeVar

from layoutopt.optimizer.evidence.calibrate import LEAST_SPREAD
from layoutopt.optimizer.evidence.parameters import parameter
from layoutopt.optimizer.evidence.profile import PRIOR_SIGMA

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from layoutopt.optimizer.diagnose.predicted import Expectation

    Reprice = Callable[[Mapping[str, float]], Expectation]


LEAST_SHARE = 0.005
"""Share of the step that a term must have to tell anything."""

AT_BOUND = 1e-3
"""Logarithm from a bound of its source within which a constant stands at it."""

PRECISION = 2e-4
"""Logarithm to which a constant is searched: far below by what repeats of a run differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TermFit:
    """One constant and the term that it was read from, seconds of a step in the middle of the ranks.

    ``sigma`` is the standard deviation of the constant's logarithm: repeats of a run, ranks that differ, and how steeply the
    term follows the constant. ``taken``: the term tells more of it than what was known before; ``reason`` says why it does
    not, or what stays open. ``at_bound``: the term asks for more than the bound of its source allows, and ``sigma`` is what
    was known before.
    """

    name: str
    term: str
    present: float
    value: float
    sigma: float
    measured_s: float
    before_s: float
    after_s: float
    taken: bool
    reason: str = ""
    at_bound: bool = False

    @property
    def known_to(self) -> str:
        """How well the term tells the constant, in words."""
        return (
            "at its bound, not identified" if self.at_bound else f"within {100 * math.expm1(self.sigma):.0f}%"
        )


Measured = TypeVar("Measured")
"""What a term is measured of: a rank, or a log of all ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredTerm(Generic[Measured]):
    """A constant, and how to read its term of what was measured and of a prediction for it, seconds of a step."""

    name: str
    words: str
    measured_s: Callable[[Measured], float]
    predicted_s: Callable[[Expectation, Measured], float]


def fit_term(
    term: MeasuredTerm[Measured],
    ranks: Sequence[Measured],
    reprice: Reprice,
    values: Mapping[str, float],
    expected: Expectation,
) -> TermFit | None:
    """Find the value at which the prediction of the middle rank is what was measured; None without a term.

    ``values`` are the constants that differ from the package's so far, ``expected`` the plan at the cluster's own.
    """
    known = parameter(term.name)
    present = values.get(term.name, known.value)
    priced = reprice(values) if values else expected
    before = [term.predicted_s(priced, terms) for terms in ranks]
    measured = [term.measured_s(terms) for terms in ranks]
    least_s = LEAST_SHARE * expected.step_s
    pairs = zip(measured, before, strict=True)
    logs = {place: math.log(now / was) for place, (now, was) in enumerate(pairs) if now > 0 and was > least_s}
    if not logs:
        return None
    ratios = sorted(logs.values())
    # The figures that are shown are those of ranks that ran, not of an average that none had.
    middle = sorted(logs, key=lambda place: logs[place])[(len(logs) - 1) // 2 : len(logs) // 2 + 1]
    low, high = known.bounds
    at = [place for place, was in enumerate(before) if was > 0]
    wanted = median(ratios)

    def off(value: float) -> float:
        """Log of predicted over measured at a value, in the middle of the ranks."""
        here = reprice({**values, term.name: value})
        logs = [math.log(max(term.predicted_s(here, ranks[place]), 1e-12) / before[place]) for place in at]
        return median(logs) - wanted

    # How steeply the term follows, by a step of 5%: at a bound on the other side, where there is room.
    near = known.clipped(present * 1.05)
    near = known.clipped(present / 1.05) if near == present else near
    slope = (off(near) + wanted) / math.log(near / present) if near != present else 0.0
    # A run repeats within LEAST_SPREAD however many ranks it has; what ranks differ by averages out among them.
    spread = pstdev(ratios) / math.sqrt(len(ratios)) if len(ratios) > 1 else 0.0
    sigma = math.hypot(LEAST_SPREAD, spread) / abs(slope) if slope else math.inf
    # Without a prior of its own a constant's bounds count as two standard deviations to either side.
    prior = PRIOR_SIGMA.get(term.name.partition(".")[0], math.log(high / max(low, 1e-9)) / 4)
    reason = (
        "" if sigma < prior else _too_little(ratios, LEAST_SPREAD / abs(slope) < prior if slope else False)
    )
    value = present if reason else known.clipped(_solved(off, low, high, present))
    taken = not reason
    at_bound = taken and (min(abs(math.log(value / bound)) for bound in (max(low, 1e-12), high)) < AT_BOUND)
    if at_bound:
        reason = "at its bound, not identified: the rest of the term stays unexplained"
    now_priced = reprice({**values, term.name: value})
    return TermFit(
        name=term.name,
        term=term.words,
        present=present,
        value=value,
        sigma=min(max(sigma, prior) if at_bound else sigma, 10.0),
        measured_s=fmean(measured[place] for place in middle),
        before_s=fmean(before[place] for place in middle),
        after_s=fmean(term.predicted_s(now_priced, ranks[place]) for place in middle),
        taken=taken,
        reason=reason,
        at_bound=at_bound,
    )


def _too_little(ratios: Sequence[float], follows: bool) -> str:
    """Say why a term tells less of its constant than was known: ranks that differ, or a term that hardly follows."""
    if not follows:
        return "the term hardly follows it, so the profile tells less than was known"
    low, high = math.exp(min(ratios)), math.exp(max(ratios))
    return f"ranks differ too much ({low:.2f} to {high:.2f} of what is predicted), so the profile tells less than was known"


def _solved(off: Callable[[float], float], low: float, high: float, present: float) -> float:
    """Return the value within bounds at which ``off`` is least, searched in logarithms."""
    from scipy.optimize import brentq

    low, high = math.log(max(low, present / 100, 1e-9)), math.log(high)
    at_low, at_high = off(math.exp(low)), off(math.exp(high))
    # No value within bounds explains the term: the nearer bound is taken, and said to be one.
    if at_low * at_high > 0:
        return math.exp(low if abs(at_low) < abs(at_high) else high)
    found: float = brentq(lambda log: off(math.exp(log)), low, high, xtol=PRECISION)
    return math.exp(found)
