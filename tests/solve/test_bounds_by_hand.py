"""Bounds and guesses of small pipelines, each against a value worked out on paper, and what a claim leaves open."""

from __future__ import annotations

from dataclasses import replace
from math import inf, log
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from checks.plain_terms import terms_of

from layoutopt.optimizer.frameworks.stage_rule import FREE, Recomputation, Split, StageRule
from layoutopt.optimizer.solve.certificate import Status
from layoutopt.optimizer.solve.inputs import _search_from_plain
from layoutopt.optimizer.solve.model.coefficients import _horizon_ns
from layoutopt.optimizer.solve.plan import SolveOptions
from layoutopt.optimizer.solve.search import bound as bounds
from layoutopt.optimizer.solve.search.bound import (
    FLOAT_ERROR,
    by_depth,
    case_slices,
    lower_bound,
    may_fit,
    memory_fits,
    most_blocks,
    quick_bound,
    whole_blocks_s,
    work_s,
)
from layoutopt.optimizer.solve.search.cases import free_cases
from layoutopt.optimizer.solve.search.likely import _within_memory, likely_s
from layoutopt.optimizer.solve.verify.claim import _all_passed, _below_s, _open_questions
from layoutopt.optimizer.solve.verify.exclusion import Exclusion
from layoutopt.optimizer.solve.verify.plain_reader import PlainReader
from layoutopt.optimizer.solve.verify.report import Check
from layoutopt.optimizer.solve.verify.room import _before_s, may_be_below
from layoutopt.optimizer.solve.verify.room import most_blocks as room_of_ranks
from layoutopt.optimizer.specs.errors import InputError

FIVE = np.array([5])


def test_the_fullest_rank_holds_whole_blocks() -> None:
    """Five blocks on two ranks: three on one. Ends take their rank's time first; one rank has both of them."""
    assert whole_blocks_s(terms_of([2, 1, 3, 5], [1] * 4), 5).tolist() == pytest.approx([3, 5, 2, 1])
    # 1.5 s on the first rank: two blocks there and three on the last take 3.5 s and 3 s.
    first = terms_of([2], [1], first_s=np.array([1.5]))
    assert whole_blocks_s(first, 5) == pytest.approx([3.5])
    last = terms_of([2], [1], last_s=np.array([0.25]))
    assert whole_blocks_s(last, 5) == pytest.approx([3.0])
    # A whole block late, the end has a rank for itself.
    heavy = terms_of([3], [1], first_s=np.array([9.0]))
    assert whole_blocks_s(heavy, 5) == pytest.approx([5.0])
    both = terms_of([1], [1], first_s=np.array([0.5]), last_s=np.array([0.25]))
    assert whole_blocks_s(both, 5) == pytest.approx([5.75])


def test_a_quick_bound_is_busy_ranks_or_a_path_through_all() -> None:
    """Eight micro-batches of three blocks; of two, the work of all and one more pass of a rank."""
    many = terms_of([2], [1])
    assert quick_bound(many, FIVE) == pytest.approx([24.0 * (1 - FLOAT_ERROR)], rel=1e-14)
    # One forward in three is missed by a rank: 5 s for the work of all, and 5 / (3 ln 1.5 + 1.5) for the rank.
    few = replace(many, micro_batches=np.array([2]))
    assert quick_bound(few, FIVE) == pytest.approx([5 + 5 / (3 * log(1.5) + 1.5)])
    outside = replace(few, outside_s=np.array([0.5]))
    assert quick_bound(outside, FIVE) == pytest.approx([5.5 + 5 / (3 * log(1.5) + 1.5)])
    once = replace(many, micro_batches=np.array([1]))
    assert quick_bound(once, FIVE) == pytest.approx([5.0])
    single = terms_of([1], [1])
    assert quick_bound(single, FIVE) == pytest.approx([8 * 5.0])
    mean = terms_of([2], [1], first_s=np.array([1.0]), last_s=np.array([2.0]))
    assert work_s(mean, FIVE).tolist() == [8.0]
    tight = terms_of([2], [1], capacity_bytes=np.array([5.9]))
    assert quick_bound(tight, FIVE) == [inf]


