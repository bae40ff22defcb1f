"""Of layouts that the model cannot tell apart, the one that is least wrong whatever the constants really are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.estimate import estimate
from layoutopt.optimizer.cost.factory import build_cost_model
from layoutopt.optimizer.evidence.band import bands
from layoutopt.optimizer.evidence.parameters import known_parameters

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from layoutopt.optimizer.evidence.band import Band
    from layoutopt.optimizer.solve.plan import Plan, SolveOptions
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.layout import Layout
    from layoutopt.optimizer.specs.workload import Workload

SAMPLES = 64
"""Sets of constants drawn; the worst case is over them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RobustChoice:
    """The layout with the smallest worst-case regret among those inside the error band.

    ``layouts`` are the ones compared, best prediction first; ``worst_regret`` is how much slower each is at
    worst than the best of them under the same constants, ``chosen`` the index of the smallest. ``samples`` sets
    of constants were drawn with ``seed``.
    """

    layouts: tuple[Layout, ...]
    step_time_s: tuple[float, ...]
    worst_regret: tuple[float, ...]
    chosen: int
    samples: int
    seed: int

    @property
    def layout(self) -> Layout:
        """The layout to take."""
        return self.layouts[self.chosen]


def choose_robust(
    plan: Plan,
    workload: Workload,
    cluster: ClusterSpec,
    options: SolveOptions,
    band: Band,
    *,
    samples: int = SAMPLES,
) -> RobustChoice | None:
    """Compare the plan's layout with its alternatives inside the band; None without a layout.

    Constants are drawn independently from log-normal distributions around the package's values, as wide as the
    fit spreads when publications are left out; what the cluster's calibration states stays. ``options.seed`` is
    the seed. The cost is samples times layouts prices.
    """
    if plan.layout is None or plan.estimate is None:
        return None
    near = [one for one in plan.alternatives if one.slower <= band.indistinct]
    layouts = (plan.layout, *(one.layout for one in near))
    drawn = draw_constants(cluster, samples=samples, seed=options.seed)
    seconds = np.array([_step_times_s(layouts, workload, cluster, options, values) for values in drawn])
    worst = (seconds / seconds.min(axis=1, keepdims=True) - 1.0).max(axis=0)
    return RobustChoice(
        layouts=layouts,
        step_time_s=(plan.estimate.step_time_s, *(one.estimate.step_time_s for one in near)),
        worst_regret=tuple(worst.tolist()),
        chosen=int(worst.argmin()),
        samples=samples,
        seed=options.seed,
    )


def draw_constants(cluster: ClusterSpec, *, samples: int, seed: int) -> list[dict[str, float]]:
    """Draw sets of the fitted constants; those that the cluster's calibration states stay as they are."""
    spread: Mapping[str, float] = bands()["constants"]
    known, generator = known_parameters(), np.random.default_rng(seed)
    names = [name for name in sorted(spread) if name not in cluster.calibration and name in known]
    centres = np.array([known[name].value for name in names])
    widths = np.array([spread[name] for name in names])
    draws = centres * np.exp(widths * generator.standard_normal((samples, len(names))))
    return [
        {name: known[name].clipped(value) for name, value in zip(names, row, strict=True)}
        for row in draws.tolist()
    ]


def _step_times_s(
    layouts: Sequence[Layout],
    workload: Workload,
    cluster: ClusterSpec,
    options: SolveOptions,
    values: Mapping[str, float],
) -> list[float]:
    own = replace(cluster, calibration={**values, **cluster.calibration})
    cost = build_cost_model(
        workload.model,
        workload.training,
        own,
        framework=options.framework,
        software=options.space.software,
        kind=options.cost,
    )
    return [estimate(cost, layout).step_time_s for layout in layouts]
