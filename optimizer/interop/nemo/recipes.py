"""What a Python script sets of a NeMo 2 recipe, read from its syntax tree; nothing is run."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any

from layoutopt.optimizer.interop.reading import parse_python, shorten
from layoutopt.optimizer.interop.shell.values import hole
from layoutopt.optimizer.specs.errors import input_error

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
    return {
        name: nodes[0].value
        for name, nodes in found.items()
        if len(nodes) == 1 and isinstance(nodes[0], ast.Constant)
    }


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
