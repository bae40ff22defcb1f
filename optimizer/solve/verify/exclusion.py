"""Show that no tuple of a space has stages below a step time: at sight, or by solving its stages exactly.

Every tuple is expanded and priced. ``verify.room`` excludes most of them; the stages of the others are decided by integer
programs of verify's own (``program``), which leave the last millionths of the step time to what the search has:
enumeration and, where that decides nothing, CP-SAT. Independently of all of them, the even split of every tuple is priced,
without recomputation and with all of it: an even layout below the step time refutes the claim, whatever the bounds say.

On one core, 1.5 us per tuple beside the 3 us that its terms take, and about 2 ms for each solved tuple
(303,384 tuples of a 405B dense model in 1.4 s, 7.1 million of a 671B mixture of experts in 36 s, 220 of them
solved). Memory is flat.

Spaces of more tuples than the caller wants to price can be treated by degree rows first: the optimistic
terms of a row exclude all its tuples. Those terms serve the search too, so a sample of the excluded rows is
expanded after all.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

import numpy as np

from layoutopt.optimizer.cost.step import step_s
from layoutopt.optimizer.cost.terms import own_bytes, price_stages
from layoutopt.optimizer.frameworks.stage_rule import COUNTED
from layoutopt.optimizer.solve.model.cp_model import CpModel, SliceStatus
from layoutopt.optimizer.solve.model.paths import Paths
from layoutopt.optimizer.solve.model.slices import tuple_slice
from layoutopt.optimizer.solve.search.demands import Finished
from layoutopt.optimizer.solve.search.enumerate_stages import fastest_stages
from layoutopt.optimizer.solve.search.space_size import CountedSpace
from layoutopt.optimizer.solve.splits import chunks
from layoutopt.optimizer.solve.verify.program import AS_FAST, OwnPaths, ProgramOutcome, look_for_faster
from layoutopt.optimizer.solve.verify.room import may_be_below
from layoutopt.optimizer.space.stage_splits import own_split

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from layoutopt.optimizer.cost.batch import LayoutBatch
    from layoutopt.optimizer.cost.terms import IntArray, StageTerms
    from layoutopt.optimizer.solve.search.demands import Demands
    from layoutopt.optimizer.specs.model import ModelSpec

# Ranks priced at once (tuples times pipeline stages): about 100 MB of intermediate arrays, and enough to hide
# the fixed cost of numpy calls.
CELLS = 300_000
AUDITED_TUPLES = 1_000_000
"""Tuples of excluded rows that a sample expands at most, but for its first row: seconds even where rows hold thousands."""


class PricedSpace(CountedSpace, Protocol):
    """A space of layouts with the terms of their stages."""

    @property
    def model(self) -> ModelSpec | None:
        """The model that is trained, as far as it is known."""

    @property
    def demands(self) -> Demands:
        """What the question demands of stages, memory and time."""

    @property
    def tuples(self) -> IntArray:
        """Number of tuples of each degree row, (n,)."""

    def terms(self, batch: LayoutBatch) -> StageTerms:
        """Return the exact terms of tuples."""

    def relaxed(self, rows: LayoutBatch) -> StageTerms:
        """Return the terms of degree rows, each the most optimistic over the row's tuples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Witness:
    """A layout that refutes the claim: a batch of one, its step time, blocks and recomputed blocks (V, P, K)."""

    layout: LayoutBatch
    step_time_s: float
    blocks: IntArray
    recomputed: IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Exclusion:
    """How the tuples were excluded, up to the first problem.

    ``tuples`` were priced, of which ``at_sight`` lack room and ``exactly`` had their stages solved: ``programmed`` of them
    by verify's own programs, ``demanded`` with CP-SAT, since enumeration does not decide them;
    ``even`` even layouts were priced. ``rows_at_sight`` degree rows were excluded by their optimistic terms,
    of which ``rows_audited`` were expanded as well. ``witness`` or ``unsound`` (a term out of range) end it.
    """

    tuples: int = 0
    at_sight: int = 0
    exactly: int = 0
    programmed: int = 0
    demanded: int = 0
    even: int = 0
    rows_at_sight: int = 0
    rows_audited: int = 0
    witness: Witness | None = None
    unsound: str = ""

    @property
    def holds(self) -> bool:
        """Whether nothing below the step time was found."""
        return self.witness is None and not self.unsound

    def plus(self, other: Exclusion) -> Exclusion:
        """Add counts and keep the first problem."""
        sums = {
            f.name: getattr(self, f.name) + getattr(other, f.name)
            for f in fields(self)
            if f.name not in ("witness", "unsound")
        }
        return Exclusion(witness=self.witness or other.witness, unsound=self.unsound or other.unsound, **sums)


