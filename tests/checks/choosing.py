"""Choosing among layouts that were really run: by prediction, under uncertainty, and after a few suggested measurements."""

from __future__ import annotations

from dataclasses import dataclass
from math import lgamma
from typing import TYPE_CHECKING

import numpy as np

from checks.fit import source_of
from checks.healthy import healthy
from layoutopt.optimizer.evidence.belief import DRAWS, Belief, suggest
from layoutopt.optimizer.evidence.discrepancy import Discrepancy
from layoutopt.optimizer.evidence.validate import layout_key, members

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    from numpy.typing import NDArray

    from layoutopt.optimizer.cost.components import Component
    from layoutopt.optimizer.evidence.validate import RowResult

    FloatArray = NDArray[np.float64]
    Pick = Callable[[Belief, set[int]], int]

FREEDOM = 4.0
"""Degrees of freedom of Student's distribution of errors: single layouts are far off now and then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunGroup:
    """Layouts of one model, cluster and batch, repeats averaged.

    ``measured`` and ``predicted`` are logs of seconds (n,), predictions with the publication left out of the fit;
    ``constants`` the covariance of predictions by the constants' uncertainty, ``breakdowns`` the predicted steps' parts.
    """

    name: str
    source: str
    measured: FloatArray
    predicted: FloatArray
    constants: FloatArray
    breakdowns: tuple[Mapping[Component, float], ...]

    def belief(self, errors: Discrepancy) -> Belief:
        """Return what is believed of the layouts before any is run."""
        return Belief(
            layouts=len(self.predicted),
            mean=self.predicted,
            covariance=self.constants + errors.covariance(self.breakdowns),
            noise=errors.repeat,
        )

    def regret(self, chosen: int) -> float:
        """Return by what share a layout is slower than the fastest that was run."""
        return float(np.exp(self.measured[chosen] - self.measured.min()) - 1)


def run_groups(
    rows: Sequence[RowResult],
    left_out: Mapping[str, float],
    jacobian: Mapping[str, FloatArray],
    covariance: FloatArray,
    *,
    smallest: int,
) -> list[RunGroup]:
    """Return the groups of at least ``smallest`` distinct layouts, faulty builds out.

    ``left_out`` are log measured over predicted by id, ``jacobian`` the derivatives of log seconds by log constants, whose
    covariance is ``covariance``.
    """
    timed = [row for row in rows if row.case.measured_s is not None and row.case.run.id in left_out]
    kept = {case.run.id for case in healthy([row.case for row in timed])}
    timed = [row for row in timed if row.case.run.id in kept]
    groups = []
    for name, indices in members([row.case for row in timed]).items():
        layouts: dict[Hashable, list[RowResult]] = {}
        for index in indices:
            layouts.setdefault(layout_key(timed[index].case), []).append(timed[index])
        if len(layouts) >= smallest:
            groups.append(_group(name, list(layouts.values()), left_out, jacobian, covariance))
    return groups


def _group(
    name: str,
    layouts: Sequence[Sequence[RowResult]],
    left_out: Mapping[str, float],
    jacobian: Mapping[str, FloatArray],
    covariance: FloatArray,
) -> RunGroup:
    measured = np.array([np.mean([np.log(row.case.measured_s or 1.0) for row in same]) for same in layouts])
    errors = np.array([np.mean([left_out[row.case.run.id] for row in same]) for same in layouts])
    nothing = np.zeros(len(covariance))
    slopes = np.stack([jacobian.get(same[0].case.run.id, nothing) for same in layouts])
    return RunGroup(
        name=name,
        source=source_of(layouts[0][0].case),
        measured=measured,
        predicted=measured - errors,
        constants=slopes @ covariance @ slopes.T,
        breakdowns=tuple(same[0].prediction.breakdown_s for same in layouts),
    )


def fit_discrepancy(groups: Sequence[RunGroup], *, network: float, repeat: float) -> Discrepancy:
    """Return the most likely errors of components and layouts: what tells layouts of a group apart, whatever all share."""
    from scipy.optimize import minimize

    def loss(logs: FloatArray) -> float:
        compute, traffic, layout = np.exp(logs)
        errors = Discrepancy(
            compute=compute, traffic=max(traffic, network), network=network, layout=layout, repeat=repeat
        )
        return -sum(_log_likelihood(group, errors) for group in groups)

    starts = ([-2.0, -1.0, -3.0], [-1.0, -2.0, -3.0])
    found = min((minimize(loss, start, method="Nelder-Mead") for start in starts), key=lambda one: one.fun)
    compute, traffic, layout = (float(f"{value:.3g}") for value in np.exp(found.x))
    return Discrepancy(compute=compute, traffic=traffic, network=network, layout=layout, repeat=repeat)


def _log_likelihood(group: RunGroup, errors: Discrepancy) -> float:
    """Return the log likelihood of the differences to a group's first layout (Student's, up to a constant)."""
    count = len(group.measured) - 1
    differences = np.eye(count + 1)[1:] - np.eye(count + 1)[0]
    belief = group.belief(errors)
    spread = differences @ (belief.covariance + errors.repeat**2 * np.eye(count + 1)) @ differences.T
    off = differences @ (group.measured - belief.mean)
    size = off @ np.linalg.solve(spread, off)
    shape = lgamma((FREEDOM + count) / 2) - lgamma(FREEDOM / 2) - count / 2 * np.log(FREEDOM)
    return float(shape - np.linalg.slogdet(spread)[1] / 2 - (FREEDOM + count) / 2 * np.log1p(size / FREEDOM))


def regrets_of_runs(group: RunGroup, errors: Discrepancy, runs: int, pick: Pick) -> list[float]:
    """Return the choice's regret before the first and after each measured run, which ``pick`` chooses."""
    belief, seen = group.belief(errors), set[int]()
    regrets = [group.regret(belief.best)]
    for _ in range(runs):
        item = pick(belief, seen)
        seen.add(item)
        belief = belief.observed(item, float(group.measured[item]))
        regrets.append(group.regret(belief.best))
    return regrets


