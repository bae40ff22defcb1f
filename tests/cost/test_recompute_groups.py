"""Recomputation in groups of layers: memory by hand, the square-root optimum, the uniform method's flags."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

import pytest

from layoutopt.optimizer.cost.batch import batch_of_one
from layoutopt.optimizer.cost.estimate import Estimate, estimate
from layoutopt.optimizer.cost.factory import build_cost_model
from layoutopt.optimizer.cost.stage_work import stage_works
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.interop.launch.export import export
from layoutopt.optimizer.interop.sources import import_text
from layoutopt.optimizer.solve.judge import judge_layout
from layoutopt.optimizer.specs.layout import Recompute
from layoutopt.optimizer.specs.loading import load_cluster, load_workload, parse_layout
from layoutopt.optimizer.specs.vocabulary import Granularity

CLUSTER = load_cluster("h100x8")
WORKLOAD = replace(
    load_workload("llama3-70b"), training=replace(load_workload("llama3-70b").training, global_batch=8)
)
COST = build_cost_model(WORKLOAD.model, WORKLOAD.training, CLUSTER, framework=Framework.ANY)
LAYERS = 80


def priced(recompute: str, tp: int = 8) -> Estimate:
    """Price one stage of 80 layers."""
    return estimate(
        COST, parse_layout(f"tp={tp},dp={8 // tp},mb=1,recompute={recompute}").complete(WORKLOAD, CLUSTER)
    )


def activations(found: Estimate) -> float:
    """Bytes of saved inputs and of the layers that are recomputed at a time."""
    parts = found.memory.stages[0].components_bytes
    return parts["activations"] + parts["recompute_transient"]


def one_layer() -> tuple[float, float]:
    """Bytes of a layer's input and of all that it keeps."""
    layout = parse_layout("tp=8,dp=1,mb=1").complete(WORKLOAD, CLUSTER)
    units = COST.micro_batch_units(batch_of_one(layout)).units
    return tuple(float(units.blocks_of(name)[0, 0]) for name in ("checkpoint_bytes", "kept_bytes"))  # type: ignore[return-value]


@pytest.mark.parametrize("group", [1, 2, 4, 5, 8, 10, 20, 40, 80])
def test_memory_by_hand(group: int) -> None:
    """L/k saved inputs of 2*M*h/t bytes, and all that k layers keep while they are recomputed."""
    saved, kept = one_layer()
    assert saved == 2 * 8192 * 8192 / 8
    assert activations(priced(f"uniform:{group}")) == pytest.approx(
        LAYERS / group * saved + group * kept, rel=1e-9
    )


@pytest.mark.parametrize(
    ("sizes", "group"),
    [((22, 18, 21, 19), 4), ((20, 20, 20, 20), 8), ((3, 37, 37, 3), 5), ((20, 20, 20, 20), 5)],
)
def test_uneven_stages_by_hand(sizes: tuple[int, ...], group: int) -> None:
    """Every stage saves ceil(n/k) inputs for each of its micro-batches in flight, and holds at most k layers at once."""
    layout = parse_layout(f"tp=2,pp=4,dp=1,mb=1,recompute=uniform:{group}").complete(WORKLOAD, CLUSTER)
    stages = tuple(
        replace(stage, layers=count, recomputed=count, kinds={"dense": count})
        for stage, count in zip(layout.stages, sizes, strict=True)
    )
    found = estimate(COST, replace(layout, stages=stages))
    one = parse_layout("tp=2,dp=4,mb=1").complete(WORKLOAD, CLUSTER)
    units = COST.micro_batch_units(batch_of_one(one)).units
    saved, kept = (float(units.blocks_of(name)[0, 0]) for name in ("checkpoint_bytes", "kept_bytes"))
    works = stage_works(COST, replace(layout, stages=stages)).activation_bytes
    for rank, count in enumerate(sizes):
        parts = found.memory.stages[rank].components_bytes
        flight = 4 - rank  # 1F1B
        assert parts["activations"] == pytest.approx(flight * ceil(count / group) * saved, rel=1e-9)
        assert parts["recompute_transient"] == pytest.approx(min(count, group) * kept, rel=1e-9)
        assert works[rank] == pytest.approx(ceil(count / group) * saved, rel=1e-9)


