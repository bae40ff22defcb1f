"""ms-swift (3602360, 2026-08-22): ``megatron sft`` has Megatron's keys and other defaults, ``swift sft`` the trainer's."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.interop.deepspeed.named import named_deepspeed, require_agreement
from layoutopt.optimizer.interop.launch.adapters import SWIFT, read_adapter
from layoutopt.optimizer.interop.launch.command import read_launch
from layoutopt.optimizer.interop.launch.keys import (
    SWITCHES,
    asking,
    fsdp_job,
    gpus_of_environment,
    megatron_job,
    model_path,
    name_unread,
    with_defaults,
)
from layoutopt.optimizer.interop.launch.methods import note_method
from layoutopt.optimizer.interop.launch.optimizers import hf_optimizer
from layoutopt.optimizer.interop.reading import importer
from layoutopt.optimizer.specs.vocabulary import CpComm, Precision

if TYPE_CHECKING:
    from collections.abc import Callable

    from layoutopt.optimizer.interop.launch.command import LaunchCommand
    from layoutopt.optimizer.interop.launch.flags import ArgFields
    from layoutopt.optimizer.interop.records import ImportedJob
    from layoutopt.optimizer.interop.shell.record import Outside
    from layoutopt.optimizer.specs.model import AdapterSpec

ENVIRONMENT = ("NPROC_PER_NODE", "NNODES")
"""Variables by which its command line starts torchrun (swift/cli/main.py)."""

RLHF = "dpo"
"""rlhf_type where it is not stated."""

OWN_FLAGS = ("--model", "--micro_batch_size", "--tensor_model_parallel_size", "--max_length", "--train_type")
NAMES = {"max_length": "seq_length", "overlap_p2p_comm": "overlap_p2p_communication"}
"""ms-swift's keys that Megatron has other names for."""

DEFAULTS = {
    "micro_batch_size": 1, "global_batch_size": 16, "use_distributed_optimizer": True, "expert_tensor_parallel_size": 1,
    "recompute_granularity": "selective", "bf16": True,
}  # fmt: skip
TRAINER_FLAGS = (
    "--per_device_train_batch_size", "--gradient_accumulation_steps", "--deepspeed", "--torch_dtype",
)  # fmt: skip
"""Flags of ``swift sft``: those of the Hugging Face trainer."""

TRAINER_KNOWN = (
    "per_device_train_batch_size", "sequence_parallel_size", "gradient_checkpointing", "deepspeed",
)  # fmt: skip
PRECISIONS = {"bfloat16": Precision.BF16, "float16": Precision.FP16}
KNOWN = (
    *SWITCHES, *DEFAULTS, "tensor_model_parallel_size", "pipeline_model_parallel_size",
    "virtual_pipeline_model_parallel_size", "pipeline_model_parallel_layout", "context_parallel_size",
    "expert_model_parallel_size", "decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers",
    "recompute_method", "recompute_num_layers", "recompute_modules", "optimizer_offload_fraction",
    "microbatch_group_size_per_vp_stage",
)  # fmt: skip


@importer
def import_swift(text: str, file: str = "", outside: Outside | None = None) -> ImportedJob:
    """Read a script that starts ``megatron sft``, ``swift sft`` or their siblings; GPUs are in NPROC_PER_NODE and NNODES."""

    def build(command: LaunchCommand) -> ImportedJob:
        """Read the command with the names of the trainer that it drives."""
        return (_job if "megatron" in command.words else _trainer_job)(command, file)

    return read_launch(text, (*OWN_FLAGS, *TRAINER_FLAGS), build, file, outside, ENVIRONMENT)


def _job(command: LaunchCommand, file: str) -> ImportedJob:
    stated = command.flags
    notes: list[str] = []
    if "rlhf" in command.words:
        note_method(stated.get("rlhf_type", RLHF), notes)
    values = with_defaults({NAMES.get(key, key): value for key, value in stated.items()}, DEFAULTS, notes)
    for name in ("attention_dropout", "hidden_dropout"):  # swift/megatron/arguments: 0
        values.setdefault(name, 0.0)
    if values["recompute_granularity"] in ("none", None):
        del values["recompute_granularity"]
    if stated.get("recompute_granularity", "") is None:  # the word none
        values.pop("recompute_granularity", None)
        notes[:] = [note for note in notes if "recompute_granularity" not in note]
    name_unread(list(stated), KNOWN, notes)
    gpus = command.gpus or gpus_of_environment(command, *ENVIRONMENT, notes)
    path = values.get("model") or values.get("load")
    fields = command.fields(file=file, data=values)
    path = path if isinstance(path, str) else None
    adapter = _adapter(fields, "full", notes)
    return megatron_job(fields, gpus, notes, path=path, command_line=True, adapter=adapter)


