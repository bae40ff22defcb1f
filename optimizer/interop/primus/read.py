"""Primus YAML experiments (Primus fd1eeab, 2026-08-22): Megatron's keys, or torchtitan's sections, under overrides."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.interop.launch.config_command import after, is_script, read_config_launch
from layoutopt.optimizer.interop.launch.keys import (
    asking,
    megatron_job,
    name_unread,
    with_defaults,
    with_model,
    with_truths,
)
from layoutopt.optimizer.interop.reading import Fields, importer, parse_yaml, shorten
from layoutopt.optimizer.interop.shell.values import has_hole
from layoutopt.optimizer.interop.torchtitan.read import job_of_sections

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from layoutopt.optimizer.interop.launch.command import LaunchCommand
    from layoutopt.optimizer.interop.launch.config_command import ConfigLaunch
    from layoutopt.optimizer.interop.records import ImportedJob
    from layoutopt.optimizer.interop.shell.record import Outside

FRAMEWORKS = ("megatron", "torchtitan")
BASE = {"micro_batch_size": 2, "global_batch_size": 128, "seq_length": 4096, "bf16": True}
"""primus/configs/modules/megatron/trainer_base.yaml, which the module files extend."""

MODULE_FILES: dict[str, dict[str, Any]] = {
    "trainer_base.yaml": BASE,
    "pre_trainer.yaml": {
        **BASE, "global_batch_size": 16, "seq_length": 1024, "use_distributed_optimizer": True,
    },
    "sft_trainer.yaml": {
        **BASE, "micro_batch_size": 1, "seq_length": 2048, "use_distributed_optimizer": True,
    },
}  # fmt: skip
"""What the files of primus/configs/modules/megatron state, by the name that ``config`` gives."""

LANGUAGE_MODEL = {"sequence_parallel": True}
"""primus/configs/models/megatron/language_model.yaml, which the files of language models extend."""

SHARDED = (
    "use_distributed_optimizer", "data_parallel_sharding_strategy", "use_torch_fsdp2", "use_megatron_fsdp",
)  # fmt: skip

SCHEDULES = ("patch_zero_bubble", "zero_bubble_v_schedule", "enable_1f1b_v", "patch_primus_pipeline")
KNOWN = (
    *BASE, "tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size",
    "expert_model_parallel_size", "expert_tensor_parallel_size", "sequence_parallel",
    "virtual_pipeline_model_parallel_size", "num_layers_per_virtual_pipeline_stage",
    "num_virtual_stages_per_pipeline_rank", "pipeline_model_parallel_layout", "decoder_first_pipeline_num_layers",
    "decoder_last_pipeline_num_layers", "recompute_granularity", "recompute_method", "recompute_num_layers",
    "recompute_modules", "data_parallel_sharding_strategy", "use_distributed_optimizer",
    "optimizer_offload_fraction", "optimizer_cpu_offload",
)  # fmt: skip
SIGNS = ("--config", "--exp", "primus-cli", "./primus-cli", "run_pretrain.sh", "pretrain")
"""Words of commands that start an experiment; ``run_pretrain.sh`` takes its name from the variable EXP."""

ENVIRONMENT = ("GPUS_PER_NODE", "NNODES", "EXP")
"""What examples/run_pretrain.sh reads: a node's GPUs, nodes, the experiment."""

_VARIABLE_NAME = re.compile(r"\b(PRIMUS_\w+)=")
_VARIABLE = re.compile(r"\$\{(\w+)(?::([^}]*))?\}")


