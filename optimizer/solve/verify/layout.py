"""Find a stated layout in a space, read its stages against the stage rule, and price it again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.batch import DEGREES
from layoutopt.optimizer.cost.schedules import SCHEDULES, distinct_rank_of_entry, seats
from layoutopt.optimizer.cost.step import step_s
from layoutopt.optimizer.cost.terms import StageCosts, price_stages
from layoutopt.optimizer.frameworks.stage_rule import Recomputation, StageRule
from layoutopt.optimizer.solve.search.demands import Finished
from layoutopt.optimizer.solve.verify.plain_reader import short
from layoutopt.optimizer.space.stage_splits import allowed_sizes, balanced
from layoutopt.optimizer.space.stages import model_order
from layoutopt.optimizer.space.switch_sets import codes_like
from layoutopt.optimizer.specs.layout import Recompute
from layoutopt.optimizer.specs.vocabulary import Granularity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from layoutopt.optimizer.cost.batch import LayoutBatch
    from layoutopt.optimizer.cost.terms import IntArray, StageTerms
    from layoutopt.optimizer.solve.verify.exclusion import PricedSpace
    from layoutopt.optimizer.specs.layout import Layout, VirtualStage
    from layoutopt.optimizer.specs.model import ModelSpec, Run

    _Modifier = tuple[str, Sequence[object] | None, list[object]]


class Refuted(Exception):
    """A statement of the plan is false; the text says which and why in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedLayout:
    """A stated layout as a batch of one, its blocks and recomputed blocks (V, P, K), its memory and its exact step."""

    batch: LayoutBatch
    blocks: IntArray
    recomputed: IntArray
    costs: StageCosts
    step_time_s: float
    capacity_bytes: float

    @property
    def key(self) -> bytes:
        """What is the same for the same layout only: its tuple and its stages."""
        return self.batch.table().tobytes() + self.blocks.tobytes() + self.recomputed.tobytes()


def price_stated(space: PricedSpace, layout: Layout, runs: Sequence[Run]) -> PricedLayout:
    """Price a stated layout of a model with ``runs``; raise ``Refuted`` where it isn't one of the space."""
    batch = find_tuple(space, layout)
    terms = space.terms(batch)
    may_recompute = bool(terms.may_recompute[0])
    blocks, recomputed = read_stages(layout, runs, space.rule, may_recompute=may_recompute)
    check_groups(blocks, terms)
    depth = terms.in_flight.shape[1]
    padded = np.zeros((2, 1, depth, len(runs)), dtype=np.int64)
    padded[:, 0, : blocks.shape[1]] = blocks.sum(axis=0), recomputed.sum(axis=0)
    costs = price_stages(terms, padded[0], padded[1])
    # The closed form orders searches; what a plan states is the step of the order that really runs.
    costs = replace(costs, step_time_s=step_s(terms, 0, blocks[None], recomputed[None]))
    finished = Finished(
        batch=batch, ranks=blocks.shape[1], blocks=padded[0], recomputed=padded[1],
        step_s=costs.step_time_s, peak_bytes=costs.peak_bytes,
    )  # fmt: skip
    if space.demands.any:
        missed = next(space.demands.explained(finished), None)
        if missed is not None:
            raise Refuted(f"it misses what is required: {missed}")
    return PricedLayout(
        batch=batch,
        blocks=blocks,
        recomputed=recomputed,
        costs=costs,
        step_time_s=float(costs.step_time_s[0]),
        capacity_bytes=float(terms.capacity_bytes[0]),
    )


def find_tuple(space: PricedSpace, layout: Layout) -> LayoutBatch:
    """Return the tuple of a stated layout as a batch of one; raise ``Refuted`` if the space has none."""
    rows = space.degrees
    same = np.ones(len(rows), dtype=bool)
    for name in DEGREES:
        value = getattr(layout, name)
        same &= getattr(rows, name) == value
        # The first degree that no row has beside those before it is the one to name.
        if not same.any():
            raise Refuted(f"{name} {value} with the degrees before it is not in the space")
    # Rows of the table have one choice of modifiers each: the stated one is among all of theirs.
    batch, _ = space.expand(rows.take(np.flatnonzero(same)))
    same = np.ones(len(batch), dtype=bool)
    for name, meanings, preferred in _modifiers(batch, layout, space.model):
        column = getattr(batch, name)
        choices = [same & _means(column, meanings, stated) for stated in preferred]
        found = next((choice for choice in choices if choice.any()), None)
        if found is None:
            raise Refuted(
                f"{name} {short(str(preferred[0]))} with these degrees and modifiers is not in the space"
            )
        same = found
    # A proof is about one tuple: which one must not depend on who reads the plan.
    if same.sum() > 1:
        raise Refuted("the layout leaves open which of several tuples it means")
    return batch.take(np.flatnonzero(same))


