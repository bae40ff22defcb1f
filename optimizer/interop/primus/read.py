"""Primus YAML experiments (Primus fd1eeab, 2026-08-22): Megatron's keys, or torchtitan's sections, under overrides."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.interop.launch.keys import (
    megatron_job,
    name_unread,
    with_defaults,
    with_model,
    with_truths,
)
from layoutopt.optimizer.interop.reading import Fields, importer, parse_yaml, shorten
from layoutopt.optimizer.interop.torchtitan.read import job_of_sections

if TYPE_CHECKING:
    from layoutopt.optimizer.interop.records import ImportedJob

FRAMEWORKS = ("megatron", "torchtitan")
DEFAULTS = {"micro_batch_size": 2, "global_batch_size": 128, "seq_length": 4096, "bf16": True}
"""primus/configs/modules/megatron; the distributed optimizer is off unless stated."""

SCHEDULES = ("patch_zero_bubble", "zero_bubble_v_schedule", "enable_1f1b_v", "patch_primus_pipeline")
KNOWN = (
    *DEFAULTS, "tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size",
    "expert_model_parallel_size", "expert_tensor_parallel_size", "sequence_parallel",
    "virtual_pipeline_model_parallel_size", "num_layers_per_virtual_pipeline_stage",
    "num_virtual_stages_per_pipeline_rank", "pipeline_model_parallel_layout", "decoder_first_pipeline_num_layers",
    "decoder_last_pipeline_num_layers", "recompute_granularity", "recompute_method", "recompute_num_layers",
    "recompute_modules", "data_parallel_sharding_strategy", "optimizer_offload_fraction", "optimizer_cpu_offload",
)  # fmt: skip
_VARIABLE = re.compile(r"\$\{(\w+)(?::([^}]*))?\}")


@importer
def import_primus(text: str, file: str = "") -> ImportedJob:
    """Read an experiment file; ``${NAME:default}`` counts as its default, and files that it extends are named."""
    notes: list[str] = []
    root = Fields(_resolved(parse_yaml(text, file), notes), file=file)
    trainer = root.section("modules").section("pre_trainer")
    kind = trainer.choice("framework", FRAMEWORKS) or "megatron"
    overrides = trainer.section("overrides")
    path = (trainer.text("model") or "").removesuffix(".yaml").replace("llama", "llama-").replace("--", "-")
    if trainer.text("config"):
        notes.append(f"{shorten(trainer.text('config'))} is not read: its settings count as Primus' defaults")
    if kind == "torchtitan":
        job = job_of_sections(dict(overrides.data), "A", file)
        return replace(with_model(job, path), notes=(*notes, *job.notes))
    values = with_defaults(with_truths(overrides.data), DEFAULTS, notes)
    for name in SCHEDULES:
        if values.get(name):
            notes.append(f"not read, though it changes the schedule: {name}")
    if values.get("recompute_layer_ids"):
        notes.append("not read: recompute_layer_ids, recomputation layer by layer")
    name_unread(list(overrides.data), (*KNOWN, *SCHEDULES, "recompute_layer_ids"), notes)
    return megatron_job(Fields(values, file=file), None, notes, path=path)


def _resolved(value: Any, notes: list[str]) -> Any:
    """Put defaults in place of ``${NAME:default}``; a variable without one stays open."""
    if isinstance(value, dict):
        return {key: _resolved(item, notes) for key, item in value.items()}
    if isinstance(value, list):
        return [_resolved(item, notes) for item in value]
    if not isinstance(value, str) or not (found := _VARIABLE.findall(value)):
        return value
    for name, default in found:
        notes.append(
            f"assumed: {name} is not set outside: {default!r}" if default else f"{name} is not set: left open"
        )
    text = _VARIABLE.sub(lambda match: match[2] or "", value)
    if re.fullmatch(r"-?\d{1,15}", text):
        return int(text)
    return {"true": True, "false": False, "null": None, "": None}.get(text.lower(), text)
