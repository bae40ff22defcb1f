"""Megatron-Bridge: ``run_config.yaml`` of a checkpoint, and ``run_recipe.py`` command lines."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.interop.huggingface.names import built_in_model
from layoutopt.optimizer.interop.launch.command import read_launch
from layoutopt.optimizer.interop.launch.flags import ArgFields, SettingFields, scalar
from layoutopt.optimizer.interop.megatron.read import AXIS_FLAGS, left_open, missing_values, stated_options
from layoutopt.optimizer.interop.megatron.read_layout import megatron_layout, megatron_training
from layoutopt.optimizer.interop.megatron.read_model import megatron_model
from layoutopt.optimizer.interop.megatron_bridge.adapters import read_peft
from layoutopt.optimizer.interop.megatron_bridge.read_recipe import HUB_ID, read_recipe
from layoutopt.optimizer.interop.reading import importer, parse_yaml, parse_yaml_value, shorten
from layoutopt.optimizer.interop.records import ImportedJob
from layoutopt.optimizer.interop.shell.values import has_hole, show
from layoutopt.optimizer.specs.errors import InputError, input_error

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from layoutopt.optimizer.interop.launch.command import LaunchCommand
    from layoutopt.optimizer.interop.shell.record import Outside

SHORT_FLAGS = {
    "-tp": "model.tensor_model_parallel_size",
    "-pp": "model.pipeline_model_parallel_size",
    "-vp": "model.virtual_pipeline_model_parallel_size",
    "-cp": "model.context_parallel_size",
    "-ep": "model.expert_model_parallel_size",
    "-etp": "model.expert_tensor_parallel_size",
    "-mb": "train.micro_batch_size",
    "-gb": "train.global_batch_size",
    "-sl": "dataset.seq_length",
    "-ms": "train.train_iters",
    "--max_steps": "train.train_iters",
}
"""Flags of scripts/training/run_recipe.py (NVIDIA-NeMo/Megatron-Bridge) and the keys that they set."""

PRECISION_NAMES: dict[str, dict[str, Any]] = {
    "bf16_mixed": {"bf16": True},
    "fp16_mixed": {"fp16": True},
    "bf16_with_fp8_delayed_scaling_mixed": {"bf16": True, "fp8": "hybrid", "fp8_recipe": "delayed"},
    "bf16_with_fp8_current_scaling_mixed": {"bf16": True, "fp8": "hybrid", "fp8_recipe": "tensorwise"},
    "bf16_with_mxfp8_mixed": {"bf16": True, "fp8": "e4m3", "fp8_recipe": "mxfp8"},
    "bf16_with_fp8_subchannel_scaling_mixed": {"bf16": True, "fp8": "e4m3", "fp8_recipe": "blockwise"},
    "bf16_with_nvfp4_mixed": {"bf16": True, "fp4": "e2m1"},
}
SIZES = ("num_layers", "hidden_size", "num_attention_heads", "vocab_size")
BATCH_KEYS = ("--micro-batch-size", "--global-batch-size")
RECIPE_SWITCHES = (
    "overlap_grad_reduce", "overlap_param_gather", "tp_comm_overlap", "overlap_moe_expert_parallel_comm",
    "cuda_graph_impl",
)  # fmt: skip
"""What recipes set beside a layout: a command that overrides all of them leaves nothing that is priced to the recipe."""

SECTIONS = (
    "model", "train", "optimizer", "ddp", "dist", "mixed_precision", "comm_overlap", "dataset", "checkpoint", "peft",
)  # fmt: skip
RECIPES = (
    (r"llama31?_405b", "llama3-405b"),
    (r"llama3[13]?_70b", "llama3-70b"),
    (r"llama31?_8b", "llama3-8b"),
    (r"llama2_7b", "llama2-7b"),
    (r"deepseek_v3", "deepseek-v3"),
    (r"deepseek_v2(?!_lite)", "deepseek-v2"),
    (r"qwen3_235b_a22b", "qwen3-235b-a22b"),
    (r"qwen3_30b_a3b", "qwen3-30b-a3b"),
    (r"qwen3_32b", "qwen3-32b"),
    (r"gpt_oss_120b", "gpt-oss-120b"),
    (r"mixtral_8x7b", "mixtral-8x7b"),
    (r"mixtral_8x22b", "mixtral-8x22b"),
    (r"nemotron4?_340b", "nemotron4-340b"),
    (r"kimi_k2", "kimi-k2"),
    (r"qwen3_next_80b_a3b", "qwen3-next-80b-a3b"),
)
"""Recipe names (regular expression at the start) and the built-in models that they train."""


class CommandFields(ArgFields):
    """Overrides of a recipe, of which a null is a value: it takes back what the recipe may set."""

    def unstated(self, *keys: str) -> bool:
        """Tell whether none of the keys is written."""
        return not any(key in self.data for key in keys)


class RecipeFields(SettingFields):
    """Keys of a YAML file or a recipe, whose messages show them as they are written."""

    def unresolved(self, value: str) -> str:
        """Say that a recipe computes a value."""
        return f"is open in the recipe: {shorten(show(value)[1:])}"

    def remedy(self, value: str) -> str:
        """The command overrides a recipe."""
        return "state it on the command line"


NO_RUN_CONFIG = {
    "a page of text": r"^(```|#{1,6} \w.*$\n\s*\n[A-Z])",
    "a program in Python": r"^(from [\w.]+ import |import \w|def \w+\(|class \w+)",
}
"""What names Megatron-Bridge without being the configuration that a run wrote, and its signs."""
RUNS = "the run_config.yaml that a run of it wrote, or the command that starts run_recipe.py"


@importer
def import_run_config(text: str, file: str = "") -> ImportedJob:
    """Read ``run_config.yaml``: provider style, or builder style with fields under ``model.transformer``.

    Raises ``InputError`` for Megatron-Bridge's other files, and without a model.
    """
    for written, sign in NO_RUN_CONFIG.items():
        if re.search(sign, text, re.MULTILINE):
            raise input_error(f"{written} names Megatron-Bridge, and is no run", RUNS, file=file)
    data = parse_yaml(text, file)
    if not isinstance(data.get("model"), dict):
        raise input_error("no model section", "a Megatron-Bridge run_config.yaml", key="model", file=file)
    notes: list[str] = []
    merged = _merged(data, notes)
    _check_lengths(data, file)
    return bridge_job(RecipeFields(merged, file=file), None, notes, None)


def _merged(data: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    """Put all sections into one namespace; the model's fields may sit one level deeper."""
    # field names are unique over sections but for the two optimizer switches, which are synchronised
    merged: dict[str, Any] = {}
    for name in SECTIONS:
        section = data.get(name)
        if isinstance(section, dict):
            merged |= {str(key): _plain(value) for key, value in section.items()}
        elif name == "mixed_precision" and isinstance(section, str):
            merged |= named_precision(section)
    inner = merged.pop("transformer", None)
    if isinstance(inner, dict):
        merged |= {str(key): _plain(value) for key, value in inner.items()}
    _default_tying(merged, isinstance(inner, dict), notes)
    _sync_optimizer(data, merged)
    return merged


