"""Expand the axes level by level, apply each rule as early as it can be, keep the books."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.space.counting import CountedRows, Tally, count_modifiers
from layoutopt.optimizer.space.modifiers import blank_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from layoutopt.optimizer.cost.batch import IntArray, LayoutBatch
    from layoutopt.optimizer.space.axes import Axes
    from layoutopt.optimizer.space.modifiers import Modifiers
    from layoutopt.optimizer.space.rule import Rule

    BoolArray = NDArray[np.bool_]
    Columns = dict[str, IntArray]

LIMITS = "limits"
"""The rule under which tuples are counted whose derived axes the user restricted."""

_LEVELS = ({"tp", "sp", "cp", "pp", "dp"}, {"ep", "etp"}, {"micro_batch", "micro_batches"}, {"vp"})
"""Axes are expanded in this order; a rule is applied as soon as the axes it reads are there."""


CHOICES = 1 << 19
"""Rows with their number of chunks that are looked at together."""


def level_of(rule: Rule) -> int:
    """Return the number of the first level at which everything that a rule reads is known."""
    return max((level for level, axes in enumerate(_LEVELS) if rule.reads & axes), default=0)


@dataclass(slots=True)
class SpaceBuilder:
    """Builds the degree table of one space. Call ``run`` once."""

    axes: Axes
    modifiers: Modifiers
    rules: tuple[Rule, ...]
    tally: Tally = field(default_factory=Tally)

    def run(self) -> CountedRows:
        """Return the remaining degree tuples with one valid modifier choice each, and the counts."""
        base = self._declare(self._base_columns())
        # Rules on the coarse degrees first: each row that goes here would have become hundreds below.
        base = self._apply(0, base)
        folds = self._apply(1, self._expand_experts(base))
        # ZeRO and mesh order depend on nothing that comes later: they are judged once per fold, not per row.
        folds["fold"] = np.arange(len(folds["tp"]), dtype=np.int64)
        batches = self._apply(2, self._expand_batches(folds))
        rows = self._chunked(batches)
        # Where a rule ties ZeRO or mesh order to the micro-batch or the chunks, a fold is no more than a row.
        if self.modifiers.by_row:
            folds, rows["fold"] = rows, np.arange(len(rows["tp"]), dtype=np.int64)
        return count_modifiers(
            self.modifiers, self.tally, self._batch(folds), self._batch(rows), rows["fold"]
        )

    def _chunked(self, batches: Columns) -> Columns:
        """Choose the chunks of every row, some rows at a time: deep models have many choices, and rules leave few."""
        # At least one row at a time, however many chunks a deep model offers.
        size = max(CHOICES // max([1, *(len(self.axes.vp_of(pp)) for pp in self.axes.pp)]), 1)
        parts = []
        for start in range(0, max(len(batches["tp"]), 1), size):
            part = {name: values[start : start + size] for name, values in batches.items()}
            parts.append(self._apply(3, self._expand_chunks(part)))
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _base_columns(self) -> Columns:
        """All tp, cp, pp, dp with an allowed product, and the sp settings of each tp."""
        axes = self.axes
        tp, cp, pp = (
            grid.ravel() for grid in np.meshgrid(*map(_array, (axes.tp, axes.cp, axes.pp)), indexing="ij")
        )
        model = tp * cp * pp
        fewest, most = axes.gpus
        if axes.dp is None:
            # dp takes up the GPUs that the others leave, so that it must divide out.
            keep = np.flatnonzero((model <= most) & (most % np.maximum(model, 1) == 0))
            dp = most // model[keep]
            allowed = np.array([axes.options.allows("dp", int(value)) for value in dp], dtype=bool)
            keep, dp = keep[allowed], dp[allowed]
        else:
            degrees = _array(axes.dp)
            # Rounded up: fewer data-parallel ranks would leave more GPUs idle than allowed.
            low = np.searchsorted(degrees, -(-fewest // model))
            high = np.searchsorted(degrees, most // model, side="right")
            keep, place = _ranges(np.maximum(high - low, 0))
            dp = degrees[low[keep] + place]
        # The product is the cluster: expert degrees re-use its ranks and multiply nothing.
        columns = {"tp": tp[keep], "cp": cp[keep], "pp": pp[keep], "dp": dp}
        return self._cross(columns, "tp", {tp: [(sp,) for sp in axes.sp_of(tp)] for tp in axes.tp}, ("sp",))

    def _declare(self, base: Columns) -> Columns:
        degrees, tuples = self._weights(0, base)
        self.tally.declared_degrees, self.tally.declared_tuples = int(degrees.sum()), int(tuples.sum())
        return base

    def _apply(self, level: int, columns: Columns) -> Columns:
        """Apply the rules of a level and count what they remove."""
        # Rules in their order: the certificate counts a row under the first that it breaks.
        rules = [(rule.name, self._holds(rule)) for rule in self.rules if level_of(rule) == level]
        # The number of micro-batches follows from the batch: it can be restricted only once it is known.
        if level == 2 and self.axes.options.limits("micro_batches"):
            rules.append((LIMITS, self._micro_batches_allowed))
        for name, holds in rules:
            # A row stands for all that later levels would have made of it: the certificate counts those.
            bad = ~holds(columns)
            if bad.any():
                degrees, tuples = self._weights(level, columns)
                self.tally.remove(name, int(degrees[bad].sum()), int(tuples[bad].sum()))
                columns = {key: values[~bad] for key, values in columns.items()}
        return columns

    def _holds(self, rule: Rule) -> Callable[[Columns], BoolArray]:
        return lambda columns: rule.holds(self._batch(columns), self.axes.ctx)

    def _micro_batches_allowed(self, columns: Columns) -> BoolArray:
        values, inverse = np.unique(columns["micro_batches"], return_inverse=True)
        allows = self.axes.options.allows
        return np.array([allows("micro_batches", int(value)) for value in values], dtype=bool)[inverse]

    def _batch(self, columns: Columns) -> LayoutBatch:
        # The fold numbers rows; no rule reads it.
        known = {name: values for name, values in columns.items() if name != "fold"}
        return blank_batch(len(columns["tp"]), self.modifiers.codebook, **known)

    def _weights(self, level: int, columns: Columns) -> tuple[IntArray, IntArray]:
        """Return how many declared degree tuples and full tuples each row of a level stands for."""
        tp, pp = columns["tp"], columns["pp"]
        one = np.ones(len(tp), dtype=np.int64)
        experts = _look_up(tp, {t: len(self._expert_pairs(t)) for t in self.axes.tp}) if level < 1 else one
        batches = len(self.axes.micro_batch) if level < 2 else 1
        if level < 3:
            chunks = _look_up(pp, {p: len(self.axes.vp_of(p)) for p in self.axes.pp})
            schedules = _look_up(pp, {p: self._schedule_count(p) for p in self.axes.pp})
        else:
            chunks, schedules = one, self.modifiers.declared_schedules(pp, columns["vp"]).sum(axis=1)
        # What is known is one choice each; the rest is counted as declared, so that the books balance.
        degrees = experts * batches * chunks
        return degrees, experts * batches * schedules * self._other_modifiers()

    def _schedule_count(self, pp: int) -> int:
        return sum(len(self.axes.schedules_of(pp, vp)) for vp in self.axes.vp_of(pp))

    def _other_modifiers(self) -> int:
        m = self.modifiers
        return len(m.zero) * len(m.recomputes) * len(m.orders) * len(m.precisions)

    def _expert_pairs(self, tp: int) -> list[tuple[int, int]]:
        return [(ep, etp) for etp in self.axes.etp_of(tp) for ep in self.axes.ep]

    def _expand_experts(self, columns: Columns) -> Columns:
        return self._cross(columns, "tp", {tp: self._expert_pairs(tp) for tp in self.axes.tp}, ("ep", "etp"))

    def _expand_batches(self, columns: Columns) -> Columns:
        sizes = [(size,) for size in self.axes.micro_batch]
        rows = self._cross(columns, "tp", dict.fromkeys(self.axes.tp, sizes), ("micro_batch",))
        # Rounded down: where it does not divide, the batch rule removes the row and says so.
        rows["micro_batches"] = self.axes.ctx.training.global_batch // (rows["dp"] * rows["micro_batch"])
        return rows

    def _expand_chunks(self, columns: Columns) -> Columns:
        return self._cross(
            columns, "pp", {pp: [(vp,) for vp in self.axes.vp_of(pp)] for pp in self.axes.pp}, ("vp",)
        )

    @staticmethod
    def _cross(
        columns: Columns, key: str, choices: Mapping[int, Sequence[tuple[int, ...]]], names: tuple[str, ...]
    ) -> Columns:
        """Repeat every row for each choice of its value of ``key``; the choices become new columns."""
        offsets: dict[int, int] = {}
        flat: list[tuple[int, ...]] = []
        for value, listed in choices.items():
            offsets[value] = len(flat)
            flat.extend(listed)
        # All choices in one table, so that rows are repeated by array arithmetic and not in Python.
        table = np.array(flat, dtype=np.int64).reshape(-1, len(names))
        repeats = _look_up(columns[key], {value: len(listed) for value, listed in choices.items()})
        row, place = _ranges(repeats)
        chosen = table[_look_up(columns[key], offsets)[row] + place]
        result = {name: values[row] for name, values in columns.items()}
        return result | {name: chosen[:, position] for position, name in enumerate(names)}


def _array(values: Sequence[int]) -> IntArray:
    return np.array(values, dtype=np.int64)


def _ranges(lengths: IntArray) -> tuple[IntArray, IntArray]:
    """Return, for ranges of the given lengths laid end to end, each element's range and its place in it."""
    row = np.repeat(np.arange(len(lengths), dtype=np.int64), lengths)
    starts = np.cumsum(lengths) - lengths
    return row, np.arange(len(row), dtype=np.int64) - starts[row]


def _look_up(keys: IntArray, values: Mapping[int, int]) -> IntArray:
    """Map small non-negative integers through a table."""
    # Keys are degrees, at most some ten thousand: a table beats a search.
    table = np.zeros(max([*values, 0]) + 1, dtype=np.int64)
    for key, value in values.items():
        table[key] = value
    result: IntArray = table[keys]
    return result