def _means(column: IntArray, meanings: Sequence[object] | None, stated: object) -> NDArray[np.bool_]:
    """Tell which entries of a column mean what is stated; without ``meanings`` they are numbers."""
    if meanings is None:
        return np.asarray(column == stated)
    return np.isin(column, [code for code, meaning in enumerate(meanings) if meaning == stated])


def _modifiers(batch: LayoutBatch, layout: Layout, model: ModelSpec | None) -> list[_Modifier]:
    """List each code column, what its codes mean, and the stated meanings in order of preference."""
    book = batch.codebook
    recomputes: list[object] = [layout.recompute]
    if layout.recompute == Recompute() and not any(stage.recomputed for stage in layout.stages):
        # Whole layers, any number of them, includes none of them: a space may hold both or only this.
        recomputes.append(Recompute(granularity=Granularity.FULL))
    own = (layout.precision, layout.savers, layout.switches)
    alike = codes_like(layout, model, book)
    formats = [own if same else entry for entry, same in zip(book.formats, alike, strict=True)]
    return [
        ("sp", None, [int(layout.sp)]),
        ("zero", None, [layout.zero]),
        ("hsdp_shard", None, [layout.hsdp_shard or 0]),
        ("order", book.orders, [layout.mesh_order]),
        ("schedule", book.schedules, [layout.schedule]),
        ("precision", formats, [own]),
        # Last: under which entry layers without recomputation stand depends on the switches beside them.
        ("recompute", book.recomputes, recomputes),
    ]


def read_stages(
    layout: Layout, runs: Sequence[Run], rule: StageRule, *, may_recompute: bool
) -> tuple[IntArray, IntArray]:
    """Return blocks and recomputed blocks (V, P, K) by chunk and rank; raise ``Refuted`` where stages break a rule."""
    ranks, chunks, schedule = layout.pp, layout.vp, layout.schedule
    if len(layout.stages) != ranks * chunks:
        raise Refuted(f"{len(layout.stages)} stages stated, pp * vp is {ranks * chunks}")
    # The model says the kind of every block in turn: a plan moves no layer from where it is.
    kinds = list(rule.order) or [kind for kind, run in enumerate(runs) for _ in range(run.count)]
    blocks = np.zeros((ranks * chunks, len(runs)), dtype=np.int64)
    recomputed = np.zeros_like(blocks)
    order = model_order(ranks, chunks, schedule).tolist()
    start = 0
    for place, j in enumerate(order):
        stage = layout.stages[j]
        _check_place(j, stage, ranks, first=place == 0, last=place == len(order) - 1)
        held = kinds[start : start + stage.layers]
        start += stage.layers
        blocks[j] = np.bincount(held, minlength=len(runs))
        there = _by_name(blocks[j], runs)
        if _present(stage.kinds) != there:
            raise Refuted(f"stage {j} states kinds {short(stage.kinds)}, the model has {there} there")
        recomputed[j] = _recomputed(stage, held, runs, f"stage {j}")
    if start != len(kinds):
        raise Refuted(f"stages hold {start} blocks of {len(kinds)}")
    rank = distinct_rank_of_entry(schedule, ranks, chunks)
    check_sizes(blocks.sum(axis=1)[order], rank[order], rule, folded=SCHEDULES[schedule].folded)
    # A group's layers lie behind one saved input: a part of them can't be left out.
    if layout.recompute.group:
        if (recomputed != blocks).any():
            raise Refuted("groups of layers are recomputed from one input, but not all layers are recomputed")
    else:
        check_recomputed(blocks, recomputed, order, rule, may_recompute)
    # Priced is by chunk and distinct rank, stated by virtual stage.
    seat = seats(schedule, ranks, chunks)
    return blocks[seat], recomputed[seat]