@importer
def import_primus(text: str, file: str = "", outside: Outside | None = None) -> ImportedJob:
    """Read an experiment file, or a script that starts one, whose variables fill it in.

    ``${NAME:default}`` counts as its default where nothing sets it, and files that it extends are named. Raises
    ``InputError`` where a script names a file that is not there.
    """
    if not is_script(text, file):
        return _job(parse_yaml(text, file), file, outside.variables if outside else {}, {}, None)

    def build(launch: ConfigLaunch) -> ImportedJob:
        """Read the experiment with what the command and its environment change."""
        data = parse_yaml(launch.text, launch.name)
        return _job(data, launch.name, launch.command.environment, launch.overrides, launch.gpus)

    # Variables that the script sets for the experiment are asked for by name: a command's whole environment is not kept.
    names = tuple(dict.fromkeys((*ENVIRONMENT, *_VARIABLE_NAME.findall(text))))
    return read_config_launch(text, SIGNS, _named, build, file, outside, names)


def _named(command: LaunchCommand) -> tuple[str, Sequence[str]] | None:
    """Return the experiment that an option names, or the variable EXP."""
    found = after(command.words, "--config", "--exp")
    stated = command.environment.get("EXP")
    return found if found or stated is None else (stated, [*command.words[1:]])


def _job(
    data: Any, file: str, variables: Mapping[str, str], changes: Mapping[str, Any], gpus: int | None
) -> ImportedJob:
    notes: list[str] = []
    root = Fields(_resolved(data, notes, variables), file=file)
    trainer = root.section("modules").section("pre_trainer")
    kind = trainer.choice("framework", FRAMEWORKS) or "megatron"
    stated = trainer.section("overrides")
    overrides = Fields({**stated.data, **changes}, file=file, prefix=stated.path(""))
    # Primus names files after models: llama3.1_8B.yaml is the hub's Llama-3.1-8B.
    path = (trainer.text("model") or "").removesuffix(".yaml").replace("llama", "llama-").replace("--", "-")
    if kind == "torchtitan":
        job = job_of_sections(dict(overrides.data), "A", file)
        return replace(with_model(job, path), notes=(*notes, *job.notes))
    module = trainer.text("config")
    own = MODULE_FILES.get(module or "")
    if module and own is None:
        notes.append(f"{shorten(module)} is not read: what it may state is left open")
    stated_values = with_truths(overrides.data)
    # one rank of tensor parallelism has no sequence to split
    models = LANGUAGE_MODEL if overrides.count("tensor_model_parallel_size") > 1 else {}
    values = with_defaults(stated_values, {**models, **(own or {})}, notes)
    for name in SCHEDULES:
        if values.get(name):
            notes.append(f"not read, though it changes the schedule: {name}")
    if values.get("recompute_layer_ids"):
        notes.append("not read: recompute_layer_ids, recomputation layer by layer")
    name_unread(list(overrides.data), (*KNOWN, *SCHEDULES, "recompute_layer_ids"), notes)
    job = megatron_job(Fields(values, file=file), gpus, notes, path=path)
    # The module files differ in whether states are sharded: what an unread one says of it is not Megatron's default.
    if own is not None or any(values.get(key) is not None for key in SHARDED):
        return job
    job = replace(job, layout=replace(job.layout, zero=None))
    return asking(job, {"zero": "use_distributed_optimizer is not stated"})


def _resolved(value: Any, notes: list[str], variables: Mapping[str, str]) -> Any:
    """Put values, or defaults, in place of ``${NAME:default}``; a variable without either stays open."""
    if isinstance(value, dict):
        return {key: _resolved(item, notes, variables) for key, item in value.items()}
    if isinstance(value, list):
        return [_resolved(item, notes, variables) for item in value]
    if not isinstance(value, str) or not (found := _VARIABLE.findall(value)):
        return value
    known = {name: stated for name, stated in variables.items() if not has_hole(stated)}
    given = {name: known[name] for name, _ in found if name in known}
    for name, default in (pair for pair in found if pair[0] not in given):
        taken = f"assumed: {name} is not set outside: {default!r}"
        notes.append(taken if default else f"{name} is not set: left open")
    text = _VARIABLE.sub(lambda match: given.get(match[1], match[2] or ""), value)
    if re.fullmatch(r"-?\d{1,15}", text):
        return int(text)
    return {"true": True, "false": False, "null": None, "": None}.get(text.lower(), text)
