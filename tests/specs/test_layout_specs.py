"""Layouts stated in part: on the command line, in files, and their completion."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from checks.even_split import even_blocks
from hypothesis import assume, given
from hypothesis import strategies as st

from layoutopt.optimizer.cost.stage_counts import rank_blocks
from layoutopt.optimizer.space.stages import chunk_layers, kinds_of, model_order
from layoutopt.optimizer.specs.canonical import to_plain
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.layer_runs import by_layer
from layoutopt.optimizer.specs.layout import Recompute
from layoutopt.optimizer.specs.loading import (
    load_cluster,
    load_layout,
    load_workload,
    override_training,
    parse_layout,
    reference_cluster,
)
from layoutopt.optimizer.specs.partial_layout import PartialLayout
from layoutopt.optimizer.specs.stage_split import even_layers
from layoutopt.optimizer.specs.vocabulary import Granularity, Precision, Schedule

if TYPE_CHECKING:
    from pathlib import Path

    from layoutopt.optimizer.specs.layout import Layout

LLAMA = load_workload("llama3-405b")
BIG = load_cluster("h100-16384")
MODELS = ("llama3-405b", "deepseek-v3", "gpt-oss-120b", "llama3-8b", "kimi-k2")


def complete(text: str, workload: str = "llama3-405b", cluster: str = "h100-16384") -> Layout:
    """Parse and complete a layout."""
    return parse_layout(text).complete(load_workload(workload), load_cluster(cluster))


def test_text_keeps_given_and_open_apart() -> None:
    """What the text leaves out stays None; short keys stand for long ones."""
    assert parse_layout("tp=8, PP=16 v=8,mb=1,hsdp=64,zero=3,sp=0") == PartialLayout(
        tp=8, pp=16, vp=8, micro_batch=1, hsdp_shard=64, zero=3, sp=False
    )
    assert parse_layout("m=32,order=tp-cp-ep-pp-dp,precision=FP8,schedule=1F1B") == PartialLayout(
        micro_batches=32,
        mesh_order="tp-cp-ep-pp-dp",
        precision=Precision.FP8,
        schedule=Schedule.ONE_F_ONE_B,
    )


@pytest.mark.parametrize(
    ("text", "recompute", "layers"),
    [
        ("none", Recompute(), None),
        ("full", Recompute(granularity=Granularity.FULL), None),
        ("full:4", Recompute(granularity=Granularity.FULL), 4),
        ("full:0", Recompute(granularity=Granularity.FULL), 0),
        ("selective", Recompute(granularity=Granularity.SELECTIVE, modules=("core_attn",)), None),
        ("selective:mlp", Recompute(granularity=Granularity.SELECTIVE, modules=("mlp",)), None),
        ("mlp+core_attn", Recompute(granularity=Granularity.SELECTIVE, modules=("core_attn", "mlp")), None),
    ],
)
def test_recompute_forms(text: str, recompute: Recompute, layers: int | None) -> None:
    """Recomputation is a word, ``full:N``, or modules joined by +."""
    partial = parse_layout(f"recompute={text}")
    assert (partial.recompute, partial.recompute_layers) == (recompute, layers)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tp=8,pq=16", "pq: unknown key; did you mean pp?"),
        ("tp=8,microbatch=1", "microbatch: unknown key; did you mean micro_batch?"),
        ("tp=8,tp=4", "tp: is given twice (one value)"),
        ("tp=8,t=4", "tp: is given twice (one value)"),
        ("tp", "layout: 'tp' is not key=value (tp=8,pp=16,zero=1)"),
        ("", "layout: '' is not key=value (tp=8,pp=16,zero=1)"),
        ("tp=", "layout: 'tp=' is not key=value (tp=8,pp=16,zero=1)"),
        ("tp=0", "tp: 0 is out of range (a whole number from 1 to 100000000)"),
        ("sp=maybe", "sp: 'maybe' is neither true nor false (true or false)"),
        ("pp=4,schedule=none", "schedule: none with pp 4"),
        ("x" * 30_000, "layout: is too long (at most 20000 characters)"),
    ],
)
def test_bad_text(text: str, message: str) -> None:
    """A wrong item is one line with the nearest key or what is allowed."""
    with pytest.raises(InputError) as caught:
        parse_layout(text)
    assert message in str(caught.value)


def test_all_problems_of_a_text_are_reported() -> None:
    """A text with several wrong items is answered once."""
    with pytest.raises(InputError) as caught:
        parse_layout("tp=x,ppp=1,dp,zero=7")
    assert len(caught.value.problems) == 4


def test_completion_of_llama3_405b() -> None:
    """Open values follow from the rest; 126 layers are one short on the first and the last chunk."""
    layout = complete("tp=8,pp=16,vp=8,mb=1,zero=1,recompute=full:1")
    assert (layout.dp, layout.micro_batches, layout.sp, layout.ep, layout.etp) == (128, 16, True, 1, 1)
    assert (layout.schedule, layout.precision) == (Schedule.INTERLEAVED, Precision.BF16)
    layers = [stage.layers for stage in layout.stages]
    assert layers == [0, *[1] * 126, 0]
    assert [stage.recomputed for stage in layout.stages] == layers
    assert [(stage.rank, stage.chunk) for stage in layout.stages[15:18]] == [(15, 0), (0, 1), (1, 1)]
    assert (layout.stages[0].embedding, layout.stages[-1].head) == (True, True)
    assert sum(stage.embedding + stage.head for stage in layout.stages) == 2


@pytest.mark.parametrize(
    ("text", "schedule", "vp"),
    [
        ("tp=8", Schedule.NONE, 1),
        ("tp=8,pp=4", Schedule.ONE_F_ONE_B, 1),
        ("tp=8,pp=4,vp=2", Schedule.INTERLEAVED, 2),
        ("tp=8,pp=4,schedule=gpipe", Schedule.GPIPE, 1),
        ("tp=8,pp=4,schedule=zb-v", Schedule.ZB_V, 2),
        ("tp=8,pp=4,stages=16/16/16/16/16/16/16/14", Schedule.INTERLEAVED, 2),
    ],
)
def test_schedule_follows_from_degrees(text: str, schedule: Schedule, vp: int) -> None:
    """The schedule is derived from pp and vp, and vp from the schedule or the stage list."""
    layout = complete(text)
    assert (layout.schedule, layout.vp) == (schedule, vp)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tp=8,pp=16,dp=100", "layout: tp 8 x cp 1 x pp 16 x dp 100 = 12800, cluster has 16384 GPUs"),
        (
            "tp=8,pp=15",
            "layout: tp 8 x cp 1 x pp 15 = 120 does not divide the cluster's 16384 GPUs "
            "(a product that divides them; dp is the quotient)",
        ),
        (
            "tp=8,pp=16,mb=3",
            "layout: dp 128 x micro_batch 3 = 384 does not divide the global batch of 2048 sequences "
            "(nearest batches 1920 and 2304)",
        ),
        (
            "tp=1,mb=1",
            "layout: dp 16384 x micro_batch 1 = 16384 does not divide the global batch of 2048 sequences "
            "(nearest batch 16384)",
        ),
        (
            "tp=8,pp=16,mb=1,m=8",
            "layout: dp 128 x micro_batch 1 x micro_batches 8 = 1024, the global batch is 2048 sequences",
        ),
        ("tp=8,pp=2,stages=1/2", "stages: hold 3 layers, llama3-405b has 126 (126 layers in all)"),
        ("tp=8,pp=4,stages=60/66", "stages: lists 2 virtual stages (pp 4 x vp 1 = 4)"),
        (
            "tp=8,pp=2,stages=Et*60|t*66mL",
            "stages: hold 1 MTP layers, llama3-405b has 0 (0 MTP layers in all)",
        ),
    ],
)
def test_products_that_do_not_match(text: str, message: str) -> None:
    """A product that misses the GPUs, the batch or the layers prints every factor."""
    with pytest.raises(InputError) as caught:
        complete(text)
    assert str(caught.value) == message


def test_lenient_completion_leaves_products_to_the_rules() -> None:
    """Without ``strict`` a layout that can't run is still a layout, for rules to judge."""
    layout = parse_layout("tp=7,pp=3,mb=5").complete(LLAMA, BIG, strict=False)
    assert (layout.dp, layout.micro_batches) == (780, 1)
    assert parse_layout("tp=8,pp=16,dp=3").complete(LLAMA, BIG, strict=False).gpus == 384
    assert parse_layout("pp=1000").complete(LLAMA, BIG, strict=False).stages == ()


