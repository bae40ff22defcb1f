"""verl command lines (hydra words): the actor's layout; critics and inference engines run on the same GPUs.

Keys and defaults as in verl b178a3c (2026-01-29), ``verl/trainer/config``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.interop.launch.command import read_launch
from layoutopt.optimizer.interop.launch.flags import ArgFields
from layoutopt.optimizer.interop.launch.keys import (
    asking,
    fsdp_job,
    hydra_values,
    megatron_job,
    model_path,
    name_unread,
    note_token_batches,
    with_defaults,
)
from layoutopt.optimizer.interop.reading import importer
from layoutopt.optimizer.interop.verl.sft import ENGINE_SFT, FSDP_SFT, OTHER_STARTS, sft_job, sft_trainer
from layoutopt.optimizer.specs.vocabulary import CpComm, Precision

if TYPE_CHECKING:
    from layoutopt.optimizer.interop.launch.command import LaunchCommand
    from layoutopt.optimizer.interop.records import ImportedJob
    from layoutopt.optimizer.interop.shell.record import Outside

ACTOR = "actor_rollout_ref.actor."
MEGATRON = ACTOR + "megatron."
OWN_KEYS = (
    "actor_rollout_ref.model.path",
    "trainer.n_gpus_per_node",
    ACTOR + "strategy",
    "data.train_batch_size",
    *(f"verl.trainer.{name}" for name in ("main_ppo", FSDP_SFT, ENGINE_SFT, *OTHER_STARTS)),
)
MEGATRON_KEYS = {
    **{
        MEGATRON + name: name
        for name in (
            "tensor_model_parallel_size", "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size",
            "context_parallel_size", "expert_model_parallel_size", "expert_tensor_parallel_size", "sequence_parallel",
            "use_distributed_optimizer",
        )
    },
    ACTOR + "ppo_micro_batch_size_per_gpu": "micro_batch_size",
}  # fmt: skip
"""verl's keys of the Megatron actor and Megatron's names for them."""

SECTIONS = (MEGATRON + "override_transformer_config.", MEGATRON + "override_ddp_config.")
"""Sections whose keys are Megatron's own."""

MEGATRON_DEFAULTS = {"sequence_parallel": True, "use_distributed_optimizer": True, "bf16": True}
DATA_DEFAULTS = {
    "data.max_prompt_length": 512,
    "data.max_response_length": 512,
    ACTOR + "ppo_mini_batch_size": 256,
    "actor_rollout_ref.rollout.n": 1,
    "trainer.nnodes": 1,
    "trainer.n_gpus_per_node": 8,
}
FSDP_KEYS = (
    ACTOR + "strategy",
    ACTOR + "ulysses_sequence_parallel_size",
    ACTOR + "fsdp_config.fsdp_size",
    ACTOR + "fsdp_config.reshard_after_forward",
    "actor_rollout_ref.model.enable_gradient_checkpointing",
)
OFFLOADS = ("param_offload", "grad_offload", "optimizer_offload")


@importer
def import_verl(text: str, file: str = "", outside: Outside | None = None) -> ImportedJob:
    """Read a script that starts ``verl.trainer.main_ppo``, whose step is a mini-batch of the actor, or fine-tuning."""
    return read_launch(text, OWN_KEYS, lambda command: _job(command, file), file, outside)


def _job(command: LaunchCommand, file: str) -> ImportedJob:
    trainer = sft_trainer(command.words)
    if trainer is not None:
        return sft_job(command, trainer, file)
    stated = hydra_values(command.words)
    notes: list[str] = []
    values = with_defaults(stated, DATA_DEFAULTS, notes)
    dynamic = values.get(ACTOR + "use_dynamic_bsz") is True
    if dynamic:  # tokens fill a micro-batch, whatever its sequences
        values.pop(ACTOR + "ppo_micro_batch_size_per_gpu", None)
    fields = ArgFields(values, file=file, unsaid=command.unsaid)
    nodes, each = _known(fields, "trainer.nnodes", "trainer.n_gpus_per_node")
    gpus = nodes * each if nodes and each else None
    prompts, samples = _known(fields, ACTOR + "ppo_mini_batch_size", "actor_rollout_ref.rollout.n")
    batch = prompts * samples if prompts and samples else None
    prompt, response = _known(fields, "data.max_prompt_length", "data.max_response_length")
    length = prompt + response if prompt and response else None
    if dynamic:
        note_token_batches(fields.integer(ACTOR + "ppo_max_token_len_per_gpu") or 16384, notes)
    notes.append("other roles on the same GPUs (rollout, reference, critic) are not part of the actor's step")
    _note_offload(fields, notes)
    build = _megatron if _drives_megatron(command, fields) else _fsdp
    return asking(build(fields, gpus, batch, length, notes), fields.left_open)


