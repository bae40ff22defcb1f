"""The Python interface: load a model and a cluster, solve, look at the answer, change it, export it.

>>> from layoutopt import load_model, load_cluster, solve
>>> result = solve(load_model("llama3-70b"), load_cluster("h100x256"))
>>> result.layout.tp, result.step_time_s
"""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from layoutopt.optimizer.frameworks.registry import framework_named
from layoutopt.optimizer.report.answers import Diagnosed, Evaluation, Reasons, Result
from layoutopt.optimizer.solve.plan import SolveOptions
from layoutopt.optimizer.space.options import SpaceOptions
from layoutopt.optimizer.specs.errors import input_error

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from layoutopt.optimizer.ask.job import Job
    from layoutopt.optimizer.diagnose.utilization import Utilization
    from layoutopt.optimizer.solve.search.demands import Constrain
    from layoutopt.optimizer.solve.search.result import Progress
    from layoutopt.optimizer.space.options import Value
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.layout import Layout
    from layoutopt.optimizer.specs.partial_layout import PartialLayout
    from layoutopt.optimizer.specs.workload import Workload

    Fixed = Mapping[str, Value | tuple[Value, ...]]

Member = TypeVar("Member", bound=StrEnum)


def load_model(
    source: str | Path,
    *,
    sequence_length: int | None = None,
    global_batch: int | None = None,
    batch_tokens: float | None = None,
    precision: str | None = None,
    total_tokens: float | None = None,
    notes: list[str] | None = None,
) -> Workload:
    """Load a model with its training run: a built-in name, a model file, another tool's file, or ``-`` for standard input.

    Of a Hugging Face ``config.json`` the run is not known: give ``global_batch`` (sequences) or ``batch_tokens`` and, where
    the file does not suggest one, ``sequence_length``. ``notes`` receives what was assumed while reading. Raises InputError
    with one line for each problem.
    """
    from layoutopt.optimizer.ask.load import load_model as load
    from layoutopt.optimizer.ask.records import RunChoices

    run = RunChoices(
        sequence_length=sequence_length,
        global_batch=global_batch,
        batch_tokens=batch_tokens,
        precision=(precision,) if precision else (),
        total_tokens=total_tokens,
    )
    found = load(source, run)
    if notes is not None:
        notes.extend(found.notes)
    return found.value


def load_cluster(source: str | Path, *, gpus: int | None = None) -> ClusterSpec:
    """Load a cluster: a built-in name, ``h100x4096``, a cluster file, or ``h100@FILE``; ``gpus`` takes the first ones."""
    from layoutopt.optimizer.ask.load import load_cluster as load

    return load(source, gpus=gpus)


def load_job(
    *files: str | Path,
    cluster: str | Path,
    model: str | Path | None = None,
    layout: str | None = None,
    framework: str | None = None,
    software: str | None = None,
    sequence_length: int | None = None,
    global_batch: int | None = None,
    gpus: int | None = None,
) -> Job:
    """Load somebody's launch: a launch file with what lies beside it (config.json, node list, error log), on a cluster.

    Without files ``model`` and ``layout`` say what is trained and how. ``job.workload``, ``job.cluster`` and ``job.layout``
    go to ``evaluate`` and ``explain``; ``job.notes`` say what was assumed. Raises InputError with what is missing.
    """
    from layoutopt.optimizer.ask.job import load_job as load
    from layoutopt.optimizer.ask.records import JobRequest, RunChoices

    request = JobRequest(
        cluster=str(cluster),
        model=None if model is None else str(model),
        layout=layout,
        files=tuple(map(str, files)),
        framework=framework_named(framework) if framework else None,
        software=software,
    )
    run = RunChoices(sequence_length=sequence_length, global_batch=global_batch, gpus=gpus)
    return load(request, run)


