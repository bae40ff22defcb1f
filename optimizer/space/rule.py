"""A validity rule as data, and how rules are chosen, applied and explained."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from layoutopt.optimizer.cost.batch import LayoutBatch
from layoutopt.optimizer.frameworks.record import NEWEST, TrainerFamily
from layoutopt.optimizer.frameworks.registry import Framework, of_family
from layoutopt.optimizer.space.context import Context
from layoutopt.optimizer.space.rows import row_of
from layoutopt.optimizer.specs.layout import Layout

if TYPE_CHECKING:
    from collections.abc import Iterable

    from layoutopt.optimizer.frameworks.record import Release
    from layoutopt.optimizer.space.options import SpaceOptions

BoolArray = NDArray[np.bool_]
Factors = Mapping[str, int | str]
Holds = Callable[[LayoutBatch, Context], BoolArray]
Detail = Callable[[Layout, Context], tuple[str, Factors]]
Valid = Callable[["Rule", Layout, Context], Mapping[str, tuple[int, ...]]]
Repair = Callable[["Rule", Layout, Context], Layout | None]

EVERY = frozenset(Framework)
MEGATRONS = of_family(TrainerFamily.MEGATRON_CORE)
TORCH_PIPELINES = of_family(TrainerFamily.PYTORCH_PIPELINES)
FREEST = of_family(TrainerFamily.FREEST)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenRule:
    """One reason why a layout can't be launched.

    ``message`` says it in one line with the factors and the nearest valid values; ``factors`` are the numbers
    it rests on; ``valid`` maps an axis to values that would satisfy the rule, all other axes left as they
    are. ``axis`` is the field of the layout that is called at fault.
    """

    rule: str
    message: str
    formula: str
    reason: str
    factors: Factors = field(default_factory=dict)
    valid: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    axis: str = ""

    def __str__(self) -> str:
        return f"{self.rule}: {self.message}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What a framework can launch, as a formula over the axes.

    ``holds`` maps a batch to a mask of the rows that satisfy the rule; it reads the columns named in
    ``reads`` and no others, which lets enumeration apply it before the remaining axes are expanded.
    ``detail`` says for one layout that breaks it which numbers don't fit. ``valid`` finds the nearest values
    that would, ``repair`` the nearest layout at the same GPUs and global batch; ``axis`` is the field of the
    layout that is called at fault, by default the most telling one of ``reads``.
    ``since`` is the first release with the rule, ``until`` the first without it. ``flag`` names
    the field of ``RunOptions`` without which the rule has nothing to judge. ``search_only`` rules shape the
    declared space but never make a user's layout invalid, and do not apply where the question names the axis
    ``unless_named``. ``launch_only`` rules judge layouts alone: they tie
    axes together that the space holds apart and that its other rules already keep in order. ``unless_staged``
    rules concern the framework's own split: they don't apply to a layout that lists its stages, nor to the
    search, which lists them.
    """

    name: str
    formula: str
    reason: str
    source: str
    reads: frozenset[str]
    holds: Holds
    detail: Detail
    frameworks: frozenset[Framework] = EVERY
    since: Release = ()
    until: Release = (*NEWEST, 0)
    valid: Valid | None = None
    repair: Repair | None = None
    axis: str = ""
    flag: str = ""
    search_only: bool = False
    unless_named: str = ""
    launch_only: bool = False
    unless_staged: bool = False

    def applies(self, ctx: Context) -> bool:
        """Whether the framework's release has this rule, and the flag that it rests on is stated."""
        stated = not self.flag or getattr(ctx.options, self.flag) is not None
        return stated and ctx.framework in self.frameworks and self.since <= ctx.release < self.until

    def explain(self, layout: Layout, ctx: Context) -> BrokenRule:
        """Say why the layout breaks the rule and what would satisfy it."""
        text, factors = self.detail(layout, ctx)
        valid = self.valid(self, layout, ctx) if self.valid else {}
        # "none" is said too: that no value helps is what a user has to know.
        offers = [f"valid {axis}: {', '.join(map(str, values)) or 'none'}" for axis, values in valid.items()]
        return BrokenRule(
            rule=self.name,
            message="; ".join([text, *offers]),
            formula=self.formula,
            reason=self.reason,
            factors=factors,
            valid=valid,
            axis=self.axis or next((field for column, field in _BLAMED.items() if column in self.reads), ""),
        )


