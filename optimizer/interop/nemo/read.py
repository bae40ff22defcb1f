"""NeMo 1 (``megatron_gpt_config.yaml`` of NVIDIA/NeMo r1.23, Hydra overrides) and NeMo 2 (scripts around a recipe)."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.interop.launch.command import read_launch
from layoutopt.optimizer.interop.launch.flags import ArgFields, SettingFields
from layoutopt.optimizer.interop.launch.keys import asking, hydra_values, name_unread
from layoutopt.optimizer.interop.megatron.read import job_from_arguments
from layoutopt.optimizer.interop.megatron_bridge.adapters import KEYS
from layoutopt.optimizer.interop.megatron_bridge.read import RecipeFields, bridge_job
from layoutopt.optimizer.interop.megatron_bridge.read_recipe import TARGET, read_recipe
from layoutopt.optimizer.interop.reading import UNREAD, Fields, importer, parse_python, parse_yaml, shorten
from layoutopt.optimizer.interop.shell.values import hole
from layoutopt.optimizer.specs.errors import input_error

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from layoutopt.optimizer.interop.launch.command import LaunchCommand
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
    "trainer.devices", "trainer.num_nodes", "model.micro_batch_size", "model.tensor_model_parallel_size", "llm",
    "pretrain", "finetune", "--factory",
)  # fmt: skip
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
    # Python goes first: a script around a recipe may hold a line ``model:`` in a text, no configuration an import.
    if re.search(r"^(import|from) \w", text, re.MULTILINE):
        return _of_recipe(script_recipe(text, file), file, recipe_file)
    if re.search(r"^model:[ \t]*(#.*)?$", text, re.MULTILINE):
        return _of_config(parse_yaml(text, file), file)
    return read_launch(
        text, OWN_WORDS, lambda command: _of_command(command, file, recipe_file), file, outside
    )


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
    # A switch here (megatron_gpt_config.yaml), and the name of a format to Megatron, whose key it shares; see ``_named``.
    values.pop("fp8", None)
    values |= {NAMES[key]: value for key, value in model.data.items() if key in NAMES and value is not None}
    values |= _named(values, model, trainer, notes, whole=not unsaid)
    name_unread(list(model.data), KNOWN, notes)
    job = job_from_arguments(_ModelFields(values, file=file, unsaid=unsaid), gpus, command_line=False)
    # Keys that are not read are named once, by NeMo's names where there are such.
    said = any(note.startswith(UNREAD) for note in notes)
    own = [note for note in job.notes if not (said and note.startswith(UNREAD))]
    job = replace(job, framework=Framework.MEGATRON_BRIDGE, notes=(*notes, *own))
    return asking(job, {trainer.path(key): why for key, why in trainer.left_open.items()})


class _ModelFields(SettingFields):
    """Keys of the section ``model``, under Megatron's names."""

    def path(self, key: str) -> str:
        """Return the key as NeMo writes it."""
        return f"{self.prefix or 'model'}.{OWN_NAMES.get(key, key)}"


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
    # fast-swiglu is swiglu in a fused kernel, fast-geglu geglu (options of model.activation in megatron_gpt_config.yaml).
    activation = str(values.get("activation") or "gelu")
    named["swiglu"] = activation.removeprefix("fast-").endswith("glu")
    # layernorm1p keeps its weights less 1: as many of them, and as much work.
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
    if "num_nodes" in trainer.left_open or type(devices) is not int or devices < 1:
        return None  # trainer.devices -1 or "auto": as many as the machine has
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
    # Both or nothing: a recipe whose nodes nobody knows runs on no known number of GPUs.
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


RECIPES = ("pretrain_recipe", "finetune_recipe")
POSITIONS = ("dir", "name", "num_nodes", "num_gpus_per_node")
"""First arguments of recipes, in order."""

