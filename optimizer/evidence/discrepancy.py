"""By how much the cost model errs beside its constants: by component of a step and by layout.

A component's error is one for all layouts of a question, so that layouts of equal shares err alike; what is left differs
from layout to layout.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.components import TRAFFIC, Component
from layoutopt.optimizer.specs.document import packaged

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Discrepancy:
    """Standard deviations of log errors.

    ``compute`` of a component that the network does not take, ``traffic`` of one that it takes, of which ``network`` is
    what a benchmark of the collective alone would show; ``layout`` of a layout by itself, ``repeat`` of a run repeated.
    """

    compute: float
    traffic: float
    network: float
    layout: float
    repeat: float

    def covariance(self, breakdowns: Sequence[Mapping[Component, float]]) -> FloatArray:
        """Return the covariance of layouts' log step times by these errors, (n, n)."""
        # Layouts of equal shares move together, and their order is as sure as their own errors leave it.
        loadings = np.stack([self.loadings(one) for one in breakdowns])
        return loadings @ loadings.T + self.layout**2 * np.eye(len(loadings))

    def loadings(self, breakdown_s: Mapping[Component, float]) -> FloatArray:
        """Return what one standard deviation of every error adds to a log step time, (errors,).

        One entry per component without its network's part, then one for the network's part of each traffic.
        """
        total_s = sum(breakdown_s.values())
        own = [breakdown_s.get(part, 0.0) / total_s * self._beside_network(part) for part in Component]
        network = [breakdown_s.get(part, 0.0) / total_s * self.network for part in TRAFFIC]
        return np.array([*own, *network])

    def reading(self, part: Component) -> FloatArray:
        """Return the loadings (errors,) of a benchmark of one traffic's collective: its network's part alone."""
        own = np.zeros(len(Component))
        return np.concatenate([own, [self.network if one is part else 0.0 for one in TRAFFIC]])

    def _beside_network(self, part: Component) -> float:
        if part not in TRAFFIC:
            return self.compute
        # Variances add: what a traffic errs beyond the network's part is its own.
        return float(np.sqrt(max(self.traffic**2 - self.network**2, 0.0)))


def by_component(shares: Mapping[str, float]) -> dict[Component, float]:
    """Return parts of a step that are named by their keys as a breakdown."""
    return {part: shares[part.key] for part in Component if part.key in shares}


@cache
def discrepancy() -> Discrepancy:
    """Read the package's figures (``benchmarks/next_runs.py`` writes them)."""
    return Discrepancy(**packaged("evidence", "discrepancy"))