def test_chunks_are_cut_into_groups_one_by_one() -> None:
    """Two chunks of 3 and 5 layers in groups of 4 save 1 + 2 inputs, where one stage of 8 would save 2."""
    layout = parse_layout("tp=1,pp=8,vp=2,dp=1,mb=1,recompute=uniform:4").complete(WORKLOAD, CLUSTER)
    counts = [3 if stage.chunk == 0 else 5 if stage.rank else 7 for stage in layout.stages]
    counts[0] += 80 - sum(counts)
    stages = tuple(
        replace(stage, layers=count, recomputed=count, kinds={"dense": count})
        for stage, count in zip(layout.stages, counts, strict=True)
    )
    units = COST.micro_batch_units(batch_of_one(layout)).units
    saved = float(units.blocks_of("checkpoint_bytes")[0, 0])
    found = estimate(COST, replace(layout, stages=stages)).memory.stages[-1].components_bytes
    flights = float(next(COST.parts(batch_of_one(layout)))[1].in_flight[0, -1])
    assert found["activations"] == pytest.approx(flights * 3 * saved, rel=1e-9)


@pytest.mark.parametrize(("software", "legal"), [("core 0.16", False), ("core 0.17", True)])
def test_when_groups_end_with_their_stage(software: str, legal: bool) -> None:
    """Up to core 0.16 a group runs past the end of its stage; from core 0.17 it is cut there."""
    layout = parse_layout("tp=2,pp=4,dp=1,mb=1,recompute=uniform:8").complete(WORKLOAD, CLUSTER)
    whole = parse_layout("tp=2,pp=4,dp=1,mb=1,recompute=uniform:5").complete(WORKLOAD, CLUSTER)
    for one, fits in ((layout, legal), (whole, True)):
        broken = {reason.rule for reason in judge_layout(WORKLOAD, CLUSTER, one, software=software).broken}
        assert ("recompute_groups_divide" in broken) is not fits


def test_groups_of_one_are_full_recomputation() -> None:
    """To the last bit, and time does not depend on the group."""
    assert priced("uniform:1") == priced("full")
    assert priced("uniform:8").step_time_s == pytest.approx(priced("full").step_time_s, rel=1e-12)


def test_the_square_root_optimum() -> None:
    """Chen et al. 2016: L/k + k is least at sqrt(L), 9 for 80 layers; with unequal sizes at sqrt(L * saved / kept)."""
    sizes = {k: LAYERS / k + k for k in range(1, LAYERS + 1)}
    best = min(sizes, key=lambda k: sizes[k])
    assert best == 9
    assert sizes[best] == pytest.approx(8.889 + 9, rel=1e-4)
    saved, kept = one_layer()
    found = {k: activations(priced(f"uniform:{k}")) for k in range(1, LAYERS + 1)}
    assert min(found, key=lambda k: found[k]) in {
        int((LAYERS * saved / kept) ** 0.5) + more for more in (0, 1)
    }
    equal = {k: (LAYERS / k * saved + k * kept * saved / kept) for k in found}
    assert min(equal, key=lambda k: equal[k]) == 9


@pytest.mark.parametrize(
    ("framework", "stages", "rule"),
    [
        (Framework.MEGATRON, "", ""),
        (Framework.ANY, "", ""),
        (Framework.TORCHTITAN, "", "recompute_groups_supported"),
        (Framework.NANOTRON, "", "recompute_groups_supported"),
    ],
)
def test_who_groups(framework: Framework, stages: str, rule: str) -> None:
    """Megatron's uniform method alone."""
    layout = parse_layout("tp=8,dp=1,mb=1,recompute=uniform:4").complete(WORKLOAD, CLUSTER)
    broken = {reason.rule for reason in judge_layout(WORKLOAD, CLUSTER, layout, framework=framework).broken}
    assert (rule in broken) if rule else not {name for name in broken if "recompute" in name}


def test_megatron_groups_all_layers() -> None:
    """Its uniform method knows no part of a stage."""
    layout = parse_layout("tp=8,dp=1,mb=1,recompute=uniform:4").complete(WORKLOAD, CLUSTER)
    part = replace(layout, stages=tuple(replace(stage, recomputed=40) for stage in layout.stages))
    broken = {reason.rule for reason in judge_layout(WORKLOAD, CLUSTER, part).broken}
    assert "recompute_groups_whole" in broken


@pytest.mark.parametrize("framework", [Framework.MEGATRON, Framework.MEGATRON_BRIDGE])
def test_the_uniform_method_is_written_and_read(framework: Framework) -> None:
    """``--recompute-method uniform --recompute-num-layers 4``."""
    layout = parse_layout("tp=8,dp=1,mb=1,recompute=uniform:4").complete(WORKLOAD, CLUSTER)
    job = export(layout, WORKLOAD, CLUSTER, framework)
    name, text = next((n, t) for n, t in job.files.items() if n.endswith((".sh", ".yaml")))
    assert "uniform" in text
    found = import_text(text, name).value.layout
    assert found.recompute == Recompute(granularity=Granularity.FULL, group=4)
