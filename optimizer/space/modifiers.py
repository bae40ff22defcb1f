"""Axes that multiply degree tuples: ZeRO and shards, recomputation, order, schedule, precision."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from layoutopt.optimizer.cost.batch import CODES, DEGREES, FEW_ROWS, Codebook, LayoutBatch
from layoutopt.optimizer.cost.schedules import SCHEDULES
from layoutopt.optimizer.space.orders import first_orders
from layoutopt.optimizer.space.recompute_sets import WHOLE_LAYERS
from layoutopt.optimizer.space.rules.experts import expert_dp
from layoutopt.optimizer.space.rules.switches import OnlyWhere
from layoutopt.optimizer.space.switch_sets import first_switches, stated_switches
from layoutopt.optimizer.specs.layout import Recompute
from layoutopt.optimizer.specs.vocabulary import Schedule
from layoutopt.optimizer.topology.counting import distinct_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from layoutopt.optimizer.cost.batch import IntArray
    from layoutopt.optimizer.space.axes import ZeroChoice
    from layoutopt.optimizer.space.context import Context
    from layoutopt.optimizer.space.rule import Rule
    from layoutopt.optimizer.specs.layout import Switches
    from layoutopt.optimizer.specs.vocabulary import Precision, Saver

    BoolArray = NDArray[np.bool_]
    Masks = list[tuple[str, BoolArray]]

ALL_MODIFIERS = ("zero", "order", "schedule", "precision", "recompute")
ANY_SWITCHES, SWITCHES = "any_switches", "switches"
"""Choosing a precision in two steps: with any launch switches, then the switches of rows that have all else."""

EQUIVALENT = "equivalent"
"""The rule under which choices are counted that give the same layout as an earlier choice."""

_COLUMNS = {
    "zero": frozenset({"zero", "hsdp_shard"}),
    "order": frozenset({"order"}),
    "schedule": frozenset({"schedule"}),
    "precision": frozenset({"precision", "switches"}),
    "recompute": frozenset({"recompute"}),
}
MODIFIER_COLUMNS = frozenset[str]().union(*_COLUMNS.values())


def blank_batch(count: int, codebook: Codebook, **columns: IntArray) -> LayoutBatch:
    """Build a batch whose missing degrees are 1 and whose missing codes are 0, without storing them."""
    # Rules are asked before all axes are there: what they do not read may have any value.
    ones = np.broadcast_to(np.int64(1), (count,))
    zeros = np.broadcast_to(np.int64(0), (count,))
    missing = dict.fromkeys(DEGREES, ones) | dict.fromkeys(CODES, zeros)
    return LayoutBatch(codebook=codebook, **(missing | columns))


@dataclass(frozen=True, kw_only=True)
class Modifiers:
    """Every declared modifier choice, and which of them a degree row can have.

    A mask has one row per layout and one column per choice, in the order of the choice lists. The masks of
    different modifiers are independent of each other, except that recomputation and precision share one (R,
    P) table. ``precisions``, ``savers`` and ``switches`` are as in a codebook: a precision code also chooses memory savers
    and launch switches.
    """

    ctx: Context
    zero: tuple[ZeroChoice, ...]
    recomputes: tuple[Recompute, ...]
    orders: tuple[str, ...]
    schedules: tuple[Schedule, ...]
    precisions: tuple[Precision, ...]
    savers: tuple[tuple[Saver, ...], ...]
    switches: tuple[Switches, ...]
    rules: tuple[Rule, ...]

    @cached_property
    def codebook(self) -> Codebook:
        """What the code columns of the space's batches stand for."""
        return Codebook(
            recomputes=self.recomputes,
            orders=self.orders,
            schedules=self.schedules,
            precisions=self.precisions,
            savers=self.savers,
            switches=self.switches,
        )

    @cached_property
    def _used(self) -> dict[OnlyWhere, BoolArray]:
        """Tell which precision codes (P,) use what a rule on switches refuses in some rows."""
        predicates = {rule.holds for rule in self.rules if isinstance(rule.holds, OnlyWhere)}
        return {holds: holds.of_codes(self.codebook, self.ctx) for holds in predicates}

    @property
    def by_row(self) -> bool:
        """Whether some rule ties ZeRO or mesh order to what rows of one (tp, cp, pp, dp, ep, etp) differ in."""
        return any(
            rule.reads & {"zero", "hsdp_shard", "order"}
            and rule.reads & {"vp", "micro_batch", "micro_batches"}
            for rule in self.rules
        )

    def masks(self, modifier: str, rows: LayoutBatch) -> Masks:
        """List (rule name, choices still valid after it) for zero, order, schedule or precision.

        Choices that give the same layout as an earlier valid one go last, under ``EQUIVALENT``.
        """
        valid = self._declared(modifier, rows)
        choices = [self._with_choice(modifier, rows, column) for column in range(valid.shape[1])]
        steps = []
        for rule in self._rules_on(modifier):
            # One after the other, so that the certificate can count what each rule removed beyond those
            # before it.
            valid = valid & self._columns(rule, modifier, rows, choices)
            steps.append((rule.name, valid))
        if modifier == "zero":
            # After the rules: the first valid one must stay, whatever stood before it.
            steps.append((EQUIVALENT, self._first_zero(rows, valid)))
        # Orders that differ in axes of one rank alone number the ranks alike.
        if modifier == "order":
            steps.append((EQUIVALENT, first_orders(rows, valid)))
        # A switch that has nothing to act on in a row makes no other layout of it.
        if modifier == "precision" and self.switches:
            steps.append((EQUIVALENT, first_switches(rows, valid)))
        return steps or [("", valid)]

    def sorts(self, rows: LayoutBatch) -> tuple[LayoutBatch, IntArray]:
        """Return one row of each sort that precisions and switches are judged alike in, and the sort (n,) of every row.

        Hundreds of codes times all rows would be large tables, and rows differ in few of the conditions on them.
        """
        told, columns = np.zeros(len(rows), dtype=np.int64), []
        facts = [switch.traffic(rows) for switch in stated_switches(self.codebook)] if self.switches else []
        for rule in self._rules_on("precision"):
            if isinstance(rule.holds, OnlyWhere) and self.switches:
                if self._used[rule.holds].any():
                    facts.append(rule.holds.legal(rows, self.ctx))
            else:
                columns += [getattr(rows, name) for name in DEGREES + CODES if name in rule.reads]
        for place, fact in enumerate(facts):
            told |= np.broadcast_to(fact, len(rows)).astype(np.int64) << place
        if not len(rows):
            return rows, told
        first, sort = distinct_rows([told, *columns])
        return rows.take(first), sort

    def _columns(self, rule: Rule, modifier: str, rows: LayoutBatch, choices: list[LayoutBatch]) -> BoolArray:
        """Apply a rule to every choice of a modifier, (n, choices); what tells no codes apart is asked once."""
        if modifier != "precision" or not self.switches:
            return _by_column([self._holds(rule, choice) for choice in choices])
        if isinstance(rule.holds, OnlyWhere):
            # Hundreds of codes share few predicates: ask codes and rows apart, and combine.
            used = self._used[rule.holds]
            if not used.any():
                return np.broadcast_to(True, (len(rows), len(choices)))
            legal = rule.holds.legal(rows, self.ctx)
            return (~used[:, None] | legal[None, :]).T
        if "switches" in rule.reads:
            return _by_column([self._holds(rule, choice) for choice in choices])
        # Rules that read no switches say the same of all codes of one precision and savers.
        formats = [entry[:2] for entry in self.codebook.formats]
        asked = {entry: self._holds(rule, choices[formats.index(entry)]) for entry in dict.fromkeys(formats)}
        return _by_column([asked[entry] for entry in formats])

    def _holds(self, rule: Rule, rows: LayoutBatch) -> BoolArray:
        """Apply a rule to rows of one modifier choice; those that are equal in what it reads are asked once."""
        if rule.reads - MODIFIER_COLUMNS and len(rows) > FEW_ROWS:
            read = [getattr(rows, name) for name in DEGREES + CODES if name in rule.reads]
            first, which = distinct_rows(read)
            return np.broadcast_to(rule.holds(rows.take(first), self.ctx), len(first))[which]
        # A rule on modifiers alone says the same of every row: one is asked instead of millions.
        if rule.reads - MODIFIER_COLUMNS or not len(rows):
            return rule.holds(rows, self.ctx)
        return np.broadcast_to(rule.holds(rows.take(np.array([0])), self.ctx), (len(rows),))

    @cached_property
    def recompute_masks(self) -> Masks:
        """List (rule name, (R, P) table of recomputation choices still valid at each precision)."""
        shape = (len(self.recomputes), len(self.precisions))
        codes = np.indices(shape, dtype=np.int64).reshape(2, -1)
        # Rules on recomputation read codes alone: the degrees of these rows may be anything.
        rows = blank_batch(codes.shape[1], self.codebook, recompute=codes[0], precision=codes[1])
        # Recomputation and precision are judged in one table: fp8 refuses what some modules would recompute.
        valid = np.ones(codes.shape[1], dtype=bool)
        steps = [("", valid.reshape(shape))]
        for rule in self._rules_on("recompute"):
            valid = valid & rule.holds(rows, self.ctx)
            steps.append((rule.name, valid.reshape(shape)))
        if {WHOLE_LAYERS, Recompute()} <= set(self.recomputes):
            # Whole layers are any number of them: none at all is another choice only where they are refused.
            table, whole = steps[-1][1].copy(), self.recomputes.index(WHOLE_LAYERS)
            table[self.recomputes.index(Recompute())] &= ~table[whole]
            steps.append((EQUIVALENT, table))
        return steps

    def or_none(self) -> Modifiers:
        """Add ``none`` to the recomputation choices where some rule refuses whole layers and allows none at all."""
        if WHOLE_LAYERS not in self.recomputes or Recompute() in self.recomputes:
            return self
        other = replace(self, recomputes=(*self.recomputes, Recompute()))
        # Elsewhere "full" includes no layer at all: a second spelling would count the same layouts twice.
        return other if other.recompute_masks[-1][1][-1].any() else self

    def valid(self, modifier: str, rows: LayoutBatch) -> BoolArray:
        """Return the final mask of one modifier, (n, choices)."""
        if modifier == "precision":
            alike, sort = self.sorts(rows)
            return self.masks(modifier, alike)[-1][1][sort]
        return self.masks(modifier, rows)[-1][1]

    def declared_schedules(self, pp: IntArray, vp: IntArray) -> BoolArray:
        """Tell which schedules run so many chunks per rank, (n, S); a single stage runs none."""
        columns = []
        for schedule in self.schedules:
            model = SCHEDULES[schedule]
            fits = (vp >= model.min_chunks) & (vp <= (model.max_chunks or vp))
            # One stage has no order of passes: any other schedule would be the same layout under another
            # name.
            columns.append(pp == 1 if schedule is Schedule.NONE else fits & (pp > 1))
        return np.stack(columns, axis=1) if columns else np.zeros((len(pp), 0), dtype=bool)

    def shards(self, rows: LayoutBatch) -> IntArray:
        """Return the ranks per shard group of each ZeRO choice, (n, Z); 0 is the whole data-parallel group.

        Inside a level of G GPUs a shard group takes every tp-th GPU and whole groups tile the level:
        gcd(dp*cp, G/tp) ranks. 1, which the rules refuse, where tp doesn't divide the level.
        """
        columns = [self._shard(rows, choice) for choice in self.zero]
        return np.stack(columns, axis=1) if columns else np.zeros((len(rows), 0), dtype=np.int64)

    @staticmethod
    def _shard(rows: LayoutBatch, choice: ZeroChoice) -> IntArray:
        if not choice.level_gpus:
            return np.full(len(rows), choice.shard, dtype=np.int64)
        # Weights of one tensor rank are sharded among ranks that hold the same slice: every tp-th GPU.
        inside = np.gcd(rows.dp * rows.cp, np.maximum(choice.level_gpus // rows.tp, 1))
        return np.where(choice.level_gpus % rows.tp == 0, inside, 1)

    def expand(
        self, rows: LayoutBatch, over: tuple[str, ...] = ALL_MODIFIERS
    ) -> tuple[LayoutBatch, IntArray]:
        """Return each row's valid combinations of the named modifiers, and the row (k,) each came from.

        Modifiers that aren't named keep the row's own value. With ``ANY_SWITCHES`` a precision's code stands for every
        code of its group that the row may have, which ``SWITCHES`` chooses among. Memory grows with rows times choices:
        pass survivors, or slices.
        """
        # Only indices and codes grow; the rows themselves are taken once, at the end.
        # Of millions of rows few columns change at a time.
        index = np.arange(len(rows), dtype=np.int64)
        codes: dict[str, IntArray] = {}
        for name in (name for name in (*ALL_MODIFIERS, SWITCHES) if name in over):
            if name == "recompute":
                precision = codes["precision"] if "precision" in codes else rows.precision[index]
                mask = self._recompute_table(any_switches=ANY_SWITCHES in over).T[precision]
            elif name == SWITCHES:
                mask = self._switches_of(rows)[index]
            else:
                mask = self.valid(name, rows)[index]
                mask = self._leaders(mask) if name == "precision" and ANY_SWITCHES in over else mask
            row, choice = np.nonzero(mask)
            name = "precision" if name == SWITCHES else name
            # Each modifier multiplies the rows so far, and carries earlier choices along.
            index, codes = index[row], {key: values[row] for key, values in codes.items()} | {name: choice}
        changed: dict[str, Any] = codes
        if "zero" in codes:
            stages = np.array([choice.stage for choice in self.zero], dtype=np.int64)
            # One choice is another number of ranks in every row.
            shards = self.shards(rows)[index, codes["zero"]]
            changed = codes | {"zero": stages[codes["zero"]], "hsdp_shard": shards}
        return replace(rows.take(index), **changed), index

    def _recompute_table(self, *, any_switches: bool) -> BoolArray:
        """Return the final (R, P) table; with ``any_switches`` what some code of a code's group may have."""
        table = self.recompute_masks[-1][1]
        if not (any_switches and self.switches):
            return table
        groups = self.codebook.groups
        return np.stack([table[:, groups == group].any(axis=1) for group in groups], axis=1)

    def _leaders(self, mask: BoolArray) -> BoolArray:
        """Leave the first valid code of each group of codes that differ in switches alone."""
        groups = self.codebook.groups
        first = np.zeros_like(mask)
        for group in np.unique(groups):
            own = np.flatnonzero(groups == group)
            # A group is led by its first code that is valid for the row, not by its first code.
            some = mask[:, own].any(axis=1)
            first[some, own[mask[:, own].argmax(axis=1)[some]]] = True
        return first

    def _switches_of(self, rows: LayoutBatch) -> BoolArray:
        """Tell which codes of each row's group (n, P) are valid with all else that the row has."""
        groups = self.codebook.groups
        alike = groups[None, :] == groups[rows.precision][:, None]
        own: BoolArray = (
            alike & self.valid("precision", rows) & self._recompute_table(any_switches=False)[rows.recompute]
        )
        return own

    def switch_choices(self, rows: LayoutBatch) -> IntArray:
        """Count the switches that ``SWITCHES`` chooses among, (n,)."""
        if not self.switches:
            return np.ones(len(rows), dtype=np.int64)
        return np.asarray(self._switches_of(rows).sum(axis=1))

    def _rules_on(self, modifier: str) -> list[Rule]:
        """Return the rules that read a modifier; those that also read recomputation belong to it."""
        # Recomputation goes with precision in one table, where rules that read both are applied once.
        mine = [rule for rule in self.rules if rule.reads & _COLUMNS[modifier]]
        return [rule for rule in mine if modifier == "recompute" or "recompute" not in rule.reads]

    def _declared(self, modifier: str, rows: LayoutBatch) -> BoolArray:
        if modifier == "schedule":
            return self.declared_schedules(rows.pp, rows.vp)
        choices = {"zero": self.zero, "order": self.orders, "precision": self.precisions}[modifier]
        return np.ones((len(choices), len(rows)), dtype=bool).T

    def _with_choice(self, modifier: str, rows: LayoutBatch, column: int) -> LayoutBatch:
        if modifier != "zero":
            code: dict[str, Any] = {modifier: np.broadcast_to(np.int64(column), (len(rows),))}
            return replace(rows, **code)
        stage = np.broadcast_to(np.int64(self.zero[column].stage), (len(rows),))
        return replace(rows, zero=stage, hsdp_shard=self._shard(rows, self.zero[column]))

    def _first_zero(self, rows: LayoutBatch, valid: BoolArray) -> BoolArray:
        """Keep the first of the choices that shard alike.

        A shard group as large as the whole group is the whole group, two levels may give the same group, and
        where neither dense weights nor experts have replicas every stage is the same.
        """
        group = (rows.dp * rows.cp)[:, None]
        shards = self.shards(rows)
        stages = np.array([choice.stage for choice in self.zero], dtype=np.int64)
        # Stages differ in what replicas share: without replicas they are one layout.
        alone = (group[:, 0] == 1) & (expert_dp(rows, self.ctx) == 1 if self.ctx.experts else True)
        # Stage and shard in one number: shards are at most the group, so that no two pairs meet.
        keys = np.where(shards == group, 0, shards) + stages * (group + 1)
        keys[alone] = 0
        kept = valid.copy()
        # Pairs of choices, not sorted keys: there are at most a dozen, and the first valid one has to stay.
        for later in range(1, valid.shape[1]):
            for first in range(later):
                kept[:, later] &= ~(valid[:, first] & (keys[:, first] == keys[:, later]))
        return kept


def _by_column(columns: list[BoolArray]) -> BoolArray:
    """Join columns into a mask (n, choices) that keeps each column together: masks are tall, and read by columns."""
    return np.array(columns, dtype=bool).T
