"""Somebody's launch as a question: what is trained where, by what, in which layout."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.ask.load import (
    import_given,
    job_workload,
    load_cluster,
    load_layout,
    load_model,
    load_question,
    notes_on,
    require_used,
    rounded,
)
from layoutopt.optimizer.ask.records import AS_STATED, PYTHON, JobRequest, Names, RunChoices
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.specs.errors import input_error

if TYPE_CHECKING:
    from layoutopt.optimizer.frameworks.preset import FrameworkPreset
    from layoutopt.optimizer.interop.records import ImportedJob, JobOptions, NodeSet, OutOfMemory
    from layoutopt.optimizer.space.context import RunOptions
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.layout import Layout
    from layoutopt.optimizer.specs.model import ModelSpec
    from layoutopt.optimizer.specs.partial_layout import PartialLayout
    from layoutopt.optimizer.specs.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job that can be priced.

    ``preset`` has the switches that the launch file states, None where there is no file; ``died`` are the out-of-memory
    messages given along, ``notes`` say what was assumed while reading.
    """

    workload: Workload
    cluster: ClusterSpec
    layout: Layout | PartialLayout
    framework: Framework
    software: str | None
    run: RunOptions | None = None
    preset: FrameworkPreset | None = None
    died: tuple[OutOfMemory, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class _Found:
    """What the files of a request hold."""

    job: ImportedJob | None = None
    model: ModelSpec | None = None
    nodes: NodeSet | None = None
    died: tuple[OutOfMemory, ...] = ()
    notes: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()


def load_job(request: JobRequest, run: RunChoices = AS_STATED, *, names: Names = PYTHON) -> Job:
    """Read a layout with what it trains and where; ``run`` wins over what files state.

    Raises ``InputError`` with what is missing.
    """
    found = _collect(request.files, run)
    if found.job is not None or (request.files and request.layout is None):
        return _launched(request, run, names, found)
    if request.layout is None:
        raise input_error("missing", names.layout_or_files, key=names.layout)
    if request.model is None:
        raise input_error("missing MODEL or CLUSTER", "both, where no file is a launch file")
    workload, machine = load_question(request.model, request.cluster, run, names=names)
    return Job(
        workload=workload.value,
        cluster=machine,
        layout=load_layout(request.layout, names=names),
        framework=request.framework or Framework.MEGATRON,
        software=request.software,
        died=found.died,
        notes=(*found.notes, *workload.notes),
    )


def _launched(request: JobRequest, run: RunChoices, names: Names, found: _Found) -> Job:
    """Read a launch file and what is given along."""
    from layoutopt.optimizer.interop.launch.complete import (
        assumptions,
        complete_layout,
        fill_open,
        require_stated,
    )

    job = found.job
    if job is None:
        raise input_error("no launch file is among them", "a launch script or configuration", key=names.files)
    if request.layout is not None:
        job = fill_open(job, load_layout(request.layout, names=names), names.layout)
    require_stated(job, f"give it with {names.layout}, which fills what a file leaves open")
    model = load_model(request.model, run, names=names, beside=found.kinds) if request.model else None
    # A model file may take these options too: only without one is it known that nothing does.
    if model is None:
        require_used(run, found.kinds, request.files[0], names)
    workload = job_workload(job, run, model.value.model if model else found.model, names)
    machine = _machine(request.cluster, run, job, found.nodes, names)
    layout = complete_layout(_resized(job, workload, machine), model=workload.model, gpus=machine.gpu_count)
    framework = request.framework or job.framework
    # A release of one trainer says nothing of another.
    software = request.software or (job.version if framework is job.framework else None)
    return Job(
        workload=workload,
        cluster=machine,
        layout=replace(layout, precision=workload.training.precision),
        framework=framework,
        software=software,
        run=run_options(job.options),
        preset=_preset(framework, software, machine, job.options),
        died=found.died,
        notes=(
            *found.notes,
            *assumptions(job),
            *rounded(run, workload.training.sequence_length, names),
            *(model.notes if model else ()),
        ),
    )


def _resized(job: ImportedJob, workload: Workload, machine: ClusterSpec) -> ImportedJob:
    """Let dp and the number of micro-batches follow where another batch or number of GPUs is asked for."""
    batch, part = workload.training.global_batch, job.layout
    inner = (part.tp or 1) * (part.cp or 1) * (part.pp or 1)
    dp = part.dp if part.dp and part.dp * inner == machine.gpu_count else None
    # Degrees that were stated stay where they still multiply to the GPUs; what follows from them follows again.
    kept = part.micro_batches if batch == job.training.global_batch and dp == part.dp else None
    training = replace(job.training, global_batch=batch)
    shard = None if dp is None and job.replicas > 1 else part.hsdp_shard
    layout = replace(part, dp=dp, micro_batches=kept, hsdp_shard=shard)
    return replace(job, gpus=machine.gpu_count, training=training, layout=layout)


def _collect(files: tuple[str, ...], run: RunChoices) -> _Found:
    """Sort files by what they hold."""
    from layoutopt.optimizer.interop.records import ImportedJob, ImportedModel, NodeSet
    from layoutopt.optimizer.interop.sources import FileKind

    found = _Found()
    for file in files:
        imported = import_given(file, run)
        value = imported.value
        found.kinds = (*found.kinds, imported.kind)
        if isinstance(value, ImportedJob):
            if found.job is not None:
                raise input_error("is a second launch file", "one", file=file)
            found.job = value
            found.notes += notes_on(file, value.notes)
        elif isinstance(value, ImportedModel):
            found.model = value.model
            found.notes += notes_on(file, value.notes)
        elif isinstance(value, NodeSet):
            found.nodes = value
        elif imported.kind == FileKind.TORCH_OOM:
            found.died = (*found.died, *value)
        else:
            what = f"is {imported.kind}"
            raise input_error(what, "a launch file, config.json, a node list, an error log", file=file)
    return found


def _machine(
    cluster: str, run: RunChoices, job: ImportedJob, nodes: NodeSet | None, names: Names
) -> ClusterSpec:
    """Return the part of the cluster that the job runs on."""
    from layoutopt.optimizer.interop.machines.fabric import gpu_count
    from layoutopt.optimizer.specs.reference_fabric import first_gpus

    whole = load_cluster(cluster, names=names)
    listed = gpu_count(nodes, whole.gpus_per_node) if nodes else None
    # What was asked, then what the scheduler gave, then what the script believes.
    gpus = run.gpus or listed or job.gpus
    return whole if gpus is None else first_gpus(whole, gpus, key=names.gpus)


def run_options(options: JobOptions) -> RunOptions:
    """Return the launch flags that decide validity."""
    from layoutopt.optimizer.space.context import RunOptions

    return RunOptions(
        cp_comm=options.cp_comm,
        cp_windows=options.cp_windows,
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
    from layoutopt.optimizer.frameworks.preset import EpOverlap, NarrowWeights, calibrated, load_preset

    stated: dict[str, Any] = dict(options.preset_overrides())
    if "ep_overlap" in stated:
        stated["ep_overlap"] = EpOverlap(stated["ep_overlap"])
    if options.fp8_param_gather is not None:
        stated["narrow_weights"] = NarrowWeights.ALONE if options.fp8_param_gather else NarrowWeights.COPIES
    return replace(calibrated(load_preset(framework, software), framework, cluster.calibration), **stated)