def _plain(value: Any) -> Any:
    # dtypes and functions are written as {_target_: torch.bfloat16, _call_: false}
    if isinstance(value, dict) and isinstance(value.get("_target_"), str) and value.get("_call_") is False:
        return value["_target_"]
    return value


def named_precision(name: str) -> dict[str, Any]:
    """Return the switches behind a mixed-precision recipe name. Raises ``InputError`` for an unknown name."""
    switches = PRECISION_NAMES.get(name)
    if switches is None:
        known = "one of " + ", ".join(PRECISION_NAMES)
        raise input_error(f"{shorten(name)!r} is not known", known, key="mixed_precision")
    return dict(switches)


def _default_tying(merged: dict[str, Any], builder: bool, notes: list[str]) -> None:
    key = "share_embeddings_and_output_weights"
    if merged.get(key) is None:
        merged[key] = not builder
        notes.append(f"{key}={not builder}: default of the {'builder' if builder else 'provider'}")


def _sync_optimizer(data: Mapping[str, Any], merged: dict[str, Any]) -> None:
    # either switch turns it on: Bridge synchronises ddp.* and optimizer.*
    for key in ("use_distributed_optimizer", "overlap_param_gather"):
        sections = [data.get(name) for name in ("ddp", "optimizer")]
        values = [section[key] for section in sections if isinstance(section, dict) and key in section]
        if values:
            merged[key] = any(value is True for value in values)
    for name in ("ddp", "dist"):
        section = data.get(name)
        if isinstance(section, dict) and section.get("use_megatron_fsdp") is True:
            merged["use_megatron_fsdp"] = True


def _check_lengths(data: Mapping[str, Any], file: str) -> None:
    model, dataset = data.get("model"), data.get("dataset")
    if not isinstance(model, dict) or not isinstance(dataset, dict):
        return
    own, theirs = model.get("seq_length"), dataset.get("seq_length")
    if own is not None and theirs is not None and own != theirs:
        what = f"model.seq_length {shorten(own)} and dataset.seq_length {shorten(theirs)} differ"
        raise input_error(what, "Megatron-Bridge needs them equal", key="dataset.seq_length", file=file)


@importer
def import_recipe_command(
    text: str, file: str = "", outside: Outside | None = None, recipe_file: Path | None = None
) -> ImportedJob:
    """Read a command line of ``run_recipe.py``: short flags and ``section.key=value`` overrides.

    ``recipe_file`` is the Python file of a checkout that holds the recipe; without it what the recipe sets is open.
    """
    flags = ("--recipe", "-tp", "-pp", "-gb", "-mb", "-ep")
    return read_launch(text, flags, lambda command: _of_command(command, file, recipe_file), file, outside)


