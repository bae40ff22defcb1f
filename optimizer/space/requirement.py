"""Requirements of one's own: text such as ``tp*cp <= 8`` or ``layers[0] <= 5``, read without ever running it."""

from __future__ import annotations

import ast
import operator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from layoutopt.optimizer.cost.batch import CODES, DEGREES
from layoutopt.optimizer.cost.quantities import BY_NAME
from layoutopt.optimizer.cost.run_facts import footprint_of
from layoutopt.optimizer.space.expression import Atom, Comparison, Expression, Part, literal
from layoutopt.optimizer.space.rows import row_of
from layoutopt.optimizer.space.rule import BrokenRule, Rule
from layoutopt.optimizer.specs.errors import InputError, input_error
from layoutopt.optimizer.specs.layout import Layout
from layoutopt.optimizer.specs.layout_file import SHORT_KEYS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from layoutopt.optimizer.cost.batch import LayoutBatch
    from layoutopt.optimizer.cost.quantities import Facts
    from layoutopt.optimizer.cost.run_facts import Footprint
    from layoutopt.optimizer.cost.terms import FloatArray
    from layoutopt.optimizer.space.context import Context
    from layoutopt.optimizer.space.rule import BoolArray, Factors

AXES = (*DEGREES, "sp", "zero", "hsdp_shard")
NAMED = ("recompute", "mesh_order", "schedule", "precision", "savers")
STAGES = (Part.LAYERS.value, Part.RECOMPUTED.value)
NAMES = (*AXES, *BY_NAME, *STAGES)
GPU_AXES = ("tp", "cp", "pp", "dp")
MOST_TEXT, MOST_NUMBER = 300, 1e15
EXAMPLES = "tp*cp <= 8, layers[0] <= 5 or peak_gb <= 70"

_ARITHMETIC: dict[type[ast.operator], Callable[[Expression, Expression], Expression]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Div: operator.truediv,
}  # fmt: skip
_COMPARISONS: dict[type[ast.cmpop], Callable[[Expression, Expression], Comparison]] = {
    ast.LtE: operator.le, ast.Lt: operator.lt, ast.GtE: operator.ge, ast.Gt: operator.gt,
    ast.Eq: operator.eq, ast.NotEq: operator.ne,
}  # fmt: skip


class NotKnownYet(LookupError):
    """An axis that these rows have not chosen yet."""


@dataclass(frozen=True, slots=True)
class OfRanks:
    """``layers[0]``: layers of a pipeline rank, all its chunks together; ``layers[-1]`` is the last rank. 0 beyond pp."""

    part: Part

    def __getitem__(self, rank: int) -> Expression:
        return Expression(literal(0.0), {Atom(self.part, rank): literal(1.0)})


