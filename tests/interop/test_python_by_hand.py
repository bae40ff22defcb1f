"""What Python configurations compute is what Python itself makes of them; what is not known there is open."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from layoutopt.optimizer.interop.python_values import (
    altered,
    applied,
    arithmetic,
    compared,
    is_open,
    item,
    open_all,
    open_changes,
    size,
)
from layoutopt.optimizer.interop.torchtitan.read_python import read_python_config
from layoutopt.optimizer.specs.errors import InputError

CONFIGURATION = """
A, (B, C) = 2, [3, 4]
TABLE = {"small": 1, "large": {"tp": 8}}
NAMES: list = ["x", "y", "z"]
COUNT = 0
COUNT += 5
COUNT -= 1
COUNT *= 3


class Sizes:
    layers = 4
    hidden: int = layers * 8


def twice(n, by=2, *, plus=0, **more):
    if n > 100:
        return 100
    return n * by + plus


def fill(section, key, value):
    section[key] = value


def base():
    return Trainer.Config(parallelism=Parallelism(a=1, b=2, c=3), training=Training(x=1))


def config():
    cfg = base()
    p = cfg.parallelism
    p.sums = A + B * 2 - 7 // 2 + 7 % 4 + 2**5 + (1 << 4) - (64 >> 2)
    p.negative = -A
    p.part = 7 / 2
    p.equal, p.other = A == 2, A != 2
    p.less, p.least, p.more, p.most = A < 2, A <= 2, A > 1, A >= 3
    p.both, p.either, p.neither = A == 2 and B == 3, A == 3 or B == 3, not (A == 2)
    p.inside, p.outside = "x" in NAMES, "x" not in NAMES
    p.same, p.differs = A is None, A is not None
    p.chosen = 5 if A == 2 else 6
    p.other_choice = 5 if A == 3 else 6
    p.item, p.last, p.key = NAMES[1], NAMES[-1], TABLE["large"]["tp"]
    p.count, p.most_of, p.least_of = len(NAMES), max(1, 7, 3), min(4, 2)
    p.whole, p.size = int(3.9), abs(-4)
    p.called, p.named = twice(4), twice(4, by=3, plus=1)
    p.early, p.module = twice(200), COUNT
    p.layers, p.hidden = Sizes.layers, Sizes.hidden
    fill(p, "filled", 9)
    setattr(p, "set", 10)
    p["subscript"] = 11
    p.counted = 1
    p.counted += 4
    p.counted *= 2
    if A == 2 and not B == 4:
        p.branch = "then"
    elif A == 3:
        p.branch = "elif"
    else:
        p.branch = "else"
    p.total = 0
    for n in range(1, 8, 3):
        p.total += n
    for n in range(3):
        p.total += n
    for name in NAMES:
        p[name] = len(NAMES)
    for key, value in {"k1": 1, "k2": 2}.items():
        p[key] = value
    for key in TABLE.keys():
        p["of_" + key if False else "of_table"] = 1
    for value in {"v": 41}.values():
        p.value = value + 1
    match A:
        case 1 | 3:
            p.matched = "odd"
        case 2:
            p.matched = "two"
        case _:
            p.matched = "rest"
    p.update({"updated": 12}, )
    p.update(again=13)
    p.popped = p.pop("a")
    p.got, p.default = p.get("b"), p.get("zz", 14)
    p.setdefault("b", 99)
    p.setdefault("fresh", 15)
    own = replace(cfg.training, y=2)
    cfg.training = own
    def inner(n):
        return n + A
    p.closure = inner(1)
    if (walrus := A + 1) == 3:
        p.walrus = walrus
    return cfg
