"""Process groups as digits of the rank number, and how they lie on blocks of consecutive ranks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from layoutopt.optimizer.topology.counting import BlockCounts, count_blocks, distinct_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    IntArray = NDArray[np.int64]
    FloatArray = NDArray[np.float64]

_FEW = 64
"""Rows below which looking for equal ones costs more than it saves."""


class Digit(NamedTuple):
    """One digit of a rank number: how many values it takes, and how far apart they are, arrays (n,)."""

    size: IntArray
    stride: IntArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GroupBatch:
    """One process group in each of ``n`` layouts, together with its sibling groups.

    ``digits`` go from inner to outer and nest: each stride is a multiple of the inner digit's stride * size.
    ``ranks`` is the number of ranks of the whole layout, (n,): siblings start at every rank whose own digits
    are 0. ``closest`` stands for every placement of groups of this size: members lie as close as they can,
    and prices are lower bounds. ``memo`` keeps what was computed about the group.
    """

    digits: tuple[Digit, ...]
    ranks: IntArray
    closest: bool = False
    memo: dict[Any, Any] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return len(self.ranks)

    @property
    def size(self) -> IntArray:
        """Members of the group, (n,)."""
        # Asked for by every price: rows are many, and the product is the same each time.
        if "size" not in self.memo:
            size = self.digits[0].size
            for digit in self.digits[1:]:
                size = size * digit.size
            self.memo["size"] = size
        return self.memo["size"]  # type: ignore[no-any-return]

    def members_within(self, block_gpus: int) -> IntArray:
        """Return how many members share one aligned block of ``block_gpus`` consecutive ranks, (n,).

        Where blocks cut groups unevenly it is the fewest members that any sibling group has in a block
        that it touches: that part has the fewest links for what it exchanges with the rest.
        """
        if self.closest:
            return np.minimum(self.size, block_gpus)
        return self._counts(block_gpus).fewest

    def members_per_exit(self, block_gpus: int) -> FloatArray:
        """Return GPUs of a block over the sibling groups that reach beyond it, in the block with most, (n,).

        Equals ``members_within`` where blocks cut evenly; the group's size where no group leaves a block.
        """
        exits = self._counts(block_gpus).exits
        return np.where(exits > 0, block_gpus / np.maximum(exits, 1), self.size)

    def most_within(self, block_gpus: int) -> IntArray:
        """Return an upper bound (n,) of the members in one block, ``members_within`` where blocks cut evenly."""
        product = np.ones_like(self.size)
        for digit in self.digits:
            # Rounded up: a block that cuts a stride may still hold one more member.
            product = product * np.minimum(digit.size, -(-block_gpus // digit.stride))
        return product

    def same_positions(self, block_gpus: int) -> NDArray[np.bool_]:
        """Tell where a group's members stand at the same positions in every block they touch, (n,)."""
        same = np.ones(len(self), dtype=np.bool_)
        for size, stride in self.digits:
            reach = size * stride
            even = (block_gpus % stride == 0) & (reach % block_gpus == 0)
            same &= even | (stride % block_gpus == 0) | (block_gpus % reach == 0) | (size == 1)
        # All ranks in one block: there is no other block to stand differently in.
        return same | (self.ranks <= block_gpus)

    def distinct(self) -> tuple[GroupBatch, IntArray | None]:
        """Return the group of each distinct row, and every row's index (n,) among them (None: no row repeats)."""
        if "distinct" not in self.memo:
            self.memo["distinct"] = self._distinct()
        return self.memo["distinct"]  # type: ignore[no-any-return]

    def _distinct(self) -> tuple[GroupBatch, IntArray | None]:
        # Finding equal rows takes longer than counting so few of them.
        if len(self) <= _FEW:
            return self, None
        columns = [column for digit in self.digits for column in digit]
        first, inverse = distinct_rows([*columns, self.ranks])
        digits = tuple(Digit(digit.size[first], digit.stride[first]) for digit in self.digits)
        few = GroupBatch(digits=digits, ranks=self.ranks[first], closest=self.closest)
        few.memo["distinct"] = few, None
        return few, inverse

    def _counts(self, block: int) -> BlockCounts:
        if block not in self.memo:
            few, inverse = self.distinct()
            counts = count_blocks(few.digits, few.ranks, block)
            if inverse is not None:
                counts = BlockCounts(counts.fewest[inverse], counts.exits[inverse])
            self.memo[block] = counts
        return self.memo[block]  # type: ignore[no-any-return]
