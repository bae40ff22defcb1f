"""torchtitan's Python configurations, read as syntax trees: nothing is imported and nothing runs.

Followed is what ``interop.python_reader`` follows: functions that build the configuration by one call
(``Trainer.Config(parallelism=..., training=...)``), from what another function returns, and by assignments. Everything
else stays open: a string that starts with ``$``.
"""

from __future__ import annotations

import ast
import re
from typing import Any

from layoutopt.optimizer.interop.python_reader import Call, Frame, PythonReader, Values
from layoutopt.optimizer.interop.python_values import OPEN, PythonFile, bound, dotted, may_change, open_all
from layoutopt.optimizer.interop.reading import parse_python, shorten
from layoutopt.optimizer.interop.shell.values import hole
from layoutopt.optimizer.specs.errors import input_error

ROOT_CALLS = ("Trainer.Config", "JobConfig", "TrainerConfig", "Config")
SECTIONS = ("parallelism", "training", "activation_checkpoint", "compile", "checkpoint")
"""Sections whose settings are read, and reported where they are open."""

ROOT_SECTIONS = ("parallelism", "training", "model_spec")
MODEL_CALL = "model_registry"
GIVEN = ("cfg", "config", "job_config", "self")
"""Names of arguments that hold a configuration to fill in."""

_FAMILY_IMPORT = re.compile(r"models\.(\w+)")
Sections = dict[str, Any]


def read_python_config(text: str, file: str = "", function: str | None = None) -> tuple[Sections, str]:
    """Return the sections that a configuration function sets, and the function's name.

    ``function`` chooses among several; without it the file must hold exactly one. What a function of another file sets
    is its name under ``base``. ``family`` names the model family that the file imports from, where it says so. Raises
    ``InputError`` where none, or not one alone, is found.
    """
    tree = parse_python(text, file)
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    module = PythonFile(functions=functions, imports={}, constants={})
    reader = _Reader(file=file)
    reader.read_names(tree.body, module)
    found = {
        name: made
        for name, node in functions.items()
        if _starts_alone(node) and _is_root(made := reader.call(module, node, {}, 0))
    }
    if function is not None and function not in found:
        what = f"no configuration function {shorten(function)!r}"
        raise input_error(what, "one of " + ", ".join(found), key="function", file=file)
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
    what = f"several configuration functions: {shorten(', '.join(names))}"
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


def _is_root(value: object) -> bool:
    """Tell a configuration from a section: by its class, by its sections, or by the function it starts from."""
    if not isinstance(value, dict):
        return False
    return value.get("class") in ROOT_CALLS or any(key in value for key in ROOT_SECTIONS) or "base" in value


class _Reader(PythonReader):
    """Functions of one file; a class that they call is kept under ``class``, a function of another file under ``base``."""

    __slots__ = ()

    def unreturned(self, values: Values) -> Any:
        """Return the configuration that a function sets that returns nothing."""
        made = [value for value in values.values() if _is_root(value)]
        return max(made, key=lambda value: sum(key in value for key in ROOT_SECTIONS), default=None)

    def absent_argument(self, name: str) -> Any:
        """Return a configuration to fill in for an argument that holds one."""
        return {} if name in GIVEN else hole(name)

    def attribute(self, node: ast.Attribute, at: Frame) -> Any:
        """Return what an attribute holds; a section that a configuration does not state is there all the same."""
        holder = self.value(node.value, at)
        if _is_root(holder) and node.attr in SECTIONS and node.attr not in holder:
            holder[node.attr] = {OPEN: holder[OPEN]} if OPEN in holder else {}
        return super().attribute(node, at)

    def called_value(self, call: Call) -> Any:
        """Return what a call makes: of a function of this file its value, of a class its keywords and arguments.

        A call without arguments of a function from elsewhere may make a whole configuration: its name is the base. What
        a function from elsewhere is given it may change: all of that is open.
        """
        node, name, arguments, named = call.node, call.name, call.arguments, call.named
        path, functions = dotted(node.func), call.at.file.functions
        if not call.whole:  # what is not known may set anything
            unknown = [ast.unparse(key.value)[:60] for key in node.keywords if not key.arg]
            return hole(f"{path}(**{', **'.join(unknown)})")
        if path == "dict" and not arguments:
            return named
        if path in functions:
            given = bound(functions[path], arguments) | named
            made = self.call(call.at.file, functions[path], given, call.at.depth + 1)
            return hole(f"{path}(...)") if made is None else made
        if name == MODEL_CALL or name[:1].isupper():
            return named | {"class": path} | ({} if path in ROOT_CALLS else {"arguments": arguments})
        holder = self.value(node.func.value, call.at) if isinstance(node.func, ast.Attribute) else None
        handed = [one for one in (holder, *arguments, *named.values()) if isinstance(one, dict)]
        for one in handed if may_change(node) else ():
            open_all(one, f"{name}(...) of line {node.lineno}")
        if not arguments and not named and not handed:
            return {"base": name}
        return hole(f"{path}(...)")