"""


class _Section(dict[str, Any]):
    """A section as both sides see it: attributes are keys."""

    def __getattr__(self, name: str) -> Any:
        return self[name]

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value


def test_configurations_are_what_python_makes_of_them() -> None:
    """Operators, comparisons, branches, loops, matches, helpers, and what changes sections."""
    sections, name = read_python_config(CONFIGURATION, "f", "config")

    def replaced(section: _Section, **changes: Any) -> _Section:
        return _Section(section | changes)

    class Trainer:
        Config = _Section

    names: dict[str, Any] = {
        "Trainer": Trainer, "Parallelism": _Section, "Training": _Section, "replace": replaced,
        "setattr": lambda section, key, value: section.__setitem__(key, value),
    }  # fmt: skip
    exec(CONFIGURATION, names)
    made = names["config"]()
    assert name == "config"
    for section in ("parallelism", "training"):
        found = {key: value for key, value in sections[section].items() if key not in ("class", "arguments")}
        assert found == made[section]


OPEN = [
    "p.x = unknown", "p.x = unknown(1)", "p.x = 10**20", "p.x = 1 / 0", "p.x = 2**65", "p.x = [1][3]", "p.x = 'a' + 'b'",
    "for n in unknown:\n        p.x = n", "if unknown:\n        p.x = 2", "for n in range(2000):\n        p.x = n",
    "while True:\n        p.x = 3", "p.x = 1 < 2 < 3", "p.x = -'a'", "p.x = 1 if unknown else 2",
    "with unknown:\n        p.x = 4",
    "match unknown:\n        case 1:\n            p.x = 5", "p.x += unknown", "setattr(p, unknown, 3)", "p.x = {unknown: 1}",
    "try:\n        p.x = 6\n    except E:\n        p.x = 7", "for n in [1]:\n        p.x = n\n        break",
    "p.x, y = unknown",
    "p.update(unknown)", "p.x = range(1, 2, 0)", "p[unknown] = 3",
]  # fmt: skip


@pytest.mark.parametrize("statement", OPEN)
def test_what_is_not_decided_in_the_file_is_open(statement: str) -> None:
    """Never the value from before, never a guess."""
    text = f"def config():\n    p = Parallelism(x=1)\n    {statement}\n    return Trainer.Config(parallelism=p)\n"
    sections, _ = read_python_config(text, "f")
    assert is_open(sections["parallelism"]["x"]), sections


@pytest.mark.parametrize("sign", ["+", "-", "*", "/", "//", "%", "**", "<<", ">>"])
@pytest.mark.parametrize(
    ("left", "right"), [(7, 2), (7, 0), (2, 64), (2, 65), (-3, 2), (10**15, 1), (10**15 + 1, 1), (1, 1.5)]
)
def test_numbers_are_computed_up_to_a_limit(sign: str, left: float, right: float) -> None:
    """As Python does; divisions by nothing, large numbers and steep powers are open."""
    node = ast.parse(f"a {sign} b", mode="eval").body
    assert isinstance(node, ast.BinOp)
    found = arithmetic(node.op, left, right)
    steep = sign in ("**", "<<", ">>") and not 0 <= right <= 64
    try:
        made: Any = None if steep or abs(left) > 10**15 else eval(f"a {sign} b", {"a": left, "b": right})
    except (ArithmeticError, TypeError):
        made = None
    if made is None or abs(made) > 10**15:
        assert is_open(found)
    else:
        assert found == made and type(found) is type(made)


@pytest.mark.parametrize("sign", ["==", "!=", "<", "<=", ">", ">=", "in", "not in", "is", "is not"])
@pytest.mark.parametrize(
    ("left", "right"),
    [(1, 2), (2, 2), (3, 2), ("a", "ab"), ("a", ["b"]), (1, [1]), ("a", {"a": 1}), (None, None)],
)
def test_comparisons_are_decided_where_python_would(sign: str, left: Any, right: Any) -> None:
    """Numbers are ordered, texts and lists hold members; others are not decided."""
    node = ast.parse(f"a {sign} b", mode="eval").body
    assert isinstance(node, ast.Compare)
    found = compared(node.ops[0], left, right)
    ordered = sign in ("<", "<=", ">", ">=") and not (isinstance(left, int) and isinstance(right, int))
    member = sign in ("in", "not in") and not isinstance(right, list | dict | str)
    if ordered or member:
        assert found is None
    else:
        word = {"is": "==", "is not": "!="}.get(sign, sign)
        assert found is eval(f"a {word} b", {"a": left, "b": right})


def test_methods_of_sections_and_lists() -> None:
    """What they give back and leave behind; a list that is changed is open."""
    section: dict[str, Any] = {"a": 1}
    assert altered(section, "get", ["a"], "w") == 1 and altered(section, "get", ["b", 2], "w") == 2
    assert altered(section, "setdefault", ["b", 3], "w") == 3 and section["b"] == 3
    assert altered(section, "pop", ["b"], "w") == 3 and "b" not in section
    assert altered(section, "pop", ["b", 4], "w") == 4
    assert altered(section, "clear", [], "w") is None and is_open(section["a"])
    values = [1, 2]
    assert altered(values, "sort", [], "w") is None and is_open(values)
    assert altered("text", "get", ["a"], "w") is None


def test_functions_that_only_compute() -> None:
    """Of known values; None for every other."""
    asked: list[tuple[str, list[Any], Any]] = [
        ("len", [[1, 2]], 2), ("len", [[]], 0), ("len", ["ab"], None), ("max", [1, 3, 2], 3), ("min", [1, 3], 1),
        ("int", ["7"], 7), ("int", ["x"], None), ("float", [1], 1.0), ("abs", [-2], 2), ("max", [], None),
        ("sum", [1], None),
    ]  # fmt: skip
    for name, arguments, made in asked:
        assert applied(name, arguments) == made
    assert item([1, 2], -2) == 1 and item([1, 2], 1) == 2 and item({"a": 3}, "a") == 3
    assert all(map(is_open, (item([1, 2], 2), item([1, 2], -3), item({"a": 3}, "b"), item(1, 0))))


def test_sections_are_left_open_as_far_as_they_may_change() -> None:
    """All of one, or what a changed copy has otherwise; what a section is stays."""
    whole: dict[str, Any] = {"a": 1, "class": "C", "inner": {"b": 2}}
    open_all(whole, "line 3")
    assert is_open(whole["a"]) and is_open(whole["inner"]["b"]) and whole["class"] == "C"
    before: dict[str, Any] = {"a": 1, "b": 2, "inner": {"c": 3, "d": 4}, "gone": 5}
    open_changes(before, {"a": 1, "b": 9, "inner": {"c": 3, "d": 8}, "new": 1}, "line 4")
    assert (before["a"], before["inner"]["c"]) == (1, 3)
    assert all(map(is_open, (before["b"], before["inner"]["d"], before["gone"], before["new"])))


def test_values_are_counted_up_to_a_limit() -> None:
    """Every section, list and value counts one; forty within one another at most."""
    assert size({"a": [1, 2], "b": 3}, "f") == 5
    deep: Any = 1
    for _ in range(40):
        deep = [deep]
    assert size(deep, "f") == 41
    for bad in ([deep], [0] * 20_000):
        with pytest.raises(InputError, match="f: the recipe unfolds without end"):
            size(bad, "f")
    assert size([0] * 19_999, "f") == 20_000
