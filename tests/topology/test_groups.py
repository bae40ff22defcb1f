"""Members of process groups in blocks of consecutive ranks, against explicit lists of ranks."""

from __future__ import annotations

from collections import Counter
from math import prod

import numpy as np
import pytest
from checks.demands import group_members
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutopt.optimizer.topology.groups import Digit, GroupBatch

Radix = list[tuple[int, bool]]


def group_of(radix: Radix) -> GroupBatch:
    """Build a group from a mixed radix, innermost first: (size, does the digit belong to the group)."""
    digits, stride = [], 1
    for size, own in radix:
        if own:
            digits.append(Digit(np.array([size]), np.array([stride])))
        stride *= size
    return GroupBatch(digits=tuple(digits), ranks=np.array([stride]))


def counted(radix: Radix, block: int) -> tuple[int, int]:
    """Fewest members in a touched block and most groups leaving a block, by listing every rank."""
    shape = [size for size, _ in reversed(radix)]
    ranks = np.arange(prod(shape)).reshape(shape)
    own = [axis for axis, (_, mine) in enumerate(reversed(radix)) if mine]
    groups = np.moveaxis(ranks, own, range(len(own))).reshape(prod(shape[axis] for axis in own), -1).T
    per_group = [Counter((members // block).tolist()) for members in groups]
    fewest = min(min(counts.values()) for counts in per_group)
    exits = Counter(where for counts in per_group if len(counts) > 1 for where in counts)
    return fewest, max(exits.values(), default=0)


def radixes(most: int) -> st.SearchStrategy[Radix]:
    """Up to five digits, at least one of them the group's."""
    digit = st.tuples(st.integers(1, most), st.booleans())
    return st.lists(digit, min_size=1, max_size=5).filter(
        lambda radix: any(own for _, own in radix) and prod(size for size, _ in radix) <= 4096
    )


@settings(max_examples=400)
@given(radix=radixes(9), block=st.integers(1, 100))
def test_members_in_blocks_match_a_list_of_ranks(radix: Radix, block: int) -> None:
    """Every size, stride and block, aligned or not: members and exits are those counted rank by rank."""
    group = group_of(radix)
    fewest, exits = counted(radix, block)
    assert group.members_within(block)[0] == fewest
    expected = block / exits if exits else group.size[0]
    assert group.members_per_exit(block)[0] == pytest.approx(expected)


@settings(max_examples=200)
@given(
    powers=st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=2, max_size=5), pod=st.booleans()
)
def test_powers_of_two_on_odd_blocks(powers: list[tuple[int, bool]], pod: bool) -> None:
    """Layouts of powers of two on NVLink domains of 72 and pods of three quarters of a power of two."""
    radix = [(2**power, own) for power, own in powers]
    if not any(own for _, own in radix) or prod(size for size, _ in radix) > 8192:
        return
    block = 48 if pod else 72
    assert group_of(radix).members_within(block)[0] == counted(radix, block)[0]


@pytest.mark.parametrize(
    ("size", "stride", "ranks", "block", "members"),
    [
        (64, 8, 512, 8, 1),  # one rank per node
        (16, 4, 512, 8, 2),
        (9, 8, 576, 72, 9),  # an NVL72 domain holds every eighth rank
        (72, 1, 576, 72, 72),
        (64, 1, 576, 72, 8),  # the second group has 8 ranks in the first domain
        (6, 1, 6, 8, 6),  # six GPUs of a node of eight
        (6, 1, 12, 8, 2),  # the second group has ranks 6 and 7 in the first node
        (3, 8, 24, 3072, 3),
        (16, 1024, 16384, 3072, 1),  # five pods hold three stages, the sixth one
    ],
)
def test_known_members(size: int, stride: int, ranks: int, block: int, members: int) -> None:
    """Cases that can be checked by hand."""
    group = GroupBatch(digits=(Digit(np.array([size]), np.array([stride])),), ranks=np.array([ranks]))
    assert group.members_within(block)[0] == members


def test_exits_count_groups_in_a_whole_pod() -> None:
    """A partly filled last pod does not count: 1,024 groups leave each full pod of 3,072 GPUs."""
    group = GroupBatch(digits=(Digit(np.array([16]), np.array([1024])),), ranks=np.array([16384]))
    assert group.members_per_exit(3072)[0] == 3.0


def test_most_within_is_a_bound() -> None:
    """The bound holds in uneven cases and is exact in even ones."""
    for size, stride, ranks, block in [(64, 1, 576, 72), (6, 1, 12, 8), (4, 3, 24, 8), (16, 4, 512, 8)]:
        group = GroupBatch(digits=(Digit(np.array([size]), np.array([stride])),), ranks=np.array([ranks]))
        most = max(max(Counter((row // block).tolist()).values()) for row in group_members(group))
        assert group.most_within(block)[0] >= most
    assert group.most_within(8)[0] == 2


def test_batches_equal_their_rows() -> None:
    """A long batch with repeated rows gives each row what it gets alone."""
    rng = np.random.default_rng(3)
    size, stride, rest = 2 ** rng.integers(0, 5, 500), 3 ** rng.integers(0, 3, 500), rng.integers(1, 4, 500)
    digits = (Digit(size, stride), Digit(rest, size * stride * 2))
    batch = GroupBatch(digits=digits, ranks=size * stride * 2 * rest)
    for block in (8, 12, 72):
        for row in range(0, 500, 41):
            alone = GroupBatch(
                digits=tuple(Digit(d.size[row : row + 1], d.stride[row : row + 1]) for d in digits),
                ranks=batch.ranks[row : row + 1],
            )
            assert batch.members_within(block)[row] == alone.members_within(block)[0]
            assert batch.members_per_exit(block)[row] == alone.members_per_exit(block)[0]


def test_distinct_rows_restore_every_row() -> None:
    """The representative of each row has the row's columns, values beyond the look-up table included."""
    rng = np.random.default_rng(4)
    columns = [rng.integers(0, 5, 1000), rng.integers(0, 3, 1000) * 9_000_000, np.full(1000, 7)]
    first, index = distinct_of(columns)
    assert len(first) == 15
    for column in columns:
        assert (column[first][index] == column).all()


def distinct_of(columns: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Call the helper under test."""
    from layoutopt.optimizer.topology.counting import distinct_rows

    return distinct_rows(columns)
