"""What a solve answers: the best layout, what it costs, the proof, the near-ties, or why nothing fits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.cost.factory import CostKind
from layoutopt.optimizer.cost.objectives import TIME, parse_objective
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.space.options import SpaceOptions
from layoutopt.optimizer.specs.errors import input_error

if TYPE_CHECKING:
    from collections.abc import Mapping

    from layoutopt.optimizer.cost.collectives import CollectiveCall
    from layoutopt.optimizer.cost.estimate import Estimate
    from layoutopt.optimizer.solve.certificate import Certificate, Status
    from layoutopt.optimizer.solve.search.best_by import ObjectiveAnswer
    from layoutopt.optimizer.solve.search.demands import Constrain
    from layoutopt.optimizer.solve.search.second import Second
    from layoutopt.optimizer.space.rule import BrokenRule
    from layoutopt.optimizer.specs.layout import Layout
    from layoutopt.optimizer.specs.vocabulary import Verdict


TIMED = frozenset({"step_s", "days", "cost", "energy_kwh"})
"""Quantities of requirements that follow from a step time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SolveOptions:
    """What decides the answer beside workload and cluster.

    ``top`` is how many layouts to report, ``near`` how far from the best they may be (relative; None: however far).
    ``gap`` stops the search when the answer is proven within it. ``one_model`` puts every tuple into one CP-SAT model.
    ``warm_start_s`` is a step time that some layout of the space is known to reach. ``constrain`` is a function of (model,
    view) that adds constraints to every slice: ``lambda model, v: model.add(v.tp * v.cp <= 8)``. ``then`` names a goal
    in which the answer is the best of all layouts as fast as the fastest, or up to ``within`` slower. ``minimize`` names
    what the answer is the best in (``cost/objectives.py``); ``samples`` are sets of constants, by name, over which
    ``expected``, ``quantile:0.9`` and ``regret`` are taken. ``reserve`` is the share of usable memory that is left free.
    """

    framework: Framework = Framework.MEGATRON
    space: SpaceOptions = field(default_factory=SpaceOptions)
    cost: CostKind = CostKind.FULL
    top: int = 3
    near: float | None = 0.02
    time_limit_s: float = float("inf")
    workers: int = 1
    gap: float = 0.0
    seed: int = 0
    one_model: bool = False
    warm_start_s: float = float("inf")
    constrain: Constrain | None = None
    then: str | None = None
    within: float = 0.0
    minimize: str = TIME
    samples: tuple[Mapping[str, float], ...] = ()
    reserve: float = 0.0

    def __post_init__(self) -> None:
        objective = parse_objective(self.minimize)
        if self.then is not None and parse_objective(self.then, key="then").quantity is None:
            raise input_error(f"{self.then} is no second goal", f"--minimize {self.then}", key="then")
        if self.then is not None and not objective.is_time:
            raise input_error("is second to the step time alone", "no --minimize beside it", key="then")
        wanted = {name for requirement in self.space.requirements for name in requirement.names}
        if "cost" in {self.then, self.minimize, *wanted} and self.space.gpu_hour_cost is None:
            raise input_error("is not given, and cost rests on it", "e.g. 2.5", key="gpu_hour_cost")
        if self.within and self.then is None:
            raise input_error("is given without a second goal", "then memory, for example", key="within")
        if objective.statistic and not self.samples:
            raise input_error(
                "needs sets of constants", "samples, of the posterior for example", key="minimize"
            )
        if objective.statistic and wanted & TIMED:
            named = ", ".join(sorted(wanted & TIMED))
            raise input_error(
                f"{named} follows from one step time, and {self.minimize} weighs many",
                "axes, layers, gpus and peak_gb",
                key="require",
            )
        if not 0 <= self.reserve < 1:
            raise input_error(f"{self.reserve} is no share", "0 up to below 1", key="reserve")
        if not 0 <= self.within < 1:
            raise input_error(f"{self.within} is no share", "0 up to below 1", key="within")


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """A runner-up: its own best stages, how much slower it is (relative), and which part of the step makes it so."""

    layout: Layout
    estimate: Estimate
    slower: float
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """An option with a value under which a question has an answer, and what it does."""

    option: str
    value: str
    effect: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Infeasibility:
    """Why nothing fits.

    ``binding`` names what binds: memory, a validity rule, or the GPU count. ``least_bytes`` is the least peak
    memory of any layout, ``capacity_bytes`` what a GPU offers tensors, ``fewest_gpus`` the smallest number of GPUs
    of this kind that fit (None: unknown), ``conflict`` a minimal set of constraints that exclude each other,
    ``suggestions`` what was tried and makes some layout run. ``cut_short``: a time limit or a stop ended the explanation.
    """

    message: str
    binding: str
    least_bytes: float | None = None
    capacity_bytes: float | None = None
    fewest_gpus: int | None = None
    conflict: tuple[str, ...] = ()
    suggestions: tuple[Suggestion, ...] = ()
    cut_short: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The answer of a solve. Without a layout ``infeasibility`` says why, or the search was stopped too early.

    ``bound_s`` is proven for every layout of the space; ``gap`` is (step - bound) / step. ``binds`` names what
    limits the step in words. ``freer_gain`` is how much faster the space of framework ``any`` could be at best
    (relative), None when not asked. ``then`` is the outcome for a second goal, where one was asked for,
    ``outcome`` that in another objective than time. ``comfortable`` is a layout near it whose memory is not borderline,
    where the answer's is. ``switches_worth`` is how much slower the step is without each launch switch, relative.
    ``open_ties`` tuples may be nearer to the answer than its alternatives, or further ones: they were not tried to the end.
    ``inputs`` is the plain form of everything that decides the answer.
    """

    status: Status
    layout: Layout | None
    estimate: Estimate | None
    verdict: Verdict | None
    bound_s: float | None
    gap: float | None
    alternatives: tuple[Alternative, ...]
    certificate: Certificate
    infeasibility: Infeasibility | None
    binds: tuple[str, ...]
    idle_gpus: int
    inputs: dict[str, Any]
    warnings: tuple[str, ...]
    solve_time_s: float
    freer_gain: float | None = None
    then: Second | None = None
    outcome: ObjectiveAnswer | None = None
    comfortable: Alternative | None = None
    switches_worth: Mapping[str, float] = field(default_factory=dict)
    open_ties: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The verdict on a given layout: valid or not and why, its price, its traffic, and whether it fits."""

    layout: Layout
    verdict: Verdict
    reasons: tuple[str, ...]
    broken: tuple[BrokenRule, ...]
    estimate: Estimate | None
    collectives: tuple[CollectiveCall, ...] = ()
    warnings: tuple[str, ...] = ()
