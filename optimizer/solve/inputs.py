"""Everything that decides an answer, as plain data: written into a plan, and rebuilt from it for verification."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from importlib import resources
from math import inf, isinf
from typing import TYPE_CHECKING, Any

import numpy as np

from layoutopt.optimizer.cost.factory import CostKind, build_cost_model
from layoutopt.optimizer.cost.objective_cost import sharing_network
from layoutopt.optimizer.cost.objectives import TIME
from layoutopt.optimizer.cost.run_facts import RunFacts
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.solve.plan import SolveOptions
from layoutopt.optimizer.solve.run_preset import preset_of_run
from layoutopt.optimizer.solve.search.costed_space import CostedSpace
from layoutopt.optimizer.solve.search.demands import Demands, Unwritten
from layoutopt.optimizer.space.context import RunOptions, make_context
from layoutopt.optimizer.space.enumeration import build_space
from layoutopt.optimizer.space.options import SpaceOptions
from layoutopt.optimizer.specs.canonical import cluster_from_plain, to_plain, workload_from_plain
from layoutopt.optimizer.specs.errors import input_error
from layoutopt.optimizer.specs.layout import Recompute
from layoutopt.optimizer.specs.vocabulary import CpComm, Granularity, Precision, Saver, Schedule

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from importlib.resources.abc import Traversable

    from layoutopt.optimizer.cost.cost_model import CostModel
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.model import ModelSpec
    from layoutopt.optimizer.specs.workload import Workload

ROOMS = ("specs", "topology", "frameworks", "cost", "space", "solve")
"""Packages whose code and constants decide an answer: what is read, launched, priced, declared and searched."""

DECIDE_NOTHING = ("solve/verify", "solve/explain")
"""Folders of those rooms that judge and explain answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A workload, a cluster, and the options that declare the space and choose the prices."""

    workload: Workload
    cluster: ClusterSpec
    options: SolveOptions

    def to_plain(self) -> dict[str, Any]:
        """Return plain data of all that decides the answer and how it was searched, but for the time limit."""
        options = self.options
        plain: dict[str, Any] = {
            "workload": to_plain(self.workload),
            "cluster": to_plain(self.cluster),
            "framework": options.framework.value,
            "cost": options.cost.value,
            "space": _space_to_plain(options.space),
            "search": _search_to_plain(options),
        }
        if options.minimize != TIME:
            plain["minimize"] = options.minimize
        if options.samples:
            plain["samples"] = [dict(values) for values in options.samples]
        if options.reserve:
            plain["reserve"] = options.reserve
        if options.then is not None:
            plain["then"] = {"goal": options.then, "within": options.within}
        if options.constrain is not None:
            plain["constrain"] = getattr(options.constrain, "__name__", type(options.constrain).__name__)
        return plain

    def costed_space(self) -> CostedSpace:
        """Enumerate the declared space and build its prices."""
        model, training = self.workload.model, self.workload.training
        framework, options = self.options.framework, self.options.space
        space = build_space(model, training, self.cluster, framework, options)
        return CostedSpace(
            space=space,
            cost=self._cost(space.ctx.model, self.cluster),
            demands=self._demands(space.ctx.model),
            reserve=self.options.reserve,
        )

    def cost(self) -> CostModel:
        """Build the prices alone."""
        options = self.options.space
        ctx = make_context(
            self.workload.model,
            self.workload.training,
            self.cluster,
            self.options.framework,
            options.software,
        )
        return self._cost(ctx.model, self.cluster)

    def costs_under(self, drawn: Sequence[Mapping[str, float]], base: CostModel) -> tuple[CostModel, ...]:
        """Return a cost model for every set of constants; what the cluster's calibration states stays."""
        found = []
        for values in drawn:
            # What a cluster file states was measured there, and is no guess to be varied.
            cluster = replace(self.cluster, calibration={**values, **self.cluster.calibration})
            found.append(sharing_network(self._cost(base.model, cluster), base))
        return tuple(found)

    def _cost(self, model: ModelSpec, cluster: ClusterSpec) -> CostModel:
        framework, options = self.options.framework, self.options.space
        return build_cost_model(
            model,
            self.workload.training,
            cluster,
            framework=framework,
            software=options.software,
            kind=self.options.cost,
            preset=preset_of_run(framework, options.software, cluster, options.run),
        )

    def _demands(self, model: ModelSpec) -> Demands:
        """Return what is demanded of stages; axes alone are the space's."""
        space = self.options.space
        return Demands(
            facts=RunFacts(
                model=model,
                training=self.workload.training,
                cluster=self.cluster,
                gpu_hour_cost=space.gpu_hour_cost,
            ),
            layers=np.array([len(run.block) for run in model.runs], dtype=np.int64),
            total=model.layers,
            requirements=tuple(wanted for wanted in space.requirements if wanted.of_stages),
            constrain=self.options.constrain,
        )


