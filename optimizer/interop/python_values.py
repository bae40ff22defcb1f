"""Values of Python configurations that are read and not run: constants, and what nobody knows without running them.

A value that is not known is a hole (``shell.values.hole``). A section of which any key may have been set by what is not
followed says so under ``OPEN``.
"""

from __future__ import annotations

import ast
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.interop.shell.values import has_hole, hole
from layoutopt.optimizer.specs.errors import input_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

OPEN = "\ue000"
"""Key of a section under which the hole stands that any of its unstated keys may have; no name of a file is equal to it."""

MAKER = ("class", "base", "family", "_target_")
"""Keys that say what a section is, not what it sets."""

LARGEST_NUMBER, LARGEST_EXPONENT = 10**15, 64
MAX_DEPTH, MAX_VALUES = 40, 20_000
"""Calls or sections within one another, and values of a configuration: recipes stay far below."""

ALTERS = ("update", "get", "pop", "setdefault", "clear", "insert", "remove", "sort", "reverse")
"""Methods of lists and sections that are followed, or leave open what they change."""

_QUIET = (
    "hasattr", "getattr", "isinstance", "len", "print", "max", "min", "str", "repr", "id", "type", "dict",
)  # fmt: skip
_LOGGERS = ("logger", "logging", "warnings", "log")
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Mult: operator.mul, ast.Add: operator.add, ast.Sub: operator.sub, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow, ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
}  # fmt: skip
_ORDERS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip
_PURE: dict[str, Callable[..., Any]] = {"max": max, "min": min, "int": int, "float": float, "abs": abs}


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonFile:
    """Functions of a file, what it imports (module and name there) and the values of its own names."""

    functions: dict[str, ast.FunctionDef]
    imports: dict[str, tuple[str, str]]
    constants: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Nested:
    """A function that another one defines, with that one's names."""

    node: ast.FunctionDef
    values: dict[str, Any]

    def __deepcopy__(self, memo: dict[int, Any]) -> Nested:
        return self


class Returned(Exception):
    """A function's value on its way up."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


def is_open(value: Any) -> bool:
    """Tell whether a value, or an item of a list, is not known; what an unknown function makes is not, either."""
    if isinstance(value, list):
        return any(map(is_open, value))
    if isinstance(value, dict):
        return "base" in value and "class" not in value
    return isinstance(value, str) and has_hole(value)


def arithmetic(sign: ast.operator, left: Any, right: Any) -> Any:
    """Return the value of an operation on two known numbers, a hole for any other and for numbers beyond 10^15."""
    apply = _ARITHMETIC.get(type(sign))
    numbers = all(type(side) in (int, float) and abs(side) <= LARGEST_NUMBER for side in (left, right))
    grows = isinstance(sign, ast.Pow | ast.LShift | ast.RShift)
    steep = grows and numbers and not 0 <= right <= LARGEST_EXPONENT  # 9**9**9 would fill the memory
    if apply is None or not numbers or steep:
        return hole("expression")
    try:
        made = apply(left, right)
        return made if abs(made) <= LARGEST_NUMBER else hole("expression")
    except (ArithmeticError, TypeError):
        return hole("expression")


def applied(name: str, arguments: list[Any]) -> Any:
    """Return what a built-in function makes of known values, None for every other."""
    if name == "len" and len(arguments) == 1 and isinstance(arguments[0], list) and not is_open(arguments):
        return len(arguments[0])
    if name in _PURE and arguments and all(type(one) in (int, float, str) for one in arguments):
        try:
            return None if any(map(is_open, arguments)) else _PURE[name](*arguments)
        except (TypeError, ValueError, ArithmeticError):
            return None
    return None


def item(holder: Any, key: Any) -> Any:
    """Return an item of a known list or section, a hole where there is none."""
    if isinstance(holder, list) and type(key) is int and -len(holder) <= key < len(holder):
        return holder[key]
    if isinstance(holder, dict) and isinstance(key, str) and key in holder:
        return holder[key]
    return hole("expression")


def altered(holder: Any, name: str, arguments: list[Any], why: str) -> Any:
    """Follow a method of a list or section; None where it is another's, or makes nothing that is known."""
    key = arguments[0] if arguments else None
    # What a method makes of a list is not followed: its length and its items are what nobody knows from here on.
    if isinstance(holder, list):
        holder[:] = [hole(why)]
    elif isinstance(holder, dict) and isinstance(key, str) and not is_open(key):
        absent = holder.get(OPEN, arguments[1] if arguments[1:] else None)
        if name == "setdefault":
            return holder.setdefault(key, absent)
        return holder.pop(key, absent) if name == "pop" else holder.get(key, absent)
    elif isinstance(holder, dict) and name != "get":
        open_all(holder, why)
    return None


