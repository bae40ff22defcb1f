"""The joint distribution of the fitted constants, shipped with the package, and sets of constants drawn from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from layoutopt.optimizer.evidence.discrepancy import by_component, discrepancy
from layoutopt.optimizer.evidence.parameters import known_parameters
from layoutopt.optimizer.specs.document import packaged

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from layoutopt.optimizer.specs.cluster import ClusterSpec, Observation

    FloatArray = NDArray[np.float64]

SAMPLES = 32
"""Sets of constants of an answer that weighs them, unless another number is asked for."""

CERTAIN = 1e-4
"""Standard deviation of the logarithm of a constant that is stated: none, but for rounding."""


def draw_posterior(
    cluster: ClusterSpec, *, samples: int = SAMPLES, seed: int = 0, after_runs: bool = True
) -> tuple[dict[str, float], ...]:
    """Draw sets of constants, each as jointly likely as the fit and what the cluster read of them say.

    Logarithms are normal (``posterior.yaml``); constants that equal another one follow it; all stay within the ranges of
    their sources. What the cluster's calibration states is known and stays out: the others are drawn as they are
    where it is so. Runs that it was calibrated with condition them too, unless ``after_runs`` is False.
    """
    table, known = posterior(), known_parameters()
    names: list[str] = table["names"]
    mean, covariance = conditioned(cluster, after_runs=after_runs)
    generator = np.random.default_rng(seed)
    # By eigenvalues: constants that are known leave a covariance of lower rank, which Cholesky refuses.
    logs = generator.multivariate_normal(mean, covariance, size=samples, method="eigh")
    drawn = []
    for row in np.exp(logs).tolist():
        values: dict[str, float] = {}
        for name, value in zip(names, row, strict=True):
            values |= moved(name, value)
        drawn.append(
            {
                name: known[name].clipped(value)
                for name, value in sorted(values.items())
                if name in known and name not in cluster.calibration
            }
        )
    return tuple(drawn)


def moved(name: str, value: float) -> dict[str, float]:
    """Return a constant at a value, with those that equal it."""
    return dict.fromkeys((name, *posterior().get("ties", {}).get(name, ())), value)


def conditioned(cluster: ClusterSpec, *, after_runs: bool = True) -> tuple[FloatArray, FloatArray]:
    """Return mean (n,) and covariance (n, n) of the log constants after what a cluster's calibration says of them.

    A stated constant is known, unless an observation of it alone says how well. A run reads a weighted sum of log constants,
    within its own spread and all that the cost model errs beside them. Gaussian conditioning, all at once.
    """
    table = posterior()
    mean, covariance = np.array(table["logs"]), np.array(table["covariance"])
    stated = _stated(cluster)
    runs = [one for one in cluster.observations if one.shares] if after_runs else []
    rows = np.zeros((len(stated) + len(runs), len(mean)))
    if not len(rows):
        return mean, covariance
    off, noise = np.zeros(len(rows)), np.zeros((len(rows), len(rows)))
    for row, (place, (log, spread)) in enumerate(stated.items()):
        rows[row, place], off[row], noise[row, row] = 1.0, log - mean[place], spread**2 + CERTAIN**2
    for row, one in enumerate(runs, start=len(stated)):
        for place, name in enumerate(table["names"]):
            # A stated constant was part of the run's price: what the run is off by is not its doing.
            rows[row, place] = 0.0 if place in stated else one.slopes.get(name, 0.0)
        off[row] = np.log(one.ratio)
    noise[len(stated) :, len(stated) :] = _beside_constants(runs)
    gain = np.linalg.solve(rows @ covariance @ rows.T + noise, rows @ covariance).T
    return mean + gain @ off, covariance - gain @ rows @ covariance


def _stated(cluster: ClusterSpec) -> dict[int, tuple[float, float]]:
    """Return log value and spread of the constants that a cluster states, by their place in the table."""
    spreads = {name: one.spread for one in cluster.observations if not one.shares for name in one.slopes}
    found = {}
    for place, name in enumerate(posterior()["names"]):
        for own in moved(name, 0.0):
            if own in cluster.calibration:
                found[place] = (float(np.log(cluster.calibration[own])), spreads.get(own, 0.0))
    return found


def _beside_constants(runs: Sequence[Observation]) -> FloatArray:
    """Return the covariance (runs, runs) of log readings by what the cost model errs beside its constants."""
    if not runs:
        return np.zeros((0, 0))
    errors = discrepancy()
    steps = [by_component(one.shares) for one in runs]
    own: FloatArray = np.diag([one.spread**2 for one in runs])
    return errors.covariance(steps) + own


def posterior() -> Mapping[str, Any]:
    """Read the package's table: names, logs, covariance, and constants that equal a named one."""
    table: Mapping[str, Any] = packaged("evidence", "posterior")
    return table
