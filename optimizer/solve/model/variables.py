"""Variables of the CP-SAT model of a slice."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.batch import CODES, DEGREES
from layoutopt.optimizer.solve.model.coefficients import KIB
from layoutopt.optimizer.solve.model.solver import cp_model
from layoutopt.optimizer.solve.splits import fewest_blocks
from layoutopt.optimizer.space.stages import kinds_before

if TYPE_CHECKING:
    from layoutopt.optimizer.solve.model.slices import Shape, TupleSlice

    IntVar = cp_model.IntVar
    Literal = cp_model.LiteralT


@dataclass(slots=True, kw_only=True)
class StageVariables:
    """Variables of the virtual stages of one shape, needed where a rank holds several or a model has several kinds.

    Lists are indexed by virtual stage, as tokens pass them, then by kind. ``blocks`` are the stage's own, ``until``
    those of the stages up to it, ``recomputed`` the recomputed ones. ``finished[j][k]``: run k ends in stage j or before.
    ``ends`` are the blocks of all kinds up to each stage.
    """

    blocks: list[list[IntVar]] = field(default_factory=list)
    until: list[list[IntVar]] = field(default_factory=list)
    recomputed: list[list[IntVar]] = field(default_factory=list)
    finished: list[list[IntVar]] = field(default_factory=list)
    ends: list[IntVar] = field(default_factory=list)


class Variables:
    """All variables, with the names that users may build constraints from.

    Attributes
    ----------
    row
        Position of the chosen tuple in the slice; ``chosen[i]`` is its literal.
    columns
        One variable per column of ``LayoutBatch``: tp, cp, pp, ..., zero, recompute, order.
    blocks, recomputed
        Blocks and recomputed blocks, [rank][kind], zero on ranks beyond pp.
    recomputes
        Literal per rank: it recomputes some block.
    recomputed_total
        Recomputed blocks of each kind on all ranks.
    count
        Number of recomputed blocks per virtual stage (``Recomputation.UNIFORM_COUNT``).
    everything
        Literal: all blocks are recomputed (``Recomputation.ALL_OR_NONE``).
    smallest
        Blocks of the smallest inner stage (``Split.NEAR_EQUAL``).
    step_ns
        The step time in nanoseconds.
    peak_kib
        Memory of the fullest rank.
    """

    def __init__(self, model: cp_model.CpModel, data: TupleSlice) -> None:
        self._model = model
        self._data = data
        blocks, kinds = data.blocks, range(len(data.counts))
        self.row = model.new_int_var(0, len(data) - 1, "row")
        self.chosen = self._chosen()
        self.shapes = self._shapes()
        self.columns = {name: self._column(name) for name in DEGREES + CODES}
        limits = self._rank_limits()
        self.blocks = [
            [
                model.new_int_var(low if len(kinds) == 1 else 0, min(high, self._count(k)), f"blocks_{s}_{k}")
                for k in kinds
            ]
            for s, (low, high) in enumerate(limits)
        ]
        self.recomputed = [
            [model.new_int_var(0, min(high, self._count(k)), f"recomputed_{s}_{k}") for k in kinds]
            for s, (_, high) in enumerate(limits)
        ]
        self.recomputes = [model.new_bool_var(f"recomputes_{s}") for s in range(data.ranks)]
        self.recomputed_total = [model.new_int_var(0, self._count(k), f"recomputed_total_{k}") for k in kinds]
        self.count = model.new_int_var(0, blocks, "recomputed_per_stage")
        self.everything = model.new_bool_var("recompute_everything")
        self.smallest = model.new_int_var(0, blocks, "smallest_stage")
        horizon_ns, horizon_kib = self._horizons()
        self.step_ns = model.new_int_var(0, horizon_ns, "step_ns")
        self.peak_kib = model.new_int_var(0, horizon_kib, "peak_kib")
        self.stages: dict[Shape, StageVariables] = {}
        # With one kind and one chunk a rank is its stage: variables of its own would say the same.
        if len(kinds) > 1 or any(shape.vp > 1 for shape in data.shapes):
            self.stages = {shape: self._stages(shape) for shape in data.shapes}

    def seat(self, shape: Shape, chunk: int, rank: int) -> tuple[list[IntVar], list[IntVar]]:
        """Return the blocks and the recomputed blocks of each kind in a chunk of a rank."""
        if shape not in self.stages:
            return self.blocks[rank], self.recomputed[rank]
        stages, j = self.stages[shape], shape.of_rank(rank)[chunk]
        return stages.blocks[j], stages.recomputed[j]

    def _count(self, kind: int) -> int:
        return int(self._data.counts[kind])

    def _chosen(self) -> list[Literal]:
        # A constant in place of a variable lets presolve drop every condition on it.
        if len(self._data) == 1:
            return [True]
        return [self._model.new_bool_var(f"chosen_{i}") for i in range(len(self._data))]

    def _shapes(self) -> dict[Shape, Literal]:
        shapes = self._data.shapes
        if len(shapes) == 1:
            return {shapes[0]: True}
        return {shape: self._model.new_bool_var(f"shape_{_label(shape)}") for shape in shapes}

    def _column(self, name: str) -> IntVar:
        # The values that occur and no range: propagation then knows what a slice can't have.
        values = sorted({int(value) for value in getattr(self._data.batch, name)})
        return self._model.new_int_var_from_domain(cp_model.Domain.from_values(values), name)

    def _rank_limits(self) -> list[tuple[int, int]]:
        """Fewest and most blocks of every rank over all tuples."""
        terms, blocks = self._data.terms, self._data.blocks
        fewest = fewest_blocks(terms, self._data.ranks)
        # What the other ranks hold at the least is not there for this one.
        most = blocks - (fewest.sum(axis=1, keepdims=True) - fewest)
        return [
            (int(low), max(int(high), 0))
            for low, high in zip(fewest.min(axis=0), most.max(axis=0), strict=True)
        ]

    def _horizons(self) -> tuple[int, int]:
        """The time and the memory of a rank that holds and recomputes everything."""
        numbers, counts = self._data.numbers, self._data.counts
        held = (numbers.held_kib @ counts - numbers.room_kib).max(axis=1)
        capacity = (self._data.terms.capacity_bytes / KIB).astype(int)
        again = np.maximum(-numbers.saved_kib @ counts, 0).max(axis=1)
        return int(numbers.horizon_ns.max()), int(
            max((held + capacity + numbers.buffer_kib + again).max(), 0)
        ) + 1

    def _stages(self, shape: Shape) -> StageVariables:
        counts, result = self._data.counts, StageVariables()
        ends, total, number = counts.cumsum(), self._data.blocks, shape.stages
        for j in range(number):
            # Only the first and the last stage may be empty: see capacity.reachable_kinds.
            near = [
                shape.pp == 1 or (j <= end and j >= end - count - total - 1 + number)
                for end, count in zip(ends, counts, strict=True)
            ]
            most = [int(count) if meets else 0 for count, meets in zip(counts, near, strict=True)]
            if self._data.rule.order:
                first, last = (
                    (0, total) if shape.pp == 1 else (max(j - 1, 0), min(total - number + j + 2, total))
                )
                before = kinds_before(self._data.rule.order, len(counts))
                most = (before[max(last, first)] - before[first]).tolist()
                result.ends.append(self._model.new_int_var(0, total, f"end_{shape}_{j}"))
            label = f"{_label(shape)}_{j}"
            new = self._model.new_int_var
            result.blocks.append([new(0, high, f"stage_{label}_{k}") for k, high in enumerate(most)])
            result.recomputed.append(
                [new(0, high, f"stage_recomputed_{label}_{k}") for k, high in enumerate(most)]
            )
            result.until.append([new(0, self._count(k), f"until_{label}_{k}") for k in range(len(counts))])
            result.finished.append(
                [self._model.new_bool_var(f"finished_{label}_{k}") for k in range(len(counts))]
            )
        return result


def _label(shape: Shape) -> str:
    return f"pp{shape.pp}_vp{shape.vp}" + "_folded" * shape.folded
