"""NeMo 1 (``megatron_gpt_config.yaml`` of NVIDIA/NeMo r1.23, Hydra overrides) and NeMo 2 (scripts around a recipe)."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.interop.launch.command import read_launch
from layoutopt.optimizer.interop.launch.flags import ArgFields
from layoutopt.optimizer.interop.launch.keys import hydra_values, name_unread
from layoutopt.optimizer.interop.megatron.read import job_from_arguments
from layoutopt.optimizer.interop.megatron_bridge.adapters import KEYS
from layoutopt.optimizer.interop.megatron_bridge.read import RecipeFields, bridge_job
from layoutopt.optimizer.interop.megatron_bridge.read_recipe import TARGET, read_recipe
from layoutopt.optimizer.interop.nemo.recipes import factory_recipe, script_recipe
from layoutopt.optimizer.interop.reading import UNREAD, Fields, importer, parse_yaml, shorten
from layoutopt.optimizer.specs.errors import input_error

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from layoutopt.optimizer.interop.launch.command import LaunchCommand
    from layoutopt.optimizer.interop.nemo.recipes import NemoRecipe
    from layoutopt.optimizer.interop.records import ImportedJob
    from layoutopt.optimizer.interop.shell.record import Outside

NAMES = {
    "encoder_seq_length": "seq_length", "activations_checkpoint_granularity": "recompute_granularity",
    "activations_checkpoint_method": "recompute_method", "activations_checkpoint_num_layers": "recompute_num_layers",
    "activations_checkpoint_recompute": "recompute_modules", "num_moe_experts": "num_experts", "bias": "add_bias_linear",
    "qkv_bias": "add_qkv_bias", "ub_tp_comm_overlap": "tp_comm_overlap", "window_size": "window_size",
    "overlap_p2p_comm": "overlap_p2p_communication", "qk_layernorm": "qk_layernorm",
}  # fmt: skip
"""NeMo 1's keys of ``model`` that Megatron-LM has other names for; all others have Megatron's."""

OWN_NAMES = {theirs: own for own, theirs in NAMES.items()}
SHARDED = ("distributed_fused_adam", "mcore_distributed_optim")
"""Optimizers whose states are sharded over data-parallel ranks."""

PRECISIONS = {"bf16": "bf16", "bf16-mixed": "bf16", "bf16-true": "bf16", "16": "fp16", "16-mixed": "fp16"}
DEFAULTS: dict[str, Any] = {"add_bias_linear": True, "recompute_modules": ["core_attn"]}
"""NeMo 1's selective checkpointing is that of the attention core."""

KNOWN = (
    *NAMES, "micro_batch_size", "global_batch_size", "tensor_model_parallel_size", "pipeline_model_parallel_size",
    "virtual_pipeline_model_parallel_size", "context_parallel_size", "expert_model_parallel_size", "sequence_parallel",
    "pipeline_model_parallel_split_rank",
)  # fmt: skip
OWN_WORDS = (
    "trainer.devices",
    "trainer.num_nodes",
    "model.micro_batch_size",
    "llm",
    "pretrain",
    "finetune",
    "--factory",
)
_REFERENCE = re.compile(r"\$\{(?:multiply: ?(\d{1,4}), ?\$\{)?\.?(?:model\.)?(\w+)\}{1,2}")
SCRIPT = re.compile(r"megatron_gpt_(pretraining|finetuning|sft)\w*\.py")


SECTIONS = (
    "trainer.strategy", "trainer.strategy.ddp", "trainer.plugins", "data", "model.config", "optim.config", "peft",
)  # fmt: skip
"""Parts of a recipe that say how it is laid out; their keys are Megatron's."""

OVERLAP = "MegatronCommOverlapCallback"


