"""What is uncertain says of a choice among near-ties: the chance that it is the best, and the layout that loses least.

Among measured layouts (``benchmarks/next_runs.py``) the mean regret chooses no worse than the fastest prediction, and the
worst regret worse.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.cost_model import CostModel
from layoutopt.optimizer.cost.objective_cost import ObjectiveCost
from layoutopt.optimizer.cost.stage_counts import seat_blocks
from layoutopt.optimizer.cost.statistic import Statistic, StatisticKind
from layoutopt.optimizer.evidence.discrepancy import discrepancy
from layoutopt.optimizer.evidence.observed import Items, believed
from layoutopt.optimizer.evidence.posterior import draw_posterior
from layoutopt.optimizer.solve.inputs import Question
from layoutopt.optimizer.solve.model.sampled_paths import SampledPaths
from layoutopt.optimizer.space.rows import rows_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from layoutopt.optimizer.cost.estimate import Estimate
    from layoutopt.optimizer.evidence.band import Band
    from layoutopt.optimizer.evidence.belief import Belief
    from layoutopt.optimizer.solve.plan import Plan, SolveOptions
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.layout import Layout
    from layoutopt.optimizer.specs.workload import Workload

    FloatArray = NDArray[np.float64]

DRAWS = 16
"""Sets of constants under which near-ties are compared by default: a fraction of what the search takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceRisk:
    """What is uncertain says of the answer among its near-ties: constants, and what the cost model errs beside them.

    ``chance_best`` is the chance that none of the other ``layouts`` - 1 is really faster, ``expected_loss`` how much slower
    the answer is in the mean than the one that is. ``draws`` sets of constants were priced.
    """

    layouts: int
    draws: int
    chance_best: float
    expected_loss: float


def choice_risk(
    plan: Plan, workload: Workload, cluster: ClusterSpec, options: SolveOptions, *, draws: int = DRAWS
) -> ChoiceRisk | None:
    """Compare an answer with its near-ties; None without any near-tie."""
    if plan.layout is None or plan.estimate is None or not plan.alternatives:
        return None
    layouts = (plan.layout, *(one.layout for one in plan.alternatives))
    estimates = (plan.estimate, *(one.estimate for one in plan.alternatives))
    drawn = draw_posterior(cluster, samples=draws, seed=options.seed, after_runs=False)
    seconds = steps_under(layouts, workload, cluster, options, drawn)
    belief = belief_of(estimates, seconds, drawn, cluster)
    return ChoiceRisk(
        layouts=len(layouts),
        draws=draws,
        chance_best=float(belief.chances(options.seed)[0]),
        expected_loss=float(belief.regrets(options.seed)[0]),
    )


def belief_of(
    estimates: Sequence[Estimate],
    steps_s: FloatArray,
    drawn: Sequence[Mapping[str, float]],
    cluster: ClusterSpec,
) -> Belief:
    """Return what is believed of layouts' steps by ``steps_s`` (sets, layouts), errors beside the constants and own runs.

    ``drawn`` are the sets of constants, not yet conditioned by the cluster's own runs.
    """
    errors = discrepancy()
    items = Items(
        layouts=len(estimates),
        mean=np.log([one.step_time_s for one in estimates]),
        logs=np.log(steps_s),
        loadings=np.stack([errors.loadings(one.breakdown_s) for one in estimates]),
        priced=estimates,
    )
    return believed(items, drawn, cluster.observations)


def steps_under(
    layouts: Sequence[Layout],
    workload: Workload,
    cluster: ClusterSpec,
    options: SolveOptions,
    drawn: Sequence[Mapping[str, float]],
) -> FloatArray:
    """Return the steps of layouts under sets of constants, (sets, layouts) seconds."""
    question = Question(workload=workload, cluster=cluster, options=options)
    base = question.cost()
    # Draws of a posterior weigh alike.
    even = np.full(len(drawn), 1 / len(drawn))
    paths = SampledPaths(statistic=Statistic(kind=StatisticKind.MEAN, weights=even))
    samples = question.costs_under(drawn, base)
    # The search's own paths under sets of constants: what is averaged here is what --minimize expected proves.
    values = {field.name: getattr(base, field.name) for field in fields(CostModel)}
    sampled = ObjectiveCost(**values, samples=samples, weights=even)
    terms = sampled.terms(rows_of(layouts))
    columns = [
        paths.steps_s(terms, row, *seat_blocks(layout, base.model)) for row, layout in enumerate(layouts)
    ]
    return np.stack(columns, axis=1)


ROBUST_DRAWS = 64
"""Sets of constants behind a robust choice; its worst case is over them."""


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
    samples: int = ROBUST_DRAWS,
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
