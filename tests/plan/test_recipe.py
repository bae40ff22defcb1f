"""The rule-of-thumb layout."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.plan.recipe import published_layouts, recipe_layout, vendor_layout
from layoutopt.optimizer.solve.api import solve_layout
from layoutopt.optimizer.solve.plan import SolveOptions
from layoutopt.optimizer.specs.gpu_catalog import find_gpu
from layoutopt.optimizer.specs.loading import load_cluster, load_workload, override_training
from layoutopt.optimizer.specs.vocabulary import Granularity, Precision, Verdict

if TYPE_CHECKING:
    from layoutopt.optimizer.specs.layout import Layout


def layout_of(model: str, cluster: str, **changes: int) -> Layout:
    """The recipe's layout."""
    workload = override_training(load_workload(model), **changes)  # type: ignore[arg-type]
    recipe = recipe_layout(workload, load_cluster(cluster), SolveOptions())
    assert recipe.judgement is not None
    assert recipe.judgement.verdict in (Verdict.FITS, Verdict.BORDERLINE)
    return recipe.judgement.layout


def test_large_dense_models_use_the_whole_node() -> None:
    """70B on 1,024 H100: tp 8 inside the node with sequence parallelism, ZeRO-1, micro-batch 1."""
    layout = layout_of("llama3-70b", "h100-1024")
    assert (layout.tp, layout.sp, layout.cp, layout.zero, layout.micro_batch) == (8, True, 1, 1, 1)
    assert layout.recompute.granularity is Granularity.NONE
    assert layout.mesh_order == "tp-cp-ep-pp-dp"
    assert layout.gpus == 1024


def test_small_models_need_less_tensor_parallelism() -> None:
    """8B: 128 GB of states need two GPUs, no more."""
    layout = layout_of("llama3-8b", "h100x64")
    assert (layout.tp, layout.pp) == (2, 1)


def test_long_sequences_get_context_parallelism() -> None:
    """None at 8K, 16 at 128K (Llama 3)."""
    assert layout_of("llama3-405b", "h100-16384").cp == 1
    assert layout_of("llama3-405b", "h100-16384", sequence_length=131072, global_batch=128).cp == 16


def test_experts_have_their_own_axis() -> None:
    """Tensor parallelism of a mixture follows its dense part."""
    assert layout_of("mixtral-8x7b", "h100x128").tp == 1


@pytest.mark.parametrize(("model", "cluster"), [("llama3-70b", "h100-1024"), ("llama3-8b", "h100x64")])
def test_the_optimum_is_never_slower(model: str, cluster: str) -> None:
    """The recipe's layout is in the space, so the proven optimum is at least as fast."""
    workload, machine = load_workload(model), load_cluster(cluster)
    recipe = recipe_layout(workload, machine, SolveOptions())
    plan = solve_layout(workload, machine, SolveOptions(top=1))
    assert recipe.judgement is not None
    assert recipe.judgement.estimate is not None
    assert plan.estimate is not None
    assert plan.estimate.step_time_s <= recipe.judgement.estimate.step_time_s * (1 + 1e-9)


@pytest.mark.parametrize("framework", [Framework.TORCHTITAN, Framework.DEEPSPEED, Framework.ANY])
def test_every_framework_gets_a_layout_it_launches(framework: Framework) -> None:
    """Axes that a trainer lacks stay 1; the verdict is the framework's own."""
    workload = load_workload("llama3-8b")
    recipe = recipe_layout(workload, load_cluster("h100x64"), SolveOptions(framework=framework))
    assert recipe.judgement is not None
    assert not recipe.judgement.broken


def test_nothing_fits_is_said() -> None:
    """405B on one node."""
    recipe = recipe_layout(load_workload("llama3-405b"), load_cluster("h100x8"), SolveOptions())
    assert recipe.judgement is None
    assert "no layout of the recipe" in recipe.steps[0]


def test_recomputation_comes_last() -> None:
    """Only where nothing else fits: half the memory makes the recipe recompute or split further."""
    cluster = load_cluster("h100-1024")
    small = replace(cluster, gpu=replace(cluster.gpu, memory_bytes=cluster.gpu.memory_bytes * 0.45))
    roomy = layout_of("llama3-70b", "h100-1024")
    tight = recipe_layout(load_workload("llama3-70b"), small, SolveOptions()).judgement
    assert tight is not None
    assert tight.layout.pp > roomy.pp


def test_every_stage_sees_four_micro_batches() -> None:
    """70B on 4,096 H100 with 512 sequences: not tp 8 with one micro-batch, but stages that see four."""
    layout = layout_of("llama3-70b", "h100x4096")
    assert layout.micro_batches >= 4 and layout.pp <= layout.micro_batches


def test_the_vendors_layout_is_priced_here() -> None:
    """The published layout of the nearest size that runs; other GPUs, models and formats have their own or none."""
    workload, cluster = load_workload("llama3-70b"), load_cluster("h100x4096")
    found = vendor_layout(workload, cluster, SolveOptions())
    assert found is not None and found.judgement.estimate is not None
    layout = found.judgement.layout
    assert (layout.tp, layout.pp, layout.cp, layout.vp) == (4, 4, 2, 5)
    assert "llama3_70b_pretrain_64gpu_h100_bf16_config" in found.name
    fp8 = override_training(workload, precision=Precision.FP8)
    other = vendor_layout(fp8, cluster, SolveOptions())
    assert other is None or other.name != found.name
    assert vendor_layout(load_workload("bloom-176b"), cluster, SolveOptions()) is None


def test_published_layouts_are_of_known_models_and_formats() -> None:
    """Every row names a built-in model, a catalog GPU and a number format; degrees fit the GPUs."""
    formats = {one.value for one in Precision}
    for one in published_layouts():
        assert one.precision in formats and find_gpu(one.gpu)
        assert load_workload(one.model).model.layers >= one.pp * one.vp - 2
        assert one.gpus % (one.tp * one.cp * one.pp) == 0, one.name