def test_a_guess_of_equal_ranks() -> None:
    """Seven waits of three blocks, the work of all once, and what larger chunks add to the ends of the pipeline."""
    plain = terms_of([2], [1], fixed_s=np.array([0.5]))
    assert likely_s(plain, FIVE) == pytest.approx([7 * 3 + 5 + 0.5])
    # 1.25 blocks per chunk are two, 0.75 more, on the one other rank.
    chunked = terms_of([2], [2], fixed_s=np.array([0.5]))
    assert likely_s(chunked, FIVE) == pytest.approx([7 * 3 + 5 + 0.5 + 0.75])
    assert likely_s(plain, FIVE, np.array([False])) == [inf]
    waits = terms_of([2], [1], bubble_weight=np.array([3.0]))
    assert likely_s(waits, FIVE) == pytest.approx([5 * 3 + 3 * 5])


def test_a_guess_of_what_is_recomputed() -> None:
    """Ranks of 2.5 blocks of 5 bytes, 3 of them saved by recomputing, where 8.5 bytes are free: 4/3 blocks of 1/4 s each."""
    terms = terms_of([2], [1], capacity_bytes=np.array([8.5]))
    assert _within_memory(terms, FIVE)[0] == pytest.approx([2 * (4 / 3) * 0.25])
    assert likely_s(terms, FIVE, np.array([True])) == pytest.approx([7 * (3 + 1 / 3) + 5 + 2 / 3])
    assert _within_memory(replace(terms, may_recompute=np.array([False])), FIVE)[0] == [0.0]
    assert _within_memory(replace(terms, capacity_bytes=np.array([12.5])), FIVE)[0] == pytest.approx([0.0])
    assert _within_memory(replace(terms, recompute_transient_bytes=np.array([1.5])), FIVE)[
        0
    ] == pytest.approx([1.0 * 11 / 12])
    assert _within_memory(replace(terms, capacity_bytes=np.array([0.0])), FIVE)[0] == pytest.approx(
        [5 * 0.25]
    )
    # Where nothing is recomputed, a rank of one whole block leaves four to the other; equal ranks need no rest.
    uneven = replace(terms, may_recompute=np.array([False]), capacity_bytes=np.array([20.0]))
    assert _within_memory(replace(uneven, in_flight=np.array([[3.0, 1.0]])), FIVE)[1] == [4.0]
    assert _within_memory(uneven, FIVE)[1] == [0.0]
    deep = terms_of([2, 3], [1, 1], capacity_bytes=np.array([8.5, 8.5]))
    assert _within_memory(deep, FIVE)[0][0] == pytest.approx(2 / 3)
    assert _within_memory(deep, FIVE)[0][1] == 0.0


def test_least_memory_decides_whatmemory_fits() -> None:
    """A block takes two bytes where it is recomputed and five where it can't be."""
    two = [2, 2]
    assert memory_fits(terms_of(two, [1, 1], capacity_bytes=np.array([6.0, 5.9])), 5).tolist() == [
        True,
        False,
    ]
    fixed = terms_of(
        two, [1, 1], capacity_bytes=np.array([15.0, 14.9]), may_recompute=np.array([False, False])
    )
    assert memory_fits(fixed, 5).tolist() == [True, False]
    # Three chunks on three ranks need a block for each but the two ends: seven are too few for six places and one more.
    assert memory_fits(terms_of([3, 3], [3, 3]), 7).tolist() == [True, True]
    assert memory_fits(terms_of([3], [3]), 6).tolist() == [False]
    assert may_fit(terms_of(two, [1, 1], capacity_bytes=np.array([6.0, 5.9])), FIVE, FREE).tolist() == [
        True,
        False,
    ]