def exclude_tuples(
    space: PricedSpace,
    below_s: float,
    *,
    every_tuple: bool = True,
    audit_rows: int = 512,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Exclusion:
    """Try to exclude every layout of ``space`` below ``below_s`` seconds, inf for every layout that fits.

    Without ``every_tuple``, optimistic terms exclude degree rows first, and up to ``audit_rows`` rows drawn with
    ``seed`` are expanded in any case. ``progress`` is called with the degree rows done and their number.
    """
    total = len(space.degrees)
    audited = np.zeros(total, dtype=bool)
    audited[_sample(space.tuples, audit_rows, seed)] = True
    done, sum_, known = 0, Exclusion(), _Known()
    for index in _row_chunks(space):
        rows = space.degrees.take(index)
        part = Exclusion()
        if not every_tuple:
            left = may_be_below(space.relaxed(rows), space.counts, below_s)
            sample = audited[index] & ~left
            part = Exclusion(rows_at_sight=int((~left).sum()), rows_audited=int(sample.sum()))
            rows = rows.take(np.flatnonzero(left | sample))
        sum_ = sum_.plus(part).plus(_exclude_rows(space, rows, below_s, known))
        done += len(index)
        if progress:
            progress(done, total)
        if not sum_.holds:
            break
    return sum_


def _sample(tuples: IntArray, rows: int, seed: int) -> IntArray:
    """Draw degree rows that together hold no more tuples than an audit expands."""
    drawn = np.random.default_rng(seed).permutation(len(tuples))[:rows]
    before = np.cumsum(tuples[drawn]) - tuples[drawn]
    return np.asarray(drawn[before < AUDITED_TUPLES])


def _row_chunks(space: PricedSpace) -> Iterator[IntArray]:
    """Yield degree rows by pp, so that padding to the deepest pipeline of a chunk costs little."""
    pp = space.degrees.pp
    order = np.argsort(pp, kind="stable")
    start = 0
    while start < len(order):
        depth = int(pp[order[start]])
        end = min(
            start + max(1, CELLS // (2 * depth)), int(np.searchsorted(pp[order], 2 * depth, side="left"))
        )
        yield order[start:end]
        start = end


def _exclude_rows(space: PricedSpace, rows: LayoutBatch, below_s: float, known: _Known) -> Exclusion:
    """Expand degree rows in portions whose size follows from the tuples per row seen so far."""
    start, portion, sum_ = 0, 16, Exclusion()
    while start < len(rows) and sum_.holds:
        part = rows.take(np.arange(start, min(start + portion, len(rows))))
        batch, _ = space.expand(part)
        room = CELLS // int(rows.pp.max())
        for first in range(0, len(batch), max(1, room)):
            piece = batch.take(np.arange(first, min(first + max(1, room), len(batch))))
            sum_ = sum_.plus(_examine(space, piece, below_s, known))
            if not sum_.holds:
                break
        start += len(part)
        # Rows expand to very different numbers of tuples.
        portion = max(1, int(room * len(part) / max(1, len(batch))))
    return sum_


def _examine(space: PricedSpace, batch: LayoutBatch, below_s: float, known: _Known) -> Exclusion:
    terms = space.terms(batch)
    unsound = unsound_terms(terms)
    if unsound:
        return Exclusion(tuples=len(batch), unsound=unsound)
    even, witness = _price_even(space, batch, terms, below_s)
    # What breaks the question's own limit is no counterexample.
    limit_s = np.minimum(space.demands.limit_s(batch) * (1 + _AT_LIMIT), below_s)
    left = np.flatnonzero(may_be_below(terms, space.counts, limit_s))
    found = Exclusion(
        tuples=len(batch), at_sight=len(batch) - len(left), exactly=len(left), even=even, witness=witness
    )
    rows = left if space.demands.any else left[_distinct(terms.take(left))]
    for row in rows.tolist() if witness is None else ():
        one, layout = terms.take(np.array([row])), batch.take(np.array([row]))
        decided, faster = _decide(space, layout, one, float(limit_s[row]), known)
        found = replace(found.plus(decided), witness=faster)
        if faster is not None:
            break
    return found


@dataclass(slots=True)
class _Known:
    """What carries over from tuple to tuple: paths found by verify itself and by the search's code, tuples decided."""

    own: OwnPaths = field(default_factory=OwnPaths)
    paths: Paths = field(default_factory=Paths)
    decided: int = 0


ALWAYS, EVERY = 256, 8
"""So many tuples that lack no room are given to verify's own programs, and every so many-th of those behind them."""


def _decide(
    space: PricedSpace, layout: LayoutBatch, terms: StageTerms, below_s: float, known: _Known
) -> tuple[Exclusion, Witness | None]:
    """Look for stages of one tuple below a step time; return what looked, and what it found."""
    known.decided += 1
    programmed = False
    if known.decided <= ALWAYS or known.decided % EVERY == 0:
        outcome, proposal = look_for_faster(terms, space.counts, space.rule, below_s, known.own)
        programmed = outcome is not ProgramOutcome.OPEN
        if proposal is not None:
            witness = Witness(
                layout=layout,
                step_time_s=proposal.step_s,
                blocks=proposal.blocks,
                recomputed=proposal.recomputed,
            )
            if _meets_demands(space, terms, witness):
                return Exclusion(programmed=1), witness
            programmed = False
    if _nothing_faster(space, terms, below_s, known.paths):
        return Exclusion(programmed=int(programmed)), None
    faster = _faster(space, layout, terms, below_s, known.paths)
    return Exclusion(programmed=int(programmed), demanded=1), faster


def _nothing_faster(space: PricedSpace, terms: StageTerms, below_s: float, paths: Paths) -> bool:
    """Whether enumerating a tuple's stages shows that none takes less than a step time."""
    # equally fast tuples are no contradiction: what differs by the rounding of sums counts as equal
    found = fastest_stages(terms, space.counts, space.rule, paths, below_s, below_s * AS_FAST)
    return found.proven and found.blocks is None


_AT_LIMIT = 1e-9
"""What a question lets a step take is met by times that differ by rounding."""


def _meets_demands(space: PricedSpace, terms: StageTerms, witness: Witness) -> bool:
    if not space.demands.any:
        return True
    ranks = witness.blocks.shape[1]
    room = ((0, terms.in_flight.shape[1] - ranks), (0, 0))
    blocks, again = (np.pad(held.sum(axis=0), room)[None] for held in (witness.blocks, witness.recomputed))
    finished = Finished(
        batch=witness.layout,
        ranks=ranks,
        blocks=blocks,
        recomputed=again,
        step_s=np.array([witness.step_time_s]),
        peak_bytes=price_stages(terms, blocks, again).peak_bytes,
    )
    return bool(space.demands.met(finished)[0])


def _faster(
    space: PricedSpace, layout: LayoutBatch, terms: StageTerms, below_s: float, paths: Paths
) -> Witness | None:
    """Look for stages of one tuple below a step time that meet the question's demands."""
    data = tuple_slice(layout, terms, space.counts, space.rule, upper_s=below_s)
    result = CpModel(data, demands=space.demands, paths=paths).solve()
    if result.status is SliceStatus.NO_BETTER or result.blocks is None or result.recomputed is None:
        return None
    return Witness(
        layout=layout, step_time_s=result.step_time_s, blocks=result.blocks, recomputed=result.recomputed
    )


def _distinct(terms: StageTerms) -> IntArray:
    """Return one row of each set of equal rows: many mesh orders cost the same."""
    if not len(terms):
        return np.zeros(0, dtype=np.int64)
    columns = [getattr(terms, f.name).reshape(len(terms), -1).astype(float) for f in fields(terms)]
    _, index = np.unique(np.concatenate(columns, axis=1), axis=0, return_index=True)
    first: IntArray = np.sort(index)
    return first


_OF_ENDS = ("first_bytes", "last_bytes")


def unsound_terms(terms: StageTerms) -> str:
    """Name a term that is out of the range in which bounds are valid; empty if all are in range."""
    ranks = np.arange(terms.in_flight.shape[1])
    # The ends of torch's pipelines keep no tensors of a neighbour that is not there: what they add may be less than
    # nothing, what they hold may not.
    held = np.where(ranks < terms.pp[:, None], own_bytes(terms), 0.0)
    values_of = {f.name: getattr(terms, f.name) for f in fields(terms)} | {"own_bytes": held}
    for name, values in values_of.items():
        if not (np.isfinite(values) if name in _OF_ENDS else values >= 0).all():  # true for nan as well
            return f"{name} is negative or not a number"
    if (terms.bubble_weight >= terms.micro_batches).any():
        return "bubble_weight is not below micro_batches"
    grows = (terms.recomputed_activation_bytes > terms.layer_activation_bytes) & terms.may_recompute[:, None]
    return "recomputing a block increases its activations" if grows.any() else ""


def _price_even(
    space: PricedSpace, batch: LayoutBatch, terms: StageTerms, below_s: float
) -> tuple[int, Witness | None]:
    """Price the even split of every tuple; return how many layouts that were, and one below ``below_s``.

    The closed form of equal ranks tells which are worth an exact price.
    """
    blocks, valid = _even_blocks(space, terms)
    priced = 0
    for recomputed, allowed in ((np.zeros_like(blocks), valid), (blocks, valid & terms.may_recompute)):
        costs = price_stages(terms, blocks, recomputed)
        better = np.flatnonzero(allowed & costs.fits & (costs.step_time_s < below_s))
        priced += int(allowed.sum())
        for row in better[np.argsort(costs.step_time_s[better])][:EVEN_PRICED]:
            one = terms.take(np.array([row]))
            depth = int(terms.pp[row])
            kinds = chunks(blocks[row : row + 1].sum(axis=2), one).kinds(space.counts, space.rule.order)[
                0, :, :depth
            ]
            again = kinds if recomputed[row].any() else np.zeros_like(kinds)
            step = float(step_s(one, 0, kinds[None], again[None])[0])
            witness = Witness(
                layout=batch.take(np.array([row])), step_time_s=step, blocks=kinds, recomputed=again
            )
            if step < below_s and _meets_demands(space, one, witness):
                return priced, witness
    return priced, None


EVEN_PRICED = 16
"""Even layouts of one portion of tuples that are priced exactly, the likeliest first."""


def _even_blocks(space: PricedSpace, terms: StageTerms) -> tuple[IntArray, NDArray[np.bool_]]:
    """Return the even split (n, P, K) of every tuple, zeros where there is none, and whether there is."""
    counts = tuple(int(count) for count in space.counts)
    deepest = int(terms.vp.max()) + 1
    shapes, which = np.unique((terms.pp * deepest + terms.vp) * 2 + terms.folded, return_inverse=True)
    ranks, chunks = np.divmod(shapes // 2, deepest)
    folded = shapes % 2 == 1
    table = np.zeros((len(shapes), terms.in_flight.shape[1], len(counts)), dtype=np.int64)
    valid = ranks * chunks - 2 * ((ranks > 1) | folded) <= sum(counts)
    for row in np.flatnonzero(valid):
        shape = int(ranks[row]), int(chunks[row])
        own = space.rule.split in COUNTED and shape[0] > 1
        held = own_split(space.rule, *shape, sum(counts)) if own else None
        valid[row] = held is not None or not own
        if valid[row]:
            given = None if held is None else tuple(held.tolist())
            table[row, : ranks[row]] = even_split(
                *shape, counts, given, space.rule.order, folded=bool(folded[row])
            )
    held, each = table[which], terms.group * terms.vp
    whole = (terms.group == 1) | (held.sum(axis=2) % each[:, None] == 0).all(axis=1)
    return held, valid[which] & whole


@lru_cache(maxsize=4096)
def even_split(
    ranks: int,
    chunks: int,
    counts: tuple[int, ...],
    held: tuple[int, ...] | None = None,
    order: tuple[int, ...] = (),
    *,
    folded: bool = False,
) -> IntArray:
    """Return the blocks (P, K) of ranks that hold ``held``, by default the most even: within one block, lighter ends.

    ``order`` are the kinds of the blocks where they alternate.
    """
    if held is None:
        least, extra = divmod(sum(counts), ranks)
        fuller = [*range(1, ranks), 0] if ranks > 1 else [0]
        held = tuple(least + (rank in fuller[:extra]) for rank in range(ranks))
    sizes = np.zeros((chunks, ranks), dtype=np.int64)
    for rank in range(ranks):
        small, more = divmod(int(held[rank]), chunks)
        end = chunks - (rank == ranks - 1 > 0 and not folded)
        larger = range(end - more, end)
        sizes[:, rank] = small
        sizes[list(larger), rank] += 1
    kind = np.array(order) if order else np.repeat(np.arange(len(counts)), counts)
    holders = np.tile(np.arange(ranks), (chunks, 1))
    if folded:
        sizes[1], holders[1] = sizes[1, ::-1].copy(), holders[1, ::-1].copy()
    rank_of_block = np.repeat(holders.ravel(), sizes.ravel())
    blocks = np.zeros((ranks, len(counts)), dtype=np.int64)
    np.add.at(blocks, (rank_of_block, kind), 1)
    return blocks
