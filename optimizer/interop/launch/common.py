"""What the importers of launch files share: patterns, precisions, and the finished layout."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.interop.reading import MAX_LAYERS, Fields, shorten
from layoutopt.optimizer.specs.errors import input_error
from layoutopt.optimizer.specs.layout import Recompute
from layoutopt.optimizer.specs.vocabulary import (
    RECOMPUTE_MODULES,
    Fp8Recipe,
    Granularity,
    Precision,
    Schedule,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

FP8_RECIPES = {
    word: recipe for framework in Framework for recipe, word in framework.record.fp8_recipes.items()
}
"""Recipes by the frameworks' words for them."""


def per_layer_pattern(value: Any, layers: int, *, key: str) -> list[bool]:
    """Read Megatron-LM's per-layer frequency: N (every Nth layer) or a list expression like
    ``([0]*3+[1]*58)``.

    The expression may only add and repeat lists of whole numbers. For N, layer i is marked when ``i % N ==
    0``. Raises ``InputError`` for other expressions and lists of another length.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        if not 1 <= value <= MAX_LAYERS:
            raise input_error(f"{value} is out of range", f"1 to {MAX_LAYERS}", key=key)
        return [index % value == 0 for index in range(layers)]
    marks = value if isinstance(value, list) else _pattern(str(value), key)
    if len(marks) != layers:
        raise input_error(f"{len(marks)} entries for {layers} layers", "one entry per layer", key=key)
    return [bool(mark) for mark in marks]


def _pattern(text: str, key: str) -> list[int]:
    # Megatron-LM evaluates such a text (_eval_pattern of training/arguments.py); nothing of a user's file is run here.
    try:
        marks = _fold_lists(ast.parse(text.strip().strip("'\""), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise input_error(f"cannot read pattern {shorten(text)!r}", "like ([0]*3+[1]*58)", key=key) from None
    if not isinstance(marks, list):
        raise input_error(f"pattern {shorten(text)!r} is not a list", "like ([0]*3+[1]*58)", key=key)
    return marks


def _fold_lists(node: ast.expr) -> list[int] | int:
    if isinstance(node, ast.Constant) and type(node.value) is int and 0 <= node.value <= MAX_LAYERS:
        return node.value
    if isinstance(node, ast.List | ast.Tuple):
        return [item for item in map(_fold_lists, node.elts) if isinstance(item, int)]
    if not isinstance(node, ast.BinOp):
        raise ValueError("not a list")
    left, right = _fold_lists(node.left), _fold_lists(node.right)
    if isinstance(node.op, ast.Add) and isinstance(left, list) and isinstance(right, list):
        return left + right
    if isinstance(node.op, ast.Mult) and isinstance(left, list) != isinstance(right, list):
        # Counted before it is written out: ``[1]*10**9`` is a short text.
        items, times = (left, right) if isinstance(left, list) else (right, left)
        if isinstance(items, list) and isinstance(times, int) and len(items) * times <= MAX_LAYERS:
            return items * times
    raise ValueError("not a list")


def selective(modules: Sequence[str], *, key: str) -> Recompute:
    """Build selective recomputation from module names. Raises ``InputError`` for an unknown one."""
    for module in modules:
        if module not in RECOMPUTE_MODULES:
            what = f"recompute module {shorten(module)!r} is not modelled"
            raise input_error(what, "of " + ", ".join(RECOMPUTE_MODULES), key=key)
    return Recompute(granularity=Granularity.SELECTIVE, modules=tuple(sorted(set(modules))))


def megatron_precision(
    fields: Fields, *, fp8_key: str, fp4_key: str
) -> tuple[Precision | None, Fp8Recipe | None]:
    """Read Megatron's precision switches; bf16 and fp16 exclude each other, as do fp8 and fp4.

    Raises ``InputError`` for both, and for unknown recipes.
    """
    fp8, fp4 = (None if fields.raw(key) is False else fields.text(key) for key in (fp8_key, fp4_key))
    # They come on top of bf16: while one is open, bf16 alone would be a wrong answer.
    if {fp8_key, fp4_key} & fields.left_open.keys():
        return None, None
    if fields.on("bf16") and fields.on("fp16"):
        raise fields.fail("fp16", "bf16 and fp16 exclude each other")
    if fp8 and fp4:
        raise fields.fail(fp4_key, "fp8 and fp4 exclude each other")
    if fp4:
        return Precision.NVFP4, None
    if fp8:
        name = fields.text("fp8_recipe") or "delayed"  # Megatron-LM's own default
        recipe = FP8_RECIPES.get(name)
        if recipe is None:
            known = "one of " + ", ".join(FP8_RECIPES)
            raise fields.fail("fp8_recipe", f"{shorten(name)!r} is not known", known)
        return (Precision.MXFP8 if recipe is Fp8Recipe.MX else Precision.FP8), recipe
    if fields.on("fp16"):
        return Precision.FP16, None
    return (Precision.BF16 if fields.on("bf16") else None), None


def looped_schedule(pp: int, vp: int) -> Schedule:
    """Return the schedule Megatron-LM runs: none, 1F1B, or interleaved."""
    if pp == 1:
        return Schedule.NONE
    return Schedule.INTERLEAVED if vp > 1 else Schedule.ONE_F_ONE_B


def divided(total: int, by: int, what: str) -> int:
    """Divide exactly. Raises ``InputError`` saying which product does not divide."""
    if by < 1 or total % by:
        raise input_error(f"{what}: {total} is not a multiple of {by}")
    return total // by
