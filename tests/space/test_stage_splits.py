"""The boxes that are searched are the stages that the predicates allow: every split of small pipelines, one by one."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import pytest

from layoutopt.optimizer.frameworks.stage_rule import Recomputation, Split, StageRule
from layoutopt.optimizer.space.stage_splits import (
    allowed_sizes,
    balanced,
    boxes,
    counts_by_cost,
    stage_numbers,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

ONE_CHUNK = [(1, 1, False), (2, 1, False), (3, 1, False), (4, 1, False)]
CHUNKED = [
    (1, 2, False),
    (2, 2, False),
    (3, 2, False),
    (2, 3, False),
    (1, 2, True),
    (2, 2, True),
    (3, 2, True),
]
BLOCKS = range(1, 10)


def rule(split: Split) -> StageRule:
    """A split with per-rank recomputation, a head that costs as much as one and a half blocks where costs count."""
    return StageRule(split=split, recomputation=Recomputation.PER_RANK, costs=(2, 3))


def lists(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    """All ways to give ``parts`` stages ``total`` blocks."""
    if parts == 1:
        yield (total,)
        return
    for first in range(total + 1):
        yield from ((first, *rest) for rest in lists(total - first, parts - 1))


def allowed(split: Split, ranks: int, chunks: int, blocks: int, *, folded: bool) -> set[tuple[int, ...]]:
    """Blocks per rank of every stage list that the predicates let through."""
    sizes = np.array(list(lists(blocks, ranks * chunks)), dtype=np.int64).reshape(-1, chunks, ranks)
    pp, vp, back = (np.full(len(sizes), value) for value in (ranks, chunks, folded))
    stage = stage_numbers(pp[:1], back[:1], chunks, ranks)[0]
    inner = ((stage > 0) & (stage < ranks * chunks - 1)) | (ranks == 1 and not folded)
    good = allowed_sizes(rule(split), split, sizes, pp, vp, back) & balanced(rule(split), sizes, pp, vp, back)
    good &= (sizes[:, inner] >= 1).all(axis=1)
    return {tuple(totals) for totals in sizes[good].sum(axis=1).tolist()}


def searched(split: Split, ranks: int, chunks: int, blocks: int, *, folded: bool) -> set[tuple[int, ...]]:
    """Blocks per rank in the boxes."""
    found = set()
    for low, high in boxes(rule(split), ranks, chunks, blocks, folded=folded):
        ranges = (range(least, most + 1) for least, most in zip(low.tolist(), high.tolist(), strict=True))
        found |= {totals for totals in product(*ranges) if sum(totals) == blocks}
    return found


@pytest.mark.parametrize("split", Split)
def test_boxes_hold_what_the_predicates_allow(split: Split) -> None:
    """Both ways for up to nine blocks on up to six virtual stages, to and back too; none lets everything through."""
    chunked = (
        [] if split in (Split.LARGER_FIRST, Split.BY_COST) else CHUNKED
    )  # such frameworks have one chunk
    number = 0
    for (ranks, chunks, folded), blocks in product([*ONE_CHUNK, *chunked], BLOCKS):
        found = searched(split, ranks, chunks, blocks, folded=folded)
        assert found == allowed(split, ranks, chunks, blocks, folded=folded), (ranks, chunks, folded, blocks)
        number += len(found)
    assert number >= 30


def test_costs_decide_where_the_next_rank_begins() -> None:
    """Four blocks of cost 2 and a head of 3 make 11 on two ranks: the first rank ends with the block that passes 5.5."""
    assert counts_by_cost(4, 2, 2, 3).tolist() == [3, 1]
    assert counts_by_cost(4, 2, 2, 0).tolist() == [3, 1]  # 4 of 8 is the share, and not beyond it
    assert counts_by_cost(5, 2, 2, 1).tolist() == [3, 2]
