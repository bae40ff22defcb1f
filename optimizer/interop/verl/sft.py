"""verl's trainers of supervised fine-tuning: PyTorch FSDP under torchrun.

Keys and defaults of ``fsdp_sft_trainer`` as in verl b178a3c (2026-01-29, ``config/sft_trainer.yaml``), of ``sft_trainer``
as in 1dda039 (2026-08-22, ``config/sft_trainer_engine.yaml``).
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.interop.launch.adapters import AdapterKeys, read_adapter
from layoutopt.optimizer.interop.launch.flags import ArgFields
from layoutopt.optimizer.interop.launch.keys import (
    asking,
    fsdp_job,
    hydra_values,
    model_path,
    name_unread,
    note_token_batches,
    with_defaults,
)
from layoutopt.optimizer.interop.reading import shorten
from layoutopt.optimizer.specs.errors import input_error
from layoutopt.optimizer.specs.vocabulary import CpComm, Precision

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutopt.optimizer.interop.launch.command import LaunchCommand
    from layoutopt.optimizer.interop.records import ImportedJob

FSDP_SFT, ENGINE_SFT = "fsdp_sft_trainer", "sft_trainer"
OTHER_STARTS = ("sft_trainer_ray",)
"""A further start of ``sft_trainer``, whose GPUs are ``trainer.nnodes`` times ``trainer.n_gpus_per_node``."""

DEFAULTS: dict[str, Any] = {"data.train_batch_size": 256, "data.max_length": 1024}
MICRO_BATCH = 4
TOKENS_PER_GPU = 8192
ULYSSES = ("ulysses_sequence_parallel_size", "engine.ulysses_sequence_parallel_size")
RESHARD, SHARD = "engine.reshard_after_forward", "engine.fsdp_size"
CHECKPOINTING = "model.enable_gradient_checkpointing"
MICRO = "data.micro_batch_size_per_gpu"
OFFLOADS = ("cpu_offload", "offload_params", "param_offload", "optimizer_offload", "offload_policy")
LORA = AdapterKeys(rank_keys=("model.lora_rank",), target_keys=("model.target_modules",))


def sft_trainer(words: Sequence[str]) -> str | None:
    """Return which trainer of supervised fine-tuning a command starts, None where it is another trainer of verl."""
    names = {PurePosixPath(word).name.removesuffix(".py").rpartition(".")[2] for word in words}
    if FSDP_SFT in names:
        return FSDP_SFT
    return ENGINE_SFT if names & {ENGINE_SFT, *OTHER_STARTS} else None


def sft_job(command: LaunchCommand, trainer: str, file: str) -> ImportedJob:
    """Read the command; raises ``InputError`` for an engine other than FSDP."""
    notes: list[str] = ["PyTorch FSDP with Hugging Face models: judged as accelerate's"]
    values = with_defaults(hydra_values(command.words), DEFAULTS, notes)
    fields = ArgFields(values, file=file, unsaid=command.unsaid)
    engine = fields.raw("engine") or fields.raw("engine.strategy") or "fsdp"
    if not str(engine).startswith("fsdp"):
        raise input_error(f"verl's {trainer} on {shorten(engine)} is not read", "engine=fsdp", key="engine")
    gpus = command.gpus or _stated_gpus(fields)
    # Ulysses shares a sequence over ranks that FSDP shards over as well: it is cp with all-to-all.
    cp = fields.count(*ULYSSES)
    size = fields.integer(SHARD, least=-1)
    if any(key.endswith(OFFLOADS) and on is True for key, on in values.items()):
        notes.append("states in host memory are not modelled; memory is overestimated")
    known = [*ULYSSES, RESHARD, SHARD, CHECKPOINTING, MICRO]
    name_unread([key for key in values if not key.endswith(OFFLOADS)], known, notes)
    job = fsdp_job(
        notes=notes,
        path=model_path(fields, "model.partial_pretrain", "model.path"),
        gpus=gpus,
        micro_batch=_micro_batch(fields, trainer, notes),
        global_batch=fields.integer("data.train_batch_size", least=1),
        sequence_length=fields.integer("data.max_length", least=1),
        cp=cp,
        shard=size if size is not None and size > 0 else None,
        # Shards of one rank are replicas; weights that stay gathered after the forward pass are what ZeRO-2 keeps.
        zero=0 if size == 1 else 2 if fields.raw(RESHARD) is False else 3,
        recompute=fields.raw(CHECKPOINTING) is not False,
        precision=Precision.BF16,
        cp_comm=CpComm.A2A if cp > 1 else None,
        adapter=read_adapter(fields, "lora", LORA, notes) if fields.integer("model.lora_rank") else None,
    )
    return asking(job, fields.left_open)


def _stated_gpus(fields: ArgFields) -> int | None:
    each = fields.integer("trainer.n_gpus_per_node", least=1)
    return each * fields.count("trainer.nnodes") if each else None


def _micro_batch(fields: ArgFields, trainer: str, notes: list[str]) -> int | None:
    """Return sequences of a micro-batch; ``sft_trainer`` fills micro-batches by tokens unless told not to."""
    if trainer == ENGINE_SFT and fields.raw("data.use_dynamic_bsz") is not False:
        note_token_batches(fields.integer("data.max_token_len_per_gpu", least=1) or TOKENS_PER_GPU, notes)
        return None
    stated = fields.integer(MICRO, least=1)
    if stated is None and not fields.is_open(MICRO):
        notes.append(f"assumed: {MICRO} {MICRO_BATCH}, the launcher's default")
        return MICRO_BATCH
    return stated
