"""What explanations say, on questions that are quick to search: shares of memory, causes, changes, wishes."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from layoutopt.optimizer.cost.components import TRAFFIC, Component
from layoutopt.optimizer.cost.estimate import estimate
from layoutopt.optimizer.cost.factory import build_cost_model
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.solve.api import solve_layout
from layoutopt.optimizer.solve.explain.api import why_not
from layoutopt.optimizer.solve.explain.changes import list_changes
from layoutopt.optimizer.solve.explain.fullest import fullest_rank
from layoutopt.optimizer.solve.explain.gap import FULL_SHARE, LARGE_SHARE, what_binds
from layoutopt.optimizer.solve.inputs import Question
from layoutopt.optimizer.solve.judge import judge_layout, memory_verdict
from layoutopt.optimizer.solve.plan import Plan, SolveOptions
from layoutopt.optimizer.space.options import SpaceOptions
from layoutopt.optimizer.specs.layout import Layout
from layoutopt.optimizer.specs.loading import load_cluster, load_workload, override_training, parse_layout
from layoutopt.optimizer.specs.stage_split import build_stages
from layoutopt.optimizer.specs.vocabulary import Schedule, Verdict

WORKLOAD = override_training(load_workload("llama3-8b"), global_batch=64, sequence_length=2048)
CLUSTER = load_cluster("h100x8")
SMALL = SpaceOptions(fix={"cp": (1,), "micro_batch": (1,), "mesh_order": ("tp-cp-ep-dp-pp",)}, max={"pp": 2})


@cache
def answer() -> Plan:
    """The best layout of a small space."""
    return solve_layout(WORKLOAD, CLUSTER, SolveOptions(space=SMALL, top=1))


def test_a_wish_takes_one_value_or_several() -> None:
    """``{"tp": 4}`` and ``{"tp": (4,)}`` are one wish; what it costs is over the plan without it."""
    options = SolveOptions(space=SMALL)
    one = why_not(WORKLOAD, CLUSTER, {"tp": 4}, options, best=answer())
    several = why_not(WORKLOAD, CLUSTER, {"tp": (4,)}, options, best=answer())
    assert one.fixed == several.fixed == {"tp": (4,)}
    assert one.plan.layout == several.plan.layout and one.plan.layout is not None
    assert one.plan.layout.tp == 4
    best, found = answer().estimate, one.plan.estimate
    assert best is not None and found is not None and one.slower is not None
    assert one.slower == several.slower == found.step_time_s / best.step_time_s - 1
    assert one.slower > 0


def _with_shares(memory: float, loss: float, network: float) -> tuple[str, ...]:
    """What binds where the fullest rank, the bubble and traffic have these shares."""
    priced = answer().estimate
    assert priced is not None
    peak = memory * priced.memory.capacity_bytes
    parts = {part: 0.0 for part in Component}
    parts |= {Component.FORWARD: 1.0 - loss - network, Component.BUBBLE: loss, Component.TP: network}
    return what_binds(
        replace(priced, step_time_s=1.0, breakdown_s=parts, memory=replace(priced.memory, peak_bytes=peak))
    )


def test_what_binds_is_what_is_large() -> None:
    """Memory that is nearly full, losses and traffic above their share of the step; else compute."""
    low, high = 0.99, 1.01
    assert Component.TP in TRAFFIC and Component.BUBBLE.record.loss
    assert _with_shares(FULL_SHARE * low, LARGE_SHARE * low, LARGE_SHARE * low)[0].startswith("compute:")
    (memory,) = _with_shares(FULL_SHARE * high, 0.0, 0.0)
    assert memory.startswith("memory: the fullest rank uses")
    (bubble,) = _with_shares(0.5, 0.25, 0.0)
    assert bubble == "pipeline bubble: 25% of the step"
    (network,) = _with_shares(0.5, 0.0, LARGE_SHARE * high)
    assert network.startswith("network: ") and network.endswith("most of it exposed tensor-parallel traffic")


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ((8, 8, 8, 8), (7, 9, 9, 7), "layers per stage 8x4 -> 7,9x2,7"),
        ((8, 8, 8, 8), (7, 8, 8, 9), "layers per stage 8x4 -> 7,8x2,9"),
        ((6, 10, 10, 6), (8, 8, 8, 8), "layers per stage 6,10x2,6 -> 8x4"),
    ],
)
def test_stages_that_changed_alone_are_listed(
    before: tuple[int, ...], after: tuple[int, ...], words: str
) -> None:
    """Equal neighbours are counted, and one of a kind stands by itself."""

    def layout(counts: tuple[int, ...]) -> Layout:
        """A pipeline of these stages."""
        stages = build_stages(WORKLOAD.model, counts, 4, Schedule.ONE_F_ONE_B, 0)
        return Layout(pp=4, dp=2, micro_batches=32, zero=1, schedule=Schedule.ONE_F_ONE_B, stages=stages)

    assert list_changes(layout(before), layout(after)) == (words,)
    assert list_changes(layout(before), layout(before)) == ()


@pytest.mark.parametrize("rank", [0, 1])
def test_experts_of_the_fullest_rank_are_those_it_holds(rank: int) -> None:
    """Parts sum to the rank's bytes, and experts are as many as its layers have, over the expert grid."""
    workload = load_workload("mixtral-8x7b")
    text = "tp=2,pp=2,ep=4,zero=1,mb=1,stages=" + ("20/12" if rank == 0 else "12/20")
    cluster = load_cluster("h100x32")
    layout = judge_layout(workload, cluster, parse_layout(text)).layout
    cost = build_cost_model(workload.model, workload.training, cluster)
    memory = estimate(cost, layout).memory
    found = fullest_rank(cost, layout, memory)
    assert found.rank == rank
    assert sum(part.size_bytes for part in found.parts) == pytest.approx(found.needed_bytes, rel=1e-9)
    weights = next(part for part in found.parts if part.name == "weights, experts")
    moe = workload.model.moe
    assert moe is not None
    assert weights.size_bytes == pytest.approx(2 * 20 * moe.experts * 3 * workload.model.hidden * moe.ffn / 4)


