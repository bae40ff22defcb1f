"""What a Python script sets of a NeMo 2 recipe, read from its syntax tree; nothing is run."""

from __future__ import annotations

import ast
from typing import Any

from layoutopt.optimizer.interop.reading import parse_python
from layoutopt.optimizer.specs.errors import input_error

RECIPES = ("pretrain_recipe", "finetune_recipe")
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


def script_values(text: str, file: str = "") -> dict[str, Any]:
    """Return dotted keys of the recipe that a script makes, and its name under ``recipe``.

    Raises ``InputError`` where a script makes several, or where it branches around what it sets.
    """
    tree = parse_python(text, file)
    constants = _constants(tree)
    values: dict[str, Any] = {}
    names: set[str] = set()
    branches = _in_branches(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign) or len(node.targets) != 1:
            continue
        found = _recipe_call(node.value)
        target = node.targets[0]
        if found is not None and isinstance(target, ast.Name):
            if names:
                raise input_error("makes several recipes", "a script with one", file=file, line=node.lineno)
            names.add(target.id)
            values["recipe"], call = found
            values |= _arguments(call, constants)
        elif (path := _path(target)) and path[0] in names:
            if id(node) in branches:
                what = f"{'.'.join(path)} is set in a branch"
                raise input_error(what, "a value that always holds", file=file, line=node.lineno)
            values[".".join(path[1:])] = _value(node.value, constants)
    return {key: value for key, value in values.items() if value is not None}


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


def _recipe_call(node: ast.expr) -> tuple[str, ast.Call] | None:
    """Recognise ``llm.NAME.pretrain_recipe(...)`` and ``partial`` calls of it."""
    if not isinstance(node, ast.Call):
        return None
    path = _path(node.func)
    if len(path) >= 2 and path[-1] in RECIPES:
        return path[-2], node
    inner = node.args[0] if node.args else None
    path = _path(inner) if inner is not None else []
    return (path[-2], node) if len(path) >= 2 and path[-1] in RECIPES else None


def _arguments(call: ast.Call, constants: dict[str, Any]) -> dict[str, Any]:
    return {
        ARGUMENTS[word.arg]: _value(word.value, constants) for word in call.keywords if word.arg in ARGUMENTS
    }


def _value(node: ast.expr, constants: dict[str, Any]) -> Any:
    """Return a plain value, None where it is computed."""
    if isinstance(node, ast.Constant):
        return node.value
    return constants.get(node.id) if isinstance(node, ast.Name) else None


def _path(node: ast.expr) -> list[str]:
    """Return the names of ``a.b.c``, empty for anything else."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return [node.id, *reversed(names)] if isinstance(node, ast.Name) else []