def test_a_bound_of_whole_blocks() -> None:
    """The fullest rank's path: seven more passes of three blocks than the work of all, less the one forward it misses."""
    own = StageRule(split=Split.FREE, recomputation=Recomputation.ALL_OR_NONE)
    plain = terms_of([2], [1])
    found = float(lower_bound(plain, FIVE, FREE)[0])
    # First rank of two: 5 s of work and (8 - 1) x 2 of its blocks, less a forward; last rank of three.
    exact = min(max(5 + 7 * a - a / 3, 5 + 7 * (5 - a)) for a in range(6))
    assert found == pytest.approx(exact, rel=1e-6)
    assert float(lower_bound(plain, FIVE, FREE, 20.0)[0]) == 20.0
    assert float(lower_bound(plain, FIVE, FREE, 100.0)[0]) == pytest.approx(found)
    # All or none of five blocks, 0.25 s each: the whole of what one pass recomputes comes on top.
    tight = terms_of([2], [1], capacity_bytes=np.array([10.0]))
    again = min(max(6.25 + 7 * 1.25 * a - a / 3, 6.25 + 7 * 1.25 * (5 - a)) for a in range(6))
    free = float(lower_bound(tight, FIVE, FREE)[0])
    whole = float(lower_bound(tight, FIVE, own)[0])
    assert found < free < whole <= again * (1 + 1e-9)
    assert whole == pytest.approx(again, rel=0.02)
    assert float(lower_bound(tight, FIVE, own, free=True)[0]) == pytest.approx(free)


def test_most_blocks_within_a_time() -> None:
    """On each of two ranks in 24 s; a rank alone has three seconds for each of eight micro-batches."""
    plain = terms_of([2], [1])
    possible, most = most_blocks(plain, FIVE, free_cases(plain, 5, FREE), 29.0)
    assert possible.tolist() == [True]
    # 5 + 7 a - a / 3 <= 29 and 5 + 7 b <= 29
    assert most.tolist() == [[3.0, 3.0]]
    assert most_blocks(plain, FIVE, free_cases(plain, 5, FREE), 12.0)[0].tolist() == [False]
    assert room_of_ranks(plain, FIVE, 29.0).tolist() == [[3, 3]]
    assert room_of_ranks(plain, FIVE, 25.9).tolist() == [[3, 2]]
    assert room_of_ranks(plain, FIVE, 4.9).tolist() == [[-1, -1]]
    assert may_be_below(plain, FIVE, np.array([25.9])).tolist() == [True]
    assert may_be_below(plain, FIVE, 24.9).tolist() == [False]
    memory = replace(plain, capacity_bytes=np.array([6.0]))
    assert may_be_below(memory, FIVE, inf).tolist() == [True]
    assert may_be_below(replace(memory, capacity_bytes=np.array([5.9])), FIVE, inf).tolist() == [False]


def test_chunks_before_a_rank_lengthen_its_path() -> None:
    """Interleaved, every rank waits for the first chunks of those before it: a block each, or as many as they must hold."""
    chunked = terms_of([3], [2], hop_s=np.array([0.5]), first_s=np.array([0.6]))
    rank = np.arange(3)
    passes = np.array([[False]])
    before = _before_s(chunked, rank, passes, np.array([9]), np.array([[9.0, 1.0, 1.0]]))
    # The embedding's 0.6 s for all but the first, two transfers for each rank, and the chunk between first and last.
    assert before.tolist() == [pytest.approx([0.0, 0.6 + 1.0, 0.6 + 1.0 + 2.0])]
    more = _before_s(chunked, rank, passes, np.array([9]), np.array([[9.0, 4.0, 1.0]]))
    assert more.tolist() == [pytest.approx([0.0, 1.6, 0.6 + 4.0 + 2.0])]
    # Where the path passes all ranks it is all their work, and the way there and back.
    plain = terms_of([3], [1], hop_s=np.array([0.5]), first_s=np.array([0.6]))
    whole = _before_s(plain, rank, np.array([[True]]), np.array([9]), np.ones((1, 3)))
    assert whole.tolist() == [pytest.approx([9.6 + 2.0] * 3)]