@importer
def import_nemo(
    text: str, file: str = "", outside: Outside | None = None, recipe_file: Path | None = None
) -> ImportedJob:
    """Read a YAML configuration, a script that starts one with overrides, or a Python script around a recipe.

    ``recipe_file`` is the file of a checkout that holds the recipe of NeMo 2; without it what the recipe sets is open.
    """
    if re.search(r"^(import|from) \w", text, re.MULTILINE):
        return _of_recipe(script_recipe(text, file), file, recipe_file)
    if re.search(r"^model:[ \t]*(#.*)?$", text, re.MULTILINE):
        return _of_config(parse_yaml(text, file), file)
    flags = (
        "trainer.devices",
        "trainer.num_nodes",
        "model.micro_batch_size",
        "model.tensor_model_parallel_size",
        *OWN_WORDS,
    )
    return read_launch(text, flags, lambda command: _of_command(command, file, recipe_file), file, outside)


def _of_command(command: LaunchCommand, file: str, recipe_file: Path | None) -> ImportedJob:
    """Read ``key=value`` words behind a script of NeMo 1, or behind ``nemo llm pretrain --factory RECIPE``."""
    words = command.words
    values = hydra_values(words)
    factory = next((after for word, after in pairwise(words) if word == "--factory"), None)
    if factory is not None:
        function = "finetune_recipe" if "finetune" in words else "pretrain_recipe"
        return _of_recipe(factory_recipe(factory, function, dict(values), file), file, recipe_file)
    tree: dict[str, Any] = {}
    for key, value in values.items():
        *above, last = key.split(".")
        place = tree
        for name in above:
            inner = place.setdefault(name, {})
            place = inner if isinstance(inner, dict) else {}
        place[last] = value
    unsaid = "are those of the configuration that the script reads, which this file does not hold"
    job = _of_config(tree, file, " and ".join(text for text in (unsaid, command.unsaid) if text))
    script = next((word for word in words if SCRIPT.search(word)), "the script")
    note = f"what the command does not override is the configuration's that {shorten(script)} reads"
    return replace(job, gpus=job.gpus or command.gpus, notes=(note, *job.notes))


def _of_config(data: Mapping[str, Any], file: str, unsaid: str = "") -> ImportedJob:
    """Read the sections ``trainer`` and ``model`` of NeMo 1; ``unsaid`` tells where the rest of them is."""
    root = Fields(data, file=file)
    model = root.section("model")
    trainer = _ModelFields(root.section("trainer").data, file=file, prefix="trainer")
    if not model.data:
        raise input_error("no model section", "a configuration of NeMo 1", key="model", file=file)
    notes: list[str] = []
    gpus = _gpus(trainer, notes)
    values = _resolved(model.data, root) if unsaid else DEFAULTS | _resolved(model.data, root)
    values.pop("fp8", None)
    values |= {NAMES[key]: value for key, value in model.data.items() if key in NAMES and value is not None}
    values |= _named(values, model, trainer, notes, whole=not unsaid)
    name_unread(list(model.data), KNOWN, notes)
    job = job_from_arguments(_ModelFields(values, file=file, unsaid=unsaid), gpus, command_line=False)
    asked = tuple(f"{trainer.path(key)}: {why}" for key, why in trainer.left_open.items())
    own = [note for note in job.notes if not note.startswith(UNREAD) or not any(map(_names_unread, notes))]
    return replace(
        job, framework=Framework.MEGATRON_BRIDGE, notes=(*notes, *own), missing=(*job.missing, *asked)
    )


def _names_unread(note: str) -> bool:
    return note.startswith(UNREAD)


class _ModelFields(ArgFields):
    """Keys of the section ``model``, under Megatron's names."""

    def path(self, key: str) -> str:
        """Return the key as NeMo writes it."""
        return f"{self.prefix or 'model'}.{OWN_NAMES.get(key, key)}"

    def flag(self, *keys: str) -> bool | None:
        """Read true or false."""
        return Fields.flag(self, *keys)

    def items(self, *keys: str) -> list[Any] | None:
        """Read a list."""
        return Fields.items(self, *keys)


def _resolved(data: Mapping[str, Any], root: Fields) -> dict[str, Any]:
    """Follow references to neighbours (``${.encoder_seq_length}``, ``${multiply:4, ${.hidden_size}}``)."""
    found: dict[str, Any] = {}
    for key, value in data.items():
        match = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
        if match is not None:
            value = data.get(match[2])
            value = value * int(match[1]) if match[1] and type(value) is int else value
        elif isinstance(value, str) and "${" in value:
            raise root.fail(f"model.{key}", f"{shorten(value)!r} is filled in from outside", "a value")
        if value is not None:
            found[str(key)] = value
    return found


