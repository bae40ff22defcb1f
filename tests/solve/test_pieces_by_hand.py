"""Small pieces of the search, each against a count by hand or by trying everything."""

from __future__ import annotations

from itertools import combinations, pairwise, product
from math import inf
from typing import Any

import numpy as np
import pytest
from checks.plain_terms import terms_of

from layoutopt.optimizer.cost.batch import batch_of
from layoutopt.optimizer.frameworks.stage_rule import (
    FREE,
    MEGATRON,
    NEAR_EQUAL,
    Recomputation,
    Split,
    StageLimit,
    StageRule,
)
from layoutopt.optimizer.solve.model.coefficients import coefficients, rounding_s
from layoutopt.optimizer.solve.model.cp_model import CpModel
from layoutopt.optimizer.solve.model.slices import Shape, TupleSlice, stack_terms, tuple_slice
from layoutopt.optimizer.solve.search.best_by import worst_mixture
from layoutopt.optimizer.solve.search.capacity import at_most, mixes, reachable_kinds
from layoutopt.optimizer.solve.search.cases import stage_cases
from layoutopt.optimizer.solve.search.choices import _least, _spread, _undominated
from layoutopt.optimizer.solve.search.chunk_sizes import Unlisted, balanced, closed, shares, with_end
from layoutopt.optimizer.solve.search.construct import Stages, _moves, _neighbours
from layoutopt.optimizer.solve.search.deadline import OVERTIME_STEPS, Deadline
from layoutopt.optimizer.solve.search.fill import _take
from layoutopt.optimizer.solve.search.first import _best_of, _turn, distinct_chunks, few_chunks, likely_rows
from layoutopt.optimizer.solve.search.likely import _fullest
from layoutopt.optimizer.solve.search.places import _ends, kinds_at, least_in_a_row, ways_from
from layoutopt.optimizer.solve.search.result import BestLayouts, Found, SearchOptions
from layoutopt.optimizer.solve.search.rows import CELLS, RELAXED_ROWS, pieces
from layoutopt.optimizer.solve.search.second import least_peak_bytes
from layoutopt.optimizer.solve.search.space_size import (
    StageShape,
    _splits_in_box,
    _times,
    size_of_shapes,
    stage_choices,
    stage_shape,
)
from layoutopt.optimizer.solve.splits import (
    NEAR_MIDDLE,
    _few,
    chunks,
    end_stages,
    fewest_blocks,
    fewest_in,
    split_ranges,
    within_limits,
)
from layoutopt.optimizer.specs.layout import Layout
from layoutopt.optimizer.specs.vocabulary import Schedule


def found(step_s: float) -> Found:
    """A layout of which only the step is told."""
    empty = np.zeros((1, 1, 1), dtype=np.int64)
    return Found(
        layout=batch_of([Layout()]), blocks=empty, recomputed=empty, step_time_s=step_s, peak_bytes=1.0
    )


def test_the_best_of_each_family_is_kept() -> None:
    """The first of equally fast ones stays, and a limit lets in what takes exactly as long."""
    best, first = BestLayouts(), found(2.0)
    assert not best
    assert best.step_s == inf
    for family, one in (
        ((1,), first),
        ((1,), found(2.0)),
        ((1,), found(3.0)),
        ((2,), found(1.5)),
        ((3,), found(4.0)),
    ):
        best.keep(family, one)
    assert best
    assert best.of((1,)) is first
    assert best.of((9,)) is None
    assert best.step_s == 1.5
    assert [one.step_time_s for one in best.within(2.0)] == [1.5, 2.0]
    assert (SearchOptions().top, SearchOptions().near, SearchOptions().workers) == (1, 0.02, 1)
    assert (SearchOptions().time_limit_s, SearchOptions().gap, SearchOptions().upper_s) == (inf, 0.0, inf)