def solve(
    model: Workload,
    cluster: ClusterSpec,
    *,
    framework: str | None = None,
    software: str | None = None,
    fix: Fixed | None = None,
    forbid: Fixed | None = None,
    most: Mapping[str, int] | None = None,
    least: Mapping[str, int] | None = None,
    require: str | Sequence[str] = (),
    constrain: Constrain | None = None,
    then: str | None = None,
    within: float = 0.0,
    gpu_hour_cost: float | None = None,
    time_limit_s: float = float("inf"),
    options: SolveOptions | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Result:
    """Find the fastest layout and prove it.

    ``framework`` is the trainer, Megatron-LM by default. ``fix={"tp": 8, "pp": (4, 8)}`` restricts axes, ``forbid``,
    ``most`` and ``least`` likewise. ``require`` are comparisons that the layout has to meet (``"layers[0] <= 5"``), those
    about cost with a ``gpu_hour_cost``; ``constrain`` is a function of model and variables that adds any other constraint
    to every slice of the search: ``lambda model, v: model.add(v.tp * v.cp <= 8)``. Of the fastest layouts, or those up to
    ``within`` slower, ``then`` takes the best in days, cost, energy, gpus or memory. ``options`` are SolveOptions for
    everything else; the other arguments win over it.
    """
    from layoutopt.optimizer.solve.api import solve_layout

    options = options or SolveOptions()
    space = options.space
    chosen = replace(
        options,
        framework=framework_named(framework) if framework else options.framework,
        # The shorter limit counts: neither argument can lengthen what the other allows.
        time_limit_s=min(options.time_limit_s, time_limit_s),
        constrain=constrain or options.constrain,
        then=then or options.then,
        within=within or options.within,
        space=replace(
            space,
            software=software or space.software,
            fix={**space.fix, **_tuples(fix)},
            forbid={**space.forbid, **_tuples(forbid)},
            max={**space.max, **(most or {})},
            min={**space.min, **(least or {})},
            # Requirements add up; with one it is a text, with several a list.
            require=(*space.require, *((require,) if isinstance(require, str) else require)),
            gpu_hour_cost=space.gpu_hour_cost if gpu_hour_cost is None else gpu_hour_cost,
        ),
    )
    plan = solve_layout(model, cluster, chosen, on_progress=on_progress)
    return Result(workload=model, cluster=cluster, options=chosen, plan=plan)


def evaluate(
    model: Workload,
    cluster: ClusterSpec,
    layout: Layout | PartialLayout | str,
    *,
    framework: str = "megatron",
    software: str | None = None,
    require: str | Sequence[str] = (),
    gpu_hour_cost: float | None = None,
) -> Evaluation:
    """Price a layout (``"tp=8,pp=4,zero=1"``) and judge whether it can be launched, fits, and meets what is required."""
    from layoutopt.optimizer.solve.judge import judge_layout

    chosen = SolveOptions(framework=framework_named(framework), space=SpaceOptions(software=software))
    judgement = judge_layout(
        model, cluster, _layout(layout), framework=chosen.framework, software=software,
        require=(require,) if isinstance(require, str) else tuple(require), gpu_hour_cost=gpu_hour_cost,
    )  # fmt: skip
    return Evaluation(workload=model, cluster=cluster, options=chosen, judgement=judgement)


def utilization(
    model: Workload,
    *,
    gpus: int,
    gpu: str | None = None,
    peak_flops: float | None = None,
    tokens_per_s: float | None = None,
    tflops_per_gpu: float | None = None,
    step_time_s: float | None = None,
    count: str = "full",
    repeated: float = 0.0,
) -> Utilization:
    """Return what a throughput of the whole job means: MFU and HFU in every count of FLOPs.

    ``gpu`` names one of the catalog, ``peak_flops`` is the dense peak of another chip. One speed is given; ``count`` says
    what ``tflops_per_gpu`` counts of attention (``full``, ``causal``, ``matrices``), ``repeated`` what share of the forward
    pass recomputation does again. Raises InputError for what is missing or above the peak.
    """
    from layoutopt.optimizer.diagnose import utilization as use
    from layoutopt.optimizer.specs.gpu_catalog import find_gpu

    if gpu is None and peak_flops is None:
        raise input_error("missing", "a GPU of the catalog, or peak_flops", key="gpu")
    speed = use.Throughput(
        tokens_per_s=tokens_per_s,
        tflops_per_gpu=tflops_per_gpu,
        step_time_s=step_time_s,
        count=_member(count, use.Count, "count"),
    )
    peak = peak_flops or use.peak_flops(find_gpu(gpu or "").gpu, model.training.precision)
    return use.utilization(model, speed, gpus=gpus, peak_flops_per_gpu=peak, repeated=repeated)


def diagnose(
    run: Result | Job | str | Path,
    *profiles: str | Path,
    cluster: str | Path | None = None,
    steps: int | None = None,
    rank: int | None = None,
    axes: Mapping[str, str] | None = None,
) -> Diagnosed:
    """Hold profiles of a run against what it was to be: terms predicted and measured, traffic, ranks, causes.

    ``run`` is an answer of ``solve``, a job of ``load_job``, the file of a plan, or a launch file with the ``cluster`` that
    it ran on. ``profiles`` are traces of PyTorch's profiler, SQLite exports of Nsight Systems, folders of them, or a log.
    ``steps``, ``rank`` and ``axes`` (``{"all_reduce": "dp"}``) say what profiles do not say themselves. Raises InputError
    with what is missing.
    """
    from layoutopt.optimizer.ask import planned
    from layoutopt.optimizer.diagnose.diagnosis import diagnose_run
    from layoutopt.optimizer.interop.profiles.options import ProfileOptions
    from layoutopt.optimizer.interop.profiles.read import read_run
    from layoutopt.optimizer.specs.vocabulary import Axis

    if not profiles:
        raise input_error("nothing to diagnose", "profiles of the run, or its log", key="profiles")
    if isinstance(run, str | Path):
        found = planned.load_planned(run, cluster=None if cluster is None else str(cluster))
    elif isinstance(run, Result):
        found = planned.of_plan(run.workload, run.cluster, run.options, run.plan)
    else:
        found = planned.of_job(run)
    options = ProfileOptions(
        steps=steps,
        rank=rank,
        axes={name: _member(axis, Axis, "axes") for name, axis in (axes or {}).items()},
    )
    question = found.question
    return Diagnosed(
        workload=question.workload,
        cluster=question.cluster,
        options=question.options,
        diagnosis=diagnose_run(read_run(profiles, options), found.cost, found.layout),
    )


def _member(value: str, kind: type[Member], key: str) -> Member:
    """Return one of the words of a kind; raises ``InputError`` for others."""
    known = [str(one) for one in kind]
    if value not in known:
        raise input_error(f"{str(value)[:60]!r} is none", f"one of {', '.join(known)}", key=key)
    return kind(value)


def explain(
    model: Workload,
    cluster: ClusterSpec,
    layout: Layout | PartialLayout | str,
    *,
    framework: str = "megatron",
    software: str | None = None,
    compare: bool = True,
) -> Reasons:
    """Say why a layout is invalid, does not fit or is slow, and what the cheapest changes are."""
    from layoutopt.optimizer.solve.explain.api import explain_layout

    chosen = SolveOptions(framework=framework_named(framework), space=SpaceOptions(software=software), top=1)
    found = explain_layout(model, cluster, _layout(layout), chosen, compare=compare)
    return Reasons(workload=model, cluster=cluster, options=chosen, explanation=found)


def _layout(layout: Layout | PartialLayout | str) -> Layout | PartialLayout:
    from layoutopt.optimizer.ask.load import load_layout

    return load_layout(layout) if isinstance(layout, str) else layout


def _tuples(given: Mapping[str, Any] | None) -> dict[str, tuple[Value, ...]]:
    return {
        axis: tuple(value) if isinstance(value, list | tuple) else (value,)
        for axis, value in (given or {}).items()
    }
