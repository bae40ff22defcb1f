"""Files of other tools where a model, a cluster or a layout is expected."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from layoutopt.optimizer.report.terminal import say
from layoutopt.optimizer.specs.errors import InputError, input_error

if TYPE_CHECKING:
    from layoutopt.optimizer.frameworks.preset import FrameworkPreset
    from layoutopt.optimizer.frameworks.registry import Framework
    from layoutopt.optimizer.interop.records import (
        ImportedJob,
        ImportedModel,
        JobOptions,
        NodeSet,
        OutOfMemory,
    )
    from layoutopt.optimizer.report.commands.job_options import JobChoices
    from layoutopt.optimizer.report.commands.options import FrameworkOptions, WorkloadOptions
    from layoutopt.optimizer.space.context import RunOptions
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.layout import Layout
    from layoutopt.optimizer.specs.model import ModelSpec
    from layoutopt.optimizer.specs.partial_layout import PartialLayout
    from layoutopt.optimizer.specs.workload import Workload

OWN_MODEL = re.compile(r'^\s*"?architecture"?\s*:', re.MULTILINE)
"""The key by which this tool's model files are told from those of other tools."""

WITH_MODEL = ("hf-", "megatron-", "bridge-", "torchtitan-", "deepspeed-", "nanotron-", "accelerate-")
"""Kinds of files that describe or name a model, and logs, which are then refused by name."""

FROM_CLUSTER = re.compile(r"([\w.\-]{1,60})@(.+)", re.DOTALL)


def remark(text: str) -> None:
    """Print a note on what was read to stderr, unless the running command is quiet."""
    ctx = click.get_current_context(silent=True)
    if ctx is None or not ctx.params.get("quiet"):
        say(text)


def is_foreign_model(source: str) -> bool:
    """Tell whether MODEL names a file or folder of another tool."""
    from layoutopt.optimizer.specs.document import exists

    place = Path(source)
    if not source.strip() or not exists(place):
        return False
    if place.is_dir():
        return exists(place / "config.json")
    from layoutopt.optimizer.interop.sources import detect_kind, read_text

    text = read_text(place)
    if OWN_MODEL.search(text):
        return False
    try:
        return detect_kind(text, place.name).value.startswith(WITH_MODEL)
    except InputError:
        return place.suffix not in (".yaml", ".yml", ".json")


def foreign_workload(source: str, asked: WorkloadOptions) -> Workload:
    """Read the model of a Hugging Face configuration or a launch file; the run's numbers come from the options.

    Raises ``InputError`` for what neither states.
    """
    from layoutopt.optimizer.interop.records import ImportedJob, ImportedModel
    from layoutopt.optimizer.interop.sources import import_path

    found = import_path(source)
    if isinstance(found.value, ImportedModel):
        return _with_training(found.value, source, asked)
    if isinstance(found.value, ImportedJob):
        _tell(source, found.value.notes)
        return _job_workload(found.value, asked, None)
    raise input_error(f"is {found.kind}, no model", "a model file, config.json or a launch file", file=source)


def _with_training(found: ImportedModel, source: str, asked: WorkloadOptions) -> Workload:
    from layoutopt.optimizer.report.commands.inputs import batch_sequences
    from layoutopt.optimizer.specs.model import TrainingSpec
    from layoutopt.optimizer.specs.vocabulary import Precision
    from layoutopt.optimizer.specs.workload import Workload

    length = asked.seq or found.sequence_length
    batch = batch_sequences(asked, length) if length else asked.batch
    if length is None or batch is None:
        needed = (("a sequence length (--seq)", length), ("a global batch (--batch)", batch))
        lacking = [words for words, value in needed if value is None]
        raise input_error("describes no training run", f"give {' and '.join(lacking)}", file=source)
    _tell(source, found.notes)
    if asked.seq is None:
        remark(f"{source}: sequences of {length:,} tokens, the model's own length; --seq sets another")
    precision = found.precision or Precision.BF16
    return Workload(
        model=found.model,
        training=TrainingSpec(sequence_length=length, global_batch=batch, precision=precision),
    )


def _tell(source: str, notes: tuple[str, ...]) -> None:
    for text in notes:
        remark(f"{Path(source).name}: {text}")


