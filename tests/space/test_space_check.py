"""Judging a user's layout: stage lists, several reasons at once, advice, bad degrees."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.space.check import advise_layout, check_layout
from layoutopt.optimizer.space.context import RunOptions
from layoutopt.optimizer.space.stage_splits import nanotron_counts
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.layout import Layout, Recompute, VirtualStage
from layoutopt.optimizer.specs.model import LayerShape, Run
from layoutopt.optimizer.specs.vocabulary import Granularity, Schedule

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.model import ModelSpec, TrainingSpec

    Question = tuple[ModelSpec, TrainingSpec, ClusterSpec]

F = Framework
FULL = Recompute(granularity=Granularity.FULL)


@pytest.fixture(scope="session")
def question(
    make_model: Callable[..., ModelSpec],
    make_cluster: Callable[..., ClusterSpec],
    make_training: Callable[..., TrainingSpec],
) -> Question:
    """Ten layers on 16 GPUs, batch 32."""
    return make_model(10), make_training(32), make_cluster(16)


def staged(layers: Sequence[int], pp: int, recomputed: Sequence[int] = (), **fields: object) -> Layout:
    """A layout with a stage list, chunk-major."""
    vp = len(layers) // pp
    again = list(recomputed) or [0] * len(layers)
    stages = tuple(
        VirtualStage(rank=i % pp, chunk=i // pp, layers=n, recomputed=r)
        for i, (n, r) in enumerate(zip(layers, again, strict=True))
    )
    layout = Layout(
        pp=pp,
        vp=vp,
        dp=16 // pp,
        micro_batches=2 * pp,
        schedule=Schedule.ONE_F_ONE_B if vp == 1 else Schedule.INTERLEAVED,
        recompute=FULL if any(again) else Recompute(),
        stages=stages,
    )
    return replace(layout, **fields)  # type: ignore[arg-type]


def names(layout: Layout, question: Question, framework: Framework, software: str | None = None) -> set[str]:
    """Slugs of the broken rules."""
    return {broken.rule for broken in check_layout(layout, *question, framework, software)}


@pytest.mark.parametrize(
    ("layers", "pp", "framework", "software", "broken"),
    [
        ([3, 3, 3, 1], 4, F.MEGATRON, None, None),  # any list with a layout string
        ([1, 4, 4, 1], 4, F.MEGATRON, "core 0.12", None),  # first and last of their own
        ([3, 2, 3, 2], 4, F.MEGATRON, "core 0.12", "stage_split"),  # middle ranks differ
        ([2, 3, 3, 2], 4, F.MEGATRON, "core 0.8", "stage_split"),  # even splits only
        ([1, 1, 2, 2, 1, 1, 1, 1], 4, F.MEGATRON, "core 0.12", "stage_split"),  # chunks of a rank differ
        ([0, 5, 0, 5], 4, F.MEGATRON, None, None),  # layout strings may have empty stages
        ([0, 5, 0, 5], 4, F.NANOTRON, None, "stage_empty"),
        ([3, 3, 3, 1], 4, F.NANOTRON, None, "stage_split"),  # it balances by itself
        ([3, 3, 2, 2], 4, F.NANOTRON, None, None),
        ([3, 3, 2, 2], 4, F.DEEPSPEED, None, None),  # its pipeline engine puts larger stages first
        ([2, 3, 3, 2], 4, F.DEEPSPEED, None, "stage_split"),
        ([1, 4, 4, 1], 4, F.TORCHTITAN, None, None),  # an explicit module list takes any split
        ([1, 4, 4, 1], 4, F.ANY, None, None),
        ([3, 3, 3, 2], 4, F.ANY, None, "stage_layers"),  # 11 layers of 10
    ],
)
def test_splits(
    question: Question,
    layers: list[int],
    pp: int,
    framework: Framework,
    software: str | None,
    broken: str | None,
) -> None:
    """Each framework and release accepts the stage lists that it can split into, and no others."""
    found = names(staged(layers, pp), question, framework, software)
    assert found == set() if broken is None else broken in found


@pytest.mark.parametrize(
    ("layers", "again", "framework", "broken"),
    [
        ([4, 2, 2, 2], [3, 2, 2, 2], F.MEGATRON, None),  # N = 3, clamped to 2
        ([4, 2, 2, 2], [3, 1, 1, 1], F.MEGATRON, "recompute_uniform"),
        ([3, 3, 2, 2], [3, 1, 0, 0], F.ANY, None),  # any number per stage
        ([3, 3, 2, 2], [3, 3, 2, 2], F.TORCHTITAN, None),
        ([3, 3, 2, 2], [3, 3, 2, 0], F.TORCHTITAN, "recompute_all_or_none"),
        ([3, 3, 2, 2], [1, 1, 1, 1], F.MEGATRON_DEEPSPEED, None),
        ([3, 3, 2, 2], [3, 3, 2, 3], F.ANY, "recompute_count"),  # more than there are
    ],
)
def test_recomputed_layers(
    question: Question, layers: list[int], again: list[int], framework: Framework, broken: str | None
) -> None:
    """Recomputed layers follow the framework's rule: one N, all or none, or free."""
    found = names(staged(layers, 4, again), question, framework)
    assert found == ({broken} if broken else set())