@pytest.mark.parametrize("text", ["Et*3|(tt|)*29,m|L", "Et*4|(tttt|)*14tmL"])
def test_megatron_layout_strings(text: str) -> None:
    """Megatron-LM's layout strings for DeepSeek-V3 become stages with their kinds and the MTP layer."""
    pp = 16
    stages = text.replace(",", "")
    workload = override_training(load_workload("deepseek-v3"), global_batch=16_384)
    layout = parse_layout(f"pp={pp},ep=64,stages={stages}").complete(workload, load_cluster("h800-2048"))
    assert sum(stage.layers for stage in layout.stages) == 61
    assert layout.stages[0].kinds["dense"] == 3
    assert sum(stage.mtp for stage in layout.stages) == 1
    assert layout.vp == len(layout.stages) // pp


@given(
    name=st.sampled_from(MODELS),
    pp=st.integers(1, 40),
    vp=st.integers(1, 8),
    schedule=st.sampled_from([Schedule.INTERLEAVED, Schedule.ZB_V, Schedule.ONE_F_ONE_B]),
)
def test_even_split_is_the_space_rooms(name: str, pp: int, vp: int, schedule: Schedule) -> None:
    """The stages filled in are those that an empty stage list means everywhere else."""
    model = load_workload(name).model
    layers = even_layers(model, pp, vp, schedule)
    try:
        blocks = chunk_layers(
            even_blocks(model.layers, pp, vp, schedule if vp == 2 else Schedule.NONE),
            pp,
            vp,
            folded=vp == 2 and schedule.v_shape,
        )
    except ValueError:
        assert layers is None
        return
    assert layers is not None
    assert sum(layers) == model.layers
    assert list(layers) == blocks.tolist()