def suggested(runs: int) -> Pick:
    """Pick, of ``runs``, what next-runs names first of the layouts that were not run; the likeliest where it names none."""

    def pick(belief: Belief, seen: set[int]) -> int:
        named = suggest(belief, np.ones(belief.layouts), runs=runs - len(seen), least=0.0)
        order = (*named, *(int(item) for item in np.argsort(belief.mean)))
        return next(item for item in order if item not in seen)

    return pick


def at_random(seed: int) -> Pick:
    """Pick any layout that was not run yet."""
    generator = np.random.default_rng(seed)
    return lambda belief, seen: int(generator.choice([n for n in range(belief.layouts) if n not in seen]))


def choices(group: RunGroup, errors: Discrepancy) -> dict[str, int]:
    """Return the layouts chosen by prediction, by expected step time, and by mean and worst regret over draws."""
    belief = group.belief(errors)
    generator = np.random.default_rng(0)
    draws = generator.multivariate_normal(belief.mean, belief.covariance, size=DRAWS, method="eigh")
    seconds = np.exp(draws)
    worst = (seconds / seconds.min(axis=1, keepdims=True)).max(axis=0)
    return {
        "time": belief.best,
        "expected": int(np.argmin(seconds.mean(axis=0))),
        "mean regret": int(np.argmin(belief.regrets())),
        "worst regret": int(np.argmin(worst)),
    }


def regret_by_repeats(group: RunGroup, errors: Discrepancy, seed: int = 0) -> float:
    """Return the mean regret of who knows the fastest layout, where measurements differ from each other as repeats do."""
    noise = np.random.default_rng(seed).normal(0.0, errors.repeat, (DRAWS, len(group.measured)))
    read = group.measured + noise
    return float(np.mean(np.exp(read[:, np.argmin(group.measured)] - read.min(axis=1)) - 1))