_BLAMED = {
    "switches": "switches", "savers": "savers", "schedule": "schedule", "order": "mesh_order", "precision": "precision",
    "recompute": "recompute", "hsdp_shard": "hsdp_shard", "zero": "zero", "etp": "etp", "ep": "ep", "vp": "vp",
    "cp": "cp", "sp": "sp", "tp": "tp", "pp": "pp", "micro_batch": "micro_batch", "micro_batches": "micro_batches",
    "dp": "dp",
}  # fmt: skip
"""Columns that a rule may read and their fields of a layout, those first that are called at fault first."""


def everywhere(rows: LayoutBatch) -> BoolArray:
    """Return a mask (n,) of all rows, for a rule that doesn't concern the model."""
    return np.ones(len(rows), dtype=bool)


def mask(condition: Any) -> BoolArray:
    """Return a comparison of columns (n,), which numpy's types leave open, as a mask."""
    return np.asarray(condition, dtype=bool)


def search_rules(rules: Iterable[Rule], ctx: Context, options: SpaceOptions) -> tuple[Rule, ...]:
    """Select the rules that shape the declared space."""
    return tuple(
        rule
        for rule in rules
        if rule.applies(ctx) and not rule.launch_only and not options.limits(rule.unless_named)
    )


def launch_rules(rules: Iterable[Rule], ctx: Context, *, staged: bool) -> tuple[Rule, ...]:
    """Select the rules that a user's layout must satisfy; ``staged``: it lists its stages."""
    return tuple(
        r for r in rules if r.applies(ctx) and not r.search_only and not (staged and r.unless_staged)
    )


def says(text: str, *axes: str) -> Detail:
    """Build a detail function: a fixed text followed by the values of the axes that matter."""

    def detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
        """Say the axes' values behind the text."""
        factors = {axis: int(getattr(layout, axis)) for axis in axes}
        values = ", ".join(f"{axis} {value}" for axis, value in factors.items())
        return f"{text}, but {values}" if values else text, factors

    return detail


MOST_TRIED = 1_000_000
"""Largest value that is offered; a degree beyond it is a slip."""


def varying(*axes: str, limit: int = 8) -> Valid:
    """Build a ``valid`` function that varies each axis on its own and keeps the nearest that hold."""

    def valid(rule: Rule, layout: Layout, ctx: Context) -> Mapping[str, tuple[int, ...]]:
        """Return each axis's nearest values that hold."""
        return {axis: _nearest(rule, layout, ctx, axis, limit) for axis in axes}

    return valid


def _nearest(rule: Rule, layout: Layout, ctx: Context, axis: str, limit: int) -> tuple[int, ...]:
    """Return up to ``limit`` values of one axis that satisfy the rule, nearest to the layout's, ascending."""
    now = int(getattr(layout, axis) or 1)
    # Up to four times the layout's own value: offers farther off are another question.
    candidates = np.arange(1, min(max(4 * now, axis_ceiling(axis, ctx)), MOST_TRIED) + 1, dtype=np.int64)
    row = row_of(layout).take(np.zeros(len(candidates), dtype=np.int64))
    varied: dict[str, Any] = {axis: candidates}
    good = candidates[rule.holds(replace(row, **varied), ctx)]
    # Stable: of two equally near values the smaller one comes first.
    nearest = good[np.argsort(np.abs(good - now), kind="stable")[:limit]]
    return tuple(int(value) for value in np.sort(nearest))


def axis_ceiling(axis: str, ctx: Context) -> int:
    """Return the largest value of an axis worth offering."""
    ceilings = {
        "tp": ctx.model.heads,
        "vp": ctx.blocks + 2,
        "pp": ctx.blocks + 2,
        "ep": max(ctx.experts, 1),
        "micro_batches": ctx.training.global_batch,
    }
    return min(ceilings.get(axis, 256), 65_536)
