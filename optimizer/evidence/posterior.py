"""The joint distribution of the fitted constants, shipped with the package, and sets of constants drawn from it."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

import numpy as np

from layoutopt.optimizer.evidence.parameters import known_parameters
from layoutopt.optimizer.specs.document import plain_yaml

if TYPE_CHECKING:
    from collections.abc import Mapping

    from layoutopt.optimizer.specs.cluster import ClusterSpec

SAMPLES = 32
"""Sets of constants of an answer that weighs them, unless another number is asked for."""


def draw_posterior(
    cluster: ClusterSpec, *, samples: int = SAMPLES, seed: int = 0
) -> tuple[dict[str, float], ...]:
    """Draw sets of constants, each as jointly likely as the fit says, within the ranges of their sources.

    Logarithms are normal (``posterior.yaml``); constants that equal another one follow it. What the cluster's calibration
    states is known and stays out.
    """
    table, known = posterior(), known_parameters()
    names: list[str] = table["names"]
    generator = np.random.default_rng(seed)
    logs = generator.multivariate_normal(
        np.array(table["logs"]), np.array(table["covariance"]), size=samples, method="eigh"
    )
    drawn = []
    for row in np.exp(logs).tolist():
        values = dict(zip(names, row, strict=True))
        for name, others in table.get("ties", {}).items():
            values |= dict.fromkeys(others, values[name])
        drawn.append(
            {
                name: known[name].clipped(value)
                for name, value in sorted(values.items())
                if name in known and name not in cluster.calibration
            }
        )
    return tuple(drawn)


@cache
def posterior() -> Mapping[str, Any]:
    """Read the package's table: names, logs, covariance, and constants that equal a named one."""
    text = (
        resources.files("layoutopt.optimizer.evidence").joinpath("posterior.yaml").read_text(encoding="utf-8")
    )
    table: Mapping[str, Any] = plain_yaml(text)
    return table