def question_from_plain(plain: Mapping[str, Any], *, file: str = "") -> Question:
    """Rebuild a question. Raises ``InputError`` naming what is missing or wrong."""
    missing = [name for name in ("workload", "cluster", "framework", "cost", "space") if name not in plain]
    if missing:
        raise input_error(f"inputs lack {missing[0]!r}", key="inputs", file=file)
    try:
        framework, cost = Framework(plain["framework"]), CostKind(plain["cost"])
        space = _space_from_plain(plain["space"])
        search, goals = _search_from_plain(plain.get("search", {})), _goals_from_plain(plain)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise input_error(f"unreadable options: {error}", key="inputs", file=file) from None
    return Question(
        workload=workload_from_plain(plain["workload"], file=file, path=("inputs", "workload")),
        cluster=cluster_from_plain(plain["cluster"], file=file, path=("inputs", "cluster")),
        options=SolveOptions(framework=framework, cost=cost, space=space, **search, **goals),
    )


def _goals_from_plain(plain: Mapping[str, Any]) -> dict[str, Any]:
    goals: dict[str, Any] = {}
    if "constrain" in plain:
        goals["constrain"] = Unwritten(str(plain["constrain"]))
    goals["minimize"] = str(plain.get("minimize", TIME))
    goals["reserve"] = float(plain.get("reserve", 0.0))
    goals["samples"] = tuple(
        {str(name): float(value) for name, value in values.items()} for values in plain.get("samples", ())
    )
    then = plain.get("then")
    if then is None:
        return goals
    goal, within = then["goal"], then.get("within", 0.0)
    if not isinstance(goal, str) or isinstance(within, bool) or not isinstance(within, int | float):
        raise ValueError(f"then can't be {then!r:.60}")
    return goals | {"then": goal, "within": within}


def _search_to_plain(options: SolveOptions) -> dict[str, Any]:
    """Write what steers the search: with it the search can be repeated. JSON has no infinity."""
    return {
        "gap": float(options.gap),
        "top": options.top,
        "near": None if options.near is None else float(options.near),
        "one_model": options.one_model,
        "workers": options.workers,
        "seed": options.seed,
        "warm_start_s": None if isinf(options.warm_start_s) else float(options.warm_start_s),
    }


