"""torchtitan's Python configurations, read as syntax trees: nothing is imported and nothing runs.

Understood: functions that build the configuration by one call (``Trainer.Config(parallelism=..., training=...)``), from
what another function returns, and by assignments (``cfg.parallelism = ParallelismConfig(...)``,
``cfg.training.seq_len = 8192``), with sections and numbers held in variables, constants and whole-number arithmetic as
values. Everything else stays a string that starts with ``$``.
"""

from __future__ import annotations

import ast
import re
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from layoutopt.optimizer.interop.reading import parse_python, shorten
from layoutopt.optimizer.interop.shell.values import hole
from layoutopt.optimizer.specs.errors import input_error

ROOT_CALLS = ("Trainer.Config", "JobConfig", "TrainerConfig", "Config")
ROOT_SECTIONS = ("parallelism", "training", "model_spec")
MODEL_CALL = "model_registry"
GIVEN = ("cfg", "config", "job_config", "self")
"""Names of arguments that hold a configuration to fill in."""

MAX_DEPTH = 20
"""Functions that start from one another; more is a circle."""

_FAMILY_IMPORT = re.compile(r"models\.(\w+)")
Sections = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Module:
    functions: dict[str, ast.FunctionDef]
    constants: dict[str, Any]
    file: str


def read_python_config(text: str, file: str = "", function: str | None = None) -> tuple[Sections, str]:
    """Return the sections that a configuration function sets, and the function's name.

    ``function`` chooses among several; without it the file must hold exactly one. What a function of another file sets
    is its name under ``base``. ``family`` names the model family that the file imports from, where it says so. Raises
    ``InputError`` where none, or not one alone, is found.
    """
    tree = parse_python(text, file)
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    module = _Module(functions=functions, constants={}, file=file)
    for node in tree.body:
        _step(node, module.constants, module, 0)
    found = {
        name: made
        for name, node in functions.items()
        if _starts_alone(node) and _is_root(made := _made(name, {}, module, 0))
    }
    if function is not None and function not in found:
        raise input_error(
            f"no configuration function {shorten(function)!r}",
            "one of " + ", ".join(found),
            key="function",
            file=file,
        )
    if function is None and len(found) != 1:
        raise _not_one(tuple(found), file)
    name = function or next(iter(found))
    sections = found[name]
    if family := _imported_family(tree):
        sections.setdefault("family", family)
    return sections, name


def _not_one(names: tuple[str, ...], file: str) -> Exception:
    if not names:
        needed = "one torchtitan configuration function"
        return input_error("no function returns a configuration", needed, file=file)
    shown = shorten(", ".join(names))
    what = f"several configuration functions: {shown}"
    return input_error(what, f"choose one with --function {names[0]}", key="function", file=file)


def _imported_family(tree: ast.Module) -> str:
    """Return the family of ``from torchtitan.models.FAMILY import model_registry``, empty where none is named."""
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and any(name.name == MODEL_CALL for name in node.names):
            match = _FAMILY_IMPORT.search(node.module or "")
            return match[1] if match else ""
    return ""


def _starts_alone(function: ast.FunctionDef) -> bool:
    """Tell a configuration from a helper, which others have to give something."""
    needed = function.args.args[: len(function.args.args) - len(function.args.defaults)]
    return all(argument.arg in GIVEN for argument in needed)


def _made(name: str, given: dict[str, Any], module: _Module, depth: int) -> Any:
    """Return what a function returns or, if it returns nothing, the configuration that it sets."""
    if depth > MAX_DEPTH:
        raise input_error(f"{shorten(name)} starts from itself", "a function that ends", file=module.file)
    names = module.constants | _arguments(module.functions[name], given, module, depth)
    for node in module.functions[name].body:
        if isinstance(node, ast.Return):
            return _value(node.value, names, module, depth) if node.value else None
        _step(node, names, module, depth)
    made = [value for value in names.values() if _is_root(value)]
    return max(made, key=lambda value: sum(key in value for key in ROOT_SECTIONS), default=None)


def _arguments(
    function: ast.FunctionDef, given: dict[str, Any], module: _Module, depth: int
) -> dict[str, Any]:
    """Return a function's arguments: given, by default, a configuration to fill in, or unknown."""
    names = [argument.arg for argument in function.args.args]
    defaults = dict(zip(reversed(names), reversed(function.args.defaults), strict=False))
    return {
        name: given[name]
        if name in given
        else _value(defaults[name], module.constants, module, depth)
        if name in defaults
        else {}
        if name in GIVEN
        else hole(name)
        for name in names
    }


def _is_root(value: object) -> bool:
    """Tell a configuration from a section: by its class, by its sections, or by the function it starts from."""
    if not isinstance(value, dict):
        return False
    return value.get("class") in ROOT_CALLS or any(key in value for key in ROOT_SECTIONS) or "base" in value


