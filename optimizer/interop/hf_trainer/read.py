"""Hugging Face's Trainer (transformers 5.24.0, training_args.py): flags or YAML, and the files that they name."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.interop.accelerate.read import STRATEGIES, import_accelerate
from layoutopt.optimizer.interop.deepspeed.named import named_deepspeed, require_agreement
from layoutopt.optimizer.interop.launch.adapters import PEFT, read_adapter
from layoutopt.optimizer.interop.launch.command import read_launch
from layoutopt.optimizer.interop.launch.keys import asking, fsdp_job, model_path, name_unread
from layoutopt.optimizer.interop.launch.methods import method_of, note_method
from layoutopt.optimizer.interop.launch.optimizers import hf_optimizer
from layoutopt.optimizer.interop.reading import Fields, importer, parse_yaml, shorten
from layoutopt.optimizer.specs.vocabulary import Precision

if TYPE_CHECKING:
    from collections.abc import Callable

    from layoutopt.optimizer.interop.launch.command import LaunchCommand
    from layoutopt.optimizer.interop.records import ImportedJob
    from layoutopt.optimizer.interop.shell.record import Outside

FLAGS = (
    "--per_device_train_batch_size", "--gradient_accumulation_steps", "--model_name_or_path", "--deepspeed", "--fsdp",
)  # fmt: skip
LENGTHS = (
    "max_seq_length", "max_length", "block_size", "max_seq_len", "model_max_length", "cutoff_len", "max_source_length",
)  # fmt: skip
"""What training scripts call the length of a sequence; none of them is the Trainer's."""

ADAPTERS = ("use_peft", "use_lora", "lora_r", "lora_dim", "train_type", "tuner_type", "finetuning_type")
"""What training scripts call a training of adapters alone."""

METHODS = ("train_type", "tuner_type", "finetuning_type")
"""Those of them whose value names the method."""

BATCH = 8
"""per_device_train_batch_size where it is not stated."""

WORDS = {"full_shard": 3, "shard_grad_op": 2, "hybrid_shard": 3, "hybrid_shard_zero2": 2, "no_shard": 0}
"""Words of ``--fsdp``."""

KNOWN = (
    "per_device_train_batch_size", "gradient_checkpointing", "gradient_checkpointing_kwargs", "zero_stage",
    "fsdp_sharding_strategy", "tensor_parallel_size", "deepspeed", "use_deepspeed", "per_device_eval_batch_size",
    "ddp_find_unused_parameters", "torch_empty_cache_steps", "offload", "zero3_init_flag", "zero3_save_16bit_model",
)  # fmt: skip


@importer
def import_trainer(text: str, file: str = "", outside: Outside | None = None) -> ImportedJob:
    """Read a script that starts the Trainer, or a YAML file of its arguments; files that they name are read."""
    if re.search(r"^per_device_train_batch_size:", text, re.MULTILINE):
        fields = Fields(parse_yaml(text, file), file=file)
        return _job(fields, None, outside.beside if outside else lambda name: None)

    def build(command: LaunchCommand) -> ImportedJob:
        """Read the flags of one command."""
        fields = command.fields(file=file)
        job = _job(fields, command.gpus, command.text_of, method_of(command.words))
        asked = {fields.path(key): why for key, why in fields.left_open.items()}
        return asking(job, asked | ({"other flags": fields.unsaid} if fields.unsaid else {}))

    return read_launch(text, FLAGS, build, file, outside)


def _job(
    fields: Fields, gpus: int | None, beside: Callable[[str], str | None], method: str | None = None
) -> ImportedJob:
    notes: list[str] = ["Hugging Face's trainer: judged as DeepSpeed's or accelerate's"]
    note_method(method, notes)
    missing: list[str] = []
    name_unread(list(fields.data), KNOWN, notes)
    kind = _adapter_kind(fields)
    stated = _stated_elsewhere(fields, beside, notes, missing)
    micro_batch = fields.integer("per_device_train_batch_size", least=1)
    if micro_batch is None and not fields.is_open("per_device_train_batch_size"):
        micro_batch = BATCH
        notes.append(f"assumed: per_device_train_batch_size {BATCH}, the trainer's default")
    steps = fields.integer("gradient_accumulation_steps", least=1)
    steps = 1 if steps is None and not fields.is_open("gradient_accumulation_steps") else steps
    gpus = gpus or stated.get("gpus")
    tp, cp = stated.get("tp") or 1, stated.get("cp") or 1
    ranks = gpus // (tp * cp) if gpus and gpus % (tp * cp) == 0 else None
    framework = stated.get("framework", Framework.ACCELERATE)
    batch = ranks * micro_batch * steps if ranks and micro_batch and steps else None
    if not fields.raw("deepspeed_config"):  # read by the script itself, not by the trainer
        require_agreement(stated, fields, batch)
    job = fsdp_job(
        notes=notes,
        path=model_path(fields, "model_name_or_path", "model_name", "model"),
        gpus=gpus,
        micro_batch=micro_batch,
        global_batch=batch,
        sequence_length=fields.integer(*LENGTHS, least=1),
        tp=tp,
        cp=cp,
        cp_comm=stated.get("cp_comm"),
        zero=stated.get("zero"),
        shard=stated.get("shard"),
        replicas=stated.get("replicas") or 1,
        recompute=stated.get("recompute") or _recompute(fields),
        precision=_precision(fields) or stated.get("precision"),
        missing=missing,
        framework=framework,
        optimizer=hf_optimizer(fields, framework, notes) or stated.get("optimizer"),
        optimizer_offload=stated.get("offload"),
        adapter=None if kind == "full" else read_adapter(fields, kind, PEFT, notes),
    )
    if not stated.get("unseen"):
        return job
    # what the file may state is no default
    opened = dict.fromkeys(("tp", "cp", "sp", "dp", "hsdp_shard", "micro_batches"))
    training = replace(job.training, global_batch=None)
    return replace(job, layout=replace(job.layout, **opened), training=training)


