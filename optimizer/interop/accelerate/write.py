"""Hugging Face accelerate: a YAML file for FSDP2 with parallelism sizes; the batch is in the command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.interop.launch.optimizers import optimizer_word
from layoutopt.optimizer.interop.launch.text import (
    HEAD_NODE,
    RENDEZVOUS_PORT,
    command_text,
    flag_words,
    header,
    yaml_text,
)
from layoutopt.optimizer.interop.records import ExportedJob
from layoutopt.optimizer.interop.torchtitan.write import degrees
from layoutopt.optimizer.specs.vocabulary import CpComm, Granularity, Optimizer, Saver

if TYPE_CHECKING:
    from layoutopt.optimizer.interop.launch.target import Target


def export(target: Target) -> ExportedJob:
    """Write ``accelerate.yaml`` and the command with micro-batch and accumulation."""
    layout, preset = target.layout, target.preset
    shard, replicate = degrees(target)
    full = layout.recompute.granularity is Granularity.FULL
    notes = [
        "micro-batch and accumulation are arguments of the training script: the YAML has no keys for them"
    ]
    if Saver.OFFLOAD_OPTIMIZER in layout.savers:
        notes.append("fsdp_offload_params keeps the shards of weights and gradients in host memory as well")
    ulysses = preset.cp_comm is CpComm.A2A
    parallel: dict[str, int | str] = {
        "parallelism_config_dp_replicate_size": replicate,
        "parallelism_config_dp_shard_size": shard,
        "parallelism_config_tp_size": layout.tp,
        # Exchanged heads have an axis of their own, sp_size; accelerate refuses both at once.
        "parallelism_config_cp_size": 1 if ulysses else layout.cp,
    }
    if layout.cp > 1 and not ulysses:
        # its alltoall passes keys and values around a ring
        gathers = preset.cp_comm is CpComm.ALL_GATHER
        parallel["parallelism_config_cp_comm_strategy"] = "allgather" if gathers else "alltoall"
    if layout.cp > 1 and ulysses:
        parallel["parallelism_config_sp_size"] = layout.cp
    data: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP",
        "mixed_precision": layout.precision.value,
        "num_machines": target.nodes,
        "num_processes": layout.gpus,
        "fsdp_config": {
            "fsdp_version": 2,
            "fsdp_reshard_after_forward": layout.zero == 3,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
            "fsdp_activation_checkpointing": full,
            "fsdp_offload_params": Saver.OFFLOAD_OPTIMIZER in layout.savers,
            "fsdp_cpu_ram_efficient_loading": True,
        },
        "parallelism_config": parallel,
    }
    if target.nodes > 1:
        # With c10d every node starts the same command; static rendezvous needs the rank of each machine.
        data |= {"rdzv_backend": "c10d", "main_process_ip": HEAD_NODE, "main_process_port": RENDEZVOUS_PORT}
    if target.checkpoint is not None and target.checkpoint.asynchronous:
        notes.append("checkpoints are saved by the training script: asynchronous saving is its business")
    chosen = target.training.optimizer
    flags: list[tuple[str, Any]] = [
        ("--per_device_train_batch_size", layout.micro_batch),
        ("--gradient_accumulation_steps", layout.micro_batches),
        ("--max_seq_length", target.training.sequence_length),
        ("--optim", None if chosen.kind is Optimizer.ADAMW else optimizer_word(target.framework, chosen)),
        ("--save_steps", target.checkpoint.interval_steps if target.checkpoint else None),
    ]
    start = ["accelerate", "launch", "--config_file", "accelerate.yaml", "train.py"]
    return ExportedJob(
        framework=target.framework,
        version=target.version,
        files={"accelerate.yaml": header(target, f"accelerate {target.version}") + yaml_text(data)},
        command=command_text(start, [flag_words(flags)]).strip(),
        memory_check="none: accelerate has no single-GPU mode with fake communication",
        layout=layout,
        notes=tuple(notes),
    )
