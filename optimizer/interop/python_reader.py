"""Functions of Python configurations, followed as syntax trees: nothing is imported and nothing runs.

Followed: assignments of every form, constant expressions, branches, loops and ``match`` on what is known, helpers and
nested functions that are given the configuration, ``setattr``. What a construct sets that is not decided here is open:
it is never left at what it was before.
"""

from __future__ import annotations

import ast
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from layoutopt.optimizer.interop.python_values import (
    ALTERS,
    MAX_DEPTH,
    OPEN,
    Nested,
    PythonFile,
    Returned,
    altered,
    applied,
    arithmetic,
    bound,
    compared,
    dotted,
    inside,
    is_enum,
    is_open,
    item,
    open_all,
    open_changes,
    size,
    targets,
)
from layoutopt.optimizer.interop.reading import shorten
from layoutopt.optimizer.interop.shell.values import hole
from layoutopt.optimizer.specs.errors import input_error

MAX_STEPS, MAX_ITEMS, MAX_COPIED = 50_000, 1_000, 1_000_000
"""Statements, items of a list or loop, and values copied to follow what may run: recipes stay far below."""

Values = dict[str, Any]
_EARLY = "\ue000return"
"""Name under which the states are kept with which a function may have ended."""


@dataclass(slots=True)
class Frame:
    """Where a statement stands: the names that it sees, its file, and how many calls lie around it."""

    values: Values
    file: PythonFile
    depth: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call whose parts are read; ``whole``: the keywords are all known."""

    node: ast.Call
    name: str
    arguments: list[Any]
    named: Values
    whole: bool
    at: Frame


@dataclass(slots=True, kw_only=True)
class PythonReader:
    """What both kinds of configuration have in common; how calls of what is not in the file are read is not."""

    file: str
    steps: int = field(default=0, init=False)
    copied: int = field(default=0, init=False)

    def count(self, steps: int = 1) -> None:
        """Count statements, or values that are copied. Raises ``InputError`` for more than a configuration has."""
        self.steps += steps
        if self.steps > MAX_STEPS:
            raise input_error("recipe is too long", "one that configures a run", file=self.file)

    def read_names(self, body: list[ast.stmt], made: PythonFile) -> None:
        """Set the names of a module, in its order."""
        # Functions are read when they are called: constants behind them in the file are then there.
        for node in body:
            if not isinstance(node, ast.FunctionDef | ast.Return):
                self.step(node, Frame(made.constants, made))

    def call(
        self, file: PythonFile, node: ast.FunctionDef, given: Values, depth: int, outer: Values | None = None
    ) -> Any:
        """Run a function's statements on given arguments and return its value.

        Raises ``InputError`` for a function that starts from itself.
        """
        if depth > MAX_DEPTH:
            raise input_error(
                f"{shorten(node.name)} starts from itself", "a recipe that ends", file=self.file
            )
        values = file.constants | (outer or {})
        # Where the function around may have ended is not this one's affair.
        values.pop(_EARLY, None)
        at = Frame(values, file, depth)
        self._take_arguments(node, given, at)
        made: Any = None
        try:
            self.block(node.body, at)
            made = self.unreturned(values)
        except Returned as returned:
            made = returned.value
        # A return in a branch that is not decided may have ended the function there: what its end adds is open, and so is
        # the value where both ends differ.
        for state, value, why in values.get(_EARLY, []):
            open_changes({key: values[key] for key in state if isinstance(values.get(key), dict)}, state, why)
            if isinstance(made, dict) and isinstance(value, dict):
                open_changes(made, value, why)
            elif made != value:
                return hole(why)
        return made

    def unreturned(self, values: Values) -> Any:
        """Return what a function makes that returns nothing."""
        return None

    def absent_argument(self, name: str) -> Any:
        """Return what stands for an argument that nobody gives."""
        return hole(name)

    def _take_arguments(self, node: ast.FunctionDef, given: Values, at: Frame) -> None:
        plain = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)]
        named = [argument.arg for argument in node.args.kwonlyargs]
        defaults = dict(zip(reversed(plain), reversed(node.args.defaults), strict=False))
        pairs = zip(named, node.args.kw_defaults, strict=True)
        defaults |= {name: value for name, value in pairs if value is not None}
        # Defaults see what stands around the function, not the arguments before them.
        outer = Frame(dict(at.values), at.file, at.depth)
        for name in (*plain, *named):
            if name in given:
                at.values[name] = given[name]
            elif name in defaults:
                at.values[name] = self.value(defaults[name], outer)
            else:
                at.values[name] = self.absent_argument(name)
        if node.args.kwarg is not None:
            known = {*plain, *named}
            at.values[node.args.kwarg.arg] = {key: value for key, value in given.items() if key not in known}

    def block(self, body: list[ast.stmt], at: Frame) -> None:
        """Follow statements in turn."""
        for node in body:
            self.step(node, at)

    def step(self, node: ast.stmt, at: Frame) -> None:
        """Follow one statement; what a branch or loop sets that is not decided here is open.

        Raises ``Returned`` at the end of its function, which ``call`` waits for.
        """
        self.count()
        if isinstance(node, ast.Return):
            raise Returned(self.value(node.value, at) if node.value else None)
        if isinstance(node, ast.Assign):
            made = self.value(node.value, at)
            for target in node.targets:
                self.assign(target, made, at)
        elif isinstance(node, ast.AnnAssign):
            if node.value is not None:
                self.assign(node.target, self.value(node.value, at), at)
        elif isinstance(node, ast.AugAssign):
            sides = [self.value(side, at) for side in (node.target, node.value)]
            made = arithmetic(node.op, *sides)
            if is_open(made):
                made = hole(f"line {node.lineno}")
            self.assign(node.target, made, at)
        elif isinstance(node, ast.Expr):
            self.value(node.value, at)
        elif isinstance(node, ast.FunctionDef):
            at.values[node.name] = Nested(node, at.values)
        elif isinstance(node, ast.ClassDef):
            at.values[node.name] = self._class_constants(node, at)
        elif isinstance(node, ast.If | ast.Match | ast.For):
            bodies = self._decided(node, at)
            if bodies is None:
                self._leave_open(node, at)
            for name, value, body in bodies or ():
                if name is not None:
                    self.assign(name, value, at)
                self.block(body, at)
        elif not isinstance(node, ast.Import | ast.ImportFrom | ast.Global | ast.Pass):
            self._leave_open(node, at)

    def _class_constants(self, node: ast.ClassDef, at: Frame) -> Values:
        own: Values = {}
        for inner in node.body:
            if isinstance(inner, ast.Assign | ast.AnnAssign) and inner.value is not None:
                made = self.value(inner.value, Frame(at.values | own, at.file, at.depth))
                own |= {target.id: made for target in targets(inner) if isinstance(target, ast.Name)}
        return own

    def _decided(
        self, node: ast.If | ast.Match | ast.For, at: Frame
    ) -> list[tuple[ast.expr | None, Any, list[ast.stmt]]] | None:
        """Return the bodies that run, each with what is set before it; None where that is not known."""
        if isinstance(node, ast.If):
            holds = self.holds(node.test, at)
            return None if holds is None else [(None, None, node.body if holds else node.orelse)]
        if isinstance(node, ast.Match):
            body = self._matched(node, at)
            return None if body is None else [(None, None, body)]
        items = self._items(node.iter, at)
        # break and continue end a body in its middle, which statements in turn do not.
        leaves = any(isinstance(one, ast.Break | ast.Continue) for one in inside(node))
        if items is None or len(items) > MAX_ITEMS or leaves:
            return None
        return [*((node.target, one, node.body) for one in items), (None, None, node.orelse)]

    def _matched(self, node: ast.Match, at: Frame) -> list[ast.stmt] | None:
        subject = self.value(node.subject, at)
        for case in node.cases:
            pattern = case.pattern
            if case.guard is not None or is_open(subject):
                return None
            if isinstance(pattern, ast.MatchAs) and pattern.pattern is None and pattern.name is None:
                return case.body
            parts = pattern.patterns if isinstance(pattern, ast.MatchOr) else [pattern]
            for part in parts:
                wanted = self.value(part.value, at) if isinstance(part, ast.MatchValue) else hole("")
                if is_open(wanted):
                    return None
                if wanted == subject:
                    return case.body
        return []

    def _items(self, node: ast.expr, at: Frame) -> list[Any] | None:
        """Return what a loop runs over: a list, the keys, values or pairs of a section, a range; None if not known."""
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "range":
            ends = [self.value(end, at) for end in node.args]
            if not 1 <= len(ends) <= 3 or any(type(end) is not int for end in ends) or ends[2:] == [0]:
                return None
            return list(range(*ends)[: MAX_ITEMS + 1])
        way = ""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            way = node.func.attr
            node = node.func.value if way in ("items", "keys", "values") else node
        made = self.value(node, at)
        if isinstance(made, list) and not way:
            return list(made)
        if not isinstance(made, dict) or OPEN in made or is_open(made):
            return None
        return [
            [key, one] if way == "items" else one if way == "values" else key for key, one in made.items()
        ]

    def _leave_open(self, node: ast.stmt, at: Frame) -> None:
        """Leave open what a statement may set, by itself or by the functions that it calls."""
        returns = [one for one in inside(node) if isinstance(one, ast.Return)]
        for left in returns:
            state = self._copied(at)
            made = self.value(left.value, state) if left.value else None
            at.values.setdefault(_EARLY, []).append((state.values, made, f"line {left.lineno}"))
        # Calls are followed on a copy, so that what they would set is seen without being set.
        for one in inside(node):
            why = f"line {getattr(one, 'lineno', node.lineno)}"
            for target in targets(one):
                self.assign(target, hole(why), at)
            if isinstance(one, ast.Call) and self._reaches(one, at):
                state = self._copied(at)
                self.value(one, state)
                open_changes(at.values, state.values, why)

    def _copied(self, at: Frame) -> Frame:
        """Return a frame whose values are copies. Raises ``InputError`` where that was done without end."""
        plain = {key: value for key, value in at.values.items() if key != _EARLY}
        self.copied += size(plain, self.file)
        if self.copied > MAX_COPIED:
            raise input_error("recipe is too long", "one that configures a run", file=self.file)
        return Frame(deepcopy(plain), at.file, at.depth)

    def _reaches(self, node: ast.Call, at: Frame) -> bool:
        """Tell whether a call is handed a section, so that it may change it."""
        parts = [*node.args, *(key.value for key in node.keywords)]
        parts += [node.func.value] if isinstance(node.func, ast.Attribute) else []
        named = [part for part in parts if isinstance(part, ast.Name | ast.Attribute)]
        return any(isinstance(self.value(part, at), dict) for part in named)

    def assign(self, target: ast.expr, value: Any, at: Frame) -> None:
        """Set a name, a key of a section, an item of a list, or several names from a list."""
        if isinstance(target, ast.Starred):
            self.assign(target.value, hole("expression"), at)
        elif isinstance(target, ast.Tuple | ast.List):
            for place, inner in enumerate(target.elts):
                known = isinstance(value, list) and len(value) == len(target.elts)
                self.assign(inner, value[place] if known else self.part_of(value), at)
        elif isinstance(target, ast.Name):
            at.values[target.id] = value
        elif isinstance(target, ast.Attribute | ast.Subscript):
            holder = self._held(target.value, at)
            key = self._key(target, at)
            if isinstance(holder, dict) and isinstance(key, str) and not is_open(key):
                holder[key] = value
            elif isinstance(holder, dict):  # a key that is not known may be any
                open_all(holder, f"line {target.lineno}")
            elif isinstance(holder, list) and type(key) is int and -len(holder) <= key < len(holder):
                holder[key] = value
            elif isinstance(holder, list):
                holder[:] = [hole(f"line {target.lineno}")] * len(holder)

    def part_of(self, value: Any) -> Any:
        """Return what stands for a part of a value that is not known."""
        return value if is_open(value) and isinstance(value, str) else hole("expression")

    def _key(self, node: ast.Attribute | ast.Subscript, at: Frame) -> Any:
        return node.attr if isinstance(node, ast.Attribute) else self.value(node.slice, at)

    def _held(self, node: ast.expr, at: Frame) -> Any:
        """Return the section that a target is part of; one that nobody made yet begins empty, or open as its holder."""
        if isinstance(node, ast.Name):
            return at.values.get(node.id)
        if not isinstance(node, ast.Attribute | ast.Subscript):
            return self.value(node, at)
        outer = self._held(node.value, at)
        key = self._key(node, at)
        if key == "__dict__" or not isinstance(outer, dict) or not isinstance(key, str) or is_open(key):
            return outer if key == "__dict__" else item(outer, key) if isinstance(outer, list) else None
        inner = outer.get(key)
        if not isinstance(inner, dict | list):
            why = inner if is_open(inner) else outer.get(OPEN)
            outer[key] = {} if why is None else {OPEN: why}
        return outer[key]

    def holds(self, node: ast.expr, at: Frame) -> bool | None:
        """Judge a condition on known values, None where it is open."""
        if isinstance(node, ast.BoolOp):
            parts = [self.holds(part, at) for part in node.values]
            ends = isinstance(node.op, ast.Or)
            return ends if ends in parts else None if None in parts else not ends
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            inner = self.holds(node.operand, at)
            return None if inner is None else not inner
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            sides = [self.value(side, at) for side in (node.left, node.comparators[0])]
            return None if any(map(is_open, sides)) else compared(node.ops[0], *sides)
        if isinstance(node, ast.Compare):
            return None
        made = self.value(node, at)
        return None if is_open(made) else bool(made)

    def value(self, node: ast.expr, at: Frame) -> Any:
        """Evaluate constants, lists, sections and calls; anything else is open."""
        if isinstance(node, ast.Constant):
            return node.value if isinstance(node.value, str | int | float | bool | None) else hole("constant")
        if isinstance(node, ast.List | ast.Tuple):
            return [self.value(one, at) for one in node.elts]
        if isinstance(node, ast.BinOp):
            return arithmetic(node.op, *(self.value(side, at) for side in (node.left, node.right)))
        if isinstance(node, ast.Dict):
            return self._mapping(node, at)
        if isinstance(node, ast.Name):
            return at.values[node.id] if node.id in at.values else self.imported(at.file, node.id)
        if isinstance(node, ast.Attribute):
            return self.attribute(node, at)
        if isinstance(node, ast.Subscript):
            sides = [self.value(side, at) for side in (node.value, node.slice)]
            return item(*sides)
        if isinstance(node, ast.NamedExpr):
            made = self.value(node.value, at)
            self.assign(node.target, made, at)
            return made
        if isinstance(node, ast.IfExp):
            holds = self.holds(node.test, at)
            chosen = node.body if holds else node.orelse
            return hole("expression") if holds is None else self.value(chosen, at)
        if isinstance(node, ast.Compare | ast.BoolOp) or (
            isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
        ):
            holds = self.holds(node, at)
            return hole("expression") if holds is None else holds
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            inner = self.value(node.operand, at)
            return -inner if type(inner) in (int, float) else hole("expression")
        if isinstance(node, ast.Call):
            return self._call(node, at)
        return hole("expression")

    def imported(self, file: PythonFile, name: str) -> Any:
        """Return a name that the file does not set."""
        return hole(name)

    def _mapping(self, node: ast.Dict, at: Frame) -> Any:
        """Read a dictionary of settings; one whose keys are not all known is none."""
        found: Values = {}
        for key, one in zip(node.keys, node.values, strict=True):
            value = self.value(one, at)
            name = None if key is None else self.value(key, at)
            if isinstance(name, str) and not is_open(name):
                found[name] = value
            elif key is None and isinstance(value, dict):
                found |= value
            else:
                return hole("dictionary")
        return found

    def attribute(self, node: ast.Attribute, at: Frame) -> Any:
        """Return what an attribute holds: a section is shared, as it is in Python."""
        if isinstance(node.value, ast.Name) and node.value.id not in at.values and is_enum(node.value.id):
            return f"{node.value.id}.{node.attr}"
        holder = self.value(node.value, at)
        if not isinstance(holder, dict):
            return hole(dotted(node))
        return (
            holder if node.attr == "__dict__" else holder.get(node.attr, holder.get(OPEN, hole(dotted(node))))
        )

    def _call(self, node: ast.Call, at: Frame) -> Any:
        """Read a call: what changes or copies sections, nested functions, then whatever the kind of file knows."""
        arguments = [self.value(argument, at) for argument in node.args]
        named = {key.arg: self.value(key.value, at) for key in node.keywords if key.arg}
        whole = True
        for key in node.keywords:
            unpacked = {} if key.arg else self.value(key.value, at)
            known = isinstance(unpacked, dict) and not is_open(unpacked)
            named |= unpacked if known else {}
            whole &= known
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        first = arguments[0] if arguments else None
        if name == "setattr" and len(node.args) == 3 and isinstance(first, dict):
            target = ast.copy_location(ast.Subscript(node.args[0], node.args[1], ast.Store()), node)
            return self.assign(target, arguments[2], at)
        if name == "vars" and isinstance(first, dict):
            return first
        if name in ("deepcopy", "copy", "replace") and isinstance(first, dict):
            self.count(size(first, self.file))
            return deepcopy(first) | named
        if isinstance(node.func, ast.Attribute) and name in ALTERS:
            holder = self.value(node.func.value, at)
            if isinstance(holder, dict) and name == "update":
                return self._update(holder, [*arguments, named], f"line {node.lineno}", whole)
            if (made := altered(holder, name, arguments, f"line {node.lineno}")) is not None:
                return made
        own = at.values.get(name)
        if isinstance(own, Nested) and isinstance(node.func, ast.Name):
            return self.call(at.file, own.node, bound(own.node, arguments) | named, at.depth + 1, own.values)
        made = applied(name, arguments) if isinstance(node.func, ast.Name) and not named else None
        if made is not None:
            return made
        call = Call(node=node, name=name, arguments=arguments, named=named, whole=whole, at=at)
        return self.called_value(call)

    def _update(self, holder: Values, parts: list[Any], why: str, whole: bool) -> None:
        if not whole or not all(isinstance(part, dict) for part in parts):
            open_all(holder, why)
        for part in parts:
            holder |= part if isinstance(part, dict) else {}

    def called_value(self, call: Call) -> Any:
        """Return what another call makes."""
        return hole(f"{call.name}(...)")