ARGUMENTS = {
    "num_nodes": "trainer.num_nodes",
    "num_gpus_per_node": "trainer.devices",
    "tensor_parallelism": "trainer.strategy.tensor_model_parallel_size",
    "pipeline_parallelism": "trainer.strategy.pipeline_model_parallel_size",
    "virtual_pipeline_parallelism": "trainer.strategy.virtual_pipeline_model_parallel_size",
    "context_parallelism": "trainer.strategy.context_parallel_size",
    "expert_parallelism": "trainer.strategy.expert_model_parallel_size",
    "sequence_parallelism": "trainer.strategy.sequence_parallel",
    "global_batch_size": "data.global_batch_size",
    "micro_batch_size": "data.micro_batch_size",
}
"""Arguments of recipes (nemo/collections/llm/recipes, NeMo 2.0 to 2.5) and what they set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NemoRecipe:
    """A recipe by ``name``, the ``function`` that makes it, its ``arguments``, and dotted keys that are set afterwards.

    What is computed is a hole (``shell.values``).
    """

    name: str
    function: str
    arguments: dict[str, Any]
    settings: dict[str, Any]

    @property
    def stated(self) -> dict[str, Any]:
        """Dotted keys that arguments and settings give."""
        named = {ARGUMENTS[key]: value for key, value in self.arguments.items() if key in ARGUMENTS}
        return named | self.settings


def script_recipe(text: str, file: str = "") -> NemoRecipe:
    """Return the recipe that a script makes and what it sets of it.

    Raises ``InputError`` where a script makes several or none, or where it branches around what it sets.
    """
    tree = parse_python(text, file)
    constants = _constants(tree)
    settings: dict[str, Any] = {}
    made: dict[str, tuple[str, str, ast.Call]] = {}
    branches = _in_branches(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign) or len(node.targets) != 1:
            continue
        found = _recipe_call(node.value)
        target = node.targets[0]
        if found is not None and isinstance(target, ast.Name):
            if made:
                raise input_error("makes several recipes", "a script with one", file=file, line=node.lineno)
            made[target.id] = found
        elif (path := _path(target)) and path[0] in made:
            # Nothing is run, so that which branch is taken is not known: either answer would be a guess.
            if id(node) in branches:
                what = f"{'.'.join(path)} is set in a branch"
                raise input_error(what, "a value that always holds", file=file, line=node.lineno)
            settings[".".join(path[1:])] = _value(node.value, constants)
    if not made:
        raise input_error("no recipe of NeMo 2 found", "like llm.llama3_8b.pretrain_recipe(...)", file=file)
    ((name, function, call),) = made.values()
    return NemoRecipe(name=name, function=function, arguments=_arguments(call, constants), settings=settings)


def factory_recipe(factory: str, function: str, settings: dict[str, Any], file: str = "") -> NemoRecipe:
    """Read the recipe of ``nemo llm pretrain --factory NAME`` or ``--factory "NAME(num_nodes=2)"``.

    Raises ``InputError`` for other expressions.
    """
    tree = parse_python(factory, file)
    call = tree.body[0].value if len(tree.body) == 1 and isinstance(tree.body[0], ast.Expr) else None
    arguments = _arguments(call, {}) if isinstance(call, ast.Call) else {}
    names = _path(call.func if isinstance(call, ast.Call) else call) if call is not None else []
    if len(names) != 1:
        raise input_error(f"cannot read {shorten(factory)!r}", "like llama3_8b", key="--factory", file=file)
    return NemoRecipe(name=names[0], function=function, arguments=arguments, settings=settings)


def _in_branches(tree: ast.Module) -> set[int]:
    """Return the identities of all nodes that need not run; what ``__name__`` guards does."""
    conditional = (ast.If, ast.For, ast.While, ast.Try)
    outer = [node for node in ast.walk(tree) if isinstance(node, conditional) and not _is_main(node)]
    return {id(inner) for node in outer for inner in ast.walk(node)}


def _is_main(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "__name__" in ast.dump(node.test)


def _constants(tree: ast.Module) -> dict[str, Any]:
    """Return names that are set once, to a plain value."""
    found: dict[str, list[Any]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    found.setdefault(target.id, []).append(node.value)
    once = {name: nodes[0] for name, nodes in found.items() if len(nodes) == 1}
    return {name: node.value for name, node in once.items() if isinstance(node, ast.Constant)}


def _recipe_call(node: ast.expr) -> tuple[str, str, ast.Call] | None:
    """Recognise ``llm.NAME.pretrain_recipe(...)`` and ``partial`` calls of it."""
    if not isinstance(node, ast.Call):
        return None
    for called in (node.func, *node.args[:1]):
        path = _path(called)
        if len(path) >= 2 and path[-1] in RECIPES:
            return path[-2], path[-1], node
    return None


def _arguments(call: ast.Call, constants: dict[str, Any]) -> dict[str, Any]:
    given = call.args if _path(call.func)[-1:] != ["partial"] else call.args[1:]
    named = dict(zip(POSITIONS, (_value(value, constants) for value in given), strict=False))
    for word in call.keywords:
        if word.arg is None:  # may set any of them
            what = f"**{shorten(ast.unparse(word.value))} may hold any argument of the recipe, and nothing is run"
            raise input_error(what, "arguments by name", line=word.value.lineno)
    return named | {word.arg: _value(word.value, constants) for word in call.keywords if word.arg}


def _value(node: ast.expr, constants: dict[str, Any]) -> Any:
    """Return a plain value, a hole where it is computed."""
    if isinstance(node, ast.Constant):
        return node.value
    name = node.id if isinstance(node, ast.Name) else "expression"
    return constants.get(name, hole(name))


def _path(node: ast.expr) -> list[str]:
    """Return the names of ``a.b.c``, empty for anything else."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return [node.id, *reversed(names)] if isinstance(node, ast.Name) else []