class RequirementView:
    """``n`` layouts as numbers: ``view.tp``, ``view.gpus``, ``view.layers[0]``, ``view.peak_gb``, ...

    Every axis is an attribute (``recompute``, ``order``, ``schedule`` and ``precision`` as positions in ``codebook``), as is
    every quantity that requirements may name. ``exact`` False: the rows' modifiers are not chosen yet.
    """

    def __init__(self, batch: LayoutBatch, facts: Facts, *, exact: bool = True) -> None:
        self._batch, self._facts, self._exact = batch, facts, exact
        self.codebook = batch.codebook
        self.layers, self.recomputed = OfRanks(Part.LAYERS), OfRanks(Part.RECOMPUTED)

    def __getattr__(self, name: str) -> Expression:
        if name in BY_NAME:
            return self._quantity(name)
        if name not in DEGREES + CODES:
            raise AttributeError(f"layouts have no {name!r}: {', '.join((*NAMES, *CODES))}")
        # Sequence parallelism follows from the degrees; every other modifier is chosen later.
        if not self._exact and name in CODES and name != "sp":
            raise NotKnownYet(name)
        return Expression(getattr(self._batch, name).astype(np.float64))

    def _quantity(self, name: str) -> Expression:
        found = BY_NAME[name].of(self._facts, footprint_of(self._batch, exact=self._exact))
        slopes = {Atom(Part.STEP_S): found.per_second, Atom(Part.PEAK_BYTES): found.per_byte}
        terms = {atom: np.asarray(slope, float) for atom, slope in slopes.items() if np.any(slope)}
        return Expression(np.asarray(found.constant, float), terms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """One requirement. ``names`` are the axes and quantities that it reads; ``of_stages``: axes alone don't decide it."""

    text: str
    tree: ast.Compare
    names: frozenset[str]

    @property
    def of_stages(self) -> bool:
        """Whether something that only a layout's stages decide is in it."""
        return any(comparison.difference.terms for comparison in self.comparisons(_any_layout()))

    @property
    def ranks(self) -> frozenset[int]:
        """The pipeline ranks whose layers it counts, negative ones from the last."""
        compared = self.comparisons(_any_layout())
        atoms = {atom for one in compared for atom in one.difference.terms}
        return frozenset(atom.rank for atom in atoms if atom.part.value in STAGES)

    @property
    def columns(self) -> frozenset[str]:
        """The columns of a batch that it reads."""
        # Quantities rest on the GPUs in use, whatever else they name.
        counted = frozenset(GPU_AXES) if self.names - set(AXES) else frozenset[str]()
        return (self.names & set(AXES)) | counted

    def comparisons(self, view: RequirementView) -> list[Comparison]:
        """Compare neighbouring sides for the layouts of a view. Raises ``NotKnownYet`` where it lacks an axis.

        Raises ``InputError``, naming the requirement, for arithmetic that its sides do not have.
        """
        sides = [self._value(side, view) for side in (self.tree.left, *self.tree.comparators)]
        try:
            return [
                _COMPARISONS[type(relation)](sides[i], sides[i + 1])
                for i, relation in enumerate(self.tree.ops)
            ]
        except InputError as error:
            raise self._named(error) from None

    def holds(self, view: RequirementView, of: Callable[[Atom], FloatArray]) -> BoolArray:
        """Tell which layouts (n,) meet it, where ``of`` gives what stages decide."""
        # Two constants side by side give one value for all layouts.
        met = np.broadcast_arrays(*(comparison.holds(of) for comparison in self.comparisons(view)))
        result: BoolArray = np.logical_and.reduce(met)
        return result

    def explain(self, view: RequirementView, of: Callable[[Atom], FloatArray]) -> str:
        """Say what the sides are for the first layout of a view, ``of`` giving (n,) or () for what stages decide."""
        sides = [self._value(side, view).value(of) for side in (self.tree.left, *self.tree.comparators)]
        values = [f"{float(np.ravel(side)[0]):.6g}" for side in sides]
        signs = [_sign(relation) for relation in self.tree.ops]
        line = " ".join(part for pair in zip(values, [*signs, ""], strict=True) for part in pair if part)
        return f"{line} does not hold"

    def _named(self, error: InputError) -> InputError:
        (problem, *_) = error.problems
        if problem.key != "require":
            return error
        return input_error(f"{_shown(self.text)} {problem.what}", problem.allowed, key=problem.key)

    def _value(self, node: ast.expr, view: RequirementView) -> Expression:
        try:
            return _evaluate(node, view)
        except InputError as error:
            raise self._named(error) from None


def _evaluate(node: ast.expr, view: RequirementView) -> Expression:
    """Evaluate a checked tree."""
    if isinstance(node, ast.Constant):
        assert isinstance(node.value, int | float)
        return Expression(literal(node.value))
    if isinstance(node, ast.Name):
        value: Expression = getattr(view, _name(node))
        return value
    if isinstance(node, ast.Subscript):
        assert isinstance(node.value, ast.Name)
        return OfRanks(Part(_name(node.value)))[_rank(node.slice)]
    if isinstance(node, ast.UnaryOp):
        inner = _evaluate(node.operand, view)
        return -inner if isinstance(node.op, ast.USub) else inner
    assert isinstance(node, ast.BinOp)
    return _ARITHMETIC[type(node.op)](_evaluate(node.left, view), _evaluate(node.right, view))


def parse_requirement(text: str) -> Requirement:
    """Read one requirement; raises InputError with what is wrong, where, and what would be valid."""
    # Signs that people type; Python reads their plain spellings alone.
    words = text.strip().replace("≤", "<=").replace("≥", ">=").replace("≠", "!=")
    if not words or len(words) > MOST_TEXT:
        what = f"is longer than {MOST_TEXT} characters" if words else "is empty"
        raise input_error(what, EXAMPLES, key="require")
    try:
        tree = ast.parse(words, mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        # A single = is the most frequent slip: the offer puts == in its place.
        assigned = "=" in words and not set("<>!") & set(words) and "==" not in words
        allowed = f"{words.replace('=', ' == ', 1)[:60]}: == compares" if assigned else EXAMPLES
        offset = error.offset if isinstance(error, SyntaxError) and not assigned else None
        place = f" at character {offset}" if offset else ""
        raise input_error(f"{_shown(words)} can't be read{place}", allowed, key="require") from None
    if not isinstance(tree, ast.Compare):
        _refuse_whole(words, tree)
    reader = _Reader(words)
    for side in (tree.left, *tree.comparators):
        reader.visit(side)
    for relation in tree.ops:
        # "in" and "is" parse as comparisons too.
        if type(relation) not in _COMPARISONS:
            reader.refuse(tree, "compares in another way than by size", "<=, <, >=, >, == or !=")
    if not reader.names:
        reader.refuse(tree, "names no axis and no quantity", EXAMPLES)
    requirement = Requirement(text=words, tree=tree, names=frozenset(reader.names))
    # One layout of ones tells whether the solver can decide it: products, divisions and directions.
    requirement.comparisons(_any_layout())
    return requirement


@dataclass(frozen=True, slots=True)
class _AnyRun:
    """Facts of some run, where only the form of a requirement is looked at."""

    steps: float = 1.0
    price: float = 1.0
    power_w: float = 1.0

    def slowdowns(self, use: Footprint) -> FloatArray:
        """No failures."""
        return np.ones(len(use.gpus))


def _any_layout() -> RequirementView:
    return RequirementView(row_of(Layout()), _AnyRun())


def _refuse_whole(text: str, tree: ast.expr) -> NoReturn:
    if isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.And):
        what, allowed = "joins with 'and'", "one --require for each part"
    elif isinstance(tree, ast.BoolOp):
        what, allowed = "joins with 'or'", "comparisons alone; every requirement has to hold"
    elif isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.Not):
        what, allowed = "negates with 'not'", "the opposite comparison: >, <, != ..."
    else:
        what, allowed = "compares nothing", EXAMPLES
    raise input_error(f"{_shown(text)} {what}", allowed, key="require")


