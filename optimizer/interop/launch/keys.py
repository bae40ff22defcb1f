"""A launcher's own names for what the trainer it drives has names for, and the job that follows."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.interop.huggingface.names import built_in_model, hub_model
from layoutopt.optimizer.interop.launch.flags import scalar
from layoutopt.optimizer.interop.megatron.read import job_from_arguments
from layoutopt.optimizer.interop.reading import LAYOUT_WORDS, UNREAD, shorten
from layoutopt.optimizer.interop.records import ImportedJob, JobOptions, JobTraining
from layoutopt.optimizer.interop.shell.values import has_hole, show
from layoutopt.optimizer.specs.layout import Recompute
from layoutopt.optimizer.specs.partial_layout import PartialLayout
from layoutopt.optimizer.specs.vocabulary import DEFAULT_MESH_ORDER, Granularity, Precision, Schedule

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from layoutopt.optimizer.interop.launch.command import LaunchCommand
    from layoutopt.optimizer.interop.reading import Fields
    from layoutopt.optimizer.specs.model import AdapterSpec, OptimizerSpec
    from layoutopt.optimizer.specs.vocabulary import CpComm

_SIZES = ("num_layers", "hidden_size", "num_attention_heads", "vocab_size")

MODEL_MISSING = "the model"
"""How what is missing begins where it is the model."""

SWITCHES = (
    "sequence_parallel", "use_distributed_optimizer", "use_megatron_fsdp", "overlap_grad_reduce",
    "overlap_param_gather", "tp_comm_overlap", "moe_shared_expert_overlap", "moe_enable_deepep",
    "optimizer_cpu_offload", "use_precision_aware_optimizer", "use_torch_fsdp2", "bf16", "fp16",
)  # fmt: skip
"""Megatron-LM's switches that concern a layout."""


def with_truths(data: Mapping[str, Any]) -> dict[str, Any]:
    """Read 0 and 1 of a switch as false and true, as Python does."""
    return {
        key: bool(value) if key in SWITCHES and type(value) is int and value in (0, 1) else value
        for key, value in data.items()
    }