def _adapter_kind(fields: Fields) -> str:
    """Return the method of adapters that the arguments state, ``full`` where they state none."""
    # By any of their words: a script that trains adapters, read as one that trains all, would need several times the memory.
    for key in ADAPTERS:
        value = fields.raw(key)
        if value not in (None, False) and str(value).lower() != "false":
            return str(value) if key in METHODS else "lora"
    return "full"


def _recompute(fields: Fields) -> bool | None:
    """Off unless stated; ``--gradient_checkpointing False`` is off as well."""
    if fields.is_open("gradient_checkpointing"):
        return None
    return str(fields.raw("gradient_checkpointing") or False).lower() == "true"


def _precision(fields: Fields) -> Precision | None:
    switches = {"bf16": Precision.BF16, "fp16": Precision.FP16}
    named = switches | {"bfloat16": Precision.BF16, "float16": Precision.FP16}
    # The Trainer's own switches decide; the other words are those of scripts around it.
    for key, precision in switches.items():
        if str(fields.raw(key) or False).lower() in ("true", "yes", "1"):
            return precision
    return named.get(str(fields.raw("mixed_precision") or fields.raw("dtype") or fields.raw("torch_dtype")))


def _stated_elsewhere(
    fields: Fields, beside: Callable[[str], str | None], notes: list[str], missing: list[str]
) -> dict[str, Any]:
    """Return ZeRO stage, shards and offload from the flags, or from the file of DeepSpeed or accelerate that they name."""
    deepspeed = fields.raw("deepspeed")
    if isinstance(deepspeed, str) or fields.raw("deepspeed_config"):
        return named_deepspeed(str(fields.raw("deepspeed_config") or deepspeed), beside, notes, missing)
    if fields.raw("zero_stage") is not None or deepspeed is True or fields.raw("use_deepspeed"):
        stage = fields.integer("zero_stage", most=3)
        offload = 1.0 if fields.raw("offload") is True else None
        return {"framework": Framework.DEEPSPEED, "zero": stage, "offload": offload}
    if fields.raw("config_file"):
        return _accelerate(str(fields.raw("config_file")), beside, notes, missing)
    words = fields.raw("fsdp")
    if words is not None and words is not False:
        listed = words if isinstance(words, list) else str(words).replace(",", " ").split()
        return _fsdp(listed, notes, missing)
    if fields.raw("use_fsdp"):
        strategy = str(fields.raw("fsdp_sharding_strategy") or "FULL_SHARD").upper()
        # accelerate takes the number of torch's ShardingStrategy as well.
        strategy = list(STRATEGIES)[int(strategy) - 1] if strategy in {"1", "2", "3", "4", "5"} else strategy
        return _fsdp([strategy.lower()], notes, missing)
    if fields.is_open("deepspeed", "fsdp", "config_file"):
        return {}
    notes.append("assumed: no sharding, neither deepspeed nor fsdp is stated")
    return {"zero": 0}


def _fsdp(words: list[Any], notes: list[str], missing: list[str]) -> dict[str, Any]:
    named = [str(word) for word in words if str(word) in WORDS]
    if any(name.startswith("hybrid") for name in named):
        missing.append("ranks per shard group: hybrid shards are a node's")
    if "offload" in map(str, words):
        notes.append("parameters in host memory are not modelled; memory is overestimated")
    return {"zero": WORDS[named[0]] if named else 3, "offload": 1.0 if "offload" in map(str, words) else None}


def _accelerate(
    name: str, beside: Callable[[str], str | None], notes: list[str], missing: list[str]
) -> dict[str, Any]:
    """Read what an accelerate configuration states."""
    text = beside(name)
    if text is None:
        missing.append(f"ZeRO stage, shards, tp and cp: {shorten(name)} was not found")
        return {"unseen": True}
    job = import_accelerate(text, name)
    notes += [note for note in job.notes if note not in notes]
    part = job.layout
    shard, cp = part.hsdp_shard, part.cp or 1
    recompute = part.recompute is not None and part.recompute.granularity == "full"
    return {
        "zero": part.zero,
        "gpus": job.gpus,
        "tp": part.tp,
        "cp": part.cp,
        "shard": shard,
        "replicas": part.dp * cp // shard if shard and part.dp else 1,
        "recompute": recompute or None,
        "precision": job.training.precision,
        "offload": job.options.optimizer_offload,
        "cp_comm": job.options.cp_comm,
        "framework": Framework.DEEPSPEED if "deepspeed_config" in text else Framework.ACCELERATE,
    }