def test_recomputation_needs_its_granularity(question: Question) -> None:
    """Whole layers can't be repeated under granularity none."""
    layout = staged([3, 3, 2, 2], 4, [1, 1, 1, 1], recompute=Recompute())
    assert names(layout, question, F.ANY) == {"recompute_count"}


def test_stage_list_shape(question: Question) -> None:
    """A list of another length, or out of order, is named before anything is read from it."""
    good = staged([3, 3, 2, 2], 4)
    short = replace(good, stages=good.stages[:3])
    turned = replace(good, stages=good.stages[::-1])
    for layout in (short, turned):
        assert "stage_count" in names(layout, question, F.ANY)


def test_ends_and_prediction_layers(question: Question) -> None:
    """Marked ends belong on the first and last stage, prediction layers on one stage behind all layers."""
    good = staged([3, 3, 2, 2], 4)
    swapped = (replace(good.stages[0], head=True), *good.stages[1:])
    assert names(replace(good, stages=swapped), question, F.ANY) == {"stage_ends"}
    model = replace(question[0], mtp_layers=1)
    early = (replace(good.stages[0], mtp=1), *good.stages[1:])
    late = (*good.stages[:-1], replace(good.stages[-1], mtp=1))
    rest = question[1:]
    assert names(replace(good, stages=early), (model, *rest), F.MEGATRON) == {"stage_mtp"}
    assert names(replace(good, stages=late), (model, *rest), F.MEGATRON) == set()


def test_stages_of_repeating_blocks(question: Question) -> None:
    """Stages may end inside a block; recomputation is uniform when counted in layers."""
    pair = Run(name="pair", block=(LayerShape(ffn=64), LayerShape(ffn=128)), count=3)
    single = Run(name="single", block=(LayerShape(ffn=64),), count=4)
    mixed = (replace(question[0], runs=(pair, single)), *question[1:])
    assert names(staged([3, 3, 2, 2], 4), mixed, F.MEGATRON) == set()
    assert names(staged([4, 2, 2, 2], 4, [2, 2, 2, 2]), mixed, F.MEGATRON) == set()
    assert names(staged([4, 2, 2, 2], 4, [2, 2, 1, 1]), mixed, F.MEGATRON) == {"recompute_uniform"}
    assert names(staged([4, 2, 2, 2], 4, [1, 2, 1, 1]), mixed, F.MEGATRON) == {"recompute_uniform"}


def test_every_reason_at_once(question: Question) -> None:
    """All broken rules come back together, each with its numbers, formula and nearest valid values."""
    layout = Layout(tp=3, pp=7, dp=1, micro_batches=3, ep=2)
    broken = {reason.rule: reason for reason in check_layout(layout, *question, F.MEGATRON)}
    wrong = {"world_size_product", "heads_mod_tp", "gbs_mod_mbs_dp", "layers_mod_pp", "experts_mod_ep"}
    assert wrong <= set(broken)
    assert broken["heads_mod_tp"].message == "heads 8 % tp 3 = 2; valid tp: 1, 2, 4, 8"
    assert broken["heads_mod_tp"].factors == {"heads": 8, "tp": 3, "remainder": 2}
    assert broken["world_size_product"].factors["product"] == 21
    assert str(broken["heads_mod_tp"]).startswith("heads_mod_tp: heads 8")


def test_idle_gpus_have_to_be_allowed(question: Question) -> None:
    """A layout of fewer GPUs than launched is invalid unless idle GPUs are stated."""
    layout = Layout(dp=8, micro_batches=4)
    assert names(layout, question, F.ANY) == {"world_size_product"}
    assert check_layout(layout, *question, F.ANY, options=RunOptions(idle_gpus=True)) == ()
    assert check_layout(layout, *question, F.ANY, options=RunOptions(processes=8)) == ()


