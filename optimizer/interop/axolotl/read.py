"""axolotl YAML (axolotl 067b021, 2026-07-24): PyTorch FSDP or DeepSpeed under Hugging Face's trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.interop.deepspeed.named import named_deepspeed, require_agreement
from layoutopt.optimizer.interop.launch.adapters import AXOLOTL, read_adapter
from layoutopt.optimizer.interop.launch.config_command import after, read_config_or_launch
from layoutopt.optimizer.interop.launch.keys import fsdp_job, name_unread
from layoutopt.optimizer.interop.launch.methods import note_method
from layoutopt.optimizer.interop.launch.optimizers import hf_optimizer
from layoutopt.optimizer.interop.reading import Fields, importer
from layoutopt.optimizer.specs.vocabulary import CpComm, Precision

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from layoutopt.optimizer.interop.launch.command import LaunchCommand
    from layoutopt.optimizer.interop.records import ImportedJob
    from layoutopt.optimizer.interop.shell.record import Outside

SIGNS = ("axolotl", "axolotl.cli.train", "train", "scripts/finetune.py")
"""Words of commands that start it."""

KNOWN = (
    "micro_batch_size", "gradient_accumulation_steps", "dp_shard_size", "dp_replicate_size",
    "tensor_parallel_size", "context_parallel_size", "sequence_parallel_degree", "gradient_checkpointing",
    "gradient_checkpointing_kwargs", "deepspeed",
)  # fmt: skip


@importer
def import_axolotl(text: str, file: str = "", outside: Outside | None = None) -> ImportedJob:
    """Read a training file, or a script that starts one. The file tells the GPUs where it has ``dp_shard_size``.

    Raises ``InputError`` for experts, which axolotl divides among ranks that it takes out of data parallelism, and where
    a script names a file that is not there.
    """
    return read_config_or_launch(text, SIGNS, _named, _job, file, outside)


def _named(command: LaunchCommand) -> tuple[str, Sequence[str]] | None:
    return after(command.words, "axolotl.cli.train", "train", "scripts/finetune.py")


def _job(fields: Fields, beside: Callable[[str], str | None], started: int | None) -> ImportedJob:
    """Read the settings; ``started`` are the processes of a launcher."""
    notes = ["Hugging Face models on PyTorch FSDP or DeepSpeed: judged as accelerate's or DeepSpeed's"]
    missing: list[str] = []
    tp = fields.count("tensor_parallel_size")
    cp = fields.count("context_parallel_size", "sequence_parallel_degree")
    shard = fields.integer("dp_shard_size", least=1)
    replicas = fields.count("dp_replicate_size")
    micro_batch = fields.integer("micro_batch_size", least=1)
    accumulation = fields.count("gradient_accumulation_steps")
    # Stated degrees are the world that the device mesh is built of; a launcher's number counts only without them.
    gpus = started if shard is None else shard * replicas * tp * cp
    named = fields.text("deepspeed")
    stated: dict[str, Any] = {"zero": _zero(fields)}
    if named is not None:
        stated = named_deepspeed(named, beside, notes, missing)
    if fields.count("expert_parallel_size") > 1:
        raise fields.fail("expert_parallel_size", "axolotl takes it out of the world: not modelled", "1")
    dp = shard * replicas if shard else gpus // (tp * cp) if gpus and gpus % (tp * cp) == 0 else None
    _note_special(fields, notes)
    note_method(fields.text("rl"), notes)
    name_unread(list(fields.data), KNOWN, notes)
    kind = fields.text("adapter")
    framework = stated.get("framework", Framework.ACCELERATE)
    batch = micro_batch * accumulation * dp if micro_batch and dp else None
    require_agreement(stated, fields, batch, "micro_batch_size")
    return fsdp_job(
        notes=notes,
        path=fields.text("base_model"),
        gpus=gpus,
        micro_batch=micro_batch,
        global_batch=batch,
        sequence_length=fields.integer("sequence_len", least=1),
        tp=tp,
        cp=cp,
        shard=shard * cp if shard is not None and replicas > 1 else None,
        replicas=replicas,
        zero=stated.get("zero"),
        # The words offload and offload_disk turn it on as well.
        recompute=fields.data.get("gradient_checkpointing") not in (None, False),
        precision=_precision(fields) or stated.get("precision"),
        cp_comm=CpComm.P2P if cp > 1 else None,
        missing=missing,
        framework=framework,
        optimizer=hf_optimizer(fields, framework, notes, "optimizer") or stated.get("optimizer"),
        optimizer_offload=stated.get("offload"),
        adapter=read_adapter(fields, kind, AXOLOTL, notes) if kind else None,
    )


def _zero(fields: Fields) -> int:
    # A shard degree alone turns FSDP on; a file with none of these trains whole copies.
    if "fsdp_version" not in fields and "fsdp_config" not in fields and "fsdp" not in fields:
        return 0 if fields.integer("dp_shard_size") in (None, 1) else 3
    return 2 if fields.section("fsdp_config").flag("reshard_after_forward") is False else 3


def _note_special(fields: Fields, notes: list[str]) -> None:
    """Say what changes memory or speed and is not modelled."""
    if fields.section("fsdp_config").on("offload_params", "fsdp_offload_params"):
        notes.append("offload_params: parameters in host memory are not modelled; memory is overestimated")
    if str(fields.data.get("gradient_checkpointing")).startswith("offload"):
        notes.append("gradient_checkpointing offload: kept inputs count as memory of the GPU")
    if fields.on("sample_packing"):
        notes.append("sample_packing: a sequence is a packed row")


def _precision(fields: Fields) -> Precision | None:
    if fields.data.get("fp8") is True:
        return Precision.FP8
    if fields.data.get("bf16") in (True, "auto", "full"):
        return Precision.BF16
    return Precision.FP16 if fields.data.get("fp16") is True else None
