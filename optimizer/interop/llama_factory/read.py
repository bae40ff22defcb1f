"""LLaMA-Factory YAML (LLaMA-Factory ff6d4d1, 2026-08-18): Hugging Face's trainer, or Megatron-LM where degrees are."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.interop.deepspeed.named import named_deepspeed, require_agreement
from layoutopt.optimizer.interop.launch.adapters import LLAMA_FACTORY, read_adapter
from layoutopt.optimizer.interop.launch.config_command import INLINE, after, read_config_or_launch
from layoutopt.optimizer.interop.launch.keys import fsdp_job, megatron_job, name_unread, with_truths
from layoutopt.optimizer.interop.launch.methods import LEFT_OUT, note_method
from layoutopt.optimizer.interop.launch.optimizers import hf_optimizer
from layoutopt.optimizer.interop.reading import Fields, importer
from layoutopt.optimizer.interop.shell.values import has_hole
from layoutopt.optimizer.specs.vocabulary import Precision

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from layoutopt.optimizer.interop.launch.command import LaunchCommand
    from layoutopt.optimizer.interop.records import ImportedJob
    from layoutopt.optimizer.interop.shell.record import Outside
    from layoutopt.optimizer.specs.model import AdapterSpec

SIGNS = ("llamafactory-cli", "llamafactory.launcher", "src/train.py", "train")
"""Words of commands that start it."""

MEGATRON_KEYS = (
    "tensor_model_parallel_size", "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size",
    "context_parallel_size", "expert_model_parallel_size", "sequence_parallel", "recompute_granularity",
    "recompute_method", "recompute_num_layers", "recompute_modules", "use_distributed_optimizer",
    "overlap_grad_reduce", "overlap_param_gather", "moe_token_dispatcher_type",
)  # fmt: skip
"""Keys of its Megatron path (USE_MCA=1), which are Megatron's own."""

KNOWN = (
    *MEGATRON_KEYS, "disable_gradient_checkpointing", "gradient_checkpointing", "per_device_train_batch_size",
)  # fmt: skip


@importer
def import_llama_factory(text: str, file: str = "", outside: Outside | None = None) -> ImportedJob:
    """Read a training file, or a script that starts one: the number of GPUs is in the launcher's environment.

    Raises ``InputError`` where the script names a file that is not there.
    """
    return read_config_or_launch(text, SIGNS, _named, _job, file, outside)


def _named(command: LaunchCommand) -> tuple[str, Sequence[str]] | None:
    found = after(command.words, "train", "llamafactory.launcher", "src/train.py")
    if found is None or found[0].lower().endswith((".yaml", ".yml", ".json")) or has_hole(found[0]):
        return found
    # train.py takes the settings as flags as well: then the first word behind it is one flag's value, and no file.
    flags = next((place for place, word in enumerate(command.words) if word.startswith("--")), None)
    return found if flags is None else (INLINE, command.words[flags:])


def _job(fields: Fields, beside: Callable[[str], str | None], gpus: int | None) -> ImportedJob:
    notes: list[str] = []
    stage, loss = fields.text("stage"), fields.text("pref_loss")
    note_method(loss if stage == "dpo" and loss in LEFT_OUT else stage, notes)
    kind = fields.text("finetuning_type") or _assumed(notes)
    adapter = None if kind == "full" else read_adapter(fields, kind, LLAMA_FACTORY, notes)
    name_unread(list(fields.data), KNOWN, notes)
    micro_batch = fields.integer("per_device_train_batch_size", least=1)
    accumulation = fields.count("gradient_accumulation_steps")
    # The file cannot know it: how many ranks there are is in the launcher's environment.
    said = f"the global batch is {micro_batch or '?'} * {accumulation} sequences per data-parallel rank"
    notes.append(said)
    # USE_MCA=1 stands in the environment, which a file does not hold: degrees are in no other path's settings.
    if any(fields.data.get(key) is not None for key in MEGATRON_KEYS):
        return _megatron(fields, micro_batch, accumulation, adapter, notes, gpus)
    missing: list[str] = []
    named = fields.text("deepspeed")
    stated: dict[str, Any] = (
        {"zero": _stage(fields, notes)} if named is None else named_deepspeed(named, beside, notes, missing)
    )
    framework = stated.get("framework", Framework.ACCELERATE)
    batch = micro_batch * accumulation * gpus if micro_batch and gpus else None
    require_agreement(stated, fields, batch)
    return fsdp_job(
        notes=notes,
        path=fields.text("model_name_or_path"),
        gpus=gpus,
        micro_batch=micro_batch,
        global_batch=batch,
        sequence_length=fields.integer("cutoff_len", least=1),
        zero=stated.get("zero"),
        # On unless it is disabled (hparams/model_args.py).
        recompute=not fields.on("disable_gradient_checkpointing"),
        precision=_precision(fields) or stated.get("precision"),
        missing=missing,
        framework=framework,
        optimizer=hf_optimizer(fields, framework, notes) or stated.get("optimizer"),
        adapter=adapter,
        optimizer_offload=stated.get("offload"),
    )


def _assumed(notes: list[str]) -> str:
    notes.append("assumed: finetuning_type lora, the trainer's default")
    return "lora"


def _stage(fields: Fields, notes: list[str]) -> int:
    """Return the ZeRO stage of FSDP; without it replicas hold all states."""
    if "fsdp" in fields or "fsdp_config" in fields:
        return 3
    notes.append("assumed: no sharding, neither deepspeed nor fsdp is stated")
    return 0


def _precision(fields: Fields) -> Precision | None:
    if fields.on("fp8"):
        return Precision.FP8
    return Precision.BF16 if fields.on("bf16") else Precision.FP16 if fields.on("fp16") else None


def _megatron(
    fields: Fields,
    micro_batch: int | None,
    accumulation: int,
    adapter: AdapterSpec | None,
    notes: list[str],
    gpus: int | None,
) -> ImportedJob:
    values = with_truths({key: fields.data[key] for key in MEGATRON_KEYS if key in fields})
    values |= {"micro_batch_size": micro_batch, "seq_length": fields.integer("cutoff_len", least=1)}
    values |= {"bf16": fields.on("bf16"), "fp16": fields.on("fp16")}
    path = fields.text("model_name_or_path")
    degrees = ("tensor", "pipeline", "context")
    ranks = prod(fields.count(f"{axis}_model_parallel_size", f"{axis}_parallel_size") for axis in degrees)
    if gpus and micro_batch and gpus % ranks == 0:
        values["global_batch_size"] = micro_batch * accumulation * (gpus // ranks)
    return megatron_job(Fields(values, file=fields.file), gpus, notes, path=path, adapter=adapter)
