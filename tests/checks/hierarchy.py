"""Intervals for runs of a publication that nobody has seen: a hierarchy of publications and of the runs inside them.

A log of measured over predicted is what its publication adds to all of its runs (machines, builds, what its authors leave
unsaid) and what is the run's own: a random-effects model (DerSimonian and Laird 1986, "Meta-analysis in clinical trials").
Of a kind of run with few publications the spread between them is barely seen, so that publications of other kinds count
beside its own, by a share of their likelihood (power prior: Ibrahim and Chen 2000). Some publications are far off: effects
follow Student's distribution (Lee and Thompson 2008, "Flexible parametric models for random-effects distributions"). The
interval is that of the next run of a new publication, not of a mean (Higgins, Thompson and Spiegelhalter 2009).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.stats import norm
from scipy.stats import t as student

from checks.choosing import FREEDOM
from layoutopt.optimizer.evidence.band import ALL, SHARES
from layoutopt.optimizer.evidence.robust import huber_location

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from checks.residuals import Residual

    FloatArray = NDArray[np.float64]
    Levels = Mapping[str, float]

OTHERS_BETWEEN = 8.0
"""All publications of other kinds together count as so many where effects of publications are fitted."""

OTHERS_WITHIN = 1.0
"""And so many where the errors inside a publication are collected: kinds differ in these."""

OWN_RUNS = 3
"""Own runs behind the scale of a calibrated cluster: as many as ``calibrate`` asks for."""

LEAST_SPREAD = 0.03
"""Spread that ``calibrate`` takes readings to have at least."""

SCALES = np.exp(np.linspace(np.log(0.005), np.log(0.6), 48))
"""Spreads between publications that are tried: from what repeats of a run average to, to nearly a factor of two."""

ROUNDS = 25
"""Reweightings of the mean under Student's distribution; it is still within a thousandth after ten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """What one publication says of one kind of run; ``logs`` (runs,) of measured over predicted."""

    family: str
    source: str
    logs: FloatArray

    @property
    def within(self) -> FloatArray:
        """Errors beside the publication's mean, as wide as they are beside the mean of all runs that it could hold."""
        runs = len(self.logs)
        return np.asarray((self.logs - self.logs.mean()) * (runs / (runs - 1)) ** 0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictive:
    """Equally likely logs of measured over predicted, sorted: of a run of an ``unseen`` publication, and of one that runs
    on a cluster whose scale ``OWN_RUNS`` ``own`` runs gave. (points,) each.
    """

    unseen: FloatArray
    own: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Share of rows inside intervals made without their publication, by percent stated; widths of the shipped ones.

    ``error`` is the standard error of ``inside`` with publications as the unit, None of a single one; ``widths`` are shares
    of a prediction.
    """

    family: str
    rows: int
    sources: int
    inside: Mapping[str, float]
    error: Mapping[str, float | None]
    widths: Mapping[str, float]


def publications(residuals: Iterable[Residual], quantity: str) -> list[Publication]:
    """Collect the runs of one quantity by publication and kind of run."""
    found: dict[tuple[str, str], list[float]] = {}
    for one in residuals:
        if one.quantity == quantity:
            found.setdefault((one.family, one.source), []).append(one.left_out)
    return [
        Publication(family=family, source=source, logs=np.array(logs))
        for (family, source), logs in sorted(found.items())
    ]


def predict_kind(known: Sequence[Publication], family: str) -> Predictive:
    """Return what is to be expected of a kind of run; ``ALL``, and any without a publication, is one like the others."""
    within = _within(known, family)
    spread = float(np.sqrt(np.mean(within**2)))
    middle, between = _between(known, family, spread)
    effects = middle + between * student.ppf(_middles(51), FREEDOM)
    scales = spread / OWN_RUNS**0.5 * norm.ppf(_middles(21))
    return Predictive(
        unseen=np.sort(np.add.outer(effects, within).ravel()),
        own=np.sort(np.add.outer(scales, within).ravel()),
    )


def _middles(count: int) -> FloatArray:
    return (np.arange(count) + 0.5) / count


def _within(known: Sequence[Publication], family: str) -> FloatArray:
    """Return equally likely errors inside a publication, (points,): every publication of a kind is as likely as another."""
    several = [one for one in known if len(one.logs) > 1]
    own = np.array([one.family == family for one in several])
    weights = _weights(own, OTHERS_WITHIN)
    logs = np.concatenate([one.within for one in several])
    shares = np.concatenate(
        [np.full(len(one.logs), weight / len(one.logs)) for one, weight in zip(several, weights, strict=True)]
    )
    order = np.argsort(logs)
    places = (np.cumsum(shares[order]) - shares[order] / 2) / shares.sum()
    return np.asarray(np.interp(_middles(101), places, logs[order]))


def _weights(own: NDArray[np.bool_], others: float) -> FloatArray:
    """Return how much each publication counts: a kind's own one, all others together ``others``."""
    return np.where(own, 1.0, others / max(int((~own).sum()), 1))


def _between(known: Sequence[Publication], family: str, spread: float) -> tuple[float, float]:
    """Return the middle of publications' effects and their scale, with what is not known of the middle.

    The scale is the most likely one after the middle was fitted (restricted likelihood), the middle by reweighting.
    """
    weights = _weights(np.array([one.family == family for one in known]), OTHERS_BETWEEN)
    means = np.array([one.logs.mean() for one in known])
    # A publication's mean is as far from its effect as its few runs leave it.
    variances = SCALES[:, None] ** 2 + spread**2 / np.array([len(one.logs) for one in known])
    middles = np.full((len(SCALES), 1), np.average(means, weights=weights))
    for _ in range(ROUNDS):
        off = (means - middles) ** 2 / variances
        pull = weights * (FREEDOM + 1) / (FREEDOM + off) / variances
        middles = ((pull * means).sum(axis=1) / pull.sum(axis=1))[:, None]
    off = (means - middles) ** 2 / variances
    logs = -np.log(variances) / 2 - (FREEDOM + 1) / 2 * np.log1p(off / FREEDOM)
    likely = (weights * logs).sum(axis=1) - np.log((weights / variances).sum(axis=1)) / 2
    best = int(np.argmax(likely))
    return float(middles[best, 0]), float(SCALES[best] * (1 + 1 / weights.sum()) ** 0.5)


def places(points: FloatArray, logs: FloatArray) -> FloatArray:
    """Return which central interval of a distribution's points each log is at the end of, 0 to 1, (logs,)."""
    below = (np.searchsorted(points, logs) + 0.5) / (len(points) + 1)
    return np.asarray(np.abs(2 * below - 1))


def unseen_places(known: Sequence[Publication]) -> list[FloatArray]:
    """Return the places of every publication's runs in what the other publications make expected of them."""
    return [
        places(predict_kind([other for other in known if other is not one], one.family).unseen, one.logs)
        for one in known
    ]


def own_places(known: Sequence[Publication]) -> list[FloatArray]:
    """Return the same after own runs: each run beside the scale of ``OWN_RUNS`` others of its publication, far from it."""
    found = []
    for one in known:
        runs = len(one.logs)
        logs = [
            one.logs[row] - huber_location(_others(one.logs, row), least_spread=LEAST_SPREAD).value
            for row in range(runs if runs > OWN_RUNS else 0)
        ]
        expected = predict_kind([other for other in known if other is not one], one.family).own
        found.append(places(expected, np.array(logs)))
    return found


def _others(logs: FloatArray, row: int) -> list[float]:
    # Neighbours in a table are mostly one model: other rows are what a cluster's first runs are to its next question.
    return [
        float(logs[(row + step * len(logs) // (OWN_RUNS + 1)) % len(logs)]) for step in range(1, OWN_RUNS + 1)
    ]


def stated_levels(found: Iterable[FloatArray]) -> dict[str, float]:
    """Return the central intervals of the model that hold 50, 80 and 95% of all runs, by the percents' names.

    Over all kinds at once, publications left out: three figures, by which the model's shape is set right (calibrated
    regression: Kuleshov, Fenner and Ermon 2018).
    """
    every = np.concatenate(list(found))
    return {name: float(np.quantile(every, int(name) / 100)) for name in SHARES}


def ratios(points: FloatArray, levels: Levels) -> dict[str, tuple[float, float]]:
    """Return measured over predicted at the ends of the intervals, by the percents' names."""
    return {
        name: (
            float(np.exp(np.quantile(points, 0.5 - level / 2))),
            float(np.exp(np.quantile(points, 0.5 + level / 2))),
        )
        for name, level in levels.items()
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Hierarchy:
    """Publications by quantity, and the intervals of the model that hold what is stated."""

    known: Mapping[str, Sequence[Publication]]
    levels: Levels

    def families(self, quantity: str) -> list[str]:
        """Name the kinds of run."""
        return sorted({one.family for one in self.known[quantity]})

    def unseen(self, quantity: str, family: str) -> dict[str, tuple[float, float]]:
        """Return measured over predicted of a kind of run of a new publication."""
        return ratios(predict_kind(self.known[quantity], family).unseen, self.levels)

    def own(self, quantity: str, family: str) -> dict[str, tuple[float, float]]:
        """Return the same of a cluster with own runs."""
        levels = stated_levels(own_places(self.known[quantity]))
        return ratios(predict_kind(self.known[quantity], family).own, levels)


def hierarchy(residuals: Sequence[Residual], *, without: str | None = None) -> Hierarchy:
    """Fit the model to all publications, or to all but one."""
    kept = [one for one in residuals if one.source != without]
    known = {quantity: publications(kept, quantity) for quantity in ("step", "memory")}
    every = [one for own in known.values() for one in unseen_places(own)]
    return Hierarchy(known=known, levels=stated_levels(every))


def coverages(residuals: Sequence[Residual]) -> dict[str, list[Coverage]]:
    """Count rows inside intervals that their publication had no part in, by quantity; all kinds together first."""
    everything = hierarchy(residuals)
    apart = {
        one.source: hierarchy(residuals, without=one.source)
        for own in everything.known.values()
        for one in own
    }
    return {
        quantity: [
            _coverage(
                everything, quantity, family, [_inside(one, quantity, apart[one.source]) for one in known]
            )
            for family in (ALL, *everything.families(quantity))
        ]
        for quantity, known in everything.known.items()
    }


def _inside(one: Publication, quantity: str, apart: Hierarchy) -> dict[str, float]:
    expected = predict_kind(apart.known[quantity], one.family)
    found = places(expected.unseen, one.logs)
    return {name: float((found <= level).sum()) for name, level in apart.levels.items()}


def _coverage(
    everything: Hierarchy, quantity: str, family: str, inside: Sequence[Mapping[str, float]]
) -> Coverage:
    known = everything.known[quantity]
    mine = [place for place, one in enumerate(known) if family in (ALL, one.family)]
    rows = np.array([len(known[place].logs) for place in mine], dtype=np.float64)
    hits = {name: np.array([inside[place][name] for place in mine]) for name in SHARES}
    return Coverage(
        family=family,
        rows=int(rows.sum()),
        sources=len({known[place].source for place in mine}),
        inside={name: float(hits[name].sum() / rows.sum()) for name in SHARES},
        error={name: _standard_error(hits[name], rows) for name in SHARES},
        widths={name: high - low for name, (low, high) in everything.unseen(quantity, family).items()},
    )


def _standard_error(hits: FloatArray, rows: FloatArray) -> float | None:
    """Return the standard error of a share whose unit is the publication (Liang and Zeger 1986); None of one alone."""
    count = len(rows)
    if count < 2:
        return None
    off = hits - rows * hits.sum() / rows.sum()
    return float(np.sqrt(count / (count - 1) * (off**2).sum()) / rows.sum())
