"""What the plan says to watch: the messages of every axis, the bands, and the layout of the recipe in words."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from layoutopt.optimizer.cost.estimate import estimate
from layoutopt.optimizer.cost.factory import build_cost_model
from layoutopt.optimizer.cost.parameters import model_parameters
from layoutopt.optimizer.plan.recipe import Recipe, _Rules, recipe_layout
from layoutopt.optimizer.plan.watch import expected_bandwidths, watch_list
from layoutopt.optimizer.solve.plan import SolveOptions
from layoutopt.optimizer.specs.layout import Layout, Switches
from layoutopt.optimizer.specs.loading import load_cluster, load_workload
from layoutopt.optimizer.specs.stage_split import build_stages
from layoutopt.optimizer.specs.vocabulary import CpComm, Schedule

if TYPE_CHECKING:
    from layoutopt.optimizer.specs.workload import Workload

SEQUENCE = 8192
DENSE = load_workload("llama3-70b")
EXPERTS = load_workload("mixtral-8x7b")


def _layout(workload: Workload, **degrees: object) -> Layout:
    """A layout on 64 GPUs with equal stages."""
    asked = {"tp": 2, "cp": 2, "pp": 4, "dp": 4, "micro_batch": 2, "micro_batches": 4, "zero": 1, **degrees}
    layout = Layout(**asked, schedule=Schedule.ONE_F_ONE_B)  # type: ignore[arg-type]
    counts = [workload.model.layers // layout.pp] * layout.pp
    return replace(layout, stages=build_stages(workload.model, counts, layout.pp, layout.schedule, 0))


def _own(workload: Workload, layout: Layout) -> dict[tuple[str, str], float]:
    """The layout's own message of every axis and collective, bytes."""
    training = replace(workload.training, sequence_length=SEQUENCE, global_batch=32)
    cost = build_cost_model(workload.model, training, load_cluster("h100x64"))
    found = expected_bandwidths(cost, layout, estimate(cost, layout))
    return {(one.axis, one.collective): one.size_bytes for one in found if one.own}


@pytest.mark.parametrize("sp", [False, True])
@pytest.mark.parametrize("zero", [0, 1, 3])
def test_messages_of_every_axis_have_their_size(sp: bool, zero: int) -> None:
    """Two bytes for each token of a micro-batch's slice and hidden unit; with sequence parallelism also between stages."""
    layout = _layout(DENSE, sp=sp, zero=zero)
    hidden = 2 * (2 * SEQUENCE / 2) * DENSE.model.hidden
    found = _own(DENSE, layout)
    tensor = ("all_gather", "reduce_scatter") if sp else ("all_reduce",)
    data = ("reduce_scatter", "all_gather") if zero else ("all_reduce",)
    gradients = {found.pop(("dp_cp", collective)) for collective in data}
    expected = {("tp", collective): hidden for collective in tensor}
    assert found == expected | {("cp", "p2p"): hidden / 2, ("pp", "p2p"): hidden / (2 if sp else 1)}
    assert len(gradients) == 1 and gradients.pop() > 1e9


@pytest.mark.parametrize(
    ("kind", "collective"),
    [
        (CpComm.P2P, "p2p"),
        (CpComm.A2A_P2P, "p2p"),
        (CpComm.ALL_GATHER, "all_gather"),
        (CpComm.A2A, "all_to_all"),
    ],
)
def test_context_parallelism_is_measured_as_it_communicates(kind: CpComm, collective: str) -> None:
    """Rings pass messages on, others gather or exchange; every one sends a slice of keys or heads."""
    found = _own(DENSE, _layout(DENSE, sp=True, switches=Switches(cp_kind=kind)))
    assert [name for axis, name in found if axis == "cp"] == [collective]


def test_experts_exchange_every_choice_of_a_token() -> None:
    """Each token goes to as many experts as it is routed to; an axis of one rank has nothing to measure."""
    found = _own(EXPERTS, _layout(EXPERTS, ep=4, cp=1, dp=8, sp=True))
    assert EXPERTS.model.moe is not None
    hidden = 2 * 2 * SEQUENCE * EXPERTS.model.hidden
    assert found["ep", "all_to_all"] == hidden / 2 * EXPERTS.model.moe.top_k
    assert not any(axis == "cp" for axis, _ in found)


def test_bands_are_those_of_a_step_that_is_off() -> None:
    """Rates shrink as the step grows, by the same factor."""
    training = replace(DENSE.training, sequence_length=SEQUENCE, global_batch=32)
    workload, cluster = replace(DENSE, training=training), load_cluster("h100x64")
    layout = _layout(DENSE, sp=True)
    priced = estimate(build_cost_model(DENSE.model, training, cluster), layout)
    found = watch_list(workload, cluster, layout, priced, SolveOptions(), (0.9, 1.2))
    step_s = priced.step_time_s
    assert found.step_time_s == pytest.approx((0.9 * step_s, step_s, 1.2 * step_s))
    assert found.mfu_full == pytest.approx([priced.mfu_full / factor for factor in (1.2, 1.0, 0.9)])
    tokens = 32 * SEQUENCE / step_s
    assert found.tokens_per_s == pytest.approx([tokens / factor for factor in (1.2, 1.0, 0.9)])


def _words(recipe: Recipe) -> str:
    return "; ".join(recipe.steps)


def test_the_recipe_counts_sixteen_bytes_for_a_parameter() -> None:
    """Weights, gradients and Adam's state in mixed precision decide the tensor degree, and are said."""
    found = recipe_layout(DENSE, load_cluster("h100x256"), SolveOptions())
    assert f"{16 * model_parameters(DENSE.model) / 1e9:,.0f} GB of states" in _words(found)


@pytest.mark.parametrize(
    ("pp", "vp", "words"),
    [
        (1, 1, "1 pipeline stage,"),
        (4, 1, "4 pipeline stages,"),
        (4, 2, "4 pipeline stages,"),
        (4, 5, "4 pipeline stages,"),
    ],
)
def test_the_recipe_says_stages_and_chunks(pp: int, vp: int, words: str) -> None:
    """One stage is singular, and chunks are named wherever there are several."""
    cluster, options = load_cluster("h100x256"), SolveOptions()
    judged = recipe_layout(DENSE, cluster, options).judgement
    assert judged is not None
    changed = replace(judged, layout=replace(judged.layout, pp=pp, vp=vp))
    said = next(step for step in _Rules(DENSE, cluster, options).steps(changed) if step.startswith(words))
    assert said.endswith(f", {vp} chunks each") is (vp > 1)