def test_overtime_ends_after_its_steps() -> None:
    """A search that is late goes on for so many steps while it knows nothing, and ends at once when it does."""
    late = Deadline(-1.0, None)
    assert late.left_s < 0
    assert late.reached(known=True)
    assert not late.over(known=False)
    assert [late.reached(known=False) for _ in range(OVERTIME_STEPS + 1)] == [False] * OVERTIME_STEPS + [True]
    assert late.over(known=False)
    late.grant()
    assert not late.over(known=False)
    assert late.over(known=True)
    assert [late.reached(known=False) for _ in range(OVERTIME_STEPS + 1)][-2:] == [False, True]
    early = Deadline(1e6, None)
    assert early.left_s > 0
    assert not early.reached(known=True)
    assert not early.over(known=True)
    asked = Deadline(1e6, lambda: True)
    assert asked.reached(known=False)
    assert asked.over(known=False)


@pytest.mark.parametrize(
    ("allowed", "total", "left"),
    [
        ([{1, 2, 3}, {1, 2}, {4, 5}], 7, [{1, 2}, {1, 2}, {4, 5}]),
        ([{0, 5}, {2}], 7, [{5}, {2}]),
        ([{1, 2}, {1, 2}], 6, None),
        ([{0, 9}, {0}], 9, [{9}, {0}]),
    ],
)
def test_totals_that_others_complete(
    allowed: list[set[int]], total: int, left: list[set[int]] | None
) -> None:
    """Numbers stay while the least and the most of the other ranks can make up the model."""
    mask = np.array([[number in own for number in range(total + 1)] for own in allowed])
    kept = closed(mask, total)
    assert (None if kept is None else [set(np.flatnonzero(row).tolist()) for row in kept]) == left


def test_chunks_are_as_equal_as_they_can_be() -> None:
    """Larger ones last; too few blocks for all chunks are no choice."""
    assert balanced(3, np.array([2, 3, 4, 5, 9])).tolist() == [[1, 1, 1], [1, 1, 2], [1, 2, 2], [3, 3, 3]]
    assert with_end(1, np.array([0, 4]), first=True).tolist() == [[0], [4]]


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("first", [False, True])
def test_an_end_holds_fewer_or_one_more(count: int, first: bool) -> None:
    """Against every way to cut a total into chunks."""
    for total in range(count - 1, 3 * count + 2):
        listed = {tuple(row) for row in with_end(count, np.array([total]), first=first).tolist()}
        expected = set()
        for sizes in product(range(total + 1), repeat=count):
            inner, end = (sizes[1:], sizes[0]) if first else (sizes[:-1], sizes[-1])
            even = (
                sum(sizes) == total
                and min(inner) >= 1
                and max(inner) - min(inner) <= 1
                and sorted(inner) == list(inner)
            )
            if even and end <= min(inner) + 1:
                expected.add(sizes)
        assert listed == expected, total


def test_shares_are_taken_from_the_first_of_like_chunks() -> None:
    """Three blocks of chunks of which two are alike: one number for each group of like chunks."""
    ways = shares(3, np.array([2, 2, 1]), np.array([7, 7, 8]), 10)
    assert sorted(way.tolist() for way in ways) == [[2, 0, 1], [2, 1, 0]]
    assert [way.tolist() for way in shares(0, np.array([2, 2]), np.array([1, 2]), 10)] == [[0, 0]]
    assert len(shares(2, np.array([2, 2, 2]), np.array([1, 2, 3]), 6)) == 6
    with pytest.raises(Unlisted):
        shares(2, np.array([2, 2, 2]), np.array([1, 2, 3]), 5)


def test_places_of_the_last_rank_are_all_that_can_be() -> None:
    """Ends of three chunks of 1 to 3, 2 to 2 and 1 to 4 blocks that make up eight."""
    listed = {tuple(row) for row in _ends(np.array([1, 2, 1]), np.array([3, 2, 4]), 8).tolist()}
    expected = {(a, a + 2, 8) for a in (1, 2, 3) if 1 <= 8 - a - 2 <= 4}
    assert listed == expected
    order = (0, 1, 1, 0, 1)
    assert kinds_at(order, 2, np.array([0, 1]), np.array([3, 4])).tolist() == [[1, 2], [1, 3]]
    seconds = np.array([[1.0, 10.0]])
    least = [
        min((sum(seconds[0, kind] for kind in order[at : at + size]) for at in range(6 - size)), default=0)
        for size in range(6)
    ]
    assert least_in_a_row(order, seconds)[0].tolist() == least
    source, way = ways_from(np.array([4, 2, 9]), np.array([2, 4, 2, 4, 3]))
    assert list(zip(source.tolist(), way.tolist(), strict=True)) == [(0, 1), (0, 3), (1, 0), (1, 2)]


