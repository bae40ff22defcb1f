"""Repairs keep GPUs and batch, change as little as they can, and lead to what the trainer has."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.space.context import make_context
from layoutopt.optimizer.space.effective import effective
from layoutopt.optimizer.space.repairs import default_order, known_schedule, nearest_zero, regroup
from layoutopt.optimizer.space.rules import RULES
from layoutopt.optimizer.specs.layout import Layout
from layoutopt.optimizer.specs.vocabulary import Schedule

if TYPE_CHECKING:
    from collections.abc import Callable

    from layoutopt.optimizer.space.context import Context
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.model import ModelSpec, TrainingSpec

ANY_RULE = RULES[0]


@pytest.fixture
def context(
    make_model: Callable[..., ModelSpec],
    make_training: Callable[..., TrainingSpec],
    make_cluster: Callable[..., ClusterSpec],
) -> Callable[[Framework], Context]:
    """What rules know of eight layers on 16 GPUs under a trainer."""

    def of(framework: Framework, software: str | None = None) -> Context:
        """Build the context."""
        return make_context(
            make_model(8), make_training(64, 4096), make_cluster(16), framework, software, None
        )

    return of


@pytest.mark.parametrize(
    ("micro_batch", "micro_batches", "dp", "tp", "size", "count"),
    [
        (2, 4, 4, 8, 2, 8),  # two ranks share what four did: twice the micro-batches
        (4, 1, 4, 2, 2, 1),  # eight ranks share sixteen sequences: two each
        (2, 1, 4, 2, 1, 1),  # and of eight one each, below two
        (3, 1, 8, 1, None, None),  # sixteen ranks and twenty-four sequences
    ],
)
def test_the_micro_batch_shrinks_until_the_batch_divides(
    micro_batch: int, micro_batches: int, dp: int, tp: int, size: int | None, count: int | None
) -> None:
    """dp takes up the GPUs and the global batch stays; the largest micro-batch that divides it is taken."""
    old = 16 // dp
    layout = Layout(tp=old, dp=dp, micro_batch=micro_batch, micro_batches=micro_batches, hsdp_shard=2, zero=1)
    found = regroup(layout, tp=tp)
    if size is None:
        assert found is None
        return
    assert found is not None
    assert (found.tp, found.dp, found.gpus) == (tp, 16 // tp, 16)
    assert (found.micro_batch, found.micro_batches, found.hsdp_shard) == (size, count, None)
    assert found.dp * found.micro_batch * found.micro_batches == dp * micro_batch * micro_batches


def test_what_does_not_divide_the_gpus_is_no_repair() -> None:
    """Three tensor ranks of 16 GPUs leave one over."""
    assert regroup(Layout(dp=16, micro_batches=4), tp=3) is None


@pytest.mark.parametrize(
    ("schedule", "pp", "vp", "after"),
    [
        (Schedule.INTERLEAVED, 2, 2, Schedule.INTERLEAVED),
        (Schedule.INTERLEAVED, 2, 1, Schedule.ONE_F_ONE_B),
        (Schedule.NONE, 4, 1, Schedule.ONE_F_ONE_B),
        (Schedule.ONE_F_ONE_B, 1, 1, Schedule.NONE),
        (Schedule.ZB_H1, 2, 1, Schedule.ZB_H1),
    ],
)
def test_the_schedule_follows_stages_and_chunks(
    schedule: Schedule, pp: int, vp: int, after: Schedule
) -> None:
    """1F1B and interleaving follow the number of chunks, others stay, one stage has none."""
    found = regroup(Layout(pp=8, vp=vp, dp=2, micro_batches=16, schedule=schedule), pp=pp, vp=vp)
    assert found is not None
    assert (found.schedule, found.vp, found.pp) == (after, vp, pp)


@pytest.mark.parametrize(
    ("framework", "vp", "schedule", "chunks"),
    [
        (Framework.MEGATRON, 2, Schedule.INTERLEAVED, 2),
        (Framework.MEGATRON, 1, Schedule.ONE_F_ONE_B, 1),
        (Framework.MEGATRON_DEEPSPEED, 2, Schedule.ONE_F_ONE_B, 1),
    ],
)
def test_an_unknown_schedule_becomes_one_that_the_trainer_runs(
    context: Callable[[Framework], Context], framework: Framework, vp: int, schedule: Schedule, chunks: int
) -> None:
    """Chunks are kept where the trainer interleaves, and only there."""
    found = known_schedule(ANY_RULE, Layout(pp=2, vp=vp, dp=8, schedule=Schedule.ZB_V), context(framework))
    assert (found.schedule, found.vp, found.stages) == (schedule, chunks, ())


def test_the_nearest_stage_of_zero_is_the_higher_of_two(context: Callable[[Framework], Context]) -> None:
    """accelerate has 0, 2 and 3: of 0 and 2 the one that needs less memory replaces 1, with its shard group."""
    ctx = context(Framework.ACCELERATE)
    assert nearest_zero(ANY_RULE, Layout(dp=16, zero=1, hsdp_shard=4), ctx).zero == 2
    assert nearest_zero(ANY_RULE, Layout(dp=16, zero=1, hsdp_shard=4), ctx).hsdp_shard == 4
    order = default_order(ANY_RULE, Layout(dp=16, mesh_order="pp-dp-ep-cp-tp"), context(Framework.MEGATRON))
    assert order.mesh_order == "tp-cp-ep-dp-pp"


def test_what_does_nothing_is_not_said(context: Callable[[Framework], Context]) -> None:
    """A single rank shards nothing, a group as large as all ranks is none, and without tensor ranks there is no sp."""
    ctx = context(Framework.ANY)
    alone = effective(Layout(tp=16, zero=3, sp=True, micro_batches=64), ctx)
    assert (alone.zero, alone.hsdp_shard, alone.sp) == (0, None, True)
    whole = effective(Layout(dp=16, zero=2, hsdp_shard=16, sp=True, micro_batches=4), ctx)
    assert (whole.zero, whole.hsdp_shard, whole.sp) == (2, None, False)
    part = effective(Layout(dp=16, zero=2, hsdp_shard=4, micro_batches=4), ctx)
    assert (part.zero, part.hsdp_shard) == (2, 4)
