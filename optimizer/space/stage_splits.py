"""The one definition of which stage lists a rule takes: as ranges of blocks per rank, and as a predicate."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.frameworks.stage_rule import COUNTED, Split

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from layoutopt.optimizer.frameworks.stage_rule import StageRule
    from layoutopt.optimizer.specs.model import ModelSpec

    IntArray = NDArray[np.int64]
    BoolArray = NDArray[np.bool_]
    Box = tuple[IntArray, IntArray]


def boxes(rule: StageRule, ranks: int, chunks: int, blocks: int, *, folded: bool = False) -> Iterator[Box]:
    """Yield ranges of blocks per rank, low and high (P,), whose union is exactly what is searched.

    Chunks of a rank are equal to within one block, but for the two ends. Middle virtual stages hold one or more.
    Both ends are on the first rank where the pipeline is ``folded``.
    """
    if ranks == 1:
        # Folded, both chunks of a single rank are ends, which may be empty.
        if blocks >= (0 if folded else chunks):
            yield np.array([blocks]), np.array([blocks])
    elif rule.split is Split.FREE:
        low = _fewest(ranks, chunks, folded=folded)
        if low.sum() <= blocks:
            yield low, np.full(ranks, blocks - low.sum()) + low
    elif rule.split is Split.NEAR_EQUAL:
        yield from _near_equal_boxes(ranks, chunks, blocks, folded=folded)
    elif _ends_are_free(rule, chunks):
        yield from _equal_middle_boxes(ranks, chunks, blocks)
        if chunks > 1:
            yield from _counted_ends_boxes(ranks, chunks, blocks, folded=folded)
    else:
        totals = own_split(rule, ranks, chunks, blocks)
        if totals is not None and (totals >= _fewest(ranks, chunks, folded=folded)).all():
            yield totals, totals


def _fewest(ranks: int, chunks: int, *, folded: bool) -> IntArray:
    """Every chunk holds a block, but the first and the last may be empty."""
    low = np.full(ranks, chunks)
    # A folded pipeline comes back: its first rank holds the embedding and the head.
    low[[0] if folded else [0, -1]] -= 2 if folded else 1
    return low


def _ends_are_free(rule: StageRule, chunks: int) -> bool:
    unchunked = rule.split is Split.EQUAL_MIDDLE_UNCHUNKED and chunks == 1
    return unchunked or rule.split is Split.EQUAL_MIDDLE


def own_split(rule: StageRule, ranks: int, chunks: int, blocks: int) -> IntArray | None:
    """Return the blocks per rank, (ranks,), where the framework knows one split alone, None if it has none."""
    if rule.split is Split.LARGER_FIRST:
        # The remainder goes to the first ranks, one block each.
        counts = blocks // ranks + (np.arange(ranks) < blocks % ranks)
        # No rank of these trainers may be empty.
        if blocks < ranks:
            return None
    elif rule.split is Split.BY_COST:
        counts = counts_by_cost(blocks, ranks, *rule.costs)
    else:
        return None if blocks % (ranks * chunks) else np.full(ranks, blocks // ranks)
    return counts if (counts[1:-1] > 0).all() and counts[0] > 0 else None


def counts_by_cost(blocks: int, ranks: int, block: int, head: int) -> IntArray:
    """Return the blocks of each rank, (ranks,), by their share of the compute.

    huggingface/nanotron src/nanotron/models/base.py (build_model): walking over blocks and LM head with their
    costs, the next rank begins after the block at which the running cost exceeds the rank's equal share.
    """
    total = block * blocks + head
    counts = np.zeros(ranks, dtype=np.int64)
    rank, spent = 0, 0
    for _ in range(blocks):
        counts[rank] += 1
        spent += block
        # Multiplied out: the shares of three or seven ranks are no exact floats.
        if rank < ranks - 1 and spent * ranks > total * (rank + 1):
            rank += 1
    return counts


def nanotron_costs(model: ModelSpec) -> tuple[int, int]:
    """Return the costs of a block and of the LM head (huggingface/nanotron models, get_block_compute_costs)."""
    ffn = next((shape.ffn for run in model.runs for shape in run.block if shape.ffn), 0)
    return (
        4 * model.heads * model.head_dim * model.hidden + 3 * ffn * model.hidden,
        model.vocab * model.hidden,
    )


def nanotron_counts(model: ModelSpec, pp: int) -> list[int]:
    """Return the layers of each rank under nanotron, whose split no setting changes."""
    return [int(count) for count in counts_by_cost(model.layers, pp, *nanotron_costs(model))]


def _equal_middle_boxes(ranks: int, chunks: int, blocks: int) -> Iterator[Box]:
    """Yield a box per number of blocks on the middle ranks; with chunks, whose numbers are multiples, one per split."""
    if chunks == 1:
        # Two blocks at least are left for the ends.
        middles = range(1, max((blocks - 2) // max(ranks - 2, 1), 0) + 1) if ranks > 2 else (1,)
        for middle in middles:
            rest = blocks - middle * (ranks - 2)
            low, high = np.full(ranks, middle), np.full(ranks, middle)
            # The ends share what the middle ranks leave, one block each at least.
            low[[0, -1]], high[[0, -1]] = 1, rest - 1
            if rest >= 2:
                yield low, high
        return
    yield from ((totals, totals) for totals in _chunked_middle(ranks, chunks, blocks))


def _counted_ends_boxes(ranks: int, chunks: int, blocks: int, *, folded: bool) -> Iterator[Box]:
    """Yield equal stages of which the first, the last or both hold one fewer; without chunks others cover them."""
    # Folded, both ends are on the first rank: which of them is counted makes no other split.
    for first, last in ((1, 1), (1, 0)) if folded else ((1, 1), (1, 0), (0, 1)):
        totals = np.full(ranks, (blocks + first + last) // ranks)
        totals[0] -= first + (last if folded else 0)
        totals[-1] -= 0 if folded else last
        if (blocks + first + last) % (ranks * chunks) == 0 and blocks >= 2 * ranks * chunks - first - last:
            yield totals, totals


def _chunked_middle(ranks: int, chunks: int, blocks: int) -> Iterator[IntArray]:
    """Yield splits whose numbers are multiples of the chunks, the same on the middle ranks."""
    units, rest = divmod(blocks, chunks)
    # Chunks of a middle rank are equal: other numbers are no multiple.
    if rest:
        return
    # Two units at least are the ends'.
    most = (units - 2) // (ranks - 2) if ranks > 2 else 1
    for middle in range(1, most + 1):
        ends = units - middle * (ranks - 2)
        # Either end holds a block of every chunk.
        for first in range(1, ends):
            yield np.array([first, *[middle] * (ranks - 2), ends - first], dtype=np.int64) * chunks


def _near_equal_boxes(ranks: int, chunks: int, blocks: int, *, folded: bool) -> Iterator[Box]:
    """Yield boxes by q, the fewest blocks on a middle stage: those hold q or q + 1, the ends q - 1 to q + 1.

    With interleaving an end of q - 1 has q on its own rank's next chunk. Without, q must be on another
    rank: splits with all middle ranks at q + 1 and an end at q - 1 are left out.
    """
    if folded:
        yield from _near_equal_folded(ranks, blocks)
        return
    if ranks * chunks == 2:
        # Without middle stages, the smallest other stage of either end is the other end.
        # A set: of an even number both halves are the same split.
        for first in {blocks // 2, (blocks + 1) // 2}:
            yield np.array([first, blocks - first]), np.array([first, blocks - first])
        return
    # All middle stages hold at least q, so that there is no larger one.
    for q in range(1, blocks // max(1, ranks * chunks - 2) + 1):
        low, high = np.full(ranks, chunks * q), np.full(ranks, chunks * (q + 1))
        low[[0, -1]] -= 1
        all_fuller = blocks - (ranks - 2) * (q + 1)
        if not low.sum() <= blocks <= high.sum():
            continue
        # Only here could every middle rank hold q + 1 and an end q - 1, which no box would exclude.
        if chunks > 1 or not 2 * q - 2 <= all_fuller <= 2 * q:
            yield low, high
            continue
        for first, last in product((q - 1, q, q + 1), repeat=2):
            if first + last == all_fuller and min(first, last) < q:
                continue
            low[[0, -1]] = high[[0, -1]] = first, last
            if low.sum() <= blocks <= high.sum():
                yield low.copy(), high.copy()


def _near_equal_folded(ranks: int, blocks: int) -> Iterator[Box]:
    """Yield boxes by q, the fewest blocks on a middle stage; the first rank's two stages are the ends."""
    # 2 ranks - 2 stages are in the middle, each with q blocks or more.
    for q in range(1, blocks // (2 * ranks - 2) + 1):
        all_fuller = blocks - (ranks - 1) * (2 * q + 2)
        for ends in range(2 * q - 2, 2 * q + 3):
            low, high = np.full(ranks, 2 * q), np.full(ranks, 2 * q + 2)
            low[0] = high[0] = ends
            # A short end with no middle stage at q would be two blocks below the smallest of them.
            if (ends != all_fuller or ends >= 2 * q) and low.sum() <= blocks <= high.sum():
                yield low, high


def stage_numbers(pp: IntArray, folded: BoolArray, depth: int, ranks: int) -> IntArray:
    """Return the place in the model of every chunk and rank, (n, depth, ranks); folded pipelines run back."""
    chunk, rank = np.arange(depth)[:, None], np.arange(ranks)
    width, back = pp[:, None, None], folded[:, None, None] & (chunk == 1)
    return np.where(back, 2 * width - 1 - rank, chunk * width + rank)


def allowed_sizes(
    rule: StageRule, split: Split, sizes: IntArray, pp: IntArray, vp: IntArray, folded: BoolArray
) -> BoolArray:
    """Tell which stages, ``sizes`` (n, C, P) blocks per chunk and rank, have the numbers of a split; any order of chunks.

    ``split`` is the rule's ``split`` or ``launchable``. Entries beyond a row's vp and pp are not read.
    """
    if split is Split.FREE:
        return np.ones(len(sizes), dtype=bool)
    result: BoolArray = (pp == 1) | _allowed_on_ranks(rule, split, sizes, pp, vp, folded)
    return result


def _allowed_on_ranks(
    rule: StageRule, split: Split, sizes: IntArray, pp: IntArray, vp: IntArray, folded: BoolArray
) -> BoolArray:
    depth, ranks = sizes.shape[1:]
    # Rows of a batch differ in depth; their tables are padded to the deepest.
    real = (np.arange(ranks) < pp[:, None, None]) & (np.arange(depth)[:, None] < vp[:, None, None])
    if split is Split.NEAR_EQUAL:
        return _near_equal(sizes, real, stage_numbers(pp, folded, depth, ranks), pp * vp)
    if split in (Split.LARGER_FIRST, Split.BY_COST):
        return _is_own_split(rule, sizes, pp)
    most, least = _most(sizes, real), _least(sizes, real)
    equal: BoolArray = (most == least) & (least >= 1)
    if split is Split.EQUAL:
        return equal
    chunked = vp > 1
    middle = _equal_middle(sizes, real, pp)
    if split is Split.EQUAL_MIDDLE_UNCHUNKED:
        return np.where(chunked, equal, middle)
    return middle | _counts_ends(sizes, real, stage_numbers(pp, folded, depth, ranks), pp * vp)


_BIG = np.iinfo(np.int64).max


def _most(sizes: IntArray, where: BoolArray) -> IntArray:
    # What lies outside must not count: 0 is below every stage, _BIG above.
    result: IntArray = np.where(where, sizes, 0).max(axis=(1, 2))
    return result


def _least(sizes: IntArray, where: BoolArray) -> IntArray:
    result: IntArray = np.where(where, sizes, _BIG).min(axis=(1, 2))
    return result


def _near_equal(sizes: IntArray, real: BoolArray, stage: IntArray, stages: IntArray) -> BoolArray:
    final = (stages - 1)[:, None, None]
    at_end = (stage == 0) | (stage == final)
    # With two stages both are ends, and each is the other's smallest.
    inner = real & ~(at_end & (final > 1))
    least = _least(sizes, inner)
    fits: BoolArray = (_most(sizes, real) <= least + 1) & (_most(sizes, inner) <= least + 1)
    return fits & (_least(sizes, real & at_end) >= least - 1)


def _equal_middle(sizes: IntArray, real: BoolArray, pp: IntArray) -> BoolArray:
    """Every rank's chunks are the same, and so are the middle ranks."""
    first = sizes[:, :1, :]
    same_chunks = (np.where(real, sizes, first) == first).all(axis=(1, 2))
    rank = np.arange(sizes.shape[2])
    middle = real & (rank > 0) & (rank < pp[:, None, None] - 1)
    result: BoolArray = same_chunks & (_most(sizes, middle) <= _least(sizes, middle))
    return result & (_least(sizes, real) >= 1)


def _counts_ends(sizes: IntArray, real: BoolArray, stage: IntArray, stages: IntArray) -> BoolArray:
    """All stages the same but for the first and the last, which may hold one fewer."""
    final = (stages - 1)[:, None, None]
    at_end = (stage == 0) | (stage == final)
    inner = real & ~at_end
    full = _most(sizes, inner)
    ends: BoolArray = _least(sizes, real & at_end) >= np.maximum(full - 1, 1)
    result: BoolArray = ends & (_least(sizes, inner) == full) & (_most(sizes, real & at_end) <= full)
    return result & (full > 0)


def _is_own_split(rule: StageRule, sizes: IntArray, pp: IntArray) -> BoolArray:
    """Compare with the one split of each number of ranks; such frameworks have one chunk per rank."""
    result = np.zeros(len(sizes), dtype=bool)
    totals = sizes.sum(axis=1)
    for ranks in np.unique(pp).tolist():
        rows = np.flatnonzero(pp == ranks)
        blocks = totals[rows].sum(axis=1)
        for number in np.unique(blocks).tolist():
            # A framework with a split of its own has one for each number of ranks and blocks.
            own = own_split(rule, ranks, 1, number) if ranks > 1 else np.array([number])
            if own is not None:
                mine = rows[blocks == number]
                result[mine] = (totals[mine, :ranks] == own).all(axis=1)
    return result


def balanced(rule: StageRule, sizes: IntArray, pp: IntArray, vp: IntArray, folded: BoolArray) -> BoolArray:
    """Tell which stages, ``sizes`` (n, C, P), have the chunks of every rank in the searched order: see ``StageRule``."""
    depth, ranks = sizes.shape[1:]
    chunk, rank = np.arange(depth)[:, None], np.arange(ranks)
    real = (rank < pp[:, None, None]) & (chunk < vp[:, None, None])
    stage, stages = stage_numbers(pp, folded, depth, ranks), (pp * vp)[:, None, None]
    at_end = real & ((stage == 0) | (stage == stages - 1)) & ((pp > 1) | folded)[:, None, None]
    inner = real & ~at_end
    # Ends hold embedding or head beside blocks: only the other chunks of a rank have to be alike.
    most = np.where(inner, sizes, 0).max(axis=1, keepdims=True)
    least = np.where(inner, sizes, _BIG).min(axis=1, keepdims=True)
    within = ~inner.any(axis=1, keepdims=True) | (most - np.minimum(least, most) <= 1)
    # Smaller chunks first: a rank's later chunks hold as many or more.
    rises = np.where(inner[:, 1:] & inner[:, :-1], np.diff(sizes, axis=1), 0)
    room = (0 if rule.split in COUNTED else 1) + np.where(inner.any(axis=1, keepdims=True), least, _BIG // 2)
    low = 0 if rule.split is Split.FREE else most - 1
    ends = ~at_end | ((sizes <= room) & (sizes >= low))
    result: BoolArray = within.all(axis=(1, 2)) & (rises >= 0).all(axis=(1, 2)) & ends.all(axis=(1, 2))
    return result
