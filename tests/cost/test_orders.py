"""The order of operations of every schedule: published sequences, completeness, refused sizes."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutopt.optimizer.cost.orders import Kind, Op, Pipeline, rank_orders
from layoutopt.optimizer.cost.schedules import SCHEDULES
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.vocabulary import Schedule


def written(ops: tuple[Op, ...]) -> str:
    """Write an order as F (forward), B (whole backward), D, W and chunk.micro-batch, + joining pairs."""
    letters = {Kind.FORWARD: "F", Kind.BACKWARD: "B", Kind.DGRAD: "D", Kind.WGRAD: "W", Kind.PAIR: "F"}
    words = []
    for op in ops:
        pair = f"+B{op.backward_chunk}.{op.backward_micro_batch}" if op.kind is Kind.PAIR else ""
        words.append(f"{letters[op.kind]}{op.chunk}.{op.micro_batch}{pair}")
    return " ".join(words)


# Printed from the code named: Megatron-LM core 0.19 schedules.py (1F1B, interleaved), sail-sg zbpp_light
# auto_schedule (ZB-H1), PyTorch 2.14 ScheduleZBVZeroBubble and ScheduleDualPipeV, DualPipe 1.0 step.
PUBLISHED = [
    (Schedule.ONE_F_ONE_B, 1, 3, 0, "F0.0 F0.1 B0.0 F0.2 B0.1 B0.2"),
    (Schedule.ONE_F_ONE_B, 1, 3, 1, "F0.0 B0.0 F0.1 B0.1 F0.2 B0.2"),
    (Schedule.INTERLEAVED, 2, 2, 0, "F0.0 F0.1 F1.0 F1.1 B1.0 B1.1 B0.0 B0.1"),
    (Schedule.INTERLEAVED, 2, 2, 1, "F0.0 F0.1 F1.0 B1.0 F1.1 B1.1 B0.0 B0.1"),
    (Schedule.ZB_H1, 1, 3, 0, "F0.0 F0.1 D0.0 W0.0 F0.2 D0.1 W0.1 D0.2 W0.2"),
    (Schedule.ZB_H1, 1, 3, 1, "F0.0 D0.0 F0.1 D0.1 W0.0 F0.2 D0.2 W0.1 W0.2"),
    (
        Schedule.ZB_V,
        2,
        3,
        0,
        "F0.0 F0.1 F0.2 F1.0 D1.0 W1.0 F1.1 D1.1 W1.1 D0.0 W0.0 F1.2 D1.2 W1.2 D0.1 W0.1 D0.2 W0.2",
    ),
    (
        Schedule.ZB_V,
        2,
        3,
        1,
        "F0.0 F1.0 F0.1 F1.1 D1.0 W1.0 F0.2 D0.0 W0.0 F1.2 D1.1 W1.1 D0.1 D1.2 D0.2 W0.1 W1.2 W0.2",
    ),
    (Schedule.DUALPIPE, 1, 4, 0, "F0.0 F1.0 F0.1 B1.0 F1.1+B0.0 B1.1 D0.1 W0.1"),
    (Schedule.DUALPIPE, 1, 4, 1, "F1.0 F0.0 F1.1 B0.0 F0.1+B1.0 B0.1 D1.1 W1.1"),
    (
        Schedule.DUALPIPE_V,
        2,
        4,
        0,
        "F0.0 F0.1 F0.2 F1.0 D1.0 W1.0 F1.1 F0.3+B1.1 F1.2+B0.0 B1.2 F1.3+B0.1 B1.3 D0.2 W0.2 D0.3 W0.3",
    ),
    (
        Schedule.DUALPIPE_V,
        2,
        4,
        1,
        "F0.0 F1.0 F0.1 F1.1 F0.2 B1.0 F1.2+B0.0 F0.3+B1.1 F1.3+B0.1 B1.2 B0.2 D1.3 D0.3 W1.3 W0.3",
    ),
]


@pytest.mark.parametrize(("schedule", "vp", "m", "rank", "order"), PUBLISHED)
def test_orders_are_the_published_ones(schedule: Schedule, vp: int, m: int, rank: int, order: str) -> None:
    """Two ranks, compared operation by operation with the code that runs the schedule."""
    pipeline = Pipeline(schedule=schedule, pp=2, vp=vp, micro_batches=m)
    assert written(rank_orders(pipeline)[rank]) == order


def test_interleaved_groups_and_warm_up() -> None:
    """Groups of G micro-batches per chunk, 2(p-s-1) + (v-1)G forwards first, the last group shorter."""
    order = rank_orders(Pipeline(schedule=Schedule.INTERLEAVED, pp=2, vp=2, micro_batches=5, group=3))[0]
    forwards = [(op.chunk, op.micro_batch) for op in order if op.kind is Kind.FORWARD]
    assert forwards == [(c, i) for group in ((0, 1, 2), (3, 4)) for c in (0, 1) for i in group]
    kinds = [op.kind for op in order]
    assert kinds.index(Kind.BACKWARD) == 2 * (2 - 0 - 1) + (2 - 1) * 3 + 1


@st.composite
def pipelines(draw: st.DrawFn) -> Pipeline:
    """Draw any valid pipeline of up to 8 ranks."""
    schedule = draw(st.sampled_from(list(Schedule)))
    model = SCHEDULES[schedule]
    pp = (
        1
        if schedule is Schedule.NONE
        else draw(st.integers(1, 4)) * 2 - (0 if model.even else draw(st.integers(0, 1)))
    )
    vp = draw(st.integers(model.min_chunks, model.max_chunks or 4))
    m = draw(st.integers(max(1, model.min_micro_batches * pp), 4 * pp))
    if schedule is Schedule.INTERLEAVED and m > pp:
        m -= m % pp
    return Pipeline(schedule=schedule, pp=pp, vp=vp, micro_batches=m + m % 2 if model.even else m)


@settings(max_examples=150)
@given(pipelines())
def test_every_rank_does_all_its_work_once_and_in_order(pipeline: Pipeline) -> None:
    """Each chunk and micro-batch has one forward, then one backward (whole, or dgrad before wgrad)."""
    everything = {(c, i) for c in range(pipeline.chunks) for i in range(pipeline.micro_batches_per_chunk)}
    for order in rank_orders(pipeline):
        stage: dict[tuple[int, int], str] = {}
        count: Counter[str] = Counter()
        for op in order:
            here = (op.chunk, op.micro_batch)
            for letter, work, needs in _steps(op, here):
                assert stage.get(work, "") == needs, f"{letter} of {work} after {stage.get(work)!r}"
                stage[work] = letter
                count[letter] += 1
        assert {work for work, letter in stage.items() if letter in "BW"} == everything
        assert count["F"] == len(everything)
        assert count["D"] == count["W"]


def _steps(op: Op, here: tuple[int, int]) -> list[tuple[str, tuple[int, int], str]]:
    """Return what an operation does: letter, work, and the letter that must have come before."""
    if op.kind is Kind.PAIR:
        return [("F", here, ""), ("B", (op.backward_chunk, op.backward_micro_batch), "F")]
    return {
        Kind.FORWARD: [("F", here, "")],
        Kind.BACKWARD: [("B", here, "F")],
        Kind.DGRAD: [("D", here, "F")],
        Kind.WGRAD: [("W", here, "D")],
    }[op.kind]


@pytest.mark.parametrize(
    ("schedule", "pp", "vp", "m", "group"),
    [
        (Schedule.NONE, 2, 1, 4, 0),  # none means no pipeline
        (Schedule.ONE_F_ONE_B, 4, 2, 8, 0),  # chunks need an interleaved schedule
        (Schedule.ONE_F_ONE_B, 4, 1, 8, 4),  # groups exist only there
        (Schedule.INTERLEAVED, 4, 1, 8, 0),  # one chunk is 1F1B
        (Schedule.INTERLEAVED, 4, 2, 9, 4),  # 9 % 4 leaves 1 < pp over
        (Schedule.INTERLEAVED, 4, 2, 8, 3),  # a group smaller than pp starves the last rank
        (Schedule.INTERLEAVED, 4, 2, 8, 9),  # a group larger than m
        (Schedule.ZB_V, 4, 3, 8, 0),  # a V has two legs
        (Schedule.DUALPIPE, 3, 1, 8, 0),  # both directions need a middle
        (Schedule.DUALPIPE, 4, 1, 9, 0),  # half of the micro-batches per direction
        (Schedule.DUALPIPE, 4, 1, 6, 0),  # fewer than 2 pp
        (Schedule.DUALPIPE_V, 4, 2, 7, 0),  # fewer than 2 pp
        (Schedule.GPIPE, 2, 1, 0, 0),  # nothing to do
    ],
)
def test_impossible_sizes_are_refused(schedule: Schedule, pp: int, vp: int, m: int, group: int) -> None:
    """Sizes that the frameworks refuse raise InputError with what would be valid."""
    with pytest.raises(InputError) as error:
        Pipeline(schedule=schedule, pp=pp, vp=vp, micro_batches=m, group=group)
    assert all(problem.allowed for problem in error.value.problems)