def compared(sign: ast.cmpop, left: Any, right: Any) -> bool | None:
    """Return the outcome of a comparison of known values, None where it is not decided."""
    if isinstance(
        sign, ast.Eq | ast.Is
    ):  # "is" is written of None, true and false, which are equal only to themselves
        return bool(left == right)
    if isinstance(sign, ast.NotEq | ast.IsNot):
        return bool(left != right)
    if type(sign) in _ORDERS and all(type(side) in (int, float) for side in (left, right)):
        return _ORDERS[type(sign)](left, right)
    textual = isinstance(left, str) and isinstance(right, list | dict | str)
    if isinstance(sign, ast.In | ast.NotIn) and (textual or isinstance(right, list)):
        return (left in right) == isinstance(sign, ast.In)
    return None


def inside(node: ast.AST) -> Iterator[ast.AST]:
    """Walk a statement without the bodies of functions and classes that it only defines."""
    waiting: list[ast.AST] = [node]
    while waiting:
        one = waiting.pop(0)
        yield one
        if not isinstance(one, ast.FunctionDef | ast.Lambda | ast.ClassDef):
            waiting += ast.iter_child_nodes(one)


def targets(node: ast.AST) -> list[ast.expr]:
    """Return what one statement or expression sets, by itself."""
    if isinstance(node, ast.Assign | ast.Delete):
        return node.targets
    if isinstance(node, ast.AugAssign | ast.AnnAssign | ast.NamedExpr | ast.For):
        return [node.target]
    if isinstance(node, ast.withitem):
        return [node.optional_vars] if node.optional_vars else []
    return []


def open_all(made: dict[str, Any], why: str, seen: set[int] | None = None) -> None:
    """Leave every setting of a section open, those that it does not state too."""
    # Sections may hold each other: what was met is not gone through again.
    seen = set() if seen is None else seen
    if id(made) in seen:
        return
    seen.add(id(made))
    for key, value in made.items():
        if isinstance(value, dict):
            open_all(value, why, seen)
        elif key not in MAKER:
            made[key] = hole(why)
    made[OPEN] = hole(why)


def open_changes(
    before: dict[str, Any], after: dict[str, Any], why: str, seen: set[int] | None = None
) -> None:
    """Leave open, in ``before``, what ``after``, a changed copy of it, has otherwise."""
    seen = set() if seen is None else seen
    if after and id(after) in seen:
        return
    seen.add(id(after))
    for key, value in after.items():
        old = before.setdefault(key, {} if isinstance(value, dict) else hole(why))
        if isinstance(value, dict) and isinstance(old, dict):
            open_changes(old, value, why, seen)
        elif old != value:
            before[key] = value if key in MAKER else hole(why)
    # What the copy has lost was deleted, or replaced by a value of another kind.
    for key in before.keys() - after.keys():
        if isinstance(before[key], dict):
            open_changes(before[key], {}, why, seen)
        elif key not in MAKER:
            before[key] = hole(why)


def bound(node: ast.FunctionDef, arguments: list[Any]) -> dict[str, Any]:
    """Return the names of a function's arguments with what a call gives in their places."""
    places = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)]
    return dict(zip(places, arguments, strict=False))


def may_change(node: ast.Call) -> bool:
    """Tell a function that may change what it is given from one that only looks at it."""
    first = dotted(node.func).split(".")[0]
    return first not in _QUIET and first not in _LOGGERS


def dotted(node: ast.expr) -> str:
    """Return a dotted name as it is written, ``?`` for what is none."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    parts.append(node.id if isinstance(node, ast.Name) else "?")
    return ".".join(reversed(parts))


def size(made: Any, file: str) -> int:
    """Count the values of nested sections and lists; raises ``InputError`` where they unfold without end."""
    waiting, count = [(made, 0)], 0
    while waiting:
        value, depth = waiting.pop()
        count += 1
        if count > MAX_VALUES or depth > MAX_DEPTH:
            raise input_error("the recipe unfolds without end", f"up to {MAX_VALUES:,} values", file=file)
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        waiting += [(one, depth + 1) for one in inner]
    return count


def is_enum(name: str) -> bool:
    """Tell whether a name that the file does not set is a class, whose attributes are its constants."""
    return name == "torch" or name[:1].isupper()