def _search_from_plain(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Read what ``_search_to_plain`` wrote; options that a plan of another release leaves out are the default."""
    values = {}
    for name, (kinds, low, high) in _SEARCH.items():
        value = plain.get(name, getattr(SolveOptions(), name))
        if name in ("near", "warm_start_s") and value is None:
            value = inf if name == "warm_start_s" else None
        elif isinstance(value, bool) is not (kinds is bool) or not isinstance(value, kinds):
            raise ValueError(f"search.{name} can't be {value!r}")
        elif not low <= value <= high:
            raise ValueError(f"search.{name} {value!r:.40} is not between {low} and {high}")
        values[name] = value
    return values


_SEARCH: dict[str, tuple[Any, float, float]] = {
    "gap": (int | float, 0, 1),
    "top": (int, 0, 10_000),
    "near": (int | float, 0, 1e6),
    "one_model": (bool, 0, 1),
    "workers": (int, 0, 10_000),
    "seed": (int, 0, 2**31 - 1),
    "warm_start_s": (int | float, 0, inf),
}
"""Options that steer the search, with their type, least and largest value."""


_LISTS = {"precisions": Precision, "schedules": Schedule, "micro_batches": int}
"""Lists that a question may restrict, with what an entry is."""


def _space_to_plain(options: SpaceOptions) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "fix": {axis: list(values) for axis, values in options.fix.items()},
        "forbid": {axis: list(values) for axis, values in options.forbid.items()},
        "max": dict(options.max),
        "min": dict(options.min),
        "allow_idle": options.allow_idle,
        "software": options.software,
        "allow": list(options.allow),
        "run": {name: value for name, value in asdict(options.run).items() if value not in (None, False)},
    }
    if options.require:
        plain["require"] = list(options.require)
    if options.gpu_hour_cost is not None:
        plain["gpu_hour_cost"] = options.gpu_hour_cost
    for name in _LISTS:
        values = getattr(options, name)
        plain[name] = None if values is None else list(values)
    chosen = options.recomputes
    plain["recomputes"] = None if chosen is None else [[r.granularity.value, list(r.modules)] for r in chosen]
    return plain


def _space_from_plain(plain: Mapping[str, Any]) -> SpaceOptions:
    """Read what ``_space_to_plain`` wrote; a wrong shape raises ValueError, TypeError or KeyError."""
    known = {field.name for field in fields(RunOptions)}
    run = {name: value for name, value in plain["run"].items() if name in known}
    run |= {name: CpComm(run[name]) for name in ("cp_comm", "cp_windows") if name in run}
    lists: dict[str, Any] = {}
    for name, kind in _LISTS.items():
        values = plain[name]
        lists[name] = None if values is None else tuple(kind(value) for value in values)
    if not isinstance(plain["software"], str | None):
        raise TypeError(f"software can't be {plain['software']!r:.60}")
    sets = plain["recomputes"]
    if sets is not None:
        sets = tuple(Recompute(granularity=Granularity(kind), modules=tuple(names)) for kind, names in sets)
    return SpaceOptions(
        fix={axis: tuple(values) for axis, values in plain["fix"].items()},
        forbid={axis: tuple(values) for axis, values in plain["forbid"].items()},
        max=plain["max"],
        min=plain["min"],
        allow_idle=plain["allow_idle"],
        software=plain["software"],
        recomputes=sets,
        allow=tuple(Saver(name) for name in plain.get("allow", ())),
        run=RunOptions(**run),
        require=tuple(plain.get("require", ())),
        gpu_hour_cost=plain.get("gpu_hour_cost"),
        **lists,
    )


@cache
def cost_model_digest() -> str:
    """Return the sha256 of all code and constants of this installation that decide an answer."""
    digest = hashlib.sha256()
    for path, entry in sorted(deciding_files().items()):
        content = entry.read_bytes()
        digest.update(f"{path} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def deciding_files() -> dict[str, Traversable]:
    """Return the files of the rooms that decide an answer, sub-folders too, by their path in the package."""
    found: dict[str, Traversable] = {}
    folders = [(room, resources.files("layoutopt.optimizer").joinpath(room)) for room in ROOMS]
    while folders:
        path, folder = folders.pop()
        for entry in folder.iterdir() if folder.is_dir() else ():
            below = f"{path}/{entry.name}"
            if entry.is_dir() and below not in DECIDE_NOTHING:
                folders.append((below, entry))
            elif entry.name.endswith((".py", ".yaml")):
                found[below] = entry
    return found
