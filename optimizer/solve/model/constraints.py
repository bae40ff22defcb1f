"""Constraints of the CP-SAT model of a slice: one method per family, ``add_constraints`` lists them."""

from __future__ import annotations

from itertools import islice, pairwise, product
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.batch import CODES, DEGREES
from layoutopt.optimizer.frameworks.stage_rule import COUNTED, Recomputation, Split
from layoutopt.optimizer.solve.model.coefficients import KIB, PER_SECOND
from layoutopt.optimizer.solve.model.slices import Goal
from layoutopt.optimizer.solve.model.solver import cp_model
from layoutopt.optimizer.solve.splits import fewest_blocks
from layoutopt.optimizer.space.stage_splits import boxes
from layoutopt.optimizer.space.stages import kinds_before

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from layoutopt.optimizer.cost.step import PathForm
    from layoutopt.optimizer.solve.model.slices import Shape, TupleSlice
    from layoutopt.optimizer.solve.model.variables import Literal, StageVariables, Variables

MEMORY = "memory"
ENOUGH_MICRO_BATCHES = "micro_batches >= pp"


class Constraints:
    """Builds the constraints.

    ``conditions`` maps names of constraint families (``MEMORY``, ``ENOUGH_MICRO_BATCHES``, ``"tp = 8"``) to literals
    that switch them on; families without a literal always hold. ``fixed`` maps columns to the value they must take.
    """

    def __init__(
        self,
        model: cp_model.CpModel,
        data: TupleSlice,
        variables: Variables,
        conditions: Mapping[str, Literal],
        fixed: Mapping[str, int],
    ) -> None:
        self._model = model
        self._data = data
        self._variables = variables
        self._conditions = conditions
        self._fixed = fixed

    def add_constraints(self) -> None:
        """Add every family to the model."""
        self._one_tuple()
        self._one_shape()
        self._fixed_columns()
        self._enough_micro_batches()
        self._every_block_somewhere()
        self._fewest_blocks_per_rank()
        self._near_equal_stages()
        self._counted_stages()
        # Stages before recomputation: which kinds a stage recomputes depends on its blocks.
        self._stages_in_order()
        self._balanced_chunks()
        self._whole_groups()
        self._recomputation()
        self._recomputing_ranks()
        if self._data.goal is Goal.PEAK_MEMORY:
            self.add_peak_memory()
            return
        self._memory_fits()
        self._floors()
        self._cuts()

    def _when(self, constraint: cp_model.Constraint, name: str, *literals: Literal) -> None:
        """Name a constraint and enforce it under the literals that are not plainly true."""
        unknown = [literal for literal in literals if literal is not True]
        if unknown:
            constraint.only_enforce_if(*unknown)
        constraint.with_name(name)

    def _one_tuple(self) -> None:
        """The columns, the row and the literals name the same tuple of the table."""
        model, variables = self._model, self._variables
        names = DEGREES + CODES
        rows = zip(*(getattr(self._data.batch, name).tolist() for name in names), strict=True)
        table = [(i, *row) for i, row in enumerate(rows)]
        model.add_allowed_assignments([variables.row, *(variables.columns[name] for name in names)], table)
        # One tuple is a constant of the model, without a literal that chooses it.
        if len(self._data) == 1:
            return
        model.add_exactly_one(variables.chosen)
        for i, literal in enumerate(variables.chosen):
            self._when(model.add(variables.row == i), f"row_{i}", literal)

    def _one_shape(self) -> None:
        """A shape is on when a tuple with this pp and vp is chosen."""
        if len(self._variables.shapes) == 1:
            return
        for shape, literal in self._variables.shapes.items():
            members = [self._variables.chosen[i] for i in self._data.of_shape(shape)]
            self._model.add(sum(members) == literal).with_name(f"shape_{shape[0]}_{shape[1]}")

    def _fixed_columns(self) -> None:
        """Columns that are fixed keep to their value."""
        for name, value in self._fixed.items():
            label = f"{name} = {value}"
            constraint = self._model.add(self._variables.columns[name] == value)
            self._when(constraint, label, self._conditions.get(label, True))

    def _enough_micro_batches(self) -> None:
        """A pipeline needs at least one micro-batch per rank."""
        columns = self._variables.columns
        constraint = self._model.add(columns["micro_batches"] >= columns["pp"])
        self._when(constraint, ENOUGH_MICRO_BATCHES, self._conditions.get(ENOUGH_MICRO_BATCHES, True))

    def _every_block_somewhere(self) -> None:
        """The ranks hold the model's blocks of each kind."""
        for k, count in enumerate(self._data.counts):
            held = sum(rank[k] for rank in self._variables.blocks)
            self._model.add(held == int(count)).with_name(f"all_blocks_{k}")

    def _fewest_blocks_per_rank(self) -> None:
        """Every chunk holds a block, but the first and the last may be empty; ranks beyond pp hold none."""
        terms, ranks = self._data.terms, self._data.ranks
        for shape, literal in self._variables.shapes.items():
            member = self._data.of_shape(shape)[0]
            fewest = fewest_blocks(terms.take(np.array([member])), ranks)[0]
            for s, blocks in enumerate(self._variables.blocks):
                held = sum(blocks)
                # Ranks are those of the deepest shape: shallower ones leave the last of them empty.
                constraint = self._model.add(held >= int(fewest[s]) if s < shape[0] else held == 0)
                self._when(constraint, f"fewest_blocks_{shape[0]}_{shape[1]}_{s}", literal)

    def _near_equal_stages(self) -> None:
        """Inner stages hold ``smallest`` blocks or one more, the first and the last one fewer to one more."""
        if self._data.rule.split is not Split.NEAR_EQUAL:
            return
        smallest = self._variables.smallest
        for shape, literal in self._variables.shapes.items():
            pp, vp, folded = shape
            inner = shape.stages > 2
            for s, blocks in enumerate(self._variables.blocks[:pp]):
                ends = 2 * (s == 0) if folded else int(pp > 1 and s in (0, pp - 1))
                fewer = ends if inner else 0
                name = f"near_equal_{pp}_{vp}_{s}"
                self._when(self._model.add(sum(blocks) >= vp * smallest - fewer), name + "_least", literal)
                self._when(self._model.add(sum(blocks) <= vp * (smallest + 1)), name + "_most", literal)
            for j in (
                self._ends(shape) if folded else ()
            ):  # both on the first rank, without an inner chunk beside
                own = sum(self._variables.stages[shape].blocks[j])
                name = f"near_equal_end_{shape}_{j}"
                self._when(self._model.add(own >= smallest - int(inner)), name + "_least", literal)
                self._when(self._model.add(own <= smallest + 1), name + "_most", literal)
            if inner and (vp == 1 or folded):
                # Some inner stage is the smallest one; elsewhere a short end's own chunks see to it.
                ranks = self._variables.blocks[1:pp] if folded else self._variables.blocks[1 : pp - 1]
                held = sum(sum(blocks) for blocks in ranks)
                constraint = self._model.add(held <= len(ranks) * vp * (smallest + 1) - 1)
                self._when(constraint, f"near_equal_{pp}_{vp}", literal)

    def _counted_stages(self) -> None:
        """Splits that the framework makes itself: the only one there is, or equal ranks between free ends."""
        if self._data.rule.split not in COUNTED:
            return
        for shape, literal in self._variables.shapes.items():
            listed = boxes(self._data.rule, shape.pp, shape.vp, self._data.blocks, folded=shape.folded)
            first_two = list(islice(listed, 2))
            totals = [sum(blocks) for blocks in self._variables.blocks[: shape.pp]]
            if not first_two:
                # A shape that no split fits must not be chosen: a constraint that nothing meets says so.
                self._when(self._model.add(totals[0] <= -1), f"no_split_{shape}", literal)
            elif len(first_two) == 1 and (first_two[0][0] == first_two[0][1]).all():
                for s, number in enumerate(first_two[0][0].tolist()):
                    self._when(self._model.add(totals[s] == number), f"own_split_{shape}_{s}", literal)
            else:
                self._equal_middle(shape, literal, totals)

    def _equal_middle(self, shape: Shape, literal: Literal, totals: Sequence[cp_model.LinearExprT]) -> None:
        """Equal chunks and equal middle ranks; or equal stages of which the first or the last may hold one fewer."""
        model, blocks, vp = self._model, self._data.blocks, shape.vp
        counts_ends = vp > 1
        regular: Literal = model.new_bool_var(f"regular_{shape}") if counts_ends else True
        for s, total in enumerate(totals):
            chunk = model.new_int_var(1, blocks, f"chunk_{shape}_{s}")
            self._when(model.add(total == vp * chunk), f"equal_chunks_{shape}_{s}", literal, regular)
            # The first middle rank sets the size of the others; both ends are free.
            if 1 < s < shape.pp - 1:
                self._when(model.add(total == totals[1]), f"equal_middle_{shape}_{s}", literal, regular)
        if regular is True:
            return
        ends = [model.new_int_var(0, 1, f"counts_end_{shape}_{place}") for place in ("first", "last")]
        fewer = {0: sum(ends)} if shape.folded else {0: ends[0], shape.pp - 1: ends[1]}
        size = model.new_int_var(1, blocks, f"equal_stages_{shape}")
        for place, end in enumerate(ends):
            self._when(model.add(size >= 1 + end), f"end_not_empty_{shape}_{place}", literal, ~regular)
        for s, total in enumerate(totals):
            constraint = model.add(total == vp * size - fewer.get(s, 0))
            self._when(constraint, f"counted_ends_{shape}_{s}", literal, ~regular)

    def _stages_in_order(self) -> None:
        """Virtual stages take the runs in order: a run starts in a stage only when the one before ends there or earlier."""
        for shape, stages in self._variables.stages.items():
            literal = self._variables.shapes[shape]
            kinds = range(len(self._data.counts))
            for k in kinds:
                for s in range(shape[0]):
                    own = sum(stages.blocks[j][k] for j in shape.of_rank(s))
                    constraint = self._model.add(self._variables.blocks[s][k] == own)
                    self._when(constraint, f"rank_is_its_stages_{shape}_{s}_{k}", literal)
                if k < len(self._data.counts) - 1 and not stages.ends:
                    self._finish_run(shape, stages, k)
            if stages.ends:
                self._alternate(shape, stages)

    def _alternate(self, shape: Shape, stages: StageVariables) -> None:
        """Where kinds alternate, the block behind a stage says how many of each kind there are up to it."""
        model = self._model
        for j, (end, blocks) in enumerate(zip(stages.ends, stages.blocks, strict=True)):
            start = stages.ends[j - 1] if j else 0
            model.add(end == start + sum(blocks)).with_name(f"end_{shape}_{j}")
            for k, own in enumerate(blocks):
                before = stages.until[j - 1][k] if j else 0
                model.add(stages.until[j][k] == before + own).with_name(f"until_{shape}_{j}_{k}")
                model.add_element(end, self._before(k), stages.until[j][k])

    def _before(self, k: int) -> list[int]:
        """Return how many of the model's first blocks are of a kind."""
        before: list[int] = kinds_before(self._data.rule.order, len(self._data.counts))[:, k].tolist()
        return before

    def _finish_run(self, shape: Shape, stages: StageVariables, k: int) -> None:
        model, literal, count = self._model, self._variables.shapes[shape], int(self._data.counts[k])
        for j, blocks in enumerate(stages.blocks):
            before = stages.until[j - 1][k] if j else 0
            name = f"{shape}_{j}_{k}"
            model.add(stages.until[j][k] == before + blocks[k]).with_name(f"until_{name}")
            done = stages.finished[j][k]
            self._when(model.add(stages.until[j][k] == count), f"finished_{name}", literal, done)
            if j:
                model.add_implication(stages.finished[j - 1][k], done)
            self._when(model.add(blocks[k + 1] == 0), f"run_order_{name}", literal, ~done)

    def _balanced_chunks(self) -> None:
        """Chunks of a rank differ by at most one block, the larger ones last; the two ends may hold fewer.

        Splits that are not free keep the ends to within one block too, and those that the framework counts out let
        no other stage hold fewer than an end.
        """
        for shape, stages in self._variables.stages.items():
            literal, ends = self._variables.shapes[shape], self._ends(shape)
            for j, blocks in enumerate(stages.blocks):
                self._when(
                    self._model.add(sum(blocks) >= int(j not in ends)),
                    f"stage_not_empty_{shape}_{j}",
                    literal,
                )
            for s in range(shape.pp if shape.vp > 1 else 0):
                self._balanced_rank(shape, s, stages, ends)

    @staticmethod
    def _ends(shape: Shape) -> tuple[int, ...]:
        """Return the virtual stages that may be empty."""
        return () if shape.pp == 1 and not shape.folded else (0, shape.stages - 1)

    def _balanced_rank(self, shape: Shape, s: int, stages: StageVariables, ends: tuple[int, ...]) -> None:
        model, literal, split = self._model, self._variables.shapes[shape], self._data.rule.split
        name = f"{shape}_{s}"
        inner = [j for j in shape.of_rank(s) if j not in ends]
        small = model.new_int_var(0, self._data.blocks // max(len(inner), 1), f"smaller_chunk_{name}")
        larger = [model.new_bool_var(f"larger_{name}_{i}") for i in range(len(inner))]
        for j, more in zip(inner, larger, strict=True):
            self._when(model.add(sum(stages.blocks[j]) == small + more), f"chunk_balance_{name}_{j}", literal)
        # The larger chunks come last: orders that differ in nothing else are one layout.
        for one, other in pairwise(larger):
            model.add_implication(one, other)
        edges = [sum(stages.blocks[j]) for j in inner[:: max(len(inner) - 1, 1)]]
        for j in (j for j in shape.of_rank(s) if j in ends):
            for i, edge in enumerate(edges):
                own = sum(stages.blocks[j])
                most = own <= edge if split in COUNTED else own <= edge + 1
                self._when(model.add(most), f"end_at_most_{name}_{j}_{i}", literal)
                if split is not Split.FREE:
                    self._when(model.add(own >= edge - 1), f"end_at_least_{name}_{j}_{i}", literal)

    def _recomputation(self) -> None:
        """Recomputed blocks follow the rule; tuples that may not recompute whole blocks recompute none."""
        kinds = range(len(self._data.counts))
        pairs = list(zip(self._variables.blocks, self._variables.recomputed, strict=True))
        for s, (blocks, recomputed) in enumerate(pairs):
            for k in kinds:
                self._model.add(recomputed[k] <= blocks[k]).with_name(f"recompute_own_{s}_{k}")
        # Nothing may ever be recomputed here: no literal has to switch it off.
        if not self._data.terms.may_recompute.any():
            self._nothing_recomputed()
            return
        for shape, stages in self._variables.stages.items():
            self._stages_recompute(shape, stages)
        for i, may in enumerate(self._data.terms.may_recompute):
            if not may:
                constraint = self._model.add(sum(self._variables.recomputed_total) == 0)
                self._when(constraint, f"no_recompute_{i}", self._variables.chosen[i])
        if self._data.rule.recomputation is Recomputation.ALL_OR_NONE:
            self._all_or_none()
        elif self._data.rule.recomputation is Recomputation.UNIFORM_COUNT:
            self._uniform_count()

    def _nothing_recomputed(self) -> None:
        of_stages = (row for stages in self._variables.stages.values() for row in stages.recomputed)
        for row in (*self._variables.recomputed, *of_stages):
            for variable in row:
                self._model.add(variable == 0)

    def _stages_recompute(self, shape: Shape, stages: StageVariables) -> None:
        """A rank recomputes what its stages recompute, each of its own blocks."""
        model, literal = self._model, self._variables.shapes[shape]
        for j, (blocks, recomputed) in enumerate(zip(stages.blocks, stages.recomputed, strict=True)):
            for k, own in enumerate(recomputed):
                model.add(own <= blocks[k]).with_name(f"recompute_own_stage_{shape}_{j}_{k}")
        for s, k in np.ndindex(shape.pp, len(self._data.counts)):
            total = sum(stages.recomputed[j][k] for j in shape.of_rank(s))
            constraint = model.add(self._variables.recomputed[s][k] == total)
            self._when(constraint, f"rank_recomputes_its_stages_{shape}_{s}_{k}", literal)

    def _all_or_none(self) -> None:
        everything = self._variables.everything
        for k, (total, count) in enumerate(
            zip(self._variables.recomputed_total, self._data.counts, strict=True)
        ):
            self._when(self._model.add(total == int(count)), f"recompute_all_{k}", everything)
            self._when(self._model.add(total == 0), f"recompute_none_{k}", ~everything)

    def _uniform_count(self) -> None:
        """Every virtual stage recomputes its first min(count, blocks) blocks."""
        variables = self._variables
        for shape, stages in variables.stages.items():
            self._first_blocks(shape, stages)
        if not variables.stages:
            for s, (blocks, recomputed) in enumerate(
                zip(variables.blocks, variables.recomputed, strict=True)
            ):
                self._first_of(blocks, recomputed, variables.count, self._data.blocks, str(s))

    def _first_of(
        self,
        blocks: Sequence[cp_model.IntVar],
        recomputed: Sequence[cp_model.IntVar],
        limit: cp_model.IntVar,
        most: int,
        name: str,
    ) -> None:
        """Recompute min(limit, blocks), with a literal that tells which of the two it is.

        Plain linear constraints beside the literal let the relaxation see that recomputed blocks add up to all
        blocks where the limit is above them; the solver's own minimum has no such relaxation.
        """
        model, number, again = self._model, sum(blocks), sum(recomputed)
        whole = model.new_bool_var(f"whole_{name}")
        model.add(again <= limit).with_name(f"at_most_limit_{name}")
        model.add(number - again <= self._data.blocks * (1 - whole)).with_name(f"all_of_{name}")
        model.add(limit - again <= most * whole).with_name(f"limit_of_{name}")
        self._when(model.add(number <= limit), f"whole_{name}_within", whole)
        self._when(model.add(number >= limit + 1), f"whole_{name}_beyond", ~whole)

    def _first_blocks(self, shape: Shape, stages: StageVariables) -> None:
        """A stage recomputes its first blocks, whatever their kinds."""
        variables, kinds = self._variables, range(len(self._data.counts))
        for j, (blocks, recomputed) in enumerate(zip(stages.blocks, stages.recomputed, strict=True)):
            if stages.ends:
                self._first_of(blocks, recomputed, variables.count, self._data.blocks, f"{shape}_{j}")
                last = self._model.new_int_var(0, self._data.blocks, f"recomputed_end_{shape}_{j}")
                start = stages.ends[j - 1] if j else 0
                self._model.add(last == start + sum(recomputed)).with_name(f"recomputed_end_{shape}_{j}")
                for k, own in enumerate(recomputed):
                    before = stages.until[j - 1][k] if j else 0
                    self._model.add_element(last, self._before(k), before + own)
                continue
            for k in kinds:
                name = f"{shape}_{j}_{k}"
                upto = slice(k + 1)
                self._first_of(blocks[upto], recomputed[upto], variables.count, self._data.blocks, name)

    def _whole_groups(self) -> None:
        """Layers that are recomputed from one saved input lie in one stage, and fill it up."""
        groups = self._data.terms.group
        for i in np.flatnonzero(groups > 1).tolist():
            shape, group = self._data.shape_of(i), int(groups[i])
            for chunk, s in product(range(shape.vp), range(shape.pp)):
                label = f"groups_{i}_{chunk}_{s}"
                number = self._model.new_int_var(0, self._data.blocks // group, label)
                own = sum(self._variables.seat(shape, chunk, s)[0])
                self._when(self._model.add(own == group * number), label, self._variables.chosen[i])

    def _recomputing_ranks(self) -> None:
        """Count recomputed blocks, and mark the ranks that need the buffer of a recomputed block."""
        model, variables = self._model, self._variables
        for k, total in enumerate(variables.recomputed_total):
            model.add(total == sum(rank[k] for rank in variables.recomputed)).with_name(
                f"recomputed_total_{k}"
            )
        for s, (literal, recomputed) in enumerate(
            zip(variables.recomputes, variables.recomputed, strict=True)
        ):
            self._when(model.add(sum(recomputed) == 0), f"recomputes_nothing_{s}", ~literal)

    def _memory(self, i: int, s: int) -> cp_model.LinearExpr:
        """Memory of a rank beyond what it holds without blocks, in KiB."""
        numbers, variables = self._data.numbers, self._variables
        held = _dot(numbers.held_kib[i, s].tolist(), variables.blocks[s])
        saved = _dot(numbers.saved_kib[i, s].tolist(), variables.recomputed[s])
        return held - saved + int(numbers.buffer_kib[i]) * variables.recomputes[s]

    def _memory_fits(self) -> None:
        """Every rank's states, activations in flight and buffers fit its memory."""
        condition = self._conditions.get(MEMORY, True)
        for i, literal in enumerate(self._variables.chosen):
            for s in range(int(self._data.terms.pp[i])):
                room = int(self._data.numbers.room_kib[i, s])
                self._when(self._model.add(self._memory(i, s) <= room), f"memory_{i}_{s}", literal, condition)

    def add_peak_memory(self) -> None:
        """``peak_kib`` is at least the memory of every rank; where step time is minimised, only on demand."""
        capacity = (self._data.terms.capacity_bytes / KIB).astype(int)
        for i, literal in enumerate(self._variables.chosen):
            for s in range(int(self._data.terms.pp[i])):
                ends = int(capacity[i] - self._data.numbers.room_kib[i, s])
                # Room leaves out what a rank holds without blocks; the peak counts it.
                constraint = self._model.add(self._variables.peak_kib >= self._memory(i, s) + ends)
                self._when(constraint, f"peak_memory_{i}_{s}", literal)

    def _floors(self) -> None:
        """The step is at least the path that stays on any rank."""
        numbers, variables = self._data.numbers, self._variables
        for i, literal in enumerate(variables.chosen):
            again = _dot(numbers.again_ns[i].tolist(), variables.recomputed_total)
            for s in range(int(self._data.terms.pp[i])):
                time = _dot(numbers.floor_layer_ns[i, :, s].tolist(), variables.blocks[s])
                time += _dot(numbers.floor_again_ns[i, :, s].tolist(), variables.recomputed[s])
                constraint = self._model.add(
                    variables.step_ns >= time + again + int(numbers.floor_base_ns[i, s])
                )
                self._when(constraint, f"floor_{i}_{s}", literal)

    def add_path(self, i: int, form: PathForm) -> None:
        """The step of a tuple is at least a path through its schedule."""
        variables, terms = self._variables, self._data.terms.take(np.array([i]))
        shape = self._data.shape_of(i)
        block, again = (
            # Rounded down, so that the path stays a floor under the true step.
            np.floor(values[0] * PER_SECOND)
            for values in (form.block_s(terms), form.again_s(terms))
        )
        line = cp_model.LinearExpr.affine(
            variables.row, 0, int(np.floor(form.constant_s(terms)[0] * PER_SECOND))
        )
        for chunk, rank in np.ndindex(shape.vp, shape.pp):
            blocks, recomputed = variables.seat(shape, chunk, rank)
            line += _dot(block[chunk, rank].astype(np.int64).tolist(), blocks)
            if terms.may_recompute[0]:
                line += _dot(again[chunk, rank].astype(np.int64).tolist(), recomputed)
        self._when(self._model.add(variables.step_ns >= line), f"path_{i}", variables.chosen[i])

    def _cuts(self) -> None:
        """The slice's lower bound holds, and the incumbent must be beaten."""
        if self._data.lower_s > 0:
            # Coefficients are rounded: both limits give way by as much, or they would cut layouts off.
            bound = int(self._data.lower_s * PER_SECOND - self._data.rounding_ns)
            self._model.add(self._variables.step_ns >= bound).with_name("bound")
        if self._data.upper_s < float("inf"):
            limit = int(self._data.upper_s * PER_SECOND - self._data.rounding_ns)
            self._model.add(self._variables.step_ns <= limit).with_name("incumbent")


def _dot(numbers: Sequence[int], variables: Sequence[cp_model.IntVar]) -> cp_model.LinearExpr:
    return cp_model.LinearExpr.weighted_sum(list(variables), list(numbers))