def foreign_cluster(source: str) -> ClusterSpec | None:
    """Read ``GPU@FILE``: a node list, topology or graph of GPUs of the catalog; None where it is something else."""
    match = FROM_CLUSTER.fullmatch(source)
    if match is None:
        return None
    from layoutopt.optimizer.interop.machines.fabric import cluster_from
    from layoutopt.optimizer.interop.sources import import_path
    from layoutopt.optimizer.specs.loading import load_gpu

    load_gpu(match[1])  # an unknown GPU is named before the file is read
    return cluster_from(match[1], import_path(match[2]).value, source)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Somebody's launch configuration as a question: what is trained where, by what, in which layout.

    ``preset`` has the switches that the file states, None where there is no file; ``died`` are the out-of-memory messages
    given along.
    """

    workload: Workload
    cluster: ClusterSpec
    layout: Layout | PartialLayout
    framework: Framework
    software: str | None
    run: RunOptions | None = None
    preset: FrameworkPreset | None = None
    died: tuple[OutOfMemory, ...] = ()


@dataclass(slots=True)
class _Found:
    """What the files given with ``--from`` hold."""

    job: ImportedJob | None = None
    model: ModelSpec | None = None
    nodes: NodeSet | None = None
    died: tuple[OutOfMemory, ...] = ()


def read_job(given: JobChoices, asked: WorkloadOptions, trainer: FrameworkOptions) -> Job:
    """Read a layout with what it trains and where.

    Beside a launch file ``--from`` takes a model configuration, a node list and an error log. Options that were given
    win over what files state. Raises ``InputError`` with what is missing.
    """
    from layoutopt.optimizer.frameworks.registry import framework_named
    from layoutopt.optimizer.report.commands.inputs import read_layout, read_question

    if given.files and given.layout is None:
        return _launched(given, asked, trainer)
    found = _collect(given.files)
    if found.job is not None:
        raise input_error("is given together with a launch file", "one of the two", key="--layout")
    model, cluster = _places(given, needs_model=True)
    if given.layout is None:
        raise input_error("missing", "--layout tp=8,pp=16,... or --from FILE", key="--layout")
    workload, machine = read_question(model or "", cluster, asked)
    return Job(
        workload=workload,
        cluster=machine,
        layout=read_layout(given.layout),
        framework=framework_named(trainer.framework),
        software=trainer.software,
        died=found.died,
    )


def _places(given: JobChoices, *, needs_model: bool) -> tuple[str | None, str]:
    """Tell MODEL from CLUSTER: a single argument is the model with ``--cluster`` and the cluster with a launch file."""
    names = [name for name in (given.model, given.cluster) if name is not None]
    if given.where is not None and len(names) > 1:
        raise input_error("is given twice", "CLUSTER or --cluster", key="--cluster")
    places = [*names, *([given.where] if given.where is not None else [])]
    if len(places) < 1 + needs_model:
        missing = "MODEL and CLUSTER" if not places and needs_model else "CLUSTER"
        raise input_error(
            f"missing {missing}", "MODEL CLUSTER --layout TEXT, or --from FILE --cluster CLUSTER"
        )
    return (places[0] if len(places) > 1 else None), places[-1]


def _launched(given: JobChoices, asked: WorkloadOptions, trainer: FrameworkOptions) -> Job:
    """Read a launch file and what is given along."""
    from layoutopt.optimizer.frameworks.registry import framework_named
    from layoutopt.optimizer.interop.launch.complete import complete_layout
    from layoutopt.optimizer.report.commands.inputs import read_model

    model, cluster = _places(given, needs_model=False)
    found = _collect(given.files)
    if found.job is None:
        raise input_error("no launch file is among them", "a launch script or configuration", key="--from")
    job = found.job
    spec = read_model(model, asked).model if model else found.model
    workload = _job_workload(job, asked, spec)
    machine = _machine(cluster, asked, job, found.nodes)
    layout = complete_layout(_resized(job, workload, machine), model=workload.model, gpus=machine.gpu_count)
    framework = framework_named(trainer.framework) if is_given("framework") else job.framework
    software = trainer.software or (job.version if framework is job.framework else None)
    return Job(
        workload=workload,
        cluster=machine,
        layout=replace(layout, precision=workload.training.precision),
        framework=framework,
        software=software,
        run=run_options(job.options),
        preset=_preset(framework, software, machine, job.options),
        died=found.died,
    )


def _resized(job: ImportedJob, workload: Workload, machine: ClusterSpec) -> ImportedJob:
    """Let dp and the number of micro-batches follow where the options name another batch or number of GPUs."""
    batch, part = workload.training.global_batch, job.layout
    inner = (part.tp or 1) * (part.cp or 1) * (part.pp or 1)
    dp = part.dp if part.dp and part.dp * inner == machine.gpu_count else None
    kept = part.micro_batches if batch == job.training.global_batch and dp == part.dp else None
    training = replace(job.training, global_batch=batch)
    layout = replace(part, dp=dp, micro_batches=kept)
    return replace(job, gpus=machine.gpu_count, training=training, layout=layout)


def is_given(name: str) -> bool:
    """Tell whether an option of the running command was given, and not left at its default."""
    ctx = click.get_current_context(silent=True)
    source = ctx.get_parameter_source(name) if ctx is not None else None
    return source not in (None, click.core.ParameterSource.DEFAULT)


def _collect(files: tuple[str, ...]) -> _Found:
    from layoutopt.optimizer.interop.records import ImportedJob, ImportedModel, NodeSet
    from layoutopt.optimizer.interop.sources import Kind, import_path

    found = _Found()
    for file in files:
        imported = import_path(file)
        value = imported.value
        if isinstance(value, ImportedJob):
            if found.job is not None:
                raise input_error("is a second launch file", "one", file=file)
            found.job = value
            _tell(file, value.notes)
        elif isinstance(value, ImportedModel):
            found.model = value.model
            _tell(file, value.notes)
        elif isinstance(value, NodeSet):
            found.nodes = value
        elif imported.kind is Kind.TORCH_OOM:
            found.died = (*found.died, *value)
        else:
            raise input_error(
                f"is {imported.kind}", "a launch file, config.json, a node list, an error log", file=file
            )
    return found


def _job_workload(job: ImportedJob, asked: WorkloadOptions, model: ModelSpec | None) -> Workload:
    """Return what a launch file trains, with the options in place of its own numbers."""
    from layoutopt.optimizer.interop.launch.complete import complete_workload, named_model
    from layoutopt.optimizer.report.commands.inputs import batch_sequences
    from layoutopt.optimizer.specs.loading import override_training

    length = asked.seq or job.training.sequence_length
    batch = batch_sequences(asked, length) if length else asked.batch
    training = replace(job.training, sequence_length=length, global_batch=batch or job.training.global_batch)
    workload = complete_workload(replace(job, training=training, model=model or named_model(job)))
    return override_training(workload, precision=asked.precision[0] if asked.precision else None)


def _machine(cluster: str, asked: WorkloadOptions, job: ImportedJob, nodes: NodeSet | None) -> ClusterSpec:
    """Return the part of the cluster that the job runs on."""
    from layoutopt.optimizer.interop.machines.fabric import gpu_count
    from layoutopt.optimizer.report.commands.inputs import read_cluster

    whole = read_cluster(cluster, None)
    listed = gpu_count(nodes, whole.gpus_per_node) if nodes else None
    gpus = asked.gpus or listed or job.gpus
    return whole if gpus is None else read_cluster(cluster, gpus)


def run_options(options: JobOptions) -> RunOptions:
    """Return the launch flags that decide validity."""
    from layoutopt.optimizer.space.context import RunOptions

    return RunOptions(
        cp_comm=options.cp_comm,
        microbatch_group=options.microbatch_group,
        tp_comm_overlap=options.tp_overlap,
        overlap_moe_expert_parallel_comm=None
        if options.ep_overlap is None
        else options.ep_overlap == "batch",
        shared_expert_overlap=None if options.ep_overlap is None else options.ep_overlap == "shared",
        dispatcher=options.moe_dispatcher,
        activation_offload=options.activation_offload,
    )


def _preset(
    framework: Framework, software: str | None, cluster: ClusterSpec, options: JobOptions
) -> FrameworkPreset:
    """Return the framework's preset with the switches that the file states."""
    from layoutopt.optimizer.frameworks.preset import EpOverlap, calibrated, load_preset

    stated: dict[str, Any] = dict(options.preset_overrides())
    if "ep_overlap" in stated:
        stated["ep_overlap"] = EpOverlap(stated["ep_overlap"])
    return replace(calibrated(load_preset(framework, software), framework, cluster.calibration), **stated)
