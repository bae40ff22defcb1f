"""Say in words what a plan's claim is restricted to: the space, the search and the constants that its inputs state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.cost.factory import CostKind
from layoutopt.optimizer.solve.inputs import Question
from layoutopt.optimizer.solve.plan import SolveOptions
from layoutopt.optimizer.solve.verify.statements import differences
from layoutopt.optimizer.specs.canonical import to_plain
from layoutopt.optimizer.specs.gpu_catalog import split_reference
from layoutopt.optimizer.specs.loading import (
    cluster_names,
    load_cluster,
    load_workload,
    model_names,
    reference_cluster,
)
from layoutopt.optimizer.specs.reference_fabric import MAX_GPUS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.model import ModelSpec

_LIMITS = {"fix": "{} = {}", "forbid": "{} other than {}", "max": "{} at most {}", "min": "{} at least {}"}


def restrictions(question: Question) -> tuple[str, ...]:
    """Name the trainer and everything that differs from what is asked by default."""
    whole = Question(workload=question.workload, cluster=question.cluster, options=SolveOptions())
    asked, default = question.to_plain(), whole.to_plain()
    return (
        f"what {question.options.framework.value} can launch",
        *_of_space(asked["space"], default["space"]),
        *_of_prices(question),
        *_of_goals(question),
        *_of_names(question),
    )


def _of_space(asked: dict[str, Any], default: dict[str, Any]) -> Iterator[str]:
    for name, value in asked.items():
        if value == default.get(name):
            continue
        if isinstance(value, dict):
            words = _LIMITS.get(name, "{} = {}")
            yield from (words.format(key, _listed(item)) for key, item in value.items())
        elif name == "require":
            yield from (f"what meets {text}" for text in value)
        else:
            yield f"{name.replace('_', ' ')}: {_listed(value)}"


def _of_prices(question: Question) -> Iterator[str]:
    options = question.options
    if options.gap:
        yield f"a gap of at most {options.gap:.3%}: that near the best was asked for"
    if options.cost is not CostKind.FULL:
        yield f"prices of the {options.cost.value} cost model"
    for name, value in question.cluster.calibration.items():
        yield f"the cluster's own constant {name} = {value:.6g}"


def _of_goals(question: Question) -> Iterator[str]:
    options, usual = question.options, SolveOptions()
    if (options.top, options.near) != (usual.top, usual.near):
        slower = "" if options.near is None else f", none more than {options.near:.3%} slower than the first"
        yield f"at most {options.top:,} layouts reported{slower}"
    if options.minimize != usual.minimize:
        over = f" over {len(options.samples)} sets of constants" if options.samples else ""
        yield f"the best in {options.minimize}{over}, not the fastest"
    if options.reserve:
        yield f"layouts that leave {options.reserve:.3%} of usable memory free"
    if options.then is not None:
        among = f"at most {options.within:.3%} slower than" if options.within else "as fast as"
        yield f"the best in {options.then} of what is {among} the fastest"
    if options.constrain is not None:
        yield f"what the Python function {question.to_plain()['constrain']} allows"


def _of_names(question: Question) -> Iterator[str]:
    """Tell what a model or cluster has otherwise than the package's own of the same name."""
    model, cluster = question.workload.model, question.cluster
    if model.name in model_names():
        yield from _differing("model", model, load_workload(model.name).model)
    reference = split_reference(cluster.name)
    if reference is not None and reference[1] <= MAX_GPUS:
        yield from _differing("cluster", cluster, reference_cluster(*reference))
    elif cluster.name in cluster_names():
        yield from _differing("cluster", cluster, load_cluster(cluster.name))


def _differing(what: str, stated: ModelSpec | ClusterSpec, own: ModelSpec | ClusterSpec) -> Iterator[str]:
    mine, theirs = (to_plain(spec) | {"calibration": None} for spec in (stated, own))
    keys = [difference.path for difference in differences(mine, theirs)]
    if keys:
        yield f"a {what} that is not the built-in {own.name}: {', '.join(keys[:4])}{' and more' * (len(keys) > 4)}"


def _listed(value: object) -> str:
    """Write a value, or the values of a list; each on one line and short."""
    parts = value if isinstance(value, list) else [value]
    return " or ".join("+".join(map(str, part)) if isinstance(part, list) else str(part) for part in parts)