def with_defaults(data: dict[str, Any], defaults: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    """Put a launcher's defaults where nothing is stated, and say so."""
    unstated = {key: value for key, value in defaults.items() if data.get(key) is None}
    notes += [f"assumed: {key} {value}, the launcher's default" for key, value in unstated.items()]
    return data | unstated


def name_unread(keys: Sequence[str], known: Sequence[str], notes: list[str]) -> None:
    """Name the keys that concern a layout and are not read."""
    unread = [key for key in keys if LAYOUT_WORDS.search(key) and key not in known]
    if unread:
        notes.append(f"{UNREAD}: {', '.join(shorten(key) for key in unread)}")


def gpus_of_environment(command: LaunchCommand, per_node: str, nodes: str, notes: list[str]) -> int | None:
    """Return GPUs per node times nodes as the command's environment states them; one node unless it says otherwise.

    A number that only the outside knows leaves them open.
    """
    numbers = {name: command.environment.get(name) for name in (per_node, nodes)}
    for name, value in numbers.items():
        if value is not None and has_hole(value):
            notes.append(f"{name} comes from {shorten(show(value))}, which the script does not set")
            return None
    found = {name: scalar(value) for name, value in numbers.items() if value is not None}
    # "gpu" and "auto" are torchrun's words for as many as the node has, which no script says.
    if type(found.get(per_node)) is not int:
        return None
    if nodes not in found:
        notes.append(f"assumed: one node, {nodes} is not set")
    count = found.get(nodes, 1)
    return int(found[per_node]) * count if type(count) is int else None


def model_path(fields: Fields, *keys: str) -> str | None:
    """Return a model's name or folder; of a folder that only the outside knows the last part is enough."""
    value = next((fields.data[key] for key in keys if fields.data.get(key) is not None), None)
    if not isinstance(value, str):
        return fields.text(*keys)
    # ${MODEL_DIR}/Qwen3-8B: wherever the folder is, its last part is the model's name on the hub.
    parts = [part for part in value.rstrip("/").split("/") if not has_hole(part)]
    return "/".join(parts) if not has_hole(value.rstrip("/").rpartition("/")[2]) else fields.text(*keys)


def with_model(job: ImportedJob, path: str | None) -> ImportedJob:
    """Say which model a hub name is; its sizes are then not missing. An unknown one has to be given beside the file."""
    if job.model is not None:
        return job
    rest = tuple(
        text
        for text in job.missing
        if text.removeprefix("--").replace("-", "_") not in _SIZES and not text.startswith(MODEL_MISSING)
    )
    name = built_in_model(path or "")
    # A built-in model goes first: it knows its published parameters and a training run beside its sizes.
    own = None if name else hub_model(path or "")
    if own is not None:
        said = f"the model is {own.name} with its published sizes"
        return replace(job, model=own, missing=rest, notes=(*job.notes, said))
    if name is None:
        said = f"{shorten(path)} is no built-in model; " if path else ""
        rest = (*rest, f"the model: {said}give its config.json or a model beside")
    return replace(job, model_name=name, missing=rest)


def megatron_job(
    fields: Fields,
    gpus: int | None,
    notes: Sequence[str],
    *,
    path: str | None = None,
    command_line: bool = False,
    adapter: AdapterSpec | None = None,
) -> ImportedJob:
    """Build the job of a launcher of Megatron-LM from fields under Megatron's own names."""
    job = job_from_arguments(fields, gpus, command_line=command_line, layers=_layers_of(path))
    if any(note.startswith(UNREAD) for note in notes):  # under the launcher's own names
        job = replace(job, notes=tuple(note for note in job.notes if not note.startswith(UNREAD)))
    job = with_model(job, path)
    training = replace(job.training, adapter=adapter)
    return replace(job, notes=(*notes, *job.notes), training=training)


def _layers_of(path: str | None) -> int | None:
    """Return the layers of a model by its hub name: stages follow from them."""
    from layoutopt.optimizer.specs.loading import load_workload

    name, own = built_in_model(path or ""), hub_model(path or "")
    return load_workload(name).model.layers if name else own.layers if own else None


def fsdp_job(
    *,
    notes: Sequence[str],
    path: str | None,
    gpus: int | None,
    micro_batch: int | None,
    global_batch: int | None,
    sequence_length: int | None,
    tp: int = 1,
    cp: int = 1,
    shard: int | None = None,
    replicas: int = 1,
    zero: int | None = 3,
    recompute: bool | None = None,
    precision: Precision | None = None,
    cp_comm: CpComm | None = None,
    optimizer_offload: float | None = None,
    adapter: AdapterSpec | None = None,
    optimizer: OptimizerSpec | None = None,
    missing: Sequence[str] = (),
    framework: Framework = Framework.ACCELERATE,
) -> ImportedJob:
    """Build the job of a launcher of PyTorch FSDP or DeepSpeed with Hugging Face models.

    ``shard`` ranks, those of ``cp`` among them, hold one copy of the states, None: what ``replicas`` leave.
    ``global_batch`` None is left open.
    """
    dp = gpus // (tp * cp) if gpus and gpus % (tp * cp) == 0 else None
    # Stated degrees say how many ranks there are where the launcher does not.
    if dp is None and shard is not None:
        dp = shard * replicas // cp
    hybrid = shard is not None and dp is not None and shard < dp * cp
    layout = PartialLayout(
        tp=tp,
        sp=False,
        cp=cp,
        pp=1,
        vp=1,
        ep=1,
        etp=1,
        dp=dp,
        zero=zero,
        hsdp_shard=shard if hybrid and zero else None,
        micro_batch=micro_batch,
        micro_batches=_steps(global_batch, micro_batch, dp),
        recompute=whole_layers(recompute),
        schedule=Schedule.NONE,
        mesh_order=DEFAULT_MESH_ORDER,
    )
    needed = {
        "number of GPUs": gpus or (dp and dp * tp * cp),
        "micro-batch": micro_batch,
        "global batch": global_batch,
        "sequence length": sequence_length,
        "precision": precision,
        "ZeRO stage": zero,
        "activation checkpointing": recompute,
    }
    open_values = [name for name, value in needed.items() if value is None]
    job = ImportedJob(
        framework=framework,
        layout=layout,
        training=JobTraining(
            sequence_length=sequence_length,
            global_batch=global_batch,
            precision=precision,
            pad_vocab=False,  # Hugging Face's models keep the vocabulary of their configuration
            adapter=adapter,
            optimizer=optimizer,
        ),
        options=JobOptions(cp_comm=cp_comm, optimizer_offload=optimizer_offload),
        gpus=gpus or (dp * tp * cp if dp else None),
        replicas=1 if shard else replicas,
        notes=tuple(notes),
        missing=(*open_values, *missing),
    )
    return with_model(job, path)


def whole_layers(recompute: bool | None) -> Recompute | None:
    """Return what a switch of gradient checkpointing means: every layer or nothing; None where it is not stated."""
    if recompute is None:
        return None
    return Recompute(granularity=Granularity.FULL) if recompute else Recompute()


def asking(job: ImportedJob, left_open: Mapping[str, str]) -> ImportedJob:
    """Name among what is missing the settings whose value only the outside knows, with how to give them."""
    return replace(job, missing=(*job.missing, *(f"{name}: {why}" for name, why in left_open.items())))


def note_token_batches(tokens: int, notes: list[str]) -> None:
    """Say why a micro-batch is open: as many sequences as their lengths, which no file knows, let into it."""
    said = f"micro-batches hold up to {tokens} tokens of unequal sequences: the micro-batch is left open"
    notes.append(said)


def _steps(batch: int | None, micro_batch: int | None, dp: int | None) -> int | None:
    if not batch or not micro_batch or not dp or batch % (micro_batch * dp):
        return None
    return batch // (micro_batch * dp)


def hydra_values(words: Sequence[str]) -> dict[str, Any]:
    """Read ``a.b=value`` words, ``+`` and ``++`` in front of them being additions; what hydra deletes stays away."""
    pairs = (word.lstrip("+").partition("=") for word in words if not word.startswith(("-", "~")))
    return {key: scalar(value) for key, equals, value in pairs if equals and re.fullmatch(r"[\w.]+", key)}