def _named(
    values: Mapping[str, Any], model: Fields, trainer: Fields, notes: list[str], *, whole: bool
) -> dict[str, Any]:
    """Return what NeMo 1 says in words of its own under Megatron's names; ``whole``: what is not stated is a default."""
    named: dict[str, Any] = {}
    activation = str(values.get("activation") or "gelu")
    named["swiglu"] = activation.removeprefix("fast-").endswith("glu")
    norm = str(values.get("normalization") or "layernorm1p")
    named["normalization"] = "RMSNorm" if norm.lower() == "rmsnorm" else "LayerNorm"
    named["group_query_attention"] = values.get("num_query_groups") is not None
    optimizer = model.section("optim").text("name")
    if whole or optimizer is not None:
        named["use_distributed_optimizer"] = optimizer in SHARDED
    if optimizer is None and whole:
        notes.append("assumed: states are not sharded, model.optim.name is not stated")
    words = PRECISIONS.get(str(trainer.raw("precision") or model.raw("precision")))
    named |= {words: True} if words else {}
    if model.flag("fp8"):
        named["fp8"] = "e4m3" if model.flag("fp8_e4m3") and not model.flag("fp8_hybrid") else "hybrid"
    ffn = values.get("ffn_hidden_size")
    hidden = values.get("hidden_size")
    if ffn is None and type(hidden) is int:
        named["ffn_hidden_size"] = 4 * hidden
    return named


def _gpus(trainer: Fields, notes: list[str]) -> int | None:
    devices, nodes = trainer.raw("devices"), trainer.integer("num_nodes", least=1)
    if (
        "num_nodes" in trainer.left_open
        or not isinstance(devices, int)
        or isinstance(devices, bool)
        or devices < 1
    ):
        return None
    if nodes is None:
        notes.append("assumed: one node, trainer.num_nodes is not stated")
    return devices * (nodes or 1)


def _of_recipe(recipe: NemoRecipe, file: str, recipe_file: Path | None) -> ImportedJob:
    """Read what a script or command changes of a NeMo 2 recipe; without its file the rest is the recipe's and open."""
    values, notes = recipe.stated, list[str]()
    if recipe_file is not None:
        made = read_recipe(recipe_file, recipe.function, {}, recipe.arguments)
        values, notes = _flat(made.sections) | recipe.settings, list(made.notes)
    merged: dict[str, Any] = {}
    for key, value in values.items():
        prefix, _, last = key.rpartition(".")
        if prefix in SECTIONS:
            merged[last] = value
    word = PRECISIONS.get(str(merged.pop("precision", None)))
    merged |= {word: True} if word else {}
    if values.get("peft") is not None:
        merged.setdefault("dim", KEYS.rank if recipe_file is not None else values["peft"])
    counts = [values.get(key) for key in ("trainer.devices", "trainer.num_nodes")]
    numbers = [count for count in counts if type(count) is int and count > 0]
    gpus = numbers[0] * numbers[1] if len(numbers) == 2 else None
    if recipe_file is not None:
        return bridge_job(RecipeFields(merged, file=file), gpus, notes, recipe.name, known=True)
    unsaid = f"are those of recipe {shorten(recipe.name)}, which this file does not hold"
    return bridge_job(ArgFields(merged, file=file, unsaid=unsaid), gpus, notes, recipe.name)


def _flat(data: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Return the dotted keys of nested sections; what the callback for overlap states counts as the strategy's."""
    found: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, dict):
            found |= {above + key: value} | _flat(value, f"{above}{key}.")
        elif key == "callbacks" and isinstance(value, list):
            overlaps = (one for one in value if isinstance(one, dict) and one.get(TARGET) == OVERLAP)
            found |= {f"trainer.strategy.{name}": stated for one in overlaps for name, stated in one.items()}
        else:
            found[above + key] = value
    return {key: value for key, value in found.items() if not key.endswith((TARGET, "tp_comm_overlap_cfg"))}
