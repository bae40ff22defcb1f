"""Recipes of Megatron-Bridge and NeMo 2, read as syntax trees: nothing is imported and nothing runs.

Understood: functions that start from another function's configuration, of the same file or of a file of the same checkout
that it imports, and set keys of it (``cfg.model.tensor_model_parallel_size = 8``), directly or in helpers that are given
the configuration; branches on arguments that are known. Everything else stays open under its name.
"""

from __future__ import annotations

import ast
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from layoutopt.optimizer.interop.reading import parse_python, shorten
from layoutopt.optimizer.interop.shell.values import has_hole, hole
from layoutopt.optimizer.specs import document
from layoutopt.optimizer.specs.errors import input_error

MAX_FILES, MAX_STEPS, MAX_DEPTH, MAX_BYTES = 80, 50_000, 40, 2**21
"""Files of a checkout, statements, calls within calls and bytes of a file: recipes stay far below."""

LARGEST_FACTOR = 10**9
MAX_ITEMS, MAX_VALUES = 1_000, 20_000
"""Most items of a list that a recipe extends, and most values of a configuration."""

PACKAGES = ("megatron", "nemo")
TARGET = "_target_"
"""Key under which the class that ``run.Config`` is given is kept."""

HUB_ID = "hf_model_id"
"""Key under which a model's name on the Hugging Face hub is kept."""

Values = dict[str, Any]
_KINDS: dict[str, type] = {"str": str, "int": int, "bool": bool, "list": list, "dict": dict}
_HARMLESS = ("hasattr", "getattr", "isinstance", "len", "print", "max", "min")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeFile:
    """Sections that a recipe sets; ``notes`` name the helpers that may change more and were not found."""

    sections: dict[str, Values]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    functions: dict[str, ast.FunctionDef]
    imports: dict[str, tuple[str, str]]
    constants: Values


