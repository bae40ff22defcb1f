"""Stacks of alternating kinds are cut behind any layer: priced, searched, proven, written and read alike.

The model: 48 layers of which every fourth attends to all keys and the others within a window, the first three dense, the
rest of 64 experts. Its period of four and its three dense layers leave no equal stages of whole periods.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from layoutopt.cli import main
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.report.json_forms import plan_to_plain
from layoutopt.optimizer.report.verification import verify_plan
from layoutopt.optimizer.solve.api import solve_layout
from layoutopt.optimizer.solve.plan import SolveOptions
from layoutopt.optimizer.space.options import SpaceOptions
from layoutopt.optimizer.specs.loading import load_cluster, load_workload

if TYPE_CHECKING:
    from pathlib import Path

    from layoutopt.optimizer.solve.plan import Plan

MODEL = """\
architecture:
  layers: 48
  hidden: 4096
  heads: 32
  kv_heads: 8
  head_dim: 128
  ffn: 14336
  vocab: 128256
  sliding_window: {window: 4096, pattern: [PATTERN]}
  moe: {experts: 64, top_k: 4, ffn: 2048, dense_layers: 3}
training: {sequence_length: 8192, global_batch: 1024, precision: bf16}
"""
SCRIPT = """\
torchrun --nproc-per-node 8 --nnodes 64 pretrain_gpt.py --num-layers 48 --hidden-size 4096 --ffn-hidden-size 14336 \\
  --num-attention-heads 32 --group-query-attention --num-query-groups 8 --kv-channels 128 --seq-length 8192 \\
  --max-position-embeddings 8192 --swiglu --normalization RMSNorm --untie-embeddings-and-output-weights \\
  --disable-bias-linear --position-embedding-type rope --vocab-size 128256 --window-size 4095,0 \\
  --window-attn-skip-freq 4 --num-experts 64 --moe-router-topk 4 --moe-ffn-hidden-size 2048 \\
  --moe-layer-freq "([0]*3+[1]*45)" --tensor-model-parallel-size 4 --pipeline-model-parallel-size 4 \\
  --expert-model-parallel-size 8 --expert-tensor-parallel-size 1 --sequence-parallel --micro-batch-size 1 \\
  --global-batch-size 1024 --bf16 --use-distributed-optimizer --moe-token-dispatcher-type alltoall
"""
WINDOW, FULL = "sliding, sliding, sliding, full", "sliding"


def answered(*words: str) -> dict[str, Any]:
    """Run a command and return its JSON."""
    result = CliRunner().invoke(main, [*words, "--json"])
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def asked(folder: Path, pattern: str, **fixed: Any) -> Plan:
    """Solve the model at pp 8 on 512 H200."""
    path = folder / "model.yaml"
    path.write_text(MODEL.replace("PATTERN", pattern))
    space = SpaceOptions(fix={"pp": (8,)} | {name: (value,) for name, value in fixed.items()})
    return solve_layout(
        load_workload(path), load_cluster("h200x512"), SolveOptions(framework=Framework.MEGATRON, space=space)
    )


def test_the_script_has_twelve_layers_a_stage(tmp_path: Path) -> None:
    """PP 4 of the script holds 12 layers on every rank, the phase of the pattern counted through."""
    script = tmp_path / "train.sh"
    script.write_text(SCRIPT)
    found = answered("evaluate", "--from", str(script), "--cluster", "h200x512")
    assert found["verdict"] == "fits"
    assert [stage["kinds"] for stage in found["layout"]["stages"]] == [
        {"dense-window": 3, "moe": 3, "moe-window": 6},
        *[{"moe": 3, "moe-window": 9}] * 3,
    ]


def test_any_cut_is_priced(tmp_path: Path) -> None:
    """The rank of 14 layers decides the step: it is longer where one more of them attends to all keys."""
    path = tmp_path / "model.yaml"
    path.write_text(MODEL.replace("PATTERN", WINDOW))
    steps, full = [], []
    for stages in ("12/14/10/12", "11/14/11/12"):
        layout = f"tp=4,pp=4,ep=8,micro_batch=1,stages={stages}"
        found = answered("evaluate", str(path), "h200x512", "--layout", layout)
        steps.append(found["estimate"]["step_time_s"])
        full.append(found["layout"]["stages"][1]["kinds"]["moe"])
    assert full == [3, 4]
    assert steps[1] > steps[0] * 1.001


@pytest.mark.parametrize("vp", [1, 3])
def test_a_stack_with_full_layers_is_split_as_well_as_one_without(tmp_path: Path, vp: int) -> None:
    """At pp 8 the pattern's MFU is within 1.2 points of that of the model whose layers are all windowed; both are proven."""
    fixed = {"vp": vp, "tp": 1, "cp": 1, "ep": 8, "micro_batch": 1, "zero": 1}
    mixed, plain = (asked(tmp_path, pattern, **fixed) for pattern in (WINDOW, FULL))
    assert mixed.estimate is not None and plain.estimate is not None and mixed.layout is not None
    assert mixed.status.value == plain.status.value == "optimal"
    assert abs(mixed.estimate.mfu_causal - plain.estimate.mfu_causal) < 0.012
    assert verify_plan(plan_to_plain(mixed)).accepted


def test_solve_at_pp_8(tmp_path: Path) -> None:
    """The same with every other axis open."""
    mixed, plain = (asked(tmp_path, pattern) for pattern in (WINDOW, FULL))
    assert mixed.estimate is not None and plain.estimate is not None
    assert mixed.status.value == plain.status.value == "optimal"
    assert abs(mixed.estimate.mfu_causal - plain.estimate.mfu_causal) < 0.012


def test_export_writes_and_import_reads_the_cuts(tmp_path: Path) -> None:
    """A launch script of the answer, whose stages end inside the pattern, means the same stages."""
    plan = asked(tmp_path, WINDOW, vp=1, tp=1, cp=1, ep=8, micro_batch=1, zero=1)
    assert plan.layout is not None
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(plan_to_plain(plan)))
    exported = CliRunner().invoke(
        main, ["export", str(file), "--to", "megatron", "-o", str(tmp_path / "job")]
    )
    assert exported.exit_code == 0, exported.output
    script = next((tmp_path / "job").glob("*.sh")) if (tmp_path / "job").is_dir() else tmp_path / "job"
    found = answered("evaluate", "--from", str(script), "--cluster", "h200x512")
    assert [stage["kinds"] for stage in found["layout"]["stages"]] == [
        stage.kinds for stage in plan.layout.stages
    ]