def _adapter(fields: ArgFields, default: str, notes: list[str]) -> AdapterSpec | None:
    kind = str(fields.raw("tuner_type") or fields.raw("train_type") or default)
    return None if kind == "full" else read_adapter(fields, kind, SWIFT, notes)


def _trainer_job(command: LaunchCommand, file: str) -> ImportedJob:
    """Read ``swift sft``: the Hugging Face trainer on DeepSpeed's stages, on FSDP, or with whole copies."""
    fields = command.fields(file=file)
    notes: list[str] = ["Hugging Face's trainer: judged as DeepSpeed's or accelerate's"]
    if "rlhf" in command.words:
        note_method(fields.raw("rlhf_type") or RLHF, notes)
    name_unread(list(fields.data), TRAINER_KNOWN, notes)
    missing: list[str] = []
    stated = _stage(fields, command.text_of, notes, missing)
    gpus = command.gpus or gpus_of_environment(command, *ENVIRONMENT, notes)
    micro_batch = fields.integer("per_device_train_batch_size", least=1)
    steps, cp = _accumulation(fields, gpus, micro_batch, notes), fields.count("sequence_parallel_size")
    ranks = gpus // cp if gpus and gpus % cp == 0 else None
    if cp > 1:
        said = "sequence_parallel_size: heads are exchanged; where they do not divide, the rest is a ring"
        notes.append(said)
    framework = stated.get("framework", Framework.ACCELERATE)
    batch = ranks * micro_batch * steps if ranks and micro_batch and steps else None
    require_agreement(stated, fields, batch)
    job = fsdp_job(
        notes=notes,
        # a hub name; a local folder ends in one
        path=model_path(fields, "model"),
        gpus=gpus,
        micro_batch=micro_batch,
        global_batch=batch,
        cp=cp,
        cp_comm=CpComm.A2A if cp > 1 else None,
        sequence_length=fields.integer("max_length", least=1),
        zero=stated.get("zero"),
        recompute=fields.raw("gradient_checkpointing") is not False,
        precision=PRECISIONS.get(str(fields.raw("torch_dtype"))) or stated.get("precision"),
        missing=missing,
        framework=framework,
        optimizer=hf_optimizer(fields, framework, notes) or stated.get("optimizer"),
        optimizer_offload=stated.get("offload"),
        adapter=_adapter(fields, "lora", notes),
    )
    return asking(job, {fields.path(key): why for key, why in fields.left_open.items()})


def _accumulation(
    fields: ArgFields, gpus: int | None, micro_batch: int | None, notes: list[str]
) -> int | None:
    """Return the steps that are stated, else the trainer's default, some sixteen sequences in all."""
    key = "gradient_accumulation_steps"
    steps = fields.integer(key, least=1)
    if steps is not None or fields.is_open(key) or not gpus or not micro_batch:
        return steps
    steps = max(1, ceil(16 / micro_batch / gpus))  # swift/trainers/arguments.py
    notes.append(f"assumed: {key} {steps}, the trainer's default")
    return steps


def _stage(
    fields: ArgFields, beside: Callable[[str], str | None], notes: list[str], missing: list[str]
) -> dict[str, Any]:
    """Return what DeepSpeed's word or file states; without either every GPU holds all states."""
    stated = fields.raw("deepspeed")
    if stated is not None:
        return named_deepspeed(str(stated), beside, notes, missing, built_in=True)
    if fields.raw("fsdp") is not None:
        return {"zero": 3}
    if fields.is_open("deepspeed"):
        return {}
    notes.append("assumed: no sharding, neither deepspeed nor fsdp is stated")
    return {"zero": 0}