def _of_command(command: LaunchCommand, file: str, recipe_file: Path | None) -> ImportedJob:
    words = command.words
    sections: dict[str, dict[str, Any]] = {}
    recipe = _option(words, "--recipe")
    notes: list[str] = []
    known = recipe is not None and recipe_file is not None
    if recipe is not None and recipe_file is not None:
        made = read_recipe(recipe_file, recipe, PRECISION_NAMES)
        sections, notes = {name: made.sections.get(name, {}) for name in SECTIONS}, list(made.notes)
    for key, value in [*_short_flags(words), *_overrides(words, file)]:
        section, _, name = key.partition(".")
        sections.setdefault(section, {})[name] = value
    if sections.get("mixed_precision", {}).get(""):
        sections["mixed_precision"] = named_precision(str(sections["mixed_precision"][""]))
    merged = _merged(sections, notes)
    if recipe is None and not merged.get("fp16"):
        merged.setdefault("bf16", True)
    unsaid = f"are those of recipe {shorten(recipe)}, which this file does not hold"
    unsaid = " and ".join(text for text in (unsaid if recipe and not known else "", command.unsaid) if text)
    fields = (RecipeFields if known else CommandFields)(merged, file=file, unsaid=unsaid)
    return bridge_job(fields, command.gpus, notes, recipe, known=known)


def _option(words: Sequence[str], flag: str) -> str | None:
    for index, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name == flag:
            return value if equals else next(iter(words[index + 1 : index + 2]), None)
    return None


def _short_flags(words: Sequence[str]) -> list[tuple[str, Any]]:
    following = pairwise(words)
    return [(SHORT_FLAGS[word], scalar(value)) for word, value in following if word in SHORT_FLAGS]


def _overrides(words: Sequence[str], file: str) -> list[tuple[str, Any]]:
    found = []
    for word in words:
        key, equals, value = word.lstrip("+~").partition("=")
        if equals and (key.split(".")[0] in SECTIONS) and not word.startswith("-"):
            found.append((key, _override_value(value, key, file)))
    return found


def _override_value(text: str, key: str, file: str) -> Any:
    try:
        return parse_yaml_value(text.strip("'")) if not has_hole(text) else text
    except InputError:
        raise input_error(f"cannot read {shorten(text)!r}", "a YAML value", key=key, file=file) from None


def bridge_job(
    fields: ArgFields, gpus: int | None, notes: list[str], recipe: str | None, *, known: bool = False
) -> ImportedJob:
    """Build the job; ``known``: the fields hold what the recipe sets, not the command alone."""
    name = built_in_model(str(fields.data.get(HUB_ID) or "")) or _model_name(recipe)
    model = megatron_model(fields, notes)
    if recipe is not None:
        notes[:] = [note for note in notes if not note.startswith("share_embeddings")]
    if recipe is not None and not known and not _overrides_all(fields):
        notes.append(f"recipe {shorten(recipe)}: what the command does not override is the recipe's")
    # Bridge 0.6 made an unset expert tensor parallelism 1, before it was tp (release notes of 0.6)
    layout = left_open(megatron_layout(fields, model, gpus, notes, etp_default="1"), fields)
    training = megatron_training(fields, layout, notes, fp8_key="fp8", fp4_key="fp4", command_line=False)
    training = replace(training, adapter=read_peft(fields, recipe, notes))
    options = stated_options(fields, layout, notes, command_line=False)
    missing = missing_values(fields, model, layout, training, gpus)
    fields.name_unread(notes)
    if recipe is not None:
        if "grad_reduce_in_fp32" not in fields:
            training = replace(training, grad_bytes=None)
        # A recipe knows its model's sizes and nearly everything else; of a command alone only the batch is asked for,
        # and what may stand in a variable.
        sizes = {fields.path(key) for key in SIZES}
        missing = tuple(
            item
            for item in missing
            if (item not in sizes if known else item in BATCH_KEYS or fields.unsaid in item)
        )
        missing += () if name else (f"the model of recipe {shorten(recipe)}",)
    return ImportedJob(
        framework=Framework.MEGATRON_BRIDGE,
        layout=layout,
        training=training,
        options=options,
        model=model,
        model_name=name,
        gpus=gpus,
        notes=tuple(notes),
        missing=missing,
    )


def _overrides_all(fields: ArgFields) -> bool:
    """Tell whether a command states every axis and every switch that a recipe may set."""
    experts = () if fields.data.get("num_moe_experts") is None else ("moe_token_dispatcher_type",)
    switches = all(not fields.unstated(key) for key in (*RECIPE_SWITCHES, *experts))
    axes = all(not fields.unstated(*flags) for flags in AXIS_FLAGS.values())
    return switches and axes and not all(fields.unstated(key) for key in ("bf16", "fp16"))


def _model_name(recipe: str | None) -> str | None:
    if recipe is None:
        return None
    return next((name for pattern, name in RECIPES if re.match(pattern, recipe)), None)