def _step(node: ast.stmt, names: dict[str, Any], module: _Module, depth: int) -> None:
    """Follow one assignment; a branch or loop of somebody's code leaves what it sets unknown."""
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        _assign(node.targets[0], _value(node.value, names, module, depth), names)
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        _assign(node.target, _value(node.value, names, module, depth), names)
    elif isinstance(node, ast.If | ast.For | ast.While | ast.With | ast.Try):
        for inner in ast.walk(node):
            if isinstance(inner, ast.Assign):
                for target in inner.targets:
                    _assign(target, hole(f"a value set in line {inner.lineno}"), names)


def _assign(target: ast.expr, value: Any, names: dict[str, Any]) -> None:
    first, *path = _dotted(target).split(".")
    if first == "?":
        return
    if not path:
        names[first] = value
        return
    place = names.setdefault(first, {})
    for part in path[:-1]:
        place = place.setdefault(part, {}) if isinstance(place, dict) else {}
        if place is None:
            return
    if isinstance(place, dict):
        place[path[-1]] = value


def _call(call: ast.Call, names: dict[str, Any], module: _Module, depth: int) -> Any:
    """Read a call: of a function of this file what it returns, of a class its keywords, name and arguments.

    A call without arguments of a function from elsewhere may make a whole configuration: its name is the base.
    """
    name = _dotted(call.func)
    section: dict[str, Any] = {}
    for key in call.keywords:
        value = _value(key.value, names, module, depth)
        if key.arg:
            section[key.arg] = value
        elif isinstance(value, dict) and not {"class", "base"} & value.keys():
            section |= value
        else:  # what is not known may set anything
            return hole(f"{name}(**{ast.unparse(key.value)[:60]})")
    if name == "dict" and not call.args:
        return section
    if name not in ROOT_CALLS:
        section["arguments"] = [_value(argument, names, module, depth) for argument in call.args]
    if name in module.functions:
        places = [argument.arg for argument in module.functions[name].args.args]
        given = dict(zip(places, section.pop("arguments", []), strict=False)) | section
        made = _made(name, given, module, depth + 1)
        return hole(f"{name}(...)") if made is None else deepcopy(made)
    if name[:1].islower() and not call.args and not call.keywords and name != MODEL_CALL:
        return {"base": name.split(".")[-1]}
    return section | {"class": name}


def _dotted(node: ast.expr) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    parts.append(node.id if isinstance(node, ast.Name) else "?")
    return ".".join(reversed(parts))


def _value(node: ast.expr, names: dict[str, Any], module: _Module, depth: int) -> Any:
    """Evaluate constants, lists, calls and whole-number arithmetic; anything else is its source behind a ``$``."""
    if isinstance(node, ast.Constant):
        known = isinstance(node.value, str | int | float | bool | None)
        return node.value if known else hole(repr(node.value))
    if isinstance(node, ast.Dict):
        return _mapping(node, names, module, depth)
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(item, names, module, depth) for item in node.elts]
    if isinstance(node, ast.Name | ast.Attribute):
        return _looked_up(_dotted(node), names)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _value(node.operand, names, module, depth)
        return -inner if type(inner) in (int, float) else hole("expression")
    if isinstance(node, ast.BinOp):
        sides = (_value(side, names, module, depth) for side in (node.left, node.right))
        return _arithmetic(node.op, *sides)
    if isinstance(node, ast.Call):
        return _call(node, names, module, depth)
    return hole("expression")


def _mapping(node: ast.Dict, names: dict[str, Any], module: _Module, depth: int) -> Any:
    """Read a dictionary of settings; one whose keys are not all known is none."""
    found: dict[str, Any] = {}
    for key, item in zip(node.keys, node.values, strict=True):
        value = _value(item, names, module, depth)
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            found[key.value] = value
        elif key is None and isinstance(value, dict):
            found |= value
        else:
            return hole("expression")
    return found


def _looked_up(path: str, names: dict[str, Any]) -> Any:
    """Return what a dotted name holds; a section is shared, as it is in Python."""
    first, *rest = path.split(".")
    value = names.get(first, hole(path))
    for part in rest:
        value = value.get(part, hole(path)) if isinstance(value, dict) else hole(path)
    return value


def _arithmetic(operator: ast.operator, left: Any, right: Any) -> Any:
    if type(left) is not int or type(right) is not int or max(abs(left), abs(right)) > 10**15:
        return hole("expression")
    if isinstance(operator, ast.Mult):
        return left * right
    if isinstance(operator, ast.Add):
        return left + right
    if isinstance(operator, ast.Sub):
        return left - right
    if isinstance(operator, ast.FloorDiv) and right:
        return left // right
    return hole("expression")
