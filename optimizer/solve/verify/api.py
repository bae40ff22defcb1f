"""Verify a plan file: rebuild the question that it answers, its space and its prices, and compare."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from layoutopt.optimizer.cost.factory import CostKind
from layoutopt.optimizer.cost.objectives import TIME
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.solve.api import closed_form_size, gap_target, plan_of, solve_layout
from layoutopt.optimizer.solve.certificate import Status
from layoutopt.optimizer.solve.inputs import Question, cost_model_digest, question_from_plain
from layoutopt.optimizer.solve.plan import SolveOptions
from layoutopt.optimizer.solve.search.result import Found
from layoutopt.optimizer.solve.verify.claim import verify_plan
from layoutopt.optimizer.solve.verify.rebuilt import Rebuilt
from layoutopt.optimizer.solve.verify.statements import differences
from layoutopt.optimizer.specs.canonical import to_plain
from layoutopt.optimizer.specs.errors import InputError, input_error
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
    from collections.abc import Callable, Iterator, Sequence

    from layoutopt.optimizer.solve.plan import Plan
    from layoutopt.optimizer.solve.search.costed_space import CostedSpace
    from layoutopt.optimizer.solve.verify.layout import PricedLayout
    from layoutopt.optimizer.solve.verify.plan_file import StatedPlan
    from layoutopt.optimizer.solve.verify.rebuilt import Tree
    from layoutopt.optimizer.solve.verify.report import VerifyReport
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.workload import Workload

    Writer = Callable[[Plan, Question, Tree], Tree]
    from layoutopt.optimizer.specs.model import ModelSpec


def verify_written(
    plain: object,
    write: Writer,
    *,
    file: str = "",
    workload: Workload | None = None,
    cluster: ClusterSpec | None = None,
) -> VerifyReport:
    """Check a plan against a space rebuilt from its own inputs, or from a given workload and cluster.

    ``write`` writes a plan of a question as parsed JSON, with those of the optional parts that a stated plan, its last
    argument, has. Raises InputError when the plan is malformed.
    """
    if not isinstance(plain, dict) or not isinstance(plain.get("inputs"), dict):
        raise input_error(
            "a plan is a mapping with inputs", "what solve --json wrote", key="inputs", file=file
        )
    question = question_from_plain(plain["inputs"], file=file)
    question = replace(question, workload=workload or question.workload, cluster=cluster or question.cluster)
    with _bad_inputs(file):
        return verify_plan(plain, rebuild(question, write), file=file)


@contextmanager
def _bad_inputs(file: str) -> Iterator[None]:
    """Turn what arithmetic makes of inputs that no machine has into bad input: a forger's were never solved."""
    try:
        with np.errstate(all="ignore"):  # terms out of range are found and named
            yield
    except InputError:
        raise
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        MemoryError,
        RuntimeError,
        TypeError,
        ValueError,
    ) as error:
        words = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise input_error(f"inputs that no plan has: {words}", key="inputs", file=file) from None


def rebuild(question: Question, write: Writer) -> Rebuilt:
    """Rebuild what a plan that answers ``question`` is compared with."""
    source = question.costed_space()

    def restate(stated: StatedPlan, priced: Sequence[PricedLayout]) -> Tree:
        """Write the plan anew from what it states, less what only a run knows."""
        written = write(_restated(question, source, stated, priced), question, stated.plain)
        if question.options.minimize != TIME:  # a second search tells what another objective came to
            written = {**written, "objective": {}}
        left_out = _OF_A_SEARCH if stated.status == Status.INFEASIBLE else _OF_A_RUN
        return {key: value for key, value in written.items() if key not in left_out}

    @cache
    def again() -> Tree:
        """Solve the question once more, and write what comes out."""
        return write(solve_layout(question.workload, question.cluster, question.options), question, {})

    options = question.options
    return Rebuilt(
        space=source,
        runs=source.space.ctx.model.runs,
        cost_model=cost_model_digest(),
        inputs=question.to_plain(),
        removed_by_rule={count.rule: count.tuples for count in source.space.counts.removed},
        size=closed_form_size(source),
        gap_target=gap_target(options),
        warm_start_s=options.warm_start_s,
        top=options.top
        + (options.then is not None),  # the best in a second goal may join those found for time
        near=options.near,
        repeatable=options.workers == 1,
        restate=restate,
        again=again,
        freer=replace(question, options=replace(options, framework=Framework.ANY)).costed_space,
        restrictions=restrictions(question),
        objective="" if options.minimize == TIME else options.minimize,
    )


_OF_A_RUN = ("solve_time_s", "comfortable", "open_ties")
_OF_A_SEARCH = (*_OF_A_RUN, "infeasibility", "reasons")
"""What does not follow from layouts and a bound."""


def _restated(
    question: Question, source: CostedSpace, stated: StatedPlan, priced: Sequence[PricedLayout]
) -> Plan:
    """Return the plan that follows from layouts that were priced again."""
    found = [
        Found(
            layout=one.batch,
            blocks=one.blocks,
            recomputed=one.recomputed,
            step_time_s=one.step_time_s,
            peak_bytes=float(one.costs.peak_bytes[0]),
        )
        for one in priced
    ]
    status = next((word for word in Status if word == stated.status), Status.STOPPED)
    plan = plan_of(question, source, found, status=status, certificate=stated.certificate)
    return replace(plan, freer_gain=stated.freer_gain)


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