def test_the_likeliest_of_every_group_come_first() -> None:
    """Turns of groups, the least guesses of owners, and one row of each shape."""
    assert _turn(np.array([5, 3, 5, 5, 3])).tolist() == [0, 0, 1, 2, 1]
    assert _turn(np.zeros(0, dtype=np.int64)).tolist() == []
    guess = np.array([3.0, 1.0, 2.0, inf, 4.0])
    assert _best_of(guess, np.array([0, 0, 0, 1, 1])).tolist() == [1, 4]
    rows = batch_of([Layout(tp=2, dp=4), Layout(tp=2, dp=2), Layout(tp=1, vp=2), Layout(tp=1), Layout(pp=2)])
    likely = np.array([2.0, 1.0, 5.0, 4.0, inf])
    assert likely_rows(rows, likely, 2).tolist() == [1, 3]
    assert likely_rows(rows, likely, 1).tolist() == [1]


def test_of_chunks_of_one_size_the_fewest_are_tried() -> None:
    """Ten blocks on two ranks: one and two chunks anyway, three for chunks of two, five of one; four leave gaps."""
    rows = batch_of([Layout(pp=2, vp=vp) for vp in range(1, 6)])
    assert distinct_chunks(rows, 10).tolist() == [True, True, True, False, True]
    fixed = batch_of([Layout(pp=2, vp=4), Layout(pp=2, vp=5), Layout(pp=4, vp=1), Layout(pp=4, vp=3)])
    assert few_chunks(fixed).tolist() == [True, False, True, False]


def test_ranks_that_memory_fills_leave_the_rest_to_the_others() -> None:
    """Whole blocks: equal shares where there is room, more on the others where there is not, all on one where none fits."""
    most = np.array([[9.0, 9.0, 9.0], [1.9, 9.0, 9.0], [2.0, 3.0, 9.0], [1.0, 1.0, 1.0]])
    assert _fullest(most, 9.0).tolist() == [3.0, 4.0, 4.0, 9.0]