class _Reader:
    """Walks one side of a comparison and refuses whatever is not arithmetic."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.names: set[str] = set()

    def refuse(self, node: ast.expr, what: str, allowed: str) -> NoReturn:
        """Raise the error of a part of the text."""
        raise input_error(
            f"{_shown(self._text)} {what} at character {node.col_offset + 1}", allowed, key="require"
        )

    def visit(self, node: ast.expr) -> None:
        """Check a part and note the names in it."""
        if isinstance(node, ast.Constant):
            self._number(node)
        elif isinstance(node, ast.Name):
            self._known(node)
        elif isinstance(node, ast.Subscript):
            self._stage(node)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
            self.visit(node.operand)
        elif isinstance(node, ast.BinOp):
            self._operation(node)
        else:
            self.refuse(node, f"has {_kind_of(node)}", "numbers, axes, quantities, + - * // % and ( )")

    def _number(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, str) and value:
            self.refuse(node, f"compares with the word {_shown(value)}", "numbers; --fix takes words")
        # True is an int to Python.
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.refuse(node, f"has {_shown(str(value))}, which is no number", "numbers, e.g. 8 or 7.5e6")
        # Written so that nan, which compares with nothing, is refused too.
        if not abs(value) <= MOST_NUMBER:
            self.refuse(node, "has a number out of range", f"up to {MOST_NUMBER:g}")

    def _known(self, node: ast.Name) -> None:
        name = _name(node)
        if name in STAGES:
            self.refuse(
                node, f"has {name} without a rank", f"{name}[0] is the first rank, {name}[-1] the last"
            )
        # Their codes are positions in a list, whose order means nothing.
        if name in NAMED:
            self.refuse(
                node, f"has {name}, whose values are words", f"--fix {name}=... or --forbid {name}=..."
            )
        if name not in NAMES:
            near = get_close_matches(name, NAMES, n=1)
            hint = f"did you mean {near[0]}?" if near else f"one of {', '.join(NAMES)}"
            self.refuse(node, f"has no axis or quantity {_shown(node.id)}", hint)
        self.names.add(name)

    def _stage(self, node: ast.Subscript) -> None:
        name = _name(node.value) if isinstance(node.value, ast.Name) else ""
        if name not in STAGES:
            near = get_close_matches(name, STAGES, n=1)
            hint = f"did you mean {near[0]}[0]?" if near else " or ".join(f"{stage}[0]" for stage in STAGES)
            self.refuse(node, "counts something that is not counted by rank", hint)
        try:
            _rank(node.slice)
        except ValueError:
            self.refuse(node, f"has a rank of {name} that is no whole number", f"{name}[0] or {name}[-1]")
        self.names.add(name)

    def _operation(self, node: ast.BinOp) -> None:
        if isinstance(node.op, ast.Pow):
            self.refuse(node, "has a power", "tp*tp")
        if type(node.op) not in _ARITHMETIC:
            self.refuse(node, "has an operator that is no arithmetic", "+ - * // % and /")
        divisor = node.right
        if not isinstance(node.op, ast.Add | ast.Sub | ast.Mult) and _is_zero(divisor):
            self.refuse(node, "divides by zero", "another divisor")
        self.visit(node.left)
        self.visit(divisor)


def _is_zero(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == 0


def _kind_of(node: ast.expr) -> str:
    kinds = {ast.Call: "a call", ast.Attribute: "an attribute", ast.Compare: "a comparison inside a number"}
    return kinds.get(type(node), "something that is no arithmetic")


def _sign(relation: ast.cmpop) -> str:
    signs = {ast.LtE: "<=", ast.Lt: "<", ast.GtE: ">=", ast.Gt: ">", ast.Eq: "==", ast.NotEq: "!="}
    return signs[type(relation)]


def _name(node: ast.Name) -> str:
    word = node.id.lower()
    return SHORT_KEYS.get(word, word)


def _rank(node: ast.expr) -> int:
    """Read a rank: a whole number, negative ones from the last rank; ValueError otherwise."""
    # Python parses -1 as a minus and a 1.
    sign = 1
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        sign, node = -1, node.operand
    if not isinstance(node, ast.Constant) or type(node.value) is not int or node.value > MOST_NUMBER:
        raise ValueError("no whole number")
    return sign * node.value


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")


def _nothing_open(atom: Atom) -> FloatArray:
    raise AssertionError(f"{atom} is decided by stages")


def axis_rules(requirements: Iterable[Requirement], facts: Facts) -> tuple[Rule, ...]:
    """Turn the requirements that axes alone decide into rules of the space, named by their text."""
    return tuple(_rule(requirement, facts) for requirement in requirements if not requirement.of_stages)


def _rule(requirement: Requirement, facts: Facts) -> Rule:
    def holds(rows: LayoutBatch, ctx: Context) -> BoolArray:
        """Tell which rows (n,) meet the requirement."""
        met = requirement.holds(RequirementView(rows, facts), _nothing_open)
        # A requirement of constants gives one value; masks are written to later.
        return np.broadcast_to(met, (len(rows),)).copy()

    def detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
        """Say what both sides come to."""
        return requirement.explain(RequirementView(row_of(layout), facts), _nothing_open), {}

    return Rule(
        name=rule_name(requirement),
        formula=requirement.text,
        reason="required by the question",
        source="--require",
        reads=requirement.columns,
        holds=holds,
        detail=detail,
    )


def rule_name(requirement: Requirement) -> str:
    """Return the name under which a certificate counts what a requirement removes."""
    return f"require {requirement.text}"


def broken_requirements(
    requirements: Iterable[Requirement], facts: Facts, layout: Layout, step_s: float, peak_bytes: float
) -> Iterator[BrokenRule]:
    """Yield the requirements that a priced layout does not meet."""
    view = RequirementView(row_of(layout), facts)

    def of(atom: Atom) -> FloatArray:
        """Give what the layout's stages have of an open part, (1,)."""
        if atom.part is Part.STEP_S:
            return np.array([step_s])
        if atom.part is Part.PEAK_BYTES:
            return np.array([peak_bytes])
        # Counted from the layout's own last rank, which differs from layout to layout.
        rank = atom.rank if atom.rank >= 0 else layout.pp + atom.rank
        counted = "layers" if atom.part is Part.LAYERS else "recomputed"
        return np.array(
            [sum(getattr(stage, counted) for stage in layout.stages if stage.rank == rank)], float
        )

    for requirement in requirements:
        if not requirement.holds(view, of).all():
            yield BrokenRule(
                rule=rule_name(requirement),
                message=requirement.explain(view, of),
                formula=requirement.text,
                reason="required by the question",
            )
