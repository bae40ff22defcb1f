"""torchtitan's Python configurations, read as syntax trees: nothing is imported and nothing runs.

Understood: a function that builds the configuration by assignments (``cfg.parallelism =
ParallelismConfig(...)``, ``cfg.training.seq_len = 8192``) or by one call (``Trainer.Config(parallelism=...,
training=...)``), with constants and whole-number arithmetic as values. Everything else stays a string that
starts with ``$``.
"""

from __future__ import annotations

import ast
import warnings
from typing import Any

from layoutopt.optimizer.interop.reading import shorten
from layoutopt.optimizer.interop.shell.values import hole
from layoutopt.optimizer.specs.errors import input_error

SECTION_CALLS = {"ParallelismConfig": "parallelism", "TrainingConfig": "training", "CompileConfig": "compile"}
ROOT_CALLS = ("Trainer.Config", "JobConfig", "TrainerConfig", "Config")
Sections = dict[str, Any]


def read_python_config(text: str, file: str = "", function: str | None = None) -> tuple[Sections, str]:
    """Return the sections that a configuration function sets, and the function's name.

    ``function`` chooses among several; without it the file must hold exactly one that sets ``parallelism``.
    """
    tree = _parse(text, file)
    constants = _constants(tree.body, {})
    found: dict[str, Sections] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            sections = _function_sections(node, constants)
            if "parallelism" in sections:
                found[node.name] = sections
    if function is not None and function not in found:
        raise input_error(f"no configuration function {shorten(function)!r}", ", ".join(found), file=file)
    if function is None and len(found) != 1:
        what = (
            "several configuration functions: " + shorten(", ".join(found))
            if found
            else "no function sets parallelism"
        )
        raise input_error(what, "one torchtitan configuration function", file=file)
    name = function or next(iter(found))
    return found[name], name


def _parse(text: str, file: str) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in somebody's strings are not ours to report
            return ast.parse(text)
    except SyntaxError as error:
        raise input_error(f"not valid Python: {shorten(error.msg)}", file=file, line=error.lineno) from None
    except (ValueError, RecursionError, MemoryError):
        raise input_error("not valid Python", file=file) from None


def _constants(body: list[ast.stmt], known: dict[str, Any]) -> dict[str, Any]:
    values = dict(known)
    for node in body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            values[node.targets[0].id] = _value(node.value, values)
    return values


def _function_sections(function: ast.FunctionDef, constants: dict[str, Any]) -> Sections:
    names = _constants(function.body, constants)
    sections: Sections = {}
    for node in function.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            _assign(node.targets[0], node.value, names, sections)
        elif isinstance(node, ast.Return) and isinstance(node.value, ast.Call):
            _read_root(node.value, names, sections)
    return sections


def _assign(target: ast.expr, value: ast.expr, names: dict[str, Any], sections: Sections) -> None:
    path = _dotted(target).split(".")
    if len(path) == 1 and isinstance(value, ast.Call):
        if _dotted(value.func) in ROOT_CALLS or "parallelism" in {keyword.arg for keyword in value.keywords}:
            _read_root(value, names, sections)
        else:
            sections.setdefault("base", _dotted(value.func).split(".")[-1])
    elif len(path) == 2:
        sections[path[1]] = _section(value, names)
    elif len(path) == 3:
        section = sections.setdefault(path[1], {})
        if isinstance(section, dict):
            section[path[2]] = _value(value, names)


def _read_root(call: ast.Call, names: dict[str, Any], sections: Sections) -> None:
    for keyword in call.keywords:
        if keyword.arg:
            sections[keyword.arg] = _section(keyword.value, names)


def _section(node: ast.expr, names: dict[str, Any]) -> Any:
    """Read a section: a call becomes its keywords, its class name, and its positional arguments."""
    if isinstance(node, ast.Call):
        section: dict[str, Any] = {key.arg: _value(key.value, names) for key in node.keywords if key.arg}
        section["class"] = _dotted(node.func)
        section["arguments"] = [_value(argument, names) for argument in node.args]
        return section
    return _value(node, names)


def _dotted(node: ast.expr) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    parts.append(node.id if isinstance(node, ast.Name) else "?")
    return ".".join(reversed(parts))


def _value(node: ast.expr, names: dict[str, Any]) -> Any:
    """Evaluate constants, lists and whole-number arithmetic; anything else is its source behind a ``$``."""
    if isinstance(node, ast.Constant):
        return (
            node.value if isinstance(node.value, str | int | float | bool | None) else hole(repr(node.value))
        )
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(item, names) for item in node.elts]
    if isinstance(node, ast.Name) and node.id in names:
        return names[node.id]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _value(node.operand, names)
        return (
            -inner if isinstance(inner, int | float) and not isinstance(inner, bool) else hole("expression")
        )
    if isinstance(node, ast.BinOp):
        return _arithmetic(node, names)
    if isinstance(node, ast.Call):
        return hole(_dotted(node.func) + "(...)")
    return hole("expression")


def _arithmetic(node: ast.BinOp, names: dict[str, Any]) -> Any:
    left, right = _value(node.left, names), _value(node.right, names)
    if type(left) is not int or type(right) is not int or max(abs(left), abs(right)) > 10**15:
        return hole("expression")
    if isinstance(node.op, ast.Mult):
        return left * right
    if isinstance(node.op, ast.Add):
        return left + right
    if isinstance(node.op, ast.Sub):
        return left - right
    if isinstance(node.op, ast.FloorDiv) and right:
        return left // right
    return hole("expression")
