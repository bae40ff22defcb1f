"""Recomputation in groups of layers as an axis: the answer is the best of all groups, sets and stages, and verified."""

from __future__ import annotations

import json

import numpy as np
import pytest
from checks.enumeration import solve_stages

from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.report.json_forms import plan_to_plain
from layoutopt.optimizer.report.verification import verify_plan
from layoutopt.optimizer.solve.api import solve_layout
from layoutopt.optimizer.solve.inputs import Question
from layoutopt.optimizer.solve.plan import SolveOptions
from layoutopt.optimizer.space.options import SpaceOptions
from layoutopt.optimizer.specs.loading import load_cluster
from layoutopt.optimizer.specs.model import LayerShape, Mlp, ModelSpec, Run, TrainingSpec
from layoutopt.optimizer.specs.vocabulary import Precision
from layoutopt.optimizer.specs.workload import Workload

CHOICES = ("full", "layernorm+mlp", "uniform:2", "uniform:3", "uniform:4")


def question(layers: int, micro_batch: int, *choices: str, gpu: str = "a100") -> Question:
    """Return a question of long sequences: deep models hardly fit, if at all, unless layers are recomputed."""
    model = ModelSpec(
        name="deep",
        runs=(Run(name="dense", block=(LayerShape(mlp=Mlp.DENSE, ffn=8192),), count=layers),),
        hidden=4096,
        heads=32,
        kv_heads=8,
        head_dim=128,
        vocab=1024,
    )
    training = TrainingSpec(sequence_length=65536, global_batch=4 * micro_batch, precision=Precision.BF16)
    fix = {
        "tp": (8,), "cp": (1,), "pp": (1,) if layers > 16 else (1, 2), "vp": (1,), "zero": (1,), "hsdp_shard": (0,),
        "micro_batch": (micro_batch,), "mesh_order": ("tp-cp-ep-dp-pp",), "recompute": choices or CHOICES,
        "cuda_graph": ("none",),
    }  # fmt: skip
    options = SolveOptions(space=SpaceOptions(fix=fix), top=1, framework=Framework.MEGATRON)
    machine = load_cluster(f"{gpu}x16")
    return Question(workload=Workload(model=model, training=training), cluster=machine, options=options)


def best_of_all(asked: Question) -> float:
    """Price every tuple with every choice of stages."""
    source = asked.costed_space()
    batch, _ = source.expand(source.degrees)
    terms, best = source.terms(batch), np.inf
    for row in range(len(batch)):
        found = solve_stages(terms.take(np.array([row])), source.counts, source.rule, below_s=best)
        best = best if found is None else found.step_time_s
    return best


@pytest.mark.parametrize(
    "asked",
    [
        question(64, 11),
        question(64, 8, gpu="h100"),
        question(8, 10),
        question(8, 10, "uniform:2", "uniform:3"),
        question(6, 16, "uniform:2", "layernorm", gpu="h100"),
    ],
)
def test_search_agrees_with_joint_enumeration(asked: Question) -> None:
    """With groups beside whole layers and modules, with one stage and with two."""
    plan = solve_layout(asked.workload, asked.cluster, asked.options)
    assert plan.estimate is not None
    assert plan.estimate.step_time_s == pytest.approx(best_of_all(asked), rel=1e-9)
    assert plan.status == "optimal"


@pytest.mark.parametrize("layers", [8, 64])
def test_answers_of_groups_are_whole_and_verified(layers: int) -> None:
    """All layers of every stage are recomputed, and the plan is verified with other code than found it."""
    asked = question(layers, 6, "uniform:2", "uniform:4")
    plan = solve_layout(asked.workload, asked.cluster, asked.options)
    assert plan.layout is not None
    assert plan.layout.recompute.group in (2, 4)
    assert all(stage.recomputed == stage.layers for stage in plan.layout.stages)
    report = verify_plan(json.loads(json.dumps(plan_to_plain(plan))))
    assert report.accepted, str(report)


def test_groups_hold_what_layers_of_their_own_do_not() -> None:
    """Where the saved inputs of all layers do not fit, groups do: fewer inputs, and two layers at a time."""
    alone, grouped = question(64, 11, "full", "layernorm+mlp"), question(64, 11)
    assert solve_layout(alone.workload, alone.cluster, alone.options).layout is None
    found = solve_layout(grouped.workload, grouped.cluster, grouped.options).layout
    assert found is not None
    assert found.recompute.group == 2


def test_groups_that_only_the_search_leaves_out_are_not_called_invalid() -> None:
    """No layout of groups of 3 over 8 layers is searched: the answer says so, and that such layouts can be priced."""
    empty = question(8, 1, "uniform:3").costed_space().space.empty
    assert empty is not None and empty.rule == "recompute_groups_divide"
    assert "is searched under" in empty.message and "is valid under" not in empty.message
    assert "stages of whole groups" in empty.message and "evaluate prices others" in empty.message
