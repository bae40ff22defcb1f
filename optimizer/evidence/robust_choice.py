"""Of layouts that the model cannot tell apart, the one that loses least in the mean over all that is uncertain.

Among measured layouts (``benchmarks/next_runs.py``) the mean regret chooses no worse than the fastest prediction, and the
worst regret worse.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from layoutopt.optimizer.evidence.posterior import draw_posterior
from layoutopt.optimizer.evidence.steps_under import belief_of, steps_under

if TYPE_CHECKING:
    from layoutopt.optimizer.evidence.band import Band
    from layoutopt.optimizer.solve.plan import Plan, SolveOptions
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.layout import Layout
    from layoutopt.optimizer.specs.workload import Workload

SAMPLES = 64
"""Sets of constants drawn; the worst case is over them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RobustChoice:
    """The layout with the smallest mean regret among those inside the error band.

    ``layouts`` are the ones compared, best prediction first. ``mean_regret`` is how much slower each is in the mean than the
    one that is really the fastest, constants and the cost model's other errors being uncertain, ``chosen`` the index of the
    smallest; ``worst_regret`` how much slower each is at worst than the best of them under one of ``samples`` sets of
    constants, drawn with ``seed``.
    """

    layouts: tuple[Layout, ...]
    step_time_s: tuple[float, ...]
    mean_regret: tuple[float, ...]
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

    Constants are drawn from their joint posterior; what the cluster's calibration states stays, and its runs
    are weighed. ``options.seed`` is the seed. The cost is samples times layouts prices.
    """
    if plan.layout is None or plan.estimate is None:
        return None
    near = [one for one in plan.alternatives if one.slower <= band.indistinct]
    layouts = (plan.layout, *(one.layout for one in near))
    # The cluster's own runs are weighed below, with all that the cost model errs beside its constants.
    drawn = draw_posterior(cluster, samples=samples, seed=options.seed, after_runs=False)
    seconds = steps_under(layouts, workload, cluster, options, drawn)
    worst = (seconds / seconds.min(axis=1, keepdims=True) - 1.0).max(axis=0)
    estimates = (plan.estimate, *(one.estimate for one in near))
    regrets = belief_of(estimates, seconds, drawn, cluster).regrets(options.seed)
    return RobustChoice(
        layouts=layouts,
        step_time_s=tuple(one.step_time_s for one in estimates),
        mean_regret=tuple(regrets.tolist()),
        worst_regret=tuple(worst.tolist()),
        chosen=int(regrets.argmin()),
        samples=samples,
        seed=options.seed,
    )