def _check_place(j: int, stage: VirtualStage, ranks: int, *, first: bool, last: bool) -> None:
    if (stage.rank, stage.chunk) != (j % ranks, j // ranks):
        raise Refuted(
            f"stage {j} is on rank {j % ranks}, chunk {j // ranks}, not {stage.rank}, {stage.chunk}"
        )
    if (stage.embedding, stage.head) != (first, last):
        raise Refuted(f"stage {j}: the embedding is on the first stage and the head on the last")


def _present(layers: dict[str, int]) -> dict[str, int]:
    return {name: number for name, number in layers.items() if number}


def _by_name(blocks: IntArray, runs: Sequence[Run]) -> dict[str, int]:
    """Return layers by kind, without kinds that have none."""
    return {run.name: number for number, run in zip(blocks.tolist(), runs, strict=True) if number}


def _recomputed(stage: VirtualStage, held: list[int], runs: Sequence[Run], where: str) -> IntArray:
    """Return the recomputed blocks (K,): the stage's first ones, unless it says of which kinds."""
    # Trainers count from a stage's front: kinds need saying only where others are meant.
    if not stage.recomputed_kinds:
        if stage.recomputed > len(held):
            raise Refuted(f"{where}: {stage.recomputed} recomputed layers of {len(held)}")
        return np.bincount(held[: stage.recomputed], minlength=len(runs))
    chosen = np.array([stage.recomputed_kinds.get(run.name, 0) for run in runs], dtype=np.int64)
    for kind, run in enumerate(runs):
        if chosen[kind] > held.count(kind):
            raise Refuted(f"{where}: cannot recompute {chosen[kind]} layers of {run.name}")
    stated = _present(stage.recomputed_kinds)
    if sum(stated.values()) != stage.recomputed or _by_name(chosen, runs) != stated:
        raise Refuted(f"{where}: recomputed layers by kind don't add up to {stage.recomputed}")
    return chosen


def check_sizes(sizes: IntArray, place: IntArray, rule: StageRule, *, folded: bool = False) -> None:
    """Raise ``Refuted`` where stages' blocks (stages,), as tokens pass them, are outside of what the rule searches.

    ``place`` is the distinct rank of every stage; ``folded`` pipelines have both ends on the first. ``sizes`` has one
    entry per virtual stage.
    """
    stages, ranks = len(sizes), int(place.max()) + 1
    least = np.ones(stages, dtype=np.int64)
    if ranks > 1 or folded:
        # The ends hold embedding and head, and may hold no block beside them.
        least[[0, -1]] = 0
    if (sizes < least).any():
        raise Refuted(f"stage {int(np.argmax(sizes < least))} is empty")
    grid = np.stack([sizes[place == rank] for rank in range(ranks)], axis=1)[None]
    pp, vp = np.array([ranks]), np.array([stages // ranks])
    if not balanced(rule, grid, pp, vp, np.array([folded]))[0]:
        raise Refuted(
            f"the chunks of a rank, {grid[0].T.tolist()}, are not equal to within one block, in order"
        )
    if not allowed_sizes(rule, rule.split, grid, pp, vp, np.array([folded]))[0]:
        words = rule.split.replace("_", " ")
        raise Refuted(f"stages of {sizes.min()} to {sizes.max()} blocks are outside of the space: {words}")


def check_groups(blocks: IntArray, terms: StageTerms) -> None:
    """Raise ``Refuted`` where blocks (V, P, K) of a row are no whole groups that are recomputed from one input."""
    sizes, group = blocks.sum(axis=2), int(terms.group[0])
    if (sizes % group).any():
        raise Refuted(f"stages of {sizes.ravel().tolist()} blocks are no whole groups of {group}")


def check_recomputed(
    blocks: IntArray, recomputed: IntArray, passed: Sequence[int], rule: StageRule, may_recompute: bool
) -> None:
    """Raise ``Refuted`` where the recomputed blocks of stages (S, K) are none that the framework recomputes.

    ``passed`` are the stages as a token passes them.
    """
    if not recomputed.any():
        return
    if not may_recompute:
        raise Refuted("blocks are recomputed, but the layout has no full recomputation")
    sizes, numbers, how = blocks.sum(axis=1), recomputed.sum(axis=1), rule.recomputation
    if how is Recomputation.ALL_OR_NONE and (numbers != sizes).any():
        raise Refuted("the framework recomputes all blocks or none")
    if how is Recomputation.UNIFORM_COUNT:
        count = int(numbers.max())
        if (recomputed != _first_blocks(blocks, passed, rule.order, count)).any():
            raise Refuted(f"the framework recomputes the first {count} blocks of every stage")


def _first_blocks(blocks: IntArray, passed: Sequence[int], order: tuple[int, ...], count: int) -> IntArray:
    """Return the kinds (S, K) of the first ``count`` blocks of every stage."""
    if not order:
        return np.diff(np.minimum(np.cumsum(blocks, axis=1), count), axis=1, prepend=0)
    first, start = np.zeros_like(blocks), 0
    for stage in passed:
        size = int(blocks[stage].sum())
        own = np.array(order[start : start + min(size, count)], dtype=np.int64)
        first[stage] = np.bincount(own, minlength=blocks.shape[1])
        start += size
    return first