def _known(fields: ArgFields, *keys: str) -> list[int | None]:
    """Read counts; one that only the outside knows is open."""
    return [fields.integer(key, least=1) for key in keys]


def _drives_megatron(command: LaunchCommand, fields: ArgFields) -> bool:
    strategy = fields.text(ACTOR + "strategy")
    if strategy:
        return strategy == "megatron"
    # The strategy is mostly the configuration's, whose name tells it: ppo_megatron_trainer.
    named = any("megatron" in word for word in command.words if word.startswith("--config-name"))
    return named or any(key.startswith(MEGATRON) for key in fields.data)


def _note_offload(fields: ArgFields, notes: list[str]) -> None:
    on = [key for key, value in fields.data.items() if value is True]
    stated = [name for name in OFFLOADS if any(key.endswith("." + name) for key in on)]
    if stated:
        moved = ", ".join(stated)
        notes.append(f"{moved}: states are in host memory between phases, not during the actor's step")


def _megatron(
    fields: ArgFields, gpus: int | None, batch: int | None, length: int | None, notes: list[str]
) -> ImportedJob:
    named = {own: fields.data[key] for key, own in MEGATRON_KEYS.items() if key in fields.data}
    for section in SECTIONS:
        own = {key: value for key, value in fields.data.items() if key.startswith(section)}
        named |= {key.removeprefix(section): value for key, value in own.items()}
    named |= {"global_batch_size": batch, "seq_length": length}
    values = with_defaults(named, MEGATRON_DEFAULTS, notes)
    mine = [key for key in fields.data if key.startswith(MEGATRON)]
    known = [key for key in mine if key.startswith(SECTIONS) or _moves(key)]
    name_unread(mine, [*MEGATRON_KEYS, *known], notes)
    own_fields = ArgFields(values, file=fields.file, unsaid=fields.unsaid)
    return megatron_job(own_fields, gpus, notes, path=model_path(fields, "actor_rollout_ref.model.path"))


def _moves(key: str) -> bool:
    return key.endswith(OFFLOADS)


def _fsdp(
    fields: ArgFields, gpus: int | None, batch: int | None, length: int | None, notes: list[str]
) -> ImportedJob:
    data: dict[str, Any] = dict(fields.data)
    size = fields.integer(FSDP_KEYS[2], least=-1)
    cp = fields.count(FSDP_KEYS[1])
    mine = [key for key in data if key.startswith(ACTOR) and not _moves(key)]
    name_unread(mine, [*FSDP_KEYS, *MEGATRON_KEYS], notes)
    notes.append("PyTorch FSDP with Hugging Face models: judged as accelerate's")
    return fsdp_job(
        notes=notes,
        path=model_path(fields, "actor_rollout_ref.model.path"),
        gpus=gpus,
        micro_batch=fields.integer(ACTOR + "ppo_micro_batch_size_per_gpu", least=1),
        global_batch=batch,
        sequence_length=length,
        cp=cp,
        # -1, the default, shards over all ranks; 1 leaves every rank a whole copy
        shard=size if size is not None and size > 0 else None,
        zero=0 if size == 1 else 2 if data.get(FSDP_KEYS[3]) is False else 3,
        recompute=data.get(FSDP_KEYS[4]) is not False,
        precision=Precision.BF16,
        cp_comm=CpComm.A2A if cp > 1 else None,
    )