def test_a_horizon_is_above_every_part_of_a_step() -> None:
    """Two for each second of a micro-batch, twice what is recomputed, and eight transfers for every chunk of a rank."""
    plain = terms_of([2], [1])
    base = int(_horizon_ns(plain, FIVE)[0])
    assert base == 8 * 2 * (5 + 5 * 2 * 0.25) * 1e9 + 1
    for name, more in (
        ("hidden_forward_s", 80.0), ("hidden_backward_s", 80.0), ("forward_s", 80.0), ("backward_s", 80.0),
        ("recompute_s", 160.0),
    ):  # fmt: skip
        longer = replace(plain, **{name: getattr(plain, name) + 1.0})
        assert int(_horizon_ns(longer, FIVE)[0]) - base == more * 1e9
    hop = replace(plain, hop_s=np.array([0.5]), outside_s=np.array([2.0]))
    assert int(_horizon_ns(hop, FIVE)[0]) - base == (8 * 8 * 2 * 0.5 + 2) * 1e9
    ends = replace(plain, head_s=np.array([[0.25, 0.5, 9.0]]), embedding_s=np.array([[1.0, 2.0, 9.0]]))
    assert int(_horizon_ns(ends, FIVE)[0]) - base == 8 * 2 * 3.75 * 1e9


def test_layouts_of_one_depth_are_taken_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them, once, with as many ranks as the deepest; shallow ones join while they are few."""
    terms = terms_of([4, 1, 2, 4, 2], [1] * 5)
    (together,) = by_depth(terms)
    assert together[0].tolist() == [0, 1, 2, 3, 4] and together[1].in_flight.shape == (5, 4)
    monkeypatch.setattr(bounds, "SPARE_CELLS", 1)
    pieces = [(index.tolist(), part.in_flight.shape) for index, part in by_depth(terms)]
    assert pieces == [([1, 2, 4], (3, 2)), ([0, 3], (2, 4))]
    monkeypatch.setattr(bounds, "SPARE_CELLS", 0)
    assert [index.tolist() for index, _ in by_depth(terms)] == [[1], [2, 4], [0, 3]]


def test_cases_are_cut_into_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each once; 64 at the least, however wide they are."""
    terms = terms_of([2] * 150, [1] * 150)
    cases = free_cases(terms, 5, FREE)
    assert [len(part) for part in case_slices(cases, FIVE)] == [150]
    monkeypatch.setattr(bounds, "CELLS", 200)
    assert [len(part) for part in case_slices(cases, FIVE)] == [100, 50]
    monkeypatch.setattr(bounds, "CELLS", 2)
    parts = list(case_slices(cases, FIVE))
    assert [len(part) for part in parts] == [64, 64, 22]
    assert np.concatenate([part.row for part in parts]).tolist() == list(range(150))


@pytest.mark.parametrize(("name", "edges", "wrong"), [
    ("gap", (0, 1), (-0.1, 1.1)), ("top", (0, 10_000), (-1, 10_001)), ("near", (0, 1_000_000.0), (-1, 1_000_001.0)),
    ("workers", (0, 10_000), (-1, 10_001)), ("seed", (0, 2_147_483_647), (-1, 2_147_483_648)),
    ("warm_start_s", (0, 1e300), (-1.0,)),
    ("one_model", (False, True), (0, 1, "yes")), ("top", (3,), (3.5, True, None)), ("gap", (), (None, True, "much")),
])  # fmt: skip
def test_options_of_a_search_have_a_type_and_a_range(
    name: str, edges: tuple[Any, ...], wrong: tuple[Any, ...]
) -> None:
    """Both ends belong to it; what is left out is the default, and none is no limit where there may be none."""
    for value in edges:
        assert _search_from_plain({name: value})[name] == value
    for value in wrong:
        with pytest.raises(ValueError, match=f"search.{name} "):
            _search_from_plain({name: value})
    usual = SolveOptions()
    assert _search_from_plain({}) == {
        key: getattr(usual, key)
        for key in ("gap", "top", "near", "one_model", "workers", "seed", "warm_start_s")
    }
    assert _search_from_plain({"near": None, "warm_start_s": None})["near"] is None
    assert _search_from_plain({"warm_start_s": None})["warm_start_s"] == inf


