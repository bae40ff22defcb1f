"""ms-swift's ``megatron pt``, ``sft`` and ``rlhf`` (ms-swift 3602360, 2026-08-22): Megatron's keys, other defaults."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutopt.optimizer.interop.launch.command import read_launch
from layoutopt.optimizer.interop.launch.keys import (
    gpus_of_environment,
    megatron_job,
    name_unread,
    with_defaults,
)
from layoutopt.optimizer.interop.reading import importer

if TYPE_CHECKING:
    from layoutopt.optimizer.interop.launch.command import LaunchCommand
    from layoutopt.optimizer.interop.records import ImportedJob
    from layoutopt.optimizer.interop.shell.record import Outside

OWN_FLAGS = ("--model", "--micro_batch_size", "--tensor_model_parallel_size", "--max_length", "--train_type")
NAMES = {"max_length": "seq_length", "overlap_p2p_comm": "overlap_p2p_communication"}
"""ms-swift's keys that Megatron has other names for."""

DEFAULTS = {
    "micro_batch_size": 1,
    "global_batch_size": 16,
    "use_distributed_optimizer": True,
    "expert_tensor_parallel_size": 1,
    "recompute_granularity": "selective",
    "bf16": True,
}
SWITCHES = (
    "sequence_parallel", "use_distributed_optimizer", "use_megatron_fsdp", "overlap_grad_reduce",
    "overlap_param_gather", "tp_comm_overlap", "moe_shared_expert_overlap", "moe_enable_deepep",
    "optimizer_cpu_offload", "use_precision_aware_optimizer",
)  # fmt: skip
KNOWN = (
    *SWITCHES, *DEFAULTS, "tensor_model_parallel_size", "pipeline_model_parallel_size",
    "virtual_pipeline_model_parallel_size", "pipeline_model_parallel_layout", "context_parallel_size",
    "expert_model_parallel_size", "decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers",
    "recompute_method", "recompute_num_layers", "recompute_modules", "optimizer_offload_fraction",
    "microbatch_group_size_per_vp_stage",
)  # fmt: skip


@importer
def import_swift(text: str, file: str = "", outside: Outside | None = None) -> ImportedJob:
    """Read a script that starts ``megatron sft`` or its siblings; GPUs are in NPROC_PER_NODE and NNODES."""
    return read_launch(text, OWN_FLAGS, lambda command: _job(command, text, file), file, outside)


def _job(command: LaunchCommand, text: str, file: str) -> ImportedJob:
    stated = command.flags
    notes: list[str] = []
    values = with_defaults({NAMES.get(key, key): value for key, value in stated.items()}, DEFAULTS, notes)
    for name in ("attention_dropout", "hidden_dropout"):  # swift/megatron/arguments: 0
        values.setdefault(name, 0.0)
    if values["recompute_granularity"] in ("none", None):
        del values["recompute_granularity"]
    if stated.get("recompute_granularity", "") is None:  # the word none
        values.pop("recompute_granularity", None)
        notes[:] = [note for note in notes if "recompute_granularity" not in note]
    name_unread(list(stated), KNOWN, notes)
    adapter = values.get("tuner_type") or values.get("train_type")
    if adapter not in (None, "full"):
        notes.append(f"{adapter}: adapters are not read from this file; priced as training of all parameters")
    gpus = command.gpus or gpus_of_environment(text, "NPROC_PER_NODE", "NNODES", notes)
    path = values.get("model") or values.get("load")
    return megatron_job(
        command.fields(file=file, data=values),
        gpus,
        notes,
        path=path if isinstance(path, str) else None,
        command_line=True,
    )