class _Returned(Exception):
    """A function's value on its way up."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


def read_recipe(
    path: Path, name: str, precisions: dict[str, Values], given: Values | None = None
) -> RecipeFile:
    """Return what the function ``name`` of a recipe file makes of the configuration.

    ``precisions`` are the switches behind the names of mixed-precision recipes, ``given`` the function's arguments.
    Raises ``InputError`` where the file has no such function or it makes no configuration.
    """
    reader = _Reader(root=_root_of(path), precisions=precisions, file=path.name)
    found = reader.load(path)
    if found is None:
        raise input_error("no such recipe file", file=str(path))
    where = reader.function(found, name)
    if where is None:
        shown = shorten(", ".join(found.functions) or "none")
        raise input_error(
            f"no recipe {shorten(name)!r}", f"one of {shown}", key="--recipe-file", file=path.name
        )
    made = reader.call(*where, given or {}, 0)
    if not isinstance(made, dict):
        raise input_error(f"{shorten(name)} returns no configuration", "a recipe", file=path.name)
    reader.steps += _size(made, path.name)
    sections = {key: value for key, value in made.items() if isinstance(value, dict)}
    if isinstance(made.get("mixed_precision"), str) and made["mixed_precision"] in precisions:
        sections["mixed_precision"] = dict(precisions[made["mixed_precision"]])
    return RecipeFile(sections=sections, notes=tuple(reader.notes))


def _root_of(path: Path) -> Path:
    """Return the folder that holds the package a recipe is part of, its own folder where there is none."""
    whole = path.resolve()
    parts = whole.parts[:-1]
    places = [place for place, part in enumerate(parts) if part in PACKAGES]
    return Path(*parts[: places[-1]]) if places else whole.parent


@dataclass(slots=True, kw_only=True)
class _Reader:
    root: Path
    precisions: dict[str, Values]
    file: str
    files: dict[Path, _File | None] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)
    steps: int = 0

    def load(self, path: Path) -> _File | None:
        """Parse a file once; None where there is none, or too many were read."""
        place = path.resolve()
        if place in self.files:
            return self.files[place]
        self.files[place] = None
        if len(self.files) > MAX_FILES or not place.is_file() or not place.is_relative_to(self.root):
            return None
        tree = parse_python(document.read_text(place, max_bytes=MAX_BYTES), place.name)
        made = _File(
            functions={node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)},
            imports={
                alias.asname or alias.name: (node.module or "", alias.name)
                for node in tree.body
                if isinstance(node, ast.ImportFrom) and not node.level
                for alias in node.names
            },
            constants={},
        )
        self.files[place] = made
        for node in tree.body:
            if isinstance(node, ast.Assign | ast.AnnAssign):
                self.step(node, made.constants, made, 0)
        return made

    def function(self, file: _File, name: str, depth: int = 0) -> tuple[_File, ast.FunctionDef] | None:
        """Find a function of a file or of the files that it imports from."""
        if name in file.functions:
            return file, file.functions[name]
        if name not in file.imports or depth > MAX_DEPTH:
            return None
        module, original = file.imports[name]
        other = self.module(module)
        return None if other is None else self.function(other, original, depth + 1)

    def module(self, name: str) -> _File | None:
        """Load a module of the checkout by its dotted name."""
        base = self.root.joinpath(*name.split("."))
        return self.load(base.with_suffix(".py")) or self.load(base / "__init__.py")

    def called(self, file: _File, node: ast.expr, name: str) -> tuple[_File, ast.FunctionDef] | None:
        """Find the function that a call names, of a module where it is ``module.name``."""
        owner = node.value.id if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) else ""
        if owner not in file.imports:
            return self.function(file, name)
        other = self.module(".".join(file.imports[owner]))
        return None if other is None else self.function(other, name)

    def call(self, file: _File, node: ast.FunctionDef, given: Values, depth: int) -> Any:
        """Run a function's statements on given arguments and return its value."""
        if depth > MAX_DEPTH:
            raise input_error(
                f"{shorten(node.name)} starts from itself", "a recipe that ends", file=self.file
            )
        names = [argument.arg for argument in (*node.args.args, *node.args.kwonlyargs)]
        plain = [argument.arg for argument in node.args.args]
        defaults = dict(zip(reversed(plain), reversed(node.args.defaults), strict=False))
        named = zip([argument.arg for argument in node.args.kwonlyargs], node.args.kw_defaults, strict=True)
        defaults |= {name: value for name, value in named if value is not None}
        values = dict(file.constants)
        for name in names:
            if name in given:
                values[name] = given[name]
            else:
                known = name in defaults
                values[name] = self.value(defaults[name], values, file, depth) if known else hole(name)
        if node.args.kwarg is not None:
            values[node.args.kwarg.arg] = {key: value for key, value in given.items() if key not in names}
        try:
            self.block(node.body, values, file, depth)
        except _Returned as returned:
            return returned.value
        return None

    def block(self, body: list[ast.stmt], values: Values, file: _File, depth: int) -> None:
        """Follow statements in turn."""
        for node in body:
            self.step(node, values, file, depth)

    def step(self, node: ast.stmt, values: Values, file: _File, depth: int) -> None:
        """Follow one statement; what a branch or loop sets that is not decided here is open."""
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise input_error("recipe is too long", "one that configures a run", file=self.file)
        if isinstance(node, ast.Return):
            raise _Returned(self.value(node.value, values, file, depth) if node.value else None)
        if isinstance(node, ast.Assign):
            made = self.value(node.value, values, file, depth)
            for target in node.targets:
                self.assign(target, made, values)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self.assign(node.target, self.value(node.value, values, file, depth), values)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            self.value(node.value, values, file, depth)
        elif isinstance(node, ast.If):
            holds = self.holds(node.test, values, file, depth)
            if holds is None:
                self._leave_open(node, values)
            else:
                self.block(node.body if holds else node.orelse, values, file, depth)
        elif isinstance(node, ast.For | ast.While | ast.With | ast.Try | ast.AugAssign):
            self._leave_open(node, values)

    def _leave_open(self, node: ast.stmt, values: Values) -> None:
        for inner in ast.walk(node):
            if isinstance(inner, ast.Assign | ast.AugAssign | ast.AnnAssign):
                targets = inner.targets if isinstance(inner, ast.Assign) else [inner.target]
                for target in targets:
                    self.assign(target, hole(f"line {inner.lineno} of the recipe"), values)

    def assign(self, target: ast.expr, value: Any, values: Values) -> None:
        """Set a name, a key of a section, or several names from a list."""
        if isinstance(target, ast.Tuple):
            for place, inner in enumerate(target.elts):
                known = isinstance(value, list) and len(value) == len(target.elts)
                self.assign(inner, value[place] if known else hole("expression"), values)
        elif isinstance(target, ast.Name):
            values[target.id] = value
        elif isinstance(target, ast.Attribute | ast.Subscript):
            holder = self._held(target.value, values)
            key = target.attr if isinstance(target, ast.Attribute) else _text(target.slice)
            if isinstance(holder, dict) and key is not None:
                holder[key] = value

    def _held(self, node: ast.expr, values: Values) -> Any:
        """Return the section that a target is part of; one that nobody made yet begins empty."""
        if isinstance(node, ast.Name):
            return values.get(node.id)
        if not isinstance(node, ast.Attribute | ast.Subscript):
            return None
        outer = self._held(node.value, values)
        key = node.attr if isinstance(node, ast.Attribute) else _text(node.slice)
        if not isinstance(outer, dict) or key is None:
            return None
        if not isinstance(outer.get(key), dict):
            outer[key] = {}
        return outer[key]

    def holds(self, node: ast.expr, values: Values, file: _File, depth: int) -> bool | None:
        """Judge a condition on known values, None where it is open."""
        if isinstance(node, ast.BoolOp):
            parts = [self.holds(part, values, file, depth) for part in node.values]
            ends = isinstance(node.op, ast.Or)
            return ends if ends in parts else None if None in parts else not ends
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            inner = self.holds(node.operand, values, file, depth)
            return None if inner is None else not inner
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            sides = [self.value(side, values, file, depth) for side in (node.left, node.comparators[0])]
            return None if any(map(_is_open, sides)) else _compared(node.ops[0], *sides)
        made = self.value(node, values, file, depth)
        return None if _is_open(made) else bool(made)

    def value(self, node: ast.expr, values: Values, file: _File, depth: int) -> Any:
        """Evaluate constants, lists, sections and calls; anything else is open."""
        if isinstance(node, ast.Constant):
            return node.value if isinstance(node.value, str | int | float | bool | None) else hole("constant")
        if isinstance(node, ast.List | ast.Tuple):
            return [self.value(item, values, file, depth) for item in node.elts]
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            left, right = (self.value(side, values, file, depth) for side in (node.left, node.right))
            small = type(left) is type(right) is int and max(abs(left), abs(right)) < LARGEST_FACTOR
            return left * right if small else hole("expression")
        if isinstance(node, ast.Dict) and any(key is None or _text(key) is None for key in node.keys):
            return hole("dictionary")
        if isinstance(node, ast.Dict):
            pairs = zip(node.keys, node.values, strict=True)
            return {
                _text(key): self.value(item, values, file, depth) for key, item in pairs if key and _text(key)
            }
        if isinstance(node, ast.Name):
            return values[node.id] if node.id in values else self._imported(file, node.id)
        if isinstance(node, ast.Attribute):
            if isinstance(node.value, ast.Name) and node.value.id not in values and _is_enum(node.value.id):
                return f"{node.value.id}.{node.attr}"
            holder = self.value(node.value, values, file, depth)
            return holder.get(node.attr, hole(node.attr)) if isinstance(holder, dict) else hole(node.attr)
        if isinstance(node, ast.IfExp):
            holds = self.holds(node.test, values, file, depth)
            chosen = node.body if holds else node.orelse
            return hole("expression") if holds is None else self.value(chosen, values, file, depth)
        if isinstance(node, ast.Compare | ast.BoolOp):
            holds = self.holds(node, values, file, depth)
            return hole("expression") if holds is None else holds
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            inner = self.value(node.operand, values, file, depth)
            return -inner if type(inner) in (int, float) else hole("expression")
        if isinstance(node, ast.Call):
            return self._call(node, values, file, depth)
        return hole("expression")

    def _imported(self, file: _File, name: str) -> Any:
        """Return a constant that a file imports from another."""
        module, original = file.imports.get(name, ("", ""))
        other = self.module(module) if module else None
        return hole(name) if other is None else other.constants.get(original, hole(name))

    def _call(self, node: ast.Call, values: Values, file: _File, depth: int) -> Any:
        arguments = [self.value(argument, values, file, depth) for argument in node.args]
        named = {key.arg: self.value(key.value, values, file, depth) for key in node.keywords if key.arg}
        for key in node.keywords:
            unpacked = None if key.arg else self.value(key.value, values, file, depth)
            named |= unpacked if isinstance(unpacked, dict) else {}
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name == "from_hf_pretrained":
            return {HUB_ID: arguments[0] if arguments else None}
        if isinstance(node.func, ast.Attribute):
            holder = self.value(node.func.value, values, file, depth)
            if name.startswith("to_megatron") and isinstance(holder, dict):
                return dict(holder) | named
            if isinstance(holder, dict) and not name[:1].isupper():
                if name != "copy":
                    return hole(f"{name}(...)")
                self.steps += _size(holder, self.file)
                return deepcopy(holder)
            if isinstance(holder, list) and name in ("append", "extend") and len(arguments) == 1:
                return self._lengthened(holder, arguments if name == "append" else arguments[0])
            if isinstance(holder, str) and name in ("lower", "upper") and not _is_open(holder):
                return holder.lower() if name == "lower" else holder.upper()
        if name == "hasattr" and len(arguments) == 2 and isinstance(arguments[0], dict):
            return arguments[1] in arguments[0]
        if name == "isinstance" and len(node.args) == 2 and not _is_open(arguments[0]):
            kind = _KINDS.get(getattr(node.args[1], "id", ""))
            return hole("isinstance(...)") if kind is None else isinstance(arguments[0], kind)
        if name in self.precisions:
            return dict(self.precisions[name])
        found = self.called(file, node.func, name)
        if found is not None:
            places = [argument.arg for argument in found[1].args.args]
            return self.call(*found, dict(zip(places, arguments, strict=False)) | named, depth + 1)
        if name[:1].isupper():
            made = node.args[0] if node.args and name in ("Config", "Partial") else None
            given = made.attr if isinstance(made, ast.Attribute) else getattr(made, "id", None)
            return named if given is None else {TARGET: given} | named
        if name not in _HARMLESS and any(
            isinstance(argument, dict) for argument in (*arguments, *named.values())
        ):
            self.notes[f"assumed: {name} of the recipe changes nothing that counts; it was not found"] = None
        return hole(f"{name}(...)")

    def _lengthened(self, holder: list[Any], more: Any) -> None:
        if not isinstance(more, list) or len(holder) + len(more) > MAX_ITEMS:
            raise input_error(
                "a list is extended by what is not read", f"up to {MAX_ITEMS} items", file=self.file
            )
        holder += more


def _size(made: Any, file: str) -> int:
    """Count the values of nested sections and lists; what unfolds without end or holds itself is refused."""
    waiting, count = [(made, 0)], 0
    while waiting:
        value, depth = waiting.pop()
        count += 1
        if count > MAX_VALUES or depth > MAX_DEPTH:
            raise input_error("the recipe unfolds without end", f"up to {MAX_VALUES:,} values", file=file)
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        waiting += [(one, depth + 1) for one in inner]
    return count


def _is_enum(name: str) -> bool:
    return name == "torch" or name[:1].isupper()


def _text(node: ast.expr) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _is_open(value: Any) -> bool:
    return isinstance(value, str) and has_hole(value)


def _compared(operator: ast.cmpop, left: Any, right: Any) -> bool | None:
    if isinstance(operator, ast.Eq | ast.Is):
        return bool(left == right)
    if isinstance(operator, ast.NotEq | ast.IsNot):
        return bool(left != right)
    textual = isinstance(left, str) and isinstance(right, list | dict | str)
    if isinstance(operator, ast.In | ast.NotIn) and (textual or isinstance(right, list)):
        return (left in right) == isinstance(operator, ast.In)
    return None
