"""Mixed stacks: hybrids, dense layers between sparse ones and encoder towers load, are priced by kind, split and proven."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from layoutopt.optimizer.cost.batch import batch_of_one
from layoutopt.optimizer.cost.factory import build_cost_model
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.report.json_forms import plan_to_plain
from layoutopt.optimizer.report.verification import verify_plan
from layoutopt.optimizer.solve.api import solve_layout
from layoutopt.optimizer.solve.plan import SolveOptions
from layoutopt.optimizer.space.options import SpaceOptions
from layoutopt.optimizer.specs.layer_runs import by_layer
from layoutopt.optimizer.specs.layout import Layout
from layoutopt.optimizer.specs.loading import load_cluster, load_workload
from layoutopt.optimizer.specs.stage_split import model_order
from layoutopt.optimizer.specs.vocabulary import Schedule

if TYPE_CHECKING:
    from pathlib import Path

    from layoutopt.optimizer.solve.plan import Plan
    from layoutopt.optimizer.specs.model import ModelSpec
    from layoutopt.optimizer.specs.workload import Workload

SIZES = """\
architecture:
  hidden: 4096
  heads: 32
  kv_heads: 8
  ffn: 16384
  vocab: 64000
"""
USED = {
    "mamba": "  mamba: {heads: 128, head_dim: 64, state: 128}\n",
    "moe": "  moe: {experts: 8, top_k: 2, ffn: 4096}\n",
}
TRAINING = """
training:
  sequence_length: 8192
  global_batch: 64
  precision: bf16
"""
STACKS = {
    "hybrid": "    - {pattern: [mamba, mlp, mamba, mlp, attention, mlp], count: 6}\n    - {kind: mamba, count: 2}\n",
    "alternating": "    - {pattern: [dense, moe], count: 10}\n    - {kind: dense}\n",
    "mamba-experts": "    - {pattern: [mamba, moe, mamba-moe], count: 6}\n",
    "tower": "    - {kind: dense, count: 12, bidirectional: true, ffn: 4096}\n    - {kind: dense, count: 16}\n",
}
"""Blocks of an attention and Mamba hybrid, of dense layers between sparse ones, of both, and of an encoder in front."""


def stack(folder: Path, blocks: str) -> Workload:
    """Load a model of some blocks."""
    path = folder / "model.yaml"
    used = "".join(text for kind, text in USED.items() if kind in blocks)
    path.write_text(f"{SIZES}{used}  blocks:\n{blocks}{TRAINING}")
    return load_workload(path)


def solved(workload: Workload, framework: Framework = Framework.ANY) -> Plan:
    """Solve a stack on a pipeline of 32 GPUs with small axes."""
    space = SpaceOptions(
        min={"pp": 2},
        max={"pp": 8, "vp": 2, "tp": 4, "cp": 2, "ep": 4},
        fix={"mesh_order": ("tp-cp-ep-dp-pp",)},
        schedules=tuple(Schedule),
        micro_batches=(1, 2),
    )
    options = SolveOptions(framework=framework, space=space)
    return solve_layout(workload, load_cluster("h100x32"), options)


def kinds_by_position(layout: Layout, model: ModelSpec) -> list[dict[str, int]]:
    """Count every stage's kinds by walking over the model's layers in its order."""
    names = {run.block[0]: run.name for run in by_layer(model).runs}
    left, found = [names[shape] for shape in model.shapes], [dict[str, int]() for _ in layout.stages]
    for place in model_order(layout.pp, layout.vp, layout.schedule):
        own, left = left[: layout.stages[place].layers], left[layout.stages[place].layers :]
        found[place] = dict(Counter(own))
    assert not left
    return found


@pytest.mark.parametrize("name", STACKS)
def test_blocks_are_priced_by_kind(tmp_path: Path, name: str) -> None:
    """Every kind of layer has its own time and memory, whatever layers are around it."""
    model = by_layer(stack(tmp_path, STACKS[name]).model)
    training, cluster = stack(tmp_path, STACKS[name]).training, load_cluster("h100x32")

    def per_layer(spec: ModelSpec) -> tuple[np.ndarray, np.ndarray]:
        cost = build_cost_model(spec, training, cluster, framework=Framework.ANY)
        units = cost.micro_batch_units(batch_of_one(Layout(tp=2, sp=True, dp=16, micro_batches=4))).units
        total = units.blocks_of("forward_s") + units.blocks_of("backward_s")
        return total[0], units.blocks_of("kept_bytes")[0]

    seconds, kept = per_layer(model)
    for index, run in enumerate(model.runs):
        alone = per_layer(replace(model, runs=(replace(run, count=1),), order=()))
        assert seconds[index] == pytest.approx(alone[0][0], rel=1e-9)
        assert kept[index] == pytest.approx(alone[1][0], rel=1e-9)
    assert len(set(np.round(seconds, 9))) == len(model.runs)


@pytest.mark.parametrize("name", STACKS)
def test_optimum_splits_contiguously_and_is_verified(tmp_path: Path, name: str) -> None:
    """The stages hold the stack in its order, nothing twice, and the independent check accepts the proof."""
    workload = stack(tmp_path, STACKS[name])
    plan = solved(workload)
    assert plan.status.value == "optimal"
    assert plan.layout is not None
    assert [stage.kinds for stage in plan.layout.stages] == kinds_by_position(plan.layout, workload.model)
    report = verify_plan(plan_to_plain(plan))
    assert report.accepted, report


def test_stages_are_balanced_by_kind(tmp_path: Path) -> None:
    """Behind a light encoder tower, a pipeline's first stages hold more layers than its last, and ranks take like time."""
    workload = stack(tmp_path, STACKS["tower"])
    small = replace(workload, model=replace(workload.model, vocab=1024))
    space = SpaceOptions(
        fix={"pp": (4,), "tp": (1,), "vp": (1,), "zero": (1,), "mesh_order": ("tp-cp-ep-dp-pp",)}
    )
    plan = solve_layout(small, load_cluster("h100x32"), SolveOptions(framework=Framework.ANY, space=space))
    assert plan.layout is not None
    assert plan.estimate is not None
    layers = [stage.layers for stage in plan.layout.stages]
    assert layers[0] > layers[-1]
    assert max(plan.estimate.rank_time_s) < 1.2 * min(plan.estimate.rank_time_s)