@given(name=st.sampled_from(MODELS), pp=st.sampled_from([1, 2, 4, 8, 16]), vp=st.integers(1, 3))
def test_completed_stages_read_back_as_even(name: str, pp: int, vp: int) -> None:
    """The cost room reads the blocks per rank and kind of the even split off the completed list."""
    workload = load_workload(name)
    cluster = reference_cluster("h100", pp)
    partial = PartialLayout(pp=pp, vp=vp, micro_batch=workload.training.global_batch)
    layout = partial.complete(workload, cluster)
    assume(layout.stages)
    model = by_layer(workload.model)
    listed, recomputed = rank_blocks(layout, model)
    counts = chunk_layers(even_blocks(model.layers, pp, vp, layout.schedule), pp, vp)
    kinds = kinds_of(model, counts, model_order(pp, vp, layout.schedule))
    assert (listed == kinds.reshape(vp, pp, -1).sum(axis=0)).all()
    assert not recomputed.any()
    assert all(sum(stage.kinds.values()) == stage.layers for stage in layout.stages)
    assert sum(stage.mtp for stage in layout.stages) == workload.model.mtp_layers


def test_v_shape_puts_both_ends_on_the_first_rank() -> None:
    """Under a V-shaped schedule the embedding and the head share rank 0."""
    stages = complete("tp=8,pp=4,schedule=dualpipe-v").stages
    assert [(s.rank, s.chunk) for s in stages if s.embedding or s.head] == [(0, 0), (0, 1)]


def test_layout_files(tmp_path: Path) -> None:
    """A YAML layout, its completed JSON form, and a plan that holds it give the same layout."""
    path = tmp_path / "layout.yaml"
    path.write_text("tp: 8\npp: 16\nvp: 8\nzero: 1\nrecompute:\n  granularity: full\n  layers: 1\n")
    layout = load_layout(path).complete(LLAMA, BIG)
    plain = tmp_path / "layout.json"
    plain.write_text(json.dumps(to_plain(layout)))
    assert load_layout(plain).complete(LLAMA, BIG) == layout
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"status": "optimal", "layout": to_plain(layout), "alternatives": []}))
    assert load_layout(plan).complete(LLAMA, BIG) == layout


def test_stage_lists_in_files(tmp_path: Path) -> None:
    """Stages may state only their layers, or also what they recompute; the rest follows from their place."""
    path = tmp_path / "layout.yaml"
    path.write_text("tp: 8\npp: 2\nstages: [60, 66]\n")
    assert [stage.layers for stage in load_layout(path).complete(LLAMA, BIG).stages] == [60, 66]
    path.write_text("tp: 8\npp: 2\nstages:\n  - {layers: 60, recomputed: 5}\n  - {layers: 66}\n")
    first, second = load_layout(path).complete(LLAMA, BIG).stages
    assert (first.rank, first.recomputed, first.embedding, first.kinds) == (0, 5, True, {"dense": 60})
    assert (second.rank, second.recomputed, second.head, second.kinds) == (1, 0, True, {"dense": 66})