LAYERS = WORKLOAD.model.layers


@pytest.mark.parametrize(
    ("require", "possible"),
    [
        (f"layers[0] == {LAYERS}", True),
        (f"layers[0] <= {LAYERS - 1}", False),
        (f"layers[-1] >= {LAYERS}", True),
        (f"recomputed[0] <= {LAYERS}", True),
        (f"recomputed[0] >= {LAYERS + 1}", False),
        (f"layers[0] + recomputed[0] >= {2 * LAYERS}", True),
        (f"layers[0] + recomputed[0] >= {2 * LAYERS + 1}", False),
        (f"layers[0] - recomputed[0] <= {LAYERS - 3}", True),
        ("recomputed[0] - layers[0] >= 1", False),
        (f"2*recomputed[-1] == {LAYERS}", True),
    ],
)
def test_a_single_rank_holds_all_layers_and_recomputes_any(require: str, possible: bool) -> None:
    """Rows of one rank are dropped before they are searched where no number of recomputed layers does."""
    space = replace(SMALL, require=(require,), fix={**SMALL.fix, "pp": (1,)})
    question = Question(
        workload=WORKLOAD, cluster=CLUSTER, options=SolveOptions(space=space, framework=Framework.ANY)
    )
    source = question.costed_space()
    rows = source.space.degrees
    kept = source.demands.kept(np.ones(len(rows)), rows)
    assert len(rows) and set(np.isfinite(kept).tolist()) == {possible}


def test_what_does_not_fit_is_said_in_gigabytes() -> None:
    """The fullest rank's bytes, what is usable, the share, and the three largest parts."""
    judged = judge_layout(load_workload("llama3-70b"), CLUSTER, parse_layout("tp=8,zero=1,mb=1"))
    assert judged.estimate is not None
    memory = judged.estimate.memory
    fullest = max(memory.stages, key=lambda stage: stage.total_bytes)
    size, room = memory.peak_bytes / 1e9, memory.capacity_bytes / 1e9
    parts = sorted(fullest.components_bytes.items(), key=lambda item: -item[1])[:3]
    assert judged.reasons[-1] == (
        f"rank {fullest.rank} needs {size:.1f} GB of {room:.1f} GB usable ({size / room:.0%}): "
        + ", ".join(f"{name} {value / 1e9:.1f} GB" for name, value in parts)
    )


def test_the_last_byte_still_fits() -> None:
    """A rank that needs exactly what is usable fits, barely; at the border itself there is room."""
    priced = answer().estimate
    assert priced is not None
    memory = priced.memory

    def verdict(peak_bytes: float) -> Verdict:
        """The verdict on such a peak."""
        return memory_verdict(replace(memory, peak_bytes=peak_bytes))

    assert verdict(memory.capacity_bytes) is Verdict.BORDERLINE
    assert verdict(memory.capacity_bytes + 1) is Verdict.DOES_NOT_FIT
    assert verdict(memory.borderline_bytes) is Verdict.FITS
    assert verdict(memory.borderline_bytes + 1) is Verdict.BORDERLINE
