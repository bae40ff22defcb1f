"""Turn arguments and options into the records that the rooms take."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from layoutopt.optimizer.report.commands.values import MAX_COUNT
from layoutopt.optimizer.specs.errors import InputError, Problem, input_error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layoutopt.optimizer.report.commands.options import (
        FrameworkOptions,
        SearchChoices,
        SpaceChoices,
        WorkloadOptions,
    )
    from layoutopt.optimizer.solve.plan import SolveOptions
    from layoutopt.optimizer.space.options import SpaceOptions, Value
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.partial_layout import PartialLayout
    from layoutopt.optimizer.specs.vocabulary import Saver
    from layoutopt.optimizer.specs.workload import Workload

_SWITCH = {"on": 1, "true": 1, "yes": 1, "off": 0, "false": 0, "no": 0}


@contextmanager
def named(**options: str) -> Iterator[None]:
    """Let problems name the option that set what they are about: ``named(total_tokens="--tokens")``."""
    try:
        yield
    except InputError as error:
        problems = (replace(problem, key=options.get(problem.key, problem.key)) for problem in error.problems)
        raise InputError(*problems) from None


def read_question(model: str, cluster: str, asked: WorkloadOptions) -> tuple[Workload, ClusterSpec]:
    """Load a workload and a cluster and apply what the command line replaces.

    Raises ``InputError`` with the problems of both.
    """
    problems: list[Problem] = []
    workload, machine = None, None
    try:
        workload = read_model(model, asked)
    except InputError as error:
        problems.extend(error.problems)
    try:
        machine = read_cluster(cluster, asked.gpus)
    except InputError as error:
        problems.extend(error.problems)
    if workload is None or machine is None:
        raise InputError(*problems)
    return workload, machine


def read_model(model: str, asked: WorkloadOptions) -> Workload:
    """Load a model file or built-in name, or what another tool's file says of a model."""
    from layoutopt.optimizer.report.commands.imports import foreign_workload, is_foreign_model
    from layoutopt.optimizer.specs.loading import load_workload, override_training

    workload = foreign_workload(model, asked) if is_foreign_model(model) else load_workload(model)
    length = asked.seq or workload.training.sequence_length
    return override_training(
        workload,
        sequence_length=asked.seq,
        global_batch=batch_sequences(asked, length),
        precision=asked.precision[0] if asked.precision else None,
    )


def batch_sequences(asked: WorkloadOptions, length: int) -> int | None:
    """Return the global batch in sequences."""
    if asked.batch_tokens is None:
        return asked.batch
    if asked.batch is not None:
        raise input_error("is given together with --batch", "one of the two", key="--batch-tokens")
    if asked.batch_tokens > MAX_COUNT * length:
        what = f"{asked.batch_tokens:.6g} tokens are out of range"
        raise input_error(what, f"up to {MAX_COUNT:,} sequences", key="--batch-tokens")
    sequences, rest = divmod(asked.batch_tokens, length)
    if rest or not sequences:
        near = max(round(asked.batch_tokens / length), 1)
        what = f"{asked.batch_tokens:,.12g} tokens are no whole sequences of {length:,}"
        unit = "sequence" if near == 1 else "sequences"
        raise input_error(what, f"nearest {near * length:,} = {near:,} {unit}", key="--batch-tokens")
    return int(sequences)


def read_cluster(name: str, gpus: int | None) -> ClusterSpec:
    """Load a cluster file, built-in name, ``NAMExN`` or ``GPU@FILE``; only its first ``gpus`` where given."""
    from layoutopt.optimizer.report.commands.imports import foreign_cluster
    from layoutopt.optimizer.specs.cluster_part import first_gpus
    from layoutopt.optimizer.specs.loading import load_cluster

    cluster = foreign_cluster(name) or load_cluster(name)
    if cluster.calibration:
        from layoutopt.optimizer.evidence.parameters import check_names

        check_names(cluster.calibration, file=name)
    return cluster if gpus is None else first_gpus(cluster, gpus, key="--gpus")


def read_layout(text: str) -> PartialLayout:
    """Read a layout given as text (``tp=8,pp=16``) or as a layout file or plan."""
    from layoutopt.optimizer.specs.document import exists
    from layoutopt.optimizer.specs.loading import SUFFIXES, load_layout, parse_layout

    if not text.strip():
        raise input_error("is empty", "tp=8,pp=16,..., a layout file or a plan", key="--layout")
    is_file = exists(Path(text)) or text.endswith(SUFFIXES)
    return load_layout(text) if is_file else parse_layout(text)


def solve_options(
    space: SpaceChoices, search: SearchChoices, trainer: FrameworkOptions, precisions: tuple[str, ...] = ()
) -> SolveOptions:
    """Collect everything beside workload and cluster that decides the answer."""
    from layoutopt.optimizer.cost.factory import CostKind
    from layoutopt.optimizer.frameworks.registry import framework_named
    from layoutopt.optimizer.solve.plan import SolveOptions

    near_ties = SolveOptions()
    return SolveOptions(
        framework=framework_named(trainer.framework),
        space=space_options(space, trainer.software, precisions),
        cost=CostKind(trainer.cost_model),
        top=search.top or near_ties.top,
        near=None if search.top else near_ties.near,
        time_limit_s=float("inf") if search.time_limit is None else search.time_limit,
        workers=search.workers,
        gap=search.gap,
        seed=search.seed,
        one_model=search.one_model,
    )


def space_options(
    space: SpaceChoices, software: str | None, precisions: tuple[str, ...] = ()
) -> SpaceOptions:
    """Read the restrictions; raises ``InputError`` with every problem of one option."""
    from layoutopt.optimizer.space.options import SpaceOptions
    from layoutopt.optimizer.specs.vocabulary import Precision

    with named(fix="--fix", forbid="--forbid", max="--max", min="--min", allow_idle="--allow-idle"):
        return SpaceOptions(
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
        if not value.isdigit():
            raise input_error(f"{axis}={value} is no limit", "a whole number, e.g. pp=16", key=option)
        if axis in found:
            raise input_error(f"{axis} is given twice", "one limit per axis", key=option)
        found[axis] = int(value)
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
    digits = word.removeprefix("-")
    return int(word) if digits.isdigit() and len(digits) <= 12 else word