def test_degrees_below_one_are_input_errors(question: Question) -> None:
    """Zero or negative degrees and orders that aren't orders are refused as input, not judged."""
    with pytest.raises(InputError, match=r"tp is 0(.|\n)*pp is -1"):
        check_layout(Layout(tp=0, pp=-1), *question, F.ANY)
    with pytest.raises(InputError, match="mesh order"):
        check_layout(Layout(mesh_order="tp-cp-pp"), *question, F.ANY)


def test_unnamed_schedule_is_the_default_one(question: Question) -> None:
    """A pipeline without a named schedule runs 1F1B or interleaved, which the rules then judge."""
    layout = Layout(pp=4, dp=4, micro_batches=2, micro_batch=4)
    assert names(layout, question, F.TORCHTITAN) == {"microbatches_ge_pp"}


def test_advice(question: Question) -> None:
    """Waste is told: uneven ranks, idle ranks, padding, repeated heads."""
    model = replace(question[0], vocab=1001, kv_heads=2)
    layout = replace(staged([4, 2, 2, 2], 4), tp=4, dp=1, micro_batches=2, micro_batch=16)
    advice = {item.rule: item for item in advise_layout(layout, model, *question[1:], F.MEGATRON)}
    assert set(advice) == {"layers_mod_pp", "full_pipeline", "vocab_mod_tp", "kv_heads_mod_tp"}
    assert advice["layers_mod_pp"].factors["fullest"] == 4
    assert "+60%" in advice["layers_mod_pp"].message
    assert advice["vocab_mod_tp"].factors["padded"] == 1024
    even = replace(staged([5, 5], 2), dp=8)
    assert advise_layout(even, *question, F.MEGATRON) == ()


def test_filled_in_stages_are_judged_as_the_framework_would_split(question: Question) -> None:
    """Stages that nobody listed don't excuse a launch that splits evenly; listed ones do."""
    layers = question[0].layers
    odd = replace(question[0], runs=(replace(question[0].runs[0], count=layers + 1),))
    share = layers // 4
    layout = staged((share, share, share, layers + 1 - 3 * share), 4)
    asked = (odd, *question[1:])
    assert "layers_mod_pp" not in {rule.rule for rule in check_layout(layout, *asked, Framework.MEGATRON)}
    broken = check_layout(layout, *asked, Framework.MEGATRON, automatic=True)
    assert "layers_mod_pp" in {rule.rule for rule in broken}
    everywhere = check_layout(layout, *asked, Framework.ANY, automatic=True)
    assert "layers_mod_pp" not in {rule.rule for rule in everywhere}


def test_torchtitan_saves_by_operator(question: Question) -> None:
    """Its selective checkpointing is by operator; a list of modules is refused, and so is ``op`` elsewhere."""
    by_operator = Recompute(granularity=Granularity.SELECTIVE, modules=("op",))
    by_module = Recompute(granularity=Granularity.SELECTIVE, modules=("mlp",))
    rule = "recompute_modules_supported"
    layout = staged((question[0].layers,), 1)
    for framework, refused in ((Framework.TORCHTITAN, by_module), (Framework.MEGATRON, by_operator)):
        assert rule in names(replace(layout, recompute=refused), question, framework)
    assert rule not in names(replace(layout, recompute=by_operator), question, Framework.TORCHTITAN)
    assert rule not in names(replace(layout, recompute=by_operator), question, Framework.ANY)


def test_stages_that_may_be_empty_follow_the_schedule(question: Question) -> None:
    """A V-shaped pipeline ends on rank 0: its second chunk holds the head and may hold no layer, the others may not."""
    layers = question[0].layers
    rest = layers - 2
    ends_empty = staged((1, rest // 2, 0, rest - rest // 2 + 1), 2, vp=2, schedule=Schedule.ZB_V)
    inner_empty = staged((1, 0, layers // 2, layers - layers // 2 - 1), 2, vp=2, schedule=Schedule.ZB_V)
    assert "stage_empty" not in names(ends_empty, question, Framework.TORCHTITAN)
    assert "stage_empty" in names(inner_empty, question, Framework.TORCHTITAN)


def test_nanotron_balances_by_its_own_cost(question: Question) -> None:
    """The split that nanotron computes is accepted although its stages differ by more than one layer."""
    wide = replace(question[0], vocab=2_000_000)
    split = nanotron_counts(wide, 2)
    assert max(split) - min(split) > 1
    asked = (wide, *question[1:])
    layout = staged(split, 2)
    assert "stage_split" not in {rule.rule for rule in check_layout(layout, *asked, Framework.NANOTRON)}
    other = staged((split[1], split[0]), 2)
    assert "stage_split" in {rule.rule for rule in check_layout(other, *asked, Framework.NANOTRON)}
