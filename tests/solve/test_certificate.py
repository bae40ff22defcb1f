"""Certificate: digests that depend on content alone, honest counts, exact errors for broken records."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutopt.optimizer.cost.batch import CODES, DEGREES, Codebook, LayoutBatch
from layoutopt.optimizer.frameworks.stage_rule import FREE, MEGATRON, NEAR_EQUAL, StageRule
from layoutopt.optimizer.solve.certificate import (
    Certificate,
    build_certificate,
    inputs_digest,
    relative_gap,
    table_digest,
)
from layoutopt.optimizer.solve.search.space_size import StageShape, space_size, stage_choices
from layoutopt.optimizer.solve.verify.plain_reader import PlainReader
from layoutopt.optimizer.space.stage_splits import boxes
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.layout import Recompute
from layoutopt.optimizer.specs.vocabulary import Granularity, Precision, Schedule

if TYPE_CHECKING:
    from layoutopt.optimizer.cost.terms import IntArray

BOOK = Codebook(
    recomputes=(Recompute(), Recompute(granularity=Granularity.FULL)),
    orders=("tp-cp-ep-dp-pp",),
    schedules=(Schedule.ONE_F_ONE_B,),
    precisions=(Precision.BF16,),
)


@dataclass
class PlainSpace:
    """A space of given degree rows, each in two variants: without and with full recomputation."""

    degrees: LayoutBatch
    counts: IntArray
    rule: StageRule = FREE

    def expand(self, rows: LayoutBatch) -> tuple[LayoutBatch, IntArray]:
        """Both variants of each row."""
        index = np.repeat(np.arange(len(rows)), 2)
        return replace(rows.take(index), recompute=np.tile([0, 1], len(rows))), index


def make_batch(pp: list[int], vp: list[int], **columns: list[int]) -> LayoutBatch:
    """Rows with given pp and vp, 1 for other degrees, 0 for codes."""
    ones, zeros = np.ones(len(pp), dtype=np.int64), np.zeros(len(pp), dtype=np.int64)
    values = {**dict.fromkeys(DEGREES, ones), **dict.fromkeys(CODES, zeros)}
    given_columns = {"pp": pp, "vp": vp, **columns}
    values |= {name: np.array(column, dtype=np.int64) for name, column in given_columns.items()}
    return LayoutBatch(codebook=BOOK, **values)


def make_space(rows: int = 40, seed: int = 1) -> PlainSpace:
    """Distinct random rows with wide columns, so that they need more than one sort key."""
    rng = np.random.default_rng(seed)
    wide = {name: rng.integers(1, 2**40, rows).tolist() for name in ("tp", "dp", "ep")}
    return PlainSpace(make_batch([2] * rows, [1] * rows, **wide), np.array([6]))


@settings(max_examples=30)
@given(st.permutations(range(40)), st.integers(1, 50))
def test_table_digest_ignores_order_and_chunk(order: list[int], chunk: int) -> None:
    """The digest depends on the set of rows, not on their order or on how many are read at once."""
    space = make_space()
    shuffled = replace(space, degrees=space.degrees.take(np.array(order)))
    assert table_digest(shuffled, chunk=chunk) == table_digest(space)


@pytest.mark.parametrize("column", [*DEGREES, *CODES])
def test_table_digest_sees_every_column(column: str) -> None:
    """A change of any column of one row changes the digest."""
    space = make_space()
    values = getattr(space.degrees, column).copy()
    values[7] += 1
    changed = replace(space, degrees=replace(space.degrees, **{column: values}))
    assert table_digest(changed) != table_digest(space)


def test_table_digest_sees_meaning() -> None:
    """A dropped row, other blocks, another rule or another meaning of a code change the digest."""
    space = make_space()
    book = replace(BOOK, precisions=(Precision.FP8,))
    others = [
        replace(space, degrees=space.degrees.take(np.arange(39))),
        replace(space, counts=np.array([7])),
        replace(space, rule=MEGATRON),
        replace(space, degrees=replace(space.degrees, codebook=book)),
    ]
    assert len({table_digest(other) for other in [space, *others]}) == 5


def test_empty_table_has_a_digest() -> None:
    """A space without rows is hashed like any other."""
    assert len(table_digest(replace(make_space(), degrees=make_batch([], [])))) == 64


def test_inputs_digest_ignores_key_order() -> None:
    """Inputs with keys in another order are the same inputs; other values are not."""
    assert inputs_digest({"a": 1, "b": {"c": 2.5}}) == inputs_digest({"b": {"c": 2.5}, "a": 1})
    assert inputs_digest({"a": 1}) != inputs_digest({"a": 2})


@pytest.mark.parametrize(
    ("ranks", "chunks", "blocks"), [(1, 2, 5), (2, 1, 6), (3, 1, 7), (3, 2, 8), (2, 3, 9)]
)
def test_choices_of_free_stages(ranks: int, chunks: int, blocks: int) -> None:
    """Closed forms equal enumeration of the totals per rank."""
    totals = [
        held
        for low, high in boxes(FREE, ranks, chunks, blocks)
        for held in product(*(range(a, b + 1) for a, b in zip(low, high, strict=True)))
        if sum(held) == blocks
    ]
    assert stage_choices(StageShape(ranks, chunks, False, False), blocks, FREE) == len(totals)
    expected = sum(int(np.prod([n + 1 for n in held])) for held in totals)
    assert stage_choices(StageShape(ranks, chunks, False, True), blocks, FREE) == expected
    fewest = -(-blocks // (ranks * chunks)) + 1
    assert stage_choices(StageShape(ranks, chunks, False, True), blocks, MEGATRON) == fewest * len(totals)


def test_near_equal_choices_are_few() -> None:
    """Near-equal splits are counted, twice when all blocks may be recomputed; none with too few blocks."""
    few = stage_choices(StageShape(4, 1, False, False), 10, NEAR_EQUAL)
    assert 0 < few < stage_choices(StageShape(4, 1, False, False), 10, FREE)
    assert stage_choices(StageShape(4, 1, False, True), 10, NEAR_EQUAL) == 2 * few
    assert stage_choices(StageShape(4, 2, False, False), 5, NEAR_EQUAL) == 0


def test_space_size() -> None:
    """Tuples and joint layouts are summed over the expanded rows, whatever the chunk."""
    space = PlainSpace(make_batch([1, 2, 2], [1, 1, 2]), np.array([6]))
    size = space_size(space)
    assert (size.degree_rows, size.tuples) == (3, 6)
    keys = product([(1, 1), (2, 1), (2, 2)], [False, True])
    assert size.joint_assignments == sum(
        stage_choices(StageShape(p, v, False, may), 6, FREE) for (p, v), may in keys
    )
    assert space_size(space, chunk=1) == size


def test_large_pipelines_count_exactly() -> None:
    """126 blocks on 16 ranks with free recomputation, against a sum rank by rank in exact integers."""
    ways = [1] + [0] * 126
    for least in [0, *[1] * 14, 0]:
        ways = [sum(ways[n - k] * (k + 1) for k in range(least, n + 1)) for n in range(127)]
    assert stage_choices(StageShape(16, 1, False, True), 126, FREE) == ways[126] > 10**32


def read(plain: object) -> Certificate:
    """Read plain data; every key that is missing or wrong is named."""
    reader = PlainReader(plain, prefix="certificate")
    found = Certificate.read(reader)
    reader.finish()
    return found


def certificate() -> Certificate:
    """A certificate of the plain space."""
    space = make_space()
    return build_certificate(
        space,
        space_size(space),
        inputs={"model": "tiny"},
        cost_model="v1",
        solver_status="OPTIMAL",
        step_time_s=2.0,
        bound_s=1.9,
        removed_by_memory=10,
        solved=3,
        removed_by_rule={"tp divides heads": 5},
    )


def test_round_trip() -> None:
    """Plain data survive JSON and give the same certificate; the counts add up to all tuples."""
    made = certificate()
    assert read(json.loads(json.dumps(made.to_plain()))) == made
    assert made.removed_by_memory + made.removed_by_bound + made.solved == made.tuples == 80
    assert made.gap == pytest.approx(0.05)
    assert made.versions.ortools


def test_more_solved_than_there_are() -> None:
    """A search that claims more tuples than the space holds is a programming error."""
    space = make_space(rows=1)
    with pytest.raises(ValueError, match="of 2"):
        build_certificate(
            space,
            space_size(space),
            inputs={},
            cost_model="v1",
            solver_status="OPTIMAL",
            step_time_s=1.0,
            bound_s=1.0,
            removed_by_memory=2,
            solved=1,
        )


def test_gap_without_answer() -> None:
    """Without an answer or a bound there is no gap; a bound above the answer counts as none left."""
    assert relative_gap(None, 1.0) is None
    assert relative_gap(1.0, None) is None
    assert relative_gap(1.0, 1.0 + 1e-12) == 0.0


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("tuples", -1, "certificate.tuples: -1 is not valid"),
        ("tuples", True, "certificate.tuples: True is not valid"),
        ("tuples", 1.5, "certificate.tuples: 1.5 is not valid"),
        ("table_sha256", 3, "certificate.table_sha256: 3 is not valid (text)"),
        ("rounding_s", "x", "certificate.rounding_s: 'x' is not valid (a finite number)"),
        ("rounding_s", float("nan"), "certificate.rounding_s: nan is not valid"),
        ("removed_by_rule", [1], "certificate.removed_by_rule: [1] is not valid (an object)"),
        ("removed_by_rule", {"a": -2}, "certificate.removed_by_rule.a: -2 is not valid"),
        ("versions", {}, "certificate.versions.numpy: missing (text)"),
    ],
)
def test_broken_record(key: str, value: object, message: str) -> None:
    """Each broken value is named with its key and what is allowed."""
    plain = certificate().to_plain() | {key: value}
    with pytest.raises(InputError) as error:
        read(plain)
    assert message in str(error.value)


def test_missing_keys_are_all_named() -> None:
    """One line for each missing key, not only the first."""
    with pytest.raises(InputError) as error:
        read({})
    assert len(error.value.problems) >= 14
    with pytest.raises(InputError, match="not a JSON object"):
        read([])
