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

from layoutopt.optimizer.interop.python_reader import MAX_ITEMS, Call, PythonReader, Values
from layoutopt.optimizer.interop.python_values import (
    MAX_DEPTH,
    OPEN,
    PythonFile,
    bound,
    is_open,
    may_change,
    size,
)
from layoutopt.optimizer.interop.reading import parse_python, shorten
from layoutopt.optimizer.interop.shell.values import hole, show
from layoutopt.optimizer.specs import document
from layoutopt.optimizer.specs.errors import input_error

MAX_FILES, MAX_BYTES = 80, 2**21
"""Files of a checkout and bytes of a file: recipes stay far below."""

PACKAGES = ("megatron", "nemo")
TARGET = "_target_"
"""Key under which the class that ``run.Config`` is given is kept."""

HUB_ID = "hf_model_id"
"""Key under which a model's name on the Hugging Face hub is kept."""

_KINDS: dict[str, type] = {"str": str, "int": int, "bool": bool, "list": list, "dict": dict}


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeFile:
    """Sections that a recipe sets; ``notes`` name the helpers that may change more and were not found."""

    sections: dict[str, Values]
    notes: tuple[str, ...]


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
        what = f"no recipe {shorten(name)!r}"
        raise input_error(what, f"one of {shown}", key="--recipe-file", file=path.name)
    made = reader.call(*where, given or {}, 0)
    if not isinstance(made, dict):
        raise input_error(f"{shorten(name)} returns no configuration", "a recipe", file=path.name)
    reader.count(size(made, path.name))
    sections = {
        key: {name: one for name, one in value.items() if name != OPEN}
        for key, value in made.items()
        if isinstance(value, dict)
    }
    for key, value in made.items():
        why = value.get(OPEN) if isinstance(value, dict) else value if is_open(value) else None
        if isinstance(why, str):
            said = f"assumed: {shorten(key)} sets nothing else that counts; it is open in {show(why)[1:]}"
            reader.notes[said] = None
    if isinstance(made.get("mixed_precision"), str) and made["mixed_precision"] in precisions:
        sections["mixed_precision"] = dict(precisions[made["mixed_precision"]])
    return RecipeFile(sections=sections, notes=tuple(reader.notes))


def _root_of(path: Path) -> Path:
    """Return the folder that holds the package a recipe is part of, its own folder where there is none."""
    whole = path.resolve()
    parts = whole.parts[:-1]
    # The last one: a checkout may itself lie in a folder called megatron or nemo.
    places = [place for place, part in enumerate(parts) if part in PACKAGES]
    return Path(*parts[: places[-1]]) if places else whole.parent


@dataclass(slots=True, kw_only=True)
class _Reader(PythonReader):
    root: Path
    precisions: dict[str, Values]
    files: dict[Path, PythonFile | None] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)

    def load(self, path: Path) -> PythonFile | None:
        """Parse a file once; None where there is none, or too many were read."""
        place = path.resolve()
        if place in self.files:
            return self.files[place]
        # Set before it is read: files that import each other would be read without end.
        self.files[place] = None
        # An import that leads out of the checkout is of an installed package, or of somebody's home folder.
        if len(self.files) > MAX_FILES or not place.is_file() or not place.is_relative_to(self.root):
            return None
        tree = parse_python(document.read_text(place, max_bytes=MAX_BYTES), place.name)
        made = PythonFile(
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
        self.read_names(tree.body, made)
        return made

    def function(
        self, file: PythonFile, name: str, depth: int = 0
    ) -> tuple[PythonFile, ast.FunctionDef] | None:
        """Find a function of a file or of the files that it imports from."""
        if name in file.functions:
            return file, file.functions[name]
        if name not in file.imports or depth > MAX_DEPTH:
            return None
        module, original = file.imports[name]
        other = self.module(module)
        return None if other is None else self.function(other, original, depth + 1)

    def module(self, name: str) -> PythonFile | None:
        """Load a module of the checkout by its dotted name."""
        base = self.root.joinpath(*name.split("."))
        return self.load(base.with_suffix(".py")) or self.load(base / "__init__.py")

    def called(
        self, file: PythonFile, node: ast.expr, name: str
    ) -> tuple[PythonFile, ast.FunctionDef] | None:
        """Find the function that a call names, of a module where it is ``module.name``."""
        owner = node.value.id if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) else ""
        if owner not in file.imports:
            return self.function(file, name)
        other = self.module(".".join(file.imports[owner]))
        return None if other is None else self.function(other, name)

    def imported(self, file: PythonFile, name: str) -> Any:
        """Return a constant that a file imports from another."""
        module, original = file.imports.get(name, ("", ""))
        other = self.module(module) if module else None
        return hole(name) if other is None else other.constants.get(original, hole(name))

    def called_value(self, call: Call) -> Any:
        """Return what a call makes: of a function of the checkout its value, of a class its keywords."""
        node, name, arguments, named = call.node, call.name, call.arguments, call.named
        if name == "from_hf_pretrained":
            return {HUB_ID: arguments[0] if arguments else None}
        if isinstance(node.func, ast.Attribute):
            holder = self.value(node.func.value, call.at)
            if name.startswith("to_megatron") and isinstance(holder, dict):
                return dict(holder) | named
            if isinstance(holder, dict) and not name[:1].isupper():
                if name != "copy":
                    return hole(f"{name}(...)")
                # Counted first: copies of copies grow with the power of two of a few lines.
                self.count(size(holder, self.file))
                return deepcopy(holder)
            if isinstance(holder, list) and name in ("append", "extend") and len(arguments) == 1:
                return self._lengthened(holder, arguments if name == "append" else arguments[0])
            if isinstance(holder, str) and name in ("lower", "upper") and not is_open(holder):
                return holder.lower() if name == "lower" else holder.upper()
        if name == "hasattr" and len(arguments) == 2 and isinstance(arguments[0], dict):
            return arguments[1] in arguments[0]
        if name == "isinstance" and len(node.args) == 2 and not is_open(arguments[0]):
            kind = _KINDS.get(getattr(node.args[1], "id", ""))
            return hole("isinstance(...)") if kind is None else isinstance(arguments[0], kind)
        if name in self.precisions:
            return dict(self.precisions[name])
        found = self.called(call.at.file, node.func, name)
        if found is not None:
            return self.call(*found, bound(found[1], arguments) | named, call.at.depth + 1)
        if name[:1].isupper():
            made = node.args[0] if node.args and name in ("Config", "Partial") else None
            given = made.attr if isinstance(made, ast.Attribute) else getattr(made, "id", None)
            return named if given is None else {TARGET: given} | named
        if may_change(node) and any(isinstance(argument, dict) for argument in (*arguments, *named.values())):
            self.notes[f"assumed: {name} of the recipe changes nothing that counts; it was not found"] = None
        return hole(f"{name}(...)")

    def _lengthened(self, holder: list[Any], more: Any) -> None:
        if not isinstance(more, list) or len(holder) + len(more) > MAX_ITEMS:
            what = "a list is extended by what is not read"
            raise input_error(what, f"up to {MAX_ITEMS} items", file=self.file)
        holder += more
