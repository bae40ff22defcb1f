"""Turn arguments and options into the records that the rooms take."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from layoutopt.optimizer.ask.records import JobRequest, Names
from layoutopt.optimizer.report.terminal import notes
from layoutopt.optimizer.specs.errors import InputError, input_error
from layoutopt.optimizer.specs.units import whole_number

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from layoutopt.optimizer.ask.job import Job
    from layoutopt.optimizer.ask.records import RunChoices
    from layoutopt.optimizer.report.commands.options import (
        DemandChoices,
        FrameworkOptions,
        OutputOptions,
        SearchChoices,
        SpaceChoices,
    )
    from layoutopt.optimizer.report.commands.question import JobChoices
    from layoutopt.optimizer.solve.plan import SolveOptions
    from layoutopt.optimizer.space.options import SpaceOptions, Value
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.vocabulary import Saver
    from layoutopt.optimizer.specs.workload import Workload

OPTIONS = Names(
    sequence_length="--seq",
    global_batch="--batch",
    batch_tokens="--batch-tokens",
    precision="--precision",
    gpus="--gpus",
    total_tokens="--tokens",
    epochs="--epochs",
    samples="--samples",
    layout="--layout",
    files="--from",
    settings="--set",
    arguments="--arg",
    function="--function",
    recipe_file="--recipe-file",
    layout_or_files="--layout tp=8,pp=16,... or --from FILE",
)
"""What the command line calls what is given."""

_SWITCH = {"on": 1, "true": 1, "yes": 1, "off": 0, "false": 0, "no": 0}


@contextmanager
def named(**options: str) -> Iterator[None]:
    """Let problems name the option that set what they are about: ``named(total_tokens="--tokens")``.

    Raises the body's ``InputError`` so.
    """
    try:
        yield
    except InputError as error:
        problems = (replace(problem, key=options.get(problem.key, problem.key)) for problem in error.problems)
        raise InputError(*problems) from None


def read_model(model: str, asked: RunChoices, output: OutputOptions) -> Workload:
    """Load a workload and say what was assumed."""
    from layoutopt.optimizer.ask.load import load_model

    found = load_model(model, asked, names=OPTIONS)
    notes(found.notes, output)
    return found.value


def read_question(
    model: str, cluster: str, asked: RunChoices, output: OutputOptions
) -> tuple[Workload, ClusterSpec]:
    """Load a workload and a cluster and say what was assumed; raises ``InputError`` with the problems of both."""
    from layoutopt.optimizer.ask.load import load_question

    found, machine = load_question(model, cluster, asked, names=OPTIONS)
    notes(found.notes, output)
    return found.value, machine


def read_job(given: JobChoices, asked: RunChoices, trainer: FrameworkOptions, output: OutputOptions) -> Job:
    """Read a layout with what it trains and where and say what was assumed; options win over what files state."""
    from layoutopt.optimizer.ask.job import load_job
    from layoutopt.optimizer.frameworks.registry import framework_named

    model, cluster = _places(given, needs_model=not given.files)
    request = JobRequest(
        model=model,
        cluster=cluster,
        layout=given.layout,
        files=given.files,
        # The default of --framework must not overrule the trainer that a launch file is of.
        framework=framework_named(trainer.framework) if is_given("framework") else None,
        software=trainer.software,
    )
    job = load_job(request, asked, names=OPTIONS)
    notes(job.notes, output)
    return job


def _places(given: JobChoices, *, needs_model: bool) -> tuple[str | None, str]:
    """Tell MODEL from CLUSTER: a single argument is the model with ``--cluster`` and the cluster with a launch file."""
    names = [name for name in (given.model, given.cluster) if name is not None]
    if given.where is not None and len(names) > 1:
        raise input_error("is given twice", "CLUSTER or --cluster", key="--cluster")
    places = [*names, *([given.where] if given.where is not None else [])]
    # A launch file says what is trained: then one name is enough, and it is the cluster's.
    if len(places) < 1 + needs_model:
        missing = "MODEL and CLUSTER" if not places and needs_model else "CLUSTER"
        raise input_error(
            f"missing {missing}", "MODEL CLUSTER --layout TEXT, or --from FILE --cluster CLUSTER"
        )
    return (places[0] if len(places) > 1 else None), places[-1]


def is_given(name: str) -> bool:
    """Tell whether an option of the running command was given, and not left at its default."""
    source = click.get_current_context().get_parameter_source(name)
    return source is not click.core.ParameterSource.DEFAULT


def refuse_given(names: Iterable[str], what: str, allowed: str) -> None:
    """Raise ``InputError`` for an option of the running command that was given though nothing would use it."""
    chosen = set(names)
    for option in click.get_current_context().command.params:
        if option.name in chosen and is_given(option.name):
            raise input_error(what, allowed, key=option.opts[0])


def solve_options(
    space: SpaceChoices,
    search: SearchChoices,
    trainer: FrameworkOptions,
    precisions: tuple[str, ...] = (),
    *,
    demands: DemandChoices | None = None,
) -> SolveOptions:
    """Collect everything beside workload and cluster that decides the answer."""
    from layoutopt.optimizer.cost.factory import CostKind
    from layoutopt.optimizer.frameworks.registry import framework_named
    from layoutopt.optimizer.solve.plan import SolveOptions

    near_ties = SolveOptions()
    declared = space_options(space, trainer.software, precisions, demands=demands)
    with named(gpu_hour_cost="--gpu-hour-cost", within="--within"):
        return SolveOptions(
            framework=framework_named(trainer.framework),
            space=declared,
            cost=CostKind(trainer.cost_model),
            top=search.top or near_ties.top,
            # Whoever asks for N layouts gets N, however much slower.
            near=None if search.top else near_ties.near,
            time_limit_s=float("inf") if search.time_limit is None else search.time_limit,
            workers=search.workers,
            gap=search.gap,
            seed=search.seed,
            one_model=search.one_model,
            then=search.then,
            within=search.within,
        )


def space_options(
    space: SpaceChoices,
    software: str | None,
    precisions: tuple[str, ...] = (),
    *,
    demands: DemandChoices | None = None,
) -> SpaceOptions:
    """Read the restrictions; raises ``InputError`` with every problem of one option."""
    from layoutopt.optimizer.space.options import SpaceOptions
    from layoutopt.optimizer.specs.vocabulary import Precision

    with named(
        fix="--fix",
        forbid="--forbid",
        max="--max",
        min="--min",
        allow_idle="--allow-idle",
        require="--require",
    ):
        return SpaceOptions(
            require=demands.require if demands else (),
            gpu_hour_cost=demands.gpu_hour_cost if demands else None,
            fix=axis_values("--fix", space.fix),
            forbid=axis_values("--forbid", space.forbid),
            max=_axis_limits("--max", space.max),
            min=_axis_limits("--min", space.min),
            allow_idle=space.allow_idle,
            allow=_savers(space.allow),
            precisions=tuple(map(Precision, precisions)) or None,
            software=software,
        )


def _savers(names: tuple[str, ...]) -> tuple[Saver, ...]:
    from layoutopt.optimizer.report.commands.values import OFFLOAD
    from layoutopt.optimizer.specs.vocabulary import Saver

    # In the vocabulary's order, so that the same savers are the same question, however they were typed.
    return tuple(
        saver for saver in Saver if saver in names or (OFFLOAD in names and saver.startswith(OFFLOAD))
    )


def axis_values(option: str, texts: tuple[str, ...]) -> dict[str, tuple[Value, ...]]:
    """Read ``tp=4,8`` or ``tp=8,pp=16``; what is said twice of one axis adds up."""
    found: dict[str, tuple[Value, ...]] = {}
    for axis, value in _pairs(option, texts):
        found[axis] = (*found.get(axis, ()), _value(axis, value))
    return found


def _axis_limits(option: str, texts: tuple[str, ...]) -> dict[str, int]:
    """Read ``pp=16``."""
    found: dict[str, int] = {}
    for axis, value in _pairs(option, texts):
        limit = whole_number(value)
        if limit is None or limit < 0:
            raise input_error(f"{axis}={value} is no limit", "a whole number, e.g. pp=16", key=option)
        if axis in found:
            raise input_error(f"{axis} is given twice", "one limit per axis", key=option)
        found[axis] = limit
    return found


def _pairs(option: str, texts: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield axis and value; a value without an axis belongs to the axis before it."""
    from layoutopt.optimizer.specs.layout_file import SHORT_KEYS

    for text in texts:
        axis = ""
        for item in text.split(","):
            name, equals, value = item.partition("=")
            if equals:
                axis = SHORT_KEYS.get(name.strip().lower(), name.strip().lower().replace("-", "_"))
            word = (value if equals else name).strip()
            if not axis or not word:
                raise input_error(
                    f"{text[:60]!r} is not AXIS=VALUE", "tp=8, tp=4,8 or recompute=none", key=option
                )
            yield axis, word


def _value(axis: str, text: str) -> Value:
    """Read a value: a whole number where it is one, on or off of sp, else a word."""
    word = text.lower()
    if axis == "sp" and word in _SWITCH:
        return _SWITCH[word]
    number = whole_number(text)
    return word if number is None else number