def test_rows_are_cut_into_few_cells() -> None:
    """All rows, each once, shallow ones first where there are too many; no piece is too large."""
    small = np.array([4, 1, 2])
    assert [piece.tolist() for piece in pieces(small)] == [[0, 1, 2]]
    assert list(pieces(np.zeros(0, dtype=np.int64))) == []
    deep = np.resize([1, 2048, 64], RELAXED_ROWS + 5)
    cut = list(pieces(deep))
    assert sorted(np.concatenate(cut).tolist()) == list(range(len(deep)))
    assert all(len(piece) <= RELAXED_ROWS and len(piece) * deep[piece].max() <= CELLS for piece in cut)
    assert (np.diff(deep[np.concatenate(cut)]) >= 0).all()
    assert [len(piece) for piece in pieces(np.full(CELLS // 1024 + 1, 1024))] == [CELLS // 1024, 1]


def test_splits_in_a_box_are_counted_one_by_one() -> None:
    """Against every combination of numbers in their ranges, and products of polynomials by hand."""
    for low, high, blocks in (
        ([1, 1, 1], [4, 2, 3], 6),
        ([0, 2], [3, 4], 5),
        ([1, 1], [9, 9], 4),
        ([3, 3], [4, 4], 5),
    ):
        ranges = [range(a, b + 1) for a, b in zip(low, high, strict=True)]
        expected = sum(sum(sizes) == blocks for sizes in product(*ranges))
        assert _splits_in_box(np.array(low), np.array(high), blocks) == expected
    assert _times([1, 2], [3, 0, 5]) == [3, 6, 5, 10]


@pytest.mark.parametrize("recompute", [False, True])
def test_choices_of_stages_follow_the_rule(recompute: bool) -> None:
    """Nine blocks on three ranks of one chunk: splits, times the recomputations that a rule has."""
    shape = StageShape(3, 1, False, recompute)
    free = sum(sum(sizes) == 9 for sizes in product(range(10), range(1, 10), range(10)))
    own = StageRule(split=Split.FREE, recomputation=Recomputation.ALL_OR_NONE)
    assert stage_choices(shape, 9, own) == free * (2 if recompute else 1)
    # one number for all stages: as many as the largest stage of an even split holds, or none
    assert stage_choices(shape, 9, MEGATRON) == free * (4 if recompute else 1)
    ranks = [
        (a + 1) * (b + 1) * (c + 1)
        for a, b, c in product(range(10), range(1, 10), range(10))
        if a + b + c == 9
    ]
    assert stage_choices(shape, 9, FREE) == (sum(ranks) if recompute else free)
    per_rank = StageRule(split=Split.EQUAL, recomputation=Recomputation.PER_RANK)
    assert stage_choices(shape, 9, per_rank) == ((9 // 3 - 1) ** 3 if recompute else 1)
    assert stage_choices(StageShape(1, 3, False, True), 2, FREE) == 0
    assert stage_choices(StageShape(1, 3, False, True), 3, FREE) == 4
    assert stage_choices(StageShape(1, 2, True, True), 0, FREE) == 1
    assert stage_shape(Schedule.DUALPIPE, 8, 1, True) == (4, 2, True, True)
    size = size_of_shapes({shape: 5, StageShape(1, 1, False, False): 2}, 3, 9, own)
    assert (size.degree_rows, size.tuples, size.joint_assignments) == (3, 7, 5 * free * (1 + recompute) + 2)


def test_ends_and_fewest_blocks_of_ranks() -> None:
    """Both ends of a folded pipeline are on its first rank; one rank alone has none to leave empty."""
    terms = terms_of([3, 1, 2, 1], [2, 3, 2, 2], [0, 0, 1, 1])
    assert end_stages(terms, 3).tolist() == [[1, 0, 1], [0, 0, 0], [2, 0, 0], [2, 0, 0]]
    assert fewest_blocks(terms, 3).tolist() == [[1, 2, 1], [3, 0, 0], [0, 2, 0], [0, 0, 0]]
    assert fewest_in(np.array([2, 2]), np.array([False, True]), 3).tolist() == [[1, 2, 1], [0, 2, 2]]
    assert fewest_in(np.array([3]), np.array([False]), 1).tolist() == [[3]]
    ranges = split_ranges(terms, 9, FREE)
    assert ranges.most.tolist() == [[6, 7, 6], [9, 0, 0], [7, 9, 0], [9, 0, 0]]
    limited = StageRule(
        split=Split.FREE, recomputation=Recomputation.PER_RANK,
        limits=(StageLimit(rank=-1, fewest=2, most=4), StageLimit(rank=0, fewest=0, most=5)),
    )  # fmt: skip
    narrow = split_ranges(terms, 9, limited)
    assert narrow.fewest.tolist() == [[1, 2, 2], [3, 0, 0], [0, 2, 0], [0, 0, 0]]
    assert narrow.most.tolist() == [[5, 7, 4], [4, 0, 0], [7, 9, 0], [9, 0, 0]]
    totals = np.array([[5, 1, 3], [4, 0, 0], [9, 0, 0], [9, 0, 0]])
    assert within_limits(totals, terms, limited).tolist() == [True, True, True, True]
    assert within_limits(totals + np.array([1, 0, 0]), terms, limited).tolist() == [False, False, True, True]
    assert within_limits(totals - np.array([0, 0, 2]), terms, limited).tolist() == [False, True, True, True]


def test_near_equal_ranges_are_those_of_the_smallest_stage() -> None:
    """Ten blocks on two ranks of two chunks: inner stages of 2 or 3, or of 3 with both ends at 2 or more."""
    ranges = split_ranges(terms_of([2], [2]), 10, NEAR_EQUAL)
    boxes = sorted(zip(ranges.fewest[:].tolist(), ranges.most.tolist(), strict=True))
    assert boxes == [([3, 3], [6, 6]), ([5, 5], [8, 8])]


def test_boxes_are_grouped_by_their_second_rank() -> None:
    """Near the mean each number alone, farther ones together on either side; two ranks have no middle."""

    def box(second: int) -> tuple[Any, Any]:
        numbers = np.array([3, second, 3])
        return numbers, numbers + 1

    far = 10 + NEAR_MIDDLE + 1
    grouped = _few([box(10), box(10 + NEAR_MIDDLE), box(far), box(far + 4), box(1), box(2)], 10, 1)
    assert sorted((low[1], high[1]) for low, high in grouped) == [(1, 3), (10, 11), (16, 17), (17, 22)]
    assert len(_few([(np.array([1, 8]), np.array([1, 8])), (np.array([8, 1]), np.array([8, 1]))], 4, 1)) == 1


def test_chunks_lie_as_tokens_pass_them() -> None:
    """Seven and six blocks in three chunks; the last rank's last chunk is a smaller one; folded stages run back."""
    cut = chunks(np.array([[7, 7]]), terms_of([2], [3]))
    assert cut.size[0].tolist() == [[2, 2], [2, 3], [3, 2]]
    assert cut.start[0].tolist() == [[0, 2], [4, 6], [9, 12]]
    assert cut.kinds(np.array([5, 9]))[0, 1].tolist() == [[1, 1], [0, 3]]
    assert cut.kinds(np.array([5, 9]), limit=np.array(1))[0, 1].tolist() == [[1, 0], [0, 1]]
    back = chunks(np.array([[3, 4]]), terms_of([2], [2], [1]))
    assert back.size[0].tolist() == [[1, 2], [2, 2]]
    assert back.start[0].tolist() == [[0, 1], [5, 3]]
    alternating = (0, 1) * 7
    assert cut.kinds(np.array([7, 7]), alternating)[0, 1].tolist() == [[1, 1], [2, 1]]


def test_blocks_are_taken_from_the_first_rank_on() -> None:
    """As many as wanted, and no more than there are."""
    assert _take(np.array([5, 0, 9]), np.array([[2, 4, 3]] * 3)).tolist() == [[2, 3, 0], [0, 0, 0], [2, 4, 3]]
    moved = _neighbours(np.array([2, 0, 1]), (np.array([0, 1, 2, 2]), np.array([1, 0, 2, 0])))
    assert moved.tolist() == [[1, 1, 1], [3, 0, 0]]
    stages = Stages(
        blocks=np.array([[[2], [3], [1]]]),
        recomputed=np.zeros((1, 3, 1), dtype=np.int64),
        step_time_s=np.ones(1),
    )
    source, target = _moves(terms_of([3], [1]), stages)
    assert set(zip(source.tolist(), target.tolist(), strict=True)) == set(product(range(3), repeat=2))


def test_choices_of_equal_blocks_are_compared_path_by_path() -> None:
    """The least of every state, and what another choice with as many blocks beats or equals on every path."""
    spent = np.array([[3.0, 1.0], [1.0, 5.0], [2.0, 2.0]])
    assert _least(spent, np.array([1, 1, 0]), 3).tolist() == [[2.0, 2.0], [1.0, 1.0], [inf, inf]]
    used = np.array([4, 4, 4, 5])
    kept = _undominated(used, np.array([[1.0, 2.0], [1.0, 2.0], [2.0, 1.0], [9.0, 9.0]]))
    assert sorted(kept.tolist()) in ([0, 2, 3], [1, 2, 3])
    again = _spread(np.array([[[3, 1], [0, 0]]]), np.array([[[2, 2], [2, 0]]]))
    assert again.tolist() == [[[2, 1], [1, 0]]]


def test_a_floor_under_the_fullest_rank_shares_blocks_as_if_cut() -> None:
    """Two ranks, five blocks of 1 + 2 * 1 and 1 + 1 * 1 bytes recomputed, one of them with 4 bytes of its own."""
    flight = np.array([[2.0, 1.0]])
    terms = terms_of([2], [1], in_flight=flight, first_bytes=np.array([4.0]))
    # (P - 4) / 3 + P / 2 = 5 blocks
    assert least_peak_bytes(terms, 5) == pytest.approx([(5 + 4 / 3) / (1 / 3 + 1 / 2)])
    fixed = terms_of([2], [1], in_flight=flight, may_recompute=np.array([False]))
    assert least_peak_bytes(fixed, 5) == pytest.approx([5 / (1 / 9 + 1 / 5)])
    heavy = terms_of([2], [1], in_flight=flight, first_bytes=np.array([100.0]))
    assert least_peak_bytes(heavy, 5)[0] == 100.0


def test_whole_blocks_forgive_the_last_bit_alone() -> None:
    """2.9999999999 blocks are three, 2.99 are two."""
    assert at_most(np.array([2.9999999999, 2.99, 0.0, -0.5])).tolist() == [3, 2, 0, -1]


def test_mixes_count_every_number_of_the_other_kinds() -> None:
    """The most frequent kind is counted; too many numbers are covered in steps that leave none out."""
    few = mixes(np.array([2, 9, 1]))
    assert few.counted == 1
    assert sorted(few.low[:, [0, 2]].tolist()) == [
        [float(a), float(b)] for a, b in product(range(3), range(2))
    ]
    assert (few.low == few.high).all()
    many = mixes(np.array([100, 120]))
    assert many.counted == 1
    ends = zip(many.low[:, 0], many.high[:, 0], strict=True)
    covered = sorted(number for low, high in ends for number in range(int(low), int(high) + 1))
    assert covered == list(range(101))
    assert len(many.low) <= 48


@pytest.mark.parametrize(
    ("pp", "vp", "folded"), [(2, 1, False), (3, 1, False), (2, 2, False), (2, 2, True), (3, 2, True)]
)
def test_a_rank_meets_a_kind_in_some_split(pp: int, vp: int, folded: bool) -> None:
    """Against all contiguous splits of five blocks of three kinds in which only the two ends may be empty."""
    counts, stages = np.array([2, 1, 2]), pp * vp
    kinds = [0, 0, 1, 2, 2]
    met = np.zeros((3, pp), dtype=bool)
    places = [*range(pp), *reversed(range(pp))] if folded else [*range(pp)] * vp
    for cuts in combinations(range(5 + stages - 1), stages - 1):
        edges = [-1, *cuts, 5 + stages - 1]
        sizes = [b - a - 1 for a, b in pairwise(edges)]
        if min(sizes[1:-1], default=1) < 1:
            continue
        start = 0
        for place, size in zip(places, sizes, strict=True):
            for kind in kinds[start : start + size]:
                met[kind, place] = True
            start += size
    terms = terms_of([pp], [vp], [int(folded)], kinds=3)
    assert reachable_kinds(terms, counts)[:, 0].tolist() == met.tolist()
    assert (reachable_kinds(terms, counts, tuple(kinds))[:, 0] >= met).all()


def test_cases_of_recomputation_are_those_of_the_rule() -> None:
    """Any of a rank's blocks; none or all; or every number per stage, times its chunks."""
    terms = terms_of([2, 2], [2, 1], may_recompute=np.array([True, False]))
    free = stage_cases(terms, 6, FREE)
    assert (free.row.tolist(), free.free.tolist(), free.low.tolist()) == ([0, 1], [True, False], [0, 0])
    whole = stage_cases(terms, 6, StageRule(split=Split.FREE, recomputation=Recomputation.ALL_OR_NONE))
    numbers = (column.tolist() for column in (whole.row, whole.low, whole.high))
    assert list(zip(*numbers, strict=True)) == [(0, 0, 0), (0, inf, inf), (1, 0, 0)]
    uniform = stage_cases(terms, 6, MEGATRON)
    assert uniform.low[uniform.row == 0].tolist() == [0, 2, 4, 6]
    assert uniform.low[uniform.row == 1].tolist() == [0]
    assert not uniform.free.any()


def test_shapes_and_stacks_of_tuples() -> None:
    """Stages of a rank in the order of its chunks; fewer ranks hold nothing on those they lack."""
    assert Shape(3, 2, False).of_rank(1) == [1, 4]
    assert Shape(3, 2, True).of_rank(1) == [1, 4]
    assert Shape(3, 2, True).of_rank(0) == [0, 5]
    assert Shape(3, 2, False).of_rank(0) == [0, 3]
    assert Shape(4, 3, False).stages == 12
    both = stack_terms([terms_of([1], [1]), terms_of([3], [1])])
    assert both.in_flight.tolist() == [[1, 0, 0], [1, 1, 1]]
    assert both.pp.tolist() == [1, 3]


def test_whole_numbers_of_the_solver_round_in_favour() -> None:
    """Nanoseconds down, KiB in favour of fitting, and the horizon above every step."""
    counts = np.array([5])
    assert rounding_s(counts) == pytest.approx(18e-9)
    terms = terms_of(
        [2], [1], layer_state_bytes=np.array([[1000.0]]), layer_activation_bytes=np.array([[3000.0]]),
        recomputed_activation_bytes=np.array([[500.0]]), capacity_bytes=np.array([1e6]), first_bytes=np.array([700.0]),
        in_flight=np.array([[2.0, 1.0]]), recompute_transient_bytes=np.array([3000.0]),
    )  # fmt: skip
    numbers = coefficients(terms, counts)
    assert numbers.held_kib[0, :, 0].tolist() == [7000 // 1024, 4000 // 1024]
    assert numbers.saved_kib[0, :, 0].tolist() == [-(-5000 // 1024), -(-2500 // 1024)]
    assert numbers.room_kib[0].tolist() == [999300 // 1024, 1000000 // 1024]
    assert numbers.buffer_kib.tolist() == [3000 // 1024]
    each = terms.forward_s + terms.backward_s + terms.hidden_forward_s + terms.hidden_backward_s
    work = float(
        ((each + 2 * terms.recompute_s) @ counts)[0]
        + terms.embedding_s[0, :2].sum()
        + terms.head_s[0, :2].sum()
    )
    step_s = 8 * (2 * work + 8 * 2 * 1 * float(terms.hop_s[0])) + float(terms.outside_s[0])
    assert numbers.horizon_ns.tolist() == [int(step_s * 1e9) + 1]


def test_the_worst_mixture_makes_layouts_equally_bad() -> None:
    """Two layouts that are good under one set of constants each: weights at which their means meet."""
    weights = worst_mixture(np.array([[1.0, 3.0], [2.0, 1.0]]))
    assert weights.sum() == pytest.approx(1.0)
    assert weights @ [1.0, 3.0] == pytest.approx(weights @ [2.0, 1.0])
    assert weights == pytest.approx([2 / 3, 1 / 3])


def test_a_model_of_many_tuples_asks_no_more_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shapes are listed as often for twelve tuples as for three: a list for each of them would be quadratic."""
    looks: list[int] = []
    listed = TupleSlice.shapes.fget  # type: ignore[attr-defined]

    def counted(data: TupleSlice) -> Any:
        """Count a look, and list the shapes."""
        looks.append(len(data))
        return listed(data)

    monkeypatch.setattr(TupleSlice, "shapes", property(counted))

    def asked(tuples: int) -> int:
        """How often a model of so many tuples looks at their shapes."""
        looks.clear()
        terms = terms_of([2, 3, 2] * (tuples // 3), [1, 1, 2] * (tuples // 3))
        rows = batch_of([Layout(pp=pp, vp=vp) for pp, vp in zip(terms.pp, terms.vp, strict=True)])
        CpModel(tuple_slice(rows, terms, np.array([6]), FREE))
        return len(looks)

    assert asked(3) == asked(12) > 0
