"""What a docstring owes its reader: shapes of arrays, what is raised, a line for inner functions. Comments give reasons."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
FILES = [ROOT / "cli.py", *sorted((ROOT / "optimizer").rglob("*.py"))]
ARRAYS = {"FloatArray", "IntArray", "BoolArray", "NDArray", "ndarray", "ArrayLike"}
SHAPE = re.compile(r"\bshapes?\b|\((?:\.\.\.|[\w+* ]+),(?: [\w+* .]+,?)*\)|\(\)")
"""``(n,)``, ``(n, K)``, ``()`` or the word."""

INNER_LINES = 3
"""An inner function longer than that says in a line what it is for."""

Named = tuple[ast.FunctionDef, str]


def functions(tree: ast.Module) -> Iterator[Named]:
    """Yield public functions and public methods of public classes with their names."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            yield node, node.name
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef) and not inner.name.startswith("_"):
                    yield inner, f"{node.name}.{inner.name}"


def own(function: ast.FunctionDef) -> Iterator[ast.AST]:
    """Yield the nodes of a function, inner functions and classes without what is in them."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Lambda):
            waiting += ast.iter_child_nodes(node)


def has_arrays(function: ast.FunctionDef) -> bool:
    """Tell whether an annotation of a parameter or of the result names a numpy array."""
    given = function.args
    listed = [one.annotation for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    named = (node for one in (*listed, function.returns) if one for node in ast.walk(one))
    return any(
        (isinstance(node, ast.Name) and node.id in ARRAYS)
        or (isinstance(node, ast.Attribute) and node.attr in ARRAYS)
        for node in named
    )


def is_command(function: ast.FunctionDef) -> bool:
    """Tell a command of the command line: its docstring is its help, for users."""
    return any(
        "click" in ast.unparse(one) or ".command" in ast.unparse(one) for one in function.decorator_list
    )


def raises(function: ast.FunctionDef) -> bool:
    """Tell whether a function raises something of its own."""
    return any(isinstance(node, ast.Raise) and node.exc is not None for node in own(function))


def faults(text: str, name: str) -> list[str]:
    """List what the docstrings of a module owe."""
    tree, found = ast.parse(text), list[str]()
    for function, called in functions(tree):
        doc = ast.get_docstring(function) or ""
        if has_arrays(function) and not SHAPE.search(doc):
            found.append(f"{name}:{function.lineno} {called} gives no shape")
        if raises(function) and not is_command(function) and not re.search(r"\b[Rr]aises?\b", doc):
            found.append(f"{name}:{function.lineno} {called} does not say what it raises")
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        found += [
            f"{name}:{inner.lineno} {inner.name}, an inner function, has no docstring"
            for inner in own(function)
            if isinstance(inner, ast.FunctionDef)
            and not ast.get_docstring(inner)
            and _lines(inner) > INNER_LINES
        ]
    return found


def _lines(function: ast.FunctionDef) -> int:
    return (function.end_lineno or 0) - function.body[0].lineno + 1


def test_public_docstrings_give_shapes_and_what_is_raised() -> None:
    """Array functions give shapes, those that raise say what, inner functions of several lines say what they are for."""
    found = [
        fault for file in FILES for fault in faults(file.read_text("utf-8"), str(file.relative_to(ROOT)))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('def f(a: FloatArray) -> int:\n    """Sum."""\n', "gives no shape"),
        ('def f(a: int) -> "NDArray":\n    """Sum."""\n', None),  # quoted: not how this package annotates
        ('def f(a: FloatArray) -> int:\n    """Sum ``a`` (n,)."""\n', None),
        ('class C:\n    def f(self) -> NDArray[Any]:\n        """Rows."""\n', "C.f gives no shape"),
        ('def f() -> None:\n    """Do."""\n    raise ValueError(1)\n', "does not say what it raises"),
        ('def f() -> None:\n    """Do. Raises ``ValueError``."""\n    raise ValueError(1)\n', None),
        (
            'def f() -> None:\n    """Do."""\n    try:\n        g()\n    except OSError:\n        raise\n',
            None,
        ),
        ('@click.command()\ndef f() -> None:\n    """Do."""\n    raise ValueError(1)\n', None),
        (
            "def _f():\n    def g():\n        a = 1\n        b = 2\n        c = 3\n        d = 4\n",
            "g, an inner",
        ),
        ("def _f():\n    def g():\n        return 1\n", None),
    ],
)
def test_the_rule_finds_what_is_owed(text: str, said: str | None) -> None:
    """Each kind of debt is found, and nothing else is."""
    found = faults(text, "m.py")
    assert len(found) == (said is not None)
    assert said is None or said in found[0]
