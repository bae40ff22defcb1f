"""torchtitan configurations: TOML (era A), Python with batches in sequences (B) or tokens (C)."""

from __future__ import annotations

import re
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.interop.launch.config_command import after, read_config_launch
from layoutopt.optimizer.interop.launch.flags import ArgFields
from layoutopt.optimizer.interop.python_values import OPEN
from layoutopt.optimizer.interop.reading import MAX_DEGREE, MAX_LAYERS, Fields, importer, parse_toml, shorten
from layoutopt.optimizer.interop.records import ImportedJob, JobOptions, JobTraining
from layoutopt.optimizer.interop.shell.values import has_hole, hole, show
from layoutopt.optimizer.interop.stages import stage_items
from layoutopt.optimizer.interop.torchtitan.read_batch import (
    OPEN_AXES,
    TOKENS_KEY,
    Batch,
    read_batch,
    read_schedule,
    read_split,
)
from layoutopt.optimizer.interop.torchtitan.read_python import SECTIONS, read_python_config
from layoutopt.optimizer.specs.errors import input_error
from layoutopt.optimizer.specs.layout import Recompute
from layoutopt.optimizer.specs.partial_layout import PartialLayout
from layoutopt.optimizer.specs.vocabulary import (
    DEFAULT_MESH_ORDER,
    OP_MODULE,
    CpComm,
    Fp8Recipe,
    Granularity,
    Precision,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from layoutopt.optimizer.interop.launch.command import LaunchCommand
    from layoutopt.optimizer.interop.launch.config_command import ConfigLaunch
    from layoutopt.optimizer.interop.shell.record import Outside

STARTED = r"--job\.config[_-]file\b|\btorchtitan\.train\b"
"""What a script has that starts torchtitan."""

SIGNS = ("--job.config_file", "--job.config-file", "torchtitan.train")
FLAVORS = {
    ("llama3", "8b"): ("llama3-8b", 32),
    ("llama3", "70b"): ("llama3-70b", 80),
    ("llama3", "405b"): ("llama3-405b", 126),
    ("deepseek_v3", "236b"): ("deepseek-v2", 60),
    ("deepseek_v3", "671b"): ("deepseek-v3", 61),
    ("qwen3", "32b"): ("qwen3-32b", 64),
    ("qwen3", "30b-a3b"): ("qwen3-30b-a3b", 48),
    ("qwen3", "235b-a22b"): ("qwen3-235b-a22b", 94),
    ("gpt_oss", "120b"): ("gpt-oss-120b", 36),
}
"""Model and flavor, the built-in model of that shape, and its layers (torchtitan/models/*/__init__.py)."""

FULL_CHECKPOINTING = ("llama3_70b", "llama3_405b", "qwen3_14b", "qwen3_30b_a3b", "qwen3_32b")
"""Configurations with full checkpointing (torchtitan/models/*/config_registry.py); others are selective."""


@importer
def import_toml(text: str, file: str = "", outside: Outside | None = None) -> ImportedJob:
    """Read a TOML configuration (torchtitan up to v0.2.2), or a script that starts one and may change it.

    Raises ``InputError`` where the script names a file that is not there.
    """
    if not re.search(STARTED, text):
        return job_of_sections(parse_toml(text, file), "A", file)

    def build(launch: ConfigLaunch) -> ImportedJob:
        """Read the configuration with the settings behind it, over the GPUs of the launcher."""
        data = parse_toml(launch.text, launch.name)
        for key, value in launch.overrides.items():
            section, dot, name = key.partition(".")
            if dot and isinstance(data.setdefault(section, {}), dict):
                data[section][name] = value
        return job_of_sections(data, "A", launch.name, gpus=launch.gpus)

    return read_config_launch(text, SIGNS, _named, build, file, outside)


def _named(command: LaunchCommand) -> tuple[str, Sequence[str]] | None:
    """Return the configuration that a command names; a function of a registry is in a file that it does not name."""
    function, module = command.flags.get("config"), command.flags.get("module")
    found = after(command.words, "--job.config_file", "--job.config-file")
    if found is None and function is not None:
        raise input_error(
            f"starts {shorten(function)} of the registry {shorten(module)}, which is not beside the script",
            f"its config_registry.py with --function {shorten(function)}",
        )
    return found


@importer
def import_python(text: str, file: str = "", function: str | None = None) -> ImportedJob:
    """Read a Python configuration without running it; the era follows from how it states the batch."""
    sections, name = read_python_config(text, file, function)
    training = sections.get("training")
    keys = set(training) if isinstance(training, dict) else set()
    parallelism = sections.get("parallelism")
    keys |= set(parallelism) if isinstance(parallelism, dict) else set()
    tokens = {TOKENS_KEY, "num_tokens_per_train_step", "num_pp_microbatches", "max_context_length"} & keys
    sections.setdefault("function", name)
    return job_of_sections(sections, "C" if tokens else "B", file)


class _Section(ArgFields):
    """A section whose messages show dotted keys, and whose computed values are reported when read."""

    path = Fields.path
    flag = Fields.flag

    def find(self, *keys: str) -> tuple[str, Any]:
        """Return the first setting present; refuse one that a call makes."""
        key, value = super().find(*keys)
        if value is None and OPEN in self.data and key not in self.left_open:
            why = str(self.data[OPEN])
            self.left_open[key] = f"{self.unresolved(why)} ({self.remedy(why)})"
        if isinstance(value, dict):
            name = value.get("class") or value.get("base") or "another section"
            raise self.fail(key, self.unresolved(hole(f"{name}(...)")), self.remedy(""))
        return key, value

    def unresolved(self, value: str) -> str:
        """Say that a value is computed where nothing is run."""
        return f"is computed by {shorten(show(value)[1:])}, and nothing is run"

    def remedy(self, value: str) -> str:
        """Only the file itself can say it."""
        return "state the value"

    def holds_open(self) -> bool:
        """Tell whether a setting's value is open."""
        return any(isinstance(value, str) and has_hole(value) for value in self.data.values())


def _section(data: Mapping[str, Any], name: str, file: str) -> _Section:
    section = data.get(name)
    if isinstance(section, _Section):
        return section
    if section is None:
        section = {OPEN: data[OPEN]} if OPEN in data else {}
    if isinstance(section, str) and has_hole(section):
        what = f"is computed by {shorten(show(section)[1:])}, and nothing is run"
        raise input_error(what, "state its settings", key=name, file=file)
    if not isinstance(section, dict):
        raise input_error("not a section", f"settings under {name}", key=name, file=file)
    maker = str(section.get("base") or section.get("class") or "")
    if maker.rpartition(".")[2][:1].islower():
        what = f"is computed by {shorten(maker)}(...), and nothing is run"
        raise input_error(what, "state its settings", key=name, file=file)
    return _Section({str(key): value for key, value in section.items()}, file=file, prefix=name)


def job_of_sections(data: dict[str, Any], era: str, file: str, *, gpus: int | None = None) -> ImportedJob:
    """Build the job of a configuration's sections under the names of an era, ``gpus`` being those that a launcher starts.

    Raises ``InputError`` where none is torchtitan's.
    """
    sections = {key: _section(data, key, file) for key in SECTIONS}
    parallelism, training = sections["parallelism"], sections["training"]
    if not parallelism.data and not training.data and not data.get("function"):
        raise input_error("no torchtitan settings", "sections parallelism and training", file=file)
    notes: list[str] = []
    name, layers = _model(data, notes, file)
    parallelism = sections["parallelism"] = _over(parallelism, gpus)
    read = data | {key: section for key, section in sections.items() if data.get(key) or OPEN in data}
    layout, stated = _layout(parallelism, era, layers, notes)
    layout = _left_open(layout, parallelism)
    gpus = (stated if layout.dp is not None else None) or gpus
    inherited = "base" in data or training.holds_open()
    batch = read_batch(training, parallelism, era, layout, notes, inherited=inherited)
    # Both split what a rank is given at once: while one is open, so are the micro-batches, though their product is known.
    split = {"pipeline_parallel_microbatch_size", "num_pp_microbatches"}
    if layout.pp is None or split & parallelism.left_open.keys():
        batch = replace(batch, micro_batch=None, micro_batches=None)
    recompute = _recompute(read, era, notes, file)
    options = _options(read, parallelism, era, file)
    unknown = [f"{one.path(key)}: {why}" for one in sections.values() for key, why in one.left_open.items()]
    job = ImportedJob(
        framework=Framework.TORCHTITAN,
        version=f"era {era}",
        layout=replace(
            layout, micro_batch=batch.micro_batch, micro_batches=batch.micro_batches, recompute=recompute
        ),
        training=_training(data, training, batch, file),
        options=options,
        model_name=name,
        mtp_layers=_mtp_layers(data, era),
        gpus=gpus,
        replicas=parallelism.count("data_parallel_replicate_degree") if gpus is None else 1,
        notes=tuple(notes),
        missing=(*unknown, *_missing(name, gpus, batch, layout, recompute)),
    )
    for section in (parallelism, training):
        section.name_unread(notes)
    return replace(job, notes=tuple(notes))


def _left_open(layout: PartialLayout, parallelism: _Section) -> PartialLayout:
    """Leave the axes open whose setting only a run of the configuration would tell."""
    return replace(layout, **{axis: None for key in parallelism.left_open for axis in OPEN_AXES.get(key, ())})


def _over(parallelism: _Section, gpus: int | None) -> _Section:
    """Put the number that a launcher's GPUs leave in place of a shard degree of -1."""
    # -1 takes what the other degrees leave of the world (parallel_dims.py), which the file itself does not know.
    key = "data_parallel_shard_degree"
    axes = ("tensor_parallel", "context_parallel", "pipeline_parallel", "data_parallel_replicate")
    others = prod(parallelism.count(f"{axis}_degree") for axis in axes)
    if not gpus or parallelism.left_open or gpus % others or parallelism.data.get(key, -1) != -1:
        return parallelism
    data = {**parallelism.data, key: gpus // others}
    return _Section(data, file=parallelism.file, prefix=parallelism.prefix)


def _model(data: Mapping[str, Any], notes: list[str], file: str) -> tuple[str | None, int | None]:
    model = _section(data, "model", file) if "model" in data else None
    if model is not None:
        family, flavor = model.text("name"), model.text("flavor")
    else:
        family, flavor = _python_model(data, notes)
    found = FLAVORS.get(((family or "").lower(), (flavor or "").lower()))
    return found or (None, None)


def _mtp_layers(data: Mapping[str, Any], era: str) -> int | None:
    """Return the stated multi-token-prediction layers; the TOML era (torchtitan up to v0.2.2) has none."""
    if era == "A":
        return 0
    spec = data.get("model_spec")
    stated = spec.get("num_mtp_layers") if isinstance(spec, dict) else None
    return stated if isinstance(stated, int) and 0 <= stated <= MAX_LAYERS else None


def _python_model(data: Mapping[str, Any], notes: list[str]) -> tuple[str, str]:
    """Return family and flavor: the flavor is the registry's argument, else the rest of a base's name."""
    base, stated = str(data.get("base") or ""), str(data.get("family") or "")
    spec = data.get("model_spec")
    flavor = spec["arguments"][0] if isinstance(spec, dict) and spec.get("arguments") else None
    said = stated or base or str(data.get("function") or "")
    for family in dict.fromkeys(family for family, _ in FLAVORS):
        if re.search(rf"(^|_){family}(_|$)", said):
            rest = base.partition(family)[2].strip("_").replace("_", "-")
            return family, str(flavor or rest)
    others = [family for family, name in FLAVORS if isinstance(flavor, str) and name == flavor.lower()]
    if stated or len(others) != 1:
        return "", ""
    notes.append(f"assumed: flavor {flavor} is {others[0]}'s, the only built-in model of that flavor")
    return others[0], str(flavor)


def _layout(
    parallelism: Fields, era: str, layers: int | None, notes: list[str]
) -> tuple[PartialLayout, int | None]:
    tp = parallelism.count("tensor_parallel_degree")
    cp = parallelism.count("context_parallel_degree")
    pp = parallelism.count("pipeline_parallel_degree")
    schedule = read_schedule(parallelism, pp)
    vp, counts = read_split(parallelism, pp, schedule, layers)
    replicate = parallelism.count("data_parallel_replicate_degree")
    shard = parallelism.integer("data_parallel_shard_degree", least=-1, most=MAX_DEGREE)
    dp = replicate * shard if shard is not None and shard > 0 else None
    if dp is None:
        rest = "the rest of the GPUs" + (f" in each of {replicate} replicas" if replicate > 1 else "")
        notes.append(f"data_parallel_shard_degree -1: {rest}, whose number the file does not state")
    zero = _zero(parallelism, shard if dp else None, cp, pp, notes)
    ep = parallelism.count("expert_parallel_degree")
    etp = parallelism.count("expert_tensor_parallel_degree") if era != "C" and ep != 1 else 1
    # Up to v0.2.2 tensor parallelism always splits the sequence too; later there is a switch, on unless stated.
    sp = era == "A" or parallelism.flag("enable_sequence_parallel") is not False
    layout = PartialLayout(
        tp=tp,
        sp=sp and tp > 1,
        cp=cp,
        pp=pp,
        vp=vp or None,
        ep=ep,
        etp=etp if ep != 1 else None,  # without expert parallelism it follows from tp
        dp=dp,
        zero=zero,
        hsdp_shard=shard * cp if shard and dp and replicate > 1 and zero else None,
        schedule=schedule,
        mesh_order=DEFAULT_MESH_ORDER,
        split=stage_items(counts, pp, schedule),
    )
    return layout, None if dp is None else dp * tp * cp * pp


def _zero(parallelism: Fields, shard: int | None, cp: int, pp: int, notes: list[str]) -> int:
    # context-parallel ranks share the shards: FSDP is on whenever cp > 1
    if shard == 1 and cp == 1:
        return 0
    policy = parallelism.choice("fsdp_reshard_after_forward", ("default", "always", "never")) or "default"
    if policy == "default":
        policy = "always" if pp == 1 else "never"
        notes.append(f"fsdp_reshard_after_forward default: {policy} at pp={pp}")
    return 3 if policy == "always" else 2


def _recompute(data: Mapping[str, Any], era: str, notes: list[str], file: str) -> Recompute | None:
    """Return the checkpointing policy; None when it is that of a configuration which is not known."""
    base = str(data.get("base") or "")
    if "activation_checkpoint" in data and data["activation_checkpoint"] is None:
        return Recompute()
    if not data.get("activation_checkpoint"):
        # the registries of era C set it by name; the class itself has None since then
        mode = "none" if era == "C" and not base else _inherited_policy(base)
        if mode is None:
            return None
        notes.append(f"activation checkpointing {mode}: default of {base or 'the class'}")
    else:
        fields = _section(data, "activation_checkpoint", file)
        for key in ("mode", "selective_ac_option"):
            fields.text(key)
        if fields.left_open:
            return None
        policy = fields.text("class") or fields.text("mode") or "selective"
        # registries before 2026-06-15 name the class of all policies and the policy as its mode
        if policy == "ActivationCheckpointConfig":
            policy = fields.text("mode") or "selective"
        mode = policy.split(".")[0].lower().removesuffix("ac").strip("_")
        if (option := fields.text("selective_ac_option") or OP_MODULE) != OP_MODULE and mode == "selective":
            every = f"selective checkpointing of every {shorten(option)}. layer"
            notes.append(f"{every}: priced as nothing recomputed")
            return Recompute(granularity=Granularity.SELECTIVE)
    if mode in ("none", "full"):
        return Recompute(granularity=Granularity(mode))
    if mode == "selective":
        return Recompute(granularity=Granularity.SELECTIVE, modules=(OP_MODULE,))
    what, key = f"activation checkpointing {shorten(mode)!r} is not modelled", "activation_checkpoint.mode"
    raise input_error(what, "none, selective or full", key=key, file=file)


def _inherited_policy(base: str) -> str | None:
    """What the configuration that a function starts from sets; the class itself checkpoints selectively."""
    if base in FULL_CHECKPOINTING:
        return "full"
    known = not base or any(base.startswith(family) for family, _ in FLAVORS)
    return "selective" if known else None


def _training(data: Mapping[str, Any], training: Fields, batch: Batch, file: str) -> JobTraining:
    precision, recipe = _precision(data, training, file)
    return JobTraining(
        sequence_length=batch.sequence_length,
        global_batch=batch.global_batch,
        train_steps=training.integer("steps", least=1),
        precision=precision,
        fp8_recipe=recipe,
        pad_vocab=False,
    )


def _precision(
    data: Mapping[str, Any], training: Fields, file: str
) -> tuple[Precision | None, Fp8Recipe | None]:
    # Eras differ in where converters stand and what they are called; the format's name is part of every one of them.
    words = str(data.get("model_spec", "")) + str(_section(data, "model", file).data.get("converters", ""))
    if "nvfp4" in words.lower():
        return Precision.NVFP4, None
    if re.search(r"mxfp8|\bmx\b", words.lower()):
        return Precision.MXFP8, Fp8Recipe.MX
    if "float8" in words.lower():
        return Precision.FP8, Fp8Recipe.ROWWISE if "rowwise" in str(data).lower() else Fp8Recipe.CURRENT
    kind = training.choice("mixed_precision_param", ("bfloat16", "float32")) or "bfloat16"
    if kind != "bfloat16":
        raise training.fail("mixed_precision_param", "float32 training is not modelled", "bfloat16")
    return Precision.BF16, None


def _options(data: Mapping[str, Any], parallelism: Fields, era: str, file: str) -> JobOptions:
    compiling, checkpoint = _section(data, "compile", file), _section(data, "checkpoint", file)
    training = _section(data, "training", file)
    source = parallelism if era == "A" else compiling
    saves = checkpoint.on("enable", "enable_checkpoint")
    mode = checkpoint.choice("async_mode", ("disabled", "async", "async_with_pinned_mem")) or "disabled"
    backend = parallelism.text("expert_parallel_comm_backend")
    spec = data.get("model_spec")
    if isinstance(spec, dict) and isinstance(spec.get("moe_comm_backend"), str):
        backend = spec["moe_comm_backend"]
    return JobOptions(
        tp_overlap=source.on("enable_async_tensor_parallel"),
        compiled=compiling.flag("enable"),
        loss_chunks=_loss_chunks(data),
        cp_comm=CpComm.ALL_GATHER if parallelism.count("context_parallel_degree") > 1 else None,
        moe_dispatcher=backend,
        optimizer_offload=1.0 if training.on("enable_cpu_offload") else None,
        checkpoint_interval=checkpoint.integer("interval", least=1) if saves else None,
        checkpoint_async=mode != "disabled" if saves else None,
    )


def _loss_chunks(data: Mapping[str, Any]) -> int | None:
    """Return in how many parts logits are made, None where a base configuration decides it."""
    loss = data.get("loss")
    if not isinstance(loss, dict) or "class" not in loss:
        return None
    if "ChunkedLossWrapper" in str(loss["class"]):
        return Fields(loss, prefix="loss").count("num_chunks", default=8)
    return 1 if "CrossEntropyLoss" in str(loss["class"]) else None


def _missing(
    name: str | None, gpus: int | None, batch: Batch, layout: PartialLayout, recompute: Recompute | None
) -> tuple[str, ...]:
    needed = {
        "the model: this flavor is not a built-in model": name,
        "number of GPUs (data_parallel_shard_degree is -1)": gpus,
        "training.seq_len or max_context_length (the base configuration's)": batch.sequence_length,
        "micro-batch (the base configuration's)": batch.micro_batch,
        "global batch (follows from the number of GPUs)": batch.global_batch,
        "virtual stages (follow from the model's layers)": layout.vp,
        "activation checkpointing (the base configuration's)": recompute,
    }
    return tuple(what for what, value in needed.items() if value is None)