def test_what_a_verification_leaves_open() -> None:
    """Rows of which only a sample was priced, another objective, and near-ties of a search that was stopped."""
    good, bad = Check(name="bound", passed=True, reason=""), Check(name="sum", passed=False, reason="")
    ties = "whether other layouts are as near as the runners-up: only a search that ended can be repeated"
    sampled = Exclusion(rows_at_sight=1500, rows_audited=200)
    rows = (
        "each tuple of 1,300 degree rows: optimistic terms exclude them, 200 more were expanded as a sample"
    )
    assert list(_open_questions(Exclusion(), [good], "")) == [ties]
    assert list(_open_questions(sampled, [good, bad], "")) == [rows]
    assert list(_open_questions(Exclusion(rows_at_sight=7, rows_audited=7), [bad], "")) == []
    for name in ("second search", "why nothing fits"):
        assert list(_open_questions(Exclusion(), [Check(name=name, passed=True, reason="")], "")) == []
    (words,) = _open_questions(Exclusion(), [bad], "memory")
    assert words == "that no layout is better in memory, but by the same search a second time"
    assert _all_passed([]) and _all_passed([good]) and not _all_passed([good, bad])
    for status, bound, below in (
        (Status.INFEASIBLE, None, inf), (Status.INFEASIBLE, 1.0, inf), (Status.STOPPED, None, None),
        (Status.OPTIMAL, 2.0, 2.0 * (1 - 1e-9)),
    ):  # fmt: skip
        told: Any = SimpleNamespace(status=status, bound_s=bound)
        assert (
            _below_s(told) == pytest.approx(below, rel=1e-8) if below is not None else _below_s(told) is None
        )


def test_plain_values_are_read_by_their_kind() -> None:
    """What is missing or of another kind is told with its whole path, all of it at once."""
    plain = {
        "n": 1.5, "i": 3, "none": None, "t": "x", "f": True, "m": {"p": 2, "q": 0.5}, "l": ["u", "v"], "o": [{"z": 1}],
    }  # fmt: skip
    reader = PlainReader({"a": plain}, file="plan.json").under("a")
    assert (reader.number("n"), reader.integer("i"), reader.text("t"), reader.flag("f")) == (
        1.5,
        3,
        "x",
        True,
    )
    assert (reader.optional_number("n"), reader.optional_number("none"), reader.optional_number("gone")) == (
        1.5,
        None,
        None,
    )
    assert (reader.has("n"), reader.has("none"), reader.has("gone")) == (True, False, False)
    assert (
        reader.numbers("m") == {"p": 2, "q": 0.5}
        and reader.texts("l") == ("u", "v")
        and reader.items("l") == ["u", "v"]
    )
    assert [one.integer("z") for one in reader.entries("o")] == [1]
    assert reader.choice("t", ["y", "x"]) == "x"
    reader.finish()
    for read in (
        lambda: reader.integer("n"), lambda: reader.number("t"), lambda: reader.text("n"), lambda: reader.flag("i"),
        lambda: reader.integers("m"), lambda: reader.mapping("l"), lambda: reader.items("m"), lambda: reader.texts("o"),
        lambda: reader.choice("t", ["y", "z"]), lambda: reader.number("gone"), lambda: reader.number("f"),
        lambda: reader.integer("f"), lambda: reader.entries("o")[0].text("z"),
    ):  # fmt: skip
        read()
    with pytest.raises(InputError) as error:
        reader.finish()
    assert [problem.key for problem in error.value.problems] == [
        "a.n", "a.t", "a.n", "a.i", "a.m.q", "a.l", "a.m", "a.o", "a.t", "a.gone", "a.f", "a.f", "a.o[0].z",
    ]  # fmt: skip
    assert {problem.file for problem in error.value.problems} == {"plan.json"}
